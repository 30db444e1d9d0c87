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
"""Lowering rules of the Ref primitives for Pallas Mosaic GPU kernels.

One rule per primitive serves all four kinds of code: Lane or Warpgroup lowering
of warpgroup or warp code. What stock JAX lowers rightly goes to its own rule,
unchanged; the rest goes to `gpu_engine`, directly under Lane lowering and
through `gpu_dialect` under Warpgroup lowering.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import Any

from jax._src.lib.mlir import ir
from jax._src.pallas.mosaic_gpu import core as gpu_core
from jax._src.pallas.mosaic_gpu import lowering
from jax._src.state import primitives as state_primitives
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jax_swapext._src import atomic_cas
from jax_swapext._src import atomic_rmw
from jax_swapext._src import compat
from jax_swapext._src import fetch_update
from jax_swapext._src import load
from jax_swapext._src import semantics
from jax_swapext._src import swap
from jax_swapext._src.pallas import gpu_dialect
from jax_swapext._src.pallas import gpu_engine
from jax_swapext._src.pallas import gpu_ir
from jax_swapext._src.pallas import gpu_layouts
from jax_swapext._src.pallas import gpu_native
from jax_swapext._src.pallas import gpu_site
from jax_swapext._src.pallas import gpu_view
from jax_swapext._src.pallas import gpu_warp_math
import numpy as np

AtomicOp = semantics.AtomicOp
Request = gpu_engine.Request
Site = gpu_site.Site



# ## What stock rules do right


def _plain_index(site: Site) -> bool:
  """Whether the index has neither strides nor integer arrays nor bitcasts."""
  for t in site.access_avals().transforms:
    if isinstance(t, compat.BitcastTransform):
      return False
    if isinstance(t, compat.NDIndexer):
      if t.int_indexer_shape:
        return False
      if any(isinstance(i, compat.Slice) and i.stride != 1 for i in t.indices):
        return False
  return True


def _fits_tiles(site: Site, ctx) -> bool:
  """Whether stock can move the region of a tiled Ref, if it is one."""
  tiled = [
      t for t in site.access_avals().transforms
      if isinstance(t, gpu_core.UntilingTransform)
  ]
  shape = site.region().shape
  if not tiled or not shape:
    return not tiled
  if ctx.out_layout_hint is not None:
    return True  # Whoever asked for a layout knows the tiling.
  # Without one, stock takes the layout of a matrix product's result.
  return len(shape) == 2 and shape[0] % 64 == 0 and shape[1] % 8 == 0


def _stock_lowers(site: Site, ctx, ref, from_stock: bool) -> bool:
  """Whether the stock rule accepts this access, and lowers it rightly.

  Args:
    site: the access.
    ctx: of the rule.
    ref: the memref.
    from_stock: whether `extended` found the access in stock syntax.
  """
  request, access = site.request, site.access_avals()
  if request.op is not None or access.mask is not None:
    return False
  if not _plain_index(site):
    return False
  lane = ctx.module_ctx.lowering_semantics == mgpu.LoweringSemantics.Lane
  shape = site.region().shape
  swaps = request.reads and request.writes
  if not shape:
    if not _fits_tiles(site, ctx):
      return False
    if swaps:
      return False  # Threads may store before others have read.
    # Stock has no scalar load from SMEM in warp code of Warpgroup lowering.
    return not (
        site.warp and not lane and request.reads and gpu_dialect.is_smem(ref)
    )
  if site.warp:
    return False
  if lane and from_stock and request.reads and not swaps:
    if ctx.out_layout_hint is not None:
      return True  # Whoever asked for a layout knows what it can load.
  if math.prod(shape) % gpu_ir.WARPGROUP_SIZE:
    # One element is the same for all threads.
    return from_stock and not request.reads and math.prod(shape) == 1
  if request.dtype == np.dtype(bool) or not _fits_tiles(site, ctx):
    return False
  if swaps:
    # Under Lane lowering the value's threads may be others than the old
    # value's, with no barrier between.
    return not lane and site.auto_barriers
  return True


def _call_stock(ctx, ref, leaves, site: Site):
  """Lowers by JAX's own rule for `ref[idx]` or `ref[idx] = value`."""
  transforms_tree = site.tree.children()[0]
  n = transforms_tree.num_leaves
  index, index_avals = leaves[:n], site.leaf_avals[:n]
  semantics_of = (
      ctx.module_ctx.lowering_semantics, ctx.module_ctx.primitive_semantics
  )
  rules = lowering.mosaic_lowering_rules[semantics_of]
  transform_avals = site.access_avals().transforms
  region = compat.transform_type(
      transform_avals, ctx.avals_in[0].inner_aval
  )
  if not site.request.writes:
    ctx = ctx.replace(
        prim=state_primitives.get_p, avals_in=(ctx.avals_in[0], *index_avals),
        avals_out=(region,),
    )
    return [rules[state_primitives.get_p](
        ctx, ref, *index, tree=transforms_tree
    )]
  [value] = leaves[n:]
  ctx = ctx.replace(
      prim=state_primitives.swap_p,
      avals_in=(ctx.avals_in[0], site.leaf_avals[n], *index_avals),
      avals_out=(region,),
  )
  old = rules[state_primitives.swap_p](
      ctx, ref, value, *index, tree=transforms_tree
  )
  return [old] if site.request.reads else []


