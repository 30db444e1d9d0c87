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
"""What users get for their own tests: compile_for and KernelTestCase."""

import importlib.util
import unittest
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc
from jax.experimental.pallas import triton as pltriton
import jax.numpy as jnp
import jax_swapext as jsx
from jax_swapext import testing
import numpy as np
import pytest

_BLOCK = jax.ShapeDtypeStruct((8, 128), jnp.float32)
_LINE = jax.ShapeDtypeStruct((128,), jnp.float32)
_TPUS = tuple(t for t in testing.TARGETS if t.startswith("tpu"))
_GPUS = tuple(t for t in testing.TARGETS if t not in _TPUS)


def double(x, interpret=False):
  """A kernel without anything of jax_swapext."""

  def body(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2

  return pl.pallas_call(body, x, interpret=interpret)(x)


def wrong(x, interpret=False):
  return double(x, interpret) + 1


def store_scalar(library):
  def body(o_ref):
    o_ref[...] = jnp.zeros_like(o_ref)
    if library == "stock":
      o_ref[0, 0] = 1.0
    else:
      jsx.store(o_ref, (0, 0), 1.0)

  return pl.pallas_call(body, _BLOCK)


def gpu_copy(x, interpret=False):
  def body(x_ref, o_ref):
    jsx.store(o_ref, None, jsx.load(x_ref))

  kernel = plgpu.kernel(body, out_type=_LINE, interpret=interpret)
  return kernel(x)


def sparsecore_copy(x):
  mesh = plsc.VectorSubcoreMesh(
      core_axis_name="c", subcore_axis_name="s", num_cores=1, num_subcores=1
  )

  def body(x_ref, o_ref, scratch):
    pltpu.sync_copy(x_ref, scratch)
    scratch[pl.ds(0, 16)] += 1.0
    pltpu.sync_copy(scratch, o_ref)

  return pl.kernel(
      body, out_type=_LINE, mesh=mesh,
      scratch_types=[pltpu.VMEM((128,), jnp.float32)],
      compiler_params=pltpu.CompilerParams(use_tc_tiling_on_sc=False),
  )(x)


class CompileForTest(parameterized.TestCase):

  @parameterized.parameters(*_TPUS)
  @pytest.mark.slow
  def test_tensorcore(self, target):
    compiled = testing.compile_for(target, store_scalar("ours"))
    self.assertGreater(compiled.bundles, 0)
    self.assertIsNone(compiled.ptx)
    self.assertIsNone(compiled.cycles)
    self.assertIn("tpu_custom_call", compiled.module)
    self.assertIn("custom-call", compiled.hlo)
    self.assertRegex(
        compiled.summary(), f"^{target}: {compiled.bundles} bundles"
    )
    self.assertIn(compiled.summary(), repr(compiled))

  @pytest.mark.filterwarnings("ignore:Destination semaphore is ignored")
  @pytest.mark.slow
  def test_sparsecore(self):
    compiled = testing.compile_for("tpu-v6e", sparsecore_copy, _LINE)
    self.assertGreater(compiled.cycles, compiled.bundles)

  @parameterized.parameters(*_GPUS)
  @pytest.mark.slow
  def test_mosaic_gpu(self, target):
    compiled = testing.compile_for(target, gpu_copy, _LINE)
    architecture = "sm_100a" if target == "b200" else "sm_90a"
    self.assertIn(f".target {architecture}", compiled.ptx)
    self.assertGreater(compiled.registers, 0)
    self.assertIsNone(compiled.bundles)
    self.assertRegex(compiled.summary(), "registers.*PTX instructions")

  @pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")
  @pytest.mark.slow
  def test_pallas_triton(self):
    kernel = pl.pallas_call(
        lambda o_ref: jsx.store(o_ref, None, 7), _LINE,
        compiler_params=pltriton.CompilerParams(),
    )
    compiled = testing.compile_for("h100", kernel)
    self.assertRegex(compiled.ptx, r"(?s)\.target sm_90.*st\.global")
    self.assertRegex(compiled.summary(), "PTX instructions")

  @parameterized.parameters("tpu-v5e", "h200")
  @pytest.mark.slow
  def test_function_without_kernel(self, target):
    # Trees of arguments, Python scalars and options of jit.
    f = lambda tree, scale: {"y": jnp.sin(tree["x"]) * scale}
    compiled = testing.compile_for(
        target, f, {"x": np.ones(8, np.float32)}, 2.0, donate_argnums=0
    )
    self.assertIn("sine", compiled.hlo)
    self.assertIn("input_output_alias", compiled.hlo)
    self.assertIsNone(compiled.bundles)
    self.assertIsNone(compiled.ptx)

  def test_lowering_errors_pass_through(self):
    with self.assertRaisesRegex(Exception, "Cannot store scalars to VMEM"):
      testing.compile_for("tpu-v6e", store_scalar("stock"))

  @pytest.mark.slow
  def test_compiler_refuses(self):
    huge = jax.ShapeDtypeStruct((2**36,), jnp.float32)
    with self.assertRaisesRegex(testing.CompileError, "refused.*\n.*memory"):
      testing.compile_for("tpu-v5e", lambda x: x + 1, huge)

  @pytest.mark.slow
  def test_compiler_aborts(self):
    jax.devices()  # This process has read its flags.
    # XLA ends a process that has a flag which it does not know.
    with mock.patch.dict("os.environ", XLA_FLAGS="--no_such_flag"):
      with self.assertRaisesRegex(
          testing.CompileError, "ended its process.*\n(.*\n)*.*no_such_flag"
      ) as caught:
        testing.compile_for("h100", lambda x: x + 1, _LINE)
    self.assertEqual(caught.exception.target, "h100")

  def test_compiler_hangs(self):
    with self.assertRaisesRegex(testing.CompileError, "in 0.01 s"):
      testing.compile_for("h100", lambda x: x + 1, _LINE, timeout=0.01)

  def test_unknown_target(self):
    with self.assertRaisesRegex(ValueError, "tpu-v5e.*got 'tpu-v2'"):
      testing.compile_for("tpu-v2", lambda x: x, _LINE)

  @pytest.mark.slow
  def test_static_arguments(self):
    f = lambda n, x, name: {name: x + n}
    for static_argnums in ((0, 2), (0, -1)):
      compiled = testing.compile_for(
          "tpu-v5e", f, 41, _LINE, "y", static_argnums=static_argnums
      )
      self.assertIn("41", compiled.module)
    with self.assertRaisesRegex(ValueError, "static_argnums.*positional"):
      testing.compile_for("tpu-v5e", f, 41, _LINE, "y", static_argnames="n")

  @parameterized.parameters(
      ("tpu-v6e", "libtpu"), ("b200", "jax-cuda13-plugin")
  )
  def test_missing_compiler(self, target, package):
    find = importlib.util.find_spec
    missing = lambda name: (
        None if name.startswith(("libtpu", "jax_plugins")) else find(name)
    )
    with mock.patch.object(importlib.util, "find_spec", missing):
      with self.assertRaisesRegex(
          ModuleNotFoundError, f"pip install {package}$"
      ):
        testing.compile_for(target, lambda x: x, _LINE)


class KernelTestCaseTest(absltest.TestCase):
  """The assertions, inside test cases of their own."""

  def run_case(self, body):
    """Runs `body(case)` as a test; returns what failed, one text each."""

    def test_it(case):
      body(case)

    case_type = type(
        "Case", (testing.KernelTestCase,), {"test_it": test_it}
    )
    result = unittest.TestResult()
    case_type("test_it").run(result)
    self.assertEqual(result.testsRun, 1)
    return [text for _, text in (*result.failures, *result.errors)]

  def test_matches_reference(self):
    x = np.linspace(-3, 3, 1024, dtype=np.float32).reshape(8, 128)
    self.assertEmpty(self.run_case(
        lambda case: case.assertMatchesReference(
            double, lambda x: x + x, x, modes=("hlo", "tpu")
        )
    ))
    failed = self.run_case(
        lambda case: case.assertMatchesReference(
            wrong, lambda x: x + x, x, modes=("hlo", "tpu")
        )
    )
    self.assertLen(failed, 2)

  def test_matches_reference_on_a_gpu(self):
    x = np.arange(128, dtype=np.float32)
    self.assertEmpty(self.run_case(
        lambda case: case.assertMatchesReference(
            gpu_copy, lambda x: x, x, modes=("gpu",)
        )
    ))

  def test_unknown_mode(self):
    [text] = self.run_case(
        lambda case: case.assertMatchesReference(
            double, np.add, np.ones(2), np.ones(2), modes=("cpu",)
        )
    )
    self.assertIn("got 'cpu'", text)

  def test_integers_have_to_be_equal(self):
    x = np.full((8, 128), 2**20, np.int32)
    near = lambda x, interpret: double(x, interpret) + 1
    self.assertLen(self.run_case(
        lambda case: case.assertMatchesReference(near, lambda x: x * 2, x)
    ), 1)

  def test_tolerance(self):
    for dtype in (np.float32, np.float16, jnp.bfloat16):
      x = np.ones((8, 128), dtype)
      bound = testing.KernelTestCase().tolerance(dtype)
      for off, count in ((bound / 2, 0), (4 * bound, 1)):
        reference = lambda x, off=off: (x * 2 + off).astype(x.dtype)
        failed = self.run_case(
            lambda case, r=reference, x=x: case.assertMatchesReference(
                double, r, x
            )
        )
        self.assertLen(failed, count, (dtype, off))

  @pytest.mark.slow
  def test_compiles(self):
    self.assertEmpty(self.run_case(
        lambda case: case.assertCompiles(
            store_scalar("ours"), targets=("tpu-v5e", "tpu-v6e")
        )
    ))
    huge = jax.ShapeDtypeStruct((2**36,), jnp.float32)
    [text] = self.run_case(
        lambda case: case.assertCompiles(
            lambda x: lax.exp(x), huge, targets=("tpu-v5e",)
        )
    )
    self.assertIn("refused", text)

  def test_refuses(self):
    refuses = lambda case, regex, library: case.assertRefuses(
        regex, store_scalar(library), targets=("tpu-v6e",)
    )
    self.assertEmpty(self.run_case(
        lambda case: refuses(case, "Cannot store scalars", "stock")
    ))
    self.assertLen(self.run_case(
        lambda case: refuses(case, "another reason", "stock")
    ), 1)
    [text] = self.run_case(
        lambda case: refuses(case, "Cannot store scalars", "ours")
    )
    self.assertRegex(text, "v6e: [0-9]+ bundles.*wanted a refusal")

  def test_unknown_target_is_no_refusal(self):
    for check in (
        lambda case: case.assertRefuses("wanted", store_scalar("stock"),
                                        targets="tpu-v6"),
        lambda case: case.assertCompiles(store_scalar("ours"),
                                         targets="tpu-v6"),
    ):
      [text] = self.run_case(check)
      self.assertIn("got 'tpu-v6'", text)


if __name__ == "__main__":
  absltest.main()
