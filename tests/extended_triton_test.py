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
"""`extended` on Triton: what stock refuses, run from its PTX."""

from __future__ import annotations

import functools
import unittest

from absl.testing import absltest
from absl.testing import parameterized
import extended_triton_kernels
import jax_swapext as jsx
import numpy as np
from oracles import ptx
import pallas_triton_kernels

KERNELS = extended_triton_kernels.KERNELS


def _stock(kernel):
  return kernel


@functools.cache
def _all_compiled():
  requests = [("extended", (name,)) for name in KERNELS]
  return dict(zip(KERNELS, pallas_triton_kernels.compiled(requests)))


class ExtendedTritonTest(parameterized.TestCase):

  @parameterized.parameters(*KERNELS)
  def test_refused_by_stock(self, name):
    kernel = KERNELS[name]
    with self.assertRaisesRegex(Exception, kernel.message):
      pallas_triton_kernels.lower(kernel.call, _stock)

  @parameterized.parameters(*KERNELS)
  @unittest.skipUnless(
      pallas_triton_kernels.available(),
      "Triton, which is the compiler, is missing")
  def test_executed(self, name):
    kernel, compiled = KERNELS[name], _all_compiled()[name]
    self.assertIsInstance(compiled, pallas_triton_kernels.Compiled, compiled)
    for architecture in (80, 90):
      i, x, o = kernel.arrays()
      after, report = ptx.run(
          # Triton's kernels end with two pointers to scratch that these lack.
          compiled.ptx[architecture], [i, x, o, o, None, None], grid=(1,),
          dynamic_shared=compiled.shared[architecture], seed=0)
      self.assertEmpty(report.races)
      np.testing.assert_array_equal(after[3], kernel.expected())

  @parameterized.parameters(*KERNELS)
  def test_interpreted(self, name):
    kernel = KERNELS[name]
    call, _ = kernel.call(jsx.extended, interpret=True)
    got = call(*kernel.arrays())
    np.testing.assert_array_equal(got, kernel.expected())


if __name__ == "__main__":
  absltest.main()
