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
"""What accesses on a SparseCore cost: ours beside the same by hand.

Each row is one access of ours and the best form in stock operations. A test
compiles both and compares bundles and cycles; `benchmarks/tpu_bundles.py`
prints them.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import Any

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc
import jax.numpy as jnp
import jax_swapext as jsx
import numpy as np
import sparse_cells
from sparse_cells import Setting

_I32 = np.dtype(np.int32)


@dataclasses.dataclass(frozen=True)
class Row:
  """One access: functions of (table, i, v), which are vectors of all lanes.

  Attributes:
    ours: Returns a vector, a scalar or None.
    hand: The same in stock operations.
    shape: The table's shape.
    memory: Where it is: "vmem", "smem", "hbm" or "vmem_shared".
    passes: Whether there are layout passes.
  """

  ours: Callable[..., Any]
  hand: Callable[..., Any]
  shape: tuple[int, ...] = (256,)
  memory: str = "vmem"
  passes: bool = False

  def kernel(self, access: Callable[..., Any], lanes: int):
    """(function, its arguments' shapes) of a kernel with one access."""
    x = jax.ShapeDtypeStruct(self.shape, _I32)
    y = jax.ShapeDtypeStruct((lanes,), _I32)
    spaces = {
      "vmem": pltpu.VMEM, "smem": pltpu.SMEM, "vmem_shared": pltpu.VMEM_SHARED,
      "hbm": pltpu.SMEM,
    }  # fmt: skip

    def body(x, i, v, new, result, table, at, value, counters):
      pltpu.sync_copy(i, at)
      pltpu.sync_copy(v, value)
      positions = at[...]
      if self.memory == "smem":
        for k in range(8):
          table[k] = positions[k]
      else:
        table = new if self.memory == "hbm" else table
        pltpu.sync_copy(x, table)
      counters[0] = positions[0]
      got = access(table, positions, value[...], counters)
      if got is not None:
        value[...] = got if got.shape else jnp.full((lanes,), got)
      if self.memory == "smem":
        value[...] = value[...] + table[0] + table[1] + table[2]
      elif self.memory != "hbm":
        pltpu.sync_copy(table, new)
      pltpu.sync_copy(value, result)

    def f(x, i, v):
      return pl.kernel(
        body,
        out_type=[x, y],
        mesh=sparse_cells.vector_mesh(),
        scratch_types=[
          spaces[self.memory](self.shape, _I32),
          pltpu.VMEM((lanes,), _I32),
          pltpu.VMEM((lanes,), _I32),
          pltpu.SMEM((1,), _I32),
        ],
        compiler_params=Setting(self.passes).params,
        name="k",
      )(x, i, v)

    return f, [x, y, y]


# ## By hand


def _iota(n):
  return lax.iota(jnp.int32, n)


def _splat(n, x):
  return jnp.full((n,), x, jnp.int32)


def _first(n):
  return _iota(n) == 0


def _near(t, at, n):
  """The vector that starts at an element, which has neighbours enough here."""
  return t[pl.ds(at, n)]


def _hand_load(t, i, v, c):
  [n] = v.shape
  return plsc.load_gather(t, [_splat(n, i[0])])[0]


def _hand_store(t, i, v, c):
  [n] = v.shape
  at, value = _splat(n, i[0]), _splat(n, v[0])
  plsc.store_scatter(t, [at], value, mask=_first(n))


def _hand_add(t, i, v, c):
  [n] = v.shape
  at, value = _splat(n, i[0]), _splat(n, v[0])
  plsc.addupdate_scatter(t, [at], value, mask=_first(n))


def _hand_update(new):
  def update(t, i, v, c):
    [n] = v.shape
    at, value = _splat(n, i[0]), _splat(n, v[0])
    old = plsc.load_gather(t, [at])
    plsc.store_scatter(t, [at], new(old, value), mask=_first(n))
    return old[0]

  return update


def _hand_load_at_counter(t, i, v, c):
  return _near(t, c[0], v.shape[0])[0]


def _hand_store_at_counter(t, i, v, c):
  [n] = v.shape
  near = t.at[pl.ds(c[0], n)]
  plsc.store_compressed(near, _splat(n, v[0]), mask=_first(n))


def _hand_swap_at_counter(t, i, v, c):
  old = _near(t, c[0], v.shape[0])[0]
  _hand_store_at_counter(t, i, v, c)
  return old


def _masked_gather(t, i, v):
  """What is masked off may lie outside, where a plain load must not reach."""
  return plsc.load_gather(t, [i[0] + _iota(v.shape[0])], mask=v > 0)


def _hand_masked_load(t, i, v, c):
  return jnp.where(v > 0, _masked_gather(t, i, v), v)


def _hand_masked_store(t, i, v, c):
  plsc.store_scatter(t, [i[0] + _iota(v.shape[0])], v, mask=v > 0)


def _hand_masked_swap(t, i, v, c):
  old = _masked_gather(t, i, v)
  _hand_masked_store(t, i, v, c)
  return jnp.where(v > 0, old, jnp.zeros_like(old))


def _hand_masked_add(t, i, v, c):
  plsc.addupdate_scatter(t, [i[0] + _iota(v.shape[0])], v, mask=v > 0)


def _hand_strided_load(t, i, v, c):
  return plsc.load_gather(t, [i[0] + 3 * _iota(v.shape[0])])


def _hand_strided_store(t, i, v, c):
  plsc.store_scatter(t, [i[0] + 3 * _iota(v.shape[0])], v)


def _column(i, v):
  [n] = v.shape
  return [i[0] + _iota(n), _splat(n, 3)]


def _hand_column_load(t, i, v, c):
  return plsc.load_gather(t, _column(i, v))


def _hand_column_store(t, i, v, c):
  plsc.store_scatter(t, _column(i, v), v)


def _hand_column_add(t, i, v, c):
  plsc.addupdate_scatter(t, _column(i, v), v)


def _hand_store_2d(t, i, v, c):
  [n] = v.shape
  at = [_splat(n, i[0]), _splat(n, 5)]
  plsc.store_scatter(t, at, _splat(n, v[0]), mask=_first(n))


def _hand_in_order(t, i, v, c):
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

  return lax.cond(repeats != 0, one_by_one, lambda: _hand_unique(t, i, v))


def _hand_unique(t, i, v):
  """The maximum at positions that are known not to repeat."""
  old = plsc.load_gather(t, [i])
  plsc.store_scatter(t, [i], jnp.maximum(old, v))
  return old


def _long(t, v):
  """Three vectors' worth, for which there are layout passes."""
  return t[pl.ds(128, 3 * v.shape[0])]


def _hand_long_store(t, i, v, c):
  w = _long(t, v)
  at = pl.ds(i[0], w.shape[0])
  t[at] = jnp.where(w > 0, w, t[at])


def _hand_long_add(t, i, v, c):
  w = _long(t, v)
  at = pl.ds(i[0], w.shape[0])
  old = t[at]
  t[at] = jnp.where(w > 0, old + w, old)


def _at_long(i, v):
  return pl.ds(i[0], 3 * v.shape[0])


def _ours_long_store(t, i, v, c):
  w = _long(t, v)
  jsx.store(t, _at_long(i, v), w, mask=w > 0)


def _ours_long_add(t, i, v, c):
  w = _long(t, v)
  _drop(jsx.atomic_add(t, _at_long(i, v), w, mask=w > 0))


def _drop(old):
  del old  # Nobody wants it.


# SMEM.


def _hand_smem_masked(t, i, v, c):
  @pl.when(c[0] > 3)
  def _():
    t[i[0]] = v[0]


def _hand_smem_update(new):
  def update(t, i, v, c):
    old = t[i[0]]
    t[i[0]] = new(old, v[0])
    return old

  return update


def _hand_smem_vector_load(t, i, v, c):
  [n] = v.shape
  out = jnp.zeros_like(v)
  for k in range(n):
    out = jnp.where(_iota(n) == k, t[k], out)
  return out


def _hand_smem_vector_store(t, i, v, c):
  for k in range(v.shape[0]):
    t[k] = v[k]


# HBM and shared memory.


def _scoped(n, body):
  return pl.run_scoped(body, pltpu.VMEM((n,), _I32), pltpu.SemaphoreType.DMA)


def _hand_remote_load(t, i, v, c):
  [n] = v.shape

  def body(scratch, semaphore):
    pltpu.async_copy(t.at[_splat(n, i[0])], scratch, semaphore).wait()
    return scratch[...][0]

  return _scoped(n, body)


def _hand_remote_swap(returns):
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


def _added(old, value):
  return old + value


def _replaced_if_5(old, value):
  return jnp.where(old == 5, value, old)


def _window(i, v, stride=1):
  return pl.ds(i[0], v.shape[0], stride)


_TABLE = (32, 128)
_SMEM = {"shape": (16,), "memory": "smem"}

# row -> bundles by which ours is above, at no more cycles: the other form needs
# that the element has as many neighbours as there are lanes.
ABOVE = {"load_at_counter": 2, "store_at_counter": 1, "swap_at_counter": 2}

ROWS: dict[str, Row] = {
  "load_scalar": Row(lambda t, i, v, c: jsx.load(t, i[0]), _hand_load),
  "store_scalar": Row(lambda t, i, v, c: jsx.store(t, i[0], v[0]), _hand_store),
  "add_scalar": Row(
    lambda t, i, v, c: _drop(jsx.atomic_add(t, i[0], v[0])), _hand_add,
  ),
  "swap_scalar": Row(
    lambda t, i, v, c: jsx.swap(t, i[0], v[0]),
    _hand_update(lambda old, value: value),
  ),
  "fetch_add_scalar": Row(
    lambda t, i, v, c: jsx.atomic_add(t, i[0], v[0]), _hand_update(_added),
  ),
  "fetch_max_scalar": Row(
    lambda t, i, v, c: jsx.atomic_max(t, i[0], v[0]), _hand_update(jnp.maximum),
  ),
  "cas_scalar": Row(
    lambda t, i, v, c: jsx.atomic_cas(t, i[0], 5, v[0]),
    _hand_update(_replaced_if_5),
  ),
  "load_at_counter": Row(
    lambda t, i, v, c: jsx.load(t, c[0]), _hand_load_at_counter,
  ),
  "store_at_counter": Row(
    lambda t, i, v, c: jsx.store(t, c[0], v[0]), _hand_store_at_counter,
  ),
  "swap_at_counter": Row(
    lambda t, i, v, c: jsx.swap(t, c[0], v[0]), _hand_swap_at_counter,
  ),
  "masked_load": Row(
    lambda t, i, v, c: jsx.load(t, _window(i, v), mask=v > 0, other=v),
    _hand_masked_load,
  ),
  "masked_store": Row(
    lambda t, i, v, c: jsx.store(t, _window(i, v), v, mask=v > 0),
    _hand_masked_store,
  ),
  "masked_swap": Row(
    lambda t, i, v, c: jsx.swap(t, _window(i, v), v, mask=v > 0),
    _hand_masked_swap,
  ),
  "masked_add": Row(
    lambda t, i, v, c: _drop(
      jsx.atomic_add(t, _window(i, v), v, mask=v > 0)
    ), _hand_masked_add,
  ),
  "strided_load": Row(
    lambda t, i, v, c: jsx.load(t, _window(i, v, 3)), _hand_strided_load,
  ),
  "strided_store": Row(
    lambda t, i, v, c: jsx.store(t, _window(i, v, 3), v), _hand_strided_store,
  ),
  "column_load": Row(
    lambda t, i, v, c: jsx.load(t, (_window(i, v), 3)), _hand_column_load,
    _TABLE,
  ),
  "column_store": Row(
    lambda t, i, v, c: jsx.store(t, (_window(i, v), 3), v), _hand_column_store,
    _TABLE,
  ),
  "column_add": Row(
    lambda t, i, v, c: _drop(jsx.atomic_add(t, (_window(i, v), 3), v)),
    _hand_column_add, _TABLE,
  ),
  "store_scalar_2d": Row(
    lambda t, i, v, c: jsx.store(t, (i[0], 5), v[0]), _hand_store_2d, _TABLE,
  ),
  "max_at_positions": Row(
    lambda t, i, v, c: jsx.atomic_max(t, i, v), _hand_in_order,
  ),
  "long_masked_store": Row(_ours_long_store, _hand_long_store, passes=True),
  "long_masked_add": Row(_ours_long_add, _hand_long_add, passes=True),
  "smem_masked_store": Row(
    lambda t, i, v, c: jsx.store(t, i[0], v[0], mask=c[0] > 3),
    _hand_smem_masked, **_SMEM,
  ),
  "smem_swap": Row(
    lambda t, i, v, c: jsx.swap(t, i[0], v[0]),
    _hand_smem_update(lambda old, value: value), **_SMEM,
  ),
  "smem_fetch_add": Row(
    lambda t, i, v, c: jsx.atomic_add(t, i[0], v[0]), _hand_smem_update(_added),
    **_SMEM,
  ),
  "smem_fetch_max": Row(
    lambda t, i, v, c: jsx.atomic_max(t, i[0], v[0]),
    _hand_smem_update(jnp.maximum), **_SMEM,
  ),
  "smem_cas": Row(
    lambda t, i, v, c: jsx.atomic_cas(t, i[0], 5, v[0]),
    _hand_smem_update(_replaced_if_5), **_SMEM,
  ),
  "smem_vector_load": Row(
    lambda t, i, v, c: jsx.load(t, pl.ds(0, v.shape[0])),
    _hand_smem_vector_load, **_SMEM,
  ),
  "smem_vector_store": Row(
    lambda t, i, v, c: jsx.store(t, pl.ds(0, v.shape[0]), v),
    _hand_smem_vector_store, **_SMEM,
  ),
}  # fmt: skip
for _memory in ("hbm", "vmem_shared"):
  ROWS |= {
    f"{_memory}_load": Row(
      lambda t, i, v, c: jsx.load(t, i[0]), _hand_remote_load, memory=_memory,
    ),
    f"{_memory}_store": Row(
      lambda t, i, v, c: jsx.store(t, i[0], v[0]), _hand_remote_swap(False),
      memory=_memory,
    ),
    f"{_memory}_swap": Row(
      lambda t, i, v, c: jsx.swap(t, i[0], v[0]), _hand_remote_swap(True),
      memory=_memory,
    ),
  }  # fmt: skip


def _kernels(lanes):
  sparse_cells.ignore_push_warnings()
  return {
    f"{name} {who}": row.kernel(getattr(row, who), lanes)
    for name, row in ROWS.items()
    for who in ("ours", "hand")
  }


def kernels_8():
  return _kernels(8)


def kernels_16():
  return _kernels(16)
