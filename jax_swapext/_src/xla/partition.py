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
"""Tables sharded over a mesh: no device ever holds more than its own part.

Every device gets all updates and applies those to rows that it holds, in their
order (`on_part`). So the table moves nowhere, and the old values are put
together by one all-reduce: each is zero on all devices but one. Columns may be
sharded too; their parts do not meet.

XLA's partitioner chooses the shardings and asks `custom_partitioning` for the
program of one device (`asked`). Where it cannot ask, the updates are rewritten
to operations that it splits well by itself (`compact`).
"""

from __future__ import annotations

import functools
import math

import jax
from jax import lax
from jax._src import sharding_impls  # ShardingContext: who partitions
from jax.experimental.custom_partitioning import custom_partitioning
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec
import numpy as np


def split(ctx, update, local, *, asks: bool):
  """What to lower for an update in `ctx`: `local`, or a form of it that splits.

  Args:
    ctx: the context of the lowering rule.
    update: the operation, as something that can be traced anew.
    local: the same for the arrays of one device.
    asks: whether the platform's compiler calls `custom_partitioning` back.

  Returns:
    A function of the operation's arrays.
  """
  context = ctx.module_context.axis_context
  if (
      not isinstance(context, sharding_impls.ShardingContext)
      or context.num_devices == 1
      or 0 in ctx.avals_in[0].shape
  ):
    return local
  # An exported program cannot call back.
  export = ctx.module_context.lowering_parameters.for_export
  if asks and context.abstract_mesh is not None and not export:
    return functools.partial(asked, update)
  meshes = [
      jax.sharding.get_abstract_mesh(),  # shard_map wants this one if there
      context.abstract_mesh,
      *(a.sharding.mesh for a in ctx.avals_in),
  ]
  mesh = next((m for m in meshes if m is not None and not m.empty), None)
  return local if mesh is None else functools.partial(compact, update, mesh)


def on_part(update, axes, x, idx, *operands):
  """Applies the updates to the part `x` of a table split over mesh `axes`.

  Args:
    update: the operation on a whole table; returns `[*old, new_x]`.
    axes: names of the mesh axes over which the table's rows are split.
    x, idx, *operands: the part, and all of the updates.

  Returns:
    What `update` returns: the old values of all updates, and the new part.
  """
  if axes:
    count = np.int32(x.shape[0])
    start = lax.axis_index(axes) * count
    size = count * np.int32(lax.axis_size(axes))
    row = lax.select(idx < 0, idx + size, idx)
    held = (row >= start) & (row < start + count)
    idx = lax.select(held, row - start, lax.full_like(idx, count))
  *old, x = update(x, idx, *operands)
  if axes:
    old = [_sum_of_one(o, axes) for o in old]
  return [*old, x]


def _sum_of_one(x, axes):
  """Sums arrays of which all but one are zero, bit for bit."""
  dtype = x.dtype
  if jnp.issubdtype(dtype, jnp.floating):
    word = np.dtype(f"uint{8 * dtype.itemsize}")
    x = lax.bitcast_convert_type(x, word)
  narrow = x.dtype
  # Not every platform reduces words that are narrower, or bool.
  x = x.astype(np.uint32) if narrow.itemsize < 4 else x
  x = lax.psum(x, axes).astype(narrow)
  return x if dtype == narrow else lax.bitcast_convert_type(x, dtype)


def asked(update, x, *args):
  """`update` on arrays that XLA's partitioner may shard as it likes.

  Args and result are those of `on_part` without its axes.
  """

  # custom_partitioning takes no function with keyword arguments.
  def local(axes, *parts):
    # What one device does has no mesh, whatever the caller has set.
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
      return on_part(update, axes, *parts)

  names = [f"r{k}" for k in range(x.ndim - 1)]
  table, rows = " ".join(["t", *names]), " ".join(["n", *names])

  def rule(mesh, operands, results):
    del mesh, operands
    # A mask has no columns.
    ins = [table, *("n" if a.ndim == 1 else rows for a in args)]
    outs = [rows, table] if len(results) == 2 else [table]
    text = f"{', '.join(ins)} -> {', '.join(outs)}"
    return text, {"need_replication_factors": ("n",)}

  def partition(mesh, operands, results):
    split = _even_split(mesh, operands[0])
    columns = PartitionSpec(None, *split[1:])
    specs = [split, *(columns if a.ndim > 1 else PartitionSpec() for a in args)]
    outs = [columns, split] if len(results) == 2 else [split]
    axes = split[0] or ()
    at = functools.partial(NamedSharding, mesh)
    return (
        mesh,
        functools.partial(local, axes if isinstance(axes, tuple) else (axes,)),
        list(map(at, outs)),
        tuple(map(at, specs)),
    )

  whole = custom_partitioning(lambda *arrays: local((), *arrays))
  whole.def_partition(partition, sharding_rule=rule)
  return whole(x, *args)


def _even_split(mesh, x) -> PartitionSpec:
  """The sharding of `x`, less the dimensions that it does not divide evenly."""
  spec = [*x.sharding.spec, *[None] * len(x.shape)][: len(x.shape)]
  for d, axes in enumerate(spec):
    if axes is not None:
      names = axes if isinstance(axes, tuple) else (axes,)
      if x.shape[d] % math.prod(mesh.shape[a] for a in names):
        spec[d] = None
  return PartitionSpec(*spec)


def compact(update, mesh, x, idx, *args):
  """`update` on the rows that are updated, taken out of `x` and put back.

  XLA splits a gather and a scatter by itself as it should: each device does
  what concerns its own part. Between the two, every device applies all updates
  to copies of the n rows. This needs a sort of the indices, but no memory that
  grows with the table.

  Args:
    update, x, idx, *args: as for `on_part`.
    mesh: the abstract mesh of all devices.

  Returns:
    What `update` returns.
  """
  t, n = np.int32(x.shape[0]), np.int32(idx.shape[0])
  row = lax.select(idx < 0, idx + t, idx)
  inside = (row >= 0) & (row < t)
  row = lax.select(inside, row, lax.full_like(row, t))
  # All updates of a row work on the copy at the first place that the sorted
  # indices have it.
  place = lax.iota(np.int32, int(n))
  ranked, update_of = lax.sort((row, place), num_keys=1)
  first = jnp.concatenate([jnp.ones(1, bool), ranked[1:] != ranked[:-1]])
  copy = lax.cummax(lax.select(first, place, lax.full_like(place, 0)))
  copy_of = place.at[update_of].set(copy, unique_indices=True)
  copy_of = lax.select(inside, copy_of, lax.full_like(copy_of, n))

  rows = x.at[ranked].get(mode="fill", fill_value=0)
  rows, x = lax.optimization_barrier((rows, x))
  whole = jax.shard_map(
      update,
      mesh=mesh,
      in_specs=PartitionSpec(),
      out_specs=PartitionSpec(),
  )
  *old, rows = whole(rows, copy_of, *args)
  target = lax.select(first, ranked, lax.full_like(ranked, t))
  return [*old, x.at[target].set(rows, mode="drop", unique_indices=True)]
