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
"""TensorCore kernels, executed from the Mosaic module that libtpu would get."""

from absl.testing import absltest
from absl.testing import parameterized
import cases
import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
import jax_swapext as jsx
import numpy as np
from oracles import mosaic_ir
import pytest
import tpu_cells

_GROUPS = tpu_cells.tensorcore_cells()


def _parts(group):
  """A group's cells by dtype: one test each."""
  parts = {}
  for cell in _GROUPS[group]:
    parts.setdefault(np.dtype(cell.dtype).name, []).append(cell)
  return parts


def _shape(shape, dtype=jnp.float32):
  return jax.ShapeDtypeStruct(shape, dtype)


def _vmem(n=1):
  return [pl.BlockSpec(memory_space=pltpu.VMEM)] * n


class MosaicTpuTest(parameterized.TestCase):
  @parameterized.named_parameters(
    (f"{group}_{dtype}", group, dtype)
    for group in _GROUPS
    for dtype in _parts(group)
  )
  @pytest.mark.slow
  def test_emitted_module_equals_the_reference(self, group, dtype):
    for k, cell in enumerate(_parts(group)[dtype]):
      with self.subTest(cell.name):
        arguments = tpu_cells.arguments_of(cell, seed=k)
        got = mosaic_ir.evaluate(
          tpu_cells.kernel_of(cell),
          *arguments.inputs,
          dma="early" if k % 2 else "late",
        )
        tpu_cells.check(cell, arguments, got)

  @parameterized.named_parameters(
    ("load", lambda r, v: jsx.load(r), lambda r, v: r[...]),
    (
      "load_rows",
      lambda r, v: jsx.load(r, slice(8, 16)),
      lambda r, v: r[8:16],
    ),
    (
      "load_dynamic",
      lambda r, v: jsx.load(r, pl.ds(pl.program_id(0), 4)),
      lambda r, v: r[pl.ds(pl.program_id(0), 4)],
    ),
    (
      "load_strided",
      lambda r, v: jsx.load(r, slice(0, 32, 4)),
      lambda r, v: r[0:32:4],
    ),
    (
      "store",
      lambda r, v: jsx.store(r, ..., v),
      lambda r, v: r.__setitem__(..., v),
    ),
    (
      "swap",
      lambda r, v: jsx.swap(r, ..., v),
      lambda r, v: jax.ref.swap(r, ..., v),
    ),
    (
      "masked_store",
      lambda r, v: jsx.store(r, ..., v, mask=v > 0),
      lambda r, v: pltpu.store(r, v, mask=v > 0),
    ),
    (
      "scalar_load",
      lambda r, v: jsx.load(r, (3, 5)),
      lambda r, v: r[3, 5],
    ),
    (
      "chain",
      lambda r, v: jsx.load(r.bitcast(jnp.int32), slice(8, 16)),
      lambda r, v: r.bitcast(jnp.int32)[8:16],
    ),
    (
      "store_with_strides",
      lambda r, v: jsx.store(r, slice(0, 32, 4), v[:8]),
      lambda r, v: r.__setitem__(slice(0, 32, 4), v[:8]),
    ),
  )
  def test_what_stock_lowers_has_the_same_module(self, ours, stock):
    def kernel(access):
      def body(x, o, scratch):
        scratch[...] = x[...] * 2
        out = access(scratch, x[...])
        o[...] = scratch[...]
        if out is not None:
          o[pl.ds(0, 1), :] = jnp.full((1, 128), jnp.max(out).astype(o.dtype))

      return pl.pallas_call(
        body,
        grid=(2,),
        out_shape=_shape((32, 128)),
        scratch_shapes=[pltpu.VMEM((32, 128), jnp.float32)],
      )

    x = _shape((32, 128))
    self.assertEqual(
      mosaic_ir.mosaic_modules(kernel(ours), x),
      mosaic_ir.mosaic_modules(kernel(stock), x),
    )

  def test_smem_scalars_have_the_stock_module(self):
    def kernel(swap):
      def body(i, x, o):
        o[0] = swap(x, i[0], i[1])

      smem = pl.BlockSpec(memory_space=pltpu.SMEM)
      return pl.pallas_call(
        body,
        out_shape=_shape((1,), jnp.int32),
        in_specs=[smem, smem],
        out_specs=smem,
      )

    args = _shape((2,), jnp.int32), _shape((8,), jnp.int32)
    self.assertEqual(
      mosaic_ir.mosaic_modules(kernel(jsx.swap), *args),
      mosaic_ir.mosaic_modules(kernel(jax.ref.swap), *args),
    )

  def _run(self, body, out, *args, specs=None, **kwargs):
    f = pl.pallas_call(
      body, out_shape=out, in_specs=specs or _vmem(len(args)), **kwargs
    )
    return mosaic_ir.evaluate(f, *args)

  def test_loop_and_condition(self):
    def body(x, o):
      o[...] = x[...]

      @pl.loop(0, 9)
      def _(k):
        @pl.when(k % 3 == 0)
        def _():
          old = jsx.atomic_add(o, (k, k + 100), 2.0)
          jsx.store(o, (k + 1, k), old)

    x = cases.tame(np.float32, (16, 256))
    want = x.copy()
    for k in (0, 3, 6):
      want[k + 1, k] = want[k, k + 100]
      want[k, k + 100] += 2
    np.testing.assert_array_equal(self._run(body, _shape(x.shape), x), want)

  def test_squeezed_blocks(self):
    def body(i, x, o):
      o[...] = x[...]
      jsx.store(o, (i[0], i[1]), -1.0)
      jsx.atomic_add(o, (pl.ds(i[0] + 1, 2), pl.ds(i[1], 3)), 1.0)

    for block in ((None, 16, 256), (16, None, 256), (16, 256, None)):
      with self.subTest(str(block)):
        axis = block.index(None)
        # Mosaic wants the minor dimensions of a block whole.
        steps = 1 if axis else 3
        shape = [16, 256]
        shape.insert(axis, steps)
        x = cases.tame(np.float32, tuple(shape))
        spec = pl.BlockSpec(
          block,
          lambda g, axis=axis, steps=steps: tuple(
            g if d == axis and steps > 1 else 0 for d in range(3)
          ),
        )
        f = pl.pallas_call(
          body,
          grid=(3,),
          out_shape=_shape(x.shape),
          in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), spec],
          out_specs=spec,
        )
        got = mosaic_ir.evaluate(f, np.array([6, 37], np.int32), x)
        want = np.moveaxis(x.copy(), axis, 0)
        want[:, 6, 37] = -1
        want[:, 7:9, 37:40] += 1
        np.testing.assert_array_equal(got, np.moveaxis(want, 0, axis))

  def test_chains_bitcasts_and_reshapes(self):
    def body(i, x, o):
      o[...] = x[...]
      view = o.at[pl.ds(i[0], 16)].at[:, pl.ds(i[1], 32)]
      jsx.store(view, (3, pl.ds(2, 5)), 5)
      jsx.atomic_add(o.at[i[0]].at[pl.ds(100, 20)], pl.ds(i[1], 4), 7)
      jsx.store(o.bitcast(jnp.int32), (i[2], 200), 1 << 16 | 2)
      jsx.store(o.reshape(2, 32, 256), (1, i[2], 3), 9)

    x = cases.values(np.int16, (64, 256))
    i = np.array([37, 19, 3], np.int32)
    specs = [
      pl.BlockSpec(memory_space=pltpu.SMEM),
      pl.BlockSpec(memory_space=pltpu.VMEM),
    ]
    got = self._run(body, _shape(x.shape, x.dtype), i, x, specs=specs)
    want = x.copy()
    want[37 + 3, 19 + 2 : 19 + 7] = 5
    want[37, 119:123] += 7
    want[6, 200], want[7, 200] = 2, 1
    want[32 + 3, 3] = 9
    np.testing.assert_array_equal(got, want)

  def test_transposed_views(self):
    def body(x, o):
      o[...] = x[...]
      view = o.transpose((1, 0))
      jsx.atomic_add(view, (slice(0, 128), 3), 1.0)
      jsx.store(view.at[pl.ds(5, 4)], (slice(None), pl.ds(2, 3)), view_value())

    def view_value():
      return lax.broadcasted_iota(jnp.int32, (4, 3), 0).astype(jnp.float32)

    x = cases.tame(np.float32, (8, 128))
    want = x.copy()
    want[3] += 1
    want.T[5:9, 2:5] = np.broadcast_to(np.arange(4.0)[:, None], (4, 3))
    np.testing.assert_array_equal(self._run(body, _shape(x.shape), x), want)

  def test_vmap_of_the_call_and_inside_the_kernel(self):
    def body(x, i, o):
      o[...] = x[...]

      o[pl.ds(0, 1), pl.ds(0, 4)] = jax.vmap(lambda j: jsx.load(x, (j, 5)))(
        i[0, 0:4]
      )[None]

    call = pl.pallas_call(body, out_shape=_shape((16, 128)), in_specs=_vmem(2))
    x = cases.tame(np.float32, (2, 16, 128))
    i = np.zeros((2, 1, 128), np.int32)
    i[:, 0, :4] = [[3, 4, 3, 9], [1, 1, 1, 0]]
    want = x.copy()
    for b in range(2):
      want[b, 0, :4] = x[b, i[b, 0, :4], 5]
    got = mosaic_ir.evaluate(jax.vmap(call), x, i)
    np.testing.assert_array_equal(got, want)

  def test_jvp_of_the_call(self):
    def body(x, o):
      o[...] = x[...]
      old = jsx.swap(o, (3, 7), x[0, 0])
      jsx.atomic_max(o, (5, pl.ds(0, 128)), x[1, :])
      jsx.store(o, (6, 7), old)

    def reference(x):
      o = x.at[3, 7].set(x[0, 0]).at[5].max(x[1])
      return o.at[6, 7].set(x[3, 7])

    call = pl.pallas_call(body, out_shape=_shape((16, 128)), in_specs=_vmem())
    x = cases.tame(np.float32, (16, 128))
    t = cases.tame(np.float32, (16, 128), seed=1)
    f = lambda x, t: jax.jvp(call, (x,), (t,))
    got = mosaic_ir.evaluate(f, x, t)
    want = jax.jvp(reference, (x,), (t,))
    for a, b in zip(got, want, strict=True):
      np.testing.assert_array_equal(a, np.asarray(b))

  # Refusals, which must come before libtpu is reached.

  def test_refuses_float16(self):
    def body(x, o):
      jsx.store(o, (0, 0), jsx.load(x, (0, 0)))

    f = pl.pallas_call(body, out_shape=_shape((8, 128), jnp.float16))
    with self.assertRaisesRegex(NotImplementedError, "no float16 vectors"):
      mosaic_ir.lower(f, _shape((8, 128), jnp.float16))

  def test_refuses_atomics_in_hbm(self):
    def body(x, o):
      jsx.atomic_add(o, (0, 0), 1.0)

    hbm = pl.BlockSpec(memory_space=pltpu.HBM)
    f = pl.pallas_call(
      body, out_shape=_shape((8, 128)), in_specs=[hbm], out_specs=hbm
    )
    with self.assertRaisesRegex(NotImplementedError, "not atomic against"):
      mosaic_ir.lower(f, _shape((8, 128)))

  def test_refuses_an_index_into_gathered_rows(self):
    def body(i, x, o):
      jsx.store(o, (0, 0), jsx.load(x.at[i[...]], (3, 4)))

    f = pl.pallas_call(body, out_shape=_shape((8, 128)))
    with self.assertRaisesRegex(NotImplementedError, "index the indices"):
      mosaic_ir.lower(f, _shape((8,), jnp.int32), _shape((8, 128)))


if __name__ == "__main__":
  absltest.main()
