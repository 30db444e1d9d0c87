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
"""The support matrix says what GPU kernels do: every dtype of it is run.

Forms of the index are in `mosaic_gpu_test`, which goes through them with one
dtype: where an element lies does not depend on what it holds.
"""

from __future__ import annotations

import atexit
import collections
import functools
import unittest

from absl.testing import absltest
from absl.testing import parameterized
import cases
import jax
from jax.experimental.pallas import mosaic_gpu as plgpu
import jax_swapext as jsx
from jax_swapext._src import support
import mosaic_gpu_data as data_lib
import mosaic_gpu_kernels as kernels
from mosaic_gpu_kernels import Case
import numpy as np
from oracles import gpu_compile
import pytest

_INTERPRETER = ("GPU interpreter", "any")
_PLACES = {
    (f"Mosaic GPU, {code} code", space.upper()): dict(
        warp=code == "warp", space=space)
    for code in ("warp", "warpgroup") for space in ("smem", "gmem")
}
_OPS = {op.name: op for op in cases.OPS}

_needs_compiler = unittest.skipUnless(
    gpu_compile.available(),
    "JAX's CUDA plugin, which holds the compiler, is missing")


def _supported(places):
  """(place, memory, operation, dtypes), one kernel for all dtypes."""
  found = collections.defaultdict(set)
  for row in jsx.support():
    if row.supported and (row.place, row.memory) in places:
      for operation in row.operations:
        found[row.place, row.memory, operation].update(row.dtypes)
  return [(*key, tuple(sorted(dtypes))) for key, dtypes in found.items()]


def _refused(of_dtypes):
  """(place, memory, operation, dtype or form of index, note)."""
  found = []
  for row in jsx.support():
    if row.supported or (row.place, row.memory) not in [
        *_PLACES, _INTERPRETER]:
      continue
    if (row.indices == support.INDICES) is of_dtypes:
      found += [(row.place, row.memory, operation, what, row.note)
                for operation in row.operations
                for what in (row.dtypes if of_dtypes else row.indices)]
  # Forms are refused for whatever dtype, and are tried with one.
  return sorted(set(found))


@functools.cache
def _wide_compiler():
  child = gpu_compile.Compiler(environment={"JAX_ENABLE_X64": "1"})
  atexit.register(child.close)
  return child


def _arguments(case_of, dtypes):
  data = [data_lib.make_data(case_of[d], seed=0) for d in dtypes]
  return data, [a for d, c in zip(data, case_of.values())
                for a in d.arguments(c)]


class GpuSupportTest(parameterized.TestCase):

  def check(self, case_of, data, outs):
    outs = list(outs)
    for (dtype, case), d in zip(case_of.items(), data, strict=True):
      with self.subTest(dtype):
        old, new = data_lib.expected(case, d)
        if case.returns:
          np.testing.assert_array_equal(outs.pop(0), old)
        np.testing.assert_array_equal(outs.pop(0), new)
    self.assertEmpty(outs)

  @_needs_compiler
  @parameterized.parameters(*_supported(_PLACES))
  @pytest.mark.slow  # above, parameterized would lose it
  def test_supported(self, place, memory, operation, dtypes):
    where = _PLACES[place, memory]
    # Both lowerings go through one engine, and `mosaic_gpu_test` through both.
    semantics = "Lane" if where["warp"] == (memory == "SMEM") else "Warpgroup"
    case_of = {
        d: Case(operation, semantics=semantics, dtype=d, mask=True, **where)
        for d in dtypes
    }
    kernel = _wide_compiler().compile(
        kernels.every_dtype, tuple(case_of.values()))
    data, arguments = _arguments(case_of, dtypes)
    outs, report = kernel.run(*arguments, seed=0)
    self.assertEmpty(report.races)
    self.check(case_of, data, outs)

  @parameterized.parameters(*_supported([_INTERPRETER]))
  @pytest.mark.slow  # above, parameterized would lose it
  def test_supported_by_the_interpreter(self, _, memory, operation, dtypes):
    del memory
    case_of = {
        d: Case(operation, dtype=d, mask=True, shape=(8,), space="gmem")
        for d in dtypes
    }
    params = getattr(plgpu, "InterpretGPUParams", None) or plgpu.InterpretParams
    data, arguments = _arguments(case_of, dtypes)
    # Not jax.enable_x64, which the interpreter's threads do not see.
    self.addCleanup(
        jax.config.update, "jax_enable_x64", jax.config.jax_enable_x64)
    jax.config.update("jax_enable_x64", True)
    function, _ = kernels.every_dtype(
        tuple(case_of.values()), interpret=params())
    outs = jax.jit(function)(*arguments)
    self.check(case_of, data, outs)

  @parameterized.parameters(*_refused(of_dtypes=True))
  def test_refused_dtype(self, place, memory, operation, dtype, note):
    op = _OPS[operation]
    space = plgpu.GMEM if memory == "GMEM" else plgpu.SMEM

    def body(_, ref):
      run = lambda: op.apply(ref, None, *[0] * op.operands)
      kernels.in_warp(run) if "warp code" in place else run()

    with jax.enable_x64(True):
      spec = jax.ShapeDtypeStruct((32,), np.float32)
      kernel = kernels.make_kernel(
          body, spec, semantics="Lane",
          scratch_types=[space((32,), jax.numpy.dtype(dtype))])
      with self.assertRaises(TypeError) as raised:
        jax.make_jaxpr(kernel)()
    message = str(raised.exception).lower()
    self.assertIn(note.lower(), message)
    self.assertIn(operation, message)

  @_needs_compiler
  @parameterized.parameters(*_refused(of_dtypes=False))
  def test_refused_form(self, place, memory, operation, form, note):
    where = _PLACES[place, memory]
    with self.assertRaises(gpu_compile.CompileError) as raised:
      gpu_compile.compiler().compile(
          kernels.refused_form, operation, form, "Warpgroup", **where)
    self.assertEqual(raised.exception.kind, "NotImplementedError")
    self.assertIn(note.lower(), raised.exception.message.lower())

  @_needs_compiler
  @parameterized.parameters("Lane", "Warpgroup")
  def test_refused_memory(self, semantics):
    [row] = [r for r in jsx.support() if r.memory == "TMEM"]
    for operation in row.operations:
      with self.subTest(operation):
        with self.assertRaises(gpu_compile.CompileError) as raised:
          gpu_compile.compiler("b200").compile(
              kernels.refused_tmem, operation, semantics)
        message = raised.exception.message
        self.assertEqual(raised.exception.kind, "NotImplementedError")
        self.assertIn(row.note.lower(), message.lower())
        self.assertIn(operation, message)

  def test_every_cell_has_an_answer(self):
    for place, memory in [*_PLACES, _INTERPRETER]:
      answered = {
          (operation, dtype)
          for row in jsx.support(place=place) if row.memory == memory
          if row.indices == support.INDICES
          for operation in row.operations for dtype in row.dtypes
      }
      dtypes = (*support.ALL, *support.SUB_BYTE, *support.COMPLEX)
      self.assertEqual(answered, {
          (o, d) for o in support.REF_OPERATIONS for d in dtypes})


if __name__ == "__main__":
  absltest.main()
