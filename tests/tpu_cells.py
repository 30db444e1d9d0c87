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
"""What the TPU tests have in common: kernels that apply one operation once.

A cell is one access: an operation on a Ref of some shape, dtype and memory
space, with some form of index and mask. `kernel_of` makes it a kernel whose
every dynamic part is an input, `arguments_of` the inputs; tests evaluate the
kernel, interpret it and compile it.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import itertools
from typing import Any
import zlib

import cases
import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
import numpy as np
import reference


@dataclasses.dataclass(frozen=True)
class Dynamic:
  """A scalar index, or the start of a window, known at run time only.

  Attributes:
    at: Its value.
    size: Size of the window; None for a scalar.
    stride: Stride of the window.
    multiple: What the kernel claims it to be a multiple of.
  """

  at: int
  size: int | None = None
  stride: int = 1
  multiple: int = 1


@dataclasses.dataclass(frozen=True)
class Cell:
  """One access.

  Attributes:
    op: A row of `cases`.
    dtype: The Ref's dtype.
    shape: The Ref's shape.
    index: Per dimension an integer, a slice, a `reference.Window`, a `Dynamic`
      or an integer array.
    masked: Whether the access has a mask.
    space: "vmem", "smem", "hbm" or "any".
    drop: Whether the result of an atomic operation is dropped.
  """

  op: cases.Op
  dtype: np.dtype
  shape: tuple[int, ...]
  index: tuple[Any, ...]
  masked: bool = False
  space: str = "vmem"
  drop: bool = False

  @property
  def name(self) -> str:
    shape = "x".join(map(str, self.shape))
    index = "_".join(_index_name(i) for i in self.index)
    tail = "_masked" * self.masked + "_dropped" * self.drop
    dtype = np.dtype(self.dtype).name
    return f"{self.op.name}_{dtype}_{self.space}_{shape}_at_{index}{tail}"

  @property
  def static_index(self) -> tuple[Any, ...]:
    """The index with its run-time values, as the reference takes it."""
    return tuple(
      i
      if not isinstance(i, Dynamic)
      else i.at
      if i.size is None
      else reference.Window(i.at, i.size, i.stride)
      for i in self.index
    )

  @property
  def region_shape(self) -> tuple[int, ...]:
    return reference.positions(self.shape, self.static_index).shape


def _index_name(i: Any) -> str:
  if isinstance(i, Dynamic):
    tail = "" if i.size is None else f"n{i.size}s{i.stride}"
    return f"dyn{i.at}{tail}" + (f"m{i.multiple}" if i.multiple > 1 else "")
  if isinstance(i, slice):
    return "all" if i == slice(None) else f"{i.start}to{i.stop}by{i.step}"
  if isinstance(i, reference.Window):
    return f"w{i.start}n{i.size}s{i.stride}"
  if isinstance(i, np.ndarray):
    return (
      "arr" + "x".join(map(str, i.shape)) + f"h{zlib.crc32(i.tobytes()) % 997}"
    )
  return str(i)


SPACES = {
  "vmem": pltpu.VMEM,
  "smem": pltpu.SMEM,
  "hbm": pltpu.HBM,
  "any": pl.ANY,
}


def carrier(dtype: Any) -> np.dtype:
  """The 32-bit dtype in which a scalar enters and leaves a kernel."""
  dtype = np.dtype(dtype)
  if dtype.itemsize == 4:
    return dtype
  if jnp.issubdtype(dtype, jnp.floating):
    return np.dtype(np.float32)
  return np.dtype(np.uint32 if dtype.kind == "u" else np.int32)


def values(dtype: Any, shape: tuple[int, ...], seed: int) -> np.ndarray:
  """Values with every edge case, but the one NaN that carriers preserve."""
  x = np.array(cases.values(np.dtype(dtype), shape, seed))
  if cases.kind(dtype) in "fv":
    x = np.where(np.isnan(x), np.array(np.nan, x.dtype), x).astype(x.dtype)
  return x


@dataclasses.dataclass(frozen=True)
class Arguments:
  """Inputs of a cell's kernel, and the access they make."""

  x: np.ndarray
  operands: tuple[np.ndarray, ...]
  mask: np.ndarray | None
  inputs: tuple[np.ndarray, ...]


