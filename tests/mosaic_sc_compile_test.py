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
"""SparseCore kernels through the real compiler of every TPU that has one."""

import itertools

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc
import jax.numpy as jnp
import jax_swapext as jsx
import numpy as np
from oracles import mosaic_ir
from oracles import tpu_compile
import pytest
import sparse_cells
from sparse_cells import Setting

_GENERATIONS = tpu_compile.SPARSE_GENERATIONS
_LANES = {"v5p": 8, "v6e": 8, "tpu7x": 16}
_SETTINGS = [*itertools.starmap(Setting, itertools.product(
    (False, True), (None, False)
))]  # fmt: skip


def _cells(lanes):
  """(cell, setting) of all vector-subcore kernels but those on packed ones."""
  tables = [
    (sparse_cells.vmem_cells, 5),
    (sparse_cells.flag_cells, 7),
    (lambda n: sparse_cells.remote_cells(n, "hbm"), 17),
    (lambda n: sparse_cells.remote_cells(n, "vmem_shared"), 17),
  ]
  for table, every in tables:
    for k, cell in enumerate([*table(lanes).values()][::every]):
      yield cell, _SETTINGS[k % len(_SETTINGS)]
  for k, cell in enumerate([*sparse_cells.box_cells(lanes).values()][::7]):
    yield cell, _SETTINGS[2 + k % 2]


def _packed_cells(lanes):
  settings = [*itertools.starmap(Setting, itertools.product(
      (False, True), (True, False)
  ))]  # fmt: skip
  tables = itertools.product(sparse_cells.PACKED, settings)
  for n, (dtype, setting) in enumerate(tables):
    cells = [*sparse_cells.packed_cells(lanes, dtype, setting).values()]
    for cell in cells[n % 31 :: 31]:
      yield cell, setting
  spaces = itertools.product(("hbm", "vmem_shared"), settings)
  for n, (space, setting) in enumerate(spaces):
    cells = sparse_cells.all_remote_packed_cells(lanes, space, setting)
    for cell in cells[11 * n :: 127]:
      yield cell, setting


def _kernels(cells, lanes):
  sparse_cells.ignore_push_warnings()
  out = {}
  for cell, setting in cells:
    _, inputs = sparse_cells.inputs_of(cell, lanes)
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in inputs]
    kernel = sparse_cells.vector_kernel(cell, lanes, setting)
    out[f"{cell.name} {setting}"] = kernel, shapes
  return out


def words_8():
  return _kernels(_cells(8), 8)


def words_16():
  return _kernels(_cells(16), 16)


def packed_8():
  return _kernels(_packed_cells(8), 8)


def packed_16():
  return _kernels(_packed_cells(16), 16)


def scalars():
  """SMEM of both kinds of subcores, and what the scalar one reaches."""
  sparse_cells.ignore_push_warnings()
  smem = sparse_cells.smem_cells()
  remote = sparse_cells.scalar_remote_cells()
  kernels = [(c, sparse_cells.scalar_kernel(c)) for c in smem.values()]
  kernels += [
    (c, sparse_cells.scalar_kernel(c)) for c in [*remote.values()][::2]
  ]
  out = {}
  for cell, kernel in kernels:
    _, inputs = sparse_cells.inputs_of(cell, 8)
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in inputs]
    out[f"scalar {cell.name}"] = kernel, shapes
  return out


def smem_vectors():
  """Eight elements of SMEM at once, the lanes of v5p and v6e."""
  sparse_cells.ignore_push_warnings()
  out = {}
  for name, cell in [*sparse_cells.smem_vector_cells().items()][::5]:
    _, inputs = sparse_cells.inputs_of(cell, 8)
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in inputs]
    out[name] = sparse_cells.vector_kernel(cell, 8), shapes
  return out


# ## Bundles and cycles
#
# Each row: what we emit, and the same written by hand with stock operations,
# compiled in the same run, so that a new compiler moves both. The bodies take a
# table of VMEM, a vector of positions i and one of values v, and return one.


