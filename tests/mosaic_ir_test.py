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
"""The Mosaic-IR interpreter against JAX's own TPU interpreter and NumPy.

Only stock kernels appear here: the interpreter has to be right about programs
that others wrote before it may judge ours.
"""

import warnings

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc
import jax.numpy as jnp
import numpy as np
from oracles import mosaic_ir

_F32, _I32, _BF16, _I8 = jnp.float32, jnp.int32, jnp.bfloat16, jnp.int8


def _array(shape, dtype=_F32, seed=0):
  rng = np.random.default_rng(seed)
  if dtype == np.bool_:
    return rng.random(shape) > 0.5
  return rng.integers(-40, 40, shape).astype(dtype)


def _call(body, out, ins=None, outs=None, **kwargs):
  """A `pallas_call` of one output, with memory spaces given by name."""

  def f(*args, interpret=False):
    specs = dict(kwargs)
    if ins is not None:
      specs["in_specs"] = [pl.BlockSpec(memory_space=m) for m in ins]
    if outs is not None:
      specs["out_specs"] = pl.BlockSpec(memory_space=outs)
    return pl.pallas_call(body, out_shape=out, interpret=interpret, **specs)(
      *args
    )

  return f


def _shape(shape, dtype=_F32):
  return jax.ShapeDtypeStruct(shape, dtype)


def _copy(x, o):
  o[...] = x[...]


def _dma(src, dst):
  pltpu.sync_copy(src, dst)


_CASES = {}


def _case(name, f, args, expected):
  _CASES[name] = (f, args, expected)


# Elementwise arithmetic, by dtype.
for _dtype in (_F32, _BF16, _I32):
  _x, _y = _array((16, 128), _dtype), _array((16, 128), _dtype, 1)
  _name = np.dtype(_dtype).name
  for _op in ("add", "subtract", "multiply", "maximum", "minimum"):

    def _body(x, y, o, op=_op):
      o[...] = getattr(jnp, op)(x[...], y[...])

    _case(
      f"{_op}_{_name}",
      _call(_body, _shape((16, 128), _dtype)),
      (_x, _y),
      getattr(np, _op)(_x, _y),
    )
_x, _y = _array((16, 128), _I32), _array((16, 128), _I32, 1)
for _op in ("bitwise_and", "bitwise_or", "bitwise_xor"):

  def _body(x, y, o, op=_op):
    o[...] = getattr(jnp, op)(x[...], y[...])

  _case(
    _op,
    _call(_body, _shape((16, 128), _I32)),
    (_x, _y),
    getattr(np, _op)(_x, _y),
  )


def _shift_body(x, o):
  o[...] = (x[...] << 3) + (x[...] >> 2) + lax.shift_right_logical(x[...], 28)


_case(
  "shifts",
  _call(_shift_body, _shape((16, 128), _I32)),
  (_x,),
  (_x << 3) + (_x >> 2) + (_x.view(np.uint32) >> 28).astype(np.int32),
)


def _logic_body(x, y, o):
  o[...] = (x[...] & ~y[...]) | (y[...] ^ x[...])


_a, _b = _array((8, 128), np.bool_), _array((8, 128), np.bool_, 1)
_case(
  "bool",
  _call(_logic_body, _shape((8, 128), np.bool_)),
  (_a, _b),
  (_a & ~_b) | (_a ^ _b),
)


def _convert_body(x, o):
  o[...] = x[...].astype(_BF16).astype(_F32).astype(_I32).astype(_I8)


_x = _array((32, 128))
_case(
  "conversions",
  _call(_convert_body, _shape((32, 128), _I8)),
  (_x,),
  _x.astype(np.int8),
)


def _where_body(x, o):
  o[...] = jnp.where(x[...] > 3.0, x[...], -x[...])


_case(
  "where",
  _call(_where_body, _shape((32, 128))),
  (_x,),
  np.where(_x > 3, _x, -_x),
)


def _sum_body(x, o):
  o[...] = jnp.sum(x[...], axis=0, keepdims=True)


_case(
  "sum",
  _call(_sum_body, _shape((1, 128))),
  (_x,),
  _x.sum(axis=0, keepdims=True),
)


def _max_body(x, o):
  o[...] = jnp.full((8, 128), jnp.max(x[...]))


_case(
  "max", _call(_max_body, _shape((8, 128))), (_x,), np.full((8, 128), _x.max())
)


