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
"""Atomic updates, of one element and of many."""

from __future__ import annotations

import functools
from typing import Any

from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import arith
from jax._src.lib.mlir.dialects import llvm
from jax._src.lib.mlir.dialects import memref
from jax._src.lib.mlir.dialects import scf
from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jax_swapext._src import semantics
from jax_swapext._src.pallas import gpu_ir
from jax_swapext._src.pallas import gpu_layouts
import numpy as np

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
  kwargs: dict[str, Any] = {}
  if _SYNC_SCOPES[request.scope] is not None:
    kwargs["syncscope"] = _SYNC_SCOPES[request.scope]
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
    case _:
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


# ## Many elements


def update_array(request, lanes, layout, shape, operands, run, turns=None):
  """Atomic updates of the elements of a region; returns old values if wanted.

  Args:
    request: what to do.
    lanes: who does it.
    layout: how the region is shared.
    shape: of the region.
    operands: arrays in that layout.
    run: over a thread's elements; says where each is and whether it counts.
    turns: None if they may go in any order, else as `View.turns` gives it.
  """
  owner_lane = gpu_layouts.owner_lanes(layout)
  across_warps = not lanes.warp and gpu_layouts.replicated_warps(layout)
  owner_warp = gpu_layouts.owner_warp(layout) if across_warps else None
  updates, owners, sources = [], {}, {}
  for position, elements in run.registers:
    lane_predicate, sources[position] = owner_lane(position)
    owners[position] = gpu_ir.both(lane_predicate, owner_warp)
    for e, index in enumerate(elements):
      predicate = gpu_ir.both(owners[position], run.predicate(position, e))
      values = [gpu_ir.extract(x.registers[position], e) for x in operands]
      updates.append((index, predicate, functools.partial(
          update, request, run.ref, run.place(position, e, index), run.swizzle,
          values,
      )))
  if turns is None:
    old = [_if(request, p, one, gpu_ir.zero(run.ty)) for _, p, one in updates]
  else:
    old = _in_turn(request, lanes, updates, run.ty, *turns)
  if not request.reads:
    return None
  held, old = [], iter(old)
  for position, elements in run.registers:
    held.append((position, elements, [next(old) for _ in elements]))
  if across_warps:
    held = _share_among_warps(held, owners, lanes.scratch, shape, run.ty)
  result = np.empty(layout.registers_shape(shape), dtype=object)
  for position, _, values in held:
    if sources[position] is not None and not across_warps:
      values = [gpu_ir.shuffle(x, sources[position]) for x in values]
    result[position] = gpu_ir.pack(values)
  return gpu_ir.wrap(result, layout, mgpu_utils.is_signed(request.dtype))


def _if(request, predicate, one, otherwise):
  """The update if the predicate holds; gives the old value if it is wanted."""
  if request.reads:
    return gpu_ir.when(predicate, one, lambda: otherwise)
  gpu_ir.when(predicate, one)
  return otherwise


def _in_turn(request, lanes, updates, ty, count, turn_of):
  """Updates one turn after the other, a barrier between; gives old values."""
  turns = [gpu_ir.to_value(turn_of(index)) for index, _, _ in updates]
  none = [gpu_ir.zero(ty)] * len(updates) if request.reads else []
  first, end, step = map(gpu_ir.to_value, (0, count, 1))
  loop: Any = scf.ForOp(first, end, step, none)
  with ir.InsertionPoint(loop.body):
    old = list(loop.inner_iter_args) or [None] * len(updates)
    for i, (_, predicate, one) in enumerate(updates):
      now = arith.cmpi(
          arith.CmpIPredicate.eq, turns[i], loop.induction_variable
      )
      old[i] = _if(request, gpu_ir.both(now, predicate), one, old[i])
    lanes.barrier()
    scf.yield_(old if request.reads else [])
  return list(loop.results)


def _share_among_warps(held, owners, scratch, shape, ty):
  """What the owners hold, in all threads of the warpgroup that share it."""
  start = gpu_ir.mul(gpu_ir.warpgroup(), gpu_ir.size(shape))

  def place(index):
    return [gpu_ir.to_value(
        gpu_ir.add(start, gpu_ir.linearize(index, shape))
    )]

  for position, elements, values in held:
    for index, x in zip(elements, values, strict=True):
      gpu_ir.when(
          owners[position],
          lambda x=x, index=index: _to_scratch(x, scratch, place(index)),
      )
  mgpu_utils.warpgroup_barrier()
  shared = [
      (position, elements,
       [_from_scratch(scratch, place(i), ty) for i in elements])
      for position, elements, _ in held
  ]
  mgpu_utils.warpgroup_barrier()
  return shared


def broadcast_scalar(x, first, lanes):
  """What the first thread holds, in all of the warp or warpgroup."""
  if lanes.warp:
    return gpu_ir.shuffle(x, gpu_ir.const_i32(0))
  place = [gpu_ir.warpgroup()]
  gpu_ir.when(first, lambda: _to_scratch(x, lanes.scratch, place))
  mgpu_utils.warpgroup_barrier()
  x = _from_scratch(lanes.scratch, place, x.type)
  mgpu_utils.warpgroup_barrier()
  return x


def _to_scratch(x, scratch, place):
  memref.store(to_word(x) if _is_bool(x.type) else x, scratch, place)


def _from_scratch(scratch, place, ty):
  x = memref.load(scratch, place)
  return from_word(x, ty) if _is_bool(ty) else x


def _is_bool(ty) -> bool:
  return mgpu_utils.bitwidth(ty) == 1
