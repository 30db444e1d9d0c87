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
"""Byte-addressed memory of the simulated device, checked on every access.

Generic addresses carry their window in the high bits.  A shared-space address
is a byte offset below 2**24, with the rank of the CTA in its cluster plus one
above that when it names another CTA's memory.
"""

from __future__ import annotations

import numpy as np

from oracles.ptx.parse import PtxError

GLOBAL_BASE = 0x10000000
LOCAL_BASE = 0x7D0000000000
PARAM_BASE = 0x7E0000000000
SHARED_BASE = 0x7F0000000000
RANK_SHIFT = 24

# Address 0 of the shared window stays unused, so that a null pointer traps.
SHARED_START = 1024

_UNMAPPED, _READABLE, _WRITABLE = 0, 1, 2


class Arena:
  """A span of bytes of one state space.

  `data` are the bytes; `state` says of each whether it may be touched.
  """

  def __init__(self, name: str, size: int, mapped: bool, owner=None):
    self.name = name
    self.owner = owner
    self.data = np.zeros(size, np.uint8)
    self.state = np.full(size, _WRITABLE if mapped else _UNMAPPED, np.uint8)
    self.shadow = None  # The race detector's, made on first use.

  def check(self, offsets: np.ndarray, nbytes: int, alignment: int,
            writes: bool, describe):
    """Raises PtxError unless every access of `nbytes` at `offsets` is legal."""
    if offsets.size == 0:
      return
    bad = offsets % alignment != 0
    if bad.any():
      raise PtxError(
          f"misaligned access: {self.name} offset {int(offsets[bad][0])} is "
          f"not a multiple of {alignment}; {describe(bad)}")
    bad = (offsets < 0) | (offsets + nbytes > len(self.data))
    if not bad.any():
      need = _WRITABLE if writes else _READABLE
      bad = ((self.state[offsets] < need)
             | (self.state[offsets + nbytes - 1] < need))
    if bad.any():
      raise PtxError(
          f"out of bounds: {self.name} offset {int(offsets[bad][0])}, "
          f"{nbytes} bytes; {describe(bad)}")

  def gather(self, offsets: np.ndarray, dtype: np.dtype, count: int):
    """Reads `count` consecutive items per offset: a [count, lanes] array."""
    nbytes = dtype.itemsize * count
    raw = self.data[offsets[:, None] + np.arange(nbytes)]
    return raw.view(dtype).T

  def scatter(self, offsets: np.ndarray, values: np.ndarray):
    """Writes a [count, lanes] array; for equal offsets the last lane wins."""
    raw = np.ascontiguousarray(values.T).view(np.uint8)
    self.data[offsets[:, None] + np.arange(raw.shape[1])] = raw


class GlobalMemory(Arena):
  """Device memory: separate allocations with gaps between them."""

  def __init__(self, size: int = 1 << 20):
    super().__init__("global", size, mapped=False)
    self._top = 0

  def allocate(self, nbytes: int) -> int:
    """Returns the address of `nbytes` fresh bytes, 256-aligned.

    Compilers may read up to the end of an aligned 16-byte chunk, so that much
    slack is readable, never writable.
    """
    start, padded = self._top, -(-nbytes // 16) * 16
    end = start + -(-(padded + 256) // 256) * 256
    while end > len(self.data):
      self.data = np.concatenate([self.data, np.zeros_like(self.data)])
      self.state = np.concatenate([self.state, np.zeros_like(self.state)])
    self.state[start: start + padded] = _READABLE
    self.state[start: start + nbytes] = _WRITABLE
    self._top = end
    return GLOBAL_BASE + start

  def upload(self, array: np.ndarray) -> int:
    """Copies an array to fresh memory and returns its address."""
    raw = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
    address = self.allocate(raw.size)
    offset = address - GLOBAL_BASE
    self.data[offset: offset + raw.size] = raw
    return address

  def download(self, address: int, shape, dtype) -> np.ndarray:
    """Copies the array at `address` back."""
    dtype = np.dtype(dtype)
    offset = address - GLOBAL_BASE
    nbytes = int(np.prod(shape)) * dtype.itemsize
    raw = self.data[offset: offset + nbytes].copy()
    return raw.view(dtype).reshape(shape)
