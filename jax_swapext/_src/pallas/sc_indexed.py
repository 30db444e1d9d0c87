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
"""Indexed accesses to a SparseCore subcore's VMEM.

One indexed load or store takes a vector of positions under a mask and touches
nothing else. It handles 32-bit elements only, and where positions repeat the
highest lane remains: what has to see earlier lanes goes lane by lane.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import lax
from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import arith
from jax._src.lib.mlir.dialects import vector
from jax._src.pallas.mosaic import lowering
from jax._src.pallas.mosaic import sc_core
from jax.experimental.mosaic.dialects import tpu
from jax_swapext._src import compat
from jax_swapext._src import semantics
from jax_swapext._src.pallas import tpu_region
from jax_swapext._src.pallas import tpu_values
import numpy as np

AtomicOp = semantics.AtomicOp
Slice = compat.Slice
Update = tpu_region.Update


def refuse(update: Update, wanted: str, why: str, way_out: str):
  return NotImplementedError(
    f"{update.name}: wanted {wanted} on the SparseCore, but {why}. {way_out}"
  )


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


def is_vector(x: Any) -> bool:
  if isinstance(x, ir.Value):
    return isinstance(x.type, ir.VectorType)
  return bool(np.shape(x))


def _splat(x: Any, n: int) -> ir.Value:
  if tpu_region.is_static(x):
    return _constant(int(x), n)
  return vector.broadcast(_i32((n,)), _as_i32(x))


def lower_indexed(ctx, ref, access, avals, region, dtype, update):
  lanes = sc_core.get_sparse_core_info().num_lanes
  scalar = not region.natural_shape
  if len(region.natural_shape) > 1:
    raise refuse(
      update,
      f"a region of shape {region.natural_shape}",
      "its vectors have one dimension",
      "Loop over the rows.",
    )
  n = lanes if scalar else region.natural_shape[0]
  if not ctx.lowering_context.needs_layout_passes and n != lanes:
    raise refuse(
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
    elif is_vector(index):
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
    return tpu_values.combine(op, old, operands)
  return semantics.combine(op, old, *operands)
