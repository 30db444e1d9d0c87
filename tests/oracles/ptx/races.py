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
"""Finds data races: two threads, one location, one a write, nothing between.

Happens-before is tracked with vector clocks, after FastTrack (Flanagan and
Freund, PLDI 2009), extended by what PTX adds: release and acquire patterns made
of relaxed atomics and fences, atomics of too narrow a scope, and the async
proxy (bulk copies), which sees a generic write only past a proxy fence.

Each thread owns a column in the clocks, and so do a few agents per CTA that
stand for its bulk copies in flight.  A store that does not change memory is
treated as a read: replicated layouts store one value from many threads, and no
observer can tell.
"""

from __future__ import annotations

import dataclasses

import numpy as np

AGENTS_PER_CTA = 4

SCOPES = {"cta": 1, "cluster": 2, "gpu": 3, "sys": 4}


@dataclasses.dataclass(frozen=True)
class Race:
  """Two conflicting accesses; threads count through the grid."""

  space: str
  offset: int
  kind: str
  threads: tuple[int, int]
  text: str

  def __str__(self):
    return (f"{self.kind} race on {self.space} byte {self.offset} between "
            f"threads {self.threads[0]} and {self.threads[1]}: {self.text}")


class _Shadow:
  """What is remembered of each granule of an arena."""

  def __init__(self, granules: int, columns: int):
    self.writer = np.full(granules, -1, np.int32)
    self.write_clock = np.zeros(granules, np.int32)
    # Untouched pages of a zeros array cost nothing.
    self.reads = np.zeros((granules, columns), np.int32)
    self.atomics = np.zeros((granules, columns), np.int32)
    # Who has stored the very value that is there: reading it back is no race.
    self.stored = np.zeros((granules, columns), np.bool_)
    self.any_read = np.zeros(granules, np.bool_)
    self.any_atomic = np.zeros(granules, np.bool_)
    self.narrow_cta = np.full(granules, -1, np.int32)
    self.last_atomic_cta = np.full(granules, -1, np.int32)

  def grow(self, granules: int):
    for name, old in list(vars(self).items()):
      if len(old) < granules:
        new = np.zeros((granules, *old.shape[1:]), old.dtype)
        new[len(old):] = -1 if name in (
            "writer", "narrow_cta", "last_atomic_cta") else 0
        new[: len(old)] = old
        setattr(self, name, new)


