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
"""Chains of views, and indices of every width: the positions are NumPy's."""

from absl.testing import absltest
from absl.testing import parameterized
import cases
import jax
import jax.numpy as jnp
import jax_swapext as jsx
from jax_swapext._src import compat
import numpy as np

_SHAPE = (4, 6)

# Outside `jit` and other transformations, JAX 0.11 has no views of Refs.
_HAS_EAGER_VIEWS = compat.version_tuple(jax.__version__) >= (0, 12)
_JIT = (False, True) if _HAS_EAGER_VIEWS else (True,)


def _a(*indices):
  return np.array(indices)


# Indices applied one after another: `ref.at[first].at[second]...`. NumPy takes
# the same on an array of positions.
_CHAINS = {
    "negative_scalar": [-1],
    "negative_scalar_of_slice": [np.s_[1:3], -1],
    "negative_scalar_then_array": [-2, _a(0, 5, -1)],
    "negative_scalars": [-1, -1],
    "strided_then_scalar": [np.s_[::2], 1],
    "strided_then_negative_array": [np.s_[:, 1::2], (0, _a(-1, 0))],
    "strided_twice": [np.s_[::2, ::2], np.s_[1:, ::2]],
    "array_then_slice": [_a(2, 0), np.s_[:, 1:4]],
    "array_then_scalar": [_a(2, 0, 3), -1],
    "array_then_array": [_a(2, 0, 2), (_a(0, 2, 1), _a(5, 5, 0))],
    "repeated_then_repeated": [_a(1, 1), _a(0, 1, 0)],
    "columns_then_rows": [np.s_[:, _a(3, 1)], _a(0, -1)],
    "column_then_repeated": [np.s_[:, 2], _a(3, 3)],
}

# The others take the same way; `oracle_test` has all on one view.
_OPS = (cases.LOAD, cases.STORE, cases.SWAP, cases.ADD, cases.CAS)

_WIDTHS = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32)


def _positions(chain):
  positions = np.arange(np.prod(_SHAPE)).reshape(_SHAPE)
  for idx in chain:
    positions = positions[idx]
  return positions


def _view(ref, chain):
  for idx in chain:
    ref = ref.at[idx]
  return ref


class ChainTest(parameterized.TestCase):

  @parameterized.product(
      chain=list(_CHAINS), op=_OPS, jit=_JIT, last_apart=(0, 1)
  )
  def test_chain(self, chain, op, jit, last_apart):
    """The last index is a part of the view, or the index of the operation."""
    chain = _CHAINS[chain]
    n = len(chain) - last_apart
    idx = chain[-1] if last_apart else ()
    positions = _positions(chain)
    x = np.arange(24, dtype=np.int32)
    value = np.arange(positions.size, dtype=np.int32) % 5
    values = (value.reshape(positions.shape),) * op.operands

    def run(x):
      ref = jax.new_ref(x)
      result = op.apply(_view(ref, chain[:n]), idx, *values)
      return result, jax.freeze(ref).reshape(-1)

    if jit:
      run = jax.jit(run)
    op.check(run(x.reshape(_SHAPE)), x, positions, *values)

  @parameterized.product(masked=(False, True), jit=_JIT)
  def test_masked_negative_view(self, masked, jit):
    mask = np.array([True, False, True]) if masked else np.ones(3, bool)

    def run():
      ref = jax.new_ref(jnp.arange(6).reshape(2, 3))
      old = jsx.atomic_add(ref.at[-1], ..., 10, mask=mask)
      return old, ref[...]

    old, new = (jax.jit(run) if jit else run)()
    np.testing.assert_array_equal(old, np.where(mask, [3, 4, 5], 0))
    np.testing.assert_array_equal(new[1], [3, 4, 5] + 10 * mask)

  @parameterized.parameters(jax.grad, jax.vmap, jax.jit)
  def test_view_made_directly_under(self, transform):
    def f(x):
      return jsx.load(jax.new_ref(x).at[0:2], 1).sum()

    x = jnp.ones((3, 4, 2)) if transform is jax.vmap else jnp.ones((3, 4))
    transform(f)(x)  # raises nothing

  def test_outside_of_a_view_is_not_a_neighbour(self):
    ref = jax.new_ref(jnp.arange(12))
    old = jax.jit(lambda ref, i: jsx.atomic_add(ref.at[4:8], i, 100))(
        ref, jnp.array([4, -5, 1, 300])
    )
    np.testing.assert_array_equal(old, [0, 0, 5, 0])
    np.testing.assert_array_equal(ref[...], np.arange(12) + 100 * (
        np.arange(12) == 5))

  def test_none_may_not_reorder_repeated_elements(self):
    @jax.jit
    def f():
      view = jax.new_ref(jnp.zeros((2, 2, 1))).at[_a(0, 0, 1)]
      jsx.atomic_xchg(view, (slice(0, 2), _a(0, 0), None, _a(0, 0)), 1)

    with self.assertRaisesRegex(
        NotImplementedError, "atomic_xchg: wanted no None.*reshape"
    ):
      f()


