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
"""HBM and shared memory, as a SparseCore subcore reaches them.

A vector subcore moves words between them and its own VMEM by streams: one for
neighbours, one that gathers, or one per element. There is no scattering stream
here, since none can be waited for until its words have arrived. A scalar
subcore moves whole granules between HBM and its SMEM.
"""

from __future__ import annotations

from typing import Any

from jax._src.pallas.mosaic import sc_core
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
from jax_swapext._src import compat
from jax_swapext._src import indexing
from jax_swapext._src import load
from jax_swapext._src import swap
from jax_swapext._src.pallas import sc_indexed
from jax_swapext._src.pallas import tpu_copies
from jax_swapext._src.pallas import tpu_region
from jax_swapext._src.pallas import tpu_tiles
from jax_swapext._src.pallas import tpu_windows
import numpy as np

Slice = compat.Slice
Region = tpu_region.Region
Update = tpu_region.Update

# Words of the smallest transfer between HBM and a scalar subcore.
_GRANULE = 8


def check(update: Update, region: Region | None, dtype, space, vector) -> None:
  """Raises unless `access` can apply the update.

  Args:
    update: What to do.
    region: Where, or None when it is a chain of views.
    dtype: The element type.
    space: "hbm" or "vmem_shared".
    vector: Whether it is a vector subcore.
  """
  if update.name.startswith("atomic"):
    raise sc_indexed.refuse(
      update,
      f"an atomic update of {space}",
      "a copy in, an update and a copy out are not atomic against the other"
      " subcores",
      "Add with pltpu.async_copy(..., add=True) into VMEM_SHARED, or use"
      " fetch_* outside the kernel.",
    )
  if region is None or region.prefix:
    raise sc_indexed.refuse(
      update,
      f"{dtype} elements of a view of {space}",
      "its streams move neighbouring words of a Ref that is not viewed as"
      " another shape or dtype",
      "Copy the block to VMEM with pltpu.sync_copy.",
    )
  if vector:
    if len(region.natural_shape) > 1:
      raise sc_indexed.refuse(
        update,
        f"a region of shape {region.natural_shape} of {space}",
        "its streams fill vectors, which have one dimension",
        "Copy the block to VMEM with pltpu.sync_copy.",
      )
    return
  if dtype.itemsize < 4:
    raise sc_indexed.refuse(
      update,
      f"{dtype} elements of {space} from the scalar subcore",
      "its SMEM holds words",
      "Access them from a vector subcore, or use a 32-bit Ref.",
    )
  if region.natural_shape:
    raise sc_indexed.refuse(
      update,
      f"an array of {space} from the scalar subcore",
      "its SMEM holds scalars",
      "Access one element at a time.",
    )
  if space == "vmem_shared" and not update.is_load:
    raise sc_indexed.refuse(
      update,
      "to write to shared memory from the scalar subcore",
      "no transfer goes from its SMEM there",
      "Write from a vector subcore.",
    )
  rows = len(region.shape) > 1 and sc_indexed.is_tc_tiling() is not False
  if space == "hbm" and (rows or region.shape[-1] % _GRANULE):
    raise sc_indexed.refuse(
      update,
      f"an element of HBM of shape {region.shape} from the scalar subcore",
      f"its transfers move blocks of {4 * _GRANULE} bytes",
      f"Give the Ref one dimension, a multiple of {_GRANULE} long.",
    )


def access(ref: Any, region: Region, update: Update, *, space, vector):
  """Applies a load, store or swap that `check` let pass.

  Args:
    ref: The Ref.
    region: Where in it.
    update: What to do.
    space: As in `check`.
    vector: As in `check`.

  Returns:
    The old value, or None if it is not wanted.
  """
  gathers = update.is_load and len(region.shape) == 1
  if not vector:
    one = _word if space == "vmem_shared" else _granule
  elif not region.natural_shape:
    if gathers:
      # In fewer steps than a stream of its one word.
      return _gather(ref, region, update)
    one = _neighbours
  else:
    # A stream must not leave the Ref, even where the mask is false.
    neighbours = _is_neighbours(region)
    if neighbours and (update.mask is None or is_inside(region)):
      return _neighbours(ref, region, update)
    if gathers and region.int_shape == (sc_indexed.lanes(),):
      return _gather(ref, region, update)
    return _each(ref, region, update)
  if update.mask is None:
    return one(ref, region, update)
  return tpu_copies.masked_scalar(
    update, ref.dtype, lambda part: one(ref, region, part)
  )


def is_inside(region: Region) -> bool:
  """Whether a region of scalars and slices is known to lie inside."""

  def inside(index, extent):
    start, size = index, 1
    if isinstance(index, Slice):
      start, size = index.start, index.size
    return tpu_region.is_static(start) and 0 <= start <= extent - size

  return all(map(inside, region.indices, region.shape))


