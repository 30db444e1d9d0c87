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
"""Every operation equals the NumPy reference: eager, under jit, on arrays."""

import functools

from absl.testing import absltest
from absl.testing import parameterized
import cases
from cases import OPS
from cases import named
from cases import ops_by_dtype
import hypothesis as hp
from hypothesis import strategies as st
import jax
import jax.numpy as jnp
import jax_swapext as jsx
import ml_dtypes
import numpy as np
import pytest
import reference
from reference import Window
import strategies
from strategies import Access
from strategies import Index


def _access(shape, idx, traced=(), mask=None):
  """An `Access`; `traced` are the numbers of the parts that are traced."""
  parts = idx if isinstance(idx, tuple) else (idx,)
  parts = tuple(
      np.asarray(p, np.int32) if k in traced and isinstance(p, int) else p
      for k, p in enumerate(parts)
  )
  flags = tuple(k in traced for k in range(len(parts)))
  index = Index(parts, flags, (None,) * len(parts), not isinstance(idx, tuple))
  mask = None if mask is None else np.asarray(mask)
  return Access(shape, index, mask)


# One that wraps, one that rounds; `make test-quick` leaves out the others.
_FIRST_DTYPES = (np.dtype("uint8"), np.dtype(ml_dtypes.bfloat16))

_ALL = slice(None)
_RAGGED = np.arange(4, 12) < 10

# One row per index form; each is tried with every operation and dtype.
COMMON_FORMS = {
    "whole": _access((3, 4), ...),
    "dynamic_scalars": _access((3, 4), (2, -1), traced=(0, 1)),
    "slice_with_stride": _access((3, 7), (1, slice(1, None, 2)), traced=(0,)),
    "ragged_window": _access((10,), Window(4, 8), (0,), mask=_RAGGED),
    "repeated": _access((5,), np.array([1, 1, 3, 1, 4]), traced=(0,)),
}
RARE_FORMS = {
    "rank_0": _access((), ()),
    "rank_0_masked": _access((), ..., mask=False),
    "static_scalar": _access((4,), -2),
    "none": _access((3, 4), (None, 1, ..., None)),
    "ellipsis": _access((2, 3, 4), (1, ..., 2), traced=(2,)),
    "window_with_stride": _access((3, 9), (_ALL, Window(2, 3, 3)), (1,)),
    "mask_column": _access((3, 4), ..., mask=[[True], [False], [True]]),
    "mask_scalar": _access((3, 4), (0,), mask=True),
    "arrays": _access(
        (4, 5), (np.array([[0, 3], [0, 0]]), np.array([1, -5])), (0, 1)
    ),
    "array_and_scalar": _access((4, 5), (np.array([3, 0, 3]), 4), (0, 1)),
    "array_and_slice": _access(
        (4, 5), (np.array([3, 0, 3]), slice(0, 5, 2)), (0,)
    ),
    "arrays_apart": _access(
        (4, 2, 5), (np.array([3, 0, 3]), _ALL, np.array([1, 1, 1])), (0,)
    ),
    "array_of_rank_3": _access(
        (3, 2), (np.array([[[0, 1]], [[2, 1]], [[1, 1]]]),), (0,)
    ),
    "small_index_dtypes": _access(
        (3, 4), (np.array([2, 0], np.uint8), np.array([-1, 3], np.int8)), (0, 1)
    ),
    "rank_5": _access(
        (2, 1, 3, 2, 2), (1, ..., np.array([1, 0, 1]), slice(1, 2)), (0, 2)
    ),
    "array_off_bounds": _access(
        (4,), np.array([7, 1, -9, 1]), (0,), mask=[False, True, False, True]
    ),
    "window_off_both_ends": _access(
        (3,), Window(-2, 7), mask=[False, False, True, True, True, False, False]
    ),
    "size_0_array": _access((0, 3), ...),
    "size_0_slice": _access((3, 4), (slice(3, 3), 1)),
    "size_0_window": _access((3,), Window(3, 0)),
    "size_0_index": _access((3, 4), (np.zeros((0, 2), np.int32),), (0,)),
    "nothing_left": _access((0,), Window(0, 3), (0,), mask=np.zeros(3, bool)),
}
FORMS = COMMON_FORMS | RARE_FORMS


