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
"""Elements of 8 and 16 bits in a SparseCore subcore's VMEM.

Its indexed loads and stores take words, so one element is reached through the
word that holds it, and several one after the other, as neighbours share words.
Where that word lies depends on the tiling. Regions that are whole words, and in
bounds, are accessed at once.
"""

from __future__ import annotations

import functools
from typing import Any

from jax import lax
from jax._src.state import primitives as state_primitives  # get, set on views
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
from jax_swapext._src import compat
from jax_swapext._src import load
from jax_swapext._src import semantics
from jax_swapext._src import swap
from jax_swapext._src.pallas import sc_indexed
from jax_swapext._src.pallas import sc_words
from jax_swapext._src.pallas import tpu_copies
from jax_swapext._src.pallas import tpu_region
from jax_swapext._src.pallas import tpu_values
from jax_swapext._src.pallas import tpu_windows
import numpy as np

AtomicOp = semantics.AtomicOp
Slice = compat.Slice
Region = tpu_region.Region
Update = tpu_region.Update


def is_whole_words(ctx, region: Region, dtype) -> bool:
  """Whether a region is a vector's worth of whole words.

  Of anything else the stock rules emit a module too, which addresses other
  elements or makes the compiler abort the process.
  """
  tiled, lanes = sc_indexed.is_tc_tiling(), sc_indexed.lanes()
  packing = tpu_values.packing(dtype)
  rank = len(region.shape)
  if tiled is None or region.prefix or region.int_shape:
    return False
  if any(region.indices[d].stride != 1 for d in region.slices):
    return False
  if tiled and rank > 1:
    # Neighbouring rows share words: a block of them is a vector of words.
    *_, row, lane = region.indices
    return (
      region.slices == (rank - 2, rank - 1)
      and (row.size, lane.size) == (packing, lanes)
      and region.multiple(row.start) % packing == 0
      and region.multiple(lane.start) % lanes == 0
    )
  size, lane = lanes * packing, region.indices[-1]
  passes = ctx.lowering_context.needs_layout_passes
  return (
    not tiled
    and region.slices == (rank - 1,)
    and (lane.size % size == 0 if passes else lane.size == size)
    and region.multiple(lane.start) % packing == 0
    and (rank == 1 or region.shape[-1] % packing == 0)
  )


def is_whole(region: Region) -> bool:
  """Whether all of a region of slices and scalars lies inside, or none of it.

  Then a mask need not keep what is outside from being accessed: elsewhere it is
  false.
  """
  for index, extent in zip(region.indices, region.shape, strict=True):
    start, size = index, 1
    if isinstance(index, Slice):
      start, size = index.start, index.size
    if tpu_region.is_static(start):
      if not 0 <= start <= extent - size:
        return False
    elif region.multiple(start) % size or extent % size:
      return False
  return True


def _inside(region: Region) -> Region:
  """A region that `is_whole`, moved inside where it is outside."""

  def moved(index, extent):
    if not isinstance(index, Slice):
      return index if tpu_region.is_static(index) else _clamp(index, extent - 1)
    if tpu_region.is_static(index.start):
      return index
    start = _clamp(index.start, extent - index.size, int(index.size))
    return Slice(start, index.size)

  return region.with_indices([*map(moved, region.indices, region.shape)])


def _clamp(x: Any, last: int, multiple: int = 1) -> Any:
  inside: Any = lax.max(lax.min(x, np.int32(last)), np.int32(0))
  return inside if multiple == 1 else pl.multiple_of(inside, multiple)


def check(ctx, region: Region, dtype, update: Update, plain: bool) -> None:
  """Raises unless the update can be applied; `plain` ones stock syntax has."""
  tiled, lanes = sc_indexed.is_tc_tiling(), sc_indexed.lanes()
  packing = tpu_values.packing(dtype)
  size = lanes * packing
  wanted = f"{dtype} elements of VMEM of shape {region.shape} by this index"
  if region.prefix:
    raise sc_indexed.refuse(
      update,
      wanted,
      "it is a view, of which it is not known where its words lie",
      "Index the Ref itself.",
    )
  check_tiling(region, update, wanted)
  if is_whole_words(ctx, region, dtype):
    if plain or len(region.natural_shape) == 1:
      return
    if not ctx.lowering_context.needs_layout_passes:
      raise sc_indexed.refuse(
        update,
        f"more than to move a block of {dtype} elements",
        "without layout passes nothing compares or selects blocks",
        "Set needs_layout_passes=True in the compiler parameters.",
      )
    if update.mask is None or is_whole(region):
      return
    raise sc_indexed.refuse(
      update,
      f"a masked block of {dtype} elements that may lie partly outside",
      "it is accessed as a whole",
      f"Make the start a multiple of {region.natural_shape}"
      " (pl.multiple_of).",
    )
  extent = region.shape[-1]
  if not tiled and (extent < size or extent % packing):
    raise sc_indexed.refuse(
      update,
      wanted,
      f"a word is accessed within a vector of {size} elements",
      f"Make the last dimension at least {size} long, a multiple of {packing}.",
    )
  check_words(ctx, region, dtype, update)


def check_tiling(region: Region, update: Update, wanted: str) -> None:
  """Raises unless it is known how a Ref of packed elements is tiled."""
  tiled = sc_indexed.is_tc_tiling()
  if tiled is None or (tiled and len(region.shape) == 1):
    raise sc_indexed.refuse(
      update,
      wanted,
      "under TensorCore tiling neighbouring elements lie 128 words apart",
      "Set use_tc_tiling_on_sc=False in the compiler parameters, or use a"
      " 32-bit Ref.",
    )


