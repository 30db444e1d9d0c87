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
"""Rules for Pallas TPU kernels on the SparseCore's subcores.

What stock JAX lowers goes to the stock rule. Words in VMEM are otherwise
reached by indexed loads and stores (`sc_indexed`), which take any position
under a mask and touch nothing else; narrower elements through the words that
hold them (`sc_packed`); HBM and shared memory by copies (`sc_remote`,
`sc_remote_packed`); scalars in SMEM by the scalar unit. Flags are words.
"""

from __future__ import annotations

from collections.abc import Sequence
import functools
from typing import Any

import jax
from jax import lax
from jax._src.pallas.mosaic import core as tpu_core
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
from jax_swapext._src import compat
from jax_swapext._src import load
from jax_swapext._src import swap
from jax_swapext._src.pallas import sc_indexed
from jax_swapext._src.pallas import sc_packed
from jax_swapext._src.pallas import sc_remote
from jax_swapext._src.pallas import sc_remote_packed
from jax_swapext._src.pallas import sc_stock
from jax_swapext._src.pallas import tpu_copies
from jax_swapext._src.pallas import tpu_lowering
from jax_swapext._src.pallas import tpu_region
import numpy as np

Region = tpu_region.Region
Update = tpu_region.Update

_VECTOR = tpu_core.CoreType.SC_VECTOR_SUBCORE
_SCALAR = tpu_core.CoreType.SC_SCALAR_SUBCORE


def _lower(prim, ctx, ref, *leaves, tree, **params):
  ref_aval = ctx.avals_in[0]
  avals = tree.unflatten(ctx.avals_in[1:])
  count = len(jax.tree.leaves(avals.transforms))
  in_module = tree.unflatten(leaves)
  leaves = [*map(tpu_lowering.constant_leaf, leaves[:count]), *leaves[count:]]
  access = tree.unflatten(leaves)
  multiples = [*map(tpu_lowering.known_multiple, leaves[:count])]
  known = tpu_lowering.known_by_id(leaves[:count], multiples)
  update = tpu_lowering.update_of(prim, access, params)
  view = compat.transform_type(avals.transforms, ref_aval)
  dtype = view.dtype
  space = tpu_lowering.memory_space(ref)
  vector = ctx.lowering_context.kernel_type == _VECTOR
  region: Any = None
  if tpu_lowering.is_simple(access.transforms):
    region = tpu_region.region_of(
      update.name, ref_aval, access.transforms, known
    )

  def lower_stock():
    return sc_stock.lower(ctx, ref, in_module, avals, update)

  def lower(apply):
    """Lowers `apply(ref, region, update)` over stock operations."""

    def run(ref, leaves):
      access = tree.unflatten(leaves)
      known = tpu_lowering.known_by_id(leaves[:count], multiples)
      update = tpu_lowering.update_of(prim, access, params)
      region = tpu_region.region_of(
        update.name, jax.typeof(ref), access.transforms, known
      )
      if tpu_region.is_outside(region):
        # So its mask is false.
        zero = jnp.zeros(region.natural_shape, dtype)
        return update.masked(zero) if update.need_old else None
      return apply(ref, region, update)

    return tpu_lowering.lower_decomposed(ctx, ref, leaves, run)

  plain = sc_stock.is_plain(update)
  from_stock = params.get("stock") is not None
  if dtype == np.dtype(bool):
    return _lower_flags(prim, ctx, ref, leaves, tree, params)
  packed = dtype.itemsize < 4
  if space == "smem" and plain and not view.shape:
    if from_stock or not packed:
      return lower_stock()
  if space == "smem":
    passes = ctx.lowering_context.needs_layout_passes
    _check_smem(update, region, dtype, vector, passes)
    return lower(_access_smem)
  if space in ("hbm", "vmem_shared"):
    sc_remote.check(update, region, dtype, space, vector)
    if packed:
      sc_remote_packed.check(ctx, region, dtype, update)
      return lower(sc_remote_packed.access)
    return lower(
      functools.partial(sc_remote.access, space=space, vector=vector)
    )
  if space != "vmem" or not vector:
    raise sc_indexed.refuse(
      update,
      f"to access {space}",
      "its subcores compute on VMEM and SMEM only",
      "Copy the block with pltpu.sync_copy.",
    )
  if region is None:
    if from_stock and plain and sc_stock.is_chain(avals.transforms, view, ctx):
      return lower_stock()
    return _lower_chain(prim, ctx, ref, leaves, tree, params)
  # Whoever wrote stock syntax gets what that gives, packed elements too.
  if (from_stock or not packed) and sc_stock.is_stock(
    region, dtype, update, ctx
  ):
    return lower_stock()
  if sc_stock.is_add(region, dtype, params, ctx):
    return sc_stock.lower_add(ctx, ref, in_module, avals)
  if packed:
    sc_packed.check(ctx, region, dtype, update, plain)
    words = sc_packed.is_whole_words(ctx, region, dtype)
    if words and plain:
      return lower_stock()
    words = words and (update.mask is None or sc_packed.is_whole(region))
    return lower(sc_packed.access_words if words else sc_packed.access)
  return sc_indexed.lower_indexed(
    ctx, ref, access, avals, region, dtype, update
  )


