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
"""Every refusal names the operation, what was wanted and what was got."""

from absl.testing import absltest
from absl.testing import parameterized
import cases
from cases import ATOMICS
from cases import OPS
from cases import named
import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
import jax.numpy as jnp
import jax_swapext as jsx
from jax_swapext import testing
import numpy as np
import pytest

MUTATING = tuple(op for op in OPS if op is not cases.LOAD)


class Refusals(parameterized.TestCase):
  """Base: calls an operation wrongly and reads the message."""

  def assertRefuses(self, exceptions, words, function, *args, **kwargs):
    """Checks the exception's type and that its message has all the words."""
    with self.assertRaises(exceptions) as caught:
      function(*args, **kwargs)
    message = str(caught.exception)
    for word in words:
      self.assertIn(word, message)

  def assertOpRefuses(self, exceptions, op, words, *args, **kwargs):
    self.assertRefuses(
        exceptions, [op.name, *words], op.apply, *args, **kwargs
    )


def _ref(dtype="int32", shape=(4, 3)):
  return jax.new_ref(jnp.zeros(shape, dtype))


def _operands(op, dtype="int32", shape=()):
  return [jnp.zeros(shape, dtype)] * op.operands


class OperandsTest(Refusals):

  @parameterized.named_parameters(*named(*OPS))
  def test_value_of_another_dtype(self, op):
    for got in ("float32", "uint32", "int8", "bool"):
      values = _operands(op)
      values[-1] = jnp.zeros((), got)
      with self.subTest(got):
        self.assertOpRefuses(
            TypeError, op, ["int32", got], _ref(), (0, 0), *values
        )

  @parameterized.named_parameters(*named(*OPS))
  def test_value_of_another_dtype_under_jit(self, op):
    values = _operands(op, "bfloat16")

    def f(*values):
      op.apply(_ref(), (0, 0), *values)

    words = [op.name, "int32", "bfloat16"]
    self.assertRefuses(TypeError, words, jax.jit(f), *values)

  @parameterized.named_parameters(*named(*MUTATING))
  def test_python_float_for_integers(self, op):
    values = [1.5] * op.operands
    words = ["int32", "as the Ref is", "got 1.5, a Python float"]
    self.assertOpRefuses(TypeError, op, words, _ref(), (0, 0), *values)

  @parameterized.named_parameters(*named(*MUTATING))
  def test_64_bits_without_x64(self, op):
    with jax.enable_x64(True):
      ref = _ref("int64")
    words = ["int64", "jax_enable_x64"]
    for value in (1, jnp.asarray(1) * 1):
      values = [value] * op.operands
      self.assertOpRefuses(TypeError, op, words, ref, (0, 0), *values)

  @parameterized.named_parameters(*named(*OPS))
  def test_array_for_a_ref(self, op):
    way_out = f"jsx.{op.fetch_name}" if op.is_atomic else "jsx.fetch_xchg"
    way_out = "x[idx]" if op is cases.LOAD else way_out
    self.assertOpRefuses(
        TypeError, op, ["wanted a Ref first", "int32[3]", way_out],
        jnp.zeros(3, "int32"), 0, *_operands(op),
    )

  @parameterized.named_parameters(*named(*OPS))
  def test_numpy_scalar_is_not_weak(self, op):
    values = [np.float32(1)] * op.operands
    words = ["bfloat16", "float32"]
    if op.accepts(jnp.bfloat16):
      ref = _ref("bfloat16")
      self.assertOpRefuses(TypeError, op, words, ref, (0, 0), *values)

  @parameterized.named_parameters(*named(*OPS))
  def test_value_of_another_shape(self, op):
    for got in ((3,), (4, 1), (1, 2)):
      values = _operands(op)
      values[-1] = jnp.zeros(got, "int32")
      with self.subTest(str(got)):
        self.assertOpRefuses(
            ValueError, op, ["(2,)", str(got)],
            _ref(), (slice(0, 2), 0), *values,
        )

  def test_expected(self):
    value = jnp.zeros((), "int32")
    self.assertOpRefuses(
        TypeError, cases.CAS, ["expected", "int32", "float32"],
        _ref(), (0, 0), jnp.float32(0), value,
    )
    self.assertOpRefuses(
        ValueError, cases.CAS, ["expected", "(3,)", "(7,)"],
        _ref(), 0, jnp.zeros(7, "int32"), value,
    )

  def test_other(self):
    self.assertOpRefuses(
        TypeError, cases.LOAD, ["other", "int32", "float32"],
        _ref(), 0, np.float32(0), mask=True,
    )
    self.assertOpRefuses(
        ValueError, cases.LOAD, ["other", "(3,)", "(7,)"],
        _ref(), 0, jnp.zeros(7, "int32"), mask=True,
    )

  @parameterized.named_parameters(*named(*OPS))
  def test_mask_of_another_shape(self, op):
    for got in ((2,), (4, 3)):
      with self.subTest(str(got)):
        self.assertOpRefuses(
            ValueError, op, ["mask", "(3,)", str(got)],
            _ref(), 0, *_operands(op), mask=np.ones(got, bool),
        )

  @parameterized.named_parameters(*named(*OPS))
  def test_mask_of_another_dtype(self, op):
    for got in ("int32", "float32", "uint8"):
      with self.subTest(got):
        self.assertOpRefuses(
            TypeError, op, ["mask", "bool", got],
            _ref(), 0, *_operands(op), mask=np.ones(3, got),
        )

  @parameterized.named_parameters(*named(*MUTATING))
  def test_value_that_is_a_ref(self, op):
    values = _operands(op)
    values[-1] = _ref("int32", ())
    self.assertOpRefuses(
        TypeError, op, ["value", "Ref"], _ref(), (0, 0), *values
    )

  @parameterized.named_parameters(*named(*MUTATING))
  def test_value_that_is_a_view_of_a_ref(self, op):
    def f(values):
      view = jax.new_ref(jnp.zeros(4, "int32")).at[0]
      op.apply(_ref(), (0, 0), *values[:-1], view)

    words = [op.name, "value", "Ref"]
    self.assertRefuses(TypeError, words, jax.jit(f), _operands(op))


