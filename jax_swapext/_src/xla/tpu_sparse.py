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
"""What the SparseCores take over of `fetch_update_p`, and XLA's part in it."""

from __future__ import annotations

import functools

from jax import lax
import jax.numpy as jnp
from jax_swapext._src import semantics
import numpy as np

AtomicOp = semantics.AtomicOp

_KINDS = (
    "TPU v5", "TPU v5p", "TPU v6 lite", "TPU v6e", "TPU7", "TPU7x",
)  # fmt: skip
DTYPES = ("int32", "uint32", "float32")

# Updates that a subcore looks through at a time, of scalars and of rows.
_BLOCK = 2048
_ROW_BLOCK = 4096
_BATCH = 32  # rows that it updates at a time
_MAX_ROW = 1024
_TILE = 128  # words of a row that are neighbours
# Of old scalars there are as many arrays as subcores; so not of more updates
# than these at a time.
_CHUNK = 1 << 18

# Rough seconds, to choose by: of a call; to look at a vector of updates, as
# every subcore does; to apply an update to a scalar, to a row, and for each of
# its words; of a byte of HBM there and back.
_CALL_SECONDS = 2e-5
_LOOK_SECONDS = 9e-9
_APPLY_SECONDS = 1.2e-8
_ROW_SECONDS = 1.5e-7
_WORD_SECONDS = 6e-10
_BYTE_SECONDS = 2 / 800e9
# What the subcore that has most to do applies of all updates.
_BUSIEST = 0.25


def make_plan(x, idx, operands, *, op, reverse, need_old, device_kind):
  """How the SparseCores would do it.

  The arguments are as for `fetch_update_p`.

  Returns:
    Rough seconds that it takes, and the plan; None if they cannot.
  """
  if (
      device_kind not in _KINDS
      or x.dtype not in DTYPES
      or op is AtomicOp.ADD_OR_SET
  ):
    return None
  if x.ndim == 1:
    make = _scalar_plan
  elif x.ndim == 2 and x.shape[1] % _TILE == 0 and x.shape[1] <= _MAX_ROW:
    # XLA keeps other rows in tiles that no stream takes a row out of.
    make = _row_plan
  else:
    return None
  from jax._src.pallas.mosaic import sc_core
  from jax_swapext._src.xla import sc_updates

  info = sc_core.get_sparse_core_info()
  plan = functools.partial(
      sc_updates.Plan, op=op, reverse=reverse, need_old=need_old,
      cores=info.num_cores, subcores=info.num_subcores, lanes=info.num_lanes,
  )
  return make(plan, info, x, idx.shape[0], len(operands), need_old)


def _scalar_plan(plan, info, x, n, operands, need_old):
  from jax_swapext._src.xla import sc_scalars

  [t] = x.shape
  plan = functools.partial(plan, block=_block(n, _BLOCK))
  granule = info.dma_granule_size_bytes // 4
  workers = info.num_cores * info.num_subcores
  most = _usable_words(info) - sc_scalars.vmem_words(plan(part=0), operands)
  stretches = -(-t // (workers * (most // granule * granule)))
  part = _up(-(-t // (workers * stretches)), granule)
  calls = stretches * (-(-n // _CHUNK) if need_old else 1)
  seconds = calls * (_CALL_SECONDS + 4 * t / stretches * _BYTE_SECONDS)
  look = _LOOK_SECONDS / info.num_lanes
  look += need_old * 4 * workers * _BYTE_SECONDS
  seconds += n * (stretches * look + _BUSIEST * _APPLY_SECONDS)
  return seconds, plan(part=part)


def _row_plan(plan, info, x, n, operands, need_old):
  from jax_swapext._src.xla import sc_rows

  t, row = x.shape
  plan = functools.partial(
      plan, part=-(-t // (info.num_cores * info.num_subcores)),
      block=_block(n, _ROW_BLOCK),
  )
  batch = _BATCH
  while sc_rows.vmem_words(plan(batch=batch), operands, row) > _usable_words(
      info
  ):
    batch //= 2
  if batch < info.num_lanes:
    return None
  apply = _ROW_SECONDS + row * _WORD_SECONDS
  moved = 2 * row * (2 + operands + need_old)  # half of them there and back
  look = _LOOK_SECONDS / info.num_lanes
  seconds = n * (look + _BUSIEST * apply + moved * _BYTE_SECONDS)
  return _CALL_SECONDS + seconds, plan(batch=batch)


def _block(n, most):
  return min(most, _up(n, 128 if n <= 1024 else 1024))


def _usable_words(info):
  """Words of VMEM that are left by the compiler."""
  words = info.vmem_capacity_bytes // 4
  return words - words // 16


def _up(size, multiple):
  return -(-size // multiple) * multiple


def update(plan, x, idx, operands):
  """Applies updates as planned; returns `[old, x]`, or `[x]`.

  Args:
    plan: of `sc_updates`.
    x, idx, operands: as for `fetch_update_p`, but an index is -1 where nothing
      is to be updated, and no other one is negative or outside.
  """
  if plan.batch:
    from jax_swapext._src.xla import sc_rows

    idx = _filled(idx, _up(len(idx), plan.block), -1)
    return sc_rows.update_rows(plan, x, idx, *operands)
  return _update_scalars(plan, x, idx, operands)


def _filled(x, size, value):
  fill = jnp.full(size - len(x), value, x.dtype)
  return lax.concatenate([x, fill], 0)


def _update_scalars(plan, x, idx, operands):
  [n] = idx.shape
  chunk = min(n, _CHUNK) if plan.need_old else n
  chunk = _up(chunk, plan.block)
  chunks = -(-n // chunk)
  idx = _filled(idx, chunks * chunk, -1)
  operands = [_filled(v, chunks * chunk, 0) for v in operands]
  if chunks == 1:
    *old, x = _stretches(plan, x, idx, *operands)
  else:
    parts = [lax.reshape(a, (chunks, chunk)) for a in (idx, *operands)]

    def step(x, part):
      *old, x = _stretches(plan, x, *part)
      return x, old

    x, old = lax.scan(step, x, parts, reverse=plan.reverse)
    old = [lax.reshape(o, (chunks * chunk,)) for o in old]
  return [*(lax.slice(o, (0,), (n,)) for o in old), x]


def _stretches(plan, x, idx, *operands):
  """The updates of one chunk, on all of the table."""
  from jax_swapext._src.xla import sc_scalars

  def call(which, x):
    *rows, x = sc_scalars.update_scalars(plan, which, x, idx, *operands)
    return [_sum_of_one(o) for o in rows], x

  stretches = -(-x.shape[0] // plan.elements)
  if stretches == 1:
    old, x = call(0, x)
  else:

    def body(which, carry):
      old, x = carry
      more, x = call(which, x)
      return [o + m for o, m in zip(old, more, strict=True)], x

    zeros = [jnp.zeros_like(idx)] * plan.need_old
    old, x = lax.fori_loop(0, stretches, body, (zeros, x))
  return [*(lax.bitcast_convert_type(o, x.dtype) for o in old), x]


def _sum_of_one(rows):
  """Sums rows of which all but one are zero, bit for bit."""
  words = lax.bitcast_convert_type(rows, np.int32)
  return jnp.sum(words, axis=0, dtype=np.int32)
