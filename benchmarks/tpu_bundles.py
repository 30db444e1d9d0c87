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
"""Costs of TPU accesses beside the same written by hand.

Prints, for each TPU generation, what a kernel with one access comes to: ours
and the tuned form in stock operations, both compiled by libtpu here and now.
On the TensorCore those are scheduled instruction bundles; on the SparseCore
also cycles, which are bundles and the stalls scheduled into them. No TPU is
needed.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))

from oracles import tpu_compile

_TABLES = {
  "TensorCore, bundles": (
    "tpu_costs",
    {g: "kernels" for g in ("v5e", "v6e", "tpu7x")},
  ),
  "SparseCore, bundles, cycles": (
    "sparse_costs",
    {"v5p": "kernels_8", "v6e": "kernels_8", "tpu7x": "kernels_16"},
  ),
}


def _cost(compiled: tpu_compile.Compiled) -> str:
  if compiled.cycles is None:
    return str(compiled.bundles)
  return f"{compiled.bundles},{compiled.cycles}"


def main():
  for title, (module, factories) in _TABLES.items():
    tables = {
      g: tpu_compile.compile_all(module, factory, g)
      for g, factory in factories.items()
    }
    heads = (f"{g + ' ours/hand':>18}" for g in tables)
    print(f"{title:28}" + "".join(heads))
    names = sorted({n.rsplit(" ", 1)[0] for n in next(iter(tables.values()))})
    for name in names:
      cells = (
        f"{_cost(t[name + ' ours'])}/{_cost(t[name + ' hand'])}"
        for t in tables.values()
      )
      print(f"{name:28}" + "".join(f"{c:>18}" for c in cells))
    print()


if __name__ == "__main__":
  main()
