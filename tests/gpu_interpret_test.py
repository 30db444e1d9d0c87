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
"""All of the API under Pallas' interpreter of Mosaic GPU kernels."""

from __future__ import annotations

import dataclasses

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks
from jax.experimental.pallas import mosaic_gpu as plgpu
import mosaic_gpu_data as data_lib
import mosaic_gpu_kernels as kernels
from mosaic_gpu_kernels import Case
import numpy as np
from reference import Window

_MODES = {
    "plain": dict(),
    "races": dict(detect_races=True),
}

_CASES = {
    "load": Case("load", mask=True),
    "load_other": Case("load", dtype="bfloat16", mask=True, other=True),
    "swap_block": Case("swap", shape=(8, 64), mask=True, dynamic=True,
                       index=(Window(1, 4), Window(3, 33))),
    "store_past_the_end": Case("store", shape=(100,), mask=True, dynamic=True,
                               index=Window(90, 32)),
    "store_scalar": Case("store", shape=(4, 8), index=(1, 2)),
    "swap_bool": Case("swap", shape=(33,), dtype="bool"),
    "gather": Case("load", shape=(8, 64), index=np.array([7, 1, 3, 0])),
    "add_repeated": Case("atomic_add", shape=(16,), dtype="int32",
                         index=np.array([1, 1, 3, 1])),
    "cas": Case("atomic_cas", shape=(8,), dtype="int32", index=3),
    "cas_vector": Case("atomic_cas", shape=(40,), dtype="float32"),
    "max_mixed": Case("atomic_max", shape=(4, 8, 16), dtype="int32", mask=True,
                      index=(np.array([1, 0, 2]), slice(2, 6),
                             np.array([1, 5, 9]))),
    "xchg": Case("atomic_xchg", shape=(33,), dtype="uint8"),
    "xor_strided": Case("atomic_xor", shape=(64,), dtype="uint32",
                        index=slice(1, 64, 5)),
}


def _interpret(mode):
  params = getattr(plgpu, "InterpretGPUParams", None) or plgpu.InterpretParams
  return params(**_MODES[mode])


class GpuInterpretTest(parameterized.TestCase):

  @parameterized.product(
      name=list(_CASES), warp=(True, False), mode=list(_MODES))
  def test_equals_reference(self, name, warp, mode):
    case = dataclasses.replace(_CASES[name], warp=warp)
    function, _ = kernels.access(case, interpret=_interpret(mode))
    data = data_lib.make_data(case, seed=0)
    old, new = data_lib.expected(case, data)
    outs = jax.jit(function)(*data.arguments(case))
    if case.returns:
      np.testing.assert_array_equal(np.asarray(outs[0]).reshape(old.shape), old)
    np.testing.assert_array_equal(outs[-1], new)

  @parameterized.parameters(*_MODES)
  def test_spin_lock(self, mode):
    function, _ = kernels.spin_lock("Lane", interpret=_interpret(mode))
    count, lock = function(np.array([2], np.int32))
    np.testing.assert_array_equal(count, np.full(32, 8))
    self.assertEqual(lock[0], 0)

  @parameterized.parameters(*_MODES)
  def test_producer_and_consumer(self, mode):
    x = np.random.default_rng(0).standard_normal(
        (kernels.RING_STEPS, 64)).astype(np.float32)
    function, _ = kernels.ring("Lane", interpret=_interpret(mode))
    np.testing.assert_array_equal(function(x), (x + 1) * 2)

  @parameterized.parameters(*_MODES)
  def test_histogram(self, mode):
    x = np.random.default_rng(0).integers(0, 16, (4, 64)).astype(np.int32)
    function, _ = kernels.histogram("Lane", interpret=_interpret(mode))
    bins, rank = map(np.asarray, function(x))
    counts = np.bincount(x.ravel(), minlength=16)
    np.testing.assert_array_equal(bins, counts)
    for b, n in enumerate(counts):
      self.assertSequenceEqual(sorted(rank[x == b]), range(n))

  @parameterized.parameters(*_MODES)
  def test_grid_wide_tickets(self, mode):
    function, _ = kernels.tickets("Lane", interpret=_interpret(mode))
    drawn, counter = jax.jit(function)(np.array([5], np.int32))
    self.assertSequenceEqual(sorted(np.asarray(drawn)), range(5, 13))
    self.assertEqual(counter[0], 13)

  @parameterized.parameters("axpy", "softmax", "while", "cond")
  def test_math_between_accesses(self, name):
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((2, 4, 4, 64)).astype(np.float32)
    function, _ = kernels.warp_math(name, "Lane", interpret=_interpret("plain"))
    expected = np.stack([
        np.asarray(kernels.WARP_MATH[name](x[w], y[w])) for w in range(4)])
    np.testing.assert_allclose(function(x, y), expected, rtol=1e-5, atol=1e-5)

  def test_planted_race_is_reported(self):
    params = _interpret("races")
    function, _ = kernels.planted_race("Lane", interpret=params)
    run = lambda: jax.block_until_ready(function(np.zeros(32, np.int32)))
    if hasattr(params, "on_race"):
      with self.assertRaisesRegex(Exception, "[Rr]ace"):
        run()
    else:  # Drop once jax >= 0.12: this interpreter prints races, and goes on.
      run()
      self.assertTrue(gpu_callbacks.get_races().races_found)

  def test_out_of_bounds_is_reported(self):
    case = Case("load", shape=(100,), index=Window(90, 32), dynamic=True)
    function, _ = kernels.access(case, interpret=_interpret("plain"))
    with self.assertRaisesRegex(Exception, r"indices in \[0, 100\)"):
      jax.block_until_ready(function(
          np.zeros(100, np.float32), np.array([90], np.int32)))


if __name__ == "__main__":
  absltest.main()