def _roll_body(x, o):
  o[...] = pltpu.roll(pltpu.roll(x[...], 5, 1), 3, 0)


_case(
  "roll",
  _call(_roll_body, _shape((32, 128))),
  (_x,),
  np.roll(_x, (3, 5), (0, 1)),
)


def _iota_body(o):
  o[...] = lax.broadcasted_iota(_I32, (8, 128), 1)


_case(
  "iota",
  _call(_iota_body, _shape((8, 128), _I32)),
  (),
  np.broadcast_to(np.arange(128, dtype=np.int32), (8, 128)),
)


def _transpose_body(x, o):
  o[...] = x[...].T


_case("transpose", _call(_transpose_body, _shape((128, 32))), (_x,), _x.T)


def _matmul_body(x, y, o):
  o[...] = jnp.dot(x[...], y[...], preferred_element_type=_F32)


_y = _array((128, 128), seed=4)
_case("matmul", _call(_matmul_body, _shape((32, 128))), (_x, _y), _x @ _y)

# Shapes with padding.
for _shape_ in ((7, 100), (63, 200), (3, 5, 40), (100,)):
  _x = _array(_shape_)

  def _body(x, o):
    o[...] = x[...] + 1

  _case(f"padded_{_shape_}", _call(_body, _shape(_shape_)), (_x,), _x + 1)

# Slices, static, dynamic and strided.
_x, _i = _array((32, 128)), np.array([5, 3], np.int32)


def _slice_body(i, x, o):
  o[...] = x[...]
  o[pl.ds(i[0], 4), :] = x[pl.ds(i[1], 4), :] * 2


_expected = _x.copy()
_expected[5:9] = _x[3:7] * 2
_case(
  "dynamic_rows",
  _call(_slice_body, _shape((32, 128)), ins=(pltpu.SMEM, pltpu.VMEM)),
  (_i, _x),
  _expected,
)


def _strided_body(x, o):
  o[...] = x[...]
  o[pl.ds(1, 4, 3), :] = x[pl.ds(2, 4, 2), :]


_expected = _x.copy()
_expected[1:13:3] = _x[2:10:2]
_case("strided", _call(_strided_body, _shape((32, 128))), (_x,), _expected)


def _masked_body(x, o):
  o[...] = jnp.zeros_like(o)
  pltpu.store(o, x[...], mask=x[...] > 0)


_case(
  "masked_store",
  _call(_masked_body, _shape((32, 128))),
  (_x,),
  np.where(_x > 0, _x, 0),
)


def _multiple_body(i, x, o):
  o[...] = x[pl.ds(pl.multiple_of(i[0] * 8, 8), 8), :]


_case(
  "multiple_of",
  _call(_multiple_body, _shape((8, 128)), ins=(pltpu.SMEM, pltpu.VMEM)),
  (np.array([2], np.int32), _x),
  _x[16:24],
)

# Scalars, control flow.


def _scalar_body(i, o):
  o[0] = i[0] * 3 - i[1]
  o[1] = jnp.minimum(i[0], i[1])
  o[2] = lax.div(i[0], jnp.int32(2)) + lax.rem(-i[0], jnp.int32(3))


_case(
  "scalars",
  _call(_scalar_body, _shape((3,), _I32), ins=(pltpu.SMEM,), outs=pltpu.SMEM),
  (_i,),
  np.array([12, 3, 2 - 2], np.int32),
)


def _loop_body(x, o):
  o[...] = jnp.zeros_like(o)

  @pl.loop(0, 4)
  def _(k):
    @pl.when(k > 1)
    def _():
      o[pl.ds(k, 1), :] = x[pl.ds(k, 1), :] * k.astype(_F32)


_expected = np.zeros_like(_x)
_expected[2:4] = _x[2:4] * np.array([[2.0], [3.0]])
_case("loop_and_cond", _call(_loop_body, _shape((32, 128))), (_x,), _expected)


def _while_body(i, o):
  o[0] = lax.while_loop(lambda v: v < 100, lambda v: v * 2, i[0])
  o[1] = lax.fori_loop(0, i[1], lambda k, v: v + k, 7)


_case(
  "while",
  _call(_while_body, _shape((2,), _I32), ins=(pltpu.SMEM,), outs=pltpu.SMEM),
  (_i,),
  np.array([160, 10], np.int32),
)


