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
"""Accesses on a SparseCore as one writes them in stock operations.

Functions of a table, a vector of positions, one of values and a counter in
SMEM: the best forms that are known.
"""

from __future__ import annotations

from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc
import jax.numpy as jnp
import sparse_cells


def _iota(n):
  return lax.iota(jnp.int32, n)


def _splat(n, x):
  return jnp.full((n,), x, jnp.int32)


def _first(n):
  return _iota(n) == 0


def _near(t, at, n):
  """The vector that starts at an element, which has neighbours enough here."""
  return t[pl.ds(at, n)]


def load(t, i, v, c):
  [n] = v.shape
  return plsc.load_gather(t, [_splat(n, i[0])])[0]


def store(t, i, v, c):
  [n] = v.shape
  at, value = _splat(n, i[0]), _splat(n, v[0])
  plsc.store_scatter(t, [at], value, mask=_first(n))


def add(t, i, v, c):
  [n] = v.shape
  at, value = _splat(n, i[0]), _splat(n, v[0])
  plsc.addupdate_scatter(t, [at], value, mask=_first(n))


def update(new):
  def update(t, i, v, c):
    [n] = v.shape
    at, value = _splat(n, i[0]), _splat(n, v[0])
    old = plsc.load_gather(t, [at])
    plsc.store_scatter(t, [at], new(old, value), mask=_first(n))
    return old[0]

  return update


def load_at_counter(t, i, v, c):
  return _near(t, c[0], v.shape[0])[0]


def store_at_counter(t, i, v, c):
  [n] = v.shape
  near = t.at[pl.ds(c[0], n)]
  plsc.store_compressed(near, _splat(n, v[0]), mask=_first(n))


def swap_at_counter(t, i, v, c):
  old = _near(t, c[0], v.shape[0])[0]
  store_at_counter(t, i, v, c)
  return old


def _masked_gather(t, i, v):
  """What is masked off may lie outside, where a plain load must not reach."""
  return plsc.load_gather(t, [i[0] + _iota(v.shape[0])], mask=v > 0)


def masked_load(t, i, v, c):
  return jnp.where(v > 0, _masked_gather(t, i, v), v)


def masked_store(t, i, v, c):
  plsc.store_scatter(t, [i[0] + _iota(v.shape[0])], v, mask=v > 0)


def masked_swap(t, i, v, c):
  old = _masked_gather(t, i, v)
  masked_store(t, i, v, c)
  return jnp.where(v > 0, old, jnp.zeros_like(old))


def masked_add(t, i, v, c):
  plsc.addupdate_scatter(t, [i[0] + _iota(v.shape[0])], v, mask=v > 0)


def strided_load(t, i, v, c):
  return plsc.load_gather(t, [i[0] + 3 * _iota(v.shape[0])])


def strided_store(t, i, v, c):
  plsc.store_scatter(t, [i[0] + 3 * _iota(v.shape[0])], v)


def _column(i, v):
  [n] = v.shape
  return [i[0] + _iota(n), _splat(n, 3)]


def column_load(t, i, v, c):
  return plsc.load_gather(t, _column(i, v))


def column_store(t, i, v, c):
  plsc.store_scatter(t, _column(i, v), v)


def column_add(t, i, v, c):
  plsc.addupdate_scatter(t, _column(i, v), v)


def store_2d(t, i, v, c):
  [n] = v.shape
  at = [_splat(n, i[0]), _splat(n, 5)]
  plsc.store_scatter(t, at, _splat(n, v[0]), mask=_first(n))


def in_order(t, i, v, c):
  """The maximum at positions that may repeat, with the old values."""
  [n] = v.shape
  _, last = plsc.scan_count(i)
  repeats = plsc.all_reduce_population_count(~last)[0]

  def one_by_one():
    out = jnp.zeros_like(v)
    for k in range(n):
      here = _iota(n) == k
      old = plsc.load_gather(t, [i], mask=here)
      plsc.store_scatter(t, [i], jnp.maximum(old, v), mask=here)
      out = jnp.where(here, old, out)
    return out

  return lax.cond(repeats != 0, one_by_one, lambda: unique(t, i, v))


def unique(t, i, v):
  """The maximum at positions that are known not to repeat."""
  old = plsc.load_gather(t, [i])
  plsc.store_scatter(t, [i], jnp.maximum(old, v))
  return old


def long(t, v):
  """Three vectors' worth, for which there are layout passes."""
  return t[pl.ds(128, 3 * v.shape[0])]


def long_store(t, i, v, c):
  w = long(t, v)
  at = pl.ds(i[0], w.shape[0])
  t[at] = jnp.where(w > 0, w, t[at])


def long_add(t, i, v, c):
  w = long(t, v)
  at = pl.ds(i[0], w.shape[0])
  old = t[at]
  t[at] = jnp.where(w > 0, old + w, old)


# SMEM.


def smem_masked(t, i, v, c):
  @pl.when(c[0] > 3)
  def _():
    t[i[0]] = v[0]


def smem_update(new):
  def update(t, i, v, c):
    old = t[i[0]]
    t[i[0]] = new(old, v[0])
    return old

  return update


def smem_vector_load(t, i, v, c):
  [n] = v.shape
  out = jnp.zeros_like(v)
  for k in range(n):
    out = jnp.where(_iota(n) == k, t[k], out)
  return out


def smem_vector_store(t, i, v, c):
  for k in range(v.shape[0]):
    t[k] = v[k]


# HBM and shared memory.


def _scoped(n, body):
  return pl.run_scoped(
    body, pltpu.VMEM((n,), jnp.int32), pltpu.SemaphoreType.DMA
  )


def remote_load(t, i, v, c):
  [n] = v.shape

  def body(scratch, semaphore):
    pltpu.async_copy(t.at[_splat(n, i[0])], scratch, semaphore).wait()
    return scratch[...][0]

  return _scoped(n, body)


def remote_swap(returns):
  def swap(t, i, v, c):
    [n] = v.shape
    view = t.at[pl.ds(i[0], 1)]

    def body(scratch, semaphore):
      old, zero = None, _splat(n, 0)
      if returns:
        pltpu.async_copy(view, scratch, semaphore).wait()
        old = plsc.load_gather(scratch, [zero])[0]
      plsc.store_scatter(scratch, [zero], _splat(n, v[0]), mask=_first(n))
      sparse_cells.push(scratch, view)
      return old

    return _scoped(1, body)

  return swap
