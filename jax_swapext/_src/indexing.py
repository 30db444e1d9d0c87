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
"""NumPy-style indices, and the axes of the region that one selects."""

from __future__ import annotations

from collections.abc import Sequence
import operator
import reprlib
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jax_swapext._src import compat
import numpy as np

NDIndexer = compat.NDIndexer
Slice = compat.Slice


class Layout(NamedTuple):
  """How the NumPy shape of `ref[idx]` differs from the primitive's region.

  Only an index that holds None needs one: None adds axes, and by NumPy's rules
  it separates integer arrays, whose axes then move to the front.

  Attributes:
    permutation: NumPy's axes, the added ones left out, as axes of the region.
    numpy_shape: the shape that NumPy gives `ref[idx]`.
    added: which axes of `numpy_shape` None added.
  """

  permutation: tuple[int, ...]
  numpy_shape: tuple[int, ...]
  added: tuple[bool, ...]

  def to_region(self, x: jax.Array) -> jax.Array:
    x = lax.squeeze(x, [i for i, new in enumerate(self.added) if new])
    return lax.transpose(x, inverse_permutation(self.permutation))

  def from_region(self, x: jax.Array) -> jax.Array:
    return lax.reshape(lax.transpose(x, self.permutation), self.numpy_shape)


def parse_index(
    name: str, idx: Any, shape: tuple[int, ...], may_leave: bool
) -> tuple[NDIndexer | None, Layout | None]:
  """Parses a NumPy-style index for a view of `shape`.

  JAX's own `NDIndexer.from_indices_shape` is not used because it broadcasts
  scalars that stand beside integer arrays, which TPU kernels cannot lower, and
  because a masked access may start or end outside the Ref.
  """
  if idx is None or idx is Ellipsis:
    return None, None
  if not isinstance(idx, tuple):
    idx = (idx,)
  if not idx or (len(idx) == 1 and idx[0] is Ellipsis):
    return None, None
  check_addressable(name, shape)
  entries = _expand_ellipsis(name, idx, len(shape))
  dim, indices, dims, arrays = 0, [], [], []
  for entry in entries:
    if entry is None or entry is Ellipsis:
      dims.append(entry)
      continue
    entry = _dim_index(name, entry, dim, shape[dim], may_leave)
    dims.append(dim)
    indices.append(entry)
    if not isinstance(entry, Slice) and (s := np.shape(entry)):
      arrays.append(s)
    dim += 1
  int_shape: tuple[int, ...] = ()
  if arrays:
    try:
      int_shape = np.broadcast_shapes(*arrays)
    except ValueError:
      raise ValueError(
          f"{name}: wanted index arrays that broadcast together, got shapes "
          f"{', '.join(map(str, arrays))}."
      ) from None
    indices = [
        broadcast(name, "index", i, int_shape)
        if not isinstance(i, Slice) and np.shape(i)
        else i
        for i in indices
    ]
  indexer = NDIndexer(tuple(indices), shape, int_shape)
  if len(dims) == len(indices):
    return indexer, None
  return indexer, _numpy_layout(indexer, dims)


def _expand_ellipsis(name, idx, ndim):
  ellipses = [i for i, e in enumerate(idx) if e is Ellipsis]
  if len(ellipses) > 1:
    raise ValueError(
        f"{name}: wanted at most one '...' in the index, got {len(ellipses)}."
    )
  given = sum(e is not None and e is not Ellipsis for e in idx)
  if given > ndim:
    raise ValueError(
        f"{name}: wanted at most {ndim} indices for a Ref of rank {ndim}, got "
        f"{given}."
    )
  # One that stands for no dimension still separates index arrays.
  fill = (slice(None),) * (ndim - given) or (Ellipsis,) * len(ellipses)
  at = ellipses[0] if ellipses else len(idx)
  return idx[:at] + fill + idx[at + 1 :]