def _cond_body(i, o):
  o[0] = lax.cond(i[0] > 4, lambda: i[1] + 1, lambda: i[1] - 1)
  o[1] = lax.switch(i[1] - 2, [lambda: 5, lambda: 6, lambda: 7])


_case(
  "cond_and_switch",
  _call(_cond_body, _shape((2,), _I32), ins=(pltpu.SMEM,), outs=pltpu.SMEM),
  (_i,),
  np.array([4, 6], np.int32),
)

# Grids.


def _grid(body, out, in_blocks, out_block, grid, maps, out_map, **kwargs):
  def f(*args, interpret=False):
    return pl.pallas_call(
      body,
      out_shape=out,
      grid=grid,
      in_specs=[
        pl.BlockSpec(b, m) for b, m in zip(in_blocks, maps, strict=True)
      ],
      out_specs=pl.BlockSpec(out_block, out_map),
      interpret=interpret,
      **kwargs,
    )(*args)

  return f


_x = _array((32, 256))
_case(
  "grid",
  _grid(
    _copy,
    _shape((32, 256)),
    [(8, 128)],
    (8, 128),
    (4, 2),
    [lambda i, j: (i, j)],
    lambda i, j: (i, j),
  ),
  (_x,),
  _x,
)
_x = _array((30, 128))
_case(
  "grid_with_remainder",
  _grid(
    _copy,
    _shape((30, 128)),
    [(8, 128)],
    (8, 128),
    (4,),
    [lambda i: (i, 0)],
    lambda i: (i, 0),
  ),
  (_x,),
  _x,
)


def _accumulate_body(x, o):
  @pl.when(pl.program_id(0) == 0)
  def _():
    o[...] = jnp.zeros_like(o)

  o[...] += x[...]


_x = _array((32, 128))
_case(
  "grid_accumulates",
  _grid(
    _accumulate_body,
    _shape((8, 128)),
    [(8, 128)],
    (8, 128),
    (4,),
    [lambda i: (i, 0)],
    lambda i: (0, 0),
  ),
  (_x,),
  _x.reshape(4, 8, 128).sum(axis=0),
)
_x = _array((3, 8, 128))
_case(
  "squeezed_block",
  _grid(
    _copy,
    _shape((8, 128)),
    [(None, 8, 128)],
    (8, 128),
    (3,),
    [lambda i: (i, 0, 0)],
    lambda i: (0, 0),
  ),
  (_x,),
  _x[2],
)


def _prefetch(s, x, interpret=False):
  spec = pltpu.PrefetchScalarGridSpec(
    num_scalar_prefetch=1,
    grid=(4,),
    in_specs=[pl.BlockSpec((8, 128), lambda i, s: (s[i], 0))],
    out_specs=pl.BlockSpec((8, 128), lambda i, s: (i, 0)),
    scratch_shapes=[pltpu.VMEM((8, 128), _F32)],
  )

  def body(s, x, o, scratch):
    scratch[...] = x[...] + s[pl.program_id(0)].astype(_F32)
    o[...] = scratch[...]

  return pl.pallas_call(
    body, out_shape=_shape((32, 128)), grid_spec=spec, interpret=interpret
  )(s, x)


_x, _s = _array((32, 128)), np.array([2, 0, 3, 3], np.int32)
_case(
  "scalar_prefetch",
  _prefetch,
  (_s, _x),
  (_x.reshape(4, 8, 128)[_s] + _s[:, None, None]).reshape(32, 128),
)
_case(
  "vmap",
  lambda x, interpret=False: jax.vmap(
    lambda y: _call(_copy, _shape((8, 128)))(y, interpret=interpret)
  )(x),
  (_x.reshape(4, 8, 128),),
  _x.reshape(4, 8, 128),
)

# DMA.
_case(
  "dma_hbm",
  _call(_dma, _shape((32, 128)), ins=(pl.ANY,), outs=pl.ANY),
  (_x,),
  _x,
)


def _dma_window_body(i, x, o, buffer, semaphore):
  copy = pltpu.make_async_copy(
    x.at[pl.ds(pl.multiple_of(i[0] * 8, 8), 8), :], buffer, semaphore
  )
  copy.start()
  copy.wait()
  o[...] = buffer[...] * 2