def arguments_of(cell: Cell, seed: int = 0) -> Arguments:
  shape = cell.region_shape
  x = values(cell.dtype, cell.shape, seed)
  operands = [
    values(cell.dtype, shape, seed + 1 + k) for k in range(cell.op.operands)
  ]
  if cell.op.name == "load" and not cell.masked:
    operands = []
  if cell.op.name == "atomic_cas":
    # Let about half of them succeed.
    old, _ = reference.load(x, cell.static_index, inside(cell))
    same = np.random.default_rng(seed).random(shape) < 0.5
    operands[0] = np.where(same, old, operands[0]).astype(x.dtype)
  mask = None
  if cell.masked:
    mask = np.random.default_rng(seed + 7).random(shape) < 0.6
    mask = np.asarray(mask & inside(cell))
  dynamic = [i.at for i in cell.index if isinstance(i, Dynamic)] + [0]
  inputs = [x, np.array(dynamic, np.int32)]
  inputs += [i for i in cell.index if isinstance(i, np.ndarray)]
  for operand in operands:
    if shape == ():
      operand = operand.astype(carrier(cell.dtype)).reshape(1)
    inputs.append(operand)
  if mask is not None:
    inputs.append(mask.astype(np.int32).reshape(shape or (1,)))
  return Arguments(x, tuple(operands), mask, tuple(inputs))


def inside(cell: Cell) -> np.ndarray:
  return reference.positions(cell.shape, cell.static_index) >= 0


def access(cell: Cell, ref: Any, dynamic: Any, rest: list[Any]) -> Any:
  """Applies the cell's operation; `rest` holds arrays, operands and mask."""
  scalars = iter(range(len(cell.index)))
  rest = list(rest)
  index: list[Any] = []
  for i in cell.index:
    if isinstance(i, Dynamic):
      start = dynamic[next(scalars)]
      if i.multiple > 1:
        start = pl.multiple_of(start, i.multiple)
      index.append(start if i.size is None else pl.ds(start, i.size, i.stride))
    elif isinstance(i, np.ndarray):
      index.append(rest.pop(0)[...])
    else:
      index.append(cases.to_jax_index(i))
  shape = cell.region_shape
  count = cell.op.operands
  if cell.op.name == "load" and not cell.masked:
    count = 0
  operands = []
  for _ in range(count):
    operand = rest.pop(0)
    operands.append(
      as_dtype(operand[0], cell.dtype) if shape == () else operand[...]
    )
  mask = None
  if cell.masked:
    mask = rest.pop(0)
    mask = (mask[0] if shape == () else mask[...]) != 0
  return cell.op.apply(ref, tuple(index), *operands, mask=mask)


def as_dtype(x: Any, dtype: Any) -> Any:
  return x != 0 if np.dtype(dtype) == np.bool_ else x.astype(dtype)


def kernel_of(cell: Cell, name: str = "k") -> Callable[..., Any]:
  """A TensorCore kernel: (x, dynamic, *rest) -> (new x, result)."""
  shape = cell.region_shape
  has_result = cell.op.name != "store" and not cell.drop
  result_dtype = np.dtype(cell.dtype) if shape else carrier(cell.dtype)

  def body_scalar(x, dynamic, *refs):
    *rest, o, result = refs
    copy_whole(x, o, cell)
    out = access(cell, o, dynamic, rest)
    result[0] = (
      out.astype(result.dtype) if has_result else jnp.zeros((), result.dtype)
    )

  def body_array(x, dynamic, *refs):
    *rest, o, result = refs
    copy_whole(x, o, cell)
    out = access(cell, o, dynamic, rest)
    result[...] = out if has_result else jnp.zeros(result.shape, result.dtype)

  space = SPACES[cell.space]

  def f(x, dynamic, *rest, interpret=False):
    arrays = sum(isinstance(i, np.ndarray) for i in cell.index)
    rest_space = [pltpu.VMEM] * arrays
    rest_space += [pltpu.SMEM if shape == () else pltpu.VMEM] * (
      len(rest) - arrays
    )
    out = [
      jax.ShapeDtypeStruct(cell.shape, cell.dtype),
      jax.ShapeDtypeStruct(shape or (1,), result_dtype),
    ]
    return pl.pallas_call(
      body_array if shape else body_scalar,
      out_shape=out,
      in_specs=[
        pl.BlockSpec(memory_space=m) for m in (space, pltpu.SMEM, *rest_space)
      ],
      out_specs=[
        pl.BlockSpec(memory_space=space),
        pl.BlockSpec(memory_space=pltpu.VMEM if shape else pltpu.SMEM),
      ],
      interpret=interpret,
      name=name,
    )(x, dynamic, *rest)

  return f


