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
"""TPU interpret mode: our equations, replaced by stock ones.

The interpreter knows a Ref by the number of a buffer, so no rule of ours can be
given one. Instead each jaxpr that it is about to run has our equations replaced
by a `jit` of stock operations on the Ref, traced from the Ref's type.

Every element is accessed by itself where a mask or an index array says so, so
that the interpreter's race detector sees what the operation touches and nothing
else.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
import math
from typing import Any

import jax
from jax import lax
from jax._src import core  # Jaxpr surgery
from jax._src.pallas import core as pallas_core
from jax._src.pallas import primitives as pallas_primitives
from jax._src.pallas.mosaic import core as tpu_core
from jax._src.pallas.mosaic.interpret import interpret_pallas_call
from jax._src.state import primitives as state_primitives
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
from jax_swapext._src import array_access
from jax_swapext._src import compat
from jax_swapext._src import indexing
from jax_swapext._src import load
from jax_swapext._src import native
from jax_swapext._src import semantics
from jax_swapext._src import swap
from jax_swapext._src.pallas import stock
from jax_swapext._src.pallas import tpu_lowering
from jax_swapext._src.pallas import tpu_region
import numpy as np

Slice = compat.Slice
Region = tpu_region.Region
Update = tpu_region.Update

AtomicOp = semantics.AtomicOp

_REMOTE = frozenset(
  {
    pallas_core.MemorySpace.ANY,
    tpu_core.MemorySpace.HBM,
    tpu_core.MemorySpace.VMEM_SHARED,
  }
)


def expand(jaxpr: Any) -> Any:
  """The jaxpr with our equations replaced; the same one if it has none."""
  ours = (*tpu_lowering.PRIMITIVES, native.native_p)
  if not any(eqn.primitive in ours for eqn in jaxpr.eqns):
    return jaxpr
  return jaxpr.replace(eqns=[_expand_eqn(eqn) for eqn in jaxpr.eqns])


def _expand_eqn(eqn: Any) -> Any:
  if eqn.primitive is native.native_p:
    return _in_place_of(eqn, core.jaxpr_as_fun(expand(eqn.params["jaxpr"])))
  if eqn.primitive not in tpu_lowering.PRIMITIVES:
    return eqn
  if eqn.invars[0].aval.memory_space not in _REMOTE:
    plain = _as_masked_store(stock.as_stock(eqn))
    if plain is not eqn:
      return plain
  # What is known now keeps its value: it decides what is in bounds.
  known = {
    k: v.val for k, v in enumerate(eqn.invars) if isinstance(v, core.Literal)
  }

  def whole(ref, *leaves):
    leaves = [known.get(k + 1, x) for k, x in enumerate(leaves)]
    return _access(ref, *leaves, prim=eqn.primitive, params=eqn.params)

  return _in_place_of(eqn, whole)


def _in_place_of(eqn: Any, fun: Callable[..., Any]) -> Any:
  """A `jit` of a function, as an equation with the operands of another."""
  avals = [v.aval for v in eqn.invars]
  [call] = jax.make_jaxpr(lambda *args: jax.jit(fun)(*args))(*avals).eqns
  return call.replace(
    invars=eqn.invars, outvars=eqn.outvars, source_info=eqn.source_info
  )


def _as_masked_store(eqn: Any) -> Any:
  """`pltpu.store(ref, x, mask=m)` for what was that; else the same equation."""
  if eqn.params.get("stock") is not pallas_primitives.swap_p:
    return eqn
  ref, *leaves = eqn.invars
  access = eqn.params["tree"].unflatten(leaves)
  if eqn.params["need_old"] or not stock.is_window(access):
    return eqn
  [value] = access.operands
  invars, args_tree = jax.tree.flatten(
    (ref, access.transforms, value, access.mask)
  )
  params = {"args_tree": args_tree, "eviction_policy": None}
  outs = [core.DropVar(value.aval)]
  return compat.replace_eqn(
    eqn, pallas_primitives.swap_p, invars, outs, params
  )


def _access(ref, *leaves, prim, params):
  tree = params["tree"]
  ref_aval = jax.typeof(ref)
  access = tree.unflatten(leaves)
  count = len(jax.tree.leaves(access.transforms))
  leaves = [*map(tpu_lowering.static_leaf, leaves[:count]), *leaves[count:]]
  access = tree.unflatten(leaves)
  update = tpu_lowering.update_of(prim, access, params)
  region = tpu_region.region_of(update.name, ref_aval, access.transforms)
  remote = ref_aval.memory_space in _REMOTE
  if remote and update.name.startswith("atomic"):
    raise NotImplementedError(
      f"{update.name}: wanted an atomic update of {ref_aval.memory_space} in"
      " a TPU kernel, which has none there. Update a VMEM or SMEM block, or"
      " use fetch_* outside the kernel."
    )
  if region.prefix:
    old = _through_values(ref, prim, access, params, remote)
    return [old] if update.need_old else []
  update = update.replace(operands=tuple(map(_carry, update.operands)))
  old = _in_place(ref, region, update, remote)
  return [_uncarry(old, ref.dtype)] if update.need_old else []


# XLA's CPU backend selects between 8-bit floats in 16 bits, which changes the
# bits of a NaN. So their bytes are carried from where they are read to where
# they are written.
def _carried_dtype(dtype):
  return np.dtype(np.uint8) if semantics.is_float8(dtype) else dtype


def _carry(x):
  if not semantics.is_float8(x.dtype):
    return x
  return lax.bitcast_convert_type(x, np.uint8)


def _uncarry(x, dtype):
  return x if x.dtype == dtype else lax.bitcast_convert_type(x, dtype)


def _through_values(ref, prim, access, params, remote):
  """The interpreter has no bitcast or reshaped Refs: changes the whole."""
  x = _uncarry(_get(ref, (), remote), ref.dtype)
  if prim is load.load_p:
    return array_access.load(x, access)
  if prim is swap.swap_p:
    old, new = array_access.swap(x, access, need_old=params["need_old"])
  else:
    old, new = array_access.rmw(
      x,
      access,
      params.get("op", AtomicOp.CAS),
      order=params["order"],
      need_old=params["need_old"],
      reverse=params.get("reverse", False),
    )
  _set(ref, (), _carry(new), remote)
  return old


def _in_place(ref, region: Region, update: Update, remote: bool):
  update = update.replace(
    operands=tuple(
      tpu_region.to_natural(region, jnp.asarray(x)) for x in update.operands
    ),
    mask=None
    if update.mask is None
    else tpu_region.to_natural(region, jnp.asarray(update.mask)),
  )
  shape = region.natural_shape
  trimmed = tpu_region.trim(region, update) if math.prod(shape) else None
  if trimmed is None:
    if not update.need_old:
      return None
    old = jnp.zeros(shape, _carried_dtype(ref.dtype))
    return tpu_region.from_natural(region, update.masked(old))
  inner, part, cuts = trimmed
  old = _access_region(ref, inner, part, remote)
  if not update.need_old:
    return None
  old = tpu_region.untrim(update, cuts, old)
  return tpu_region.from_natural(region, old)


def _access_region(ref, region: Region, update: Update, remote: bool):
  moving = [
    d
    for d in region.slices
    if not tpu_region.is_static(region.indices[d].start)
  ]
  if not region.int_shape and not (update.mask is not None and moving):
    box = functools.partial(_box, ref, region, remote=remote)
    # What all elements share may be outside if none is accessed.
    inside = all(
      isinstance(i, Slice) or tpu_region.is_static(i) for i in region.indices
    )
    if update.mask is None or (inside and region.natural_shape):
      return box(update)
    return _if(update, box, ref.dtype)
  return tpu_region.in_passes(
    region, update, lambda part: _loop(ref, region, part, remote)
  )


def _if(update: Update, access, dtype):
  """Accesses a region if its mask is true anywhere."""
  part, wanted = update, jnp.any(update.mask)
  if not update.mask.shape:
    operands = () if update.is_load else update.operands
    part = update.replace(mask=None, operands=operands)
  if not update.need_old:

    @pl.when(wanted)
    def _():
      access(part)

    return None
  nothing = jnp.zeros(update.mask.shape, _carried_dtype(dtype))
  return lax.cond(wanted, lambda: access(part), lambda: update.masked(nothing))


def _box(ref, region: Region, update: Update, *, remote: bool):
  """A region of scalars and slices, all of it in bounds."""
  index = region.indices
  old: Any = None
  if update.is_load or update.reads or (remote and update.mask is not None):
    old = _get(ref, index, remote)
  if update.is_load:
    return update.masked(old)
  new = (
    update.operands[0]
    if update.op is AtomicOp.XCHG
    else semantics.combine(update.op, old, *update.operands)
  )
  if remote and update.mask is not None:
    new = lax.select(update.mask, new, old)
    _set(ref, index, new, remote)
  else:
    _set(ref, index, new, remote, update.mask)
  return update.masked(old) if update.need_old else None


def _loop(ref, region: Region, update: Update, remote: bool):
  """Element by element, in row-major order."""
  shape = region.natural_shape
  ints = indexing.int_labels(len(region.int_shape))
  labels = indexing.region_axes(region.indices, ints)
  looped = list(range(len(shape)))
  if update.mask is None:
    looped = [k for k in looped if isinstance(labels[k], tuple)]
  sizes = [shape[k] for k in looped]
  steps = math.prod(sizes)

  def step(k, old):
    if update.reverse:
      k = np.int32(steps - 1) - k
    at = dict(zip(looped, jnp.unravel_index(k, sizes), strict=True))
    position = [at[k] if k in at else Slice(0, m) for k, m in enumerate(shape)]
    box = []
    for d, index in enumerate(region.indices):
      if tpu_region.is_array_index(index):
        where = [at[labels.index(i)] for i in ints]
        box.append(jnp.asarray(index)[tuple(where)])
      elif isinstance(index, Slice) and labels.index(d) in at:
        box.append(index.start + at[labels.index(d)] * index.stride)
      else:
        box.append(index)
    inner = region.with_indices(box)
    part = update.replace(
      operands=tuple(_part(x, position) for x in update.operands),
      mask=None if update.mask is None else _part(update.mask, position),
    )
    if update.mask is None:
      got = _box(ref, inner, part, remote=remote)
    else:
      box_at = functools.partial(_box, ref, inner, remote=remote)
      got = _if(part, box_at, ref.dtype)
    return old if got is None else _with_part(old, position, got)

  dtype = _carried_dtype(ref.dtype)
  init = jnp.zeros(shape if update.need_old else (), dtype)
  old = lax.fori_loop(0, steps, step, init)
  return old if update.need_old else None


def _stock(position):
  return tuple(slice(None) if isinstance(p, Slice) else p for p in position)


def _part(x, position):
  return jnp.asarray(x)[_stock(position)]


def _with_part(x, position, value):
  return x.at[_stock(position)].set(value)


def _at(ref, index):
  if not index:
    return ref
  shape = jax.typeof(ref).shape
  return compat.TransformedRef(
    ref, (compat.NDIndexer(tuple(index), shape, ()),)
  )


def _unsqueezed(index):
  return tuple(i if isinstance(i, Slice) else Slice(i, 1) for i in index)


def _get(ref, index, remote: bool):
  if not remote:
    return _carry(state_primitives.ref_get(_at(ref, index)))
  view: Any = _at(ref, _unsqueezed(index))

  def body(scratch):
    pltpu.sync_copy(view, scratch)
    return scratch[...]

  x = pl.run_scoped(body, pltpu.VMEM(view.shape, view.dtype))
  squeezed = [d for d, i in enumerate(index) if not isinstance(i, Slice)]
  return lax.squeeze(_carry(x), squeezed)


def _set(ref, index, value, remote: bool, mask=None) -> None:
  value = _uncarry(value, ref.dtype)
  if not remote:
    _store(ref, index, value, mask)
    return
  view: Any = _at(ref, _unsqueezed(index))

  def body(scratch):
    scratch[...] = jnp.reshape(value, view.shape)
    pltpu.sync_copy(scratch, view)

  pl.run_scoped(body, pltpu.VMEM(view.shape, view.dtype))


def _store(ref, index, value, mask) -> None:
  shape = value.shape
  if mask is None or not shape or shape[0] == min(shape):
    pallas_primitives.store(_at(ref, index), None, value, mask=mask)
    return
  # The interpreter compares the rows of a mask with the length of every axis,
  # and calls those beyond it out of bounds: only a first axis that is the
  # shortest is safe. So each row is stored by itself.
  index = list(index) or [Slice(0, m) for m in shape]
  axis = next(d for d, i in enumerate(index) if isinstance(i, Slice))
  rows = index[axis]

  def row(k, _):
    index[axis] = Slice(rows.start + k * rows.stride, 1)
    value_row, mask_row = (
      lax.dynamic_slice_in_dim(x, k, 1) for x in (value, mask)
    )
    pallas_primitives.store(_at(ref, index), None, value_row, mask=mask_row)

  lax.fori_loop(0, shape[0], row, None)


_interpret_jaxpr = interpret_pallas_call._interpret_jaxpr


def _interpret_expanded(jaxpr, *args, **kwargs):
  return _interpret_jaxpr(expand(jaxpr), *args, **kwargs)


# The interpreter looks itself up by this name, for inner jaxprs as well.
interpret_pallas_call._interpret_jaxpr = _interpret_expanded
