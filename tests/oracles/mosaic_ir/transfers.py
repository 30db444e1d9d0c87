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
"""Operations on memory: loads, stores, views, DMAs, semaphores, branches."""

from collections.abc import Sequence
import dataclasses

import numpy as np

from oracles.mosaic_ir import machine
from oracles.mosaic_ir import memory
from oracles.mosaic_ir import program

handles = machine.handles


def _box(op_shape: Sequence[int], rank: int) -> tuple[int, ...]:
  """A vector of lower rank covers the minor dimensions."""
  return (1,) * (rank - len(op_shape)) + tuple(op_shape)


def _check_word_order(core: machine.Core, ref: memory.MemRef, box) -> None:
  """A SparseCore vector register takes neighbouring words, nothing else."""
  packed = ref.dtype.itemsize < 4 and len(ref.shape) == 1
  if core.machine.core_type == "tc" or not packed:
    return
  flat = box.reshape(-1)
  if np.any(np.diff(flat) != ref.dtype.itemsize) or flat[0] % 4:
    raise memory.EvaluationError(
      f"{ref.buffer.name}: a vector of {ref.dtype} does not lie in whole,"
      " neighbouring words"
    )


def _load(core, op, ref, starts, strides=None):
  [t] = op.result_types
  sizes = _box(t.shape, len(starts))
  _check_word_order(core, ref, ref.region(starts, sizes, strides))
  return ref.load(starts, sizes, strides).reshape(t.shape)


@handles("vector.load", "tpu.strided_load", "tpu.load")
def _plain_load(core, op, ref, *starts):
  if "sublane_mask" in op.attrs and not all(op.attrs["sublane_mask"]):
    raise program.UnknownOpError("tpu.load with a sublane mask")
  strides = op.attrs["strides"] if op.name == "tpu.strided_load" else None
  return _load(core, op, ref, starts, strides)


@handles("tpu.vector_load")
def _vector_load(core, op, refs, starts, mask):
  if any(s != 1 for s in op.attrs.get("strides", ())):
    raise program.UnknownOpError("tpu.vector_load with strides")
  if not mask:
    return _load(core, op, refs[0], starts)
  if core.machine.core_type == "tc":
    raise program.UnknownOpError("tpu.vector_load with a mask")
  # On SparseCore a mask expands: it is no masked load.
  return _expand(core, op, refs, starts, mask)


def _store(core, op, ref, starts, value, mask=None, strides=None):
  sizes = _box(value.shape, len(starts))
  _check_word_order(core, ref, ref.region(starts, sizes, strides))
  if mask is not None:
    mask = mask.reshape(sizes)
  add = bool(op.attrs.get("add"))
  ref.store(starts, value.reshape(sizes), strides, mask, add)


@handles("tpu.vector_store", "tpu.store")
def _vector_store(core, op, values, refs, starts, mask):
  if any(s != 1 for s in op.attrs.get("strides", ())):
    raise program.UnknownOpError("tpu.vector_store with strides")
  if "sublane_mask" in op.attrs and not all(op.attrs["sublane_mask"]):
    raise program.UnknownOpError("tpu.store with a sublane mask")
  if mask and core.machine.core_type != "tc":
    # On SparseCore a mask compresses: it is no masked store.
    _compress(core, op, values, refs, starts, mask)
    return
  if mask and refs[0].dtype.itemsize != 4:
    raise memory.EvaluationError(f"{op.name}: masked stores are 32-bit only")
  _store(core, op, refs[0], starts, values[0], mask[0] if mask else None)


@handles("vector.store")
def _plain_store(core, op, value, ref, *starts):
  _store(core, op, ref, starts, value)


@handles("tpu.strided_store")
def _strided_store(core, op, value, ref, *starts):
  _store(core, op, ref, starts, value, strides=op.attrs["strides"])


@handles("memref.load")
def _scalar_load(core, op, ref, *starts):
  del core, op  # Unused.
  return ref.load(starts, (1,) * len(starts), logical=True).reshape(())


