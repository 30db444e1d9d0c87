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
"""The PTX interpreter against independent witnesses, and against mistakes."""

from __future__ import annotations

import importlib.util
import unittest

from absl.testing import absltest
from absl.testing import parameterized
import ml_dtypes
import numpy as np
from oracles import gpu_compile
from oracles import ptx
import stock_gpu_corpus as corpus
import triton_corpus

_SEMANTICS = ("Lane", "Warpgroup")
_SEEDS = (None, 0, 1, 2)


def _arguments(specs):
  rng = np.random.default_rng(3)
  made = []
  for spec in specs:
    if spec.dtype == np.int32:
      made.append(rng.integers(-100, 100, spec.shape, np.int32))
    else:
      made.append(rng.standard_normal(spec.shape).astype(spec.dtype))
  return made


_STOCK = {
    "vector_add": lambda x, y: x + y,
    "grid_scale": lambda x: x * np.float32(3) + np.float32(1),
    "through_smem": lambda x: x + 1,
    "reduce_sum": lambda x: np.full(128, x.sum()),
    "exponential": lambda x: np.exp(x) / (1 + np.abs(x)),
    "to_bfloat16": lambda x: (x * 2).astype(ml_dtypes.bfloat16),
    "integers": None,  # JAX defines the division of negative numbers.
    "bulk_copies": lambda x: x + 1,
    "two_warpgroups": lambda x: x * 2,
    "warp_scalars": None,
}


def _same(actual, expected):
  np.testing.assert_allclose(
      np.asarray(actual, np.float64), np.asarray(expected, np.float64),
      rtol=2e-6, atol=1e-6)


@unittest.skipUnless(gpu_compile.available(),
                     "JAX's CUDA plugin, which holds the compiler, is missing")
class StockMosaicGpuTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.compiler = gpu_compile.compiler()

  @parameterized.product(name=list(_STOCK), semantics=_SEMANTICS)
  def test_equals_numpy_and_gpu_interpreter(self, name, semantics):
    from jax.experimental.pallas import mosaic_gpu as plgpu
    builder = getattr(corpus, name)
    kernel = self.compiler.compile(builder, semantics)
    function, specs = builder(semantics, interpret=plgpu.InterpretGPUParams())
    arguments = _arguments(specs)
    if name == "warp_scalars":
      arguments[1] = np.random.default_rng(1).permutation(16).astype(np.int32)
    expected = np.asarray(function(*arguments))
    if _STOCK[name] is not None:
      _same(_STOCK[name](*arguments), expected)
    for seed in _SEEDS:
      [out], report = kernel.run(*arguments, seed=seed)
      _same(out, expected)
      self.assertEmpty(report.races)

  @parameterized.product(swizzle=(32, 64, 128), semantics=_SEMANTICS)
  def test_swizzled_copies(self, swizzle, semantics):
    kernel = self.compiler.compile(
        corpus.bulk_copies, semantics, swizzle=swizzle, rows=64, columns=64)
    [x] = _arguments(corpus.bulk_copies("Lane")[1])
    [out], report = kernel.run(x, seed=5)
    np.testing.assert_array_equal(out, x + 1)
    self.assertEmpty(report.races)

  @parameterized.product(
      cell=(("bfloat16", 128, 64, (False, False)),
            ("float16", 64, 128, (False, True)),
            ("float16", 32, 32, (True, False)),
            ("bfloat16", 64, 64, (True, True)),
            ("float32", 128, 32, (False, True))),
      semantics=_SEMANTICS)
  def test_matrix_product(self, cell, semantics):
    dtype, swizzle, k, transposed = cell
    kernel = self.compiler.compile(
        corpus.matrix_product, semantics, dtype=dtype, swizzle=swizzle, k=k,
        transposed=transposed)
    rng = np.random.default_rng(0)
    a, b = rng.integers(-4, 5, (64, k)), rng.integers(-4, 5, (k, 64))
    given = [np.ascontiguousarray(x.T if t else x).astype(
        getattr(ml_dtypes, dtype, dtype))
             for x, t in zip((a, b), transposed, strict=True)]
    for seed in _SEEDS:
      [out], report = kernel.run(*given, seed=seed)
      np.testing.assert_array_equal(out, a @ b)
      self.assertEmpty(report.races)

  @parameterized.parameters(*_SEMANTICS)
  def test_matrix_product_of_what_no_fence_made_visible(self, semantics):
    kernel = self.compiler.compile(
        corpus.matrix_product, semantics, fenced=False)
    x = np.ones((64, 64), ml_dtypes.bfloat16)
    for seed in _SEEDS:
      _, report = kernel.run(x, x, seed=seed)
      self.assertTrue(any("wgmma" in r.text for r in report.races))

  @parameterized.parameters(*_SEMANTICS)
  def test_atomic_add(self, semantics):
    kernel = self.compiler.compile(corpus.atomic_add, semantics)
    x, y = _arguments(corpus.atomic_add(semantics)[1])
    [out], report = kernel.run(x, y)
    np.testing.assert_array_equal(out, x + y)
    self.assertEmpty(report.races)

  def test_finds_that_stock_atomic_max_is_unsigned(self):
    x = np.full(256, -5, np.int32)
    y = np.full(256, 3, np.int32)
    right, wrong = (
        self.compiler.compile(corpus.atomic_max, s).run(x, y)[0][0]
        for s in _SEMANTICS)
    np.testing.assert_array_equal(right, y)
    np.testing.assert_array_equal(wrong, x)

  @parameterized.product(
      name=("planted_store_race", "planted_load_race", "planted_copy_race"),
      semantics=_SEMANTICS, seed=(None, 0, 1))
  def test_planted_race_is_reported(self, name, semantics, seed):
    builder = getattr(corpus, name)
    kernel = self.compiler.compile(builder, semantics)
    _, report = kernel.run(*_arguments(builder(semantics)[1]), seed=seed)
    self.assertNotEmpty(report.races)

  @parameterized.parameters(*_SEMANTICS)
  def test_out_of_bounds_is_reported(self, semantics):
    kernel = self.compiler.compile(corpus.out_of_bounds, semantics)
    kernel.run(np.array([128], np.int32))
    with self.assertRaisesRegex(ptx.PtxError, "out of bounds: global"):
      kernel.run(np.array([129], np.int32))

  def test_blackwell_text(self):
    kernel = gpu_compile.compiler("b200").compile(corpus.vector_add, "Lane")
    self.assertIn(".target sm_100a", kernel.ptx)
    x, y = _arguments(corpus.vector_add("Lane")[1])
    [out], _ = kernel.run(x, y)
    np.testing.assert_array_equal(out, x + y)


@unittest.skipUnless(importlib.util.find_spec("triton"), "Triton is missing")
class TritonTest(parameterized.TestCase):

  @parameterized.parameters(*triton_corpus.inputs())
  def test_equals_tritons_interpreter(self, name):
    text, shared = triton_corpus.compiled()[name]
    arguments = triton_corpus.inputs()[name]
    expected = triton_corpus.interpreted()[name]
    for seed in _SEEDS:
      # Two more pointers, to scratch memory that none of these uses.
      out, report = ptx.run(text, [*arguments, None, None], grid=(1,),
                            dynamic_shared=shared, seed=seed)
      self.assertEmpty(report.races)
      if seed is not None and name.split("_")[0] in (
          "add", "min", "max", "and", "or", "xor"):
        out, expected = out[:1], expected[:1]  # Old values are of one order.
      for actual, wanted in zip(out, expected, strict=True):
        _same(actual, wanted)


