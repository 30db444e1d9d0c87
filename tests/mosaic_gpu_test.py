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
"""Every operation in every kind of Mosaic GPU code, run as emitted."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import math
import re
import unittest

from absl.testing import absltest
from absl.testing import parameterized
import hypothesis as hp
from hypothesis import strategies as st
import jax
import ml_dtypes
import mosaic_gpu_data as data_lib
import mosaic_gpu_kernels as kernels
from mosaic_gpu_kernels import Case
import numpy as np
from oracles import gpu_compile
import reference
from reference import Window
import stock_gpu_corpus
import strategies

_SEMANTICS = ("Lane", "Warpgroup")
_PLACES = tuple(
    dict(semantics=s, warp=w, space=m)
    for s in _SEMANTICS for w in (True, False) for m in ("smem", "gmem"))

_ALL = tuple(range(len(_PLACES)))
_IN_SMEM, _IN_GMEM = _ALL[::2], _ALL[1::2]

_needs_compiler = unittest.skipUnless(
    gpu_compile.available(),
    "JAX's CUDA plugin, which holds the compiler, is missing")


class _AccessTestCase(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.compiler = gpu_compile.compiler()

  def check(self, case: Case, seeds=(None, 0)):
    """Compiles and runs a case; its old and new values are the reference's."""
    kernel = self.compiler.compile(kernels.access, case)
    data = data_lib.make_data(case, seed=0)
    old, new = data_lib.expected(case, data)
    for seed in seeds:
      outs, report = kernel.run(*data.arguments(case), seed=seed)
      self.assertEmpty(report.races)
      if case.returns:
        np.testing.assert_array_equal(outs[0].reshape(old.shape), old)
      np.testing.assert_array_equal(outs[-1], new)

  def check_any_order(self, case: Case, seeds=(None, 0, 1)):
    """The same, where indices repeat: some order explains what is seen."""
    kernel = self.compiler.compile(kernels.access, case)
    data = data_lib.make_data(case, seed=0)
    for seed in seeds:
      (old, new), report = kernel.run(*data.arguments(case), seed=seed)
      self.assertEmpty(report.races)
      old = old.reshape(case.region)
      self.assertTrue(data_lib.explained(case, data, old, new))


_FORMS = {
    "whole": dict(shape=(128,)),
    "element": dict(shape=(128,), index=5),
    "dynamic_element": dict(shape=(4, 8), index=(2, 5), dynamic=True),
    "misaligned": dict(shape=(64,), index=Window(3, 32), dynamic=True),
    "strided": dict(shape=(128,), index=slice(0, 128, 4)),
    "dynamic_strided": dict(shape=(128,), index=Window(5, 20, 3), dynamic=True),
    "odd": dict(shape=(33,)),
    "small": dict(shape=(3,)),
    "single": dict(shape=(1, 1)),
    "row": dict(shape=(8, 64), index=2, dynamic=True),
    "block": dict(shape=(8, 64), index=(Window(1, 4), Window(3, 33)),
                  dynamic=True),
    "rank_3": dict(shape=(4, 8, 16),
                   index=(slice(None), 3, slice(None, None, 2))),
    "array": dict(shape=(64,), index=np.array([3, 60, 2, 9, 11, 0, 63, 31])),
    "rows": dict(shape=(8, 64), index=np.array([7, 1, 3, 0])),
    "columns": dict(shape=(8, 64),
                    index=(slice(None), np.array([7, 1, 3, 60]))),
    "odd_columns": dict(shape=(5, 64),
                        index=(slice(None), np.arange(0, 63, 9))),
    "two_arrays": dict(shape=(4, 8, 16), index=(
        np.array([1, 0, 2]), slice(2, 6), np.array([1, 5, 9]))),
    "scalar_and_array": dict(shape=(4, 256),
                             index=(3, np.arange(256)[::-1].copy())),
    "past_the_end": dict(shape=(100,), index=Window(90, 32), mask=True,
                         dynamic=True),
}


