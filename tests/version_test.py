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
"""What is written down more than once is the same everywhere."""

import pathlib
import re

from absl.testing import absltest
from absl.testing import parameterized
import jax_swapext
from jax_swapext import version

ROOT = pathlib.Path(__file__).resolve().parents[1]
TESTS = sorted(path.name for path in (ROOT / "tests").glob("*_test.py"))


class VersionTest(parameterized.TestCase):

  def test_module_bazel_agrees(self):
    text = (ROOT / "MODULE.bazel").read_text()
    [module] = re.findall(r"(?ms)^module\((.*?)^\)", text)
    [said] = re.findall(r'version = "([^"]*)"', module)
    self.assertEqual(said, version.__version__)

  def test_package_agrees(self):
    self.assertEqual(jax_swapext.__version__, version.__version__)

  def test_is_a_release_number(self):
    self.assertRegex(version.__version__, r"^\d+\.\d+\.\d+(\.dev\d+|rc\d+)?$")

  @parameterized.parameters(*TESTS)
  def test_runs_alone(self, name):
    # Bazel runs each file as a script: without these lines it runs no test and
    # succeeds.
    text = (ROOT / "tests" / name).read_text()
    self.assertEndsWith(
        text, '\n\nif __name__ == "__main__":\n  absltest.main()\n'
    )


if __name__ == "__main__":
  absltest.main()
