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
"""One access described: its region, its mask, its operands.

The public functions are forgiving: they take any NumPy index and anything that
broadcasts. `prepare` turns that into the strict form which the primitives bind,
so that rules never have to think about `None`, `...` or a Python scalar again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jax_swapext._src import compat
from jax_swapext._src import semantics
import numpy as np

NDIndexer = compat.NDIndexer
Slice = compat.Slice


class Access(NamedTuple):
  """The operands of a Ref primitive after the Ref; a pytree.

  Attributes:
    transforms: JAX's own Ref transforms, from the Ref to the accessed region.
    mask: bool, of the region's shape; None stands for all true.
    operands: arrays of the region's shape and of the Ref's dtype.
  """

  transforms: tuple[Any, ...]
  mask: jax.Array | None
  operands: tuple[jax.Array, ...]


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


def prepare(
    name: str,
    ref: Any,
    idx: Any,
    mask: Any,
    operands: dict[str, Any],
    op: semantics.AtomicOp | None = None,
) -> tuple[Any, Access, Callable[[jax.Array], jax.Array]]:
  """Canonicalises the arguments of a public function on a Ref.

  Args:
    name: the public function, for error messages.
    ref: a Ref or a view of one.
    idx: a NumPy-style index, or None for the whole view.
    mask: None, or a bool that broadcasts to the region.
    operands: by argument name; each broadcasts to the region.
    op: the atomic operation, if it is one.

  Returns:
    The Ref, the access, and a function from a result of the primitive to one of
    the shape that NumPy gives `ref[idx]`.
  """
  if isinstance(ref, compat.TransformedRef):
    if ref.multiref:
      raise NotImplementedError(
          f"{name}: wanted one Ref, got a choice between several. Select one "
          "before the access."
      )
    base, transforms, view = ref.ref, ref.transforms, ref.type
  else:
    if not compat.is_ref(ref):
      raise TypeError(f"{name}: wanted a Ref first, got {describe(ref)}.")
    base, transforms, view = ref, (), jax.typeof(ref)
  shape, dtype = view.shape, view.dtype
  args, restore = canonicalize(
      name, shape, dtype, idx, mask, operands, op, mask is not None
  )
  values = tuple(
      compat.insert_pvary_for_write(base, v) for v in args.operands
  )
  access = Access((*transforms, *args.transforms), args.mask, values)
  return base, access, restore


def canonicalize(
    name: str,
    shape: tuple[int, ...],
    dtype: np.dtype,
    idx: Any,
    mask: Any,
    operands: dict[str, Any],
    op: semantics.AtomicOp | None,
    may_leave: bool,
) -> tuple[Access, Callable[[jax.Array], jax.Array]]:
  """The access of a view of `shape`; `may_leave`: indices may be outside it."""
  semantics.check_dtype(name, dtype, op)
  indexer, layout = parse_index(name, idx, shape, may_leave)
  transforms = ()
  if indexer is not None:
    transforms = (indexer,)
    shape = indexer.get_indexer_shape()
  numpy_shape = layout.numpy_shape if layout else shape
  values = tuple(
      _operand(name, what, value, dtype, numpy_shape)
      for what, value in operands.items()
  )
  mask = check_mask(name, mask, numpy_shape)
  if layout is None:
    return Access(transforms, mask, values), lambda x: x
  values = tuple(map(layout.to_region, values))
  mask = None if mask is None else layout.to_region(mask)
  return Access(transforms, mask, values), layout.from_region


def describe(x: Any) -> str:
  """`x` for an error message: its type as JAX prints it, or Python's."""
  try:
    return f"{jax.typeof(x)}"
  except TypeError:
    return f"a {type(x).__name__}"


# ## Operands

# Which dtypes a Python scalar may take: its own kind or a wider one.
_SCALAR_KINDS = {bool: "biuf", int: "iuf", float: "f"}


def _kind(dtype) -> str:
  return "f" if jnp.issubdtype(dtype, jnp.floating) else np.dtype(dtype).kind


