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
"""TPU interpret mode runs SparseCore kernels, with and without race detection.

It runs every subcore as number 0 of its core, so there is one here.
"""

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax.experimental.pallas import tpu as pltpu
from jax_swapext._src import tpu_compiler
import pytest
import sparse_cells
from sparse_cells import LANES
import sparse_tables

_TABLES = sparse_tables.interpreted_cells()


class MosaicScInterpretTest(sparse_cells.TestCase):
  @parameterized.product(table=[*_TABLES], detect_races=(False, True))
  @pytest.mark.slow
  def test_equals_the_reference(self, table, detect_races):
    setting, cells = _TABLES[table]
    for k, cell in enumerate(cells):
      if detect_races and k % 3:
        continue
      with self.subTest(cell.name):
        arguments, inputs = sparse_cells.inputs_of(cell, LANES, seed=k)
        params = pltpu.InterpretParams(detect_races=detect_races)
        # What a kernel is traced for decides how many lanes it has.
        with tpu_compiler.target("v6e"):
          if setting is None:
            kernel = sparse_cells.scalar_kernel(cell, params)
          else:
            kernel = sparse_cells.vector_kernel(cell, LANES, setting, params)
          got = jax.jit(kernel)(*inputs)
        sparse_cells.check(cell, arguments, got)


if __name__ == "__main__":
  absltest.main()
