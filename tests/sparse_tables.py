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
"""Tables of the SparseCore accesses that tests evaluate, compile and interpret.

Each is a dict of cells by their names; `sparse_cells` makes kernels of them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import cases
import numpy as np
import reference
import sparse_cells
from sparse_cells import FLAGS
from sparse_cells import INT
from sparse_cells import PACKED
from sparse_cells import WORDS
from sparse_cells import Setting
import tpu_cells
from tpu_cells import Cell
from tpu_cells import Dynamic


def _inside(cells):
  return [c for c in cells if c.masked or np.all(tpu_cells.inside(c))]


def _by_name(cells):
  return {c.name: c for c in cells}


def vmem_cells(lanes: int) -> dict[str, Cell]:
  """Every operation in every form of index, on words."""
  repeats = np.array([3, 1, 3, 2, 3, 1, 0, 1] * (lanes // 8), np.int32)
  apart = (np.arange(lanes, dtype=np.int32) * 7) % 256
  forms = (
    (Dynamic(200),),
    (5,),
    (Dynamic(101, lanes),),
    (Dynamic(101, lanes, 2),),
    (reference.Window(3, lanes, 5),),
    (apart,),
    (repeats,),
    (Dynamic(256 - lanes // 2, lanes),),
  )
  wide = (
    (Dynamic(9), Dynamic(40)),
    (Dynamic(3, lanes), Dynamic(40)),
    (repeats, 7),
    (2, Dynamic(50, lanes)),
  )
  cells = _inside(
    Cell(op, dtype, shape, index, masked)
    for dtype in WORDS
    for op in cases.OPS
    if op.accepts(dtype)
    for shape, indices in (((256,), forms), ((32, 128), wide))
    for index in indices
    for masked in (False, True)
  )
  dropped = [
    dataclasses.replace(c, drop=True) for c in cells if c.op is cases.ADD
  ]
  return _by_name([*cells, *dropped])


def flag_cells(lanes: int) -> dict[str, Cell]:
  """Flags in VMEM."""
  repeats = np.array([3, 1, 3, 2, 3, 1, 0, 1] * (lanes // 8), np.int32)
  indices = (Dynamic(200),), (Dynamic(101, lanes),), (repeats,)
  return _by_name(
    Cell(op, FLAGS, (256,), index, masked)
    for op in cases.OPS
    if op.accepts(FLAGS)
    for index, masked in zip(indices * 2, (False, True) * 3, strict=True)
  )


def box_cells(lanes: int) -> dict[str, Cell]:
  """Regions of two dimensions, which need layout passes."""
  draw = np.random.default_rng(0)
  rows = np.array([5, 2, 5, 31], np.int32)
  both = draw.integers(0, 4, (2, lanes)).astype(np.int32)
  indices = (
    (Dynamic(3, 4), Dynamic(41, lanes)),
    (Dynamic(29, 4), Dynamic(121, lanes)),
    (reference.Window(0, 4, 3), Dynamic(7, lanes, 2)),
    (rows, Dynamic(41, lanes)),
    (both, both[::-1].copy()),
  )
  return _by_name(
    _inside(
      Cell(op, dtype, (32, 128), index, masked)
      for k, op in enumerate(cases.OPS)
      for dtype in (WORDS[k % 3], FLAGS)
      if op.accepts(dtype)
      for index in indices
      for masked in (False, True)
    )
  )


def packed_cells(
  lanes: int, dtype: Any, setting: Setting
) -> dict[str, Cell]:
  """Every operation on elements that share words."""
  if setting.layout_passes and not sparse_cells.BITCASTS:
    return {}  # Vectors of narrow elements cannot even enter a kernel.
  dtype = np.dtype(dtype)
  packing = 4 // dtype.itemsize
  size = packing * lanes
  draw = np.random.default_rng(0)
  if setting.tiling:
    shape = (8 * packing, 128)
    block = reference.Window(0, lanes)
    indices = [
      (Dynamic(5), Dynamic(77)),
      (3, 9),
      (Dynamic(3), Dynamic(30, size)),
      (2, reference.Window(40, size)),
      (Dynamic(2 * packing - 3), Dynamic(128 - size // 2, size)),
    ]
    arrays = draw.integers(0, 2 * packing, size).astype(np.int32), 3
    blocks = [(Dynamic(packing, packing, 1, packing), block)]
  else:
    shape = (6 * size + packing,)
    indices = [
      (Dynamic(77),),
      (6 * size + 1,),
      (Dynamic(30, size),),
      (Dynamic(packing * 3, size, 1, packing),),
      (reference.Window(5, size, 2),),
      (Dynamic(6 * size - 7, size),),
      (reference.Window(size, size),),
    ]
    arrays, blocks = (draw.integers(0, size // 2, size).astype(np.int32),), []
  if setting.layout_passes:
    indices += [arrays, *blocks]
  cells = [
    Cell(op, dtype, shape, index, masked)
    for op in cases.OPS
    if op.accepts(dtype)
    for index in indices
    for masked in (False, True)
  ]
  if blocks and not setting.layout_passes:
    cells += [Cell(op, dtype, shape, blocks[0]) for op in cases.OPS[:3]]
  return _by_name(_inside(cells))


def remote_cells(lanes: int, space: str) -> dict[str, Cell]:
  """Loads, stores and swaps of HBM or shared memory."""
  draw = np.random.default_rng(0)
  one = draw.integers(0, 64, lanes).astype(np.int32)
  forms = (
    ((64,), (Dynamic(9),)),
    ((64,), (Dynamic(13, lanes),)),
    ((64,), (reference.Window(64 - lanes // 2, lanes),)),
    ((64,), (Dynamic(64 - lanes // 2, lanes),)),
    ((64,), (Dynamic(3, lanes, 3),)),
    ((64,), (one,)),
    ((16, 128), (Dynamic(9), Dynamic(77))),
    ((16, 128), (Dynamic(9), Dynamic(77, lanes))),
    ((16, 128), (3, Dynamic(2, lanes, 3))),
    ((16, 128), (one % 16, Dynamic(5))),
    ((16, 128), (Dynamic(99), reference.Window(0, lanes))),
    ((16, 128), (99, Dynamic(3, lanes))),
  )
  return _by_name(
    _inside(
      Cell(op, dtype, shape, index, masked, space)
      for dtype in (*WORDS, FLAGS)
      for shape, index in forms
      for op in (cases.LOAD, cases.STORE, cases.SWAP)
      for masked in (False, True)
    )
  )


def remote_packed_cells(
  lanes: int, dtype: Any, space: str, setting: Setting
) -> dict[str, Cell]:
  """The same of elements that share words."""
  if setting.layout_passes and not sparse_cells.BITCASTS:
    return {}
  dtype = np.dtype(dtype)
  packing = 4 // dtype.itemsize
  size = packing * lanes
  draw = np.random.default_rng(0)
  rows = (8 * packing, 256)
  positions = draw.integers(0, 2 * packing, size).astype(np.int32)
  forms = [
    (rows, (Dynamic(5), Dynamic(77))),
    (rows, (Dynamic(3), Dynamic(250 - size, size))),
    (rows, (2, reference.Window(256 - size // 2, size))),
    (rows, (Dynamic(2 * packing - 1), Dynamic(0, size, 3))),
    ((8 * packing, 200), (7, Dynamic(200 - size // 2, size))),
    (rows, (Dynamic(99), reference.Window(0, size))),
    (rows, (99, Dynamic(3, size))),
  ]
  if setting.layout_passes:
    forms.append((rows, (positions, 3)))
  if not setting.tiling:
    table = (6 * size + packing,)
    forms += [
      (table, (Dynamic(77),)),
      (table, (Dynamic(30, size),)),
      (table, (Dynamic(packing * 3, size, 1, packing),)),
      (table, (reference.Window(size, size),)),
      (table, (reference.Window(-5, size),)),
      (table, (Dynamic(6 * size - 7, size),)),
      (table, (Dynamic(1, size, 2),)),
      ((packing,), (Dynamic(packing - 1),)),
    ]
    if setting.layout_passes:
      forms += [(table, (positions,)), (table, (Dynamic(30, 2 * size),))]
  return _by_name(
    _inside(
      Cell(op, dtype, shape, index, masked, space)
      for shape, index in forms
      for op in (cases.LOAD, cases.STORE, cases.SWAP)
      for masked in (False, True)
    )
  )


def all_remote_packed_cells(
  lanes: int, space: str, setting: Setting
) -> list[Cell]:
  """The same of every dtype."""
  tables = (
    remote_packed_cells(lanes, t, space, setting).values() for t in PACKED
  )
  return [cell for table in tables for cell in table]


def smem_cells():
  """name -> cell; every operation on a scalar of SMEM."""
  cells = [
    Cell(op, dtype, (8,), (Dynamic(5),), masked, "smem")
    for dtype in (*WORDS, FLAGS)
    for op in cases.OPS
    if op.accepts(dtype)
    for masked in (False, True)[: 2 if dtype == INT else 1]
  ]
  return _by_name(cells)


def smem_vector_cells():
  """The same on eight elements of SMEM at once."""
  repeats = np.array([3, 1, 3, 2, 3, 7, 0, 1], np.int32)
  cells = [
    Cell(op, dtype, (8,), (index,), masked, "smem")
    for dtype in (*WORDS, FLAGS)
    for op in cases.OPS
    if op.accepts(dtype)
    for index, masked in (
      (Dynamic(0, 8), False),
      (Dynamic(3, 8), True),
      (repeats, False),
      (repeats, True),
    )[: 4 if dtype == INT else 1]
    if op in (cases.LOAD, cases.SWAP, cases.ADD, cases.CAS) or not masked
  ]
  return _by_name(cells)


def scalar_remote_cells() -> dict[str, Cell]:
  """What the scalar subcore reaches of HBM and shared memory."""
  return _by_name(
    _inside(
      Cell(op, dtype, (64,), (index,), masked, space)
      for space, ops in (
        ("hbm", (cases.LOAD, cases.STORE, cases.SWAP)),
        ("vmem_shared", (cases.LOAD,)),
      )
      for op in ops
      for dtype in (*WORDS, FLAGS)
      for index in (Dynamic(37), 63, 99)
      for masked in (False, True)
    )
  )


def _any_inside(cell: Cell) -> bool:
  return bool(np.any(tpu_cells.inside(cell)))


def interpreted_cells() -> dict[str, tuple[Setting | None, list[Cell]]]:
  """What TPU interpret mode runs of each table, and with which parameters.

  Without any it is a kernel of the scalar subcore.
  """
  lanes = sparse_cells.LANES
  plain = Setting(layout_passes=False)
  linear = Setting(layout_passes=False, tiling=False)
  tiled = Setting(layout_passes=False, tiling=True)
  boxes = Setting(layout_passes=True, tiling=True)
  scalar = smem_cells() | scalar_remote_cells()
  tables = {
    "vmem": (plain, vmem_cells(lanes), 61),
    "flags": (plain, flag_cells(lanes), 11),
    "boxes": (boxes, box_cells(lanes), 29),
    "int8": (linear, packed_cells(lanes, "int8", linear), 23),
    "bfloat16": (tiled, packed_cells(lanes, "bfloat16", tiled), 19),
    "hbm": (plain, remote_cells(lanes, "hbm"), 31),
    "vmem_shared": (plain, remote_cells(lanes, "vmem_shared"), 7),
    "smem": (plain, smem_vector_cells(), 7),
    "scalar_subcore": (None, scalar, 13),
  }
  for space, setting in (("hbm", tiled), ("vmem_shared", linear)):
    table = {
      c.name: c
      for t in PACKED
      for c in remote_packed_cells(lanes, t, space, setting).values()
      if not isinstance(c.index[-1], np.ndarray)
    }
    tables[f"packed_{space}"] = (setting, table, 14)
  out: dict[str, tuple[Setting | None, list[Cell]]] = {}
  for name, (setting, cells, every) in tables.items():
    # Arrays that are masked off as a whole may lie outside: one will do.
    outside = [
      c for c in cells.values() if c.region_shape and not _any_inside(c)
    ]
    inside = [c for c in cells.values() if not c.region_shape or _any_inside(c)]
    chosen = inside[::every] + outside[:1]
    if not sparse_cells.BITCASTS:
      # Vectors of narrow elements cannot even enter a kernel.
      chosen = [
        c for c in chosen
        if c.region_shape == () or np.dtype(c.dtype) not in PACKED
      ]  # fmt: skip
    out[name] = setting, chosen
  return out
