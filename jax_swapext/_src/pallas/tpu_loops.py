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
"""Regions that a TPU reaches element by element or slice by slice.

An index array, or a stride the hardware lacks, makes a loop over accesses to
boxes. Short loops are unrolled; longer ones keep their indices, masks and
scalar operands in SMEM, where the scalar unit can pick one at a dynamic
position. Row-major order, and with it the meaning of repeated indices, is the
order of the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import math
from typing import Any

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
from jax_swapext._src import compat
from jax_swapext._src import indexing
from jax_swapext._src.pallas import tpu_region
from jax_swapext._src.pallas import tpu_tiles
from jax_swapext._src.pallas import tpu_values
from jax_swapext._src.pallas import tpu_windows
import numpy as np

Slice = compat.Slice
Region = tpu_region.Region
Update = tpu_region.Update

# Up to here unrolled code is smaller than the staging that a loop needs.
UNROLL = 16

# (region, update) -> old value or None; region has no arrays and no strides.
AccessBox = Callable[[Region, Update], Any]


class _Plan:
  """Which axes of a region are looped over, and what an iteration sees."""

  def __init__(self, region: Region, looped: Sequence[int]):
    self.region = region
    ints = indexing.int_labels(len(region.int_shape))
    self.labels = indexing.region_axes(region.indices, ints)
    self.looped = [
      k
      for k, label in enumerate(self.labels)
      if isinstance(label, tuple) or label in looped
    ]
    self.shape = region.natural_shape
    self.sizes = tuple(self.shape[k] for k in self.looped)
    self.rest = [k for k in range(len(self.shape)) if k not in self.looped]

  @property
  def rest_shape(self) -> tuple[int, ...]:
    return tuple(self.shape[k] for k in self.rest)

  def box(self, at: Sequence[Any], arrays: Callable[[int, Any], Any]) -> Region:
    """The box of one iteration.

    Args:
      at: One position per looped axis, static or traced.
      arrays: (dimension, position in the index array) -> index.
    """
    where = dict(zip(self.looped, at, strict=True))
    ints = [where[k] for k in self.looped if isinstance(self.labels[k], tuple)]
    indices: list[Any] = []
    for d, index in enumerate(self.region.indices):
      if tpu_region.is_array_index(index):
        indices.append(arrays(d, ints))
      elif isinstance(index, Slice) and d in self.labels:
        k = self.labels.index(d)
        if k not in where:
          indices.append(index)
          continue
        step = where[k]
        if tpu_region.is_static(step) and tpu_region.is_static(index.start):
          indices.append(int(index.start) + index.stride * int(step))
        else:
          indices.append(
            _int32(index.start) + _int32(index.stride) * _int32(step)
          )
      else:
        indices.append(index)
    return self.region.with_indices(indices)

  def position(self, at: Sequence[Any]) -> list[Any]:
    """An iteration's index into arrays of the region's shape."""
    where = dict(zip(self.looped, at, strict=True))
    return [
      where[k] if k in where else Slice(0, n) for k, n in enumerate(self.shape)
    ]


def _int32(x: Any) -> Any:
  return np.int32(x) if tpu_region.is_static(x) else x


def loop(
  region: Region,
  looped: Sequence[int],
  dtype: Any,
  update: Update,
  access_box: AccessBox,
) -> Any | None:
  """Applies an update box by box.

  Args:
    region: The region, in natural order.
    looped: Dimensions whose slices are looped over; index arrays always are.
    dtype: The element type.
    update: What to do; operands in natural order.
    access_box: Does it for one box.

  Returns:
    The old values of the region, or None.
  """
  plan = _Plan(region, looped)
  n = math.prod(plan.sizes)
  if n == 0:
    return jnp.zeros(plan.shape, dtype) if update.need_old else None
  swaps = update.name == "swap" and not update.is_load and update.need_old
  if swaps and region.int_shape:
    # Every old value is the one before the call, even of a repeated element.
    first = update.replace(op=None, operands=())
    old = loop(region, looped, dtype, first, access_box)
    loop(region, looped, dtype, update.replace(need_old=False), access_box)
    return old
  if n <= UNROLL:
    return _unrolled(plan, dtype, update, access_box)
  return _staged(plan, dtype, update, access_box)


def scalar_at(x: Any, position: Sequence[int]) -> Any:
  """An element of a vector at a static position."""
  dtype = x.dtype
  x = tpu_values.widen(x)
  x = lax.slice(x, position, [p + 1 for p in position])
  return tpu_values.narrow_scalar(x[(0,) * x.ndim], dtype)


def part_at(x: Any, plan: _Plan, at: Sequence[int]) -> Any:
  """One iteration's part of a region-shaped array, at a static position."""
  if not plan.rest:
    return scalar_at(x, at)
  boolean = x.dtype == np.bool_
  x = x.astype(jnp.int32) if boolean else x
  for k, p in zip(plan.looped, at, strict=True):
    x = lax.slice_in_dim(x, p, p + 1, axis=k)
  x = lax.squeeze(x, plan.looped)
  return x != 0 if boolean else x


