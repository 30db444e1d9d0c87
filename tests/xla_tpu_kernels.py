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
"""Cells of `fetch_update_p` on TPU: what the kernels have to do, and inputs."""

import dataclasses
import itertools
import time
from unittest import mock

import jax
import jax.numpy as jnp
import jax_swapext as jsx
from jax_swapext import testing
from jax_swapext._src import fetch_update
from jax_swapext._src import semantics
from jax_swapext._src import support
from jax_swapext._src.xla import tpu
from jax_swapext._src.xla import tpu_sparse
import numpy as np

AtomicOp = semantics.AtomicOp

# Rows in the lanes of one vector register and of more, and rows of vectors.
# Each with a number of rows that leaves the last tile ragged.
TABLES = {(): 700, (8,): 300, (128,): 41, (3, 5): 150, (2, 128): 21}

_FLAGS = tuple(itertools.product((False, True), repeat=3))


@dataclasses.dataclass(frozen=True)
class Cell:
  """One kernel, as parameters of `fetch_update_p`."""

  op: AtomicOp
  dtype: str
  row: tuple[int, ...]
  masked: bool = False
  reverse: bool = False
  need_old: bool = True
  count: int = 0

  @property
  def name(self) -> str:
    row = "x".join(map(str, self.row)) or "scalars"
    flags = ("masked", "reverse", "need_old")
    set_flags = "_".join(f for f in flags if getattr(self, f))
    return f"{self.op.value}_{self.dtype}_{row}_{set_flags}"

  def __call__(self, x, idx, *args):
    operands, mask = (args[:-1], args[-1]) if self.masked else (args, None)
    return fetch_update.fetch_update(
        x, idx, *operands, mask=mask, op=self.op, order="index",
        reverse=self.reverse, need_old=self.need_old,
    )

  def row_of(self, idx) -> tuple[int, ...]:
    """The shape of an operand."""
    return (*idx.shape, *self.row)

  def arguments(self, updates: int = 150) -> list[np.ndarray]:
    """A table, indices that repeat and leave it, operands, a mask."""
    rng = np.random.default_rng(0)
    t = self.count or TABLES[self.row]
    x = self._draw(rng, (t, *self.row))
    # A few rows get most of the updates.
    idx = rng.choice([*rng.integers(-t, t, 20), t, -t - 1, 2**31 - 1], updates)
    idx = idx.astype(np.int32)
    operands = [self._draw(rng, (updates, *self.row))]
    if self.op is AtomicOp.CAS:
      # Half of them win, at first.
      expected = x[np.clip(idx, -t, t - 1)].copy()
      expected[::2] = operands[0][::2]
      operands = [expected, *operands]
    if self.op is AtomicOp.ADD_OR_SET:
      operands.append(rng.random((updates, *self.row)) < 0.3)
    masks = [rng.random(updates) < 0.7] if self.masked else []
    return [x, idx, *operands, *masks]

  def _draw(self, rng, shape):
    dtype = jnp.dtype(self.dtype)
    if dtype == np.bool_:
      return rng.random(shape) < 0.5
    if not jnp.issubdtype(dtype, jnp.floating):
      # All of the bits count, as the sums wrap around.
      bounds = np.iinfo(dtype)
      return rng.integers(bounds.min, bounds.max, shape, dtype, endpoint=True)
    x = rng.normal(size=shape).astype(dtype)
    return np.where(rng.random(shape) < 0.02, np.nan, x).astype(dtype)

  def shapes(self, updates: int = 150) -> tuple[jax.ShapeDtypeStruct, ...]:
    count = self.count or TABLES[self.row]
    operands = 1 + (self.op in (AtomicOp.CAS, AtomicOp.ADD_OR_SET))
    dtypes = [jnp.dtype(self.dtype)] * operands
    if self.op is AtomicOp.ADD_OR_SET:
      dtypes[1] = np.dtype(bool)
    shape = jax.ShapeDtypeStruct
    return (
        shape((count, *self.row), dtypes[0]),
        shape((updates,), np.int32),
        *(shape((updates, *self.row), d) for d in dtypes),
        *([shape((updates,), bool)] if self.masked else []),
    )


