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
"""Lowering rules of the Ref primitives for Pallas Triton kernels.

That backend is deprecated: to drop it, delete this file and `triton_view`, its
line in `_RULES_FOR` and its rows in `support`. An access without integer arrays
and without a mask goes to JAX's own rule; any other becomes pointers, one for
each element, which Triton's masked loads, stores and atomics take.
"""

from __future__ import annotations

import math
from typing import Any

import jax
from jax._src import pjit
from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import arith
from jax._src.lib.mlir.dialects import gpu
from jax._src.lib.triton import dialect as tt
from jax._src.pallas import primitives as pallas_primitives
from jax._src.pallas.triton import lowering
from jax_swapext._src import atomic_cas
from jax_swapext._src import atomic_rmw
from jax_swapext._src import compat
from jax_swapext._src import fetch_update
from jax_swapext._src import load
from jax_swapext._src import native
from jax_swapext._src import semantics
from jax_swapext._src import swap
from jax_swapext._src.pallas import triton_view
import numpy as np

AtomicOp = semantics.AtomicOp

_SEMANTICS = {
    "relaxed": tt.MemSemantic.RELAXED,
    "acquire": tt.MemSemantic.ACQUIRE,
    "release": tt.MemSemantic.RELEASE,
    "acq_rel": tt.MemSemantic.ACQUIRE_RELEASE,
}
# Triton has no scope between a block and the device.
_SCOPES = {
    None: tt.MemSyncScope.GPU,
    "block": tt.MemSyncScope.CTA,
    "cluster": tt.MemSyncScope.GPU,
    "device": tt.MemSyncScope.GPU,
    "system": tt.MemSyncScope.SYSTEM,
}


# ## Plain accesses


def _call_stock(ctx, primitive, ref, leaves, tree, **params):
  """Lowers by JAX's own rule for a load or a store, with a mask or not."""
  access, avals = tree.unflatten(leaves), tree.unflatten(ctx.avals_in[1:])

  def arguments(ref, access):
    if primitive is pallas_primitives.load_p:
      other = access.operands[0] if access.operands else None
      return ref, access.transforms, access.mask, other
    return ref, access.transforms, *access.operands, access.mask

  flat, args_tree = jax.tree.flatten(arguments(ref, access))
  flat_avals = jax.tree.leaves(arguments(ctx.avals_in[0], avals))
  rule = lowering.triton_lowering_rules[primitive]
  return rule(
      ctx.replace(avals_in=flat_avals), *flat, args_tree=args_tree,
      eviction_policy=None, **params,
  )


def _region(ctx, tree) -> Any:
  """The type of what is accessed."""
  ref_aval, *avals = ctx.avals_in
  transforms = tree.unflatten(avals).transforms
  return compat.transform_type(transforms, ref_aval.inner_aval)


def _access(ctx, name, ref, leaves, tree):
  """(pointers, mask or None, operands), all of the region's shape."""
  access, avals = tree.unflatten(leaves), tree.unflatten(ctx.avals_in[1:])
  shape = _region(ctx, tree).shape
  pointers, mask = triton_view.pointers_to(
      name, ctx.avals_in[0], ref, ctx.block_infos[0], access.transforms,
      avals.transforms,
  )

  def value(x, aval):
    return lowering._bcast_to(lowering._ensure_ir_value(x, aval), shape)

  if access.mask is not None:
    given = value(access.mask, avals.mask)
    mask = given if mask is None else arith.andi(mask, given)
  operands = [
      value(x, a) for x, a in zip(access.operands, avals.operands, strict=True)
  ]
  return pointers, mask, operands


def _is_stock(name, ctx, tree, stock) -> bool:
  """Whether JAX's rule lowers this access, if it is a plain one.

  An access from stock syntax (`stock`) has the module of that, also where it
  has a mask or integer arrays, which we lower otherwise.
  """
  avals = tree.unflatten(ctx.avals_in[1:])
  indexer = triton_view.single_indexer(ctx.avals_in[0], avals.transforms)
  if indexer is None:
    return False
  triton_view.check_sizes(name, compat.indexer_shape(indexer))
  if stock is not None:
    return True
  return (
      avals.mask is None
      and not indexer.int_indexer_shape
      # JAX reads unsigned all indices, which narrow negative ones are not.
      and all(
          isinstance(i, compat.Slice) or np.dtype(i.dtype).itemsize >= 4
          for i in _avals(indexer)
      )
  )