def _unrolled(plan, dtype, update, access_box):
  positions = list(np.ndindex(plan.sizes))
  if update.reverse:
    positions.reverse()
  arrays = plan.region.indices
  old_parts = {}

  def run():
    for at in positions:
      at = [int(p) for p in at]
      box = plan.box(at, lambda d, ints: scalar_at(arrays[d], ints))
      part = update.replace(
        operands=tuple(part_at(x, plan, at) for x in update.operands),
        mask=None if update.mask is None else part_at(update.mask, plan, at),
      )
      yield at, access_box(box, part)

  if not update.need_old:
    for _ in run():
      pass
    return None
  if plan.rest:
    # Rows of packed elements do not concatenate; memory takes them anywhere.
    def body(scratch):
      for at, old in run():
        scratch[tuple(_stock_index(plan.position(at)))] = _memory(old)
      return _from_memory(scratch[...], dtype)

    return pl.run_scoped(body, _vmem(plan.shape, dtype))
  for at, old in run():
    old_parts[tuple(at)] = old
  return assemble(old_parts, plan.shape, dtype)


def assemble(parts: dict[tuple[int, ...], Any], shape, dtype: Any) -> Any:
  """A vector made of scalars."""
  wide = (
    np.dtype(np.int32) if dtype == np.bool_ else tpu_values.wide_dtype(dtype)
  )
  out = jnp.zeros(shape, wide)
  for at, x in parts.items():
    here = None
    for axis, p in enumerate(at):
      same = lax.broadcasted_iota(jnp.int32, shape, axis) == np.int32(p)
      here = same if here is None else here & same
    value = jnp.full(shape, x.astype(wide))
    out = value if here is None else lax.select(here, value, out)
  return out != 0 if dtype == np.bool_ else out.astype(dtype)


def _stock_index(position):
  return [slice(0, p.size) if isinstance(p, Slice) else p for p in position]


def _vmem(shape, dtype):
  dtype = np.int32 if np.dtype(dtype) == np.bool_ else dtype
  return pltpu.VMEM(shape, dtype)


def _memory(x):
  return x.astype(jnp.int32) if x.dtype == np.bool_ else x


def _from_memory(x, dtype):
  return x != 0 if np.dtype(dtype) == np.bool_ else x


def _staged_dtype(dtype: Any) -> Any:
  dtype = np.dtype(dtype)
  return (
    np.dtype(np.int32) if dtype == np.bool_ else tpu_values.wide_dtype(dtype)
  )


