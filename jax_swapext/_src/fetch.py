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
"""`fetch_*`: atomic updates of arrays, as pure functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jax_swapext._src import access as access_lib
from jax_swapext._src import array_access
from jax_swapext._src import compat
from jax_swapext._src import indexing
from jax_swapext._src import semantics
import numpy as np

AtomicOp = semantics.AtomicOp

_DOC = """{summary}

  The elements of the region ``x[idx]`` are updated one after another, in
  row-major order, so an index may repeat: each update sees those before it.
  Differentiable; under ``jit`` with `x` donated the table is updated in place.
  If `x` is sharded over a mesh each device updates what it holds of it, in the
  same order, and one all-reduce puts the old elements together.

  Args:
    x: the array to update. It is not changed.
    idx: a NumPy-style index, as in :func:`load`. Negative integers count from
      the end; integers out of range write nothing and return 0. A start of
      ``pl.ds`` does not count from the end: elements outside `x` are dropped.
    {operands}
    mask: bool, broadcasts to the region; elements where it is false are not
      updated. One for whole rows, as ``mask[:, None]``, costs least.
    order: ``"index"`` for row-major order; ``"any"`` lets a platform use
      unordered hardware atomics. Derivatives keep the order anyway.{unique}

  Returns:
    ``(old, new_x)``: the elements before their update, 0 where masked off or
    out of range, of the dtype of `x` and of the shape that NumPy gives
    ``x[idx]``; and the updated array.

  Raises:
    TypeError: `x` is a Ref or its dtype has no such operation
      ({dtypes}), or an operand is of another
      dtype, or an index is no integer.
    ValueError: an operand does not broadcast to the region; unknown `order`.

  Example:
    >>> import jax.numpy as jnp, jax_swapext as jsx
    >>> x, i = jnp.array([{init}]), jnp.array([0, 1, 0])
    >>> jsx.{name}(x, i, {values})
    (Array([{old}], dtype=int32), Array([{new}], dtype=int32))
  """

_VALUE = "value: broadcasts to the region. A Python scalar takes the dtype."
_EXPECTED = """expected: what an element has to be, bit for bit, to be replaced;
      broadcasts to the region.
    value: what replaces it; broadcasts to the region."""
_UNIQUE = """
    unique_indices: promises that no index repeats."""

_ANY = "all that can be loaded have it"
_SUM = "bool and 8-bit floats have none"
_ORDER = "8-bit floats have none"
_BITS = "only integers and bool have it"


def _document[F: Callable[..., Any]](
    summary: str, dtypes: str, init: str, values: str, old: str, new: str,
    operands: str = _VALUE, unique: str = _UNIQUE,
) -> Callable[[F], F]:
  """Gives a function the docstring that the `fetch_*` functions share."""

  def decorate(fun: F) -> F:
    fun.__doc__ = _DOC.format(
        name=fun.__name__, summary=summary, dtypes=dtypes, init=init,
        values=values, old=old, new=new, operands=operands, unique=unique,
    )
    return fun

  return decorate


@_document("Exchanges elements for new values and returns the old ones.",
           _ANY, "7, 8", "jnp.array([1, 2, 3])", "7, 8, 1", "3, 2")
def fetch_xchg(
    x: ArrayLike, idx: Any, value: ArrayLike, *, mask: ArrayLike | None = None,
    order: str = "index", unique_indices: bool = False,
) -> tuple[jax.Array, jax.Array]:
  return _fetch(AtomicOp.XCHG, x, idx, {"value": value}, mask, order,
                unique_indices)


@_document("Adds to elements and returns the old ones.",
           _SUM, "7, 8", "jnp.array([1, 2, 3])", "7, 8, 8", "11, 10")
def fetch_add(
    x: ArrayLike, idx: Any, value: ArrayLike, *, mask: ArrayLike | None = None,
    order: str = "index", unique_indices: bool = False,
) -> tuple[jax.Array, jax.Array]:
  return _fetch(AtomicOp.ADD, x, idx, {"value": value}, mask, order,
                unique_indices)


@_document("Raises elements to a value and returns the old ones.",
           _ORDER, "7, 8", "jnp.array([1, 9, 8])", "7, 8, 7", "8, 9")
def fetch_max(
    x: ArrayLike, idx: Any, value: ArrayLike, *, mask: ArrayLike | None = None,
    order: str = "index", unique_indices: bool = False,
) -> tuple[jax.Array, jax.Array]:
  return _fetch(AtomicOp.MAX, x, idx, {"value": value}, mask, order,
                unique_indices)


@_document("Lowers elements to a value and returns the old ones.",
           _ORDER, "7, 8", "jnp.array([1, 9, 8])", "7, 8, 1", "1, 8")
def fetch_min(
    x: ArrayLike, idx: Any, value: ArrayLike, *, mask: ArrayLike | None = None,
    order: str = "index", unique_indices: bool = False,
) -> tuple[jax.Array, jax.Array]:
  return _fetch(AtomicOp.MIN, x, idx, {"value": value}, mask, order,
                unique_indices)


@_document("Clears bits that are not set in a value; returns the old elements.",
           _BITS, "7, 8", "jnp.array([6, 9, 3])", "7, 8, 6", "2, 8")
def fetch_and(
    x: ArrayLike, idx: Any, value: ArrayLike, *, mask: ArrayLike | None = None,
    order: str = "index", unique_indices: bool = False,
) -> tuple[jax.Array, jax.Array]:
  return _fetch(AtomicOp.AND, x, idx, {"value": value}, mask, order,
                unique_indices)


@_document("Sets bits that are set in a value; returns the old elements.",
           _BITS, "7, 8", "jnp.array([8, 1, 16])", " 7,  8, 15", "31,  9")
def fetch_or(
    x: ArrayLike, idx: Any, value: ArrayLike, *, mask: ArrayLike | None = None,
    order: str = "index", unique_indices: bool = False,
) -> tuple[jax.Array, jax.Array]:
  return _fetch(AtomicOp.OR, x, idx, {"value": value}, mask, order,
                unique_indices)


@_document("Flips bits that are set in a value; returns the old elements.",
           _BITS, "7, 8", "jnp.array([1, 1, 2])", "7, 8, 6", "4, 9")
def fetch_xor(
    x: ArrayLike, idx: Any, value: ArrayLike, *, mask: ArrayLike | None = None,
    order: str = "index", unique_indices: bool = False,
) -> tuple[jax.Array, jax.Array]:
  return _fetch(AtomicOp.XOR, x, idx, {"value": value}, mask, order,
                unique_indices)


@_document("Replaces elements where they equal the expected ones bit for bit.",
           _ANY, "-1, 8", "-1, jnp.array([5, 6, 7])", "-1,  8,  5", "5, 8",
           _EXPECTED, unique="")
def fetch_cas(
    x: ArrayLike, idx: Any, expected: ArrayLike, value: ArrayLike, *,
    mask: ArrayLike | None = None, order: str = "index",
) -> tuple[jax.Array, jax.Array]:
  operands = {"expected": expected, "value": value}
  return _fetch(AtomicOp.CAS, x, idx, operands, mask, order, False)


def _fetch(op, x, idx, operands, mask, order, unique_indices):
  name = f"fetch_{op.value}"
  if not isinstance(order, str) or order not in ("any", "index"):
    raise ValueError(
        f"{name}: wanted order to be 'any' or 'index', got {order!r}."
    )
  if not isinstance(unique_indices, bool):
    raise TypeError(
        f"{name}: wanted unique_indices to be a bool, got {unique_indices!r}."
    )
  if compat.is_ref(x):
    atomic = name.replace("fetch", "atomic")
    raise TypeError(
        f"{name}: wanted an array first, got a Ref. Use {atomic} on a Ref."
    )
  try:
    x = jnp.asarray(x, jax.typeof(x).dtype)  # no longer weakly typed
  except TypeError:
    raise TypeError(
        f"{name}: wanted an array first, got {indexing.describe(x)}."
    ) from None
  access, restore = access_lib.canonicalize(
      name, x.shape, x.dtype, idx, mask, operands, op, may_leave=True
  )
  uniform = 0
  if access.mask is not None and restore is access_lib.unchanged:
    uniform = _uniform_axes(np.shape(mask), len(access.mask.shape))
  old, x = array_access.rmw(
      x, access, op, order=order, need_old=True, unique_indices=unique_indices,
      drop=True, mask_is_uniform_over=uniform,
  )
  return restore(old), x


def _uniform_axes(shape, rank):
  """Over how many last axes of a region a mask of some shape is the same."""
  if all(d == 1 for d in shape):
    return rank
  return next(k for k, d in enumerate(reversed(shape)) if d != 1)
