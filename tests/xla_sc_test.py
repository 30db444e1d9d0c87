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
"""`fetch_*` on the SparseCores: right as emitted, and compiled for real."""

import contextlib
import dataclasses
import functools
import os
import subprocess
import sys
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax._src.pallas.mosaic import sc_core  # what a SparseCore is said to have
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AxisType
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import jax_swapext as jsx
from jax_swapext._src import semantics
from jax_swapext._src import tpu_compiler
from jax_swapext._src.xla import sc_scalars
from jax_swapext._src.xla import sc_updates
from jax_swapext._src.xla import tpu
from jax_swapext._src.xla import tpu_kernels
from jax_swapext._src.xla import tpu_sparse
import numpy as np
from oracles import mosaic_ir
from oracles import tpu_compile
import pytest
import xla_sc_kernels
import xla_tpu_kernels
from xla_tpu_kernels import Cell
from xla_tpu_kernels import check
from xla_tpu_kernels import plan as plan_of

AtomicOp = semantics.AtomicOp

_ADD = Cell(AtomicOp.ADD, "float32", (), count=700)


@contextlib.contextmanager
def _small(generation, cores, subcores, vmem_words=4096, block=128, chunk=None):
  """A device of a generation that has less; its calls cost nothing."""
  with contextlib.ExitStack() as stack:
    stack.enter_context(tpu_compiler.target(generation))
    info = dataclasses.replace(
        sc_core.get_sparse_core_info(), num_cores=cores, num_subcores=subcores,
        vmem_capacity_bytes=4 * vmem_words,
    )
    for owner, name, value in (
        (sc_core, "get_sparse_core_info", lambda: info),
        (tpu_sparse, "_CALL_SECONDS", 0.0),
        (tpu_sparse, "_BUSIEST", 0.0),
        (tpu_sparse, "_BLOCK", block),
        (tpu_sparse, "_ROW_BLOCK", block),
        (tpu_sparse, "_CHUNK", chunk or tpu_sparse._CHUNK),
    ):
      stack.enter_context(mock.patch.object(owner, name, value))
    yield


@pytest.mark.slow
class EvaluateTest(parameterized.TestCase):
  """The emitted program, run by an interpreter of Mosaic's IR."""

  @parameterized.named_parameters(
      (c.name, k, c)
      for k, c in enumerate(
          dict.fromkeys(
              (*xla_sc_kernels.cells(700), *xla_sc_kernels.flag_cells(700))
          )
      )
  )
  def test_equals_the_cpu_rule(self, k, cell):
    generation = tpu_compile.SPARSE_GENERATIONS[k % 3]
    args = cell.arguments(200)
    with _small(generation, cores=2, subcores=2):
      self.assertIsInstance(plan_of(cell, 200, "TPU7x"), sc_updates.Plan)
      got = mosaic_ir.evaluate(
          cell, *args, generation=generation, dma=("late", "early")[k % 2],
          seed=k,
      )
    check(cell, got, *args)

  @parameterized.named_parameters(
      (c.name, k, dataclasses.replace(c, row=(128,)))
      for k, c in enumerate(xla_sc_kernels.row_cells(61))
  )
  def test_rows_equal_the_cpu_rule(self, k, cell):
    args = cell.arguments(120)
    with _small("v6e", cores=1, subcores=3, vmem_words=7000):
      plan = plan_of(cell, 120, "TPU v6 lite")
      self.assertIn(plan.batch, (8, 16))  # so that there are several of them
      got = mosaic_ir.evaluate(cell, *args, dma=("late", "early")[k % 2])
    check(cell, got, *args)

  def test_rows_in_long_vectors(self):
    cell = dataclasses.replace(_ADD, row=(256,), count=61)
    args = cell.arguments(60)
    with _small("tpu7x", cores=2, subcores=1, vmem_words=20_000):
      got = mosaic_ir.evaluate(cell, *args, generation="tpu7x")
    check(cell, got, *args)

  @parameterized.parameters(((),), ((128,),))
  def test_more_subcores_than_elements(self, row):
    cell = dataclasses.replace(_ADD, row=row, count=5)
    args = cell.arguments(40)
    with _small("v6e", cores=2, subcores=4, vmem_words=10_000):
      got = mosaic_ir.evaluate(cell, *args)
    check(cell, got, *args)


