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
"""Atomic read-modify-writes of a region of a Ref.

    old:i32[8], ref[i] <- ref[i] add v where m
"""

from __future__ import annotations

from collections.abc import Callable
import functools
from typing import Any

import jax
from jax import lax
from jax.interpreters import ad
from jax.interpreters import batching
from jax.interpreters import partial_eval as pe
from jax.typing import ArrayLike
from jax_swapext._src import access as access_lib
from jax_swapext._src import array_access
from jax_swapext._src import compat
from jax_swapext._src import rules
from jax_swapext._src import semantics

AtomicOp = semantics.AtomicOp

_DOC = """{summary}

  The update is atomic against every other ``atomic_*`` on the same element from
  all threads that can reach it in the Ref's memory space. Indices may repeat
  within one call: the result is as if the elements were updated one after
  another. An unused result costs nothing: dead code elimination turns the
  operation into the form without one.

  Args:
    ref: a Ref or a view of one, as in :func:`load`.
    idx: a NumPy-style index, as in :func:`load`.
    value: broadcasts to the region. A Python scalar takes the Ref's dtype.
    mask: bool, broadcasts to the region; None stands for all true. Masked-off
      elements are not accessed.
    order: ``"any"``, or ``"index"`` for the row-major order of the region. The
      CPU, the TPU and the interpreters always keep row-major order.
    sem: the memory order: ``"relaxed"``, ``"acquire"``, ``"release"`` or
      ``"acq_rel"``.
    scope: which threads it is atomic against: ``"block"``, ``"cluster"``,
      ``"device"`` or ``"system"``; by default all that the memory space needs.

  Returns:
    The old elements, 0 where masked off: an array of the Ref's dtype and of
    the shape that NumPy gives ``ref[idx]``.

  Raises:
    TypeError: as :func:`load`, and if the Ref's dtype has no such operation
      ({dtypes}).
    ValueError: as :func:`load`, and for an unknown `order`, `sem` or `scope`.
    NotImplementedError: this place cannot; the message says the way out.

  Example:
    >>> import jax, jax.numpy as jnp, jax_swapext as jsx
    >>> ref = jax.new_ref(jnp.array([{init}]))
    >>> jsx.{name}(ref, jnp.array([0, 1, 0]), jnp.array([{values}]))
    Array([{old}], dtype=int32)
    >>> ref[...]
    Array([{new}], dtype=int32)
  """

_ANY = "all that can be loaded have it"
_SUM = "bool and 8-bit floats have none"
_ORDER = "8-bit floats have none"
_BITS = "only integers and bool have it"


def _document[F: Callable[..., Any]](
    summary: str, dtypes: str, init: str, values: str, old: str, new: str,
) -> Callable[[F], F]:
  """Gives a function the docstring that the atomic operations share."""

  def decorate(fun: F) -> F:
    fun.__doc__ = _DOC.format(
        name=fun.__name__, summary=summary, dtypes=dtypes, init=init,
        values=values, old=old, new=new,
    )
    return fun

  return decorate


@_document("Exchanges elements for new values, one after another.",
           _ANY, "7, 8", "1, 2, 3", "7, 8, 1", "3, 2")
def atomic_xchg(
    ref, idx, value: ArrayLike, *, mask: ArrayLike | None = None,
    order: str = "any", sem: str = "relaxed", scope: str | None = None,
) -> jax.Array:
  return _atomic(AtomicOp.XCHG, ref, idx, value, mask, order, sem, scope)


@_document("Adds to elements; integers wrap around.",
           _SUM, "7, 8", "1, 2, 3", "7, 8, 8", "11, 10")
def atomic_add(
    ref, idx, value: ArrayLike, *, mask: ArrayLike | None = None,
    order: str = "any", sem: str = "relaxed", scope: str | None = None,
) -> jax.Array:
  return _atomic(AtomicOp.ADD, ref, idx, value, mask, order, sem, scope)


@_document("Raises elements to a value if they are below; NaN propagates.",
           _ORDER, "7, 8", "1, 9, 8", "7, 8, 7", "8, 9")
