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
"""Stock errors of TPU kernels, each beside the same kernel that works.

Every row is a kernel in stock syntax, the words with which stock JAX or libtpu
refuses it, the kernel in ours, and what it computes. Ours is executed from its
module and compiled for every generation.
"""

import dataclasses
from typing import Any

from absl.testing import absltest
from absl.testing import parameterized
import cases
import jax
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

_VMEM, _SMEM, _HBM, _ANY = pltpu.VMEM, pltpu.SMEM, pltpu.HBM, pl.ANY


@dataclasses.dataclass(frozen=True)
class Row:
  """One TensorCore kernel: bodies take (i, x, o), i = [5, 130] in SMEM."""

  error: str
  stock: Any
  ours: Any
  want: Any
  x: tuple = ((64, 256), np.float32)
  o: tuple | None = None
  spaces: tuple = (_VMEM, _VMEM)
  by_libtpu: bool = False

  @property
  def out(self):
    shape, dtype = self.o or self.x
    return jax.ShapeDtypeStruct(shape, dtype)

  def kernel(self, body):
    smem = pl.BlockSpec(memory_space=_SMEM)
    source, target = (pl.BlockSpec(memory_space=m) for m in self.spaces)
    return pl.pallas_call(
      body,
      out_shape=self.out,
      in_specs=[smem, source],
      out_specs=target,
      name="k",
    )

  def arguments(self):
    shape, dtype = self.x
    x = cases.values(np.int8, shape).astype(dtype)
    return np.array([5, 130], np.int32), x


def _copied(body):
  def with_copy(i, x, o):
    o[...] = x[...]
    body(i, x, o)

  return with_copy


def _changed(x, at, value):
  x = x.copy()
  x[at] = value
  return x


def _scalar_out(i, x, o, load):
  o[0] = load(x, i).astype(o.dtype)


_BF16 = np.dtype(jnp.bfloat16)