@handles("memref.store")
def _scalar_store(core, op, value, ref, *starts):
  if ref.space == "vmem":
    raise memory.EvaluationError("memref.store: the scalar unit has no VMEM")
  del core, op  # Unused.
  ref.region(starts, (1,) * len(starts), logical=True)
  ref.store(starts, np.reshape(value, (1,) * len(starts)))


@handles("tpu.vector_load_idx")
def _gather(core, op, refs, indices, mask):
  del core  # Unused.
  [ref] = refs
  [t] = op.result_types
  mask = mask[0] if mask else None
  if ref.dtype.itemsize != 4:
    raise memory.EvaluationError(f"{op.name}: 32-bit elements only")
  out = ref.read(ref.points(indices, mask))
  # What a masked-off lane returns is not promised.
  if mask is not None:
    out = np.where(mask, out, memory.poison(t.dtype)).astype(t.dtype)
  return out


@handles("tpu.vector_store_idx")
def _scatter(core, op, values, refs, indices, mask):
  del core  # Unused.
  [value], [ref] = values, refs
  live = mask[0] if mask else np.ones(value.shape, bool)
  if ref.dtype.itemsize != 4:
    raise memory.EvaluationError(f"{op.name}: 32-bit elements only")
  addresses = ref.points(indices, live)
  # One lane after another: the highest lane wins, and adds all count.
  for k in np.argwhere(live):
    k = tuple(k)
    x = value[k]
    if op.attrs.get("add"):
      with np.errstate(all="ignore"):
        x = (ref.read(addresses[k]) + x).astype(ref.dtype)
    ref.write(addresses[k], x)


@handles("tpu.compress_store_vreg", "tpu.vector_compress_store")
def _compress(core, op, *segments):
  del core  # Unused.
  if op.segments is not None:
    [value], [ref], starts, [mask] = segments
  else:
    value, ref, *starts, mask = segments
  if any(n != 1 for n in value.shape[:-1]):
    raise program.UnknownOpError(f"{op.name} of several rows")
  kept = value.reshape(-1)[mask.reshape(-1)]
  ref.store(
    starts,
    kept.reshape(_box(kept.shape, len(starts))),
    add=bool(op.attrs.get("add")),
  )


@handles("tpu.expand_load_vreg", "tpu.vector_expand_load")
def _expand(core, op, *segments):
  del core  # Unused.
  if op.segments is not None:
    [ref], starts, [mask] = segments
  else:
    ref, *starts, mask = segments
  [t] = op.result_types
  if any(n != 1 for n in t.shape[:-1]):
    raise program.UnknownOpError(f"{op.name} of several rows")
  flat = mask.reshape(-1)
  out = np.full(flat.shape, memory.poison(t.dtype), t.dtype)
  count = int(flat.sum())
  out[flat] = ref.load(starts, _box((count,), len(starts))).reshape(-1)
  return out.reshape(t.shape)


# Views.


@handles("tpu.memref_slice")
def _slice(core, op, *operands):
  del core  # Unused.
  [t] = op.result_types
  if op.segments is not None:
    [ref], starts, sizes = operands
  else:
    ref, starts, sizes = operands[0], operands[1:], ()
  sizes = list(sizes)
  shape = [int(sizes.pop(0)) if n < 0 else n for n in t.shape]
  return ref.slice(starts, shape)


@handles("tpu.memref_squeeze")
def _squeeze(core, op, ref):
  del core  # Unused.
  [t] = op.result_types
  return ref.squeeze(ref.shape[:0] if not t.shape else t.shape)


@handles("tpu.memref_reshape")
def _reshape(core, op, ref):
  del core  # Unused.
  return ref.reshape(op.result_types[0].shape)


@handles("tpu.memref_bitcast")
def _bitcast(core, op, ref):
  del core  # Unused.
  [t] = op.result_types
  return ref.bitcast(t.shape, t.dtype)


@handles(
  "tpu.erase_memref_layout", "memref.memory_space_cast", "tpu.assume_layout"
)
def _same_memory(core, op, ref):
  del core, op  # Unused.
  return ref


@handles("memref.alloca", "tpu.sem_alloc")
def _allocate(core, op, *sizes):
  if any(np.size(s) for s in sizes):
    raise program.UnknownOpError(f"{op.name} of a dynamic size")
  [t] = op.result_types
  return memory.allocate(t, core.machine.tiling, op.name)


