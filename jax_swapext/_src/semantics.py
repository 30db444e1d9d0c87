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
"""What the operations mean: one enum, one combining function, in stock JAX.

Everything else in this library, on every backend, has to agree with `combine`.
"""

from __future__ import annotations

import enum

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np


class AtomicOp(enum.Enum):
  """What an atomic update writes, as a function of the old value."""

  XCHG = "xchg"
  ADD = "add"
  MAX = "max"
  MIN = "min"
  AND = "and"
  OR = "or"
  XOR = "xor"
  CAS = "cas"
  # Never public: the one linear update that the tangents and the cotangents of
  # all the others need. It sets the element where its flag is true and adds to
  # it elsewhere, so ADD and XCHG are its two ends, and its transpose is itself
  # with the updates in reversed order.
  ADD_OR_SET = "add_or_set"

  def __repr__(self):
    return self.value


BITWISE = frozenset({AtomicOp.AND, AtomicOp.OR, AtomicOp.XOR})
ARITHMETIC = frozenset({AtomicOp.ADD, AtomicOp.MAX, AtomicOp.MIN})
LINEAR = frozenset({AtomicOp.ADD, AtomicOp.XCHG, AtomicOp.ADD_OR_SET})


def combine(op: AtomicOp, old: jax.Array, *operands: jax.Array) -> jax.Array:
  """The new value of an element: elementwise on arrays of one shape.

  Args:
    op: the operation.
    old: the element before the update.
    *operands: `(expected, value)` for CAS, `(value, flag)` for ADD_OR_SET and
      `(value,)` for every other operation.
  """
  match op:
    case AtomicOp.XCHG:
      [value] = operands
      return value
    case AtomicOp.ADD:
      return lax.add(old, *operands)
    case AtomicOp.MAX:
      return lax.max(old, *operands)
    case AtomicOp.MIN:
      return lax.min(old, *operands)
    case AtomicOp.AND:
      return lax.bitwise_and(old, *operands)
    case AtomicOp.OR:
      return lax.bitwise_or(old, *operands)
    case AtomicOp.XOR:
      return lax.bitwise_xor(old, *operands)
    case AtomicOp.CAS:
      expected, value = operands
      return lax.select(same_bits(old, expected), value, old)
    case AtomicOp.ADD_OR_SET:
      value, flag = operands
      return lax.add(lax.select(flag, lax.full_like(old, 0), old), value)


def won(op: AtomicOp, old: jax.Array, *operands: jax.Array) -> jax.Array:
  """Where MAX, MIN or CAS replaced the old value by the new one (bool)."""
  match op:
    case AtomicOp.MAX:
      [value] = operands
      return lax.bitwise_or(lax.gt(value, old), lax.ne(value, value))
    case AtomicOp.MIN:
      [value] = operands
      return lax.bitwise_or(lax.lt(value, old), lax.ne(value, value))
    case AtomicOp.CAS:
      expected, _ = operands
      return same_bits(old, expected)
    case _:
      raise ValueError(f"{op} has no winner")


def same_bits(x: jax.Array, y: jax.Array) -> jax.Array:
  """Elementwise equality of representations: NaN equals itself, 0. not -0."""
  if jnp.issubdtype(x.dtype, jnp.floating):
    word = np.dtype(f"uint{8 * x.dtype.itemsize}")
    x = lax.bitcast_convert_type(x, word)
    y = lax.bitcast_convert_type(y, word)
  return lax.eq(x, y)


def is_float8(dtype: np.dtype) -> bool:
  return jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize == 1


def check_dtype(name: str, dtype: np.dtype, op: AtomicOp | None) -> None:
  """Raises TypeError unless `op` works on `dtype`; None: load, store, swap."""
  if dtype == np.dtype(bool):
    if op is AtomicOp.ADD:
      raise TypeError(
          f"{name}: wanted integer or floating-point elements, got bool. Use "
          "atomic_or or atomic_xor (fetch_or, fetch_xor) on flags."
      )
    return
  if jnp.issubdtype(dtype, jnp.integer):
    bits = jnp.iinfo(dtype).bits
  elif jnp.issubdtype(dtype, jnp.floating):
    bits = jnp.finfo(dtype).bits
  else:
    raise TypeError(
        f"{name}: wanted bool, integer or real floating-point elements, got "
        f"{dtype}. Keep the parts of a structured value in separate Refs."
    )
  if bits < 8:
    raise TypeError(
        f"{name}: wanted elements of at least 8 bits, got {dtype}. Its elements"
        " share a byte, so none can be written alone: keep them in an 8-bit Ref"
        " and convert when loading."
    )
  if op in BITWISE and not jnp.issubdtype(dtype, jnp.integer):
    raise TypeError(
        f"{name}: wanted integer or bool elements, got {dtype}. View the Ref as"
        " integers with ref.bitcast(...) to work on the bits of a float."
    )
  if op in ARITHMETIC and is_float8(dtype):
    raise TypeError(
        f"{name}: wanted elements of at least 16 bits to compute with, got "
        f"{dtype}. Only load, store, swap, exchange and compare-and-swap work "
        "on 8-bit floats: keep the accumulator in a wider dtype."
    )
