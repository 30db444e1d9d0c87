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
"""Barriers, mbarriers, fences, and instructions that a whole warp executes."""

from __future__ import annotations

import dataclasses

import numpy as np

from oracles.ptx import loadstore
from oracles.ptx import operands
from oracles.ptx.parse import PtxError


@dataclasses.dataclass
class _NamedBarrier:
  arrivals: int
  needed: int | None
  waiting: np.ndarray
  members: np.ndarray


@dataclasses.dataclass
class _Rendezvous:
  """A warp instruction that waits for all its member lanes."""
  arrived: np.ndarray
  members: np.ndarray
  operation: object


@dataclasses.dataclass
class MBarrier:
  """An mbarrier object; `done` are the race detector's clocks per phase."""
  expected: int
  pending: int
  transactions: int = 0
  phase: int = 0
  done: object = None


class State:
  """Who waits for what in one CTA."""

  def __init__(self, cta):
    self._cta = cta
    self._named: dict[int, _NamedBarrier] = {}
    self._warp: dict[tuple, _Rendezvous] = {}
    self.mbarriers: dict[int, MBarrier] = {}
    self._waits: list[tuple[int, MBarrier, int, object]] = []
    self.cluster_arrived = np.zeros(cta.threads, np.bool_)
    self.cluster_waiting = np.zeros(cta.threads, np.bool_)

  # Named barriers ------------------------------------------------------------

  def arrive(self, number: int, needed: int | None, waits: bool):
    cta = self._cta
    none = np.zeros(cta.threads, np.bool_)
    barrier = self._named.setdefault(
        number, _NamedBarrier(0, needed, none, none))
    if barrier.needed != needed:
      raise PtxError(f"barrier {number} is used with {barrier.needed} and "
                     f"{needed} threads at once")
    barrier.arrivals += int(cta.mask.sum())
    barrier.members = barrier.members | cta.mask
    if waits:
      barrier.waiting = barrier.waiting | cta.mask
      cta.blocked = cta.blocked | cta.mask
    self._release_named(number)

  def _release_named(self, number: int):
    cta, barrier = self._cta, self._named[number]
    needed = barrier.needed
    if needed is None:
      needed = int((~cta.done | barrier.members).sum())
    if barrier.arrivals > needed:
      raise PtxError(f"{barrier.arrivals} threads arrived at barrier {number}, "
                     f"which takes {needed}")
    if barrier.arrivals == needed:
      cta.blocked = cta.blocked & ~barrier.waiting
      del self._named[number]
      detector = cta.grid.detector
      if detector is not None:
        key = ("barrier", cta.index, number)
        for column in cta.columns(np.flatnonzero(
            barrier.members & ~barrier.waiting)).tolist():
          detector.release(column, key)
        waiting = cta.columns(np.flatnonzero(barrier.waiting))
        if waiting.size:
          detector.acquire(int(waiting[0]), key)
          detector.join(waiting)

  # Warp instructions ---------------------------------------------------------

  def rendezvous(self, instruction, masks: np.ndarray, operation):
    """Runs `operation(cta)` once all lanes named by each mask are here."""
    cta = self._cta
    for warp in np.unique(cta.warp[cta.mask]).tolist():
      here = cta.mask & (cta.warp == warp)
      for mask in np.unique(masks[here]).tolist():
        chosen = here & (masks == mask)
        bits = (np.uint32(mask) >> cta.lane.astype(np.uint32)) & np.uint32(1)
        members = (cta.warp == warp) & (bits == 1)
        if (chosen & ~members).any():
          raise PtxError("a lane executes a warp instruction whose mask leaves "
                         "it out")
        key = (warp, mask, id(instruction))
        meeting = self._warp.setdefault(key, _Rendezvous(
            np.zeros(cta.threads, np.bool_), members, operation))
        meeting.arrived = meeting.arrived | chosen
        cta.blocked = cta.blocked | chosen
        self._release_warp(key)

  def _release_warp(self, key):
    cta, meeting = self._cta, self._warp[key]
    if (meeting.members & ~cta.done & ~meeting.arrived).any():
      return
    del self._warp[key]
    cta.blocked = cta.blocked & ~meeting.arrived
    saved = cta.mask, cta.full
    cta.mask, cta.full = meeting.arrived, bool(meeting.arrived.all())
    meeting.operation(cta)
    cta.mask, cta.full = saved

  def threads_left(self):
    """Some threads exited: those who waited for them may go on."""
    for number in list(self._named):
      self._release_named(number)
    for key in list(self._warp):
      self._release_warp(key)

  # mbarriers -----------------------------------------------------------------

  def mbarrier(self, offset: int) -> MBarrier:
    if offset not in self.mbarriers:
      raise PtxError(f"no mbarrier was initialised at shared offset {offset}")
    return self.mbarriers[offset]

  def key(self, offset: int):
    return ("mbarrier", self._cta.index, offset)

  def count_down(self, offset: int, arrivals: int = 0, transactions: int = 0):
    """Takes arrivals and completed bytes off; ends the phase at zero."""
    barrier = self.mbarrier(offset)
    barrier.pending -= arrivals
    barrier.transactions -= transactions
    if barrier.pending < 0:
      raise PtxError(f"too many arrivals at the mbarrier at offset {offset}")
    if barrier.pending == 0 and barrier.transactions == 0:
      barrier.pending = barrier.expected
      barrier.phase += 1
      if self._cta.grid.detector is not None:
        barrier.done = self._cta.grid.detector.snapshot(self.key(offset))
      self._wake()

  def wait(self, lane: int, offset: int, parity: int, on_done):
    self._waits.append((lane, self.mbarrier(offset), parity, on_done))

  def _wake(self):
    waits, self._waits = self._waits, []
    for lane, barrier, parity, on_done in waits:
      if barrier.phase & 1 != parity:
        on_done(lane, barrier)
      else:
        self._waits.append((lane, barrier, parity, on_done))


