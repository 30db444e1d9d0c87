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
"""`swap` and `store`: write a region of a Ref.

    old:f32[8], ref[i:i+8] <- ref[i:i+8] swap v
    ref[i:i+8] <- ref[i:i+8] swap v where m
"""

from __future__ import annotations

import functools

import jax
from jax.interpreters import ad
from jax.interpreters import batching
from jax.interpreters import partial_eval as pe
from jax.typing import ArrayLike
from jax_swapext._src import access as access_lib
from jax_swapext._src import array_access
from jax_swapext._src import atomic_rmw
from jax_swapext._src import compat
from jax_swapext._src import load
from jax_swapext._src import rules
from jax_swapext._src import semantics


def store(ref, idx, value: ArrayLike, *, mask: ArrayLike | None = None) -> None:
  """Writes a region of a Ref without reading it.

  Equivalent to ``ref[idx] = value`` without a mask; elements where the mask is
  false are not accessed, and may lie outside the Ref. If indices repeat, which
  write remains is not specified.

  Args:
    ref: a Ref or a view of one, as in :func:`load`.
    idx: a NumPy-style index, as in :func:`load`.
    value: broadcasts to the region. A Python scalar takes the Ref's dtype.
    mask: bool, broadcasts to the region; None stands for all true.

  Raises:
    TypeError, ValueError, NotImplementedError: as :func:`load`, with `value`
      in place of `other`.

  Example:
    >>> import jax, jax.numpy as jnp, jax_swapext as jsx
    >>> ref = jax.new_ref(jnp.zeros(4, jnp.int32))
    >>> jsx.store(ref, slice(0, 4, 2), 7)
    >>> ref[...]
    Array([7, 0, 7, 0], dtype=int32)
  """
  ref, access, _ = access_lib.prepare("store", ref, idx, mask, {"value": value})
  rules.bind(swap_p, ref, access, need_old=False, stock=None)


def swap(
    ref, idx, value: ArrayLike, *, mask: ArrayLike | None = None
) -> jax.Array:
  """Writes a region of a Ref and returns what was there before.

  Not atomic: the caller owns the region. If indices repeat, each old value is
  the one before the call, and which write remains is not specified;
  :func:`atomic_xchg` exchanges one after another.

  Args:
    ref: a Ref or a view of one, as in :func:`load`.
    idx: a NumPy-style index, as in :func:`load`.
    value: broadcasts to the region. A Python scalar takes the Ref's dtype.
    mask: bool, broadcasts to the region; None stands for all true. Masked-off
      elements are not accessed.

  Returns:
    The old elements, 0 where masked off: an array of the Ref's dtype and of
    the shape that NumPy gives ``ref[idx]``.

  Raises:
    TypeError, ValueError, NotImplementedError: as :func:`load`, with `value`
      in place of `other`.

  Example:
    >>> import jax, jax.numpy as jnp, jax_swapext as jsx
    >>> ref = jax.new_ref(jnp.arange(4))
    >>> jsx.swap(ref, 2, 9)
    Array(2, dtype=int32)
  """
  ref, access, restore = access_lib.prepare(
      "swap", ref, idx, mask, {"value": value}
  )
  [old] = rules.bind(swap_p, ref, access, need_old=True, stock=None)
  return restore(old)


# For `stock`, see `load_p`.
swap_p = compat.Primitive("swapext_swap")
swap_p.multiple_results = True
swap_p.is_effectful = lambda params: True
swap_p.def_impl(functools.partial(compat.apply_primitive, swap_p))


def _swap_abstract_eval(ref, *leaves, tree, need_old, stock):
  del stock
  access = tree.unflatten(leaves)
  region = rules.check_access("swap", ref, access, 1)
  return [region] * need_old, {compat.WriteEffect(0)}


swap_p.def_effectful_abstract_eval(_swap_abstract_eval)


def _swap_pp(eqn, context, settings):
  return rules.pp_access("swap", "swap", eqn, context, settings)


compat.pp_eqn_rules[swap_p] = _swap_pp


@compat.register_discharge_rule(swap_p)
def _swap_discharge(ctx, x, *leaves, tree, need_old, stock):
  del stock
  access = tree.unflatten(leaves)

  def swap_array(x):
    old, x = array_access.swap(x, access, need_old=need_old)
    return [old] * need_old, x

  return rules.discharge(ctx, x, leaves, swap_array)


# y = r[i]; r[i] <- v is linear in (r, v), so tangents obey the same equations.
# But if an index may repeat, which write remains is not specified, and the
# tangent has to follow the one that does. Then the primal becomes a load and an
# ordered exchange, whose last write remains, and the tangent as well.
def _swap_jvp(primals, tangents, *, tree, need_old, stock):
  ref, *leaves = primals
  ref_dot, *leaf_dots = tangents
  access = tree.unflatten(leaves)
  [value_dot] = tree.unflatten(leaf_dots).operands
  rules.check_differentiable("swap", ref, ref_dot, value_dot)
  if rules.is_constant(ref_dot, ref):
    outs = rules.bind(swap_p, ref, access, need_old=need_old, stock=stock)
    return outs, [compat.zero_tangent(o) for o in outs]
  if stock is None and access_lib.may_repeat(access.transforms):
    swap_ = _swap_in_order
  else:
    # Stock syntax keeps the derivative, and so the module, that it has.
    swap_ = functools.partial(_swap_at_once, stock=stock)
  outs = swap_(ref, access, need_old)
  access_dot = access._replace(operands=(compat.instantiate(value_dot),))
  return outs, swap_(ref_dot, access_dot, need_old)


def _swap_at_once(ref, access, need_old, stock=None):
  return rules.bind(swap_p, ref, access, need_old=need_old, stock=stock)


def _swap_in_order(ref, access, need_old):
  old = []
  if need_old:
    old = rules.bind(
        load.load_p, ref, access._replace(operands=()), stock=None
    )
  atomic_rmw.bind(ref, access, semantics.AtomicOp.XCHG, need_old=False)
  return old


ad.primitive_jvps[swap_p] = _swap_jvp


# With cotangents r', v', y': v' = r'[i]; r'[i] <- y', a swap again.
def _swap_transpose(cts, ref, *leaves, tree, need_old, stock):
  del stock
  g = cts[0] if need_old else None
  if ref.ref is None and (g is None or type(g) is compat.Zero):
    return
  access = tree.unflatten(leaves)
  [value] = access.operands
  g = rules.instantiate_like(g, value)
  [value_bar] = _swap_at_once(
      ref.inst().ref, access._replace(operands=(g,)), True
  )
  if isinstance(value, compat.GradAccum):
    value.accum(value_bar)


compat.fancy_transposes[swap_p] = _swap_transpose


def _swap_batch(axis_data, args, dims, *, need_old, **params):
  name = "swap" if need_old else "store"
  return rules.batch(
      name, swap_p, axis_data, args, dims, need_old=need_old, **params
  )


batching.fancy_primitive_batchers[swap_p] = _swap_batch

pe.partial_eval_jaxpr_custom_rules[swap_p] = rules.partial_eval_custom
pe.dce_rules[swap_p] = compat.registered_dce_rule(rules.drop_unused_old)
compat.remat_rules[swap_p] = functools.partial(compat.state_remat, swap_p)
