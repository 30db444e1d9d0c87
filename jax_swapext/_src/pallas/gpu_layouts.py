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
"""How the threads of a warp, or of a warpgroup, share the elements of an array.

In warp code every array has the one layout that `warp_layout` gives for its
shape, whatever its dtype: so index, mask, value and converted values of one
shape always agree, thread by thread.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import contextvars
import dataclasses
import functools
import math
from typing import Any

from jax._src.lib.mlir.dialects import arith
from jax.experimental.mosaic.gpu import fragmented_array as fa
from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jax_swapext._src.pallas import gpu_ir
import numpy as np

FragmentedArray = fa.FragmentedArray
Splat = fa.WGSplatFragLayout
Strided = fa.WGStridedFragLayout
Tiled = fa.TiledLayout

# Elements per register: 4 makes one 16-byte access of 32-bit elements.
_MAX_VECTOR = 4

# A thread has 255 registers, and what they cannot hold goes to memory of its
# own; far beyond that, code is slow to run and takes minutes to compile.
_MAX_ELEMENTS = 512


@dataclasses.dataclass(frozen=True, kw_only=True)
class Padded(fa.TiledLayout):
  """32 lanes share an array of any size, the last lanes its last element.

  The elements go around the lanes in row-major order. Where the size is no
  multiple of 32, the lanes that are left over in the last round hold the last
  element too: so every lane always holds elements of the array.

  Attributes:
    shape: of the array.
  """

  shape: tuple[int, ...] = ()

  @property
  def size(self) -> int:
    return math.prod(self.shape)

  def registers_shape(self, shape):
    del shape  # That of the layout.
    return (-(-self.size // gpu_ir.WARP_SIZE), 1, 1)

  def shape_from_registers_shape(self, shape):
    if shape != self.registers_shape(self.shape):
      raise ValueError(f"{shape} registers do not hold an array {self.shape}")
    return self.shape

  def linear_index(self, position, lane):
    """Row-major place of a lane's element; a number if the lane is one."""
    first, last = position[0] * gpu_ir.WARP_SIZE, self.size - 1
    if first == last:
      return last
    linear = gpu_ir.add(first, lane)
    return linear if first + gpu_ir.WARP_SIZE <= self.size else (
        gpu_ir.least(linear, last)
    )

  def thread_idxs(self, shape) -> Iterator[tuple[Any, ...]]:
    lane = gpu_ir.as_index(gpu_ir.lane())
    for position in np.ndindex(*self.registers_shape(shape)):
      yield gpu_ir.delinearize(self.linear_index(position, lane), self.shape)

  def owner(self, position):
    """(predicate or None, lane of the owner or None) in a register."""
    left = self.size - position[0] * gpu_ir.WARP_SIZE
    if left >= gpu_ir.WARP_SIZE:
      return None, None
    last = gpu_ir.const_i32(left - 1)
    lane = gpu_ir.lane()
    predicate = arith.cmpi(arith.CmpIPredicate.ule, lane, last)
    return predicate, arith.minui(lane, last)


# A layout attribute, which values have under Warpgroup lowering, cannot express
# padding.
_padding = contextvars.ContextVar("padding", default=True)


@contextlib.contextmanager
def without_padding():
  """Within it, the layouts of warp code are such as attributes express."""
  token = _padding.set(False)
  try:
    yield
  finally:
    _padding.reset(token)


def warp_layout(shape: tuple[int, ...]) -> Tiled:
  """The layout of an array in warp code.

  The 32 lanes take vectors of up to 4 elements in row-major order. Lanes that
  the shape cannot keep apart hold the same elements (they are replicas), or the
  array is padded, where that takes fewer registers and is possible. The four
  warps are replicas too: each warp has a value of its own under this layout.

  Raises:
    NotImplementedError: the array would take too many registers.
  """
  return _warp_layout(shape, _padding.get())


