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
"""README.md: its code runs, prints what it says, and names what exists."""

import contextlib
import io
import pathlib
import re
import tomllib

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
import jax_swapext as jsx
from jax_swapext._src import gpu_compiler
from jax_swapext._src import tpu_compiler

ROOT = pathlib.Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
# Language and text of each block of code.
BLOCK = re.compile(r"(?ms)^```(\w*)\n(.*?)^```$")
BLOCKS = BLOCK.findall(README)
# What stock JAX says, of which statement, and what to write instead.
ERRORS = re.findall(r"(?m)^\| ([^`|]+) \| `([^`]+)` \| `([^`]+)` \|$", README)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def lower_for(platform, device, call, *args):
  mesh = jax.sharding.AbstractMesh(
      (1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,),
      abstract_device=device,
  )
  with jax.sharding.use_abstract_mesh(mesh):
    jax.jit(call).trace(*args).lower(lowering_platforms=(platform,))


def lower(statement, extended=False):
  """Lowers a kernel for a TPU, which need not be there, with one statement."""

  def kernel(x_ref, row_ref, o_ref):
    code = compile(statement, "README.md", "exec")
    names = dict(x_ref=x_ref, o_ref=o_ref, rows=row_ref[...], s=x_ref[0, 0])
    names |= dict(x=x_ref[...], m=x_ref[...] > 0, y=None)
    exec(code, {"jsx": jsx, "pltpu": pltpu, "jax": jax}, names)
    if names["y"] is not None:
      o_ref[...] = names["y"]

  x = jax.ShapeDtypeStruct((8, 128), jnp.bfloat16)
  rows = jax.ShapeDtypeStruct((8,), jnp.int32)
  call = pl.pallas_call(jsx.extended(kernel) if extended else kernel, x)
  lower_for("tpu", tpu_compiler.abstract_device("tpu-v6e"), call, x, rows)


def lower_in_warp(statement, extended=False):
  """The same for one warp of a GPU."""

  def kernel(x_ref, o_ref, scratch_ref):
    def in_warp():
      @pl.when(lax.axis_index("warp") == 0)
      def _():
        x = jnp.broadcast_to(x_ref[0], 128)
        exec(statement, {"jsx": jsx}, {"x": x, "o_ref": scratch_ref})
        o_ref[0] = scratch_ref[127]

    pl.kernel(
        jsx.extended(in_warp) if extended else in_warp,
        mesh=plgpu.WarpMesh(axis_name="warp"),
    )()

  x = jax.ShapeDtypeStruct((1,), jnp.float32)
  call = plgpu.kernel(
      kernel, out_type=x, scratch_types=[plgpu.SMEM((128,), jnp.float32)]
  )
  lower_for("cuda", gpu_compiler.abstract_device("h100"), call, x)


class ReadmeTest(parameterized.TestCase):

  def test_every_block_is_tested(self):
    self.assertSameElements({"python", "sh"}, {lang for lang, _ in BLOCKS})
    # Nor is there code in a form that the pattern does not find.
    self.assertNotRegex(BLOCK.sub("", README), r"(?m)^(    |\t|```|~~~)")

  def test_python_prints_what_it_says(self):
    code = "\n".join(text for lang, text in BLOCKS if lang == "python")
    stdout = io.StringIO()
    # Later blocks go on where earlier ones ended, as for a reader.
    with contextlib.redirect_stdout(stdout):
      exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    said = re.findall(r"(?m)^print\(.*\)  # (.*)$", code)
    self.assertNotEmpty(said)
    self.assertSequenceEqual(stdout.getvalue().splitlines(), said)

  @parameterized.parameters(*ERRORS)
  def test_errors(self, said, stock, ours):
    run = lower_in_warp if "warp" in said else lower
    with self.assertRaisesRegex(Exception, re.escape(said)):
      run(stock)
    run(ours)
    run(stock, extended=True)

  def test_errors_are_found(self):
    rows = re.findall(r"(?m)^\|.*`.*jsx\.[a-z_]+\(.*` \|$", README)
    self.assertNotEmpty(rows)
    self.assertLen(ERRORS, len(rows))

  def test_commands_exist(self):
    makefile = (ROOT / "Makefile").read_text()
    for lang, text in BLOCKS:
      for line in text.splitlines() if lang == "sh" else ():
        match line.partition("#")[0].split():
          case ["make", target]:
            self.assertRegex(makefile, rf"(?m)^{target}:")
          case ["pip", "install", what]:
            extra = re.fullmatch(r"\.|'\.\[(\w+)\]'", what)[1]
            self.assertIn(extra, [None, *PROJECT["optional-dependencies"]])
          case words:
            self.fail(f"No test for the command {words}")

  def test_floors(self):
    python = PROJECT["requires-python"].removeprefix(">=")
    self.assertIn(f"Python >= {python}", README)
    [jax] = [d for d in PROJECT["dependencies"] if d.startswith("jax>=")]
    self.assertIn(jax.replace(">=", " >= "), README)


if __name__ == "__main__":
  absltest.main()
