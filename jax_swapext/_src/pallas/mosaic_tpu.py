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
"""Rules for Pallas TPU kernels on the TensorCore.

An access that stock JAX lowers goes to the stock rule, so the module is the
same. Everything else is decomposed into stock operations: `tpu_windows` for
boxes of VMEM, `tpu_loops` for index arrays and strides, `tpu_copies` for SMEM
arrays and HBM.
"""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any

import jax
from jax._src.lib.mlir import ir
from jax._src.pallas import core as pallas_core
from jax._src.pallas import primitives as pallas_primitives
from jax._src.pallas.mosaic import core as tpu_core
from jax._src.pallas.mosaic import lowering
from jax._src.state import primitives as state_primitives
import jax.numpy as jnp
from jax_swapext._src import access as access_lib
from jax_swapext._src import atomic_cas
from jax_swapext._src import atomic_rmw
from jax_swapext._src import compat
from jax_swapext._src import load
from jax_swapext._src import semantics
from jax_swapext._src import swap
from jax_swapext._src.pallas import tpu_copies
from jax_swapext._src.pallas import tpu_loops
from jax_swapext._src.pallas import tpu_region
from jax_swapext._src.pallas import tpu_values
from jax_swapext._src.pallas import tpu_windows
import numpy as np

AtomicOp = semantics.AtomicOp
Slice = compat.Slice
Region = tpu_region.Region
Update = tpu_region.Update
Access = access_lib.Access

_TC = tpu_core.CoreType.TC


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


def physical_view(
  region: Region, block_shape: Sequence[Any]
) -> tpu_windows.Memory:
  """Which dimensions of the view are the memref's minor ones."""
  shape: list[Any] = list(block_shape)
  whole = False
  for t in region.prefix:
    if isinstance(t, compat.NDIndexer):
      # Where its tiles lie is known only of the Ref; as a whole, the view is
      # what the stock rule can load.
      whole = True
      shape = list(t.get_indexer_shape())
    elif isinstance(t, compat.ReshapeTransform):
      shape = list(t.shape)
  logical: list[int | None] = []
  d = 0
  for n in shape:
    if isinstance(n, pallas_core.Squeezed):
      logical.append(None)
    else:
      logical.append(d)
      d += 1
  return tpu_windows.Memory(
    row=logical[-2] if len(logical) > 1 else None,
    lane=logical[-1] if logical else None,
    rank=len(logical),
    whole=whole,
  )


def _is_simple(transforms: Sequence[Any]) -> bool:
  """Whether at most one indexer follows any other transforms."""
  indexers = [t for t in transforms if isinstance(t, compat.NDIndexer)]
  if any(isinstance(t, compat.TransposeTransform) for t in transforms):
    return False
  return not indexers or (
    len(indexers) == 1 and isinstance(transforms[-1], compat.NDIndexer)
  )


def stock_strides(
  region: Region, memory: tpu_windows.Memory, dtype: Any
) -> bool:
  """Whether Mosaic's strided load and store take the region's strides."""
  if tpu_values.packing(dtype) > 1 or memory.lane is None or memory.whole:
    return False
  if region.shape[memory.lane] != tpu_windows.LANES:
    return False
  lane = region.indices[memory.lane]
  # The strided operations take neither a lane stride nor a lane offset.
  return tpu_region.is_whole(lane, tpu_windows.LANES)


