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
"""One access to a TPU Ref, reduced to what its lowerings decide on.

TensorCore, SparseCore and the TPU interpreter share this: chains of `ref.at[]`
become one index on the Ref they start from, because Mosaic judges alignment on
that Ref, and parts of a masked static index outside the Ref are cut off.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import math
from typing import Any

from jax import lax
import jax.numpy as jnp
from jax_swapext._src import compat
from jax_swapext._src import indexing
from jax_swapext._src import semantics
from jax_swapext._src.pallas import tpu_values
import numpy as np

AtomicOp = semantics.AtomicOp
Slice = compat.Slice


@dataclasses.dataclass(frozen=True)
class Update:
  """What to do with a region.

  Attributes:
    name: The operation, for messages.
    op: How the new value comes about; None for a load.
    operands: Arrays of the region's shape; of a load, `other` or nothing.
    mask: bool of the region's shape, or None.
    need_old: Whether the old value is wanted.
    reverse: Whether repeated elements are taken in reversed order.
  """

  name: str
  op: Any
  operands: tuple[Any, ...]
  mask: Any
  need_old: bool
  reverse: bool = False

  @property
  def is_load(self) -> bool:
    return self.op is None

  @property
  def reads(self) -> bool:
    """Whether the old value is wanted or the new one depends on it."""
    return self.need_old or self.op is not AtomicOp.XCHG

  def replace(self, **changes: Any) -> Update:
    return dataclasses.replace(self, **changes)

  def masked(self, old: Any) -> Any:
    """The result: `old` where the mask allows, else `other` or zero."""
    if self.mask is None:
      return old
    other = self.operands[0] if self.is_load and self.operands else None
    if other is None:
      other = jnp.zeros(old.shape, old.dtype)
    return tpu_values.select(self.mask, old, other)


@dataclasses.dataclass(frozen=True)
class Region:
  """A region of a view of a Ref.

  Attributes:
    prefix: Transforms from the Ref to the view that `indices` index.
    shape: The view's shape.
    indices: Per dimension a scalar, a Slice or an integer array; all arrays
      have shape `int_shape`.
    int_shape: Shape of the integer arrays; () when there are none.
    order: The region's axes as axes of NumPy's region for `indices`.
    known: By `id` of a traced start: what it is a multiple of.
    keep: Keeps alive what `known` identifies.
  """

  prefix: tuple[Any, ...]
  shape: tuple[int, ...]
  indices: tuple[Any, ...]
  int_shape: tuple[int, ...]
  order: tuple[int, ...]
  known: dict[int, int]
  keep: tuple[Any, ...]

  @property
  def arrays(self) -> tuple[int, ...]:
    """The dimensions that integer arrays index."""
    return tuple(d for d, i in enumerate(self.indices) if is_array_index(i))

  @property
  def slices(self) -> tuple[int, ...]:
    return tuple(d for d, i in enumerate(self.indices) if isinstance(i, Slice))

  @property
  def natural_shape(self) -> tuple[int, ...]:
    """The region's shape before `order` permutes it."""
    indexer = compat.NDIndexer(self.indices, self.shape, self.int_shape)
    return tuple(int(n) for n in indexer.get_indexer_shape())

  def multiple(self, start: Any) -> int:
    """The largest known divisor of a start; 0 stands for all."""
    if isinstance(start, (int, np.integer)):
      return int(start)
    return self.known.get(id(start), 1)

  def with_indices(
    self, indices: Sequence[Any], int_shape: tuple[int, ...] = ()
  ) -> Region:
    indices = tuple(indices)
    region = dataclasses.replace(
      self, indices=indices, int_shape=int_shape, order=()
    )
    return dataclasses.replace(
      region, order=tuple(range(len(region.natural_shape)))
    )


def is_array_index(index: Any) -> bool:
  return not isinstance(index, Slice) and bool(np.shape(index))


def is_static(x: Any) -> bool:
  return isinstance(x, (int, np.integer))