def check_words(ctx, region: Region, dtype, update: Update) -> None:
  """Raises unless the elements of a region can be accessed one by one."""
  tiled, lanes = sc_indexed.is_tc_tiling(), sc_indexed.lanes()
  packing = tpu_values.packing(dtype)
  size, shape = lanes * packing, region.natural_shape
  passes = ctx.lowering_context.needs_layout_passes
  wanted = f"{dtype} elements of a Ref of shape {region.shape} by this index"
  if shape and (
    len(shape) > 1
    or (shape[0] % size if passes else shape != (size,))
    or (region.int_shape and not passes)
  ):
    raise sc_indexed.refuse(
      update,
      f"a region of shape {shape} of {dtype}",
      f"a vector has {size} of them"
      + (", and their indices take several" if region.int_shape else ""),
      f"Access {size} elements, or blocks of ({packing}, {lanes}) at multiples"
      " of that in VMEM under TensorCore tiling; index arrays need"
      " needs_layout_passes=True.",
    )
  if tiled and region.shape[-2] % packing:
    raise sc_indexed.refuse(
      update,
      wanted,
      f"{packing} neighbouring rows share words, and the last words are not"
      " whole",
      f"Make the rows a multiple of {packing}.",
    )
  if passes and not sc_words.HAS_BITCAST:
    raise sc_indexed.refuse(
      update,
      wanted,
      "before jax 0.12 the layout passes do not know vectors of words as such"
      " of narrower elements",
      "Set needs_layout_passes=False in the compiler parameters.",
    )


def access(
  ref: Any, region: Region, update: Update, element: Any = None
) -> Any | None:
  """Applies an update to elements one by one.

  Args:
    ref: The Ref.
    region: Where in it.
    update: What to do.
    element: As `sc_words.update_element`, which is for VMEM.

  Returns:
    The old value, or None if it is not wanted.
  """
  element = element or sc_words.update_element
  if region.natural_shape:
    return tpu_region.in_passes(
      region, update, functools.partial(_vector, ref, region, element)
    )

  def one(part: Update):
    return element(ref, region.indices, part)

  bits = update.replace(operands=tuple(map(sc_words.bits_of, update.operands)))
  if update.mask is None:
    word = one(bits)
  else:
    word = tpu_copies.masked_scalar(bits, np.dtype(np.int32), one)
  return None if word is None else sc_words.scalar_of(word, ref.dtype)


def access_words(ref: Any, region: Region, update: Update) -> Any | None:
  """Applies an update to whole words; a masked region `is_whole`."""
  if update.mask is not None:
    region = _inside(region)
  view = tpu_windows.at(ref, region.indices, region)
  old: Any = None
  if update.is_load or update.reads or update.mask is not None:
    old = state_primitives.ref_get(view)
  if not update.is_load:
    new = _combine(update, old, update.operands)
    if update.mask is not None:
      new = lax.select(update.mask, new, old)
    state_primitives.ref_set(view, None, new)
  return update.masked(old) if update.need_old else None


def _combine(update: Update, old, operands):
  if update.op is AtomicOp.XCHG:
    return operands[0]
  return semantics.combine(update.op, old, *operands)


def _vector(ref, region: Region, element, update: Update):
  """One element after the other, all that they need staged in memory."""
  [n] = region.natural_shape
  dtype = ref.dtype
  packing, width = tpu_values.packing(dtype), 8 * dtype.itemsize
  # What a load returns where it is masked off does not go through memory.
  operands = () if update.is_load else update.operands
  staged = {
    f"operand{k}": sc_words.bitcast(x, jnp.int32)
    for k, x in enumerate(operands)
  }
  if update.mask is not None:
    narrow = sc_words.integer_of(dtype)
    one, zero = jnp.full((n,), 1, narrow), jnp.full((n,), 0, narrow)
    flags = lax.select(update.mask, one, zero)
    staged["mask"] = sc_words.bitcast(flags, jnp.int32)
  for d in region.arrays:
    staged[f"index{d}"] = region.indices[d]
  if update.need_old:
    staged["old"] = jnp.zeros((n // packing,), jnp.int32)

  def body(**refs):
    for name, x in staged.items():
      refs[name][...] = x

    def step(k):
      if update.reverse:
        k = n - 1 - k
      word_at, shift = sc_words.word_of(k, packing), (k & (packing - 1)) * width

      def staged_at(name):
        return load.load(refs[name], word_at) >> shift

      def index_at(d, index):
        if d in region.arrays:
          return load.load(refs[f"index{d}"], k)
        if isinstance(index, Slice):
          return index.start + k * index.stride
        return index

      def act():
        part = update.replace(
          mask=None,
          operands=tuple(
            staged_at(f"operand{i}") for i in range(len(operands))
          ),
        )
        indices = [index_at(d, i) for d, i in enumerate(region.indices)]
        old = element(ref, indices, part)
        if old is not None:
          bits = (old & np.int32((1 << width) - 1)) << shift
          word = load.load(refs["old"], word_at)
          swap.store(refs["old"], word_at, word | bits)

      if update.mask is None:
        act()
      else:
        pl.when(staged_at("mask") & 1 != 0)(act)

    pl.loop(0, n)(step)
    if not update.need_old:
      return None
    return update.masked(sc_words.bitcast(refs["old"][...], dtype))

  return pl.run_scoped(
    body, **{name: pltpu.VMEM(x.shape, jnp.int32) for name, x in staged.items()}
  )