def is_stock_vmem(
  region: Region,
  memory: tpu_windows.Memory,
  dtype: Any,
  update: Update,
) -> bool:
  """Whether the stock rules lower the access, and libtpu what they emit."""
  if region.int_shape or not math.prod(region.natural_shape or (1,)):
    return False
  if not region.shape:
    return False
  if update.op not in (None, AtomicOp.XCHG) or update.name.startswith("atomic"):
    return False
  if update.is_load and (update.mask is not None or update.operands):
    return False
  packed = tpu_values.packing(dtype) > 1
  if update.mask is not None and (update.need_old or packed):
    return False
  scalar = not region.slices
  if scalar and (not update.is_load or packed):
    return False
  if any(region.indices[d].stride != 1 for d in region.slices):
    if update.mask is not None or not stock_strides(region, memory, dtype):
      return False
  if update.mask is not None:
    # The stock rule also loads what it stores to, masked off or not.
    moving = [
      d
      for d in region.slices
      if not tpu_region.is_static(region.indices[d].start)
    ]
    if moving or not within(region, update):
      return False
  for d, index in enumerate(region.indices):
    start = index.start if isinstance(index, Slice) else index
    if tpu_region.is_static(start):
      continue
    tile = 1
    if d == memory.lane:
      pack = tpu_values.packing(dtype) if memory.rank == 1 else 1
      tile = tpu_windows.LANES * pack
    elif d == memory.row:
      tile = tpu_windows.row_tile(memory, region, dtype)
      if tpu_windows.Window._whole_row(region, memory, dtype):
        tile = 1
    if region.multiple(start) % tile:
      return False
  return True


def within(region: Region, update: Update) -> bool:
  """Whether no static part of a masked index lies outside."""
  if update.mask is None:
    return True
  trimmed = tpu_region.trim(region, update.replace(operands=(), mask=None))
  return trimmed is not None and trimmed[0] is region


def lower_stock(ctx, ref, transforms, transform_avals, update, value, mask):
  """Calls the stock rule for a load, store or swap."""
  ref_aval, block_shape = ctx.avals_in[0], ctx.block_shapes[0]
  leaves, tree = jax.tree.flatten(transforms)
  avals = jax.tree.leaves(transform_avals)
  kernel_type = ctx.lowering_context.kernel_type
  rules = lowering.lowering_rules[kernel_type]

  def sub(avals_in, avals_out):
    return ctx.replace(
      avals_in=avals_in,
      avals_out=avals_out,
      block_shapes=[block_shape, *[None] * (len(avals_in) - 1)],
    )

  if kernel_type != _TC:
    # Off the TensorCore the stock rules want every index in the module.
    if value is not None:
      value = lowering._ensure_mlir_value(*value), value[1]
    leaves = list(map(lowering._ensure_mlir_value, leaves, avals))

  view = compat.transform_type(transform_avals, ref_aval)
  region_aval = jax.core.ShapedArray(view.shape, view.dtype)
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


def refuse_dtype(update: Update, dtype: Any) -> None:
  if dtype == np.dtype(np.float16):
    raise NotImplementedError(
      f"{update.name}: wanted a float16 Ref on the TensorCore, which has no"
      " float16 vectors: Mosaic cannot even copy one. Use bfloat16 or"
      " float32, or view the Ref as int16 with ref.bitcast(jnp.int16)."
    )


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


def known_by_id(leaves, multiples):
  return {
    id(x): m
    for x, m in zip(leaves, multiples, strict=True)
    if not tpu_region.is_static(x)
  }


def access_vmem(
  view: Any,
  region: Region,
  memory: tpu_windows.Memory,
  dtype: Any,
  update: Update,
) -> Any | None:
  """Applies an update to any region of VMEM, in natural order."""
  strided = [d for d in region.slices if region.indices[d].stride != 1]
  if not region.int_shape and not strided:
    return tpu_windows.access_box(view, region, memory, dtype, update)
  if (
    not region.int_shape
    and stock_strides(region, memory, dtype)
    and update.mask is None
  ):
    return tpu_windows.access_strided(view, region, update)
  if not region.int_shape and stock_strides(region, memory, dtype):
    static = all(
      tpu_region.is_static(region.indices[d].start) for d in region.slices
    )
    if static:
      # All in bounds after trimming, so what is masked off may be rewritten.
      return tpu_windows.access_strided(view, region, update)

  def box(inner: Region, part: Update):
    return tpu_windows.access_box(view, inner, memory, dtype, part)

  return tpu_loops.loop(region, strided, dtype, update, box)


