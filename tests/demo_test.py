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
"""`python -m jax_swapext`, run as users run it."""

import contextlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax_swapext
from jax_swapext import __main__ as main
from jax_swapext._src import demo

ROOT = pathlib.Path(jax_swapext.__file__).resolve().parents[1]
NAMES = ("histogram", "scalar swap", "ragged tail")

# Compilers take their time, and have nothing to do with most of what is tested.
WITHOUT_COMPILERS = """
from jax_swapext._src import demo_gpu
from jax_swapext._src import demo_tpu

demo_gpu.is_available = demo_tpu.is_available = lambda: False
"""

# Clears all results of an operation's rule, then runs the demo. A rule has to
# be exchanged where the interpreter looks it up, which is private.
BROKEN = WITHOUT_COMPILERS + """
import runpy
import jax
import jax.numpy as jnp
from jax._src.state import discharge
import jax_swapext as jsx

rule = discharge._discharge_rules[jsx.{primitive}]

def cleared(*args, **kwargs):
  return jax.tree.map(jnp.zeros_like, rule(*args, **kwargs))

discharge._discharge_rules[jsx.{primitive}] = cleared
runpy.run_module("jax_swapext", run_name="__main__")
"""

# The same, but the rule raises.
RAISING = WITHOUT_COMPILERS + """
import runpy
from jax._src.state import discharge
import jax_swapext as jsx

def refuse(*args, **kwargs):
  raise NotImplementedError("not today. Come back tomorrow.")

discharge._discharge_rules[jsx.{primitive}] = refuse
runpy.run_module("jax_swapext", run_name="__main__")
"""

JSON = """
import sys
from jax_swapext import __main__ as main

sys.exit(main.main(["--json"]))
"""

# No rule of ours for stores in kernels of a TPU's TensorCore.
UNREGISTERED = WITHOUT_COMPILERS + """
import runpy
from jax._src.pallas.mosaic import core
from jax._src.pallas.mosaic import lowering
import jax_swapext as jsx

del lowering.lowering_rules[core.CoreType.TC][jsx.swap_p]
runpy.run_module("jax_swapext", run_name="__main__")
"""


def run(*args, path=ROOT):
  """Runs Python with the package from `path`, the rest as in this process."""
  paths = [str(path), *filter(None, sys.path)]
  env = os.environ | {
      "JAX_PLATFORMS": "cpu",
      "PYTHONPATH": os.pathsep.join(paths),
  }
  return subprocess.run(
      [sys.executable, "-W", "error", *args], env=env, timeout=300,
      capture_output=True, text=True, cwd=tempfile.gettempdir(),
  )


def demo_rows(stdout):
  """For each kernel, (library, place) -> (status, the rest of the row)."""
  kernels = {}
  for line in stdout.splitlines():
    for name in NAMES:
      if line.startswith(f"{name}: "):
        rows = kernels[name] = {}
    row = re.fullmatch(
        r"  (stock|ours) .* (interpret=True|lowered for TPU) +(\w+) *(.*)", line
    )
    if row:
      library, place, status, rest = row.groups()
      rows[library, place] = status, rest
  return kernels


