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
"""Derivatives equal those of a program that does one element after another."""

import functools

from absl.testing import absltest
from absl.testing import parameterized
import cases
from cases import ATOMICS
from cases import OPS
from cases import named
import jax
from jax import lax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest
import reference
from reference import Window

FLOAT_OPS = tuple(op for op in OPS if op.accepts(np.float32))
LINEAR_OPS = (
    cases.LOAD, cases.STORE, cases.SWAP, cases.ADD, cases.XCHG
)
FETCH_OPS = (cases.ADD, cases.XCHG, cases.MAX, cases.MIN, cases.CAS)

# Shape of the array, index, mask. Positions repeat where `OPS` allow it.
ACCESSES = {
    "scalar": ((3,), (1,), None),
    "rank_0": ((), (), None),
    "whole": ((2, 3), (...,), None),
    "strided": ((2, 5), (1, slice(0, None, 2)), None),
    "ragged": ((5,), (Window(3, 4),), np.arange(4) < 2),
    "masked": ((3, 2), (np.array([2, 0]),), np.array([[True], [False]])),
    "off_bounds": ((3,), (np.array([7, 1, -9]),), np.array([0, 1, 0], bool)),
    "all_masked_off": ((3,), (np.array([0, 1]),), np.array(False)),
    "empty": ((3,), (slice(1, 1),), None),
}
REPEATS = {
    "repeated": ((4,), (np.array([1, 1, 3, 1, 0]),), None),
    "repeated_masked": (
        (4,), (np.array([1, 1, 3, 1]),), np.array([True, False, True, True])
    ),
    "repeated_rows": ((3, 2), (np.array([2, 0, 2]), slice(0, 1)), None),
}


def accesses(op):
  """Swap and store leave open which write of a repeated position remains."""
  repeats = op not in (cases.STORE, cases.SWAP)
  return ACCESSES | REPEATS if repeats else ACCESSES


def arguments(op, shape, idx, mask, dtype=np.float32):
  """Values without ties: `x, *operands`."""
  at = reference.positions(shape, idx)
  x = cases.tame(dtype, shape)
  values = [
      cases.tame(dtype, at.shape, seed=k) for k in range(1, op.operands + 1)
  ]
  if op is cases.CAS:
    hit = np.arange(at.size).reshape(at.shape) % 3 != 1
    values[0] = np.where(hit, x.reshape(-1)[at * (at >= 0)], values[0])
    values[0] = values[0].astype(dtype)
    if at.size > 1 and at.ndim == 1:
      # The second one on an element that the first one has just changed.
      values[0][1] = values[1][0]
  return x, *values


def program(op, shape, idx, mask, reverse=False):
  """The operation as a function `x, *operands -> result, new`, unrolled."""
  at = reference.positions(shape, idx)
  on = np.broadcast_to(True if mask is None else mask, at.shape) & (at >= 0)
  order = list(np.ndindex(at.shape))

  def f(x, *values):
    values = [jnp.broadcast_to(v, at.shape) for v in values]
    cells = list(x.reshape(-1))
    result = {}
    for k in reversed(order) if reverse else order:
      operands = [v[k] for v in values]
      if not on[k]:
        result[k] = operands[0] if op is cases.LOAD else jnp.zeros((), x.dtype)
        continue
      old = result[k] = cells[at[k]]
      cells[at[k]] = combine(op, old, *operands)
    result = jnp.array([result[k] for k in order], x.dtype).reshape(at.shape)
    new = jnp.array(cells, x.dtype).reshape(shape)
    return None if op is cases.STORE else result, new

  return f


def combine(op, old, *operands):
  value = operands[-1]
  match op.rmw:
    case "load":
      return old
    case "add":
      return old + value
    case "max":
      return jnp.where(value > old, value, old)
    case "min":
      return jnp.where(value < old, value, old)
    case "cas":
      return jnp.where(bits(old) == bits(operands[0]), value, old)
  return value


def bits(x):
  return lax.bitcast_convert_type(x, np.dtype(f"u{x.dtype.itemsize}"))