def _lower(prim, ctx, ref, *leaves, tree, **params):
  ref_aval = ctx.avals_in[0]
  avals = tree.unflatten(ctx.avals_in[1:])
  indices = len(jax.tree.leaves(avals.transforms))
  leaves = [*map(static_leaf, leaves[:indices]), *leaves[indices:]]
  access = tree.unflatten(leaves)
  update = update_of(prim, access, params)
  dtype = compat.transform_type(avals.transforms, ref_aval).dtype
  space = memory_space(ref)
  refuse_dtype(update, dtype)
  if space not in ("vmem", "smem", "any", "hbm"):
    raise NotImplementedError(
      f"{update.name}: wanted a Ref in VMEM, SMEM, HBM or ANY memory on the"
      f" TensorCore, got one in {space}. Copy the data with"
      " pltpu.sync_copy."
    )
  multiples = [
    known_multiple(x) if k < indices else 1 for k, x in enumerate(leaves)
  ]
  block_shape = ctx.block_shapes[0]
  if _is_simple(access.transforms):
    region = tpu_region.region_of(
      update.name,
      ref_aval,
      access.transforms,
      known_by_id(leaves, multiples),
    )
    memory = physical_view(region, block_shape)
    stock = space == "vmem" and is_stock_vmem(region, memory, dtype, update)
    stock |= (
      space == "smem"
      and not region.natural_shape
      and update.mask is None
      and not (update.is_load and update.operands)
      and prim in (load.load_p, swap.swap_p)
    )
    if stock:
      value = mask = None
      if not update.is_load:
        value = access.operands[0], avals.operands[0]
      if access.mask is not None:
        mask = access.mask, avals.mask
      return lower_stock(
        ctx, ref, access.transforms, avals.transforms, update, value, mask
      )

  boolean = dtype == np.dtype(bool)
  words = ref_aval
  if boolean:
    words = ref_aval.update(
      inner_aval=ref_aval.inner_aval.update(dtype=np.dtype(np.int32))
    )
    ctx = ctx.replace(avals_in=[words, *ctx.avals_in[1:]])

  def run(ref, leaves):
    access = tree.unflatten(leaves)
    known = known_by_id(leaves, multiples)
    if boolean:
      access = access._replace(
        operands=tuple(
          jnp.asarray(x).astype(jnp.int32) for x in access.operands
        )
      )
    update = update_of(prim, access, params)
    region = tpu_region.region_of(update.name, words, access.transforms, known)
    out = access_region(ref, region, space, block_shape, update)
    if out is None:
      return None
    return out != 0 if boolean else out

  return lower_decomposed(ctx, ref, leaves, run)


def access_region(ref, region, space, block_shape, update):
  """Applies an update on the TensorCore, wherever the Ref is."""
  shape = region.natural_shape
  update = update.replace(
    operands=tuple(tpu_region.to_natural(region, x) for x in update.operands),
    mask=None
    if update.mask is None
    else tpu_region.to_natural(region, update.mask),
  )
  view = ref
  if region.prefix:
    view = compat.TransformedRef(ref, region.prefix)
  dtype = view.dtype
  trimmed = None
  if math.prod(shape):
    trimmed = tpu_region.trim(region, update)
  if trimmed is None:
    if not update.need_old:
      return None
    nothing = jnp.zeros(shape, dtype)
    out = update.masked(nothing) if math.prod(shape) else nothing
    return tpu_region.from_natural(region, out)
  inner, part, cuts = trimmed
  if space == "vmem":
    memory = physical_view(region, block_shape)
    old = access_vmem(view, inner, memory, dtype, part)
  elif space == "smem":
    old = tpu_copies.access_smem(view, inner, dtype, part)
  else:
    old = tpu_copies.access_hbm(view, inner, dtype, part)
  if old is None:
    return None
  old = tpu_region.untrim(update, cuts, old)
  return tpu_region.from_natural(region, old)


def _register() -> None:
  for prim in (
    load.load_p,
    swap.swap_p,
    atomic_rmw.atomic_rmw_p,
    atomic_cas.atomic_cas_p,
  ):

    def rule(ctx, ref, *leaves, prim=prim, **params):
      return _lower(prim, ctx, ref, *leaves, **params)

    lowering.register_lowering_rule(
      prim, kernel_types=[_TC], ensure_mlir_values=False
    )(rule)
    # JAX's cache of lowered equations cannot tell two kernels apart that
    # differ in what our decision depends on.
    lowering._uncacheable_primitives.add(prim)


_register()