def _operand(name, what, value, dtype, shape) -> jax.Array:
  """`value` as an array of the Ref's dtype and the region's shape."""
  if (kinds := _SCALAR_KINDS.get(type(value))) is not None:
    if _kind(dtype) not in kinds:
      raise _dtype_error(name, what, value, f"a Python {describe(value)}", dtype)
    try:
      value = np.asarray(value, dtype)[()]
    except OverflowError as e:
      raise OverflowError(f"{name}: {what} {value} does not fit {dtype}.") from e
    return value if shape == () else lax.full(shape, value, dtype)
  if compat.is_ref(value):
    raise TypeError(
        f"{name}: wanted an array as {what}, got a Ref. Load it first: "
        "jsx.load(ref) or ref[...]."
    )
  try:
    aval = jax.typeof(value)
  except TypeError:
    raise TypeError(
        f"{name}: wanted an array or a scalar as {what}, got {describe(value)}."
    ) from None
  if aval.dtype != dtype:
    weak = aval.weak_type and aval.dtype != np.dtype(bool)
    if not weak or not set(_kind(aval.dtype)) & set("iuf"):
      raise _dtype_error(name, what, value, str(aval.dtype), dtype)
    wider = "iuf" if _kind(aval.dtype) in "iu" else "f"
    if _kind(dtype) not in wider:
      raise _dtype_error(name, what, value, f"weak {aval.dtype}", dtype)
  if aval.weak_type or aval.dtype != dtype:
    value = lax.convert_element_type(value, dtype)
  elif isinstance(value, np.ndarray):
    value = jnp.asarray(value)
  return broadcast(name, what, value, shape)


def _dtype_error(name, what, value, got, dtype):
  del value  # Its dtype says enough, and a traced one has no value.
  return TypeError(
      f"{name}: wanted {dtype} (the Ref's dtype) as {what}, got {got}. Convert "
      f"it with .astype({dtype}), or pass a Python scalar of that kind."
  )


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


def check_mask(name, mask, shape) -> jax.Array | None:
  """`mask` as a bool array of the region's shape; None if it is all true."""
  if mask is None or mask is True:
    return None
  if mask is False:
    return lax.full(shape, False, bool)
  if compat.is_ref(mask):
    raise TypeError(
        f"{name}: wanted a bool array as mask, got a Ref. Load it first."
    )
  try:
    aval = jax.typeof(mask)
  except TypeError:
    aval = None
  if aval is None or aval.dtype != np.dtype(bool):
    raise TypeError(
        f"{name}: wanted a bool array as mask, got {describe(mask)}. Compare "
        "with != 0 to make one."
    )
  if not isinstance(mask, jax.Array):
    mask = jnp.asarray(mask)
  return broadcast(name, "mask", mask, shape)


# ## Indices


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
  entries = _expand_ellipsis(name, idx, len(shape))
  dim, indices, dims, arrays = 0, [], [], []
  for entry in entries:
    if entry is None:
      dims.append(None)
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
  fill = (slice(None),) * (ndim - given)
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
    raise TypeError(f"{where}: wanted an integer index, got {aval.dtype}.")
  if not isinstance(entry, np.ndarray):
    return entry
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
  if not -size <= index < size and not may_leave:
    raise ValueError(
        f"{where}: wanted an index in [{-size}, {size}), got {index}."
    )
  return _canonical(index, size)


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
  start, stop, step = entry.indices(size)
  if step < 1:
    raise ValueError(
        f"{where}: wanted a slice with a step of at least 1, got {step}. "
        "Reverse the value with jnp.flip instead."
    )
  return Slice(start, len(range(start, stop, step)), step)


def _from_dslice(where, entry, size, may_leave) -> Slice:
  start, length, step = entry.start, entry.size, entry.stride
  if not isinstance(length, (int, np.integer)):
    raise TypeError(
        f"{where}: wanted pl.ds with a static size, got {describe(length)}. "
        "Access the largest size and pass mask= instead."
    )
  if step < 1:
    raise ValueError(
        f"{where}: wanted pl.ds with a stride of at least 1, got {step}."
    )
  if not isinstance(start, (int, np.integer)):
    aval = jax.typeof(start)
    if aval.shape or not jnp.issubdtype(aval.dtype, jnp.integer):
      raise TypeError(
          f"{where}: wanted an integer scalar as the start of pl.ds, got {aval}."
      )
    return Slice(start, int(length), step)
  last = int(start) + (length - 1) * step
  if length and not may_leave and not (0 <= start and last < size):
    raise ValueError(
        f"{where}: wanted a slice within [0, {size}), got [{start}, {last + 1})."
        " Mask the elements outside."
    )
  return Slice(int(start), int(length), step)


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
      i for i, e in enumerate(indices) if not (e is None or isinstance(e, Slice))
  ]
  axes: list[Any] = [i for i in range(len(indices)) if i not in ints]
  adjacent = not ints or ints[-1] - ints[0] == len(ints) - 1
  at = ints[0] if ints and adjacent else 0
  return axes[:at] + list(int_axes) + axes[at:]


def int_labels(n: int) -> list[tuple[str, int]]:
  return [("int", i) for i in range(n)]


