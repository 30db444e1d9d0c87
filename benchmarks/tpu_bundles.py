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
"""Bundles of TensorCore accesses beside the same written by hand.

Prints, for each TPU generation, the scheduled instruction bundles of a kernel
with one access: ours and the tuned form in stock operations, both compiled by
libtpu here and now. No TPU is needed.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))

from oracles import tpu_compile


def main():
  generations = ("v5e", "v6e", "tpu7x")
  tables = {
    g: tpu_compile.compile_all("mosaic_tpu_compile_test", "bundle_kernels", g)
    for g in generations
  }
  names = sorted({name.rsplit(" ", 1)[0] for name in tables["v6e"]})
  print(
    f"{'access':26}" + "".join(f"{g + ' ours/hand':>18}" for g in generations)
  )
  for name in names:
    cells = (
      f"{t[name + ' ours'].bundles}/{t[name + ' hand'].bundles}"
      for t in tables.values()
    )
    print(f"{name:26}" + "".join(f"{c:>18}" for c in cells))


if __name__ == "__main__":
  main()
