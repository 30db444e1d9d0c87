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
"""Transformations: what is true of one call stays true of all of them."""

import dataclasses
import re
from typing import Any

from absl.testing import absltest
from absl.testing import parameterized
import cases
from cases import ATOMICS
from cases import OPS
from cases import named
import hypothesis as hp
from hypothesis import strategies as st
import jax
from jax import lax

# Private: what `jit` does to a Ref, as a function from jaxpr to jaxpr. The law
# that it commutes with vmap cannot be stated without it.
from jax._src.state import discharge
import jax.export
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import strategies

MUTATING = tuple(op for op in OPS if op is not cases.LOAD)

class ControlFlowTest(parameterized.TestCase):
  """Refs that loops and branches close over."""

  @parameterized.named_parameters(*named(*OPS))
  def test_scan(self, op):
    x, *args = cases.example(op)

    @jax.jit
    def f(x, args):
      ref = jax.new_ref(x)

      def step(carry, args):
        return carry, op.apply(ref, *args)

      _, result = lax.scan(step, (), tuple(args))
      return result, jax.freeze(ref)

    op.check(f(x, args), x, *args)

  @parameterized.named_parameters(*named(*OPS))
  def test_scan_with_a_ref_of_its_own(self, op):
    x, *args = cases.example(op)

    @jax.jit
    def f(x, args):
      def step(x, args):
        result, x = op.pure(x, *args)
        return x, result

      x, result = lax.scan(step, x, tuple(args))
      return result, x

    op.check(f(x, args), x, *args)

  @parameterized.named_parameters(*named(*OPS))
  def test_fori_loop(self, op):
    x, *args = cases.example(op)

    @jax.jit
    def f(x, args):
      ref = jax.new_ref(x)

      def body(k, carry):
        op.apply(ref, *[a[k] for a in args])
        return carry

      lax.fori_loop(0, 4, body, ())
      return None, jax.freeze(ref)

    op.check(f(x, args), x, *args, dropped=True)

  @parameterized.named_parameters(*named(*OPS))
  def test_while_loop(self, op):
    x, *args = cases.example(op)

    @jax.jit
    def f(x, args, n):
      ref = jax.new_ref(x)

      def body(k):
        op.apply(ref, *[a[k] for a in args])
        return k + 1

      lax.while_loop(lambda k: k < n, body, 0)
      return None, jax.freeze(ref)

    op.check(f(x, args, 3), x, *[a[:3] for a in args], dropped=True)

  @parameterized.named_parameters(*named(*OPS))
  def test_cond(self, op):
    x, *args = cases.example(op)

    @jax.jit
    def f(x, args, p):
      ref = jax.new_ref(x)

      def accessed():
        result = op.apply(ref, *args)
        return jnp.zeros(4, x.dtype) if result is None else result

      result = lax.cond(p, accessed, lambda: jnp.zeros(4, x.dtype))
      return None if op is cases.STORE else result, jax.freeze(ref)

    op.check(f(x, args, True), x, *args)
    np.testing.assert_array_equal(f(x, args, False)[1], x)


