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
"""The demo's kernel for Hopper: compiled, refused, and not there."""

import contextlib
import io
import sys
import unittest
from unittest import mock

from absl.testing import absltest
from jax_swapext import __main__ as main
from jax_swapext._src import compile_for
from jax_swapext._src import demo_gpu


def said():
  """What the demo prints of the warp store, and the attempts."""
  stdout = io.StringIO()
  with (
      contextlib.redirect_stdout(stdout),
      contextlib.redirect_stderr(io.StringIO()),
  ):
    attempts = list(main._warp_store_attempts())
    for attempt in attempts:
      main._say_attempt(attempt)
  return stdout.getvalue(), attempts


class DemoGpuTest(absltest.TestCase):

  @unittest.skipUnless(
      demo_gpu.is_available(),
      "JAX's CUDA plugin, which holds the compiler, is missing",
  )
  def test_compiled(self):
    text, (stock, ours) = said()
    self.assertFalse(ours.is_failure)
    self.assertEqual(ours.ptx, ours.detail)
    self.assertRegex(text, r"ours .* compiles\n +st\.shared\.v4\.b32 [^;]*;\n$")
    self.assertIsNone(stock.ptx)
    self.assertRegex(text, r"stock .* refused\n +NotImplementedError: Can only")
    self.assertLessEqual(max(map(len, text.splitlines())), 80)

  def test_no_compiler(self):
    with mock.patch.object(demo_gpu, "is_available", lambda: False):
      text, attempts = said()
    self.assertEmpty(attempts)
    self.assertIn("pip install jax-cuda13-plugin", text)

  def test_dead_compiler_fails(self):
    with (
        mock.patch.object(compile_for, "check_target"),
        mock.patch.object(demo_gpu, "is_available", lambda: True),
        mock.patch.object(sys, "executable", "/bin/false"),
    ):
      text, (_, ours) = said()
    self.assertIn("with status 1", text)
    self.assertTrue(ours.is_failure)


if __name__ == "__main__":
  absltest.main()
