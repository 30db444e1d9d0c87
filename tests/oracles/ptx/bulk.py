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
"""Asynchronous copies: they take effect some time after they were issued."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import re

import numpy as np

from oracles.ptx import loadstore
from oracles.ptx import memory
from oracles.ptx import operands
from oracles.ptx.parse import PtxError


@dataclasses.dataclass(eq=False)
class Copy:
  """One copy; `run` moves the bytes, `finish` tells whoever waits."""
  run: Callable[[], None]
  finish: Callable[[], None]
  done: bool = False


class InFlight:
  """The copies of a grid that have not taken effect yet."""

  def __init__(self, grid):
    self._grid = grid
    self._pending: list[Copy] = []
    self._open: dict[tuple, list[Copy]] = {}
    self._groups: dict[tuple, list[list[Copy]]] = {}

  def add(self, copy: Copy, group: tuple | None):
    self._pending.append(copy)
    if group is not None:
      self._open.setdefault(group, []).append(copy)

  def commit(self, group: tuple):
    self._groups.setdefault(group, []).append(self._open.pop(group, []))

  def _complete(self, copy: Copy):
    if not copy.done:
      copy.done = True
      self._pending.remove(copy)
      copy.run()
      copy.finish()

  def wait(self, group: tuple, keep: int):
    """Completes all groups but the last `keep`."""
    groups = self._groups.get(group, [])
    while len(groups) > keep:
      for copy in groups.pop(0):
        self._complete(copy)

  def advance_one(self) -> bool:
    """Completes one copy, if there is one: the oldest, or any if seeded."""
    if not self._pending:
      return False
    pick = 0
    if self._grid.seeded:
      pick = int(self._grid.rng.integers(len(self._pending)))
    self._complete(self._pending[pick])
    return True


def _ends(instruction) -> tuple[str, str]:
  """State spaces of (destination, source)."""
  spaces = [m for m in instruction.modifiers
            if m.split("::")[0] in ("shared", "global")]
  return spaces[0], spaces[1]


def _one(cta, space, address, lane, nbytes, writes, alignment):
  """The (arena, offset) of one access, checked."""
  lanes = np.array([lane])
  [(arena, _, offsets)] = loadstore.pieces(
      cta, space, np.array([address]), lanes)
  arena.check(offsets, nbytes, alignment, writes,
              lambda bad: f"bulk copy by {cta.describe(lane)}")
  return arena, int(offsets[0])


class Issue:
  """What a copy needs to know of its issue: who, and at which clocks."""

  def __init__(self, cta, lane, instruction, async_proxy=True):
    self.cta, self.lane, self.instruction = cta, lane, instruction
    self.detector = cta.grid.detector
    if self.detector is not None:
      self.agent, self.clocks = self.detector.start_copy(
          cta.index, int(cta.columns(lane)))
      if not async_proxy:
        self.clocks = np.stack([self.clocks[0], self.clocks[0]])

  def record(self, arena, offset, nbytes, writes):
    if self.detector is not None:
      self.detector.access(
          arena, np.array([self.agent]), np.array([offset]), nbytes,
          writes=writes, clocks=self.clocks, text=self.instruction.text)

  def finish(self, key):
    if self.detector is not None:
      self.detector.finish_copy(self.agent, self.clocks, key)


def _completion(cta, instruction, lane, issue, barrier_address, nbytes):
  """(group, finish): a bulk group of the thread, or an mbarrier."""
  if barrier_address is None:
    group = ("bulk", cta.index, lane)
    return group, lambda: issue.finish(group)
  arena, offset = _one(cta, "shared", int(barrier_address), lane, 8, True, 8)
  state = arena.owner.sync
  state.mbarrier(offset)

  def finish():
    issue.finish(state.key(offset))
    state.count_down(offset, transactions=nbytes)
  del instruction
  return None, finish


def _build_linear(kernel, instruction):
  destination_space, source_space = _ends(instruction)
  destination = operands.address(kernel, instruction.operands[0])
  source = operands.address(kernel, instruction.operands[1])
  size = operands.full_reader(kernel, instruction.operands[2], np.uint32)
  barrier = None
  if "mbarrier::complete_tx::bytes" in instruction.modifiers:
    barrier = operands.address(kernel, instruction.operands[3])

  def operation(cta):
    for lane in np.flatnonzero(cta.mask).tolist():
      nbytes = int(size(cta)[lane])
      if nbytes % 16:
        raise PtxError(f"bulk copy of {nbytes} bytes, not a multiple of 16")
      to, at = _one(cta, destination_space, int(destination(cta)[lane]), lane,
                    nbytes, True, 16)
      frm, start = _one(cta, source_space, int(source(cta)[lane]), lane, nbytes,
                        False, 16)
      issue = Issue(cta, lane, instruction)

      def run(to=to, at=at, frm=frm, start=start, nbytes=nbytes, issue=issue):
        issue.record(frm, start, nbytes, False)
        issue.record(to, at, nbytes, True)
        to.data[at: at + nbytes] = frm.data[start: start + nbytes]
      group, finish = _completion(
          cta, instruction, lane, issue,
          None if barrier is None else barrier(cta)[lane], nbytes)
      cta.grid.copies.add(Copy(run, finish), group)
  return operation


def _tensor_map(cta, lane: int, address: int):
  lanes = np.array([lane])
  [(arena, _, offsets)] = loadstore.pieces(
      cta, "generic", np.array([address]), lanes)
  arena.check(offsets, 128, 64, False, loadstore.describe(cta, lanes))
  index = int(arena.gather(offsets, np.dtype(np.uint64), 1)[0, 0])
  return cta.grid.tensor_maps[index]


def _swizzled(offset: int, swizzle: int) -> int:
  """Where a byte at `offset` of shared memory goes under a swizzle of bytes."""
  return offset ^ ((offset >> 7) & (swizzle // 16 - 1)) << 4


def _tile_rows(tensor_map, coordinates):
  """Yields (global address or None, first item, items) of each tile row.

  The row's items in [first, first + items) exist; what lies outside the
  tensor reads as zero and is not written.
  """
  inner = tensor_map.box[0]
  first = max(0, -coordinates[0])
  items = max(0, min(inner, tensor_map.shape[0] - coordinates[0]) - first)
  for outer in np.ndindex(*tensor_map.box[:0:-1]):
    outer = outer[::-1]
    address = tensor_map.address + (
        coordinates[0] + first) * tensor_map.itemsize
    inside = items > 0
    for i, extra in enumerate(outer, start=1):
      position = coordinates[i] + extra
      inside = inside and 0 <= position < tensor_map.shape[i]
      address += position * tensor_map.strides[i]
    yield (address if inside else None), first, items


def _build_tensor(kernel, instruction):
  destination_space, source_space = _ends(instruction)
  loads = source_space == "global"
  tensor, shared = instruction.operands[1::-1] if loads else (
      instruction.operands[:2])
  match = re.fullmatch(r"\[\s*([^,\s]+)\s*,\s*\{(.*?)\}\s*\]", tensor, re.S)
  if not match:
    return None
  descriptor = operands.full_reader(kernel, match.group(1), np.uint64)
  coordinates = [operands.full_reader(kernel, c.strip(), np.int32)
                 for c in match.group(2).split(",")]
  shared_address = operands.address(kernel, shared)
  barrier = operands.address(kernel, instruction.operands[2]) if loads else None
  shared_space = destination_space if loads else source_space

  def operation(cta):
    for lane in np.flatnonzero(cta.mask).tolist():
      tensor_map = _tensor_map(cta, lane, int(descriptor(cta)[lane]))
      at = [int(c(cta)[lane]) for c in coordinates]
      nbytes = int(np.prod(tensor_map.box)) * tensor_map.itemsize
      arena, start = _one(cta, shared_space, int(shared_address(cta)[lane]),
                          lane, nbytes, loads, 128)
      issue = Issue(cta, lane, instruction)

      def run(tensor_map=tensor_map, at=at, arena=arena, start=start,
              nbytes=nbytes, issue=issue):
        _run_tensor(cta.grid, tensor_map, at, arena, start, nbytes, issue,
                    loads)
      group, finish = _completion(
          cta, instruction, lane, issue,
          barrier(cta)[lane] if loads else None, nbytes)
      cta.grid.copies.add(Copy(run, finish), group)
  return operation


def _run_tensor(grid, tensor_map, at, arena, start, nbytes, issue, loads):
  row_bytes = tensor_map.box[0] * tensor_map.itemsize
  issue.record(arena, start, nbytes, loads)
  for r, (address, first, items) in enumerate(_tile_rows(tensor_map, at)):
    places = start + r * row_bytes + np.arange(row_bytes)
    if tensor_map.swizzle > 16:
      places = np.array([_swizzled(int(p), tensor_map.swizzle)
                         for p in places])
    low, count = first * tensor_map.itemsize, items * tensor_map.itemsize
    if loads:
      arena.data[places] = 0
    if address is None:
      continue
    offset = address - memory.GLOBAL_BASE
    grid.device.check(np.array([offset]), count, 1, not loads,
                      lambda bad: "tensor copy")
    issue.record(grid.device, offset, count, not loads)
    chosen = places[low: low + count]
    if loads:
      arena.data[chosen] = grid.device.data[offset: offset + count]
    else:
      grid.device.data[offset: offset + count] = arena.data[chosen]


def _build_thread_copy(kernel, instruction):
  """cp.async of 4, 8 or 16 bytes per thread, ordered as generic accesses."""
  destination = operands.address(kernel, instruction.operands[0])
  source = operands.address(kernel, instruction.operands[1])
  nbytes = int(instruction.operands[2], 0)
  given = None
  if len(instruction.operands) > 3:
    given = operands.full_reader(kernel, instruction.operands[3], np.uint32)

  def operation(cta):
    for lane in np.flatnonzero(cta.mask).tolist():
      take = nbytes if given is None else int(given(cta)[lane])
      to, at = _one(cta, "shared", int(destination(cta)[lane]), lane, nbytes,
                    True, nbytes)
      frm, start = None, 0
      if take:
        frm, start = _one(cta, "global", int(source(cta)[lane]), lane, take,
                          False, take)
      issue = Issue(cta, lane, instruction, async_proxy=False)
      group = ("thread", cta.index, lane)

      def run(to=to, at=at, frm=frm, start=start, take=take, issue=issue):
        issue.record(to, at, nbytes, True)
        to.data[at: at + nbytes] = 0
        if take:
          issue.record(frm, start, take, False)
          to.data[at: at + take] = frm.data[start: start + take]
      cta.grid.copies.add(
          Copy(run, lambda issue=issue, group=group: issue.finish(group)),
          group)
  return operation


def _build_group(kernel, instruction, kind):
  keep = None
  if "wait_group" in instruction.modifiers:
    keep = operands.full_reader(kernel, instruction.operands[0], np.uint32)
  wait_all = "wait_all" in instruction.modifiers

  def operation(cta):
    copies = cta.grid.copies
    for lane in np.flatnonzero(cta.mask).tolist():
      group = (kind, cta.index, lane)
      if keep is None:
        copies.commit(group)
      if keep is not None or wait_all:
        copies.wait(group, 0 if wait_all else int(keep(cta)[lane]))
        if cta.grid.detector is not None:
          cta.grid.detector.acquire(int(cta.columns(lane)), group)
  return operation


def build(kernel, instruction):
  """Compiles one instruction, or returns None if it is not of this kind."""
  mods = instruction.modifiers
  if instruction.root != "cp" or mods[0] != "async":
    return None
  kind = "bulk" if "bulk" in mods else "thread"
  if {"commit_group", "wait_group", "wait_all"} & set(mods):
    return _build_group(kernel, instruction, kind)
  if "prefetch" in mods or any("multicast" in m for m in mods):
    return None
  if "mbarrier" in mods:
    return None
  if "tensor" in mods:
    if any("im2col" in m for m in mods):
      return None
    return _build_tensor(kernel, instruction)
  if "bulk" in mods:
    return _build_linear(kernel, instruction)
  return _build_thread_copy(kernel, instruction)
