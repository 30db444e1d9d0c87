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
"""TensorCore kernels that apply updates to a part of a table, in order.

A part of the table is in VMEM while all updates pass by, a block at a time;
those of other parts are skipped. A part is read and written once per call.

There are two kernels, for the two ways that XLA lays out a table so that its
tiles are full:

* wide rows: an element `x[i]` is a row of vectors, updated alone;
* narrow rows and scalars: the elements stand side by side in the lanes. The
  update of `x[i]` by `v[k]` works on the 128 lanes that hold `i`. The 128 lanes
  that hold `v[k]` are rotated so that the two meet, and what is read there is
  rotated back to the lane of `old[k]`. The stores are masked. So no element
  goes through the scalar unit, and updates wait for each other in VMEM only.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
from typing import Any

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
from jax_swapext._src import semantics
from jax_swapext._src.pallas import tpu_values
import numpy as np

AtomicOp = semantics.AtomicOp

LANES = 128


@dataclasses.dataclass(frozen=True)
class Plan:
  """How a call goes about its table and its updates.

  Attributes:
    op, reverse, need_old: as for `fetch_update_p`.
    rounds_to: what each new element is rounded to, if not to its own dtype.
    lane_order: the order of the dimensions in which the table is given if its
      rows stand side by side in the lanes; the last of them is dimension 0.
    parts: in how many parts the table passes through VMEM.
    part: how many rows each of them has.
    block: how many updates.
    spare: whether the only part has rows to spare behind those of the table.
      What is not to be updated goes there, for that costs less than a branch.
    vmem_bytes: how much VMEM all that may take.
  """

  op: AtomicOp
  reverse: bool
  need_old: bool
  rounds_to: np.dtype | None
  lane_order: tuple[int, ...] | None
  parts: int
  part: int
  block: int
  spare: bool
  vmem_bytes: int

  @property
  def in_lanes(self) -> bool:
    return self.lane_order is not None


def update_part(
    plan: Plan,
    which: Any,
    old: jax.Array | None,
    x: jax.Array,
    idx: jax.Array,
    *operands: jax.Array,
) -> list[jax.Array]:
  """Applies the updates of one part of the table; 32-bit elements.

  Args:
    plan: how.
    which: the number of the part, an int32 scalar.
    old: where the old elements go, of the shape of an operand. None: to an
      array of zeros, if at all.
    x: the table, `(t, *row)`; in lanes `(*row, t)`, the row in `lane_order`.
    idx: indices of `n` updates in blocks, `(blocks, 1, plan.block)`; where
      nothing is to be updated `t` if the plan has rows to spare, else -1.
    *operands: `(n, *row)`; in lanes `(*row, n)`, or `(1, n)` of scalars.

  Returns:
    `[old, x]`, or `[x]` if no old elements are wanted. With rows to spare, what
    was not to be updated has some old element.
  """
  blocks = idx.shape[0]

  def block_of(b):
    return blocks - 1 - b if plan.reverse else b

  def spec(a, count, at, **kwargs):
    rest = (0,) * (a.ndim - 1)
    if plan.in_lanes:
      return pl.BlockSpec(
          (*a.shape[:-1], count), lambda b, w: (*rest, at(b, w)), **kwargs
      )
    return pl.BlockSpec(
        (count, *a.shape[1:]), lambda b, w: (at(b, w), *rest), **kwargs
    )

  updates = spec(operands[0], plan.block, lambda b, _: block_of(b))
  # A call stays with its part: a second buffer would be of no use.
  table = spec(
      x, plan.part, lambda _, w: w[0], pipeline_mode=pl.Buffered(1)
  )
  indices = pl.BlockSpec(
      (1, 1, plan.block), lambda b, _: (block_of(b), 0, 0),
      memory_space=pltpu.SMEM,
  )
  olds = [] if old is None else [old]
  old_shapes = [jax.typeof(operands[0]).update(dtype=x.dtype)] * plan.need_old
  arguments = (idx, x, *olds, *operands)
  # The number of the part comes before them.
  aliases = {2: plan.need_old} | ({} if old is None else {3: 0})
  return pl.pallas_call(
      functools.partial(_kernel, plan, old is not None),
      grid_spec=pltpu.PrefetchScalarGridSpec(
          num_scalar_prefetch=1,
          grid=(blocks,),
          in_specs=[indices, table, *[updates] * (len(arguments) - 2)],
          out_specs=[*[updates] * plan.need_old, table],
      ),
      out_shape=[*old_shapes, jax.typeof(x)],
      input_output_aliases=aliases,
      compiler_params=pltpu.CompilerParams(
          dimension_semantics=("arbitrary",), vmem_limit_bytes=plan.vmem_bytes
      ),
      name=f"fetch_{plan.op.value}",
  )(jnp.reshape(which, 1), *arguments)


def _kernel(plan, continues, which_ref, idx_ref, x_ref, *refs):
  """The updates of one block on the part of the table."""
  *refs, new_ref = refs
  old_ref = refs.pop() if plan.need_old else None
  given_ref = refs.pop(0) if continues else None

  @pl.when(pl.program_id(0) == 0)
  def _():
    pltpu.sync_copy(x_ref, new_ref)

  if old_ref is not None:
    old_ref[...] = (
        jnp.zeros_like(old_ref) if given_ref is None else given_ref[...]
    )

  def update(k, body):
    i = idx_ref[0, 0, k]
    if plan.spare:
      body(i)
      return
    i = i - which_ref[0] * plan.part
    pl.when((i >= 0) & (i < plan.part))(lambda: body(i))

  def row(k):
    update(k, lambda i: _update_row(plan, new_ref, old_ref, refs, i, k))

  def window(w):
    w = w * LANES

    def lane(k):
      update(
          w + k,
          lambda i: _update_lane(
              plan, new_ref, old_ref, refs, i, _window(w), k
          ),
      )

    _in_order(plan, LANES, lane, unroll=8 if plan.spare else 1)

  if plan.in_lanes:
    _in_order(plan, plan.block // LANES, window)
  else:
    _in_order(plan, plan.block, row)


def _in_order(plan, count, body, unroll=1):
  def step(k, _):
    body(count - 1 - k if plan.reverse else k)

  lax.fori_loop(0, count, step, None, unroll=unroll)


def _update_row(plan, new_ref, old_ref, value_refs, i, k):
  row = new_ref[pl.ds(i, 1)]
  if old_ref is not None:
    old_ref[pl.ds(k, 1)] = row
  values = [v[pl.ds(k, 1)] for v in value_refs]
  new_ref[pl.ds(i, 1)] = _combine(plan, row, values)


def _update_lane(plan, new_ref, old_ref, value_refs, i, window, k):
  """Updates lane `i` of the table by lane `k` of `window`."""
  target = _window(i)
  column = _load_window(new_ref, target)
  lane = lax.broadcasted_iota(jnp.int32, column.shape, column.ndim - 1)

  def turned(x, by):
    return pltpu.roll(x, by & (LANES - 1), x.ndim - 1)

  values = [turned(_load_window(v, window), i - k) for v in value_refs]
  new = _combine(plan, column, values)
  _store_window(new_ref, target, new, lane == (i & (LANES - 1)))
  if old_ref is not None:
    _store_window(old_ref, window, turned(column, k - i), lane == k)


def _window(i):
  """The 128 lanes that lane `i` is one of."""
  return pl.ds(pl.multiple_of(i & -LANES, LANES), LANES)


def _load_window(ref, window):
  # There are no vectors of one dimension with an iota or a rotation.
  if ref.ndim == 1:
    return ref[window].reshape(1, LANES)
  return ref[..., window]


def _store_window(ref, window, value, mask):
  if ref.ndim == 1:
    value, mask = value.reshape(LANES), mask.reshape(LANES)
  pltpu.store(ref.at[..., window], value, mask=mask)


def _combine(plan: Plan, old: jax.Array, values: Sequence[jax.Array]):
  if plan.op is AtomicOp.ADD_OR_SET:
    value, flag = values
    values = value, flag != 0
  new = tpu_values.combine(plan.op, old, values)
  if plan.rounds_to is None:
    return new
  return new.astype(plan.rounds_to).astype(new.dtype)