@functools.cache
def _warp_layout(shape: tuple[int, ...], padding: bool) -> Tiled:
  size = math.prod(shape)
  vec = 1
  while (
      vec < _MAX_VECTOR
      and shape[-1] % (2 * vec) == 0
      and size % (2 * vec * gpu_ir.WARP_SIZE) == 0
  ):
    vec *= 2
  grid = [*shape[:-1], shape[-1] // vec]
  left, lanes = gpu_ir.WARP_SIZE, [1] * len(shape)
  for d in reversed(range(len(shape))):
    lanes[d] = math.gcd(grid[d], left)
    left //= lanes[d]
  held = size * left // gpu_ir.WARP_SIZE
  padded = -(-size // gpu_ir.WARP_SIZE)
  padding = padding and padded < held
  if (padded if padding else held) > _MAX_ELEMENTS:
    raise NotImplementedError(
        f"an array of shape {shape}: wanted at most {_MAX_ELEMENTS} elements "
        f"per thread, would need {padded if padding else held}; but for warp "
        "code of Lane lowering, threads share an array evenly or not at all. "
        "Make its size a multiple of 32 in warp code, of 128 in warpgroup code,"
        " or work on it in parts."
    )
  if padding:
    return Padded(
        tiling=fa.Tiling(((gpu_ir.WARP_SIZE,), (1,))),
        warp_dims=(fa.Replicated(4),),
        lane_dims=(-2,),
        vector_dim=-1,
        _check_canonical=False,
        shape=shape,
    )
  tile = (*lanes[:-1], lanes[-1] * vec)
  # After tiling by `tile` and then by (vec,), the lanes' dimensions are these.
  lane_dims = tuple(
      d - len(shape) - 1 for d in range(len(shape)) if lanes[d] != 1
  )
  if left != 1:
    lane_dims = (fa.Replicated(left), *lane_dims)
  return Tiled(
      fa.Tiling((tile, (vec,))),
      warp_dims=(fa.Replicated(4),),
      lane_dims=lane_dims,
      vector_dim=-1,
      _check_canonical=False,
  ).canonicalize()


def warpgroup_layout(shape: tuple[int, ...], bits: int):
  """The layout that our operations give arrays in warpgroup code."""
  size = math.prod(shape)
  if size % gpu_ir.WARPGROUP_SIZE == 0:
    vec = max(1, min(64 // max(bits, 8), size // gpu_ir.WARPGROUP_SIZE))
    while size % (vec * gpu_ir.WARPGROUP_SIZE):
      vec //= 2
    return Strided(tuple(shape), vec)
  # What happens to the value between our operations is up to stock rules, which
  # do not know padding.
  with without_padding():
    return warp_layout(tuple(shape))


def layout_for(shape: tuple[int, ...], dtype, warp: bool):
  if warp:
    return warp_layout(tuple(shape))
  bits = mgpu_utils.bitwidth(gpu_ir.element_type(dtype))
  # A bool is laid out as the 32-bit numbers that it was compared from.
  return warpgroup_layout(tuple(shape), 32 if bits == 1 else bits)


def warp_value_layout(shape: tuple[int, ...]):
  """As `warp_layout`, but one element is a value that all threads hold."""
  if math.prod(shape) == 1:
    return Splat(tuple(shape))
  return warp_layout(tuple(shape))


def vector_length(layout) -> int:
  if isinstance(layout, Splat):
    return 1
  return layout.vec_size if isinstance(layout, Strided) else (
      layout.vector_length
  )


def materialize(x: FragmentedArray, shape, layout) -> FragmentedArray:
  """`x` in `layout`; a splat is spread out, others have to agree already."""
  if x.layout == layout:
    return x
  if isinstance(layout, Splat):
    return FragmentedArray.splat(
        scalar(x), tuple(shape), is_signed=x.is_signed
    )
  if isinstance(x.layout, Splat):
    return FragmentedArray.splat(
        x.registers.item(), tuple(shape), layout, is_signed=x.is_signed
    )
  raise NotImplementedError(
      f"wanted an array in the layout {layout}, got {x.layout}. Convert it with"
      " plgpu.layout_cast before."
  )


def scalar(x: FragmentedArray) -> gpu_ir.ir.Value:
  """The one element of an array of size 1."""
  if isinstance(x.layout, Splat):
    return x.registers.item()
  return gpu_ir.extract(x.registers.flat[0], 0)


def registers(
    layout, shape: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], list[tuple[gpu_ir.Index, ...]]]]:
  """Yields each register's position and its elements' logical indices."""
  positions = np.ndindex(*layout.registers_shape(tuple(shape)))
  vec = vector_length(layout)
  if isinstance(layout, Strided) and shape[-1] % vec:
    # A vector may run over the end of a row.
    for position, linear in zip(
        positions, layout.linear_thread_idxs(), strict=True
    ):
      yield position, [
          gpu_ir.delinearize(gpu_ir.add(linear, e), shape) for e in range(vec)
      ]
    return
  for position, base in zip(
      positions, layout.thread_idxs(tuple(shape)), strict=True
  ):
    *outer, last = base
    yield position, [
        (*outer, gpu_ir.add(last, e)) for e in range(vec)
    ]


def rows_hold_vectors(layout, shape: tuple[int, ...]) -> bool:
  """Whether the elements of each register are neighbours in one row."""
  return shape[-1] % vector_length(layout) == 0


# ## Replicas
#
# Loads and stores may go through all replicas, but an atomic must happen once:
# the owner, whose replicated sub-indices are all 0, performs it.


def _sizes(layout, dims):
  return tuple(
      layout.tiled_tiling_shape[d] if isinstance(d, int) else d.times
      for d in dims
  )


def _owner(index, layout, dims):
  """(predicate of owning or None, the owner's index) among `dims`."""
  sizes = _sizes(layout, dims)
  predicate, owner = None, gpu_ir.const_i32(0)
  stride = math.prod(sizes)
  for d, size in zip(dims, sizes, strict=True):
    stride //= size
    digit = arith.remui(
        arith.divui(index, gpu_ir.const_i32(stride)), gpu_ir.const_i32(size)
    )
    if isinstance(d, int):
      owner = arith.addi(
          owner, arith.muli(digit, gpu_ir.const_i32(stride))
      )
    elif size > 1:
      predicate = gpu_ir.both(predicate, gpu_ir.is_zero(digit))
  return predicate, owner


def _replicated(layout, dims) -> bool:
  return any(
      not isinstance(d, int) and s > 1
      for d, s in zip(dims, _sizes(layout, dims), strict=True)
  )


def has_distinct_lanes(layout) -> bool:
  """Whether some lanes of a warp hold different elements."""
  return bool(layout.partitioned_lane_dims)


def replicated_lanes(layout) -> bool:
  if isinstance(layout, Padded):
    return layout.size % gpu_ir.WARP_SIZE != 0
  return isinstance(layout, Tiled) and _replicated(layout, layout.lane_dims)


def replicated_warps(layout) -> bool:
  return isinstance(layout, Tiled) and _replicated(layout, layout.warp_dims)


def is_replicated(layout, warp: bool) -> bool:
  """Whether several threads of the warp, or warpgroup, hold one element."""
  return replicated_lanes(layout) or (not warp and replicated_warps(layout))


def owner_lanes(layout):
  """Per register, (predicate or None, lane of the owner or None) in the warp.

  None stands for each lane's being the owner of what it holds.
  """
  if isinstance(layout, Padded):
    return layout.owner
  if not replicated_lanes(layout):
    return lambda position: (None, None)
  owner = _owner(gpu_ir.lane(), layout, layout.lane_dims)
  return lambda position: owner


def owner_warp(layout):
  """Predicate of being in the owner's warp, or None."""
  return _owner(gpu_ir.warp_in_warpgroup(), layout, layout.warp_dims)[0]
