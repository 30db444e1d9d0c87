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
"""Updates of arrays on a GPU that is not there: run as emitted, and compiled.

Every kernel runs twice, in Triton's interpreter and from the PTX that the rule
leaves to the driver, the latter under several schedules of its threads.
"""

from __future__ import annotations

import functools
import math
import re
import subprocess
import tempfile
import unittest
from unittest import mock
import warnings

from absl.testing import absltest
from absl.testing import parameterized
import cases
import jax
from jax import export
import jax_swapext as jsx
from jax_swapext._src import support
from jax_swapext._src.xla import cuda
import mosaic_gpu_data
from mosaic_gpu_kernels import Case
import numpy as np
from oracles import gpu_compile
import pytest
import reference
import xla_cuda_kernels as kernels
from xla_cuda_kernels import Update

_ROWS = [r for r in jsx.support() if r.place == "outside kernels, GPU"]
_OPS = {op.name: op for op in cases.OPS}

# What the matrix has no word for: shapes, and flags of the primitive.
CASES = {
    "one": Update("add", "int32", "index", rows=5, n=1),
    "one_row": Update("xchg", "int32", "index", rows=1, n=300),
    "one_row_serial": Update("add", "float32", "index", rows=1, n=150),
    "unmasked": Update("min", "int16", "index", masked=False),
    "last_column": Update("add", "int32", "index", columns=1),
    "rows": Update("add", "int32", "index", columns=19, n=40, tile=512),
    "rows_serial": Update("cas", "float32", "index", columns=5, n=40, tile=512),
    "rows_any": Update("max", "bfloat16", "any", columns=19, n=40),
    "long_row": Update("add", "float32", "any", columns=300, n=3),
    "backwards": Update("xchg", "float32", "index", reverse=True),
    "backwards_serial": Update("add", "float32", "index", reverse=True),
    "add_or_set": Update("add_or_set", "float32", "index"),
    "add_or_set_rows": Update(
        "add_or_set", "float16", "index", columns=3, n=60, reverse=True,
        tile=256),
    "no_old": Update("xchg", "int32", "index", need_old=False),
    "no_old_in_any_order": Update("add", "uint32", "index", need_old=False),
    "no_old_of_words": Update("or", "bool", "index", need_old=False),
    "unique": Update("add", "float16", "index", unique=True, n=40, rows=60),
    "unique_bytes": Update("xchg", "bool", "any", unique=True, n=40, rows=60),
    "unique_cas": Update("cas", "int64", "any", unique=True, n=40, rows=60),
    "unique_add_or_set": Update(
        "add_or_set", "float32", "index", unique=True, n=40, rows=60),
    "whole_tile": Update("add", "int32", "index", n=2100, rows=700, tile=None),
}

_needs_compiler = unittest.skipUnless(
    kernels.available(),
    "Triton, which is the compiler, or JAX's CUDA plugin is missing")


def make_arguments(update, seed=0, *, exact=False):
  """A table, indices of which some are outside, operands, and a mask.

  With `exact` no sum has to be rounded, not even one of 16-bit floats.
  """
  rng = np.random.default_rng(seed)
  if update.unique:
    idx = rng.permutation(2 * update.rows)[: update.n] - update.rows
    # An index and the same from the end are one.
    keep = np.unique(idx % update.rows, return_index=True)[1]
    outside = np.isin(np.arange(update.n), keep, invert=True)
    idx = np.where(outside, update.rows, idx)
  else:
    idx = rng.integers(-update.rows - 2, update.rows + 2, update.n)
  make = cases.values
  if update.op.startswith("add") and update.order == "any":
    # Whatever the order, no sum is a NaN, of which only some have equal bits.
    make = cases.tame
  if exact:
    make = lambda dtype, shape, seed: np.random.default_rng(seed).integers(
        -8, 9, shape).astype(dtype)
  values = [
      make(s.dtype, s.shape, seed + i)
      for i, s in enumerate(update.specs()[: -1 if update.masked else None])
      if i != 1
  ]
  if update.op == "cas":
    # About half of the first comparisons succeed.
    there = values[0][np.clip(idx, 0, update.rows - 1)]
    half = rng.integers(0, 2, values[1].shape) == 1
    values[1] = np.where(half, there, values[1])
  mask = [rng.integers(0, 4, update.n) > 0] * update.masked
  return [values[0], idx.astype(np.int32), *values[1:], *mask]


