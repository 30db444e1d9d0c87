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
"""Boxes of TensorCore VMEM, read and written through windows Mosaic can prove.

Mosaic accepts a dynamic start only where it can prove that the start is a
multiple of the memory's tile. A box that starts anywhere is therefore reached
through the aligned window that covers it: rotated into place after a load, and
written back under a mask. Where the memory's element type has masked stores
nothing but the box is written; elsewhere the window is, unchanged outside the
box, and the caller must own it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax import lax
from jax._src.pallas import primitives as pallas_primitives  # masked stores
from jax._src.state import primitives as state_primitives  # get, set on views
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
from jax_swapext._src import compat
from jax_swapext._src import indexing
from jax_swapext._src import semantics
from jax_swapext._src.pallas import tpu_region
from jax_swapext._src.pallas import tpu_tiles
from jax_swapext._src.pallas import tpu_values
import numpy as np

AtomicOp = semantics.AtomicOp
Slice = compat.Slice
Region = tpu_region.Region
Update = tpu_region.Update
Memory = tpu_tiles.Memory


class Window:
  """The window of a box: an array with one axis per dimension kept."""

  def __init__(
    self,
    view: Any,
    region: Region,
    memory: Memory,
    dtype: Any,
    masked: bool,
  ):
    self.view, self.region, self.dtype = view, region, np.dtype(dtype)
    self.spans: list[tpu_tiles.Span] = []
    pack = tpu_values.packing(dtype)
    for d, index in enumerate(region.indices):
      extent = region.shape[d]
      if d == memory.lane:
        tile = tpu_tiles.LANES * (pack if memory.rank == 1 else 1)
        padded = -(-extent // tile) * tile
        span = tpu_tiles.span_of(
          region, d, tile, padded, masked, memory.whole
        )
      elif d == memory.row:
        tile = tpu_tiles.row_tile(memory, region, dtype)
        if self.is_whole_row(region, memory, dtype):
          tile = 1
        padded = tpu_tiles.padded_rows(extent, dtype)
        span = tpu_tiles.span_of(
          region, d, tile, padded, masked, memory.whole
        )
      elif isinstance(index, Slice):
        span = tpu_tiles.span_of(region, d, 1, extent, masked, memory.whole)
      else:
        if not tpu_region.is_static(index) and masked:
          last = np.int32(extent - 1)
          index = lax.max(lax.min(index, last), np.int32(0))
        span = tpu_tiles.Span(index, 1, 0, 1)
      self.spans.append(span)
    self.kept = [
      d
      for d, index in enumerate(region.indices)
      if isinstance(index, Slice) or d in (memory.row, memory.lane)
    ]
    if memory.whole:
      self.kept = list(range(len(region.indices)))
    self.shape = tuple(self.spans[d].size for d in self.kept)
    self.box_shape = tuple(
      self.spans[d].box
      for d in range(len(region.indices))
      if isinstance(region.indices[d], Slice)
    )

  @staticmethod
  def is_whole_row(region: Region, memory: Memory, dtype: Any) -> bool:
    """One full row of two tiles or more may start anywhere (32-bit)."""
    if memory.lane is None or tpu_values.packing(dtype) > 1:
      return False
    row: Any = region.indices[memory.row]
    lane: Any = region.indices[memory.lane]
    rows = row.size if isinstance(row, Slice) else 1
    lanes = region.shape[memory.lane]
    whole = indexing.is_whole(lane, lanes)
    return bool(rows == 1) and whole and lanes >= 2 * tpu_tiles.LANES

  @property
  def exact(self) -> bool:
    return all(self.spans[d].exact for d in self.kept)

  @property
  def index(self) -> tuple[Any, ...]:
    return tuple(
      Slice(s.start, s.size) if d in self.kept else s.start
      for d, s in enumerate(self.spans)
    )

  def load(self) -> Any:
    return state_primitives.ref_get(at(self.view, self.index, self.region))

  def store(self, x: Any, mask: Any | None) -> None:
    ref = at(self.view, self.index, self.region)
    pallas_primitives.store(ref, None, x, mask=mask)

  def place(self, x: Any) -> Any:
    """A box-shaped array in its place in the window; anything around it."""
    x = jnp.asarray(x)
    if x.ndim == 0:
      return jnp.full(self.shape, x)
    axes = [
      k
      for k, d in enumerate(self.kept)
      if isinstance(self.region.indices[d], Slice)
    ]
    sizes = tuple(self.spans[d].box for d in self.kept)
    if sizes != x.shape:
      x = lax.broadcast_in_dim(x, sizes, axes)
    for k, d in enumerate(self.kept):
      span = self.spans[d]
      if span.exact or span.box == 1 and span.size == 1:
        continue
      if span.box == 1:
        shape = list(x.shape)
        shape[k] = span.size
        x = jnp.broadcast_to(x, shape)
        continue
      # Only the whole-view window can be smaller than a box that is masked
      # at its end; there the box has been trimmed or its size is the view's.
      grow = span.size - x.shape[k]
      if grow:
        config = [(0, 0, 0)] * x.ndim
        config[k] = (0, grow, 0)
        x = lax.pad(x, jnp.zeros((), x.dtype), config)
      x = _roll(x, span.offset, k)
    return x

  def extract(self, w: Any) -> Any:
    """The box of a window-shaped array."""
    scalar = not self.box_shape
    if scalar:
      w = tpu_values.widen(w)
    offsets = [self.spans[d].offset for d in self.kept]
    for k, (d, offset) in enumerate(zip(self.kept, offsets, strict=True)):
      span = self.spans[d]
      if span.exact:
        continue
      if tpu_region.is_static(offset):
        w = lax.slice_in_dim(w, int(offset), int(offset) + span.box, axis=k)
        continue
      w = _roll(w, np.int32(span.size) - offset, k)
      if not scalar:
        w = lax.slice_in_dim(w, 0, span.box, axis=k)
    if scalar:
      return tpu_values.narrow_scalar(w[(0,) * w.ndim], self.dtype)
    squeezed = [
      k
      for k, d in enumerate(self.kept)
      if not isinstance(self.region.indices[d], Slice)
    ]
    return lax.squeeze(w, squeezed) if squeezed else w

  def mask(self, user: Any | None) -> Any | None:
    """Which elements of the window are the box's and allowed; None: all."""
    out = None
    for k, d in enumerate(self.kept):
      span = self.spans[d]
      if span.exact:
        continue
      at = lax.broadcasted_iota(jnp.int32, self.shape, k)
      offset = span.offset
      if tpu_region.is_static(offset):
        offset = np.int32(offset)
      if user is not None and user.ndim == 0:
        # A false scalar moves the box out of the window: one step of the
        # scalar unit, where a vector of flags would take several.
        offset = lax.select(user, jnp.int32(offset), jnp.int32(-span.size))
        user = None
      if span.box == 1:
        inside = at == offset
      else:
        inside = (at >= offset) & (at < offset + np.int32(span.box))
      out = inside if out is None else out & inside
    if user is None:
      return out
    if user.ndim == 0:
      user = jnp.broadcast_to(user, self.shape)
    elif self.exact and user.shape == self.shape:
      return user
    else:
      # Predicates cannot be rotated: they travel as words.
      user = self.place(user.astype(jnp.int32)) != 0
    return user if out is None else out & user


