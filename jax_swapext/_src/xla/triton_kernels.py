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
"""Triton kernels of `fetch_update_p`: importing this imports Triton.

The table is `rows` rows of `columns` elements, row-major; there are `n` updates
of a row each. A program takes a tile of ROWS updates by COLUMNS columns.
Parameters in capitals are static; `DTYPE` is what elements are seen as, `OP`
the value of an AtomicOp. Offsets are of 64 bits, indices of 32.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _combine(OP: tl.constexpr, DTYPE: tl.constexpr, old, a, b):
  """`semantics.combine`, of `a` and, for CAS and ADD_OR_SET, `b`."""
  if OP == "xchg":
    return a
  elif OP == "cas":
    return tl.where(old == a, b, old)
  elif OP == "and":
    return old & a
  elif OP == "or":
    return old | a
  elif OP == "xor":
    return old ^ a
  # 32 bits hold the sum of two 16-bit floats well enough to be rounded again.
  NARROW: tl.constexpr = DTYPE == tl.float16 or DTYPE == tl.bfloat16
  x = old.to(tl.float32) if NARROW else old
  y = a.to(tl.float32) if NARROW else a
  if OP == "add":
    return (x + y).to(DTYPE)
  elif OP == "add_or_set":
    return (tl.where(b, 0, x) + y).to(DTYPE)
  # Where neither is a NaN these are plain comparisons; where one is, it wins.
  wins = y > x if OP == "max" else y < x
  if DTYPE.is_floating():
    wins = (wins | (y != y)) & (x == x)
  return tl.where(wins, a, old)


@triton.jit
def _rows(idx, mask, k, inside, rows, MASKED: tl.constexpr):
  """The rows of updates `k`, and which of these are to be done."""
  row = tl.load(idx + k, mask=inside, other=rows)
  row = tl.where(row < 0, row + rows, row)
  ok = (row >= 0) & (row < rows)
  if MASKED:
    ok = ok & tl.load(mask + k, mask=inside, other=0).to(tl.int1)
  return row, ok


@triton.jit
def _operands(a, b, there, ok, OP: tl.constexpr, DTYPE: tl.constexpr):
  """What `_combine` takes beside the old elements."""
  a = a.to(tl.pointer_type(DTYPE), bitcast=True)
  value = tl.load(a + there, mask=ok, other=0)
  if OP == "add_or_set":
    return value, tl.load(b + there, mask=ok, other=0).to(tl.int1)
  elif OP == "cas":
    b = b.to(tl.pointer_type(DTYPE), bitcast=True)
    return value, tl.load(b + there, mask=ok, other=0)
  else:
    return value, value


@triton.jit
def in_any_order(
    x, idx, a, b, mask, old, n, rows, columns,
    OP: tl.constexpr, DTYPE: tl.constexpr, BITS: tl.constexpr,
    METHOD: tl.constexpr, MASKED: tl.constexpr, NEED_OLD: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):
  """Every element on its own.

  METHOD is "plain" (no index repeats: a load and a store), "rmw" or "cas" (one
  atomic instruction), or "loop" (compare-and-swap of the word of 32 or 64 bits
  that holds the element, until no other update came between).
  """
  blocks = tl.cdiv(columns, COLUMNS)
  k = tl.program_id(0) // blocks * ROWS + tl.arange(0, ROWS)[:, None]
  column = tl.program_id(0) % blocks * COLUMNS + tl.arange(0, COLUMNS)[None, :]
  row, ok = _rows(idx, mask, k, k < n, rows, MASKED)
  here = (k < n) & (column < columns)
  ok = ok & here
  at = row.to(tl.int64) * columns + column
  there = k.to(tl.int64) * columns + column
  value, second = _operands(a, b, there, ok, OP, DTYPE)

  x = x.to(tl.pointer_type(DTYPE), bitcast=True)
  if METHOD == "plain":
    held = tl.load(x + at, mask=ok, other=0)
    tl.store(x + at, _combine(OP, DTYPE, held, value, second), mask=ok)
  elif METHOD == "rmw":
    if OP == "add":
      held = tl.atomic_add(x + at, value, mask=ok, sem="relaxed")
    elif OP == "max":
      held = tl.atomic_max(x + at, value, mask=ok, sem="relaxed")
    elif OP == "min":
      held = tl.atomic_min(x + at, value, mask=ok, sem="relaxed")
    elif OP == "and":
      held = tl.atomic_and(x + at, value, mask=ok, sem="relaxed")
    elif OP == "or":
      held = tl.atomic_or(x + at, value, mask=ok, sem="relaxed")
    elif OP == "xor":
      held = tl.atomic_xor(x + at, value, mask=ok, sem="relaxed")
    else:
      held = tl.atomic_xchg(x + at, value, mask=ok, sem="relaxed")
  else:
    # Triton's compare-and-swap takes no mask. An element that is not to be
    # updated replaces zero by zero instead, somewhere inside the table.
    at = tl.where(ok, at, tl.minimum(k, rows - 1).to(tl.int64) * columns)
    if METHOD == "cas":
      held = tl.atomic_cas(x + at, value, second, sem="relaxed")
    else:
      held = _update_words(x, at, ok, value, second, OP, DTYPE, BITS)
  if NEED_OLD:
    old = old.to(tl.pointer_type(DTYPE), bitcast=True)
    tl.store(old + there, tl.where(ok, held, 0).to(DTYPE), mask=here)


@triton.jit
def _update_words(
    x, at, ok, value, second,
    OP: tl.constexpr, DTYPE: tl.constexpr, BITS: tl.constexpr,
):
  """The elements before their update through the words around them."""
  FIELD: tl.constexpr = tl.core.get_int_dtype(BITS, False)
  WORD: tl.constexpr = tl.uint64 if BITS == 64 else tl.uint32
  PER_WORD: tl.constexpr = 32 // BITS if BITS < 32 else 1
  words = x.to(tl.pointer_type(WORD), bitcast=True) + at // PER_WORD
  shift = (at % PER_WORD * BITS).to(WORD)
  ones = tl.full(at.shape, (1 << BITS) - 1, WORD) << shift
  # The first guess at a word is 0: a wrong one costs what a load would.
  guess = tl.zeros(at.shape, WORD)
  held = tl.zeros(at.shape, FIELD)
  while tl.max(tl.max(ok.to(tl.int32), 1), 0) > 0:
    field = (guess >> shift).to(FIELD)
    new = _combine(
        OP, DTYPE, field.to(DTYPE, bitcast=True), value, second
    ).to(FIELD, bitcast=True)
    word = (guess & ~ones) | (new.to(WORD) << shift)
    seen = tl.atomic_cas(
        words, tl.where(ok, guess, 0), tl.where(ok, word, 0), sem="relaxed"
    )
    done = ok & (seen == guess)
    held = tl.where(done, field, held)
    ok = ok & (seen != guess)
    guess = seen
  return held.to(DTYPE, bitcast=True)


@triton.jit
def _latest(x, y):
  return tl.maximum(x, y)


@triton.jit
def _from(x, lane, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
  """`x` with its rows taken from other lanes."""
  # In one dimension, where Triton goes through shared memory. With two of them
  # it shuffles whole columns inside every warp: 10^4 instructions and more.
  SIZE: tl.constexpr = ROWS * COLUMNS
  lane = tl.maximum(lane, 0)[:, None] * COLUMNS
  index = tl.reshape(lane + tl.arange(0, COLUMNS)[None, :], (SIZE,))
  flat = tl.gather(tl.reshape(x, (SIZE,)), index, 0)
  return tl.reshape(flat, (ROWS, COLUMNS))


@triton.jit
def _sorted(key, lane, ROWS: tl.constexpr):
  """`key` in ascending order, by a bitonic network.

  A loop of exchanges, for `tl.sort` unrolls them all: 4096 keys would take it
  minutes to compile.
  """
  size = 2
  while size <= ROWS:
    stride = size // 2
    while stride > 0:
      other = tl.gather(key, lane ^ stride, 0)
      lower = ((lane & stride) == 0) == ((lane & size) == 0)
      key = tl.where((key < other) == lower, key, other)
      stride //= 2
    size *= 2
  return key


@triton.jit
def in_index_order(
    x, turns, idx, a, b, mask, old, n, rows, columns,
    OP: tl.constexpr, DTYPE: tl.constexpr, SCAN: tl.constexpr,
    REVERSE: tl.constexpr, MASKED: tl.constexpr, NEED_OLD: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):
  """One tile of updates after another, in order; tiles work ahead.

  A tile sorts its updates by row and combines those of one row, while others
  do the same. Then it waits for its turn, exchanges the results with the table,
  and passes the turn on. With SCAN a row's updates are combined as a tree, for
  which OP has to be exactly associative; without, one by one once the element
  is known.

  `turns` starts as zeros. For each block of columns it holds the number of
  tiles given out, and then a flag for each tile that is done. A tile is given
  out to a program that runs already, so whatever the hardware's order of
  programs, the tile before it is at work or done.
  """
  blocks = tl.cdiv(columns, COLUMNS)
  block = tl.program_id(0) % blocks
  turns += block * (tl.cdiv(n, ROWS) + 1)
  turn = tl.atomic_add(turns, 1, sem="relaxed")
  lane = tl.arange(0, ROWS)
  k = turn * ROWS + lane
  if REVERSE:
    k = n - 1 - k
  row, ok = _rows(idx, mask, k, (k >= 0) & (k < n), rows, MASKED)

  # Those that are not to be done go to the end.
  key = tl.where(ok, row, rows).to(tl.int64) * ROWS + lane
  key = _sorted(key, lane, ROWS)
  row = key // ROWS
  before = tl.gather(row, tl.maximum(lane - 1, 0), 0)
  after = tl.gather(row, tl.minimum(lane + 1, ROWS - 1), 0)
  first = (lane == 0) | (row != before)
  last = (lane == ROWS - 1) | (row != after)
  ok = row < rows
  rank = lane - tl.associative_scan(tl.where(first, lane, 0), 0, _latest)
  most = tl.max(tl.where(ok, rank, 0), 0)
  k = turn * ROWS + (key % ROWS).to(tl.int32)
  if REVERSE:
    k = n - 1 - k

  column = (block * COLUMNS + tl.arange(0, COLUMNS))[None, :]
  inside = ((k >= 0) & (k < n))[:, None] & (column < columns)
  at = row[:, None] * columns + column
  there = k.to(tl.int64)[:, None] * columns + column
  ok = ok[:, None] & inside
  rank = rank[:, None]
  value, second = _operands(a, b, there, ok, OP, DTYPE)

  prefix = value
  if SCAN:
    # Of the updates of this row before this one: first one of them, then two.
    prefix = _from(value, lane - 1, ROWS, COLUMNS)
    step = 1
    while step < most:
      earlier = _from(prefix, lane - step, ROWS, COLUMNS)
      more = _combine(OP, DTYPE, earlier, prefix, prefix)
      prefix = tl.where(rank > step, more, prefix)
      step *= 2

  # The flag of the tile before; for the first tile this is the counter, and by
  # now not zero. One thread executes this atomic and the last one; the barriers
  # make them order what all threads read and write in between.
  while tl.atomic_add(turns + turn, 0, sem="acquire") == 0:
    pass
  tl.debug_barrier()
  x = x.to(tl.pointer_type(DTYPE), bitcast=True)
  held = tl.load(x + at, mask=ok, other=0)
  if SCAN:
    more = _combine(OP, DTYPE, held, prefix, prefix)
    held = tl.where(rank > 0, more, held)
  else:
    for done in range(most):
      new = _combine(OP, DTYPE, held, value, second)
      earlier = _from(new, lane - 1, ROWS, COLUMNS)
      held = tl.where(rank == done + 1, earlier, held)
  new = _combine(OP, DTYPE, held, value, second)
  # Every lane reads the table, and one for each row writes it.
  tl.debug_barrier()
  tl.store(x + at, new, mask=ok & last[:, None])
  tl.debug_barrier()
  tl.atomic_xchg(turns + turn + 1, 1, sem="release")
  if NEED_OLD:
    old = old.to(tl.pointer_type(DTYPE), bitcast=True)
    tl.store(old + there, tl.where(ok, held, 0).to(DTYPE), mask=inside)
