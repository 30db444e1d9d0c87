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
"""Memory that the TensorCore's vector unit does not reach: SMEM and HBM.

SMEM holds scalars: arrays there are accessed element by element, or, when they
are large and plain, copied through VMEM by a DMA. HBM is reached by DMA only,
whose slices must cover whole tiles; what surrounds the region inside its window
is written back as it was, so the caller must own the window.
"""

from __future__ import annotations

import math
from typing import Any

from jax import lax
from jax._src.state import primitives as state_primitives  # get, set on views
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
from jax_swapext._src import compat
from jax_swapext._src import indexing
from jax_swapext._src import semantics
from jax_swapext._src.pallas import tpu_loops
from jax_swapext._src.pallas import tpu_region
from jax_swapext._src.pallas import tpu_tiles
from jax_swapext._src.pallas import tpu_values
from jax_swapext._src.pallas import tpu_windows
import numpy as np

AtomicOp = semantics.AtomicOp
Slice = compat.Slice
Region = tpu_region.Region
Update = tpu_region.Update


def access_smem(
  view: Any, region: Region, dtype: Any, update: Update
) -> Any | None:
  """Applies an update to a region of SMEM, in natural order."""

  def scalar(inner: Region, part: Update):
    return access_scalar(view, inner, part)

  if not region.slices and not region.int_shape:
    return scalar(region, update)
  n = math.prod(region.natural_shape)
  if n > tpu_loops.UNROLL and _copies(view, region, dtype):
    return _through_vmem(view, region, dtype, update)
  return tpu_loops.loop(region, region.slices, dtype, update, scalar)


def access_scalar(view: Any, region: Region, update: Update) -> Any | None:
  """Applies an update to one scalar, in memory of the scalar unit."""
  ref = tpu_windows.at(view, region.indices, region)

  def access():
    old = None
    if update.is_load or update.reads:
      old = state_primitives.ref_get(ref)
    if not update.is_load:
      new = tpu_values.combine(update.op, old, update.operands)
      state_primitives.ref_set(ref, None, new)
    return old

  if update.mask is None:
    old = access()
    return old if update.need_old else None
  if not update.need_old:
    # A branch, since what is masked off may lie anywhere.

    @pl.when(update.mask)
    def _():
      access()

    return None
  other = update.operands[0] if update.is_load and update.operands else None
  if other is None:
    other = jnp.zeros((), ref.dtype)
  return tpu_values.cond(update.mask, access, lambda: other, other.dtype)


def _copies(view: Any, region: Region, dtype: Any) -> bool:
  """Whether a DMA takes the region out of SMEM as it is."""
  if tpu_values.packing(dtype) > 1 or region.int_shape:
    return False
  return all(
    indexing.is_whole(i, n)
    for i, n in zip(region.indices, region.shape, strict=True)
  ) and not isinstance(view, compat.TransformedRef)


def _through_vmem(view, region, dtype, update):
  """Applies an update to a whole SMEM array by way of VMEM."""

  def body(scratch):
    old = None
    if update.is_load or update.reads or update.mask is not None:
      pltpu.sync_copy(view, scratch)
      old = scratch[...]
    if not update.is_load:
      new = tpu_values.combine(update.op, old, update.operands)
      if update.mask is not None:
        new = tpu_values.select(update.mask, new, old)
      scratch[...] = new
      pltpu.sync_copy(scratch, view)
    return update.masked(old) if update.need_old else None

  return pl.run_scoped(body, pltpu.VMEM(region.natural_shape, dtype))


# HBM


def access_hbm(
  view: Any, region: Region, dtype: Any, update: Update
) -> Any | None:
  """Applies a load, store or swap to a region of HBM, in natural order."""
  if update.name.startswith("atomic"):
    raise NotImplementedError(
      f"{update.name}: wanted an atomic update of HBM from a TensorCore"
      " kernel, but the DMA engine has none, and a copy in, an update and a"
      " copy out are not atomic against other cores. Update a VMEM or SMEM"
      " block, or use fetch_* outside the kernel."
    )

  def box(inner: Region, part: Update):
    return _hbm_box(view, inner, dtype, part)

  strided = [d for d in region.slices if region.indices[d].stride != 1]
  if region.int_shape or strided:
    return tpu_loops.loop(region, strided, dtype, update, box)
  return box(region, update)


def _window(region: Region, dtype: Any, masked: bool) -> list[tuple[Any, Any]]:
  """Start and size, per dimension, of a DMA that covers a box."""
  rank = len(region.shape)
  pack = tpu_values.packing(dtype)
  window: list[tuple[Any, Any]] = []
  for d, (index, extent) in enumerate(
    zip(region.indices, region.shape, strict=True)
  ):
    scalar = not isinstance(index, Slice)
    start, size = (index, 1) if scalar else (index.start, index.size)
    if masked and not scalar and not tpu_region.is_static(start):
      # A DMA must not leave the array, even where the mask is false.
      inside = lax.max(lax.min(start, np.int32(extent - size)), np.int32(0))
    else:
      inside = start
    if d < rank - 2:
      window.append((inside, size))
      continue
    if d == rank - 1:
      tile = tpu_tiles.LANES * (pack if rank == 1 else 1)
    elif pack == 1 and (size == 1 or extent == 1):
      window.append((inside, size))
      continue
    else:
      tile = tpu_tiles.SUBLANES * pack
    window.append(tiles(region, start, size, extent, tile, masked))
  return window


