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
"""What accesses in TensorCore kernels cost: ours beside the same by hand.

Each row is one access of ours and the tuned form in stock operations. A test
compiles both and compares the bundles; `benchmarks/tpu_bundles.py` prints them.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import Any, NamedTuple

import cases
import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
import jax_swapext as jsx
import numpy as np
import tpu_cells

_F32, _I32, _I8, _BOOL = map(np.dtype, ("float32", "int32", "int8", "bool"))
_BF16 = np.dtype(jnp.bfloat16)


class Args(NamedTuple):
  """What a row's access may use.

  Attributes:
    o: The Ref.
    i: A row, known at run time only.
    j: A column, likewise.
    v: A scalar of the Ref's dtype.
    w: An array of it, of the row's `value` shape, or None.
  """

  o: Any
  i: Any
  j: Any
  v: Any
  w: Any


@dataclasses.dataclass(frozen=True)
class Row:
  """One access.

  Attributes:
    dtype: The Ref's dtype.
    shape: Its shape.
    ours: Takes `Args`, returns the result or None.
    hand: The same in stock operations.
    space: The Ref's memory space, as in `tpu_cells.SPACES`.
    value: Shape of the array that it may use, or None.
    result: Shape of its result; () for a scalar or none.
  """

  dtype: np.dtype
  shape: tuple[int, ...]
  ours: Callable[[Args], Any]
  hand: Callable[[Args], Any]
  space: str = "vmem"
  value: tuple[int, ...] | None = None
  result: tuple[int, ...] = ()

  def inputs(self) -> list[np.ndarray]:
    """Arguments of the kernels."""
    carrier = tpu_cells.carrier(self.dtype)
    x = cases.values(np.int8, self.shape).astype(self.dtype)
    position = np.array([37, 99], np.int32) % np.array(
      [self.shape[0], self.shape[-1]], np.int32
    )
    inputs = [x, position, np.array([3], carrier)]
    if self.value is not None:
      inputs.append(cases.values(np.int8, self.value, 1).astype(self.dtype))
    return inputs

  def kernel(self, access: Callable[[Args], Any], copies: bool = False):
    """A kernel with one access: (x, position, v[, w]) -> (new x, result).

    Args:
      access: `ours` or `hand`.
      copies: Whether the kernel copies x; else x is the output, which a kernel
        that is only compiled may take for granted.
    """
    result = jax.ShapeDtypeStruct(
      self.result or (1,),
      self.dtype if self.result else tpu_cells.carrier(self.dtype),
    )

    def body(x, position, v, *refs):
      *w, o, out = refs
      if copies:
        tpu_cells.copy_whole(x, o, self)
      value = tpu_cells.as_dtype(v[0], self.dtype)
      got = access(Args(o, position[0], position[1], value, w[0] if w else w))
      if self.result:
        out[...] = got
      else:
        out[0] = v[0] if got is None else got.astype(out.dtype)

    space, smem = tpu_cells.SPACES[self.space], pltpu.SMEM
    values = [pltpu.VMEM] * (self.value is not None)
    spaces = (space, smem, smem, *values)
    return pl.pallas_call(
      body,
      out_shape=[jax.ShapeDtypeStruct(self.shape, self.dtype), result],
      in_specs=[pl.BlockSpec(memory_space=m) for m in spaces],
      out_specs=[
        pl.BlockSpec(memory_space=m)
        for m in (space, pltpu.VMEM if self.result else smem)
      ],
      input_output_aliases={} if copies else {0: 0},
      name="k",
    )


# ## One element, by hand


def _iota(shape, axis):
  return lax.broadcasted_iota(jnp.int32, shape, axis)


def _window(a: Args, rows: int):
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


def _pick(a: Args, rows: int, tile):
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


def _add(old, new):
  """Mosaic has no arithmetic on bytes."""
  if old.dtype.itemsize > 1:
    return old + new
  return (old.astype(jnp.int32) + new.astype(jnp.int32)).astype(old.dtype)


def _replaced(old, new):
  del old  # Unused.
  return new


def _hand_store(rows):
  def store(a):
    at, inside = _window(a, rows)
    _put(a.o, at, inside, None, jnp.full(inside.shape, a.v))

  return store


def _hand_update(rows, new, returns=True):
  def update(a):
    at, inside = _window(a, rows)
    old = a.o[at]
    _put(a.o, at, inside, old, new(old, jnp.full(inside.shape, a.v)))
    return _pick(a, rows, old) if returns else None

  return update


def _hand_load(rows):
  def load(a):
    at, _ = _window(a, rows)
    return _pick(a, rows, a.o[at])

  return load


def _hand_cas(a):
  """The bits are compared."""
  at, inside = _window(a, 8)
  old = a.o[at]
  bits = lax.bitcast_convert_type(a.v, jnp.int32)
  same = pltpu.bitcast(old, jnp.int32) == bits
  new = jnp.full(inside.shape, a.v * 2)
  pltpu.store(a.o.at[at], new, mask=inside & same)
  return _pick(a, 8, old)


def _at(a):
  return a.i, a.j


_AT = (slice(3, 4), slice(5, 6))


def _hand_static_store(a):
  a.o[_AT] = jnp.full((1, 1), a.v)


def _hand_static_load(a):
  if a.o.dtype.itemsize == 4 or a.o.dtype == np.bool_:
    return a.o[3, 5]
  out = a.o[_AT].astype(tpu_cells.carrier(a.o.dtype))[0, 0]
  return out.astype(a.o.dtype)


def _hand_static_add(a):
  old = a.o[_AT]
  a.o[_AT] = _add(old, jnp.full((1, 1), a.v))
  return old.astype(tpu_cells.carrier(old.dtype))[0, 0].astype(old.dtype)


def _hand_only(a):
  old = a.o[...]
  a.o[...] = jnp.full(old.shape, a.v)
  if old.ndim == 1:
    return old[0]
  return old.astype(tpu_cells.carrier(old.dtype))[0, 0].astype(old.dtype)


def _hand_line(a):
  at = pl.ds(pl.multiple_of(a.i & -128, 128), 128)
  inside = (_iota((1, 128), 1) == (a.i & 127)).reshape(128)
  pltpu.store(a.o.at[at], jnp.full((128,), a.v), mask=inside)


def _scalars():
  rows = {}
  for dtype in (_F32, _BF16, _I8, _BOOL):
    for columns in (128, 256):
      tile = {_BF16: 16, _I8: 32}.get(dtype, 1 if columns == 128 else 8)
      shape, name = (64, columns), f"{dtype.name}_{columns}"

      def add(operation, ours, hand, shape=shape, dtype=dtype, name=name):
        rows[f"{operation}_{name}"] = Row(dtype, shape, ours, hand)

      add("store", lambda a: jsx.store(a.o, _at(a), a.v), _hand_store(tile))
      add("swap", lambda a: jsx.swap(a.o, _at(a), a.v),
          _hand_update(tile, _replaced))  # fmt: skip
      add("load", lambda a: jsx.load(a.o, _at(a)), _hand_load(tile))
      if columns == 256:
        add("static_store", lambda a: jsx.store(a.o, (3, 5), a.v),
            _hand_static_store)  # fmt: skip
        add("static_load", lambda a: jsx.load(a.o, (3, 5)), _hand_static_load)
      if dtype == _BOOL:
        continue
      add("add", lambda a: jsx.atomic_add(a.o, _at(a), a.v),
          _hand_update(tile, _add))  # fmt: skip
      add("add_dropped", lambda a: _drop(jsx.atomic_add(a.o, _at(a), a.v)),
          _hand_update(tile, _add, returns=False))  # fmt: skip
      if columns == 256:
        add("static_add", lambda a: jsx.atomic_add(a.o, (3, 5), a.v),
            _hand_static_add)  # fmt: skip
  for columns in (128, 256):  # Words are words: one dtype stands for others.
    rows[f"swap_int32_{columns}"] = Row(
      _I32, (64, columns), lambda a: jsx.swap(a.o, (a.i, a.j), a.v),
      _hand_update(1 if columns == 128 else 8, _replaced),
    )  # fmt: skip
  return rows | {
    "cas_float32_256": Row(
      _F32, (64, 256),
      lambda a: jsx.atomic_cas(a.o, (a.i, a.j), a.v, a.v * 2), _hand_cas,
    ),
    "store_float32_2048": Row(
      _F32, (64, 2048), lambda a: jsx.store(a.o, (a.i, a.j), a.v),
      _hand_store(8),
    ),
    "store_float32_line": Row(
      _F32, (4096,), lambda a: jsx.store(a.o, a.i, a.v), _hand_line,
    ),
    "swap_float32_1": Row(
      _F32, (1,), lambda a: jsx.swap(a.o, 0, a.v), _hand_only,
    ),
    "swap_float32_1x1": Row(
      _F32, (1, 1), lambda a: jsx.swap(a.o, (0, 0), a.v), _hand_only,
    ),
    "swap_bfloat16_1x1": Row(
      _BF16, (1, 1), lambda a: jsx.swap(a.o, (0, 0), a.v), _hand_only,
    ),
  }  # fmt: skip


def _drop(old):
  del old  # Nobody wants it.


# ## Arrays, by hand


def _mask(a: Args):
  return _iota(a.o.shape, 0) > a.i, jnp.full(a.o.shape, a.v)


def _hand_masked_store(a):
  mask, value = _mask(a)
  _put(a.o, ..., mask, None, value)


def _hand_masked_swap(a):
  mask, value = _mask(a)
  old = a.o[...]
  _put(a.o, ..., mask, old, value)
  return jnp.where(mask, old, jnp.zeros_like(old))


def _hand_masked_load(a):
  old = a.o[...]
  return jnp.where(_mask(a)[0], old, jnp.zeros_like(old))


def _hand_array_add(a):
  a.o[...] = _add(a.o[...], _mask(a)[1])


def _hand_masked_add(a):
  mask, value = _mask(a)
  old = a.o[...]
  _put(a.o, ..., mask, old, _add(old, value))


_STRIDED = (pl.ds(0, 8, 2), slice(None))


def _hand_strided(a):
  a.o[_STRIDED] = a.w[...]


def _hand_masked_strided(a):
  w = a.w[...]
  a.o[_STRIDED] = jnp.where(w > 0, w, a.o[_STRIDED])


def _arrays():
  rows, shape = {}, (32, 128)

  def masked(access):
    def ours(a):
      mask, value = _mask(a)
      return access(a.o, value, mask)

    return ours

  for dtype in (_F32, _I32, _BF16, _I8, _BOOL):
    name = dtype.name
    rows[f"masked_store_{name}"] = Row(
      dtype, shape,
      masked(lambda o, value, mask: jsx.store(o, ..., value, mask=mask)),
      _hand_masked_store,
    )  # fmt: skip
    if dtype in (_I32, _BOOL):
      continue
    rows[f"masked_swap_{name}"] = Row(
      dtype, shape,
      masked(lambda o, value, mask: jsx.swap(o, ..., value, mask=mask)),
      _hand_masked_swap, result=shape,
    )  # fmt: skip
    rows[f"masked_load_{name}"] = Row(
      dtype, shape,
      masked(lambda o, value, mask: jsx.load(o, ..., mask=mask)),
      _hand_masked_load, result=shape,
    )  # fmt: skip
    rows[f"array_add_{name}"] = Row(
      dtype, shape, lambda a: _drop(jsx.atomic_add(a.o, ..., _mask(a)[1])),
      _hand_array_add,
    )  # fmt: skip
    rows[f"masked_add_{name}"] = Row(
      dtype, shape,
      masked(lambda o, value, mask: _drop(
          jsx.atomic_add(o, ..., value, mask=mask)
      )),
      _hand_masked_add,
    )  # fmt: skip
  rows["strided_store_float32"] = Row(
    _F32, shape, lambda a: jsx.store(a.o, _STRIDED, a.w[...]), _hand_strided,
    value=(8, 128),
  )  # fmt: skip
  rows["masked_strided_store_float32"] = Row(
    _F32, shape,
    lambda a: jsx.store(a.o, _STRIDED, a.w[...], mask=a.w[...] > 0),
    _hand_masked_strided, value=(8, 128),
  )  # fmt: skip
  return rows


# ## SMEM and HBM, by hand


def _hand_smem_store(a):
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


def _hand_smem_load(a):
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


def _hand_smem_swap(a):
  w = a.w[...]
  if w.size <= 16:
    old = _hand_smem_load(a)
    _put_each(a.o, w)
    return old

  def body(scratch):
    pltpu.sync_copy(a.o, scratch)
    old = scratch[...]
    _moved(scratch, w, a.o)
    return old

  return _scoped(pltpu.VMEM, a.o.shape, a.o.dtype, body)


def _hand_smem_add(a):
  old = a.o[a.i]
  a.o[a.i] = old + a.v
  return old


def _hand_smem_masked(a):
  @pl.when(a.v > 0)
  def _():
    a.o[a.i] = a.v


def _hand_hbm_store(a):
  w = a.w[...]
  _scoped(pltpu.VMEM, w.shape, w.dtype, lambda s: _moved(s, w, a.o))


def _hand_hbm_swap(static):
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


def _remote():
  rows = {}
  for shape in ((8,), (16,), (64,), (128,), (8, 128)):
    name = "smem_" + "x".join(map(str, shape))
    rows[f"store_{name}"] = Row(
      _F32, shape, lambda a: jsx.store(a.o, ..., a.w[...]), _hand_smem_store,
      "smem", value=shape,
    )  # fmt: skip
    rows[f"load_{name}"] = Row(
      _F32, shape, lambda a: jsx.load(a.o), _hand_smem_load, "smem",
      result=shape,
    )  # fmt: skip
    rows[f"swap_{name}"] = Row(
      _F32, shape, lambda a: jsx.swap(a.o, ..., a.w[...]), _hand_smem_swap,
      "smem", value=shape, result=shape,
    )  # fmt: skip
  rows["add_smem"] = Row(
    _F32, (8,), lambda a: jsx.atomic_add(a.o, a.i, a.v), _hand_smem_add, "smem",
  )  # fmt: skip
  rows["masked_store_smem"] = Row(
    _F32, (8,), lambda a: jsx.store(a.o, a.i, a.v, mask=a.v > 0),
    _hand_smem_masked, "smem",
  )  # fmt: skip
  for space in ("hbm", "any"):
    shape = (64, 256)
    rows[f"store_{space}"] = Row(
      _F32, shape, lambda a: jsx.store(a.o, ..., a.w[...]), _hand_hbm_store,
      space, value=shape,
    )  # fmt: skip
    rows[f"static_swap_{space}"] = Row(
      _F32, shape, lambda a: jsx.swap(a.o, (3, 5), a.v), _hand_hbm_swap(True),
      space,
    )  # fmt: skip
    rows[f"swap_{space}"] = Row(
      _F32, shape, lambda a: jsx.swap(a.o, (a.i, a.j), a.v),
      _hand_hbm_swap(False), space,
    )  # fmt: skip
  return rows


# (generation, row) -> bundles by which ours is above. It does what the other
# does, or less: the compiler schedules it worse there.
ABOVE = {("v6e", "swap_smem_16"): 1, ("tpu7x", "load_bool_256"): 1}

ROWS: dict[str, Row] = _scalars() | _arrays() | _remote()


def kernels():
  """What `oracles.tpu_compile` compiles: each row twice, "ours" and "hand"."""
  out = {}
  for name, row in ROWS.items():
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in row.inputs()]
    for who in ("ours", "hand"):
      out[f"{name} {who}"] = row.kernel(getattr(row, who)), shapes
  return out
