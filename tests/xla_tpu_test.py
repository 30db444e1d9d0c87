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
"""`fetch_*` outside kernels on TPU: right as emitted, and compiled for real."""

import contextlib
import dataclasses
import functools
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import cases
import jax
from jax.experimental.pallas import tpu as pltpu
import jax.export
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
import jax_swapext as jsx
from jax_swapext._src import semantics
from jax_swapext._src.xla import tpu
from jax_swapext._src.xla import tpu_kernels
import numpy as np
from oracles import mosaic_ir
from oracles import tpu_compile
import pytest
import xla_tpu_kernels
from xla_tpu_kernels import Cell
from xla_tpu_kernels import check

AtomicOp = semantics.AtomicOp

_OPS = {op.name: op for op in cases.ATOMICS}
_ADD = Cell(AtomicOp.ADD, "float32", ())

# Cells, updates that fill their blocks, and so little VMEM, in KiB, that the
# tables do not fit in at once.
_IN_PARTS = (
    (Cell(AtomicOp.ADD, "float32", (), count=3000), 256, 20),
    (Cell(AtomicOp.ADD, "float32", (8,)), 256, 58),
    (Cell(AtomicOp.ADD, "float32", (128,)), 152, 484),
)


@pytest.mark.slow
class EvaluateTest(parameterized.TestCase):
  """The emitted program, run by an interpreter of Mosaic's IR.

  It knows no loop of XLA's: that it runs a cell means that a kernel does it.
  """

  @parameterized.named_parameters(
      (c.name, c) for c in xla_tpu_kernels.cells()
  )
  def test_equals_the_cpu_rule(self, cell):
    args = cell.arguments()
    check(cell, mosaic_ir.evaluate(cell, *args), *args)

  @parameterized.product(
      cell=[
          _ADD,
          Cell(AtomicOp.MAX, "int32", (8,), reverse=True),
          Cell(AtomicOp.XCHG, "float32", (128,), True),
      ],
      dma=["late", "early"],
  )
  def test_several_blocks_of_updates(self, cell, dma):
    args = cell.arguments(1100)
    check(cell, mosaic_ir.evaluate(cell, *args, dma=dma), *args)

  @parameterized.parameters(*_IN_PARTS)
  def test_several_parts(self, cell, updates, kibibytes):
    x, idx, value = cell.arguments(updates - 7)
    plan = _plan(cell, x, idx, value, kibibytes=kibibytes)
    self.assertGreater(plan.parts, 1)

    def f(x, idx, value):
      at, x, value = _prepare(plan, x, idx, value)
      old = jnp.zeros_like(value)
      for part in range(plan.parts):
        old, x = tpu_kernels.update_part(
            plan, jnp.int32(part), old, x, at, value
        )
      return _restore(plan, old).reshape(cell.row_of(idx)), _restore(plan, x)

    check(cell, mosaic_ir.evaluate(f, x, idx, value), x, idx, value)


class InterpretTest(parameterized.TestCase):
  """TPU interpret mode, which wants tables that fill their blocks."""

  @parameterized.parameters(*_IN_PARTS)
  @pytest.mark.slow
  def test_several_parts(self, cell, updates, kibibytes):
    x, idx, value = cell.arguments(updates)
    part = _plan(cell, x, idx, value, kibibytes=kibibytes).part
    x = np.resize(x, (2 * part, *x.shape[1:]))
    update = functools.partial(
        tpu.fetch_update_tpu, mask=None, op=cell.op, order="index",
        reverse=cell.reverse, unique_indices=False, need_old=True,
        device_kind="",
    )
    with _vmem(kibibytes), pltpu.force_tpu_interpret_mode():
      got = jax.jit(update)(x, idx, value)
    check(cell, got, x, idx, value)

  @parameterized.parameters(
      _ADD, Cell(AtomicOp.MIN, "int32", (8,), reverse=True)
  )
  @pytest.mark.slow
  def test_rows_to_spare(self, cell):
    x, idx, value = cell.arguments()
    plan = _plan(cell, x, idx, value)
    self.assertTrue(plan.spare)

    @jax.jit
    def f(x, idx, value):
      whole = jnp.pad(x, [(0, plan.part - len(x)), *[(0, 0)] * len(cell.row)])
      at, whole, value = _prepare(plan, whole, idx, value, rows=len(x))
      old, new = tpu_kernels.update_part(
          plan, jnp.int32(0), None, whole, at, value
      )
      old = _restore(plan, old).reshape(cell.row_of(idx))
      ok = jnp.ravel(at)[: len(idx)] < len(x)
      old = jnp.where(ok.reshape(-1, *[1] * len(cell.row)), old, 0)
      return old, _restore(plan, new)[: len(x)]

    with pltpu.force_tpu_interpret_mode():
      got = f(x, idx, value)
    check(cell, got, x, idx, value)