class Detector:
  """Vector clocks of one launch.

  Args:
    ctas: how many CTAs there are.
    threads_per_cta: how many threads each has.
    granule: bytes per shadow cell; no access is smaller.
  """

  def __init__(self, ctas: int, threads_per_cta: int, granule: int):
    self._per_cta = threads_per_cta + AGENTS_PER_CTA
    self._threads_per_cta = threads_per_cta
    columns = ctas * self._per_cta
    self._granule = granule
    self._columns = columns
    # now[0] orders generic accesses, now[1] is what the async proxy may see.
    self._now = np.zeros((2, columns, columns), np.int32)
    self._diagonal = np.arange(columns)
    self._now[0, self._diagonal, self._diagonal] = 1
    self._is_agent = (self._diagonal % self._per_cta) >= threads_per_cta
    self._locations = {}
    self._fenced = {}
    self._pending = {}
    self._next_agent = np.zeros(ctas, np.int64)
    self.races: dict[tuple, Race] = {}

  def column(self, cta: int, thread):
    return cta * self._per_cta + thread

  def _cta_of(self, columns):
    return columns // self._per_cta

  # Synchronisation -----------------------------------------------------------

  def _tick(self, columns):
    self._now[0, columns, columns] += 1

  def join(self, columns: np.ndarray):
    """A barrier: all of `columns` wait for each other."""
    self._now[:, columns] = self._now[:, columns].max(axis=1, keepdims=True)
    self._tick(columns)

  def release(self, column: int, key):
    """`column` publishes what it has seen at location `key`."""
    self._publish(key, self._now[:, column])
    self._tick(column)

  def _publish(self, key, clocks):
    old = self._locations.get(key)
    self._locations[key] = (
        clocks.copy() if old is None else np.maximum(old, clocks))

  def acquire(self, column: int, key):
    """`column` sees what was published at location `key`."""
    clocks = self._locations.get(key)
    if clocks is not None:
      self._now[:, column] = np.maximum(self._now[:, column], clocks)

  def snapshot(self, key):
    """The clocks published at `key`, to be used by `acquire_snapshot`."""
    return self._locations.get(key)

  def acquire_snapshot(self, column: int, clocks):
    if clocks is not None:
      self._now[:, column] = np.maximum(self._now[:, column], clocks)

  def fence(self, columns: np.ndarray):
    """A fence of acq_rel or sc semantics: upgrades relaxed atomics around."""
    for column in columns.tolist():
      pending = self._pending.pop(column, None)
      if pending is not None:
        self._now[:, column] = np.maximum(self._now[:, column], pending)
      self._fenced[column] = self._now[:, column].copy()
    self._tick(columns)

  def proxy_fence(self, columns: np.ndarray):
    """Makes what `columns` have seen visible to the async proxy."""
    self._now[1, columns] = np.maximum(self._now[1, columns],
                                       self._now[0, columns])

  def strong(self, column: int, key, sem: str, reads: bool, writes: bool,
             rmw: bool):
    """Orders by one atomic (or strong load or store) at location `key`."""
    clocks = self._locations.get(key)
    if reads and clocks is not None:
      if sem in ("acquire", "acq_rel"):
        self._now[:, column] = np.maximum(self._now[:, column], clocks)
      else:
        old = self._pending.get(column)
        self._pending[column] = (
            clocks if old is None else np.maximum(old, clocks))
    if writes:
      if not rmw:
        self._locations.pop(key, None)  # Ends the release sequence.
      if sem in ("release", "acq_rel"):
        self.release(column, key)
      elif column in self._fenced:
        self._publish(key, self._fenced[column])

  # Bulk copies ---------------------------------------------------------------

  def start_copy(self, cta: int, column: int) -> tuple[int, np.ndarray]:
    """A copy issued by `column`: returns its agent and its clocks."""
    agent = self.column(cta, self._threads_per_cta
                        + int(self._next_agent[cta]) % AGENTS_PER_CTA)
    self._next_agent[cta] += 1
    self._now[:, agent] = np.maximum(self._now[:, agent], self._now[:, column])
    self._tick(agent)
    return agent, self._now[:, agent].copy()

  def finish_copy(self, agent: int, clocks: np.ndarray, key):
    """The end of a copy is published at location `key`."""
    del agent  # Its column is already part of the clocks.
    # What the copy wrote needs no proxy fence to be seen by either proxy.
    self._publish(key, clocks)

  # Accesses ------------------------------------------------------------------

  def _cells(self, arena, columns, offsets, nbytes):
    per = -(-nbytes // self._granule)
    cells = (offsets[:, None] // self._granule + np.arange(per)).ravel()
    if arena.shadow is None:
      arena.shadow = _Shadow(len(arena.data) // self._granule, self._columns)
    arena.shadow.grow(len(arena.data) // self._granule)
    return arena.shadow, cells, np.repeat(columns, per)

  def _report(self, kind, arena, cells, bad, mine, theirs, text):
    if bad.any():
      i = int(np.flatnonzero(bad)[0])
      me, other = int(mine[i]), int(theirs[i])
      strip = lambda c: int(self._cta_of(c) * self._threads_per_cta
                            + c % self._per_cta)
      race = Race(arena.name, int(cells[i]) * self._granule, kind,
                  (strip(me), strip(other)), text)
      self.races.setdefault((kind, arena.name, text), race)

  def _unordered(self, matrix, cells, mine, seen):
    """For each cell, whether some other column's entry is not yet seen."""
    late = matrix[cells] > seen
    late[np.arange(len(cells)), mine] = False
    return late.any(axis=1), late.argmax(axis=1)

  def access(self, arena, columns: np.ndarray, offsets: np.ndarray, nbytes: int,
             *, writes: bool, changes: np.ndarray | None = None,
             atomic_scope: int = 0, clocks: np.ndarray | None = None,
             text: str):
    """Records one access per lane and reports what it races with.

    Args:
      arena: memory accessed.
      columns: whose access it is, per lane.
      offsets: byte offset per lane.
      nbytes: bytes per lane.
      writes: whether it may write.
      changes: per lane, whether the bytes written differ from those there.
      atomic_scope: 0 for a weak access, else one of SCOPES.
      clocks: for a bulk copy, the clocks it was issued at.
      text: the instruction.
    """
    shadow, cells, mine = self._cells(arena, columns, offsets, nbytes)
    per = len(cells) // max(len(offsets), 1)
    if changes is not None:
      changes = np.repeat(changes, per)
    if clocks is None:
      generic = proxied = self._now[0][mine]
    else:
      generic, proxied = clocks[0][None], clocks[1][None]
    writer = shadow.writer[cells]
    rows = np.arange(len(cells)) if clocks is None else np.zeros(
        len(cells), np.int64)
    # A bulk copy sees a generic write past a proxy fence only.
    seen = np.where(self._is_agent[np.maximum(writer, 0)],
                    generic[rows, np.maximum(writer, 0)],
                    proxied[rows, np.maximum(writer, 0)])
    bad = ((writer >= 0) & (writer != mine)
           & (shadow.write_clock[cells] > seen))
    if writes and not atomic_scope and changes is not None:
      harmless = ~changes
    else:
      harmless = np.zeros(len(cells), np.bool_)
    if not writes:
      harmless = shadow.stored[cells, mine]
    kind = "write-write" if writes else "write-read"
    self._report(kind, arena, cells, bad & ~harmless, mine, writer, text)

    if not atomic_scope:
      unsafe = shadow.any_atomic[cells] & (~harmless if writes else True)
      sub = np.flatnonzero(unsafe)
      if sub.size:
        known = proxied if clocks is not None else generic[sub]
        bad, who = self._unordered(shadow.atomics, cells[sub], mine[sub], known)
        self._report("atomic-plain", arena, cells[sub], bad, mine[sub], who,
                     text)
    else:
      my_cta = self._cta_of(mine)
      last, narrow = shadow.last_atomic_cta[cells], shadow.narrow_cta[cells]
      bad = (narrow >= 0) & (narrow != my_cta)
      if atomic_scope == SCOPES["cta"]:
        bad |= (last >= 0) & (last != my_cta)
      self._report("narrow-scope atomic", arena, cells, bad, mine, mine, text)
    if writes:
      sub = np.flatnonzero(shadow.any_read[cells] & ~harmless)
      if sub.size:
        known = generic if clocks is not None else generic[sub]
        bad, who = self._unordered(shadow.reads, cells[sub], mine[sub], known)
        self._report("read-write", arena, cells[sub], bad, mine[sub], who, text)

    stamp = (self._now[0, mine, mine] if clocks is None
             else clocks[0][mine])
    if atomic_scope:
      if writes:
        shadow.stored[cells] = False
      shadow.atomics[cells, mine] = stamp
      shadow.any_atomic[cells] = True
      shadow.last_atomic_cta[cells] = self._cta_of(mine)
      if atomic_scope == SCOPES["cta"]:
        shadow.narrow_cta[cells] = self._cta_of(mine)
    elif writes:
      real = ~harmless
      self._same_instruction(arena, cells[real], mine[real], text,
                             None if changes is None else changes[real])
      shadow.stored[cells[real]] = False
      shadow.stored[cells, mine] = True
      shadow.writer[cells[real]] = mine[real]
      shadow.write_clock[cells[real]] = stamp[real]
      shadow.reads[cells[harmless], mine[harmless]] = stamp[harmless]
      shadow.any_read[cells[harmless]] = True
    else:
      shadow.reads[cells, mine] = stamp
      shadow.any_read[cells] = True

  def _same_instruction(self, arena, cells, mine, text, changes):
    del changes  # All of these change memory.
    order = np.argsort(cells, kind="stable")
    twice = np.flatnonzero(np.diff(cells[order]) == 0)
    if twice.size:
      a, b = order[twice], order[twice + 1]
      self._report("write-write", arena, cells[a], mine[a] != mine[b], mine[a],
                   mine[b], text)