_ROWS = {
  "store_scalar": Row(
    "Cannot store scalars to VMEM",
    _copied(lambda i, x, o: o.__setitem__((i[0], i[1]), 2.0)),
    _copied(lambda i, x, o: jsx.store(o, (i[0], i[1]), 2.0)),
    lambda x: _changed(x, (5, 130), 2),
  ),
  "swap_scalar": Row(
    # Stock checks the shape of the value first; the message that names
    # the swap is behind it, where no kernel gets.
    "Cannot (swap|store) scalars to VMEM",
    lambda i, x, o: o.__setitem__(
      (slice(0, 1),), jnp.full((1, 256), jax.ref.swap(x, (3, 4), 2.0))
    ),
    lambda i, x, o: o.__setitem__(
      ..., jnp.full((64, 256), jsx.swap(x, (3, 4), 2.0))
    ),
    lambda x: np.full((64, 256), x[3, 4]),
  ),
  "store_vector_to_smem": Row(
    "Can only store scalars to SMEM",
    lambda i, x, o: o.__setitem__(..., x[3, 0:8]),
    lambda i, x, o: jsx.store(o, ..., x[3, 0:8]),
    lambda x: x[3, :8],
    o=((8,), np.float32),
    spaces=(_VMEM, _SMEM),
  ),
  "load_vector_from_smem": Row(
    "Can only load scalars from SMEM",
    lambda i, x, o: o.__setitem__(..., x[...]),
    lambda i, x, o: o.__setitem__(..., jsx.load(x)),
    lambda x: x,
    x=((8,), np.int32),
    spaces=(_SMEM, _VMEM),
  ),
  "masked_store_to_smem": Row(
    "SMEM store does not support masks",
    lambda i, x, o: pltpu.store(o.at[0], x[1], mask=i[0] > 3),
    lambda i, x, o: (
      (
        o.__setitem__(0, x[0]),
        o.__setitem__(1, x[0]),
        jsx.store(o, 0, x[1], mask=i[0] > 3),
        jsx.store(o, 1, x[1], mask=i[0] < 3),
      )
      and None
    ),
    lambda x: np.array([x[1], x[0]]),
    x=((8,), np.int32),
    o=((2,), np.int32),
    spaces=(_SMEM, _SMEM),
  ),
  "masked_store_of_halves": Row(
    "masked swap with non-32-bit data",
    lambda i, x, o: pltpu.store(o, x[...], mask=x[...] > 0),
    lambda i, x, o: (
      (
        o.__setitem__(..., jnp.zeros((64, 256), o.dtype)),
        jsx.store(o, ..., x[...], mask=x[...] > 0),
      )
      and None
    ),
    lambda x: np.where(x > 0, x, 0).astype(x.dtype),
    x=((64, 256), _BF16),
  ),
  "masked_strided_store": Row(
    "masked swap with strided store",
    lambda i, x, o: pltpu.store(o.at[pl.ds(0, 8, 2)], x[0:8], mask=x[0:8] > 0),
    _copied(
      lambda i, x, o: jsx.store(o, pl.ds(0, 8, 2), x[8:16], mask=x[0:8] > 0)
    ),
    lambda x: _changed(
      x, slice(0, 16, 2), np.where(x[:8] > 0, x[8:16], x[0:16:2])
    ),
    x=((32, 128), np.float32),
  ),
  "masked_load": Row(
    "^$",
    lambda i, x, o: o.__setitem__(..., pltpu.load(x, mask=x[...] > 0)),
    lambda i, x, o: o.__setitem__(..., jsx.load(x, mask=x[...] > 0)),
    lambda x: np.where(x > 0, x, 0),
  ),
  "addupdate": Row(
    "Unimplemented primitive in Pallas TPU lowering for tc: addupdate",
    _copied(lambda i, x, o: jax.ref.addupdate(o, ..., x[...])),
    _copied(lambda i, x, o: jsx.atomic_add(o, ..., x[...]) is None),
    lambda x: x + x,
  ),
  "load_from_hbm": Row(
    "Loads are only allowed on VMEM and SMEM references",
    lambda i, x, o: o.__setitem__(..., x[...]),
    lambda i, x, o: o.__setitem__(..., jsx.load(x)),
    lambda x: x,
    spaces=(_HBM, _VMEM),
  ),
  "store_to_any": Row(
    "Loads and stores are only allowed on VMEM and SMEM references",
    lambda i, x, o: o.__setitem__(..., x[...]),
    lambda i, x, o: jsx.store(o, ..., x[...]),
    lambda x: x,
    spaces=(_VMEM, _ANY),
  ),
  "integer_arrays": Row(
    "Cannot do int indexing on TPU",
    lambda i, x, o: o.__setitem__(
      ..., x[jax.lax.broadcasted_iota(jnp.int32, (8,), 0)]
    ),
    lambda i, x, o: o.__setitem__(
      ..., jsx.load(x, (7 - jnp.arange(8, dtype=jnp.int32)) * 3)
    ),
    lambda x: x[np.arange(7, -1, -1) * 3],
    o=((8, 256), np.float32),
  ),
  "scalars_of_halves": Row(
    "Only arrays with 32-bit element types can be converted to scalars",
    lambda i, x, o: _scalar_out(i, x, o, lambda x, i: jnp.squeeze(x[3:4, 5:6])),
    lambda i, x, o: _scalar_out(i, x, o, lambda x, i: jsx.load(x, (3, 5))),
    lambda x: x[3, 5:6].astype(np.float32),
    x=((64, 256), _BF16),
    o=((1,), np.float32),
    spaces=(_VMEM, _SMEM),
  ),
  "scalar_load_of_halves": Row(
    "Only 32-bit scalar vector.extracts supported",
    lambda i, x, o: _scalar_out(i, x, o, lambda x, i: x[3, 5]),
    lambda i, x, o: _scalar_out(
      i, x, o, lambda x, i: jsx.load(x, (i[0], i[1]))
    ),
    lambda x: x[5, 130:131].astype(np.float32),
    x=((64, 256), _BF16),
    o=((1,), np.float32),
    spaces=(_VMEM, _SMEM),
    by_libtpu=True,
  ),
  "unproven_alignment": Row(
    "E2003",
    lambda i, x, o: o.__setitem__(..., x[:, pl.ds(i[0], 128)]),
    lambda i, x, o: o.__setitem__(
      ..., jsx.load(x, (slice(None), pl.ds(i[0], 128)))
    ),
    lambda x: x[:, 5:133],
    o=((64, 128), np.float32),
    by_libtpu=True,
  ),
}


# ## SparseCore: bodies take VMEM, SMEM and the output's buffer; those of
# `_REMOTE` also the output in HBM and shared VMEM.


