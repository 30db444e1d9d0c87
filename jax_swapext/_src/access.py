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

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
from jax import lax
import jax.numpy as jnp
from jax_swapext._src import compat
from jax_swapext._src import indexing
from jax_swapext._src import semantics
import numpy as np

NDIndexer = compat.NDIndexer


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
    base = ref.ref
    transforms = tuple(map(indexing.with_known_starts, ref.transforms))
  else:
    if not compat.is_ref(ref):
      raise TypeError(
          f"{name}: wanted a Ref first, got {indexing.describe(ref)}."
          f"{_for_arrays(name)}"
      )
    base, transforms = ref, ()
  # Not `ref.type`, which does not know the tracers of vmap and grad.
  view = view_type(transforms, jax.typeof(base).inner_aval)
  if op is not None and may_repeat(transforms) and _has_none(idx):
    raise NotImplementedError(
        f"{name}: wanted no None in an index of a view that has an index array "
        "itself: None may move axes, and the order of repeated elements with "
        "them. Leave it out and reshape the value."
    )
  shape, dtype = view.shape, view.dtype
  args, restore = canonicalize(
      name, shape, dtype, idx, mask, operands, op, mask is not None
  )
  values = tuple(
      compat.insert_pvary_for_write(base, v) for v in args.operands
  )
  mask = args.mask
  avals = [view, *map(jax.typeof, jax.tree.leaves((mask, values)))]
  if sharded := [a for a in avals if _spec(a)]:
    # What is written has the type of what is read, since cotangents have.
    sharding = jax.sharding.NamedSharding(
        sharded[0].sharding.mesh,
        view_type(args.transforms, view).sharding.spec,
    )
    mask, values = jax.tree.map(
        lambda x: jax.sharding.reshard(x, sharding), (mask, values)
    )
  access = Access((*transforms, *args.transforms), mask, values)
  return base, access, restore


def _for_arrays(name: str) -> str:
  """What to write for an array in place of a function on Refs."""
  if name == "load":
    return " Index an array: x[idx]."
  op = "xchg" if name in ("store", "swap") else name.removeprefix("atomic_")
  return f" For arrays there is jsx.fetch_{op}, or x.at[idx]."


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
  if not all(isinstance(d, int) for d in shape):
    raise NotImplementedError(
        f"{name}: wanted a static shape, got {shape}. Export once for each "
        "size, or for the largest with a mask."
    )
  indexer, layout = indexing.parse_index(name, idx, shape, may_leave)
  transforms = ()
  if indexer is not None:
    transforms = (indexer,)
    shape = compat.indexer_shape(indexer)
  numpy_shape = layout.numpy_shape if layout else shape
  values = tuple(
      _operand(name, what, value, dtype, numpy_shape)
      for what, value in operands.items()
  )
  mask = check_mask(name, mask, numpy_shape)
  if layout is None:
    return Access(transforms, mask, values), unchanged
  values = tuple(map(layout.to_region, values))
  mask = None if mask is None else layout.to_region(mask)
  return Access(transforms, mask, values), layout.from_region


def unchanged(x: jax.Array) -> jax.Array:
  """What `canonicalize` returns if the region's shape is NumPy's."""
  return x


# ## Types of views


def view_type(transforms: tuple[Any, ...], aval: Any) -> Any:
  """The type of the view that `transforms` make of an array of type `aval`.

  On a mesh with explicit axes JAX knows only slices of the axes that are not
  sharded. Here any other axis of the view is not sharded; the accesses of
  arrays run on automatic axes and can do it.
  """
  for t in transforms:
    if isinstance(t, NDIndexer) and _spec(aval):
      aval = _sharded_region(t, aval)
    else:
      aval = compat.transform_type((t,), aval)
  return aval


def _spec(aval):
  """How an array is sharded, as its type says; empty if it is not."""
  if not isinstance(aval, jax.core.ShapedArray):
    return ()
  spec = aval.sharding.spec
  return spec if any(p is not None for p in spec) else ()