def check(cell, got, *args):
  """The CPU rule is the reference; `oracle_test` compares it with NumPy."""
  for a, b in zip(got, jax.jit(cell)(*args), strict=True):
    a, b = np.asarray(a), np.asarray(b)
    if cell.op in (AtomicOp.XCHG, AtomicOp.CAS):
      a, b = a.view(f"u{a.itemsize}"), b.view(f"u{b.itemsize}")
    elif a.dtype == jnp.bfloat16:  # whose NaNs NumPy does not know
      a, b = a.astype(np.float32), b.astype(np.float32)
    np.testing.assert_array_equal(a, b)


def plan(cell, updates, device_kind):
  """How the kernels do it; None if they do not."""
  x, idx, *operands = cell.shapes(updates)
  return tpu.make_plan(
      x, idx, operands[:-1] if cell.masked else operands, op=cell.op,
      reverse=cell.reverse, need_old=cell.need_old, device_kind=device_kind,
  )


def operations_and_dtypes():
  """Every pair that a kernel takes over."""
  for op in AtomicOp:
    for dtype in support.ALL:
      floating = jnp.issubdtype(jnp.dtype(dtype), jnp.floating)
      adds = op in (AtomicOp.ADD, AtomicOp.ADD_OR_SET)
      if dtype.endswith("64") or (adds and dtype == "float16"):
        continue
      if op is AtomicOp.ADD_OR_SET and not floating:
        continue
      if op is not AtomicOp.ADD_OR_SET:
        try:
          semantics.check_dtype("", jnp.dtype(dtype), op)
        except TypeError:
          continue
      elif dtype.startswith("float8"):
        continue
      yield op, dtype


def cells() -> list[Cell]:
  """Every operation and dtype; tables and flags in turn; one cell in full."""
  turns = itertools.cycle(TABLES)
  flags = itertools.cycle(_FLAGS)
  found = [
      Cell(op, dtype, next(turns), *next(flags))
      for op, dtype in operations_and_dtypes()
  ]
  found += [
      Cell(AtomicOp.ADD, "float32", row, *flags)
      for row in ((), (128,))
      for flags in _FLAGS
  ]
  # Rows of several vector registers side by side.
  found += [
      Cell(AtomicOp.ADD, "int32", (200,), True, count=130),
      Cell(AtomicOp.CAS, "float32", (200,), reverse=True, count=130),
      Cell(AtomicOp.XCHG, "uint32", (4, 64), count=130),
  ]
  return list(dict.fromkeys(found))


def kernels():
  return {c.name: (c, c.shapes()) for c in cells()}


def _by_tensorcore(cell):
  """The cell as a kernel of the TensorCore, whatever else there is."""

  def f(x, idx, *operands):
    device = jax.sharding.get_abstract_mesh().abstract_device
    with mock.patch.object(tpu_sparse, "make_plan", lambda *_, **__: None):
      return tpu.fetch_update_tpu(
          x, idx, *operands, mask=None, op=cell.op, order="index",
          reverse=cell.reverse, unique_indices=False, need_old=cell.need_old,
          device_kind=device.device_kind,
      )

  return f


def measured_cells():
  """One cell of each kind."""
  found = [
      Cell(op, "float32", row, need_old=need_old)
      for row in ((), (8,), (128,), (1024,))
      for op in (AtomicOp.ADD, AtomicOp.CAS)
      for need_old in (True, False)
  ]
  return [dataclasses.replace(c, count=100_001) for c in found]


def measured():
  """What the benchmark counts the instructions of."""
  return {
      c.name: (_by_tensorcore(c), c.shapes(100_000)) for c in measured_cells()
  }


def compiled_in_place(case, target, table, n):
  """The HLO of `n` additions to a donated table, after checks of `case`.

  Args:
    case: the test case.
    target: as for `testing.compile_for`.
    table: the shape of the table.
    n: how many updates.
  """
  start = time.monotonic()
  compiled = testing.compile_for(
      target,
      jsx.fetch_add,
      jax.ShapeDtypeStruct(table, np.float32),
      jax.ShapeDtypeStruct((n,), np.int32),
      jax.ShapeDtypeStruct((n, *table[1:]), np.float32),
      donate_argnums=0,
  )
  case.assertLess(time.monotonic() - start, 60)  # XLA's sort takes minutes
  shape = ",".join(map(str, table))
  case.assertNotRegex(compiled.hlo, rf"f32\[{shape}\]\S* copy")
  case.assertIn("input_output_alias", compiled.hlo)
  return compiled.hlo