class RefTest(Refusals):

  @parameterized.named_parameters(*named(*OPS))
  def test_first_argument_that_is_no_ref(self, op):
    for x in (jnp.zeros((4, 3), "int32"), np.zeros(3, "int32"), 3):
      with self.subTest(type(x).__name__):
        self.assertOpRefuses(TypeError, op, ["Ref"], x, 0, *_operands(op))

  # A load only reads, so its Ref may be unbatched.
  @parameterized.named_parameters(*named(*MUTATING))
  def test_unbatched_ref_with_batched_operands(self, op):
    values = _operands(op, "int32", (2,))
    ref = _ref("int32", ())

    def f(*values):
      op.apply(ref, (), *values)

    self.assertRefuses(ValueError, [op.name, "batched"], jax.vmap(f), *values)

  @parameterized.named_parameters(*named(*MUTATING))
  def test_unbatched_ref_with_batched_index_or_mask(self, op):
    ref, values = _ref("int32", (4,)), _operands(op)
    self.assertRefuses(
        ValueError, [op.name, "batched"],
        jax.vmap(lambda i: op.apply(ref, i, *values)), np.arange(2),
    )
    self.assertRefuses(
        ValueError, [op.name, "batched"],
        jax.vmap(lambda m: op.apply(ref, 0, *values, mask=m)),
        np.array([True, False]),
    )


class DtypeTest(Refusals):

  @parameterized.named_parameters(
      *named(*[(op, d) for op in cases.BITWISE for d in cases.FLOATS])
  )
  def test_bitwise_of_floats(self, op, dtype):
    ref, value = _ref(dtype), jnp.zeros((), dtype)
    self.assertOpRefuses(
        TypeError, op, ["integer", "bool", str(dtype)], ref, (0, 0), value
    )
    self.assertRefuses(
        TypeError, [op.fetch_name, "integer", "bool", str(dtype)],
        op.fetch, jnp.zeros(3, dtype), 0, value,
    )

  def test_add_of_bools(self):
    self.assertOpRefuses(TypeError, cases.ADD, ["bool"], _ref("bool"), 0, True)
    self.assertRefuses(
        TypeError, ["fetch_add", "bool"],
        cases.ADD.fetch, jnp.zeros(3, "bool"), 0, True,
    )

  @parameterized.named_parameters(
      *named(*[
          (op, d)
          for op in (cases.ADD, cases.MAX, cases.MIN, *cases.BITWISE)
          for d in cases.FP8
      ])
  )
  def test_arithmetic_of_fp8(self, op, dtype):
    value = jnp.zeros((), dtype)
    self.assertOpRefuses(TypeError, op, [str(dtype)], _ref(dtype), 0, value)
    self.assertRefuses(
        TypeError, [op.fetch_name, str(dtype)],
        op.fetch, jnp.zeros(3, dtype), 0, value,
    )

  @parameterized.named_parameters(
      *named(*[(op, d) for op in OPS for d in ("int4", "uint4", "complex64")])
  )
  def test_unsupported_dtypes(self, op, dtype):
    values = _operands(op, dtype)
    self.assertOpRefuses(TypeError, op, [dtype], _ref(dtype), (0, 0), *values)
    if op.is_atomic:
      self.assertRefuses(
          TypeError, [op.fetch_name, dtype],
          op.fetch, jnp.zeros(3, dtype), 0, *values,
      )

  @parameterized.named_parameters(*named(*OPS))
  def test_random_keys(self, op):
    keys = jax.random.split(jax.random.key(0), 4)
    self.assertOpRefuses(
        TypeError, op, ["key<fry>"], jax.new_ref(keys), 0,
        *[keys[0]] * op.operands,
    )


