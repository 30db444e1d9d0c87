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
"""A SparseCore kernel that applies updates to a table of 32-bit scalars.

Each vector subcore has a part of the table in its VMEM, and applies a vector of
those updates that `sc_updates` lists for it at a time.

It writes the old elements of its own updates among zeros into its own row of an
array. XLA adds up the rows, as integers: all of a sum but one are zero. For the
subcores may not write into one array: neighbouring words lie in one granule of
HBM, and nothing says that two subcores can each write to some of it.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
from typing import Any

import jax
from jax import lax
from jax._src.pallas.mosaic import sc_core
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
from jax_swapext._src import access
from jax_swapext._src import atomic_cas
from jax_swapext._src import atomic_rmw
from jax_swapext._src import load
from jax_swapext._src import semantics
from jax_swapext._src import swap
from jax_swapext._src.xla import sc_updates
import numpy as np

Plan = sc_updates.Plan


def vmem_words(plan: Plan, operands: int) -> int:
  """What a subcore needs of its VMEM."""
  buffers = 2 * (1 + operands + plan.need_old)
  return plan.part + buffers * plan.block + 2 * (plan.block + plan.lanes)


def update_scalars(
    plan: Plan, which: Any, x: jax.Array, idx: jax.Array, *operands: jax.Array
) -> list[jax.Array]:
  """Applies those updates that are in one stretch of `plan.elements` elements.

  Args:
    plan: how.
    which: the number of the stretch, an int32 scalar.
    x: the table, `(t,)`; 32-bit elements.
    idx: int32 `(n,)`, whole blocks; negative where nothing is to be updated.
    *operands: `(n,)` each.

  Returns:
    `[old, x]`, or `[x]` if no old elements are wanted. The old elements are the
    sums of the columns of `old`, of shape `(plan.workers, n)`.
  """
  vmem = pltpu.VMEM
  scratch = dict(
      table=vmem((plan.part,), x.dtype),
      buffers=[vmem((2 * plan.block,), a.dtype) for a in (idx, *operands)],
      listed=sc_updates.lists(plan),
      first=vmem((plan.lanes,), sc_updates.INT),
      loaded=pltpu.SemaphoreType.DMA((2,)),
      pushed=pltpu.SemaphoreType.DMA,
  )
  olds = []
  if plan.need_old:
    olds = [jax.typeof(x).update(shape=(plan.workers, *idx.shape))]
    scratch["old_buffer"] = vmem((2 * plan.block,), x.dtype)
  first = jnp.full(plan.lanes, which, sc_updates.INT) * np.int32(plan.elements)
  return sc_updates.call(
      plan, functools.partial(_kernel, plan), [*olds, jax.typeof(x)],
      (x, first, idx, *operands), {0: len(olds)}, **scratch,
  )


def _kernel(plan, x_ref, first_ref, *refs, table, buffers, listed, first,
            loaded, pushed, old_buffer: Any = None):
  """What one subcore does."""
  *sources, new_ref = refs
  old_ref: Any = sources.pop() if plan.need_old else None
  block, lanes = plan.block, plan.lanes
  worker = sc_updates.worker(plan)
  pltpu.sync_copy(first_ref, first)
  start = first[...][0] + worker * plan.part

  def push(at, offset):
    return sc_updates.push(
        old_buffer.at[pl.ds(pl.multiple_of(offset, block), block)],
        old_ref.at[worker, pl.ds(at, block)],
        pushed,
    )

  def clear(offset):
    zeros = jnp.zeros(lanes, table.dtype)

    def step(k, _):
      old_buffer[sc_updates.vector(plan, k, offset)] = zeros

    sc_updates.independently(block // lanes, step)

  def run(b, at, offset):
    count = sc_updates.list_updates(plan, buffers[0], offset, start, listed)
    if plan.need_old:
      clear(offset)

    def update(k, _):
      position, place = (r[sc_updates.vector(plan, k)] for r in listed)
      mask = lax.iota(sc_updates.INT, lanes) + k * lanes < count
      place += offset
      values = [load.load(v, place, mask=mask) for v in buffers[1:]]
      old = _update(plan, table, position, values, mask)
      if plan.need_old:
        swap.store(old_buffer, place, old, mask=mask)

    lax.fori_loop(0, sc_updates.vectors(plan, count), update, None)
    if plan.need_old:
      # Its predecessor has had all this time; and its buffer comes next.
      pl.when(b > 0)(lambda: push(at, block - offset).wait())
      push(at, offset).start()

  _with_part(x_ref, table, start, pltpu.sync_copy)
  sc_updates.in_blocks(plan, sources, buffers, loaded, run)
  if plan.need_old:
    push(0, 0).wait()

  def put_back(a, v):
    copy = sc_updates.push(v, a, pushed)
    copy.start()
    copy.wait()

  _with_part(new_ref, table, start, put_back)


def _with_part(whole, part, start, act: Callable[[Any, Any], None]):
  """Does something with the two views of what both of them have."""
  size = part.shape[0]
  full, rest = divmod(whole.shape[0], size)
  granule = sc_core.get_sparse_core_info().dma_granule_size_bytes // 4

  @pl.when(start + size <= full * size)
  def _():
    act(whole.at[pl.ds(pl.multiple_of(start, granule), size)], part)

  if rest:

    @pl.when(start == full * size)
    def _():
      act(whole.at[pl.ds(full * size, rest)], part.at[pl.ds(0, rest)])


def _update(plan, ref, position, values, mask):
  """Updates one vector of elements, of which some may be the same."""
  if plan.op is semantics.AtomicOp.CAS:
    return atomic_cas.atomic_cas(ref, position, *values, mask=mask)
  [value] = values
  name = f"atomic_{plan.op.value}"
  ref, update, _ = access.prepare(
      name, ref, position, mask, {"value": value}, plan.op
  )
  [old] = atomic_rmw.bind(ref, update, plan.op)
  return old
