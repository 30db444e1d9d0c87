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
"""vmap of an access: one access to the Ref that holds the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
from jax_swapext._src import compat
from jax_swapext._src import indexing
from jax_swapext._src.access import Access
from jax_swapext._src.access import may_repeat
import numpy as np

NDIndexer = compat.NDIndexer
Slice = compat.Slice


def batch_access(
    name: str,
    size: int,
    ref_dim: int | None,
    access: Access,
    access_dims: Access,
) -> tuple[Access, Callable[[jax.Array], jax.Array]]:
  """One access for a whole batch.

  Args:
    name: the primitive, for error messages.
    size: the number of elements in the batch.
    ref_dim: the batch axis of the Ref; None if the Ref has none, in which case
      some index has one.
    access: the access of each element, with batched leaves.
    access_dims: the batch axes of the leaves of `access`.

  Returns:
    An access to the batched Ref, and a function that moves the batch axis of a
    result of the primitive to the front.
  """
  check_batch_size(name, size)
  transforms: list[Any] = []
  at: Any = ref_dim  # where the batch axis is in the view so far
  order: list[int] | None = None  # from the batch-first region to the new one
  last = len(access.transforms) - 1
  for i, (t, d) in enumerate(zip(access.transforms, access_dims.transforms)):
    if isinstance(t, NDIndexer):
      if at is None and not _is_batched(t, d):
        transforms.append(t)
        continue
      ordered = name.startswith("atomic_") and may_repeat(access.transforms[:i])
      if ordered and _moved_slices(t, d):
        raise NotImplementedError(
            f"{name}: wanted no batched start of pl.ds on a view that has an "
            "index array itself: the order of repeated elements would be lost. "
            "Index with an array instead: start + jnp.arange(size)."
        )
      t, at, order = _batch_indexer(t, d, size, at)
      transforms.append(t)
      if order is not None and i != last:
        back = indexing.inverse_permutation(order)
        transforms.append(compat.TransposeTransform(back))
        at, order = 0, None
      continue
    if at is None:
      transforms.append(t)
      continue
    if at != 0:
      axes = range(_view_ndim(access, i) + 1)
      to_front = (at, *(a for a in axes if a != at))
      transforms.append(compat.TransposeTransform(to_front))
      at, order = 0, None
    transforms.append(_batch_transform(name, t, size))
  if order is None:
    to_new = lambda x: x if at == 0 else jnp.moveaxis(x, 0, at)
    to_front = lambda x: x if at == 0 else jnp.moveaxis(x, at, 0)
  else:
    inverse = indexing.inverse_permutation(order)
    to_new = lambda x: lax.transpose(x, order)
    to_front = lambda x: lax.transpose(x, inverse)

  def batch_array(x, dim):
    if dim is None:
      x = lax.broadcast_in_dim(x, (size, *x.shape), range(1, x.ndim + 1))
    else:
      x = compat.moveaxis(x, dim, 0)
    return to_new(x)

  operands = tuple(map(batch_array, access.operands, access_dims.operands))
  mask = access.mask
  if mask is not None:
    mask = batch_array(mask, access_dims.mask)
  return Access(tuple(transforms), mask, operands), to_front


def check_batch_size(name: str, size: Any) -> None:
  """Raises NotImplementedError for a batch of symbolic size."""
  if not isinstance(size, int):
    raise NotImplementedError(
        f"{name}: wanted a batch of static size under vmap, got {size}. Export "
        "once for each size, or map with jax.lax.map."
    )


def _view_ndim(access, i):
  """The rank that an element's view has before its i-th transform."""
  for t in reversed(access.transforms[:i]):
    if isinstance(t, NDIndexer):
      return len(compat.indexer_shape(t))
    if isinstance(t, compat.ReshapeTransform):
      return len(t.shape)
    if isinstance(t, compat.TransposeTransform):
      return len(t.permutation)
  t = access.transforms[i]
  if isinstance(t, compat.TransposeTransform):
    return len(t.permutation)
  raise NotImplementedError(
      f"vmap: the batch axis of the Ref must lead before {t}. Batch the Ref "
      "along axis 0 (in_axes=0)."
  )