def _staged(plan, dtype, update, access_box):
  """A loop whose every input and output has a place to be picked from."""
  scalar = not plan.rest
  scratch: dict[str, Any] = {}

  def stage(name, x):
    """Keeps an array where a dynamic position of it can be read."""
    shape = x.shape
    scratch[name + "_v"] = pltpu.VMEM(shape, _memory_dtype(x, scalar))
    if scalar or name.startswith("index"):
      scratch[name + "_s"] = pltpu.SMEM(shape, _staged_dtype(x.dtype))

  inputs: dict[str, Any] = {}
  for d in plan.region.arrays:
    inputs[f"index{d}"] = plan.region.indices[d].astype(jnp.int32)
  for k, x in enumerate(update.operands):
    inputs[f"operand{k}"] = x
  if update.mask is not None:
    inputs["mask"] = update.mask
  for name, x in inputs.items():
    stage(name, x)
  if update.need_old:
    scratch["old_v"] = pltpu.VMEM(
      plan.shape, _staged_dtype(dtype) if scalar else _vmem_dtype(dtype)
    )
    if scalar:
      scratch["old_s"] = pltpu.SMEM(plan.shape, _staged_dtype(dtype))

  def body(**refs):
    for name, x in inputs.items():
      refs[name + "_v"][...] = x.astype(refs[name + "_v"].dtype)
      if name + "_s" in refs:
        pltpu.sync_copy(refs[name + "_v"], refs[name + "_s"])

    def read(name, at):
      x = inputs[name]
      if scalar:
        value = refs[name + "_s"][tuple(at)]
        if x.dtype == np.bool_:
          return value != 0
        return tpu_values.narrow_scalar(value, x.dtype)
      position = compat.NDIndexer(tuple(plan.position(at)), plan.shape, ())
      part = _scratch_box(refs[name + "_v"], position)
      return part != 0 if x.dtype == np.bool_ else part.astype(x.dtype)

    def step(k, carry):
      at = unflatten(k, plan.sizes, update.reverse)
      box = plan.box(at, lambda d, ints: refs[f"index{d}_s"][tuple(ints)])
      part = update.replace(
        operands=tuple(
          read(f"operand{i}", at) for i in range(len(update.operands))
        ),
        mask=None if update.mask is None else read("mask", at),
      )
      old = access_box(box, part)
      if update.need_old:
        if scalar:
          refs["old_s"][tuple(at)] = old.astype(refs["old_s"].dtype)
        else:
          position = compat.NDIndexer(tuple(plan.position(at)), plan.shape, ())
          _scratch_box(refs["old_v"], position, old.astype(refs["old_v"].dtype))
      return carry

    lax.fori_loop(0, math.prod(plan.sizes), step, 0)
    if not update.need_old:
      return None
    if scalar:
      pltpu.sync_copy(refs["old_s"], refs["old_v"])
    out = refs["old_v"][...]
    return out != 0 if np.dtype(dtype) == np.bool_ else out.astype(dtype)

  return pl.run_scoped(body, **scratch)


def _memory_dtype(x, scalar):
  if scalar or x.dtype == np.bool_:
    return _staged_dtype(x.dtype)
  return x.dtype


def _vmem_dtype(dtype):
  return np.dtype(np.int32) if np.dtype(dtype) == np.bool_ else np.dtype(dtype)


def unflatten(k: Any, sizes: Sequence[int], reverse: bool) -> list[Any]:
  """The position of the k-th iteration, in row-major order or reversed."""
  if reverse:
    k = np.int32(math.prod(sizes) - 1) - k
  if len(sizes) == 1:
    return [k]
  out = []
  for size in reversed(sizes[1:]):
    # The counter is not negative, so truncating division is floor division.
    out.append(lax.rem(k, np.int32(size)))
    k = lax.div(k, np.int32(size))
  return [k, *reversed(out)]


def _scratch_box(ref, indexer, value=None) -> Any:
  """Loads or stores a box of a scratch at any position."""
  region = tpu_region.region_of("scratch", jax.typeof(ref), (indexer,))
  rank = len(region.shape)
  memory = tpu_tiles.Memory(
    row=rank - 2 if rank > 1 else None, lane=rank - 1, rank=rank
  )
  op = None if value is None else tpu_region.AtomicOp.XCHG
  update = Update(
    "scratch", op, () if value is None else (value,), None, value is None
  )
  return tpu_windows.access_box(ref, region, memory, ref.dtype, update)