class JitTest(parameterized.TestCase):
  """Staging: Ref arguments, dead code, the printed form, buffers."""

  @parameterized.named_parameters(*named(*OPS))
  def test_ref_as_argument(self, op):
    x, *args = cases.example(op)
    ref = jax.new_ref(jnp.asarray(x))
    result = jax.jit(op.apply)(ref, *args)
    op.check((result, ref[...]), x, *args)

  @parameterized.named_parameters(*named(*OPS))
  def test_disable_jit(self, op):
    x, *args = cases.example(op)
    with jax.disable_jit():
      op.check(op.pure(jnp.asarray(x), *map(jnp.asarray, args)), x, *args)

  @parameterized.named_parameters(*named(*OPS))
  def test_dropped_result_keeps_the_write(self, op):
    x, *args = cases.example(op)
    new = jax.jit(lambda *args: op.pure(*args)[1])(x, *args)
    op.check((None, new), x, *args, dropped=True)

  @parameterized.named_parameters(*named(*MUTATING))
  def test_dropped_ref_keeps_the_result(self, op):
    x, *args = cases.example(op)
    got = jax.jit(lambda *args: op.pure(*args)[0])(x, *args)
    want, _ = op.expected(x, *args)
    if want is None:
      self.assertIsNone(got)
    else:
      op.check_same(got, want)

  @parameterized.named_parameters(*named(*OPS))
  def test_dead_access_is_removed(self, op):
    x, *args = cases.example(op)

    def f(x, *args):
      op.pure(x, *args)
      return x + 1

    text = jax.jit(f).lower(x, *args).compile().as_text()
    self.assertNotRegex(text, r" (while|gather|scatter|dynamic-\S+|call)\(")

  @parameterized.named_parameters(*named(*OPS))
  def test_printed_form(self, op):
    x, *args = cases.example(op)
    ref = jax.new_ref(jnp.asarray(x))
    jaxpr = jax.make_jaxpr(op.apply)(ref, *args)
    [line] = [s for s in str(jaxpr).splitlines() if "<-" in s]
    self.assertNotIn("tree=", line)
    self.assertNotIn("PyTreeDef", line)
    if op.is_atomic:
      self.assertIn(op.rmw, line)

  @parameterized.named_parameters(*named(*OPS))
  def test_custom_vjp(self, op):
    x, *args = cases.example(op)
    x = x.astype(np.float32)  # something to differentiate

    @jax.custom_vjp
    def f(x):
      _, new = op.pure(x.astype(args[-1].dtype), *args)
      return new.astype(np.float32)

    f.defvjp(lambda x: (f(x), None), lambda _, g: (3 * g,))
    if op is cases.LOAD:
      args[-1] = args[-1].astype(np.float32)
    value, grad = jax.value_and_grad(lambda x: f(x).sum())(x)
    self.assertTrue(np.isfinite(value))
    np.testing.assert_array_equal(grad, np.full(5, 3))

  @parameterized.named_parameters(*named(*OPS))
  def test_export(self, op):
    x, *args = cases.example(op)
    exported = jax.export.export(jax.jit(op.pure))(x, *args)
    again = jax.export.deserialize(exported.serialize())
    op.check(again.call(x, *args), x, *args)

  @parameterized.named_parameters(*named(*cases.FLOAT_OPS))
  @pytest.mark.slow
  def test_export_of_vjp(self, op):
    x, *args = cases.example(op)

    @jax.jit
    def f(x, *args):
      result, new = op.pure(x, *args)
      return new.sum() * 2 + (0 if result is None else (result**2).sum())

    exported = jax.export.export(f)(x, *args)
    again = jax.export.deserialize(exported.serialize(vjp_order=1))
    got = jax.grad(again.call)(x, *args)
    np.testing.assert_allclose(got, jax.grad(f)(x, *args), rtol=1e-6)

  @parameterized.named_parameters(*named(*MUTATING))
  @pytest.mark.slow
  def test_donated_table_is_updated_in_place(self, op):
    dtype = np.float32 if op.accepts(np.float32) else np.int32
    table = jax.ShapeDtypeStruct((100_000,), dtype)
    values = [jax.ShapeDtypeStruct((64,), dtype)] * op.operands
    start = jax.ShapeDtypeStruct((), np.int32)
    index = jax.ShapeDtypeStruct((64,), np.int32)
    mask = jax.ShapeDtypeStruct((64,), bool)

    def window(x, i, mask, *values):
      return op.pure(x, jax.ds(i, 64), *values, mask=mask)

    def array(x, i, mask, *values):
      return op.pure(x, i, *values, mask=mask)

    for name, f, i, m in (
        ("window", window, start, None),
        ("masked_window", window, start, mask),
        ("array", array, index, None),
        ("masked_array", array, index, mask),
    ):
      for drop in (False, True):
        with self.subTest(f"{name}, result {'dropped' if drop else 'used'}"):
          g = (lambda *a, f=f: f(*a)[1]) if drop else f
          jitted = jax.jit(g, donate_argnums=0)
          text = jitted.lower(table, i, m, *values).compile().as_text()
          self.assertEmpty(table_sized(text, 100_000))


def table_sized(hlo: str, size: int) -> list[str]:
  """Instructions in compiled HLO that write a new array of `size` elements."""
  pattern = rf"= \w+\[{size}\]\S* (copy|pad|concatenate|select|gather)\("
  return [s.strip() for s in hlo.splitlines() if re.search(pattern, s)]


