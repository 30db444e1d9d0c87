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
"""What the rules for TensorCore and SparseCore kernels share.

How an equation of ours is read, how a stock rule is called for it, and how a
function over stock operations is lowered in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
import math
from typing import Any

import jax
from jax._src import pjit
from jax._src.lib.mlir import ir
from jax._src.pallas import primitives as pallas_primitives
from jax._src.pallas.mosaic import lowering
from jax._src.state import primitives as state_primitives
from jax_swapext._src import access as access_lib
from jax_swapext._src import atomic_cas
from jax_swapext._src import atomic_rmw
from jax_swapext._src import compat
from jax_swapext._src import fetch_update
from jax_swapext._src import load
from jax_swapext._src import native
from jax_swapext._src import semantics
from jax_swapext._src import swap
from jax_swapext._src.pallas import tpu_region
import numpy as np

AtomicOp = semantics.AtomicOp
Access = access_lib.Access
Update = tpu_region.Update

PRIMITIVES = (
  load.load_p,
  swap.swap_p,
  atomic_rmw.atomic_rmw_p,
  atomic_cas.atomic_cas_p,
)

_MASKED = (pallas_primitives.load_p, pallas_primitives.swap_p)


def register(
  kernel_types: Sequence[Any], lower: Any, *, ensure_mlir_values: bool
) -> None:
  """Makes `lower(prim, ctx, ref, *leaves, **params)` the rule of all ours.

  Args:
    kernel_types: the cores that it lowers for.
    lower: the rule.
    ensure_mlir_values: whether constants among the leaves are in the module.
  """
  for prim in PRIMITIVES:
    lowering.register_lowering_rule(
      prim, kernel_types=kernel_types, ensure_mlir_values=ensure_mlir_values
    )(functools.partial(lower, prim))
    # JAX's cache of lowered equations cannot tell two kernels apart that
    # differ in what our decision depends on.
    lowering._uncacheable_primitives.add(prim)
  lowering.register_lowering_rule(
    fetch_update.fetch_update_p, kernel_types=kernel_types
  )(fetch_update.refuse_in_kernel)


def register_native(
  kernel_types: Sequence[Any], lowers: Callable[[Any, Any], bool]
) -> None:
  """Makes cores lower equations of `native`, by the stock rule or as jaxprs.

  Args:
    kernel_types: the cores.
    lowers: whether the stock rule lowers, given the stock primitive and its
      first operand.
  """

  def rule(ctx, *args, stock, stock_params, jaxpr):
    kernel_type = ctx.lowering_context.kernel_type
    rules = lowering.lowering_rules[kernel_type]
    as_stock = stock in rules and lowers(stock, args[0])
    taken = stock if as_stock else pjit.jit_p
    if (taken, kernel_type) not in lowering.skip_mlir_conversions:
      args = [*map(lowering._ensure_valid_argument, args, ctx.avals_in)]
    if as_stock:
      return native.call_stock(rules, ctx, args, stock, stock_params)
    return rules[taken](ctx, *args, jaxpr=jaxpr)

  lowering.register_lowering_rule(
    native.native_p, kernel_types=kernel_types, ensure_mlir_values=False
  )(rule)
  lowering._uncacheable_primitives.add(native.native_p)


def update_of(prim: Any, access: Access, params: dict[str, Any]) -> Update:
  """What an equation of one of our primitives does."""
  need_old = params.get("need_old", True)
  if prim is load.load_p:
    name, op = "load", None
  elif prim is swap.swap_p:
    name, op = ("swap" if need_old else "store"), AtomicOp.XCHG
  elif prim is atomic_cas.atomic_cas_p:
    name, op = "atomic_cas", AtomicOp.CAS
  else:
    op = params["op"]
    name = f"atomic_{op.value}"
  return Update(
    name,
    op,
    tuple(access.operands),
    access.mask,
    need_old,
    params.get("reverse", False),
  )


def known_multiple(x: Any) -> int:
  """What an index is a multiple of, as far as Mosaic will see; 0: constant 0.

  Mosaic proves alignment from constants, `tpu.assume_multiple`, products and
  sums. To claim more than it sees would end in its refusal.
  """
  if not isinstance(x, ir.Value):
    return int(x) if np.ndim(x) == 0 else 1
  owner = x.owner
  if isinstance(owner, ir.Block):
    return 1
  op = owner.operation if hasattr(owner, "operation") else owner
  match op.name:
    case "arith.constant":
      value = op.attributes["value"]
      return value.value if isinstance(value, ir.IntegerAttr) else 1
    case "tpu.assume_multiple":
      claimed = ir.IntegerAttr(op.attributes["multiple"]).value
      return math.lcm(claimed, known_multiple(op.operands[0]))
    case "arith.muli":
      a, b = map(known_multiple, op.operands)
      return a * b
    case "arith.addi":
      return math.gcd(*map(known_multiple, op.operands))
    case "arith.index_cast":
      return known_multiple(op.operands[0])
  return 1


def memory_space(ref: ir.Value) -> str:
  return str(ir.MemRefType(ref.type).memory_space).split("<")[-1].rstrip(">")


def is_simple(transforms: Sequence[Any]) -> bool:
  """Whether at most one indexer follows any other transforms."""
  indexers = [t for t in transforms if isinstance(t, compat.NDIndexer)]
  if any(isinstance(t, compat.TransposeTransform) for t in transforms):
    return False
  return not indexers or (
    len(indexers) == 1 and isinstance(transforms[-1], compat.NDIndexer)
  )


def lower_stock(
  ctx, ref, transforms, transform_avals, update, value, mask, stock=None
):
  """Calls the stock rule for a load, store or swap.

  Args:
    ctx: of our equation.
    ref: the memref.
    transforms: of the access.
    transform_avals: their avals.
    update: what to do.
    value: what to store and its aval, or None for a load.
    mask: the mask and its aval, or None.
    stock: the primitive in whose place our equation is, if it is in one's.

  Returns:
    The results of our equation.
  """
  ref_aval, block_shape = ctx.avals_in[0], ctx.block_shapes[0]
  leaves, tree = jax.tree.flatten(transforms)
  avals = jax.tree.leaves(transform_avals)
  rules = lowering.lowering_rules[ctx.lowering_context.kernel_type]

  def sub(avals_in, avals_out):
    return ctx.replace(
      avals_in=avals_in,
      avals_out=avals_out,
      block_shapes=[block_shape, *[None] * (len(avals_in) - 1)],
    )

  region_aval = compat.transform_type(transform_avals, ref_aval.inner_aval)
  if mask is not None or stock in _MASKED:
    # What the rules for masks are given, which says nothing of a mesh.
    region_aval = jax.core.ShapedArray(region_aval.shape, region_aval.dtype)
  if update.is_load:
    rule = rules[state_primitives.get_p]
    out = rule(sub([ref_aval, *avals], [region_aval]), ref, *leaves, tree=tree)
    return [out]
  if mask is None:
    rule = rules[state_primitives.swap_p]
    out = rule(
      sub([ref_aval, value[1], *avals], [region_aval]),
      ref,
      value[0],
      *leaves,
      tree=tree,
    )
    return [out] if update.need_old else []
  rule = rules[pallas_primitives.swap_p]
  args, args_tree = jax.tree.flatten((ref, transforms, value[0], mask[0]))
  arg_avals = jax.tree.leaves((ref_aval, transform_avals, value[1], mask[1]))
  rule(
    sub(arg_avals, [region_aval]),
    *args,
    args_tree=args_tree,
    eviction_policy=None,
  )
  return []


def lower_decomposed(ctx, ref, leaves, fun):
  """Lowers `fun(ref, *leaves)`, where leaves known now stay Python values."""
  dynamic = [k for k, x in enumerate(leaves) if isinstance(x, ir.Value)]

  def traced(ref, *values):
    merged = list(leaves)
    for k, x in zip(dynamic, values, strict=True):
      merged[k] = x
    out = fun(ref, merged)
    return [] if out is None else [out]

  avals = ctx.avals_in
  sub = ctx.replace(
    avals_in=[avals[0], *[avals[1 + k] for k in dynamic]],
    block_shapes=[ctx.block_shapes[0], *[None] * len(dynamic)],
  )
  return lowering.lower_fun(traced)(sub, ref, *[leaves[k] for k in dynamic])


def static_leaf(x: Any) -> Any:
  """An integer scalar that is known now, as a Python integer."""
  if isinstance(x, (ir.Value, jax.core.Tracer)):
    return x
  if np.ndim(x) == 0 and np.issubdtype(np.asarray(x).dtype, np.integer):
    return int(x)
  return x


def constant_leaf(x: Any) -> Any:
  """A scalar integer that is a constant of the module, as a Python integer."""
  if not isinstance(x, ir.Value) or isinstance(x.owner, ir.Block):
    return static_leaf(x)
  if x.owner.name != "arith.constant":
    return x
  value = x.owner.attributes["value"]
  return value.value if isinstance(value, ir.IntegerAttr) else x


def known_by_id(leaves, multiples):
  return {
    id(x): m
    for x, m in zip(leaves, multiples, strict=True)
    if not tpu_region.is_static(x)
  }
