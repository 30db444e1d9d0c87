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
"""SparseCore kernels on elements of 8 and 16 bits, from their modules."""

import itertools

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
import jax_swapext as jsx
import numpy as np
from oracles import mosaic_ir
import pytest
import sparse_cells
from sparse_cells import LANES
from sparse_cells import Setting
import sparse_tables

_SETTINGS = [
  Setting(passes, tiling)
  for passes, tiling in itertools.product((False, True), (False, True))
]


def _lower(shape, dtype, access, setting):
  """The module of a kernel that applies `access` to a Ref in VMEM."""
  x = jax.ShapeDtypeStruct((8,), jnp.int32)
  f = lambda x: pl.kernel(
    lambda x, o, ref: access(ref),
    out_type=x,
    mesh=sparse_cells.vector_mesh(),
    scratch_types=[pltpu.VMEM(shape, dtype)],
    compiler_params=setting.params,
  )(x)
  return mosaic_ir.mosaic_modules(f, x)


class MosaicScPackedTest(sparse_cells.TestCase):
  @parameterized.product(
    dtype=[t.name for t in sparse_cells.PACKED], setting=_SETTINGS
  )
  @pytest.mark.slow
  def test_equals_the_reference(self, dtype, setting):
    cells = sparse_tables.packed_cells(LANES, dtype, setting)
    # The longest tables of indices have nine entries, each with a mask and
    # without: so each of them occurs, with some operation.
    for k, cell in enumerate(cells.values()):
      if k % 7 == _SETTINGS.index(setting):
        self.check(cell, setting, k)

  @parameterized.product(
    dtype=("int8", "bfloat16"), setting=[*_SETTINGS, Setting(False, None)]
  )
  def test_whole_words_have_the_stock_module(self, dtype, setting):
    packing = 4 // np.dtype(dtype).itemsize
    size = packing * LANES

    def multiple(k):
      return pl.multiple_of(jax.lax.axis_index("s") * k, k)

    if setting.tiling is False:
      regions = [
        ((size,), lambda: slice(None)),
        ((512,), lambda: pl.ds(packing, size)),
        ((512,), lambda: pl.ds(multiple(packing), size)),
        ((32, 128), lambda: (3, pl.ds(size, size))),
      ]
    else:
      block = pl.ds(packing, packing), pl.ds(LANES, LANES)
      regions = [((32, 128), lambda: block)]
    for shape, index in regions:

      def ours(ref, index=index):
        at = index()
        jsx.store(ref, at, jsx.load(ref, at))

      def stock(ref, index=index):
        at = index()
        ref[at] = ref[at]

      with self.subTest(str(shape)):
        self.assertEqual(
          _lower(shape, dtype, ours, setting),
          _lower(shape, dtype, stock, setting),
        )

  @parameterized.named_parameters(
    ("tiled", (512,), lambda: pl.ds(0, 32), Setting(True, None), "128 words"),
    ("scalar", (512,), lambda: 3, Setting(False, True), "128 words apart"),
    ("rows", (30, 128), lambda: (3, 5), Setting(True, True), "are not whole"),
    ("short", (16,), lambda: 3, Setting(True, False), "at least 32 long"),
    ("odd", (66,), lambda: 3, Setting(True, False), "a multiple of 4"),
    ("length", (512,), lambda: pl.ds(0, 20), Setting(True, False), "has 32"),
    ("block", (32, 128), lambda: (pl.ds(1, 4), pl.ds(0, 8)),
     Setting(True, True), r"blocks of \(4, 8\)"),
    ("gather", (512,), lambda: jnp.zeros(32, jnp.int32),
     Setting(False, False), "take several"),
  )  # fmt: skip
  def test_refuses(self, shape, index, setting, why):
    def load(ref):
      at = index()
      jsx.store(ref, at, jsx.load(ref, at))

    def swap(ref):
      at = index()
      jsx.store(ref, at, jsx.swap(ref, at, 0))

    for name, access in (("load", load), ("swap", swap)):
      with self.assertRaisesRegex(
        NotImplementedError, f"{name}: wanted .*{why}"
      ):
        _lower(shape, np.int8, access, setting)

  @parameterized.named_parameters(
    ("passes", Setting(False, True), 128, "Set needs_layout_passes=True"),
    ("outside", Setting(True, True), 124, "may lie partly outside"),
  )
  def test_refuses_masked_blocks(self, setting, columns, why):
    def store(ref):
      at = pl.multiple_of(jax.lax.axis_index("s") * 8, 8)
      mask = jnp.full((4, LANES), 1, jnp.int8) > 0
      jsx.store(ref, (pl.ds(at, 4), pl.ds(at, LANES)), 0, mask=mask)

    with self.assertRaisesRegex(NotImplementedError, why):
      _lower((32, columns), np.int8, store, setting)


if __name__ == "__main__":
  absltest.main()
