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
"""The TPU rule of `fetch_update_p`: Pallas kernels, or XLA's loop.

XLA's own ways are a sort, which takes it minutes to compile, and a loop, in
which every update costs several microseconds. The kernels of `tpu_kernels` take
some ten cycles and that of `sc_scalars` one, but have to read and write the
whole table; that of `sc_rows` takes more, but for the update alone. `make_plan`
says which of them takes over what. For the rest the rule is that of all other
platforms.
"""

from __future__ import annotations

import contextlib
import functools
import math

import jax
from jax import lax
from jax._src import sharding_impls  # contexts: whose program is lowered
from jax.interpreters import mlir
import jax.numpy as jnp
from jax_swapext._src import compat
from jax_swapext._src import fetch_update
from jax_swapext._src import semantics
from jax_swapext._src.xla import tpu_sparse
import numpy as np

AtomicOp = semantics.AtomicOp

_MIB = 1 << 20
# What a kernel's blocks may take of the VMEM of each generation; the compiler
# has some more for itself.
_VMEM_BYTES = {
    "TPU v5 lite": 96 * _MIB,
    "TPU v5": 48 * _MIB,
    "TPU v6 lite": 96 * _MIB,
    "TPU7x": 48 * _MIB,
}
_LEAST_VMEM_BYTES = 10 * _MIB
# These have next to no scalar memory, and cannot rotate single rows.
_WITHOUT_KERNELS = ("TPU v2", "TPU v3")
# What works there works on all later ones.
_UNKNOWN_KIND = "TPU v4"
_SLACK_BYTES = 4 * _MIB
_BLOCK_BYTES = _MIB  # of the updates that are in VMEM at a time

# Rough seconds, to choose by: of an update in XLA's loop; in a kernel, per
# vector register of its row, and per part that it is not of; and of a byte of
# the table there and back.
_LOOP_SECONDS = 3e-6
_VECTOR_SECONDS = 2e-8
_SKIP_SECONDS = 1e-8
_BYTE_SECONDS = 2 / 800e9

# Elements of a row, so that a program does not get too long.
_MAX_ROW = 8192
_MAX_LANE_ROW = 1024
_MOVES = (AtomicOp.XCHG, AtomicOp.CAS)


def _padded(shape):
  """Elements of an array in row-major layout, with the padding of its tiles."""
  *major, second, last = (1, *shape)
  tile = next(k for k in (1, 2, 4, 8) if k >= min(second, 8))
  return math.prod(major) * _up(second, tile) * _up(last, 128)