@dataclasses.dataclass(frozen=True)
class Batch:
  """A call for vmap: each example on its own, and all of them stacked.

  Attributes:
    op: the operation.
    index: the index, whose traced parts differ between the examples.
    examples: for each, `x, index, values, mask` in NumPy's terms.
    args: `x, dynamic parts of the index, values, mask`; what is batched is
      stacked along the axis that `axes` names in the same structure.
    axes: None for what is not batched.
  """

  op: cases.Op
  index: strategies.Index
  examples: list[tuple[Any, ...]]
  args: tuple[Any, ...]
  axes: tuple[Any, ...]

  def apply(self, ref, dynamic, values, mask):
    return self.op.apply(ref, self.index.jax(dynamic), *values, mask=mask)

  def pure(self, x, dynamic, values, mask):
    return self.op.pure(x, self.index.jax(dynamic), *values, mask=mask)

  def check(self, result, new):
    # NumPy takes them apart: XLA on CPU does not keep the bits of an fp8 NaN.
    result, new = jax.tree.map(np.asarray, (result, new))
    for b, (x, index, values, mask) in enumerate(self.examples):
      old = None if result is None else result[b]
      self.op.check((old, new[b]), x, index, *values, mask=mask)


@st.composite
def batches(draw, ops, dtypes):
  """Any call and any choice of batched arguments; written Refs are batched."""
  op, access, x, values = draw(strategies.calls(ops, dtypes))
  index, mask = access.index, access.mask
  first = draw(st.integers(0, 100))
  seeds = range(first, first + draw(st.integers(1, 3)))
  batch_x = op is not cases.LOAD or draw(st.booleans())
  batch_part = [traced and draw(st.booleans()) for traced in index.traced]
  batch_value = [draw(st.booleans()) for _ in values]
  batch_mask = mask is not None and draw(st.booleans())

  def other_index(seed):
    parts = zip(index.parts, index.variant(seed).parts, batch_part, strict=True)
    parts = tuple(new if batch else old for old, new, batch in parts)
    return dataclasses.replace(index, parts=parts)

  def other(array, batch, seed):
    return cases.values(array.dtype, array.shape, seed) if batch else array

  indices = [other_index(s) for s in seeds]
  masks = [np.roll(mask, s) if batch_mask else mask for s in seeds]
  inside = [
      reference.positions(access.shape, i.numpy()) >= 0 for i in indices
  ]
  if not np.all(inside):
    batch_mask = True
    masks = [m & i for m, i in zip(masks, inside, strict=True)]
  examples = [
      (
          other(x, batch_x, s),
          i.numpy(),
          [
              other(v, b, s + k)
              for k, (v, b) in enumerate(zip(values, batch_value, strict=True))
          ],
          m,
      )
      for s, i, m in zip(seeds, indices, masks, strict=True)
  ]

  def stack(batch, arrays):
    if not batch:
      return arrays[0], None
    axis = draw(st.sampled_from([0, -1]))
    return np.moveaxis(np.stack(arrays), 0, axis), axis

  xs, _, all_values, _ = zip(*examples, strict=True)
  x, x_axis = stack(batch_x, xs)
  mask, mask_axis = stack(batch_mask, masks)
  dynamic = [
      stack(batch, parts)
      for batch, *parts in zip(
          [b for b, traced in zip(batch_part, index.traced, strict=True)
           if traced],
          *[i.dynamic() for i in indices],
          strict=True,
      )
  ]
  values = [
      stack(batch, vs)
      for batch, *vs in zip(batch_value, *all_values, strict=True)
  ]
  args = x, [a for a, _ in dynamic], [a for a, _ in values], mask
  axes = x_axis, [k for _, k in dynamic], [k for _, k in values], mask_axis
  hp.assume(any(k is not None for k in jax.tree.leaves(axes)))
  return Batch(op, index, examples, args, axes)