def _operands(op, dtype, access, seed=1):
  """An array and operands; of comparisons, about half succeed."""
  x = cases.values(dtype, access.shape, seed)
  values = [
      cases.values(dtype, access.region, seed + k)
      for k in range(1, op.operands + 1)
  ]
  if op is cases.CAS and x.size:
    at = reference.positions(access.shape, access.index.numpy())
    hit = np.arange(at.size).reshape(at.shape) % 2 == 0
    values[0] = np.where(hit, x.reshape(-1)[at], values[0])
  return x, values


def _jit(call, access, x, values, drop=False):
  """`call` as one jitted function of the array and all that is dynamic."""

  def f(x, dynamic, values, mask):
    index = access.index.jax(dynamic)
    result, new = call(x, index, *values, mask=mask)
    return (None if drop else result), new

  return jax.jit(f)(x, access.index.dynamic(), values, access.mask)


def _eagerly(op, access, x, values):
  ref = jax.new_ref(jnp.asarray(x))
  index = access.index.jax([jnp.asarray(i) for i in access.index.dynamic()])
  result = op.apply(ref, index, *map(jnp.asarray, values), mask=access.mask)
  return result, ref[...]


class OracleTest(parameterized.TestCase):
  """Table: operation x dtype x index form."""

  def _check_forms(self, op, dtype, forms):
    rows = {}
    for name, access in forms.items():
      rows[name] = access, *_operands(op, dtype, access)

    # One compilation for all the forms: they are many.
    def f(rows):
      results = {}
      for name, (x, dynamic, values, mask) in rows.items():
        index = forms[name].index.jax(dynamic)
        results[name] = op.pure(x, index, *values, mask=mask)
      return results

    got = jax.jit(f)({
        name: (x, access.index.dynamic(), values, access.mask)
        for name, (access, x, values) in rows.items()
    })
    for name, (access, x, values) in rows.items():
      with self.subTest(name):
        index = access.index.numpy()
        op.check(got[name], x, index, *values, mask=access.mask)

  @parameterized.named_parameters(*named(*ops_by_dtype(_FIRST_DTYPES)))
  def test_jit(self, op, dtype):
    self._check_forms(op, dtype, COMMON_FORMS)

  @parameterized.named_parameters(
      *named(*ops_by_dtype([d for d in cases.NARROW if d not in _FIRST_DTYPES]))
  )
  @pytest.mark.slow
  def test_jit_other_dtypes(self, op, dtype):
    self._check_forms(op, dtype, COMMON_FORMS)

  @parameterized.named_parameters(
      *named(*ops_by_dtype([np.dtype("int32")])),
      *named((cases.ADD, np.dtype("float32")), (cases.CAS, np.dtype("bool"))),
  )
  @pytest.mark.slow
  def test_jit_rare_forms(self, op, dtype):
    self._check_forms(op, dtype, RARE_FORMS)

  @parameterized.named_parameters(
      *[(f"_{name}", name) for name in FORMS],
  )
  def test_eager(self, form):
    access = FORMS[form]
    for op in (cases.LOAD, cases.SWAP, cases.ADD, cases.CAS):
      with self.subTest(op.name):
        x, values = _operands(op, np.float32, access)
        got = _eagerly(op, access, x, values)
        op.check(got, x, access.index.numpy(), *values, mask=access.mask)

  @parameterized.named_parameters(
      *named(*ops_by_dtype(cases.WIDE, cases.OPS)),
  )
  @pytest.mark.slow
  def test_x64(self, op, dtype):
    with jax.enable_x64(True):
      self._check_forms(op, dtype, COMMON_FORMS)

  @parameterized.named_parameters(*named(*OPS))
  @pytest.mark.slow
  @strategies.examples(25)
  @hp.given(st.data())
  def test_random_jit(self, op, data):
    dtypes = [d for d in cases.NARROW if op.accepts(d)]
    _, access, x, values = data.draw(strategies.calls([op], dtypes))
    drop = data.draw(st.booleans())
    got = _jit(op.pure, access, x, values, drop)
    op.check(
        got, x, access.index.numpy(), *values, mask=access.mask, dropped=drop
    )

  @strategies.examples(60)
  @hp.given(strategies.calls(OPS, cases.NARROW))
  def test_random_eager(self, call):
    op, access, x, values = call
    got = _eagerly(op, access, x, values)
    op.check(got, x, access.index.numpy(), *values, mask=access.mask)

  @pytest.mark.slow
  @strategies.examples(40)
  @hp.given(strategies.calls(OPS, cases.WIDE))
  def test_random_x64(self, call):
    op, access, x, values = call
    with jax.enable_x64(True):
      got = _jit(op.pure, access, x, values)
    op.check(got, x, access.index.numpy(), *values, mask=access.mask)


