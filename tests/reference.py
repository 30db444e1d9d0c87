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
"""What every operation means, in NumPy and in the plainest words.

This is the executable definition that all other tests compare with. It knows
nothing of JAX: an index is a tuple of ints, slices, `Window`s, integer arrays,
`None` and `...`, with NumPy's rules for the shape of the region. Nothing here
is fast, and no function changes its arguments.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Window:
  """`size` positions from `start` on, `stride` apart, as `jax.ds` has them.

  Unlike a slice it is not clipped: it may start before the first element or
  end after the last one.
  """

  start: int
  size: int
  stride: int = 1


def positions(shape: tuple[int, ...], idx: Any) -> np.ndarray:
  """Row-major positions of the elements of `x[idx]`, for an `x` of `shape`.

  Args:
    shape: shape of the indexed array.
    idx: one index or a tuple of them. `None` alone means all of the array.

  Returns:
    int64 array of the region's shape; -1 where the index is out of bounds.
  """
  if idx is None:
    idx = ()
  parts = list(idx) if isinstance(idx, tuple) else [idx]
  if not any(part is Ellipsis for part in parts):
    parts.append(Ellipsis)
  taken = sum(part is not None and part is not Ellipsis for part in parts)
  if taken > len(shape):
    raise IndexError(f"{taken} indices for an array of rank {len(shape)}")

  # NumPy itself decides the region's shape. So that out-of-bounds indices do
  # not disturb it, it indexes a stand-in that holds, along each dimension, just
  # the coordinates that are mentioned.
  coordinates, stand_in = [], []
  for part in parts:
    n = shape[len(coordinates)] if len(coordinates) < len(shape) else 0
    if part is None:
      stand_in.append(None)
    elif part is Ellipsis:
      for _ in range(len(shape) - taken):
        coordinates.append(np.arange(shape[len(coordinates)]))
      stand_in.append(Ellipsis)
    elif isinstance(part, Window):
      at = part.start + part.stride * np.arange(part.size)
      coordinates.append(_inside(at, n))
      stand_in.append(slice(None))
    elif isinstance(part, slice):
      coordinates.append(np.arange(*part.indices(n)))
      stand_in.append(slice(None))
    else:
      part = np.asarray(part)
      if part.dtype.kind not in "iu":
        raise IndexError(f"not an integer index: {part!r}")
      at = part.reshape(-1).astype(np.int64)
      coordinates.append(_inside(np.where(at < 0, at + n, at), n))
      which = np.arange(part.size).reshape(part.shape)
      stand_in.append(which if part.ndim else 0)

  flat = np.zeros([c.size for c in coordinates], np.int64)
  outside = np.zeros(flat.shape, bool)
  for axis, c in enumerate(coordinates):
    c = c.reshape([-1 if a == axis else 1 for a in range(len(coordinates))])
    flat = flat * shape[axis] + c
    outside = outside | (c < 0)
  return np.asarray(np.where(outside, -1, flat)[tuple(stand_in)])


def _inside(coordinate: np.ndarray, size: int) -> np.ndarray:
  return np.where((coordinate >= 0) & (coordinate < size), coordinate, -1)


def load(x, idx, mask=None, other=None):
  """Elements of the region; `other` (default 0) where masked off."""
  at, on, (other,) = _access(x, idx, mask, (0 if other is None else other,))
  return np.where(on, x.reshape(-1)[at * on] if x.size else other,
                  other).astype(x.dtype), x.copy()


def swap(x, idx, value, mask=None):
  """Old values from before the call, and `x` with the last write remaining.

  Where positions repeat, any of the writes may remain in an implementation:
  see `remaining`.
  """
  old, _ = load(x, idx, mask)
  _, new = rmw("xchg", x, idx, value, mask)
  return old, new


def remaining(x, idx, value, mask=None) -> list[list]:
  """For each element of `x`, in row-major order, what may be left there."""
  at, on, (value,) = _access(x, idx, mask, (value,))
  allowed = [[] for _ in range(x.size)]
  for k in np.ndindex(at.shape):
    if on[k]:
      allowed[at[k]].append(value[k])
  return [new or [old] for new, old in zip(allowed, x.reshape(-1), strict=True)]


def rmw(op, x, idx, value, mask=None, reverse=False):
  """Applies `op` element after element, in row-major order of the region."""
  return _one_by_one(op, x, idx, (value,), mask, reverse)


def cas(x, idx, expected, value, mask=None):
  """Writes `value` where the element has the bits of `expected`."""
  return _one_by_one("cas", x, idx, (expected, value), mask, False)


def fetch(op, x, idx, *operands, mask=None):
  """As `rmw` and `cas`; indices out of range write nothing and return 0."""
  inside = positions(x.shape, idx) >= 0
  if mask is not None:
    inside = inside & np.broadcast_to(mask, inside.shape)
  return _one_by_one(op, x, idx, operands, inside, False)


def combine(op, old, *operands):
  """The value that `op` leaves in a place that holds `old`. Scalars."""
  *_, value = operands
  match op:
    case "xchg":
      return value
    case "cas":
      return value if same_bits(old, operands[0]) else old
    case "add":
      return old + value
    case "and":
      return old & value
    case "or":
      return old | value
    case "xor":
      return old ^ value
    case "max" | "min":
      if np.isnan(old) or np.isnan(value):
        return old if np.isnan(old) else value
      wins = value > old if op == "max" else value < old
      return value if wins else old
  raise ValueError(f"no such operation: {op}")


def same_bits(a, b) -> bool:
  return np.asarray(a).tobytes() == np.asarray(b).tobytes()


def _access(x, idx, mask, operands):
  """Positions, which of them are accessed, and operands of that shape."""
  at = positions(x.shape, idx)
  on = np.broadcast_to(True if mask is None else mask, at.shape)
  if np.any(on & (at < 0)):
    raise IndexError("an index that is not masked off is out of bounds")
  return at, on, [
      np.broadcast_to(np.asarray(v).astype(x.dtype), at.shape) for v in operands
  ]


def _one_by_one(op, x, idx, operands, mask, reverse):
  at, on, operands = _access(x, idx, mask, operands)
  new = x.reshape(-1).copy()
  old = np.zeros(at.shape, x.dtype)
  order = list(np.ndindex(at.shape))
  # Integers wrap around and floats overflow silently, as in JAX.
  with np.errstate(all="ignore"):
    for k in reversed(order) if reverse else order:
      if on[k]:
        old[k] = new[at[k]]
        new[at[k]] = combine(op, new[at[k]], *[v[k] for v in operands])
  return old, new.reshape(x.shape)
