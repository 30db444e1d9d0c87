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
"""Accesses on arrays: what a Ref operation becomes once its Ref is a value.

Discharge rules and the functions on arrays call these. A window (every index is
a slice or a scalar) is read and written as one slice, never elementwise. Points
(some index is an integer array) go through a gather, or `fetch_update`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
from jax_swapext._src import access as access_lib
from jax_swapext._src import compat
from jax_swapext._src import fetch_update
from jax_swapext._src import indexing
from jax_swapext._src import regions
from jax_swapext._src import semantics
import numpy as np

Access = access_lib.Access
NDIndexer = compat.NDIndexer


def automatic(fun: Callable[..., Any]) -> Callable[..., Any]:
  """On a mesh with explicit axes, runs `fun(x, access)` on automatic ones.

  Updates are ordered, so each may depend on one before it, wherever its element
  is: the partitioner knows what that needs of the arrays' shardings. The new
  array gets the sharding that `x` had; the old values are not sharded.
  """

  @functools.wraps(fun)
  def wrapper(x, access, *args, **kwargs):
    shardings = [jax.typeof(a).sharding for a in jax.tree.leaves((x, access))]
    mesh = next((s.mesh for s in shardings if s.mesh.explicit_axes), None)
    if mesh is None:
      return fun(x, access, *args, **kwargs)
    at = functools.partial(jax.sharding.NamedSharding, mesh)
    on_auto: Any = jax.sharding.auto_axes(
        lambda x, access: fun(x, access, *args, **kwargs),
        out_sharding=(at(jax.P()), at(jax.typeof(x).sharding.spec)),
    )
    return on_auto(x, access)

  return wrapper


@automatic
def load(x: jax.Array, access: Access) -> tuple[jax.Array, jax.Array]:
  """Reads the region; masked-off elements are `other`, or 0 without one.

  Without a mask, a window has to lie inside `x`. Also returns `x`, as something
  that exists only once the region has been read: so a later update of the Ref
  is in place, as in `y = load(r, i); store(r, i, f(y))`.
  """
  dtype = _dtype(x, access.transforms)
  if semantics.is_float8(dtype):
    value, _ = load(*_as_bits(x, access))
    return _from_bits(value, dtype), x
  mask, other = access.mask, access.operands
  whole = region_shape(x, access.transforms)
  if mask is None:
    other = ()
  fill = other[0] if other else lax.full(whole, 0, dtype)
  if 0 in whole or 0 in x.shape:
    return fill, x

  def read(view, region):
    region = region.classify()
    if not isinstance(region, regions.Window):
      return regions.gather(view, region.rows("load", mask)), None
    if mask is not None:
      region = region.guarded()
    return region.read(view), None

  value, _ = _through("load", x, access.transforms, read)
  if mask is not None:
    value = lax.select(mask, value, fill)
  if not access.transforms:
    return value, x  # all of it: nothing is gained
  return regions.pin(value, x)


@automatic
def swap(
    x: jax.Array, access: Access, *, need_old: bool
) -> tuple[Any, jax.Array]:
  """Writes the region and returns the old one (None unless `need_old`)."""
  dtype = _dtype(x, access.transforms)
  if semantics.is_float8(dtype):
    old, new = swap(*_as_bits(x, access), need_old=need_old)
    return _from_bits(old, dtype), _from_bits(new, x.dtype)
  [value] = access.operands

  def on_window(old, value):
    del old
    return value

  def on_points(view, region):
    rows = region.rows("swap", access.mask)
    old = None
    if need_old:
      old, view = regions.pin(regions.gather(view, rows), view)
    return old, regions.scatter(view, rows, value)

  return _update("swap", x, access, on_window, on_points, need_old)


@automatic
def rmw(
    x: jax.Array,
    access: Access,
    op: semantics.AtomicOp,
    *,
    order: str,
    need_old: bool,
    reverse: bool = False,
    unique_indices: bool = False,
    drop: bool = False,
    mask_is_uniform_over: int = 0,
) -> tuple[Any, jax.Array]:
  """Updates the region element by element; see `fetch_update`.

  With `drop`, elements outside `x` are not written and return 0; without, a
  window without a mask has to lie inside. Where the mask is the same over some
  last axes of the region, rows along these stay whole.
  """
  name = f"fetch_{op.value}" if drop else f"atomic_{op.value}"
  dtype = _dtype(x, access.transforms)
  moves = op in (semantics.AtomicOp.XCHG, semantics.AtomicOp.CAS)
  if semantics.is_float8(dtype) and moves and not drop:
    old, new = rmw(
        *_as_bits(x, access), op, order=order, need_old=need_old,
        reverse=reverse,
    )
    return _from_bits(old, dtype), _from_bits(new, x.dtype)

  def on_points(view, region):
    rows = region.rows(
        name, access.mask, as_is=True, uniform=mask_is_uniform_over
    )
    table = lax.reshape(view, (rows.count, *rows.row))
    operands = [lax.reshape(v, (rows.size, *rows.row)) for v in access.operands]
    mask = rows.mask
    if mask is not None:
      mask = lax.reshape(mask, (rows.size,))
    *old, table = fetch_update.fetch_update(
        table,
        lax.reshape(rows.index, (rows.size,)),
        *operands,
        mask=mask,
        op=op,
        order=order,
        reverse=reverse,
        unique_indices=unique_indices,
        need_old=need_old,
    )
    old = lax.reshape(old[0], region.shape) if need_old else None
    return old, lax.reshape(table, view.shape)

  on_window = functools.partial(semantics.combine, op)
  reads = op is not semantics.AtomicOp.XCHG
  return _update(name, x, access, on_window, on_points, need_old, drop, reads)


def _update(
    name, x, access, on_window, on_points, need_old, drop=False, reads=False
):
  """The shared part of `swap` and `rmw`: windows, and regions of no element.

  Args:
    name: the operation, for error messages.
    x: the array.
    access: where, with which operands.
    on_window: from old elements and operands to new elements.
    on_points: from a view and its points to the old elements and the new view.
    need_old: whether to return the old elements.
    drop: whether elements outside `x` are left out, mask or not.
    reads: whether new elements depend on old ones.
  """
  mask = access.mask
  shape = region_shape(x, access.transforms)
  if 0 in shape or 0 in x.shape:
    zeros = lax.full(shape, 0, _dtype(x, access.transforms))
    return (zeros if need_old else None), x

  def update(view, region):
    if drop and semantics.is_float8(view.dtype):
      region = region.points()
    else:
      region = region.classify()
    if not isinstance(region, regions.Window):
      return on_points(view, region)
    if drop or mask is not None:
      region = region.guarded()
    ok = region.inside(mask)
    covers = region.covers_window and ok is None
    if covers and not (need_old or reads):
      return None, region.write(view, on_window(None, *access.operands))
    if region.is_whole:
      return _update_whole(view, ok, on_window, access.operands, need_old)
    window, view = regions.pin(region.window(view), view)
    old = region.from_window(window)
    new = on_window(old, *access.operands)
    if covers:
      view = region.write(view, new)
    else:
      written = lax.full(shape, True, bool) if ok is None else ok
      written = region.to_window(written)
      new = lax.select(written, region.to_window(new), window)
      view = region.write_window(view, new)
    if not need_old:
      return None, view
    return old if ok is None else lax.select(ok, old, jnp.zeros_like(old)), view

  return _through(name, x, access.transforms, update)


def _update_whole(x, ok, on_window, operands, need_old):
  """An update of every element of `x`, where `ok` if that is not None."""
  old = x if need_old else None
  if ok is None:
    return old, on_window(x, *operands)
  if need_old:
    # Else `x` would be read for this after it has been updated in place.
    old, x = regions.pin(lax.select(ok, x, lax.full_like(x, 0)), x)
  return old, lax.select(ok, on_window(x, *operands), x)


# XLA computes on 8-bit floats in 16 bits, which changes the bits of a NaN. So
# whatever only moves them moves bytes. (The functions on arrays cannot, since
# they have to be differentiated; there the lowering of `fetch_update` does.)


def _as_bits(x, access):
  """`x` and its access with bytes in place of 8-bit floats."""
  byte = np.dtype(np.uint8)
  transforms = tuple(
      compat.BitcastTransform(byte)
      if isinstance(t, compat.BitcastTransform) and semantics.is_float8(t.dtype)
      else t
      for t in access.transforms
  )
  operands = tuple(lax.bitcast_convert_type(v, byte) for v in access.operands)
  if semantics.is_float8(x.dtype):
    x = lax.bitcast_convert_type(x, byte)
  return x, Access(transforms, access.mask, operands)


def _from_bits(x: Any, dtype: np.dtype) -> Any:
  return None if x is None else lax.bitcast_convert_type(x, dtype)


# ## Views


def region_shape(x: jax.Array, transforms: Sequence[Any]) -> tuple[int, ...]:
  return _region_type(x, transforms).shape


def _dtype(x, transforms):
  return _region_type(x, transforms).dtype


def _region_type(x, transforms):
  # Without the sharding: JAX refuses indices on one; here it does not matter.
  return compat.transform_type(
      transforms, jax.core.ShapedArray(x.shape, x.dtype)
  )


def _through(
    name: str,
    x: jax.Array,
    transforms: Sequence[Any],
    body: Callable[[jax.Array, regions.Region], tuple[Any, jax.Array | None]],
) -> tuple[Any, Any]:
  """Runs `body(view, region)` on the view of `x` that `transforms` describe.

  `body` returns a result and the new view, or None if it left that as it was;
  so does this function, with the new `x`.
  """
  run = 0
  while run < len(transforms) and isinstance(transforms[run], NDIndexer):
    run += 1
  region = regions.Region.whole(x.shape)
  for indexer in transforms[:run]:
    region = region.select(indexer)
  rest = transforms[run:]
  if not rest:
    return body(x, region)
  if run:
    inner = region.classify()
    if isinstance(inner, regions.Points):
      raise NotImplementedError(
          f"{name}: wanted the index array last, got {rest[0]} after it. A view"
          " of scattered elements has no other view: load it first."
      )
    part, x = regions.pin(inner.read(x), x)
    out, part = _through(name, part, rest, body)
    return out, None if part is None else inner.write(x, part)
  view, undo = _apply_transform(x, rest[0])
  out, view = _through(name, view, rest[1:], body)
  return out, None if view is None else undo(view)


def _apply_transform(x, t):
  """The view of the whole of `x` through `t`, and the way back."""
  match t:
    case compat.ReshapeTransform():
      return lax.reshape(x, t.shape), lambda v: lax.reshape(v, x.shape)
    case compat.TransposeTransform():
      inverse = indexing.inverse_permutation(t.permutation)
      view = lax.transpose(x, t.permutation)
      return view, lambda v: lax.transpose(v, inverse)
    case compat.BitcastTransform():
      view = compat.bitcast(x, t.dtype)
      return view, lambda v: compat.bitcast(v, x.dtype)
    case _:
      # A backend's own transform; these know how to act on arrays.
      undo = t.undo(jax.typeof(x))
      return t.transform_array(x), undo.transform_array
