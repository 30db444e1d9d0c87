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
"""The public names: exported, documented, and their examples true."""

import doctest
import inspect

from absl.testing import absltest
from absl.testing import parameterized
import jax_swapext as jsx

_FUNCTIONS = {
    name: value
    for name, value in vars(jsx).items()
    if inspect.isfunction(value) and not name.startswith("_")
}

_ATOMIC = ("xchg", "add", "max", "min", "and", "or", "xor", "cas")


class PublicApiTest(parameterized.TestCase):

  def test_names(self):
    expected = {"extend_everywhere", "extended"}
    expected |= {"load", "store", "swap", "support"}
    expected |= {f"atomic_{op}" for op in _ATOMIC}
    expected |= {f"fetch_{op}" for op in _ATOMIC}
    self.assertEqual(set(_FUNCTIONS), expected)

  @parameterized.parameters(*_FUNCTIONS)
  def test_examples(self, name):
    finder = doctest.DocTestFinder(recurse=False)
    [test] = finder.find(_FUNCTIONS[name], name, globs={})
    self.assertNotEmpty(test.examples)
    result = doctest.DocTestRunner(verbose=False).run(test)
    self.assertEqual(result.failed, 0)

  @parameterized.parameters(*_FUNCTIONS)
  def test_docstring(self, name):
    function = _FUNCTIONS[name]
    doc = inspect.getdoc(function)  # Python 3.13 takes the indent off itself
    for parameter in inspect.signature(function).parameters:
      with self.subTest(parameter):
        self.assertRegex(doc, rf"(?m)^  {parameter}: ")
    for line in doc.splitlines():
      with self.subTest(line):
        self.assertLessEqual(len(line), 78)  # and two of indent
        self.assertEqual(line, line.rstrip())


if __name__ == "__main__":
  absltest.main()