class VmapTest(parameterized.TestCase):
  """vmap is a loop, and commutes with what `jit` does to Refs."""

  @parameterized.named_parameters(*named(*OPS))
  @pytest.mark.slow
  @strategies.examples(15)
  @hp.given(st.data())
  def test_vmap_is_a_loop(self, op, data):
    dtypes = [d for d in cases.NARROW if op.accepts(d)]
    batch = data.draw(batches([op], dtypes))
    result, new = jax.jit(jax.vmap(batch.pure, batch.axes))(*batch.args)
    batch.check(result, new)

  @strategies.examples(25)
  @hp.given(batches(OPS, cases.NARROW))
  @pytest.mark.slow
  def test_discharge_commutes_with_vmap(self, batch):
    x, *rest = batch.args
    x_axis, *axes = batch.axes
    if x_axis is not None:  # Refs are mapped over their first axis
      x, x_axis = np.moveaxis(x, x_axis, 0), 0
    one = jax.tree.map(
        lambda a, axis: a if axis is None else a.take(0, axis),
        (x, *rest), (x_axis, *axes), is_leaf=lambda leaf: leaf is None,
    )

    def discharged(f, x, *args):
      closed = jax.make_jaxpr(f)(jax.new_ref(jnp.asarray(x)), *args)
      return jax.extend.core.jaxpr_as_fun(discharge.discharge_state(closed))

    flat = jax.tree.leaves((x, *rest))
    flat_axes = jax.tree.leaves(
        (x_axis, *[a for a, leaf in zip(axes, rest, strict=True)
                   if leaf is not None]),
        is_leaf=lambda leaf: leaf is None,
    )
    vmap_of_discharge = jax.vmap(discharged(batch.apply, *one), flat_axes)
    discharge_of_vmap = discharged(
        jax.vmap(batch.apply, (x_axis, *axes)), x, *rest
    )
    got, want = discharge_of_vmap(*flat), vmap_of_discharge(*flat)
    self.assertLen(got, len(want))
    if batch.op is cases.LOAD and x_axis is None:
      got[-1] = jnp.broadcast_to(got[-1], want[-1].shape)
    for a, b in zip(got, want, strict=True):
      batch.op.check_same(a, b)

  @parameterized.named_parameters(*named(*OPS))
  def test_vmap_of_vmap(self, op):
    x, idx, *values = cases.example(op)
    xs = np.stack([[x + 8 * i + j for j in range(3)] for i in range(2)])
    xs = xs.astype(x.dtype)
    idxs = np.stack([idx, idx[::-1]])
    many = [np.stack([v, v + v.dtype.type(3), v[::-1]]) for v in values]
    inner = jax.vmap(op.pure, (0, None, *[0] * len(values)))
    outer = jax.vmap(inner, (0, 0, *[None] * len(values)))
    result, new = jax.jit(outer)(xs, idxs, *many)
    for i in range(2):
      for j in range(3):
        got = None if result is None else result[i, j], new[i, j]
        op.check(got, xs[i, j], idxs[i], *[v[j] for v in many])

  @parameterized.named_parameters(*named(*OPS))
  def test_vmap_of_a_ref_argument(self, op):
    x, *args = cases.example(op)
    xs = np.stack([x, x[::-1]])
    many = [np.stack([a, a[::-1]]) for a in args]
    ref = jax.new_ref(jnp.asarray(xs))
    result = jax.jit(jax.vmap(op.apply))(ref, *many)
    for b in range(2):
      got = None if result is None else result[b], ref[b]
      op.check(got, xs[b], *[a[b] for a in many])

  @parameterized.named_parameters(*named(*OPS))
  def test_vmap_inside_scan_inside_vmap(self, op):
    x, idx, *values = cases.example(op)
    xs = np.stack([x, x[::-1]])

    def f(x, idx, values):
      ref = jax.new_ref(x)

      def step(carry, args):
        return carry, op.apply(ref, args[0], *args[1])

      _, result = lax.scan(step, (), (idx, values))
      return result, jax.freeze(ref)

    result, new = jax.jit(jax.vmap(f, (0, None, None)))(xs, idx, values)
    for b in range(2):
      got = None if result is None else result[b], new[b]
      op.check(got, xs[b], idx, *values)

  @parameterized.named_parameters(*named(*ATOMICS))
  def test_fetch(self, op):
    x, idx, *values = cases.example(op)
    xs = np.stack([x, x[::-1]])
    # Out of range in one example must not become in range of the next one.
    idxs = np.stack([np.append(idx, [5, -6]), np.append(idx, [6, -5])])
    values = [np.append(v, v[:2]) for v in values]
    f = jax.vmap(op.fetch, (0, 0, *[None] * len(values)))
    old, new = jax.jit(f)(xs, idxs.astype(np.int32), *values)
    for b in range(2):
      want = reference.fetch(op.rmw, xs[b], idxs[b], *values)
      op.check_same(old[b], want[0])
      op.check_same(new[b], want[1])

  @parameterized.named_parameters(*named(*ATOMICS))
  def test_fetch_of_unbatched_array(self, op):
    # The functions on arrays are pure: each example gets its own copy.
    x, idx, *values = cases.example(op)
    many = [np.stack([v, v[::-1]]) for v in values]
    f = jax.vmap(op.fetch, (None, None, *[0] * len(values)))
    old, new = jax.jit(f)(x, idx, *many)
    for b in range(2):
      op.check((old[b], new[b]), x, idx, *[v[b] for v in many])


if __name__ == "__main__":
  absltest.main()