@_needs_compiler
class PlainAccessTest(_AccessTestCase):

  @parameterized.product(form=list(_FORMS), place=_IN_SMEM)
  def test_masked_load(self, form, place):
    self.check(Case("load", other=True, **{
        **_FORMS[form], **_PLACES[place], "mask": True}))

  @parameterized.product(form=list(_FORMS), place=_ALL)
  def test_swap(self, form, place):
    self.check(Case("swap", **_FORMS[form], **_PLACES[place]))

  @parameterized.product(form=list(_FORMS), place=_IN_GMEM)
  def test_masked_store(self, form, place):
    self.check(Case("store", **{
        **_FORMS[form], **_PLACES[place], "mask": True}))

  @parameterized.product(
      dtype=("bool", "int8", "uint8", "int16", "uint16", "uint32", "float16",
             "bfloat16", "float8_e4m3fn", "float8_e5m2"),
      place=_IN_SMEM)
  def test_dtypes(self, dtype, place):
    self.check(Case("swap", dtype=dtype, shape=(256,), **_PLACES[place]))
    self.check(Case("load", dtype=dtype, shape=(8,), mask=True,
                    **_PLACES[place]))
    self.check(Case("store", dtype=dtype, shape=(8,), index=3,
                    **_PLACES[place]))

  @parameterized.product(
      cell=(("bfloat16", (512,), None), ("int8", (8, 128), None),
            ("bfloat16", (16, 128), np.array([7, 1, 3, 0]))),
      semantics=_SEMANTICS)
  def test_mask_laid_out_otherwise(self, cell, semantics):
    # A loaded mask is laid out as 32-bit numbers, these values are not.
    dtype, shape, index = cell
    for op in ("load", "store"):
      self.check(Case(op, dtype=dtype, shape=shape, index=index, mask=True,
                      semantics=semantics, warp=False))

  @parameterized.product(semantics=_SEMANTICS, warp=(True, False))
  def test_gathers_of_whole_warpgroups(self, semantics, warp):
    place = dict(semantics=semantics, warp=warp)
    self.check(Case("swap", shape=(8, 64), mask=True,
                    index=(slice(None), np.arange(1, 64, 4)), **place))
    self.check(Case("atomic_add", shape=(8, 64), mask=True, dtype="int32",
                    index=np.array([7, 1, 3, 0]), **place))

  @parameterized.product(place=_ALL)
  def test_without_automatic_barriers(self, place):
    # The swaps bring the barrier that they need; the copies in and out of
    # memory do not, so each thread has to come back to its own elements.
    self.check(Case("store", shape=(128,), barriers=False, **_PLACES[place]))


@_needs_compiler
class RandomTest(_AccessTestCase):

  @parameterized.parameters(*_ALL)
  # Every step of shrinking would take a compilation.
  @hp.settings(strategies.examples(6), phases=[hp.Phase.generate])
  @hp.given(data=st.data())
  def test_equals_reference(self, place, data):
    place = _PLACES[place]
    op = data.draw(st.sampled_from(
        ("load", "store", "swap", "atomic_add", "atomic_xchg")))
    access = data.draw(strategies.accesses(
        shape=strategies.shapes(min_rank=1, max_rank=4, min_size=1)))
    dynamic = any(access.index.traced)
    parts = [_mirrored(p, dynamic) for p in access.index.parts]
    if not place["warp"]:
      # There, stock lowers hardly any broadcast or reshape of arrays.
      parts = _broadcast(p for p in parts if p is not None)
    case = Case(
        op, dtype="int32", shape=access.shape, index=tuple(parts),
        dynamic=dynamic, mask=access.mask is not None, **place)
    at = reference.positions(case.shape, case.index)
    hp.assume(at.size)
    if len(np.unique(at)) == at.size:
      self.check(case, seeds=(1,))
    elif op.startswith("atomic"):
      self.check_any_order(case, seeds=(1,))
    elif op == "load":
      self.check(case, seeds=(1,))


def _mirrored(part, dynamic):
  """A part of an index, not negative where it is known at run time only."""
  if not isinstance(part, (int, np.integer, np.ndarray)):
    return part
  if np.ndim(part) == 0:
    part = int(part)
    return -1 - part if dynamic and part < 0 else part
  part = part.astype(np.int32)
  return np.where(part < 0, -1 - part, part)


def _broadcast(parts):
  """The parts of an index with its arrays in their common shape."""
  parts = list(parts)
  where = [i for i, p in enumerate(parts) if isinstance(p, np.ndarray)]
  arrays = np.broadcast_arrays(*(parts[i] for i in where)) if where else ()
  for i, array in zip(where, arrays, strict=True):
    parts[i] = np.ascontiguousarray(array)
  return parts


_ATOMICS = {
    "atomic_add": ("int32", "uint32", "float32", "int16", "uint8", "float16",
                   "bfloat16"),
    "atomic_xchg": ("int32", "float32", "bool", "bfloat16", "int8",
                    "float8_e5m2"),
    "atomic_max": ("int32", "uint32", "float32", "int16", "uint8", "float16",
                   "bfloat16", "bool"),
    "atomic_min": ("int32", "uint32", "float32", "int8"),
    "atomic_and": ("int32", "bool", "uint8"),
    "atomic_or": ("int32", "bool"),
    "atomic_xor": ("uint32", "int16"),
    "atomic_cas": ("int32", "float32", "bool", "bfloat16", "int8"),
}


