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
"""SparseCore kernels: executed from their Mosaic modules, and compiled."""

import warnings

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
import reference
import tpu_cells
from tpu_cells import Cell
from tpu_cells import Dynamic

# Lanes on v5p and v6e; kernels for tpu7x are made with twice as many.
_LANES = 8
PACKED = ("int8", "uint8", "int16", "bfloat16")
_INTS, _FLOATS, _WORDS = (
  np.dtype("int32"),
  np.dtype("float32"),
  np.dtype("uint32"),
)


def _mesh():
  return plsc.VectorSubcoreMesh(
    core_axis_name="c", subcore_axis_name="s", num_cores=1, num_subcores=1
  )


def sparsecore_cells(lanes):
  """name -> cell; every operation in every form of index, 32-bit."""
  repeats = np.array([3, 1, 3, 2, 3, 1, 0, 1] * (lanes // 8), np.int32)
  apart = (np.arange(lanes, dtype=np.int32) * 7) % 256
  forms = (
    (Dynamic(200),),
    (5,),
    (Dynamic(101, lanes),),
    (Dynamic(101, lanes, 2),),
    (reference.Window(3, lanes, 5),),
    (apart,),
    (repeats,),
    (Dynamic(256 - lanes // 2, lanes),),
  )
  wide = (
    (Dynamic(9), Dynamic(40)),
    (Dynamic(3, lanes), Dynamic(40)),
    (repeats, 7),
    (2, Dynamic(50, lanes)),
  )
  cells = []
  for dtype in (_INTS, _FLOATS, _WORDS):
    for op in cases.OPS:
      if not op.accepts(dtype):
        continue
      for shape, indices in (((256,), forms), ((32, 128), wide)):
        for index in indices:
          for masked in (False, True):
            cells.append(Cell(op, dtype, shape, index, masked))
  cells = [c for c in cells if c.masked or np.all(tpu_cells.inside(c))]
  dropped = [
    Cell(c.op, c.dtype, c.shape, c.index, c.masked, drop=True)
    for c in cells
    if c.op is cases.ADD
  ]
  return {c.name: c for c in (*cells, *dropped)}


def _padded(x, lanes):
  """What a DMA brings into VMEM: scalars travel as a whole vector."""
  x = np.asarray(x)
  return np.full(lanes, x.reshape(-1)[0], x.dtype) if x.size == 1 else x


def _inputs(cell, lanes, seed=0):
  arguments = tpu_cells.arguments_of(cell, seed)
  x, dynamic, *rest = arguments.inputs
  dynamic = np.resize(dynamic, lanes)
  return arguments, [x, dynamic, *(_padded(r, lanes) for r in rest)]


def _kernel(cell, lanes, layout_passes):
  scalar = cell.region_shape == ()
  has_result = cell.op.name != "store" and not cell.drop

  def f(x, dynamic, *rest):
    def body(*refs):
      n = 2 + len(rest)
      sources, (new, result), scratch = refs[:n], refs[n : n + 2], refs[n + 2 :]
      *buffers, out = scratch
      for source, buffer in zip(sources, buffers, strict=True):
        pltpu.sync_copy(source, buffer)
      ref, at, *others = buffers
      at = at[...]
      positions = [at[k] for k in range(len(cell.index))]
      if scalar:
        arrays = [o for o in others]
        others = [_Scalar(o) for o in arrays]
      got = tpu_cells.access(cell, ref, positions, others)
      if has_result:
        out[...] = jnp.full((lanes,), got) if scalar else got
      else:
        out[...] = jnp.full((lanes,), 0, cell.dtype)
      pltpu.sync_copy(ref, new)
      pltpu.sync_copy(out, result)

    inputs = (x, dynamic, *rest)
    return pl.kernel(
      body,
      out_type=[
        jax.ShapeDtypeStruct(x.shape, x.dtype),
        jax.ShapeDtypeStruct((lanes,), x.dtype),
      ],
      mesh=_mesh(),
      scratch_types=[
        *(pltpu.VMEM(a.shape, a.dtype) for a in inputs),
        pltpu.VMEM((lanes,), x.dtype),
      ],
      compiler_params=pltpu.CompilerParams(needs_layout_passes=layout_passes),
      name="k",
    )(*inputs)

  return f


_REMOTE_X = np.arange(64, dtype=np.int32) * 3


def remote_kernel(space, layout_passes, lanes=_LANES):
  def f(x):
    def body(x, o, buffer, shared):
      ref = o if space == "hbm" else shared
      pltpu.sync_copy(x, ref)
      pltpu.sync_copy(x.at[pl.ds(0, lanes)], buffer)
      v = buffer[...]
      a = jsx.swap(ref, v[2], v[3])
      jsx.store(ref, pl.ds(v[4], lanes), v)
      jsx.store(ref, 60, a, mask=v[1] > 100)
      b = jsx.load(ref, 99, mask=v[1] > 100, other=-7)
      jsx.store(ref, slice(40, 40 + lanes), v + a + b, mask=v > 6)
      if space != "hbm":
        pltpu.sync_copy(ref, o)

    return pl.kernel(
      body,
      out_type=jax.ShapeDtypeStruct((64,), jnp.int32),
      mesh=_mesh(),
      scratch_types=[
        pltpu.VMEM((lanes,), jnp.int32),
        pltpu.VMEM_SHARED((64,), jnp.int32),
      ],
      compiler_params=pltpu.CompilerParams(needs_layout_passes=layout_passes),
      name="k",
    )(x)

  return f


def packed_kernel(dtype, tiling, layout_passes, lanes=_LANES):
  """Exchanges two vectors of a Ref of 8- or 16-bit elements."""
  packing = 4 // np.dtype(dtype).itemsize
  if tiling:
    shape = (8 * packing, 128)
    there = pl.ds(packing, packing), pl.ds(0, lanes)
    here = pl.ds(0, packing), pl.ds(lanes, lanes)
  else:
    shape, size = (512,), lanes * packing
    there, here = pl.ds(packing, size), pl.ds(256, size)

  def f(x):
    def body(x, o, ref):
      pltpu.sync_copy(x, ref)
      old = jsx.swap(ref, there, jsx.load(ref, here))
      jsx.store(ref, here, old)
      pltpu.sync_copy(ref, o)

    return pl.kernel(
      body,
      out_type=jax.ShapeDtypeStruct(shape, dtype),
      mesh=_mesh(),
      scratch_types=[pltpu.VMEM(shape, dtype)],
      compiler_params=pltpu.CompilerParams(
        needs_layout_passes=layout_passes, use_tc_tiling_on_sc=tiling
      ),
      name="k",
    )(x)

  return f, [jax.ShapeDtypeStruct(shape, dtype)]


def smem_cells():
  """name -> cell; every operation on a scalar of SMEM."""
  cells = [
    Cell(op, dtype, (8,), (Dynamic(5),), masked, "smem")
    for dtype in (_INTS, _WORDS, _FLOATS)
    for op in cases.OPS
    if op.accepts(dtype)
    for masked in (False, True)[: 2 if dtype == _INTS else 1]
  ]
  return {c.name: c for c in cells}


def smem_vector_cells():
  """The same on eight elements of SMEM at once."""
  repeats = np.array([3, 1, 3, 2, 3, 7, 0, 1], np.int32)
  cells = [
    Cell(op, dtype, (8,), (index,), masked, "smem")
    for dtype in (_INTS, _WORDS, _FLOATS)
    for op in cases.OPS
    if op.accepts(dtype)
    for index, masked in (
      (Dynamic(0, 8), False),
      (Dynamic(3, 8), True),
      (repeats, False),
      (repeats, True),
    )[: 4 if dtype == _INTS else 1]
    if op in (cases.LOAD, cases.SWAP, cases.ADD, cases.CAS) or not masked
  ]
  return {c.name: c for c in cells}


def scalar_kernel(cell):
  """On the scalar subcore: (x, dynamic, *rest) -> (new x, result)."""
  has_result = cell.op.name != "store"

  def f(*inputs):
    def body(*refs):
      n = len(inputs)
      sources, (new, result), buffers = refs[:n], refs[n : n + 2], refs[n + 2 :]
      for source, buffer in zip(sources, buffers, strict=False):
        pltpu.sync_copy(source, buffer)
      ref, at, *rest = buffers
      out = rest.pop()
      got = tpu_cells.access(cell, ref, [at[0]], rest)
      out[0] = got if has_result else jnp.zeros((), cell.dtype)
      pltpu.sync_copy(ref, new)
      pltpu.sync_copy(out, result)

    return pl.kernel(
      body,
      out_type=[jax.ShapeDtypeStruct((8,), cell.dtype)] * 2,
      mesh=plsc.ScalarSubcoreMesh(axis_name="c", num_cores=1),
      scratch_types=[
        *(pltpu.SMEM(a.shape, a.dtype) for a in inputs),
        pltpu.SMEM((8,), cell.dtype),
      ],
      name="k",
    )(*inputs)

  return f


def scalar_kernels():
  warnings.simplefilter("ignore")
  out = {}
  for name, cell in smem_cells().items():
    _, inputs = _inputs(cell, 8)
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in inputs]
    out[name] = scalar_kernel(cell), shapes
  return out


def _remote_want():
  want, v = _REMOTE_X.copy(), _REMOTE_X[:_LANES]
  a, want[6] = want[6], 9
  want[12 : 12 + _LANES] = v
  want[40 : 40 + _LANES] = np.where(v > 6, v + a - 7, want[40 : 40 + _LANES])
  return want


class _Scalar:
  """A vector whose first lane is the scalar."""

  def __init__(self, ref):
    self.ref = ref

  def __getitem__(self, k):
    return self.ref[...][k]


def vector_smem_kernel(cell):
  """On the vector subcore: (x, dynamic, *rest) -> (new x, result)."""
  has_result = cell.op.name != "store"

  def f(*inputs):
    def body(*refs):
      n = len(inputs)
      sources, (new, result) = refs[:n], refs[n : n + 2]
      buffers, (words, out) = refs[n + 2 : -2], refs[-2:]
      for source, buffer in zip(sources, buffers, strict=True):
        pltpu.sync_copy(source, buffer)
      x, at, *others = (b[...] for b in buffers)
      dynamic = any(isinstance(i, Dynamic) for i in cell.index)
      for k in range(8):
        words[k] = x[k]
      got = tpu_cells.access(cell, words, [at[0]] if dynamic else [], others)
      vector = has_result and got.shape
      if not vector:
        got = jnp.full((8,), got if has_result else 0, cell.dtype)
      out[...] = got
      pltpu.sync_copy(out, result)
      lane = jnp.arange(8, dtype=jnp.int32)
      x = jnp.zeros((8,), cell.dtype)
      for k in range(8):
        x = jnp.where(lane == k, words[k], x)
      out[...] = x
      pltpu.sync_copy(out, new)

    return pl.kernel(
      body,
      out_type=[jax.ShapeDtypeStruct((8,), cell.dtype)] * 2,
      mesh=_mesh(),
      scratch_types=[
        *(pltpu.VMEM(a.shape, a.dtype) for a in inputs),
        pltpu.SMEM((8,), cell.dtype),
        pltpu.VMEM((8,), cell.dtype),
      ],
      compiler_params=pltpu.CompilerParams(needs_layout_passes=False),
      name="k",
    )(*inputs)

  return f


def kernels_8():
  return _kernels(8)


def kernels_16():
  return _kernels(16)


def _kernels(lanes):
  # Stock warns on every copy from VMEM to HBM.
  warnings.simplefilter("ignore")
  out = {}
  for k, (name, cell) in enumerate(sparsecore_cells(lanes).items()):
    if k % 5:
      continue
    _, inputs = _inputs(cell, lanes)
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in inputs]
    out[name] = _kernel(cell, lanes, bool(k % 2)), shapes
  if lanes == 8:
    for name, cell in [*smem_vector_cells().items()][::5]:
      _, inputs = _inputs(cell, lanes)
      shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in inputs]
      out[name] = vector_smem_kernel(cell), shapes
  x = jax.ShapeDtypeStruct((64,), jnp.int32)
  for space in ("hbm", "shared"):
    for passes in (False, True):
      out[f"{space}_{passes}"] = remote_kernel(space, passes, lanes), [x]
  for dtype in (jnp.bfloat16, jnp.int8):
    for tiling in (False, True):
      name = f"{np.dtype(dtype).name}_{'tiled' if tiling else 'linear'}"
      for passes in (False, True):
        out[f"{name}_{passes}"] = packed_kernel(dtype, tiling, passes, lanes)
  return out


class MosaicScTest(parameterized.TestCase):
  def setUp(self):
    super().setUp()
    # Stock warns on every copy from VMEM to HBM.
    caught = warnings.catch_warnings()
    caught.__enter__()
    self.addCleanup(caught.__exit__, None, None, None)
    warnings.simplefilter("ignore")

  @parameterized.product(
    dtype=("int32", "float32", "uint32"), layout_passes=(False, True)
  )
  @pytest.mark.slow
  def test_emitted_module_equals_the_reference(self, dtype, layout_passes):
    for k, cell in enumerate(sparsecore_cells(_LANES).values()):
      # Two thirds of them for each choice of passes, all of them for one.
      if cell.dtype != np.dtype(dtype) or k % 3 == layout_passes:
        continue
      with self.subTest(cell.name):
        arguments, inputs = _inputs(cell, _LANES, seed=k)
        new, result = mosaic_ir.evaluate(
          _kernel(cell, _LANES, layout_passes), *inputs
        )
        if cell.region_shape == ():
          result = result[:1]
        tpu_cells.check(cell, arguments, (new, result))

  @parameterized.parameters(
    ("v5p", "kernels_8"), ("v6e", "kernels_8"), ("tpu7x", "kernels_16")
  )
  @pytest.mark.slow
  def test_compiles(self, generation, factory):
    got = tpu_compile.compile_all("mosaic_sc_test", factory, generation)
    self.assertGreater(len(got), 50)
    failed = {k: c.error[:500] for k, c in got.items() if not c.ok}
    self.assertEqual(failed, {})

  def _run(self, body, x, scratch, **params):
    f = lambda x: pl.kernel(
      body,
      out_type=jax.ShapeDtypeStruct((8,), x.dtype),
      mesh=_mesh(),
      scratch_types=scratch,
      compiler_params=pltpu.CompilerParams(**params),
    )(x)
    return mosaic_ir.evaluate(f, x)

  @parameterized.named_parameters((k, c) for k, c in smem_cells().items())
  def test_scalar_subcore(self, cell):
    arguments, inputs = _inputs(cell, 8)
    new, result = mosaic_ir.evaluate(scalar_kernel(cell), *inputs)
    tpu_cells.check(cell, arguments, (new, result[:1]))

  @parameterized.named_parameters(
    (k, c) for k, c in (smem_cells() | smem_vector_cells()).items()
  )
  def test_smem_of_the_vector_subcore(self, cell):
    arguments, inputs = _inputs(cell, 8)
    new, result = mosaic_ir.evaluate(vector_smem_kernel(cell), *inputs)
    if not cell.region_shape:
      result = result[:1]
    tpu_cells.check(cell, arguments, (new, result))

  @parameterized.parameters("v5p", "v6e", "tpu7x")
  @pytest.mark.slow
  def test_scalar_subcore_compiles(self, generation):
    got = tpu_compile.compile_all(
      "mosaic_sc_test", "scalar_kernels", generation
    )
    self.assertLen(got, len(smem_cells()))
    failed = {k: c.error[:500] for k, c in got.items() if not c.ok}
    self.assertEqual(failed, {})

  @parameterized.parameters(False, True)
  def test_smem_scalars(self, layout_passes):
    def body(x, o, buffer, counters):
      pltpu.sync_copy(x, buffer)
      v = buffer[...]
      for k in range(8):
        counters[k] = v[k]
      i = v[0]
      a = jsx.atomic_add(counters, i, 5)
      jsx.store(counters, i + 1, 77, mask=a > 100)
      jsx.store(counters, i + 2, 78, mask=a < 100)
      b = jsx.load(counters, 99, mask=a > 100, other=-3)
      c = jsx.atomic_cas(counters, 7, v[7], a)
      jsx.atomic_max(counters, 6, 50)
      out = [a, b, c, *(counters[k] for k in (3, 4, 5, 6, 7))]
      lane = jnp.arange(8, dtype=jnp.int32)
      result = jnp.zeros((8,), jnp.int32)
      for k, s in enumerate(out):
        result = jnp.where(lane == k, s, result)
      buffer[...] = result
      pltpu.sync_copy(buffer, o)

    x = np.array([3, 11, 12, 13, 14, 15, 16, 17], np.int32)
    got = self._run(
      body,
      x,
      [pltpu.VMEM((8,), jnp.int32), pltpu.SMEM((8,), jnp.int32)],
      needs_layout_passes=layout_passes,
    )
    np.testing.assert_array_equal(got, [13, -3, 17, 18, 14, 78, 50, 13])

  @parameterized.product(space=("hbm", "shared"), layout_passes=(False, True))
  def test_remote_memory(self, space, layout_passes):
    got = mosaic_ir.evaluate(remote_kernel(space, layout_passes), _REMOTE_X)
    np.testing.assert_array_equal(got, _remote_want())

  def test_any_length_with_layout_passes(self):
    def body(x, o, buffer):
      pltpu.sync_copy(x, buffer)
      v = jsx.load(buffer, pl.ds(3, 24, 2))
      jsx.store(buffer, pl.ds(1, 24), v, mask=v > 0)
      jsx.atomic_add(buffer, pl.ds(2, 24), v, mask=v < 0)
      pltpu.sync_copy(buffer.at[pl.ds(0, 8)], o)

    x = tpu_cells.values(np.int32, (64,), 3) % 100
    want = x.copy()
    v = x[3:51:2].copy()
    want[1:25] = np.where(v > 0, v, want[1:25])
    want[2:26] += np.where(v < 0, v, 0)
    got = self._run(
      body, x, [pltpu.VMEM((64,), jnp.int32)], needs_layout_passes=True
    )
    np.testing.assert_array_equal(got, want[:8])

  @parameterized.named_parameters(
    ("length", jnp.int32, 24, "without layout passes a vector has 8"),
    ("packed", jnp.int16, 8, "take 32-bit elements"),
  )
  def test_refuses(self, dtype, n, why):
    def body(x, o, buffer):
      value = jnp.full((8,), 1, dtype) if n == 8 else None
      if value is None:
        jsx.load(buffer, pl.ds(0, n, 2))
      else:
        jsx.store(buffer, pl.ds(0, n), value, mask=value > 0)

    with self.assertRaisesRegex(NotImplementedError, why):
      self._run(
        body,
        np.zeros(64, np.int32),
        [pltpu.VMEM((64,), dtype)],
        needs_layout_passes=False,
      )

  @parameterized.product(
    dtype=PACKED,
    layout_passes=(False, True),
    tiling=(None, True, False),
  )
  def test_packed_vectors(self, dtype, layout_passes, tiling):
    dtype = np.dtype(dtype)
    packing = 4 // dtype.itemsize
    size = packing * _LANES

    def lower(shape, index, access):
      def body(x, o, ref):
        access(ref, index())

      return mosaic_ir.mosaic_modules(
        lambda x: pl.kernel(
          body,
          out_type=jax.ShapeDtypeStruct((8,), jnp.int32),
          mesh=_mesh(),
          scratch_types=[pltpu.VMEM(shape, dtype)],
          compiler_params=pltpu.CompilerParams(
            needs_layout_passes=layout_passes, use_tc_tiling_on_sc=tiling
          ),
        )(x),
        jax.ShapeDtypeStruct((8,), jnp.int32),
      )

    def multiple(k):
      return pl.multiple_of(jax.lax.axis_index("s") * k, k)

    # Shape, index, and with which tiling it is whole words.
    regions = (
      ((size,), lambda: slice(None), (False,)),
      ((512,), lambda: pl.ds(packing, size), (False,)),
      ((512,), lambda: pl.ds(multiple(packing), size), (False,)),
      ((512,), lambda: pl.ds(1, size), ()),
      ((512,), lambda: pl.ds(jax.lax.axis_index("s"), size), ()),
      ((512,), lambda: pl.ds(0, size // 2), ()),
      ((512,), lambda: 3, ()),
      ((32, 128), lambda: (3, pl.ds(size, size)), (False,)),
      ((32, 33), lambda: (3, pl.ds(0, size)), ()),
      (
        (32, 128),
        lambda: (pl.ds(packing, packing), pl.ds(_LANES, _LANES)),
        (None, True),
      ),
      ((32, 128), lambda: (pl.ds(1, packing), pl.ds(0, _LANES)), ()),
    )

    def copy(get, put):
      return lambda ref, at: put(ref, at, get(ref, at)) is None

    def put(op):
      return lambda ref, at: op(ref, at, dtype.type(0)) is None

    for shape, index, fits in regions:
      with self.subTest(f"{shape} {fits}"):
        ours = copy(jsx.load, jsx.store)
        if tiling in fits:
          stock = copy(jax.ref.get, lambda r, i, v: r.__setitem__(i, v))
          self.assertEqual(
            lower(shape, index, ours), lower(shape, index, stock)
          )
          continue
        for access in (ours, put(jsx.store), put(jsx.swap)):
          with self.assertRaisesRegex(
            NotImplementedError, "(load|store|swap): wanted .* of VMEM"
          ):
            lower(shape, index, access)

  @parameterized.product(
    dtype=("bfloat16", "int8"), tiling=(False, True), passes=(False, True)
  )
  def test_packed_vectors_move(self, dtype, tiling, passes):
    f, [x] = packed_kernel(np.dtype(dtype), tiling, passes)
    x = cases.values(np.int8, x.shape).astype(x.dtype)
    got, want = mosaic_ir.evaluate(f, x), x.copy()
    packing = 4 // x.dtype.itemsize
    if tiling:
      here = np.s_[:packing, _LANES : 2 * _LANES]
      there = np.s_[packing : 2 * packing, :_LANES]
    else:
      size = packing * _LANES
      here, there = np.s_[256 : 256 + size], np.s_[packing : packing + size]
    want[here], want[there] = x[there], x[here]
    np.testing.assert_array_equal(
      got.astype(np.float32), want.astype(np.float32)
    )

  @parameterized.named_parameters(
    ("long", (64,), pl.ds(0, 24), "a vector has 8. Set needs_layout"),
    ("whole", (64,), slice(None), "a vector has 8. Set needs_layout"),
    ("rows", (8, 128), pl.ds(0, 2), "its vectors have one dimension"),
  )
  def test_refuses_what_stock_does_without_masks(self, shape, index, why):
    def body(x, o, buffer):
      jsx.load(buffer, index)

    with self.assertRaisesRegex(NotImplementedError, f"^load: wanted.*{why}"):
      self._run(
        body,
        np.zeros(64, np.int32),
        [pltpu.VMEM(shape, jnp.int32)],
        needs_layout_passes=False,
      )

  def test_refuses_atomics_in_shared_memory(self):
    def body(x, o, shared):
      jsx.atomic_add(shared, 3, 1)

    with self.assertRaisesRegex(NotImplementedError, "not atomic"):
      self._run(
        body,
        np.zeros(64, np.int32),
        [pltpu.VMEM_SHARED((64,), jnp.int32)],
        needs_layout_passes=True,
      )

  @parameterized.parameters(False, True)
  def test_what_stock_lowers_has_the_same_module(self, layout_passes):
    def kernel(get, swap):
      def f(x):
        def body(x, o, buffer, counters):
          pltpu.sync_copy(x, buffer)
          v = get(buffer, pl.ds(8, 8))
          old = swap(buffer, pl.ds(16, 8), v)
          counters[0] = jnp.int32(3)
          s = get(counters, 0)
          buffer[pl.ds(0, 8)] = old + swap(counters, 1, s)
          pltpu.sync_copy(buffer.at[pl.ds(0, 8)], o)

        return pl.kernel(
          body,
          out_type=jax.ShapeDtypeStruct((8,), jnp.int32),
          mesh=_mesh(),
          scratch_types=[
            pltpu.VMEM((64,), jnp.int32),
            pltpu.SMEM((8,), jnp.int32),
          ],
          compiler_params=pltpu.CompilerParams(
            needs_layout_passes=layout_passes
          ),
        )(x)

      return mosaic_ir.mosaic_modules(f, jax.ShapeDtypeStruct((64,), jnp.int32))

    self.assertEqual(
      kernel(jsx.load, jsx.swap), kernel(jax.ref.get, jax.ref.swap)
    )


if __name__ == "__main__":
  absltest.main()
