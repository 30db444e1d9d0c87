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
"""Matrix products of a warpgroup, operands in shared memory (sm_90).

Every warp computes its 16 rows. The values are computed when the instruction is
issued; what it reads counts as read until the warp waits for its group, so that
overwriting it before, and a missing fence, are reported as races. An
accumulator that is used before the wait is not noticed.
"""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np

from oracles.ptx import bulk
from oracles.ptx import operands
from oracles.ptx import sync
from oracles.ptx.parse import PtxError

_ITEMS = {
    "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16),
    "tf32": np.dtype(np.float32), "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2)}

_SWIZZLES = (16, 128, 64, 32)
_CHUNK = 16  # Bytes that no swizzle takes apart.


def _places(descriptor: int, size: int, k: int, itemsize: int,
            k_is_major: bool) -> np.ndarray:
  """Byte offsets in shared memory of an operand's [size, k] items."""
  field = lambda shift: (descriptor >> shift & 0x3FFF) << 4
  start, leading, stride = field(0), field(16), field(32)
  swizzle = _SWIZZLES[descriptor >> 62]
  if descriptor >> 49 & 7:
    raise PtxError("matrix descriptor with a base offset")
  i, j = np.indices((size, k))
  chunk, atom = _CHUNK // itemsize, swizzle // itemsize
  if k_is_major and swizzle > _CHUNK:
    offset = i // 8 * stride + i % 8 * swizzle + j * itemsize
  elif k_is_major:
    offset = i // 8 * stride + i % 8 * _CHUNK + (
        j // chunk * leading + j % chunk * itemsize)
  elif swizzle > _CHUNK:
    offset = i // atom * leading + i % atom * itemsize + (
        j // 8 * stride + j % 8 * swizzle)
  else:
    offset = i // chunk * stride + i % chunk * itemsize + (
        j // 8 * leading + j % 8 * _CHUNK)
  places = start + offset
  return places ^ (places >> 7 & (swizzle // _CHUNK - 1)) << 4


def _read(arena, places: np.ndarray, dtype: np.dtype, describe) -> np.ndarray:
  flat = places.ravel()
  arena.check(flat, dtype.itemsize, dtype.itemsize, False, describe)
  storage = np.dtype(f"u{dtype.itemsize}")
  bits = arena.gather(flat, storage, 1)[0].reshape(places.shape)
  if dtype == np.float32:
    bits = bits & np.uint32(0xFFFFE000)  # The bits that tf32 has.
  return bits.view(dtype).astype(np.float64)


def _fragment(n: int):
  """(rows, columns) of the n / 2 accumulators of each lane of a warp."""
  lane, i = np.arange(32)[:, None], np.arange(n // 2)
  return lane // 4 + 8 * (i // 2 % 2), 8 * (i // 4) + 2 * (lane % 4) + i % 2


def _build_product(kernel, instruction):
  m, n, k = map(int, re.search(
      r"\.m(\d+)n(\d+)k(\d+)\.", instruction.text).groups())
  accumulates, *items = [
      t for t in instruction.modifiers if t == "f32" or t in _ITEMS]
  if m != 64 or len(items) != 2 or instruction.operands[1].startswith("{"):
    return None
  dtypes = [_ITEMS[t] for t in items]
  names = operands.vector(instruction.operands[0])
  packed = accumulates == "f16"
  held = np.dtype(np.float16 if packed else np.float32)
  readers = [operands.full_reader(kernel, x, np.uint32) for x in names]
  writers = [operands.writer(kernel, x) for x in names]
  descriptors = [operands.full_reader(kernel, x, np.uint64)
                 for x in instruction.operands[1:3]]
  keeps = operands.full_reader(kernel, instruction.operands[3], np.bool_)
  signs = [int(x, 0) for x in instruction.operands[4:6]]
  transposed = [x != "0" for x in instruction.operands[6:8]] or [False] * 2
  rows, columns = _fragment(n)

  def operation(cta):
    warp = int(cta.warp[cta.mask][0])
    lanes = slice(32 * warp, 32 * warp + 32)
    leader, arena = 32 * warp, cta.shared
    describe = lambda bad: f"matrix product of {cta.describe(leader)}"
    values, touched = [], []
    for which, size in enumerate((m, n)):
      places = _places(
          int(descriptors[which](cta)[leader]), size, k,
          dtypes[which].itemsize, not transposed[which])
      if which == 0:
        first = 16 * (warp % 4)
        places = places[first: first + 16]
      values.append(signs[which] * _read(
          arena, places, dtypes[which], describe))
      touched.append(np.unique(places // _CHUNK) * _CHUNK)
    product = values[0] @ values[1].T
    old = np.stack([np.ascontiguousarray(r(cta)[lanes]) for r in readers], 1)
    old = old.view(held)
    old = np.where(keeps(cta)[lanes, None], old, held.type(0))
    new = (old + product[rows, columns]).astype(held)
    for i, write in enumerate(writers):
      result = np.zeros(cta.threads, np.uint32)
      result[lanes] = np.ascontiguousarray(new).view(np.uint32)[:, i]
      write(cta, result)
    _in_flight(cta, warp, instruction, np.concatenate(touched))
  return sync.warp_operation(kernel, instruction, "-1", operation)


def _group(cta, warp: int):
  return "wgmma", cta.index, warp


def _in_flight(cta, warp, instruction, offsets):
  issue = bulk.Issue(cta, 32 * warp, instruction)
  group = _group(cta, warp)

  def run():
    if issue.detector is not None:
      issue.detector.access(
          cta.shared, np.full(len(offsets), issue.agent), offsets, _CHUNK,
          writes=False, clocks=issue.clocks, text=instruction.text)
  cta.grid.copies.add(bulk.Copy(run, lambda: issue.finish(group)), group)


def _build_group(kernel, instruction):
  keep = None
  if "wait_group" in instruction.modifiers:
    keep = int(instruction.operands[0], 0)

  def operation(cta):
    warp = int(cta.warp[cta.mask][0])
    group = _group(cta, warp)
    if keep is None:
      cta.grid.copies.commit(group)
      return
    cta.grid.copies.wait(group, keep)
    if cta.grid.detector is not None:
      for column in cta.columns(np.flatnonzero(cta.mask)).tolist():
        cta.grid.detector.acquire(column, group)
  return sync.warp_operation(kernel, instruction, "-1", operation)


def build(kernel, instruction):
  """Compiles one instruction, or returns None if it is not of this kind."""
  if instruction.root != "wgmma":
    return None
  match instruction.modifiers[0]:
    case "mma_async":
      return _build_product(kernel, instruction)
    case "commit_group" | "wait_group":
      return _build_group(kernel, instruction)
    case "fence":
      return lambda cta: None  # Orders registers only.
  return None
