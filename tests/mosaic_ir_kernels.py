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
"""Stock TensorCore kernels and what they compute: values, slices, branches."""

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
import numpy as np

_F32, _I32, _BF16, _I8 = jnp.float32, jnp.int32, jnp.bfloat16, jnp.int8


def array(shape, dtype=_F32, seed=0):
  rng = np.random.default_rng(seed)
  if dtype == np.bool_:
    return rng.random(shape) > 0.5
  return rng.integers(-40, 40, shape).astype(dtype)


def call(body, out, ins=None, outs=None, **kwargs):
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


def shape(shape, dtype=_F32):
  return jax.ShapeDtypeStruct(shape, dtype)


def copy(x, o):
  o[...] = x[...]


def dma(src, dst):
  pltpu.sync_copy(src, dst)


CASES = {}


def case(name, f, args, expected):
  """Adds a kernel, its arguments and its result to `CASES`."""
  CASES[name] = (f, args, expected)


# Elementwise arithmetic, by dtype.
for _dtype in (_F32, _BF16, _I32):
  _x, _y = array((16, 128), _dtype), array((16, 128), _dtype, 1)
  _name = np.dtype(_dtype).name
  for _op in ("add", "subtract", "multiply", "maximum", "minimum"):

    def _body(x, y, o, op=_op):
      o[...] = getattr(jnp, op)(x[...], y[...])

    case(
      f"{_op}_{_name}",
      call(_body, shape((16, 128), _dtype)),
      (_x, _y),
      getattr(np, _op)(_x, _y),
    )
_x, _y = array((16, 128), _I32), array((16, 128), _I32, 1)
for _op in ("bitwise_and", "bitwise_or", "bitwise_xor"):

  def _body(x, y, o, op=_op):
    o[...] = getattr(jnp, op)(x[...], y[...])

  case(
    _op,
    call(_body, shape((16, 128), _I32)),
    (_x, _y),
    getattr(np, _op)(_x, _y),
  )


def _shift_body(x, o):
  o[...] = (x[...] << 3) + (x[...] >> 2) + lax.shift_right_logical(x[...], 28)


case(
  "shifts",
  call(_shift_body, shape((16, 128), _I32)),
  (_x,),
  (_x << 3) + (_x >> 2) + (_x.view(np.uint32) >> 28).astype(np.int32),
)


def _logic_body(x, y, o):
  o[...] = (x[...] & ~y[...]) | (y[...] ^ x[...])


_a, _b = array((8, 128), np.bool_), array((8, 128), np.bool_, 1)
case(
  "bool",
  call(_logic_body, shape((8, 128), np.bool_)),
  (_a, _b),
  (_a & ~_b) | (_a ^ _b),
)


def _convert_body(x, o):
  o[...] = x[...].astype(_BF16).astype(_F32).astype(_I32).astype(_I8)


_x = array((32, 128))
case(
  "conversions",
  call(_convert_body, shape((32, 128), _I8)),
  (_x,),
  _x.astype(np.int8),
)


def _where_body(x, o):
  o[...] = jnp.where(x[...] > 3.0, x[...], -x[...])


case(
  "where",
  call(_where_body, shape((32, 128))),
  (_x,),
  np.where(_x > 3, _x, -_x),
)


def _sum_body(x, o):
  o[...] = jnp.sum(x[...], axis=0, keepdims=True)


case(
  "sum",
  call(_sum_body, shape((1, 128))),
  (_x,),
  _x.sum(axis=0, keepdims=True),
)


def _max_body(x, o):
  o[...] = jnp.full((8, 128), jnp.max(x[...]))


case(
  "max", call(_max_body, shape((8, 128))), (_x,), np.full((8, 128), _x.max())
)


def _roll_body(x, o):
  o[...] = pltpu.roll(pltpu.roll(x[...], 5, 1), 3, 0)


case(
  "roll",
  call(_roll_body, shape((32, 128))),
  (_x,),
  np.roll(_x, (3, 5), (0, 1)),
)


