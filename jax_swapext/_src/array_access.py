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

Discharge rules and the functions on arrays call these. A region is one of two:

* a window: every index is a slice or a scalar. It is read and written with one
  dynamic slice each, never elementwise.
* points: some index is an integer array. The region becomes a vector of linear
  indices into a table of rows, and `fetch_update` or a gather takes over.

Reading a part of an array and then writing it makes XLA copy the whole array,
unless the part and the array pass through one optimisation barrier together:
else XLA fuses the read into everything that follows the write. Hence `_pin`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import math
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jax_swapext._src import access as access_lib
from jax_swapext._src import compat
from jax_swapext._src import fetch_update
from jax_swapext._src import semantics
import numpy as np

Access = access_lib.Access
NDIndexer = compat.NDIndexer
Slice = compat.Slice


def load(x: jax.Array, access: Access, *, drop: bool = False) -> jax.Array:
  """Reads the region; masked-off elements are `other`, or 0 without one.

  Args:
    x: the array.
    access: transforms, mask, and `()` or `(other,)`.
    drop: whether elements outside `x` read as 0. If false, and there is no
      mask, all have to be inside.
  """
  mask, other = access.mask, access.operands
  whole = region_shape(x, access.transforms)
  if mask is None:
    other = ()
  fill = other[0] if other else lax.full(whole, 0, _dtype(x, access.transforms))
  if 0 in whole or 0 in x.shape:
    return fill

  def read(view, region):
    if isinstance(region, Window):
      if drop or mask is not None:
        region = region.guarded()
      return region.read(view), None
    return _gather(view, region.rows(mask)), None

  value, _ = _through(x, access.transforms, read)
  if mask is None:
    return value
  return lax.select(mask, value, fill)


def swap(
    x: jax.Array, access: Access, *, need_old: bool
) -> tuple[jax.Array | None, jax.Array]:
  """Writes the region and returns the old one (None unless `need_old`)."""
  [value] = access.operands
  mask = access.mask

  def on_window(_, old, value):
    del old
    return value

  def on_points(view, region):
    rows = region.rows(mask)
    old = None
    if need_old:
      old, view = _pin(_gather(view, rows), view)
    return old, _scatter(view, rows, value)

  return _update(x, access, (value,), on_window, on_points, need_old, False)


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
) -> tuple[jax.Array | None, jax.Array]:
  """Updates the region element by element; see `fetch_update`.

  With `drop`, elements outside `x` are not written and return 0; without, a
  window without a mask has to lie inside.
  """

  def on_points(view, region):
    rows = region.rows(access.mask)
    table = lax.reshape(view, (rows.count, *rows.row))
    operands = [lax.reshape(v, (rows.size, *rows.row)) for v in access.operands]
    *old, table = fetch_update.fetch_update(
        table,
        lax.reshape(rows.index, (rows.size,)),
        *operands,
        op=op,
        order=order,
        reverse=reverse,
        unique_indices=unique_indices,
        need_old=need_old,
    )
    old = lax.reshape(old[0], region.shape) if need_old else None
    return old, lax.reshape(table, view.shape)

  combine = lambda op_old, old, *operands: semantics.combine(op, old, *operands)
  return _update(
      x, access, access.operands, combine, on_points, need_old, drop,
      reads=op is not semantics.AtomicOp.XCHG,
  )


def _update(
    x, access, operands, combine, on_points, need_old, drop, reads=False
):
  """The shared part of `swap` and `rmw`: windows, and regions of no element."""
  mask = access.mask
  shape = region_shape(x, access.transforms)
  if 0 in shape or 0 in x.shape:
    zeros = lax.full(shape, 0, _dtype(x, access.transforms))
    return (zeros if need_old else None), x

  def update(view, region):
    if not isinstance(region, Window):
      return on_points(view, region)
    if drop or mask is not None:
      region = region.guarded()
    ok = region.inside(mask)
    if region.covers_window and ok is None and not (need_old or reads):
      return None, region.write(view, combine(None, None, *operands))
    if region.is_whole:
      window = view
    else:
      window, view = _pin(region.window(view), view)
    old = region.from_window(window)
    new = combine(None, old, *operands)
    if region.covers_window and ok is None:
      view = region.write(view, new)
    else:
      written = region.to_window(_full(shape, True, bool) if ok is None else ok)
      new = lax.select(written, region.to_window(new), window)
      view = region.write_window(view, new)
    if not need_old:
      return None, view
    return old if ok is None else lax.select(ok, old, jnp.zeros_like(old)), view

  return _through(x, access.transforms, update)