def _batch_transform(name, t, size):
  if isinstance(t, compat.ReshapeTransform):
    return compat.ReshapeTransform((size, *t.shape))
  if isinstance(t, compat.TransposeTransform):
    return compat.TransposeTransform((0, *(p + 1 for p in t.permutation)))
  if isinstance(t, compat.BitcastTransform):
    return t
  raise NotImplementedError(
      f"{name}: vmap cannot see through the Ref transform {t}. Apply vmap to "
      "the pallas_call instead of inside the kernel."
  )


def _is_batched(indexer: NDIndexer, dims: Any) -> bool:
  return any(
      e.is_dynamic_start and d.start is not None
      if isinstance(e, Slice)
      else d is not None
      for e, d in zip(indexer.indices, dims.indices)
  )


def _batch_indexer(
    indexer: NDIndexer, dims: NDIndexer, size: int, at: Any
) -> tuple[NDIndexer, int, list[int] | None]:
  """Returns the new indexer, its region's batch axis, and the axes' order.

  The order is None if, the batch axis apart, the axes keep theirs; else it is
  the permutation from a region whose batch axis leads to the new region.
  """
  ints = indexing.int_labels(len(indexer.int_indexer_shape))
  old = indexing.region_axes(indexer.indices, ints)
  if not _is_batched(indexer, dims):
    indices = list(indexer.indices)
    indices.insert(at, Slice(0, size))
    labels: list[Any] = list(range(len(indexer.indices)))
    labels.insert(at, "batch")
    int_shape, new_int = indexer.int_indexer_shape, ints
  else:
    indices, labels, int_shape, new_int = _batch_indices(
        indexer, dims, size, at, ints
    )
  shape = list(indexer.shape)
  if at is not None:
    shape.insert(at, size)
  axes = indexing.region_axes(indices, list(range(-len(new_int), 0)))
  new = [new_int[a] if a < 0 else labels[a] for a in axes]
  where = new.index("batch")
  result = NDIndexer(tuple(indices), tuple(shape), tuple(int_shape))
  if [a for a in new if a != "batch"] == old:
    return result, where, None
  return result, where, [0 if a == "batch" else 1 + old.index(a) for a in new]


def _moved_slices(indexer: NDIndexer, dims: Any) -> list[int]:
  """The dimensions whose slice has a batched start."""
  return [
      i
      for i, (e, d) in enumerate(zip(indexer.indices, dims.indices))
      if isinstance(e, Slice) and e.is_dynamic_start and d.start is not None
  ]


def _batch_indices(indexer, dims, size, at, ints):
  """Every batched index as an integer array with the batch axis in front.

  A slice whose start is batched becomes an integer array too, with an axis of
  its own behind those that the index has already.
  """
  int_shape = indexer.int_indexer_shape
  moved = _moved_slices(indexer, dims)
  lengths = tuple(indexer.indices[i].size for i in moved)
  full = (size, *int_shape, *lengths)
  new_int = ["batch", *ints, *moved]

  def spread(x, axes):
    return lax.broadcast_in_dim(x, full, axes)

  indices: list[Any] = []
  for i, (entry, d) in enumerate(zip(indexer.indices, dims.indices)):
    if i in moved:
      starts = compat.moveaxis(entry.start, d.start, 0)
      starts = indexing.to_int32(starts)
      steps = lax.iota(np.int32, entry.size) * np.int32(entry.stride)
      axis = new_int.index(i)
      indices.append(spread(starts, (0,)) + spread(steps, (axis,)))
    elif isinstance(entry, Slice):
      indices.append(entry)
    elif d is not None:
      entry = compat.moveaxis(entry, d, 0)
      indices.append(spread(entry, range(entry.ndim)))
    elif np.shape(entry):
      indices.append(spread(entry, range(1, 1 + entry.ndim)))
    else:
      indices.append(entry)
  labels: list[Any] = list(range(len(indices)))
  if at is not None:
    indices.insert(at, lax.broadcasted_iota(np.int32, full, 0))
    labels.insert(at, "batch")
  return indices, labels, full, new_int