class DemoTest(parameterized.TestCase):

  def test_report(self):
    done = run("-m", "jax_swapext")
    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
    kernels = demo_rows(done.stdout)
    self.assertSequenceEqual(tuple(kernels), NAMES)
    size = (ROOT / "LICENSE").stat().st_size
    interpreted = {
        name: rows["ours", "interpret=True"] for name, rows in kernels.items()
    }
    self.assertEqual(
        interpreted["histogram"], ("right", f"{size} of {size} bytes")
    )
    self.assertEqual(
        interpreted["ragged tail"], ("right", f"{size} of {size} elements")
    )
    self.assertEqual(interpreted["scalar swap"][0], "right")
    self.assertNotIn("FAILED", done.stdout)
    self.assertNotIn("\x1b", done.stdout + done.stderr)
    self.assertLessEqual(max(map(len, done.stdout.splitlines())), 80)

  def test_json(self):
    done = run("-c", WITHOUT_COMPILERS + JSON)
    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
    report = json.loads(done.stdout)
    self.assertEqual(report["versions"]["jax"], jax.__version__)
    self.assertEqual(report["jax_platforms"], "cpu")
    self.assertEqual(report["backends"]["cpu"]["kind"], "cpu")
    self.assertFalse(report["extras"]["tpu"]["compiler"])
    self.assertEqual(report["missing_rules"], [])
    self.assertEqual(report["failures"], [])
    kernels = {kernel["name"]: kernel for kernel in report["kernels"]}
    self.assertSequenceEqual(
        tuple(kernels), (*NAMES, "positions", "warp store")
    )
    # What a person reads says the same.
    rows = demo_rows(done.stderr)
    for name in NAMES:
      self.assertIn(f"{name}: {kernels[name]['title']}\n", done.stderr)
      for attempt in kernels[name]["attempts"]:
        status, _ = rows[name][attempt["library"], attempt["place"]]
        self.assertEqual(attempt["status"], status)
        self.assertIsNone(attempt["milliseconds"])
    for attempt in kernels["positions"]["attempts"]:
      self.assertEqual(attempt["status"], "right")
      self.assertGreater(attempt["milliseconds"], 0)

  def test_unregistered_rule_fails(self):
    done = run("-c", UNREGISTERED)
    self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
    self.assertRegex(
        done.stdout,
        r"(?m)^FAILED rules: TPU TensorCore: no rule for swap_p \(store, swap",
    )
    self.assertRegex(
        done.stdout, "(?m)^FAILED scalar swap: jsx.swap, lowered for TPU: ref"
    )

  @parameterized.named_parameters(
      ("histogram", "atomic_rmw_p", "histogram"),
      ("scalar_swap", "swap_p", "scalar swap"),
      ("ragged_tail", "load_p", "ragged tail"),
  )
  def test_wrong_result_fails(self, primitive, name):
    done = run("-c", BROKEN.format(primitive=primitive))
    self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
    self.assertRegex(
        done.stdout, rf"(?m)^FAILED {name}: .*: WRONG, \d+ of \d+ "
    )
    # The kernels after a wrong one run all the same.
    self.assertSequenceEqual(tuple(demo_rows(done.stdout)), NAMES)

  def test_refusal_fails(self):
    done = run("-c", RAISING.format(primitive="atomic_rmw_p"))
    self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
    self.assertRegex(
        done.stdout,
        "(?m)^FAILED histogram: .*refused, NotImplementedError: not today$",
    )

  def install(self, site, record):
    """Lays the package out as an installer does, with what `record` lists."""
    shutil.copytree(ROOT / "jax_swapext", site / "jax_swapext")
    info = site / "jax_swapext-0.0.dist-info"
    licenses = info / "licenses"
    licenses.mkdir(parents=True)
    shutil.copy(ROOT / "LICENSE", licenses / "LICENSE")
    (info / "METADATA").write_text("Name: jax_swapext\nVersion: 0.0\n")
    (info / "RECORD").write_text("".join(f"{path},,\n" for path in record))

  def test_installed(self):
    site = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    self.install(site, ["jax_swapext-0.0.dist-info/licenses/LICENSE"])
    # Anybody's file, beside the package: not what is to be read.
    (site / "LICENSE").write_text("Do as you like.\n")
    done = run("-m", "jax_swapext", path=site)
    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
    size = (ROOT / "LICENSE").stat().st_size
    self.assertIn(f"LICENSE file, {size} bytes", done.stdout)

  def test_no_input_fails(self):
    site = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    self.install(site, [])
    done = run("-m", "jax_swapext", path=site)
    self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
    self.assertRegex(done.stdout, "(?m)^FAILED input: the LICENSE file is ")

  @parameterized.named_parameters(
      ("terminal", True, {}, True),
      ("pipe", False, {}, False),
      ("no_color", True, {"NO_COLOR": "1"}, False),
      ("empty_no_color", True, {"NO_COLOR": ""}, True),
      ("dumb_terminal", True, {"TERM": "dumb"}, False),
  )
  def test_colour(self, isatty, env, coloured):
    stdout = io.StringIO()
    stdout.isatty = lambda: isatty
    env = {"TERM": "xterm", "NO_COLOR": ""} | env
    attempt = demo.Attempt("ours", "jsx.f", demo.INTERPRETED, "right", "3 of 3")
    with (
        mock.patch.dict(os.environ, env),
        contextlib.redirect_stdout(stdout),
    ):
      main._say_attempt(attempt)
    self.assertEqual("\x1b[32mright" in stdout.getvalue(), coloured)
    self.assertEqual("\x1b" in stdout.getvalue(), coloured)


if __name__ == "__main__":
  absltest.main()
