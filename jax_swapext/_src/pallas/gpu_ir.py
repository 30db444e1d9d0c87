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
"""Small pieces of IR that the Mosaic GPU rules are built from.

Index arithmetic mixes Python ints, folded here, and values of index type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import math
from typing import Any

from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import arith
from jax._src.lib.mlir.dialects import llvm
from jax._src.lib.mlir.dialects import memref
from jax._src.lib.mlir.dialects import nvvm
from jax._src.lib.mlir.dialects import scf
from jax._src.lib.mlir.dialects import vector
from jax.experimental.mosaic.gpu import fragmented_array as fa
from jax.experimental.mosaic.gpu import utils as mgpu_utils
import numpy as np

FragmentedArray = fa.FragmentedArray
Index = int | ir.Value

WARP_SIZE = 32
WARPGROUP_SIZE = 128


def i32() -> ir.Type:
  return ir.IntegerType.get_signless(32)


def i64() -> ir.Type:
  return ir.IntegerType.get_signless(64)


def const_i32(value: int) -> ir.Value:
  return arith.constant(i32(), value)


def true() -> ir.Value:
  return arith.constant(ir.IntegerType.get_signless(1), 1)


def constant(element: ir.Type, value: int) -> ir.Value:
  return arith.constant(
      element, float(value) if isinstance(element, ir.FloatType) else value
  )


def zero(element: ir.Type) -> ir.Value:
  return constant(element, 0)


def as_index(x) -> Index:
  """A scalar index in any of the forms that a rule receives."""
  if isinstance(x, FragmentedArray):
    x = x.registers.item()
  if isinstance(x, ir.Value):
    if isinstance(x.type, ir.IndexType):
      return x
    return arith.index_cast(ir.IndexType.get(), x)
  return int(x)


def to_value(x: Index) -> ir.Value:
  return arith.constant(ir.IndexType.get(), x) if isinstance(x, int) else x


def add(a: Index, b: Index) -> Index:
  if isinstance(a, int) and isinstance(b, int):
    return a + b
  if isinstance(a, int) and a == 0:
    return b
  if isinstance(b, int) and b == 0:
    return a
  return arith.addi(to_value(a), to_value(b))


def mul(a: Index, b: int) -> Index:
  if isinstance(a, int):
    return a * b
  return a if b == 1 else arith.muli(a, to_value(b))


def div(a: Index, b: int) -> Index:
  if isinstance(a, int):
    return a // b
  return a if b == 1 else arith.divui(a, to_value(b))


def rem(a: Index, b: int) -> Index:
  if isinstance(a, int):
    return a % b
  return 0 if b == 1 else arith.remui(a, to_value(b))


def least(a: Index, b: int) -> Index:
  """The smaller of two indices that are not negative."""
  return min(a, b) if isinstance(a, int) else arith.minui(a, to_value(b))


def linearize(indices: Sequence[Index], shape: Sequence[int]) -> Index:
  total: Index = 0
  for i, size in zip(indices, shape, strict=True):
    total = add(mul(total, size), i)
  return total


def delinearize(linear: Index, shape: Sequence[int]) -> tuple[Index, ...]:
  indices = []
  for size in reversed(shape[1:]):
    indices.append(rem(linear, size))
    linear = div(linear, size)
  return (*([linear] if shape else []), *reversed(indices))


def extract(register: ir.Value, element: int) -> ir.Value:
  if not isinstance(register.type, ir.VectorType):
    return register
  return vector.extract(
      register,
      dynamic_position=[],
      static_position=ir.DenseI64ArrayAttr.get([element]),
  )


def pack(elements: Sequence[ir.Value]) -> ir.Value:
  """A vector of scalars."""
  ty = ir.VectorType.get((len(elements),), elements[0].type)
  return vector.from_elements(ty, list(elements))


def both(a: ir.Value | None, b: ir.Value | None) -> ir.Value | None:
  """Conjunction of predicates; None is true."""
  if a is None or b is None:
    return b if a is None else a
  return arith.andi(a, b)


def when(
    predicate: ir.Value | None,
    then: Callable[[], Any],
    otherwise: Callable[[], ir.Value] | None = None,
) -> Any:
  """Evaluates `then` where the predicate holds, else gives `otherwise`."""
  if predicate is None:
    return then()
  if otherwise is None:
    op: Any = scf.IfOp(predicate)
    with ir.InsertionPoint(op.then_block):
      then()
      scf.yield_([])
    return None
  default = otherwise()
  op: Any = scf.IfOp(predicate, [default.type], has_else=True)
  with ir.InsertionPoint(op.then_block):
    scf.yield_([then()])
  with ir.InsertionPoint(op.else_block):
    scf.yield_([default])
  return op.results[0]


def thread_in_warpgroup() -> ir.Value:
  return arith.remui(mgpu_utils.thread_idx(), const_i32(WARPGROUP_SIZE))


def lane() -> ir.Value:
  return arith.remui(mgpu_utils.thread_idx(), const_i32(WARP_SIZE))


def warp_in_warpgroup() -> ir.Value:
  return arith.divui(thread_in_warpgroup(), const_i32(WARP_SIZE))


def warpgroup() -> ir.Value:
  index = arith.divui(mgpu_utils.thread_idx(), const_i32(WARPGROUP_SIZE))
  return arith.index_cast(ir.IndexType.get(), index)


def is_zero(x: ir.Value) -> ir.Value:
  return arith.cmpi(arith.CmpIPredicate.eq, x, arith.constant(x.type, 0))


def as_bits(x: ir.Value) -> ir.Value:
  """A float as an integer of its width; an integer as it is."""
  if isinstance(x.type, ir.IntegerType):
    return x
  bits = ir.IntegerType.get_signless(mgpu_utils.bitwidth(x.type))
  return arith.bitcast(bits, x)


def from_bits(x: ir.Value, ty: ir.Type) -> ir.Value:
  return x if x.type == ty else arith.bitcast(ty, x)


def shuffle(x: ir.Value, source_lane: ir.Value) -> ir.Value:
  """The value that another lane of the warp holds; all 32 take part."""
  bits = as_bits(x)
  width = mgpu_utils.bitwidth(bits.type)

  def move(word):
    return nvvm.shfl_sync(
        const_i32(-1), word, source_lane, const_i32(31), nvvm.ShflKind.idx
    )

  if width == 64:
    shift = arith.constant(i64(), 32)
    low = arith.trunci(i32(), bits)
    high = arith.trunci(i32(), arith.shrui(bits, shift))
    low = arith.extui(i64(), move(low))
    high = arith.extui(i64(), move(high))
    return from_bits(arith.ori(low, arith.shli(high, shift)), x.type)
  if width == 32:
    return from_bits(move(bits), x.type)
  moved = move(arith.extui(i32(), bits))
  return from_bits(arith.trunci(bits.type, moved), x.type)


def element_pointer(
    ref: ir.Value, indices: Sequence[Index], swizzle: int | None = None
) -> ir.Value:
  """A pointer to one element, in the address space of the memory."""
  ty = ir.MemRefType(ref.type)
  strides, _ = ty.get_strides_and_offset()
  linear: Index = 0
  for i, stride in zip(indices, strides, strict=True):
    linear = add(linear, mul(i, stride))
  nbytes = max(mgpu_utils.bitwidth(ty.element_type) // 8, 1)
  offset = arith.index_cast(i64(), to_value(mul(linear, nbytes)))
  if swizzle is not None and swizzle > 16:
    # Bits 4 and up of the address are mixed with bits 7 and up.
    mask = arith.constant(i64(), (swizzle // 16 - 1) << 7)
    bits = arith.shrui(arith.andi(offset, mask), arith.constant(i64(), 3))
    offset = arith.xori(offset, bits)
  base = mgpu_utils.memref_ptr(ref)
  if llvm.PointerType(base.type).address_space == 0:
    # Not known to be global memory any more: say so.
    base = llvm.addrspacecast(llvm.PointerType.get(address_space=1), base)
  i8 = ir.IntegerType.get_signless(8)
  return mgpu_utils.getelementptr(base, [offset], i8)


def memory_load(ref, indices, swizzle=None) -> ir.Value:
  if swizzle is None:
    return memref.load(ref, [to_value(i) for i in indices])
  element = ir.MemRefType(ref.type).element_type
  return llvm.load(element, element_pointer(ref, indices, swizzle))


def memory_store(value, ref, indices, swizzle=None) -> None:
  if swizzle is None:
    memref.store(value, ref, [to_value(i) for i in indices])
  else:
    llvm.store(value, element_pointer(ref, indices, swizzle))


def wrap(register_array: np.ndarray, layout, is_signed) -> FragmentedArray:
  return FragmentedArray(
      _registers=register_array, _layout=layout, _is_signed=is_signed
  )


def element_type(dtype) -> ir.Type:
  return mgpu_utils.dtype_to_ir_type(dtype)


def value_type(aval) -> ir.Type:
  """The type of a value in Warpgroup lowering."""
  ty = element_type(aval.dtype)
  return ir.VectorType.get(aval.shape, ty) if aval.shape else ty


def is_array(aval) -> bool:
  return bool(getattr(aval, "shape", ()))


def size(shape: Sequence[int]) -> int:
  return math.prod(shape)
