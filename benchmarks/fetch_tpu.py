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

Prints, for each TPU generation:

* the bundles of instructions that one update takes in the innermost loop of its
  TensorCore kernel, scheduled stalls not counted;
* the cycles, bundles and scheduled stalls, that every SparseCore subcore takes
  to look at an update, that the one which has to apply it takes then, and what
  both come to per update when all subcores have their share;
* the seconds that compiling takes with the compiler's start.

No TPU is needed. Waiting for memory is in none of these.
"""

import pathlib
import re
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))

from jax_swapext import testing
from jax_swapext._src import tpu_compiler
from oracles import tpu_compile
import xla_sc_kernels
import xla_tpu_kernels


def main():
  print_tensorcore()
  print_sparsecore()
  print_seconds()


def print_tensorcore():
  generations = tpu_compile.GENERATIONS
  compiled = compile_measured("xla_tpu_kernels", generations)
  print(header("TensorCore: bundles", generations, 9))
  for cell in xla_tpu_kernels.measured_cells():
    counts = (
        per_update(compiled[g][cell.name].text, cell) for g in generations
    )
    print(f"{cell.name:32}" + "".join(f"{c:9.1f}" for c in counts))


def print_sparsecore():
  generations = tpu_compile.SPARSE_GENERATIONS
  compiled = compile_measured("xla_sc_kernels", generations)
  print(header("SparseCore: cycles", generations, 24))
  print(" " * 32 + f"{'look   apply    both':>24}" * len(generations))
  for cell in xla_sc_kernels.measured_cells():
    line = f"{cell.name:32}"
    for g in generations:
      kind = tpu_compiler.abstract_device(g).device_kind
      with tpu_compiler.target(g):
        plan = xla_tpu_kernels.plan(
            cell, xla_sc_kernels.MEASURED_UPDATES, kind
        )
      look, apply = look_and_apply(
          compiled[g][cell.name].text, cell, plan.lanes
      )
      both = look + apply / plan.workers
      line += f"{look:8.2f}{apply:8.1f}{both:8.2f}"
    print(line)


def print_seconds():
  generations = tpu_compile.GENERATIONS
  print(header("seconds to compile", generations, 9))
  for cells, name, updates in (
      (xla_tpu_kernels, "add_float32_scalars_need_old", 1000),
      (xla_tpu_kernels, "add_float32_128_need_old", 100_000),
      (xla_sc_kernels, "add_float32_scalars_need_old", 1_000_000),
      (xla_sc_kernels, "add_float32_128_need_old", 10_000),
  ):
    [cell] = (c for c in cells.measured_cells() if c.name == name)
    times = []
    for g in generations:
      start = time.perf_counter()
      testing.compile_for(
          g if g == "tpu7x" else f"tpu-{g}", cell, *cell.shapes(updates)
      )
      times.append(time.perf_counter() - start)
    print(f"{name:32}" + "".join(f"{t:9.1f}" for t in times))


def header(title, generations, width):
  return f"\n{title:32}" + "".join(f"{g:>{width}}" for g in generations)


def compile_measured(module, generations):
  return {
      g: tpu_compile.compile_all(module, "measured", g, text=True)
      for g in generations
  }


def per_update(text, cell):
  """Bundles of the innermost loop; the lines of its body have most marks."""
  depths = [len(d) for d in re.findall(r"^ *0x\w+ .*?: (>+) \{", text, re.M)]
  # What stands in the lanes of one register is unrolled.
  unrolled = 8 if cell.row in ((), (8,)) else 1
  return depths.count(max(depths)) / unrolled


def look_and_apply(text, cell, lanes):
  """Cycles per update of the loops that look for updates and apply them."""
  look, apply = 0.0, 0.0
  for body in innermost_loops(text):
    cycles = len(re.findall(r"^0x\w+:", body, re.M)) + sum(
        int(s, 16) for s in re.findall(r"sdelay \$0x(\w+)", body)
    )
    if "vadd.scan" in body:
      look = cycles / (body.count("vadd.scan") * lanes)
    elif not cell.row:
      # Of the others only that one reads by position; repeats are in it.
      apply += "vld.idx" in body and cycles / lanes
    elif "stream" in body or "swait" in body or "fence" in body:
      apply += cycles
    elif stores := len(re.findall(r"\bvst\b", body)):
      words = lanes * stores / (1 + cell.need_old)
      apply += cycles * cell.row[0] / words
  return look, apply


def innermost_loops(text):
  """The instructions from each label to the branch back to it."""
  at = {m[1]: m.start() for m in re.finditer(r"^(\.LBB\w+):", text, re.M)}
  # A branch takes effect behind the next two bundles.
  branch = r"sbr\.rel @\w+ (\.LBB\w+)-(?:.*\n)+?(?:0x(?:.*\n)+?){2}(?=0x|\.|$)"
  loops = [
      (at[m[1]], m.end())
      for m in re.finditer(branch, text)
      if at[m[1]] <= m.start()
  ]
  for start, end in loops:
    if not any(
        start <= a and b <= end for a, b in loops if (a, b) != (start, end)
    ):
      yield text[start:end]


if __name__ == "__main__":
  main()
