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
"""The Mosaic-IR interpreter against JAX's own TPU interpreter and NumPy.

Only stock kernels appear here: the interpreter has to be right about programs
that others wrote before it may judge ours.
"""

from absl.testing import absltest
from absl.testing import parameterized
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
import mosaic_ir_grids
import mosaic_ir_kernels
from mosaic_ir_kernels import array
from mosaic_ir_kernels import call
from mosaic_ir_kernels import shape
import numpy as np
from oracles import mosaic_ir

_F32, _I32 = jnp.float32, jnp.int32
_CASES = mosaic_ir_kernels.CASES | mosaic_ir_grids.CASES


class MosaicIrTest(parameterized.TestCase):
  @parameterized.named_parameters((name, name) for name in _CASES)
  def test_tensorcore(self, name):
    f, args, expected = _CASES[name]
    for dma in ("late", "early"):
      np.testing.assert_array_equal(
        mosaic_ir.evaluate(f, *args, dma=dma), expected
      )
    interpreted = f(*args, interpret=pltpu.InterpretParams())
    np.testing.assert_array_equal(np.asarray(interpreted), expected)

  # What it must not let pass.

  def test_padding_is_poison(self):

    def body(x, o):
      o[...] = x[pl.ds(pl.multiple_of(jnp.int32(56), 8), 8), :]

    f = call(body, shape((8, 256)))
    x = array((60, 256))
    got = mosaic_ir.evaluate(f, x)
    np.testing.assert_array_equal(got[:4], x[56:])
    self.assertTrue(np.isnan(got[4:]).all())

  def test_unwritten_results_are_poison(self):
    def body(o):
      o[0:4, :] = jnp.ones((4, 128))

    got = mosaic_ir.evaluate(call(body, shape((8, 128))))
    self.assertTrue(np.isnan(got[4:]).all())

  def test_out_of_bounds(self):
    def body(i, x, o):
      o[...] = x[pl.ds(i[0], 8), :]

    f = call(body, shape((8, 128)), ins=(pltpu.SMEM, pltpu.VMEM))
    with self.assertRaisesRegex(mosaic_ir.EvaluationError, "access outside"):
      mosaic_ir.evaluate(f, np.array([25], np.int32), array((32, 128)))

  def test_broken_claim(self):
    def lying(i, x, o):
      o[...] = x[pl.ds(pl.multiple_of(i[0], 8), 8), :]

    f = call(lying, shape((8, 128)), ins=(pltpu.SMEM, pltpu.VMEM))
    with self.assertRaisesRegex(mosaic_ir.EvaluationError, "multiple of 8"):
      mosaic_ir.evaluate(f, np.array([4], np.int32), array((32, 128)))

  def test_dma_never_waited_for(self):
    def body(x, o, semaphore):
      pltpu.make_async_copy(x, o, semaphore).start()

    f = call(
      body,
      shape((8, 128)),
      ins=(pl.ANY,),
      outs=pl.ANY,
      scratch_shapes=[pltpu.SemaphoreType.DMA],
    )
    with self.assertRaisesRegex(mosaic_ir.EvaluationError, "never waited for"):
      mosaic_ir.evaluate(f, array((8, 128)))

  def test_late_dma_shows_a_read_before_the_wait(self):
    def body(x, o, buffer, semaphore):
      copy = pltpu.make_async_copy(x, buffer, semaphore)
      copy.start()
      o[...] = buffer[...]
      copy.wait()

    f = call(
      body,
      shape((8, 128)),
      ins=(pl.ANY,),
      scratch_shapes=[pltpu.VMEM((8, 128), _F32), pltpu.SemaphoreType.DMA],
    )
    x = array((8, 128))
    np.testing.assert_array_equal(mosaic_ir.evaluate(f, x, dma="early"), x)
    self.assertTrue(np.isnan(mosaic_ir.evaluate(f, x, dma="late")).all())

  def test_semaphore_read(self):
    # JAX's interpreter cannot read a semaphore, so this one stands alone.
    def body(o, semaphore):
      pl.semaphore_signal(semaphore, 3)
      o[0] = pl.semaphore_read(semaphore)
      pl.semaphore_wait(semaphore, 3)
      o[1] = pl.semaphore_read(semaphore)

    f = call(
      body,
      shape((2,), _I32),
      outs=pltpu.SMEM,
      scratch_shapes=[pltpu.SemaphoreType.REGULAR],
    )
    np.testing.assert_array_equal(mosaic_ir.evaluate(f), [3, 0])

  def test_deadlock(self):
    def body(o, semaphore):
      pl.semaphore_wait(semaphore, 1)
      o[0] = jnp.int32(1)

    f = call(
      body,
      shape((1,), _I32),
      outs=pltpu.SMEM,
      scratch_shapes=[pltpu.SemaphoreType.REGULAR],
    )
    with self.assertRaisesRegex(mosaic_ir.EvaluationError, "deadlock"):
      mosaic_ir.evaluate(f)

  def test_unknown_op_by_name(self):
    def body(o):
      pltpu.prng_seed(0)
      o[...] = pltpu.prng_random_bits((8, 128)).astype(_I32)

    f = call(body, shape((8, 128), _I32))
    with self.assertRaisesRegex(mosaic_ir.UnknownOpError, "tpu.prng_set_seed"):
      mosaic_ir.evaluate(f)


if __name__ == "__main__":
  absltest.main()