_case(
  "dma_window",
  _call(
    _dma_window_body,
    _shape((8, 128)),
    ins=(pltpu.SMEM, pl.ANY),
    scratch_shapes=[pltpu.VMEM((8, 128), _F32), pltpu.SemaphoreType.DMA],
  ),
  (np.array([3], np.int32), _x),
  _x[24:] * 2,
)


def _scoped_body(x, o):
  def inner(buffer):
    pltpu.sync_copy(x, buffer)
    o[...] = buffer[...] + 1

  pl.run_scoped(inner, pltpu.VMEM((32, 128), _F32))


_case(
  "run_scoped",
  _call(_scoped_body, _shape((32, 128)), ins=(pl.ANY,)),
  (_x,),
  _x + 1,
)


def _semaphore_body(o, semaphore):
  pl.semaphore_signal(semaphore, 3)
  pl.semaphore_wait(semaphore, 2)
  o[0] = jnp.int32(1)
  pl.semaphore_wait(semaphore, 1)


_case(
  "semaphores",
  _call(
    _semaphore_body,
    _shape((1,), _I32),
    outs=pltpu.SMEM,
    scratch_shapes=[pltpu.SemaphoreType.REGULAR],
  ),
  (),
  np.array([1], np.int32),
)


def _sparse(body, out, scratch, layout_passes=True, subcores=1):
  """A SparseCore kernel on one core."""

  def f(*args):
    mesh = plsc.VectorSubcoreMesh(
      core_axis_name="c",
      subcore_axis_name="s",
      num_cores=1,
      num_subcores=subcores,
    )
    return pl.kernel(
      body,
      out_type=out,
      mesh=mesh,
      scratch_types=scratch,
      compiler_params=pltpu.CompilerParams(needs_layout_passes=layout_passes),
    )(*args)

  return f


def _vector_body(f):
  def body(x, o, buffer, out):
    pltpu.sync_copy(x, buffer)
    f(buffer, out)
    pltpu.sync_copy(out, o)

  return body


def _gather(b, o):
  o[pl.ds(0, 8)] = plsc.load_gather(b, [b[pl.ds(0, 8)] & 63])


def _gather_masked(b, o):
  m = b[pl.ds(0, 8)] > 0
  got = plsc.load_gather(b, [jnp.where(m, b[pl.ds(0, 8)], 9999)], mask=m)
  o[pl.ds(0, 8)] = jnp.where(m, got, 0)


def _scatter(b, o):
  o[pl.ds(0, 8)] = b[pl.ds(0, 8)]
  plsc.store_scatter(o, [b[pl.ds(0, 8)] & 3], b[pl.ds(8, 8)])


def _scatter_add(b, o):
  o[pl.ds(0, 8)] = b[pl.ds(0, 8)]
  plsc.addupdate_scatter(o, [b[pl.ds(0, 8)] & 3], b[pl.ds(8, 8)])


def _scan_count(b, o):
  counts, last = plsc.scan_count(b[pl.ds(0, 8)] & 3)
  o[pl.ds(0, 8)] = jnp.where(last, counts, -counts)


def _cumsum(b, o):
  o[pl.ds(0, 8)] = plsc.cumsum(b[pl.ds(0, 8)])


def _compress(b, o):
  o[pl.ds(0, 8)] = b[pl.ds(8, 8)]
  plsc.store_compressed(
    o.at[pl.ds(0, 8)], b[pl.ds(0, 8)], mask=b[pl.ds(0, 8)] > 0
  )


def _add(b, o):
  o[pl.ds(0, 8)] = b[pl.ds(0, 8)]
  plsc.addupdate(o.at[pl.ds(0, 8)], b[pl.ds(8, 8)])


def _sparse_expected(x):
  head, tail = x[:8], x[8:16]
  at = head & 3
  scattered, added = head.copy(), head.copy()
  counts, last = np.zeros(8, np.int32), np.zeros(8, bool)
  for k in range(8):
    scattered[at[k]] = tail[k]
    added[at[k]] += tail[k]
    counts[k] = np.sum(at[: k + 1] == at[k])
    last[k] = not np.any(at[k + 1 :] == at[k])
  kept = head[head > 0]
  return {
    _gather: x[head & 63],
    _gather_masked: np.where(head > 0, x[np.maximum(head, 0)], 0),
    _scatter: scattered,
    _scatter_add: added,
    _scan_count: np.where(last, counts, -counts),
    _cumsum: np.cumsum(head),
    _compress: np.concatenate([kept, tail[kept.size :]]),
    _add: head + tail,
  }


