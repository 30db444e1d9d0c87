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
"""Cores, their scheduler, DMAs in flight, and the block pipeline of a grid."""

from collections.abc import Callable, Generator, Sequence
import dataclasses
import inspect
import itertools
from typing import Any

import numpy as np

from oracles.mosaic_ir import memory
from oracles.mosaic_ir import program

Env = dict[int, Any]

_TERMINATORS = frozenset(
  {"func.return", "scf.yield", "tpu.yield", "scf.condition"}
)

# Op name -> (handler, whether the handler is a generator). A handler gets the
# core, the op and its operands: one list per segment where the op has
# segments, else the flat operands. A generator also gets the environment.
_HANDLERS: dict[str, tuple[Callable[..., Any], bool]] = {}


def handles(*names: str):
  """Registers the meaning of operations."""

  def register(handler):
    for name in names:
      _HANDLERS[name] = handler, inspect.isgeneratorfunction(handler)
    return handler

  return register


@dataclasses.dataclass
class Transfer:
  """A DMA in flight: what it does, and whom it tells."""

  move: Callable[[], None]
  signals: list[tuple[memory.MemRef, int]]
  text: str


class Machine:
  """One kernel call.

  Attributes:
    kernel: The program.
    dma: "late" (a transfer happens when it is waited for) or "early".
    pending: DMAs in flight, oldest first.
  """

  def __init__(
    self, kernel: program.Kernel, num_lanes: int, dma: str, seed: int
  ):
    self.kernel = kernel
    self.num_lanes = num_lanes
    self.dma = dma
    self.random = np.random.default_rng(seed)
    self.pending: list[Transfer] = []
    self.waiting: dict[Any, set[tuple[int, ...]]] = {}
    self.progress = 0
    core = str(kernel.main.attrs.get("tpu.core_type", "<tc>"))
    self.core_type = core.split("<")[-1].rstrip(">")
    sparse = kernel.config.get("sparse_core_config", {})
    if self.core_type == "tc":
      self.tiling = memory.Tiling("tensorcore")
    elif sparse.get("tiling") == "TILING_SPARSE_CORE":
      self.tiling = memory.Tiling("linear")
    else:
      self.tiling = memory.Tiling("compact")

  def start(self, transfer: Transfer) -> None:
    self.progress += 1
    if self.dma == "early" or not transfer.signals:
      transfer.move()
      transfer.move = lambda: None
    self.pending.append(transfer)
    if not transfer.signals:
      self.finish(transfer)

  def finish(self, transfer: Transfer) -> None:
    transfer.move()
    self.pending.remove(transfer)
    for semaphore, amount in transfer.signals:
      semaphore.fill(semaphore.whole() + amount)
    self.progress += 1

  def finish_for(self, semaphore: memory.MemRef) -> bool:
    """Finishes the oldest DMA that signals a semaphore; False if none does."""
    for transfer in self.pending:
      for ref, _ in transfer.signals:
        if ref.buffer is semaphore.buffer and np.array_equal(
          ref.addresses, semaphore.addresses
        ):
          self.finish(transfer)
          return True
    return False

  def run(self, threads: Sequence[Generator[None, None, Any]]) -> None:
    """Runs coroutines to their end, in an order drawn from the seed.

    Raises:
      EvaluationError: All of them wait, or a DMA was never waited for.
    """
    live = list(threads)
    while live:
      before = self.progress
      for k in self.random.permutation(len(live)):
        try:
          next(live[k])
        except StopIteration:
          self.progress += 1
          live[k] = None
      live = [t for t in live if t is not None]
      if live and self.progress == before:
        raise memory.EvaluationError(
          f"deadlock: {len(live)} cores wait for semaphores or a barrier"
        )
    if self.pending:
      raise memory.EvaluationError(
        "a DMA was started and never waited for: " + self.pending[0].text
      )


class Core:
  """One thread of control."""

  def __init__(self, machine: Machine, where: tuple[int, ...]):
    self.machine = machine
    self.where = where
    self.grid: tuple[int, ...] = ()

  def call(self, block: program.Block, args: Sequence[Any], env: Env):
    """Runs a block; yields while it waits, returns what it hands on."""
    for name, value in zip(block.args, args, strict=True):
      env[name] = value
    for op in block.ops:
      if op.name in _TERMINATORS:
        return [env[i] for i in op.operands]
      if op.name not in _HANDLERS:
        raise program.UnknownOpError(
          f"Mosaic op {op.name} is not known to the interpreter: {op.text}"
        )
      handler, waits = _HANDLERS[op.name]
      if op.segments is None:
        args = [env[i] for i in op.operands]
      else:
        args = [[env[i] for i in segment] for segment in op.segments]
      if waits:
        out = yield from handler(self, op, env, *args)
      else:
        out = handler(self, op, *args)
      if len(op.results) == 1:
        env[op.results[0]] = out
      else:
        for name, value in zip(op.results, out or (), strict=True):
          env[name] = value
    return []

  def call_now(self, block: program.Block, args: Sequence[Any]) -> list[Any]:
    """Runs a block that never waits."""
    thread = self.call(block, args, {})
    try:
      next(thread)
    except StopIteration as stop:
      return stop.value
    raise memory.EvaluationError("an index map waits")