def expected(update, arguments):
  """`[old, new]`, or `[new]`: by the reference, or by the rule for CPU."""
  args, mask = arguments, None
  if update.op == "add_or_set":
    return [np.asarray(o) for o in jax.jit(update.bind)(*args)]
  if update.masked:
    args, mask = args[:-1], args[-1].reshape(-1, *[1] * len(update.row))
  x, *args = args
  if update.reverse:
    args = [a[::-1] for a in args]
    mask = None if mask is None else mask[::-1]
  old, new = reference.fetch(update.op, x, *args, mask=mask)
  old = old[::-1] if update.reverse else old
  return [old, new] if update.need_old else [new]


def is_explained(update, arguments, old, new):
  """Whether some order of the updates gives these, another in each column."""
  x, idx, *operands, mask = arguments
  shape = x.shape[:1]
  case = Case(f"atomic_{update.op}", dtype=update.dtype, shape=shape, index=idx)
  on = mask & (reference.positions(shape, idx) >= 0)
  columns = [a.reshape(a.shape[0], -1).T for a in (x, old, new, *operands)]
  return all(
      mosaic_gpu_data.explained(
          case, mosaic_gpu_data.Data(x, operands, on), old, new)
      for x, old, new, *operands in zip(*columns, strict=True)
  )


def _dtypes(operation):
  """The dtypes that the matrix promises for an operation on arrays."""
  return [
      d for r in _ROWS
      if r.supported and r.memory == "array" and operation in r.operations
      for d in r.dtypes
  ]


_OPERATIONS = sorted({
    o for r in _ROWS if r.supported and r.memory == "array"
    for o in r.operations
})


@functools.cache
def _cases_compiled():
  with jax.enable_x64(True):
    return kernels.compiled(CASES.values())


@functools.cache
def _cases_interpreted():
  # The child has 64 bits, and values are made by the same functions there.
  requests = [(u, make_arguments(u)) for u in CASES.values()]
  return dict(zip(CASES, kernels.interpreted(requests), strict=True))


class XlaCudaTest(parameterized.TestCase):

  def check(self, update, got, arguments):
    op = _OPS.get(f"atomic_{update.op}", cases.ADD)
    want = expected(update, arguments)
    for g, w in zip(got, want, strict=True):
      op.check_same(g, w)

  def check_any(self, update, got, arguments):
    if update.order == "index" or update.unique:
      return self.check(update, got, arguments)
    self.assertTrue(is_explained(update, arguments, *got), update)

  def run_emitted(self, update, launch, arguments, seed):
    reports = []
    with jax.enable_x64(True):
      got = kernels.run(
          update, kernels.emitted(launch, reports, seed=seed), *arguments)
    [report] = reports
    self.assertEmpty(report.races)
    return got

  @_needs_compiler
  @parameterized.parameters(*_OPERATIONS)
  @pytest.mark.slow  # above, parameterized would lose it
  def test_supported(self, operation):
    op = operation.removeprefix("atomic_")
    # In any order a few updates of each row: more take long to explain.
    sizes = {"any": dict(rows=61, n=150), "index": dict(rows=11, n=200)}
    updates = [
        Update(op, dtype, order, **sizes[order])
        for dtype in _dtypes(operation) for order in sizes
    ]
    # The interpreter cuts bits off where the hardware rounds to bfloat16.
    requests = [
        (u, make_arguments(u, exact=(op, u.dtype) == ("add", "bfloat16")))
        for u in updates
    ]
    launches = kernels.compiled(updates)
    for (update, arguments), got in zip(
        requests, kernels.interpreted(requests), strict=True):
      with self.subTest(dtype=update.dtype, order=update.order):
        self.check_any(update, got, arguments)
        arguments = make_arguments(update)
        seed = None if update.order == "index" else 0
        got = self.run_emitted(update, launches[update], arguments, seed)
        self.check_any(update, got, arguments)

  @_needs_compiler
  @parameterized.parameters(*CASES)
  def test_interpreted(self, name):
    update = CASES[name]
    self.check_any(
        update, _cases_interpreted()[name], make_arguments(update))

  @_needs_compiler
  @parameterized.parameters(
      # 512 threads take seconds, and do no more than 128 under one schedule.
      *((name, seed) for name in CASES for seed in (None, 1)
        if (name, seed) != ("whole_tile", 1)))
  def test_emitted(self, name, seed):
    update = CASES[name]
    arguments = make_arguments(update)
    got = self.run_emitted(update, _cases_compiled()[update], arguments, seed)
    self.check_any(update, got, arguments)

  @_needs_compiler
  @parameterized.parameters(80, 90, 100)
  @pytest.mark.slow  # above, parameterized would lose it
  def test_assembles(self, capability):
    ptxas, _ = gpu_compile._tools()  # They come with Triton.
    updates = [
        Update("add", "bfloat16", "any"), Update("max", "float64", "any"),
        Update("cas", "int8", "any"), Update("add", "float32", "index"),
        Update("xor", "int32", "index", n=5000, columns=40, tile=None),
    ]
    launches = kernels.compiled(updates, capability)
    architecture = f"sm_{capability}{'a' * (capability >= 90)}"
    for update, launch in launches.items():
      with self.subTest(update), tempfile.NamedTemporaryFile("w") as file:
        file.write(launch.ptx)
        file.flush()
        subprocess.run(
            [ptxas, f"-arch={architecture}", file.name, "-o", "/dev/null"],
            check=True, timeout=300)

  @_needs_compiler
  def test_compiles_for_amd(self):
    updates = [
        Update("add", "bfloat16", "any"), Update("max", "int8", "any"),
        Update("cas", "float64", "any"), Update("add", "float32", "index"),
        Update("add", "int32", "index", n=5000, tile=None),
    ]
    for start in kernels.compiled_for_amd(updates):
      self.assertEqual(start, b"\x7fELF")