@_needs_compiler
class AtomicTest(_AccessTestCase):

  @parameterized.product(
      cell=[(op, d) for op, ds in _ATOMICS.items() for d in ds],
      place=(0, 6))
  def test_dtypes(self, cell, place):
    op, dtype = cell
    self.check(Case(op, dtype=dtype, shape=(128,), mask=True,
                    **_PLACES[place]), seeds=(0,))

  @parameterized.product(
      op=("atomic_add", "atomic_xchg", "atomic_cas"),
      form=("whole", "element", "odd", "single"), place=_ALL)
  def test_forms(self, op, form, place):
    self.check(Case(op, dtype="int32", **_FORMS[form], **_PLACES[place]),
               seeds=(0,))

  @parameterized.product(
      form=("misaligned", "dynamic_strided", "rows", "two_arrays",
            "past_the_end"), place=_ALL)
  def test_index_forms(self, form, place):
    self.check(Case("atomic_add", dtype="int32", **_FORMS[form],
                    **_PLACES[place]), seeds=(0,))

  @parameterized.product(
      op=("atomic_add", "atomic_xchg", "atomic_cas", "atomic_max"), place=_ALL)
  def test_repeated_indices(self, op, place):
    index = np.random.default_rng(5).integers(0, 6, 32)
    self.check_any_order(Case(
        op, dtype="int32", shape=(6,), index=index, mask=place % 2 == 0,
        **_PLACES[place]))

  @parameterized.product(
      cell=(("atomic_xchg", "int32", (6,), (32,)),
            ("atomic_cas", "int32", (3,), (33,)),
            ("atomic_add", "float32", (5,), (128,)),
            ("atomic_xchg", "int32", (4, 3), (7,)),
            ("atomic_xchg", "int16", (2, 64), (4,))), place=_ALL)
  def test_row_major_order(self, cell, place):
    op, dtype, shape, n = cell
    index = np.random.default_rng(place).integers(0, shape[0], n)
    self.check(Case(
        op, dtype=dtype, shape=shape, index=index, mask=place % 2 == 0,
        kwargs=(("order", "index"),), **_PLACES[place]), seeds=(None, 1))

  @parameterized.parameters(*_SEMANTICS)
  def test_old_values_of_odd_sizes(self, semantics):
    kernel = self.compiler.compile(kernels.odd_old_values, semantics)
    # The greatest is the last, which several lanes hold.
    x = np.arange(-60, -60 + 4 * 33, dtype=np.int32).reshape(4, 33) - 80
    for seed in (None, 1):
      (most, total), report = kernel.run(x, seed=seed)
      self.assertEmpty(report.races)
      np.testing.assert_array_equal(most, x.max(axis=1))
      np.testing.assert_array_equal(total, (2 * x + 1).sum(axis=1))

  @parameterized.product(place=(0, 2, 4, 6))
  def test_nan_propagates(self, place):
    case = Case("atomic_max", shape=(32,), **_PLACES[place])
    kernel = self.compiler.compile(kernels.access, case)
    x = np.zeros(32, np.float32)
    value = np.ones(32, np.float32)
    x[::2], value[::3] = np.nan, np.nan
    (old, new), _ = kernel.run(x, value)
    np.testing.assert_array_equal(old, x)
    np.testing.assert_array_equal(new, np.maximum(x, value))

  @parameterized.product(
      pair=(("relaxed", "block"), ("acquire", "cluster"), ("release", "device"),
            ("acq_rel", "system"), ("acquire", "block")), place=(0, 3, 4, 7))
  def test_sem_and_scope(self, pair, place):
    sem, scope = pair
    case = Case("atomic_add", dtype="int32", shape=(8,), index=2,
                kwargs=(("sem", sem), ("scope", scope)), **_PLACES[place])
    kernel = self.compiler.compile(kernels.access, case)
    [opcode] = kernel.counts("atom")
    self.assertIn(f".{sem}.", opcode)
    name = {"block": "cta", "device": "gpu", "system": "sys"}.get(scope, scope)
    self.assertIn(f".{name}.", opcode)
    self.check(case)

  @parameterized.product(place=(0, 2, 4, 6))
  def test_order_that_cannot_be_seen(self, place):
    self.check(Case("atomic_add", dtype="int32", shape=(32,),
                    kwargs=(("order", "index"),), **_PLACES[place]))


@_needs_compiler
class WideTest(_AccessTestCase):
  """64-bit elements, which need a process with jax_enable_x64."""

  def setUp(self):
    super().setUp()
    self.compiler = _wide_compiler()

  @parameterized.product(
      cell=(("swap", "int64", (128,), None), ("load", "float64", (33,), None),
            ("atomic_add", "float64", (128,), None),
            ("atomic_max", "int64", (33,), None),
            ("atomic_max", "float64", (32,), None),
            ("atomic_cas", "uint64", (8,), 3),
            ("load", "float64", (8, 64), np.array([7, 1, 3, 0]))),
      place=(0, 3, 4, 7))
  def test_access(self, cell, place):
    op, dtype, shape, index = cell
    self.check(Case(op, dtype=dtype, shape=shape, index=index, mask=True,
                    **_PLACES[place]))


def _per_warp(function, x, y):
  """What JAX makes of each warp's arrays, on the CPU."""
  with jax.default_device(jax.devices("cpu")[0]):
    return np.stack([np.asarray(function(x[w], y[w])) for w in range(4)])


