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
"""Poisoned, bounds-checked memory whose bytes have addresses.

A view is an array of byte addresses, one per element, padding included. Slices,
squeezes, reshapes and bitcasts are then operations on addresses, and a bitcast
of packed rows reads the very bytes that the hardware would.
"""

from collections.abc import Sequence
import dataclasses

import ml_dtypes
import numpy as np

from oracles.mosaic_ir import program

_WORD_BYTES = 4
_LANES = 128
_SUBLANES = 8


class EvaluationError(RuntimeError):
  """The program did what no correct program does."""


def poison(dtype: np.dtype) -> np.generic:
  """A value that a correct result never holds by luck."""
  dtype = np.dtype(dtype)
  if dtype == np.bool_:
    return np.bool_(False)
  if np.issubdtype(dtype, np.integer):
    return np.frombuffer(b"\x5b" * dtype.itemsize, dtype)[0]
  return np.array(np.nan, dtype)[()]


@dataclasses.dataclass(frozen=True)
class Tiling:
  """How one kind of core lays out its memory.

  Attributes:
    name: "tensorcore"; "compact" (SparseCore under TensorCore tiling); or
      "linear".
  """

  name: str

  def addresses(
    self, shape: Sequence[int], dtype: np.dtype, space: str
  ) -> np.ndarray:
    """Byte addresses of all elements, padding included: int64[padded shape]."""
    shape = tuple(shape)
    size = np.dtype(dtype).itemsize
    packing = max(1, _WORD_BYTES // size)
    if not shape or self.name == "linear" or space in ("smem", "semaphore_mem"):
      return (
        np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape) * size
      )
    if len(shape) == 1:
      tile = _LANES * packing
      padded = -(-shape[0] // tile) * tile
      e = np.arange(padded, dtype=np.int64)
      word = e // tile * _LANES + e % _LANES
      return word * _WORD_BYTES + e % tile // _LANES * size
    *lead, rows, columns = shape
    if self.name == "tensorcore" and space == "vmem":
      # Rows are padded to the smallest tile the compiler may choose. A single
      # column of 32-bit tiles is laid out row by row, without any padding.
      tile = packing
      if columns > _LANES or packing > 1:
        while tile < min(rows, _SUBLANES):
          tile *= 2
      rows = -(-rows // tile) * tile
    rows = -(-rows // packing) * packing
    columns = -(-columns // _LANES) * _LANES
    plane = np.prod(lead, dtype=np.int64)
    z = np.arange(plane, dtype=np.int64).reshape(*lead, 1, 1)
    r = np.arange(rows, dtype=np.int64)[:, None]
    c = np.arange(columns, dtype=np.int64)
    word = (z * (rows // packing) + r // packing) * columns + c
    return word * _WORD_BYTES * max(1, size // _WORD_BYTES) + r % packing * size


class Buffer:
  """Bytes with a name, and the same allocation on the other subcores."""

  def __init__(self, size: int, name: str):
    # Room to view the bytes as any element type.
    self.bytes = np.zeros(-(-max(size, 1) // 8) * 8, np.uint8)
    self.name = name
    self.peers: dict[tuple[int, int], MemRef] = {}


@dataclasses.dataclass(frozen=True)
class MemRef:
  """A view of a buffer.

  Attributes:
    buffer: Where the bytes are.
    addresses: int64[at least `shape`]: the byte address of every element that
      exists, whether the type shows it or it is padding.
    shape: The shape that the type shows.
    dtype: Element type.
    space: Memory space.
    semaphore: Kind of semaphore, or "".
  """

  buffer: Buffer
  addresses: np.ndarray
  shape: tuple[int, ...]
  dtype: np.dtype
  space: str
  semaphore: str = ""

  @property
  def nbytes(self) -> int:
    return int(np.prod(self.shape)) * self.dtype.itemsize

  def _view(self) -> np.ndarray:
    return self.buffer.bytes.view(self.dtype)

  def read(self, addresses: np.ndarray) -> np.ndarray:
    return self._view()[addresses // self.dtype.itemsize]

  def write(self, addresses: np.ndarray, values: np.ndarray) -> None:
    self._view()[addresses // self.dtype.itemsize] = values

  def region(
    self,
    starts: Sequence[int],
    sizes: Sequence[int],
    strides: Sequence[int] | None = None,
    logical: bool = False,
  ) -> np.ndarray:
    """Addresses of a box.

    Raises:
      EvaluationError: The box leaves the memory (or, with `logical`, the shape
        that the type shows).
    """
    limits = self.shape if logical else self.addresses.shape
    strides = strides or [1] * len(sizes)
    index = []
    for start, size, stride, limit in zip(
      starts, sizes, strides, limits, strict=True
    ):
      start = int(start)
      last = start + (size - 1) * stride
      if size and not 0 <= start <= last < limit:
        raise EvaluationError(
          f"access outside {self.buffer.name} of shape {self.shape}, padded"
          f" {self.addresses.shape}: starts {[int(s) for s in starts]}, sizes"
          f" {list(sizes)}, strides {list(strides)}"
        )
      index.append(slice(start, last + 1, stride))
    return self.addresses[tuple(index)]

  def points(
    self, indices: Sequence[np.ndarray], mask: np.ndarray | None
  ) -> np.ndarray:
    """Addresses of single elements; masked-off ones may lie anywhere."""
    live = np.ones(np.shape(indices[0]), bool) if mask is None else mask
    index = []
    for i, limit in zip(indices, self.shape, strict=True):
      i = np.asarray(i).astype(np.int64)
      if np.any(live & ((i < 0) | (i >= limit))):
        raise EvaluationError(
          f"indexed access outside {self.buffer.name} of shape {self.shape}:"
          f" {i[live].tolist()}"
        )
      index.append(np.where(live, i, 0))
    return self.addresses[tuple(index)]

  def load(self, starts, sizes, strides=None, logical=False) -> np.ndarray:
    return self.read(self.region(starts, sizes, strides, logical)).copy()

  def store(self, starts, values, strides=None, mask=None, add=False) -> None:
    values = np.asarray(values)
    addresses = self.region(starts, values.shape, strides)
    if add:
      values = (self.read(addresses) + values).astype(self.dtype)
    if mask is None:
      self.write(addresses, values)
    else:
      self.write(addresses[mask], values[mask])

  def whole(self) -> np.ndarray:
    """The logical contents."""
    return self.load([0] * len(self.shape), self.shape, logical=True)

  def fill(self, values: np.ndarray) -> None:
    """Replaces the logical contents."""
    box = self.region([0] * len(self.shape), self.shape, logical=True)
    self.write(box, np.asarray(values).astype(self.dtype))

  # Views.

  def slice(self, starts, sizes) -> "MemRef":
    self.region(starts, sizes, logical=True)
    index = tuple(slice(int(s), None) for s in starts)
    return dataclasses.replace(
      self, addresses=self.addresses[index], shape=tuple(sizes)
    )

  def squeeze(self, shape: tuple[int, ...]) -> "MemRef":
    index, rest = [], list(shape)
    for size in reversed(self.shape):
      if rest and size == rest[-1]:
        rest.pop()
        index.append(slice(None))
      elif size == 1:
        index.append(0)
      else:
        raise EvaluationError(f"cannot squeeze {self.shape} to {shape}")
    if rest:
      raise EvaluationError(f"cannot squeeze {self.shape} to {shape}")
    return dataclasses.replace(
      self, addresses=self.addresses[tuple(reversed(index))], shape=shape
    )

  def reshape(self, shape: tuple[int, ...]) -> "MemRef":
    box = self.region([0] * len(self.shape), self.shape, logical=True)
    return dataclasses.replace(self, addresses=box.reshape(shape), shape=shape)

  def bitcast(self, shape: tuple[int, ...], dtype: np.dtype) -> "MemRef":
    """The same bytes seen as another element type along one dimension.

    Raises:
      EvaluationError: The bytes of one wide element are not neighbours.
    """
    old, new = self.dtype.itemsize, dtype.itemsize
    if old == new:
      return dataclasses.replace(self, dtype=dtype)
    changed = [
      d
      for d, (a, b) in enumerate(zip(self.shape, shape, strict=True))
      if a != b
    ]
    # Nothing changes visibly when a size of one stands for a partial word.
    [dim] = changed or [len(shape) - (2 if len(shape) > 1 else 1)]
    addresses = np.moveaxis(self.addresses, dim, -1)
    if new > old:
      ratio = new // old
      whole = addresses.shape[-1] // ratio * ratio
      groups = addresses[..., :whole].reshape(*addresses.shape[:-1], -1, ratio)
      if np.any(np.diff(groups, axis=-1) != old):
        raise EvaluationError(
          f"{self.buffer.name}: a {dtype} does not lie in one piece"
        )
      addresses = groups[..., 0]
    else:
      ratio = old // new
      parts = addresses[..., None] + np.arange(ratio, dtype=np.int64) * new
      addresses = parts.reshape(*addresses.shape[:-1], -1)
    return dataclasses.replace(
      self, addresses=np.moveaxis(addresses, -1, dim), shape=shape, dtype=dtype
    )


def allocate(t: program.Type, tiling: Tiling, name: str) -> MemRef:
  """A fresh, poisoned buffer for a memref type; semaphores start at zero."""
  addresses = tiling.addresses(t.shape, t.dtype, t.space)
  size = int(addresses.max(initial=0)) + t.dtype.itemsize
  buffer = Buffer(size, name)
  ref = MemRef(buffer, addresses, t.shape, t.dtype, t.space, t.semaphore)
  if not t.semaphore:
    ref.write(addresses, poison(t.dtype))
  return ref


def float_dtype(dtype: np.dtype) -> bool:
  return np.issubdtype(dtype, np.floating) or dtype in (
    np.dtype(ml_dtypes.bfloat16),
    np.dtype(ml_dtypes.float8_e4m3fn),
    np.dtype(ml_dtypes.float8_e5m2),
    np.dtype(ml_dtypes.float8_e4m3b11fnuz),
  )