def table_copies(hlo, size):
  """How many copies of at least `size` elements a compiled module makes."""
  copied = re.findall(r"= \(?\w+\[([\d,]+)\]\S* copy(?:-start)?\(", hlo)
  return sum(math.prod(map(int, c.split(","))) >= size for c in copied)


def _table(update):
  return update.rows * (update.columns or 1)


# Builders of functions that XLA compiles whole, and the size of their tables.
_LARGE = {
    f"{order}{'_rows' * bool(columns)}{'_unique' * unique}": Update(
        "add", "float32", order, rows=10**5, n=1000, columns=columns,
        unique=unique, tile=None)
    for order in ("any", "index") for columns in (None, 24)
    for unique in (False, True)
}
_ON_REFS = {
    op.name: op for op in cases.OPS
    if op.is_atomic or op.name in ("load", "store", "swap")
}


@functools.cache
def _arrays_optimised():
  requests = [
      ("on_array", (u,), donated)
      for u in _LARGE.values() for donated in (True, False)
  ]
  names = [(n, d) for n in _LARGE for d in (True, False)]
  return dict(zip(names, kernels.optimised(requests), strict=True))


@functools.cache
def _refs_optimised():
  requests = [
      ("on_ref", (op.name, op.operands if op is not cases.LOAD else 0), True)
      for op in _ON_REFS.values()
  ]
  return dict(zip(_ON_REFS, kernels.optimised(requests), strict=True))


class CompiledByXlaTest(parameterized.TestCase):

  @_needs_compiler
  @parameterized.parameters(*_LARGE)
  @pytest.mark.slow  # above, parameterized would lose it
  def test_array_is_updated_in_place(self, name):
    update = _LARGE[name]
    hlo = _arrays_optimised()[name, True]
    self.assertIn("triton_kernel_call", hlo)
    self.assertIn("input_output_alias", hlo)
    self.assertEqual(table_copies(hlo, _table(update)), 0)
    # One copy is what it takes to keep the argument, and would be seen.
    hlo = _arrays_optimised()[name, False]
    self.assertEqual(table_copies(hlo, _table(update)), 1)

  @_needs_compiler
  @parameterized.parameters(*_ON_REFS)
  @pytest.mark.slow  # above, parameterized would lose it
  def test_ref_is_updated_in_place(self, name):
    hlo = _refs_optimised()[name]
    self.assertEqual("triton_kernel_call" in hlo, _ON_REFS[name].is_atomic)
    self.assertEqual(table_copies(hlo, 10**5), 0)

  @_needs_compiler
  def test_one_module_for_cpu_and_cuda(self):
    text, data = kernels.exported()
    self.assertEqual(text.count("@triton_kernel_call_ffi("), 1)
    function = export.deserialize(data)
    self.assertEqual(function.platforms, ("cpu", "cuda"))
    x = np.array([4, 0, 0, 0, 1], np.int32)
    idx = np.array([0, 4, 0, -1, 9, 2], np.int32)
    value = np.arange(1, 7, dtype=np.int32)
    if jax.default_backend() == "cpu":
      old, new = function.call(x, idx, value)
      np.testing.assert_array_equal(old, [4, 1, 5, 3, 0, 0])
      np.testing.assert_array_equal(new, [8, 0, 6, 0, 7])


def _lower(platform="cuda"):
  x = jax.ShapeDtypeStruct((8,), np.int32)
  return jax.jit(lambda *args: jsx.fetch_add(*args)).trace(x, x, x).lower(
      lowering_platforms=(platform,))


class TargetTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    cuda._warn_of_xla.cache_clear()
    self.addCleanup(cuda._warn_of_xla.cache_clear)

  @parameterized.parameters("cuda", "rocm")
  def test_without_jax_triton_goes_through_xla_and_says_so(self, platform):
    with mock.patch.object(cuda.importlib.util, "find_spec", lambda name: None):
      with self.assertWarnsRegex(
          UserWarning, "jax_triton is not installed .pip install"):
        lowered = _lower(platform)
      self.assertNotIn("triton", lowered.as_text())
      with warnings.catch_warnings():
        warnings.simplefilter("error")
        _lower(platform)  # It says so once.

  @_needs_compiler
  def test_older_gpus_go_through_xla(self):
    with mock.patch.object(cuda, "_compute_capability", lambda *_: 75):
      with self.assertWarnsRegex(UserWarning, "capability 8.0, got 7.5"):
        self.assertNotIn("triton", _lower().as_text())

  @_needs_compiler
  def test_without_the_plugin(self):
    from jax._src.lib import gpu_triton

    with mock.patch.object(gpu_triton, "TritonKernel", create=True):
      del gpu_triton.TritonKernel
      with self.assertWarnsRegex(UserWarning, "plugin.*pip install jax.cuda13"):
        self.assertNotIn("triton", _lower().as_text())

  @_needs_compiler
  @parameterized.parameters("cuda", "rocm")
  def test_without_a_gpu(self, platform):
    from jax._src.lib import gpu_triton

    def nothing_there(device):
      del device
      raise RuntimeError("no GPU")

    versions = {"jax_triton": "0.5", "triton": "3.9.0"}
    with (
        mock.patch.multiple(
            gpu_triton, get_compute_capability=nothing_there,
            get_arch_details=nothing_there),
        mock.patch.object(
            cuda.importlib.metadata, "version", versions.__getitem__),
        self.assertWarnsRegex(UserWarning, "which GPU.*abstract_device"),
    ):
      self.assertNotIn("triton", _lower(platform).as_text())

  @_needs_compiler
  def test_rocm_goes_through_xla_where_jax_triton_would_fail(self):
    versions = {"jax_triton": "0.4.1", "triton": "3.9.0"}
    with (
        mock.patch.object(
            cuda.importlib.metadata, "version", versions.__getitem__),
        self.assertWarnsRegex(UserWarning, "fails with Triton >= 3.9 for AMD"),
    ):
      self.assertNotIn("triton", _lower("rocm").as_text())

  @_needs_compiler
  def test_asks_the_device_that_is_lowered_for(self):
    for capability in kernels.KINDS:
      with kernels.abstract_gpu(capability):
        device = jax.sharding.get_abstract_mesh().abstract_device
        self.assertEqual(cuda._target("cuda", device), (None, capability))

  @parameterized.parameters((80, 80), (90, 80), (100, 86), (999, None))
  def test_ptx_version(self, capability, version):
    self.assertEqual(cuda._ptx_version(capability), version)


class MatrixTest(parameterized.TestCase):

  @parameterized.parameters(*sorted({
      (r.memory, o, d, r.note)
      for r in _ROWS if not r.supported for o in r.operations for d in r.dtypes
  }))
  def test_refused(self, memory, operation, dtype, note):
    op = _OPS[operation]
    call = op.fetch if memory == "array" else op.pure
    x = jax.numpy.dtype(dtype)
    x = jax.ShapeDtypeStruct((3,), x)
    with self.assertRaises(TypeError) as raised:
      with jax.enable_x64(True):
        jax.jit(lambda x: call(x, ..., *[x] * op.operands)).trace(x).lower(
            lowering_platforms=("cuda",))
    message = str(raised.exception).lower()
    self.assertIn(note.lower(), message)
    self.assertIn(op.fetch_name if memory == "array" else op.name, message)

  @parameterized.parameters("array", "Ref")
  def test_every_cell_has_an_answer(self, memory):
    answered = [
        (o, d) for r in _ROWS if r.memory == memory for o in r.operations
        for d in r.dtypes
    ]
    operations = [
        o for o in support.REF_OPERATIONS
        if memory == "Ref" or o.startswith("atomic_")
    ]
    dtypes = (*support.ALL, *support.SUB_BYTE, *support.COMPLEX)
    cells = [(o, d) for o in operations for d in dtypes]
    self.assertCountEqual(answered, cells)


if __name__ == "__main__":
  absltest.main()