@_needs_compiler
class WarpMathTest(_AccessTestCase):

  @parameterized.product(name=list(kernels.WARP_MATH), semantics=_SEMANTICS)
  def test_equals_jax(self, name, semantics):
    kernel = self.compiler.compile(kernels.warp_math, name, semantics)
    rng = np.random.default_rng(1)
    x, y = rng.standard_normal((2, 4, 4, 64)).astype(np.float32)
    expected = _per_warp(kernels.WARP_MATH[name], x, y)
    for seed in (None, 1):
      [out], report = kernel.run(x, y, seed=seed)
      self.assertEmpty(report.races)
      np.testing.assert_allclose(out, expected, rtol=3e-5, atol=3e-5)


@_needs_compiler
class LayoutTest(_AccessTestCase):

  @parameterized.product(semantics=_SEMANTICS, atomic=(False, True))
  def test_accumulator_under_a_mask(self, semantics, atomic):
    kernel = self.compiler.compile(
        kernels.accumulator, semantics, atomic=atomic)
    x = np.arange(64 * 64, dtype=np.float32).reshape(64, 64) * np.float32(0.5)
    [out], report = kernel.run(
        np.array([0.5], np.float32), np.array([37], np.int32), seed=1)
    self.assertEmpty(report.races)
    expected = np.full((64, 64), -1, np.float32)
    expected[:37] = x[:37] - 1 if atomic else x[:37]
    np.testing.assert_allclose(out, expected, rtol=1e-6)
    # Nothing is relaid out: that would go through shared memory.
    self.assertEmpty([c for c in kernel.counts("st", "ld") if "shared" in c])

  @parameterized.product(
      how=(("Lane", True), ("Warpgroup", True), ("Warpgroup", False)),
      warp=(True, False), atomic=(True, False))
  def test_matrix_product(self, how, warp, atomic):
    semantics, declared = how
    kernel = self.compiler.compile(
        kernels.product, semantics, atomic=atomic, declared=declared, warp=warp)
    rng = np.random.default_rng(0)
    a, b = rng.integers(-4, 5, (2, 64, 64)).astype(ml_dtypes.bfloat16)
    row = rng.integers(-4, 5, 64).astype(ml_dtypes.bfloat16)
    [out], report = kernel.run(a, b, row, np.array([37], np.int32), seed=1)
    self.assertEmpty(report.races)
    a[3] = row
    x = a.astype(np.float32) @ b.astype(np.float32)
    expected = np.full((64, 64), -1, np.float32)
    expected[:37] = x[:37] - 1 if atomic else x[:37]
    np.testing.assert_array_equal(out, expected)

  @parameterized.product(
      cell=(("store", "float32", 128, True), ("swap", "float32", 128, False),
            ("swap", "bfloat16", 64, True), ("store", "int8", 32, True),
            ("atomic_add", "int32", 128, True)),
      warp=(True, False), semantics=_SEMANTICS)
  def test_swizzled_row(self, cell, warp, semantics):
    op, dtype, swizzle, masked = cell
    kernel = self.compiler.compile(
        kernels.swizzled, semantics, warp, op, dtype, swizzle, masked)
    dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    rng = np.random.default_rng(0)
    x = rng.integers(-50, 50, (16, 128)).astype(dtype)
    value = rng.integers(-50, 50, 128).astype(dtype)
    mask = rng.integers(0, 2, 128) == 1
    (out, old), report = kernel.run(
        x, value, mask, np.array([11], np.int32), seed=1)
    self.assertEmpty(report.races)
    on = mask | (not masked)
    expected = x.copy()
    new = x[11] + value if op == "atomic_add" else value
    expected[11] = np.where(on, new, x[11])
    np.testing.assert_array_equal(out, expected)
    if op != "store":
      np.testing.assert_array_equal(old, np.where(on, x[11], 0).astype(dtype))

  @parameterized.product(warp=(True, False), semantics=_SEMANTICS)
  def test_swizzled_block(self, warp, semantics):
    kernel = self.compiler.compile(kernels.swizzled_block, semantics, warp)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((16, 64)).astype(np.float32)
    mask = rng.integers(0, 2, (8, 32)) == 1
    [out], report = kernel.run(x, mask, seed=1)
    self.assertEmpty(report.races)
    x[8:, 32:] *= np.where(mask, 2, 1)
    np.testing.assert_array_equal(out, x)

  @parameterized.product(
      warp=(True, False), op=("load", "store", "swap", "atomic_add"))
  def test_inferred_tiling(self, warp, op):
    kernel = self.compiler.compile(kernels.inferred_tiling, warp, op)
    rng = np.random.default_rng(0)
    x = rng.integers(-50, 50, 64).astype(np.float32)
    mask = rng.integers(0, 2, 64) == 1
    (out, old, rows), report = kernel.run(x, mask, seed=1)
    self.assertEmpty(report.races)
    expected = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    row = expected[17].copy()
    if op != "store":
      np.testing.assert_array_equal(old, np.where(mask, row, 0))
    if op != "load":
      new = row + x if op == "atomic_add" else x
      expected[17] = np.where(mask, new, row)
    expected[1::2, 5] = -1
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(rows, np.tile(expected[17], (32, 1)))
    # Stock's own accesses would have no bank conflicts otherwise.
    self.assertIn("xor", kernel.ptx)

  @parameterized.product(
      op=("load", "store", "swap", "atomic_add", "atomic_cas"),
      warp=(True, False), semantics=_SEMANTICS)
  def test_memory_of_another_block(self, op, warp, semantics):
    kernel = self.compiler.compile(kernels.cluster, semantics, warp, op)
    self.assertIn("mapa.shared::cluster", kernel.ptx)
    for opcode in kernel.counts("atom"):
      self.assertIn(".cluster.", opcode)
    rng = np.random.default_rng(0)
    x = rng.integers(-50, 50, (2, 128)).astype(np.float32)
    value = rng.integers(-50, 50, 64).astype(np.float32)
    mask = rng.integers(0, 2, 64) == 1
    before = x[:, 2:66].copy()
    after, old = x.copy(), before.copy()
    match op:
      case "load":
        old[:, ~mask] = 0
      case "atomic_add":
        old[:, ~mask] = 0
        after[:, 2:66] = before + np.where(mask, value, 0)
      case _:
        after[:, 2:66] = value
    after[:, 1] = x[:, 0] + 1
    for seed in (None, 1, 2):
      (out, seen), report = kernel.run(x, value, mask, seed=seed)
      self.assertEmpty(report.races)
      np.testing.assert_array_equal(out, after)
      if op != "store":
        np.testing.assert_array_equal(seen, old[::-1])

  @parameterized.product(
      op=("load", "store", "atomic_add"), warp=(True, False),
      semantics=_SEMANTICS)
  def test_memory_of_another_device_compiles(self, op, warp, semantics):
    # Only the address is another one: what is done there is tested elsewhere.
    kernel = _two_devices().compile(kernels.peer_device, semantics, op, warp)
    n = 4 if warp else 1
    if op == "atomic_add":
      counts = kernel.counts("atom")
      self.assertEqual(counts, {"atom.relaxed.sys.global.add.f32": n})
    else:
      root = {"load": "ld", "store": "st"}[op]
      counts = kernel.counts(root)
      # In jax 0.11.2 the address space of such a pointer gets lost.
      self.assertIn(
          n, (counts.get(f"{root}.global.b32"), counts.get(f"{root}.b32")))

  @parameterized.product(warp=(True, False), semantics=_SEMANTICS)
  def test_views(self, warp, semantics):
    kernel = self.compiler.compile(kernels.views, semantics, warp)
    x = np.arange(8 * 32, dtype=np.float32).reshape(8, 32)
    (turned, strided), report = kernel.run(x, seed=1)
    self.assertEmpty(report.races)
    np.testing.assert_array_equal(turned, x[2:6].T)
    np.testing.assert_array_equal(strided, x.ravel()[5:5 + 32 * 7:7])