def _prepare(plan, x, idx, value, rows=None):
  """What `update_part` takes, of a table whose first `rows` count."""
  rows = len(x) if rows is None else rows
  dropped = rows if plan.spare else -1
  at = jnp.where(idx < 0, idx + rows, idx)
  at = jnp.where((at >= 0) & (at < rows), at, dropped)
  rest = jnp.full(-len(idx) % plan.block, dropped, at.dtype)
  at = jnp.concatenate([at, rest]).reshape(-1, 1, plan.block)
  if plan.in_lanes:
    x, value = x.T, value.T
  return at, x, value.reshape(1, -1) if x.ndim == 1 else value


def _restore(plan, x):
  return x.T if plan.in_lanes else x


def _plan(cell, x, idx, *operands, kibibytes=None):
  with _vmem(kibibytes):
    return tpu.make_plan(
        x, idx, operands, op=cell.op, reverse=cell.reverse,
        need_old=cell.need_old, device_kind="",
    )


def _vmem(kibibytes):
  """A device that has no more VMEM; None: that of the oldest."""
  if kibibytes is None:
    return contextlib.nullcontext()
  return mock.patch.object(tpu, "_LEAST_VMEM_BYTES", kibibytes * 1024)


class LoweringTest(parameterized.TestCase):

  def _lower(self, f, *shapes, platforms=("tpu",)):
    shapes = [jax.ShapeDtypeStruct(*s) for s in shapes]
    lowered = jax.jit(f).trace(*shapes).lower(lowering_platforms=platforms)
    return lowered.as_text()

  def _uses_kernel(self, f, *shapes, platforms=("tpu",)):
    return "tpu_custom_call" in self._lower(f, *shapes, platforms=platforms)

  def _updates(self, t, row, n, dtype=np.float32):
    return ((t, *row), dtype), ((n,), np.int32), ((n, *row), dtype)

  def test_several_platforms_in_one_module(self):
    args = self._updates(700, (), 300)
    self.assertTrue(
        self._uses_kernel(jsx.fetch_add, *args, platforms=("cpu", "tpu"))
    )

  def test_exports_for_several_platforms(self):
    cell = dataclasses.replace(_ADD, masked=True)
    args = cell.arguments()
    exported = jax.export.export(jax.jit(cell), platforms=("cpu", "tpu"))(*args)
    self.assertIn("tpu_custom_call", exported.mlir_module())
    read = jax.export.deserialize(exported.serialize())
    check(cell, read.call(*args), *args)

  def test_ref_outside_a_kernel(self):
    def f(x, idx, value):
      ref = jax.new_ref(x)
      old = jsx.atomic_add(ref, idx, value)
      return old, jax.freeze(ref)

    self.assertTrue(self._uses_kernel(f, *self._updates(700, (), 300)))

  def test_under_transformations(self):
    def loss(x, idx, value):
      return jsx.fetch_max(x, idx, value)[0].sum()

    def steps(x, idx, value):
      return jax.lax.scan(
          lambda x, update: jsx.fetch_add(x, *update)[::-1],
          x, (idx.reshape(3, 100), value.reshape(3, 100)),
      )

    args = self._updates(700, (), 300)
    batch = [((4, *shape), dtype) for shape, dtype in args]
    self.assertTrue(self._uses_kernel(jax.vmap(jsx.fetch_add), *batch))
    self.assertTrue(self._uses_kernel(jax.grad(loss), *args))
    self.assertTrue(self._uses_kernel(steps, *args))

  @parameterized.named_parameters(
      ("64_bits", 700, (), 300, np.int64),
      ("long_rows", 700, (10_000,), 300, np.float32),
      ("few_updates_of_much", 2**30, (), 64, np.float32),
      ("narrow_and_large", 2**28, (), 10**6, np.int8),
      ("no_rows", 0, (), 300, np.float32),
      ("no_updates", 700, (), 0, np.float32),
      ("float16_sums", 700, (), 300, np.float16),
  )
  def test_leaves_to_xla(self, *args):
    with jax.enable_x64(True):
      self.assertFalse(self._uses_kernel(jsx.fetch_add, *self._updates(*args)))

  def test_leaves_old_devices_to_xla(self):
    device = jax.sharding.AbstractDevice(
        device_kind="TPU v3", num_cores=1, platform="tpu"
    )
    mesh = jax.sharding.AbstractMesh((), (), abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
      self.assertFalse(
          self._uses_kernel(jsx.fetch_add, *self._updates(700, (), 300))
      )

  def test_leaves_unique_indices_to_xla(self):
    f = functools.partial(jsx.fetch_add, unique_indices=True)
    self.assertFalse(self._uses_kernel(f, *self._updates(700, (), 300)))

  def test_leaves_meshes_of_other_devices_to_xla(self):
    mesh = jax.make_mesh((1,), ("d",), axis_types=(AxisType.Auto,))
    f = jax.shard_map(
        jsx.fetch_add, mesh=mesh, in_specs=(P("d"), P(), P()),
        out_specs=(P("d"), P("d")),
    )
    self.assertFalse(self._uses_kernel(f, *self._updates(700, (), 300)))


class SupportTest(parameterized.TestCase):
  """The rows of the matrix say where there is a kernel."""

  @parameterized.named_parameters(
      (f"{k}_{row.operations[0]}", row)
      for k, row in enumerate(jsx.support(place="outside kernels, TPU"))
      if row.supported and row.memory == "array"
  )
  @pytest.mark.slow
  def test_kernel_or_loop(self, row):
    kernel = "TensorCore" in row.note or "widened" in row.note
    with jax.enable_x64(True):
      for operation in row.operations:
        for dtype in row.dtypes:
          op = _OPS[operation]
          x = jax.ShapeDtypeStruct((700,), jnp.dtype(dtype))
          idx = jax.ShapeDtypeStruct((300,), np.int32)
          value = jax.ShapeDtypeStruct((300,), x.dtype)
          lowered = jax.jit(op.fetch).trace(x, idx, *[value] * op.operands)
          text = lowered.lower(lowering_platforms=("tpu",)).as_text()
          with self.subTest(f"{operation} {dtype}"):
            self.assertEqual("tpu_custom_call" in text, kernel)


  def test_refuses_what_it_refuses_on_cpu(self):
    tpu, cpu = (
        {
            dataclasses.replace(r, place="")
            for r in jsx.support(place=f"outside kernels, {platform}")
            if not r.supported
        }
        for platform in ("TPU", "CPU")
    )
    self.assertEqual(tpu, cpu)


class CompileTest(parameterized.TestCase):
  """The real compiler of every generation."""

  @parameterized.parameters(*enumerate(tpu_compile.GENERATIONS))
  @pytest.mark.slow
  def test_compiles(self, part, generation):
    results = tpu_compile.compile_all(
        "xla_tpu_kernels", "kernels", generation,
        share=(part, len(tpu_compile.GENERATIONS)),
    )
    self.assertNotEmpty(results)
    self.assertEqual(
        {name: r.error for name, r in results.items() if not r.ok}, {}
    )
    self.assertTrue(all(r.bundles for r in results.values()))

  @parameterized.parameters(
      ("tpu-v5e", (10**7, 8)),
      ("tpu-v5p", (10**8,)),
      ("tpu-v6e", (2 * 10**6, 256)),
      ("tpu7x", (10**8,)),
  )
  @pytest.mark.slow
  def test_large_table_stays_in_place(self, target, table):
    hlo = xla_tpu_kernels.compiled_in_place(self, target, table, 10**6)
    self.assertIn("tpu_custom_call", hlo)


if __name__ == "__main__":
  absltest.main()
