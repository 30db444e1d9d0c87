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
"""Accesses in TensorCore kernels as one writes them in stock operations.

Functions of what `tpu_costs.Args` describes, tuned: no form that takes fewer
bundles is known. Only flags could be faster, as the words that they are, which
stock syntax does not reach.
"""

from __future__ import annotations

from typing import Any

from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
import numpy as np
import tpu_cells

# One element.


def _iota(shape, axis):
  return lax.broadcasted_iota(jnp.int32, shape, axis)


def _window(a: Any, rows: int):
  """A window around the element, and where in it the element is."""
  if rows == 1:  # Any row may be sliced where rows are one tile wide.
    return (pl.ds(a.i, 1), slice(None)), _iota((1, 128), 1) == a.j
  at = (
    pl.ds(pl.multiple_of(a.i & -rows, rows), rows),
    pl.ds(pl.multiple_of(a.j & -128, 128), 128),
  )
  shape = (rows, 128)
  return at, (_iota(shape, 0) == (a.i & (rows - 1))) & (
    _iota(shape, 1) == (a.j & 127)
  )


def _put(o, at, inside, old, new):
  if o.dtype.itemsize == 4:
    pltpu.store(o.at[at], new, mask=inside)
  else:
    o[at] = jnp.where(inside, new, o[at] if old is None else old)


def _pick(a: Any, rows: int, tile):
  """The element of a window: two rotations are cheaper than a reduction."""
  dtype = tile.dtype
  if dtype == np.bool_:
    tile = jnp.where(tile, 1, 0)
  tile = tile.astype(tpu_cells.carrier(dtype))
  j = a.j
  if rows > 1:
    tile = pltpu.roll(tile, rows - (a.i & (rows - 1)), 0)
    j = j & 127
  return tpu_cells.as_dtype(pltpu.roll(tile, 128 - j, 1)[0, 0], dtype)


def add(old, new):
  """Mosaic has no arithmetic on bytes."""
  if old.dtype.itemsize > 1:
    return old + new
  return (old.astype(jnp.int32) + new.astype(jnp.int32)).astype(old.dtype)


def replaced(old, new):
  del old  # Unused.
  return new


def store(rows):
  def store(a):
    at, inside = _window(a, rows)
    _put(a.o, at, inside, None, jnp.full(inside.shape, a.v))

  return store


def update(rows, new, returns=True):
  def update(a):
    at, inside = _window(a, rows)
    old = a.o[at]
    _put(a.o, at, inside, old, new(old, jnp.full(inside.shape, a.v)))
    return _pick(a, rows, old) if returns else None

  return update


def load(rows):
  def load(a):
    at, _ = _window(a, rows)
    return _pick(a, rows, a.o[at])

  return load


def cas(a):
  """The bits are compared."""
  at, inside = _window(a, 8)
  old = a.o[at]
  bits = lax.bitcast_convert_type(a.v, jnp.int32)
  same = pltpu.bitcast(old, jnp.int32) == bits
  new = jnp.full(inside.shape, a.v * 2)
  pltpu.store(a.o.at[at], new, mask=inside & same)
  return _pick(a, 8, old)


def at(a):
  return a.i, a.j


_AT = (slice(3, 4), slice(5, 6))


def static_store(a):
  a.o[_AT] = jnp.full((1, 1), a.v)


def static_load(a):
  if a.o.dtype.itemsize == 4 or a.o.dtype == np.bool_:
    return a.o[3, 5]
  out = a.o[_AT].astype(tpu_cells.carrier(a.o.dtype))[0, 0]
  return out.astype(a.o.dtype)


def static_add(a):
  old = a.o[_AT]
  a.o[_AT] = add(old, jnp.full((1, 1), a.v))
  return old.astype(tpu_cells.carrier(old.dtype))[0, 0].astype(old.dtype)


