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
"""The harness that compiles for TPUs that are not there, on stock kernels."""

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc
import jax.numpy as jnp
from oracles import tpu_compile
import pytest


def kernels():
  shape = jax.ShapeDtypeStruct((32, 128), jnp.float32)

  def double(x, o):
    o[...] = x[...] * 2

  def unproven(i, x, o):
    o[...] = x[:, pl.ds(i[0], 128)]

  def call(body, spaces, out, name):
    return pl.pallas_call(
      body,
      out_shape=out,
      in_specs=[pl.BlockSpec(memory_space=m) for m in spaces],
      name=name,
    )

  wide = jax.ShapeDtypeStruct((32, 512), jnp.float32)
  index = jax.ShapeDtypeStruct((1,), jnp.int32)
  return {
    "double": (call(double, [pltpu.VMEM], shape, "double"), [shape]),
    "unproven": (
      call(unproven, [pltpu.SMEM, pltpu.VMEM], shape, "unproven"),
      [index, wide],
    ),
  }


def sparse_kernels():
  """The second kernel of the three aborts the compiler's process."""
  x = jax.ShapeDtypeStruct((128,), jnp.int32)

  def kernel(body, dtype):
    def f(x):
      mesh = plsc.VectorSubcoreMesh(
        core_axis_name="c",
        subcore_axis_name="s",
        num_cores=1,
        num_subcores=16,
      )
      return pl.kernel(
        body,
        out_type=jax.ShapeDtypeStruct((128,), jnp.int32),
        mesh=mesh,
        scratch_types=[
          pltpu.VMEM((128,), jnp.int32),
          pltpu.VMEM((256,), dtype),
        ],
        compiler_params=pltpu.CompilerParams(
          needs_layout_passes=False, use_tc_tiling_on_sc=False
        ),
        name="k",
      )(x)

    return f

  lanes = 8

  def fine(x, o, buffer, other):
    pltpu.sync_copy(x, buffer)
    buffer[pl.ds(0, lanes)] = buffer[pl.ds(0, lanes)] + 1
    pltpu.sync_copy(buffer, o)

  def aborts(x, o, buffer, other):
    pltpu.sync_copy(x, buffer)
    plsc.addupdate(
      other.at[pl.ds(0, 4 * lanes)], other[pl.ds(4 * lanes, 4 * lanes)]
    )
    pltpu.sync_copy(buffer, o)

  return {
    "before": (kernel(fine, jnp.int32), [x]),
    "aborts": (kernel(aborts, jnp.int8), [x]),
    "after": (kernel(fine, jnp.int32), [x]),
  }


class TpuCompileTest(parameterized.TestCase):
  @parameterized.parameters(*tpu_compile.GENERATIONS)
  @pytest.mark.slow
  def test_tensorcore(self, generation):
    got = tpu_compile.compile_all("tpu_compile_test", "kernels", generation)
    self.assertEqual(got["double"].error, "")
    self.assertGreater(got["double"].bundles, 4)
    self.assertIn("E2003", got["unproven"].error)

  @parameterized.parameters("v5p", "v6e")
  @pytest.mark.slow
  def test_an_abort_is_reported_and_survived(self, generation):
    got = tpu_compile.compile_all(
      "tpu_compile_test", "sparse_kernels", generation
    )
    self.assertEqual(got["before"].error, "")
    self.assertGreater(got["before"].cycles, got["before"].bundles)
    self.assertIn("Cannot select", got["aborts"].error)
    self.assertEqual(got["after"], got["before"])

  @pytest.mark.slow
  def test_text(self):
    got = tpu_compile.compile_all(
      "tpu_compile_test", "kernels", "v6e", names=["double"], text=True
    )
    self.assertEqual(list(got), ["double"])
    self.assertIn("vst", got["double"].text)


if __name__ == "__main__":
  absltest.main()