# ## Ours


def _lower(ctx, request: Request, ref, leaves, tree, from_stock):
  """The rule of all four primitives."""
  name = request.name
  ref_aval = ctx.avals_in[0]
  if not isinstance(ref, ir.Value) or mgpu_utils.is_tmem_ref(ref):
    raise NotImplementedError(
        f"{name}: wanted a Ref in SMEM or GMEM, got one in TMEM, which only "
        "asynchronous copies reach. Use plgpu.async_load_tmem and "
        "plgpu.async_store_tmem."
    )
  if request.op is not None and request.scope is None:
    scope = _scope_of(ctx, ref, tree.unflatten(leaves).transforms)
    request = dataclasses.replace(request, scope=scope)
  site = Site(
      request, tree, ref_aval, tuple(ctx.avals_in[1:]),
      gpu_dialect.is_warp(ctx), ctx.module_ctx.auto_barriers,
  )
  access, avals = tree.unflatten(leaves), site.access_avals()
  places, place_avals, transforms, _ = gpu_view.split(
      access.transforms, avals.transforms
  )
  if not places and _stock_lowers(site, ctx, ref, from_stock):
    return _call_stock(ctx, ref, leaves, site)
  if places:
    ref, ref_aval = gpu_view.resolve_places(
        name, ctx, ref_aval, ref, places, place_avals
    )
    site = dataclasses.replace(site, ref_aval=ref_aval)
  region = site.region()
  with contextlib.ExitStack() as stack:
    extra = []
    if not site.warp:
      semantics_here = ctx.module_ctx.lowering_semantics
      for which, struct in gpu_site.scratch(site, semantics_here).items():
        extra.append(
            stack.enter_context(ctx.module_ctx.scratch_view(struct))
        )
        needs: Any = {which: True}
        site = dataclasses.replace(site, **needs)
    if ctx.module_ctx.lowering_semantics == mgpu.LoweringSemantics.Lane:
      return _lower_lane(ctx, site, region, ref, leaves, extra)
    return _lower_warpgroup(ctx, site, region, ref, leaves, extra, transforms)


def _scope_of(ctx, ref, transforms) -> str:
  """The threads that can reach the Ref's memory.

  Those of other devices count only where the Ref is seen to be another's.
  """
  if any(isinstance(t, gpu_core.PeerMemRef) for t in transforms):
    return "system"
  if not gpu_dialect.is_smem(ref):
    return "device"
  return "block" if math.prod(ctx.launch_ctx.cluster_size) == 1 else "cluster"


def _lower_lane(ctx, site: Site, region, ref, leaves, extra):
  values = [
      lowering._ensure_fa(x, a.dtype)
      for x, a in zip(leaves, site.leaf_avals, strict=True)
  ]
  layout = None
  if math.prod(region.shape) != 1:
    layout = gpu_layouts.layout_for(region.shape, region.dtype, site.warp)
    if not site.warp:
      # The mask follows the others, not they the mask.
      given = [
          x.layout for mask_turn in (False, True)
          for x, a in zip(values, site.leaf_avals, strict=True)
          if x.shape == region.shape
          and (a.dtype == np.dtype(bool)) is mask_turn
          and not isinstance(x.layout, gpu_layouts.Splat)
      ]
      layout = next(iter(given), ctx.out_layout_hint or layout)
  return site.emit_operands(layout, [ref, *values, *extra])


