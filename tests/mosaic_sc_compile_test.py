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
"""SparseCore kernels through the real compiler of every TPU that has one."""

import itertools

from absl.testing import absltest
from absl.testing import parameterized
import jax
import numpy as np
from oracles import mosaic_ir
from oracles import tpu_compile
import pytest
import sparse_cells
from sparse_cells import Setting
import sparse_costs
import sparse_tables

_GENERATIONS = tpu_compile.SPARSE_GENERATIONS
_LANES = {"v5p": 8, "v6e": 8, "tpu7x": 16}
_SETTINGS = [*itertools.starmap(Setting, itertools.product(
    (False, True), (None, False)
))]  # fmt: skip


def _cells(lanes):
  """(cell, setting) of all vector-subcore kernels but those on packed ones."""
  tables = [
    (sparse_tables.vmem_cells, 5),
    (sparse_tables.flag_cells, 7),
    (lambda n: sparse_tables.remote_cells(n, "hbm"), 17),
    (lambda n: sparse_tables.remote_cells(n, "vmem_shared"), 17),
  ]
  for table, every in tables:
    for k, cell in enumerate([*table(lanes).values()][::every]):
      yield cell, _SETTINGS[k % len(_SETTINGS)]
  for k, cell in enumerate([*sparse_tables.box_cells(lanes).values()][::7]):
    yield cell, _SETTINGS[2 + k % 2]


def _packed_cells(lanes):
  settings = [*itertools.starmap(Setting, itertools.product(
      (False, True), (True, False)
  ))]  # fmt: skip
  tables = itertools.product(sparse_cells.PACKED, settings)
  for n, (dtype, setting) in enumerate(tables):
    cells = [*sparse_tables.packed_cells(lanes, dtype, setting).values()]
    for cell in cells[n % 31 :: 31]:
      yield cell, setting
  spaces = itertools.product(("hbm", "vmem_shared"), settings)
  for n, (space, setting) in enumerate(spaces):
    cells = sparse_tables.all_remote_packed_cells(lanes, space, setting)
    for cell in cells[11 * n :: 127]:
      yield cell, setting


def _kernels(cells, lanes):
  sparse_cells.ignore_push_warnings()
  out = {}
  for cell, setting in cells:
    _, inputs = sparse_cells.inputs_of(cell, lanes)
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in inputs]
    kernel = sparse_cells.vector_kernel(cell, lanes, setting)
    out[f"{cell.name} {setting}"] = kernel, shapes
  return out


def words_8():
  return _kernels(_cells(8), 8)


def words_16():
  return _kernels(_cells(16), 16)


def packed_8():
  return _kernels(_packed_cells(8), 8)


def packed_16():
  return _kernels(_packed_cells(16), 16)


def scalars():
  """SMEM of both kinds of subcores, and what the scalar one reaches."""
  sparse_cells.ignore_push_warnings()
  smem = sparse_tables.smem_cells()
  remote = sparse_tables.scalar_remote_cells()
  kernels = [(c, sparse_cells.scalar_kernel(c)) for c in smem.values()]
  kernels += [
    (c, sparse_cells.scalar_kernel(c)) for c in [*remote.values()][::2]
  ]
  out = {}
  for cell, kernel in kernels:
    _, inputs = sparse_cells.inputs_of(cell, 8)
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in inputs]
    out[f"scalar {cell.name}"] = kernel, shapes
  return out


def smem_vectors():
  """Eight elements of SMEM at once, the lanes of v5p and v6e."""
  sparse_cells.ignore_push_warnings()
  out = {}
  for name, cell in [*sparse_tables.smem_vector_cells().items()][::5]:
    _, inputs = sparse_cells.inputs_of(cell, 8)
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in inputs]
    out[name] = sparse_cells.vector_kernel(cell, 8), shapes
  return out


class MosaicScCompileTest(sparse_cells.TestCase):
  @parameterized.product(
    generation=_GENERATIONS,
    factory=("words", "packed", "scalars", "smem_vectors"),
  )
  @pytest.mark.slow
  def test_compiles(self, generation, factory):
    lanes = _LANES[generation]
    if factory in ("words", "packed"):
      factory = f"{factory}_{lanes}"
    elif factory == "smem_vectors" and lanes != 8:
      return
    got = tpu_compile.compile_all("mosaic_sc_compile_test", factory, generation)
    self.assertNotEmpty(got)
    failed = {k: c.error[:500] for k, c in got.items() if not c.ok}
    self.assertEqual(failed, {})

  @parameterized.parameters(*_GENERATIONS)
  @pytest.mark.slow
  def test_never_more_than_by_hand(self, generation):
    got = tpu_compile.compile_all(
      "sparse_costs", f"kernels_{_LANES[generation]}", generation
    )
    for name in sparse_costs.ROWS:
      with self.subTest(name):
        ours, hand = got[f"{name} ours"], got[f"{name} hand"]
        self.assertEqual((ours.error, hand.error), ("", ""))
        above = sparse_costs.ABOVE.get(name, 0)
        self.assertLessEqual(ours.bundles, hand.bundles + above)
        self.assertLessEqual(ours.cycles, hand.cycles)

  @pytest.mark.slow
  def test_the_hand_written_rows_mean_the_same(self):
    draw = np.random.default_rng(0)
    v = np.array([5, -7, 60, 2, 9, -3, 80, 1], np.int32)
    for name, row in sparse_costs.ROWS.items():
      x = draw.integers(-99, 99, row.shape).astype(np.int32)
      positions = [np.array([9, 2, 9, 4, 5, 2, 2, 7])]
      if name == "max_at_positions":  # Where none repeats it has a branch.
        positions.append(np.arange(8) * 7 + 3)
      for i in positions:
        with self.subTest(f"{name} {i}"):
          inputs = x, i.astype(np.int32), v
          ours, hand = (
            mosaic_ir.evaluate(row.kernel(access, 8)[0], *inputs)
            for access in (row.ours, row.hand)
          )
          for a, b in zip(ours, hand, strict=True):
            np.testing.assert_array_equal(a, b)


if __name__ == "__main__":
  absltest.main()
