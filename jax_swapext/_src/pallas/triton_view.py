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
"""Triton: pointers to the elements of a region of a Ref or of a view."""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any

from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import arith
from jax._src.lib.triton import dialect as tt
from jax._src.pallas import core as pallas_core
from jax._src.pallas.triton import lowering
from jax_swapext._src import compat
from jax_swapext._src import indexing
import numpy as np


def refuse(name: str, wanted: str, got: str, way_out: str) -> Exception:
  return NotImplementedError(
      f"{name}: wanted {wanted} in a Triton kernel, got {got}. {way_out}."
  )


def single_indexer(ref_aval: Any, transforms: Sequence[Any]) -> Any:
  """The indexer of an access that has one or none; else None."""
  if not transforms:
    return compat.NDIndexer.make_trivial_indexer(ref_aval.shape)
  if len(transforms) == 1 and isinstance(transforms[0], compat.NDIndexer):
    return transforms[0]
  return None


def check_sizes(name: str, shape: Sequence[int]) -> None:
  if any(n & (n - 1) or not n for n in shape):
    raise refuse(
        name, "a region with powers of two as sizes", f"shape {shape}",
        "Access the next larger one under a mask",
    )


def pointers_to(
    name: str, ref_aval: Any, ptr: ir.Value, block: Any,
    transforms: Sequence[Any], avals: Sequence[Any],
) -> tuple[ir.Value, ir.Value | None]:
  """Pointers to a region's elements, and a mask of those in the array.

  Args:
    name: of the operation, for errors.
    ref_aval: the Ref's.
    ptr: to the array of which the Ref is a block.
    block: JAX's description of that block.
    transforms: from the Ref to the region.
    avals: the same, with avals for their indices.
  """
  shape = compat.transform_type(avals, ref_aval.inner_aval).shape
  check_sizes(name, shape)
  sizes = block.full_shape_dtype.shape
  nbytes = math.prod(sizes) * block.full_shape_dtype.dtype.itemsize
  view = _View(name, shape, 64 if nbytes > 2**31 else 32)
  ptr = _as_pointee(name, ptr, ref_aval.dtype, transforms)
  positions = iter(view.positions(ref_aval.inner_aval, transforms, avals))
  offsets, inside = view.full(0), None
  for k, (size, block_size, start, alignment) in enumerate(
      zip(
          sizes, block.block_shape, block.start_indices,
          block.start_indices_alignment, strict=True,
      )
  ):
    if isinstance(block_size, pallas_core.Squeezed):
      index = view.full(0)
    else:
      index = next(positions)
    if start is not None:
      index = lowering._add(index, view.along(view.cast(start), ()))
    if isinstance(block_size, int) and (
        size % block_size or alignment % block_size
    ):
      here = arith.cmpi(arith.CmpIPredicate.ult, index, view.full(size))
      inside = here if inside is None else arith.andi(inside, here)
    stride = math.prod(sizes[k + 1 :])
    offsets = lowering._add(offsets, lowering._mul(index, view.full(stride)))
  return lowering._add(lowering._bcast_to(ptr, shape), offsets), inside


def _as_pointee(name, ptr, dtype, transforms):
  """The pointer, to elements of the dtype that the view has."""
  stored = dtype
  for t in transforms:
    if not isinstance(t, compat.BitcastTransform):
      continue
    seen = np.dtype(t.dtype)
    if seen.itemsize != dtype.itemsize or np.dtype(bool) in (seen, dtype):
      raise refuse(
          name, "a view of elements as others of the same size",
          f"{dtype} seen as {seen}", "Bitcast the value",
      )
    dtype = seen
  if dtype == stored:
    return ptr
  space = tt.PointerType(ptr.type).address_space
  pointee = lowering._dtype_to_ir_type(dtype)
  return tt.bitcast(tt.PointerType.get(pointee, space), ptr)


class _View:
  """Where the elements of a region are, as tensors of its shape."""

  def __init__(self, name: str, shape: tuple[int, ...], bits: int):
    self.name, self.shape = name, shape
    self.type = ir.IntegerType.get_signless(bits)

  def full(self, value: int) -> ir.Value:
    return self.along(lowering._ir_constant(value, self.type), ())

  def along(self, x: ir.Value, axes: Sequence[int]) -> ir.Value:
    """Spreads `x`, whose axes are these of the region, over all of it."""
    if isinstance(x.type, ir.RankedTensorType):
      for d in range(len(self.shape)):
        if d not in axes:
          x = lowering._expand_dims(x, d)
    return lowering._bcast_to(x, self.shape)

  def cast(self, x: Any, aval: Any = None) -> ir.Value:
    if not isinstance(x, ir.Value):
      return lowering._ir_constant(int(x), self.type)
    signed = aval is None or np.issubdtype(aval.dtype, np.signedinteger)
    return lowering._ir_cast(x, self.type, signed=signed)

  def steps(self, axis: int) -> ir.Value:
    size = self.shape[axis]
    if size == 1:
      return self.full(0)
    return self.along(self.cast(lowering._make_range(0, size)), (axis,))

  def positions(self, source, transforms, avals) -> list[ir.Value]:
    """The index of each element along each dimension of what is viewed."""
    before = []
    for t in avals:
      before.append(source.shape)
      source = t.transform_type(source)
    index = [self.steps(axis) for axis in range(len(self.shape))]
    for k in reversed(range(len(transforms))):
      match transforms[k]:
        case compat.NDIndexer() as indexer:
          index = self._indexed(
              indexer, avals[k], index, k + 1 == len(transforms)
          )
        case compat.TransposeTransform(permutation):
          index = [index[permutation.index(d)] for d in range(len(index))]
        case compat.ReshapeTransform(after):
          index = self._reshaped(index, after, before[k])
        case compat.BitcastTransform():
          pass
        case other:
          raise refuse(
              self.name, "indices, reshapes, transposes and bitcasts",
              f"the view {other}", "Access the Ref itself",
          )
    return index

  def _indexed(self, indexer, aval, index, is_last) -> list[ir.Value]:
    labels = indexing.int_labels(len(aval.int_indexer_shape))
    if labels and not is_last:
      raise refuse(
          self.name, "integer arrays in the last index only",
          f"the index {aval} of a view that is indexed again",
          "Combine the indices into one",
      )
    axes = indexing.region_axes(aval.indices, labels)
    found = []
    for d, (entry, entry_aval) in enumerate(
        zip(indexer.indices, aval.indices, strict=True)
    ):
      if not isinstance(entry_aval, compat.Slice):
        of_array = getattr(entry_aval, "shape", ())
        at = [axes.index(label) for label in labels] if of_array else ()
        found.append(self.along(self.cast(entry, entry_aval), at))
        continue
      start_aval = entry_aval.start
      start_aval = None if isinstance(start_aval, int) else start_aval
      start = self.along(self.cast(entry.start, start_aval), ())
      steps = index[axes.index(d)]
      if entry.stride != 1:
        steps = lowering._mul(steps, self.full(entry.stride))
      found.append(lowering._add(start, steps))
    return found

  def _reshaped(self, index, after, before) -> list[ir.Value]:
    linear = self.full(0)
    for i, n in zip(index, after, strict=True):
      linear = lowering._add(lowering._mul(linear, self.full(n)), i)
    found = []
    for n in reversed(before):
      found.append(lowering._mod(linear, self.full(n), signed=False))
      linear = lowering._floordiv(linear, self.full(n), signed=False)
    return found[::-1]