def atomic_max(
    ref, idx, value: ArrayLike, *, mask: ArrayLike | None = None,
    order: str = "any", sem: str = "relaxed", scope: str | None = None,
) -> jax.Array:
  return _atomic(AtomicOp.MAX, ref, idx, value, mask, order, sem, scope)


@_document("Lowers elements to a value if they are above; NaN propagates.",
           _ORDER, "7, 8", "1, 9, 8", "7, 8, 1", "1, 8")
def atomic_min(
    ref, idx, value: ArrayLike, *, mask: ArrayLike | None = None,
    order: str = "any", sem: str = "relaxed", scope: str | None = None,
) -> jax.Array:
  return _atomic(AtomicOp.MIN, ref, idx, value, mask, order, sem, scope)


@_document("Clears the bits of elements that are not set in a value.",
           _BITS, "7, 8", "6, 9, 3", "7, 8, 6", "2, 8")
def atomic_and(
    ref, idx, value: ArrayLike, *, mask: ArrayLike | None = None,
    order: str = "any", sem: str = "relaxed", scope: str | None = None,
) -> jax.Array:
  return _atomic(AtomicOp.AND, ref, idx, value, mask, order, sem, scope)


@_document("Sets the bits of elements that are set in a value.",
           _BITS, "7, 8", "8, 1, 16", " 7,  8, 15", "31,  9")
def atomic_or(
    ref, idx, value: ArrayLike, *, mask: ArrayLike | None = None,
    order: str = "any", sem: str = "relaxed", scope: str | None = None,
) -> jax.Array:
  return _atomic(AtomicOp.OR, ref, idx, value, mask, order, sem, scope)


@_document("Flips the bits of elements that are set in a value.",
           _BITS, "7, 8", "1, 1, 2", "7, 8, 6", "4, 9")
def atomic_xor(
    ref, idx, value: ArrayLike, *, mask: ArrayLike | None = None,
    order: str = "any", sem: str = "relaxed", scope: str | None = None,
) -> jax.Array:
  return _atomic(AtomicOp.XOR, ref, idx, value, mask, order, sem, scope)


def _atomic(op, ref, idx, value, mask, order, sem, scope):
  name = f"atomic_{op.value}"
  check_choices(name, order, sem, scope)
  ref, access, restore = access_lib.prepare(
      name, ref, idx, mask, {"value": value}, op
  )
  [old] = bind(ref, access, op, order=order, sem=sem, scope=scope)
  return restore(old)


_CHOICES = {
    "order": ("any", "index"),
    "sem": ("relaxed", "acquire", "release", "acq_rel"),
    "scope": (None, "block", "cluster", "device", "system"),
}


def check_choices(name: str, order: Any, sem: Any, scope: Any) -> None:
  for what, got in (("order", order), ("sem", sem), ("scope", scope)):
    if not isinstance(got, str | None) or got not in _CHOICES[what]:
      wanted = ", ".join(map(repr, _CHOICES[what]))
      raise ValueError(
          f"{name}: wanted {what} to be one of {wanted}, got {got!r}."
      )


def bind(
    ref,
    access: access_lib.Access,
    op: AtomicOp,
    *,
    order: str = "index",
    sem: str = "relaxed",
    scope: str | None = None,
    reverse: bool = False,
    need_old: bool = True,
    stock: Any = None,
) -> list[jax.Array]:
  """Binds `atomic_rmw_p`; returns `[old]`, or `[]`."""
  return rules.bind(
      atomic_rmw_p,
      ref,
      access,
      op=op,
      order=order,
      sem=sem,
      scope=scope,
      reverse=reverse,
      need_old=need_old,
      stock=stock,
  )


# For `stock`, see `load.load_p`.
atomic_rmw_p = compat.Primitive("swapext_atomic_rmw")
atomic_rmw_p.multiple_results = True
atomic_rmw_p.is_effectful = lambda params: True
atomic_rmw_p.def_impl(functools.partial(compat.apply_primitive, atomic_rmw_p))


def _atomic_rmw_abstract_eval(ref, *leaves, tree, need_old, op, **_):
  access = tree.unflatten(leaves)
  region = rules.check_access(f"atomic_{op.value}", ref, access, 1)
  return [region] * need_old, {compat.WriteEffect(0)}


