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
"""Runs a grid of CTAs, thread by thread, under a seeded schedule.

Registers are NumPy arrays over the threads of a CTA, so one step executes one
instruction for all threads that stand at it.  Each thread has its own program
counter: divergence needs no reconvergence stack.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from oracles.ptx import alu
from oracles.ptx import bulk
from oracles.ptx import loadstore
from oracles.ptx import memory
from oracles.ptx import parse
from oracles.ptx import races
from oracles.ptx import sync
from oracles.ptx import wgmma
from oracles.ptx.parse import PtxError

_GARBAGE_SEED = 0x5EED


@dataclasses.dataclass
class TensorMap:
  """A bulk tensor copy's descriptor; dimensions are innermost first.

  `strides` and addresses are in bytes, `box` in elements.
  """

  address: int
  shape: tuple[int, ...]
  strides: tuple[int, ...]
  box: tuple[int, ...]
  itemsize: int
  swizzle: int


@dataclasses.dataclass
class Report:
  """What a run observed.

  `steps` counts instructions issued, for however many threads each;
  `executed` counts them per opcode.
  """

  steps: int
  executed: dict[str, int]
  races: list[races.Race]


@functools.lru_cache(maxsize=256)
def _compiled(text: str):
  kernel = parse.parse(text)
  builders = (
      alu.build, loadstore.build, sync.build, bulk.build, wgmma.build)
  program = []
  for instruction in kernel.code:
    for build in builders:
      if (operation := build(kernel, instruction)) is not None:
        break
    else:
      operation = _unsupported(instruction)
    program.append(operation)
  return kernel, program


def _unsupported(instruction):
  def operation(cta):
    raise PtxError(f"unsupported instruction: {instruction.text}")
  return operation


class Cta:
  """The state of one block of threads.

  Attributes that instructions use:
    mask: which threads execute the current instruction.
    full: whether that is all of them.
    registers: name to array over threads, of the declared width; immutable.
    blocked, done: threads that cannot run now, and ever.
  """

  def __init__(self, grid: Grid, index: int, coordinates, rng):
    self.grid, self.index = grid, index
    self.coordinates = coordinates
    kernel, self.threads = grid.kernel, int(np.prod(grid.block))
    self.rng = rng
    t = np.arange(self.threads)
    self.lane, self.warp = t % 32, t // 32
    self.registers = {
        name: np.zeros(self.threads, parse.storage_dtype(type_name))
        for name, type_name in kernel.registers.items()}
    static = -(-kernel.shared_bytes // 1024) * 1024
    size = memory.SHARED_START + static + grid.dynamic_shared
    self.shared = memory.Arena(f"shared memory of CTA {index}",
                               -(-size // 16) * 16, mapped=True, owner=self)
    garbage = np.random.default_rng(_GARBAGE_SEED + index)
    self.shared.data[:] = garbage.integers(0, 256, self.shared.data.size)
    self.shared.state[: memory.SHARED_START] = 0
    self.shared.state[size:] = 0
    self.symbols = {name: memory.SHARED_START + offset
                    for name, offset in kernel.shared.items()}
    if kernel.dynamic_shared is not None:
      self.symbols[kernel.dynamic_shared] = memory.SHARED_START + static
    self.symbols.update(kernel.local)
    self.symbols.update(grid.constant_addresses)
    self.symbols.update((p.name, p.offset) for p in kernel.parameters)
    self.local = memory.Arena(
        "local memory", self.threads * max(kernel.local_bytes, 1), mapped=True)
    self.pc = np.zeros(self.threads, np.int64)
    self.back_edges = np.zeros(self.threads, np.int64)
    self.blocked = np.zeros(self.threads, np.bool_)
    self.done = np.zeros(self.threads, np.bool_)
    self.mask = np.ones(self.threads, np.bool_)
    self.full = True
    x, y, _ = grid.block
    self.special = {
        "%tid.x": t % x, "%tid.y": t // x % y, "%tid.z": t // (x * y),
        "%laneid": self.lane, "%warpid": self.warp}
    for i, axis in enumerate("xyz"):
      self.special[f"%ntid.{axis}"] = grid.block[i]
      self.special[f"%ctaid.{axis}"] = coordinates[i]
      self.special[f"%nctaid.{axis}"] = grid.shape[i]
      self.special[f"%clusterid.{axis}"] = coordinates[i] // grid.cluster[i]
      self.special[f"%nclusterid.{axis}"] = grid.shape[i] // grid.cluster[i]
      self.special[f"%cluster_ctaid.{axis}"] = coordinates[i] % grid.cluster[i]
      self.special[f"%cluster_nctaid.{axis}"] = grid.cluster[i]
    self.rank = grid.cluster_rank(coordinates)
    self.special["%cluster_ctarank"] = self.rank
    self.special["%cluster_nctarank"] = int(np.prod(grid.cluster))
    self.special["%smid"] = index
    self.special["%globaltimer"] = 0
    self.special["%clock64"] = 0
    self.special["%clock"] = 0
    self.sync = sync.State(self)

  def columns(self, lanes) -> np.ndarray:
    """The race detector's columns of threads `lanes`."""
    return self.grid.detector.column(self.index, lanes)

  def describe(self, thread: int) -> str:
    return f"block {self.coordinates}, thread {thread}"

  def step(self, candidates: np.ndarray) -> bool:
    """Runs one instruction for some of `candidates`; False if none can run."""
    live = candidates & ~self.blocked & ~self.done
    pcs = self.pc[live]
    if pcs.size == 0:
      return False
    pc = int(pcs[0])
    if not (pcs == pc).all():
      # Fewest loop iterations first, then the lowest address: threads meet
      # again after a branch, and one that spins never starves the others.
      order = self.back_edges[live] * len(self.grid.program) + pcs
      pc = int(pcs[order.argmin()])
      live = live & (self.pc == pc)
    self.pc = np.where(live, pc + 1, self.pc)
    instruction = self.grid.kernel.code[pc]
    if instruction.predicate is not None:
      live = live & (self.registers[instruction.predicate]
                     != instruction.negated)
      if not live.any():
        return True
    self.mask, self.full = live, bool(live.all())
    self.grid.count(instruction)
    try:
      self.grid.program[pc](self)
    except PtxError as error:
      error.add_note(f"at {instruction.text!r} in block {self.coordinates}")
      raise
    if self.pc.max() >= len(self.grid.program):
      self.done = self.done | (self.pc >= len(self.grid.program))
    return True


