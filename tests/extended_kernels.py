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
"""Kernels in stock syntax that stock JAX refuses, and what NumPy makes of them.

Each takes `i`, eight numbers, `x`, and `o`, which starts as `x`.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import Any

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc
from jax.experimental.pallas import triton as pltriton
import jax.numpy as jnp
import jax_swapext as jsx
import numpy as np
import sparse_cells

NUMBERS = np.array([3, 5, 2, 7, 1, 6, 4, 0], np.int32)
LANES = 8


@dataclasses.dataclass(frozen=True)
class Kernel:
  """One kernel.

  Attributes:
    body: of the Refs `i`, `x` and `o`.
    wanted: what it writes; of the arrays `i`, `x` and `o`.
    message: of the stock refusal.
    dtype: of `x` and `o`.
    shape: of `x` and `o`.
    space: memory space of `x`.
    out_space: memory space of `o`.
    kind: of the refusal.
  """

  body: Callable[..., None]
  wanted: Callable[..., None]
  message: str
  dtype: Any = np.float32
  shape: tuple[int, ...] = (16, 128)
  space: Any = pltpu.VMEM
  out_space: Any = pltpu.VMEM
  kind: Any = (ValueError, NotImplementedError)

  def x(self) -> np.ndarray:
    rng = np.random.default_rng(1)
    return rng.integers(-8, 9, self.shape).astype(self.dtype)

  def expected(self) -> np.ndarray:
    o = self.x().copy()
    self.wanted(NUMBERS, self.x(), o)
    return o

  def call(self, decorate, **kwargs):
    """A function of `i` and `x`, with the body decorated."""
    spec = pl.BlockSpec
    return pl.pallas_call(
      decorate(self.body),
      out_shape=jax.ShapeDtypeStruct(self.shape, self.dtype),
      in_specs=[
        spec(memory_space=pltpu.SMEM),
        spec(memory_space=self.space),
        spec(memory_space=self.out_space),
      ],
      out_specs=spec(memory_space=self.out_space),
      input_output_aliases={2: 0},
      **kwargs,
    )


def _whole(body):
  """An aliased block in VMEM does not start as its input: copies it first."""

  def kernel(i, x, start, o):
    o[...] = start[...]
    body(i, x, o)

  return kernel


def _as_is(body):
  return lambda i, x, start, o: body(i, x, o)


_SCALAR = "Cannot store scalars to VMEM"
_NO_ADD = "addupdate"
_INTS = "Cannot do int indexing on TPU"
_HBM = "Loads are only allowed on VMEM and SMEM|only allowed on VMEM and SMEM"
_TABLE: dict[str, Kernel] = {}


def _kernel(message, wanted, **kwargs):
  def with_body(body):
    prepare = kwargs.pop("prepare", _whole)
    _TABLE[body.__name__] = Kernel(prepare(body), wanted, message, **kwargs)
    return body

  return with_body


def _set(o, index, value):
  o[index] = value


@_kernel(_SCALAR, lambda i, x, o: _set(o, (0, 3), x[0, 0]))
def scalar_store(i, x, o):
  o[0, 3] = x[0, 0]


@_kernel(_SCALAR, lambda i, x, o: _set(o, (3, 5), x.sum()))
def scalar_store_at_run_time(i, x, o):
  o[i[0], i[1]] = jnp.sum(x[...])


@_kernel(
  _SCALAR, lambda i, x, o: _set(o, (3, 5), x[3, 0]), dtype=jnp.bfloat16
)
def bfloat16_store(i, x, o):
  value = jnp.max(x[pl.ds(3, 1), pl.ds(0, 1)].astype(jnp.float32))
  o[i[0], i[1]] = value.astype(jnp.bfloat16)


@_kernel(_SCALAR, lambda i, x, o: _set(o, (3, 5), 7), dtype=np.int8,
         shape=(32, 128))
def int8_store(i, x, o):
  o[i[0], i[1]] = jnp.int8(7)


def _swapped(i, x, o):
  o[1, 2], o[3, 5] = o[3, 5], 9


@_kernel(_SCALAR, _swapped)
def scalar_swap(i, x, o):
  o[1, 2] = jax.ref.swap(o, (i[0], i[1]), 9.0)


@_kernel(_SCALAR, lambda i, x, o: _set(o, (0, 5), x[0, 5] + 8))
def counts_in_a_loop(i, x, o):
  def count(_, carry):
    o[0, i[1]] += 1.0
    return carry

  lax.fori_loop(0, 8, count, 0)


def _per_condition(i, x, o):
  for k in range(0, 8, 2):
    o[k, k] = 1


@_kernel(_SCALAR, _per_condition)
def store_in_a_condition(i, x, o):
  @pl.loop(0, 8)
  def _(k):
    @pl.when(k % 2 == 0)
    def _():
      o[k, k] = 1.0


@_kernel(_SCALAR, lambda i, x, o: _set(o, (range(8), range(8)), range(8)))
def store_in_a_while_loop(i, x, o):
  def step(k):
    o[k, k] = k.astype(jnp.float32)
    return k + 1

  lax.while_loop(lambda k: k < 8, step, jnp.int32(0))


@_kernel(_SCALAR, lambda i, x, o: _set(o, (3, 4), 2 * x[0, 4]))
def scratch_of_a_scope(i, x, o):
  def scope(scratch):
    scratch[...] = x[...]
    scratch[i[0], 4] = 2 * x[0, 4]
    o[pl.ds(3, 1), :] = scratch[pl.ds(3, 1), :]

  pl.run_scoped(scope, pltpu.VMEM((16, 128), jnp.float32))
  o[pl.ds(3, 1), pl.ds(0, 4)] = x[pl.ds(3, 1), pl.ds(0, 4)]
  o[pl.ds(3, 1), pl.ds(5, 123)] = x[pl.ds(3, 1), pl.ds(5, 123)]


@_kernel("", lambda i, x, o: _set(o, ..., np.where(x > 0, x, o)))
def masked_load(i, x, o):
  mask = x[...] > 0
  o[...] = jnp.where(mask, pltpu.load(x, mask=mask), o[...])


@_kernel(
  "masked swap with non-32-bit data",
  lambda i, x, o: _set(o, ..., np.where(np.arange(128) < 5, 1, x)),
  dtype=jnp.bfloat16,
)
def masked_bfloat16_store(i, x, o):
  mask = lax.broadcasted_iota(jnp.int32, o.shape, 1) < 5
  pltpu.store(o, jnp.ones_like(o), mask=mask)


@_kernel(
  "masked swap with strided store",
  lambda i, x, o: _set(o, slice(0, 16, 4), np.where(x[:4] > 0, 1, o[::4])),
)
def masked_strided_store(i, x, o):
  value = x[0:4]
  pltpu.store(o.at[pl.ds(0, 4, 4)], jnp.ones_like(value), mask=value > 0)


@_kernel(_NO_ADD, lambda i, x, o: _set(o, ..., o + x))
def addupdate(i, x, o):
  jax.ref.addupdate(o, ..., x[...])


@_kernel(_NO_ADD, lambda i, x, o: _set(o, (3, 5), o[3, 5] + 2))
def addupdate_of_a_scalar(i, x, o):
  jax.ref.addupdate(o, (i[0], i[1]), 2.0)


@_kernel(_NO_ADD, lambda i, x, o: _set(o, 3, o[3] + x[5]), dtype=np.int32)
def addupdate_of_a_row(i, x, o):
  jax.ref.addupdate(o, (pl.ds(i[0], 1),), x[pl.ds(i[1], 1)])


@_kernel(
  _INTS, lambda i, x, o: _set(o, (slice(0, 4), slice(None)), x[[3, 1, 1, 0]])
)
def rows_by_an_array(i, x, o):
  # An array that is not a constant, which a kernel may not capture.
  rows = lax.broadcasted_iota(jnp.int32, (1, 4), 1)[0]
  rows = jnp.where(rows == 0, 3, jnp.where(rows == 3, 0, 1))
  o[0:4] = x[rows]


@_kernel(_INTS, lambda i, x, o: _set(o, ([1, 3, 5, 7], range(4)), x[0, :4]))
def elements_by_arrays(i, x, o):
  columns = lax.broadcasted_iota(jnp.int32, (1, 4), 1)[0]
  o[2 * columns + 1, columns] = x[0, pl.ds(0, 4)]


@_kernel(
  _HBM, lambda i, x, o: _set(o, (slice(0, 8), slice(None)), x[8:]),
  space=pltpu.HBM,
)
def load_from_hbm(i, x, o):
  o[0:8] = x[8:16]


@_kernel(_HBM, lambda i, x, o: _set(o, 0, x[3, 5]), space=pl.ANY)
def scalar_from_hbm(i, x, o):
  o[0:1] = jnp.full((1, 128), x[i[0], i[1]])


@_kernel(
  _HBM, lambda i, x, o: _set(o, (3, 5), 4), out_space=pltpu.HBM,
  prepare=_as_is,
)
def scalar_to_hbm(i, x, o):
  o[i[0], i[1]] = 4.0


@_kernel(
  "Can only load scalars from SMEM", lambda i, x, o: _set(o, 0, x[0] + 1),
  space=pltpu.SMEM,
)
def array_from_smem(i, x, o):
  o[0:1] = x[0:1] + 1.0


@_kernel(
  "Can only store scalars to SMEM",
  lambda i, x, o: _set(o, ..., x + 1),
  out_space=pltpu.SMEM, prepare=_as_is, shape=(2, 128),
)
def array_to_smem(i, x, o):
  o[...] = x[...] + 1.0


@_kernel("", lambda i, x, o: _set(o, ..., np.where(x > 0, x, 3)))
def masked_load_with_a_scalar(i, x, o):
  o[...] = pltriton.load(x, mask=x[...] > 0, other=3.0)


@_kernel(
  "same shape", lambda i, x, o: _set(o, 3, np.where(x[5, :1] > 0, 7, o[3]))
)
def masked_store_by_a_column(i, x, o):
  value = jnp.full((1, 128), 7.0)
  mask = x[pl.ds(5, 1), pl.ds(0, 1)] > 0
  pltriton.store(o.at[pl.ds(3, 1)], value, mask=mask)


_MIXED = "Triton-specific primitive"


@_kernel(_MIXED, lambda i, x, o: _set(o, (0, slice(0, 4)), x[:8:2, 5]),
         kind=RuntimeError)
def load_by_an_array_and_a_scalar(i, x, o):
  rows = 2 * lax.broadcasted_iota(jnp.int32, (1, 4), 1)[0]
  o[0, pl.ds(0, 4)] = x[rows, 5]


@_kernel(_MIXED, lambda i, x, o: _set(o, (slice(0, 8, 2), 3), x[1, :4]),
         kind=RuntimeError)
def store_by_an_array_and_a_scalar(i, x, o):
  rows = 2 * lax.broadcasted_iota(jnp.int32, (1, 4), 1)[0]
  o[rows, i[0]] = x[1, pl.ds(0, 4)]


@_kernel("atomic_rmw", lambda i, x, o: _set(
  o, ..., np.where(x > 0, np.maximum(o, -x), o)), dtype=np.int32)
def masked_atomic_max(i, x, o):
  value = x[...]
  pltriton.atomic_max(o, ..., -value, mask=value > 0)


def _exchanged(i, x, o):
  o[0, 0], o[3, 5] = o[3, 5], 9


@_kernel("__jax_array__", _exchanged)
def compare_and_swap(i, x, o):
  held = x[3, 5]
  o[0, 0] = pltriton.atomic_cas(o.at[i[0], i[1]], held, jnp.float32(9))


@_kernel("mgpu_atomic_store", lambda i, x, o: _set(o, 5, o[5] + x[3]))
def atomic_add_of_mosaic_gpu(i, x, o):
  plgpu.atomic_add(o.at[pl.ds(i[1], 1)], x[pl.ds(i[0], 1)])


TENSORCORE = dict(_TABLE)


# ## SparseCore: of vectors of words


def vector_kernel(body, decorate, n=64, **kwargs):
  """A function of an array of `n` words to another, both in HBM too."""
  mesh = plsc.VectorSubcoreMesh(
    core_axis_name="c", subcore_axis_name="s", num_cores=1, num_subcores=1
  )

  def kernel(x_hbm, o_hbm, x, o):
    pltpu.sync_copy(x_hbm, x)
    pltpu.sync_copy(x_hbm, o)
    body(x_hbm, x, o)
    if "interpret" in kwargs:
      pltpu.sync_copy(o, o_hbm)
    else:
      sparse_cells.push(o, o_hbm)

  words = jax.ShapeDtypeStruct((n,), jnp.float32)
  return pl.kernel(
    decorate(kernel),
    out_type=words,
    mesh=mesh,
    scratch_types=[pltpu.VMEM((n,), jnp.float32)] * 2,
    **kwargs,
  )


def _sc_scalar_store(hbm, x, o):
  o[5] = 7.0


def _sc_scalar_load(hbm, x, o):
  o[pl.ds(0, LANES)] = jnp.full((LANES,), x[13])


def _sc_scalar_add(hbm, x, o):
  o[5] += 1.0


def _sc_strided(hbm, x, o):
  o[pl.ds(0, LANES)] = x[pl.ds(1, LANES, 3)]


def _sc_from_hbm(hbm, x, o):
  o[pl.ds(0, LANES)] = hbm[pl.ds(16, LANES)]


def _sc_scalar_from_hbm(hbm, x, o):
  o[pl.ds(0, LANES)] = jnp.full((LANES,), hbm[9])


def _sc_addupdate(hbm, x, o):
  jax.ref.addupdate(o, pl.ds(8, LANES), x[pl.ds(0, LANES)])


def _sc_plsc_addupdate(hbm, x, o):
  plsc.addupdate(o.at[pl.ds(0, LANES, 2)], x[pl.ds(8, LANES)])


def _sc_by_an_array(hbm, x, o):
  o[pl.ds(0, LANES)] = x[lax.iota(jnp.int32, LANES) * 5]


def _sc_masked_store(hbm, x, o):
  value = x[pl.ds(8, LANES)]
  pltpu.store(o.at[pl.ds(0, LANES)], value, mask=value > 0)


def _sc_masked_load(hbm, x, o):
  mask = x[pl.ds(0, LANES)] > 0
  loaded = pltpu.load(x.at[pl.ds(8, LANES)], mask=mask)
  o[pl.ds(0, LANES)] = jnp.where(mask, loaded, 0.0)


def _sc_masked_load_other(hbm, x, o):
  mask = x[pl.ds(0, LANES)] > 0
  o[pl.ds(0, LANES)] = pltriton.load(
    x.at[pl.ds(8, LANES)], mask=mask, other=3.0
  )


def _sc_gather_from_hbm(hbm, x, o):
  o[pl.ds(0, LANES)] = plsc.load_gather(hbm, [lax.iota(jnp.int32, LANES) * 5])


def _sc_scalar_of_a_view(hbm, x, o):
  o[pl.ds(0, LANES)] = jnp.full((LANES,), x.at[pl.ds(8, 16)][3])


def _sc_scalar_to_a_view(hbm, x, o):
  o.at[pl.ds(8, 16)].at[pl.ds(4, 8)][3] = 7.0


def _sc_addupdate_of_a_view(hbm, x, o):
  jax.ref.addupdate(o.at[pl.ds(8, 16)], pl.ds(0, LANES, 2), x[pl.ds(0, LANES)])


def _sc_compare_and_swap(hbm, x, o):
  pltriton.atomic_cas(o.at[3], x[3], 9.0)


def _sc_lane(x):
  return x[pl.ds(0, LANES)]


def _sc_gather(hbm, x, o):
  at = lax.iota(jnp.int32, LANES) * 5
  o[pl.ds(0, LANES)] = plsc.load_gather(x.at[pl.ds(2, 40)], [at])


def _sc_scatter(hbm, x, o):
  at = lax.iota(jnp.int32, LANES) * 5
  plsc.store_scatter(o, [at], _sc_lane(x), mask=_sc_lane(x) > 0)


def _sc_addupdate_scatter(hbm, x, o):
  plsc.addupdate_scatter(o, [lax.iota(jnp.int32, LANES) // 3], _sc_lane(x))


def _sc_compress(hbm, x, o):
  lane = _sc_lane(x)
  plsc.store_compressed(o.at[pl.ds(8, LANES)], lane, mask=lane > 0)


def _sc_addupdate_compressed(hbm, x, o):
  lane = _sc_lane(x)
  plsc.addupdate_compressed(o.at[pl.ds(8, LANES)], lane, mask=lane > 0)


def _sc_expand(hbm, x, o):
  mask = _sc_lane(x) > 0
  loaded = plsc.load_expanded(x.at[pl.ds(8, LANES)], mask=mask)
  o[pl.ds(0, LANES)] = jnp.where(mask, loaded, 0.0)


def _scattered(x):
  o = x.copy()
  o[: 5 * LANES : 5] = np.where(x[:LANES] > 0, x[:LANES], o[: 5 * LANES : 5])
  return o


def _added(x, at, value):
  o = x.copy()
  np.add.at(o, at, value)
  return o


def _compressed(x, start):
  """`start` with what is positive, in order, from 8 on."""
  kept = x[:LANES][x[:LANES] > 0]
  o = start.copy()
  o[8 : 8 + len(kept)] = kept
  return o


def _expanded(x):
  o, mask = x.copy(), x[:LANES] > 0
  o[:LANES] = 0
  o[:LANES][mask] = x[8 : 8 + mask.sum()]
  return o


def _changed(x, index, value):
  o = x.copy()
  o[index] = value
  return o


_N = LANES

# Body, what NumPy makes of `x`, and the stock refusal.
SPARSECORE = {
  "scalar_store": (_sc_scalar_store, lambda x: _changed(x, 5, 7), "scalars"),
  "scalar_load": (
    _sc_scalar_load, lambda x: _changed(x, slice(0, _N), x[13]), "scalars"
  ),
  "scalar_add": (
    _sc_scalar_add, lambda x: _changed(x, 5, x[5] + 1), "scalars"
  ),
  "strided": (
    _sc_strided, lambda x: _changed(x, slice(0, _N), x[1 : 1 + 3 * _N : 3]),
    "stride 1",
  ),
  "from_hbm": (
    _sc_from_hbm, lambda x: _changed(x, slice(0, _N), x[16 : 16 + _N]), "HBM"
  ),
  "scalar_from_hbm": (
    _sc_scalar_from_hbm, lambda x: _changed(x, slice(0, _N), x[9]), "HBM"
  ),
  "addupdate": (
    _sc_addupdate,
    lambda x: _changed(x, slice(8, 8 + _N), x[8 : 8 + _N] + x[:_N]),
    "addupdate",
  ),
  "strided_plsc_addupdate": (
    _sc_plsc_addupdate,
    lambda x: _changed(
      x, slice(0, 2 * _N, 2), x[: 2 * _N : 2] + x[8 : 8 + _N]
    ),
    "stride 1",
  ),
  "by_an_array": (
    _sc_by_an_array,
    lambda x: _changed(x, slice(0, _N), x[: 5 * _N : 5]),
    "",
  ),
  "masked_store": (
    _sc_masked_store,
    lambda x: _changed(
      x, slice(0, _N), np.where(x[8 : 8 + _N] > 0, x[8 : 8 + _N], x[:_N])
    ),
    "masked_swap",
  ),
  "masked_load": (
    _sc_masked_load,
    lambda x: _changed(
      x, slice(0, _N), np.where(x[:_N] > 0, x[8 : 8 + _N], 0)
    ),
    "masked_load",
  ),
  "masked_load_with_a_scalar": (
    _sc_masked_load_other,
    lambda x: _changed(
      x, slice(0, _N), np.where(x[:_N] > 0, x[8 : 8 + _N], 3)
    ),
    "masked_load",
  ),
  "gather_from_hbm": (
    _sc_gather_from_hbm,
    lambda x: _changed(x, slice(0, _N), x[: 5 * _N : 5]),
    "hbm",
  ),
  "scalar_of_a_view": (
    _sc_scalar_of_a_view, lambda x: _changed(x, slice(0, _N), x[11]), "scalars"
  ),
  "scalar_to_a_view": (
    _sc_scalar_to_a_view, lambda x: _changed(x, 15, 7), "scalars"
  ),
  "addupdate_of_a_view": (
    _sc_addupdate_of_a_view,
    lambda x: _added(x, slice(8, 8 + 2 * _N, 2), x[:_N]),
    "addupdate",
  ),
  "compare_and_swap": (
    _sc_compare_and_swap, lambda x: _changed(x, 3, 9), "__jax_array__"
  ),
}  # fmt: skip

# What vector subcores lower, but their interpreter does not know.
SPARSECORE_INTERPRETED = {
  "gather": (_sc_gather, lambda x: _changed(x, slice(0, _N), x[2:42:5])),
  "scatter": (_sc_scatter, _scattered),
  "addupdate_scatter": (
    _sc_addupdate_scatter, lambda x: _added(x, np.arange(_N) // 3, x[:_N])
  ),
  "compress": (_sc_compress, lambda x: _compressed(x, x)),
  "addupdate_compressed": (
    _sc_addupdate_compressed,
    lambda x: x + _compressed(x, np.zeros_like(x)),
  ),
  "expand": (_sc_expand, _expanded),
}


def decorated():
  """Name to decorated kernel and its arguments, as compilers take them."""
  found = {}
  spec = jax.ShapeDtypeStruct
  for name, kernel in TENSORCORE.items():
    x = spec(kernel.shape, kernel.dtype)
    numbers = spec(NUMBERS.shape, NUMBERS.dtype)
    found[name] = kernel.call(jsx.extended), [numbers, x, x]
  for name, (body, *_) in SPARSECORE.items():
    call = lambda x, body=body: vector_kernel(body, jsx.extended)(x)
    found[f"sparsecore_{name}"] = call, [spec((64,), np.float32)]
  return found


# ## What the interpreters refuse, or do not count right
#
# Kernels for Triton, of integers `i` that repeat and of `x`, on `o`.


def interpreted(body, decorate, **kwargs):
  """A function of `i` and `x` to `o`, under `interpret=True`."""

  def kernel(i, x, o):
    o[...] = jnp.zeros_like(o)
    body(i, x, o)

  n = jax.ShapeDtypeStruct((8,), jnp.int32)
  return pl.pallas_call(decorate(kernel), out_shape=n, interpret=True, **kwargs)


def _old_values(i, x, o):
  o[...] = pltriton.atomic_add(o, (i[...],), x[...])


def _histogram(i, x):
  o = np.zeros_like(x)
  np.add.at(o, i, x)
  return o


def _masked_add(i, x, o):
  pltriton.atomic_add(o, (), x[...], mask=x[...] > 2)


# Body, and what NumPy makes of `i` and `x`.
INTERPRETED = {
  "repeated_add": (
    lambda i, x, o: pltriton.atomic_add(o, (i[...],), x[...]), _histogram
  ),
  "xchg": (lambda i, x, o: pltriton.atomic_xchg(o, (), x[...]), lambda i, x: x),
  "or": (lambda i, x, o: pltriton.atomic_or(o, (), x[...]), lambda i, x: x),
  "and": (
    lambda i, x, o: pltriton.atomic_and(o, (), x[...]), lambda i, x: 0 * x
  ),
  "xor": (
    lambda i, x, o: pltriton.atomic_xor(o, (i[...],), x[...]),
    lambda i, x: np.array(
      [np.bitwise_xor.reduce(x[i == k]) for k in range(8)], np.int32
    ),
  ),
  "masked_add": (_masked_add, lambda i, x: np.where(x > 2, x, 0)),
  "masked_strided_load": (
    lambda i, x, o: _set(o, pl.ds(0, 4), pltriton.load(
        x.at[pl.ds(0, 4, 2)])),
    lambda i, x: np.append(x[::2], [0] * 4),
  ),
}  # fmt: skip