# Index claims and places.


@handles("tpu.assume_multiple")
def _assume_multiple(core, op, x):
  del core  # Unused.
  if int(x) % op.attrs["multiple"]:
    raise memory.EvaluationError(
      f"{int(x)} was claimed to be a multiple of {op.attrs['multiple']}"
    )
  return x


@handles("tpu.iteration_bound")
def _iteration_bound(core, op):
  bounds = core.machine.kernel.main.attrs["iteration_bounds"]
  return np.int32(bounds[op.attrs["dim"]])


@handles("tpu.device_id")
def _device_id(core, op):
  del core, op  # Unused.
  return np.int32(0)


@handles(
  "tpu.trace_start",
  "tpu.trace_stop",
  "tpu.trace_value",
  "tpu.delay",
  "tpu.annotate",
)
def _no_effect(core, op, *operands):
  del core, op, operands  # Unused.


@handles("cf.assert")
def _assert(core, op, condition):
  del core  # Unused.
  if not bool(condition):
    raise memory.EvaluationError(f"cf.assert: {op.attrs.get('msg')}")


# Control flow.


@handles("tpu.region", "tpu.trace")
def _region(core, op, env, *operands):
  del operands  # Unused.
  out = yield from core.call(op.regions[0], [], env)
  return out[0] if len(op.results) == 1 else out


@handles("scf.if")
def _if(core, op, env, condition):
  branch = 0 if bool(condition) else 1
  if branch >= len(op.regions):
    return ()
  out = yield from core.call(op.regions[branch], [], env)
  return out[0] if len(op.results) == 1 else out


@handles("scf.index_switch")
def _switch(core, op, env, index):
  cases = list(op.attrs["cases"])
  branch = 1 + cases.index(int(index)) if int(index) in cases else 0
  out = yield from core.call(op.regions[branch], [], env)
  return out[0] if len(op.results) == 1 else out


@handles("scf.for")
def _for(core, op, env, lower, upper, step, *carry):
  dtype = op.operand_types[0].dtype
  carry = list(carry)
  for i in range(int(lower), int(upper), int(step)):
    carry = yield from core.call(
      op.regions[0], [np.asarray(i, dtype), *carry], env
    )
  return carry[0] if len(op.results) == 1 else carry


@handles("scf.while")
def _while(core, op, env, *carry):
  carry = list(carry)
  while True:
    condition, *carry = yield from core.call(op.regions[0], carry, env)
    if not bool(condition):
      return carry[0] if len(op.results) == 1 else carry
    carry = yield from core.call(op.regions[1], carry, env)


# Semaphores and DMAs.


def _peer(core: machine.Core, ref: memory.MemRef, core_id, subcore_id):
  """The same allocation on another core or subcore."""
  if not core_id and not subcore_id:
    return ref
  where = list(core.where)
  if core_id:
    where[0] = int(core_id[0])
  if subcore_id:
    where[1] = int(subcore_id[0])
  if tuple(where) not in ref.buffer.peers:
    raise memory.EvaluationError(f"{ref.buffer.name} has no peer at {where}")
  peer = ref.buffer.peers[tuple(where)]
  return dataclasses.replace(ref, buffer=peer.buffer)


def _local(op: program.Op, device_id) -> None:
  if device_id:
    raise program.UnknownOpError(f"{op.name} to another device")


def _take(core: machine.Core, semaphore: memory.MemRef, amount: int):
  while int(semaphore.whole()) < amount:
    if not core.machine.finish_for(semaphore):
      yield
  semaphore.fill(semaphore.whole() - amount)
  core.machine.progress += 1


@handles("tpu.sem_signal")
def _signal(core, op, semaphore, amount, device_id, core_id, subcore_id):
  _local(op, device_id)
  ref = _peer(core, semaphore[0], core_id, subcore_id)
  ref.fill(ref.whole() + int(amount[0]))
  core.machine.progress += 1


@handles("tpu.sem_wait")
def _wait(core, op, env, semaphore, amount):
  del op, env  # Unused.
  yield from _take(core, semaphore, int(amount))