def _sparse(body, remote=False):
  def f(x):
    mesh = sparse_cells.vector_mesh()

    def whole(x, o, table, scalars, out, shared):
      pltpu.sync_copy(x, table)
      v = table[0, pl.ds(0, 8)]
      for k in range(4):
        scalars[k] = v[k]
      out[...] = v
      body(table, scalars, out, *((o, shared) if remote else ()))
      pltpu.sync_copy(out, o)

    return pl.kernel(
      whole,
      out_type=jax.ShapeDtypeStruct((8,), jnp.int32),
      mesh=mesh,
      scratch_types=[
        pltpu.VMEM((32, 128), jnp.int32),
        pltpu.SMEM((8,), jnp.int32),
        pltpu.VMEM((8,), jnp.int32),
        pltpu.VMEM_SHARED((8,), jnp.int32),
      ],
      compiler_params=pltpu.CompilerParams(needs_layout_passes=True),
      name="k",
    )(x)

  return f


def _splat(out, s):
  out[...] = jnp.full((8,), s)


_LANE = pl.ds(0, 8)
_SPARSE = {
  "addupdate": (
    "Pallas TPU lowering for sc_vector_subcore: addupdate",
    lambda t, s, o: jax.ref.addupdate(o, _LANE, t[1, _LANE]),
    lambda t, s, o: jsx.atomic_add(o, _LANE, t[1, _LANE]) is None,
    lambda x: x[0, :8] + x[1, :8],
  ),
  "masked_store": (
    "Pallas TPU lowering for sc_vector_subcore: masked_swap",
    lambda t, s, o: pltpu.store(o.at[_LANE], t[1, _LANE], mask=t[1, _LANE] > 0),
    lambda t, s, o: jsx.store(o, _LANE, t[1, _LANE], mask=t[1, _LANE] > 0),
    lambda x: np.where(x[1, :8] > 0, x[1, :8], x[0, :8]),
  ),
  "masked_scalar_store": (
    "Swap does not support masked scalar stores",
    lambda t, s, o: plsc.store_compressed(s.at[0], s[1], mask=s[2] > 0),
    lambda t, s, o: (
      (
        jsx.store(s, 0, s[1], mask=s[2] == s[2]),
        _splat(o, s[0]),
      )
      and None
    ),
    lambda x: np.full(8, x[0, 1]),
  ),
  "scalar_add": (
    "Swap does not support atomic scalar adds",
    lambda t, s, o: plsc.addupdate(s.at[0], s[1]),
    lambda t, s, o: (jsx.atomic_add(s, 0, s[1]), _splat(o, s[0])) and None,
    lambda x: np.full(8, x[0, 0] + x[0, 1]),
  ),
  "scalar_swap_in_vmem": (
    "Swap only supports scalars in SMEM",
    lambda t, s, o: _splat(o, jax.ref.swap(t, (3, 5), s[1])),
    lambda t, s, o: _splat(o, jsx.swap(t, (3, 5), s[1]) + jsx.load(t, (3, 5))),
    lambda x: np.full(8, x[3, 5] + x[0, 1]),
  ),
  "scalar_load_from_vmem": (
    "Get only supports loading scalars from SMEM",
    lambda t, s, o: _splat(o, t[3, 5]),
    lambda t, s, o: _splat(o, jsx.load(t, (3, 5))),
    lambda x: np.full(8, x[3, 5]),
  ),
  "array_swap_in_smem": (
    "Swap only supports scalars in SMEM",
    lambda t, s, o: jax.ref.swap(s, _LANE, t[1, _LANE]) is None,
    lambda t, s, o: (
      (jsx.store(s, _LANE, t[1, _LANE]), jsx.store(o, _LANE, jsx.load(s)))
      and None
    ),
    lambda x: x[1, :8],
  ),
  "strides": (
    "Swap only supports slices with stride 1",
    lambda t, s, o: o.__setitem__(
      ..., jax.ref.swap(t, (3, pl.ds(0, 8, 2)), o[...])
    ),
    lambda t, s, o: o.__setitem__(
      ..., jsx.swap(t, (3, pl.ds(0, 8, 2)), o[...])
    ),
    lambda x: x[3, 0:16:2],
  ),
  "integer_after_slice": (
    "Integer indexing of refs that follows a non-trivial slice",
    lambda t, s, o: o.__setitem__(..., t[pl.ds(0, 8), 3]),
    lambda t, s, o: o.__setitem__(..., jsx.load(t, (pl.ds(0, 8), 3))),
    lambda x: x[:8, 3],
  ),
}


def _copied_to(ref, t):
  pltpu.sync_copy(t.at[1, _LANE], ref)


