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
"""`python -m jax_swapext`: what is installed, and headline kernels run live.

Some are compiled for a TPU and a Hopper GPU too, where the compilers are
installed. Exits with status 1, and a line that starts with FAILED for each, if
a place lacks a rule that the support matrix promises, if a result of this
library is not the one that NumPy computes, or if it refuses a kernel.

With `--json`, standard output is one JSON object, for machines and for reports
of bugs; what is otherwise printed there goes to standard error.
"""

from __future__ import annotations

import argparse
from collections.abc import Generator, Iterable, Iterator, Sequence
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import sys
import textwrap
from typing import Any

import jax
import jax_swapext as jsx
from jax_swapext._src import demo
from jax_swapext._src import demo_arrays
from jax_swapext._src import demo_gpu
from jax_swapext._src import demo_tpu
from jax_swapext._src.pallas import registered

# Of these only the metadata is read: importing them is slow, and may fail.
DISTRIBUTIONS = (
    "jax", "jaxlib", "jax-triton", "libtpu", "jax-cuda13-plugin",
    "jax-cuda12-plugin",
)
COLOURS = {
    "right": 32, "lowers": 32, "compiles": 32, "WRONG": 31, "refused": 33,
}


def main(argv: Sequence[str] | None = None) -> int:
  """Prints the report; returns the exit status."""
  parser = argparse.ArgumentParser(
      prog="python -m jax_swapext",
      description="Shows what is installed, and headline kernels run live.",
  )
  parser.add_argument(
      "--json", action="store_true",
      help="print one JSON object, and the report on standard error",
  )
  if not parser.parse_args(argv).json:
    return 1 if _report()["failures"] else 0
  with contextlib.redirect_stdout(sys.stderr):
    report = _report()
  _say(json.dumps(report, indent=2))
  return 1 if report["failures"] else 0


def _report() -> dict[str, Any]:
  """Prints each part as it is found out, and returns them all."""
  versions = _say_versions()
  asked = os.environ.get("JAX_PLATFORMS") or None
  backends, cpu = _say_backends(asked)
  extras = _say_extras()
  missing = _say_rules()
  failures = [f"FAILED rules: {line}" for line in missing]

  text = _license()
  kernels = []
  if text is None:
    failures.append(
        "FAILED input: the LICENSE file is neither in the installed package "
        "nor in a checkout around it"
    )
  else:
    _say(f"\nKernels on the LICENSE file, {len(text)} bytes: running ...")
    # The interpreter serves any device; the CPU is the one that is everywhere.
    with jax.default_device(cpu):
      for name, title, attempts in _kernels(text):
        _say(f"\n{name}: {title}")
        made = []
        for attempt in attempts:
          _say_attempt(attempt)
          made.append(attempt._asdict())
          if attempt.is_failure:
            failures.append(
                f"FAILED {name}: {attempt.call}, {attempt.place}: "
                f"{attempt.status}, {attempt.detail}"
            )
        kernels.append(dict(name=name, title=title, attempts=made))

  _say()
  for failure in failures:
    _say(failure)
  if not failures:
    _say("Every result that jax_swapext gave equals NumPy's.")
  return dict(
      versions=versions, platform=platform.platform(), jax_platforms=asked,
      backends=backends, extras=extras, missing_rules=missing,
      input_bytes=None if text is None else len(text), kernels=kernels,
      failures=failures,
  )


def _kernels(
    text: bytes
) -> Iterator[tuple[str, str, Iterable[demo.Attempt]]]:
  """Name, title and attempts of each kernel."""
  for example in demo.demos(text):
    yield example.name, example.title, _attempts(example)
  yield demo_arrays.NAME, demo_arrays.TITLE, demo_arrays.attempts(text)
  yield demo_gpu.NAME, demo_gpu.TITLE, _warp_store_attempts()


def _attempts(example: demo.Demo) -> Iterator[demo.Attempt]:
  yield from example.attempts()
  if demo.LOWERED in example.places and demo_tpu.is_available():
    with _waiting(f"compiling {example.name} for {demo_tpu.TARGET}"):
      attempt = demo_tpu.attempt(example)
    yield attempt


def _warp_store_attempts() -> Iterator[demo.Attempt]:
  if not demo_gpu.is_available():
    _say(f"  {demo_gpu.MISSING}")
    return
  for library in demo_gpu.CALLS:
    with _waiting(f"compiling {demo_gpu.NAME} for {demo_gpu.TARGET}"):
      attempt = demo_gpu.attempt(library)
    yield attempt


@contextlib.contextmanager
def _waiting(what: str) -> Generator[None]:
  """Says on standard error what is waited for; a terminal forgets it after."""
  forget = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
  end = "" if forget else "\n"
  print(f"  {what} ...", end=end, file=sys.stderr, flush=True)
  try:
    yield
  finally:
    if forget:
      print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _say_versions() -> dict[str, str | None]:
  versions: dict[str, str | None] = {
      "python": platform.python_version(), "jax_swapext": jsx.__version__,
  }
  versions |= {name: _version(name) for name in DISTRIBUTIONS}
  _say("Versions")
  for name, version in versions.items():
    _say(f"  {name:<18}  {version or '-'}")
  return versions


def _say_backends(
    asked: str | None
) -> tuple[dict[str, dict[str, Any] | None], jax.Device | None]:
  """Returns what is there, and a CPU."""
  among = f", of JAX_PLATFORMS={asked}" if asked else ""
  _say(f"\nBackends{among}: looking ...")
  backends: dict[str, dict[str, Any] | None] = {}
  for name in ("cpu", "gpu", "tpu"):
    found = _devices(name)
    kind = found[0].device_kind if found else ""
    backends[name] = dict(count=len(found), kind=kind) if found else None
    _say(f"  {name:<18}  {f'{len(found)} x {kind}' if found else '-'}")
  return backends, next(iter(_devices("cpu")), None)


def _say_extras() -> dict[str, dict[str, bool]]:
  extras = {
      "tpu": {"compiler": demo_tpu.is_available()},
      "cuda": {
          "compiler": demo_gpu.is_available(),
          "jax_triton": importlib.util.find_spec("jax_triton") is not None,
      },
  }
  _say("\nExtras")
  for extra, parts in extras.items():
    absent = [part for part, there in parts.items() if not there]
    what = "complete"
    if absent:
      what = f"no {', '.join(absent)}: pip install 'jax_swapext[{extra}]'"
    _say(f"  {extra:<18}  {what}")
  return extras


def _say_rules() -> list[str]:
  _say("\nRules, at all places of jsx.support(): looking ...")
  missing = registered.missing()
  for line in missing or ["complete"]:
    _say(f"  {line}")
  return missing


def _say_attempt(attempt: demo.Attempt) -> None:
  row = f"  {attempt.library:<6} {attempt.call:<20} {attempt.place:<16}"
  row = f"{row} {_coloured(attempt.status)}"
  if len(attempt.detail) <= 24 and attempt.status != "refused":
    _say(f"{row} {attempt.detail}".rstrip())
    return
  _say(row.rstrip())
  for line in textwrap.wrap(attempt.detail, 70):
    _say(f"         {line}")


def _coloured(status: str) -> str:
  padded = f"{status:<7}"
  plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
  if plain or not sys.stdout.isatty():
    return padded
  return f"\x1b[{COLOURS[status]}m{padded}\x1b[0m"


def _say(line: str = "") -> None:
  print(line, flush=True)


def _version(distribution: str) -> str | None:
  try:
    return importlib.metadata.version(distribution)
  except importlib.metadata.PackageNotFoundError:
    return None


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
