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
"""Loads, stores, swaps and atomics as one thread executes them.

All lowerings end here: the values are FragmentedArrays, the memory is a memref,
and what this emits runs on every thread of the warp or warpgroup.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import Any

from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import arith
from jax._src.lib.mlir.dialects import llvm
from jax._src.lib.mlir.dialects import vector
from jax.experimental.mosaic.gpu import fragmented_array as fa
from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jax_swapext._src import semantics
from jax_swapext._src.pallas import gpu_atomics
from jax_swapext._src.pallas import gpu_gather
from jax_swapext._src.pallas import gpu_ir
from jax_swapext._src.pallas import gpu_layouts
from jax_swapext._src.pallas import gpu_view
import numpy as np

AtomicOp = semantics.AtomicOp
FragmentedArray = fa.FragmentedArray

# Every warpgroup of a block has a part of its own in the scratch.
MAX_WARPGROUPS = 8


@dataclasses.dataclass(frozen=True)
class Request:
  """What to do, without the values.

  Attributes:
    name: the public function, for errors.
    op: None for load, store and swap.
    reads: whether the old (or loaded) value is wanted.
    writes: whether memory changes.
    dtype: of the region.
    sem: ordering of an atomic.
    scope: of an atomic; None where it is not known yet.
    in_order: whether the elements of an atomic are updated in row-major order.
  """

  name: str
  op: AtomicOp | None
  reads: bool
  writes: bool
  dtype: np.dtype
  sem: str = "relaxed"
  scope: str | None = None
  in_order: bool = False


@dataclasses.dataclass
class Lanes:
  """The threads that execute an access together.

  Attributes:
    warp: whether they are a warp, and not a warpgroup.
    auto_barriers: whether the kernel wants barriers around writes.
    scratch: SMEM for old values, or None.
    index_scratch: SMEM for indices, or None.
    mask_scratch: SMEM to move a mask through, or None.
  """

  warp: bool
  auto_barriers: bool
  scratch: Any = None
  index_scratch: Any = None
  mask_scratch: Any = None

  def barrier(self):
    if self.warp:
      mgpu_utils.warp_barrier()
    else:
      mgpu_utils.warpgroup_barrier()


@dataclasses.dataclass
class Values:
  """The arrays of an access; None where there is none."""

  mask: FragmentedArray | None = None
  operands: tuple[FragmentedArray, ...] = ()


def access(
    request: Request,
    lanes: Lanes,
    ref: ir.Value,
    view: gpu_view.View,
    values: Values,
    layout,
) -> FragmentedArray | None:
  """Emits the access; returns the old or loaded value if it is wanted.

  Args:
    request: what to do.
    lanes: who does it.
    ref: the memref.
    view: from the region to the memref.
    values: mask and operands, each in `layout` or a splat.
    layout: how the region is shared; None for a region of one element.
  """
  before, after = _fences(request, lanes)
  if before:
    lanes.barrier()
  if layout is None:
    result = _scalar_access(request, lanes, ref, view, values)
  else:
    result = _array_access(request, lanes, ref, view, values, layout)
  if after:
    lanes.barrier()
  return result


def _fences(request, lanes):
  """Whether a barrier goes before and after."""
  if not request.writes:
    return False, False
  # The barriers of a stock store; and the threads that wait for one of them to
  # acquire or release have to take part in its ordering.
  before = lanes.auto_barriers or request.sem in ("release", "acq_rel")
  after = lanes.auto_barriers or request.sem in ("acquire", "acq_rel")
  return before, after


# ## Representation in memory
#
# A bool takes a byte, but its memref says i1. Types that the hardware cannot
# compute with travel as integers.


def _from_memory(x: ir.Value, ty: ir.Type) -> ir.Value:
  return x if x.type == ty else arith.bitcast(ty, x)


def _load(ref, place, swizzle, ty):
  return _from_memory(gpu_ir.memory_load(ref, place, swizzle), ty)


def _store(value, ref, place, swizzle):
  ty = ir.MemRefType(ref.type).element_type
  gpu_ir.memory_store(_from_memory(value, ty), ref, place, swizzle)


# ## One element


def _scalar_access(request, lanes, ref, view, values):
  ty = gpu_ir.element_type(request.dtype)
  shape = view.shape
  elements = [
      gpu_ir.as_index(gpu_layouts.scalar(x)) if isinstance(x, FragmentedArray)
      else gpu_ir.as_index(x)
      for x in view.arrays()
  ]
  place = view.locate((0,) * len(shape), elements)
  mask = None if values.mask is None else gpu_layouts.scalar(values.mask)
  operands = [gpu_layouts.scalar(x) for x in values.operands]
  signed = mgpu_utils.is_signed(request.dtype)
  if request.op is not None:
    first = gpu_ir.is_zero(
        gpu_ir.lane() if lanes.warp else gpu_ir.thread_in_warpgroup()
    )
    update = lambda: gpu_atomics.update(
        request, ref, place, view.swizzle, operands
    )
    predicate = gpu_ir.both(first, mask)
    if not request.reads:
      gpu_ir.when(predicate, update)
      return None
    old = gpu_ir.when(predicate, update, lambda: gpu_ir.zero(ty))
    old = gpu_atomics.broadcast_scalar(old, first, lanes)
    return FragmentedArray.splat(old, shape, is_signed=signed)
  result = None
  if request.reads:
    other = operands[0] if operands and not request.writes else None
    result = gpu_ir.when(
        mask,
        lambda: _load(ref, place, view.swizzle, ty),
        lambda: gpu_ir.zero(ty) if other is None else other,
    )
  if request.writes:
    if request.reads:
      lanes.barrier()  # All threads read the one element that all write.
    [value] = operands
    gpu_ir.when(mask, lambda: _store(value, ref, place, view.swizzle))
  if result is None:
    return None
  return FragmentedArray.splat(result, shape, is_signed=signed)


# ## Many elements


def _array_access(request, lanes, ref, view, values, layout):
  shape = view.shape
  spread = lambda x: gpu_layouts.materialize(x, shape, layout)
  mask = values.mask
  if mask is not None and lanes.mask_scratch is not None:
    mask = _mask_in_layout(mask, shape, layout, lanes.mask_scratch)
  elif mask is not None:
    mask = spread(mask)
  operands = [spread(x) for x in values.operands]
  arrays = _index_arrays(lanes, view, layout)
  ty = gpu_ir.element_type(request.dtype)
  registers = list(gpu_layouts.registers(layout, shape))

  def element_index(position, e, index):
    at = [
        gpu_ir.as_index(gpu_ir.extract(a.registers[position], e))
        for a in arrays
    ]
    return view.locate(index, at)

  def predicate(position, e):
    if mask is None:
      return None
    return gpu_ir.extract(mask.registers[position], e)

  run = _Elements(registers, element_index, predicate, view.swizzle, ref, ty)
  if request.op is not None:
    turns = None
    if request.in_order and arrays:
      turns = view.turns()
    return gpu_atomics.update_array(
        request, lanes, layout, shape, operands, run, turns
    )
  vectors = mask is None and not arrays and _has_vectors(
      ref, view, layout, request.dtype
  )
  result = None
  if request.reads:
    result = np.empty(layout.registers_shape(shape), dtype=object)
    other = operands[0] if operands and not request.writes else None
    if vectors:
      run.load_vectors(result, layout)
    else:
      run.load(result, other)
  if request.writes:
    if request.reads and (
        arrays or gpu_layouts.is_replicated(layout, lanes.warp)
    ):
      # One thread must not write what another has yet to read.
      lanes.barrier()
    [value] = operands
    if vectors:
      run.store_vectors(value)
    else:
      run.store(value)
  if result is None:
    return None
  signed = mgpu_utils.is_signed(request.dtype)
  return gpu_ir.wrap(result, layout, signed)


def _mask_in_layout(mask, shape, layout, scratch):
  """The mask in the value's layout, by way of shared memory if need be."""
  if mask.layout == layout or isinstance(mask.layout, gpu_layouts.Splat):
    return gpu_layouts.materialize(mask, shape, layout)
  i8 = ir.IntegerType.get_signless(8)
  moved = gpu_gather.gather_through_scratch(
      _map(mask, lambda x: arith.extui(i8, x)), shape, layout, lambda i: i,
      scratch,
  )
  i1 = ir.IntegerType.get_signless(1)
  return _map(moved, lambda x: arith.trunci(i1, x))