def only(a):
  old = a.o[...]
  a.o[...] = jnp.full(old.shape, a.v)
  if old.ndim == 1:
    return old[0]
  return old.astype(tpu_cells.carrier(old.dtype))[0, 0].astype(old.dtype)


def line(a):
  at = pl.ds(pl.multiple_of(a.i & -128, 128), 128)
  inside = (_iota((1, 128), 1) == (a.i & 127)).reshape(128)
  pltpu.store(a.o.at[at], jnp.full((128,), a.v), mask=inside)


# Arrays.


def masked_value(a: Any):
  return _iota(a.o.shape, 0) > a.i, jnp.full(a.o.shape, a.v)


def masked_store(a):
  mask, value = masked_value(a)
  _put(a.o, ..., mask, None, value)


def masked_swap(a):
  mask, value = masked_value(a)
  old = a.o[...]
  _put(a.o, ..., mask, old, value)
  return jnp.where(mask, old, jnp.zeros_like(old))


def masked_load(a):
  old = a.o[...]
  return jnp.where(masked_value(a)[0], old, jnp.zeros_like(old))


def array_add(a):
  a.o[...] = add(a.o[...], masked_value(a)[1])


def masked_add(a):
  mask, value = masked_value(a)
  old = a.o[...]
  _put(a.o, ..., mask, old, add(old, value))


STRIDED = (pl.ds(0, 8, 2), slice(None))


def strided(a):
  a.o[STRIDED] = a.w[...]


def masked_strided(a):
  w = a.w[...]
  a.o[STRIDED] = jnp.where(w > 0, w, a.o[STRIDED])


# SMEM and HBM.


def smem_store(a):
  w = a.w[...]
  if w.size > 16:
    _scoped(pltpu.VMEM, w.shape, w.dtype, lambda s: _moved(s, w, a.o))
  else:
    _put_each(a.o, w)


def _put_each(o, w):
  for k in range(w.size):
    o[k] = w[k]


def _scoped(memory, shape, dtype, body):
  return pl.run_scoped(body, memory(shape, dtype))


def _moved(scratch, value, target):
  scratch[...] = value
  pltpu.sync_copy(scratch, target)


def smem_load(a):
  shape, dtype = a.o.shape, a.o.dtype
  if shape[0] <= 16 and len(shape) == 1:
    out = jnp.zeros(shape, dtype)
    lane = _iota((1, shape[0]), 1).reshape(shape)
    for k in range(shape[0]):
      out = jnp.where(lane == k, a.o[k], out)
    return out

  def body(scratch):
    pltpu.sync_copy(a.o, scratch)
    return scratch[...]

  return _scoped(pltpu.VMEM, shape, dtype, body)


def smem_swap(a):
  w = a.w[...]
  if w.size <= 16:
    old = smem_load(a)
    _put_each(a.o, w)
    return old

  def body(scratch):
    pltpu.sync_copy(a.o, scratch)
    old = scratch[...]
    _moved(scratch, w, a.o)
    return old

  return _scoped(pltpu.VMEM, a.o.shape, a.o.dtype, body)


def smem_add(a):
  old = a.o[a.i]
  a.o[a.i] = old + a.v
  return old


def smem_masked(a):
  @pl.when(a.v > 0)
  def _():
    a.o[a.i] = a.v


def hbm_store(a):
  w = a.w[...]
  _scoped(pltpu.VMEM, w.shape, w.dtype, lambda s: _moved(s, w, a.o))


def hbm_swap(static):
  def swap(a):
    i, j = (3, 5) if static else (a.i, a.j)
    first = 0 if static else pl.multiple_of(j & -128, 128)
    view = a.o.at[pl.ds(i, 1), pl.ds(first, 128)]

    def body(scratch):
      pltpu.sync_copy(view, scratch)
      old = scratch[0, j & 127]
      scratch[0, j & 127] = a.v
      pltpu.sync_copy(scratch, view)
      return old

    return _scoped(pltpu.SMEM, (1, 128), a.o.dtype, body)

  return swap
