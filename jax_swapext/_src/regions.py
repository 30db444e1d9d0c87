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
"""Regions of arrays: windows, which are slices, and points, which are not.

A chain of indexers is first composed into one `Region`. If none of its indices
is an integer array, that is a `Window`, read and written as one slice. Else it
is a set of `Points`: linear indices into a table of rows.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jax_swapext._src import compat
from jax_swapext._src import indexing
import numpy as np

NDIndexer = compat.NDIndexer
Slice = compat.Slice


def pin(part: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Makes XLA read `part` of `x` before `x` is updated, hence in place.

  Without it XLA fuses the read into everything that follows the update, and
  has to copy the whole of `x` first. Both have to pass through one barrier.
  """
  return lax.optimization_barrier((part, x))


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

  def select(self, indexer: NDIndexer) -> Region:
    """The part of this region that `indexer` selects."""
    ints = indexing.int_labels(len(indexer.int_indexer_shape))
    axes = indexing.region_axes(indexer.indices, ints)
    int_axes = tuple(axes.index(a) for a in ints)
    inner = []
    for i, e in enumerate(indexer.indices):
      if isinstance(e, Slice):
        if not isinstance(e.start, int):
          e = Slice(indexing.to_int32(e.start), e.size, e.stride)
        inner.append(_Entry(e, (axes.index(i),)))
      else:
        inner.append(_Entry(e, int_axes if np.shape(e) else ()))
    entries = tuple(
        self._compose(dim, e, inner) for dim, e in enumerate(self.entries)
    )
    return Region(self.array_shape, entries, compat.indexer_shape(indexer))

  def _compose(self, dim: int, outer: _Entry, inner: list[_Entry]) -> _Entry:
    if isinstance(outer.index, Slice):
      [axis] = outer.axes
      start, stride = outer.index.start, outer.index.stride
      index, axes = inner[axis]
      if isinstance(start, int) and (start, stride) == (0, 1):
        if self.shape[axis] == self.array_shape[dim]:
          return inner[axis]
      if not isinstance(index, Slice):
        size = self.shape[axis]
        return _Entry(_part_of_slice(index, size, stride, start), axes)
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
    if 0 in np.shape(outer.index):  # whatever is asked for is outside
      shape = np.broadcast_shapes(*map(np.shape, indices))
      return _Entry(lax.full(shape, indexing.FAR, np.int32), axes)
    return _Entry(jnp.asarray(outer.index)[tuple(indices)], axes)

  def points(self) -> Points:
    return Points(*self)

  def classify(self) -> Window | Points:
    if all(isinstance(e.index, Slice) or not e.axes for e in self.entries):
      dims = [
          _Dim(e.index.start, int(e.index.size), e.index.stride, False, n)
          if isinstance(e.index, Slice)
          else _Dim(_wrap_static(e.index, n), 1, 1, True, n)
          for e, n in zip(self.entries, self.array_shape)
      ]
      return Window(tuple(dims), self.shape)
    return self.points()


def _wrap_static(i, size):
  return _wrap(i, size) if isinstance(i, (int, np.integer)) else i


def _affine(i, stride, start):
  """`start + stride * i`, with no equation where there is nothing to do."""
  if stride != 1:
    i = i * stride
  if isinstance(start, (int, np.integer)) and start == 0:
    return i
  return i + start


def _part_of_slice(i, size, stride, start):
  """Index `i` of a slice of `size` elements, as an index of what it slices.

  What is outside of the slice goes far away: it is neither another element nor
  an index from the end.
  """
  i = _wrap(i, size)
  if isinstance(i, int):
    return _affine(i, stride, start) if 0 <= i < size else indexing.FAR
  inside = (i >= 0) & (i < np.int32(size))
  i = _affine(i, stride, start)
  return lax.select(inside, i, lax.full_like(i, indexing.FAR))


def _positions(s: Slice):
  return _affine(lax.iota(np.int32, int(s.size)), s.stride, s.start)