def _map(x, function):
  """An integer array, elementwise."""
  held = np.empty(x.registers.shape, dtype=object)
  for position in np.ndindex(*held.shape):
    register = x.registers[position]
    n = ir.VectorType(register.type).shape[0]
    held[position] = gpu_ir.pack(
        [function(gpu_ir.extract(register, e)) for e in range(n)]
    )
  return gpu_ir.wrap(held, x.layout, False)


def _has_vectors(ref, view, layout, dtype):
  length = gpu_layouts.vector_length(layout)
  ty = ir.MemRefType(ref.type)
  strides, _ = ty.get_strides_and_offset()
  return (
      dtype != np.dtype(bool)
      and bool(strides) and strides[-1] == 1
      and gpu_layouts.rows_hold_vectors(layout, view.shape)
      and view.vector_is_contiguous(length, np.dtype(dtype).itemsize)
  )


@dataclasses.dataclass
class _Elements:
  """Runs over a thread's elements."""

  registers: list
  place: Callable
  predicate: Callable
  swizzle: int | None
  ref: ir.Value
  ty: ir.Type

  def _memory_vector(self, length):
    element = ir.MemRefType(self.ref.type).element_type
    return ir.VectorType.get((length,), element)

  def load_vectors(self, result, layout):
    wanted = layout.registers_element_type(self.ty)
    for position, elements in self.registers:
      place = self.place(position, 0, elements[0])
      ty = self._memory_vector(len(elements))
      if self.swizzle is None:
        # Natural alignment: LLVM widens what it can prove aligned, and a start
        # that is not never traps.
        x = vector.load(ty, self.ref, [gpu_ir.to_value(i) for i in place])
      else:
        pointer = gpu_ir.element_pointer(self.ref, place, self.swizzle)
        x = llvm.load(ty, pointer)
      result[position] = _from_memory(x, wanted)

  def store_vectors(self, value):
    for position, elements in self.registers:
      place = self.place(position, 0, elements[0])
      ty = self._memory_vector(len(elements))
      x = _from_memory(value.registers[position], ty)
      if self.swizzle is None:
        vector.store(x, self.ref, [gpu_ir.to_value(i) for i in place])
      else:
        llvm.store(x, gpu_ir.element_pointer(self.ref, place, self.swizzle))

  def load(self, result, other):
    for position, elements in self.registers:
      loaded = []
      for e, index in enumerate(elements):
        place = self.place(position, e, index)
        loaded.append(gpu_ir.when(
            self.predicate(position, e),
            lambda place=place: _load(self.ref, place, self.swizzle, self.ty),
            lambda e=e, position=position: gpu_ir.zero(self.ty)
            if other is None
            else gpu_ir.extract(other.registers[position], e),
        ))
      result[position] = gpu_ir.pack(loaded)

  def store(self, value):
    for position, elements in self.registers:
      for e, index in enumerate(elements):
        place = self.place(position, e, index)
        x = gpu_ir.extract(value.registers[position], e)
        gpu_ir.when(
            self.predicate(position, e),
            lambda x=x, place=place: _store(x, self.ref, place, self.swizzle),
        )


def _index_arrays(lanes, view, layout) -> list[FragmentedArray]:
  """The integer arrays of the index, as arrays over the region."""
  arrays = view.arrays()
  if not arrays:
    return []
  shape = view.shape
  int_shape = view.steps[-1].aval.int_indexer_shape
  if tuple(int_shape) == tuple(shape):
    return [gpu_layouts.materialize(a, shape, layout) for a in arrays]
  if lanes.warp:
    return [
        gpu_gather.gather(a, shape, layout, view.array_positions)
        for a in arrays
    ]
  return [
      gpu_gather.gather_through_scratch(
          a, shape, layout, view.array_positions, lanes.index_scratch
      )
      for a in arrays
  ]
