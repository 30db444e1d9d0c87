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
from sparse_cells import Setting
import sparse_tables

_LINEAR = Setting(layout_passes=False, tiling=False)
_TILED = Setting(layout_passes=False, tiling=True)
_BOXES = Setting(layout_passes=True, tiling=True)


def _vector(setting):
  def kernel(cell, interpret):
    return sparse_cells.vector_kernel(cell, LANES, setting, interpret)

  return kernel


# name -> (cells, of which every n-th runs, what makes a kernel of one)
_TABLES = {
  "vmem": (sparse_tables.vmem_cells(LANES), 61, _vector(Setting())),
  "flags": (sparse_tables.flag_cells(LANES), 11, _vector(Setting())),
  "boxes": (sparse_tables.box_cells(LANES), 29, _vector(_BOXES)),
  "int8": (
    sparse_tables.packed_cells(LANES, "int8", _LINEAR), 23, _vector(_LINEAR),
  ),
  "bfloat16": (
    sparse_tables.packed_cells(LANES, "bfloat16", _TILED), 19, _vector(_TILED),
  ),
  "hbm": (sparse_tables.remote_cells(LANES, "hbm"), 31, _vector(Setting())),
  "vmem_shared": (
    sparse_tables.remote_cells(LANES, "vmem_shared"), 7, _vector(Setting()),
  ),
  "smem": (
    sparse_tables.smem_vector_cells(), 7, _vector(Setting()),
  ),
  "scalar_subcore": (
    sparse_tables.smem_cells() | sparse_tables.scalar_remote_cells(), 13,
    sparse_cells.scalar_kernel,
  ),
}  # fmt: skip


def cells(table):
  """The cells that are interpreted, of all of a table."""
  all_cells, every, _ = _TABLES[table]
  chosen = [*all_cells.values()][::every]
  if table in ("int8", "bfloat16") and not sparse_cells.BITCASTS:
    # Vectors of narrow elements cannot even enter a kernel.
    chosen = [c for c in chosen if c.region_shape == ()]
  return chosen


class MosaicScInterpretTest(sparse_cells.TestCase):
  @parameterized.product(table=[*_TABLES], detect_races=(False, True))
  @pytest.mark.slow
  def test_equals_the_reference(self, table, detect_races):
    _, _, kernel_of = _TABLES[table]
    for k, cell in enumerate(cells(table)):
      if detect_races and k % 3:
        continue
      with self.subTest(cell.name):
        arguments, inputs = sparse_cells.inputs_of(cell, LANES, seed=k)
        params = pltpu.InterpretParams(detect_races=detect_races)
        # What a kernel is traced for decides how many lanes it has.
        with tpu_compiler.target("v6e"):
          got = jax.jit(kernel_of(cell, params))(*inputs)
        sparse_cells.check(cell, arguments, got)


if __name__ == "__main__":
  absltest.main()