class FetchTest(parameterized.TestCase):
  """The functions on arrays, out-of-range indices included."""

  def _check(self, op, access, x, values, **kwargs):
    call = functools.partial(op.fetch, **kwargs)
    old, new = _jit(call, access, x, values)
    want_old, want_new = reference.fetch(
        op.rmw, x, access.index.numpy(), *values, mask=access.mask
    )
    op.check_same(old, want_old)
    op.check_same(new, want_new)

  @parameterized.named_parameters(
      *named(*ops_by_dtype(_FIRST_DTYPES + cases.FP8, cases.ATOMICS))
  )
  def test_repeated_and_out_of_range(self, op, dtype):
    idx = np.array([2, 9, 2, -1, -4, 3, 2], np.int32)
    access = _access((4,), idx, traced=(0,))
    self._check(op, access, *_operands(op, dtype, access))

  @parameterized.named_parameters(*named(*cases.ATOMICS))
  @pytest.mark.slow
  @strategies.examples(25)
  @hp.given(st.data())
  def test_random(self, op, data):
    dtype = data.draw(
        st.sampled_from([d for d in cases.NARROW if op.accepts(d)])
    )
    access = data.draw(strategies.accesses(out_of_range=True))
    x = cases.values(dtype, access.shape, data.draw(st.integers(0, 1000)))
    values = [
        data.draw(strategies.operands(dtype, access.region))
        for _ in range(op.operands)
    ]
    self._check(op, access, x, values)

  @parameterized.named_parameters(*named(*cases.ATOMICS))
  def test_eager_static_index(self, op):
    dtype = np.int32
    access = _access((3, 4), (slice(0, 3, 2), np.array([1, 1, 3])))
    x, values = _operands(op, dtype, access)
    index = access.index.jax([])
    got = op.fetch(jnp.asarray(x), index, *map(jnp.asarray, values))
    op.check(got, x, access.index.numpy(), *values)

  @parameterized.named_parameters(*named(*cases.RMW))
  def test_unique_indices(self, op):
    access = _access((6, 3), (np.array([4, 0, 9, 5]),), traced=(0,))
    x, values = _operands(op, np.int32, access)
    self._check(op, access, x, values, unique_indices=True)

  @parameterized.named_parameters(*named(*cases.ATOMICS))
  def test_order_any_is_row_major_on_cpu(self, op):
    access = _access((5,), np.array([1, 1, 3, 1]), traced=(0,))
    x, values = _operands(op, np.int32, access)
    self._check(op, access, x, values, order="any")

  @parameterized.parameters(
      ((), 4), ((1,), 4), ((4, 1, 1), 4), ((3, 1), 12), ((4, 3, 1), 12),
      ((2,), 24), ((4, 1, 2), 24), ((1, 3, 2), 24),
  )
  def test_a_mask_cuts_no_row_that_it_need_not(self, mask_shape, updates):
    x = np.arange(30, dtype=np.int32).reshape(5, 3, 2)
    idx, value = np.array([1, 4, -4, 7]), x[:4] + 100
    rng = np.random.default_rng(0)
    f = functools.partial(jsx.fetch_add, x, idx, value)
    for _ in range(3):
      mask = rng.random(mask_shape) < 0.5
      want = reference.fetch("add", x, (idx,), value, mask=mask)
      got = jax.jit(lambda m: f(mask=m))(mask)
      jax.tree.map(np.testing.assert_array_equal, got, want)
    jaxpr = jax.make_jaxpr(lambda m: f(mask=m))(mask)
    [rows] = [e for e in jaxpr.eqns if e.primitive is jsx.fetch_update_p]
    self.assertEqual(rows.invars[1].aval.shape, (updates,))

  def test_arguments_are_not_changed(self):
    x = jnp.arange(4)
    jsx.fetch_add(x, np.array([1, 1]), 5)
    np.testing.assert_array_equal(x, [0, 1, 2, 3])

  def test_many_updates_of_one_element(self):
    idx = np.zeros(1000, np.int32)
    old, new = jsx.fetch_add(jnp.zeros(3, jnp.int32), idx, 1)
    np.testing.assert_array_equal(old, np.arange(1000))
    np.testing.assert_array_equal(new, [1000, 0, 0])


