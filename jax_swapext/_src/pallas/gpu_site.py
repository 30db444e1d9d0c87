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
"""All of one access that is known when a kernel is traced."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
from jax.experimental.mosaic import gpu as mgpu
from jax_swapext._src.pallas import gpu_engine
from jax_swapext._src.pallas import gpu_ir
from jax_swapext._src.pallas import gpu_view
import numpy as np

Request = gpu_engine.Request


@dataclasses.dataclass(frozen=True)
class Site:
  """All of one access that is known when a kernel is traced; hashable.

  Attributes:
    request: what to do.
    tree: from leaves to an Access.
    ref_aval: of the memref, aliases resolved.
    leaf_avals: of the leaves.
    warp: whether this is warp code.
    auto_barriers: whether the kernel wants barriers around writes.
    scratch: whether an SMEM operand for old values follows the leaves.
    index_scratch: whether one for indices follows.
    mask_scratch: whether one for the mask follows.
  """

  request: Request
  tree: Any
  ref_aval: Any
  leaf_avals: tuple[Any, ...]
  warp: bool
  auto_barriers: bool
  scratch: bool = False
  index_scratch: bool = False
  mask_scratch: bool = False

  def access_avals(self):
    return self.tree.unflatten(self.leaf_avals)

  def view(self, leaves, inferred=None) -> gpu_view.View:
    access, avals = self.tree.unflatten(leaves), self.access_avals()
    _, _, transforms, transform_avals = gpu_view.split(
        access.transforms, avals.transforms
    )
    view = gpu_view.make_view(
        self.request.name, self.ref_aval, transforms, transform_avals
    )
    if inferred is None or view.is_tiled_or_swizzled():
      return view
    return view.of_memory(*inferred)

  def region(self) -> jax.ShapeDtypeStruct:
    view = self.view(self.leaf_avals)
    return jax.ShapeDtypeStruct(view.shape, self.request.dtype)

  def out_avals(self):
    return [self.region()] if self.request.reads else []

  def operand_avals(self):
    """Of what `emit_operands` takes; None for a memref."""
    extra = [None] * (
        self.scratch + self.index_scratch + self.mask_scratch
    )
    return [None, *self.leaf_avals, *extra]

  def emit_operands(self, layout, operands, inferred=None):
    """Emits the access for one thread; returns its results.

    Args:
      layout: how the region is shared; None for a region of one element.
      operands: as `operand_avals` describes them.
      inferred: (tiling, swizzle) of a Ref that declares none.
    """
    ref, *rest = operands
    n = len(self.leaf_avals)
    leaves, extra = rest[:n], iter(rest[n:])
    lanes = gpu_engine.Lanes(
        self.warp,
        self.auto_barriers,
        next(extra) if self.scratch else None,
        next(extra) if self.index_scratch else None,
        next(extra) if self.mask_scratch else None,
    )
    access = self.tree.unflatten(leaves)
    values = gpu_engine.Values(access.mask, tuple(access.operands))
    result = gpu_engine.access(
        self.request, lanes, ref, self.view(leaves, inferred), values, layout
    )
    return [] if result is None else [result]


def scratch(site: Site, how) -> dict[str, jax.ShapeDtypeStruct]:
  """The scratch of an access in warpgroup code, under the lowering `how`."""
  found = {}
  region = site.region()
  n = math.prod(region.shape)
  if site.request.op is not None and site.request.reads and (
      n == 1 or n % gpu_ir.WARPGROUP_SIZE
  ):
    dtype = region.dtype if region.dtype != np.dtype(bool) else np.int8
    found["scratch"] = jax.ShapeDtypeStruct(
        (gpu_engine.MAX_WARPGROUPS * n,), dtype
    )
  view = site.view(site.leaf_avals)
  if view.arrays():
    int_shape = tuple(view.steps[-1].aval.int_indexer_shape)
    if int_shape != tuple(region.shape):
      found["index_scratch"] = jax.ShapeDtypeStruct(
          (gpu_engine.MAX_WARPGROUPS * math.prod(int_shape),), np.int32
      )
  if (
      how == mgpu.LoweringSemantics.Lane
      and site.access_avals().mask is not None
      and region.dtype.itemsize != 4
      and n % gpu_ir.WARPGROUP_SIZE == 0
  ):
    # A mask compared from 32-bit numbers is laid out as these are, and under
    # Lane lowering nobody has seen to it that the value is too.
    found["mask_scratch"] = jax.ShapeDtypeStruct(
        (gpu_engine.MAX_WARPGROUPS * n,), np.int8
    )
  return found