def _numpy_layout(indexer: NDIndexer, dims: list[int | None]) -> Layout:
  """The layout of an index with None at the places where `dims` has None."""
  labels = int_labels(len(indexer.int_indexer_shape))
  with_none = [None if d is None else indexer.indices[d] for d in dims]
  numpy_axes = [
      a if isinstance(a, tuple) else dims[a]
      for a in region_axes(with_none, labels)
  ]
  ours = region_axes(indexer.indices, labels)
  permutation = tuple(ours.index(a) for a in numpy_axes if a is not None)
  region = iter([indexer.get_indexer_shape()[p] for p in permutation])
  numpy_shape = tuple(1 if a is None else next(region) for a in numpy_axes)
  added = tuple(a is None for a in numpy_axes)
  return Layout(permutation, numpy_shape, added)


# ## Batching


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
  transforms: list[Any] = []
  at = ref_dim  # where the batch axis is in the view so far
  order: list[int] | None = None  # from the batch-first region to the new one
  last = len(access.transforms) - 1
  for i, (t, d) in enumerate(zip(access.transforms, access_dims.transforms)):
    if isinstance(t, NDIndexer):
      t, at, order = _batch_indexer(t, d, size, at)
      transforms.append(t)
      if order is not None and i != last:
        transforms.append(compat.TransposeTransform(inverse_permutation(order)))
        at, order = 0, None
      continue
    if at is None:
      transforms.append(t)
      continue
    if at != 0:
      axes = range(_view_ndim(access, i) + 1)
      order = (at, *(a for a in axes if a != at))
      transforms.append(compat.TransposeTransform(order))
      at, order = 0, None
    transforms.append(_batch_transform(name, t, size))
  if at is None:
    raise AssertionError(f"{name}: neither the Ref nor its index is batched")
  if order is None:
    to_new = lambda x: x if at == 0 else jnp.moveaxis(x, 0, at)
    to_front = lambda x: x if at == 0 else jnp.moveaxis(x, at, 0)
  else:
    inverse = inverse_permutation(order)
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


def inverse_permutation(permutation: Sequence[int]) -> tuple[int, ...]:
  return tuple(int(i) for i in np.argsort(permutation))


def _view_ndim(access, i):
  """The rank that an element's view has before its i-th transform."""
  for t in reversed(access.transforms[:i]):
    if isinstance(t, NDIndexer):
      return len(t.get_indexer_shape())
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
      f"{name}: vmap cannot see through the Ref transform {t}. Apply vmap to the"
      " pallas_call instead of inside the kernel."
  )


def _batch_indexer(
    indexer: NDIndexer, dims: NDIndexer, size: int, at: int | None
) -> tuple[NDIndexer, int, list[int] | None]:
  """Returns the new indexer, its region's batch axis, and the axes' order.

  The order is None if, the batch axis apart, the axes keep theirs; else it is
  the permutation from a region whose batch axis leads to the new region.
  """
  ints = int_labels(len(indexer.int_indexer_shape))
  old = region_axes(indexer.indices, ints)
  batched = any(
      e.is_dynamic_start and d.start is not None
      if isinstance(e, Slice)
      else d is not None
      for e, d in zip(indexer.indices, dims.indices)
  )
  if not batched:
    if at is None:
      raise AssertionError("nothing to batch")
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
  new = [
      a if a in new_int else labels[a] for a in region_axes(indices, new_int)
  ]
  where = new.index("batch")
  result = NDIndexer(tuple(indices), tuple(shape), tuple(int_shape))
  if [a for a in new if a != "batch"] == old:
    return result, where, None
  return result, where, [0 if a == "batch" else 1 + old.index(a) for a in new]


def _batch_indices(indexer, dims, size, at, ints):
  """Every batched index as an integer array with the batch axis in front.

  A slice whose start is batched becomes an integer array too, with an axis of
  its own behind those that the index has already.
  """
  int_shape = indexer.int_indexer_shape
  moved = [
      i
      for i, (e, d) in enumerate(zip(indexer.indices, dims.indices))
      if isinstance(e, Slice) and e.is_dynamic_start and d.start is not None
  ]
  lengths = tuple(indexer.indices[i].size for i in moved)
  full = (size, *int_shape, *lengths)
  new_int = ["batch", *ints, *moved]

  def spread(x, axes):
    return lax.broadcast_in_dim(x, full, axes)

  indices: list[Any] = []
  for i, (entry, d) in enumerate(zip(indexer.indices, dims.indices)):
    if i in moved:
      starts = compat.moveaxis(entry.start, d.start, 0)
      steps = lax.iota(starts.dtype, entry.size) * np.asarray(
          entry.stride, starts.dtype
      )
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



def may_repeat(access: Access) -> bool:
  """Whether some element of the Ref may be in the region more than once."""
  return any(
      isinstance(t, NDIndexer) and t.int_indexer_shape != ()
      for t in access.transforms
  )