def _build_named_barrier(kernel, instruction):
  count = None
  number = operands.full_reader(kernel, instruction.operands[0], np.uint32)
  if len(instruction.operands) > 1:
    count = operands.full_reader(kernel, instruction.operands[1], np.uint32)
  waits = "arrive" not in instruction.modifiers

  def operation(cta):
    whole_mask, whole_full = cta.mask, cta.full
    for n in np.unique(number(cta)[whole_mask]).tolist():
      cta.mask = whole_mask & (number(cta) == n)
      needed = None if count is None else int(count(cta)[cta.mask][0])
      cta.sync.arrive(int(n), needed, waits)
    cta.mask, cta.full = whole_mask, whole_full
  return operation


def warp_operation(kernel, instruction, mask_operand, operation):
  masks = operands.full_reader(kernel, mask_operand, np.uint32)
  return lambda cta: cta.sync.rendezvous(instruction, masks(cta), operation)


def _warp_barrier(cta):
  if cta.grid.detector is not None:
    cta.grid.detector.join(cta.columns(np.flatnonzero(cta.mask)))


def _build_shuffle(kernel, instruction):
  mode = instruction.modifiers[1]
  destinations = [operands.writer(kernel, d.strip())
                  for d in instruction.operands[0].split("|")]
  value = operands.full_reader(kernel, instruction.operands[1], np.uint32)
  lane_arg = operands.full_reader(kernel, instruction.operands[2], np.uint32)
  clamp_arg = operands.full_reader(kernel, instruction.operands[3], np.uint32)

  def operation(cta):
    b = (lane_arg(cta) & 31).astype(np.int64)
    c = clamp_arg(cta).astype(np.int64)
    clamp, segment = c & 31, (c >> 8) & 31
    lane = cta.lane
    limit = (lane & segment) | (clamp & ~segment)
    low = lane & segment
    source = {"up": lane - b, "down": lane + b, "bfly": lane ^ b,
              "idx": low | (b & ~segment)}[mode]
    inside = source >= limit if mode == "up" else source <= limit
    source = cta.warp * 32 + np.where(inside, source, lane)
    source = np.clip(source, 0, cta.threads - 1)
    if (cta.mask & ~cta.mask[source]).any():
      raise PtxError("shuffle reads a lane that does not take part")
    values = value(cta)[source]
    for write, result in zip(destinations, (values, inside), strict=False):
      write(cta, result)
  return warp_operation(kernel, instruction, instruction.operands[4],
                         operation)