def _dim_index(name, entry, dim, size, may_leave):
  """One dimension's index: a Slice, or an integer scalar or array."""
  where = f"{name}: dimension {dim} of size {size}"
  if isinstance(entry, slice):
    return _from_slice(where, entry, size)
  if isinstance(entry, Slice):
    return _from_dslice(where, entry, size, may_leave)
  if type(entry) is int or isinstance(entry, np.integer):
    return np.int32(_static_index(where, int(entry), size, may_leave))
  if compat.is_ref(entry):
    raise TypeError(
        f"{where}: wanted an integer index, got a Ref. Load the indices first."
    )
  try:
    aval = jax.typeof(entry)
  except TypeError:
    raise TypeError(
        f"{where}: wanted an integer, a slice, pl.ds, an integer array, None or"
        f" ... as index, got {describe(entry)}."
    ) from None
  if aval.dtype == np.dtype(bool):
    raise TypeError(
        f"{where}: wanted an integer index, got bool. A region of unknown size "
        "cannot be compiled: access the whole and pass mask= instead."
    )
  if not jnp.issubdtype(aval.dtype, jnp.integer):
    got = f"{entry}, a {aval.dtype}" if np.isscalar(entry) else aval.dtype
    raise TypeError(f"{where}: wanted an integer index, got {got}.")
  if not all(isinstance(d, int) for d in aval.shape):
    raise NotImplementedError(
        f"{where}: wanted an index array of a static shape, got {aval.shape}. "
        "Export once for each size, or for the largest with a mask."
    )
  if not isinstance(entry, np.ndarray):
    return entry
  if entry.dtype != np.uint64:
    entry = entry.astype(np.int64)  # the size may not fit its own dtype
  if entry.ndim == 0:
    return np.int32(_static_index(where, int(entry), size, may_leave))
  if entry.size and not may_leave and not _within(entry, size):
    raise ValueError(
        f"{where}: wanted indices in [{-size}, {size}), got "
        f"[{entry.min()}, {entry.max()}]. Mask the elements outside."
    )
  return jnp.asarray(_canonical(entry, size), np.int32)


def _within(index, size):
  return index.min() >= -size and index.max() < size


def _static_index(where, index, size, may_leave):
  if -size <= index < size:
    return index % size
  if not may_leave:
    raise ValueError(
        f"{where}: wanted an index in [{-size}, {size}), got {index}."
    )
  return size


def _canonical(index, size):
  """Counts negative indices from the end, and moves the outside to `size`.

  Nothing else is left negative, so that no later rule counts it a second time.
  """
  inside = (-size <= index) & (index < size)
  return np.where(inside, np.where(index < 0, index + size, index), size)


def _from_slice(where, entry, size) -> Slice:
  for bound in (entry.start, entry.stop, entry.step):
    if bound is not None and not isinstance(bound, (int, np.integer)):
      raise TypeError(
          f"{where}: wanted a slice with static bounds, got {entry}. Use "
          "pl.ds(start, size) for a start known at run time only."
      )
  step = 1 if entry.step is None else entry.step
  if step < 1:
    raise ValueError(
        f"{where}: wanted a slice with a step of at least 1, got {step}. "
        "Reverse the value with jnp.flip instead."
    )
  start, stop, step = entry.indices(size)
  return Slice(start, len(range(start, stop, step)), step)


def _from_dslice(where, entry, size, may_leave) -> Slice:
  start, length, step = entry.start, entry.size, entry.stride
  if not isinstance(length, (int, np.integer)):
    raise TypeError(
        f"{where}: wanted pl.ds with a static size, got {describe(length)}. "
        "Access the largest size and pass mask= instead."
    )
  if length < 0:
    raise ValueError(
        f"{where}: wanted pl.ds with a size of at least 0, got {length}."
    )
  if step < 1:
    raise ValueError(
        f"{where}: wanted pl.ds with a stride of at least 1, got {step}."
    )
  if isinstance(start, bool) or not isinstance(start, (int, np.integer)):
    try:
      aval = jax.typeof(start)
    except TypeError:
      raise TypeError(
          f"{where}: wanted an integer as the start of pl.ds, got "
          f"{describe(start)}."
      ) from None
    if aval.shape or not jnp.issubdtype(aval.dtype, jnp.integer):
      raise TypeError(
          f"{where}: wanted an integer scalar as the start of pl.ds, got "
          f"{aval}."
      )
    start = _known_start(start)
  reach = (length - 1) * step
  if reach >= FAR:
    raise NotImplementedError(
        f"{where}: wanted pl.ds that spans at most {FAR} elements, since "
        f"indices are computed with 32 bits, got size {length} and stride "
        f"{step}. Access it in parts."
    )
  if not isinstance(start, (int, np.integer)):
    return Slice(start, int(length), step)
  last = int(start) + reach
  if length and not may_leave and not (0 <= start and last < size):
    raise ValueError(
        f"{where}: wanted a slice within [0, {size}), got "
        f"[{start}, {last + 1}). Mask the elements outside."
    )
  if last < 0 or start >= size:  # nothing is inside, however far it is
    start, step = size if length else 0, 1
  return Slice(int(start), int(length), step)


def _known_start(start: Any) -> Any:
  """The start of a slice, as an int if it is an array of known value.

  A `Slice` makes that part of its tree structure, which JAX hashes and
  compares: an array can do neither, least of all while a function is traced.
  """
  is_dynamic = Slice(start, 1).is_dynamic_start
  if is_dynamic or not isinstance(start, (jax.Array, np.ndarray, np.integer)):
    return start
  return operator.index(start)


