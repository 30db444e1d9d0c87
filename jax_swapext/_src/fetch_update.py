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
"""`fetch_update_p`: updates of the rows of a table, applied one after another.

    *old, new_x = fetch_update x idx *operands mask

is, for `x` of shape `(t, *row)`, `idx` and `mask` of shape `(n,)` and operands
of shape `(n, *row)`, equivalent to

    for k in range(n):
      if mask[k] and -t <= idx[k] < t:
        old[k] = x[idx[k]]
        x[idx[k]] = combine(op, old[k], *(v[k] for v in operands))
      else:
        old[k] = 0

Negative indices count from the end; with `masked=False` there is no mask. With
`reverse` the updates come last to first. With `order="any"` a platform may
apply them in any order, and differently for each element. `unique_indices`
promises that no index repeats; `need_old=False` gives no `old`.

This is the only primitive here that carries a lowering per platform, and
everything an array operation can do to repeated indices goes through it.
"""

from __future__ import annotations

import contextlib
import functools

import jax
from jax import lax
from jax.interpreters import ad
from jax.interpreters import batching
from jax.interpreters import mlir
from jax.interpreters import partial_eval as pe
import jax.numpy as jnp
from jax_swapext._src import access_batching
from jax_swapext._src import compat
from jax_swapext._src import semantics
from jax_swapext._src.xla import partition
import numpy as np

AtomicOp = semantics.AtomicOp


def fetch_update(
    x: jax.Array,
    idx: jax.Array,
    *operands: jax.Array,
    mask: jax.Array | None = None,
    op: AtomicOp,
    order: str,
    need_old: bool,
    reverse: bool = False,
    unique_indices: bool = False,
) -> list[jax.Array]:
  """Binds `fetch_update_p`; returns `[old, new_x]`, or `[new_x]`."""
  masks = () if mask is None else (mask,)
  return fetch_update_p.bind(
      *compat.auto_insert_reshard(x, idx, *operands, *masks),
      masked=mask is not None,
      op=op,
      order=order,
      reverse=reverse,
      unique_indices=unique_indices,
      need_old=need_old,
  )


fetch_update_p = compat.Primitive("fetch_update")
fetch_update_p.multiple_results = True
fetch_update_p.def_impl(
    functools.partial(compat.apply_primitive, fetch_update_p)
)


def _split_mask(args, masked):
  """Splits the operands from the mask, which is the last argument if any."""
  return (args[:-1], args[-1]) if masked else (args, None)


def _fetch_update_abstract_eval(x, idx, *args, masked, need_old, **_):
  [n] = idx.shape
  operands, mask = _split_mask(args, masked)
  if mask is not None and mask.shape != (n,):
    raise ValueError(f"fetch_update: wanted {n} masks, got {mask.shape}")
  for v in operands:
    if v.shape != (n, *x.shape[1:]):
      raise ValueError(
          f"fetch_update: wanted operands of shape {(n, *x.shape[1:])}, got "
          f"{v.shape}"
      )
  x = x.update(weak_type=False)
  if not need_old:
    return [x]
  old = operands[0].update(dtype=x.dtype, weak_type=False)
  return [old, x]


fetch_update_p.def_abstract_eval(_fetch_update_abstract_eval)


# ## Differentiation
#
# Write c for the table, v for the operand, f for the flag of ADD_OR_SET:
#   o = c[i];  c[i] <- v + (0 if f else o)
# is linear in (c, v). Reverse mode sees the transposed equations in reversed
# order, with the cotangents c', v', o':
#   v' = c'[i];  c'[i] <- o' + (0 if f else c'[i])
# which is the same update of the table c' with o' for v. ADD is f = false, XCHG
# is f = true. MAX, MIN and CAS replace where they win and else keep what they
# read, so their tangents follow ADD_OR_SET with f = won and v = 0 elsewhere.


