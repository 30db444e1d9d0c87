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
"""All of the API inside kernels, under `pallas_call(..., interpret=True)`."""

import functools

from absl.testing import absltest
from absl.testing import parameterized
import cases
from cases import ATOMICS
from cases import OPS
from cases import named
from cases import ops_by_dtype
import hypothesis as hp
from hypothesis import strategies as st
import jax
from jax import lax

# Private: what the interpreter does to the Refs of a kernel, as a function from
# jaxpr to jaxpr; to see what an access becomes there is no other way.
from jax._src.state import discharge
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
import jax_swapext as jsx
import numpy as np
import pytest
import reference
from reference import Window
import strategies
from strategies import Access
from strategies import Index

MUTATING = tuple(op for op in OPS if op is not cases.LOAD)


def run(op, access, x, values):
  """The operation in a kernel; `(result, new_x)` as `Op.pure` has them.

  Whatever is dynamic, the mask and all operands are inputs of the kernel.
  """
  mask = [] if access.mask is None else [access.mask]
  inputs = [x, *access.index.dynamic(), *values, *mask]
  # Blocks of rank 0 are not for every backend: scalars travel as one element.
  shapes = [np.shape(a) for a in inputs]
  inputs = [np.reshape(a, np.shape(a) or (1,)) for a in inputs]
  n = len(access.index.dynamic())
  # Of an empty region there is nothing to return.
  region = access.region if 0 not in access.region else ()
  returns = op is not cases.STORE and 0 not in access.region

  def kernel(x_ref, *refs):
    *in_refs, new_ref, old_ref = refs
    new_ref[...] = x_ref[...]
    args = [
        r[...].reshape(s) for r, s in zip(in_refs, shapes[1:], strict=True)
    ]
    index, operands = args[:n], args[n : n + len(values)]
    result = op.apply(
        new_ref.at[0] if shapes[0] == () else new_ref,
        access.index.jax(index),
        *operands,
        mask=args[-1] if mask else None,
    )
    if returns:
      old_ref[...] = result.reshape(old_ref.shape)

  old = jax.ShapeDtypeStruct(region or (1,), x.dtype)
  new = jax.ShapeDtypeStruct(inputs[0].shape, x.dtype)
  call = pl.pallas_call(kernel, out_shape=(new, old), interpret=True)
  new, old = jax.jit(call)(*inputs)
  if op is cases.STORE:
    old = None
  elif returns:
    old = old.reshape(region)
  else:
    old = np.zeros(access.region, x.dtype)
  return old, new.reshape(x.shape)


def _access(shape, idx, traced=(), mask=None):
  flags = tuple(k in traced for k in range(len(idx)))
  index = Index(idx, flags, (None,) * len(idx))
  return Access(shape, index, None if mask is None else np.asarray(mask))


FORMS = {
    "whole": _access((3, 4), ()),
    "scalar": _access((3, 4), (np.int32(2), 1), traced=(0,)),
    "strided": _access((3, 9), (np.int32(1), slice(0, None, 2)), (0,)),
    "ragged": _access((10,), (Window(4, 8),), (0,), np.arange(4, 12) < 10),
    "repeated": _access((5,), (np.array([1, 1, 3, 1]),), (0,)),
    "repeated_masked": _access(
        (5,), (np.array([1, 1, 9, 1]),), (0,), [True, True, False, True]
    ),
    "rows": _access((4, 3), (np.array([2, 0, 2]), slice(1, 3)), (0,)),
    "empty": _access((3,), (slice(1, 1),)),
}


def _operands(op, dtype, access):
  x = cases.values(dtype, access.shape)
  values = [
      cases.values(dtype, () if 0 in access.region else access.region, seed)
      for seed in range(1, op.operands + 1)
  ]
  if op is cases.CAS and 0 not in access.region:
    at = reference.positions(access.shape, access.index.numpy())
    values[0] = np.where(at % 2 == 0, x.reshape(-1)[at], values[0])
  return x, values


