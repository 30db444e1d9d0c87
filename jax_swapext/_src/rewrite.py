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
"""The stock equations of a kernel's jaxpr, replaced by ours.

Where stock JAX lowers an access, our rules call the stock rule. An access that
some stock rule lowers and ours would not lower to the same keeps its stock
equation: each of `rules` returns None for those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
import math
from typing import Any, NamedTuple
import weakref

import jax
import jax.numpy as jnp
from jax_swapext._src import access as access_lib
from jax_swapext._src import atomic_rmw
from jax_swapext._src import compat
from jax_swapext._src import load
from jax_swapext._src import native
from jax_swapext._src import semantics
from jax_swapext._src import swap


class Rewritten(NamedTuple):
  """An equation of one of our primitives.

  Attributes:
    primitive: one of ours.
    ref: the Ref's variable.
    access: of variables, in place of arrays.
    params: of the primitive, but `tree` and `stock`.
    has_out: whether it has the result that the stock equation had.
  """

  primitive: Any
  ref: Any
  access: access_lib.Access
  params: dict[str, Any]
  has_out: bool


# From a stock primitive to a function of an equation and of whether its result
# is used, which returns a Rewritten, an equation of `native`, or None. Pallas'
# own primitives are added when Pallas is loaded.
rules: dict[Any, Callable[[Any, bool], Any]] = {}

# Jaxprs by the jaxpr they were rewritten from, and by whether the kernel gives
# layouts; None where nothing changed. It keeps equal what was the same: lowered
# functions are cached by their jaxprs.
_cache: weakref.WeakKeyDictionary[Any, dict[bool, Any]] = (
    weakref.WeakKeyDictionary()
)


def rewritten(jaxpr: Any) -> Any:
  """The jaxpr with stock accesses, nested ones too, replaced by ours.

  Args:
    jaxpr: of a kernel, or of a part of one.

  Returns:
    A jaxpr with the same inputs and outputs; the same one if it has none.
  """
  return _rewrite_cached(jaxpr, _gives_layouts(jaxpr))


def _rewrite_cached(jaxpr, laid_out):
  found = _cache.setdefault(jaxpr, {})
  if laid_out not in found:
    found[laid_out] = _rewrite(jaxpr, laid_out)
  return jaxpr if found[laid_out] is None else found[laid_out]


def _rewrite(jaxpr, laid_out):
  used = {id(v) for eqn in jaxpr.eqns for v in eqn.invars}
  used.update(map(id, jaxpr.outvars))
  eqns = [_rewrite_eqn(eqn, used, laid_out) for eqn in jaxpr.eqns]
  if all(new is old for new, old in zip(eqns, jaxpr.eqns)):
    return None
  return compat.replace_eqns(jaxpr, eqns)


def _rewrite_eqn(eqn, used, laid_out):
  if (rule := rules.get(eqn.primitive)) is None:
    return _rewrite_params(eqn, laid_out)
  if laid_out and _may_be_part_of_tile(eqn):
    return eqn
  new = rule(eqn, any(id(v) in used for v in eqn.outvars))
  if new is None:
    return eqn
  if not isinstance(new, Rewritten):
    return new
  leaves, tree = jax.tree.flatten(new.access)
  loads = new.primitive is load.load_p
  effect = compat.ReadEffect if loads else compat.WriteEffect
  return compat.replace_eqn(
      eqn,
      new.primitive,
      [new.ref, *leaves],
      eqn.outvars if new.has_out else [],
      dict(new.params, tree=tree, stock=eqn.primitive),
      {effect(new.ref)},
  )


def _rewrite_params(eqn, laid_out):
  def nested(value):
    if isinstance(value, compat.Jaxpr):
      return _rewrite_cached(value, laid_out)
    if type(value) in (tuple, list):
      new = type(value)(map(nested, value))
      return value if all(a is b for a, b in zip(new, value)) else new
    return value

  params = {k: nested(v) for k, v in eqn.params.items()}
  if all(params[k] is v for k, v in eqn.params.items()):
    return eqn
  jaxprs = _jaxprs(list(params.values()))
  before = _jaxprs(list(eqn.params.values()))
  if all(new.effects == old.effects for new, old in zip(jaxprs, before)):
    return eqn.replace(params=params)
  # What accumulated into a Ref, or read it too, now writes to it.
  return compat.replace_eqn(
      eqn, eqn.primitive, eqn.invars, eqn.outvars, params
  )


# Mosaic GPU infers the layout of what a kernel loads from all that it does. Of
# fewer elements than threads it can load a row or a column of a tile, if
# something in the kernel gives the tile. By name, as the backend may not be
# loaded.
_TILED = frozenset(
    {"async_load", "inline_mgpu", "layout_cast", "mma", "tcgen05_mma", "wgmma"}
)


def _gives_layouts(jaxpr) -> bool:
  return any(
      eqn.primitive.name in _TILED
      or any(map(_gives_layouts, _jaxprs(list(eqn.params.values()))))
      for eqn in jaxpr.eqns
  )


def _jaxprs(value) -> list[Any]:
  if isinstance(value, compat.Jaxpr):
    return [value]
  if type(value) in (tuple, list):
    return [j for v in value for j in _jaxprs(v)]
  return []


def _may_be_part_of_tile(eqn) -> bool:
  size = math.prod(eqn.outvars[0].aval.shape) if eqn.outvars else 1
  return size % 128 != 0 and size % 8 == 0


# ## Stock accesses

_SPACES = frozenset(
    {"ANY", "DEFAULT", "Device", "GMEM", "HBM", "SMEM", "VMEM", "VMEM_SHARED"}
)
_VIEWS = (
    compat.NDIndexer, compat.BitcastTransform, compat.ReshapeTransform,
    compat.TransposeTransform,
)

# Views that one backend has: type to a function of an access' transforms, to
# whether the stock rules of that backend load and store what they select.
own_views: dict[type, Callable[[Sequence[Any]], bool]] = {}


def is_ordinary(
    ref: Any, transforms: Sequence[Any], dtype: Any, op: Any = None,
    *, plain: bool = False,
) -> bool:
  """Whether our rules know such a Ref, and views like this one.

  Semaphores, barriers, accumulators and tensor memory have accesses of their
  own, as have elements that share a byte.

  Args:
    ref: the Ref's variable.
    transforms: of the access.
    dtype: of what is accessed.
    op: the atomic operation, if it is one.
    plain: whether this is a load, store or swap without a mask. Through one of
      `own_views` stock may lower it.
  """
  if type(ref.aval) is not jax.ref.AbstractRef:
    return False
  inner = ref.aval.inner_aval
  if not isinstance(inner, jax.core.ShapedArray):
    return False
  space = getattr(ref.aval, "memory_space", None)
  if space is not None and getattr(space, "name", None) not in _SPACES:
    return False
  if not all(isinstance(d, int) for d in inner.shape):
    return False
  own = [own_views[type(t)] for t in transforms if type(t) in own_views]
  if plain and own and all(lowers(transforms) for lowers in own):
    return False
  known = sum(isinstance(t, _VIEWS) for t in transforms) + len(own)
  return known == len(transforms) and _has(dtype, op)


@functools.cache
def _has(dtype, op) -> bool:
  try:
    semantics.check_dtype("extended", dtype, op)
  except TypeError:
    return False
  return True


def has_region_shape(mask: Any, ref: Any, transforms: Sequence[Any]) -> bool:
  """Whether there is no mask, or one that needs no broadcast."""
  return mask is None or mask.aval.shape == view_aval(ref, transforms).shape


def view_aval(ref: Any, transforms: Sequence[Any]) -> jax.core.ShapedArray:
  """The type of a view, of variables."""
  avals = jax.tree.map(lambda x: getattr(x, "aval", x), tuple(transforms))
  return compat.transform_type(avals, ref.aval.inner_aval)


def view(ref: Any, transforms: Sequence[Any]) -> Any:
  """The view of a Ref, of arrays, that a stock equation has in two parts."""
  transforms = tuple(transforms)
  return compat.TransformedRef(ref, transforms) if transforms else ref


def _get(eqn, used):
  del used
  ref, *leaves = eqn.invars
  transforms = eqn.params["tree"].unflatten(leaves)
  dtype = eqn.outvars[0].aval.dtype
  if not is_ordinary(ref, transforms, dtype, plain=True):
    return None
  access = access_lib.Access(transforms, None, ())
  return Rewritten(load.load_p, ref, access, {}, True)


def _swap(eqn, used):
  ref, value, *leaves = eqn.invars
  transforms = eqn.params["tree"].unflatten(leaves)
  if not is_ordinary(ref, transforms, value.aval.dtype, plain=True):
    return None
  access = access_lib.Access(transforms, None, (value,))
  return Rewritten(swap.swap_p, ref, access, {"need_old": used}, used)


def _addupdate(eqn, used):
  del used
  ref, value, *leaves = eqn.invars
  transforms = eqn.params["tree"].unflatten(leaves)
  op = semantics.AtomicOp.ADD
  if not is_ordinary(ref, transforms, value.aval.dtype, op):
    return None
  access = access_lib.Access(transforms, None, (value,))
  params = atomic_params(op)
  return Rewritten(atomic_rmw.atomic_rmw_p, ref, access, params, False)


def _broadcast_to(eqn, used):
  del used
  # JAX puts it where an index mixes integer arrays and scalars.
  shape = eqn.params["shape"]
  return native.equation(eqn, lambda x: jnp.broadcast_to(x, shape))


def atomic_params(
    op: semantics.AtomicOp, *, sem: str = "relaxed", need_old: bool = False
) -> dict[str, Any]:
  """The parameters of an atomic update that stock syntax asks for."""
  return {
      "op": op, "order": "any", "sem": sem, "scope": None, "reverse": False,
      "need_old": need_old,
  }


rules[compat.get_p] = _get
rules[compat.ref_swap_p] = _swap
rules[compat.addupdate_p] = _addupdate
rules[compat.broadcast_to_p] = _broadcast_to
