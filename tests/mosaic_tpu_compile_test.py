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
import cases
import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
import jax_swapext as jsx
import numpy as np
from oracles import mosaic_ir
from oracles import tpu_compile
import pytest
import tpu_cells

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


# ## Bundles
#
# Each row: what we emit, and the same written by hand with stock operations and
# the same window, compiled in the same run, so that a new compiler moves both.


def _iota(shape, axis):
  return lax.broadcasted_iota(jnp.int32, shape, axis)


def _row_window(i, j):
  """One row: any may be sliced where rows are one tile wide."""
  row = (pl.ds(i, 1), slice(None))
  return row, _iota((1, 128), 1) == j


def _tile_window(i, j, rows):
  at = (
    pl.ds(pl.multiple_of(i & -rows, rows), rows),
    pl.ds(pl.multiple_of(j & -128, 128), 128),
  )
  shape = (rows, 128)
  inside = (_iota(shape, 0) == (i & (rows - 1))) & (
    _iota(shape, 1) == (j & 127)
  )
  return at, inside


def _pick(tile, i, j):
  tile = pltpu.roll(tile, tile.shape[0] - i, 0) if tile.shape[0] > 1 else tile
  return pltpu.roll(tile, 128 - j, 1)[0, 0]


def _hand_store(rows):
  def store(o, i, j, v):
    if rows == 1:
      at, inside = _row_window(i, j)
    else:
      at, inside = _tile_window(i, j, rows)
    tile = jnp.full(inside.shape, v)
    if o.dtype.itemsize == 4:
      pltpu.store(o.at[at], tile, mask=inside)
    else:
      o[at] = jnp.where(inside, tile, o[at])

  return store


def _hand_update(rows, new):
  def update(o, i, j, v):
    at, inside = _row_window(i, j) if rows == 1 else _tile_window(i, j, rows)
    old = o[at]
    tile = new(old, jnp.full(inside.shape, v))
    if o.dtype.itemsize == 4:
      pltpu.store(o.at[at], tile, mask=inside)
      wide = old
    else:
      o[at] = jnp.where(inside, tile, old)
      wide = old.astype(tpu_cells.carrier(o.dtype))
    out = _pick(wide, i & (rows - 1), j if rows == 1 else j & 127)
    return out.astype(o.dtype)

  return update


def _hand_load(rows):
  def load(o, i, j, v):
    del v  # Unused.
    at, _ = _row_window(i, j) if rows == 1 else _tile_window(i, j, rows)
    tile = o[at].astype(tpu_cells.carrier(o.dtype))
    out = _pick(tile, i & (rows - 1), j if rows == 1 else j & 127)
    return out.astype(o.dtype)

  return load


def _narrow_add(old, tile):
  """Mosaic has no arithmetic on bytes."""
  if old.dtype.itemsize > 1:
    return old + tile
  return (old.astype(jnp.int32) + tile.astype(jnp.int32)).astype(old.dtype)


def _masked(o, i, j, v):
  del j  # Unused.
  return _iota(o.shape, 0) > i, jnp.full(o.shape, v)


def _ours_masked(o, i, j, v):
  mask, value = _masked(o, i, j, v)
  jsx.store(o, ..., value, mask=mask)


def _hand_masked(o, i, j, v):
  mask, value = _masked(o, i, j, v)
  if o.dtype.itemsize == 4:
    pltpu.store(o, value, mask=mask)
  else:
    o[...] = jnp.where(mask, value, o[...])