def _fetch_update_jvp(primals, tangents, *, op, order, need_old, masked,
                      **params):
  x, idx, *args = primals
  operands, mask = _split_mask(args, masked)
  x_dot, _, *operand_dots = tangents
  zeros = all(type(t) is compat.Zero for t in (x_dot, *operand_dots))
  # The tangents have to meet the updates in the order that the primals do.
  order = order if zeros else "index"
  bind = functools.partial(fetch_update, mask=mask, order=order, **params)
  won_by = op in (AtomicOp.MAX, AtomicOp.MIN, AtomicOp.CAS)
  fetch = need_old or (won_by and not zeros)
  outs = bind(x, idx, *operands, op=op, need_old=fetch)
  if zeros or op in semantics.BITWISE:
    outs = outs if need_old else outs[-1:]
    return outs, [compat.zero_tangent(o) for o in outs]
  x_dot = compat.instantiate(x_dot)
  value = 1 if op is AtomicOp.CAS else 0
  dot = compat.instantiate(operand_dots[value])
  if won_by:
    flag = semantics.won(op, outs[0], *operands)
    dot = lax.select(flag, dot, lax.full_like(dot, 0))
    dots, dot_op = (dot, flag), AtomicOp.ADD_OR_SET
  else:
    dots, dot_op = (dot, *operands[1:]), op
  outs_dot = bind(x_dot, idx, *dots, op=dot_op, need_old=need_old)
  return (outs if need_old else outs[-1:]), outs_dot


ad.primitive_jvps[fetch_update_p] = _fetch_update_jvp


def _fetch_update_transpose(cts, x, idx, value, *args, op, order, reverse,
                            unique_indices, need_old, masked):
  del order, need_old  # Cotangents meet the updates in the opposite order.
  flag, mask = _split_mask(args, masked)
  *old_bar, x_bar = cts
  linear = ad.is_undefined_primal(value)
  value_aval = value.aval if linear else jax.typeof(value)
  if all(type(ct) is compat.Zero for ct in cts):
    return [None] * (3 + len(args))
  x_bar = compat.instantiate(x_bar)
  if old_bar:
    old_bar = compat.instantiate(old_bar[0])
  else:
    old_bar = lax.full(value_aval.shape, 0, value_aval.dtype)
  value_bar, x_bar = fetch_update(
      x_bar,
      idx,
      old_bar,
      *flag,
      mask=mask,
      op=op,
      order="index",
      need_old=True,
      reverse=not reverse,
      unique_indices=unique_indices,
  )
  return [
      x_bar if ad.is_undefined_primal(x) else None,
      None,
      value_bar if linear else None,
      *[None] * len(args),
  ]


ad.primitive_transposes[fetch_update_p] = _fetch_update_transpose


# ## Batching: the tables of a batch stand one after another in one table.


def _fetch_update_batch(args, dims, *, need_old, **params):
  size = next(a.shape[d] for a, d in zip(args, dims) if d is not None)
  access_batching.check_batch_size("fetch_update", size)
  x, idx, *rest = (
      batching.bdim_at_front(a, d, size) for a, d in zip(args, dims)
  )
  t, n = x.shape[1], idx.shape[1]
  if size * t > np.iinfo(np.int32).max:
    raise NotImplementedError(
        f"fetch_update: vmap over {size} tables of {t} rows needs more than the"
        " 32 bits that a linear index has. Map over parts with jax.lax.map."
    )
  start = lax.broadcasted_iota(np.int32, idx.shape, 0) * np.int32(t)
  inside = (idx >= np.int32(-t)) & (idx < np.int32(t))
  idx = lax.select(idx < 0, idx + np.int32(t), idx) + start
  idx = lax.select(inside, idx, lax.full_like(idx, size * t))

  def flatten(a):
    return lax.reshape(a, (a.shape[0] * a.shape[1], *a.shape[2:]))

  *old, new = fetch_update_p.bind(
      *map(flatten, (x, idx, *rest)), need_old=need_old, **params
  )
  outs = [lax.reshape(o, (size, n, *o.shape[1:])) for o in old]
  return [*outs, lax.reshape(new, x.shape)], [0] * (1 + len(outs))


batching.primitive_batchers[fetch_update_p] = _fetch_update_batch


# ## Dead code: an unused old value need not be fetched.


