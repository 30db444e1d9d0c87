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
"""What `fetch_*` is for: five real uses, each a few lines.

They are meant to be read and copied, and they are tested. All of them are pure
functions of arrays that work under `jit`, `vmap` and sharding; where an update
has to be in place, donate the array that is updated.

Example:
  >>> import jax.numpy as jnp
  >>> from jax_swapext import examples
  >>> examples.expert_positions(jnp.array([2, 0, 2, 2]), 3)
  (Array([0, 0, 1, 2], dtype=int32), Array([1, 0, 3], dtype=int32))
"""

from __future__ import annotations

from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jax.typing import DTypeLike
import jax_swapext as jsx
import numpy as np


def expert_positions(
    expert: jax.Array, num_experts: int
) -> tuple[jax.Array, jax.Array]:
  """Numbers the tokens of each expert of a mixture, in the order of the tokens.

  A counter per expert hands out tickets, which needs memory for the tokens and
  the experts, where a cumulative sum of a one-hot matrix needs their product.

  Args:
    expert: int array of shape ``(tokens,)``; outside ``[0, num_experts)`` for
      a token that goes to no expert, which must not be negative.
    num_experts: how many experts there are.

  Returns:
    int32 arrays ``(position, count)``: of shape ``(tokens,)``, how many earlier
    tokens have the same expert; and of shape ``(num_experts,)``, how many have
    it altogether.
  """
  return jsx.fetch_add(jnp.zeros(num_experts, np.int32), expert, 1)


def dispatch(
    x: jax.Array, expert: jax.Array, num_experts: int, capacity: int
) -> tuple[jax.Array, jax.Array]:
  """Sorts tokens into a buffer for each expert; later ones may not fit.

  Args:
    x: ``(tokens, features)``.
    expert: as for :func:`expert_positions`.
    num_experts: how many experts there are.
    capacity: rows of each expert's buffer.

  Returns:
    ``(buffers, slot)``: the buffers, of shape ``(num_experts, capacity,
    features)``, zero where no token is; and int32 of shape ``(tokens,)``, the
    row of ``buffers.reshape(-1, features)`` that has the token, past its end
    for a token that did not fit.
  """
  position, _ = expert_positions(expert, num_experts)
  rows = num_experts * capacity
  fits = (position < capacity) & (expert < num_experts)
  slot = jnp.where(fits, expert * capacity + position, rows).astype(np.int32)
  buffers = jnp.zeros((rows, x.shape[1]), x.dtype)
  buffers = buffers.at[slot].set(x, mode="drop", unique_indices=True)
  return buffers.reshape(num_experts, capacity, x.shape[1]), slot


def bincount(x: jax.Array, length: int) -> jax.Array:
  """How often each of the integers below `length` occurs in `x`.

  Args:
    x: ints of any shape, none negative; larger ones are not counted.
    length: how many integers are counted.

  Returns:
    int32 array of shape ``(length,)``.
  """
  _, count = jsx.fetch_add(jnp.zeros(length, np.int32), x, 1)
  return count


def embedding_gradient(
    token: jax.Array, gradient: jax.Array, vocabulary: int
) -> jax.Array:
  """Sums the gradients of the rows of an embedding that tokens have used.

  The sums are taken in the order of the tokens, so they come out the same to
  the last bit every time and on every platform.

  Args:
    token: int array of shape ``(tokens,)``, the rows that were used.
    gradient: ``(tokens, features)``, of the rows as they were used.
    vocabulary: how many rows the embedding has.

  Returns:
    ``(vocabulary, features)``.
  """
  rows = jnp.zeros((vocabulary, gradient.shape[1]), gradient.dtype)
  _, rows = jsx.fetch_add(rows, token, gradient)
  return rows


# ## A cache of keys and values in pages


class PagedCache(NamedTuple):
  """A cache of keys or values for sequences of any length, in pages.

  Attributes:
    pages: ``(pages, page_size, features)``.
    table: int32 ``(sequences, pages_per_sequence)``: each sequence's pages.
    length: int32 ``(sequences,)``: how many rows each sequence has.
    free: int32 ``(pages,)``: a stack of pages; those from `taken` on are free.
    taken: int32 ``(1,)``: how many pages have been given out.
  """

  pages: jax.Array
  table: jax.Array
  length: jax.Array
  free: jax.Array
  taken: jax.Array

  @classmethod
  def empty(
      cls, pages: int, page_size: int, features: int, sequences: int,
      pages_per_sequence: int, dtype: DTypeLike = np.float32,
  ) -> PagedCache:
    """A cache of `sequences` without rows."""
    return cls(
        pages=jnp.zeros((pages, page_size, features), dtype),
        table=jnp.zeros((sequences, pages_per_sequence), np.int32),
        length=jnp.zeros(sequences, np.int32),
        free=jnp.arange(pages, dtype=np.int32),
        taken=jnp.zeros(1, np.int32),
    )


