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
"""A SparseCore kernel that applies updates to rows of a table in HBM.

A row is some 128 words of 32 bits. Of those updates that `sc_updates` lists for
a subcore it applies a batch at a time: all rows and operands of the batch are
copied to its VMEM at once, updated one after the other, and copied back. A row
that is updated several times is brought once for each of them, but all work on
what was brought for the first, and only that is copied back.
"""

from __future__ import annotations

import functools

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
from jax_swapext._src.pallas import tpu_values
from jax_swapext._src.xla import sc_updates

Plan = sc_updates.Plan


def vmem_words(plan: Plan, operands: int, row: int) -> int:
  """What a subcore needs of its VMEM, for rows of so many elements."""
  rows = 1 + operands + plan.need_old
  return plan.batch * rows * row + 4 * plan.block + 2 * plan.batch


def update_rows(
    plan: Plan, x: jax.Array, idx: jax.Array, *operands: jax.Array
) -> list[jax.Array]:
  """Applies updates to a table of rows.

  Args:
    plan: how.
    x: the table, `(t, row)`; 32-bit elements, `row` a multiple of 128.
    idx: int32 indices of `n` updates and more, in whole blocks; negative where
      nothing is to be updated.
    *operands: `(n, row)` each.

  Returns:
    `[old, x]`, or `[x]` if no old rows are wanted.
  """
  vmem, smem = pltpu.VMEM, pltpu.SMEM
  rows = (plan.batch, x.shape[1])
  olds = [jnp.zeros_like(operands[0])] * plan.need_old
  scratch = dict(
      buffer=vmem((2 * plan.block,), sc_updates.INT),
      listed=sc_updates.lists(plan),
      row_of=smem((plan.batch,), sc_updates.INT),
      place_of=smem((plan.batch,), sc_updates.INT),
      first_of=smem((plan.batch,), sc_updates.INT),
      rows=vmem(rows, x.dtype),
      values=[vmem(rows, v.dtype) for v in operands],
      old_rows=[vmem(rows, x.dtype)] * plan.need_old,
      loaded=pltpu.SemaphoreType.DMA((2,)),
      copied=pltpu.SemaphoreType.DMA,
  )
  return sc_updates.call(
      plan, functools.partial(_kernel, plan, len(operands)),
      [jax.typeof(a) for a in (*olds, x)], (*olds, x, idx, *operands),
      {k: k for k in range(len(olds) + 1)}, **scratch,
  )


def _kernel(plan, count, *refs, buffer, listed, row_of, place_of, first_of,
            rows, values, old_rows, loaded, copied):
  """What one subcore does; the results start as what they are aliases of."""
  outs = 1 + plan.need_old
  idx, *sources = refs[outs : outs + 1 + count]
  *old, table = refs[-outs:]
  lanes, batch = plan.lanes, plan.batch
  start = sc_updates.worker(plan) * plan.part

  def each_row(size, act):
    def step(j, _):
      act(j)

    lax.fori_loop(0, size, step, None)

  def loads(j):
    pairs = [(table, row_of, rows)]
    pairs += [(v, place_of, b) for v, b in zip(sources, values, strict=True)]
    return [
        pltpu.make_async_copy(
            ref.at[pl.ds(at[j], 1)], buffer.at[pl.ds(j, 1)], copied
        )
        for ref, at, buffer in pairs
    ]

  def push(j, source, target, at):
    return sc_updates.push(
        source.at[pl.ds(j, 1)], target.at[pl.ds(at[j], 1)], copied
    )

  def pushes(j, act):
    pl.when(first_of[j] == j)(lambda: act(push(j, rows, table, row_of)))
    for source, target in zip(old_rows, old, strict=True):
      act(push(j, source, target, place_of))

  def update(j):
    first = first_of[j]

    def step(k, _):
      at = sc_updates.vector(plan, k)
      row = rows[first, at]
      for ref in old_rows:
        ref[j, at] = row
      rows[first, at] = tpu_values.combine(
          plan.op, row, [v[j, at] for v in values]
      )

    sc_updates.independently(rows.shape[1] // lanes, step)

  def run(b, at, offset):
    del b  # Unused.
    listed_count = sc_updates.list_updates(plan, buffer, offset, start, listed)

    def in_batch(k, _):
      done = k * batch
      _note(plan, listed, done, start, at, row_of, place_of, first_of)
      size = jnp.minimum(listed_count - done, batch)
      each_row(size, lambda j: [c.start() for c in loads(j)])
      each_row(size, lambda j: [c.wait() for c in loads(j)])
      each_row(size, update)
      each_row(size, lambda j: pushes(j, lambda copy: copy.start()))
      each_row(size, lambda j: pushes(j, lambda copy: copy.wait()))

    lax.fori_loop(0, sc_updates.pieces(listed_count, batch), in_batch, None)

  sc_updates.in_blocks(plan, [idx], [buffer], loaded, run)


def _note(plan, listed, done, start, at, row_of, place_of, first_of):
  """Notes of each update of a batch its row, its place, and the first one.

  The first one of those with the same row is meant; behind the last update of a
  batch stands anything.
  """
  lanes, batch = plan.lanes, plan.batch
  lane = lax.iota(sc_updates.INT, lanes)
  vectors = [
      tuple(r[sc_updates.vector(plan, k, done)] for r in listed)
      for k in range(batch // lanes)
  ]
  for k, (position, place) in enumerate(vectors):
    for j in range(lanes):
      row_of[k * lanes + j] = position[j] + start
      place_of[k * lanes + j] = place[j] + at

  def meet(j, firsts):
    j = batch - 1 - j
    row = row_of[j] - start
    return tuple(
        jnp.where(position == row, jnp.full(lanes, j), first)
        for (position, _), first in zip(vectors, firsts, strict=True)
    )

  firsts = tuple(lane + k * lanes for k in range(len(vectors)))
  firsts = lax.fori_loop(0, batch, meet, firsts)
  for k, first in enumerate(firsts):
    for j in range(lanes):
      first_of[k * lanes + j] = first[j]
