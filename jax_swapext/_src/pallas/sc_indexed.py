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

import math
from typing import Any

import jax
from jax import lax
from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import arith
from jax._src.lib.mlir.dialects import scf
from jax._src.lib.mlir.dialects import vector
from jax._src.pallas.mosaic import lowering
from jax._src.pallas.mosaic import sc_core
from jax.experimental.mosaic.dialects import tpu
from jax_swapext._src import compat
from jax_swapext._src import indexing
from jax_swapext._src import semantics
from jax_swapext._src.pallas import tpu_region
from jax_swapext._src.pallas import tpu_values
import numpy as np

AtomicOp = semantics.AtomicOp
Slice = compat.Slice
Region = tpu_region.Region
Update = tpu_region.Update


def refuse(update: Update, wanted: str, why: str, way_out: str):
  return NotImplementedError(
    f"{update.name}: wanted {wanted} on the SparseCore, but {why}. {way_out}"
  )


def lanes() -> int:
  """How many words a vector register has."""
  return sc_core.get_sparse_core_info().num_lanes


def is_tc_tiling() -> bool | None:
  """Whether the kernel has the TensorCore's tiling; None if not known."""
  # When the rules are registered, the module that this wraps is not there yet.
  from jax_swapext._src.pallas import sc_tiling

  return sc_tiling.is_tc_tiling()


def _i32(shape=()) -> ir.Type:
  word = ir.IntegerType.get_signless(32)
  return ir.VectorType.get(shape, word) if shape else word


def _constant(value: int, shape) -> ir.Value:
  word = ir.IntegerAttr.get(_i32(), value)
  t = _i32(shape)
  return arith.constant(t, ir.DenseElementsAttr.get_splat(t, word))


def _compare(predicate: str, a: ir.Value, b: ir.Value) -> ir.Value:
  code = ("eq", "ne", "slt", "sle", "sgt", "sge").index(predicate)
  attribute = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), code)
  return arith.cmpi(attribute, a, b)


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


def _splat(x: Any, shape) -> ir.Value:
  if tpu_region.is_static(x):
    return _constant(int(x), shape)
  return vector.broadcast(_i32(shape), _as_i32(x))


def _iota(shape, axis: int) -> ir.Value:
  return tpu.iota(_i32(shape), dimensions=[axis])


def _positions(region: Region, shape) -> list[Any]:
  """Per dimension of the view, the position of every lane."""
  ints = indexing.int_labels(len(region.int_shape))
  labels = indexing.region_axes(region.indices, ints)

  def array(index):
    if not isinstance(index, ir.Value):
      aval = jax.core.ShapedArray(np.shape(index), np.int32)
      index = lowering._ensure_mlir_value(index, aval)
    if region.int_shape == shape:
      return index
    # One index per row or per column of a region of two dimensions.
    [axis] = map(labels.index, ints)
    out = _constant(0, shape)
    for k in range(region.int_shape[0]):
      here = _compare("eq", _iota(shape, axis), _constant(k, shape))
      one = vector.broadcast(_i32(shape), vector.extract(index, [], [k]))
      out = arith.select(here, one, out)
    return out

  positions: list[Any] = []
  for d, index in enumerate(region.indices):
    if isinstance(index, Slice):
      step = _iota(shape, labels.index(d))
      if index.stride != 1:
        step = arith.muli(step, _constant(index.stride, shape))
      positions.append(arith.addi(step, _splat(index.start, shape)))
    elif is_vector(index):
      positions.append(array(index))
    else:
      positions.append(_splat(index, shape))
  return positions


class _Lanes:
  """One indexed access: what its lanes do, and how they do it.

  Attributes:
    shape: Shape of its vectors.
    scalar: Whether all lanes stand for one element.
    flag: The mask as it is given, or None.
    mask: The same as a vector.
    operands: Vectors.
  """

  def __init__(self, ctx, ref, access, avals, region, dtype, update):
    self.ctx, self.update, self.region = ctx, update, region
    register = (lanes(),)
    self.scalar = not region.natural_shape
    self.shape = region.natural_shape or register
    self.is_register = self.shape == register
    self.base = ref
    if region.prefix:
      self.base, _ = lowering._transform_ref(
        ref, ctx.avals_in[0], ctx.block_shapes[0], region.prefix
      )
    self.positions = _positions(region, self.shape)
    self.aval = jax.core.ShapedArray(self.shape, dtype)
    self.type = ctx.aval_to_ir_type(self.aval)
    self.operands = [*map(self._vector, access.operands, avals.operands)]
    self.flag = self.mask = None
    if access.mask is not None:
      self.flag = lowering._ensure_mlir_value(access.mask, avals.mask)
      self.mask = self._vector(self.flag, avals.mask)

  def _vector(self, x, aval) -> ir.Value:
    """An operand or the mask as a vector of the access."""
    x = lowering._ensure_mlir_value(x, aval)
    if not self.scalar:
      return x
    if aval.dtype == np.dtype(bool):
      # Splats of predicates do not lower; comparisons with lanes do.
      first = arith.select(
        x, arith.constant(_i32(), 0), arith.constant(_i32(), self.shape[0])
      )
      first = vector.broadcast(_i32(self.shape), first)
      return _compare("sge", _iota(self.shape, 0), first)
    return vector.broadcast(self.type, x)

  def compute(self, fun, *values) -> ir.Value:
    """Lowers a function of vectors of the Ref's dtype."""
    avals = [self.aval] * len(values)
    ctx = self.ctx.replace(avals_in=avals, block_shapes=[None] * len(values))
    [out] = lowering.lower_fun(lambda *xs: [fun(*xs)])(ctx, *values)
    return out

  def fetch(self, where) -> ir.Value:
    return tpu.vector_load_idx(self.type, self.base, self.positions, mask=where)

  def put(self, x, where, add=False) -> None:
    tpu.vector_store_idx(x, self.base, self.positions, mask=where, add=add)

  def combined(self, old) -> ir.Value:
    op = self.update.op
    if op is AtomicOp.XCHG:
      return self.operands[0]
    return self.compute(
      lambda old, *xs: _combine(op, old, *xs), old, *self.operands
    )

  def lane(self, k: int) -> ir.Value:
    """Whether a lane is the k-th, under the mask."""
    flat = _iota(self.shape, len(self.shape) - 1)
    if len(self.shape) > 1:
      columns = _constant(self.shape[1], self.shape)
      flat = arith.addi(arith.muli(_iota(self.shape, 0), columns), flat)
    if self.scalar and self.flag is not None:
      # The scalar unit decides, as flags of all lanes and of one do not meet.
      here = arith.select(
        self.flag, arith.constant(_i32(), k), arith.constant(_i32(), -1)
      )
      return _compare("eq", flat, vector.broadcast(_i32(self.shape), here))
    here = _compare("eq", flat, _constant(k, self.shape))
    return here if self.mask is None else arith.andi(self.mask, here)

  def writers(self) -> ir.Value | None:
    """The lanes that write; one of those that stand for the same element."""
    return self.lane(0) if self.scalar else self.mask