def _up(size, multiple):
  return -(-size // multiple) * multiple


def _lane_order(shape) -> tuple[int, ...] | None:
  """How XLA orders the dimensions of a table whose rows are in the lanes.

  None if it does not, but keeps them as they are: it is after little padding.
  """
  if len(shape) == 1:
    return (0,)
  *rows, last = range(1, len(shape))
  orders = [(*rows, last, 0)]
  for k in rows[::-1]:
    orders.append((*(r for r in (*rows, last) if r != k), k, 0))
  best = min(orders, key=lambda o: _padded([shape[k] for k in o]))
  less = _padded([shape[k] for k in best]) < _padded(shape)
  return best if less else None


def make_plan(x, idx, operands, **how):
  """How the kernels do it; None if they do not.

  Args:
    x, idx, operands: as for `fetch_update_p`.
    **how: what else it takes, and `device_kind`.

  Returns:
    A plan of `tpu_kernels` or of `sc_updates`.
  """
  ways = [
      make_dense_plan(x, idx, operands, **how),
      tpu_sparse.make_plan(x, idx, operands, **how),
      (idx.shape[0] * _LOOP_SECONDS, None),
  ]
  return min(filter(None, ways), key=lambda way: way[0])[1]


def make_dense_plan(x, idx, operands, *, op, reverse, need_old, device_kind):
  """How the TensorCore would do it, as `tpu_sparse.make_plan` says."""
  from jax_swapext._src.xla import tpu_kernels

  t, *row = x.shape
  n = idx.shape[0]
  dtype = x.dtype
  lane_order = _lane_order(x.shape)
  in_lanes = lane_order is not None
  most = _MAX_LANE_ROW if in_lanes else _MAX_ROW
  if math.prod(row) > most:
    return None
  adds = op in (AtomicOp.ADD, AtomicOp.ADD_OR_SET)
  if dtype == np.float16 and adds:
    return None  # The vector unit has no such dtype to round to.
  budget = _VMEM_BYTES.get(device_kind, _LEAST_VMEM_BYTES)
  if in_lanes:
    per_row = 4 * _padded([*(x.shape[k] for k in lane_order[:-1]), 128]) // 128
    unit = 1024 if not row else 128
  else:
    per_row = 4 * _padded((8, *row)) // 8
    unit = 8 if len(row) == 1 else 1
  # Of operands and old values there are two buffers each.
  columns = 2 * (len(operands) + 2 * need_old)
  least, most = (128, 1024) if in_lanes else (8, 1024)
  block = _BLOCK_BYTES // per_row // least * least
  block = max(least, min(block, most, _up(n, least)))
  part = (budget - columns * block * per_row) // 2 // per_row // unit * unit
  vectors = max(1, per_row * (128 if in_lanes else 1) // 4096)
  spare = in_lanes and vectors == 1 and part > t
  part = min(part, _up(t + spare, unit))
  if part <= 0 or (dtype.itemsize < 4 and part < t):
    return None  # A widened table should fit in at once.
  parts = -(-t // part)
  seconds = t * per_row * _BYTE_SECONDS
  seconds += n * (vectors * _VECTOR_SECONDS + parts * _SKIP_SECONDS)
  return seconds, tpu_kernels.Plan(
      op=op, reverse=reverse, need_old=need_old,
      rounds_to=dtype if dtype == jnp.bfloat16 and adds else None,
      lane_order=lane_order, parts=parts, part=part, block=block, spare=spare,
      vmem_bytes=budget + _SLACK_BYTES,
  )


def fetch_update_tpu(x, idx, *operands, mask, op, order, reverse,
                     unique_indices, need_old, device_kind):
  """The rule for the arrays of one device."""
  plan = None
  if x.size and idx.size and not unique_indices:
    plan = make_plan(
        x, idx, operands, op=op, reverse=reverse, need_old=need_old,
        device_kind=device_kind,
    )
  if plan is None:
    return fetch_update.portable(
        x, idx, *operands, mask=mask, op=op, order=order, reverse=reverse,
        unique_indices=unique_indices, need_old=need_old,
    )
  t = np.int32(x.shape[0])
  idx = lax.select(idx < 0, idx + t, idx)
  ok = (idx >= 0) & (idx < t)
  ok = ok if mask is None else ok & mask
  idx = lax.select(ok, idx, lax.full_like(idx, -1))
  return _by_kernel(plan, x, idx, operands)


def _by_kernel(plan, x, idx, operands):
  """The updates as planned; an index is -1 where there is none."""
  from jax_swapext._src.xla import tpu_kernels

  if not isinstance(plan, tpu_kernels.Plan):
    return tpu_sparse.update(plan, x, idx, operands)
  t, n, dtype = x.shape[0], idx.shape[0], x.dtype
  narrow = dtype.itemsize < 4
  by_bits = narrow and plan.op in _MOVES
  ok = idx >= 0
  dropped = np.int32(t if plan.spare else -1)
  idx = lax.select(ok, idx, lax.full_like(idx, dropped))
  blocks = -(-n // plan.block)
  none = jnp.full(blocks * plan.block - n, dropped, np.int32)
  idx = lax.reshape(lax.concatenate([idx, none], 0), (blocks, 1, plan.block))

  def prepare(a):
    a = _widen(a, by_bits)
    return a if plan.lane_order is None else lax.transpose(a, plan.lane_order)

  x = prepare(x)
  operands = [prepare(v) for v in operands]
  if x.ndim == 1:
    operands = [lax.reshape(v, (1, n)) for v in operands]
  update = functools.partial(tpu_kernels.update_part, plan)
  if plan.parts == 1:
    *old, x = update(jnp.int32(0), None, x, idx, *operands)
  else:
    old = [jnp.zeros(operands[0].shape, x.dtype)] * plan.need_old

    def body(part, carry):
      *old, x = carry
      return tuple(update(part, old[0] if old else None, x, idx, *operands))

    *old, x = lax.fori_loop(0, plan.parts, body, (*old, x))

  def restore(a):
    if plan.lane_order is not None:
      a = lax.transpose(a, np.argsort(plan.lane_order))
    return _narrow(a, dtype, by_bits)

  if plan.spare and old:
    [held] = old
    zeros = jnp.zeros_like(held)
    ok = lax.broadcast_in_dim(ok, held.shape, (held.ndim - 1,))
    old = [lax.select(ok, held, zeros)]
  old = [restore(lax.reshape(o, (n,)) if x.ndim == 1 else o) for o in old]
  return [*old, restore(x)]


def _widen(x, by_bits):
  """`x` in 32-bit elements."""
  if x.dtype.itemsize == 4:
    return x
  if jnp.issubdtype(x.dtype, jnp.floating):
    if not by_bits:
      return x.astype(np.float32)
    x = lax.bitcast_convert_type(x, np.dtype(f"uint{8 * x.dtype.itemsize}"))
  return x.astype(np.int32)


def _narrow(x, dtype, by_bits):
  """What `_widen` made of elements of `dtype`, or what became of it."""
  if by_bits and jnp.issubdtype(dtype, jnp.floating):
    word = np.dtype(f"uint{8 * dtype.itemsize}")
    return lax.bitcast_convert_type(x.astype(word), dtype)
  # Higher bits are of no account: sums of narrow integers wrap around.
  return x.astype(dtype)


def _rule(ctx, *args, **params):
  fun = fetch_update.portable
  device = _device(ctx)
  with contextlib.ExitStack() as stack:
    if device is not None and _has_kernels(device, ctx.avals_in[0].dtype):
      fun = functools.partial(fetch_update_tpu, device_kind=device.device_kind)
      # TPU kernels have no 64-bit scalars, nor is there anything of 64 bits.
      stack.enter_context(jax.enable_x64(False))
      if jax.sharding.get_abstract_mesh().abstract_device != device:
        # Pallas wants to know it too, and would ask for the default device.
        stack.enter_context(jax.sharding.use_abstract_mesh(
            jax.sharding.AbstractMesh((), (), abstract_device=device)
        ))
    return fetch_update.lowering(fun, asks=False)(ctx, *args, **params)


def _has_kernels(device, dtype) -> bool:
  return dtype.itemsize <= 4 and device.device_kind not in _WITHOUT_KERNELS


def _device(ctx):
  """The device that a rule works for, as an AbstractDevice.

  None where no kernel can be: XLA will yet partition the program, which it
  cannot do to a kernel; or the mesh is of other devices than TPUs, which Pallas
  does not lower for, not even as one of several platforms.
  """
  context = ctx.module_context.axis_context
  if isinstance(context, sharding_impls.SPMDAxisContext):
    manual = context.manual_axes | set(context.mesh.manual_axes)
    if manual != frozenset(context.mesh.axis_names):
      return None
  elif (
      not isinstance(context, sharding_impls.ShardingContext)
      or context.num_devices != 1
  ):
    return None
  mesh = jax.sharding.get_abstract_mesh()
  device = mesh.abstract_device
  if device is not None and device.platform == "tpu":
    return device
  if not mesh.empty:
    return None
  device = compat.lowered_for(ctx, ("tpu",))
  return jax.sharding.AbstractDevice(
      device_kind=_UNKNOWN_KIND if device is None else device.device_kind,
      num_cores=1,
      platform="tpu",
  )


mlir.register_lowering(fetch_update.fetch_update_p, _rule, platform="tpu")