def subject(op, idx, mask, **kwargs):
  """The operation itself as a function `x, *operands -> result, new`."""
  idx = cases.to_jax_index(idx)

  def f(x, *values):
    return op.pure(x, idx, *values, mask=mask, **kwargs)

  return f


def fetch(op, idx, mask, **kwargs):
  """The same on arrays."""
  idx = cases.to_jax_index(idx)

  def f(x, *values):
    return op.fetch(x, idx, *values, mask=mask, **kwargs)

  return f


def loss(f):
  """A scalar that depends on all of `f`, with derivatives of every order."""

  def g(*args):
    total = 0.0
    for k, y in enumerate(jax.tree.leaves(f(*args))):
      weight = 1 + k + jnp.arange(y.size, dtype=y.dtype).reshape(y.shape)
      total = total + (weight * jnp.sin(y * y / 4)).sum()
    return total

  return g


def cotangents(outputs):
  leaves, tree = jax.tree.flatten(outputs)
  return tree.unflatten([
      cases.tame(y.dtype, y.shape, seed=5 + k) for k, y in enumerate(leaves)
  ])


class DerivativesTest(parameterized.TestCase):

  def assertAllClose(self, got, want, rtol=1e-5):
    self.assertEqual(jax.tree.structure(got), jax.tree.structure(want))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
      self.assertEqual(a.dtype, b.dtype)
      np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6)

  def _compare(self, f, want, args):
    """First derivatives, forward and reverse, in all arguments at once."""
    tangents = tuple(
        cases.tame(a.dtype, a.shape, seed=9 + k) for k, a in enumerate(args)
    )

    def derivatives(f):
      def g(args, tangents):
        outputs, forward = jax.jvp(f, args, tangents)
        again, pull = jax.vjp(f, *args)
        return outputs, forward, again, pull(cotangents(outputs))

      return jax.jit(g)(args, tangents)

    self.assertAllClose(derivatives(f), derivatives(want))

  @parameterized.named_parameters(
      (f"_{op.name}_{name}", op, name)
      for op in FLOAT_OPS
      for name in accesses(op)
      # What an index does to a derivative, it does for every operation alike.
      if op in (cases.SWAP, cases.ADD) or name in ("ragged", "repeated_masked")
  )
  def test_jvp_and_vjp(self, op, name):
    shape, idx, mask = accesses(op)[name]
    args = arguments(op, shape, idx, mask)
    if op is cases.LOAD and mask is None:
      args = args[:1]
      want = program(op, shape, idx, mask)
      want = functools.partial(lambda f, x: f(x, x.dtype.type(0)), want)
    else:
      want = program(op, shape, idx, mask)
    self._compare(subject(op, idx, mask), want, args)

  @parameterized.named_parameters(
      (f"_{op.fetch_name}_{name}", op, name)
      for op in FETCH_OPS
      for name in ("repeated_masked", "repeated_rows", "off_bounds", "ragged")
  )
  def test_fetch(self, op, name):
    shape, idx, mask = accesses(op)[name]
    args = arguments(op, shape, idx, mask)
    want = program(op, shape, idx, mask)
    self._compare(fetch(op, idx, mask), want, args)

  @parameterized.named_parameters(*named(*FETCH_OPS))
  def test_fetch_out_of_range(self, op):
    shape, idx = (4,), (np.array([1, 9, 1, -7, -1]),)
    args = arguments(op, shape, idx, None)
    self._compare(fetch(op, idx, None), program(op, shape, idx, None), args)

  @parameterized.named_parameters(*named(*FETCH_OPS))
  def test_fetch_in_some_arguments_only(self, op):
    shape, idx, mask = REPEATS["repeated_masked"]
    args = arguments(op, shape, idx, mask)
    f, want = fetch(op, idx, mask), program(op, shape, idx, mask)
    for k in range(len(args)):
      got = jax.jit(jax.grad(loss(f), k))(*args)
      self.assertAllClose(got, jax.jit(jax.grad(loss(want), k))(*args))

  @parameterized.named_parameters(*named(*FLOAT_OPS))
  def test_in_the_array_only(self, op):
    shape, idx, mask = ACCESSES["masked"]
    args = arguments(op, shape, idx, mask)
    f, want = subject(op, idx, mask), program(op, shape, idx, mask)
    self.assertAllClose(
        jax.jit(jax.grad(loss(f)))(*args), jax.jit(jax.grad(loss(want)))(*args)
    )

  @parameterized.named_parameters(*named(*FLOAT_OPS))
  @pytest.mark.slow
  def test_result_or_new_array_alone(self, op):
    shape, idx, mask = accesses(op)["masked"]
    args = arguments(op, shape, idx, mask)
    every = tuple(range(len(args)))
    f, want = subject(op, idx, mask), program(op, shape, idx, mask)
    for part in (0, 1):
      if op is cases.STORE and part == 0:
        continue
      one = lambda f, part=part: loss(lambda *args: f(*args)[part])
      got = jax.jit(jax.grad(one(f), every))(*args)
      self.assertAllClose(got, jax.jit(jax.grad(one(want), every))(*args))

  @parameterized.named_parameters(*named(*LINEAR_OPS))
  @pytest.mark.slow
  def test_numerically_to_order_2(self, op):
    repeats = "repeated_masked" in accesses(op)
    name = "repeated_masked" if repeats else "ragged"
    shape, idx, mask = accesses(op)[name]
    with jax.enable_x64(True):
      args = arguments(op, shape, idx, mask, np.float64)
      f = jax.jit(loss(subject(op, idx, mask)))
      jax.test_util.check_grads(f, args, order=2)

  @parameterized.named_parameters(*named(cases.MAX, cases.MIN))
  def test_numerically_to_order_1(self, op):
    shape, idx, mask = REPEATS["repeated_masked"]
    with jax.enable_x64(True):
      args = arguments(op, shape, idx, mask, np.float64)
      f = jax.jit(loss(subject(op, idx, mask)))
      jax.test_util.check_grads(f, args, order=1)

  def test_cas_numerically(self):
    # Only where no perturbation turns success into failure or back: in what is
    # written, and in elements that it does not compare.
    shape, idx, mask = REPEATS["repeated_masked"]
    with jax.enable_x64(True):
      x, expected, value = arguments(cases.CAS, shape, idx, mask, np.float64)
      f = loss(fetch(cases.CAS, idx, mask))
      # The second comparison is with what the first one writes: not that one.
      jax.test_util.check_grads(
          jax.jit(lambda v: f(x, expected, jnp.concatenate([value[:1], v]))),
          (value[1:],),
          order=1,
      )

  @parameterized.named_parameters(*named(*FLOAT_OPS))
  @pytest.mark.slow
  def test_second_derivatives(self, op):
    shape, idx, mask = accesses(op)["masked"]
    args = arguments(op, shape, idx, mask)
    every = tuple(range(len(args)))
    tangents = tuple(a + 1 for a in args)

    def products(f):
      """Products with the Hessian, by every order of modes."""
      grad = jax.grad(loss(f), every)

      def g(args, tangents):
        def slope(*args):
          return jax.jvp(loss(f), args, tangents)[1]

        def directional(*args):
          grads = zip(grad(*args), tangents, strict=True)
          return sum((g * t).sum() for g, t in grads)

        forward_over_reverse = jax.jvp(grad, args, tangents)[1]
        reverse_over_forward = jax.grad(slope, every)(*args)
        reverse_over_reverse = jax.grad(directional, every)(*args)
        return forward_over_reverse, reverse_over_forward, reverse_over_reverse

      return jax.jit(g)(args, tangents)

    got = products(subject(op, idx, mask))
    self.assertAllClose(got, products(program(op, shape, idx, mask)))

  @parameterized.named_parameters(*named(*FETCH_OPS))
  @pytest.mark.slow
  def test_hessian_of_fetch(self, op):
    shape, idx, mask = REPEATS["repeated_masked"]
    args = arguments(op, shape, idx, mask)
    every = tuple(range(len(args)))
    got = jax.jit(jax.hessian(loss(fetch(op, idx, mask)), every))(*args)
    want = jax.hessian(loss(program(op, shape, idx, mask)), every)
    self.assertAllClose(got, jax.jit(want)(*args))

  @parameterized.named_parameters(*named(*FLOAT_OPS))
  def test_linearize(self, op):
    shape, idx, mask = accesses(op)["masked"]
    args = arguments(op, shape, idx, mask)
    tangents = [a + 1 for a in args]
    f, want = subject(op, idx, mask), program(op, shape, idx, mask)
    for transform in (lambda f: f, jax.jit):
      _, push = jax.linearize(transform(f), *args)
      _, want_push = jax.linearize(jax.jit(want), *args)
      self.assertAllClose(push(*tangents), want_push(*tangents))

  @parameterized.named_parameters(*named(*LINEAR_OPS))
  def test_linear_transpose(self, op):
    shape, idx, mask = accesses(op)["masked"]
    args = arguments(op, shape, idx, mask)
    f, want = subject(op, idx, mask), program(op, shape, idx, mask)
    outputs, pull = jax.vjp(jax.jit(want), *args)
    ct = cotangents(outputs)
    self.assertAllClose(jax.linear_transpose(f, *args)(ct), pull(ct))

  @parameterized.named_parameters(*named(*FETCH_OPS))
  def test_order(self, op):
    # Not the defaults, which the other tests use.
    shape, idx, mask = REPEATS["repeated"]
    args = arguments(op, shape, idx, mask)
    want = program(op, shape, idx, mask)
    self._compare(subject(op, idx, mask, order="index"), want, args)
    self._compare(fetch(op, idx, mask, order="any"), want, args)

  @parameterized.named_parameters(
      *named(*[op for op in FETCH_OPS if op is not cases.CAS])
  )
  def test_unique_indices(self, op):
    shape, idx, mask = (4,), (np.array([3, 0, 2]),), np.array([1, 0, 1], bool)
    args = arguments(op, shape, idx, mask)
    f = fetch(op, idx, mask, unique_indices=True)
    self._compare(f, program(op, shape, idx, mask), args)

  @parameterized.named_parameters(
      *named(*[(op, d) for op in FLOAT_OPS for d in cases.FLOATS])
  )
  def test_dtype_of_gradients(self, op, dtype):
    shape, idx, mask = accesses(op)["masked"]
    args = arguments(op, shape, idx, mask, dtype)
    grad = jax.grad(loss(subject(op, idx, mask)), (0, len(args) - 1))
    grads = jax.eval_shape(grad, *args)
    self.assertEqual([g.dtype for g in grads], [dtype] * 2)

  @parameterized.named_parameters(*named(*OPS))
  def test_integers_have_no_derivative(self, op):
    x, *values = [
        cases.values(np.int32, (3,), seed) for seed in range(op.operands + 1)
    ]
    scale = np.float32([1, 2, 3])

    @jax.jit
    def f(scale, x, *values):
      result, new = op.pure(x, (np.array([1, 2, 0]),), *values)
      return new * scale, None if result is None else result * scale

    want = [y / 1.0 for y in jax.tree.leaves(f(np.float32(1), x, *values))]
    no_tangents = [np.zeros(3, jax.dtypes.float0)] * (op.operands + 1)
    _, got = jax.jvp(f, (scale, x, *values), (np.ones(3, "f4"), *no_tangents))
    self.assertAllClose(jax.tree.leaves(got), want)
    total = lambda *args: sum(y.sum() for y in jax.tree.leaves(f(*args)))
    every = tuple(range(op.operands + 2))
    grad, *rest = jax.grad(total, every, allow_int=True)(scale, x, *values)
    np.testing.assert_allclose(grad, sum(want))
    self.assertEqual([g.dtype for g in rest], [jax.dtypes.float0] * len(rest))

  @parameterized.named_parameters(*named(*cases.BITWISE))
  def test_bitwise_fetch_has_no_derivative(self, op):
    x = jnp.asarray([5, 9])

    def f(scale):
      old, new = op.fetch(x, np.array([1, 1]), (scale * 0).astype(int) + 3)
      return (scale * (old.sum() + new.sum())).sum()

    old, new = op.fetch(x, np.array([1, 1]), 3)
    self.assertEqual(jax.grad(f)(2.0), old.sum() + new.sum())