def _roll(x: Any, shift: Any, axis: int) -> Any:
  if x.ndim == 1:
    # Mosaic rotates rows of lanes, not vectors of one dimension.
    return _roll(x.reshape(1, x.shape[0]), shift, 1).reshape(x.shape)
  if tpu_region.is_static(shift):
    shift = int(shift) % x.shape[axis]
    return x if shift == 0 else pltpu.roll(x, shift, axis)
  return pltpu.roll(x, shift, axis)


def at(view: Any, index: Sequence[Any], region: Region) -> Any:
  """The Ref view at an index, without JAX's checks of static bounds."""
  indexer = compat.NDIndexer(tuple(index), region.shape, ())
  if isinstance(view, compat.TransformedRef):
    return compat.TransformedRef(view.ref, (*view.transforms, indexer))
  return compat.TransformedRef(view, (indexer,))


def access_box(
  view: Any, region: Region, memory: Memory, dtype: Any, update: Update
) -> Any | None:
  """Applies an update to a box of VMEM.

  Args:
    view: The Ref, or a view that `region.indices` index.
    region: Scalars and slices of stride one only, in natural order.
    memory: Where the view's dimensions lie.
    dtype: The element type.
    update: What to do.

  Returns:
    The old box, or None if it is not wanted.
  """
  masked = update.mask is not None
  window = Window(view, region, memory, dtype, masked)
  if update.is_load:
    return update.masked(window.extract(window.load()))
  mask = window.mask(update.mask)
  can_mask = tpu_values.packing(dtype) == 1
  reads = update.reads or (mask is not None and not can_mask)
  old: Any = window.load() if reads else None
  placed = [window.place(x) for x in update.operands]
  if update.op is AtomicOp.CAS and mask is not None and can_mask:
    # A store under both conditions saves a selection.
    expected, new = placed
    mask = mask & semantics.same_bits(old, expected)
  else:
    new = tpu_values.combine(update.op, old, placed)
  if mask is None or can_mask:
    window.store(new, mask)
  else:
    window.store(tpu_values.select(mask, new, old), None)
  if not update.need_old:
    return None
  return update.masked(window.extract(old))


def access_strided(view: Any, region: Region, update: Update) -> Any | None:
  """Applies an update to strided rows, which Mosaic loads and stores whole."""
  ref = at(view, region.indices, region)
  old = None
  if update.reads or update.mask is not None:
    old = state_primitives.ref_get(ref)
  if update.is_load:
    return update.masked(old)
  new = tpu_values.combine(update.op, old, update.operands)
  if update.mask is not None:
    new = tpu_values.select(update.mask, new, old)
  state_primitives.ref_set(ref, None, new)
  return update.masked(old) if update.need_old else None
