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
"""The demo's kernels that fit a TPU, compiled by libtpu where it is installed.

No TPU is needed: libtpu compiles for one that is not there, in a child process
which runs this module.
"""

from __future__ import annotations

from collections.abc import Iterator
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import textwrap

import jax
from jax.experimental import pallas as pl
from jax_swapext._src import demo
from jax_swapext._src import tpu_compiler

_GENERATION = "v6e"
_SECONDS = 240


def report(text: bytes) -> Iterator[str]:
  """Lines on the kernels of `demo.demos(text)`, compiled for a TPU."""
  yield f"\nCompiled for TPU {_GENERATION}"
  if importlib.util.find_spec("libtpu") is None:
    yield "  libtpu is not installed; pip install 'jax_swapext[tpu]' gets it"
    return
  with tempfile.TemporaryDirectory() as dump:
    for folder in ("sc", "tc"):
      os.mkdir(os.path.join(dump, folder))
    child = [sys.executable, "-m", __name__, dump]
    paths = [p for p in sys.path if p]
    env = tpu_compiler.environment(dump)
    try:
      done = subprocess.run(
          child, input=text, capture_output=True, timeout=_SECONDS, cwd=dump,
          env=env | {"PYTHONPATH": os.pathsep.join(paths)},
      )
    except subprocess.TimeoutExpired:
      yield f"  libtpu did not finish in {_SECONDS} s"
      return
  results = [
      json.loads(line[1:])
      for line in done.stdout.decode(errors="replace").splitlines()
      if line.startswith("@")
  ]
  for name, call, bundles, error in results:
    row = f"  {name:<12} {call:<20}"
    yield row.rstrip() if error else f"{row} {bundles} bundles"
    yield from (f"         {s}" for s in textwrap.wrap(error, 70))
  if done.returncode:
    said = done.stderr.decode(errors="replace").strip().splitlines()
    yield f"  libtpu's process ended with status {done.returncode}"
    for line in said[-1:]:
      yield from (f"         {s}" for s in textwrap.wrap(line, 70)[:3])


def _compile(text: bytes, dump: str) -> None:
  """Compiles each kernel and prints a line about it for `report`."""
  device = tpu_compiler.device_of(_GENERATION)
  sharding = jax.sharding.SingleDeviceSharding(device)
  for k, example in enumerate(demo.demos(text)):
    if demo.LOWERED not in example.places:
      continue
    call, operations = example.own
    kernel = example.kernel(*operations())
    f = pl.pallas_call(kernel, name=f"kernel{k}", **example.pallas_call)
    shapes = [
        jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
        for x in example.operands
    ]
    bundles, error = None, ""
    try:
      with tpu_compiler.target(_GENERATION):
        jax.jit(f).lower(*shapes).compile()
      bundles = tpu_compiler.tensorcore_bundles(dump, [f"kernel{k}"])
    except Exception as e:  # Whatever was raised is what there is to show.
      error = f"{type(e).__name__}: {e}"[:300]
    print("@" + json.dumps((example.name, call, bundles, error)), flush=True)


if __name__ == "__main__":
  _compile(sys.stdin.buffer.read(), sys.argv[1])