def _full(shape, value, dtype):
  return lax.full(shape, value, dtype)


def _pin(part, x):
  """Makes XLA read `part` of `x` once, before `x` is updated in place."""
  return lax.optimization_barrier((part, x))


# ## Views


def region_shape(x: jax.Array, transforms: Sequence[Any]) -> tuple[int, ...]:
  return compat.transform_type(transforms, jax.typeof(x)).shape


def _dtype(x, transforms):
  return compat.transform_type(transforms, jax.typeof(x)).dtype


def _through(
    x: jax.Array,
    transforms: Sequence[Any],
    body: Callable[[jax.Array, Window | Points], tuple[Any, jax.Array | None]],
) -> tuple[Any, jax.Array | None]:
  """Runs `body(view, region)` on the view of `x` that `transforms` describe.

  `body` returns a result and the new view, or None if it left that as it was;
  so does this function, with the new `x`.
  """
  run = 0
  while run < len(transforms) and isinstance(transforms[run], NDIndexer):
    run += 1
  region = Region.whole(x.shape)
  for indexer in transforms[:run]:
    region = region.index(indexer)
  rest = transforms[run:]
  if not rest:
    return body(x, region.classify())
  if run:
    inner = region.classify()
    if isinstance(inner, Points):
      raise NotImplementedError(
          f"An index array before {rest[0]} makes a view of scattered elements:"
          " put the array index last."
      )
    part, x = _pin(inner.read(x), x)
    out, part = _through(part, rest, body)
    return out, None if part is None else inner.write(x, part)
  view, undo = _apply_transform(x, rest[0])
  out, view = _through(view, rest[1:], body)
  return out, None if view is None else undo(view)


def _apply_transform(x, t):
  """The view of the whole of `x` through `t`, and the way back."""
  match t:
    case compat.ReshapeTransform():
      return lax.reshape(x, t.shape), lambda v: lax.reshape(v, x.shape)
    case compat.TransposeTransform():
      inverse = access_lib.inverse_permutation(t.permutation)
      view = lax.transpose(x, t.permutation)
      return view, lambda v: lax.transpose(v, inverse)
    case compat.BitcastTransform():
      view = compat.bitcast(x, t.dtype)
      return view, lambda v: compat.bitcast(v, x.dtype)
    case _:
      # A backend's own transform; these know how to act on arrays.
      undo = t.undo(jax.typeof(x))
      return t.transform_array(x), undo.transform_array


class _Entry(NamedTuple):
  """The index of one dimension, and the axes of the region it varies along."""

  index: Any  # a Slice with its one axis, or an integer array or scalar
  axes: tuple[int, ...]


