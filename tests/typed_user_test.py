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
"""The typed example of a user runs, and leaves nothing public out."""

import ast
import inspect
import pathlib
import unittest
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax.extend.core import Primitive
import jax.numpy as jnp
import jax_swapext as jsx
from jax_swapext import examples
from jax_swapext import mosaic_gpu
from jax_swapext import testing
import numpy as np
import typed_user

_MODULES = {
    "jsx": jsx, "examples": examples, "mosaic_gpu": mosaic_gpu,
    "testing": testing,
}


def _is_public(name, value):
  home = getattr(value, "__module__", "")
  return not name.startswith("_") and (
      isinstance(value, Primitive)
      or (inspect.isfunction(value) or inspect.isclass(value))
      and home.startswith("jax_swapext")
  )


class TypedUserTest(parameterized.TestCase):

  @parameterized.parameters(*_MODULES)
  def test_has_all_that_is_public(self, module):
    tree = ast.parse(pathlib.Path(typed_user.__file__).read_text())
    used = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)
            and isinstance(n.value, ast.Name) and n.value.id == module}
    public = {name for name, value in vars(_MODULES[module]).items()
              if _is_public(name, value)}
    self.assertNotEmpty(public)
    self.assertContainsSubset(public, used)

  def test_on_arrays(self):
    new = typed_user.on_arrays(jnp.arange(4), jnp.array([2, 0, 1]))
    np.testing.assert_array_equal(new, [1, 1, 1, 0])

  def test_on_refs(self):
    ref = jax.new_ref(jnp.arange(4))
    typed_user.on_refs(ref, jnp.array([3]))
    np.testing.assert_array_equal(ref[...], [1, 1, 2, 6])

  def test_in_kernels(self):
    x = jnp.arange(8)
    np.testing.assert_array_equal(typed_user.in_kernels(x), 2 * x)

  def test_what_works(self):
    self.assertNotEmpty(typed_user.what_works("atomic_add"))

  def test_by_examples(self):
    table, slot = typed_user.by_examples(jnp.array([5, 2, 5]))
    np.testing.assert_array_equal(table[slot], [5, 2, 5])

  def test_compiled(self):
    error = testing.CompileError("tpu-v5e", "the compiler died", "last words")
    with mock.patch.object(testing, "compile_for", side_effect=error):
      self.assertIsNone(typed_user.compiled(lambda x: x, jnp.arange(4)))

  def test_kernel_test(self):
    result = unittest.TestResult()
    typed_user.KernelTest("test_double").run(result)
    self.assertEqual(result.testsRun, 1)
    self.assertTrue(result.wasSuccessful(), result)


if __name__ == "__main__":
  absltest.main()
