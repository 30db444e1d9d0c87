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
"""TPU interpret mode runs our operations, with and without race detection."""

from absl.testing import absltest
from absl.testing import parameterized
import cases
import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
import jax_swapext as jsx
import numpy as np
import pytest
import tpu_cells

_CELLS = tpu_cells.interpreted_cells()


class MosaicTpuInterpretTest(parameterized.TestCase):
  @parameterized.parameters(*_CELLS)
  @pytest.mark.slow
  def test_equals_the_reference(self, group):
    for k, cell in enumerate(_CELLS[group]):
      with self.subTest(cell.name):
        arguments = tpu_cells.arguments_of(cell, seed=k)
        got = tpu_cells.kernel_of(cell)(
          *arguments.inputs, interpret=pltpu.InterpretParams()
        )
        tpu_cells.check(cell, arguments, got)

  @parameterized.parameters(False, True)
  def test_grid_loop_and_condition(self, detect_races):
    def body(x, o):
      o[...] = x[...]

      @pl.loop(0, 4)
      def _(k):
        @pl.when(k > 1)
        def _():
          jsx.atomic_add(o, (k, k + pl.program_id(0)), 100.0)

    x = cases.tame(np.float32, (16, 128))
    block = pl.BlockSpec((8, 128), lambda i: (i, 0))
    call = pl.pallas_call(
      body,
      grid=(2,),
      in_specs=[block],
      out_specs=block,
      out_shape=jax.ShapeDtypeStruct((16, 128), jnp.float32),
      interpret=pltpu.InterpretParams(detect_races=detect_races),
    )
    want = x.copy()
    for g in range(2):
      for k in (2, 3):
        want[8 * g + k, k + g] += 100
    np.testing.assert_array_equal(call(x), want)
    np.testing.assert_array_equal(jax.vmap(call)(jnp.stack([x, -x]))[0], want)

  # JAX's interpreter takes rows past the shortest axis for out of bounds.
  @parameterized.product(
    form=(
      ((5, 4, 4), None),
      ((9, 5), (slice(1, 9, 2), slice(0, 2))),
      ((3, 9, 2), (1, pl.ds(1, 5))),
    ),
    op=(jsx.store, jsx.swap, jsx.atomic_xchg, jsx.atomic_max),
  )
  def test_masked_region_with_more_rows_than_columns(self, form, op):
    shape, idx = form
    x = cases.tame(np.float32, shape)
    want = x.copy()
    view = want if idx is None else want[
      tuple(slice(i.start, i.start + i.size) if isinstance(i, pl.Slice) else i
            for i in idx)
    ]
    value = cases.tame(np.float32, view.shape, seed=1)
    mask = np.random.default_rng(0).random(view.shape) < 0.6
    result = np.maximum(view, value) if op is jsx.atomic_max else value

    def body(x, value, mask, o, old):
      o[...] = x[...]
      got = op(o, idx, value[...], mask=mask[...])
      old[...] = jnp.zeros(old.shape) if got is None else got

    new, old = pl.pallas_call(
      body,
      out_shape=[jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (x, value)],
      interpret=pltpu.InterpretParams(),
    )(x, value, mask)
    reads = op is not jsx.store
    np.testing.assert_array_equal(old, np.where(mask & reads, view, 0))
    view[...] = np.where(mask, result, view)
    np.testing.assert_array_equal(new, want)

  def test_bitcast_and_reshaped_views(self):
    def body(x, o):
      o[...] = x[...]
      jsx.atomic_or(o.bitcast(jnp.int32), (1, 7), 1 << 16 | 1)
      jsx.store(o.reshape(4, 8, 128), (1, 2, 3), 9)

    x = cases.values(np.int16, (32, 128))
    got = pl.pallas_call(
      body,
      out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
      interpret=pltpu.InterpretParams(),
    )(x)
    want = x.copy()
    want[2, 7] |= 1
    want[3, 7] |= 1
    want[10, 3] = 9
    np.testing.assert_array_equal(got, want)

  def test_refuses_atomics_in_hbm(self):
    def body(x, o):
      jsx.atomic_add(o, (0, 0), 1.0)

    hbm = pl.BlockSpec(memory_space=pltpu.HBM)
    call = pl.pallas_call(
      body,
      out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32),
      in_specs=[hbm],
      out_specs=hbm,
      interpret=pltpu.InterpretParams(),
    )
    with self.assertRaisesRegex(NotImplementedError, "has none there"):
      call(jnp.zeros((8, 128)))


if __name__ == "__main__":
  absltest.main()
