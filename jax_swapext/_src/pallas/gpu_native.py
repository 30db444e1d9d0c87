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
"""Mosaic GPU: atomics in stock syntax, of elements by whole warpgroups.

Stock JAX lowers those of 32-bit words, unless all elements of the value are
known to be one, which has no layout to say which thread updates which. Under
Warpgroup lowering it takes the maximum and minimum of signed integers for those
of unsigned ones.
"""

from __future__ import annotations

import functools

from jax import numpy as jnp
from jax._src import pjit
from jax._src.lib.mlir import ir
from jax._src.pallas.mosaic_gpu import lowering
from jax.experimental.mosaic import gpu as mgpu
from jax_swapext._src import native
from jax_swapext._src.pallas import gpu_dialect
from jax_swapext._src.pallas import gpu_layouts
import numpy as np

_PAIRS = (np.dtype(np.float16), np.dtype(jnp.bfloat16))


def _stock_updates(ctx, args, args_tree, atomic_type, **_) -> bool:
  """Whether stock lowers an atomic update, and lowers it rightly."""
  if gpu_dialect.is_warp(ctx):
    return False
  ref, _, value = args_tree.unflatten(args)
  dtype = np.dtype(args_tree.unflatten(ctx.avals_in)[2].dtype)
  compares = atomic_type.value in ("max", "min")
  lane = ctx.module_ctx.lowering_semantics == mgpu.LoweringSemantics.Lane
  if dtype.kind in "iu" and dtype.itemsize == 4:
    if compares and dtype.kind == "i" and not lane:
      return False
  elif dtype == np.float32:
    if compares:
      return False
  elif dtype not in _PAIRS or (compares and gpu_dialect.is_smem(ref)):
    return False
  if lane:
    value = lowering._ensure_fa(value, dtype)
    return not isinstance(value.layout, gpu_layouts.Splat)
  return isinstance(value, ir.Value) and not _is_splat(value)


def _is_splat(x: ir.Value) -> bool:
  """Whether layout inference will find that all elements are one."""
  if not isinstance(x.type, ir.VectorType):
    return True
  if isinstance(x.owner, ir.Block):
    return False
  op = x.owner.operation
  match op.name.split("."):
    case "arith", "constant":
      return ir.DenseElementsAttr(op.attributes["value"]).is_splat
    case "vector", "broadcast":
      return _is_splat(op.operands[0])
    case ("arith" | "math"), _:
      return all(map(_is_splat, op.operands))
  return False


def _rule(semantics, ctx, *args, stock, stock_params, jaxpr):
  # When the rules are registered, this module is not there yet.
  from jax._src.pallas.mosaic_gpu import primitives

  rules = lowering.mosaic_lowering_rules[semantics]
  if stock is primitives.atomic_store_p and _stock_updates(
      ctx, args, **dict(stock_params)
  ):
    ctx = ctx.replace(prim=stock)
    return native.call_stock(rules, ctx, args, stock, stock_params)
  return rules[pjit.jit_p](ctx.replace(prim=pjit.jit_p), *args, jaxpr=jaxpr)


def register() -> None:
  """Registers the rules of `native`."""
  for semantics in gpu_dialect.ALL_SEMANTICS:
    lowering.register_lowering_rule(native.native_p, *semantics)(
        functools.partial(_rule, semantics)
    )

  @lowering._register_resource_estimator(native.native_p)
  def estimate(ctx, *avals, jaxpr, **_):
    del avals
    return lowering._estimate_resources(ctx, jaxpr)