_HEADER = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry kernel(.param .u64 p, .param .u64 q)
.maxntid {threads}, 1, 1
{{
  .reg .pred %p<9>;
  .reg .b32 %r<9>;
  .reg .b64 %rd<9>;
  .reg .f32 %f<9>;
  .shared .align 16 .b8 buffer[1024];
  ld.param.u64 %rd1, [p];
  ld.param.u64 %rd2, [q];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd3, %r1, 4;
  add.u64 %rd4, %rd1, %rd3;
  mov.u32 %r2, buffer;
  shl.b32 %r3, %r1, 2;
  add.u32 %r4, %r2, %r3;
  {body}
  ret;
}}
"""


def _run(body, data, threads=64, second=None, grid=(1,), **kwargs):
  text = _HEADER.format(threads=threads, body=body)
  second = np.zeros(4, np.int32) if second is None else second
  return ptx.run(text, [data, second], grid=grid, **kwargs)


class HandWrittenTest(parameterized.TestCase):

  def test_spin_lock(self):
    body = """
    LOCK: atom.acquire.gpu.global.cas.b32 %r5, [%rd2], 0, 1;
    setp.ne.u32 %p1, %r5, 0;
    @%p1 bra LOCK;
    ld.global.u32 %r6, [%rd1];
    add.u32 %r6, %r6, 1;
    st.global.u32 [%rd1], %r6;
    atom.release.gpu.global.exch.b32 %r7, [%rd2], 0;
    """
    for seed in (None, 0, 1, 2):
      [count, _], report = _run(body, np.zeros(1, np.int32), grid=(2,),
                                threads=16, seed=seed)
      self.assertEqual(count[0], 32)
      self.assertEmpty(report.races)

  def test_spin_lock_without_release_is_a_race(self):
    body = """
    LOCK: atom.relaxed.gpu.global.cas.b32 %r5, [%rd2], 0, 1;
    setp.ne.u32 %p1, %r5, 0;
    @%p1 bra LOCK;
    ld.global.u32 %r6, [%rd1];
    add.u32 %r6, %r6, 1;
    st.global.u32 [%rd1], %r6;
    atom.relaxed.gpu.global.exch.b32 %r7, [%rd2], 0;
    """
    _, report = _run(body, np.zeros(1, np.int32), threads=16, seed=0)
    self.assertNotEmpty(report.races)

  def test_fences_order_relaxed_atomics(self):
    body = """
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra READER;
    st.shared.u32 [%r2+8], 42;
    {fence}
    atom.relaxed.cta.shared.exch.b32 %r5, [%r2], 1;
    bra END;
    READER: setp.ne.u32 %p2, %r1, 32;
    @%p2 bra END;
    SPIN: atom.relaxed.cta.shared.or.b32 %r5, [%r2], 0;
    setp.ne.u32 %p3, %r5, 1;
    @%p3 bra SPIN;
    {fence}
    ld.shared.u32 %r6, [%r2+8];
    st.global.u32 [%rd1], %r6;
    END:
    """
    start = "st.shared.u32 [%r4], 0; bar.sync 0;"
    for fence, race in (("fence.acq_rel.cta;", False), ("", True)):
      [out, _], report = _run(start + body.format(fence=fence),
                              np.zeros(1, np.int32), seed=1)
      self.assertEqual(bool(report.races), race)
      self.assertEqual(out[0], 42)

  def test_atomics_of_too_narrow_scope_race_between_ctas(self):
    for scope, race in (("gpu", False), ("cta", True)):
      body = f"red.relaxed.{scope}.global.add.u32 [%rd1], 1;"
      [out, _], report = _run(body, np.zeros(1, np.int32), grid=(2,), seed=0)
      self.assertEqual(out[0], 128)
      self.assertEqual(bool(report.races), race)

  def test_barrier_ends_a_race(self):
    body = """
    st.shared.u32 [%r4], %r1;
    {barrier}
    xor.b32 %r5, %r3, {partner};
    add.u32 %r5, %r5, %r2;
    ld.shared.u32 %r6, [%r5];
    st.global.u32 [%rd4], %r6;
    """
    data = np.zeros(64, np.int32)
    for barrier, partner, race in (
        ("bar.sync 0;", 128, False), ("bar.sync 1, 64;", 128, False),
        ("", 128, True), ("bar.warp.sync -1;", 4, False),
        ("bar.warp.sync -1;", 128, True), ("", 4, True)):
      _, report = _run(body.format(barrier=barrier, partner=partner), data)
      self.assertEqual(bool(report.races), race, barrier)

  def test_replicas_may_store_one_value(self):
    for value, race in (("7", False), ("%r1", True)):
      _, report = _run(f"st.shared.u32 [%r2], {value};", np.zeros(1, np.int32))
      self.assertEqual(bool(report.races), race)

  @parameterized.parameters(
      ("ld.global.u32 %r5, [%rd1+1];", "misaligned"),
      ("ld.global.v2.u32 {%r5, %r6}, [%rd1+4];", "misaligned"),
      ("ld.shared.u32 %r5, [%r2+4096];", "out of bounds: shared"),
      ("st.global.u32 [%rd1+256], %r1;", "out of bounds: global"),
      ("ld.global.u32 %r5, [0];", "out of bounds: global"),
      ("setp.eq.u32 %p1, %r1, 3; @%p1 bar.sync 1, 64;", "deadlock"),
      ("LOOP: bra LOOP;", "still running"),
      ("tcgen05.wait::ld.sync.aligned;", "unsupported instruction: tcgen05"),
      ("mbarrier.arrive.shared.b64 _, [%r2];", "no mbarrier"),
  )
  def test_mistake_is_named(self, body, message):
    with self.assertRaisesRegex(ptx.PtxError, message):
      _run(body, np.zeros(64, np.int32), max_steps=2000)

  @parameterized.parameters(
      ("mov.b32 %r5, 0f3FC00000; cvt.rni.s32.f32 %r6, %r5;", 2),
      ("mov.b32 %r5, 0fFFC00000; cvt.rzi.s32.f32 %r6, %r5;", 0),
      ("mov.b32 %r5, 0f4F800000; cvt.rzi.s32.f32 %r6, %r5;", 2**31 - 1),
      ("mov.b32 %r5, 0xF0; bfe.s32 %r6, %r5, 4, 4;", -1),
      ("mov.b32 %r5, 0xABCD; bfi.b32 %r6, %r5, 0, 8, 8;", 0xCD00),
      ("mov.b32 %r5, 1; shl.b32 %r6, %r5, 32;", 0),
      ("mov.b32 %r5, -8; shr.s32 %r6, %r5, 40;", -1),
      ("mov.b32 %r5, -7; div.s32 %r6, %r5, 2;", -3),
      ("mov.b32 %r5, -7; rem.s32 %r6, %r5, 4;", -3),
      ("mov.b32 %r5, -1; mul.hi.u32 %r6, %r5, 3;", 2),
      ("mov.b32 %r5, 0x11223344; prmt.b32 %r6, %r5, 0, 0x0123;", 0x44332211),
      ("mov.b32 %r5, 0x0F; lop3.b32 %r6, %r5, 6, 3, 0x80;", 2),
      ("mov.b32 %r5, 5; clz.b32 %r6, %r5;", 29),
      ("mov.b32 %r5, 7; mad.lo.s32 %r6, %r5, %r5, -1;", 48),
      ("mov.b32 %r5, 1; shf.l.wrap.b32 %r6, 0x80000000, %r5, 1;", 3),
      # (1 + 2**-12)**2 - (1 + 2**-11) is 2**-24 when rounded once.
      ("fma.rn.f32 %f1, 0f3F800800, 0f3F800800, 0fBF801000;"
       " mov.b32 %r6, %f1;", 0x33800000),
      ("max.f32 %f1, 0f80000000, 0f00000000; mov.b32 %r6, %f1;", 0),
  )
  def test_instruction(self, body, expected):
    [out, _], _ = _run(body + " st.global.u32 [%rd4], %r6;",
                       np.zeros(64, np.int32))
    np.testing.assert_array_equal(
        out, np.full(64, expected, np.int64).astype(np.int32))


if __name__ == "__main__":
  absltest.main()