def _iota(n):
  return lax.iota(jnp.int32, n)


def _splat(n, x):
  return jnp.full((n,), x, jnp.int32)


def _first(n):
  return _iota(n) == 0


def _hand_load(t, i, v):
  [n] = v.shape
  return _splat(n, plsc.load_gather(t, [_splat(n, i[0])])[0])


def _hand_store(t, i, v):
  [n] = v.shape
  at, value = _splat(n, i[0]), _splat(n, v[0])
  plsc.store_scatter(t, [at], value, mask=_first(n))
  return v


def _hand_add(t, i, v):
  [n] = v.shape
  at, value = _splat(n, i[0]), _splat(n, v[0])
  plsc.addupdate_scatter(t, [at], value, mask=_first(n))
  return v


def _hand_swap(t, i, v):
  [n] = v.shape
  at, value = _splat(n, i[0]), _splat(n, v[0])
  old = plsc.load_gather(t, [at])
  plsc.store_scatter(t, [at], value, mask=_first(n))
  return _splat(n, old[0])


def _hand_masked_load(t, i, v):
  [n] = v.shape
  at = i[0] + _iota(n)
  return jnp.where(v > 0, plsc.load_gather(t, [at], mask=v > 0), v)


def _hand_masked_store(t, i, v):
  [n] = v.shape
  plsc.store_scatter(t, [i[0] + _iota(n)], v, mask=v > 0)
  return v


def _hand_strided_load(t, i, v):
  [n] = v.shape
  return plsc.load_gather(t, [i[0] + 3 * _iota(n)])


def _hand_strided_store(t, i, v):
  [n] = v.shape
  plsc.store_scatter(t, [i[0] + 3 * _iota(n)], v)
  return v


def _hand_in_order(t, i, v):
  """The maximum at positions that may repeat, with the old values."""
  [n] = v.shape
  _, last = plsc.scan_count(i)
  repeats = plsc.all_reduce_population_count(~last)[0]

  def one_by_one():
    out = jnp.zeros_like(v)
    for k in range(n):
      here = _iota(n) == k
      old = plsc.load_gather(t, [i], mask=here)
      plsc.store_scatter(t, [i], jnp.maximum(old, v), mask=here)
      out = jnp.where(here, old, out)
    return out

  return lax.cond(repeats != 0, one_by_one, lambda: _hand_unique(t, i, v))


def _hand_unique(t, i, v):
  """The maximum at positions that are known not to repeat."""
  old = plsc.load_gather(t, [i])
  plsc.store_scatter(t, [i], jnp.maximum(old, v))
  return old


def _ours(access):
  def body(t, i, v):
    out = access(t, i, v)
    return v if out is None else out

  return body


def _scalar(access):
  return _ours(
    lambda t, i, v: None
    if (out := access(t, i, v)) is None
    else _splat(v.shape[0], out)
  )


_ROWS = {
  "load_scalar": (
    _scalar(lambda t, i, v: jsx.load(t, i[0])), _hand_load,
  ),
  "store_scalar": (
    _scalar(lambda t, i, v: jsx.store(t, i[0], v[0])), _hand_store,
  ),
  "add_scalar": (
    _ours(lambda t, i, v: jsx.atomic_add(t, i[0], v[0]) is None or None),
    _hand_add,
  ),
  "swap_scalar": (
    _scalar(lambda t, i, v: jsx.swap(t, i[0], v[0])), _hand_swap,
  ),
  "masked_load": (
    _ours(lambda t, i, v: jsx.load(
        t, pl.ds(i[0], v.shape[0]), mask=v > 0, other=v
    )), _hand_masked_load,
  ),
  "masked_store": (
    _ours(lambda t, i, v: jsx.store(
        t, pl.ds(i[0], v.shape[0]), v, mask=v > 0
    )), _hand_masked_store,
  ),
  "strided_load": (
    _ours(lambda t, i, v: jsx.load(t, pl.ds(i[0], v.shape[0], 3))),
    _hand_strided_load,
  ),
  "strided_store": (
    _ours(lambda t, i, v: jsx.store(t, pl.ds(i[0], v.shape[0], 3), v)),
    _hand_strided_store,
  ),
  "max_at_positions": (
    _ours(lambda t, i, v: jsx.atomic_max(t, i, v)), _hand_in_order,
  ),
}  # fmt: skip


