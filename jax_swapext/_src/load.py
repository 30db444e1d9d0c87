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
"""`load`: reads a region of a Ref.

    x:f32[8] <- ref[i:i+8]
    x:f32[8] <- ref[i:i+8] where m else o
"""

from __future__ import annotations

import functools

import jax
from jax import lax
from jax.interpreters import ad
from jax.interpreters import batching
from jax.interpreters import partial_eval as pe
from jax.typing import ArrayLike
from jax_swapext._src import access as access_lib
from jax_swapext._src import access_batching
from jax_swapext._src import array_access
from jax_swapext._src import atomic_rmw
from jax_swapext._src import compat
from jax_swapext._src import rules
from jax_swapext._src import semantics


def load(
    ref,
    idx=None,
    *,
    mask: ArrayLike | None = None,
    other: ArrayLike | None = None,
) -> jax.Array:
  """Reads a region of a Ref.

  Equivalent to ``ref[idx]`` without a mask, and with one to
  ``jnp.where(mask, ref[idx], other)``, except that masked-off elements are not
  accessed: they may lie outside the Ref.

  Args:
    ref: a Ref, in a kernel or from :func:`jax.new_ref`, or a view ``ref.at[…]``
      of one.
    idx: a NumPy-style index: integers, slices with steps, ``pl.ds``, integer
      arrays, ``...`` and ``None``, alone or in a tuple; the whole Ref if left
      out. An integer known at trace time may be negative, as in NumPy.
    mask: bool, broadcasts to the region; elements where it is false are not
      read.
    other: what masked-off elements read as; broadcasts to the region. The
      default is 0.

  Returns:
    An array of the Ref's dtype and of the shape that NumPy gives ``ref[idx]``.

  Raises:
    TypeError: `ref` is not a Ref, or has elements that cannot be accessed one
      by one (below 8 bits, complex, keys), or `other` is of another dtype, or
      `mask` is not bool, or an index is no integer.
    ValueError: `other` or `mask` does not broadcast to the region, or an
      unmasked index known at trace time is out of bounds.
    NotImplementedError: this place cannot; the message says the way out.

  Example:
    >>> import jax, jax.numpy as jnp, jax_swapext as jsx
    >>> ref = jax.new_ref(jnp.arange(5))
    >>> jsx.load(ref, jax.ds(3, 4), mask=jnp.arange(4) < 2, other=-1)
    Array([ 3,  4, -1, -1], dtype=int32)
  """
  operands = {} if other is None else {"other": other}
  ref, access, restore = access_lib.prepare("load", ref, idx, mask, operands)
  if access.mask is None:
    access = access._replace(operands=())
  [x] = rules.bind(load_p, ref, access, stock=None)
  return restore(x)


# `stock` is the primitive of JAX that `extended` found in this one's place, or
# None. Backends lower an access that stock lowers by that primitive's rule.
load_p = compat.Primitive("swapext_load")
load_p.multiple_results = True
load_p.is_effectful = lambda params: True
load_p.def_impl(functools.partial(compat.apply_primitive, load_p))


def _load_abstract_eval(ref, *leaves, tree, stock):
  del stock
  access = tree.unflatten(leaves)
  region = rules.check_access("load", ref, access, 1)
  return [region], {compat.ReadEffect(0)}


load_p.def_effectful_abstract_eval(_load_abstract_eval)


def _load_pp(eqn, context, settings):
  return rules.pp_access("load", None, eqn, context, settings)


compat.pp_eqn_rules[load_p] = _load_pp


@compat.register_discharge_rule(load_p)
def _load_discharge(ctx, x, *leaves, tree, stock):
  del stock
  access = tree.unflatten(leaves)

  def load_array(x):
    value, x = array_access.load(x, access)
    return [value], x

  return rules.discharge(ctx, x, leaves, load_array)


# y = r[i] where m else o is linear in (r, o).
def _load_jvp(primals, tangents, *, tree, stock):
  ref, *leaves = primals
  ref_dot, *leaf_dots = tangents
  [x] = load_p.bind(ref, *leaves, tree=tree, stock=stock)
  other_dots = tree.unflatten(leaf_dots).operands
  constant = rules.is_constant(ref_dot, ref)
  if constant and all(type(d) is compat.Zero for d in other_dots):
    return [x], [compat.zero_tangent(x)]
  other_dots = tuple(map(compat.instantiate, other_dots))
  access = tree.unflatten(leaves)._replace(operands=other_dots)
  if constant:
    [other] = other_dots
    x_dot = lax.select(access.mask, lax.full_like(other, 0), other)
    return [x], [x_dot]
  return [x], rules.bind(load_p, ref_dot, access, stock=stock)


ad.primitive_jvps[load_p] = _load_jvp


# The cotangent of y goes to r[i] where m, and to o elsewhere. An index may
# repeat, so r' has to accumulate it: r'[i] += y' where m.
def _load_transpose(cts, ref, *leaves, tree, stock):
  del stock
  [g] = cts
  if type(g) is compat.Zero:
    return
  access = tree.unflatten(leaves)
  if access.operands and isinstance(access.operands[0], compat.GradAccum):
    access.operands[0].accum(
        lax.select(access.mask, lax.full_like(g, 0), g)
    )
  if isinstance(ref, compat.GradAccum):
    if not access.transforms and access.mask is None:
      ref.accum(g)
      return
    atomic_rmw.bind(
        ref.inst().ref,
        access._replace(operands=(g,)),
        semantics.AtomicOp.ADD,
        need_old=False,
    )


compat.fancy_transposes[load_p] = _load_transpose


def _load_batch(axis_data, args, dims, *, tree, stock):
  ref, *leaves = args
  ref_dim, *leaf_dims = dims
  access = tree.unflatten(leaves)
  access_dims = tree.unflatten(leaf_dims)
  if all(d is None for d in dims):
    return load_p.bind(*args, tree=tree, stock=stock), [None]
  n_index = len(jax.tree.leaves(access.transforms))
  if ref_dim is None and all(d is None for d in leaf_dims[:n_index]):
    return _load_batched_mask(axis_data.size, ref, access, access_dims)
  access, to_front = access_batching.batch_access(
      "load", axis_data.size, ref_dim, access, access_dims
  )
  [x] = rules.bind(load_p, ref, access, stock=stock)
  return [to_front(x)], [0]


def _load_batched_mask(size, ref, access, dims):
  """For an unbatched region: one load of what any of them needs."""
  mask, other = access.mask, access.operands
  if dims.mask is not None:
    mask = rules.batched_any(mask, dims.mask)
  access_to_all = access_lib.Access(access.transforms, mask, ())
  [x] = rules.bind(load_p, ref, access_to_all, stock=None)
  x = lax.broadcast_in_dim(x, (size, *x.shape), range(1, x.ndim + 1))
  fill = batching.bdim_at_front(other[0], dims.operands[0], size) if (
      other) else lax.full_like(x, 0)
  mask = batching.bdim_at_front(access.mask, dims.mask, size)
  return [lax.select(mask, x, fill)], [0]


batching.fancy_primitive_batchers[load_p] = _load_batch

pe.partial_eval_jaxpr_custom_rules[load_p] = rules.partial_eval_custom
compat.remat_rules[load_p] = functools.partial(compat.state_remat, load_p)
