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
"""Every operation in Pallas Triton kernels, run as emitted."""

from __future__ import annotations

import functools
import unittest

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax_swapext as jsx
from jax_swapext._src import support
import mosaic_gpu_data as data_lib
from mosaic_gpu_kernels import Case
import numpy as np
from oracles import ptx
import pallas_triton_kernels as kernels
import pytest
from reference import Window

_ARRAY = np.array([3, 60, 2, 9, 11, 0, 63, 31])

CASES = {
    "load": Case("load", mask=True),
    "load_other": Case("load", mask=True, other=True, dtype="int32"),
    "load_bool": Case("load", dtype="bool", mask=True),
    "load_fp8": Case("load", dtype="float8_e5m2", mask=True),
    "load_element": Case("load", shape=(8, 16), index=(2, 5), dynamic=True),
    "load_masked_element": Case("load", shape=(8,), index=5, mask=True),
    "load_past_the_end": Case(
        "load", shape=(100,), index=Window(90, 32), mask=True, dynamic=True),
    "load_columns": Case(
        "load", shape=(8, 64), index=(slice(None), _ARRAY)),
    "load_rows": Case("load", shape=(8, 64), index=np.array([7, 1, 3, 0])),
    "load_two_arrays": Case("load", shape=(4, 8, 16), index=(
        np.array([1, 0]), slice(2, 6), np.array([1, 5]))),
    "load_scalar_and_array": Case("load", shape=(4, 64), index=(3, _ARRAY)),
    "store": Case("store"),
    "store_masked": Case("store", dtype="bfloat16", mask=True),
    "store_int8": Case("store", dtype="int8", mask=True),
    "store_strided": Case("store", shape=(128,), index=slice(0, 128, 4)),
    "store_array": Case("store", shape=(64,), index=_ARRAY, mask=True),
    "swap": Case("swap"),
    "swap_small": Case("swap", shape=(4,)),
    "swap_element": Case("swap", shape=(8, 16), index=(2, 5), dynamic=True),
    "swap_block": Case(
        "swap", shape=(8, 64), index=(Window(1, 4), Window(3, 32)), mask=True,
        dynamic=True),
    "swap_float16": Case("swap", dtype="float16", mask=True),
    "add_int32": Case("atomic_add", dtype="int32", mask=True),
    "add_float32": Case("atomic_add", mask=True),
    "add_float16": Case("atomic_add", dtype="float16"),
    "add_element": Case("atomic_add", shape=(8,), dtype="uint32", index=3),
    "add_strided": Case(
        "atomic_add", dtype="int32", shape=(128,), index=Window(5, 16, 3),
        dynamic=True),
    "xchg_float32": Case("atomic_xchg", mask=True),
    "xchg_int32": Case("atomic_xchg", dtype="int32"),
    "max_int32": Case("atomic_max", dtype="int32", mask=True),
    "max_uint32": Case("atomic_max", dtype="uint32"),
    "min_int32": Case("atomic_min", dtype="int32"),
    "min_uint32": Case("atomic_min", dtype="uint32", mask=True),
    "and_int32": Case("atomic_and", dtype="int32", mask=True),
    "or_uint32": Case("atomic_or", dtype="uint32"),
    "xor_int32": Case("atomic_xor", dtype="int32", mask=True),
    "cas_int32": Case("atomic_cas", dtype="int32"),
    "cas_float32": Case("atomic_cas"),
    "cas_int16": Case("atomic_cas", dtype="int16"),
    "cas_element": Case("atomic_cas", dtype="int32", shape=(8,), index=3),
}

_REPEATED = {
    op: Case(op, dtype="int32", shape=(8,),
             index=np.random.default_rng(5).integers(0, 6, 32),
             mask=op != "atomic_cas")
    for op in ("atomic_add", "atomic_xchg", "atomic_cas", "atomic_max")
}

