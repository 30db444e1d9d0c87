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
"""Atomic compare-and-swap of a region of a Ref.

    old:i32[8], ref[i] <- ref[i] cas e v where m
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
from jax_swapext._src import rules
from jax_swapext._src import semantics

CAS = semantics.AtomicOp.CAS


def atomic_cas(
    ref, idx, expected: ArrayLike, value: ArrayLike, *,
    mask: ArrayLike | None = None, order: str = "any", sem: str = "relaxed",
    scope: str | None = None,
) -> jax.Array:
  """Replaces elements by a value where they equal the expected one bit for bit.

  A NaN therefore equals itself, and 0. does not equal -0. Atomicity, repeated
  indices and unused results are as for :func:`atomic_add`.

  Args:
    ref: a Ref or a view of one, as in :func:`load`.
    idx: a NumPy-style index, as in :func:`load`.
    expected: what the element has to be; broadcasts to the region.
    value: what replaces it; broadcasts to the region.
    mask: bool, broadcasts to the region; None stands for all true. Masked-off
      elements are not accessed.
    order: as for :func:`atomic_add`.
    sem: as for :func:`atomic_add`.
    scope: as for :func:`atomic_add`.

  Returns:
    The old elements, 0 where masked off: an array of the Ref's dtype and of
    the shape that NumPy gives ``ref[idx]``. An update succeeded where they
    equal `expected`.

  Raises:
    TypeError, ValueError, NotImplementedError: as :func:`atomic_add`, with
      `expected` and `value`.

  Example:
    >>> import jax, jax.numpy as jnp, jax_swapext as jsx
    >>> owner = jax.new_ref(jnp.full(2, -1))
    >>> jsx.atomic_cas(owner, jnp.array([0, 1, 0]), -1, jnp.array([5, 6, 7]))
    Array([-1, -1,  5], dtype=int32)
    >>> owner[...]
    Array([5, 6], dtype=int32)
  """
  atomic_rmw.check_choices("atomic_cas", order, sem, scope)
  ref, access, restore = access_lib.prepare(
      "atomic_cas", ref, idx, mask, {"expected": expected, "value": value}, CAS
  )
  [old] = rules.bind(
      atomic_cas_p, ref, access, order=order, sem=sem, scope=scope,
      need_old=True,
  )
  return restore(old)


atomic_cas_p = compat.Primitive("swapext_atomic_cas")
atomic_cas_p.multiple_results = True
atomic_cas_p.is_effectful = lambda params: True
atomic_cas_p.def_impl(functools.partial(compat.apply_primitive, atomic_cas_p))


def _atomic_cas_abstract_eval(ref, *leaves, tree, need_old, **_):
  access = tree.unflatten(leaves)
  region = rules.check_access("atomic_cas", ref, access, 2)
  return [region] * need_old, {compat.WriteEffect(0)}


atomic_cas_p.def_effectful_abstract_eval(_atomic_cas_abstract_eval)


def _atomic_cas_pp(eqn, context, settings):
  return rules.pp_access("atomic_cas", "cas", eqn, context, settings)


compat.pp_eqn_rules[atomic_cas_p] = _atomic_cas_pp


@compat.register_discharge_rule(atomic_cas_p)
def _atomic_cas_discharge(ctx, x, *leaves, tree, need_old, order, sem, scope):
  del sem, scope  # One thread runs this.
  access = tree.unflatten(leaves)

  def cas(x):
    old, x = array_access.rmw(x, access, CAS, order=order, need_old=need_old)
    return [old] * need_old, x

  return rules.discharge(ctx, x, leaves, cas)


# Where the element was the expected one it becomes v, with v's tangent; else it
# keeps its own: see `fetch_update`. There is no transpose, because the tangent
# is not a compare-and-swap.
def _atomic_cas_jvp(primals, tangents, *, tree, need_old, order, **params):
  ref, *leaves = primals
  ref_dot, *leaf_dots = tangents
  access = tree.unflatten(leaves)
  _, dot = tree.unflatten(leaf_dots).operands
  rules.check_differentiable("atomic_cas", ref, ref_dot, dot)
  constant = rules.is_constant(ref_dot, ref)
  outs = rules.bind(
      atomic_cas_p, ref, access, need_old=need_old or not constant,
      order=order if constant else "index", **params,
  )
  if constant:
    return outs, [compat.zero_tangent(o) for o in outs]
  outs_dot = atomic_rmw.follow_winner(
      ref_dot, access, CAS, outs[0], compat.instantiate(dot),
      need_old=need_old, **params,
  )
  return outs[:need_old], outs_dot


ad.primitive_jvps[atomic_cas_p] = _atomic_cas_jvp

batching.fancy_primitive_batchers[atomic_cas_p] = functools.partial(
    rules.batch, "atomic_cas", atomic_cas_p
)
pe.partial_eval_jaxpr_custom_rules[atomic_cas_p] = rules.partial_eval_custom
pe.dce_rules[atomic_cas_p] = compat.registered_dce_rule(rules.drop_unused_old)
compat.remat_rules[atomic_cas_p] = functools.partial(
    compat.state_remat, atomic_cas_p
)