@_needs_compiler
class ProgramTest(_AccessTestCase):
  """Whole programs of several threads, each under 20 schedules."""

  def runs(self, name, semantics, *arguments, **kwargs):
    builder = getattr(kernels, name)
    kernel = self.compiler.compile(builder, semantics, **kwargs)
    for seed in (None, *range(19)):
      yield kernel.run(*arguments, seed=seed)

  @parameterized.parameters(*_SEMANTICS)
  def test_spin_lock(self, semantics):
    rounds = np.array([3], np.int32)
    for (count, lock), report in self.runs("spin_lock", semantics, rounds):
      self.assertEmpty(report.races)
      np.testing.assert_array_equal(count, np.full(32, 12))
      self.assertEqual(lock[0], 0)

  @parameterized.parameters(*_SEMANTICS)
  def test_producer_and_consumer(self, semantics):
    x = np.random.default_rng(0).standard_normal(
        (kernels.RING_STEPS, 64)).astype(np.float32)
    for [out], report in self.runs("ring", semantics, x):
      self.assertEmpty(report.races)
      np.testing.assert_array_equal(out, (x + 1) * 2)

  @parameterized.parameters(*_SEMANTICS)
  def test_histogram(self, semantics):
    x = np.random.default_rng(0).integers(0, 16, (4, 64)).astype(np.int32)
    counts = np.bincount(x.ravel(), minlength=16)
    for (bins, rank), report in self.runs("histogram", semantics, x):
      self.assertEmpty(report.races)
      np.testing.assert_array_equal(bins, counts)
      for b, n in enumerate(counts):
        self.assertSequenceEqual(sorted(rank[x == b]), range(n))

  @parameterized.parameters(*_SEMANTICS)
  def test_grid_wide_tickets(self, semantics):
    first = np.array([5], np.int32)
    for (drawn, counter), report in self.runs("tickets", semantics, first):
      self.assertEmpty(report.races)
      self.assertSequenceEqual(sorted(drawn), range(5, 13))
      self.assertEqual(counter[0], 13)

  @parameterized.parameters(*_SEMANTICS)
  def test_planted_race_is_reported(self, semantics):
    for _, report in self.runs("planted_race", semantics,
                               np.zeros(32, np.int32)):
      self.assertNotEmpty(report.races)

  @parameterized.product(semantics=_SEMANTICS, commit=(True, False))
  def test_commit_smem(self, semantics, commit):
    x = np.arange(128, dtype=np.float32)
    for [out], report in self.runs(
        "bulk_store_from_warp", semantics, x, commit=commit):
      self.assertEqual(bool(report.races), not commit)
      if commit:
        np.testing.assert_array_equal(out, 2 * x)

  @parameterized.product(semantics=_SEMANTICS, barrier=(True, False))
  def test_warp_barrier(self, semantics, barrier):
    x = np.arange(128, dtype=np.float32)
    for [out], report in self.runs(
        "lanes_through_smem", semantics, x, barrier=barrier):
      self.assertEqual(bool(report.races), not barrier)
      if barrier:
        np.testing.assert_array_equal(out, x[::-1])


