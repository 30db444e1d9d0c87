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

from typing import Any

import jax
from jax import lax
from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import arith
from jax._src.lib.mlir.dialects import vector
from jax._src.pallas.mosaic import core as tpu_core
from jax._src.pallas.mosaic import lowering
from jax._src.pallas.mosaic import sc_core
from jax.experimental import pallas as pl
from jax.experimental.mosaic.dialects import tpu
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
from jax_swapext._src import atomic_cas
from jax_swapext._src import atomic_rmw
from jax_swapext._src import compat
from jax_swapext._src import load
from jax_swapext._src import semantics
from jax_swapext._src import swap
from jax_swapext._src.pallas import mosaic_tpu
from jax_swapext._src.pallas import tpu_copies
from jax_swapext._src.pallas import tpu_region
import numpy as np

AtomicOp = semantics.AtomicOp
Slice = compat.Slice
Region = tpu_region.Region
Update = tpu_region.Update

_VECTOR = tpu_core.CoreType.SC_VECTOR_SUBCORE
_SCALAR = tpu_core.CoreType.SC_SCALAR_SUBCORE


def _refuse(update: Update, wanted: str, why: str, way_out: str):
  return NotImplementedError(
    f"{update.name}: wanted {wanted} on the SparseCore, but {why}. {way_out}"
  )


def _lower(prim, ctx, ref, *leaves, tree, **params):
  ref_aval = ctx.avals_in[0]
  avals = tree.unflatten(ctx.avals_in[1:])
  count = len(jax.tree.leaves(avals.transforms))
  leaves = [*map(mosaic_tpu.static_leaf, leaves[:count]), *leaves[count:]]
  access = tree.unflatten(leaves)
  update = mosaic_tpu.update_of(prim, access, params)
  dtype = compat.transform_type(avals.transforms, ref_aval).dtype
  space = mosaic_tpu.memory_space(ref)
  region = (
    tpu_region.region_of(update.name, ref_aval, access.transforms)
    if (mosaic_tpu._is_simple(access.transforms))
    else None
  )
  if (
    space == "smem"
    and region is not None
    and not region.natural_shape
    and update.mask is None
    and not update.name.startswith("atomic")
  ):
    value = None if update.is_load else (access.operands[0], avals.operands[0])
    return mosaic_tpu.lower_stock(
      ctx, ref, access.transforms, avals.transforms, update, value, None
    )
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
    raise _refuse(
      update,
      f"to access {space}",
      "its subcores compute on VMEM and SMEM only",
      "Copy the block with pltpu.sync_copy, and add to shared memory with"
      " pltpu.async_copy(..., add=True).",
    )
  if region is None:
    raise _refuse(
      update,
      "a chain of views of VMEM",
      "an indexed access takes one index",
      "Combine the indices into one.",
    )
  if _is_stock(region, update):
    value = None if update.is_load else (access.operands[0], avals.operands[0])
    return mosaic_tpu.lower_stock(
      ctx, ref, access.transforms, avals.transforms, update, value, None
    )
  if dtype.itemsize != 4 or dtype == np.dtype(bool):
    raise _refuse(
      update,
      f"{dtype} elements one by one",
      "its indexed loads and stores take 32-bit elements",
      "Keep them in a 32-bit Ref, or load whole registers.",
    )
  return _lower_indexed(ctx, ref, access, avals, region, dtype, update)


def _is_stock(region: Region, update: Update) -> bool:
  if update.name.startswith("atomic") or update.mask is not None:
    return False
  if (
    region.int_shape or not region.slices or update.operands and update.is_load
  ):
    return False
  if any(region.indices[d].stride != 1 for d in region.slices):
    return False
  wide = [d for d in region.slices if region.indices[d].size != 1] or [
    len(region.shape)
  ]
  scalars = [d for d in range(len(region.shape)) if d not in region.slices]
  return all(d < wide[0] for d in scalars)


