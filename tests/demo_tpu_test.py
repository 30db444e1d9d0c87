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

import contextlib
import io
import shutil
import sys
from unittest import mock

from absl.testing import absltest
from jax_swapext import __main__ as main
from jax_swapext._src import compile_for
from jax_swapext._src import demo
from jax_swapext._src import demo_tpu
import pytest

_TEXT = b"A line,\nand another one.\n" * 40


def attempts():
  """For each kernel what is tried, on a TPU that is not there last of all."""
  with contextlib.redirect_stderr(io.StringIO()):
    return {e.name: list(main._attempts(e)) for e in demo.demos(_TEXT)}


class DemoTpuTest(absltest.TestCase):
  @pytest.mark.slow
  def test_kernels_are_compiled(self):
    found = attempts()
    self.assertLen(found, 3)
    for name in ("scalar swap", "ragged tail"):
      with self.subTest(name):
        last = found[name][-1]
        self.assertEqual((last.library, last.place), ("ours", "for tpu-v6e"))
        self.assertEqual(last.status, "compiles")
        self.assertGreater(last.bundles, 0)
        self.assertEqual(last.detail, f"{last.bundles} bundles")

  def test_without_libtpu(self):
    with mock.patch.object(demo_tpu, "is_available", return_value=False):
      for tried in attempts().values():
        self.assertNotIn("for tpu-v6e", [a.place for a in tried])

  def test_a_dead_child_fails(self):
    # Stands for a compiler that aborts: it reads nothing and says nothing.
    with (
      mock.patch.object(sys, "executable", shutil.which("false")),
      mock.patch.object(compile_for, "check_target"),
    ):
      last = demo_tpu.attempt(demo.demos(_TEXT)[1])
    self.assertTrue(last.is_failure)
    self.assertIn("with status 1", last.detail)


if __name__ == "__main__":
  absltest.main()
