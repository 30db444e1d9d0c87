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
"""A user's program that calls all of the public API, annotated.

`make dist` has mypy and pyrefly read it beside the installed wheel, as strictly
as they can; `typed_user_test` runs it.
"""

from collections.abc import Callable
from typing import assert_type

import jax
from jax.experimental import pallas as pl
from jax.extend.core import Primitive
import jax.numpy as jnp
import jax_swapext as jsx
from jax_swapext import examples
from jax_swapext import mosaic_gpu
from jax_swapext import testing
import numpy as np

Pair = tuple[jax.Array, jax.Array]

VERSION: str = jsx.__version__
PRIMITIVES: list[Primitive] = [
    jsx.load_p, jsx.swap_p, jsx.atomic_rmw_p, jsx.atomic_cas_p,
    jsx.fetch_update_p,
]


def on_arrays(x: jax.Array, i: jax.Array) -> jax.Array:
  """Arrays, NumPy's too, and Python's numbers."""
  assert_type(jsx.fetch_add(x, i, 1), Pair)
  assert_type(jsx.fetch_max(x, (i,), np.arange(3), order="any"), Pair)
  assert_type(jsx.fetch_min(x, i, 2, mask=i > 0), Pair)
  assert_type(jsx.fetch_and(x, slice(2), True), Pair)
  assert_type(jsx.fetch_or(x, ..., x), Pair)
  assert_type(jsx.fetch_xor(x, None, 3), Pair)
  assert_type(jsx.fetch_cas(x, i, 0, 1), Pair)
  old, new = jsx.fetch_xchg(np.zeros(4, np.int32), i, 1, unique_indices=True)
  assert_type(old, jax.Array)
  return new


def on_refs(ref: jax.Ref, i: jax.Array) -> None:
  """Refs, in kernels or outside."""
  assert_type(jsx.load(ref), jax.Array)
  assert_type(jsx.load(ref, i, mask=i > 0, other=7), jax.Array)
  assert_type(jsx.swap(ref, pl.ds(0, 2), 1), jax.Array)
  jsx.store(ref, (i,), np.int32(4), mask=i > 0)
  assert_type(jsx.atomic_add(ref, i, 1, order="index"), jax.Array)
  assert_type(jsx.atomic_max(ref, i, 1, sem="acq_rel"), jax.Array)
  assert_type(jsx.atomic_min(ref, i, 1, scope="device"), jax.Array)
  assert_type(jsx.atomic_and(ref, i, 6), jax.Array)
  assert_type(jsx.atomic_or(ref, i, 1), jax.Array)
  assert_type(jsx.atomic_xor(ref, i, 1), jax.Array)
  assert_type(jsx.atomic_xchg(ref, i, 5), jax.Array)
  assert_type(jsx.atomic_cas(ref, i, 5, 6), jax.Array)


def double(x_ref: jax.Ref, o_ref: jax.Ref) -> None:
  o_ref[...] = x_ref[...] + x_ref[...]


# A decorated function has the type that it had.
extended: Callable[[jax.Ref, jax.Ref], None] = jsx.extended(double)

# Only warp code of Mosaic GPU kernels may call these.
IN_WARPS: list[Callable[[], None]] = [
    mosaic_gpu.warp_barrier, mosaic_gpu.commit_smem,
]


def in_kernels(x: jax.Array) -> jax.Array:
  with jsx.extend_everywhere():
    result: jax.Array = pl.pallas_call(
        extended, jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=True
    )(x)
  return result


def what_works(operation: str) -> list[str]:
  rows = jsx.support(operation, place="CPU", dtype="int32")
  for row in rows:
    assert_type(row.dtypes, tuple[str, ...])
    assert_type(row.supported, bool)
  return [row.note for row in rows]


def by_examples(x: jax.Array) -> Pair:
  assert_type(examples.expert_positions(x, 8), Pair)
  assert_type(examples.dispatch(jnp.ones((3, 2)), x, 8, capacity=4), Pair)
  assert_type(examples.bincount(x, 8), jax.Array)
  assert_type(examples.embedding_gradient(x, jnp.ones((3, 2)), 8), jax.Array)
  cache = examples.PagedCache.empty(4, 2, 2, 3, 2)
  cache, where = examples.append(cache, jnp.ones((3, 2)), x > 0)
  assert_type(where, jax.Array)
  assert_type(examples.release(cache, x > 0), examples.PagedCache)
  table, slot = examples.hash_insert(jnp.full(8, -1), x)
  assert_type(slot, jax.Array)
  return table, examples.hash_find(table, x)


def compiled(f: Callable[[jax.Array], jax.Array], x: jax.Array) -> int | None:
  try:
    program = testing.compile_for(testing.TARGETS[0], f, x, timeout=100)
  except testing.CompileError as e:
    print(assert_type(e.target, str), assert_type(e.output, str))
    return None
  assert_type(program, testing.Compiled)
  assert_type(program.ptx, str | None)
  assert_type(program.summary(), str)
  return program.bundles


class KernelTest(testing.KernelTestCase):
  """As users write them; run by `typed_user_test`, with no compiler."""

  def test_double(self) -> None:
    x = jnp.arange(8)

    def kernel(x: jax.Array, interpret: bool) -> jax.Array:
      out = jax.ShapeDtypeStruct(x.shape, x.dtype)
      result: jax.Array = pl.pallas_call(double, out, interpret=interpret)(x)
      return result

    def twice(x: jax.Array) -> jax.Array:
      return 2 * x

    self.assertMatchesReference(kernel, twice, x, modes=("hlo",))
    self.assertLess(assert_type(self.tolerance(jnp.float32), float), 1e-5)