def with_known_starts(transform: Any) -> Any:
  """A transform of a view, where `_known_start` holds for its slices."""
  if not isinstance(transform, NDIndexer):
    return transform
  indices = tuple(
      Slice(_known_start(i.start), i.size, i.stride)
      if isinstance(i, Slice)
      else i
      for i in transform.indices
  )
  return NDIndexer(indices, transform.shape, transform.int_indexer_shape)


def is_whole(index: Any, size: int) -> bool:
  """Whether an index is known to be the slice of a whole dimension."""
  return (
      isinstance(index, Slice)
      and isinstance(index.start, (int, np.integer))
      and (index.start, index.size, index.stride) == (0, size, 1)
  )


# ## Axes of a region
#
# NumPy's rule, which NDIndexer follows: the axes of the integer arrays stand
# where the integers are if these are adjacent, else in front. A scalar counts
# as an integer, but adds no axis.


def region_axes(indices: Sequence[Any], int_axes: Sequence[Any]) -> list[Any]:
  """Labels of a region's axes, in order.

  Args:
    indices: per dimension, or None for an axis that None adds.
    int_axes: the labels of the axes that the integer arrays share.

  Returns:
    For each axis its label in `int_axes` or its position in `indices`.
  """
  ints = [
      i
      for i, e in enumerate(indices)
      if e is not None and not isinstance(e, Slice)
  ]
  axes: list[Any] = [i for i in range(len(indices)) if i not in ints]
  adjacent = not ints or ints[-1] - ints[0] == len(ints) - 1
  at = ints[0] if ints and adjacent else 0
  return axes[:at] + list(int_axes) + axes[at:]


def int_labels(n: int) -> list[tuple[str, int]]:
  return [("int", i) for i in range(n)]


def _numpy_layout(indexer: NDIndexer, dims: list[Any]) -> Layout:
  """The layout of an index with None or ... where `dims` has one."""
  labels = int_labels(len(indexer.int_indexer_shape))
  entries = [indexer.indices[d] if type(d) is int else None for d in dims]
  numpy_axes = [
      a if isinstance(a, tuple) else dims[a]
      for a in region_axes(entries, labels)
  ]
  numpy_axes = [a for a in numpy_axes if a is not Ellipsis]
  ours = region_axes(indexer.indices, labels)
  permutation = tuple(ours.index(a) for a in numpy_axes if a is not None)
  shape = compat.indexer_shape(indexer)
  region = iter([shape[p] for p in permutation])
  numpy_shape = tuple(1 if a is None else next(region) for a in numpy_axes)
  added = tuple(a is None for a in numpy_axes)
  return Layout(permutation, numpy_shape, added)


def inverse_permutation(permutation: Sequence[int]) -> tuple[int, ...]:
  return tuple(int(i) for i in np.argsort(permutation))


FAR = np.iinfo(np.int32).max  # outside of any array: see `check_addressable`


def to_int32(i: Any) -> jax.Array:
  """`i` as int32; what does not fit stays outside of any array."""
  i = jnp.asarray(i)
  if i.dtype == np.int32:
    return i
  if jnp.iinfo(i.dtype).max > FAR:
    unsigned = jnp.issubdtype(i.dtype, jnp.unsignedinteger)
    far = np.asarray(FAR, i.dtype)
    i = lax.clamp(np.zeros((), i.dtype) if unsigned else -far, i, far)
  return lax.convert_element_type(i, np.int32)


def check_addressable(name: str, shape: tuple[int, ...]) -> None:
  """Indices are computed with 32 bits: raises NotImplementedError beyond."""
  if any(d > FAR for d in shape):
    raise NotImplementedError(
        f"{name}: wanted dimensions of at most {FAR} elements, since indices "
        f"are computed with 32 bits, got shape {shape}. Give it two dimensions."
    )


# ## Shared with `access`


def describe(x: Any) -> str:
  """`x` for an error message: its type as JAX prints it, or Python's."""
  try:
    return f"{jax.typeof(x)}"
  except TypeError:
    return f"{reprlib.repr(x)}, a {type(x).__name__}"


def broadcast(name, what, x, shape) -> jax.Array:
  """Broadcasts `x` to the region's shape with at most one equation."""
  got = jnp.shape(x)
  if got == shape:
    return x
  offset = len(shape) - len(got)
  if offset < 0 or any(
      d != 1 and d != s for d, s in zip(got, shape[max(offset, 0) :])
  ):
    raise ValueError(
        f"{name}: wanted {what} to broadcast to the accessed region of shape "
        f"{shape}, got shape {got}."
    )
  keep = [i for i, d in enumerate(got) if d == shape[offset + i]]
  if len(keep) != len(got):
    x = lax.squeeze(x, [i for i in range(len(got)) if i not in keep])
  return lax.broadcast_in_dim(x, shape, [offset + i for i in keep])