@dataclasses.dataclass
class _Window:
  """A block of an array that the pipeline keeps in VMEM or SMEM."""

  array: memory.MemRef
  staging: memory.MemRef
  params: dict[str, Any]
  is_output: bool
  at: tuple[int, ...] | None = None

  def _box(self):
    bounds = self.params.get("window_bounds", list(self.array.shape))
    starts = [i * b for i, b in zip(self.at, bounds, strict=True)]
    sizes = [
      min(b, n - s)
      for s, b, n in zip(starts, bounds, self.array.shape, strict=True)
    ]
    if any(s < 0 or n <= 0 for s, n in zip(starts, sizes, strict=True)):
      raise memory.EvaluationError(
        f"block {self.at} of {self.array.buffer.name} lies outside it"
      )
    return self.array.slice(starts, sizes), sizes

  def flush(self) -> None:
    if self.is_output and self.at is not None:
      array, sizes = self._box()
      array.fill(self.staging.slice([0] * len(sizes), sizes).whole())

  def move_to(self, at: tuple[int, ...]) -> None:
    if at == self.at:
      return
    self.flush()
    self.at = at
    # A fresh double buffer: what an earlier block left there is not promised.
    self.staging.write(
      self.staging.addresses, memory.poison(self.staging.dtype)
    )
    if not self.is_output:
      array, sizes = self._box()
      self.staging.slice([0] * len(sizes), sizes).fill(array.whole())


def _semantics(main: program.Function) -> list[str]:
  return [
    s.split("<")[-1].rstrip(">")
    for s in main.attrs.get("dimension_semantics", [])
  ]


def run_kernel(
  kernel: program.Kernel,
  operands: Sequence[np.ndarray],
  result_types: Sequence[program.Type],
  *,
  num_lanes: int = 8,
  dma: str = "late",
  seed: int = 0,
) -> list[np.ndarray]:
  """Runs one kernel on arrays.

  Args:
    kernel: The decoded call.
    operands: Arrays as XLA would pass them (booleans as int32).
    result_types: What the call returns.
    num_lanes: Lanes of a SparseCore vector.
    dma: "late" or "early".
    seed: Draws the order in which subcores run.

  Returns:
    The results; poison where the kernel wrote nothing.
  """
  machine = Machine(kernel, num_lanes, dma, seed)
  main = kernel.main
  bounds = list(main.attrs.get("iteration_bounds", []))
  semantics = _semantics(main)
  args = list(main.body.args)
  types = list(main.body.arg_types)
  num_ids = (
    len(args)
    - len(operands)
    - len(result_types)
    - int(main.attrs.get("scratch_operands", 0))
  )
  if num_ids != len(bounds):
    raise memory.EvaluationError(
      f"{num_ids} grid arguments, {len(bounds)} grid bounds"
    )
  types = types[num_ids:]
  prefetch = int(main.attrs.get("scalar_prefetch", 0))
  params = main.attrs.get("window_params") or [
    {} for _ in range(len(operands) + len(result_types) - prefetch)
  ]

  # Arrays in HBM, shared by all cores.
  def array(shape, t, name):
    return memory.allocate(
      dataclasses.replace(t, shape=tuple(shape), space="hbm"),
      machine.tiling,
      name,
    )

  arrays = []
  for k, x in enumerate(operands):
    arrays.append(array(np.shape(x), types[k], f"operand {k}"))
    arrays[-1].fill(x)
  for k, result in enumerate(result_types):
    if k in kernel.aliases:
      arrays.append(arrays[kernel.aliases[k]])
    else:
      t = types[len(operands) + k]
      arrays.append(array(result.shape, t, f"result {k}"))

  # Dimensions that run on different cores; the others are loops.
  parallel = [
    d
    for d, s in enumerate(semantics)
    if s in ("core_parallel", "subcore_parallel")
  ]
  spread = list(itertools.product(*(range(bounds[d]) for d in parallel)))
  scratch_types = types[len(arrays) :]
  shared: dict[Any, memory.MemRef] = {}
  scratch: dict[tuple[int, ...], list[memory.MemRef]] = {}
  for where in spread:
    scratch[where] = []
    for k, t in enumerate(scratch_types):
      key = (k, where[:1]) if t.space == "vmem_shared" else (k, where)
      if key not in shared:
        shared[key] = memory.allocate(t, machine.tiling, f"scratch {k}")
      scratch[where].append(shared[key])
  for k in range(len(scratch_types)):
    peers = {where: scratch[where][k] for where in spread}
    for ref in peers.values():
      ref.buffer.peers = peers

  def thread(where):
    core = Core(machine, where)
    windows = []
    refs = []
    for k, a in enumerate(arrays):
      t = types[k]
      if t.space not in ("vmem", "smem") or t.semaphore:
        refs.append(dataclasses.replace(a, space=t.space))
        continue
      staging = memory.allocate(
        t, machine.tiling, f"{a.buffer.name} in {t.space}"
      )
      p = params[k - prefetch] if k >= prefetch else {}
      unknown = set(p) - {"transform_indices", "window_bounds"}
      unknown -= {"pipeline_mode", "skip_device_barrier"}
      if unknown:
        raise program.UnknownOpError(f"window parameters {sorted(unknown)}")
      windows.append(_Window(a, staging, p, k >= len(operands)))
      refs.append(staging)
    loops = [
      range(n) if d not in parallel else (where[parallel.index(d)],)
      for d, n in enumerate(bounds)
    ]
    for ids in itertools.product(*loops):
      ids = [np.int32(i) for i in ids]
      core.grid = tuple(int(i) for i in ids)
      for w in windows:
        transform = w.params.get("transform_indices")
        at = (0,) * len(w.array.shape)
        if isinstance(transform, str) and w.params.get("window_bounds"):
          function = kernel.functions[transform.lstrip("@")]
          at = core.call_now(function.body, [*ids, *refs[:prefetch]])
        w.move_to(tuple(int(i) for i in at))
      yield from core.call(main.body, [*ids, *refs, *scratch[where]], {})
    for w in windows:
      w.flush()

  machine.run([thread(where) for where in spread])
  return [arrays[len(operands) + k].whole() for k in range(len(result_types))]
