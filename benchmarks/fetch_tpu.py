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
"""Instructions per update of the TPU kernels of `fetch_*`, and compile time.

Prints, for each TPU generation, the bundles of instructions that one update
takes in the innermost loop of its kernel, scheduled stalls not counted; and the
seconds that compiling for it takes with the compiler's start. No TPU is needed.
"""

import pathlib
import re
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))

from jax_swapext import testing
from oracles import tpu_compile
import xla_tpu_kernels


def main():
  kernels = xla_tpu_kernels.measured()
  generations = tpu_compile.GENERATIONS
  compiled = {
      g: tpu_compile.compile_all("xla_tpu_kernels", "measured", g, text=True)
      for g in generations
  }
  print(f"{'bundles per update':30}" + "".join(f"{g:>9}" for g in generations))
  for name, (cell, _) in kernels.items():
    counts = (per_update(compiled[g][name].text, cell) for g in generations)
    print(f"{name:30}" + "".join(f"{c:9.1f}" for c in counts))
  print(f"\n{'seconds to compile':30}")
  for name in ("add_float32_scalars_need_old", "add_float32_128_need_old"):
    cell, shapes = kernels[name]
    times = []
    for g in generations:
      start = time.perf_counter()
      testing.compile_for(g if g == "tpu7x" else f"tpu-{g}", cell, *shapes)
      times.append(time.perf_counter() - start)
    print(f"{name:30}" + "".join(f"{t:9.1f}" for t in times))


def per_update(text, cell):
  """Bundles of the innermost loop; the lines of its body have most marks."""
  depths = [len(d) for d in re.findall(r"^ *0x\w+ .*?: (>+) \{", text, re.M)]
  # What stands in the lanes of one register is unrolled.
  unrolled = 8 if cell.row in ((), (8,)) else 1
  return depths.count(max(depths)) / unrolled


if __name__ == "__main__":
  main()