def _lower_warpgroup(ctx, site: Site, region, ref, leaves, extra, transforms):
  values = [
      lowering._ensure_ir_value(x, a.dtype)
      for x, a in zip(leaves, site.leaf_avals, strict=True)
  ]
  declared = {}
  if gpu_dialect.is_smem(ref):
    ref, attribute = gpu_dialect.with_declared_transforms(
        ref, site.ref_aval, transforms
    )
    declared[0] = attribute
  size = math.prod(region.shape)
  # With bools alone, the layout pass finds no layout to start from.
  is_open = not site.warp and size % gpu_ir.WARPGROUP_SIZE == 0 and any(
      a.shape == region.shape and a.dtype != np.dtype(bool)
      for a in [*site.leaf_avals, *site.out_avals()]
  )

  def layout_of(aval):
    if math.prod(aval.shape) == 1:
      return gpu_layouts.Splat(tuple(aval.shape))
    of_region = aval.shape == region.shape
    return gpu_layouts.layout_for(
        aval.shape, (region if of_region else aval).dtype, site.warp
    )

  with gpu_layouts.without_padding():
    return gpu_dialect.access(
        site, [ref, *values, *extra], declared, None if is_open else layout_of
    )


# ## Shared memory that some accesses need


def _estimate(request, avals, tree, how) -> lowering.Resources:
  site = Site(request, tree, avals[0], tuple(avals[1:]), False, True)
  nbytes = sum(
      -(-s.size * s.dtype.itemsize // gpu_core.SMEM_ALIGNMENT)
      * gpu_core.SMEM_ALIGNMENT
      for s in gpu_site.scratch(site, how).values()
  )
  return lowering.Resources(smem_scratch_bytes=nbytes)


# ## Requests


def _load_request(ref_aval, tree, stock) -> Request:
  del tree, stock
  return Request("load", None, True, False, np.dtype(ref_aval.dtype))


def _swap_request(ref_aval, tree, need_old, stock) -> Request:
  del tree, stock
  name = "swap" if need_old else "store"
  return Request(name, None, need_old, True, np.dtype(ref_aval.dtype))


def _atomic_request(
    ref_aval, tree, op, order, sem, scope, need_old, leaf_avals, reverse=False,
    stock=None,
) -> Request:
  del stock
  name = f"atomic_{op.value}"
  if op is AtomicOp.ADD_OR_SET or reverse:
    raise NotImplementedError(
        f"{name}: wanted an atomic update, got a derivative of one, which a GPU"
        " kernel cannot order. Differentiate outside the kernel, or use "
        "jsx.fetch_* on arrays."
    )
  in_order = order == "index" and any(
      isinstance(t, compat.NDIndexer) and math.prod(t.int_indexer_shape) > 1
      for t in tree.unflatten(leaf_avals).transforms
  )
  return Request(
      name, op, need_old, True, np.dtype(ref_aval.dtype), sem, scope, in_order
  )


def _dtype_seen(ref_aval, tree, leaf_avals):
  """The Ref's aval as its transforms show it."""
  aval = getattr(ref_aval, "inner_aval", ref_aval)
  for t in tree.unflatten(leaf_avals).transforms:
    aval = t.transform_type(aval)
  return aval


def _register(primitive, make_request):
  def rule(ctx, ref, *leaves, tree, **params):
    seen = _dtype_seen(ctx.avals_in[0], tree, ctx.avals_in[1:])
    request = make_request(
        seen, tree, leaf_avals=ctx.avals_in[1:], **params
    )
    from_stock = params.get("stock") is not None
    return _lower(ctx, request, ref, leaves, tree, from_stock)

  def estimate(ctx, *avals, tree, **params):
    seen = _dtype_seen(avals[0], tree, avals[1:])
    request = make_request(seen, tree, leaf_avals=avals[1:], **params)
    return _estimate(request, avals, tree, ctx.lowering_semantics)

  for s in gpu_dialect.ALL_SEMANTICS:
    lowering.register_lowering_rule(primitive, *s)(rule)
  lowering._register_resource_estimator(primitive)(estimate)


_register(
    load.load_p,
    lambda aval, tree, leaf_avals, stock: _load_request(aval, tree, stock),
)
_register(
    swap.swap_p,
    lambda aval, tree, leaf_avals, need_old, stock: _swap_request(
        aval, tree, need_old, stock
    ),
)
_register(atomic_rmw.atomic_rmw_p, _atomic_request)
_register(
    atomic_cas.atomic_cas_p,
    lambda aval, tree, leaf_avals, **params: _atomic_request(
        aval, tree, AtomicOp.CAS, leaf_avals=leaf_avals, **params
    ),
)
for _semantics in gpu_dialect.ALL_SEMANTICS:
  lowering.register_lowering_rule(fetch_update.fetch_update_p, *_semantics)(
      fetch_update.refuse_in_kernel
  )
gpu_warp_math.register()
gpu_native.register()