def lower_indexed(ctx, ref, access, avals, region, dtype, update):
  """Lowers an access to 32-bit elements of VMEM."""
  shape = region.natural_shape
  passes = ctx.lowering_context.needs_layout_passes
  if not passes and shape not in ((), (lanes(),)):
    raise refuse(
      update,
      f"a region of shape {shape} at once",
      f"without layout passes a vector has {lanes()}",
      "Set needs_layout_passes=True in the compiler parameters, or mask a"
      " whole vector.",
    )
  if len(shape) > 2:
    raise refuse(
      update,
      f"a region of shape {shape}",
      "its vectors have one dimension or two",
      "Loop over the first dimension.",
    )
  access = _Lanes(ctx, ref, access, avals, region, dtype, update)
  repeats = update.name.startswith("atomic") and region.int_shape
  old: Any = None
  if update.op is AtomicOp.ADD and not update.need_old:
    # Its lanes add one after the other.
    access.put(access.operands[0], access.writers(), add=True)
  elif repeats and (
    update.need_old or update.reverse or update.op is not AtomicOp.XCHG
  ):
    old = _in_order(access)
  else:
    if update.is_load or update.reads:
      old = access.fetch(access.mask)
    if not update.is_load:
      # Where positions repeat, the last lane remains.
      access.put(access.combined(old), access.writers())
  if not update.need_old:
    return []
  if access.mask is not None:
    if update.is_load and access.operands:
      [other] = access.operands
    else:
      other = access.compute(lambda x: lax.full_like(x, 0), old)
    old = arith.select(access.mask, old, other)
  return [vector.extract(old, [], [0]) if access.scalar else old]


def _all_lanes(access: _Lanes):
  old = access.fetch(access.mask)
  access.put(access.combined(old), access.mask)
  return old


def _in_order(access: _Lanes) -> ir.Value:
  """An atomic update at positions of which some may be the same."""
  if access.update.reverse or not access.is_register:
    return _one_by_one(access)
  branch: Any = scf.IfOp(_any_repeats(access), [access.type], has_else=True)
  with ir.InsertionPoint(branch.then_block):
    scf.yield_([_one_by_one(access)])
  with ir.InsertionPoint(branch.else_block):
    scf.yield_([_all_lanes(access)])
  return branch.result


def _any_repeats(access: _Lanes) -> ir.Value:
  """Whether two lanes that the mask allows are at one position."""
  key: Any = None
  for d, index in enumerate(access.region.indices):
    if not is_vector(index):
      continue
    at = access.positions[d]
    if key is not None:
      size = _constant(access.region.shape[d], access.shape)
      at = arith.addi(arith.muli(key, size), at)
    key = at
  live = access.mask
  if live is None:
    zero = _constant(0, access.shape)
    live = _compare("sge", _iota(access.shape, 0), zero)
  last, _ = tpu.scan_count(live, key)
  repeated = arith.andi(live, arith.xori(live, last))
  if access.ctx.lowering_context.needs_layout_passes:
    # The layout passes know no reduction over lanes.
    one, zero = _constant(1, access.shape), _constant(0, access.shape)
    flags = arith.select(repeated, one, zero)
    count = vector.extract(flags, [], [0])
    for k in range(1, access.shape[0]):
      count = arith.addi(count, vector.extract(flags, [], [k]))
  else:
    kind = ir.Attribute.parse("#tpu.reduction_kind<sum>")
    counts = tpu.all_reduce(_i32(access.shape), repeated, 0, kind)
    count = vector.extract(counts, [], [0])
  return _compare("ne", count, arith.constant(_i32(), 0))


def _one_by_one(access: _Lanes) -> ir.Value:
  """Lane after lane, since a later one may meet what an earlier one wrote."""
  out: Any = None
  order = range(math.prod(access.shape))
  for k in reversed(order) if access.update.reverse else order:
    here = access.lane(k)
    old = access.fetch(here)
    access.put(access.combined(old), here)
    if out is None:
      out = access.compute(lambda x: lax.full_like(x, 0), old)
    out = arith.select(here, old, out)
  return out


def _combine(op, old, *operands):
  if op in (AtomicOp.MAX, AtomicOp.MIN) and old.dtype == np.uint32:
    return tpu_values.combine(op, old, operands)
  return semantics.combine(op, old, *operands)