def _build_elect(kernel, instruction):
  index, predicate = [operands.writer(kernel, d.strip())
                      for d in instruction.operands[0].split("|")]

  def operation(cta):
    lanes = cta.lane[cta.mask]
    leader = lanes[cta.grid.leader_choice % len(lanes)]
    index(cta, np.full(cta.threads, leader, np.uint32))
    predicate(cta, cta.lane == leader)
  return warp_operation(kernel, instruction, instruction.operands[1],
                         operation)


def _build_vote(kernel, instruction):
  write = operands.writer(kernel, instruction.operands[0])
  source = operands.full_reader(kernel, instruction.operands[1], np.bool_)
  mode = instruction.modifiers[1]

  def operation(cta):
    votes = source(cta) & cta.mask
    match mode:
      case "ballot":
        bits = int(sum(1 << int(lane) for lane in cta.lane[votes]))
        write(cta, np.full(cta.threads, bits, np.uint32))
      case "any":
        write(cta, np.full(cta.threads, votes.any()))
      case "all":
        write(cta, np.full(cta.threads, (votes == cta.mask).all()))
      case "uni":
        same = votes[cta.mask]
        write(cta, np.full(cta.threads, same.all() or not same.any()))
      case _:
        raise PtxError(f"unsupported vote mode {mode}")
  return warp_operation(kernel, instruction, instruction.operands[2],
                         operation)


def _build_redux(kernel, instruction):
  type_name = instruction.types[-1]
  dtype = np.dtype(np.int32 if type_name[0] == "s" else np.uint32)
  write = operands.writer(kernel, instruction.operands[0])
  source = operands.full_reader(kernel, instruction.operands[1], dtype)
  reduce = {"add": np.add, "min": np.minimum, "max": np.maximum,
            "and": np.bitwise_and, "or": np.bitwise_or,
            "xor": np.bitwise_xor}[instruction.modifiers[1]].reduce

  def operation(cta):
    result = reduce(source(cta)[cta.mask])
    write(cta, np.full(cta.threads, result, dtype))
  return warp_operation(kernel, instruction, instruction.operands[2],
                         operation)


def _build_match(kernel, instruction):
  if instruction.modifiers[0] != "any":
    return None
  dtype = np.dtype(f"u{int(instruction.types[-1][1:]) // 8}")
  write = operands.writer(kernel, instruction.operands[0])
  source = operands.full_reader(kernel, instruction.operands[1], dtype)

  def operation(cta):
    result = np.zeros(cta.threads, np.uint32)
    lanes = np.flatnonzero(cta.mask)
    values = source(cta)
    for i in lanes:
      same = lanes[values[lanes] == values[i]]
      result[i] = sum(1 << int(cta.lane[j]) for j in same)
    write(cta, result)
  return warp_operation(kernel, instruction, instruction.operands[2],
                         operation)


def _build_activemask(kernel, instruction):
  write = operands.writer(kernel, instruction.operands[0])

  def operation(cta):
    result = np.zeros(cta.threads, np.uint32)
    for warp in np.unique(cta.warp):
      lanes = cta.lane[cta.mask & (cta.warp == warp)]
      result[cta.warp == warp] = sum(1 << int(lane) for lane in lanes)
    write(cta, result)
  return operation


