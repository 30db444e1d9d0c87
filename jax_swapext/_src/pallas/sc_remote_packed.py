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
"""Elements of 8 and 16 bits in HBM and shared memory.

A vector subcore's streams move words there, so the words that hold the elements
go to its VMEM and, unless only read, back: those of neighbours at once, others
one after the other, since two elements may share a word.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
from jax_swapext._src import compat
from jax_swapext._src.pallas import sc_indexed
from jax_swapext._src.pallas import sc_packed
from jax_swapext._src.pallas import sc_remote
from jax_swapext._src.pallas import sc_words
from jax_swapext._src.pallas import tpu_copies
from jax_swapext._src.pallas import tpu_region
from jax_swapext._src.pallas import tpu_tiles
from jax_swapext._src.pallas import tpu_values

Slice = compat.Slice
Region = tpu_region.Region
Update = tpu_region.Update

# Elements that one stream takes where they start at a multiple of as many; of
# other numbers of them it takes a word's.
_BLOCK = 32


def check(ctx, region: Region, dtype, update: Update) -> None:
  """Raises unless `access` can apply a load, store or swap."""
  tiled, packing = sc_indexed.is_tc_tiling(), tpu_values.packing(dtype)
  wanted = f"{dtype} elements of a Ref of shape {region.shape} by this index"
  sc_packed.check_tiling(region, update, wanted)
  sc_packed.check_words(ctx, region, dtype, update)
  if not tiled and region.shape[-1] % packing:
    raise sc_indexed.refuse(
      update,
      wanted,
      f"{packing} neighbours share words, and the last word is not whole",
      f"Make the last dimension a multiple of {packing}.",
    )


def access(ref: Any, region: Region, update: Update) -> Any | None:
  """Applies a load, store or swap that `check` let pass.

  Args:
    ref: The Ref.
    region: Where in it.
    update: What to do.

  Returns:
    The old value, or None if it is not wanted.
  """
  last: Any = region.indices[-1]
  neighbours = isinstance(last, Slice) and last.stride == 1
  if neighbours and not region.int_shape:
    # Nothing outside is written, not even as it was.
    if update.mask is None or update.is_load or sc_remote.is_inside(region):
      return _neighbours(ref, region, update)
  return sc_packed.access(ref, region, update, element=_update_element)


def _neighbours(ref, region: Region, update: Update):
  if update.mask is not None:
    # A stream must not leave the Ref, even where the mask is false.
    region = tpu_copies.clamped(region)
  *lead, index = region.indices
  extent, tiled = region.shape[-1], sc_indexed.is_tc_tiling()
  first, size = tpu_copies.tiles(
    region, index.start, index.size, extent,
    1 if tiled else tpu_values.packing(ref.dtype), update.mask is not None,
  )  # fmt: skip
  offset = tpu_copies.difference(index.start, first)
  exact = tpu_region.is_static(offset) and offset == 0 and size == index.size
  whole = exact and not tiled
  block = tpu_tiles.LANES if tiled else _BLOCK
  at_once = size % block == 0 and region.multiple(first) % block == 0
  reads = update.is_load or update.need_old or update.mask is not None

  def inner(scratch, row):
    indices = (*row, Slice(offset, index.size))
    part = Region(
      (), scratch.shape, indices, (), region.order, region.known, region.keep
    )
    if whole:
      return sc_packed.access_words(scratch, part, update)
    return sc_packed.access(scratch, part, update)

  return _through_vmem(
    ref, (*lead, Slice(first, size)), inner, at_once=at_once,
    reads=reads or not whole, writes=not update.is_load,
  )  # fmt: skip


def _update_element(ref, indices, update: Update):
  """As `sc_words.update_element`."""
  *lead, index = indices
  size = 1
  if not sc_indexed.is_tc_tiling():
    size = tpu_values.packing(ref.dtype)
  first, offset = index & -size, index & (size - 1)
  if not tpu_region.is_static(index):
    first = pl.multiple_of(first, size)

  def inner(scratch, row):
    return sc_words.update_element(scratch, (*row, offset), update)

  return _through_vmem(
    ref, (*lead, Slice(first, size)), inner, at_once=True,
    reads=True, writes=not update.is_load,
  )  # fmt: skip


def _through_vmem(
  ref: Any,
  indices: tuple[Any, ...],
  inner: Callable[[Any, tuple[Any, ...]], Any],
  *,
  at_once: bool,
  reads: bool,
  writes: bool,
) -> Any:
  """Calls a function of a copy in VMEM of whole words in a row.

  Args:
    ref: The Ref.
    indices: Scalars and, last, a slice of whole words.
    inner: Is called with a Ref of a row, or of the rows that share words, and
      the index of the row in it.
    at_once: Whether one stream takes all of them.
    reads: Whether what is there is wanted.
    writes: Whether it changes.
  """
  *lead, last = indices
  dtype, packing = ref.dtype, tpu_values.packing(ref.dtype)
  if sc_indexed.is_tc_tiling():
    # Rows share words.
    *lead, at = lead
    lead, row = (*lead, sc_words.word_of(at, packing)), (at & (packing - 1),)
    ref, word, line = ref.bitcast(jnp.int32), 1, tpu_tiles.LANES
  else:
    row, word, line = (), packing, packing * sc_indexed.lanes()
  stream = last.size if at_once else word
  length = -(-last.size // line) * line

  def body(scratch, semaphore):
    local = scratch.bitcast(jnp.int32).at[0] if row else scratch

    def each(copy):
      for k in range(0, last.size, stream):
        start = last.start + k
        if not tpu_region.is_static(start):
          start = pl.multiple_of(start, word)
        view = ref.at[(*lead, pl.ds(start, stream))]
        copy(view, local.at[pl.ds(k, stream)])

    if reads:
      each(lambda x, y: pltpu.make_async_copy(x, y, semaphore).start())
      each(lambda x, y: pltpu.make_async_copy(x, y, semaphore).wait())
    out = inner(scratch, row)
    if writes:
      each(lambda x, y: sc_remote.push(y, x, semaphore).start())
      each(lambda x, y: sc_remote.push(y, x, semaphore).wait())
    return out

  shape = (packing, length) if row else (length,)
  return pl.run_scoped(
    body, pltpu.VMEM(shape, dtype), pltpu.SemaphoreType.DMA
  )
