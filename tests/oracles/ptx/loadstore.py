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
"""Loads, stores, atomics, and conversions between address windows."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np

from oracles.ptx import alu
from oracles.ptx import memory
from oracles.ptx import operands
from oracles.ptx import parse
from oracles.ptx import races

_SPACES = ("global", "shared", "local", "param", "const")


def space_of(instruction) -> str:
  """The state space named first, with its qualifier; or "generic"."""
  for modifier in instruction.modifiers:
    if modifier.split("::")[0] in _SPACES:
      return modifier
  return "generic"


def _shared_pieces(cta, lanes, offsets):
  rank = offsets >> memory.RANK_SHIFT
  within = offsets & ((1 << memory.RANK_SHIFT) - 1)
  pieces = []
  for r in np.unique(rank):
    owner = cta if r == 0 else cta.grid.cluster_peer(cta, int(r) - 1)
    chosen = rank == r
    pieces.append((owner.shared, lanes[chosen], within[chosen]))
  return pieces


def pieces(cta, space: str, addresses: np.ndarray, lanes: np.ndarray):
  """Splits accesses by the memory they fall in: [(arena, lanes, offsets)]."""
  root = space.split("::")[0]
  if root == "param":
    return [(cta.grid.parameters, lanes, addresses)]
  if root == "shared":
    return _shared_pieces(cta, lanes, addresses)
  if root == "local":
    return [(cta.local, lanes, addresses + _local_start(cta, lanes))]
  if root in ("global", "const"):
    return [(cta.grid.device, lanes, addresses - memory.GLOBAL_BASE)]
  found = []
  windows = [(memory.LOCAL_BASE, memory.PARAM_BASE),
             (memory.PARAM_BASE, memory.SHARED_BASE),
             (memory.SHARED_BASE, 1 << 62), (-(1 << 62), memory.LOCAL_BASE)]
  names = ("local", "param", "shared", "global")
  for name, (low, high) in zip(names, windows, strict=True):
    chosen = (addresses >= low) & (addresses < high)
    if chosen.any():
      base = 0 if name == "global" else low
      found += pieces(cta, name, addresses[chosen] - base, lanes[chosen])
  return found


def _local_start(cta, lanes):
  return lanes * (len(cta.local.data) // cta.threads)


def describe(cta, lanes):
  return lambda bad: cta.describe(int(lanes[bad][0]))


def _shared_by_threads(arena) -> bool:
  return arena.name != "parameters" and arena.name != "local memory"


def record(cta, arena, lanes, offsets, nbytes, instruction, **kwargs):
  """Tells the race detector, if there is one, of an access."""
  detector = cta.grid.detector
  if detector is not None and _shared_by_threads(arena):
    detector.access(arena, cta.columns(lanes), offsets, nbytes,
                    text=instruction.text, **kwargs)


def _semantics(instruction):
  """(ordering, scope) of a strong access, or None for a weak one."""
  mods = instruction.modifiers
  for sem in ("acq_rel", "acquire", "release", "relaxed"):
    if sem in mods:
      break
  else:
    if instruction.root in ("atom", "red"):
      sem = "relaxed"
    elif "volatile" in mods:
      return "relaxed", races.SCOPES["sys"]
    else:
      return None
  scope = next((m for m in mods if m in races.SCOPES), "gpu")
  return sem, races.SCOPES[scope]


def order(cta, arena, lanes, offsets, instruction, *, reads, writes, rmw):
  """Applies the ordering of a strong access; returns its scope, 0 if weak."""
  semantics = _semantics(instruction)
  if semantics is None:
    return 0
  if cta.grid.detector is not None:
    for column, offset in zip(cta.columns(lanes).tolist(), offsets.tolist(),
                              strict=True):
      cta.grid.detector.strong(column, (id(arena), offset), semantics[0],
                               reads, writes, rmw)
  return semantics[1]


def _param_address(kernel, text):
  """`[name+4]`, where the name is a parameter and no register."""
  match = re.fullmatch(
      r"\[\s*([A-Za-z_$][\w$]*)\s*(?:\+\s*(\d+))?\s*\]", text)
  if not match or match.group(1) in kernel.registers:
    return None
  return match.group(1), int(match.group(2) or 0)


def _address_reader(kernel, text):
  named = _param_address(kernel, text)
  if named is None:
    return operands.address(kernel, text)
  name, offset = named
  return lambda cta: np.full(cta.threads, cta.symbols[name] + offset, np.int64)


def _build_load(kernel, instruction):
  type_name = instruction.types[-1]
  dtype = parse.storage_dtype(type_name)
  signed = type_name[0] == "s"
  destinations = operands.vector(instruction.operands[0])
  writers = [operands.writer(kernel, d) for d in destinations]
  address = _address_reader(kernel, instruction.operands[1])
  space, count = space_of(instruction), len(destinations)
  nbytes = dtype.itemsize * count

  def operation(cta):
    lanes = np.flatnonzero(cta.mask)
    out = np.zeros((count, cta.threads), dtype)
    for arena, chosen, offsets in pieces(cta, space, address(cta)[lanes],
                                         lanes):
      arena.check(offsets, nbytes, nbytes, False, describe(cta, chosen))
      scope = order(cta, arena, chosen, offsets, instruction, reads=True,
                    writes=False, rmw=False)
      record(cta, arena, chosen, offsets, nbytes, instruction, writes=False,
             atomic_scope=scope)
      out[:, chosen] = arena.gather(offsets, dtype, count)
    for write, values in zip(writers, out, strict=True):
      write(cta, values.view(f"i{dtype.itemsize}") if signed else values)
  return operation


def shuffled(cta, count: int) -> np.ndarray:
  """The order in which simultaneous accesses of `count` lanes take effect."""
  if cta.grid.seeded:
    return cta.rng.permutation(count)
  return np.arange(count)


def changes(arena, offsets, values) -> np.ndarray:
  """Per lane, whether storing changes memory, lanes stored in order."""
  raw = np.ascontiguousarray(values.T).view(np.uint8)
  _, first, inverse = np.unique(offsets, return_index=True,
                                return_inverse=True)
  before = arena.data[offsets[:, None] + np.arange(raw.shape[1])]
  leader = first[inverse]
  is_leader = leader == np.arange(len(offsets))
  expected = np.where(is_leader[:, None], before, raw[leader])
  return (raw != expected).any(axis=1)


def _build_store(kernel, instruction):
  dtype = parse.storage_dtype(instruction.types[-1])
  sources = operands.vector(instruction.operands[1])
  readers = [operands.full_reader(kernel, s, dtype) for s in sources]
  address = _address_reader(kernel, instruction.operands[0])
  space, count = space_of(instruction), len(sources)
  nbytes = dtype.itemsize * count

  def operation(cta):
    lanes = np.flatnonzero(cta.mask)
    lanes = lanes[shuffled(cta, len(lanes))]
    values = np.stack([r(cta)[lanes] for r in readers])
    position = np.zeros(cta.threads, np.int64)
    position[lanes] = np.arange(len(lanes))
    for arena, chosen, offsets in pieces(cta, space, address(cta)[lanes],
                                         lanes):
      mine = values[:, position[chosen]]
      arena.check(offsets, nbytes, nbytes, True, describe(cta, chosen))
      scope = order(cta, arena, chosen, offsets, instruction, reads=False,
                    writes=True, rmw=False)
      if cta.grid.detector is not None:
        record(cta, arena, chosen, offsets, nbytes, instruction, writes=True,
               changes=changes(arena, offsets, mine), atomic_scope=scope)
      arena.scatter(offsets, mine)
  return operation


def _combine(name: str, floating: bool):
  match name:
    case "add":
      return np.add
    case "min" | "max" if floating:
      return alu.float_extreme(False, name == "max")
    case "min":
      return np.minimum
    case "max":
      return np.maximum
    case "and":
      return np.bitwise_and
    case "or":
      return np.bitwise_or
    case "xor":
      return np.bitwise_xor
    case "exch":
      return lambda old, value: value
    case "cas":
      return lambda old, expected, value: np.where(old == expected, value, old)
    case "inc":
      return lambda old, limit: np.where(old >= limit, 0, old + 1)
    case "dec":
      return lambda old, limit: np.where((old == 0) | (old > limit), limit,
                                         old - 1)
  return None


_ATOMICS = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc",
            "dec")


def _build_atomic(kernel, instruction):
  name = next((m for m in instruction.modifiers if m in _ATOMICS), None)
  if name is None:
    return None
  type_name = instruction.types[-1]
  dtype = parse.type_to_dtype(type_name)
  item = dtype
  if type_name in ("f16x2", "bf16x2"):
    item = parse.type_to_dtype(type_name[:-2])
  combine = _combine(name, item.kind == "f" or item == ml_dtypes.bfloat16)
  arguments = list(instruction.operands)
  destinations = []
  if instruction.root == "atom":
    destinations = operands.vector(arguments.pop(0))
  address = operands.address(kernel, arguments.pop(0))
  arguments = arguments[: 2 if name == "cas" else 1]
  columns = [operands.vector(a) for a in arguments]
  count = len(columns[0])
  storage = parse.storage_dtype(type_name)
  readers = [[operands.full_reader(kernel, x, storage) for x in c]
             for c in columns]
  writers = [operands.writer(kernel, d) for d in destinations]
  space, nbytes = space_of(instruction), dtype.itemsize * count

  def operation(cta):
    lanes = np.flatnonzero(cta.mask)
    lanes = lanes[shuffled(cta, len(lanes))]
    values = [np.stack([r(cta) for r in column]) for column in readers]
    old = np.zeros((count, cta.threads), storage)
    for arena, chosen, offsets in pieces(cta, space, address(cta)[lanes],
                                         lanes):
      arena.check(offsets, nbytes, nbytes, True, describe(cta, chosen))
      scope = order(cta, arena, chosen, offsets, instruction, reads=True,
                    writes=True, rmw=True)
      record(cta, arena, chosen, offsets, nbytes, instruction, writes=True,
             atomic_scope=scope)
      distinct = len(np.unique(offsets)) == len(offsets)
      groups = [slice(None)] if distinct else [
          slice(i, i + 1) for i in range(len(offsets))]
      for group in groups:
        before = arena.gather(offsets[group], storage, count)
        inputs = [np.ascontiguousarray(v[:, chosen[group]]).view(item)
                  for v in values]
        with np.errstate(all="ignore"):
          after = combine(np.ascontiguousarray(before).view(item), *inputs)
        old[:, chosen[group]] = before
        arena.scatter(offsets[group], np.ascontiguousarray(
            after.astype(item)).view(storage))
    for write, result in zip(writers, old, strict=False):
      write(cta, result)
  return operation


def _build_cvta(kernel, instruction):
  space = space_of(instruction).split("::")[0]
  base = {"shared": memory.SHARED_BASE, "local": memory.LOCAL_BASE,
          "param": memory.PARAM_BASE}.get(space, 0)
  sign = -1 if "to" in instruction.modifiers else 1
  read = operands.reader(kernel, instruction.operands[1], np.uint64)
  write = operands.writer(kernel, instruction.operands[0])

  def operation(cta):
    values = read(cta).astype(np.int64)
    if space == "local":  # Each thread has a window of its own size.
      values = values + 0
    write(cta, (values + sign * base).view(np.uint64))
  return operation


def _build_mapa(kernel, instruction):
  dtype = parse.type_to_dtype(instruction.types[-1])
  read = operands.reader(kernel, instruction.operands[1], dtype)
  rank = operands.reader(kernel, instruction.operands[2], np.uint32)
  write = operands.writer(kernel, instruction.operands[0])
  generic = space_of(instruction) == "generic"

  def operation(cta):
    offset = read(cta).astype(np.int64)
    base = memory.SHARED_BASE if generic else 0
    within = (offset - base) & ((1 << memory.RANK_SHIFT) - 1)
    mapped = base + within + (
        (rank(cta).astype(np.int64) + 1) << memory.RANK_SHIFT)
    write(cta, mapped.astype(dtype))
  return operation


def _build_isspacep(kernel, instruction):
  low, high = {
      "shared": (memory.SHARED_BASE, 1 << 62),
      "local": (memory.LOCAL_BASE, memory.PARAM_BASE),
      "param": (memory.PARAM_BASE, memory.SHARED_BASE),
      "global": (0, memory.LOCAL_BASE),
  }[space_of(instruction).split("::")[0]]
  read = operands.reader(kernel, instruction.operands[1], np.uint64)
  write = operands.writer(kernel, instruction.operands[0])

  def operation(cta):
    address = read(cta).astype(np.int64)
    write(cta, (address >= low) & (address < high))
  return operation


def build(kernel, instruction):
  """Compiles one instruction, or returns None if it is not of this kind."""
  match instruction.root:
    case "ld" | "ldu":
      return _build_load(kernel, instruction)
    case "st":
      return _build_store(kernel, instruction)
    case "atom" | "red" if "async" not in instruction.modifiers:
      return _build_atomic(kernel, instruction)
    case "cvta":
      return _build_cvta(kernel, instruction)
    case "mapa":
      return _build_mapa(kernel, instruction)
    case "isspacep":
      return _build_isspacep(kernel, instruction)
  return None