# The copy of an array from GMEM to SMEM and back, in one warp, by way of
# registers: what each of its four accesses may take in either lowering, and the
# registers of a thread. By hand each takes one instruction per element.
_COPY_TABLE = (
    # shape, dtype, Lane, Warpgroup, registers of each
    ((128,), "float32", {"v4.b32": 1}, {"v4.b32": 1}, (18, 18)),
    ((32,), "float32", {"b32": 1}, {"b32": 1}, (14, 14)),
    ((256,), "float32", {"v4.b32": 2}, {"v4.b32": 2}, (26, 26)),
    # One v4 would do, if float32 arrays had that layout too, at the price of
    # bank conflicts: a layout belongs to a shape, not to a dtype.
    ((4, 64), "bfloat16", {"v2.b32": 2}, {"v2.b32": 2}, (16, 16)),
    ((128,), "int8", {"b32": 1}, {"b32": 1}, (10, 10)),
    ((33,), "float32", {"b32": 2},
     {"v4.b32": 8, "v2.b32": 1, "b32": 3}, (16, 38)),
    ((1,), "float32", {"b32": 1}, {"b32": 1}, (10, 10)),
)


# How often a lane of a warp executes what, for an element of one atomic of each
# kind; cas that are more than one are loops.
_BITS = {"and.b32": 1, "or.b32": 1, "xor.b32": 1}
_ATOMIC_TABLE = {
    "int32": {"exch.b32": 1, "cas.b32": 1, "add.u32": 1, "max.s32": 1,
              "min.s32": 1, **_BITS},
    "uint32": {"exch.b32": 1, "cas.b32": 1, "add.u32": 1, "max.u32": 1,
               "min.u32": 1, **_BITS},
    "float32": {"exch.b32": 1, "cas.b32": 3, "add.f32": 1},
    "float16": {"cas.b32": 4, "add.noftz.f16": 1},
    "bfloat16": {"cas.b32": 4, "add.noftz.bf16": 1},
    "uint8": {"cas.b32": 5, **_BITS},
    "int64": {"exch.b64": 1, "cas.b64": 1, "add.u64": 1, "max.s64": 1,
              "min.s64": 1, "and.b64": 1, "or.b64": 1, "xor.b64": 1},
    "float64": {"exch.b64": 1, "cas.b64": 3, "add.f64": 1},
}