def _build_matrix(kernel, instruction):
  """ldmatrix and stmatrix: 8x8 tiles of 16-bit items, rows by lane."""
  if "b16" not in instruction.modifiers:
    return None
  loads = instruction.root == "ldmatrix"
  vector, place = instruction.operands if loads else instruction.operands[::-1]
  names = operands.vector(vector)
  tiles, transposed = len(names), "trans" in instruction.modifiers
  address = operands.address(kernel, place)
  writers = [operands.writer(kernel, n) for n in names] if loads else []
  readers = [operands.full_reader(kernel, n, np.uint32) for n in names]
  space = loadstore.space_of(instruction)

  def rows_of(cta, first):
    lanes = np.arange(first, first + 8 * tiles)
    [(arena, _, offsets)] = loadstore.pieces(
        cta, space, address(cta)[lanes], lanes)
    arena.check(offsets, 16, 16, not loads, loadstore.describe(cta, lanes))
    return arena, lanes, offsets

  def operation(cta):
    warp = int(cta.warp[cta.mask][0])
    first = 32 * warp
    arena, lanes, offsets = rows_of(cta, first)
    fragments = slice(first, first + 32)
    if loads:
      loadstore.record(cta, arena, lanes, offsets, 16, instruction,
                       writes=False)
      items = arena.gather(offsets, np.dtype(np.uint16), 8).T.reshape(
          tiles, 8, 8)
      if transposed:
        items = items.transpose(0, 2, 1)
      for i, write in enumerate(writers):
        values = np.zeros(cta.threads, np.uint32)
        values[fragments] = np.ascontiguousarray(items[i]).view(
            np.uint32).reshape(32)
        write(cta, values)
      return
    items = np.stack([
        np.ascontiguousarray(r(cta)[fragments]).view(np.uint16).reshape(8, 8)
        for r in readers])
    if transposed:
      items = items.transpose(0, 2, 1)
    values = np.ascontiguousarray(items.reshape(8 * tiles, 8).T)
    if cta.grid.detector is not None:
      loadstore.record(cta, arena, lanes, offsets, 16, instruction,
                       writes=True,
                       changes=loadstore.changes(arena, offsets, values))
    arena.scatter(offsets, values)
  return warp_operation(kernel, instruction, "-1", operation)


def _build_fence(instruction):
  proxy = any("proxy" in m for m in instruction.modifiers)

  def operation(cta):
    detector = cta.grid.detector
    if detector is None:
      return
    columns = cta.columns(np.flatnonzero(cta.mask))
    if proxy:
      detector.proxy_fence(columns)
    elif "mbarrier_init" not in instruction.modifiers:
      detector.fence(columns)
  return operation


def _mbarrier_offsets(cta, address, instruction):
  """Yields (lane, state of the owning CTA, offset) of the active lanes."""
  lanes = np.flatnonzero(cta.mask)
  space = loadstore.space_of(instruction)
  for arena, chosen, offsets in loadstore.pieces(
      cta, space, address(cta)[lanes], lanes):
    arena.check(offsets, 8, 8, True, loadstore.describe(cta, chosen))
    for lane, offset in zip(chosen.tolist(), offsets.tolist(), strict=True):
      yield lane, arena.owner.sync, offset


def _build_mbarrier_arrive(kernel, instruction):
  mods, arguments = instruction.modifiers, list(instruction.operands)
  expects = "expect_tx" in mods
  arrives = "arrive" in mods
  token = None
  if arrives and not arguments[0].startswith("["):
    token = operands.writer(kernel, arguments.pop(0))
  address = operands.address(kernel, arguments[0])
  amount = operands.full_reader(
      kernel, arguments[1] if len(arguments) > 1 else "1", np.uint32)

  def operation(cta):
    for lane, state, offset in _mbarrier_offsets(cta, address, instruction):
      if cta.grid.detector is not None and arrives:
        cta.grid.detector.release(int(cta.columns(lane)), state.key(offset))
      n = int(amount(cta)[lane])
      if expects:
        state.mbarrier(offset).transactions += n
      state.count_down(offset, arrivals=(1 if expects else n) if arrives else 0)
    if token is not None:
      # Waiting on a token is refused where it is tried: waits name a parity.
      token(cta, np.zeros(cta.threads, np.uint64))
  return operation