class MosaicIrTest(parameterized.TestCase):
  @parameterized.named_parameters((name, name) for name in _CASES)
  def test_tensorcore(self, name):
    f, args, expected = _CASES[name]
    for dma in ("late", "early"):
      np.testing.assert_array_equal(
        mosaic_ir.evaluate(f, *args, dma=dma), expected
      )
    interpreted = f(*args, interpret=pltpu.InterpretParams())
    np.testing.assert_array_equal(np.asarray(interpreted), expected)

  @parameterized.product(
    name=[f.__name__ for f in _sparse_expected(np.zeros(64, np.int32))],
    layout_passes=(False, True),
  )
  def test_vector_subcore(self, name, layout_passes):
    x = _array((64,), _I32)
    bodies = {f.__name__: (f, e) for f, e in _sparse_expected(x).items()}
    body, expected = bodies[name]
    f = _sparse(
      _vector_body(body),
      _shape((8,), _I32),
      [pltpu.VMEM((64,), _I32), pltpu.VMEM((8,), _I32)],
      layout_passes,
    )
    with warnings.catch_warnings():
      # Stock warns on every copy from VMEM to HBM.
      warnings.simplefilter("ignore")
      got = mosaic_ir.evaluate(f, x)
    np.testing.assert_array_equal(got, expected)

  @parameterized.parameters(0, 1, 2)
  def test_subcores_meet_at_a_barrier(self, seed):

    def body(x, o, buffer, shared):
      s = lax.axis_index("s")
      pltpu.sync_copy(x.at[pl.ds(s * 8, 8)], buffer)
      pltpu.sync_copy(buffer, shared.at[pl.ds(s * 8, 8)])
      plsc.subcore_barrier()
      other = 15 - s
      pltpu.sync_copy(shared.at[pl.ds(other * 8, 8)], buffer)
      pltpu.sync_copy(buffer, o.at[pl.ds(s * 8, 8)])

    x = _array((128,), _I32)
    f = _sparse(
      body,
      _shape((128,), _I32),
      [pltpu.VMEM((8,), _I32), pltpu.VMEM_SHARED((128,), _I32)],
      subcores=16,
    )
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")
      got = mosaic_ir.evaluate(f, x, seed=seed)
    np.testing.assert_array_equal(got, x.reshape(16, 8)[::-1].reshape(-1))

  def test_fetch_and_add_reaches_the_other_subcores(self):

    def body(o, buffer, counter):
      s = lax.axis_index("s")
      counter[0] = jnp.int32(0)
      plsc.subcore_barrier()
      ticket = plsc.fetch_and_add(counter.at[0], s, subcore_id=3)
      del ticket
      plsc.subcore_barrier()
      buffer[...] = jnp.full((8,), counter[0])

      @pl.when(s == 3)
      def _():
        pltpu.sync_copy(buffer, o)

    f = _sparse(
      body,
      _shape((8,), _I32),
      [pltpu.VMEM((8,), _I32), pltpu.SMEM((1,), _I32)],
      subcores=16,
    )
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")
      got = mosaic_ir.evaluate(f)
    np.testing.assert_array_equal(got, np.full(8, 120))

  def test_indirect_streams(self):

    def body(x, i, o, indices, buffer, shared, semaphore):
      pltpu.sync_copy(i, indices)
      pltpu.async_copy(x.at[indices], buffer, semaphore).wait()
      pltpu.sync_copy(x.at[pl.ds(0, 64)], shared)
      pltpu.async_copy(buffer, shared.at[indices], semaphore, add=True).wait()
      pltpu.sync_copy(shared, o)

    x = _array((64,), _I32)
    i = np.array([3, 9, 3, 63, 0, 9, 3, 7], np.int32)
    f = _sparse(
      body,
      _shape((64,), _I32),
      [
        pltpu.VMEM((8,), _I32),
        pltpu.VMEM((8,), _I32),
        pltpu.VMEM_SHARED((64,), _I32),
        pltpu.SemaphoreType.DMA,
      ],
    )
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")
      got = mosaic_ir.evaluate(f, x, i)
    expected = x.copy()
    np.add.at(expected, i, x[i])
    np.testing.assert_array_equal(got, expected)

  # What it must not let pass.

  def test_padding_is_poison(self):

    def body(x, o):
      o[...] = x[pl.ds(pl.multiple_of(jnp.int32(56), 8), 8), :]

    f = _call(body, _shape((8, 256)))
    x = _array((60, 256))
    got = mosaic_ir.evaluate(f, x)
    np.testing.assert_array_equal(got[:4], x[56:])
    self.assertTrue(np.isnan(got[4:]).all())

  def test_unwritten_results_are_poison(self):
    def body(o):
      o[0:4, :] = jnp.ones((4, 128))

    got = mosaic_ir.evaluate(_call(body, _shape((8, 128))))
    self.assertTrue(np.isnan(got[4:]).all())

  def test_out_of_bounds(self):
    def body(i, x, o):
      o[...] = x[pl.ds(i[0], 8), :]

    f = _call(body, _shape((8, 128)), ins=(pltpu.SMEM, pltpu.VMEM))
    with self.assertRaisesRegex(mosaic_ir.EvaluationError, "access outside"):
      mosaic_ir.evaluate(f, np.array([25], np.int32), _array((32, 128)))

  def test_broken_claim(self):
    def lying(i, x, o):
      o[...] = x[pl.ds(pl.multiple_of(i[0], 8), 8), :]

    f = _call(lying, _shape((8, 128)), ins=(pltpu.SMEM, pltpu.VMEM))
    with self.assertRaisesRegex(mosaic_ir.EvaluationError, "multiple of 8"):
      mosaic_ir.evaluate(f, np.array([4], np.int32), _array((32, 128)))

  def test_dma_never_waited_for(self):
    def body(x, o, semaphore):
      pltpu.make_async_copy(x, o, semaphore).start()

    f = _call(
      body,
      _shape((8, 128)),
      ins=(pl.ANY,),
      outs=pl.ANY,
      scratch_shapes=[pltpu.SemaphoreType.DMA],
    )
    with self.assertRaisesRegex(mosaic_ir.EvaluationError, "never waited for"):
      mosaic_ir.evaluate(f, _array((8, 128)))

  def test_late_dma_shows_a_read_before_the_wait(self):
    def body(x, o, buffer, semaphore):
      copy = pltpu.make_async_copy(x, buffer, semaphore)
      copy.start()
      o[...] = buffer[...]
      copy.wait()

    f = _call(
      body,
      _shape((8, 128)),
      ins=(pl.ANY,),
      scratch_shapes=[pltpu.VMEM((8, 128), _F32), pltpu.SemaphoreType.DMA],
    )
    x = _array((8, 128))
    np.testing.assert_array_equal(mosaic_ir.evaluate(f, x, dma="early"), x)
    self.assertTrue(np.isnan(mosaic_ir.evaluate(f, x, dma="late")).all())

  def test_semaphore_read(self):
    # JAX's interpreter cannot read a semaphore, so this one stands alone.
    def body(o, semaphore):
      pl.semaphore_signal(semaphore, 3)
      o[0] = pl.semaphore_read(semaphore)
      pl.semaphore_wait(semaphore, 3)
      o[1] = pl.semaphore_read(semaphore)

    f = _call(
      body,
      _shape((2,), _I32),
      outs=pltpu.SMEM,
      scratch_shapes=[pltpu.SemaphoreType.REGULAR],
    )
    np.testing.assert_array_equal(mosaic_ir.evaluate(f), [3, 0])

  def test_deadlock(self):
    def body(o, semaphore):
      pl.semaphore_wait(semaphore, 1)
      o[0] = jnp.int32(1)

    f = _call(
      body,
      _shape((1,), _I32),
      outs=pltpu.SMEM,
      scratch_shapes=[pltpu.SemaphoreType.REGULAR],
    )
    with self.assertRaisesRegex(mosaic_ir.EvaluationError, "deadlock"):
      mosaic_ir.evaluate(f)

  def test_unknown_op_by_name(self):
    def body(o):
      pltpu.prng_seed(0)
      o[...] = pltpu.prng_random_bits((8, 128)).astype(_I32)

    f = _call(body, _shape((8, 128), _I32))
    with self.assertRaisesRegex(mosaic_ir.UnknownOpError, "tpu.prng_set_seed"):
      mosaic_ir.evaluate(f)


if __name__ == "__main__":
  absltest.main()
