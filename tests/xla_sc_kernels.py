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
"""Cells of `fetch_update_p` that the SparseCores take over."""

import itertools

from jax_swapext._src import semantics
from jax_swapext._src.xla import tpu_sparse
import xla_tpu_kernels
from xla_tpu_kernels import Cell

AtomicOp = semantics.AtomicOp

# So many updates that the SparseCores are worth their call.
UPDATES = 5000
MEASURED_UPDATES = 10_000


def flag_cells(count: int) -> list[Cell]:
  """One operation and dtype with all flags."""
  return [
      Cell(AtomicOp.ADD, "float32", (), *flags, count=count)
      for flags in itertools.product((False, True), repeat=3)
  ]


def cells(count: int = 100_001) -> list[Cell]:
  """Every operation and dtype, flags in turns."""
  turns = itertools.cycle(itertools.product((False, True), repeat=3))
  return [
      Cell(op, dtype, (), *next(turns), count=count)
      for op, dtype in xla_tpu_kernels.operations_and_dtypes()
      if dtype in tpu_sparse.DTYPES and op is not AtomicOp.ADD_OR_SET
  ]


def row_cells(count: int = 1_000_001) -> list[Cell]:
  """Every operation on rows of some length, a dtype each, flags in turns."""
  turns = itertools.cycle(itertools.product((False, True), repeat=3))
  rows = itertools.cycle(((128,), (256,), (1024,), (640,)))
  dtypes = {c.op: c.dtype for c in cells()}
  pairs = [*dtypes.items(), (AtomicOp.MIN, "uint32")]
  return [
      Cell(op, dtype, next(rows), *next(turns), count=count)
      for op, dtype in pairs
  ]


def kernels():
  return {c.name: (c, c.shapes(UPDATES)) for c in (*cells(), *row_cells())}


def measured_cells():
  """One cell of each kind: scalars, and rows of two lengths."""
  return [
      Cell(op, "float32", row, need_old=need_old, count=1_000_000)
      for row in ((), (128,), (1024,))
      for op in (AtomicOp.ADD, AtomicOp.CAS)
      for need_old in (True, False)
  ]


def measured():
  """What the benchmark counts the instructions of."""
  return {c.name: (c, c.shapes(MEASURED_UPDATES)) for c in measured_cells()}