def _is_neighbours(region: Region) -> bool:
  """Whether the region is words in a row, as the memory has them."""
  if region.int_shape or region.slices != (len(region.shape) - 1,):
    return False
  index: Any = region.indices[-1]
  if index.stride != 1:
    return False
  if len(region.shape) == 1 or sc_indexed.is_tc_tiling() is False:
    return True
  # Tiles of rows lie between.
  lanes = tpu_tiles.LANES
  whole = index.size % lanes == 0 or indexing.is_whole(
    index, region.shape[-1]
  )
  return whole and region.multiple(index.start) % lanes == 0


def _slice_of(ref, indices, region: Region):
  """Words in a row as a Ref of one dimension."""
  *rows, index = indices
  if not isinstance(index, Slice):
    index = Slice(index, 1)
  return tpu_windows.at(ref, (*rows, index), region)


def _neighbours(ref, region: Region, update: Update):
  view = _slice_of(ref, region.indices, region)
  at = slice(None) if region.natural_shape else 0

  def body(scratch, semaphore):
    old = None
    if update.is_load or update.need_old or update.mask is not None:
      pltpu.async_copy(view, scratch, semaphore).wait()
      if update.need_old:
        old = load.load(scratch, at)
    if not update.is_load:
      swap.store(scratch, at, update.operands[0], mask=update.mask)
      copy = push(scratch, view, semaphore)
      copy.start()
      copy.wait()
    return None if old is None else update.masked(old)

  return pl.run_scoped(
    body, pltpu.VMEM(view.shape, ref.dtype), pltpu.SemaphoreType.DMA
  )


def _gather(ref, region: Region, update: Update):
  """A load at a vector of positions, or of one element by as many."""
  [at] = region.indices
  if tpu_region.is_static(at):
    at = np.int32(at)
  if update.mask is not None:
    # What is masked off may lie anywhere; the first element is there.
    at = jnp.where(update.mask, at, jnp.zeros_like(at))
  lanes, scalar = (sc_indexed.lanes(),), not region.natural_shape
  if scalar:
    at = jnp.full(lanes, at, jnp.int32)

  def body(scratch):
    pltpu.sync_copy(ref.at[at], scratch)
    got = load.load(scratch)
    return update.masked(got[0] if scalar else got)

  return pl.run_scoped(body, pltpu.VMEM(lanes, ref.dtype))


def _each(ref, region: Region, update: Update):
  """One stream per element; all of them are on their way at once."""
  [n] = region.natural_shape
  mask = update.mask
  if mask is not None:
    # Lanes of predicates cannot be taken out; those of words can.
    mask = jnp.where(mask, jnp.full((n,), 1), jnp.full((n,), 0))

  def each(act):
    for k in range(n):
      element = region.with_indices(tpu_region.lane_of(region, k))
      if tpu_region.is_outside(element):
        continue
      view = _slice_of(ref, element.indices, region)
      if mask is None:
        act(k, view)
      else:
        pl.when(mask[k] != 0)(lambda k=k, view=view: act(k, view))

  def body(scratch, semaphore):
    old = None

    def copy(k, view):
      return pltpu.make_async_copy(view, scratch.at[pl.ds(k, 1)], semaphore)

    def copy_out(k, view):
      return push(scratch.at[pl.ds(k, 1)], view, semaphore)

    if update.is_load or update.need_old:
      each(lambda k, view: copy(k, view).start())
      each(lambda k, view: copy(k, view).wait())
      old = load.load(scratch)
    if not update.is_load:
      swap.store(scratch, ..., update.operands[0])
      each(lambda k, view: copy_out(k, view).start())
      each(lambda k, view: copy_out(k, view).wait())
    return None if old is None else update.masked(old)

  return pl.run_scoped(
    body, pltpu.VMEM((n,), ref.dtype), pltpu.SemaphoreType.DMA
  )


def push(source: Any, target: Any, semaphore: Any) -> Any:
  """A copy out of VMEM, which is yet to be started."""
  # Drop the semaphore once jax >= 0.12: a stream out of VMEM then needs none,
  # and JAX warns of one.
  if hasattr(sc_core, "SparseCorePushStreamWarning"):
    semaphore = None
  return pltpu.make_async_copy(source, target, semaphore)


# The scalar subcore.


def _word(ref, region: Region, update: Update):
  view = _slice_of(ref, region.indices, region)

  def body(scratch):
    pltpu.sync_copy(view, scratch)
    return update.masked(scratch[0])

  return pl.run_scoped(body, pltpu.SMEM((1,), ref.dtype))


def _granule(ref, region: Region, update: Update):
  *rows, index = region.indices
  if tpu_region.is_static(index):
    offset = int(index) % _GRANULE
    first = int(index) - offset
  else:
    offset = index & np.int32(_GRANULE - 1)
    first = pl.multiple_of(index & np.int32(-_GRANULE), _GRANULE)
  view = tpu_windows.at(ref, (*rows, Slice(first, _GRANULE)), region)

  def body(scratch):
    pltpu.sync_copy(view, scratch)
    old = scratch[offset]
    if not update.is_load:
      scratch[offset] = update.operands[0]
      pltpu.sync_copy(scratch, view)
    return old if update.need_old else None

  return pl.run_scoped(body, pltpu.SMEM((_GRANULE,), ref.dtype))