class Region(NamedTuple):
  """A part of an array: an index per dimension, over axes of a given shape."""

  array_shape: tuple[int, ...]
  entries: tuple[_Entry, ...]
  shape: tuple[int, ...]

  @classmethod
  def whole(cls, shape):
    entries = tuple(_Entry(Slice(0, d), (i,)) for i, d in enumerate(shape))
    return cls(shape, entries, shape)

  def index(self, indexer: NDIndexer) -> Region:
    """The part of this region that `indexer` selects."""
    ints = access_lib.int_labels(len(indexer.int_indexer_shape))
    axes = access_lib.region_axes(indexer.indices, ints)
    int_axes = tuple(axes.index(a) for a in ints)
    inner = []
    for i, e in enumerate(indexer.indices):
      if isinstance(e, Slice):
        inner.append(_Entry(e, (axes.index(i),)))
      else:
        inner.append(_Entry(e, int_axes if np.shape(e) else ()))
    entries = tuple(self._compose(e, inner) for e in self.entries)
    return Region(self.array_shape, entries, indexer.get_indexer_shape())

  def _compose(self, outer: _Entry, inner: list[_Entry]) -> _Entry:
    if isinstance(outer.index, Slice):
      [axis] = outer.axes
      start, stride = outer.index.start, outer.index.stride
      index, axes = inner[axis]
      if not isinstance(index, Slice):
        size = self.shape[axis]
        index = _wrap(index, size)
        return _Entry(_affine(index, stride, start), axes)
      start = _affine(index.start, stride, start)
      return _Entry(Slice(start, index.size, stride * index.stride), axes)
    if not outer.axes:
      return outer
    parts = [inner[a] for a in outer.axes]
    axes = tuple(sorted({a for p in parts for a in p.axes}))
    indices = []
    for part, size in zip(parts, np.shape(outer.index)):
      index = _positions(part.index) if isinstance(part.index, Slice) else (
          _wrap(part.index, size))
      at = [axes.index(a) for a in part.axes]
      index = jnp.asarray(index)
      shape = [1] * len(axes)
      for a, d in zip(at, index.shape):
        shape[a] = d
      indices.append(lax.reshape(index, shape))
    return _Entry(jnp.asarray(outer.index)[tuple(indices)], axes)

  def classify(self) -> Window | Points:
    if all(isinstance(e.index, Slice) or not e.axes for e in self.entries):
      dims = [
          _Dim(e.index.start, e.index.size, e.index.stride, False, n)
          if isinstance(e.index, Slice)
          else _Dim(e.index, 1, 1, True, n)
          for e, n in zip(self.entries, self.array_shape)
      ]
      return Window(tuple(map(_static_start, dims)), self.shape)
    return Points(*self)


def _affine(i, stride, start):
  """`start + stride * i`, with no equation where there is nothing to do."""
  if stride != 1:
    i = i * stride
  if isinstance(start, (int, np.integer)) and start == 0:
    return i
  return i + start


def _positions(s: Slice):
  return _affine(lax.iota(np.int32, s.size), s.stride, s.start)


def _wrap(i, size):
  """`i` as int32, negative indices counted from the end, others unchanged.

  An index far outside stays outside: it is clamped before it is narrowed.
  """
  if isinstance(i, (int, np.integer)):
    return i  # static ones are canonical already
  i = _int32(i, size)
  return lax.select(i < 0, i + np.int32(size), i)


def _int32(i, size):
  i = jnp.asarray(i)
  if i.dtype == np.int32:
    return i
  if jnp.iinfo(i.dtype).max > np.iinfo(np.int32).max:
    low = 0 if jnp.issubdtype(i.dtype, jnp.unsignedinteger) else -size - 1
    bound = lambda b: np.asarray(b, i.dtype)
    i = lax.clamp(bound(low), i, bound(size))
  return lax.convert_element_type(i, np.int32)


# ## Windows


class _Dim(NamedTuple):
  start: Any
  size: int
  stride: int
  squeeze: bool
  length: int  # of the array

  @property
  def span(self) -> int:
    return (self.size - 1) * self.stride + 1

  @property
  def is_static(self) -> bool:
    return isinstance(self.start, int)

  @property
  def is_inside(self) -> bool:
    return self.is_static and 0 <= self.start <= self.length - self.span


def _static_start(dim: _Dim) -> _Dim:
  if isinstance(dim.start, np.integer):
    return dim._replace(start=int(dim.start))
  return dim