def _lower_smem(
  prim, ctx, ref, leaves, access, avals, update, region, tree, params
):
  del avals
  ref_aval = ctx.avals_in[0]
  if region is None or region.natural_shape:
    raise _refuse(
      update,
      "an array in SMEM",
      "SMEM holds scalars there and no DMA connects it with VMEM",
      "Access one element at a time.",
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
    update = mosaic_tpu.update_of(prim, access, params)
    region = tpu_region.region_of(update.name, words, access.transforms)
    trimmed = tpu_region.trim(region, update)
    if trimmed is None:
      zero = jnp.zeros((), words.dtype)
      old = update.masked(zero) if update.need_old else None
    else:
      view = ref
      if region.prefix:
        view = compat.TransformedRef(ref, region.prefix)
      old = tpu_copies.access_scalar(view, region, update)
    if old is None:
      return None
    return old != 0 if boolean else old

  del access
  return mosaic_tpu.lower_decomposed(ctx, ref, leaves, run)


# ## HBM and shared VMEM, through a copy in the subcore's own


def _lower_remote(
  prim, ctx, ref, leaves, access, update, region, dtype, space, tree, params
):
  if update.name.startswith("atomic"):
    raise _refuse(
      update,
      f"an atomic update of {space}",
      "a copy in, an update and a copy out are not atomic against the other"
      " subcores",
      "Add with pltpu.async_copy(..., add=True) into VMEM_SHARED, or use"
      " fetch_* outside the kernel.",
    )
  if ctx.lowering_context.kernel_type != _VECTOR:
    raise _refuse(
      update,
      f"to access {space} from the scalar subcore",
      "its transfers move blocks of 32 bytes between HBM and SMEM",
      "Copy the block with pltpu.sync_copy.",
    )
  plain = (
    region is not None
    and not region.prefix
    and len(region.shape) == 1
    and not any(map(_is_vector, region.indices))
    and all(region.indices[d].stride == 1 for d in region.slices)
  )
  if not plain or dtype.itemsize != 4 or dtype == np.dtype(bool):
    raise _refuse(
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
    raise _refuse(
      update,
      f"a masked window of {space} at a dynamic start",
      "a stream must not leave the Ref, even where the mask is false",
      "Copy what lies inside with pltpu.sync_copy and mask in VMEM.",
    )

  def run(ref, leaves):
    access = tree.unflatten(leaves)
    update = mosaic_tpu.update_of(prim, access, params)
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
  return mosaic_tpu.lower_decomposed(ctx, ref, leaves, run)


def _stream(ref, region: Region, dtype, update: Update):
  """Applies an update to neighbouring words of another memory."""
  [index] = region.indices
  scalar = not isinstance(index, Slice)
  start, size = (index, 1) if scalar else (index.start, index.size)
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


# ## Indexed accesses to VMEM


def _i32(shape=()) -> ir.Type:
  word = ir.IntegerType.get_signless(32)
  return ir.VectorType.get(shape, word) if shape else word


def _constant(value: int, n: int) -> ir.Value:
  word = ir.IntegerAttr.get(_i32(), value)
  t = _i32((n,))
  return arith.constant(t, ir.DenseElementsAttr.get_splat(t, word))


def _as_i32(x: ir.Value) -> ir.Value:
  if x.type == _i32():
    return x
  if isinstance(x.type, ir.IndexType):
    return arith.index_cast(_i32(), x)
  narrow = ir.IntegerType(x.type).width < 32
  return arith.extsi(_i32(), x) if narrow else arith.trunci(_i32(), x)


def _is_vector(x: Any) -> bool:
  if isinstance(x, ir.Value):
    return isinstance(x.type, ir.VectorType)
  return bool(np.shape(x))


def _splat(x: Any, n: int) -> ir.Value:
  if tpu_region.is_static(x):
    return _constant(int(x), n)
  return vector.broadcast(_i32((n,)), _as_i32(x))


def _lower_indexed(ctx, ref, access, avals, region, dtype, update):
  lanes = sc_core.get_sparse_core_info().num_lanes
  scalar = not region.natural_shape
  if len(region.natural_shape) > 1:
    raise _refuse(
      update,
      f"a region of shape {region.natural_shape}",
      "its vectors have one dimension",
      "Loop over the rows.",
    )
  n = lanes if scalar else region.natural_shape[0]
  if not ctx.lowering_context.needs_layout_passes and n != lanes:
    raise _refuse(
      update,
      f"{n} elements at once",
      f"without layout passes a vector has {lanes}",
      "Set needs_layout_passes=True in the compiler parameters, or mask a"
      " whole vector.",
    )
  base = ref
  if region.prefix:
    ref_aval, block_shape = ctx.avals_in[0], ctx.block_shapes[0]
    base, _ = lowering._transform_ref(ref, ref_aval, block_shape, region.prefix)
  iota = tpu.iota(_i32((n,)), dimensions=[0])
  indices: list[Any] = []
  for index in region.indices:
    if isinstance(index, Slice):
      step = iota
      if index.stride != 1:
        step = arith.muli(iota, _constant(index.stride, n))
      indices.append(arith.addi(step, _splat(index.start, n)))
    elif _is_vector(index):
      indices.append(
        lowering._ensure_mlir_value(
          index, jax.core.ShapedArray(np.shape(index), np.int32)
        )
        if not isinstance(index, ir.Value)
        else index
      )
    else:
      indices.append(_splat(index, n))

  word = jax.core.ShapedArray((n,), dtype)
  flag = jax.core.ShapedArray((n,), np.dtype(bool))

  def compute(fun, *args):
    """Lowers a function of (value, type) pairs."""
    values = [v for v, _ in args]
    sub = ctx.replace(
      avals_in=[a for _, a in args], block_shapes=[None] * len(args)
    )
    [out] = lowering.lower_fun(lambda *xs: [fun(*xs)])(sub, *values)
    return out

  def vector_of(x, aval):
    """An operand or the mask as a vector of the access."""
    x = lowering._ensure_mlir_value(x, aval)
    if not scalar:
      return x
    t = ctx.aval_to_ir_type(jax.core.ShapedArray((n,), aval.dtype))
    if aval.dtype == np.dtype(bool):
      # Splats of predicates do not lower; their words do.
      x = arith.extui(_i32(), x)
      x = vector.broadcast(_i32((n,)), x)
      predicate = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 1)
      return arith.cmpi(predicate, x, _constant(0, n))
    return vector.broadcast(t, x)

  operands = [
    vector_of(x, a)
    for x, a in zip(access.operands, avals.operands, strict=True)
  ]
  mask = None
  if access.mask is not None:
    mask = vector_of(access.mask, avals.mask)

  def lane(k: int) -> ir.Value:
    predicate = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 0)
    return arith.cmpi(predicate, iota, _constant(k, n))

  def both(a, b):
    return b if a is None else arith.andi(a, b)

  word_type = ctx.aval_to_ir_type(word)

  def fetch(where):
    return tpu.vector_load_idx(word_type, base, indices, mask=where)

  def put(x, where, add=False):
    tpu.vector_store_idx(x, base, indices, mask=where, add=add)

  operand_avals = [jax.core.ShapedArray((n,), a.dtype) for a in avals.operands]

  def combined(old):
    if update.op is AtomicOp.XCHG:
      return operands[0]
    return compute(
      lambda old, *xs: _combine(update.op, old, *xs),
      (old, word),
      *zip(operands, operand_avals, strict=True),
    )

  old: Any = None
  if update.is_load:
    old = fetch(mask)
  elif update.op is AtomicOp.ADD and not update.need_old:
    put(operands[0], both(mask, lane(0)) if scalar else mask, add=True)
  elif update.name.startswith("atomic") and region.int_shape:
    old = _one_by_one(
      n, update, mask, lane, both, fetch, put, combined, compute, word, flag
    )
  else:
    if update.reads:
      old = fetch(mask)
    put(combined(old), both(mask, lane(0)) if scalar else mask)
  if not update.need_old:
    return []
  if mask is not None:
    other = operands[0] if update.is_load and operands else None
    if other is None:
      old = compute(
        lambda m, x: lax.select(m, x, lax.full_like(x, 0)),
        (mask, flag),
        (old, word),
      )
    else:
      old = arith.select(mask, old, other)
  if scalar:
    old = vector.extract(old, [], [0])
  return [old]


