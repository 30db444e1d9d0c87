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
"""The words that hold elements of 8 and 16 bits in a subcore's VMEM.

An element's bits travel as int32 scalars: the scalar unit has words only. They
meet in vectors of packed elements, on which the vector unit computes.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import Any

import jax
from jax import lax
from jax._src.pallas.mosaic import sc_core
from jax._src.state import primitives as state_primitives  # get, set on views
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
from jax_swapext._src import compat
from jax_swapext._src import load
from jax_swapext._src import semantics
from jax_swapext._src import swap
from jax_swapext._src.pallas import sc_indexed
from jax_swapext._src.pallas import tpu_region
from jax_swapext._src.pallas import tpu_values
import numpy as np

AtomicOp = semantics.AtomicOp
Slice = compat.Slice
Update = tpu_region.Update

# Whether vectors change their element type with layout passes, too.
HAS_BITCAST = hasattr(sc_core, "SparseCorePushStreamWarning")


def integer_of(dtype) -> np.dtype:
  return np.dtype(f"int{8 * np.dtype(dtype).itemsize}")


def bits_of(x: Any) -> Any:
  """A scalar's representation, as int32."""
  if jnp.issubdtype(x.dtype, jnp.floating):
    x = lax.bitcast_convert_type(x, integer_of(x.dtype))
  return x.astype(jnp.int32)


def scalar_of(word: Any, dtype) -> Any:
  """The scalar that the lowest bits of a word represent."""
  if not jnp.issubdtype(dtype, jnp.floating):
    return word.astype(dtype)
  return lax.bitcast_convert_type(word.astype(integer_of(dtype)), dtype)


def bitcast(x: Any, dtype) -> Any:
  """A vector of words as packed elements, or the other way round."""
  # Drop the other branch once jax >= 0.12.
  if HAS_BITCAST:
    return pltpu.bitcast(x, dtype, dim=-1)
  from jax.experimental.pallas import tpu_sc as plsc

  return plsc.bitcast(x, dtype)


def _repeated(bits: Any, dtype) -> Any:
  """A word with an element's representation in each of its parts."""
  width = 8 * np.dtype(dtype).itemsize
  word = bits & np.int32((1 << width) - 1)
  while width < 32:
    word = word | word << np.int32(width)
    width *= 2
  return word


@dataclasses.dataclass(frozen=True)
class _Word:
  """The word that holds an element, among the lanes of a vector of words.

  Attributes:
    words: int32[lanes], as they are.
    part: Which of the word's parts the element is.
    here: bool[lanes], where the word is; None: everywhere.
    put: Writes the vector back.
    pick: The word as a scalar.
  """

  words: Any
  part: Any
  here: Any
  put: Callable[[Any], None]
  pick: Callable[[], Any]


def _tiled_word(ref, indices) -> _Word:
  """Under TensorCore tiling rows share words, so there is a Ref of words."""
  *lead, row, lane = indices
  packing = tpu_values.packing(ref.dtype)
  view = ref.bitcast(jnp.int32)
  # All lanes access the one word.
  lanes = jnp.full((sc_indexed.lanes(),), lane, jnp.int32)
  at = (*lead, word_of(row, packing), lanes)
  words = load.load(view, at)
  return _Word(
    words,
    row & (packing - 1),
    None,
    lambda new: swap.store(view, at, new),
    lambda: words[0],
  )


def _linear_word(ref, region_shape, indices) -> _Word:
  """Otherwise neighbours do: the word comes with an aligned vector of them."""
  *lead, at = indices
  packing, lanes = tpu_values.packing(ref.dtype), sc_indexed.lanes()
  size, extent = packing * lanes, region_shape[-1]
  if tpu_region.is_static(at):
    first = min(at & -size, extent - size)
  else:
    first = at & np.int32(-size)
    if extent % size:
      first = lax.min(first, np.int32(extent - size))
    first = pl.multiple_of(first, packing)
  offset = at - first
  indexer = compat.NDIndexer((*lead, Slice(first, size)), region_shape, ())
  view = compat.TransformedRef(ref, (indexer,))
  words = bitcast(state_primitives.ref_get(view), jnp.int32)
  lane = word_of(offset, packing)

  def pick():
    def body(scratch):
      scratch[...] = words
      return load.load(scratch, lane)

    return pl.run_scoped(body, pltpu.VMEM((lanes,), jnp.int32))

  return _Word(
    words,
    offset & (packing - 1),
    lax.iota(np.int32, lanes) == lane,
    lambda new: state_primitives.ref_set(view, None, bitcast(new, ref.dtype)),
    pick,
  )


def word_of(x: Any, packing: int) -> Any:
  return x >> (1 if packing == 2 else 2)


def update_element(ref, indices, update: Update) -> Any | None:
  """Applies an update to one element; values are int32 representations.

  Returns:
    A word whose lowest bits are the old value, or None if it is not wanted.
  """
  dtype, shape = ref.dtype, jax.typeof(ref).shape
  if sc_indexed.is_tc_tiling():
    word = _tiled_word(ref, indices)
  else:
    word = _linear_word(ref, shape, indices)
  width = 8 * dtype.itemsize
  shift = jnp.int32(word.part * width)
  old = word.pick() >> shift if update.need_old else None
  if update.is_load:
    return old
  splats = [
    jnp.full(word.words.shape, _repeated(x, dtype)) for x in update.operands
  ]
  if update.op is AtomicOp.XCHG:
    [new] = splats
  else:
    packed = [bitcast(x, dtype) for x in (word.words, *splats)]
    new = bitcast(semantics.combine(update.op, *packed), jnp.int32)
  field = jnp.full(word.words.shape, jnp.int32((1 << width) - 1) << shift)
  if word.here is not None:
    field = jnp.where(word.here, field, jnp.zeros_like(field))
  word.put(word.words ^ ((word.words ^ new) & field))
  return old