def _fetch_update_dce(used_outs, eqn):
  if not eqn.params["need_old"] or used_outs[0]:
    return [True] * len(eqn.invars), eqn
  eqn = eqn.replace(
      params=dict(eqn.params, need_old=False), outvars=eqn.outvars[1:]
  )
  return [True] * len(eqn.invars), eqn


pe.dce_rules[fetch_update_p] = compat.registered_dce_rule(_fetch_update_dce)


# ## Lowering


def sequential(x, idx, *operands, mask, op, reverse, need_old):
  """The definition as a loop that updates the table in place.

  What is read is pinned, or XLA copies the table in every iteration: see
  `array_access`. XLA CPU compiles the loop to one native function.
  """
  count = x.shape[0]
  unroll = max(1, min(8, idx.shape[0]))
  read = functools.partial(
      lax.dynamic_index_in_dim, keepdims=False, allow_negative_indices=False
  )
  write = functools.partial(
      lax.dynamic_update_index_in_dim, axis=0, allow_negative_indices=False
  )

  def wrap(i):
    return lax.select(i < 0, i + lax.full_like(i, count), i)

  def accessed(i, mask):
    ok = lax.convert_element_type(i, np.uint32) < np.uint32(count)
    return ok if mask is None else lax.convert_element_type(ok, np.uint8) & mask

  choose = _choose_by_bits if x.ndim == 1 and mask is not None else _choose
  masks = () if mask is None else (lax.convert_element_type(mask, np.uint8),)

  # A dynamic slice clamps its start, so an index outside reads some row, and
  # that row is then written back as it was.
  def pair_body(x, update):
    i, *args = update
    values, mask = _split_mask(args, masks)
    i = wrap(i)
    old, x = lax.optimization_barrier((read(x, i), x))
    ok = accessed(i, mask)
    new = choose(ok, semantics.combine(op, old, *values), old)
    x = write(x, new, i)
    return x, choose(ok, old, jnp.zeros_like(old)) if need_old else None

  if compat.pair_barrier_is_in_place():
    x, old = lax.scan(
        pair_body, x, (idx, *operands, *masks), reverse=reverse, unroll=unroll
    )
    return [old, x] if need_old else [x]

  # There the old value is pinned by a round trip through the log instead.
  def log_body(k, carry):
    x, log = carry
    k = idx.shape[0] - 1 - k if reverse else k
    i, *args = (read(a, k) for a in (idx, *operands, *masks))
    values, mask = _split_mask(args, masks)
    i = wrap(i)
    log = write(log, read(x, i), k)
    old = read(log, k)
    ok = accessed(i, mask)
    new = choose(ok, semantics.combine(op, old, *values), old)
    return write(x, new, i), log

  log = jnp.zeros_like(operands[0])
  x, log = lax.fori_loop(0, idx.shape[0], log_body, (x, log), unroll=unroll)
  if not need_old:
    return [x]
  ok = accessed(wrap(idx), *(masks or (None,)))
  ok = lax.broadcast_in_dim(ok.astype(bool), log.shape, (0,))
  return [lax.select(ok, log, jnp.zeros_like(log)), x]


def _choose(ok, a, b):
  return lax.select_n(ok.astype(bool), b, a)


def _choose_by_bits(ok, a, b):
  """As `_choose`, of scalars; `ok` is 0 or 1.

  XLA CPU may make a branch of a select, and the branch predictor fails on a
  mask without a pattern: that doubles the time of an update.
  """
  if a.dtype == np.dtype(bool):
    ok = ok.astype(bool)
    return (ok & a) | (~ok & b)
  word = np.dtype(f"uint{8 * a.dtype.itemsize}")
  bits = lambda x: lax.bitcast_convert_type(x, word)
  kept = lax.neg(lax.convert_element_type(ok, word))
  return lax.bitcast_convert_type(
      bits(b) ^ ((bits(a) ^ bits(b)) & kept), a.dtype
  )


def at_once(x, idx, *operands, mask, op, need_old):
  """All updates in one gather and one scatter: right if no index repeats."""
  idx = _drop_masked(idx, mask, x.shape[0])
  old, x = lax.optimization_barrier(
      (x.at[idx].get(mode="fill", fill_value=0), x)
  )
  new = semantics.combine(op, old, *operands)
  x = x.at[idx].set(new, mode="drop", unique_indices=True)
  return [old, x] if need_old else [x]


