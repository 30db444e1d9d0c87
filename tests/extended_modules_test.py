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
"""`extended` leaves the modules of what stock JAX lowers as they are."""

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax_swapext as jsx
import stock_meshes
import stock_modules

_KERNELS = [
    (f"{backend}_{name}", backend, name)
    for backend, kernels in stock_modules.CORPUS.items()
    for name in kernels
]


class ModulesTest(parameterized.TestCase):

  def test_the_corpus_is_large(self):
    self.assertGreaterEqual(len(_KERNELS), 60)

  @parameterized.named_parameters(*_KERNELS)
  def test_same_module(self, backend, name):
    # What a kernel is lowered to is cached by the function: two of them.
    stock, extended = [
        stock_modules.CORPUS[backend][name]() for _ in range(2)
    ]
    wanted = stock_modules.modules(backend, *stock)
    self.assertNotEmpty(wanted)
    with jax.enable_checks(True), jsx.extend_everywhere():
      got = stock_modules.modules(backend, *extended)
    self.assertEqual(got, wanted)

  @parameterized.parameters(*(
      (backend, make)
      for backend, kernels in stock_meshes.MESHES.items()
      for make in kernels.values()
  ))
  def test_same_module_on_a_mesh(self, backend, make):
    stock = lambda kernel: kernel
    wanted = stock_modules.modules(backend, *make(stock))
    self.assertNotEmpty(wanted)
    got = stock_modules.modules(backend, *make(jsx.extended))
    self.assertEqual(got, wanted)
    with jsx.extend_everywhere():
      got = stock_modules.modules(backend, *make(stock))
    self.assertEqual(got, wanted)


if __name__ == "__main__":
  absltest.main()
