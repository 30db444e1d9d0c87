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
import dataclasses
import math
from typing import Any

import jax
from jax._src.pallas import core as pallas_core
from jax._src.pallas.mosaic import core as tpu_core
import jax.numpy as jnp
from jax_swapext._src import access as access_lib
from jax_swapext._src import compat
from jax_swapext._src import load
from jax_swapext._src import semantics
from jax_swapext._src import swap
from jax_swapext._src.pallas import tpu_copies
from jax_swapext._src.pallas import tpu_loops
from jax_swapext._src.pallas import tpu_lowering
from jax_swapext._src.pallas import tpu_region
from jax_swapext._src.pallas import tpu_tiles
from jax_swapext._src.pallas import tpu_values
from jax_swapext._src.pallas import tpu_windows
import numpy as np

AtomicOp = semantics.AtomicOp
Slice = compat.Slice
Region = tpu_region.Region
Update = tpu_region.Update
Access = access_lib.Access

_TC = tpu_core.CoreType.TC


def physical_view(
  region: Region, block_shape: Sequence[Any]
) -> tpu_tiles.Memory:
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
  return tpu_tiles.Memory(
    row=logical[-2] if len(logical) > 1 else None,
    lane=logical[-1] if logical else None,
    rank=len(logical),
    whole=whole,
  )


def stock_strides(
  region: Region, memory: tpu_tiles.Memory, dtype: Any
) -> bool:
  """Whether Mosaic's strided load and store take the region's strides."""
  return tpu_values.packing(dtype) == 1 and _rows_in_a_tile(region, memory)


def _is_packed_strided_load(
  region: Region, memory: tpu_tiles.Memory, dtype: Any, update: Update
) -> bool:
  """Whether Mosaic's strided load takes elements that share words, too."""
  if not update.is_load or not _rows_in_a_tile(region, memory):
    return False
  starts = [i.start if isinstance(i, Slice) else i for i in region.indices]
  if memory.row is None or not all(map(tpu_region.is_static, starts)):
    return False
  rows = region.indices[memory.row]
  return isinstance(rows, Slice) and not rows.size % tpu_values.packing(dtype)


def _rows_in_a_tile(region: Region, memory: tpu_tiles.Memory) -> bool:
  """Whether a row has at most one tile's lanes, and is accessed from the first.

  Strided loads and stores take neither more lanes nor others.
  """
  if memory.lane is None or memory.whole:
    return False
  if region.shape[memory.lane] > tpu_tiles.LANES:
    return False
  lane = region.indices[memory.lane]
  start, step = lane, 1
  if isinstance(lane, Slice):
    start, step = lane.start, lane.stride
  return tpu_region.is_static(start) and int(start) == 0 and step == 1


def is_stock_vmem(
  region: Region,
  memory: tpu_tiles.Memory,
  dtype: Any,
  update: Update,
  stock_syntax: bool = False,
) -> bool:
  """Whether the stock rules lower the access, and libtpu what they emit.

  Args:
    region: What is accessed.
    memory: Where it lies.
    dtype: Of the Ref.
    update: What is done to it.
    stock_syntax: Whether the kernel has it so: its module is to stay as it is,
      where ours has a form that more versions of libtpu take.
  """
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
    strided = stock_strides(region, memory, dtype) or (
      stock_syntax and _is_packed_strided_load(region, memory, dtype, update)
    )
    if update.mask is not None or not strided:
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
      tile = tpu_tiles.LANES * pack
    elif d == memory.row:
      tile = tpu_tiles.row_tile(memory, region, dtype)
      if tpu_windows.Window.is_whole_row(region, memory, dtype):
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


def is_stock_chain(
  ref_aval: Any,
  transforms: Sequence[Any],
  known: dict[int, int],
  block_shape: Sequence[Any],
  update: Update,
) -> bool:
  """Whether the stock rules lower an access by one index after another."""
  chain = [*transforms]
  if not isinstance(chain[-1], compat.NDIndexer):
    view = compat.transform_type(chain, ref_aval)
    chain.append(compat.NDIndexer.make_trivial_indexer(view.shape))
  slicing = Update("load", None, (), None, True, False)
  aval = ref_aval
  for k, t in enumerate(chain):
    if isinstance(t, compat.TransposeTransform):
      return False
    if isinstance(t, compat.NDIndexer):
      region = tpu_region.region_of(update.name, aval, [t], known)
      region = dataclasses.replace(region, prefix=tuple(chain[:k]))
      memory = physical_view(region, block_shape)
      here = update if k == len(chain) - 1 else slicing
      if not is_stock_vmem(region, memory, aval.dtype, here, True):
        return False
    aval = t.transform_type(aval)
  return True