def _sharded_region(indexer, aval):
  indices = indexer.indices
  axes = indexing.region_axes(
      indices, indexing.int_labels(len(indexer.int_indexer_shape))
  )
  spec = [
      aval.sharding.spec[a]
      if isinstance(a, int) and indexing.is_whole(indices[a], aval.shape[a])
      else None
      for a in axes
  ]
  mesh = aval.sharding.mesh
  return aval.update(
      shape=compat.indexer_shape(indexer),
      sharding=jax.sharding.NamedSharding(mesh, jax.P(*spec)),
  )


# ## Operands

# Which dtypes a Python scalar may take: its own kind or a wider one.
_SCALAR_KINDS = {bool: "biuf", int: "iuf", float: "f"}


def _kind(dtype) -> str:
  return "f" if jnp.issubdtype(dtype, jnp.floating) else np.dtype(dtype).kind


def _operand(name, what, value, dtype, shape) -> jax.Array:
  """`value` as an array of the Ref's dtype and the region's shape."""
  if (kinds := _SCALAR_KINDS.get(type(value))) is not None:
    if _kind(dtype) not in kinds:
      raise TypeError(
          f"{name}: wanted {what} to be {dtype}, as {_whose(name)}, got"
          f" {value!r}, a Python {type(value).__name__}."
      )
    value = _scalar(name, what, value, dtype)
    _check_is_enabled(name, dtype)
    return cast(Any, value) if shape == () else lax.full(shape, value, dtype)
  if compat.is_ref(value):
    raise TypeError(
        f"{name}: wanted an array as {what}, got a Ref. Load it first: "
        "jsx.load(ref) or ref[...]."
    )
  try:
    aval = jax.typeof(value)
  except TypeError:
    raise TypeError(
        f"{name}: wanted an array or a scalar as {what}, got "
        f"{indexing.describe(value)}."
    ) from None
  if aval.dtype != dtype:
    weak = aval.weak_type and aval.dtype != np.dtype(bool)
    if not weak or not set(_kind(aval.dtype)) & set("iuf"):
      raise _dtype_error(name, what, aval.dtype, dtype)
    wider = "iuf" if _kind(aval.dtype) in "iu" else "f"
    if _kind(dtype) not in wider:
      raise _dtype_error(name, what, f"a weak {aval.dtype}", dtype)
  if aval.weak_type or aval.dtype != dtype:
    _check_is_enabled(name, dtype)
    value = lax.convert_element_type(value, dtype)
  elif isinstance(value, np.ndarray):
    value = jnp.asarray(value)
  return indexing.broadcast(name, what, value, shape)


def _scalar(name, what, value, dtype) -> Any:
  """A Python scalar as one of the Ref's dtype, which stays a literal."""
  error = OverflowError(f"{name}: wanted {what} to fit {dtype}, got {value}.")
  try:
    with np.errstate(over="ignore"):
      scalar = np.asarray(value, dtype)[()]
  except OverflowError:
    raise error from None
  if np.isfinite(value) and not np.isfinite(float(scalar)):
    raise error
  return scalar


def _whose(name):
  return "the array is" if name.startswith("fetch_") else "the Ref is"


def _dtype_error(name, what, got, dtype):
  return TypeError(
      f"{name}: wanted {what} to be {dtype}, as {_whose(name)}, got {got}."
      f" Convert it with .astype({dtype}), or pass a Python scalar."
  )


def _check_is_enabled(name, dtype):
  """Without x64 nothing can be made 64 bits wide, whatever the Ref is."""
  if jax.dtypes.canonicalize_dtype(dtype) != dtype:
    raise TypeError(
        f"{name}: wanted a {dtype} value, as {_whose(name)}, but JAX makes none"
        " now. Set jax_enable_x64, or use 32 bits."
    )


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
        f"{name}: wanted a bool array as mask, got {indexing.describe(mask)}. "
        "Compare with != 0 to make one."
    )
  if not isinstance(mask, jax.Array):
    mask = jnp.asarray(mask)
  return indexing.broadcast(name, "mask", mask, shape)


def may_repeat(transforms: tuple[Any, ...]) -> bool:
  """Whether some element of the Ref may be in the region more than once."""
  return any(
      isinstance(t, NDIndexer) and t.int_indexer_shape != () for t in transforms
  )


def _has_none(idx: Any) -> bool:
  return isinstance(idx, tuple) and any(i is None for i in idx)