def _avals(indexer) -> list[Any]:
  return [i for i in indexer.indices if not isinstance(i, int)]


def _zeros(pointers):
  pointee = tt.PointerType(lowering._element_type(pointers.type)).pointee_type
  if isinstance(pointers.type, ir.RankedTensorType):
    shape = ir.RankedTensorType(pointers.type).shape
    pointee = ir.RankedTensorType.get(shape, pointee)
  return lowering._zeros(pointee)


def _read(pointers, mask, other=None):
  if mask is None:
    return lowering._load(pointers)
  other = _zeros(pointers) if other is None else other
  return lowering._load(pointers, mask=mask, other=other)


def _load_rule(ctx, ref, *leaves, tree, stock):
  if _is_stock("load", ctx, tree, stock):
    return [_call_stock(
        ctx, pallas_primitives.load_p, ref, leaves, tree, cache_modifier=None,
        is_volatile=False,
    )]
  pointers, mask, operands = _access(ctx, "load", ref, leaves, tree)
  return [_read(pointers, mask, *operands)]


def _swap_rule(ctx, ref, *leaves, tree, need_old, stock):
  name = "swap" if need_old else "store"
  if not need_old and _is_stock(name, ctx, tree, stock):
    _call_stock(ctx, pallas_primitives.swap_p, ref, leaves, tree)
    return []
  pointers, mask, [value] = _access(ctx, name, ref, leaves, tree)
  old = []
  if need_old:
    old = [_read(pointers, mask)]
    # Several threads hold an element where there are more of them: all have to
    # read before one writes.
    gpu.barrier()
  lowering._store(pointers, value, mask=mask)
  return old


# ## Atomic ones


def _check_atomic(name, op, order, dtype, tree, avals):
  is_float = dtype.kind not in "biu"
  bits = dtype.itemsize * 8
  widths = {
      AtomicOp.CAS: (16, 32, 64),
      AtomicOp.ADD: (16, 32, 64) if dtype == np.float16 else (32, 64),
  }.get(op, (32, 64))
  if is_float and op in (AtomicOp.MAX, AtomicOp.MIN):
    raise triton_view.refuse(
        name, "integers, since its maximum and minimum drop NaNs", f"{dtype}",
        "Lower through Mosaic GPU",
    )
  if dtype == np.dtype(bool) or bits not in widths:
    raise triton_view.refuse(
        name, f"elements of {' or '.join(map(str, widths))} bits", f"{dtype}",
        "Keep them in a 32-bit Ref, or lower through Mosaic GPU",
    )
  access = tree.unflatten(avals)
  if order == "index" and any(
      isinstance(t, compat.NDIndexer) and math.prod(t.int_indexer_shape) > 1
      for t in access.transforms
  ):
    raise triton_view.refuse(
        name, 'updates in any order (order="any")', 'order="index"',
        'Pass order="any", or use jsx.fetch_* outside the kernel',
    )


def _rmw_kind(op, dtype):
  kinds = tt.RMWOp
  unsigned = np.issubdtype(dtype, np.unsignedinteger)
  if op is AtomicOp.ADD and not np.issubdtype(dtype, np.integer):
    return kinds.FADD
  if unsigned and op in (AtomicOp.MAX, AtomicOp.MIN):
    return kinds.UMAX if op is AtomicOp.MAX else kinds.UMIN
  return getattr(kinds, op.name)