class InterpretTest(parameterized.TestCase):
  """TPU interpret mode, in which all subcores are number 0: so there is one."""

  @parameterized.parameters(
      (_ADD, 4096, 200),
      (dataclasses.replace(_ADD, op=AtomicOp.CAS, reverse=True), 2048, 300),
      (Cell(AtomicOp.MAX, "int32", (), True, need_old=False, count=700),
       1400, 200),
  )
  @pytest.mark.slow
  def test_chunks_and_stretches(self, cell, vmem_words, updates):
    args = cell.arguments(updates)
    x, idx, *operands = args
    mask = operands.pop() if cell.masked else None
    update = functools.partial(
        tpu.fetch_update_tpu, op=cell.op, order="index", reverse=cell.reverse,
        unique_indices=False, need_old=cell.need_old,
        device_kind="TPU v6 lite",
    )
    with _small("v6e", 1, 1, vmem_words, chunk=128):
      with pltpu.force_tpu_interpret_mode():
        got = jax.jit(update)(x, idx, *operands, mask=mask)
    check(cell, got, *args)


  @pytest.mark.slow
  def test_rows(self):
    cell = Cell(AtomicOp.ADD, "float32", (128,), True, True, count=20)
    x, idx, value, mask = args = cell.arguments(20)
    update = functools.partial(
        tpu.fetch_update_tpu, op=cell.op, order="index", reverse=cell.reverse,
        unique_indices=False, need_old=cell.need_old,
        device_kind="TPU v6 lite",
    )
    with _small("v6e", 1, 1, vmem_words=8192):
      with pltpu.force_tpu_interpret_mode():
        got = jax.jit(update)(x, idx, value, mask=mask)
    check(cell, got, *args)


class ChoiceTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("v5p", "v5p", "TPU v5", _ADD, 10**5, sc_updates.Plan),
      ("v6e", "v6e", "TPU v6 lite", _ADD, 10**5, sc_updates.Plan),
      ("tpu7x", "tpu7x", "TPU7x", _ADD, 10**5, sc_updates.Plan),
      ("v5e_has_none", "v5e", "TPU v5 lite", _ADD, 10**5, tpu_kernels.Plan),
      ("unknown", "v6e", "TPU v4", _ADD, 10**5, tpu_kernels.Plan),
      ("few_updates", "v6e", "TPU v6 lite", _ADD, 100, tpu_kernels.Plan),
      ("narrow", "v6e", "TPU v6 lite",
       dataclasses.replace(_ADD, dtype="bfloat16"), 10**5, tpu_kernels.Plan),
      ("rows_in_lanes", "v6e", "TPU v6 lite",
       dataclasses.replace(_ADD, row=(8,)), 10**5, tpu_kernels.Plan),
      ("large", "v5p", "TPU v5",
       dataclasses.replace(_ADD, count=10**8), 10**6, sc_updates.Plan),
      ("too_many_stretches", "v6e", "TPU v6 lite",
       dataclasses.replace(_ADD, count=10**8), 10**6, tpu_kernels.Plan),
      ("rows", "v6e", "TPU v6 lite",
       dataclasses.replace(_ADD, row=(128,), count=10**6), 10**4,
       sc_updates.Plan),
      ("many_updates_of_rows", "v6e", "TPU v6 lite",
       dataclasses.replace(_ADD, row=(128,), count=10**4), 10**5,
       tpu_kernels.Plan),
      ("long_rows", "v6e", "TPU v6 lite",
       dataclasses.replace(_ADD, row=(2048,), count=10**5), 10**3,
       tpu_kernels.Plan),
      ("few_updates_of_much", "v6e", "TPU v6 lite",
       dataclasses.replace(_ADD, count=2**30), 100, type(None)),
  )
  def test_chooses(self, generation, device_kind, cell, updates, kind):
    with tpu_compiler.target(generation):
      self.assertIsInstance(plan_of(cell, updates, device_kind), kind)

  @parameterized.parameters(*tpu_compile.SPARSE_GENERATIONS)
  def test_fits(self, generation):
    """All of the VMEM is used, but not more."""
    kind = tpu_compiler.abstract_device(generation).device_kind
    with tpu_compiler.target(generation):
      info = sc_core.get_sparse_core_info()
      for operands, op in ((1, AtomicOp.ADD), (2, AtomicOp.CAS)):
        cell = dataclasses.replace(_ADD, op=op, count=10**7)
        plan = plan_of(cell, 10**6, kind)
        words = sc_scalars.vmem_words(plan, operands)
        share = 4 * words / info.vmem_capacity_bytes
        self.assertBetween(share, 0.5, 0.95)