def tiles(
  region: Region, start: Any, size: Any, extent: int, tile: int, masked: bool
) -> tuple[Any, Any]:
  """The start and size of a window of whole tiles that covers a slice.

  Args:
    region: What knows of the start's multiples.
    start: The slice's start.
    size: Its size.
    extent: How long the dimension is.
    tile: How long a tile is.
    masked: Whether the slice may lie partly outside.
  """
  if extent % tile:
    # A DMA must not leave the array, and its last tile is not whole.
    return 0, extent
  if tpu_region.is_static(start):
    first = max(0, min(int(start) // tile * tile, extent - tile))
    last = -(-(int(start) + size) // tile) * tile
    return first, max(first + tile, min(last, extent)) - first
  if region.multiple(start) % tile == 0 and size % tile == 0 and not masked:
    return start, size
  need = min(extent, -(-(size + tile - 1) // tile) * tile)
  if need == extent:
    return 0, extent
  first = start & np.int32(-tile)
  if masked or size > 1:
    # Else the tile of the element lies inside, as the element does.
    first = lax.max(lax.min(first, np.int32(extent - need)), np.int32(0))
  return pl.multiple_of(first, tile), need


def clamped(region: Region) -> Region:
  """Masked-off indices moved inside: a DMA must not start outside."""
  indices: list[Any] = []
  for index, extent in zip(region.indices, region.shape, strict=True):
    if isinstance(index, Slice) or tpu_region.is_static(index):
      indices.append(index)
      continue
    last = np.int32(extent - 1)
    indices.append(lax.max(lax.min(index, last), np.int32(0)))
  return region.with_indices(indices)


def _hbm_box(view: Any, region: Region, dtype: Any, update: Update):
  """Applies an update to a box of HBM by way of a window of it."""
  if not region.slices and update.mask is not None:
    return masked_scalar(
      update, dtype, lambda part: _hbm_box(view, region, dtype, part)
    )
  if update.mask is not None:
    region = clamped(region)
  window = _window(region, dtype, update.mask is not None)
  sizes = tuple(size for _, size in window)
  source = tpu_windows.at(
    view, [Slice(start, size) for start, size in window], region
  )
  offsets: list[Any] = []
  exact = True
  for index, (first, size) in zip(region.indices, window, strict=True):
    start = index.start if isinstance(index, Slice) else index
    offset = difference(start, first)
    same = tpu_region.is_static(offset) and offset == 0
    if isinstance(index, Slice):
      exact &= same and index.size == size
      offsets.append(Slice(offset, index.size))
    else:
      exact &= same and size == 1
      offsets.append(offset)
  inner = Region(
    (), sizes, tuple(offsets), (), region.order, region.known, region.keep
  )
  scalar = not region.slices and tpu_values.packing(dtype) == 1
  reads = update.is_load or update.reads or update.mask is not None or not exact

  def body(scratch):
    if reads:
      pltpu.sync_copy(source, scratch)
    if scalar:
      old = access_scalar(scratch, inner, update)
    else:
      rank = len(sizes)
      memory = tpu_tiles.Memory(
        row=rank - 2 if rank > 1 else None, lane=rank - 1, rank=rank
      )
      old = tpu_windows.access_box(scratch, inner, memory, dtype, update)
    if not update.is_load:
      pltpu.sync_copy(scratch, source)
    # Scopes yield words only, as branches do.
    return tpu_values.widen(old) if old is not None and old.ndim == 0 else old

  # A scalar stays with the scalar unit: fewer steps than through vectors.
  kind = pltpu.SMEM if scalar else pltpu.VMEM
  old = pl.run_scoped(body, kind(sizes, dtype))
  if old is None or old.ndim:
    return old
  return tpu_values.narrow_scalar(old, dtype)


def difference(start: Any, first: Any) -> Any:
  """`start - first`, static where it can be."""
  if start is first:
    return 0
  if tpu_region.is_static(start) and tpu_region.is_static(first):
    return int(start) - int(first)
  if tpu_region.is_static(first) and int(first) == 0:
    return start
  a = np.int32(start) if tpu_region.is_static(start) else start
  b = np.int32(first) if tpu_region.is_static(first) else first
  return a - b


def masked_scalar(update: Update, dtype: Any, access: Any) -> Any | None:
  """Applies an update to one element if its mask is true.

  Args:
    update: What to do.
    dtype: The element type.
    access: Does an unmasked update.
  """
  unmasked = update.replace(mask=None)
  if update.is_load:
    unmasked = unmasked.replace(operands=())
  if not update.need_old:

    @pl.when(update.mask)
    def _():
      access(unmasked)

    return None
  other = update.operands[0] if update.is_load and update.operands else None
  if other is None:
    other = jnp.zeros((), dtype)
  return tpu_values.cond(
    update.mask, lambda: access(unmasked), lambda: other, dtype
  )