_OUT_OF_BOUNDS = {
    "int": ((4,), ["4"]),
    "negative_int": ((-5,), ["-5", "4"]),
    "numpy_int": ((np.int32(9),), ["9", "4"]),
    "second_int": ((0, 3), ["3"]),
    "window": ((pl.ds(2, 3),), ["[0, 4)", "[2, 5)"]),
    "window_with_stride": ((pl.ds(0, 3, 2),), ["[0, 4)", "[0, 5)"]),
    "window_before": ((pl.ds(-1, 2),), ["[0, 4)", "[-1, 1)"]),
    "array": ((np.array([0, 4, 1]),), ["4"]),
    "negative_array": ((np.array([0, -5, 1]),), ["-5", "4"]),
}

_BAD_INDICES = {
    "too_many": (ValueError, (0, 0, 0), ["3", "2"]),
    "too_many_with_none": (ValueError, (None, 0, 0, 0, ...), ["3", "2"]),
    "two_ellipses": (ValueError, (..., 0, ...), ["..."]),
    "float": (TypeError, (1.0,), ["1.0"]),
    "float_array": (TypeError, (np.array([1.0], "f4"),), ["float32"]),
    "string": (TypeError, ("a",), ["'a'"]),
    "bool_array": (TypeError, (np.array([True] * 4),), ["bool", "mask="]),
    "bool": (TypeError, (True,), ["bool", "mask="]),
    "negative_step": (ValueError, (slice(None, None, -1),), ["-1"]),
    "arrays_that_do_not_broadcast": (
        ValueError, (np.array([0, 1]), np.array([0, 1, 2])), ["(2,)", "(3,)"]
    ),
}


class IndexTest(Refusals):

  @parameterized.named_parameters(
      *[(f"_{name}", *row) for name, row in _OUT_OF_BOUNDS.items()]
  )
  def test_static_index_out_of_bounds(self, idx, words):
    for op in OPS:
      with self.subTest(op.name):
        values = _operands(op)
        self.assertOpRefuses(ValueError, op, words, _ref(), idx, *values)

  @parameterized.named_parameters(
      *[(f"_{name}", row[0]) for name, row in _OUT_OF_BOUNDS.items()]
  )
  def test_static_index_out_of_bounds_is_legal_if_masked_off(self, idx):
    for op in OPS:
      with self.subTest(op.name):
        ref, values = jax.new_ref(jnp.ones((4, 3), "int32")), _operands(op)
        result = op.apply(ref, idx, *values, mask=False)
        if op is not cases.STORE:
          self.assertFalse(jnp.any(result))
        self.assertTrue(jnp.all(ref[...] == 1))

  @parameterized.named_parameters(
      *[(f"_{name}", *row) for name, row in _BAD_INDICES.items()]
  )
  def test_bad_index(self, exception, idx, words):
    for op in OPS:
      values = _operands(op)
      with self.subTest(op.name):
        self.assertOpRefuses(exception, op, words, _ref(), idx, *values)
      if op.is_atomic:
        with self.subTest(op.fetch_name):
          x = jnp.zeros((4, 3), "int32")
          self.assertRefuses(
              exception, [op.fetch_name, *words], op.fetch, x, idx, *values
          )

  @parameterized.named_parameters(*named(*ATOMICS))
  def test_none_in_an_index_of_a_view_that_may_repeat(self, op):
    def f(rows):
      op.apply(_ref().at[rows], (None, 0), *_operands(op))

    words = [op.name, "None", "reshape"]
    self.assertRefuses(NotImplementedError, words, jax.jit(f), np.arange(2))


class KeywordsTest(Refusals):

  @parameterized.named_parameters(
      ("_order", "order", "sorted", ["any", "index"]),
      ("_sem", "sem", "seq_cst", ["relaxed", "acquire", "release", "acq_rel"]),
      ("_scope", "scope", "gpu", ["block", "cluster", "device", "system"]),
  )
  def test_bad_keyword(self, keyword, got, wanted):
    for op in ATOMICS:
      with self.subTest(op.name):
        self.assertOpRefuses(
            ValueError, op, [keyword, got, *wanted],
            _ref(), (0, 0), *_operands(op), **{keyword: got},
        )

  @parameterized.named_parameters(*named(*ATOMICS))
  def test_bad_order_of_fetch(self, op):
    self.assertRefuses(
        ValueError, [op.fetch_name, "order", "sorted", "any", "index"],
        op.fetch, jnp.zeros(3, "int32"), 0, *_operands(op), order="sorted",
    )


