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
reached by indexed loads and stores, which take any position under a mask and
touch nothing else; scalars in SMEM by the scalar unit.
"""

from __future__ import annotations

import jax
from jax import lax
from jax._src.pallas.mosaic import core as tpu_core
from jax._src.pallas.mosaic import lowering
from jax._src.pallas.mosaic import sc_core
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
from jax_swapext._src import atomic_cas
from jax_swapext._src import atomic_rmw
from jax_swapext._src import compat
from jax_swapext._src import load
from jax_swapext._src import semantics
from jax_swapext._src import swap
from jax_swapext._src.pallas import sc_indexed
from jax_swapext._src.pallas import sc_stock
from jax_swapext._src.pallas import tpu_copies
from jax_swapext._src.pallas import tpu_lowering
from jax_swapext._src.pallas import tpu_region
import numpy as np

AtomicOp = semantics.AtomicOp
Slice = compat.Slice
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
  multiples = map(tpu_lowering.known_multiple, leaves[:count])
  known = tpu_lowering.known_by_id(leaves[:count], multiples)
  update = tpu_lowering.update_of(prim, access, params)
  dtype = compat.transform_type(avals.transforms, ref_aval).dtype
  space = tpu_lowering.memory_space(ref)
  region = (
    tpu_region.region_of(update.name, ref_aval, access.transforms, known)
    if (tpu_lowering.is_simple(access.transforms))
    else None
  )
  if (
    space == "smem"
    and region is not None
    and not region.natural_shape
    and update.mask is None
    and not update.name.startswith("atomic")
  ):
    return sc_stock.lower(ctx, ref, in_module, avals, update)
  if space == "smem":
    return _lower_smem(
      prim, ctx, ref, leaves, access, avals, update, region, tree, params
    )
  if space in ("hbm", "vmem_shared"):
    return _lower_remote(
        prim, ctx, ref, leaves, access, update, region, dtype, space, tree,
        params,
    )  # fmt: skip
  if space != "vmem":
    raise sc_indexed.refuse(
      update,
      f"to access {space}",
      "its subcores compute on VMEM and SMEM only",
      "Copy the block with pltpu.sync_copy, and add to shared memory with"
      " pltpu.async_copy(..., add=True).",
    )
  from_stock = params.get("stock") is not None
  if region is None and from_stock and sc_stock.is_plain(update):
    return sc_stock.lower(ctx, ref, in_module, avals, update)
  if region is None:
    raise sc_indexed.refuse(
      update,
      "a chain of views of VMEM",
      "an indexed access takes one index",
      "Combine the indices into one.",
    )
  packed = dtype.itemsize < 4 and dtype != np.dtype(bool)
  # Whoever wrote stock syntax gets what that gives.
  if sc_stock.is_plain(update) and packed and not from_stock:
    _check_packed(ctx, region, dtype, update)
  if sc_stock.is_stock(region, dtype, update, ctx):
    return sc_stock.lower(ctx, ref, in_module, avals, update)
  if sc_stock.is_add(region, dtype, params, ctx):
    sc_stock.lower_add(ctx, ref, in_module, avals)
    return []
  if dtype.itemsize != 4 or dtype == np.dtype(bool):
    raise sc_indexed.refuse(
      update,
      f"{dtype} elements one by one",
      "its indexed loads and stores take 32-bit elements",
      "Keep them in a 32-bit Ref, or load whole registers.",
    )
  return sc_indexed.lower_indexed(
    ctx, ref, access, avals, region, dtype, update
  )


def _check_packed(ctx, region: Region, dtype, update: Update) -> None:
  """Raises unless the region is whole words as the kernel's tiling has them.

  For anything else stock emits a module too, which addresses other elements
  or makes the compiler abort the process.
  """
  # When the rules are registered, the module that this wraps is not there yet.
  from jax_swapext._src.pallas import sc_tiling

  tiled = sc_tiling.is_tc_tiling()
  packing = 4 // dtype.itemsize
  lanes = sc_core.get_sparse_core_info().num_lanes
  size = lanes * packing
  rank = len(region.shape)
  blocks = tiled and rank > 1
  fits = tiled is not None and not region.prefix and not region.int_shape
  fits &= all(region.indices[d].stride == 1 for d in region.slices)
  if fits and blocks:
    # Neighbouring rows share words: a block of them is a vector of words.
    *_, row, lane = region.indices
    fits = (
      region.slices == (rank - 2, rank - 1)
      and (row.size, lane.size) == (packing, lanes)
      and region.multiple(row.start) % packing == 0
      and region.multiple(lane.start) % lanes == 0
    )
  elif fits:
    lane = region.indices[-1]
    passes = ctx.lowering_context.needs_layout_passes
    fits = (
      not tiled
      and region.slices == (rank - 1,)
      and (lane.size % size == 0 if passes else lane.size == size)
      and region.multiple(lane.start) % packing == 0
      and (rank == 1 or region.shape[-1] % packing == 0)
    )
  if fits:
    return
  wanted = f"{dtype} elements of VMEM of shape {region.shape} by this index"
  if blocks:
    raise sc_indexed.refuse(
      update,
      wanted,
      f"under TensorCore tiling {packing} neighbouring rows share words",
      f"Access blocks of ({packing}, {lanes}) at multiples of that, or set"
      " use_tc_tiling_on_sc=False in the compiler parameters.",
    )
  if tiled is False:
    raise sc_indexed.refuse(
      update,
      wanted,
      f"a vector has {size} of them and starts with a word",
      f"Access {size} elements at a multiple of {packing} (pl.multiple_of), or"
      " use a 32-bit Ref.",
    )
  raise sc_indexed.refuse(
    update,
    wanted,
    "under TensorCore tiling neighbouring elements lie 128 words apart",
    "Set use_tc_tiling_on_sc=False in the compiler parameters, or use a 32-bit"
    " Ref.",
  )


def _lower_smem(
  prim, ctx, ref, leaves, access, avals, update, region, tree, params
):
  del avals
  ref_aval = ctx.avals_in[0]
  vector = ctx.lowering_context.kernel_type == _VECTOR
  shape = () if region is None else region.natural_shape
  lanes = sc_core.get_sparse_core_info().num_lanes
  if region is None or len(shape) > vector:
    raise sc_indexed.refuse(
      update,
      "an array in SMEM",
      "SMEM holds scalars there and no DMA connects it with VMEM",
      "Access one element at a time.",
    )
  if shape not in ((), (lanes,)):
    raise sc_indexed.refuse(
      update,
      f"{shape} elements of SMEM at once",
      f"a vector has {lanes}",
      "Mask a whole vector, or access one element at a time.",
    )
  boolean = ref_aval.dtype == np.dtype(bool)
  if boolean:
    words = ref_aval.update(
      inner_aval=ref_aval.inner_aval.update(dtype=np.dtype(np.int32))
    )
    ctx = ctx.replace(avals_in=[words, *ctx.avals_in[1:]])
  else:
    words = ref_aval

  def run(ref, leaves):
    access = tree.unflatten(leaves)
    if boolean:
      access = access._replace(
        operands=tuple(
          jnp.asarray(x).astype(jnp.int32) for x in access.operands
        )
      )
    update = tpu_lowering.update_of(prim, access, params)
    region = tpu_region.region_of(update.name, words, access.transforms)
    view = ref
    if region.prefix:
      view = compat.TransformedRef(ref, region.prefix)
    access_smem = _smem_vector if region.natural_shape else _smem_scalar
    old = access_smem(view, region, words.dtype, update)
    if old is None:
      return None
    return old != 0 if boolean else old

  del access
  return tpu_lowering.lower_decomposed(ctx, ref, leaves, run)


def _smem_scalar(view, region: Region, dtype, update: Update):
  if tpu_region.trim(region, update) is None:
    return update.masked(jnp.zeros((), dtype)) if update.need_old else None
  return tpu_copies.access_scalar(view, region, update)


def _smem_vector(view, region: Region, dtype, update: Update):
  """One element after the other, as nothing else reaches them."""
  if update.name == "swap" and region.int_shape:
    # With repeated positions, all old values are those before the swap.
    reading = update.replace(name="load", op=None, operands=())
    old = _smem_vector(view, region, dtype, reading)
    writing = update.replace(name="store", need_old=False)
    _smem_vector(view, region, dtype, writing)
    return old
  [n] = region.natural_shape
  lane = lax.iota(np.int32, n)
  mask = update.mask
  if mask is not None:
    # Lanes of predicates cannot be taken out; those of words can.
    mask = jnp.where(mask, jnp.full((n,), 1), jnp.full((n,), 0))
  out = jnp.zeros((n,), dtype)
  for k in reversed(range(n)) if update.reverse else range(n):
    indices = [
      i.start + k * i.stride
      if isinstance(i, Slice)
      else i[k]
      if tpu_region.is_array_index(i)
      else i
      for i in region.indices
    ]
    old = _smem_scalar(
      view,
      region.with_indices(indices),
      dtype,
      update.replace(
        operands=tuple(x[k] for x in update.operands),
        mask=None if mask is None else mask[k] != 0,
      ),
    )
    if old is not None:
      out = jnp.where(lane == k, old, out)
  return out if update.need_old else None


# ## HBM and shared VMEM, through a copy in the subcore's own


def _lower_remote(
  prim, ctx, ref, leaves, access, update, region, dtype, space, tree, params
):
  if update.name.startswith("atomic"):
    raise sc_indexed.refuse(
      update,
      f"an atomic update of {space}",
      "a copy in, an update and a copy out are not atomic against the other"
      " subcores",
      "Add with pltpu.async_copy(..., add=True) into VMEM_SHARED, or use"
      " fetch_* outside the kernel.",
    )
  if ctx.lowering_context.kernel_type != _VECTOR:
    raise sc_indexed.refuse(
      update,
      f"to access {space} from the scalar subcore",
      "its transfers move blocks of 32 bytes between HBM and SMEM",
      "Copy the block with pltpu.sync_copy.",
    )
  plain = (
    region is not None
    and not region.prefix
    and len(region.shape) == 1
    and not any(map(sc_indexed.is_vector, region.indices))
    and all(region.indices[d].stride == 1 for d in region.slices)
  )
  if not plain or dtype.itemsize != 4 or dtype == np.dtype(bool):
    raise sc_indexed.refuse(
      update,
      f"{dtype} elements of {space} of shape {ctx.avals_in[0].shape} by this"
      " index",
      "its streams move neighbouring words of Refs of one dimension, or"
      " whole tiles",
      "Copy the block to VMEM with pltpu.sync_copy.",
    )
  [index] = region.indices
  moves = isinstance(index, Slice) and not tpu_region.is_static(index.start)
  if update.mask is not None and moves:
    raise sc_indexed.refuse(
      update,
      f"a masked window of {space} at a dynamic start",
      "a stream must not leave the Ref, even where the mask is false",
      "Copy what lies inside with pltpu.sync_copy and mask in VMEM.",
    )

  def run(ref, leaves):
    access = tree.unflatten(leaves)
    update = tpu_lowering.update_of(prim, access, params)
    region = tpu_region.region_of(
      update.name, jax.typeof(ref), access.transforms
    )
    trimmed = tpu_region.trim(region, update)
    if trimmed is None:
      zero = jnp.zeros(region.natural_shape, dtype)
      return update.masked(zero) if update.need_old else None
    inner, part, cuts = trimmed
    if inner.natural_shape or part.mask is None:
      old = _stream(ref, inner, dtype, part)
      return None if old is None else tpu_region.untrim(update, cuts, old)
    return tpu_copies.masked_scalar(
      part, dtype, lambda p: _stream(ref, inner, dtype, p)
    )

  del access
  return tpu_lowering.lower_decomposed(ctx, ref, leaves, run)


def _stream(ref, region: Region, dtype, update: Update):
  """Applies an update to neighbouring words of another memory."""
  [index] = region.indices
  scalar = not isinstance(index, Slice)
  start, size = (index, 1) if scalar else (index.start, int(index.size))
  view = compat.TransformedRef(
    ref, (compat.NDIndexer((Slice(start, size),), region.shape, ()),)
  )
  at = 0 if scalar else slice(0, size)

  def body(scratch):
    old = None
    if update.is_load or update.need_old or update.mask is not None:
      pltpu.sync_copy(view, scratch)
      if update.need_old:
        old = load.load(scratch, at)
    if not update.is_load:
      swap.store(scratch, at, update.operands[0], mask=update.mask)
      _push(scratch, view)
    return None if old is None else update.masked(old)

  return pl.run_scoped(body, pltpu.VMEM((size,), dtype))


def _push(source, target) -> None:
  # Drop the other branch once jax >= 0.12: a stream out of VMEM then needs no
  # semaphore, and JAX warns of one.
  if hasattr(sc_core, "SparseCorePushStreamWarning"):
    pltpu.async_copy(source, target, None).wait()
  else:
    pltpu.sync_copy(source, target)


def _register() -> None:
  for prim in (
    load.load_p,
    swap.swap_p,
    atomic_rmw.atomic_rmw_p,
    atomic_cas.atomic_cas_p,
  ):

    def rule(ctx, ref, *leaves, prim=prim, **params):
      return _lower(prim, ctx, ref, *leaves, **params)

    lowering.register_lowering_rule(prim, kernel_types=[_VECTOR, _SCALAR])(
      rule
    )


_register()
