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
"""What the SparseCore kernels of `fetch_update_p` share: finding updates.

The table is divided among the vector subcores. All updates pass by every
subcore, a block at a time, and it lists those of its part, in their order. So
each element is updated by one subcore and in order, and none has to wait for
another one. To look at an update takes less than an instruction, as a vector of
them is looked at at once; to apply it takes ten or a hundred, but is shared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
from typing import Any

import jax
from jax import lax
from jax._src import config  # the context manager of TPU interpret mode
from jax._src.pallas import mpmd  # `pl.kernel` has no aliases
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc
import jax.numpy as jnp
from jax_swapext._src import semantics
from jax_swapext._src import swap
from jax_swapext._src.pallas import sc_remote
import numpy as np

INT = np.dtype(np.int32)

_CORE, _SUBCORE = "core", "subcore"
_UNROLL = 8


@dataclasses.dataclass(frozen=True)
class Plan:
  """How a call goes about its table and its updates.

  Attributes:
    op, reverse, need_old: as for `fetch_update_p`.
    cores: how many SparseCores work on it.
    subcores: how many vector subcores each of them has.
    lanes: how many words a vector has there.
    part: how many elements `x[i]` each subcore has.
    block: how many updates it looks through at a time; a multiple of 128, and
      of 1024 if there are more.
    batch: how many rows it then updates at a time; 0 if the table has none.
  """

  op: semantics.AtomicOp
  reverse: bool
  need_old: bool
  cores: int
  subcores: int
  lanes: int
  part: int
  block: int
  batch: int = 0

  @property
  def workers(self) -> int:
    return self.cores * self.subcores

  @property
  def elements(self) -> int:
    """How many elements all subcores have."""
    return self.workers * self.part


def call(
    plan: Plan, body: Callable[..., None], out_types: Sequence[Any],
    arguments: Sequence[jax.Array], aliases: dict[int, int], **scratch: Any,
) -> list[jax.Array]:
  """Calls a kernel on all vector subcores.

  Args:
    plan: how.
    body: the kernel.
    out_types: types of the results.
    arguments: arrays, left in HBM.
    aliases: which of them become which results.
    **scratch: memory for the kernel's arguments of these names.
  """
  mesh = plsc.VectorSubcoreMesh(
      core_axis_name=_CORE, subcore_axis_name=_SUBCORE,
      num_cores=plan.cores, num_subcores=plan.subcores,
  )
  return mpmd._mpmd_map(
      [(mesh, body)],
      out_types,
      input_output_aliases=aliases,
      scratch_types=scratch,
      # The layout passes know no scan over the lanes.
      compiler_params=pltpu.CompilerParams(needs_layout_passes=False),
      interpret=_interpret_mode() or False,
      name=f"fetch_{plan.op.value}",
  )(*arguments)


def _interpret_mode():
  return config.pallas_tpu_interpret_mode_context_manager.value


def lists(plan: Plan) -> list[Any]:
  """The memory that `list_updates` fills."""
  # What is read at a time may end behind the last update.
  size = plan.block + max(plan.lanes, plan.batch)
  return [pltpu.VMEM((size,), INT)] * 2


def worker(plan: Plan) -> Any:
  """The number of the subcore among all of them."""
  return lax.axis_index(_CORE) * plan.subcores + lax.axis_index(_SUBCORE)


def in_blocks(
    plan: Plan, sources: Sequence[Any], buffers: Sequence[Any], loaded: Any,
    run: Callable[[Any, Any, Any], None],
) -> None:
  """Brings all updates to a subcore, block after block.

  Args:
    plan: how.
    sources: arrays in HBM, `(n,)`, in whole blocks.
    buffers: a buffer for two blocks of each.
    loaded: two semaphores for copies.
    run: is called with how many blocks came before, the number of the block's
      first update, and where in the buffers the block begins.
  """
  blocks = sources[0].shape[0] // plan.block

  def first(b):
    return part(blocks - 1 - b if plan.reverse else b, plan.block)

  def loads(b):
    slot = b & 1
    return [
        pltpu.make_async_copy(
            source.at[first(b)], buffer.at[part(slot, plan.block)],
            loaded.at[slot],
        )
        for source, buffer in zip(sources, buffers, strict=True)
    ]

  def step(b, _):
    for copy in loads(b):
      copy.wait()

    @pl.when(b + 1 < blocks)
    def _():
      for copy in loads(b + 1):
        copy.start()

    run(b, first(b).start, (b & 1) * plan.block)

  for copy in loads(0):
    copy.start()
  lax.fori_loop(0, blocks, step, None)


def list_updates(
    plan: Plan, idx: Any, offset: Any, start: Any, listed: Sequence[Any]
) -> Any:
  """Lists the updates that a block has for a subcore, in order.

  Args:
    plan: how.
    idx: the buffer of indices.
    offset: where the block begins there.
    start: the index of the subcore's first element.
    listed: two buffers, for what is updated, counted from `start`, and for the
      place of the update in the block.

  Returns:
    How many there are.
  """
  lanes = plan.lanes
  vectors = plan.block // lanes
  lane = lax.iota(INT, lanes)
  last = jnp.full(lanes, lanes - 1, INT)
  one, zero = jnp.full(lanes, 1, INT), jnp.full(lanes, 0, INT)

  def look(k, before):
    k = vectors - 1 - k if plan.reverse else k
    position = idx[vector(plan, k, offset)] - start
    # Below the range it wraps around.
    unsigned = lax.bitcast_convert_type(position, np.uint32)
    mine = unsigned < np.uint32(plan.part)
    through = jnp.cumsum(jnp.where(mine, one, zero))
    new = through.at[last].get(mode="promise_in_bounds")
    at = before + (new - through + 1 if plan.reverse else through)
    for ref, x in zip(listed, (position, lane + k * lanes), strict=True):
      swap.store(ref, at, x, mask=mine)
    return before + new

  # Counted from -1, as the first goes to 0.
  count: Any = independently(vectors, look, zero - 1)
  return count[0] + 1


def independently(count: int, body: Callable[..., Any], carry: Any = None):
  """A loop whose turns the compiler may interleave.

  Args:
    count: how many turns.
    body: as for `lax.fori_loop`.
    carry: what it begins with.

  Returns:
    The last result.
  """
  if _interpret_mode():
    return lax.fori_loop(0, count, body, carry)
  if carry is None:
    body, step = lambda k: step(k, None), body
  return plsc.parallel_loop(0, count, unroll=_UNROLL, carry=carry)(body)


def vector(plan: Plan, k: Any, offset: Any = 0) -> Any:
  """Where the k-th vector after `offset` is."""
  return pl.ds(pl.multiple_of(offset + k * plan.lanes, plan.lanes), plan.lanes)


def vectors(plan: Plan, count: Any) -> Any:
  """How many vectors have so many words."""
  return pieces(count, plan.lanes)


def pieces(count: Any, size: int) -> Any:
  """How many pieces of a size, a power of two, hold so many words."""
  return count + np.int32(size - 1) >> np.int32(size.bit_length() - 1)


def part(k: Any, size: int) -> Any:
  """Where the k-th part of a size is."""
  return pl.ds(pl.multiple_of(k * size, size), size)


def push(source: Any, target: Any, semaphore: Any) -> Any:
  """The copy of something in VMEM to HBM."""
  # The interpreter wants the semaphore, of which JAX warns elsewhere.
  copy = pltpu.make_async_copy if _interpret_mode() else sc_remote.push
  return copy(source, target, semaphore)