class Window(NamedTuple):
  """A region whose every index is a slice or a scalar.

  `shifts` is None for a window that lies inside the array by assumption. A
  guarded window has for each dimension either None (inside for certain) or the
  distance by which it had to be moved to lie inside.
  """

  dims: tuple[_Dim, ...]
  shape: tuple[int, ...]
  shifts: tuple[Any, ...] | None = None

  def guarded(self) -> Window:
    """The same region, but elements outside are neither read nor written."""
    dims, shifts = [], []
    for d in self.dims:
      if d.is_inside:
        dims.append(d)
        shifts.append(None)
        continue
      start = d.start
      if d.squeeze and not d.is_static:
        start = _wrap(start, d.length)
      elif not d.is_static:
        start = _int32(start, d.length)
      last = d.length - self._extent(d)
      if isinstance(start, int):
        moved = min(max(start, 0), last)
      else:
        moved = lax.clamp(np.int32(0), start, np.int32(last))
      dims.append(d._replace(start=moved))
      shifts.append(start - moved)
    return Window(tuple(dims), self.shape, tuple(shifts))

  def _extent(self, d: _Dim) -> int:
    return min(d.span, d.length)

  @property
  def extents(self) -> tuple[int, ...]:
    return tuple(map(self._extent, self.dims))

  @property
  def _squeezed(self) -> tuple[int, ...]:
    return tuple(i for i, d in enumerate(self.dims) if d.squeeze)

  @property
  def _shifted(self) -> list[tuple[int, _Dim, Any]]:
    """The slices that may start outside; scalars are dealt with by `inside`."""
    if self.shifts is None:
      return []
    return [
        (i, d, s)
        for i, (d, s) in enumerate(zip(self.dims, self.shifts))
        if s is not None and not d.squeeze
    ]

  @property
  def is_whole(self) -> bool:
    return all(
        not d.squeeze and d.stride == 1 and d.is_static
        and d.start == 0 and d.size == d.length
        for d in self.dims
    )

  @property
  def covers_window(self) -> bool:
    """Whether the region has every element of the slice that holds it."""
    return not self._shifted and all(d.stride == 1 for d in self.dims)

  def inside(self, mask: jax.Array | None) -> jax.Array | None:
    """`mask`, less the elements outside the array; None if that is all true."""
    if self.shifts is None:
      return mask
    for axis, d, s in self._shifted:
      axis -= sum(i < axis for i in self._squeezed)
      at = lax.broadcasted_iota(np.int32, self.shape, axis) * np.int32(d.stride)
      at = at + (s + d.start)
      ok = (at >= 0) & (at < d.length)
      mask = ok if mask is None else mask & ok
    for d, s in zip(self.dims, self.shifts):
      if d.squeeze and s is not None:
        ok = lax.broadcast_in_dim(jnp.asarray(s == 0), self.shape, ())
        mask = ok if mask is None else mask & ok
    return mask

  def window(self, x: jax.Array) -> jax.Array:
    """The contiguous slice of `x` that holds the region."""
    if self.is_whole:
      return x
    if all(d.is_static for d in self.dims):
      starts = [d.start for d in self.dims]
      return lax.slice(x, starts, [s + e for s, e in zip(starts, self.extents)])
    return lax.dynamic_slice(
        x, self._starts(), self.extents,
        allow_negative_indices=self.shifts is None,
    )

  def _starts(self):
    return [d.start for d in self.dims]

  def read(self, x: jax.Array) -> jax.Array:
    return self.from_window(self.window(x))

  def from_window(self, w: jax.Array) -> jax.Array:
    for axis, d, s in self._shifted:
      w = _shift(w, axis, s, d.span)
    if any(d.stride != 1 for d in self.dims):
      w = lax.slice(w, [0] * w.ndim, w.shape, [d.stride for d in self.dims])
    return lax.squeeze(w, self._squeezed) if self._squeezed else w

  def to_window(self, v: jax.Array) -> jax.Array:
    """Spreads region-shaped values over the window; the gaps are 0."""
    zero = np.zeros((), v.dtype)
    if self._squeezed:
      v = lax.expand_dims(v, self._squeezed)
    if any(d.stride != 1 for d in self.dims):
      v = lax.pad(v, zero, [(0, 0, d.stride - 1) for d in self.dims])
    for axis, d, s in self._shifted:
      v = _shift(v, axis, -s, self._extent(d))
    return v

  def write_window(self, x: jax.Array, w: jax.Array) -> jax.Array:
    if self.is_whole:
      return w
    return lax.dynamic_update_slice(
        x, w, [jnp.int32(s) if isinstance(s, int) else s for s in self._starts()],
        allow_negative_indices=self.shifts is None,
    )

  def write(self, x: jax.Array, v: jax.Array) -> jax.Array:
    """Writes every element of an unguarded region."""
    if all(d.stride == 1 for d in self.dims):
      return self.write_window(x, self.to_window(v))
    written = self.to_window(lax.full(self.shape, True, bool))
    w, x = _pin(self.window(x), x)
    return self.write_window(x, lax.select(written, self.to_window(v), w))


def _shift(x, axis, by, size):
  """`size` elements of `x` along `axis` from position `by`; 0 outside `x`."""
  length = x.shape[axis]
  padding = [(0, 0, 0)] * x.ndim
  padding[axis] = (size, size, 0)
  x = lax.pad(x, np.zeros((), x.dtype), padding)
  if isinstance(by, int):
    start = size + min(max(by, -size), length)
    return lax.slice_in_dim(x, start, start + size, axis=axis)
  start = np.int32(size) + lax.clamp(np.int32(-size), by, np.int32(length))
  return lax.dynamic_slice_in_dim(x, start, size, axis)


