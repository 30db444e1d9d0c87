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
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
import jax_swapext as jsx
import numpy as np
import sparse_by_hand
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
      "vmem": pltpu.VMEM,
      "smem": pltpu.SMEM,
      "vmem_shared": pltpu.VMEM_SHARED,
      "hbm": pltpu.SMEM,
    }

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


def _at_long(i, v):
  return pl.ds(i[0], 3 * v.shape[0])


def _ours_long_store(t, i, v, c):
  w = sparse_by_hand.long(t, v)
  jsx.store(t, _at_long(i, v), w, mask=w > 0)


def _ours_long_add(t, i, v, c):
  w = sparse_by_hand.long(t, v)
  _drop(jsx.atomic_add(t, _at_long(i, v), w, mask=w > 0))


def _drop(old):
  del old  # Nobody wants it.


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
  "load_scalar": Row(lambda t, i, v, c: jsx.load(t, i[0]), sparse_by_hand.load),
  "store_scalar": Row(
    lambda t, i, v, c: jsx.store(t, i[0], v[0]), sparse_by_hand.store
  ),
  "add_scalar": Row(
    lambda t, i, v, c: _drop(jsx.atomic_add(t, i[0], v[0])),
    sparse_by_hand.add,
  ),
  "swap_scalar": Row(
    lambda t, i, v, c: jsx.swap(t, i[0], v[0]),
    sparse_by_hand.update(lambda old, value: value),
  ),
  "fetch_add_scalar": Row(
    lambda t, i, v, c: jsx.atomic_add(t, i[0], v[0]),
    sparse_by_hand.update(_added),
  ),
  "fetch_max_scalar": Row(
    lambda t, i, v, c: jsx.atomic_max(t, i[0], v[0]),
    sparse_by_hand.update(jnp.maximum),
  ),
  "cas_scalar": Row(
    lambda t, i, v, c: jsx.atomic_cas(t, i[0], 5, v[0]),
    sparse_by_hand.update(_replaced_if_5),
  ),
  "load_at_counter": Row(
    lambda t, i, v, c: jsx.load(t, c[0]),
    sparse_by_hand.load_at_counter,
  ),
  "store_at_counter": Row(
    lambda t, i, v, c: jsx.store(t, c[0], v[0]),
    sparse_by_hand.store_at_counter,
  ),
  "swap_at_counter": Row(
    lambda t, i, v, c: jsx.swap(t, c[0], v[0]),
    sparse_by_hand.swap_at_counter,
  ),
  "masked_load": Row(
    lambda t, i, v, c: jsx.load(t, _window(i, v), mask=v > 0, other=v),
    sparse_by_hand.masked_load,
  ),
  "masked_store": Row(
    lambda t, i, v, c: jsx.store(t, _window(i, v), v, mask=v > 0),
    sparse_by_hand.masked_store,
  ),
  "masked_swap": Row(
    lambda t, i, v, c: jsx.swap(t, _window(i, v), v, mask=v > 0),
    sparse_by_hand.masked_swap,
  ),
  "masked_add": Row(
    lambda t, i, v, c: _drop(jsx.atomic_add(t, _window(i, v), v, mask=v > 0)),
    sparse_by_hand.masked_add,
  ),
  "strided_load": Row(
    lambda t, i, v, c: jsx.load(t, _window(i, v, 3)),
    sparse_by_hand.strided_load,
  ),
  "strided_store": Row(
    lambda t, i, v, c: jsx.store(t, _window(i, v, 3), v),
    sparse_by_hand.strided_store,
  ),
  "column_load": Row(
    lambda t, i, v, c: jsx.load(t, (_window(i, v), 3)),
    sparse_by_hand.column_load,
    _TABLE,
  ),
  "column_store": Row(
    lambda t, i, v, c: jsx.store(t, (_window(i, v), 3), v),
    sparse_by_hand.column_store,
    _TABLE,
  ),
  "column_add": Row(
    lambda t, i, v, c: _drop(jsx.atomic_add(t, (_window(i, v), 3), v)),
    sparse_by_hand.column_add,
    _TABLE,
  ),
  "store_scalar_2d": Row(
    lambda t, i, v, c: jsx.store(t, (i[0], 5), v[0]),
    sparse_by_hand.store_2d,
    _TABLE,
  ),
  "max_at_positions": Row(
    lambda t, i, v, c: jsx.atomic_max(t, i, v),
    sparse_by_hand.in_order,
  ),
  "long_masked_store": Row(
    _ours_long_store, sparse_by_hand.long_store, passes=True
  ),
  "long_masked_add": Row(_ours_long_add, sparse_by_hand.long_add, passes=True),
  "smem_masked_store": Row(
    lambda t, i, v, c: jsx.store(t, i[0], v[0], mask=c[0] > 3),
    sparse_by_hand.smem_masked,
    **_SMEM,
  ),
  "smem_swap": Row(
    lambda t, i, v, c: jsx.swap(t, i[0], v[0]),
    sparse_by_hand.smem_update(lambda old, value: value),
    **_SMEM,
  ),
  "smem_fetch_add": Row(
    lambda t, i, v, c: jsx.atomic_add(t, i[0], v[0]),
    sparse_by_hand.smem_update(_added),
    **_SMEM,
  ),
  "smem_fetch_max": Row(
    lambda t, i, v, c: jsx.atomic_max(t, i[0], v[0]),
    sparse_by_hand.smem_update(jnp.maximum),
    **_SMEM,
  ),
  "smem_cas": Row(
    lambda t, i, v, c: jsx.atomic_cas(t, i[0], 5, v[0]),
    sparse_by_hand.smem_update(_replaced_if_5),
    **_SMEM,
  ),
  "smem_vector_load": Row(
    lambda t, i, v, c: jsx.load(t, pl.ds(0, v.shape[0])),
    sparse_by_hand.smem_vector_load,
    **_SMEM,
  ),
  "smem_vector_store": Row(
    lambda t, i, v, c: jsx.store(t, pl.ds(0, v.shape[0]), v),
    sparse_by_hand.smem_vector_store,
    **_SMEM,
  ),
}
for _memory in ("hbm", "vmem_shared"):
  ROWS |= {
    f"{_memory}_load": Row(
      lambda t, i, v, c: jsx.load(t, i[0]),
      sparse_by_hand.remote_load,
      memory=_memory,
    ),
    f"{_memory}_store": Row(
      lambda t, i, v, c: jsx.store(t, i[0], v[0]),
      sparse_by_hand.remote_swap(False),
      memory=_memory,
    ),
    f"{_memory}_swap": Row(
      lambda t, i, v, c: jsx.swap(t, i[0], v[0]),
      sparse_by_hand.remote_swap(True),
      memory=_memory,
    ),
  }


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
