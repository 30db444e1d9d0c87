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
"""What the rules of the Ref primitives share: values in, values out."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax
from jax_swapext._src import access as access_lib
from jax_swapext._src import access_batching
from jax_swapext._src import compat
import numpy as np

Access = access_lib.Access


def check_access(name: str, ref: Any, access: Any, n_operands: int) -> Any:
  """The aval of the accessed region, for an abstract eval rule."""
  if not isinstance(ref, jax.ref.AbstractRef):
    raise TypeError(f"{name}: wanted a Ref first, got {ref}.")
  region = access_lib.view_type(access.transforms, ref.inner_aval)
  region = region.update(weak_type=False)
  varying = frozenset().union(
      *(compat.varying_axes(a) for a in jax.tree.leaves(access))
  )
  if extra := varying - compat.varying_axes(region):
    raise ValueError(
        f"{name}: wanted a Ref that varies over the mesh axes {sorted(extra)}, "
        "since its index, mask or value does, got one that does not. Make it "
        "from a varying value: jax.new_ref(jax.lax.pcast(x, axes, "
        "to='varying'))."
    )
  if access.mask is not None and access.mask.shape != region.shape:
    raise ValueError(
        f"{name}: wanted a mask of the region's shape {region.shape}, got "
        f"{access.mask.shape}."
    )
  for operand in access.operands[:n_operands]:
    if (operand.shape, operand.dtype) != (region.shape, region.dtype):
      raise ValueError(
          f"{name}: wanted an operand of type {region.str_short()}, got "
          f"{operand.str_short()}."
      )
  return region


def discharge(ctx, x, access, fun):
  """Runs `fun(x)` on the value of a Ref, and puts that where the Ref was.

  Args:
    ctx: the discharge context.
    x: the Ref's value.
    access: flat, only counted here.
    fun: takes the value and returns results and the new value.

  Returns:
    What a discharge rule returns.
  """
  space = getattr(ctx.in_avals[0], "memory_space", None)
  x = compat.unconstrain(x, space, ctx.strip_memory_space)
  outs, new = fun(x)
  outs = [
      jax.sharding.reshard(o, a.sharding)
      if jax.typeof(o).sharding.spec != a.sharding.spec
      else o
      for o, a in zip(outs, ctx.out_avals)
  ]
  new = compat.constrain(new, space, ctx.strip_memory_space)
  return (new, *[None] * len(access)), outs


def partial_eval_custom(saveable, unks_in, inst_in, eqn):
  """JAX's rule for Ref operations, for as many results as `eqn` has."""
  known, staged, unks, insts, res = compat.state_partial_eval_custom(
      saveable, unks_in, inst_in, eqn
  )
  n = len(eqn.outvars)
  return known, staged, unks * n, insts * n, res


def drop_unused_old(used_outs, eqn):
  """Dead code elimination: an old value that nobody reads is not asked for."""
  if eqn.params["need_old"] and not used_outs[0]:
    eqn = eqn.replace(params=dict(eqn.params, need_old=False), outvars=[])
  return [True] * len(eqn.invars), eqn


def batch(name, prim, axis_data, args, dims, *, tree, **params):
  """One access to the batched Ref, for the function `name`."""
  ref, *leaves = args
  ref_dim, *leaf_dims = dims
  if ref_dim is None:
    raise ValueError(
        f"{name}: wanted a batched Ref under vmap, where each element of the "
        f"batch writes, got the unbatched {jax.typeof(ref)}. Make the Ref "
        "inside the mapped function, or map over it (in_axes)."
    )
  access = tree.unflatten(leaves)
  access_dims = tree.unflatten(leaf_dims)
  access, to_front = access_batching.batch_access(
      name, axis_data.size, ref_dim, access, access_dims
  )
  leaves, tree = jax.tree.flatten(access)
  outs = prim.bind(ref, *leaves, tree=tree, **params)
  return [to_front(o) for o in outs], [0] * len(outs)


def batched_any(mask: jax.Array, dim: int) -> jax.Array:
  """Where any element of the batch is true."""
  return lax.reduce(mask, np.False_, lax.bitwise_or, (dim,))


def is_constant(ref_dot: Any, ref: Any) -> bool:
  """Whether a Ref carries no derivative."""
  return (
      type(ref_dot) is compat.Zero
      or jax.typeof(ref).kind == "no_grad_no_remat"
      or jax.typeof(ref_dot).dtype == jax.dtypes.float0
  )


def check_differentiable(name: str, ref: Any, ref_dot: Any, *dots: Any) -> None:
  """A derivative cannot go into a Ref that carries none: raises ValueError."""
  if all(type(d) is compat.Zero for d in dots):
    return
  if type(ref_dot) is compat.Zero:
    raise ValueError(
        f"{name}: wanted a Ref that is differentiated, since the value is, got "
        f"{jax.typeof(ref)}, a constant. Make the Ref inside the differentiated"
        " function, or make it an argument of it."
    )


def instantiate_like(g: Any, value: Any) -> jax.Array:
  """The cotangent `g`; zeros of the operand's type if it is None or Zero."""
  if g is not None and type(g) is not compat.Zero:
    return g
  is_linear = isinstance(value, compat.GradAccum)
  aval = value.aval if is_linear else jax.typeof(value)
  return compat.instantiate(compat.Zero(aval.to_tangent_aval()))


def pp_access(name, symbol, eqn, context, settings):
  """Prints `y:f32[8], x[i] <- x[i] add v` (an update), mask as `where m`."""
  ref, *leaves = eqn.invars
  access = jax.tree.unflatten(eqn.params["tree"], leaves)
  pp = compat.pp
  where = compat.pp_ref_transforms(context, ref, access.transforms)
  annotation = (
      compat.summarize_source_info(eqn.source_info)
      if settings.source_info
      else None
  )
  arrow = pp.text(" <- ", annotation=annotation)
  operands = [pp.concat([pp.text(" "), compat.pp_var(v, context)])
              for v in access.operands]
  mask = [] if access.mask is None else [
      pp.text(" where "), compat.pp_var(access.mask, context)]
  out = [compat.pp_vars(eqn.outvars, context,
                        print_shapes=settings.print_shapes)]
  if symbol is None:
    other = [pp.text(" else")] if operands else []
    return pp.concat([*out, arrow, where, *mask, *other, *operands])
  if eqn.outvars:
    out = [*out, pp.text(", ")]
  else:
    out = []
  return pp.concat(
      [*out, where, arrow, where, pp.text(f" {symbol}"), *operands, *mask])


def bind(prim, ref, access: Access, **params) -> list[jax.Array]:
  leaves, tree = jax.tree.flatten(access)
  return prim.bind(ref, *leaves, tree=tree, **params)