class CompileTest(parameterized.TestCase):
  """The real compiler of every generation that has SparseCores."""

  @parameterized.parameters(*enumerate(tpu_compile.SPARSE_GENERATIONS))
  @pytest.mark.slow
  def test_compiles(self, part, generation):
    results = tpu_compile.compile_all(
        "xla_sc_kernels", "kernels", generation,
        share=(part, len(tpu_compile.SPARSE_GENERATIONS)),
    )
    self.assertNotEmpty(results)
    self.assertEqual(
        {name: r.error for name, r in results.items() if not r.ok}, {}
    )
    # Those of a SparseCore alone are counted with their stalls.
    self.assertTrue(all(r.cycles for r in results.values()))

  @parameterized.parameters(
      ("tpu-v5p", (4 * 10**6,), 10**6),
      ("tpu-v6e", (2 * 10**7,), 10**6),
      ("tpu7x", (10**7, 128), 10**4),
      ("tpu-v6e", (10**6, 1024), 10**4),
  )
  @pytest.mark.slow
  def test_table_stays_in_place(self, target, table, n):
    hlo = xla_tpu_kernels.compiled_in_place(self, target, table, n)
    self.assertIn("call-start", hlo)


class LoweringTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("vmap", jax.vmap(jsx.fetch_add)),
      ("scan", lambda x, *updates: jax.lax.scan(
          lambda x, u: jsx.fetch_add(x, *u)[::-1], x[0], updates
      )),
      ("grad", jax.grad(
          lambda x, idx, v: jsx.fetch_add(x[0], idx[0], v[0])[0].sum()
      )),
      ("64_bits", jax.enable_x64(True)(
          lambda x, idx, v: jsx.fetch_add(x[0], idx[0], v[0])
      )),
  )
  def test_under(self, f):
    shapes = [
        jax.ShapeDtypeStruct((4, 10**4), dtype)
        for dtype in (np.float32, np.int32, np.float32)
    ]
    text = mosaic_ir.lower(f, *shapes).as_text()
    self.assertIn("sparse_core_config", text)

  @pytest.mark.slow
  def test_under_shard_map(self):
    """The part of each device is updated by its own SparseCores."""
    path = [os.path.dirname(__file__), *filter(None, sys.path)]
    child = subprocess.run(
        [sys.executable, "-c", "import xla_sc_test as t; t.lower_sharded()"],
        env=tpu_compiler.environment() | {"PYTHONPATH": os.pathsep.join(path)},
        capture_output=True, text=True, timeout=200, check=False,
    )
    self.assertEqual(child.returncode, 0, child.stderr[-2000:])
    self.assertIn("sparse_core_config", child.stdout)


def lower_sharded():
  """Prints the program for four TPUs, which only libtpu can describe."""
  devices = np.array(tpu_compiler.devices_of("v6e"))
  mesh = jax.sharding.Mesh(devices, ("d",), axis_types=(AxisType.Auto,))
  f = jax.shard_map(
      jsx.fetch_add, mesh=mesh, in_specs=P("d"), out_specs=P("d")
  )
  sharding = NamedSharding(mesh, P("d"))
  shapes = [
      jax.ShapeDtypeStruct((4 * 10**5,), dtype, sharding=sharding)
      for dtype in (np.float32, np.int32, np.float32)
  ]
  print(jax.jit(f).lower(*shapes).as_text())


if __name__ == "__main__":
  absltest.main()