@_needs_compiler
class PtxTest(_AccessTestCase):

  @parameterized.product(row=_COPY_TABLE, which=(0, 1))
  def test_warp_copy(self, row, which):
    shape, dtype, *allowed, registers = row
    kernel = self.compiler.compile(
        kernels.warp_copy, _SEMANTICS[which], shape, dtype)
    by_hand = self.compiler.compile(kernels.copy_by_hand, shape, dtype)
    counts = kernel.counts("ld", "st")
    for opcode, count in counts.items():
      _, _, width = opcode.split(".", 2)
      self.assertLessEqual(count, allowed[which].get(width, 0), opcode)
    self.assertLessEqual(kernel.hardware_registers, registers[which])
    x = np.arange(math.prod(shape)).astype(
        getattr(ml_dtypes, dtype, dtype)).reshape(shape)
    ([out], report), ([same], other) = kernel.run(x), by_hand.run(x)
    np.testing.assert_array_equal(out, x)
    np.testing.assert_array_equal(same, x)
    moves = lambda executed: sum(
        n for opcode, n in executed.items()
        if opcode.startswith(("ld.global", "ld.shared", "st.")))
    self.assertEqual(moves(report.executed), sum(counts.values()))
    self.assertEqual(moves(other.executed), 4 * x.size)
    self.assertLessEqual(sum(counts.values()), 4 * x.size)

  @parameterized.product(semantics=_SEMANTICS)
  def test_masked_store_is_predicated(self, semantics):
    kernel = self.compiler.compile(
        kernels.warp_copy, semantics, (128,), "float32", masked=True)
    self.assertEqual(kernel.counts("st")["st.shared.b32"], 4)
    if (code := kernel.sass()) is not None:
      stores = [line for line in code if "STS" in line]
      self.assertLen(stores, 4)
      for line in stores:
        self.assertRegex(line, r"^@!?P\d STS ")
      by_hand = self.compiler.compile(kernels.masked_by_hand, semantics)
      self.assertLess(len(code), len(by_hand.sass()))

  @parameterized.product(
      space=("smem", "gmem"), warp=(True, False), semantics=_SEMANTICS)
  def test_unused_old_values_are_not_returned(self, space, warp, semantics):
    kernel = self.compiler.compile(
        kernels.accumulate, semantics, space, warp)
    self.assertEqual(sum(kernel.counts("atom", "red").values()), 1 + 3 * warp)
    if (code := kernel.sass()) is not None:
      # ptxas sees that the text's `atom` has a result that nobody reads.
      updates = [line for line in code if re.match(r"(ATOM|RED)", line)]
      self.assertLen(updates, 1 + 3 * warp)
      for line in updates:
        self.assertRegex(line, r"^(REDG\.|ATOMS\.ADD RZ,)")

  @parameterized.product(
      dtype=list(_ATOMIC_TABLE),
      place=(("Lane", "smem"), ("Warpgroup", "gmem")))
  def test_atomics(self, dtype, place):
    kernel = _wide_compiler().compile(kernels.atomics, *place, dtype)
    prefix = "atom.relaxed." + {
        "smem": "cta.shared.", "gmem": "gpu.global."}[place[1]]
    self.assertEqual(kernel.counts("atom", "red"), {
        prefix + kind: n for kind, n in _ATOMIC_TABLE[dtype].items()})

  @parameterized.product(
      name=list(kernels.STOCK_ACCESSES), semantics=_SEMANTICS,
      dtype=("float32", "bfloat16"))
  def test_equals_stock(self, name, semantics, dtype):
    ours, stock = (
        _instructions(self.compiler.compile(
            kernels.same_as_stock, name, semantics, which, dtype).ptx)
        for which in (True, False))
    self.assertEqual(ours, stock)


def _instructions(text: str) -> list[str]:
  """The lines of PTX without comments, source locations and blank ones."""
  text = re.sub(r"//[^\n]*", "", text).split(".section")[0]
  lines = [line.strip() for line in text.splitlines()]
  return [line for line in lines
          if line and not line.startswith((".loc", ".file", "$L__tmp"))]


@_needs_compiler
class BlackwellTest(_AccessTestCase):
  """Compiled for sm_100a, and that text executed."""

  def setUp(self):
    super().setUp()
    self.compiler = gpu_compile.compiler("b200")

  @parameterized.product(
      case=(Case("load", shape=(128,), mask=True, other=True),
            Case("swap", shape=(8, 64), index=(Window(1, 4), Window(3, 33)),
                 dynamic=True),
            Case("store", shape=(8, 64), index=np.array([7, 1, 3, 0]),
                 dtype="bfloat16"),
            Case("atomic_add", shape=(33,), dtype="float16", mask=True),
            Case("atomic_max", shape=(128,)),
            Case("atomic_cas", shape=(128,), dtype="int8"),
            Case("atomic_xchg", shape=(6,), dtype="int32", index=np.arange(
                33) % 6, kwargs=(("order", "index"),))),
      place=(0, 3, 4, 7))
  def test_access(self, case, place):
    self.check(dataclasses.replace(case, **_PLACES[place]), seeds=(1,))

  @parameterized.product(semantics=_SEMANTICS)
  def test_warp_copy(self, semantics):
    kernel = self.compiler.compile(
        kernels.warp_copy, semantics, (128,), "float32")
    self.assertEqual(kernel.architecture, "sm_100a")
    self.assertIn(kernel.counts("st"), (
        {"st.global.v2.b64": 1, "st.shared.v2.b64": 1},
        {"st.global.v4.b32": 1, "st.shared.v4.b32": 1}))

  @parameterized.product(
      name=("softmax", "cumsum", "transpose", "odd_reduce", "while"),
      semantics=_SEMANTICS)
  def test_warp_math(self, name, semantics):
    kernel = self.compiler.compile(kernels.warp_math, name, semantics)
    x, y = np.random.default_rng(1).standard_normal(
        (2, 4, 4, 64)).astype(np.float32)
    [out], report = kernel.run(x, y, seed=1)
    self.assertEmpty(report.races)
    np.testing.assert_allclose(
        out, _per_warp(kernels.WARP_MATH[name], x, y), rtol=3e-5, atol=3e-5)

  @parameterized.product(semantics=_SEMANTICS, atomic=(False, True))
  def test_accumulator_under_a_mask(self, semantics, atomic):
    kernel = self.compiler.compile(
        kernels.accumulator, semantics, atomic=atomic, layout="TCGEN05",
        rows=128)
    x = np.arange(128 * 64, dtype=np.float32).reshape(128, 64)
    [out], report = kernel.run(
        np.ones(1, np.float32), np.array([37], np.int32), seed=1)
    self.assertEmpty(report.races)
    expected = np.full((128, 64), -1, np.float32)
    expected[:37] = x[:37] - 1 if atomic else x[:37]
    np.testing.assert_array_equal(out, expected)
    self.assertEmpty([c for c in kernel.counts("st", "ld") if "shared" in c])

  @parameterized.parameters(*_SEMANTICS)
  def test_tensor_memory_under_a_mask_compiles(self, semantics):
    kernel = self.compiler.compile(kernels.tensor_memory, semantics)
    self.assertIn("tcgen05.ld", kernel.ptx)

  @parameterized.product(warp=(True, False), semantics=_SEMANTICS)
  def test_swizzled_block(self, warp, semantics):
    kernel = self.compiler.compile(kernels.swizzled_block, semantics, warp)
    x = np.arange(16 * 64, dtype=np.float32).reshape(16, 64)
    mask = np.arange(8 * 32).reshape(8, 32) % 3 == 0
    [out], report = kernel.run(x, mask, seed=1)
    self.assertEmpty(report.races)
    x[8:, 32:] *= np.where(mask, 2, 1)
    np.testing.assert_array_equal(out, x)