def _rows():
  """name -> (dtype, shape, ours, by hand)."""
  rows = {}
  for dtype in (np.float32, np.int32, jnp.bfloat16, np.int8):
    for shape in ((64, 128), (64, 256)):
      pack = 4 // np.dtype(dtype).itemsize
      tile = 1 if pack == 1 and shape[1] == 128 else 8 * pack
      name = f"{np.dtype(dtype).name}_{shape[1]}"
      rows[f"store_{name}"] = (
          dtype, shape, lambda o, i, j, v: jsx.store(o, (i, j), v),
          _hand_store(tile),
      )  # fmt: skip
      rows[f"swap_{name}"] = (
          dtype, shape, lambda o, i, j, v: jsx.swap(o, (i, j), v),
          _hand_update(tile, lambda old, new: new),
      )  # fmt: skip
      rows[f"add_{name}"] = (
          dtype, shape, lambda o, i, j, v: jsx.atomic_add(o, (i, j), v),
          _hand_update(tile, _narrow_add),
      )  # fmt: skip
      rows[f"load_{name}"] = (
          dtype, shape, lambda o, i, j, v: jsx.load(o, (i, j)),
          _hand_load(tile),
      )  # fmt: skip
    rows[f"masked_store_{np.dtype(dtype).name}"] = (
        dtype, (32, 128), _ours_masked, _hand_masked,
    )  # fmt: skip
  return rows


def _bundle_kernel(dtype, shape, access):
  scalar = tpu_cells.carrier(dtype)

  def body(x, i, v, o, old):
    del x  # It is `o`.
    value = tpu_cells.as_dtype(v[0], dtype)
    out = access(o, i[0], i[1], value)
    old[0] = v[0] if out is None else out.astype(scalar)

  smem = pl.BlockSpec(memory_space=pltpu.SMEM)
  vmem = pl.BlockSpec(memory_space=pltpu.VMEM)
  f = pl.pallas_call(
    body,
    out_shape=[
      jax.ShapeDtypeStruct(shape, dtype),
      jax.ShapeDtypeStruct((1,), scalar),
    ],
    in_specs=[vmem, smem, smem],
    out_specs=[vmem, smem],
    input_output_aliases={0: 0},
    name="k",
  )
  return f, [
    jax.ShapeDtypeStruct(shape, dtype),
    jax.ShapeDtypeStruct((2,), jnp.int32),
    jax.ShapeDtypeStruct((1,), scalar),
  ]


def bundle_kernels():
  out = {}
  for name, (dtype, shape, ours, hand) in _rows().items():
    out[f"{name} ours"] = _bundle_kernel(dtype, shape, ours)
    out[f"{name} hand"] = _bundle_kernel(dtype, shape, hand)
  return out


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
    got = tpu_compile.compile_all(
      "mosaic_tpu_compile_test", "bundle_kernels", generation
    )
    for name in _rows():
      with self.subTest(name):
        ours, hand = got[f"{name} ours"], got[f"{name} hand"]
        self.assertEqual((ours.error, hand.error), ("", ""))
        self.assertLessEqual(ours.bundles, hand.bundles)

  @pytest.mark.slow
  def test_the_hand_written_rows_mean_the_same(self):
    for name, (dtype, shape, ours, hand) in _rows().items():
      if name.startswith("masked"):
        continue
      with self.subTest(name):
        x = cases.values(np.int8, shape).astype(dtype)
        i = np.array([37, 99], np.int32)
        v = np.array([3], tpu_cells.carrier(dtype))

        def run(access, dtype=dtype, shape=shape, x=x, i=i, v=v):
          def f(x, i, v):
            def body(x, i, v, o, old):
              o[...] = x[...]
              value = tpu_cells.as_dtype(v[0], dtype)
              out = access(o, i[0], i[1], value)
              old[0] = v[0] if out is None else out.astype(v.dtype)

            smem = pl.BlockSpec(memory_space=pltpu.SMEM)
            vmem = pl.BlockSpec(memory_space=pltpu.VMEM)
            return pl.pallas_call(
              body,
              out_shape=[
                jax.ShapeDtypeStruct(shape, dtype),
                jax.ShapeDtypeStruct((1,), v.dtype),
              ],
              in_specs=[vmem, smem, smem],
              out_specs=[vmem, smem],
            )(x, i, v)

          return mosaic_ir.evaluate(f, x, i, v)

        for a, b in zip(run(ours), run(hand), strict=True):
          np.testing.assert_array_equal(a, b)


if __name__ == "__main__":
  absltest.main()