def _wrap(i, size):
  """`i` as int32 or int, negative indices counted from the end."""
  if isinstance(i, (int, np.integer)):
    return int(i) + size if i < 0 else int(i)
  i = indexing.to_int32(i)
  return lax.select(i < 0, i + np.int32(size), i)


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
      start = _wrap(d.start, d.length) if d.squeeze else d.start
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
    return not self._shifted and all(
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
      ends = [s + e for s, e in zip(starts, self.extents)]
      return lax.slice(x, starts, ends)
    return lax.dynamic_slice(
        x, self._starts(), self.extents,
        allow_negative_indices=self._may_wrap(),
    )

  def _starts(self):
    return [
        np.int32(d.start) if d.is_static else indexing.to_int32(d.start)
        for d in self.dims
    ]

  def _may_wrap(self):
    # As in JAX's own slices, unless that has been dealt with.
    return self.shifts is None

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
    v = jnp.asarray(v)  # A literal of a jaxpr may be a Python bool.
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
        x, w, self._starts(), allow_negative_indices=self._may_wrap()
    )

  def write(self, x: jax.Array, v: jax.Array) -> jax.Array:
    """Writes every element of an unguarded region."""
    if all(d.stride == 1 for d in self.dims):
      return self.write_window(x, self.to_window(v))
    written = self.to_window(lax.full(self.shape, True, bool))
    w, x = pin(self.window(x), x)
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


class Rows(NamedTuple):
  """Points as rows of a table: `table[index]` with `index` in any order."""

  index: jax.Array  # int32, outside [0, count) where nothing is accessed
  mask: jax.Array | None  # where `index` leaves out masked-off rows: None
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

  def rows(
      self, name: str, mask: jax.Array | None, *, as_is: bool = False,
      uniform: int = 0,
  ) -> Rows:
    """Linear indices of the region's rows, in the region's row-major order.

    A row is as many trailing dimensions as are whole; with a mask at most
    `uniform` of them, over which it is the same, since it may cut a row.

    With `as_is`, what `fetch_update` can do at no cost is left to it: negative
    indices may remain if the table has one dimension, and the mask is given
    beside the indices.
    """
    ndim, rank = len(self.array_shape), len(self.shape)
    kept, most = 0, ndim if mask is None else min(ndim, uniform)
    while kept < most and self._is_whole(ndim - 1 - kept, rank - 1 - kept):
      kept += 1
    if mask is not None and kept:
      mask = mask[(..., *[0] * kept)]
    table = self.array_shape[: ndim - kept]
    shape = self.shape[: rank - kept]
    count = math.prod(table)
    if count > np.iinfo(np.int32).max:
      raise NotImplementedError(
          f"{name}: wanted fewer than 2^31 elements or rows to choose from with"
          f" index arrays, which become linear indices of 32 bits, got {count}."
          " Split the array, or make its rows longer."
      )
    index, ok, stride = lax.full(shape, 0, np.int32), None, count
    for entry, length in zip(self.entries, table):
      stride //= length
      i, inside = _row_index(entry, length, shape, len(table) == 1, as_is)
      if inside is not None:
        ok = inside if ok is None else ok & inside
      i = i if stride == 1 else i * np.int32(stride)
      index = i if len(table) == 1 else index + i
    if mask is not None and not as_is:
      ok, mask = mask if ok is None else ok & mask, None
    if ok is not None:
      index = lax.select(ok, index, lax.full_like(index, count))
    return Rows(index, mask, self.array_shape[ndim - kept :], count)

  def _is_whole(self, dim: int, axis: int) -> bool:
    index, axes = self.entries[dim]
    return axes == (axis,) and indexing.is_whole(index, self.array_shape[dim])


def _row_index(entry, length, shape, alone, as_is):
  """One dimension's index over `shape`, and where it is inside.

  The latter is None if that need not be known: all of it is, or the index is
  the table's only one (`alone`), and then what is outside stays outside.
  """
  index, axes = entry
  if isinstance(index, Slice):
    start = index.start
    static = isinstance(start, int)
    last = (index.size - 1) * index.stride
    inside = static and 0 <= start and start + last < length
    index = _positions(index)
  else:
    as_is = as_is and alone
    index = indexing.to_int32(index) if as_is else _wrap(index, length)
    inside = alone
  index = lax.broadcast_in_dim(jnp.asarray(index, np.int32), shape, axes)
  if inside:
    return index, None
  return index, (index >= 0) & (index < np.int32(length))


def gather(x, rows: Rows):
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


def scatter(x, rows: Rows, value):
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
