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
"""Where the elements of VMEM lie, and which tiles cover a box of them.

Facts about tiles, read from what libtpu makes of every generation: a memref of
rank two or more has tiles of 128 lanes and of as many rows as the smallest
power of two that covers its rows, at least one word of packed elements and at
most eight; packed memrefs whose rows fill whole registers have tiles of a whole
register. Memory is allocated in whole tiles.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from jax import lax
from jax.experimental import pallas as pl
from jax_swapext._src import compat
from jax_swapext._src.pallas import tpu_region
from jax_swapext._src.pallas import tpu_values
import numpy as np

Slice = compat.Slice
Region = tpu_region.Region

LANES = 128
SUBLANES = 8


@dataclasses.dataclass(frozen=True)
class Memory:
  """The physical side of a view in VMEM.

  Attributes:
    row: The view's dimension that is the memref's second-minor one, or None.
    lane: The view's dimension that is the memref's minor one, or None.
    rank: The memref's rank; squeezed block dimensions count.
    whole: Whether only the view as a whole is known to be aligned.
  """

  row: Any
  lane: Any
  rank: int
  whole: bool = False


@dataclasses.dataclass(frozen=True)
class Span:
  """One dimension's part of a window.

  Attributes:
    start: Where the window starts.
    size: Its size.
    place: Where in it the box starts; 0 when it is the box itself. A function
      computes it where it is used, so that a load does not wait for it.
    box: The box's size.
  """

  start: Any
  size: int
  place: Any
  box: int

  @property
  def offset(self) -> Any:
    return self.place() if callable(self.place) else self.place

  @property
  def exact(self) -> bool:
    return self.size == self.box and tpu_region.is_static(self.place)


def row_tile(memory: Memory, region: Region, dtype: Any) -> int:
  """What a dynamic row start must be a multiple of."""
  rows = region.shape[memory.row]
  lanes = 1 if memory.lane is None else region.shape[memory.lane]
  pack = tpu_values.packing(dtype)
  if pack == 1 and lanes <= LANES:
    # Tiles of one column are the same memory as tiles of one row.
    return 1
  full = SUBLANES * pack
  return full if rows % full == 0 else SUBLANES


def padded_rows(rows: int, dtype: Any) -> int:
  """How many rows are allocated."""
  tile = tpu_values.packing(dtype)
  while tile < min(rows, SUBLANES):
    tile *= 2
  return -(-rows // tile) * tile


def _aligned(start: Any, tile: int, last: int | None) -> Any:
  out = start & np.int32(-tile)
  if last is not None:
    # `max` after `min`: a masked start may lie anywhere.
    out = lax.max(lax.min(out, np.int32(last)), np.int32(0))
  return pl.multiple_of(out, tile)


def span_of(
  region: Region, d: int, tile: int, padded: int, masked: bool, whole: bool
) -> Span:
  """The window along one dimension.

  Args:
    region: The box.
    d: The dimension.
    tile: What a dynamic start must be a multiple of.
    padded: The dimension's size in memory.
    masked: Whether the box may reach outside the view.
    whole: Whether only the whole dimension can be accessed.
  """
  index: Any = region.indices[d]
  extent = region.shape[d]
  scalar = not isinstance(index, Slice)
  start: Any = index if scalar else index.start
  size = 1 if scalar else int(index.size)
  if whole:
    offset = start
    if extent == size and tpu_region.is_static(start):
      offset = 0
    return Span(0, extent, offset, size)
  if tpu_region.is_static(start):
    return Span(int(start), size, 0, size)
  multiple = region.multiple(start)
  if multiple % tile == 0 and not masked:
    return Span(start, size, 0, size)
  if multiple % math.lcm(tile, size) == 0 and extent % size == 0:
    # The box lies inside or it lies outside, where the mask is false: then any
    # other place will do.
    inside = lax.max(lax.min(start, np.int32(extent - size)), np.int32(0))
    if tile > 1:
      inside = pl.multiple_of(inside, tile)
    return Span(inside, size, 0, size)
  if tile == 1:
    last = np.int32(max(0, extent - size))
    clamped = lax.max(lax.min(start, last), np.int32(0))
    if size == 1:
      # Where clamping changes anything the mask is false.
      return Span(clamped, 1, 0, 1)
    return Span(clamped, size, start - clamped, size)
  if extent <= tile:
    if padded == extent or extent % SUBLANES == 0:
      return Span(0, extent, start, size)
    # A window of whole tiles rotates in fewer steps than one with a ragged
    # edge. A static start past the edge would not trace, so it is dynamic.
    zero = pl.multiple_of(start & np.int32(0), padded)
    return Span(zero, padded, start, size)
  window = min(-(-(size + tile - 1) // tile) * tile, padded)
  if window >= extent:
    return Span(0, extent, start, size)
  clamp = padded - window if size > 1 or masked else None
  aligned = _aligned(start, tile, clamp)
  if clamp is not None:
    return Span(aligned, window, start - aligned, size)
  return Span(aligned, window, lambda: start & np.int32(tile - 1), size)