def _build_mbarrier_wait(kernel, instruction):
  if "parity" not in instruction.modifiers:
    return None
  predicate = instruction.operands[0]
  write = operands.writer(kernel, predicate)
  address = operands.address(kernel, instruction.operands[1])
  parity = operands.full_reader(kernel, instruction.operands[2], np.uint32)
  blocks = "try_wait" in instruction.modifiers

  def seen(cta, lane, barrier):
    if cta.grid.detector is not None:
      cta.grid.detector.acquire_snapshot(int(cta.columns(lane)), barrier.done)

  def operation(cta):
    ready = np.zeros(cta.threads, np.bool_)
    for lane, state, offset in _mbarrier_offsets(cta, address, instruction):
      barrier = state.mbarrier(offset)
      want = int(parity(cta)[lane]) & 1
      if barrier.phase & 1 != want:
        ready[lane] = True
        seen(cta, lane, barrier)
      elif blocks:
        # Hardware may suspend the thread: never a reason to spin here.
        def on_done(lane, barrier):
          seen(cta, lane, barrier)
          flags = cta.registers[predicate].copy()
          flags[lane] = True
          cta.registers[predicate] = flags
          cta.blocked[lane] = False
        cta.blocked = cta.blocked | (np.arange(cta.threads) == lane)
        state.wait(lane, offset, want, on_done)
    write(cta, ready)
  return operation


def _build_mbarrier_init(kernel, instruction):
  address = operands.address(kernel, instruction.operands[0])
  if instruction.modifiers[0] == "inval":
    def invalidate(cta):
      for _, state, offset in _mbarrier_offsets(cta, address, instruction):
        del state.mbarriers[offset]
    return invalidate
  count = operands.full_reader(kernel, instruction.operands[1], np.uint32)

  def operation(cta):
    for lane, state, offset in _mbarrier_offsets(cta, address, instruction):
      n = int(count(cta)[lane])
      state.mbarriers[offset] = MBarrier(n, n)
  return operation


def _cluster_barrier(instruction):
  arrive = "arrive" in instruction.modifiers

  def release(cta):
    grid = cta.grid
    peers = [grid.cluster_peer(cta, r) for r in range(
        int(np.prod(grid.cluster)))]
    if not all((p.sync.cluster_arrived | p.done).all() for p in peers):
      return
    if not all((p.sync.cluster_waiting | p.done).all() for p in peers):
      return
    if grid.detector is not None:
      grid.detector.join(np.concatenate([
          p.columns(np.flatnonzero(p.sync.cluster_arrived)) for p in peers]))
    for p in peers:
      p.blocked = p.blocked & ~p.sync.cluster_waiting
      p.sync.cluster_arrived = np.zeros(p.threads, np.bool_)
      p.sync.cluster_waiting = np.zeros(p.threads, np.bool_)

  def operation(cta):
    state = cta.sync
    if arrive:
      if (state.cluster_arrived & cta.mask).any():
        raise PtxError("a thread arrives twice at the cluster barrier")
      state.cluster_arrived = state.cluster_arrived | cta.mask
    else:
      state.cluster_waiting = state.cluster_waiting | cta.mask
      cta.blocked = cta.blocked | cta.mask
    release(cta)
  return operation


def build(kernel, instruction):
  """Compiles one instruction, or returns None if it is not of this kind."""
  mods = instruction.modifiers
  match instruction.root:
    case "bar" | "barrier" if "cluster" in mods:
      return _cluster_barrier(instruction)
    case "bar" | "barrier" if "warp" in mods:
      return warp_operation(kernel, instruction, instruction.operands[0],
                             _warp_barrier)
    case "bar" | "barrier" if "red" not in mods:
      return _build_named_barrier(kernel, instruction)
    case "shfl":
      return _build_shuffle(kernel, instruction)
    case "elect":
      return _build_elect(kernel, instruction)
    case "vote":
      return _build_vote(kernel, instruction)
    case "redux" if instruction.types[-1] in ("u32", "s32", "b32"):
      return _build_redux(kernel, instruction)
    case "match":
      return _build_match(kernel, instruction)
    case "activemask":
      return _build_activemask(kernel, instruction)
    case "ldmatrix" | "stmatrix":
      return _build_matrix(kernel, instruction)
    case "fence" | "membar":
      return _build_fence(instruction)
    case "mbarrier" if mods[0] in ("arrive", "expect_tx"):
      return _build_mbarrier_arrive(kernel, instruction)
    case "mbarrier" if mods[0] in ("try_wait", "test_wait"):
      return _build_mbarrier_wait(kernel, instruction)
    case "mbarrier" if mods[0] in ("init", "inval"):
      return _build_mbarrier_init(kernel, instruction)
  return None