def _lower_chain(prim, ctx, ref, leaves, tree, params):
  """Lowers an access by one index after another as one by a single index."""
  update = tpu_lowering.update_of(prim, tree.unflatten(leaves), params)

  def run(ref, leaves):
    access = tree.unflatten(leaves)
    region = tpu_region.region_of(
      update.name, jax.typeof(ref), access.transforms
    )
    index = compat.NDIndexer(region.indices, region.shape, region.int_shape)
    if not tpu_lowering.is_simple((*region.prefix, index)):
      raise sc_indexed.refuse(
        update,
        "a part of VMEM seen in another shape or dtype",
        "an indexed access takes one index",
        "Reshape or bitcast the Ref first, or the value.",
      )
    natural = functools.partial(tpu_region.to_natural, region)
    access = access._replace(
      transforms=(*region.prefix, index),
      mask=None if access.mask is None else natural(access.mask),
      operands=tuple(map(natural, access.operands)),
    )
    flat, at_once = jax.tree.flatten(access)
    out = prim.bind(ref, *flat, tree=at_once, **params)
    return tpu_region.from_natural(region, out[0]) if out else None

  return tpu_lowering.lower_decomposed(ctx, ref, leaves, run)


def _lower_flags(prim, ctx, ref, leaves, tree, params):
  """Lowers an access to bool elements as one to the words that they are."""
  ref_aval = ctx.avals_in[0]
  words = ref_aval.update(
    inner_aval=ref_aval.inner_aval.update(dtype=np.dtype(np.int32))
  )
  ctx = ctx.replace(avals_in=[words, *ctx.avals_in[1:]])

  def as_word(x):
    x = jnp.asarray(x)
    if not x.ndim:
      return x.astype(jnp.int32)
    # The compiler selects by vectors of flags; it does not convert them.
    one = jnp.full(x.shape, 1, jnp.int32)
    return jnp.where(x, one, jnp.zeros_like(one))

  def run(ref, leaves):
    access = tree.unflatten(leaves)
    access = access._replace(operands=tuple(map(as_word, access.operands)))
    out = prim.bind(ref, *jax.tree.leaves(access), tree=tree, **params)
    return out[0] != 0 if out else None

  return tpu_lowering.lower_decomposed(ctx, ref, leaves, run)


# SMEM


def _check_smem(
  update, region: Region | None, dtype, vector, passes
) -> None:
  shape = () if region is None else region.natural_shape
  lanes = sc_indexed.lanes()
  if dtype.itemsize < 4:
    raise sc_indexed.refuse(
      update,
      f"{dtype} elements of SMEM",
      "the scalar unit loads and stores words only",
      "Use a 32-bit Ref.",
    )
  if region is None or len(shape) > vector:
    raise sc_indexed.refuse(
      update,
      "an array in SMEM",
      "SMEM holds scalars there and no DMA connects it with VMEM",
      "Access one element at a time.",
    )
  if not passes and shape not in ((), (lanes,)):
    raise sc_indexed.refuse(
      update,
      f"{shape} elements of SMEM at once",
      f"without layout passes a vector has {lanes}",
      "Mask a whole vector, access one element at a time, or set"
      " needs_layout_passes=True in the compiler parameters.",
    )


def _access_smem(ref, region: Region, update: Update):
  view = ref
  if region.prefix:
    view = compat.TransformedRef(ref, region.prefix)
  if region.natural_shape:
    return tpu_region.in_passes(
      region, update, functools.partial(_smem_vector, view, region)
    )
  return tpu_copies.access_scalar(view, region, update)


def _smem_vector(view, region: Region, update: Update):
  """One element after the other, as nothing else reaches them."""
  [n] = region.natural_shape
  mask = update.mask
  if mask is not None:
    # Lanes of predicates cannot be taken out; those of words can.
    mask = jnp.where(mask, jnp.full((n,), 1), jnp.full((n,), 0))
  olds: list[Any] = [None] * n
  for k in reversed(range(n)) if update.reverse else range(n):
    element = region.with_indices(tpu_region.lane_of(region, k))
    if tpu_region.is_outside(element):
      continue
    part = update.replace(
      operands=tuple(x[k] for x in update.operands),
      mask=None if mask is None else mask[k] != 0,
    )
    olds[k] = tpu_copies.access_scalar(view, element, part)
  if not update.need_old:
    return None
  return update.masked(_assembled(olds, view.dtype))


def _assembled(scalars: Sequence[Any], dtype):
  """A vector of scalars; anything where there is none."""
  n = len(scalars)
  if n == sc_indexed.lanes():
    lane, out = lax.iota(np.int32, n), jnp.zeros((n,), dtype)
    for k, x in enumerate(scalars):
      out = out if x is None else jnp.where(lane == k, x, out)
    return out

  # There is no iota of other lengths, but there is memory.
  def body(scratch):
    for k, x in enumerate(scalars):
      if x is not None:
        swap.store(scratch, k, x)
    return load.load(scratch)

  return pl.run_scoped(body, pltpu.VMEM((n,), dtype))


def _lowers_natively(stock, ref) -> bool:
  """Whether stock lowers a gather, a compressing store or the like."""
  # When the rules are registered, this module is not there yet.
  from jax._src.pallas.mosaic import sc_primitives

  if stock in (sc_primitives.gather_p, sc_primitives.scatter_p):
    return tpu_lowering.memory_space(ref) == "vmem"
  return stock in (sc_primitives.load_p, sc_primitives.swap_p)


tpu_lowering.register([_VECTOR, _SCALAR], _lower, ensure_mlir_values=True)
tpu_lowering.register_native([_VECTOR], _lowers_natively)
tpu_lowering.register_native([_SCALAR], lambda *_: False)