class KnownStartTest(parameterized.TestCase):
  """Arrays of known value as starts, which JAX makes part of a tree's data."""

  @parameterized.product(
      view=(False, True) if _HAS_EAGER_VIEWS else (False,),
      integer=(jnp.int32, lambda i: np.array(i, np.int8)),
  )
  def test_derivative(self, view, integer):

    def f(x, i):
      ref = jax.new_ref(x)
      start = integer(i)
      jsx.swap(ref.at[jax.ds(start, 4)] if view else ref, jax.ds(start, 2), 2.0)
      return (ref[...] ** 2).sum()

    x = np.arange(6, dtype=np.float32)
    for i in (0, 1, 0):
      want = 2 * x
      first = 2 * i if view else i
      want[first : first + 2] = 0
      np.testing.assert_array_equal(jax.grad(f)(x, i), want)

  def test_out_of_bounds(self):
    with self.assertRaisesRegex(ValueError, r"load: .*\[5, 7\)"):
      jsx.load(jax.new_ref(jnp.zeros(6)), jax.ds(jnp.int32(5), 2))


class WidthTest(parameterized.TestCase):

  @parameterized.product(dtype=_WIDTHS, traced=(False, True))
  def test_array(self, dtype, traced):
    x = jnp.arange(400)
    idx = np.array([3, 100, min(np.iinfo(dtype).max, 399)], dtype)
    f = lambda i: jsx.fetch_add(x, i, 1)
    old, new = jax.jit(f)(idx) if traced else f(idx)
    np.testing.assert_array_equal(old, idx)
    self.assertEqual(new.sum(), x.sum() + 3)

  @parameterized.parameters(*_WIDTHS)
  def test_batched_start(self, dtype):
    starts = np.array([100, 3], dtype)
    got = jax.vmap(lambda i: jsx.load(jax.new_ref(jnp.arange(400)),
                                      jax.ds(i, 200)))(starts)
    np.testing.assert_array_equal(got, starts.astype(int)[:, None] +
                                  np.arange(200))

  @parameterized.parameters(np.uint32, np.int64, np.uint64)
  def test_far_outside(self, dtype):
    with jax.enable_x64(True):
      info = np.iinfo(dtype)
      idx = np.array([1, info.max, info.max // 2 + 3, 2**31 + 5], dtype)
      old, new = jax.jit(jsx.fetch_add)(np.arange(8, dtype="i4"), idx,
                                        np.int32(1))
      np.testing.assert_array_equal(old, [1, 0, 0, 0])
      np.testing.assert_array_equal(new, [0, 2, 2, 3, 4, 5, 6, 7])

  @parameterized.product(
      start=(2**31, 2**63, 2**70, -(2**31) - 1, -(2**70)),
      index=(int, lambda i: jax.ds(i, 2)),
  )
  def test_static_far_outside(self, start, index):
    x = np.arange(4, dtype=np.int32)
    old, new = jsx.fetch_add(x, index(start), 1)
    self.assertFalse(old.any())
    np.testing.assert_array_equal(new, x)
    ref = jax.new_ref(x)
    self.assertFalse(jsx.load(ref, index(start), mask=False).any())
    with self.assertRaisesRegex(ValueError, r"load: .* got .?-?\d+"):
      jsx.load(ref, index(start))

  @parameterized.parameters((0, 2, 2**31), (None, 2, 2**31 - 1), (0, 2**40, 1))
  def test_too_wide_a_slice(self, start, size, stride):

    def f(i):
      start_ = i if start is None else start
      return jsx.fetch_add(np.arange(4.0), jax.ds(start_, size, stride), 1.0)

    with self.assertRaisesRegex(NotImplementedError, "fetch_add: .* pl.ds"):
      jax.eval_shape(f, np.int32(0))

  def test_too_long_a_dimension(self):
    x = jax.ShapeDtypeStruct((3 * 2**30,), np.int8)
    with self.assertRaisesRegex(NotImplementedError, "fetch_add: wanted dim"):
      jax.eval_shape(lambda x, i: jsx.fetch_add(x, i, 1), x, np.int32(1))


if __name__ == "__main__":
  absltest.main()
