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
it is looked up when that is lowered. What replaces what is in `rewrite`.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import functools
import inspect
import types
from typing import Any

import jax
from jax_swapext._src import compat
from jax_swapext._src import rewrite

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
  jaxpr = rewrite.rewritten(jaxpr)
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
