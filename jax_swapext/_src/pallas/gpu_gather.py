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
"""Moving array elements between threads: `out[i] = x[source(i)]`.

Which lane and which register holds an element is known when a kernel is traced,
so most movements need no shuffle, and none needs shared memory within a warp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import math
from typing import Any

from jax._src.lib.mlir.dialects import arith
from jax._src.lib.mlir.dialects import memref
from jax.experimental.mosaic.gpu import fragmented_array as fa
from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jax_swapext._src.pallas import gpu_ir
from jax_swapext._src.pallas import gpu_layouts
import numpy as np

FragmentedArray = fa.FragmentedArray
Index = gpu_ir.Index
SourceIndex = Callable[[Sequence[Index]], Sequence[Index]]


def _dim_sizes(layout, dims):
  return tuple(
      layout.tiled_tiling_shape[d] if isinstance(d, int) else d.times
      for d in dims
  )


def _strides(sizes):
  return tuple(math.prod(sizes[i + 1 :]) for i in range(len(sizes)))


def _holder(layout, shape, index):
  """(lane of the first replica, register, element) that hold `index`."""
  index = tuple(index)
  if isinstance(layout, gpu_layouts.Padded):
    linear = gpu_ir.linearize(index, shape)
    return (gpu_ir.rem(linear, gpu_ir.WARP_SIZE),
            gpu_ir.div(linear, gpu_ir.WARP_SIZE), 0)
  for tile in layout.tiling.tiles:
    outer, inner = index[: -len(tile)], index[-len(tile) :]
    index = (
        *outer,
        *(gpu_ir.div(i, t) for i, t in zip(inner, tile, strict=True)),
        *(gpu_ir.rem(i, t) for i, t in zip(inner, tile, strict=True)),
    )
  sizes = _dim_sizes(layout, layout.lane_dims)
  lane: Index = 0
  for d, stride in zip(layout.lane_dims, _strides(sizes), strict=True):
    if isinstance(d, int):
      lane = gpu_ir.add(lane, gpu_ir.mul(index[d], stride))
  counts = layout.registers_shape(tuple(shape))
  taken = {
      len(index) + d
      for d in (*layout.partitioned_lane_dims, layout.vector_dim)
  }
  register: Index = 0
  for d, (i, stride) in enumerate(zip(index, _strides(counts), strict=True)):
    if d not in taken:
      register = gpu_ir.add(register, gpu_ir.mul(i, stride))
  return lane, register, index[layout.vector_dim]


def _held(layout, position, lane: int) -> tuple[Any, ...]:
  """The index of the first element that a lane holds in a register."""
  if isinstance(layout, gpu_layouts.Padded):
    return gpu_ir.delinearize(layout.linear_index(position, lane), layout.shape)
  full = list(position)
  sizes = _dim_sizes(layout, layout.lane_dims)
  for d, stride, size in zip(
      layout.lane_dims, _strides(sizes), sizes, strict=True
  ):
    if isinstance(d, int):
      full[d] = lane // stride % size
  return tuple(layout.tiling.untile_indices(tuple(full)))


def _holds(layout, lane: int, other: int, register: int) -> bool:
  """Whether a lane has what another one has in a register."""
  if isinstance(layout, gpu_layouts.Padded):
    last = divmod(layout.size - 1, gpu_ir.WARP_SIZE)
    return lane == other or (lane > other and (register, other) == last)
  sizes = _dim_sizes(layout, layout.lane_dims)
  return all(
      not isinstance(d, int)
      or lane // stride % size == other // stride % size
      for d, stride, size in zip(
          layout.lane_dims, _strides(sizes), sizes, strict=True
      )
  )


def gather(
    x: FragmentedArray, shape, layout, source: SourceIndex
) -> FragmentedArray:
  """`out[i] = x[source(i)]` within each warp.

  Args:
    x: an array in a warp layout, or a splat.
    shape: of the result.
    layout: of the result, a warp layout.
    source: an index into `x` from one into the result; it has to work on ints
      and on values.
  """
  shape = tuple(shape)
  if isinstance(x.layout, gpu_layouts.Splat):
    return gpu_layouts.materialize(x, shape, layout)
  inside: Any = x.layout
  held: Any = list(x.registers.flat)
  vec = inside.vector_length
  if isinstance(layout, gpu_layouts.Splat):
    lane, register, element = _holder(
        inside, x.shape, source((0,) * len(shape))
    )
    value = gpu_ir.extract(held[register], element)
    if gpu_layouts.has_distinct_lanes(inside):
      value = gpu_ir.shuffle(value, _as_i32(lane))
    return FragmentedArray.splat(value, shape, is_signed=x.is_signed)
  result = np.empty(layout.registers_shape(shape), dtype=object)
  for position, elements in gpu_layouts.registers(layout, shape):
    moved = []
    for e, index in enumerate(elements):
      # For each lane, where what it needs is held: numbers, not values.
      needs: list[Any] = []
      for lane in range(gpu_ir.WARP_SIZE):
        *outer, last = _held(layout, position, lane)
        lane_of, register, element = _holder(
            inside, x.shape, source((*outer, last + e))
        )
        needs.append((lane_of, register * vec + element))
      stays = all(
          _holds(inside, lane, other, slot // vec)
          for lane, (other, slot) in enumerate(needs)
      )
      candidates = sorted({slot for _, slot in needs})
      lane_of = register = element = 0
      if not stays or len(candidates) > 1:
        lane_of, register, element = _holder(inside, x.shape, source(index))
      found = []
      for slot in candidates:
        value = gpu_ir.extract(held[slot // vec], slot % vec)
        if not stays:
          value = gpu_ir.shuffle(value, _as_i32(lane_of))
        found.append(value)
      value = found[0]
      if len(candidates) > 1:
        chosen = _as_i32(gpu_ir.add(gpu_ir.mul(register, vec), element))
        for slot, other in zip(candidates[1:], found[1:], strict=True):
          is_it = arith.cmpi(
              arith.CmpIPredicate.eq, chosen, gpu_ir.const_i32(slot)
          )
          value = arith.select(is_it, other, value)
      moved.append(value)
    result[position] = gpu_ir.pack(moved)
  return gpu_ir.wrap(result, layout, x.is_signed)


def _as_i32(x: Index):
  if isinstance(x, int):
    return gpu_ir.const_i32(x)
  return arith.index_cast(gpu_ir.i32(), x)


def gather_through_scratch(
    x: FragmentedArray, shape, layout, source: SourceIndex, scratch
) -> FragmentedArray:
  """`out[i] = x[source(i)]` within a warpgroup, by way of shared memory.

  Args:
    x: an array of any layout.
    shape: of the result.
    layout: of the result.
    source: an index into `x` from one into the result.
    scratch: SMEM for the elements of `x`, for each warpgroup.
  """
  if isinstance(x.layout, gpu_layouts.Splat):
    return gpu_layouts.materialize(x, shape, layout)
  start = gpu_ir.mul(gpu_ir.warpgroup(), gpu_ir.size(x.shape))

  def place(index):
    linear = gpu_ir.linearize(index, x.shape)
    return [gpu_ir.to_value(gpu_ir.add(start, linear))]

  for position, elements in gpu_layouts.registers(x.layout, x.shape):
    for e, index in enumerate(elements):
      memref.store(
          gpu_ir.extract(x.registers[position], e), scratch, place(index)
      )
  mgpu_utils.warpgroup_barrier()
  result = np.empty(layout.registers_shape(tuple(shape)), dtype=object)
  for position, elements in gpu_layouts.registers(layout, shape):
    result[position] = gpu_ir.pack(
        [memref.load(scratch, place(source(i))) for i in elements]
    )
  mgpu_utils.warpgroup_barrier()
  return gpu_ir.wrap(result, layout, x.is_signed)