class OracleTest(parameterized.TestCase):

  @parameterized.named_parameters(
      *named(*ops_by_dtype([np.dtype("int32")])),
      *named((cases.ADD, np.dtype("float32"))),
  )
  def test_index_forms(self, op, dtype):
    for name, access in FORMS.items():
      with self.subTest(name):
        x, values = _operands(op, dtype, access)
        got = run(op, access, x, values)
        op.check(got, x, access.index.numpy(), *values, mask=access.mask)

  @parameterized.named_parameters(*named(*ops_by_dtype(cases.NARROW)))
  @pytest.mark.slow
  def test_dtypes(self, op, dtype):
    access = FORMS["repeated_masked"]
    x, values = _operands(op, dtype, access)
    got = run(op, access, x, values)
    op.check(got, x, access.index.numpy(), *values, mask=access.mask)

  @pytest.mark.slow
  @strategies.examples(60)
  @hp.given(st.data())
  def test_random(self, data):
    shape = strategies.shapes(min_size=1, max_rank=4)
    # A kernel cannot capture arrays, so those of an index are its arguments.
    call = strategies.calls(
        OPS, cases.NARROW, shape=shape, static_arrays=False
    )
    op, access, x, values = data.draw(call)
    # Pallas has no empty blocks, so no empty arguments.
    arguments = [*access.index.dynamic(), *values, access.mask]
    hp.assume(all(np.size(a) for a in arguments))
    got = run(op, access, x, values)
    op.check(got, x, access.index.numpy(), *values, mask=access.mask)