def _rmw_rule(
    ctx, ref, *leaves, tree, op, order, sem, scope, reverse, need_old, stock
):
  name = f"atomic_{op.value}"
  if op is AtomicOp.ADD_OR_SET or reverse:
    raise triton_view.refuse(
        name, "an atomic update", "a derivative of one",
        "Differentiate outside the kernel, or use jsx.fetch_* on arrays",
    )
  if stock is not None and _is_stock(name, ctx, tree, stock):
    old = _call_stock_atomic(ctx, op, ref, leaves, tree)
    return [old] if need_old else []
  dtype = _region(ctx, tree).dtype
  _check_atomic(name, op, order, dtype, tree, ctx.avals_in[1:])
  pointers, mask, [value] = _access(ctx, name, ref, leaves, tree)
  old = lowering._atomic_rmw(
      _rmw_kind(op, dtype), pointers, value, mask=mask,
      semantic=_SEMANTICS[sem], sync_scope=_SCOPES[scope],
  )
  if mask is not None and need_old:
    old = arith.select(mask, old, _zeros(pointers))
  return [old] if need_old else []


def _call_stock_atomic(ctx, op, ref, leaves, tree):
  """Lowers by JAX's own rule; it takes what `jax.ref.addupdate` says too."""
  # When the rules are registered, this module is not there yet.
  from jax._src.pallas.triton import primitives

  def arguments(ref, access):
    return ref, access.transforms, *access.operands, access.mask

  flat, args_tree = jax.tree.flatten(arguments(ref, tree.unflatten(leaves)))
  avals = tree.unflatten(ctx.avals_in[1:])
  flat_avals = jax.tree.leaves(arguments(ctx.avals_in[0], avals))
  return lowering.triton_lowering_rules[primitives.atomic_rmw_p](
      ctx.replace(avals_in=flat_avals), *flat, args_tree=args_tree,
      atomic_type=primitives.AtomicOpType(op.value),
  )


def _cas_rule(ctx, ref, *leaves, tree, order, sem, scope, need_old):
  name = "atomic_cas"
  dtype = _region(ctx, tree).dtype
  _check_atomic(name, AtomicOp.CAS, order, dtype, tree, ctx.avals_in[1:])
  pointers, mask, operands = _access(ctx, name, ref, leaves, tree)
  if mask is not None:
    raise triton_view.refuse(
        name, "no mask, which its compare-and-swap lacks",
        "a mask, or a block that leaves the array",
        "Access exactly the elements that are meant, or lower through Mosaic"
        " GPU",
    )
  result: Any = operands[0].type
  if not np.issubdtype(dtype, np.integer):
    # Bits are compared, not numbers.
    pointers, *operands = (
        tt.bitcast(lowering._fp_bits_type(x.type), x)
        for x in (pointers, *operands)
    )
  old = tt.atomic_cas(
      operands[0].type, pointers, *operands, sem=_SEMANTICS[sem],
      scope=_SCOPES[scope],
  )
  if not need_old:
    return []
  return [old if old.type == result else tt.bitcast(result, old)]


# ## What is in Triton's own syntax


def _lowers_natively(ctx, stock, params) -> bool:
  """Whether the stock rule lowers the equation, and lowers it rightly."""
  # When the rules are registered, this module is not there yet.
  from jax._src.pallas.triton import primitives

  if stock is primitives.atomic_cas_p:
    # It updates what the pointer is to: the array's first element, wherever the
    # block is.
    return not ctx.block_infos[0].full_shape_dtype.shape
  if stock not in lowering.triton_lowering_rules:
    return False
  if stock is compat.broadcast_to_p:
    return True
  ref, transforms, *_ = params["args_tree"].unflatten(ctx.avals_in)
  return triton_view.single_indexer(ref, transforms) is not None


def _native_rule(ctx, *args, stock, stock_params, jaxpr):
  rules = lowering.triton_lowering_rules
  if _lowers_natively(ctx, stock, dict(stock_params)):
    return native.call_stock(rules, ctx, args, stock, stock_params)
  return rules[pjit.jit_p](ctx, *args, jaxpr=jaxpr)


lowering.register_lowering(native.native_p)(_native_rule)
lowering.register_lowering(load.load_p)(_load_rule)
lowering.register_lowering(swap.swap_p)(_swap_rule)
lowering.register_lowering(atomic_rmw.atomic_rmw_p)(_rmw_rule)
lowering.register_lowering(atomic_cas.atomic_cas_p)(_cas_rule)
lowering.register_lowering(fetch_update.fetch_update_p)(
    fetch_update.refuse_in_kernel
)
