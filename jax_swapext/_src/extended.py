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
"""`extended`: a kernel's stock accesses, lowered by our rules.

A decorated kernel is traced to a jaxpr, whose equations of stock primitives are
replaced by equations of ours, and that jaxpr is evaluated where the kernel was
called. So the choice is in the jaxpr that the kernel becomes, and nothing about
it is looked up when that is lowered.

Where stock JAX lowers an access, our rules call the stock rule. An access that
some stock rule lowers and ours would not lower to the same keeps its stock
equation: each rewrite returns None for those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import functools
import inspect
import math
import types
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

# Of what the decorator returns: that itself, since wrappers of it copy its
# attributes, and what was decorated.
_MARK = "_swapext_extended"

_RUN_LATER = (
    inspect.isasyncgenfunction, inspect.iscoroutinefunction,
    inspect.isgeneratorfunction,
)


def extended[**P, R](kernel: Callable[P, R]) -> Callable[P, R]:
  """Makes the stock memory accesses of a kernel work everywhere.

  Inside the function, and in everything that it calls, ``ref[idx]``,
  ``ref[idx] = x``, ``jax.ref.swap``, ``jax.ref.addupdate`` and the loads,
  stores and atomics of ``pltpu``, ``plsc``, ``plgpu`` and ``pltriton`` become
  the operations of this library. An access that stock JAX lowers gives the same
  module as before; one that it refuses is lowered as :func:`load`,
  :func:`store`, :func:`swap` or ``atomic_*`` is.

  Nothing changes outside: not for other callers of a function that the kernel
  calls, nor for what ``jax.jit`` has cached of it.

  Args:
    kernel: a kernel, for ``pl.pallas_call``, ``pl.kernel`` or ``plgpu.kernel``,
      or a function that a kernel calls. It may take anything and return
      anything but a Ref that it makes itself.

  Returns:
    The function, with the same signature, name and documentation. A decorated
    function is returned as it is.

  Raises:
    TypeError: `kernel` is no function, or a generator or a coroutine.
    NotImplementedError: when the kernel is lowered, at the line of the access,
      if its place cannot do it; the message says the way out.

  Example:
    >>> import jax, jax.numpy as jnp, jax_swapext as jsx
    >>> from jax.experimental import pallas as pl
    >>> @jsx.extended
    ... def kernel(x_ref, o_ref):
    ...   o_ref[...] = jnp.zeros_like(o_ref)
    ...   o_ref[0, 3] = jnp.sum(x_ref[...])  # stock: not in VMEM
    >>> x = jnp.ones((8, 128), jnp.float32)
    >>> out = jax.ShapeDtypeStruct((8, 128), jnp.float32)
    >>> pl.pallas_call(kernel, out, interpret=True)(x)[0, 2:5]
    Array([   0., 1024.,    0.], dtype=float32)
  """
  if undecorated(kernel)[1]:
    return kernel
  if not callable(kernel) or any(is_(kernel) for is_ in _RUN_LATER):
    raise TypeError(
        f"extended: wanted a function that runs when it is called, got {kernel}"
    )

  @functools.wraps(kernel)
  def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
    return _call(kernel, args, kwargs)

  setattr(wrapper, _MARK, (wrapper, kernel))
  return wrapper


def undecorated(kernel: Callable[..., Any]) -> tuple[Callable[..., Any], bool]:
  """The function under the decorator, and whether there was one."""
  function = getattr(kernel, "__func__", kernel)
  mark: Any = getattr(function, _MARK, None)
  if mark is None or mark[0] is not function:
    return kernel, False
  under = mark[1]
  if isinstance(kernel, types.MethodType):
    return types.MethodType(under, kernel.__self__), True
  return under, True


@dataclasses.dataclass
class _Box:
  content: Any


def _places_of_values(x):
  """A getter and a setter of each part of `x` that was computed in a trace.

  Parts are found in trees, and in dataclasses that are none, such as the
  descriptor of a copy, whose methods are called once it is returned.
  """
  places = []
  for field in dataclasses.fields(x):
    leaves, tree = jax.tree.flatten(getattr(x, field.name))
    for k, leaf in enumerate(leaves):
      # A Ref cannot be returned from a trace; one from outside need not be.
      if isinstance(leaf, jax.core.Tracer):
        if not compat.is_ref(leaf):
          places.append(_place(x, field.name, leaves, tree, k))
      elif dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
        places += _places_of_values(leaf)
  return places


def _place(x, name, leaves, tree, k):
  def put(value):
    leaves[k] = value
    # Frozen ones too: nobody else has seen it.
    object.__setattr__(x, name, tree.unflatten(leaves))

  return lambda: leaves[k], put


def _call(kernel, args, kwargs):
  out: Any = None
  places: list[Any] = []

  def thunk():
    # Arguments are closed over: what is known now stays known, and Refs come in
    # as they are, in whatever they are wrapped.
    nonlocal out
    out = _Box(kernel(*args, **kwargs))
    places[:] = _places_of_values(out)
    return [get() for get, _ in places]

  with tracing():
    jaxpr = compat.trace_thunk(thunk, kernel)
  jaxpr = rewrite(jaxpr)
  for (_, put), value in zip(places, compat.splice(jaxpr), strict=True):
    put(value)
  return out.content


# ## Everywhere


_everywhere = jax.make_user_context(False)


class _Everywhere:
  """What :func:`extend_everywhere` returns."""

  def __init__(self):
    self._entered = []

  def __enter__(self) -> None:
    context = _everywhere(True)
    context.__enter__()
    self._entered.append(context)

  def __exit__(self, *exc_info: Any) -> None:
    self._entered.pop().__exit__(*exc_info)

  def set_global(self, enabled: bool) -> None:
    """Turns it on or off for all threads of the process."""
    _everywhere.set_global(enabled)


def extend_everywhere() -> _Everywhere:
  """Decorates every kernel that is traced inside it with :func:`extended`.

  For kernels one cannot edit, and for test runners. That a kernel was traced
  inside is part of the key under which ``jax.jit`` caches it.

  Returns:
    A context manager. Its method ``set_global(True)`` does the same for the
    whole process, until ``set_global(False)``.

  Example:
    >>> import jax, jax.numpy as jnp, jax_swapext as jsx
    >>> from jax.experimental import pallas as pl
    >>> def kernel(o_ref):
    ...   o_ref[...] = jnp.zeros_like(o_ref)
    ...   jax.ref.addupdate(o_ref, 2, 7)
    >>> out = jax.ShapeDtypeStruct((4,), jnp.int32)
    >>> with jsx.extend_everywhere():
    ...   print(jax.jit(pl.pallas_call(kernel, out, interpret=True))())
    [0 0 7 0]
  """
  return _Everywhere()


def is_everywhere() -> bool:
  """Whether kernels that are traced now are to be decorated."""
  return _everywhere.value


_tracing = jax.make_user_context(False)


def tracing() -> Any:
  """A context manager around the trace of a decorated kernel."""
  return _tracing(True)


def take_more(primitive: Any, instead: Callable[..., Any]) -> None:
  """Makes decorated kernels take what binding a stock primitive refuses.

  That is refused while the kernel is traced, so there is no equation for us.

  Args:
    primitive: the stock primitive.
    instead: a function of what is bound; returns what binding is to return, or
      None if stock takes it.
  """
  stock_bind = primitive.bind

  @functools.wraps(stock_bind)
  def bind(*args, **params):
    if _tracing.value or is_everywhere():
      if (out := instead(*args, **params)) is not None:
        return out
    return stock_bind(*args, **params)

  primitive.bind = bind


# ## The rewrite


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
rewrites: dict[Any, Callable[[Any, bool], Any]] = {}

# Jaxprs by the jaxpr they were rewritten from, and by whether the kernel gives
# layouts; None where nothing changed. It keeps equal what was the same: lowered
# functions are cached by their jaxprs.
_cache: weakref.WeakKeyDictionary[Any, dict[bool, Any]] = (
    weakref.WeakKeyDictionary()
)


def rewrite(jaxpr: Any) -> Any:
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
  if (rule := rewrites.get(eqn.primitive)) is None:
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
  def rewritten(value):
    if isinstance(value, compat.Jaxpr):
      return _rewrite_cached(value, laid_out)
    if type(value) in (tuple, list):
      new = type(value)(map(rewritten, value))
      return value if all(a is b for a, b in zip(new, value)) else new
    return value

  params = {k: rewritten(v) for k, v in eqn.params.items()}
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


rewrites[compat.get_p] = _get
rewrites[compat.ref_swap_p] = _swap
rewrites[compat.addupdate_p] = _addupdate
rewrites[compat.broadcast_to_p] = _broadcast_to