def copy_whole(x: Any, o: Any, cell: Cell) -> None:
  """Makes the output start as the input, with stock operations alone."""
  if cell.space == "vmem":
    o[...] = x[...]
  elif cell.space == "smem":
    sizes = cell.shape

    def step(k, carry):
      at = []
      for n in reversed(sizes):
        at.append(lax.rem(k, np.int32(n)))
        k = lax.div(k, np.int32(n))
      o[tuple(reversed(at))] = x[tuple(reversed(at))]
      return carry

    lax.fori_loop(0, int(np.prod(sizes)), step, 0)
  else:
    pltpu.sync_copy(x, o)


def check(cell: Cell, arguments: Arguments, got: tuple[Any, Any]) -> None:
  """Raises unless a kernel returned what the reference says."""
  new, result = map(np.asarray, got)
  has_result = cell.op.name != "store" and not cell.drop
  if has_result and cell.region_shape == ():
    result = result.reshape(()).astype(cell.dtype)
  cell.op.check(
    (result if has_result else None, new),
    arguments.x,
    cell.static_index,
    *arguments.operands,
    mask=arguments.mask,
    dropped=not has_result,
  )


# ## TensorCore cells

_BF16 = np.dtype(jnp.bfloat16)
_F32, _I32, _U32, _I8, _U8, _I16, _U16, _BOOL = map(
  np.dtype,
  ("float32", "int32", "uint32", "int8", "uint8", "int16", "uint16", "bool"),
)
TC_DTYPES = (
    _F32, _I32, _U32, _I8, _U8, _I16, _U16, _BOOL, _BF16, *cases.FP8,
)  # fmt: skip
# One of each way to keep elements: words, halves, bytes, words of flags.
FAMILIES = (_F32, _BF16, _I8, _BOOL)

_ALL = slice(None)
_D = Dynamic
_W = reference.Window


def _indices(shape: Any, high: int, seed: int) -> np.ndarray:
  return np.random.default_rng(seed).integers(0, high, shape).astype(np.int32)


def _ops(dtype: Any, ops: Any = cases.OPS) -> list[cases.Op]:
  return [op for op in ops if op.accepts(dtype)]


# A representative of each way to lower: no read, read, arithmetic, bits,
# comparison of bits.
_SOME = (cases.LOAD, cases.STORE, cases.SWAP, cases.ADD, cases.XOR, cases.CAS)
_FEW = (cases.LOAD, cases.SWAP, cases.ADD, cases.OR)

_SCALARS = (
  ((24, 200), (_D(23), _D(199))),
  ((3, 5, 40), (_D(1), _D(4), _D(33))),
  ((300,), (_D(299),)),
  ((1, 1), (_D(0), _D(0))),
  ((1,), (_D(0),)),
  ((20, 256), (3, 200)),
  ((5, 256), (_D(4), _D(100))),
  ((64, 128), (_D(7), 9)),
)