def _row_kernel(access, lanes):
  x = jax.ShapeDtypeStruct((256,), jnp.int32)
  y = jax.ShapeDtypeStruct((lanes,), jnp.int32)

  def body(x, i, v, new, result, table, at, value):
    for source, target in ((x, table), (i, at), (v, value)):
      pltpu.sync_copy(source, target)
    value[...] = access(table, at[...], value[...])
    pltpu.sync_copy(table, new)
    pltpu.sync_copy(value, result)

  def f(x, i, v):
    return pl.kernel(
      body,
      out_type=[x, y],
      mesh=sparse_cells.vector_mesh(),
      scratch_types=[
        pltpu.VMEM((256,), jnp.int32),
        pltpu.VMEM((lanes,), jnp.int32),
        pltpu.VMEM((lanes,), jnp.int32),
      ],
      compiler_params=pltpu.CompilerParams(needs_layout_passes=False),
      name="k",
    )(x, i, v)

  return f, [x, y, y]


def _row_kernels(lanes):
  sparse_cells.ignore_push_warnings()
  return {
    f"{name} {who}": _row_kernel(access, lanes)
    for name, row in _ROWS.items()
    for who, access in zip(("ours", "hand"), row, strict=True)
  }


def rows_8():
  return _row_kernels(8)


def rows_16():
  return _row_kernels(16)


class MosaicScCompileTest(sparse_cells.TestCase):
  @parameterized.product(
    generation=_GENERATIONS,
    factory=("words", "packed", "scalars", "smem_vectors"),
  )
  @pytest.mark.slow
  def test_compiles(self, generation, factory):
    lanes = _LANES[generation]
    if factory in ("words", "packed"):
      factory = f"{factory}_{lanes}"
    elif factory == "smem_vectors" and lanes != 8:
      return
    got = tpu_compile.compile_all("mosaic_sc_compile_test", factory, generation)
    self.assertNotEmpty(got)
    failed = {k: c.error[:500] for k, c in got.items() if not c.ok}
    self.assertEqual(failed, {})

  @parameterized.parameters(*_GENERATIONS)
  @pytest.mark.slow
  def test_never_more_than_by_hand(self, generation):
    got = tpu_compile.compile_all(
      "mosaic_sc_compile_test", f"rows_{_LANES[generation]}", generation
    )
    for name in _ROWS:
      with self.subTest(name):
        ours, hand = got[f"{name} ours"], got[f"{name} hand"]
        self.assertEqual((ours.error, hand.error), ("", ""))
        self.assertLessEqual(ours.bundles, hand.bundles)
        self.assertLessEqual(ours.cycles, hand.cycles)

  def test_the_hand_written_rows_mean_the_same(self):
    x = np.random.default_rng(0).integers(-99, 99, 256).astype(np.int32)
    v = np.array([5, -7, 60, 2, 9, -3, 80, 1], np.int32)
    for name, row in _ROWS.items():
      for i in (np.arange(8) * 7 + 3, np.array([9, 2, 9, 4, 5, 2, 2, 7])):
        with self.subTest(f"{name} {i}"):
          got = [
            mosaic_ir.evaluate(
              _row_kernel(access, 8)[0], x, i.astype(np.int32), v
            )
            for access in row
          ]
          for a, b in zip(*got, strict=True):
            np.testing.assert_array_equal(a, b)


if __name__ == "__main__":
  absltest.main()
