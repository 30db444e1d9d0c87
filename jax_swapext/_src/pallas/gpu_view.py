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
"""From an index into the accessed region to a place in memory.

A Ref reaches a rule as a memref and a list of transforms. Stock rules slice the
memref, which cannot express a strided slice, an integer array or a mask; here
the transforms are walked backwards instead, one element at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import math
from typing import Any

from jax._src.pallas.mosaic_gpu import core as gpu_core
from jax._src.pallas.mosaic_gpu import lowering
from jax_swapext._src import compat
from jax_swapext._src import indexing
from jax_swapext._src.pallas import gpu_ir

Index = gpu_ir.Index

# These say which memory is meant, not where in it: JAX's helper resolves them.
_PLACES = (
    gpu_core.ExtractAliasedRef,
    gpu_core.PeerMemRef,
    gpu_core.ClusterRefTransform,
    gpu_core.MulticastRef,
)


@dataclasses.dataclass
class Step:
  """One transform: its values, its avals, and the shape it applies to."""

  transform: Any
  aval: Any
  source_shape: tuple[int, ...]


@dataclasses.dataclass
class View:
  """The region of an access.

  Attributes:
    steps: from memory to region; no `_PLACES` among them.
    shape: of the region.
    swizzle: bytes of the memory's swizzle, or None.
  """

  steps: list[Step]
  shape: tuple[int, ...]
  swizzle: int | None

  def is_tiled_or_swizzled(self) -> bool:
    return self.swizzle is not None or any(
        isinstance(s.transform, gpu_core.UntilingTransform) for s in self.steps
    )

  def of_memory(
      self, tiling: tuple[int, ...] | None, swizzle: int | None
  ) -> View:
    """The same region of a Ref whose memory is tiled and swizzled."""
    steps = self.steps
    if tiling is not None:
      untiling = gpu_core.UntilingTransform(tiling)
      steps = [Step(untiling, untiling, ()), *steps]
    return View(steps, self.shape, swizzle)

  def arrays(self) -> list[Any]:
    """The integer arrays of the last indexer, in its order."""
    if not self.steps or not isinstance(self.steps[-1].transform,
                                        compat.NDIndexer):
      return []
    step = self.steps[-1]
    return [
        i
        for i, a in zip(
            step.transform.indices, step.aval.indices, strict=True
        )
        if not isinstance(a, compat.Slice) and gpu_ir.is_array(a)
    ]

  def array_positions(self, index: Sequence[Index]) -> tuple[Index, ...]:
    """Where in the integer arrays an index into the region looks."""
    step = self.steps[-1]
    labels = indexing.int_labels(len(step.aval.int_indexer_shape))
    axes = indexing.region_axes(step.aval.indices, labels)
    return tuple(index[axes.index(label)] for label in labels)

  def turns(self) -> tuple[int, Callable[[Sequence[Index]], Index]]:
    """How many turns updates in row-major order take, and whose is when.

    Only elements of one place in memory have to take turns, which differ in
    where in the integer arrays they look.
    """
    shape = self.steps[-1].aval.int_indexer_shape

    def turn(index):
      return gpu_ir.linearize(self.array_positions(index), shape)

    return math.prod(shape), turn

  def locate(
      self, index: Sequence[Index], elements: Sequence[Index] = ()
  ) -> tuple[Index, ...]:
    """The memref's indices of an element of the region.

    Args:
      index: into the region.
      elements: what the integer arrays hold there.
    """
    index = tuple(index)
    for step in reversed(self.steps):
      index = _source_index(step, index, elements)
      elements = ()
    return index

  def vector_is_contiguous(self, length: int, itemsize: int) -> bool:
    """Whether `length` neighbours in a row are neighbours in memory.

    The first one's position is a multiple of `length` in the region.
    """
    alignment = 0  # of the row's start in the present step; 0: any
    needs_alignment = False
    for step in reversed(self.steps):
      match step.transform:
        case compat.NDIndexer() as indexer:
          last = step.aval.indices[-1]
          if not isinstance(last, compat.Slice) or last.stride != 1:
            return False
          if step.aval.int_indexer_shape:
            # NumPy may put the arrays' axes behind the last slice's.
            labels = indexing.int_labels(len(step.aval.int_indexer_shape))
            axes = indexing.region_axes(step.aval.indices, labels)
            if axes[-1] != len(step.aval.indices) - 1:
              return False
          last_index: Any = indexer.indices[-1]
          start = last_index.start
          alignment = math.gcd(
              alignment, start if isinstance(start, int) else 1
          )
        case compat.TransposeTransform(permutation):
          if permutation[-1] != len(permutation) - 1:
            return False
        case compat.ReshapeTransform(shape):
          needs_alignment = True
          if shape[-1] % length or step.source_shape[-1] % length:
            return False
        case gpu_core.UntilingTransform(tiling):
          needs_alignment = True
          if tiling[-1] % length:
            return False
    if self.swizzle is not None:
      needs_alignment = True
      if length * itemsize > 16:
        return False
    return not needs_alignment or alignment % length == 0


def _source_index(step: Step, index, elements):
  match step.transform:
    case compat.NDIndexer() as indexer:
      return _indexer_source(indexer, step.aval, index, iter(elements))
    case compat.TransposeTransform(permutation):
      source = [0] * len(permutation)
      for i, p in enumerate(permutation):
        source[p] = index[i]
      return tuple(source)
    case compat.ReshapeTransform(shape):
      return gpu_ir.delinearize(
          gpu_ir.linearize(index, shape), step.source_shape
      )
    case gpu_core.UntilingTransform(tiling):
      outer, inner = index[: -len(tiling)], index[-len(tiling) :]
      return (
          *outer,
          *(gpu_ir.div(i, t) for i, t in zip(inner, tiling, strict=True)),
          *(gpu_ir.rem(i, t) for i, t in zip(inner, tiling, strict=True)),
      )
  return index  # A bitcast to a dtype of the same width.


def _indexer_source(indexer, aval, index, elements):
  labels = indexing.int_labels(len(aval.int_indexer_shape))
  axes = indexing.region_axes(aval.indices, labels)
  source = []
  for d, (entry, entry_aval) in enumerate(
      zip(indexer.indices, aval.indices, strict=True)
  ):
    if isinstance(entry_aval, compat.Slice):
      offset = gpu_ir.mul(index[axes.index(d)], entry.stride)
      source.append(gpu_ir.add(offset, gpu_ir.as_index(entry.start)))
    elif gpu_ir.is_array(entry_aval):
      source.append(next(elements))
    else:
      source.append(gpu_ir.as_index(entry))
  return tuple(source)


def split(transforms, avals):
  """(places, their avals, the rest, their avals)."""
  places = [isinstance(t, _PLACES) for t in transforms]

  def pick(xs, which):
    return [x for x, p in zip(xs, places, strict=True) if p is which]

  return (pick(transforms, True), pick(avals, True),
          pick(transforms, False), pick(avals, False))


def resolve_places(name: str, ctx, ref_aval, ref, places, place_avals):
  """The memref of the memory that is meant, and its aval.

  Raises:
    NotImplementedError: no one memory is meant.
  """
  if any(isinstance(t, gpu_core.MulticastRef) for t in places):
    raise NotImplementedError(
        f"{name}: wanted a Ref in the memory of one device, got a multicast "
        "one, which the hardware accesses by instructions of their own. Use "
        "plgpu.multimem_store or plgpu.multimem_load_reduce, or "
        "plgpu.remote_ref for each device."
    )
  ref, ref_aval, rest = lowering._handle_transforms(
      ctx, ref_aval, ref, place_avals, places, allow_peer_refs=True
  )
  if rest:
    raise NotImplementedError(f"Ref transforms {rest} are not known here.")
  return ref, ref_aval


def make_view(name: str, ref_aval, transforms, avals) -> View:
  """The view that transforms (without places) give of a Ref.

  Args:
    name: the operation, for errors.
    ref_aval: of the Ref: an AbstractRef or its inner aval.
    transforms: with values for indices.
    avals: the same with avals for indices.

  Raises:
    NotImplementedError: a transform that no rule of ours understands.
  """
  aval = getattr(ref_aval, "inner_aval", ref_aval)
  steps, swizzle = [], None
  for i, (t, a) in enumerate(zip(transforms, avals, strict=True)):
    if isinstance(t, gpu_core.UnswizzleRef):
      swizzle = t.swizzle
      continue
    known = (compat.NDIndexer, compat.TransposeTransform,
             compat.ReshapeTransform, gpu_core.UntilingTransform,
             compat.BitcastTransform)
    if not isinstance(t, known):
      raise NotImplementedError(
          f"{name}: wanted a Ref seen through slices, reshapes and transposes,"
          f" got the transform {t}. Access the Ref itself."
      )
    if isinstance(t, compat.NDIndexer) and a.int_indexer_shape:
      if i != len(transforms) - 1:
        raise NotImplementedError(
            f"{name}: wanted integer arrays in the last index only, got one "
            "in a view. Combine the two indices into one."
        )
    if isinstance(t, compat.BitcastTransform):
      if t.dtype.itemsize != aval.dtype.itemsize:
        raise NotImplementedError(
            f"{name}: wanted a bitcast between dtypes of one width, got "
            f"{aval.dtype} to {t.dtype}. Bitcast the loaded value instead."
        )
    steps.append(Step(t, a, aval.shape))
    aval = a.transform_type(aval)
  return View(steps, aval.shape, swizzle)