@_needs_compiler
class RefusalTest(_AccessTestCase):

  @parameterized.product(
      name=list(stock_gpu_corpus.REFUSED), semantics=_SEMANTICS)
  def test_stock_refuses_and_ours_works(self, name, semantics):
    _, *messages = stock_gpu_corpus.REFUSED[name]
    message = messages[_SEMANTICS.index(semantics)]
    if message is not None:
      with self.assertRaisesRegex(gpu_compile.CompileError, message):
        _stock_compiler().compile(stock_gpu_corpus.refused, name, semantics)
    kernel = self.compiler.compile(kernels.accepted, name, semantics)
    spec = stock_gpu_corpus.argument(name)
    x = np.random.default_rng(0).uniform(1, 2, spec.shape).astype(np.float32)
    x = (x > 1.5) if spec.dtype == np.bool_ else x
    [out], report = kernel.run(x, seed=0)
    self.assertEmpty(report.races)
    wanted = np.asarray(kernels.ACCEPTED[name][1](x), spec.dtype)
    np.testing.assert_allclose(out[: wanted.size], wanted, rtol=1e-6)

  @parameterized.parameters(*_SEMANTICS)
  def test_stock_maximum_of_negative_numbers(self, semantics):
    stock = _stock_compiler().compile(stock_gpu_corpus.atomic_max, semantics)
    ours = self.compiler.compile(kernels.signed_max, semantics)
    rng = np.random.default_rng(0)
    x, y = rng.integers(-100, 100, (2, 256)).astype(np.int32)
    [seen], _ = stock.run(x, y)
    # Under Warpgroup lowering stock takes them for large positive numbers.
    unsigned = np.maximum(x.view(np.uint32), y.view(np.uint32)).view(np.int32)
    np.testing.assert_array_equal(
        seen, np.maximum(x, y) if semantics == "Lane" else unsigned)
    [out], report = ours.run(x, y)
    self.assertEmpty(report.races)
    np.testing.assert_array_equal(out, np.maximum(x, y))

  @parameterized.parameters(*_SEMANTICS)
  def test_stock_syntax_is_left_alone(self, semantics):
    with self.assertRaisesRegex(
        gpu_compile.CompileError,
        "Can only store scalars in warp-level lowering"):
      self.compiler.compile(kernels.stock_store_in_warp, semantics)

  @parameterized.product(
      row=(
          ("too_many_registers", "at most 512 elements per thread"),
          ("narrowing_bitcast", "load: wanted a bitcast between dtypes of one "
           "width"),
          ("nested_arrays", "load: wanted integer arrays in the last index"),
          ("barrier_of_a_warpgroup", "warp_barrier: wanted warp code"),
          ("fence_of_a_warpgroup", "commit_smem: wanted warp code.*"
           "plgpu.commit_smem"),
      ), semantics=_SEMANTICS)
  def test_refusal(self, row, semantics):
    name, message = row
    with self.assertRaisesRegex(
        gpu_compile.CompileError, "NotImplementedError: .*" + message):
      self.compiler.compile(kernels.refused, name, semantics)


@functools.cache
def _stock_compiler():
  """A compiler whose child never imports this library."""
  child = gpu_compile.Compiler()
  atexit.register(child.close)
  return child


@functools.cache
def _two_devices():
  child = gpu_compile.Compiler(devices=2)
  atexit.register(child.close)
  return child


@functools.cache
def _wide_compiler():
  child = gpu_compile.Compiler(environment={"JAX_ENABLE_X64": "1"})
  atexit.register(child.close)
  return child


if __name__ == "__main__":
  absltest.main()
