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
"""What `python -m jax_swapext` says of kernels compiled for a TPU."""

import importlib.util
import shutil
import sys
from unittest import mock

from absl.testing import absltest
from jax_swapext._src import demo_tpu
import pytest

_TEXT = b"A line,\nand another one.\n" * 40


class DemoTpuTest(absltest.TestCase):
  @pytest.mark.slow
  def test_kernels_are_compiled(self):
    title, *rows = demo_tpu.report(_TEXT)
    self.assertIn("v6e", title)
    self.assertLen(rows, 2, rows)
    for name, row in zip(("scalar swap", "ragged tail"), rows, strict=True):
      self.assertRegex(row, rf"^  {name} +jsx\..* [1-9]\d+ bundles$")

  def test_without_libtpu(self):
    with mock.patch.object(importlib.util, "find_spec", return_value=None):
      _, line = demo_tpu.report(_TEXT)
    self.assertIn("pip install 'jax_swapext[tpu]'", line)

  def test_a_dead_child_is_reported(self):
    # Stands for a compiler that aborts: it reads nothing and says nothing.
    with (
      mock.patch.object(sys, "executable", shutil.which("false")),
      mock.patch.object(importlib.util, "find_spec"),
    ):
      _, *lines = demo_tpu.report(_TEXT)
    self.assertIn("with status 1", " ".join(lines))


if __name__ == "__main__":
  absltest.main()