def _one_by_one(
  n, update, mask, lane, both, fetch, put, combined, compute, word, flag
):
  """Lane after lane, since a later one may meet what an earlier one wrote."""
  out: Any = None
  order = reversed(range(n)) if update.reverse else range(n)
  for k in order:
    here = lane(k)
    where = both(mask, here)
    old = fetch(where)
    put(combined(old), where)
    if not update.need_old:
      continue
    if out is None:
      out = compute(lambda x: lax.full_like(x, 0), (old, word))
    out = arith.select(here, old, out)
  del flag
  return out


def _combine(op, old, *operands):
  if op in (AtomicOp.MAX, AtomicOp.MIN) and old.dtype == np.uint32:
    from jax_swapext._src.pallas import tpu_values

    return tpu_values.combine(op, old, operands)
  return semantics.combine(op, old, *operands)


def _register() -> None:
  for prim in (
    load.load_p,
    swap.swap_p,
    atomic_rmw.atomic_rmw_p,
    atomic_cas.atomic_cas_p,
  ):

    def rule(ctx, ref, *leaves, prim=prim, **params):
      return _lower(prim, ctx, ref, *leaves, **params)

    lowering.register_lowering_rule(
      prim, kernel_types=[_VECTOR, _SCALAR], ensure_mlir_values=False
    )(rule)


_register()
