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
"""What stock JAX lowers on the SparseCore, and its rules."""

from __future__ import annotations

import inspect
from typing import Any

import jax
from jax._src.lib.mlir import ir
from jax._src.pallas.mosaic import sc_core
from jax._src.pallas.mosaic import sc_lowering
from jax_swapext._src import compat
from jax_swapext._src.pallas import stock
from jax_swapext._src.pallas import tpu_lowering
from jax_swapext._src.pallas import tpu_region

Region = tpu_region.Region
Update = tpu_region.Update


def lower(ctx, ref, access, avals, update: Update):
  """Calls the stock rule, which wants every index in the module."""
  if not update.is_load:
    _move_before_indices(access.operands[0], access.transforms)
  value = None if update.is_load else (access.operands[0], avals.operands[0])
  return tpu_lowering.lower_stock(
    ctx, ref, access.transforms, avals.transforms, update, value, None
  )


def _move_before_indices(value, transforms) -> None:
  """Puts a constant where JAX puts that of an operand before the indices."""

  def constant(x):
    if isinstance(x.owner, ir.Block) or x.owner.name != "arith.constant":
      return None
    return x.owner.operation

  if (stored := constant(value)) is None:
    return
  for index in jax.tree.leaves(transforms):
    at = constant(index)
    if at and at.block == stored.block and at.is_before_in_block(stored):
      stored.move_before(at)
      return


def is_plain(update: Update) -> bool:
  """Whether the access is one that stock syntax has."""
  atomic = update.name.startswith("atomic")
  other = update.is_load and update.operands
  return not (atomic or other) and update.mask is None


def is_add(region: Region, dtype, params, ctx) -> bool:
  """Whether this was a `plsc.addupdate` that stock lowers."""
  # When the rules are registered, this module is not there yet.
  from jax._src.pallas.mosaic import sc_primitives

  if params.get("stock") is not sc_primitives.swap_p:
    return False
  return _is_window(region, dtype, ctx)


def lower_add(ctx, ref, access, avals) -> list[Any]:
  """Calls the stock rule of `plsc.addupdate`."""
  [value], [value_aval] = access.operands, avals.operands
  _move_before_indices(value, access.transforms)
  leaves, tree = jax.tree.flatten(access.transforms)
  ctx = ctx.replace(
    avals_in=[ctx.avals_in[0], value_aval, *jax.tree.leaves(avals.transforms)],
    avals_out=[value_aval],
    block_shapes=[ctx.block_shapes[0], None, *[None] * len(leaves)],
  )
  rule = sc_lowering._store_lowering_rule
  # Drop the condition once jax >= 0.12: the parameter is new there.
  new = "compress" in inspect.signature(rule).parameters
  kwargs: Any = {"compress": False} if new else {}
  rule(ctx, ref, value, None, *leaves, tree=tree, add=True, **kwargs)
  return []


def is_stock(region: Region, dtype, update: Update, ctx) -> bool:
  """Whether the stock rules lower the access."""
  return is_plain(update) and _is_window(region, dtype, ctx)


def is_chain(transforms, view, ctx) -> bool:
  """Whether the stock rules lower an access by one index after another."""
  passes = ctx.lowering_context.needs_layout_passes
  if not passes and view.shape not in sc_core.supported_shapes(view.dtype):
    return False
  return bool(view.shape) and all(
    stock.selects_window(t)
    for t in transforms
    if isinstance(t, compat.NDIndexer)
  )


def _is_window(region: Region, dtype, ctx) -> bool:
  if region.int_shape or not region.slices:
    return False
  passes = ctx.lowering_context.needs_layout_passes
  if not passes and region.natural_shape not in sc_core.supported_shapes(dtype):
    return False
  if any(region.indices[d].stride != 1 for d in region.slices):
    return False
  wide = [d for d in region.slices if region.indices[d].size != 1] or [
    len(region.shape)
  ]
  scalars = [d for d in range(len(region.shape)) if d not in region.slices]
  return all(d < wide[0] for d in scalars)