def example(op):
  """A call with positions that repeat, if they may, in a jit-able form."""
  name = "masked" if op in (cases.STORE, cases.SWAP) else "repeated_masked"
  shape, idx, mask = accesses(op)[name]
  args = arguments(op, shape, idx, mask)
  return subject(op, idx, mask), program(op, shape, idx, mask), args


class CompositionTest(parameterized.TestCase):
  """Derivatives through control flow, checkpoint and vmap."""

  def assertSameGradients(self, f, want, args):
    every = tuple(range(len(args)))
    grad = lambda f: jax.jit(jax.grad(f, every))(*args)
    for a, b in zip(grad(f), grad(want), strict=True):
      np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-5)

  @parameterized.named_parameters(
      (f"_{op.name}_remat3_{remat3}", op, remat3)
      for op in FLOAT_OPS
      for remat3 in (False, True)
  )
  @pytest.mark.slow
  def test_checkpoint(self, op, remat3):
    f, want, args = example(op)

    # sin makes residuals, so that there is something to compute again.
    def nonlinear(f):
      return loss(lambda x, *values: f(jnp.sin(x), *map(jnp.sin, values)))

    if op is cases.CAS:  # comparisons with sin(x) would all fail
      nonlinear = loss
    before = jax.config.jax_remat3
    jax.config.update("jax_remat3", remat3)
    try:
      for policy in (None, jax.checkpoint_policies.everything_saveable):
        checkpointed = jax.checkpoint(nonlinear(f), policy=policy)
        self.assertSameGradients(checkpointed, nonlinear(want), args)
    finally:
      jax.config.update("jax_remat3", before)

  def _loop(self, op, body):
    """A loop over elements, and the same as a program without loops."""
    repeats = op not in (cases.STORE, cases.SWAP)
    idx = np.array([1, 1, 3, 1] if repeats else [1, 0, 3, 2], np.int32)
    args = arguments(op, (4,), (idx,), None)
    want = program(op, (4,), (idx,), None)
    return functools.partial(body, idx), want, args

  @parameterized.named_parameters(*named(*FLOAT_OPS))
  def test_scan(self, op):
    def f(idx, x, *values):
      ref = jax.new_ref(x)

      def step(carry, args):
        i, *values = args
        return carry, op.apply(ref, i, *values)

      _, result = lax.scan(step, (), (idx, *values))
      return result, jax.freeze(ref)

    f, want, args = self._loop(op, f)
    self.assertSameGradients(loss(f), loss(want), args)

  @parameterized.named_parameters(*named(*FLOAT_OPS))
  def test_scan_whose_body_has_its_own_ref(self, op):
    def f(idx, x, *values):
      def step(x, args):
        i, *values = args
        result, x = op.pure(x, i, *values)
        return x, result

      x, result = lax.scan(step, x, (idx, *values))
      return result, x

    f, want, args = self._loop(op, f)
    self.assertSameGradients(loss(f), loss(want), args)

  @parameterized.named_parameters(*named(*FLOAT_OPS))
  def test_checkpointed_scan(self, op):
    def f(idx, x, *values):
      @jax.checkpoint
      def step(x, args):
        i, *values = args
        result, x = op.pure(jnp.sin(x), i, *values)
        return x, result

      x, result = lax.scan(step, x, (idx, *values))
      return result, x

    def want(idx, x, *values):
      results = []
      for k, i in enumerate(idx):
        each = program(op, (4,), (i,), None)
        result, x = each(jnp.sin(x), *[v[k] for v in values])
        results.append(result)
      return None if op is cases.STORE else jnp.stack(results), x

    f, _, args = self._loop(op, f)
    want = functools.partial(want, f.args[0])
    self.assertSameGradients(loss(f), loss(want), args)

  @parameterized.named_parameters(*named(*FLOAT_OPS))
  def test_fori_loop(self, op):
    def f(idx, x, *values):
      ref = jax.new_ref(x)

      def body(k, carry):
        op.apply(ref, jnp.asarray(idx)[k], *[v[k] for v in values])
        return carry

      lax.fori_loop(0, 4, body, ())
      return jax.freeze(ref)

    f, want, args = self._loop(op, f)
    self.assertSameGradients(loss(f), loss(lambda *a: want(*a)[1]), args)

  @parameterized.named_parameters(*named(*FLOAT_OPS))
  def test_forward_mode_of_while_loop(self, op):
    def f(idx, x, *values):
      ref = jax.new_ref(x)

      def body(k):
        op.apply(ref, jnp.asarray(idx)[k], *[jnp.asarray(v)[k] for v in values])
        return k + 1

      lax.while_loop(lambda k: k < 4, body, 0)
      return jax.freeze(ref)

    f, want, args = self._loop(op, f)
    tangents = tuple(a + 1 for a in args)
    got = jax.jit(lambda a, t: jax.jvp(f, a, t))(args, tangents)
    want = jax.jvp(lambda *a: want(*a)[1], args, tangents)
    for a, b in zip(got, want, strict=True):
      np.testing.assert_allclose(a, b, rtol=1e-6)

  @parameterized.named_parameters(*named(*FLOAT_OPS))
  def test_cond(self, op):
    shape, idx, mask = accesses(op)["masked"]
    args = arguments(op, shape, idx, mask)
    want = program(op, shape, idx, mask)

    def f(p, x, *values):
      ref = jax.new_ref(x)

      def accessed(*values):
        op.apply(ref, idx, *values, mask=mask)

      lax.cond(p, accessed, lambda *values: None, *values)
      return jax.freeze(ref)

    for p in (True, False):
      taken = (lambda *a: want(*a)[1]) if p else (lambda x, *values: x)
      self.assertSameGradients(
          loss(functools.partial(f, p)), loss(taken), args
      )

  @parameterized.named_parameters(*named(*FLOAT_OPS))
  @pytest.mark.slow
  def test_grad_of_vmap_and_vmap_of_grad(self, op):
    f, want, args = example(op)
    many = [np.stack([a, a[::-1]]) for a in args]
    every = tuple(range(len(args)))
    grad = jax.jit(jax.grad(loss(want), every))
    by_hand = [grad(*[a[b] for a in many]) for b in range(2)]
    vmap_of_grad = jax.jit(jax.vmap(jax.grad(loss(f), every)))(*many)
    total = lambda *many: jax.vmap(loss(f))(*many).sum()
    grad_of_vmap = jax.jit(jax.grad(total, every))(*many)
    for got in (vmap_of_grad, grad_of_vmap):
      for k in every:
        want_k = np.stack([g[k] for g in by_hand])
        np.testing.assert_allclose(got[k], want_k, rtol=1e-5, atol=1e-5)

  @parameterized.named_parameters(*named(*FLOAT_OPS))
  def test_several_accesses_of_one_ref(self, op):
    f, want, args = example(op)

    def twice(f):
      def g(x, *values):
        result, x = f(x, *values)
        again, x = f(x * 2, *values)
        return result, again, x

      return loss(g)

    self.assertSameGradients(twice(f), twice(want), args)

  @parameterized.named_parameters(
      *named(*[op for op in ATOMICS if op in FETCH_OPS])
  )
  def test_fetch_in_scan_and_checkpoint(self, op):
    idx = np.array([1, 1, 3, 1], np.int32)
    args = arguments(op, (4,), (idx,), None)
    want = program(op, (4,), (idx,), None)

    def f(x, *values):
      @jax.checkpoint
      def step(x, args):
        i, *values = args
        old, x = op.fetch(x, i, *values)
        return x, old

      x, old = lax.scan(step, x, (idx, *values))
      return old, x

    self.assertSameGradients(loss(f), loss(want), args)


if __name__ == "__main__":
  absltest.main()