class Grid:
  """One launch.

  Args:
    text: the PTX module.
    shape: CTAs along x, y, z.
    block: threads per CTA along x, y, z.
    parameters: the bytes of the kernel's parameter space.
    device: global memory that the parameters point into.
    dynamic_shared: bytes of shared memory sized by the launch.
    cluster: CTAs per cluster along x, y, z.
    tensor_maps: descriptors; the first 8 bytes of one in memory are its index.
    seed: of the schedule; None runs threads in lockstep as far as they go.
    detect_races: whether to track happens-before.
    max_steps: limit on instructions issued, against endless loops.
  """

  def __init__(self, text: str, shape, block, parameters: bytes,
               device: memory.GlobalMemory, *, dynamic_shared: int = 0,
               cluster=(1, 1, 1), tensor_maps=(), seed: int | None = None,
               detect_races: bool = True, max_steps: int = 1_000_000):
    self.kernel, self.program = _compiled(text)
    self.shape, self.block = tuple(shape), tuple(block)
    self.cluster = tuple(c or 1 for c in cluster)
    self.device = device
    self.dynamic_shared = dynamic_shared
    self.tensor_maps = list(tensor_maps)
    self.steps, self.max_steps = 0, max_steps
    self.executed: dict[str, int] = {}
    self.parameters = memory.Arena("parameters", len(parameters) + 16, True)
    self.parameters.data[: len(parameters)] = np.frombuffer(
        parameters, np.uint8)
    self.constant_addresses = {
        name: device.upload(np.frombuffer(data, np.uint8))
        for name, data in self.kernel.constants.items()}
    self.seeded = seed is not None
    self.rng = np.random.default_rng(seed)
    coordinates = [(x, y, z) for z in range(shape[2]) for y in range(shape[1])
                   for x in range(shape[0])]
    threads = int(np.prod(self.block))
    self.detector = races.Detector(
        len(coordinates), threads, _granule(self.kernel)) if (
            detect_races) else None
    self.copies = bulk.InFlight(self)
    # Hardware elects the same leader for the same mask, but which is open.
    self.leader_choice = self.rng.integers(0, 32) if self.seeded else 0
    self.ctas = [Cta(self, i, c, self.rng) for i, c in enumerate(coordinates)]

  def cluster_rank(self, coordinates) -> int:
    x, y, z = (c % n for c, n in zip(coordinates, self.cluster, strict=True))
    return x + self.cluster[0] * (y + self.cluster[1] * z)

  def cluster_peer(self, cta: Cta, rank: int) -> Cta:
    """The CTA of the given rank in the cluster of `cta`."""
    cx, cy, _ = self.cluster
    within = (rank % cx, rank // cx % cy, rank // (cx * cy))
    x, y, z = (c // n * n + w for c, n, w in
               zip(cta.coordinates, self.cluster, within, strict=True))
    return self.ctas[x + self.shape[0] * (y + self.shape[1] * z)]

  def count(self, instruction):
    self.steps += 1
    if self.steps > self.max_steps:
      raise PtxError(f"still running after {self.max_steps} steps")
    key = ".".join((instruction.root, *instruction.modifiers))
    self.executed[key] = self.executed.get(key, 0) + 1

  def _gang(self, cta: Cta) -> np.ndarray:
    """Threads that may run for a while, chosen at random."""
    match self.rng.integers(4):
      case 0:
        return np.ones(cta.threads, np.bool_)
      case 1:
        return cta.warp == self.rng.integers(cta.warp[-1] + 1)
      case 2:
        return self.rng.integers(0, 2, cta.warp[-1] + 1)[cta.warp] == 1
      case _:
        return self.rng.integers(0, 2, cta.threads) == 1

  def run(self) -> Report:
    """Runs to the end.

    Raises:
      PtxError: on an illegal access, an unsupported instruction or a deadlock.
    """
    everyone = np.ones(int(np.prod(self.block)), np.bool_)
    turn = 0
    while True:
      runnable = [c for c in self.ctas if not (c.done | c.blocked).all()]
      if not runnable:
        if self.copies.advance_one():
          continue
        if all(c.done.all() for c in self.ctas):
          break
        raise PtxError(self._deadlock())
      if self.seeded:
        cta = runnable[self.rng.integers(len(runnable))]
        gang = self._gang(cta)
        burst = int(self.rng.geometric(1 / 24))
        if self.rng.integers(4) == 0:
          self.copies.advance_one()
      else:
        cta, gang, burst = runnable[turn % len(runnable)], everyone, 500
        turn += 1
      for _ in range(burst):
        if not cta.step(gang):
          break
    while self.copies.advance_one():
      pass
    found = list(self.detector.races.values()) if self.detector else []
    return Report(self.steps, self.executed, found)

  def _deadlock(self) -> str:
    stuck = []
    for cta in self.ctas:
      for pc in np.unique(cta.pc[~cta.done]):
        who = np.flatnonzero(~cta.done & (cta.pc == pc))
        stuck.append(f"block {cta.coordinates}: {who.size} threads from "
                     f"{who[0]} after {self.kernel.code[pc - 1].text!r}")
    return "deadlock: " + "; ".join(stuck)


def _granule(kernel) -> int:
  """Bytes of the narrowest access to memory that threads share."""
  sizes = [4]
  for instruction in kernel.code:
    if instruction.root in ("ld", "st", "atom", "red", "ldmatrix", "stmatrix"):
      if instruction.types and "param" not in " ".join(instruction.modifiers):
        sizes.append(parse.type_to_dtype(instruction.types[-1]).itemsize)
  return min(sizes)
