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
"""The process in which `compile_for` compiles.

    python -m jax_swapext._src.compile_child TARGET PROGRAM DUMP [DONATED...]

PROGRAM is an exported function, DUMP the folder that the compiler writes to,
DONATED the number of an argument.
What came out goes to PROGRAM.json, as a whole or not at all.
"""

from __future__ import annotations

import json
import pathlib
import re
import sys
from typing import Any

import jax
from jax import export
from jax_swapext._src import gpu_compiler
from jax_swapext._src import tpu_compiler


def _compile(target: str, program: bytes, dump: str, donated: list[int]):
  is_tpu = target.startswith("tpu")
  compiler: Any = tpu_compiler if is_tpu else gpu_compiler
  exported = export.deserialize(bytearray(program))
  sharding = jax.sharding.SingleDeviceSharding(compiler.devices_of(target)[0])
  specs = [
      jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding)
      for a in exported.in_avals
  ]

  def call(*leaves):
    args, kwargs = exported.in_tree.unflatten(leaves)
    return exported.call(*args, **kwargs)

  # A function without arguments learns from its results where it runs.
  run = jax.jit(call, out_shardings=sharding, donate_argnums=donated)
  compiled = run.lower(*specs).compile()
  memory = compiled.memory_analysis()
  hlo = compiled.as_text() or ""
  found = {
      "hlo": hlo,
      "temporary_bytes": getattr(memory, "temp_size_in_bytes", None),
  }
  if not is_tpu:
    ptx = gpu_compiler.ptx(dump, hlo) or None
    return found | {"ptx": ptx, "registers": gpu_compiler.registers(dump)}
  # The assembly of a kernel has the name of the instruction that calls it.
  kernels = re.findall(
      r'%(\S+) = [^\n]* custom_call_target="tpu_custom_call"', hlo
  )
  bundles, cycles = tpu_compiler.tensorcore_bundles(dump, kernels), None
  if bundles is None:
    bundles, cycles, _ = tpu_compiler.sparsecore_bundles(dump)
  return found | {"bundles": bundles, "cycles": cycles}


def main(target: str, program: str, dump: str, *donated: str) -> None:
  """Compiles, and writes the answer."""
  path = pathlib.Path(program)
  try:
    found = _compile(target, path.read_bytes(), dump, [*map(int, donated)])
  except Exception as e:  # Whatever was raised is what there is to tell.
    found = {"error": f"{type(e).__name__}: {e}"}
  part = path.with_suffix(".part")
  part.write_text(json.dumps(found))
  part.rename(path.with_suffix(".json"))


if __name__ == "__main__":
  main(*sys.argv[1:])