_BOXES = (
  ((32, 128), (_ALL, _ALL)),
  ((32, 128), (slice(8, 16), _ALL)),
  ((30, 200), (slice(3, 9), slice(5, 150))),
  ((32, 128), (_D(5, 6), _ALL)),
  ((64, 256), (_D(57, 7), _D(150, 100))),
  ((64, 256), (_D(32, 8, 1, 32), _D(128, 128, 1, 128))),
  ((64, 256), (_D(7), _ALL)),
  ((64, 256), (_D(7), _D(130, 20))),
  ((64, 256), (_ALL, _D(130))),
  ((24, 256), (_D(17, 7), 3)),
  ((5, 256), (_D(2, 3), _D(3, 5))),
  ((3, 16, 128), (_D(1, 2), _D(3), _D(5, 20))),
  ((3, 16, 128), (_ALL, 3, _D(100))),
  ((500,), (_D(100, 50),)),
  ((500,), (slice(3, 77),)),
)

_STRIDED = (
  ((32, 128), (_W(1, 4, 3), _ALL)),
  ((32, 128), (_D(1, 4, 3), _ALL)),
  ((32, 20), (_D(1, 4, 3), _ALL)),
  ((32, 256), (_W(1, 4, 3), slice(5, 30))),
  ((32, 256), (_D(1, 2, 3), _W(3, 10, 5))),
  ((32, 128), (_W(0, 2, 2), _W(1, 10, 3))),
  ((6, 8, 128), (slice(0, 6, 2), 3, _ALL)),
)

_GATHERS = (
  ((32, 128), (_indices(5, 32, 0), _ALL)),
  ((32, 128), (_indices(20, 32, 1), _ALL)),
  ((32, 256), (_indices(5, 32, 2), slice(3, 20))),
  ((32, 128), (_indices(6, 4, 3), _indices(6, 2, 4))),
  ((32, 128), (_indices(30, 4, 5), _indices(30, 4, 6))),
  ((32, 128), (_D(3), _indices(9, 5, 7))),
  ((32, 128), (slice(2, 6), _indices(7, 128, 8))),
  ((200,), (_indices(20, 9, 9),)),
  ((200,), (_indices((4, 6), 9, 10),)),
  ((4, 16, 128), (_indices(3, 4, 11), slice(0, 16, 7), _ALL)),
)

_OUTSIDE = (
  ((32, 128), (_W(28, 8), _ALL)),
  ((64, 256), (_D(60, 8), _D(250, 20))),
  ((64, 256), (_D(70), _D(3))),
  ((64, 256), (_W(-3, 8), 5)),
  ((500,), (_D(490, 30),)),
  ((64, 128), (_D(-4, 10), _ALL)),
  ((20, 128), (_D(15, 10), _ALL)),
  ((16, 128), (99, _D(3))),
)

_SMEM = (
  ((8,), (_D(5),)),
  ((8,), (3,)),
  ((4, 6), (_D(2), _D(5))),
  ((8,), (_ALL,)),
  ((24,), (_ALL,)),
  ((4, 40), (_ALL, _ALL)),
  ((64,), (_D(20, 18),)),
  ((64,), (_D(3, 5, 4),)),
  ((40,), (_indices(6, 4, 12),)),
  ((40,), (_indices(20, 9, 13),)),
)

_HBM = (
  ((64, 256), (_D(7), _D(130))),
  ((64, 256), (3, 5)),
  ((63, 200), (_D(62), _D(199))),
  ((64, 256), (slice(8, 16), _ALL)),
  ((64, 256), (_D(7, 5), _D(100, 50))),
  ((64, 256), (_D(7), _ALL)),
  ((3, 16, 128), (_D(1, 2), _D(3, 4), _ALL)),
  ((1024,), (_D(700),)),
  ((300,), (_D(100, 70),)),
  ((64, 256), (_indices(3, 64, 14), _ALL)),
  ((64, 256), (_D(3, 4, 5), _D(2))),
)