class _Composer:
  """Folds transforms into one index per dimension of a view."""

  def __init__(self, name: str, shape: Sequence[int], known: dict[int, int]):
    self.name = name
    self.known = dict(known)
    self.keep: list[Any] = []
    self.prefix: tuple[Any, ...] = ()
    self.pending: tuple[Any, ...] = ()
    self._reset(tuple(shape))

  def _reset(self, shape: tuple[int, ...]) -> None:
    self.shape = shape
    self.indices: list[Any] = [Slice(0, n) for n in shape]
    self.int_shape: tuple[int, ...] = ()
    # What each axis of the view stands for: a dimension, or one of the axes
    # that the integer arrays share.
    self.axes: list[Any] = list(range(len(shape)))
    self.pending = ()

  def _affine(self, start: Any, step: int, index: Any) -> Any:
    """`start + step * index`, static where it can be, multiples kept."""
    if is_static(index):
      index = int(index)
    if is_static(start) and start == 0 and step == 1:
      return index
    if is_static(start) and is_static(index):
      return int(start) + step * index
    if is_static(index) and index == 0:
      return start
    out = index if step == 1 else index * np.int32(step)
    out = out + (np.int32(start) if is_static(start) else start)
    multiple = math.gcd(self._multiple(start), step * self._multiple(index))
    self.known[id(out)] = multiple
    self.keep.append(out)
    return out

  def _multiple(self, x: Any) -> int:
    return int(x) if is_static(x) else self.known.get(id(x), 1)

  def _int32(self, x: Any) -> Any:
    """A traced index as int32, which all arithmetic on it then is."""
    # A value of the lowered module has no dtype; it is only looked at.
    if is_static(x) or getattr(x, "dtype", np.int32) == np.int32:
      return x
    out = x.astype(jnp.int32)
    self.known[id(out)] = self._multiple(x)
    self.keep.append(out)
    return out

  def index(self, indexer: Any) -> None:
    new_ints = indexing.int_labels(len(indexer.int_indexer_shape))
    if new_ints and self.int_shape:
      raise NotImplementedError(
        f"{self.name}: wanted one set of index arrays, got two in a chain of"
        " ref.at[...]: TPU kernels cannot index the indices. Combine them"
        " into one index."
      )
    for axis, entry in zip(self.axes, indexer.indices, strict=True):
      if isinstance(axis, tuple):
        n = self.int_shape[axis[1]]
        if not indexing.is_whole(entry, n):
          raise NotImplementedError(
            f"{self.name}: wanted the whole of an axis that index arrays"
            " made, got an index into it: TPU kernels cannot index the"
            " indices. Index the arrays first."
          )
        continue
      old = self.indices[axis]
      if isinstance(entry, Slice):
        start = self._int32(entry.start)
        start = self._affine(old.start, old.stride, start)
        new = Slice(start, entry.size, old.stride * entry.stride)
      else:
        new = self._affine(old.start, old.stride, self._int32(entry))
      self.indices[axis] = new
    if new_ints:
      self.int_shape = tuple(indexer.int_indexer_shape)
    axes = indexing.region_axes(indexer.indices, new_ints)
    self.axes = [a if isinstance(a, tuple) else self.axes[a] for a in axes]
    self.pending = (*self.pending, indexer)

  def transpose(self, transform: Any) -> None:
    self.axes = [self.axes[p] for p in transform.permutation]
    self.pending = (*self.pending, transform)

  def view(self, transform: Any, shape: Sequence[int]) -> None:
    """A bitcast or reshape: later indices start afresh on its result."""
    if self.int_shape or self.axes != sorted(self.axes):
      raise NotImplementedError(
        f"{self.name}: wanted a {type(transform).__name__} of a Ref or of"
        " slices of it, got one of a gathered or transposed view, which has"
        " no memory of its own. Change the order of the transforms."
      )
    whole = all(
      indexing.is_whole(i, n)
      for i, n in zip(self.indices, self.shape, strict=True)
    )
    indexers = () if whole else self.pending
    self.prefix = (*self.prefix, *indexers, transform)
    self._reset(tuple(shape))

  def finish(self) -> Region:
    ints = indexing.int_labels(len(self.int_shape))
    natural = indexing.region_axes(self.indices, ints)
    order = tuple(natural.index(a) for a in self.axes)
    return Region(
      self.prefix,
      self.shape,
      tuple(self.indices),
      self.int_shape,
      order,
      self.known,
      tuple(self.keep),
    )


