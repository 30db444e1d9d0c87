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
"""What importing the package loads, and what it loads on first use."""

import os
import subprocess
import sys
import tempfile

from absl.testing import absltest

# Prints the modules of kernel backends that come with this library and `code`,
# but not with JAX. Our own are adapters that wait for a backend.
_LOADED_BY = """
import re, sys
import jax
before = set(sys.modules)
import jax_swapext as jsx
{code}
print(*(m for m in sys.modules.keys() - before
        if re.search("pallas|triton|mosaic", m)
        and not m.startswith("jax_swapext")))
"""


def loaded_by(code):
  """Loaded by `import jax_swapext as jsx` and then `code`, in a new process."""
  env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
  done = subprocess.run(
      [sys.executable, "-W", "error", "-c", _LOADED_BY.format(code=code)],
      env=env, timeout=300, capture_output=True, text=True,
      cwd=tempfile.gettempdir(),
  )
  if done.returncode:
    raise AssertionError(done.stderr)
  return done.stdout.split()


class ImportTest(absltest.TestCase):

  def test_import_alone_loads_no_backend(self):
    self.assertEmpty(loaded_by(""))

  def test_listing_names_loads_no_backend(self):
    self.assertEmpty(loaded_by("assert 'mosaic_gpu' in dir(jsx)"))

  def test_first_use_loads_mosaic_gpu(self):
    loaded = loaded_by(
        "jsx.mosaic_gpu.warp_barrier, jsx.mosaic_gpu.commit_smem"
    )
    self.assertIn("jax.experimental.pallas.mosaic_gpu", loaded)

  def test_is_the_module(self):
    loaded_by(
        "import jax_swapext.mosaic_gpu as there\n"
        "from jax_swapext import mosaic_gpu as imported\n"
        "assert jsx.mosaic_gpu is there is imported"
    )

  def test_other_names_do_not_exist(self):
    loaded_by(
        "try:\n  jsx.mosaic_cpu\n"
        "except AttributeError as e:\n  assert 'mosaic_cpu' in str(e)\n"
        "else:\n  raise AssertionError"
    )


if __name__ == "__main__":
  absltest.main()
