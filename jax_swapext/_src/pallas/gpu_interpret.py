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
"""Our operations under Pallas' interpreter of Mosaic GPU kernels.

The interpreter has no table of rules: it matches primitives it knows and binds
all others on values, which cannot work for Refs. So a kernel that contains an
equation of ours is run piece by piece: stretches of other equations go to the
interpreter as jaxprs of their own, and ours to a callback that takes the lock
of the simulated memory, which makes atomics atomic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
from typing import Any

import jax
from jax import lax
from jax._src import callback
from jax._src import core as jax_core
from jax._src import pjit
from jax._src.pallas.mosaic_gpu import core as gpu_core
from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks
from jax._src.pallas.mosaic_gpu.interpret import jaxpr_interpret
import jax.numpy as jnp
from jax_swapext._src import atomic_cas
from jax_swapext._src import atomic_rmw
from jax_swapext._src import compat
from jax_swapext._src import indexing
from jax_swapext._src import load
from jax_swapext._src import native
from jax_swapext._src import semantics
from jax_swapext._src import swap
from jax_swapext._src.pallas import gpu_sync
from jax_swapext._src.pallas import stock
import numpy as np

AtomicOp = semantics.AtomicOp

_OURS = (load.load_p, swap.swap_p, atomic_rmw.atomic_rmw_p,
         atomic_cas.atomic_cas_p)
_SYNC = (gpu_sync.warp_barrier_p, gpu_sync.warp_commit_smem_p)


def _is_ours(eqn) -> bool:
  if eqn.primitive in (*_OURS, *_SYNC, native.native_p):
    return True
  # The interpreter binds jit on values, which a Ref is not.
  return eqn.primitive is pjit.jit_p and _contains_ours(eqn.params["jaxpr"])


def _contains_ours(jaxpr) -> bool:
  jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
  return any(map(_is_ours, jaxpr.eqns))


def _install():
  stock_interpret = jaxpr_interpret.JaxprInterpreter.interpret

  def interpret(self, jaxpr, token, *args):
    if not any(map(_is_ours, jaxpr.eqns)):
      return stock_interpret(self, jaxpr, token, *args)
    jaxpr = compat.replace_eqns(jaxpr, [stock.as_stock(e) for e in jaxpr.eqns])
    if not any(map(_is_ours, jaxpr.eqns)):
      return stock_interpret(self, jaxpr, token, *args)
    return _in_pieces(stock_interpret, self, jaxpr, token, args)

  jaxpr_interpret.JaxprInterpreter.interpret = interpret


def _in_pieces(
    stock_interpret: Callable[..., Any], self, jaxpr, token, args
):
  """Interprets a jaxpr, our equations by ourselves."""
  values = dict(
      zip([*jaxpr.constvars, *jaxpr.invars], args, strict=True)
  )

  def read(atom):
    return atom.val if isinstance(atom, jax_core.Literal) else values[atom]

  eqns = list(jaxpr.eqns)
  while eqns:
    if _is_ours(eqns[0]):
      eqn = eqns.pop(0)
      invals = list(map(read, eqn.invars))
      token, outs = _interpret_one(self, eqn, token, invals)
      values.update(zip(eqn.outvars, outs, strict=True))
      continue
    n = next((i for i, e in enumerate(eqns) if _is_ours(e)), len(eqns))
    piece, eqns = eqns[:n], eqns[n:]
    made = {v: None for e in piece for v in e.outvars}
    used = [v for e in piece for v in e.invars]
    inputs = list(dict.fromkeys(
        v for v in used
        if not isinstance(v, jax_core.Literal) and v not in made
    ))
    later = {v for e in eqns for v in e.invars
             if not isinstance(v, jax_core.Literal)}
    later |= {v for v in jaxpr.outvars if not isinstance(v, jax_core.Literal)}
    outputs = [v for v in made if v in later]
    part = jaxpr.replace(
        constvars=[], invars=inputs, outvars=outputs, eqns=piece,
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    token, outs = stock_interpret(self, part, token, *map(read, inputs))
    values.update(zip(outputs, outs, strict=True))
  return token, list(map(read, jaxpr.outvars))


def _interpret_one(self, eqn, token, invals):
  if eqn.primitive in (pjit.jit_p, native.native_p):
    inner = eqn.params["jaxpr"]
    if consts := getattr(inner, "consts", ()):
      raise NotImplementedError(f"jit with constants in a kernel: {consts}")
    return self.interpret(getattr(inner, "jaxpr", inner), token, *invals)
  if eqn.primitive is gpu_sync.warp_barrier_p:
    # A warp is one thread of the interpreter: its lanes never part.
    return token, []
  if eqn.primitive is gpu_sync.warp_commit_smem_p:
    return self._interpret_commit_smem_p(
        eqn.replace(primitive=jaxpr_interpret.gpu_primitives.commit_smem_p),
        token, lambda: [],
    )
  return _access(self, eqn, token, invals)


# ## Accesses

_NOT_SEEN = (gpu_core.UnswizzleRef, gpu_core.UntilingTransform)


def _access(self, eqn, token, invals):
  ref, *leaves = invals
  ref_aval, *leaf_avals = [v.aval for v in eqn.invars]
  tree = eqn.params["tree"]
  access, avals = tree.unflatten(leaves), tree.unflatten(leaf_avals)
  ref, transforms = jaxpr_interpret.resolve_ref(
      ref_aval, ref, tuple(access.transforms)
  )
  skipped = len(access.transforms) - len(transforms)
  transform_avals = avals.transforms[skipped:]
  op = eqn.params.get("op")
  if eqn.primitive is atomic_cas.atomic_cas_p:
    op = AtomicOp.CAS
  if op is AtomicOp.ADD_OR_SET or eqn.params.get("reverse"):
    raise NotImplementedError(
        f"atomic_{op.value}: wanted an atomic update, got a derivative of one, "
        "which a GPU kernel cannot order. Differentiate outside the kernel."
    )
  region = _region(ref_aval, avals.transforms)
  indices = _indices(region.shape, ref_aval, transforms, transform_avals)
  reads = eqn.primitive is load.load_p or eqn.params["need_old"]
  writes = eqn.primitive is not load.load_p
  sem = eqn.params.get("sem", "relaxed")
  function = functools.partial(
      _run, op=op, writes=writes, region=region, sem=sem,
      source_info=eqn.source_info,
  )
  token, old = callback.io_callback(
      function,
      (gpu_callbacks.TOKEN_SHAPE_DTYPE, region),
      token, self.mesh_location, self.thread, ref, indices, access.mask,
      tuple(access.operands),
  )
  return token, [old] if reads else []


def _region(ref_aval, transforms) -> jax.ShapeDtypeStruct:
  aval = getattr(ref_aval, "inner_aval", ref_aval)
  for t in transforms:
    aval = t.transform_type(aval)
  return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def _indices(shape, ref_aval, transforms, avals) -> tuple[jax.Array, ...]:
  """For each dimension of the buffer, its index for each element of a region.

  Buffers have their logical shape here: tiling and swizzle do not show.
  """
  source = getattr(ref_aval, "inner_aval", ref_aval)
  shapes = []
  for t in transforms:
    shapes.append(source.shape)
    source = t.transform_type(source)
  index = tuple(
      lax.broadcasted_iota(jnp.int32, shape, d) for d in range(len(shape))
  )
  for t, a, before in reversed(
      list(zip(transforms, avals, shapes, strict=True))
  ):
    match t:
      case compat.NDIndexer():
        index = _indexer_source(t, a, index, shape)
      case compat.TransposeTransform(permutation):
        index = tuple(index[permutation.index(d)] for d in range(len(index)))
      case compat.ReshapeTransform(after):
        linear = jnp.zeros(shape, jnp.int32)
        for i, n in zip(index, after, strict=True):
          linear = linear * n + i
        index = tuple(jnp.unravel_index(linear, before))
      case _ if isinstance(t, _NOT_SEEN):
        continue
      case _:
        raise NotImplementedError(
            "wanted a Ref seen through slices, reshapes and transposes, got the"
            f" transform {t}. Access the Ref itself."
        )
  return index


def _indexer_source(indexer, aval, index: Sequence[jax.Array], shape):
  labels = indexing.int_labels(len(aval.int_indexer_shape))
  axes = indexing.region_axes(aval.indices, labels)
  in_arrays = tuple(index[axes.index(label)] for label in labels)
  source = []
  for d, (entry, entry_aval) in enumerate(
      zip(indexer.indices, aval.indices, strict=True)
  ):
    if isinstance(entry_aval, compat.Slice):
      source.append(entry.start + index[axes.index(d)] * entry.stride)
    elif getattr(entry_aval, "shape", ()):
      source.append(jnp.asarray(entry, jnp.int32)[in_arrays])
    else:
      source.append(jnp.full(shape, entry, jnp.int32))
  return tuple(source)


@gpu_callbacks.fail_on_exception
def _run(token, mesh_location, thread, key, indices, mask, operands, *, op,
         writes, region, sem, source_info):
  """The access, on the simulated memory; runs outside of JAX."""
  del mesh_location  # Only for logs.
  key = gpu_callbacks.HostAllocationKey.from_array(key)
  memory = gpu_callbacks._get_shared_memory()
  indices = [np.asarray(i) for i in indices]
  operands = [np.asarray(v) for v in operands]
  on = np.ones(region.shape, bool) if mask is None else np.asarray(mask)
  clock = None
  with memory.lock:
    buffer: Any = memory.mem[key]
    shape = buffer.logical_shape if hasattr(buffer, "logical_shape") else (
        buffer.shape
    )
    _check_bounds(indices, on, shape)
    if memory.detect_races:
      clock = _order(memory, thread, key, sem, op)
    content = buffer._content if hasattr(buffer, "_content") else buffer.content
    old = _apply(content, indices, on, operands, op, writes, region)
  if memory.detect_races and op is None and on.any():
    _check_races(thread, clock, key, indices, on, writes, source_info)
  return token, old


def _check_bounds(indices, on, shape):
  for d, (i, n) in enumerate(zip(indices, shape, strict=False)):
    used = i[on]
    if used.size and (used.min() < 0 or used.max() >= n):
      raise IndexError(
          f"wanted indices in [0, {n}) along dimension {d} of a Ref, got "
          f"[{used.min()}, {used.max()}]. Mask the elements outside."
      )


def _apply(content, indices, on, operands, op, writes, region):
  old = np.zeros(region.shape, region.dtype)
  if not writes and operands:
    old[...] = operands[0]
  places = [tuple(int(i[k]) for i in indices) for k in np.ndindex(on.shape)]
  elements = [k for k in np.ndindex(on.shape) if on[k]]
  at = dict(zip(np.ndindex(on.shape), places, strict=True))
  if op is None:
    for k in elements:
      old[k] = content[at[k]]
    if writes:
      for k in elements:
        content[at[k]] = operands[0][k]
    return old
  with np.errstate(all="ignore"):
    for k in elements:
      old[k] = content[at[k]]
      content[at[k]] = _combine(op, old[k], *(v[k] for v in operands))
  return old


def _combine(op, old, *operands):
  """`semantics.combine` on NumPy scalars."""
  match op:
    case AtomicOp.XCHG:
      [value] = operands
      return value
    case AtomicOp.CAS:
      expected, value = operands
      return value if old.tobytes() == expected.tobytes() else old
    case AtomicOp.MAX:
      return np.maximum(old, *operands)
    case AtomicOp.MIN:
      return np.minimum(old, *operands)
    case AtomicOp.ADD:
      return old + operands[0]
    case AtomicOp.AND:
      return old & operands[0]
    case AtomicOp.OR:
      return old | operands[0]
    case AtomicOp.XOR:
      return old ^ operands[0]
  raise AssertionError(op)


# ## Races
#
# Atomics never race with one another. What they acquire and release is kept
# per memory, in a table that dies with it.


def _order(memory, thread, key, sem, op):
  """Advances the thread's clock, and joins it with what it acquires."""
  clock = memory.incr_clock(thread, take_lock=False)
  if op is None:
    return clock
  released = memory.__dict__.setdefault("_swapext_released", {})
  if sem in ("acquire", "acq_rel") and key in released:
    memory.clocks[thread].update(released[key])
  if sem in ("release", "acq_rel"):
    if key in released:
      released[key].update(memory.clocks[thread])
    else:
      released[key] = memory.clocks[thread].copy()
  return memory.clocks[thread].copy()


def _check_races(thread, clock, key, indices, on, writes, source_info):
  """Reports the smallest box that holds the access."""
  box: Any = tuple(
      slice(int(i[on].min()), int(i[on].max()) + 1) for i in indices
  )
  utils = gpu_callbacks.interpret_utils
  if hasattr(utils, "Access"):  # Drop once jax >= 0.12.
    box = utils.Access(box)
  races = gpu_callbacks.get_races()
  check = races.check_write if writes else races.check_read
  clock = getattr(clock, "generic_clock", clock)
  check(thread, clock, key, box, source_info=source_info)


_install()