def _drop_masked(idx, mask, count):
  if mask is None:
    return idx
  return lax.select(mask, idx, lax.full_like(idx, count))


_SCATTERS = {AtomicOp.ADD: "add", AtomicOp.MAX: "max", AtomicOp.MIN: "min"}


def can_scatter(op: AtomicOp, dtype: np.dtype, in_order: bool) -> bool:
  """Whether XLA's own scatter gives the definition's table, without old values.

  In no order it does for integers alone, where rounding cannot tell. 16-bit
  floats never: XLA may accumulate them in 32 bits and round once.
  """
  if op not in _SCATTERS:
    return False
  if jnp.issubdtype(dtype, jnp.integer) or op is not AtomicOp.ADD:
    return True
  return in_order and dtype.itemsize >= 4


def scatter(x, idx, value, *, mask, op):
  idx = _drop_masked(idx, mask, x.shape[0])
  return [getattr(x.at[idx], _SCATTERS[op])(value, mode="drop")]


def portable(x, idx, *operands, mask, op, order, reverse, unique_indices,
             need_old):
  """The rule for every platform that has none of its own."""
  args = (x, idx, *operands)
  if unique_indices:
    return at_once(*args, mask=mask, op=op, need_old=need_old)
  if not need_old and can_scatter(op, x.dtype, in_order=order == "any"):
    return scatter(*args, mask=mask, op=op)
  return sequential(
      *args, mask=mask, op=op, reverse=reverse, need_old=need_old
  )


def lowering(fun, *, asks: bool = True):
  """`fun` as a lowering rule of `fetch_update_p`.

  Args:
    fun: the operation on the arrays of one device.
    asks: whether the platform's compiler asks Python how to partition.
  """

  def local(x, idx, *args, masked, **params):
    operands, mask = _split_mask(args, masked)
    return fun(x, idx, *operands, mask=mask, **params)

  def rule(ctx, *args, **params):
    if any(p is not None for a in ctx.avals_in for p in a.sharding.spec):
      # Only vmap over a sharded axis comes here with explicit shardings.
      whole = jax.sharding.auto_axes(
          functools.partial(fetch_update_p.bind, **params),
          out_sharding=[a.sharding for a in ctx.avals_out],
      )
    else:
      whole = partition.split(
          ctx,
          functools.partial(fetch_update_p.bind, **params),
          functools.partial(local, **params),
          asks=asks,
      )
    if semantics.is_float8(ctx.avals_in[0].dtype):
      # Only moved, never computed with: XLA's 16-bit detour would change a NaN.
      whole = _on_bytes(whole)
    with _mesh_of(ctx.avals_in):
      return mlir.lower_fun(whole, multiple_results=True)(ctx, *args)

  return rule


def _mesh_of(avals):
  """Makes the mesh that arrays are on the current one.

  With explicit axes it types all arrays that are made, so these must agree.
  """
  current = jax.sharding.get_abstract_mesh()
  if not current.explicit_axes or any(not a.sharding.mesh.empty for a in avals):
    return contextlib.nullcontext()
  device = current.abstract_device
  return jax.sharding.use_abstract_mesh(
      jax.sharding.AbstractMesh((), (), abstract_device=device)
  )


def _on_bytes(fun):
  """`fun` on the bytes of those of its arguments that are 8-bit floats."""

  def wrapper(x, *args):
    outs = fun(*(
        lax.bitcast_convert_type(a, np.uint8) if a.dtype == x.dtype else a
        for a in (x, *args)
    ))
    return [lax.bitcast_convert_type(o, x.dtype) for o in outs]

  return wrapper


mlir.register_lowering(fetch_update_p, lowering(portable))
compat.prim_requires_devices.add(fetch_update_p)


def refuse_in_kernel(ctx, *args, op, **params):
  """The rule of all kernels, so that they say more than that there is none."""
  del ctx, args, params
  raise NotImplementedError(
      f"fetch_{op.value}: wanted arrays outside kernels, got some in one. There"
      f" arrays cannot be updated in place: use jsx.atomic_{op.value} on a Ref."
  )