def _iota_body(o):
  o[...] = lax.broadcasted_iota(_I32, (8, 128), 1)


case(
  "iota",
  call(_iota_body, shape((8, 128), _I32)),
  (),
  np.broadcast_to(np.arange(128, dtype=np.int32), (8, 128)),
)


def _transpose_body(x, o):
  o[...] = x[...].T


case("transpose", call(_transpose_body, shape((128, 32))), (_x,), _x.T)


def _matmul_body(x, y, o):
  o[...] = jnp.dot(x[...], y[...], preferred_element_type=_F32)


_y = array((128, 128), seed=4)
case("matmul", call(_matmul_body, shape((32, 128))), (_x, _y), _x @ _y)

# Shapes with padding.
for _shape_ in ((7, 100), (63, 200), (3, 5, 40), (100,)):
  _x = array(_shape_)

  def _body(x, o):
    o[...] = x[...] + 1

  case(f"padded_{_shape_}", call(_body, shape(_shape_)), (_x,), _x + 1)

# Slices, static, dynamic and strided.
_x, _i = array((32, 128)), np.array([5, 3], np.int32)


def _slice_body(i, x, o):
  o[...] = x[...]
  o[pl.ds(i[0], 4), :] = x[pl.ds(i[1], 4), :] * 2


_expected = _x.copy()
_expected[5:9] = _x[3:7] * 2
case(
  "dynamic_rows",
  call(_slice_body, shape((32, 128)), ins=(pltpu.SMEM, pltpu.VMEM)),
  (_i, _x),
  _expected,
)


def _strided_body(x, o):
  o[...] = x[...]
  o[pl.ds(1, 4, 3), :] = x[pl.ds(2, 4, 2), :]


_expected = _x.copy()
_expected[1:13:3] = _x[2:10:2]
case("strided", call(_strided_body, shape((32, 128))), (_x,), _expected)


def _masked_body(x, o):
  o[...] = jnp.zeros_like(o)
  pltpu.store(o, x[...], mask=x[...] > 0)


case(
  "masked_store",
  call(_masked_body, shape((32, 128))),
  (_x,),
  np.where(_x > 0, _x, 0),
)


def _multiple_body(i, x, o):
  o[...] = x[pl.ds(pl.multiple_of(i[0] * 8, 8), 8), :]


case(
  "multiple_of",
  call(_multiple_body, shape((8, 128)), ins=(pltpu.SMEM, pltpu.VMEM)),
  (np.array([2], np.int32), _x),
  _x[16:24],
)

# Scalars, control flow.


def _scalar_body(i, o):
  o[0] = i[0] * 3 - i[1]
  o[1] = jnp.minimum(i[0], i[1])
  o[2] = lax.div(i[0], jnp.int32(2)) + lax.rem(-i[0], jnp.int32(3))


case(
  "scalars",
  call(_scalar_body, shape((3,), _I32), ins=(pltpu.SMEM,), outs=pltpu.SMEM),
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
case("loop_and_cond", call(_loop_body, shape((32, 128))), (_x,), _expected)


def _while_body(i, o):
  o[0] = lax.while_loop(lambda v: v < 100, lambda v: v * 2, i[0])
  o[1] = lax.fori_loop(0, i[1], lambda k, v: v + k, 7)


case(
  "while",
  call(_while_body, shape((2,), _I32), ins=(pltpu.SMEM,), outs=pltpu.SMEM),
  (_i,),
  np.array([160, 10], np.int32),
)


def _cond_body(i, o):
  o[0] = lax.cond(i[0] > 4, lambda: i[1] + 1, lambda: i[1] - 1)
  o[1] = lax.switch(i[1] - 2, [lambda: 5, lambda: 6, lambda: 7])


case(
  "cond_and_switch",
  call(_cond_body, shape((2,), _I32), ins=(pltpu.SMEM,), outs=pltpu.SMEM),
  (_i,),
  np.array([4, 6], np.int32),
)