class KernelTest(parameterized.TestCase):
  """What kernels do around an access."""

  def test_histogram_over_a_grid(self):
    data = np.random.default_rng(0).integers(0, 16, 4 * 32).astype(np.int32)

    def kernel(data_ref, count_ref):
      @pl.when(pl.program_id(0) == 0)
      def _():
        count_ref[...] = jnp.zeros_like(count_ref)

      jsx.atomic_add(count_ref, data_ref[...], 1)

    counts = pl.pallas_call(
        kernel,
        grid=4,
        in_specs=[pl.BlockSpec((32,), lambda i: i)],
        out_specs=pl.BlockSpec((16,), lambda i: 0),
        out_shape=jax.ShapeDtypeStruct((16,), jnp.int32),
        interpret=True,
    )(data)
    np.testing.assert_array_equal(counts, np.bincount(data, minlength=16))

  @parameterized.named_parameters(
      *named(*[jnp.dtype(d) for d in (np.float32, jnp.bfloat16, np.int8)])
  )
  def test_ragged_tail(self, dtype):
    n, block = 20, 8
    x = cases.values(dtype, (n,))

    def kernel(x_ref, o_ref):
      start = pl.program_id(0) * block
      mask = start + jnp.arange(block) < n
      value = jsx.load(x_ref, pl.ds(start, block), mask=mask)
      jsx.store(o_ref, pl.ds(start, block), value, mask=mask)

    whole = pl.BlockSpec((n,), lambda i: 0)
    got = pl.pallas_call(
        kernel,
        grid=pl.cdiv(n, block),
        in_specs=[whole],
        out_specs=whole,
        out_shape=jax.ShapeDtypeStruct(x.shape, dtype),
        interpret=True,
    )(x)
    cases.assert_same(got, x)

  def test_ragged_load_fills_with_other(self):
    x = np.arange(5.0, dtype=np.float32)

    def kernel(x_ref, o_ref):
      mask = jnp.arange(4) < 2
      o_ref[...] = jsx.load(x_ref, pl.ds(3, 4), mask=mask, other=-1)

    out = jax.ShapeDtypeStruct((4,), jnp.float32)
    got = pl.pallas_call(kernel, out_shape=out, interpret=True)(x)
    np.testing.assert_array_equal(got, [3, 4, -1, -1])

  @parameterized.named_parameters(*named(*OPS))
  def test_scratch(self, op):
    access = FORMS["repeated"]
    if not op.is_atomic:
      access = _access((5,), (np.array([1, 3, 0]),))
    x, values = _operands(op, np.int32, access)
    [idx] = access.index.numpy()

    def kernel(x_ref, i_ref, *refs):
      *in_refs, old_ref, new_ref, scratch_ref = refs
      scratch_ref[...] = x_ref[...]
      result = op.apply(scratch_ref, i_ref[...], *[r[...] for r in in_refs])
      new_ref[...] = scratch_ref[...]
      old_ref[...] = jnp.zeros_like(old_ref) if result is None else result

    old, new = pl.pallas_call(
        kernel,
        out_shape=(
            jax.ShapeDtypeStruct(access.region, x.dtype),
            jax.ShapeDtypeStruct(x.shape, x.dtype),
        ),
        scratch_shapes=[pltpu.VMEM(x.shape, x.dtype)],
        interpret=True,
    )(x, idx, *values)
    old = None if op is cases.STORE else old
    op.check((old, new), x, access.index.numpy(), *values)

  @parameterized.named_parameters(*named(*OPS))
  def test_at_chain_and_program_id(self, op):
    # Row by row, each program its own, through two views and a dynamic slice.
    access = _access((3, 8), (slice(None), slice(3, 7, 2)))
    x, values = _operands(op, np.int32, access)

    def kernel(x_ref, *refs):
      *in_refs, old_ref, new_ref = refs
      row = pl.program_id(0)

      @pl.when(row == 0)
      def _():
        new_ref[...] = x_ref[...]

      view = new_ref.at[row].at[pl.ds(row * 0 + 1, 6)]
      operands = [r[row] for r in in_refs]
      result = op.apply(view, slice(2, 6, 2), *operands)
      old_ref[row] = operands[-1] if result is None else result

    whole = lambda shape: pl.BlockSpec(shape, lambda i: (0, 0))
    old, new = pl.pallas_call(
        kernel,
        grid=3,
        in_specs=[whole(a.shape) for a in (x, *values)],
        out_specs=(whole((3, 2)), whole(x.shape)),
        out_shape=(
            jax.ShapeDtypeStruct((3, 2), x.dtype),
            jax.ShapeDtypeStruct(x.shape, x.dtype),
        ),
        interpret=True,
    )(x, *values)
    old = None if op is cases.STORE else old
    op.check((old, new), x, access.index.numpy(), *values)

  @parameterized.named_parameters(*named(*OPS))
  def test_vmap_of_kernel(self, op):
    access = FORMS["repeated_masked"]
    if not op.is_atomic:
      access = _access((5,), (np.array([1, 3, 9]),), mask=[True, True, False])
    [idx] = access.index.numpy()
    x, values = _operands(op, np.int32, access)
    mask = np.stack([access.mask, access.mask & (np.arange(len(idx)) > 0)])

    def kernel(x_ref, i_ref, m_ref, *refs):
      *in_refs, old_ref, new_ref = refs
      new_ref[...] = x_ref[...]
      operands = [r[...] for r in in_refs]
      result = op.apply(new_ref, i_ref[...], *operands, mask=m_ref[...])
      old_ref[...] = operands[-1] if result is None else result

    call = pl.pallas_call(
        kernel,
        out_shape=(
            jax.ShapeDtypeStruct(access.region, x.dtype),
            jax.ShapeDtypeStruct(x.shape, x.dtype),
        ),
        interpret=True,
    )
    xs = np.stack([x, x[::-1]])
    batched = jax.vmap(call, (0, None, 0, *[None] * len(values)))
    old, new = batched(xs, idx, mask, *values)
    for b in range(2):
      got = None if op is cases.STORE else old[b], new[b]
      op.check(got, xs[b], (idx,), *values, mask=mask[b])

  @parameterized.named_parameters(*named(*ATOMICS))
  def test_loop_inside_the_kernel(self, op):
    idx = np.array([1, 1, 3, 1, 0], np.int32)
    access = _access((5,), (idx,))
    x, values = _operands(op, np.int32, access)

    def kernel(x_ref, i_ref, *refs):
      *in_refs, old_ref, new_ref = refs
      new_ref[...] = x_ref[...]

      def body(k, carry):
        old_ref[k] = op.apply(new_ref, i_ref[k], *[r[k] for r in in_refs])
        return carry

      lax.fori_loop(0, 5, body, ())

    old, new = pl.pallas_call(
        kernel,
        out_shape=(
            jax.ShapeDtypeStruct((5,), x.dtype),
            jax.ShapeDtypeStruct((5,), x.dtype),
        ),
        interpret=True,
    )(x, idx, *values)
    op.check((old, new), x, (idx,), *values)

  def test_squeezed_block(self):
    x = np.arange(12, dtype=np.int32).reshape(3, 4)

    def kernel(x_ref, o_ref, old_ref):
      o_ref[...] = x_ref[...]
      old_ref[...] = jsx.swap(o_ref, pl.ds(1, 2), -x_ref[1:3])

    row = pl.BlockSpec((None, 4), lambda i: (i, 0))
    new, old = pl.pallas_call(
        kernel,
        grid=3,
        in_specs=[row],
        out_specs=(row, pl.BlockSpec((None, 2), lambda i: (i, 0))),
        out_shape=(
            jax.ShapeDtypeStruct((3, 4), jnp.int32),
            jax.ShapeDtypeStruct((3, 2), jnp.int32),
        ),
        interpret=True,
    )(x)
    np.testing.assert_array_equal(old, x[:, 1:3])
    np.testing.assert_array_equal(new[:, 1:3], -x[:, 1:3])
    np.testing.assert_array_equal(new[:, ::3], x[:, ::3])

  def test_input_aliased_with_output(self):
    def kernel(x_ref, o_ref):
      del x_ref  # The same buffer as o_ref, which starts as its copy.
      jsx.atomic_add(o_ref, 2 * (jnp.arange(3) // 2), 10)

    got = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((4,), jnp.int32),
        input_output_aliases={0: 0},
        interpret=True,
    )(jnp.arange(4, dtype=jnp.int32))
    np.testing.assert_array_equal(got, [20, 1, 12, 3])

  @parameterized.named_parameters(*named(*MUTATING))
  def test_cost_estimate(self, op):
    values = [jnp.zeros(64, "int32")] * op.operands
    idx = jnp.zeros(64, "int32")

    def f(x, idx, *values):
      return op.pure(x, idx, *values)

    cost = pl.estimate_cost(f, jnp.zeros(1000, "int32"), idx, *values)
    # At least the operands and the elements written.
    self.assertGreaterEqual(cost.bytes_accessed, 2 * 64 * 4)


class WholeRefTest(parameterized.TestCase):
  """An access costs what it touches, not what the Ref holds."""

  SIZE = 4096

  def _index_and_mask(self, form):
    mask = jax.ShapeDtypeStruct((16,), jnp.bool_)
    if form == "array":
      return jax.ShapeDtypeStruct((16,), jnp.int32), mask, lambda i: i
    start = jax.ShapeDtypeStruct((), jnp.int32)
    return start, mask, lambda i: pl.ds(i, 16)

  @parameterized.named_parameters(
      *named(*[(op, form) for op in OPS for form in ("window", "array")])
  )
  def test_no_pad_and_no_copy_in_the_discharged_kernel(self, op, form):
    i, mask, to_index = self._index_and_mask(form)
    values = [jax.ShapeDtypeStruct((16,), jnp.int32)] * op.operands

    def f(ref, i, mask, *values):
      return op.apply(ref, to_index(i), *values, mask=mask)

    ref = jax.new_ref(jnp.zeros(self.SIZE, jnp.int32))
    closed = discharge.discharge_state(jax.make_jaxpr(f)(ref, i, mask, *values))
    found = whole_array_equations(closed.jaxpr, self.SIZE)
    self.assertEmpty(found)

  @parameterized.named_parameters(*named(*OPS))
  def test_masked_window_in_a_kernel(self, op):
    # All of it, in the compiled kernel: whatever copies there are, stock loads
    # and stores of a window have the same ones.
    values = [jax.ShapeDtypeStruct((16,), jnp.int32)] * op.operands

    def kernel(i_ref, *refs, access):
      *in_refs, x_ref, o_ref = refs
      o_ref[...] = access(x_ref, i_ref[0], *[r[...] for r in in_refs])

    def compiled(access):
      block = lambda n: jax.ShapeDtypeStruct((n,), jnp.int32)
      call = pl.pallas_call(
          functools.partial(kernel, access=access),
          out_shape=(block(self.SIZE), block(16)),
          interpret=True,
      )
      lowered = jax.jit(call).lower(block(1), *values)
      return lowered.compile().as_text()

    def ours(ref, i, *values):
      result = op.apply(ref, pl.ds(i, 16), *values, mask=jnp.arange(16) > i)
      return values[-1] if result is None else result

    def stock(ref, i, *values):
      old = ref[pl.ds(i, 16)]
      ref[pl.ds(i, 16)] = old + 1
      return old

    self.assertLessEqual(
        whole_array_instructions(compiled(ours), self.SIZE),
        whole_array_instructions(compiled(stock), self.SIZE),
    )


def whole_array_equations(jaxpr, size) -> list[str]:
  """Equations, inner ones too, that make a new array of `size` or more."""
  moving = ("pad", "concatenate", "gather", "select_n", "copy", "roll", "rev")
  found = []
  for eqn in jaxpr.eqns:
    for inner in jax.tree.leaves(
        list(eqn.params.values()), is_leaf=lambda p: hasattr(p, "eqns")
    ):
      inner = getattr(inner, "jaxpr", inner)
      if hasattr(inner, "eqns"):
        found += whole_array_equations(inner, size)
    if eqn.primitive.name in moving and any(
        v.aval.size >= size for v in eqn.outvars
    ):
      found.append(str(eqn))
  return found


def whole_array_instructions(hlo: str, size: int) -> int:
  lines = [s for s in hlo.splitlines() if f"= s32[{size}]" in s]
  moving = (" copy(", " pad(", " concatenate(", " select(", " gather(")
  return sum(any(m in line for m in moving) for line in lines)


if __name__ == "__main__":
  absltest.main()
