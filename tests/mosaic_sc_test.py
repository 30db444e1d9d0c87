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
"""SparseCore kernels on words of VMEM and SMEM, run from their modules."""

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
import tpu_cells


class MosaicScTest(sparse_cells.TestCase):
  @parameterized.product(
    dtype=("int32", "float32", "uint32"), layout_passes=(False, True)
  )
  @pytest.mark.slow
  def test_words_of_vmem(self, dtype, layout_passes):
    for k, cell in enumerate(sparse_tables.vmem_cells(LANES).values()):
      # Two thirds of them for each choice of passes, all of them for one.
      if cell.dtype == np.dtype(dtype) and k % 3 != layout_passes:
        tiling = (None, False)[k % 2]
        self.check(cell, Setting(layout_passes, tiling), k)

  @parameterized.parameters(False, True)
  def test_flags_of_vmem(self, layout_passes):
    for k, cell in enumerate(sparse_tables.flag_cells(LANES).values()):
      self.check(cell, Setting(layout_passes), k)

  @pytest.mark.slow
  def test_boxes_of_vmem(self):
    for k, cell in enumerate(sparse_tables.box_cells(LANES).values()):
      self.check(cell, Setting(layout_passes=True, tiling=bool(k % 2)), k)

  def _run(self, body, x, scratch, **params):
    f = lambda x: pl.kernel(
      body,
      out_type=jax.ShapeDtypeStruct((8,), x.dtype),
      mesh=sparse_cells.vector_mesh(),
      scratch_types=scratch,
      compiler_params=pltpu.CompilerParams(**params),
    )(x)
    return mosaic_ir.evaluate(f, x)

  @parameterized.named_parameters(
    (k, c) for k, c in sparse_tables.smem_cells().items()
  )
  def test_scalar_subcore(self, cell):
    self.check_kernel(cell, sparse_cells.scalar_kernel(cell))

  @parameterized.named_parameters(
    (k, c)
    for k, c in (
      sparse_tables.smem_cells() | sparse_tables.smem_vector_cells()
    ).items()
  )
  def test_smem_of_the_vector_subcore(self, cell):
    self.check_kernel(cell, sparse_cells.vector_kernel(cell, LANES))

  @parameterized.parameters(False, True)
  def test_smem_scalars(self, layout_passes):
    def body(x, o, buffer, counters):
      pltpu.sync_copy(x, buffer)
      v = buffer[...]
      for k in range(8):
        counters[k] = v[k]
      i = v[0]
      a = jsx.atomic_add(counters, i, 5)
      jsx.store(counters, i + 1, 77, mask=a > 100)
      jsx.store(counters, i + 2, 78, mask=a < 100)
      b = jsx.load(counters, 99, mask=a > 100, other=-3)
      c = jsx.atomic_cas(counters, 7, v[7], a)
      jsx.atomic_max(counters, 6, 50)
      out = [a, b, c, *(counters[k] for k in (3, 4, 5, 6, 7))]
      lane = jnp.arange(8, dtype=jnp.int32)
      result = jnp.zeros((8,), jnp.int32)
      for k, s in enumerate(out):
        result = jnp.where(lane == k, s, result)
      buffer[...] = result
      pltpu.sync_copy(buffer, o)

    x = np.array([3, 11, 12, 13, 14, 15, 16, 17], np.int32)
    got = self._run(
      body,
      x,
      [pltpu.VMEM((8,), jnp.int32), pltpu.SMEM((8,), jnp.int32)],
      needs_layout_passes=layout_passes,
    )
    np.testing.assert_array_equal(got, [13, -3, 17, 18, 14, 78, 50, 13])

  def test_any_length_with_layout_passes(self):
    def body(x, o, buffer, scalars):
      pltpu.sync_copy(x, buffer)
      v = jsx.load(buffer, pl.ds(3, 24, 2))
      jsx.store(scalars, ..., v)
      v = jsx.load(scalars, mask=v < 50, other=v)
      jsx.store(buffer, pl.ds(1, 24), v, mask=v > 0)
      jsx.atomic_add(buffer, pl.ds(2, 24), v, mask=v < 0)
      pltpu.sync_copy(buffer.at[pl.ds(0, 8)], o)

    x = tpu_cells.values(np.int32, (64,), 3) % 100
    want = x.copy()
    v = x[3:51:2].copy()
    want[1:25] = np.where(v > 0, v, want[1:25])
    want[2:26] += np.where(v < 0, v, 0)
    scratch = [pltpu.VMEM((64,), jnp.int32), pltpu.SMEM((24,), jnp.int32)]
    got = self._run(body, x, scratch, needs_layout_passes=True)
    np.testing.assert_array_equal(got, want[:8])

  @parameterized.named_parameters(
    ("long", (64,), pl.ds(0, 24), "a vector has 8. Set needs_layout"),
    ("whole", (64,), slice(None), "a vector has 8. Set needs_layout"),
    ("strided", (64,), pl.ds(0, 24, 2), "a vector has 8. Set needs_layout"),
    ("rows", (8, 128), pl.ds(0, 2), "a vector has 8. Set needs_layout"),
  )
  def test_refuses_what_stock_does_without_masks(self, shape, index, why):
    def body(x, o, buffer):
      jsx.store(buffer, index, jsx.load(buffer, index))

    with self.assertRaisesRegex(NotImplementedError, f"^load: wanted.*{why}"):
      self._run(
        body,
        np.zeros(64, np.int32),
        [pltpu.VMEM(shape, jnp.int32)],
        needs_layout_passes=False,
      )

  def test_refuses_atomics_in_shared_memory(self):
    def body(x, o, shared):
      jsx.atomic_add(shared, 3, 1)

    with self.assertRaisesRegex(NotImplementedError, "not atomic"):
      self._run(
        body,
        np.zeros(64, np.int32),
        [pltpu.VMEM_SHARED((64,), jnp.int32)],
        needs_layout_passes=True,
      )

  @parameterized.parameters(False, True)
  def test_what_stock_lowers_has_the_same_module(self, layout_passes):
    def kernel(get, swap):
      def f(x):
        def body(x, o, buffer, counters):
          pltpu.sync_copy(x, buffer)
          v = get(buffer, pl.ds(8, 8))
          old = swap(buffer, pl.ds(16, 8), v)
          counters[0] = jnp.int32(3)
          s = get(counters, 0)
          buffer[pl.ds(0, 8)] = old + swap(counters, 1, s)
          pltpu.sync_copy(buffer.at[pl.ds(0, 8)], o)

        return pl.kernel(
          body,
          out_type=jax.ShapeDtypeStruct((8,), jnp.int32),
          mesh=sparse_cells.vector_mesh(),
          scratch_types=[
            pltpu.VMEM((64,), jnp.int32),
            pltpu.SMEM((8,), jnp.int32),
          ],
          compiler_params=pltpu.CompilerParams(
            needs_layout_passes=layout_passes
          ),
        )(x)

      return mosaic_ir.mosaic_modules(f, jax.ShapeDtypeStruct((64,), jnp.int32))

    self.assertEqual(
      kernel(jsx.load, jsx.swap), kernel(jax.ref.get, jax.ref.swap)
    )


if __name__ == "__main__":
  absltest.main()