def append(
    cache: PagedCache, row: jax.Array, active: jax.Array
) -> tuple[PagedCache, jax.Array]:
  """Appends a row to each active sequence; one with full pages gets a new page.

  Donate `cache`: then its pages are updated in place.

  Args:
    cache: the cache.
    row: ``(sequences, features)``.
    active: bool ``(sequences,)``: which sequences get their row.

  Returns:
    ``(cache, written)``: the new cache; and bool ``(sequences,)``, which rows
    were written: not those for which the cache or the sequence has no page.
  """
  pages, page_size, _ = cache.pages.shape
  sequences, per_sequence = cache.table.shape
  number, offset = jnp.divmod(cache.length, page_size)
  active &= number < per_sequence
  # Whoever needs a page draws a ticket: one counter, many draws.
  needs = active & (offset == 0)
  ticket, taken = jsx.fetch_add(
      cache.taken, jnp.zeros(sequences, np.int32), 1, mask=needs
  )
  written = active & ~(needs & (ticket >= pages))
  given = cache.free.at[ticket].get(mode="clip")
  here = lax.iota(np.int32, sequences), jnp.minimum(number, per_sequence - 1)
  page = jnp.where(needs, given, cache.table[here])
  return PagedCache(
      pages=cache.pages.at[jnp.where(written, page, pages), offset].set(
          row, mode="drop", unique_indices=True
      ),
      table=cache.table.at[here].set(
          jnp.where(written, page, cache.table[here]), unique_indices=True
      ),
      length=cache.length + written,
      free=cache.free,
      taken=jnp.minimum(taken, pages),
  ), written


def release(cache: PagedCache, done: jax.Array) -> PagedCache:
  """Empties the sequences that are `done` and frees their pages.

  Args:
    cache: the cache.
    done: bool ``(sequences,)``.

  Returns:
    The new cache.
  """
  pages, page_size, _ = cache.pages.shape
  used = -(-cache.length // page_size)
  number = lax.broadcasted_iota(np.int32, cache.table.shape, 1)
  back = done[:, None] & (number < used[:, None])
  ticket, returned = jsx.fetch_add(
      jnp.zeros(1, np.int32), jnp.zeros(back.shape, np.int32), 1, mask=back
  )
  place = jnp.where(back, cache.taken - 1 - ticket, pages)
  return cache._replace(
      length=jnp.where(done, 0, cache.length),
      free=cache.free.at[place].set(
          cache.table, mode="drop", unique_indices=True
      ),
      taken=cache.taken - returned,
  )


# ## A hash table that all keys are put into at once

EMPTY = np.int32(-1)


def hash_insert(
    table: jax.Array, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
  """Puts keys into a hash table, all at once, with linear probing.

  Every key tries to exchange an empty slot for itself. Those that find another
  key there try the next slot.

  Args:
    table: int32 of shape ``(slots,)``, a power of two. Free slots have
      :data:`EMPTY`.
    key: int32 of shape ``(keys,)``, none negative. They may repeat.

  Returns:
    ``(table, slot)``: the new table, and int32 of shape ``(keys,)``, where each
    key is; -1 if the table was full.

  Raises:
    ValueError: the number of slots is no power of two.
  """

  def probe(state):
    table, slot, todo, tries = state
    # In whatever order keys come to a free slot, one of them gets it.
    old, table = jsx.fetch_cas(
        table, slot, EMPTY, key, mask=todo, order="any"
    )
    todo &= (old != EMPTY) & (old != key)
    slot = jnp.where(todo, (slot + 1) % table.shape[0], slot)
    return table, slot, todo, tries + 1

  def unfinished(state):
    table, _, todo, tries = state
    return todo.any() & (tries < table.shape[0])

  todo = jnp.ones(key.shape, bool)
  table, slot, todo, _ = lax.while_loop(
      unfinished, probe, (table, _hash(key, table.shape[0]), todo, 0)
  )
  return table, jnp.where(todo, -1, slot)


def hash_find(table: jax.Array, key: jax.Array) -> jax.Array:
  """Where :func:`hash_insert` has put keys, or -1 for those it has not.

  Args:
    table: as for :func:`hash_insert`.
    key: int32 of shape ``(keys,)``, none negative.

  Returns:
    int32 of shape ``(keys,)``.
  """

  def probe(state):
    slot, todo, tries = state
    found = table[slot]
    todo &= (found != EMPTY) & (found != key)
    slot = jnp.where(todo, (slot + 1) % table.shape[0], slot)
    return slot, todo, tries + 1

  def unfinished(state):
    _, todo, tries = state
    return todo.any() & (tries < table.shape[0])

  start = _hash(key, table.shape[0])
  slot, _, _ = lax.while_loop(
      unfinished, probe, (start, jnp.ones(key.shape, bool), 0)
  )
  return jnp.where(table[slot] == key, slot, -1)


def _hash(key, slots):
  """The upper bits of a product with 2**32 / golden ratio."""
  if slots.bit_count() != 1:
    raise ValueError(
        f"hash table: wanted a power of two as number of slots, got {slots}"
    )
  bits = slots.bit_length() - 1
  mixed = lax.convert_element_type(key, np.uint32) * np.uint32(0x9E3779B9)
  # Two shifts: by 32 at once is undefined, for a table of one slot.
  return ((mixed >> 1) >> np.uint32(31 - bits)).astype(np.int32)