class DtypeTest(parameterized.TestCase):
  """What the operands' dtypes become."""

  @parameterized.named_parameters(
      ("_int_to_float32", np.float32, 2),
      ("_int_to_bfloat16", jnp.bfloat16, 2),
      ("_float_to_bfloat16", jnp.bfloat16, 0.3),
      ("_float_to_float16", np.float16, 0.3),
      ("_float_to_fp8", jnp.float8_e4m3fn, 0.3),
      ("_int_to_int8", np.int8, -3),
      ("_int_to_uint8", np.uint8, 200),
      ("_bool", np.bool_, True),
      ("_weak_int_array", np.uint8, jnp.asarray(7)),
      ("_weak_float_array", np.float16, jnp.asarray(0.3)),
  )
  def test_weak_types_take_the_dtype_of_the_ref(self, dtype, value):
    x = jnp.zeros(3, dtype)
    want = np.asarray(value).astype(dtype)
    zero = False if dtype is np.bool_ else 0
    for call in (
        lambda r: jsx.store(r, 1, value),
        lambda r: jsx.swap(r, 1, value),
        lambda r: jsx.atomic_xchg(r, 1, value),
        lambda r: jsx.atomic_cas(r, 1, zero, value),
    ):
      ref = jax.new_ref(x)
      old = call(ref)
      if old is not None:
        cases.assert_same(old, np.zeros((), dtype))
      cases.assert_same(ref[1], want)
    old, new = jsx.fetch_xchg(x, 1, value)
    cases.assert_same(old, np.zeros((), dtype))
    cases.assert_same(new[1], want)
    other = jsx.load(jax.new_ref(x), 1, mask=False, other=value)
    cases.assert_same(other, want)

  def test_results_are_not_weak(self):
    ref = jax.new_ref(jnp.asarray(1))  # of a weak type
    self.assertFalse(jsx.load(ref).weak_type)
    self.assertFalse(jsx.swap(ref, (), 2).weak_type)
    self.assertFalse(jsx.atomic_add(ref, (), 2).weak_type)
    old, new = jsx.fetch_add(jnp.asarray(1), (), 2)
    self.assertFalse(old.weak_type)
    self.assertFalse(new.weak_type)

  def test_unsigned_wrap_around(self):
    ref = jax.new_ref(jnp.asarray([250, 1], jnp.uint8))
    old = jsx.atomic_add(ref, np.array([0, 0, 0]), np.full(3, 3, np.uint8))
    np.testing.assert_array_equal(old, [250, 253, 0])
    np.testing.assert_array_equal(ref[...], [3, 1])

  def test_signed_wrap_around(self):
    ref = jax.new_ref(jnp.asarray([127], jnp.int8))
    self.assertEqual(jsx.atomic_add(ref, 0, 1), 127)
    self.assertEqual(ref[0], -128)

  def test_bfloat16_rounds_after_every_step(self):
    # 256 + 1 rounds back to 256: were the ones summed first, it would not.
    ref = jax.new_ref(jnp.asarray([256], jnp.bfloat16))
    jsx.atomic_add(ref, np.zeros(4, np.int32), jnp.ones(4, jnp.bfloat16))
    self.assertEqual(ref[0], 256)

  def test_cas_compares_bits(self):
    x = np.array([np.nan, 0.0, -0.0, 1.0], np.float32)
    expected = np.array([np.nan, -0.0, -0.0, 1.0], np.float32)
    old, new = jsx.fetch_cas(x, ..., expected, np.float32(5))
    cases.assert_same(old, x)
    cases.assert_same(new, np.array([5, 0.0, 5, 5], np.float32))

  @parameterized.named_parameters(
      ("_max", jsx.atomic_max, [np.nan, np.nan, np.inf, 2]),
      ("_min", jsx.atomic_min, [np.nan, np.nan, 1, -np.inf]),
  )
  def test_nan_propagates(self, function, want):
    ref = jax.new_ref(jnp.asarray([np.nan, 1, np.inf, 2], jnp.float32))
    function(ref, ..., np.array([1, np.nan, 1, -np.inf], np.float32))
    np.testing.assert_array_equal(ref[...], np.array(want, np.float32))

  def test_int64_numpy_values_without_x64(self):
    # As everywhere in JAX, they count as int32 there.
    ref = jax.new_ref(jnp.zeros(3, jnp.int32))
    jsx.store(ref, ..., np.arange(3))
    np.testing.assert_array_equal(ref[...], [0, 1, 2])

  def test_int64_indices_with_x64(self):
    with jax.enable_x64(True):
      ref = jax.new_ref(jnp.zeros(4, jnp.float32))
      jsx.atomic_add(ref, jnp.array([3, -1, 0]), np.float32(1))
      np.testing.assert_array_equal(ref[...], [1, 0, 0, 2])