def refuse_dtype(update: Update, dtype: Any) -> None:
  if dtype == np.dtype(np.float16):
    raise NotImplementedError(
      f"{update.name}: wanted a float16 Ref on the TensorCore, which has no"
      " float16 vectors: Mosaic cannot even copy one. Use bfloat16 or"
      " float32, or view the Ref as int16 with ref.bitcast(jnp.int16)."
    )


def access_vmem(
  view: Any,
  region: Region,
  memory: tpu_tiles.Memory,
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
  leaves = [*map(tpu_lowering.static_leaf, leaves[:indices]), *leaves[indices:]]
  access = tree.unflatten(leaves)
  update = tpu_lowering.update_of(prim, access, params)
  dtype = compat.transform_type(avals.transforms, ref_aval).dtype
  space = tpu_lowering.memory_space(ref)
  if space not in ("vmem", "smem", "any", "hbm"):
    raise NotImplementedError(
      f"{update.name}: wanted a Ref in VMEM, SMEM, HBM or ANY memory on the"
      f" TensorCore, got one in {space}. Copy the data with"
      " pltpu.sync_copy."
    )
  multiples = [
    tpu_lowering.known_multiple(x) if k < indices else 1
    for k, x in enumerate(leaves)
  ]
  block_shape = ctx.block_shapes[0]
  known = tpu_lowering.known_by_id(leaves, multiples)
  if tpu_lowering.is_simple(access.transforms):
    region = tpu_region.region_of(
      update.name, ref_aval, access.transforms, known
    )
    memory = physical_view(region, block_shape)
    stock = space == "vmem" and is_stock_vmem(
      region, memory, dtype, update, params.get("stock") is not None
    )
  else:
    # In our own terms, a chain is one index, which costs less.
    stock = (
      params.get("stock") is not None
      and space == "vmem"
      and is_stock_chain(
        ref_aval, access.transforms, known, block_shape, update
      )
    )
  stock |= (
    space == "smem"
    and not compat.transform_type(avals.transforms, ref_aval).shape
    and update.mask is None
    and not (update.is_load and update.operands)
    and prim in (load.load_p, swap.swap_p)
  )
  if not stock or params.get("stock") is None:
    refuse_dtype(update, dtype)
  if stock:
    value = mask = None
    if not update.is_load:
      value = access.operands[0], avals.operands[0]
    if access.mask is not None:
      mask = access.mask, avals.mask
    return tpu_lowering.lower_stock(
      ctx, ref, access.transforms, avals.transforms, update, value, mask,
      params.get("stock"),
    )  # fmt: skip

  boolean = dtype == np.dtype(bool)
  words = ref_aval
  if boolean:
    words = ref_aval.update(
      inner_aval=ref_aval.inner_aval.update(dtype=np.dtype(np.int32))
    )
    ctx = ctx.replace(avals_in=[words, *ctx.avals_in[1:]])

  def run(ref, leaves):
    access = tree.unflatten(leaves)
    known = tpu_lowering.known_by_id(leaves, multiples)
    if boolean:
      access = access._replace(
        operands=tuple(
          jnp.asarray(x).astype(jnp.int32) for x in access.operands
        )
      )
    update = tpu_lowering.update_of(prim, access, params)
    region = tpu_region.region_of(update.name, words, access.transforms, known)
    out = access_region(ref, region, space, block_shape, update)
    if out is None:
      return None
    return out != 0 if boolean else out

  return tpu_lowering.lower_decomposed(ctx, ref, leaves, run)


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


tpu_lowering.register([_TC], _lower, ensure_mlir_values=False)
tpu_lowering.register_native([_TC], lambda *_: False)
