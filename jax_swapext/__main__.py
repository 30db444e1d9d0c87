# Copyright 2026 The jax_swapext Authors.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     https://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""`python -m jax_swapext`: what is installed, and three kernels run live.

A fourth is compiled for a Hopper GPU, where the compiler is installed. Exits
with status 1, and a line that starts with FAILED for each, if a result of this
library is not the one that NumPy computes, or if that kernel does not compile.
"""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import platform
import sys
import textwrap

import jax
import jax_swapext as jsx
from jax_swapext._src import demo
from jax_swapext._src import demo_gpu
from jax_swapext._src import demo_tpu

# Of these only the metadata is read: importing them is slow, and may fail.
DISTRIBUTIONS = (
    "jax", "jaxlib", "jax-triton", "libtpu", "jax-cuda13-plugin",
    "jax-cuda12-plugin",
)
COLOURS = {
    "right": 32, "lowers": 32, "compiles": 32, "WRONG": 31, "refused": 33,
}


def main() -> int:
  """Prints the report; returns the exit status."""
  _say("Versions")
  _say(f"  {'python':<18}  {platform.python_version()}")
  _say(f"  {'jax_swapext':<18}  {jsx.__version__}")
  for name in DISTRIBUTIONS:
    _say(f"  {name:<18}  {_version(name)}")

  asked = os.environ.get("JAX_PLATFORMS")
  among = f", of JAX_PLATFORMS={asked}" if asked else ""
  _say(f"\nBackends{among}: looking ...")
  backends = {name: _devices(name) for name in ("cpu", "gpu", "tpu")}
  for name, found in backends.items():
    what = f"{len(found)} x {found[0].device_kind}" if found else "-"
    _say(f"  {name:<18}  {what}")

  text = _license()
  if text is None:
    _say("\nFAILED input: the LICENSE file is neither in the installed package "
         "nor in a checkout around it")
    return 1
  _say(f"\nThree kernels on the LICENSE file, {len(text)} bytes: running ...")
  failures = []
  # The interpreter serves any device; the CPU is the one that is everywhere.
  cpu = backends["cpu"][0] if backends["cpu"] else None
  with jax.default_device(cpu):
    for example in demo.demos(text):
      _say(f"\n{example.name}: {example.title}")
      for attempt in example.attempts():
        _say_attempt(attempt)
        if attempt.is_failure:
          failures.append(
              f"FAILED {example.name}: {attempt.call}, {attempt.place}: "
              f"{attempt.status}, {attempt.detail}"
          )
  failures += _say_warp_store()
  for line in demo_tpu.report(text):
    _say(line)
  _say()
  for failure in failures:
    _say(failure)
  if not failures:
    _say("Every result that jax_swapext gave equals NumPy's.")
  return 1 if failures else 0


def _say_warp_store() -> list[str]:
  """Shows what a warp's store compiles to; returns what failed."""
  _say(f"\nwarp store: {demo_gpu.TITLE}")
  if not demo_gpu.is_available():
    _say(f"  {demo_gpu.MISSING}")
    return []
  failures = []
  for library, (status, detail) in demo_gpu.attempts().items():
    call = demo_gpu.CALLS[library]
    _say_attempt(
        demo.Attempt(library, call, "for Hopper", status, detail)
    )
    if library == "ours" and status != "compiles":
      failures.append(f"FAILED warp store: {call}: {status}, {detail}")
  return failures


def _say_attempt(attempt: demo.Attempt) -> None:
  library, call, place, status, detail = attempt
  row = f"  {library:<6} {call:<20} {place:<16} {_coloured(status)}"
  if status in ("right", "WRONG"):
    _say(f"{row} {detail}")
    return
  _say(row.rstrip())
  for line in textwrap.wrap(detail, 70):
    _say(f"         {line}")


def _coloured(status: str) -> str:
  padded = f"{status:<7}"
  plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
  if plain or not sys.stdout.isatty():
    return padded
  return f"\x1b[{COLOURS[status]}m{padded}\x1b[0m"


def _say(line: str = "") -> None:
  print(line, flush=True)


def _version(distribution: str) -> str:
  try:
    return importlib.metadata.version(distribution)
  except importlib.metadata.PackageNotFoundError:
    return "-"


def _devices(backend: str) -> list[jax.Device]:
  try:
    return jax.devices(backend)
  except RuntimeError:  # This is how JAX says that there is none.
    return []


def _license() -> bytes | None:
  """The LICENSE file: of the installed package, or of the checkout around."""
  paths = [pathlib.Path(__file__).resolve().parents[1] / "LICENSE"]
  try:
    files = importlib.metadata.files("jax_swapext") or []
  except importlib.metadata.PackageNotFoundError:
    files = []
  # The package's own first: beside an installed package lies anybody's.
  paths[:0] = [pathlib.Path(f.locate()) for f in files if f.name == "LICENSE"]
  return next((p.read_bytes() for p in paths if p.is_file()), None)


if __name__ == "__main__":
  sys.exit(main())
