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
"""Arithmetic on elements, with what TPU cores have of it.

Cores compute on 32-bit words. Narrower elements come packed in vectors, where
Mosaic has some operations on them, or as scalars, where it has next to none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import lax
import jax.numpy as jnp
from jax_swapext._src import semantics
import numpy as np

AtomicOp = semantics.AtomicOp


def packing(dtype: Any) -> int:
  """How many elements share a word."""
  return max(1, 4 // np.dtype(dtype).itemsize)


def wide_dtype(dtype: Any) -> Any:
  """The 32-bit dtype that holds every value of `dtype`; int32 for bool."""
  dtype = np.dtype(dtype)
  if dtype.itemsize == 4:
    return dtype
  if jnp.issubdtype(dtype, jnp.floating):
    return np.dtype(np.float32)
  unsigned = jnp.issubdtype(dtype, jnp.unsignedinteger)
  return np.dtype(np.uint32 if unsigned else np.int32)


def widen(x: Any) -> Any:
  return x.astype(wide_dtype(x.dtype))


def narrow_scalar(x: Any, dtype: Any) -> Any:
  """A 32-bit scalar that holds a value of `dtype`, as that dtype."""
  dtype = np.dtype(dtype)
  if x.dtype == dtype:
    return x
  if dtype == np.bool_:
    return x != 0
  if dtype == np.dtype(jnp.bfloat16):
    # Exact, since the value came from bf16; a rounding cast costs more.
    bits = lax.bitcast_convert_type(x, jnp.int32)
    half = lax.shift_right_logical(bits, np.int32(16)).astype(jnp.int16)
    return lax.bitcast_convert_type(half, dtype)
  return x.astype(dtype)


def is_packed_scalar(x: Any) -> bool:
  return x.ndim == 0 and x.dtype.itemsize < 4 and x.dtype != np.bool_


def select(condition: Any, a: Any, b: Any) -> Any:
  """Elementwise choice."""
  if is_packed_scalar(a):
    # The scalar unit selects words only.
    chosen = lax.select(condition, widen(a), widen(b))
    return narrow_scalar(chosen, a.dtype)
  return lax.select(condition, a, b)


def cond(condition: Any, if_true: Any, if_false: Any, dtype: Any) -> Any:
  """A branch that yields a scalar of `dtype`."""
  # Branches yield words only.
  chosen = lax.cond(
    condition, lambda: widen(if_true()), lambda: widen(if_false())
  )
  return narrow_scalar(chosen, dtype)


def combine(op: AtomicOp | None, old: Any, operands: Sequence[Any]) -> Any:
  """The new value, as `semantics.combine` defines it; `op` is not None."""
  assert op is not None
  if op is AtomicOp.XCHG:
    return operands[0]
  dtype = old.dtype
  floating = jnp.issubdtype(dtype, jnp.floating)
  packed = packing(dtype) > 1
  if op in (AtomicOp.MAX, AtomicOp.MIN) and not floating:
    if not packed and dtype != np.uint32:
      return semantics.combine(op, old, *operands)
    # Mosaic has the maximum of signed words only, and makes one of every
    # comparison and selection that it can: so these compare other values than
    # they select.
    [value] = operands
    a, b = _signed_words(value), _signed_words(old)
    if is_packed_scalar(old):
      # Selections of narrow scalars are of words too, so shifted ones compare.
      a, b = a << 8, b << 8
    return select(a > b if op is AtomicOp.MAX else a < b, value, old)
  narrow = old.ndim <= 1 or dtype == jnp.bfloat16
  if op is AtomicOp.CAS and packed and narrow:
    expected, value = operands
    return select(bits_of(old) == bits_of(expected), value, old)
  # Of packed vectors Mosaic computes on whole tiles, not on single rows.
  bits = op in semantics.BITWISE or op is AtomicOp.CAS
  native = old.ndim > 1 and (floating or bits)
  if not packed or native:
    return semantics.combine(op, old, *operands)
  if op in semantics.BITWISE:
    # Mosaic makes of words that are narrowed again an operation on narrow
    # elements, which it then lacks; not so behind a shift.
    words = [widen(x) << 8 for x in (old, *operands)]
    return (semantics.combine(op, *words) >> 8).astype(dtype)
  wide = [x if x.dtype == np.bool_ else widen(x) for x in (old, *operands)]
  return semantics.combine(op, *wide).astype(dtype)


def _signed_words(x: Any) -> Any:
  """int32 in the order of the integers of `x`."""
  if x.dtype == np.uint32:
    flip = np.int32(np.iinfo(np.int32).min)
    return lax.bitcast_convert_type(x, jnp.int32) ^ flip
  return x.astype(jnp.int32)


def bits_of(x: Any) -> Any:
  """The representation of packed elements, as int32."""
  if jnp.issubdtype(x.dtype, jnp.floating):
    word = np.dtype(f"int{8 * x.dtype.itemsize}")
    x = lax.bitcast_convert_type(x, word)
  return x.astype(jnp.int32)