REFUSED = {
    "odd": (Case("load", shape=(33,)), "load: .*powers of two.*under a mask"),
    "add_bfloat16": (
        Case("atomic_add", dtype="bfloat16"), "atomic_add: .*bfloat16"),
    "add_int8": (Case("atomic_add", dtype="int8"), "atomic_add: .*int8"),
    "xchg_float16": (Case("atomic_xchg", dtype="float16"), "atomic_xchg: "),
    "xor_bool": (Case("atomic_xor", dtype="bool"), "atomic_xor: .*bool"),
    "cas_int8": (Case("atomic_cas", dtype="int8"), "16 or 32 or 64 bits.*int8"),
    "max_float32": (Case("atomic_max"), "atomic_max: .*drop NaNs.*Mosaic GPU"),
    "masked_cas": (
        Case("atomic_cas", dtype="int32", mask=True), "atomic_cas: .*no mask"),
    "ordered": (
        Case("atomic_add", dtype="int32", shape=(64,), index=_ARRAY,
             kwargs=(("order", "index"),)),
        "atomic_add: .*row-major|atomic_add: .*jsx.fetch"),
}

# A case for each form of the index that the matrix says is refused.
_FORMS = {
    "under a mask": dict(mask=True),
    'integer arrays, order="index"': dict(
        shape=(64,), index=_ARRAY, kwargs=(("order", "index"),)),
    "sizes that are no powers of two": dict(shape=(33,), viewed=False),
    "views of elements as larger or smaller ones": dict(
        shape=(2, 32), viewed=True),
}

_ROWS = [row for row in jsx.support() if row.place == "Pallas Triton"]


def _dtypes(supported):
  """(operation, dtype, note) of the rows for all forms of an index."""
  return [(operation, dtype, row.note)
          for row in _ROWS
          if row.supported == supported and row.indices == support.INDICES
          for operation in row.operations for dtype in row.dtypes]


def _forms():
  return [(operation, row.dtypes[-1], form, row.note)
          for row in _ROWS if row.indices != support.INDICES
          for operation in row.operations for form in row.indices]


_needs_compiler = unittest.skipUnless(
    kernels.available(), "Triton, which is the compiler, is missing")


@functools.cache
def _all_compiled():
  requests = {("access", name): ("access", (case,))
              for name, case in [*CASES.items(), *_REPEATED.items()]}
  requests |= {("same", name, ours): ("same_as_stock", (name, ours))
               for name in kernels.SAME_AS_STOCK for ours in (True, False)}
  requests["blocks",] = "blocks", ()
  return dict(zip(requests, kernels.compiled([*requests.values()])))


@functools.cache
def _every_dtype_compiled():
  keys = [(operation, dtype) for operation, dtype, _ in _dtypes(True)]
  requests = [("access", (Case(o, dtype=d, shape=(32,)),)) for o, d in keys]
  return dict(zip(keys, kernels.compiled(requests, x64=True)))


