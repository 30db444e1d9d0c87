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
"""SparseCore kernels on HBM and shared memory, run from their modules."""

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
import jax_swapext as jsx
import numpy as np
from oracles import mosaic_ir
import pytest
import sparse_cells
from sparse_cells import LANES
from sparse_cells import Setting
import sparse_tables

_DEFAULT = Setting(layout_passes=True)


def _move(ref, index):
  """A load whose result is used: others are not even lowered."""
  jsx.store(ref, index, jsx.load(ref, index))


class MosaicScRemoteTest(sparse_cells.TestCase):
  @parameterized.product(
    space=("hbm", "vmem_shared"),
    layout_passes=(False, True),
    tiling=(None, False),
  )
  @pytest.mark.slow
  def test_vector_subcore(self, space, layout_passes, tiling):
    setting = Setting(layout_passes, tiling)
    share = 2 * layout_passes + (tiling is None)
    cells = sparse_tables.remote_cells(LANES, space)
    for k, cell in enumerate(cells.values()):
      if k % 5 == share:
        self.check(cell, setting, k)

  @parameterized.product(
    space=("hbm", "vmem_shared"),
    layout_passes=(False, True),
    tiling=(True, False),
  )
  @pytest.mark.slow
  def test_packed_elements(self, space, layout_passes, tiling):
    setting = Setting(layout_passes, tiling)
    # No table's length is a multiple of it: so each form occurs.
    every = 53 if space == "hbm" else 71
    cells = sparse_tables.all_remote_packed_cells(LANES, space, setting)
    for k, cell in enumerate(cells[::every]):
      self.check(cell, setting, k)

  @parameterized.named_parameters(
    (k, c) for k, c in sparse_tables.scalar_remote_cells().items()
  )
  def test_scalar_subcore(self, cell):
    self.check_kernel(cell, sparse_cells.scalar_kernel(cell))

  def _lower(
    self, access, memory, mesh, shape=(64,), dtype=jnp.int32, setting=_DEFAULT
  ):
    def body(x, o, ref):
      access(o if memory is None else ref)

    f = lambda x: pl.kernel(
      body,
      out_type=jax.ShapeDtypeStruct(shape, dtype),
      mesh=mesh(),
      scratch_types=[(memory or pltpu.SMEM)(shape, dtype)],
      compiler_params=setting.params,
    )(x)
    mosaic_ir.lower(f, np.zeros(8, np.int32))

  @parameterized.named_parameters(
    ("atomic", lambda ref: jsx.atomic_add(ref, 3, 1), "not atomic against"),
    ("block", lambda ref: _move(ref, pl.ds(0, 2)), "have one dimension"),
    ("view", lambda ref: _move(ref.bitcast(jnp.float32), (3, 4)), "viewed"),
  )
  def test_vector_subcore_refuses(self, access, why):
    for memory in (None, pltpu.VMEM_SHARED):
      with self.assertRaisesRegex(NotImplementedError, why):
        self._lower(access, memory, sparse_cells.vector_mesh, shape=(8, 128))

  @parameterized.named_parameters(
    ("tiled", (512,), 3, Setting(False, None), "128 words apart"),
    ("rows", (30, 128), (3, 5), Setting(False, True), "are not whole"),
    ("odd", (66,), 3, Setting(False, False), "last word is not whole"),
    ("length", (512,), pl.ds(0, 20), Setting(False, False), "vector has 32"),
    ("block", (32, 128), (pl.ds(0, 4), pl.ds(0, 8)), Setting(True, True),
     "have one dimension"),
  )  # fmt: skip
  def test_packed_elements_refused(self, shape, index, setting, why):
    for memory in (None, pltpu.VMEM_SHARED):
      with self.assertRaisesRegex(NotImplementedError, f"wanted.*{why}"):
        self._lower(
          lambda ref: _move(ref, index), memory, sparse_cells.vector_mesh,
          shape, jnp.int8, setting,
        )  # fmt: skip

  @parameterized.named_parameters(
    ("array", None, lambda ref: _move(ref, pl.ds(0, 8)), "holds scalars"),
    ("shared", pltpu.VMEM_SHARED, lambda ref: jsx.store(ref, 3, 1),
     "no transfer goes"),
    ("rows", None, lambda ref: _move(ref, 3), "blocks of 32 bytes", (60,)),
  )  # fmt: skip
  def test_scalar_subcore_refuses(self, memory, access, why, shape=(64,)):
    with self.assertRaisesRegex(NotImplementedError, why):
      self._lower(access, memory, sparse_cells.scalar_mesh, shape=shape)


if __name__ == "__main__":
  absltest.main()