def region_of(
  name: str,
  ref_aval: Any,
  transforms: Sequence[Any],
  known: dict[int, int] | None = None,
) -> Region:
  """The region that `transforms` select.

  Args:
    name: The operation, for messages.
    ref_aval: The Ref's type.
    transforms: JAX's Ref transforms.
    known: By `id` of a traced index: what it is a multiple of.

  Raises:
    NotImplementedError: The chain of transforms has no single index.
  """
  composer = _Composer(name, ref_aval.shape, known or {})
  aval = ref_aval
  for t in transforms:
    aval = t.transform_type(aval)
    if isinstance(t, compat.NDIndexer):
      composer.index(t)
    elif isinstance(t, compat.TransposeTransform):
      composer.transpose(t)
    else:
      composer.view(t, aval.shape)
  return composer.finish()


def lane_of(region: Region, k: int) -> list[Any]:
  """The indices of the k-th element of a region of one dimension."""

  def at(index):
    if isinstance(index, Slice):
      return index.start + k * index.stride
    return index[k] if is_array_index(index) else index

  return [at(index) for index in region.indices]


def in_passes(region: Region, update: Update, access: Any) -> Any:
  """`access(update)`, which goes element by element, for positions that repeat.

  All old values of a swap are those before it: so all are read before any
  position is written.
  """
  if update.name != "swap" or not region.int_shape:
    return access(update)
  old = access(update.replace(name="load", op=None, operands=()))
  access(update.replace(name="store", need_old=False))
  return old


def is_outside(region: Region) -> bool:
  """Whether a scalar index is known to lie outside."""
  return any(
    is_static(i) and not 0 <= i < n
    for i, n in zip(region.indices, region.shape, strict=True)
  )


def to_natural(region: Region, x: Any) -> Any:
  """A region-shaped array with its axes in NumPy's order for the indices."""
  if region.order == tuple(range(len(region.order))):
    return x
  return lax.transpose(x, indexing.inverse_permutation(region.order))


def from_natural(region: Region, x: Any) -> Any:
  if region.order == tuple(range(len(region.order))):
    return x
  return lax.transpose(x, region.order)


def trim(region: Region, update: Update):
  """Cuts off what a masked static index selects outside the view.

  Returns:
    None if nothing is left; else the region, the update and, per axis of the
    region, how many elements were cut before and behind.
  """
  indices: list[Any] = list(region.indices)
  axes = indexing.region_axes(
    indices, indexing.int_labels(len(region.int_shape))
  )
  cuts: list[Any] = [(0, 0)] * len(axes)
  for d, index in enumerate(indices):
    size = region.shape[d]
    if isinstance(index, Slice):
      if not is_static(index.start):
        continue
      start, step = int(index.start), index.stride
      before = min(index.size, max(0, -(start // step)))
      last = max(0, -(-(size - start) // step))
      behind = max(0, index.size - max(last, before))
      if before or behind:
        n = index.size - before - behind
        if n <= 0:
          return None
        indices[d] = Slice(start + before * step, n, step)
        cuts[axes.index(d)] = (before, behind)
    elif is_static(index) and not 0 <= index < size:
      return None
  if not any(a or b for a, b in cuts):
    return region, update, cuts
  smaller = region.with_indices(indices, region.int_shape)

  def cut(x):
    limits = [n - b for n, (_, b) in zip(x.shape, cuts, strict=True)]
    return lax.slice(x, [a for a, _ in cuts], limits)

  update = update.replace(
    operands=tuple(map(cut, update.operands)),
    mask=None if update.mask is None else cut(update.mask),
  )
  return smaller, update, cuts


def untrim(update: Update, cuts: Sequence[tuple[int, int]], old: Any) -> Any:
  """Undoes `trim` on a result."""
  if not any(a or b for a, b in cuts):
    return old
  zero = jnp.zeros((), old.dtype)
  padded = lax.pad(old, zero, [(a, b, 0) for a, b in cuts])
  return update.masked(padded)
