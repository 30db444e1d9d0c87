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
"""What updates of arrays become on a GPU: PTX instructions of their kernels.

Prints, for kernels as large updates get them on an H200, the instructions of
the PTX, how many of them access global memory and how, the barriers, and the
shared memory of a tile. No GPU is needed. These are static counts: loops run
their part several times (sorting a tile of 4096 makes 78 rounds).
"""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))

import xla_cuda_kernels as kernels
from xla_cuda_kernels import Update

N, ROWS = 10**6, 10**5
CELLS = [
    ("add", "int32"), ("add", "float32"), ("add", "bfloat16"), ("add", "int8"),
    ("max", "int32"), ("max", "float32"), ("xchg", "float32"), ("cas", "int32"),
    ("or", "bool"),
]
FORMS = {
    'order="any"': dict(order="any"),
    "  without old values": dict(order="any", need_old=False),
    "  of rows of 64": dict(order="any", columns=64),
    'order="index"': dict(order="index"),
    "  of rows of 64 ": dict(order="index", columns=64),
    "unique_indices": dict(order="index", unique=True),
}
ROOTS = ("atom.", "red.", "ld.global", "st.global", "bar.")


def count(ptx):
  """(instructions, those of each root)."""
  lines = [line.strip() for line in ptx.splitlines()]
  code = [re.sub(r"^@!?%p\d+\s+", "", line) for line in lines]
  code = [c for c in code if re.match(r"[a-z]\w*(\.[\w:]+)*\s.*;|ret;", c)]
  return len(code), [sum(c.startswith(root) for c in code) for root in ROOTS]


def main():
  if not kernels.available():
    sys.exit("jax_triton or JAX's CUDA plugin is not installed.")
  updates = {
      (form, op, dtype): Update(
          op, dtype, n=N, rows=ROWS, tile=None, masked=False, **params)
      for form, params in FORMS.items() for op, dtype in CELLS
  }
  launches = kernels.compiled(updates.values())
  print(f"{N:.0e} updates of a table of {ROWS:.0e} elements or rows, no mask")
  print(f"{'':22}{'op':5}{'dtype':10}{'PTX':>6}" + "".join(
      f"{root:>10}" for root in ROOTS) + f"{'shared':>8}{'programs':>9}")
  for (form, op, dtype), update in updates.items():
    launch = launches[update]
    total, counts = count(launch.ptx)
    label = form if (op, dtype) == CELLS[0] else ""
    print(f"{label:22}{op:5}{dtype:10}{total:6}" + "".join(
        f"{c:10}" for c in counts) + f"{launch.shared:8}{launch.programs:9}")


if __name__ == "__main__":
  main()