# ## Points


class _Rows(NamedTuple):
  """Points as rows of a table: `table[index]` with `index` in any order."""

  index: jax.Array  # int32, outside [0, count) where nothing is accessed
  row: tuple[int, ...]  # the shape of a row
  count: int  # rows in the table

  @property
  def size(self) -> int:
    return math.prod(self.index.shape)


class Points(NamedTuple):
  """A region with an integer array among its indices; fields of `Region`."""

  array_shape: tuple[int, ...]
  entries: tuple[_Entry, ...]
  shape: tuple[int, ...]

  def rows(self, mask: jax.Array | None) -> _Rows:
    """Linear indices of the region's rows, in the region's row-major order.

    A row is as many trailing dimensions as are whole; with a mask it is one
    element, since the mask may cut a row.
    """
    ndim, rank = len(self.array_shape), len(self.shape)
    kept = 0
    while mask is None and kept < ndim and self._is_whole(ndim - 1 - kept,
                                                          rank - 1 - kept):
      kept += 1
    table = self.array_shape[: ndim - kept]
    shape = self.shape[: rank - kept]
    count = math.prod(table)
    if count > np.iinfo(np.int32).max:
      raise NotImplementedError(
          f"Index arrays on an array of {count} elements: linear indices have 32"
          " bits. Split the array, or make its rows longer."
      )
    index, ok, stride = None, None, count
    for entry, length in zip(self.entries, table):
      stride //= length
      i, inside = _row_index(entry, length, shape, check=len(table) > 1)
      if inside is not None:
        ok = inside if ok is None else ok & inside
      i = i if stride == 1 else i * np.int32(stride)
      index = i if index is None else index + i
    if mask is not None:
      ok = mask if ok is None else ok & mask
    if ok is not None:
      index = lax.select(ok, index, lax.full_like(index, count))
    return _Rows(index, self.array_shape[ndim - kept :], count)

  def _is_whole(self, dim: int, axis: int) -> bool:
    index, axes = self.entries[dim]
    return (
        axes == (axis,)
        and isinstance(index, Slice)
        and isinstance(index.start, int)
        and (index.start, index.stride) == (0, 1)
        and index.size == self.array_shape[dim]
    )


def _row_index(entry, length, shape, check):
  """One dimension's index over `shape`, and where it is inside (None: is)."""
  index, axes = entry
  if isinstance(index, Slice):
    start = index.start
    static = isinstance(start, int)
    last = (index.size - 1) * index.stride
    inside = static and 0 <= start and start + last < length
    if not static:
      start = _int32(start, length)
    index = _affine(lax.iota(np.int32, index.size), index.stride, start)
  else:
    inside = False
    index = _wrap(index, length)
  index = lax.broadcast_in_dim(jnp.asarray(index, np.int32), shape, axes)
  if inside or not check:
    return index, None
  return index, (index >= 0) & (index < np.int32(length))


def _gather(x, rows: _Rows):
  table = lax.reshape(x, (rows.count, *rows.row))
  rank = rows.index.ndim
  dnums = lax.GatherDimensionNumbers(
      offset_dims=tuple(range(rank, rank + len(rows.row))),
      collapsed_slice_dims=(0,),
      start_index_map=(0,),
  )
  return lax.gather(
      table, rows.index[..., None], dnums, (1, *rows.row),
      mode=lax.GatherScatterMode.FILL_OR_DROP, fill_value=0,
  )


def _scatter(x, rows: _Rows, value):
  table = lax.reshape(x, (rows.count, *rows.row))
  rank = rows.index.ndim
  dnums = lax.ScatterDimensionNumbers(
      update_window_dims=tuple(range(rank, rank + len(rows.row))),
      inserted_window_dims=(0,),
      scatter_dims_to_operand_dims=(0,),
  )
  table = lax.scatter(
      table, rows.index[..., None], value, dnums,
      mode=lax.GatherScatterMode.FILL_OR_DROP,
  )
  return lax.reshape(table, x.shape)