_REMOTE = {
  "store_to_hbm": (
    "Swap does not support storing to .*HBM",
    lambda t, s, o, hbm, shared: hbm.__setitem__(_LANE, t[1, _LANE]),
    lambda t, s, o, hbm, shared: (
      (
        jsx.store(hbm, _LANE, t[1, _LANE]),
        o.__setitem__(..., jsx.load(hbm, _LANE)),
      )
      and None
    ),
    lambda x: x[1, :8],
  ),
  "gather_from_shared_memory": (
    "Gather only supports loading from VMEM",
    lambda t, s, o, hbm, shared: _copied_to(shared, t) or o.__setitem__(
      ..., plsc.load_gather(shared, [t[2, _LANE] & 7])
    ),
    lambda t, s, o, hbm, shared: _copied_to(shared, t) or o.__setitem__(
      ..., jsx.load(shared, t[2, _LANE] & 7)
    ),
    lambda x: x[1, x[2, :8] & 7],
  ),
  "gather_from_hbm": (
    "Gather only supports loading from VMEM",
    lambda t, s, o, hbm, shared: _copied_to(hbm, t) or o.__setitem__(
      ..., plsc.load_gather(hbm, [t[2, _LANE] & 7])
    ),
    lambda t, s, o, hbm, shared: _copied_to(hbm, t) or o.__setitem__(
      ..., jsx.load(hbm, t[2, _LANE] & 7)
    ),
    lambda x: x[1, x[2, :8] & 7],
  ),
  "store_to_shared_memory": (
    "Swap does not support storing to .*VMEM_SHARED",
    lambda t, s, o, hbm, shared: shared.__setitem__(_LANE, t[1, _LANE]),
    lambda t, s, o, hbm, shared: (
      (
        jsx.store(shared, _LANE, t[1, _LANE]),
        o.__setitem__(..., jsx.load(shared, _LANE)),
      )
      and None
    ),
    lambda x: x[1, :8],
  ),
}


def ours():
  sparse_cells.ignore_push_warnings()
  out = {}
  for name, row in _ROWS.items():
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in row.arguments()]
    out[name] = row.kernel(row.ours), shapes
  return out


def ours_sparse():
  sparse_cells.ignore_push_warnings()
  x = jax.ShapeDtypeStruct((32, 128), jnp.int32)
  return {
    name: (_sparse(ours, name in _REMOTE), [x])
    for name, (_, _, ours, _) in (_SPARSE | _REMOTE).items()
  }


def stock_for_libtpu():
  return {
    name: (
      row.kernel(row.stock),
      [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in row.arguments()],
    )
    for name, row in _ROWS.items()
    if row.by_libtpu
  }


class TpuStockErrorsTest(sparse_cells.TestCase):
  @parameterized.parameters(
    *(name for name, row in _ROWS.items() if not row.by_libtpu)
  )
  def test_stock_refuses(self, name):
    row = _ROWS[name]
    with self.assertRaisesRegex((ValueError, NotImplementedError), row.error):
      mosaic_ir.lower(row.kernel(row.stock), *row.arguments())

  @pytest.mark.slow
  def test_libtpu_refuses_stock(self):
    got = tpu_compile.compile_all(
      "tpu_stock_errors_test", "stock_for_libtpu", "v6e"
    )
    for name, compiled in got.items():
      self.assertIn(_ROWS[name].error, compiled.error)

  @parameterized.parameters(*_ROWS)
  def test_ours_computes(self, name):
    row = _ROWS[name]
    i, x = row.arguments()
    got = mosaic_ir.evaluate(row.kernel(row.ours), i, x)
    np.testing.assert_array_equal(
      got.astype(np.float32), np.asarray(row.want(x)).astype(np.float32)
    )

  @parameterized.parameters(*_SPARSE, *_REMOTE)
  def test_sparsecore(self, name):
    error, stock, ours, want = (_SPARSE | _REMOTE)[name]
    remote = name in _REMOTE
    x = cases.values(np.int8, (32, 128)).astype(np.int32)
    with self.assertRaisesRegex((ValueError, NotImplementedError), error):
      mosaic_ir.lower(_sparse(stock, remote), x)
    got = mosaic_ir.evaluate(_sparse(ours, remote), x)
    np.testing.assert_array_equal(got, want(x))

  @parameterized.parameters(*tpu_compile.GENERATIONS)
  @pytest.mark.slow
  def test_ours_compiles(self, generation):
    factories = ["ours"]
    if generation in tpu_compile.SPARSE_GENERATIONS:
      factories.append("ours_sparse")
    for factory in factories:
      got = tpu_compile.compile_all(
        "tpu_stock_errors_test", factory, generation
      )
      failed = {k: c.error[:500] for k, c in got.items() if not c.ok}
      self.assertEqual(failed, {})


if __name__ == "__main__":
  absltest.main()
