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
"""Inputs of a `Case`, and what the reference makes of them."""

from __future__ import annotations

import dataclasses

import mosaic_gpu_kernels as kernels
from mosaic_gpu_kernels import Case
import numpy as np
import reference


def _values(rng, dtype, shape):
  if dtype == np.bool_:
    return rng.integers(0, 2, shape).astype(bool)
  if dtype.kind in "iu":
    low = 0 if dtype.kind == "u" else -100
    return rng.integers(low, 100, shape).astype(dtype)
  # Whole numbers: sums are exact in any order.
  return rng.integers(-8, 9, shape).astype(np.float32).astype(dtype)


@dataclasses.dataclass
class Data:
  x: np.ndarray
  operands: list[np.ndarray]
  mask: np.ndarray | None

  def arguments(self, case):
    vector = kernels._vector_shape(case.region)
    shaped = [v.reshape(vector) for v in self.operands]
    if self.mask is not None:
      shaped.append(self.mask.reshape(vector))
    return [self.x, *shaped, *case.traced()]


def make_data(case: Case, seed: int) -> Data:
  rng = np.random.default_rng(seed)
  x = _values(rng, case.np_dtype, case.shape)
  operands = [_values(rng, case.np_dtype, case.region)
              for _ in range(case.operands)]
  at = reference.positions(case.shape, case.index)
  if case.op == "atomic_cas":
    # About half of the comparisons succeed.
    there = x.reshape(-1)[np.maximum(at, 0)]
    operands[0] = np.where(
        rng.integers(0, 2, case.region) == 1, there, operands[0])
  mask = None
  if case.mask:
    mask = (rng.integers(0, 2, case.region) == 1) & (at >= 0)
  return Data(x, operands, mask)


def expected(case: Case, data: Data):
  x, operands, mask = data.x, data.operands, data.mask
  match case.op:
    case "load":
      return reference.load(x, case.index, mask, *(operands or [None]))
    case "store" | "swap":
      return reference.swap(x, case.index, *operands, mask)
    case "atomic_cas":
      return reference.cas(x, case.index, *operands, mask)
  name = case.op.removeprefix("atomic_")
  return reference.rmw(name, x, case.index, *operands, mask)


def explained(case: Case, data: Data, old, new) -> bool:
  """Whether some order of the updates gives these old and new values."""
  at = reference.positions(case.shape, case.index)
  on = np.ones(at.shape, bool) if data.mask is None else data.mask
  name = case.op.removeprefix("atomic_")
  updates = {}
  for k in np.ndindex(at.shape):
    if on[k]:
      operands = tuple(v[k] for v in data.operands)
      updates.setdefault(int(at[k]), []).append((operands, old[k]))
    elif old[k] != 0:
      return False

  def explain(value, left, final):
    if not left:
      return reference.same_bits(value, final)
    tried = set()
    for i, (operands, seen) in enumerate(left):
      key = tuple(np.asarray(v).tobytes() for v in (*operands, seen))
      if key in tried or not reference.same_bits(value, seen):
        continue
      tried.add(key)
      after = np.asarray(reference.combine(name, value, *operands))
      if explain(after.astype(case.np_dtype), left[:i] + left[i + 1:], final):
        return True
    return False

  with np.errstate(all="ignore"):
    return all(
        explain(data.x.reshape(-1)[p], updates.get(p, []), new.reshape(-1)[p])
        for p in range(data.x.size))