class PallasTritonTest(parameterized.TestCase):

  def kernel(self, *key) -> kernels.Compiled:
    kernel = _all_compiled()[key]
    self.assertIsInstance(kernel, kernels.Compiled, kernel)
    return kernel

  def run_emitted(self, kernel, case, data, architecture, seed):
    value = np.zeros(case.region or (1,), case.np_dtype)
    buffers = [np.asarray(a) for a in data.arguments(case)]
    buffers += [value] * case.returns + [data.x]
    after, report = ptx.run(
        # Triton's kernels end with two pointers to scratch that these lack.
        kernel.ptx[architecture], [*buffers, None, None], grid=(1,),
        dynamic_shared=kernel.shared[architecture], seed=seed)
    old = after[-2].reshape(case.region) if case.returns else None
    return old, after[-1], report

  @parameterized.parameters(*CASES, *_REPEATED)
  def test_lowers(self, name):
    # With no compiler at hand this much can be seen.
    case = {**CASES, **_REPEATED}[name]
    self.assertIn("tt.store", kernels.lower(kernels.access, case))

  @_needs_compiler
  @parameterized.product(name=list(CASES), architecture=(80, 90))
  def test_equals_reference(self, name, architecture):
    case, kernel = CASES[name], self.kernel("access", name)
    data = data_lib.make_data(case, seed=0)
    want_old, want_new = data_lib.expected(case, data)
    for seed in (None, 0):
      old, new, report = self.run_emitted(
          kernel, case, data, architecture, seed)
      self.assertEmpty(report.races)
      if case.returns:
        np.testing.assert_array_equal(old, want_old)
      np.testing.assert_array_equal(new, want_new)

  @_needs_compiler
  @parameterized.parameters(*_REPEATED)
  def test_repeated_indices(self, name):
    case, kernel = _REPEATED[name], self.kernel("access", name)
    data = data_lib.make_data(case, seed=0)
    for seed in (None, 0, 1):
      old, new, report = self.run_emitted(kernel, case, data, 90, seed)
      self.assertEmpty(report.races)
      self.assertTrue(data_lib.explained(case, data, old, new))

  @_needs_compiler
  @parameterized.parameters(80, 90)
  def test_blocks(self, architecture):
    kernel = self.kernel("blocks")
    x = np.arange(400, dtype=np.int32).reshape(4, 100)
    order = np.random.default_rng(0).permutation(32).astype(np.int32)
    (*_, new), report = ptx.run(
        kernel.ptx[architecture], [x, order, np.zeros_like(x), None, None],
        grid=(4, 4), dynamic_shared=kernel.shared[architecture], seed=0)
    self.assertEmpty(report.races)
    np.testing.assert_array_equal(new, x + 1)

  @_needs_compiler
  @parameterized.product(
      name=kernels.SAME_AS_STOCK, architecture=(80, 90))
  def test_equals_stock(self, name, architecture):
    ours, stock = (
        kernels.instructions(
            self.kernel("same", name, which).ptx[architecture])
        for which in (True, False))
    self.assertEqual(ours, stock)

  @_needs_compiler
  @parameterized.parameters(*_dtypes(True))
  @pytest.mark.slow  # above, parameterized would lose it
  def test_supported(self, operation, dtype, _):
    kernel = _every_dtype_compiled()[operation, dtype]
    self.assertIsInstance(kernel, kernels.Compiled, kernel)
    case = Case(operation, dtype=dtype, shape=(32,))
    data = data_lib.make_data(case, seed=0)
    want_old, want_new = data_lib.expected(case, data)
    for architecture in (80, 90):
      old, new, report = self.run_emitted(kernel, case, data, architecture, 0)
      self.assertEmpty(report.races)
      if case.returns:
        np.testing.assert_array_equal(old, want_old)
      np.testing.assert_array_equal(new, want_new)

  @parameterized.parameters(*_dtypes(False))
  def test_refused_dtype(self, operation, dtype, note):
    with jax.enable_x64(True):
      with self.assertRaises((TypeError, NotImplementedError)) as raised:
        kernels.lower(kernels.access, Case(operation, dtype=dtype))
    message = str(raised.exception).lower()
    self.assertIn(note.lower(), message)
    self.assertIn(operation, message)

  @parameterized.parameters(*_forms())
  def test_refused_form(self, operation, dtype, form, note):
    kwargs = dict(_FORMS[form])
    viewed = kwargs.pop("viewed", None)
    case = Case(operation, dtype=dtype, **kwargs)
    with jax.enable_x64(True):
      with self.assertRaises(NotImplementedError) as raised:
        if viewed is None:
          kernels.lower(kernels.access, case)
        else:
          kernels.lower(kernels.form, case, viewed)
    message = str(raised.exception).lower()
    self.assertIn(note.lower(), message)
    self.assertIn(operation, message)

  @parameterized.parameters(*REFUSED)
  def test_refused(self, name):
    case, message = REFUSED[name]
    with self.assertRaisesRegex(NotImplementedError, message):
      kernels.lower(kernels.access, case)


if __name__ == "__main__":
  absltest.main()