def tensorcore_cells(thin: int = 3) -> dict[str, list[Cell]]:
  """TensorCore cells, by group.

  Args:
    thin: Of the groups that are products of long tables, keep every `thin`-th
      cell; no table's length is a multiple of it, so each row still occurs.
  """
  groups: dict[str, list[Cell]] = {}
  groups["scalar"] = [
    Cell(op, dtype, shape, (_D(37), _D(99)), masked)
    for dtype in TC_DTYPES
    for shape in ((64, 128), (64, 256))
    for masked in (False, True)
    for op in _ops(dtype)
  ] + [
    Cell(op, dtype, (64, 256), (_D(37), _D(99)), drop=True)
    for dtype in TC_DTYPES
    for op in _ops(dtype, (cases.ADD, cases.MAX, cases.XOR, cases.CAS))
  ]
  tables = {
    "corner": (_SCALARS, TC_DTYPES, (cases.LOAD, cases.SWAP, cases.MAX)),
    "box": (_BOXES, FAMILIES, _SOME),
    "strided": (_STRIDED, FAMILIES, _SOME),
    "gather": (_GATHERS, FAMILIES, _FEW),
  }
  for group, (forms, dtypes, ops) in tables.items():
    groups[group] = [
      Cell(op, dtype, shape, index, masked)
      for dtype in dtypes
      for shape, index in forms
      for masked in (False, True)
      for op in _ops(dtype, ops)
    ]
  groups["outside"] = [
    Cell(op, dtype, shape, index, True)
    for dtype in FAMILIES
    for shape, index in _OUTSIDE
    for op in _ops(dtype, _FEW)
  ]
  groups["smem"] = [
    Cell(op, dtype, shape, index, masked, "smem")
    for dtype in (_F32, _I32, _BF16, _I8, _BOOL)
    for shape, index in _SMEM
    for masked in (False, True)
    for op in _ops(dtype, _SOME)
  ]
  groups["hbm"] = [
    Cell(op, dtype, shape, index, masked, space)
    for space, dtypes in (("hbm", FAMILIES), ("any", (_F32,)))
    for dtype in dtypes
    for shape, index in _HBM
    for masked in (False, True)
    for op in (cases.LOAD, cases.STORE, cases.SWAP)
  ]
  groups["hbm outside"] = [
    Cell(op, dtype, shape, index, True, "hbm")
    for dtype in (_F32, _BF16)
    for shape, index in (
      ((64, 256), (_D(60, 8), _ALL)),
      ((64, 256), (_D(64, 8, 1, 8), _D(250))),
      ((4, 8, 128), (_D(3, 2), 1, _ALL)),
      ((1024,), (_D(1000, 50),)),
    )
    for op in (cases.LOAD, cases.SWAP)
  ]
  for group in ("corner", "box", "strided", "gather", "smem", "hbm"):
    groups[group] = groups[group][::thin]
  # One of every operation and dtype, whatever is left of the tables.
  groups["each in one dimension"] = [
    Cell(op, dtype, (300,), (_D(299),), masked)
    for dtype in TC_DTYPES
    for op, masked in zip(_ops(dtype), itertools.cycle((False, True)))
  ]
  groups["each in smem"] = [
    Cell(op, dtype, (8,), (_D(5),), False, "smem")
    for dtype in TC_DTYPES
    for op in _ops(dtype)
  ]
  groups["each in hbm"] = [
    Cell(op, dtype, (64, 256), (_D(7), _D(130)), False, "hbm")
    for dtype in TC_DTYPES
    for op in (cases.LOAD, cases.STORE, cases.SWAP)
  ]
  return groups


def interpreted_cells() -> dict[str, list[Cell]]:
  """What TPU interpret mode runs: a sample, and each operation and dtype."""
  groups = tensorcore_cells()
  sample = {
    group: cells[:: max(1, len(cells) // 8)] for group, cells in groups.items()
  }
  sample["each in vmem"] = [
    Cell(op, dtype, (64, 128), (_D(37), _D(99)))
    for dtype in TC_DTYPES
    for op in _ops(dtype)
  ]
  for group in ("each in smem", "each in hbm"):
    sample[group] = groups[group]
  return sample


def kernels_of(cells: list[Cell], name: str = "k") -> dict[str, Any]:
  """What `oracles.tpu_compile` compiles, by the cells' names."""
  out = {}
  for cell in cells:
    shapes = [
      jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arguments_of(cell).inputs
    ]
    out[cell.name] = kernel_of(cell, name), shapes
  return out
