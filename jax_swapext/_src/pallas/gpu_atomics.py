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
"""One atomic update of one element."""

from __future__ import annotations

from typing import Any

from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import arith
from jax._src.lib.mlir.dialects import llvm
from jax._src.lib.mlir.dialects import scf
from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jax_swapext._src import semantics
from jax_swapext._src.pallas import gpu_ir

AtomicOp = semantics.AtomicOp

_SYNC_SCOPES = {"block": "block", "cluster": "cluster", "device": "device",
               "system": None}

_ORDERINGS = {
    "relaxed": llvm.AtomicOrdering.monotonic,
    "acquire": llvm.AtomicOrdering.acquire,
    "release": llvm.AtomicOrdering.release,
    "acq_rel": llvm.AtomicOrdering.acq_rel,
}


def update(request, ref, place, swizzle, operands) -> ir.Value:
  """One atomic update of one element; returns the old value."""
  ty = gpu_ir.element_type(request.dtype)
  pointer = gpu_ir.element_pointer(ref, place, swizzle)
  scope = request.scope
  if scope is None:
    scope = "block" if mgpu_utils.is_smem_ref(ref) else "device"
  kwargs: dict[str, Any] = {}
  if _SYNC_SCOPES[scope] is not None:
    kwargs["syncscope"] = _SYNC_SCOPES[scope]
  order = _ORDERINGS[request.sem]
  signed = mgpu_utils.is_signed(request.dtype)
  op = request.op

  if op is AtomicOp.CAS:
    expected, value = map(to_word, operands)
    old = _compare_exchange(pointer, expected, value, order, kwargs)
    return from_word(old, ty)
  is_float = isinstance(ty, ir.FloatType)
  if is_float and op in (AtomicOp.MAX, AtomicOp.MIN):
    return _float_extreme(op, pointer, operands[0], order, kwargs)
  [value] = operands
  as_word = not (is_float and op is AtomicOp.ADD)
  kind = _binary_op(op, is_float, signed)
  if not as_word:
    return llvm.atomicrmw(kind, pointer, value, order, **kwargs)
  old = llvm.atomicrmw(kind, pointer, to_word(value), order, **kwargs)
  return from_word(old, ty)


def _binary_op(op: AtomicOp, is_float: bool, signed) -> llvm.AtomicBinOp:
  kinds = llvm.AtomicBinOp
  match op:
    case AtomicOp.XCHG:
      return kinds.xchg
    case AtomicOp.ADD:
      return kinds.fadd if is_float else kinds.add
    case AtomicOp.MAX:
      return kinds.max if signed else kinds.umax
    case AtomicOp.MIN:
      return kinds.min if signed else kinds.umin
    case AtomicOp.AND:
      return kinds._and
    case AtomicOp.OR:
      return kinds._or
    case AtomicOp.XOR:
      return kinds._xor
  raise AssertionError(op)


def to_word(x: ir.Value) -> ir.Value:
  """An element as the integer that memory holds: a bool takes a byte."""
  x = gpu_ir.as_bits(x)
  if mgpu_utils.bitwidth(x.type) < 8:
    return arith.extui(ir.IntegerType.get_signless(8), x)
  return x


def from_word(x: ir.Value, ty: ir.Type) -> ir.Value:
  if mgpu_utils.bitwidth(ty) < 8:
    return arith.trunci(ty, x)
  return gpu_ir.from_bits(x, ty)


_FAILURE = {
    "relaxed": llvm.AtomicOrdering.monotonic,
    "acquire": llvm.AtomicOrdering.acquire,
    "release": llvm.AtomicOrdering.monotonic,
    "acq_rel": llvm.AtomicOrdering.acquire,
}


def _compare_exchange(pointer, expected, value, order, kwargs):
  name = next(n for n, o in _ORDERINGS.items() if o == order)
  pair = llvm.cmpxchg(
      pointer, expected, value, order, _FAILURE[name], **kwargs
  )
  return llvm.extractvalue(expected.type, pair, [0])


def _float_extreme(op, pointer, value, order, kwargs):
  """A compare-and-swap loop, since hardware's max and min drop NaNs."""
  ty = value.type
  word = gpu_ir.as_bits(value).type
  first = llvm.load(
      word,
      pointer,
      ordering=llvm.AtomicOrdering.monotonic,
      alignment=mgpu_utils.bitwidth(word) // 8,
      **kwargs,
  )
  i1 = ir.IntegerType.get_signless(1)
  loop = scf.WhileOp([word, i1], [first, gpu_ir.true()])
  with ir.InsertionPoint(loop.before.blocks.append(word, i1)) as point:
    seen, again = point.block.arguments
    scf.condition(again, [seen, again])
  with ir.InsertionPoint(loop.after.blocks.append(word, i1)) as point:
    seen, _ = point.block.arguments
    combine = arith.maximumf if op is AtomicOp.MAX else arith.minimumf
    new = gpu_ir.as_bits(combine(gpu_ir.from_bits(seen, ty), value))
    found = _compare_exchange(pointer, seen, new, order, kwargs)
    failed = arith.cmpi(arith.CmpIPredicate.ne, found, seen)
    scf.yield_([found, failed])
  return gpu_ir.from_bits(loop.results[0], ty)