atomic_rmw_p.def_effectful_abstract_eval(_atomic_rmw_abstract_eval)


def _atomic_rmw_pp(eqn, context, settings):
  op = eqn.params["op"].value
  return rules.pp_access(f"atomic_{op}", op, eqn, context, settings)


compat.pp_eqn_rules[atomic_rmw_p] = _atomic_rmw_pp


@compat.register_discharge_rule(atomic_rmw_p)
def _atomic_rmw_discharge(ctx, x, *leaves, tree, need_old, op, order, reverse,
                          sem, scope, stock):
  del sem, scope, stock  # One thread runs this.
  access = tree.unflatten(leaves)

  def rmw(x):
    old, x = array_access.rmw(
        x, access, op, order=order, need_old=need_old, reverse=reverse
    )
    return [old] * need_old, x

  return rules.discharge(ctx, x, leaves, rmw)


# The equations are those of `fetch_update`, on the tangent's Ref.
def _atomic_rmw_jvp(
    primals, tangents, *, tree, need_old, op, **params: Any
):
  ref, *leaves = primals
  ref_dot, *leaf_dots = tangents
  access = tree.unflatten(leaves)
  dots = tree.unflatten(leaf_dots).operands
  name = f"atomic_{op.value}"
  rules.check_differentiable(name, ref, ref_dot, dots[0])
  if rules.is_constant(ref_dot, ref) or op in semantics.BITWISE:
    outs = bind(ref, access, op, need_old=need_old, **params)
    return outs, [compat.zero_tangent(o) for o in outs]
  params["order"] = "index"
  dot = compat.instantiate(dots[0])
  if op in semantics.LINEAR:
    outs = bind(ref, access, op, need_old=need_old, **params)
    access = access._replace(operands=(dot, *access.operands[1:]))
    return outs, bind(ref_dot, access, op, need_old=need_old, **params)
  [old] = bind(ref, access, op, **params)
  outs_dot = follow_winner(
      ref_dot, access, op, old, dot, need_old=need_old, **params
  )
  return [old] * need_old, outs_dot


def follow_winner(ref_dot, access, op, old, dot, **params):
  """The tangent of MAX, MIN or CAS: `dot` where the value won."""
  flag = semantics.won(op, old, *access.operands)
  dot = lax.select(flag, dot, lax.full_like(dot, 0))
  access = access._replace(operands=(dot, flag))
  return bind(ref_dot, access, AtomicOp.ADD_OR_SET, **params)


ad.primitive_jvps[atomic_rmw_p] = _atomic_rmw_jvp


def _atomic_rmw_transpose(cts, ref, *leaves, tree, need_old, op, reverse,
                          order, **params):
  assert op in semantics.LINEAR, op
  del order  # Cotangents meet the updates in the opposite order exactly.
  g = cts[0] if need_old else None
  if ref.ref is None and (g is None or type(g) is compat.Zero):
    return
  access = tree.unflatten(leaves)
  value, *flag = access.operands
  g = rules.instantiate_like(g, value)
  access = access._replace(operands=(g, *flag))
  [value_bar] = bind(
      ref.inst().ref, access, op, reverse=not reverse, **params
  )
  if isinstance(value, compat.GradAccum):
    value.accum(value_bar)


compat.fancy_transposes[atomic_rmw_p] = _atomic_rmw_transpose


def _atomic_rmw_batch(axis_data, args, dims, *, op, **params):
  name = f"atomic_{op.value}"
  return rules.batch(
      name, atomic_rmw_p, axis_data, args, dims, op=op, **params
  )


batching.fancy_primitive_batchers[atomic_rmw_p] = _atomic_rmw_batch

pe.partial_eval_jaxpr_custom_rules[atomic_rmw_p] = rules.partial_eval_custom
pe.dce_rules[atomic_rmw_p] = compat.registered_dce_rule(rules.drop_unused_old)
compat.remat_rules[atomic_rmw_p] = functools.partial(
    compat.state_remat, atomic_rmw_p
)
