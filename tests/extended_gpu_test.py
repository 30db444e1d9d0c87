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
"""`extended` on Mosaic GPU: what stock refuses, run from its PTX."""

import atexit
import functools
import unittest

from absl.testing import absltest
from absl.testing import parameterized
import extended_gpu_kernels
import jax
from jax.experimental.pallas import mosaic_gpu as plgpu
import mosaic_gpu_kernels
import numpy as np
from oracles import gpu_compile
import pytest
import stock_gpu_corpus

_SEMANTICS = ("Lane", "Warpgroup")
OWN = extended_gpu_kernels.OWN

_needs_compiler = unittest.skipUnless(
    gpu_compile.available(),
    "JAX's CUDA plugin, which holds the compiler, is missing",
)


@functools.cache
def _compiler():
  child = gpu_compile.Compiler()
  atexit.register(child.close)
  return child


def _argument(name):
  spec = stock_gpu_corpus.argument(name)
  x = np.random.default_rng(0).uniform(1, 2, spec.shape).astype(np.float32)
  return x > 1.5 if spec.dtype == np.bool_ else x


def _wanted(name, x):
  wanted = np.asarray(mosaic_gpu_kernels.ACCEPTED[name][1](x), x.dtype)
  # The stock kernel stores an element of what it loads, its twin all.
  return wanted[:1] if name == "load_in_warp" else wanted


class ExtendedGpuTest(parameterized.TestCase):

  @parameterized.product(
      name=extended_gpu_kernels.WORKS, semantics=_SEMANTICS)
  @_needs_compiler
  @pytest.mark.slow
  def test_executed(self, name, semantics):
    kernel = _compiler().compile(
        extended_gpu_kernels.extended, name, semantics
    )
    x = _argument(name)
    [out], report = kernel.run(x, seed=0)
    self.assertEmpty(report.races)
    wanted = _wanted(name, x)
    np.testing.assert_allclose(out[: wanted.size], wanted, rtol=1e-6)

  @parameterized.product(
      name=extended_gpu_kernels.STAYS_STOCK, semantics=_SEMANTICS)
  @_needs_compiler
  def test_stays_stock(self, name, semantics):
    _, *messages = stock_gpu_corpus.REFUSED[name]
    message = messages[_SEMANTICS.index(semantics)]
    with self.assertRaisesRegex(gpu_compile.CompileError, message):
      _compiler().compile(extended_gpu_kernels.extended, name, semantics)

  @parameterized.product(name=list(OWN), semantics=_SEMANTICS)
  @_needs_compiler
  @pytest.mark.slow
  def test_own_executed(self, name, semantics):
    x, message = OWN[name].x(), OWN[name].stock[_SEMANTICS.index(semantics)]
    if message:
      with self.assertRaisesRegex(gpu_compile.CompileError, message):
        _compiler().compile(extended_gpu_kernels.own_of_stock, name, semantics)
    kernel = _compiler().compile(extended_gpu_kernels.own, name, semantics)
    [out], report = kernel.run(x, seed=0)
    self.assertEmpty(report.races)
    wanted = x.copy()
    OWN[name].wanted(wanted)
    np.testing.assert_array_equal(out, wanted)

  @parameterized.parameters(*OWN)
  def test_own_interpreted(self, name):
    params = getattr(plgpu, "InterpretGPUParams", None) or plgpu.InterpretParams
    function, _ = extended_gpu_kernels.own(name, "Lane", interpret=params())
    wanted = OWN[name].x()
    got = jax.jit(function)(wanted.copy())
    OWN[name].wanted(wanted)
    np.testing.assert_array_equal(got, wanted)

  @parameterized.parameters(*extended_gpu_kernels.WORKS)
  def test_interpreted(self, name):
    params = getattr(plgpu, "InterpretGPUParams", None) or plgpu.InterpretParams
    function, _ = extended_gpu_kernels.extended(name, "Lane", params())
    x = _argument(name)
    out = np.asarray(jax.jit(function)(x))
    wanted = _wanted(name, x)
    np.testing.assert_allclose(out[: wanted.size], wanted, rtol=1e-6)


if __name__ == "__main__":
  absltest.main()