class FetchTest(Refusals):

  @parameterized.named_parameters(*named(*ATOMICS))
  def test_operands(self, op):
    x = jnp.zeros(3, "int32")
    name = op.fetch_name
    self.assertRefuses(
        TypeError, [name, "int32", "float32"],
        op.fetch, x, 0, *_operands(op, "float32"),
    )
    self.assertRefuses(
        ValueError, [name, "(3,)", "(2,)"],
        op.fetch, x, ..., *_operands(op, "int32", (2,)),
    )
    self.assertRefuses(
        ValueError, [name, "mask", "(3,)", "(2,)"],
        op.fetch, x, ..., *_operands(op), mask=np.ones(2, bool),
    )
    self.assertRefuses(
        TypeError, [name, "mask", "bool", "int32"],
        op.fetch, x, ..., *_operands(op), mask=np.ones(3, "int32"),
    )

  @parameterized.named_parameters(*named(*ATOMICS))
  def test_refs(self, op):
    x, values = jnp.zeros(3, "int32"), _operands(op)
    self.assertRefuses(
        TypeError, [op.fetch_name, "Ref", op.name],
        op.fetch, jax.new_ref(x), 0, *values,
    )
    values[-1] = jax.new_ref(values[-1])
    self.assertRefuses(
        TypeError, [op.fetch_name, "value", "Ref"], op.fetch, x, 0, *values
    )


  @parameterized.named_parameters(
      ("tpu", "tpu-v6e", pl.pallas_call),
      ("triton", "h100", pl.pallas_call),
      ("mosaic_gpu", "h100", lambda body, x: plgpu.kernel(body, out_type=x)),
  )
  @pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")
  def test_in_a_kernel(self, target, kernel):
    def body(x_ref, o_ref):
      _, o_ref[...] = jsx.fetch_xor(x_ref[...], x_ref[...], 1)

    x = jax.ShapeDtypeStruct((128,), jnp.int32)
    self.assertRefuses(
        NotImplementedError, ["fetch_xor", "kernel", "jsx.atomic_xor on a Ref"],
        testing.compile_for, target, kernel(body, x), x,
    )


class OddArgumentsTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("negative_size", ValueError, lambda r: jsx.load(r, jax.ds(0, -1)),
       "pl.ds with a size of at least 0, got -1"),
      ("step_0", ValueError, lambda r: jsx.load(r, slice(0, 3, 0)),
       "step of at least 1, got 0"),
      ("string_start", TypeError, lambda r: jsx.load(r, jax.ds("a", 2)),
       "start of pl.ds, got 'a'"),
      ("bool_start", TypeError, lambda r: jsx.load(r, jax.ds(True, 2)),
       "start of pl.ds, got bool"),
      ("order_array", ValueError,
       lambda r: jsx.atomic_add(r, 0, 1, order=np.array(["any", "x"])),
       "order to be one of"),
      ("unique_string", TypeError,
       lambda r: jsx.fetch_add(r[...], 0, 1, unique_indices="no"),
       "unique_indices to be a bool"),
      ("too_large_a_float", OverflowError, lambda r: jsx.store(r, 0, 1e300),
       "value to fit float32"),
  )
  def test_refused(self, exception, access, words):
    ref = jax.new_ref(jnp.zeros(4, jnp.float32))
    with self.assertRaisesRegex(exception, words):
      access(ref)

  def test_infinity_and_nan_fit(self):
    ref = jax.new_ref(jnp.zeros(2, jnp.float16))
    jsx.store(ref, 0, float("inf"))
    jsx.store(ref, 1, float("nan"))
    self.assertTrue(np.isinf(ref[0]) and np.isnan(ref[1]))

  @parameterized.named_parameters(
      ("table", "swap", lambda n, x: jsx.swap(jax.new_ref(n), ..., n)),
      ("index_of_a_ref", "load",
       lambda n, x: jsx.load(jax.new_ref(x), n.astype(int))),
      ("index_of_an_array", "fetch_add",
       lambda n, x: jsx.fetch_add(x, n.astype(int), 1.0)),
      ("batch_of_refs", "swap",
       jax.vmap(lambda n, x: jsx.swap(jax.new_ref(x + n), 0, n), (0, None))),
      ("batch_of_arrays", "fetch_update",
       jax.vmap(lambda n, x: jsx.fetch_add(x + n, np.arange(2), n), (0, None))),
  )
  def test_symbolic_shape(self, name, access):
    size, = jax.export.symbolic_shape("n,")
    with self.assertRaisesRegex(
        NotImplementedError, f"{name}: .*wanted .* static .* Export once"
    ):
      jax.eval_shape(
          access, jax.ShapeDtypeStruct((size,), np.float32), np.ones(4, "f4")
      )


if __name__ == "__main__":
  absltest.main()