@handles("tpu.sem_read")
def _read_semaphore(core, op, semaphore):
  del core, op  # Unused.
  return np.int32(semaphore.whole())


@handles("tpu.barrier")
def _barrier(core, op, env, barrier_id):
  del op, env  # Unused.
  run = core.machine
  key = int(barrier_id), core.where[:1]
  bounds = run.kernel.main.attrs["iteration_bounds"]
  arrived = run.waiting.setdefault(key, set())
  arrived.add(core.where)
  run.progress += 1
  if len(arrived) == bounds[1]:
    # Those who wait hold the old set; the next round gets its own.
    del run.waiting[key]
  while len(arrived) < bounds[1]:
    yield


def _copy(source: memory.MemRef, target: memory.MemRef):
  def squeezed(ref):
    return tuple(n for n in ref.shape if n != 1)

  if source.dtype != target.dtype or squeezed(source) != squeezed(target):
    raise memory.EvaluationError(
      f"a DMA from {source.dtype}{source.shape} to {target.dtype}{target.shape}"
    )
  return lambda: target.fill(source.whole().reshape(target.shape))


@handles("tpu.enqueue_dma")
def _start_dma(
  core,
  op,
  source,
  source_semaphore,
  target,
  target_semaphore,
  device_id,
  core_id=(),
  subcore_id=(),
):
  _local(op, device_id)
  [source] = source
  target = _peer(core, target[0], core_id, subcore_id)
  signals = [(s, target.nbytes) for s in target_semaphore]
  signals += [(s, source.nbytes) for s in source_semaphore]
  core.machine.start(machine.Transfer(_copy(source, target), signals, op.text))


@handles("tpu.wait_dma")
def _wait_dma(
  core,
  op,
  env,
  source,
  source_semaphore,
  target,
  target_semaphore,
  *places,
):
  del env, places  # Unused.
  if op.attrs.get("wait_target", True):
    for semaphore in target_semaphore:
      yield from _take(core, semaphore, target[0].nbytes)
  else:
    for semaphore in source_semaphore:
      yield from _take(core, semaphore, source[0].nbytes)


@handles("tpu.wait_dma2")
def _wait_dma2(core, op, env, semaphore, source, target, *places):
  del op, env, source, places  # Unused.
  yield from _take(core, semaphore[0], target[0].nbytes)


@handles("tpu.enqueue_indirect_dma")
def _start_indirect(core, op, source, target, offsets, semaphore, *ignored):
  gather = target.space == "vmem" and source.space != "vmem"
  indexed, local = (source, target) if gather else (target, source)
  add = bool(op.attrs.get("add"))

  def move():
    rows = offsets.whole() if isinstance(offsets, memory.MemRef) else offsets
    values = source.whole()
    for k, row in enumerate(np.reshape(rows, -1).tolist()):
      if ignored and row == int(ignored[0]):
        continue
      lead = (row,) + (0,) * (len(indexed.shape) - 1)
      size = (1,) + indexed.shape[1:]
      if gather:
        piece, at, into = indexed.load(lead, size, logical=True), k, target
      else:
        piece, at, into = values[k : k + 1], row, target
      start = (at,) + (0,) * (len(into.shape) - 1)
      into.region(start, piece.shape, logical=True)
      into.store(start, piece, add=add)

  core.machine.start(
    machine.Transfer(move, [(semaphore, local.nbytes)], op.text)
  )


@handles("tpu.wait_indirect_dma")
def _wait_indirect(core, op, env, semaphore, source, target):
  del op, env  # Unused.
  gather = target.space == "vmem" and source.space != "vmem"
  yield from _take(core, semaphore, (target if gather else source).nbytes)


@handles("tpu.fetch_and_add_sync")
def _fetch_and_add(core, op, ref, *operands):
  del op  # Unused.
  *indices, value, subcore = operands
  ref = _peer(core, ref, (), (subcore,))
  size = (1,) * len(indices)
  old = ref.load(indices, size, logical=True)
  ref.store(indices, old + value)
  core.machine.progress += 1
  return old.reshape(())