class RefTest(parameterized.TestCase):
  """Views, keyword arguments, and what is left alone."""

  @parameterized.named_parameters(*named(*OPS))
  def test_at_chain(self, op):
    x, [*values] = _operands(op, np.int32, _access((6, 4), ...))
    values = [v[2:5:2, 1:] for v in values]

    def view(x):
      return x.at[1:5].at[1::2, 1:]

    def f(x):
      ref = jax.new_ref(x)
      return op.apply(view(ref), None, *values), jax.freeze(ref)

    result, new = jax.jit(f)(x)
    index = (slice(2, 5, 2), slice(1, None))
    op.check((result, new), x, index, *values)

  @parameterized.named_parameters(*named(*OPS))
  def test_at_then_dynamic_index(self, op):
    x, values = _operands(op, np.int32, _access((6, 4), (3, slice(0, 2))))

    def f(x, i, j):
      ref = jax.new_ref(x)
      result = op.apply(ref.at[i], jax.ds(j, 2), *values)
      return result, jax.freeze(ref)

    got = jax.jit(f)(x, 3, 1)
    op.check(got, x, (3, slice(1, 3)), *values)

  @parameterized.named_parameters(*named(*OPS))
  def test_at_with_arrays_then_mask(self, op):
    # Distinct rows: which write of a repeated one remains is not promised.
    rows = np.array([4, 0, 2])
    mask = np.array([[True], [False], [True]])
    dtype = np.float32 if op.accepts(np.float32) else np.int32
    x, values = _operands(op, dtype, _access((6, 4), (rows,)))

    def f(x, rows, mask):
      ref = jax.new_ref(x)
      result = op.apply(ref.at[rows], (...,), *values, mask=mask)
      return result, jax.freeze(ref)

    got = jax.jit(f)(x, rows, mask)
    op.check(got, x, (rows,), *values, mask=mask)

  @strategies.examples(60)
  @hp.given(st.data())
  def test_random_views(self, data):
    # Views as JAX's own `ref.at` makes them, then any access.
    view = data.draw(strategies.views())
    shape = view.positions.shape
    op, access, _, values = data.draw(
        strategies.calls(OPS, cases.NARROW, shape=st.just(shape))
    )
    # Refused: the order would be that of other axes. See errors_test.
    has_none = any(part is None for part in access.index.parts)
    hp.assume(not (op.is_atomic and view.has_array and has_none))
    dtype = values[-1].dtype
    x = cases.values(dtype, view.shape, data.draw(st.integers(0, 1000)))

    @jax.jit
    def f(x, dynamic, view_dynamic, values, mask):
      ref = jax.new_ref(x)
      index = access.index.jax(dynamic)
      result = op.apply(view.jax(ref, view_dynamic), index, *values, mask=mask)
      return result, jax.freeze(ref)

    got = f(x, access.index.dynamic(), view.dynamic(), values, access.mask)
    # Of the whole array, in one step: where the view leads, flattened.
    at = reference.positions(shape, access.index.numpy())
    if view.positions.size:
      at = np.where(at < 0, x.size, view.positions.reshape(-1)[at * (at >= 0)])
    result, new = got
    flat = x.reshape(-1)
    op.check((result, new.reshape(-1)), flat, at, *values, mask=access.mask)

  @parameterized.named_parameters(*named(*OPS))
  def test_none_means_all(self, op):
    access = _access((2, 3), ())
    x, values = _operands(op, np.int32, access)
    op.check(op.pure(jnp.asarray(x), None, *values), x, (), *values)

  @parameterized.named_parameters(*named(*cases.ATOMICS))
  def test_sem_and_scope_are_accepted(self, op):
    x, values = _operands(op, np.int32, _access((4,), 1))
    sems = ("relaxed", "acquire", "release", "acq_rel", "relaxed")
    scopes = (None, "block", "cluster", "device", "system")

    @jax.jit
    def f(x, *values):
      return [
          op.pure(x, 1, *values, sem=sem, scope=scope)
          for sem, scope in zip(sems, scopes, strict=True)
      ]

    for got in f(x, *values):
      op.check(got, x, 1, *values)

  @parameterized.named_parameters(*named(*cases.ATOMICS))
  def test_order_index(self, op):
    access = FORMS["repeated"]
    x, values = _operands(op, np.int32, access)
    call = functools.partial(op.pure, order="index")
    got = _jit(call, access, x, values)
    op.check(got, x, access.index.numpy(), *values)

  def test_negative_static_index_in_a_view(self):
    x = np.arange(6, dtype=np.int32).reshape(2, 3)
    ref = jax.new_ref(jnp.asarray(x))

    @jax.jit
    def f(ref):
      return (
          jsx.load(ref.at[-1], np.array([0, 2])),
          jsx.atomic_add(ref.at[1:].at[-1], 0, 1),
          jsx.load(ref.at[-1].at[-1]),
          jsx.load(ref.at[:1].at[-1], mask=np.array([True, False, True])),
      )

    for got, want in zip(f(ref), ([3, 5], 3, 5, [0, 0, 2]), strict=True):
      np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(ref[...], [[0, 1, 2], [4, 4, 5]])

  @parameterized.named_parameters(
      ("_numpy", np.asarray), ("_jax", jnp.asarray)
  )
  def test_index_dtype_narrower_than_the_dimension(self, asarray):
    x = jnp.arange(300)
    for dtype in ("int8", "uint8", "int16", "uint32"):
      idx = asarray(np.array([1, 120], dtype))
      np.testing.assert_array_equal(jsx.load(jax.new_ref(x), idx), [1, 120])
      old, new = jsx.fetch_add(x, idx, 1)
      np.testing.assert_array_equal(old, [1, 120])
      np.testing.assert_array_equal(new - x, np.isin(x, old))

  def test_window_whose_start_has_a_narrow_dtype(self):
    x = jnp.arange(400)
    load = lambda i: jsx.load(jax.new_ref(x), jax.ds(i, 200))
    starts = jnp.array([100, 3], jnp.uint8)
    want = np.stack([np.arange(100, 300), np.arange(3, 203)])
    np.testing.assert_array_equal(jax.jit(load)(starts[0]), want[0])
    np.testing.assert_array_equal(jax.vmap(load)(starts), want)


if __name__ == "__main__":
  absltest.main()
