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
"""TensorCore kernels through the real compiler of every TPU generation."""

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np
from oracles import mosaic_ir
from oracles import tpu_compile
import pytest
import sparse_cells
import tpu_cells
import tpu_costs

_GENERATIONS = tpu_compile.GENERATIONS


def _share(k):
  """Every cell compiles somewhere, every form and dtype everywhere."""
  cells = [c for g in tpu_cells.tensorcore_cells().values() for c in g]
  return tpu_cells.kernels_of(cells[k :: len(_GENERATIONS)])


def share_0():
  return _share(0)


def share_1():
  return _share(1)


def share_2():
  return _share(2)


def share_3():
  return _share(3)


class MosaicTpuCompileTest(parameterized.TestCase):
  @parameterized.named_parameters(
    (g, g, f"share_{k}") for k, g in enumerate(_GENERATIONS)
  )
  @pytest.mark.slow
  def test_compiles(self, generation, share):
    got = tpu_compile.compile_all("mosaic_tpu_compile_test", share, generation)
    self.assertGreater(len(got), 100)
    failed = {k: c.error[:500] for k, c in got.items() if not c.ok}
    self.assertEqual(failed, {})

  @parameterized.parameters("v5e", "v6e", "tpu7x")
  @pytest.mark.slow
  def test_never_more_bundles_than_by_hand(self, generation):
    got = tpu_compile.compile_all("tpu_costs", "kernels", generation)
    for name in tpu_costs.ROWS:
      with self.subTest(name):
        ours, hand = got[f"{name} ours"], got[f"{name} hand"]
        self.assertEqual(ours.error, "")
        if hand.error and not sparse_cells.BITCASTS:
          continue  # libtpu before jax 0.12 compiles some in ours only.
        self.assertEqual(hand.error, "")
        above = tpu_costs.ABOVE.get((generation, name), 0)
        self.assertLessEqual(ours.bundles, hand.bundles + above)

  @pytest.mark.slow
  def test_the_hand_written_rows_mean_the_same(self):
    for name, row in tpu_costs.ROWS.items():
      with self.subTest(name):
        ours, hand = (
          mosaic_ir.evaluate(row.kernel(access, copies=True), *row.inputs())
          for access in (row.ours, row.hand)
        )
        for a, b in zip(ours, hand, strict=True):
          np.testing.assert_array_equal(a, b)


if __name__ == "__main__":
  absltest.main()
