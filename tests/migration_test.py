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
"""docs/migration.md: each row of its table is run, in both syntaxes."""

from __future__ import annotations

import pathlib
import re

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc
from jax.experimental.pallas import triton as pltriton
import jax.numpy as jnp
import jax_swapext as jsx
import numpy as np

_PAGE = pathlib.Path(__file__).parents[1].joinpath("docs/migration.md")
_ROWS = re.findall(r"(?m)^\| (.*?) \| (.*?) \|", _PAGE.read_text())[1:]

_I = np.array([3, 5, 5, 7, 1, 6, 3, 0], np.int32)
_J = np.array([2, 1, 1, 4, 0, 7, 5, 6], np.int32)
_X = np.random.default_rng(0).integers(1, 9, (8, 8)).astype(np.int32)


def _set(ref, index, value):
  ref[index] = value


def _expanded(load):
  """Stock leaves open what the other elements are."""
  return lambda i, j, x, o: _set(
      o, 0, jnp.where(i[...] > 3, load(x.at[1], i[...] > 3), 0)
  )


# What the first column of a row starts with: a kernel in each syntax, of the
# Refs of `i`, `j` and `x` and of the result, which starts as `x`.
_KERNELS = {
    "`ref[idx]`": (
        lambda i, j, x, o: _set(o, 0, x[i[...], 2]),
        lambda i, j, x, o: jsx.store(o, 0, jsx.load(x, (i[...], 2))),
    ),
    "`ref[idx] = x`": (
        lambda i, j, x, o: _set(o, (1, pl.ds(2, 4)), x[3, pl.ds(1, 4)]),
        lambda i, j, x, o: jsx.store(o, (1, pl.ds(2, 4)), x[3, pl.ds(1, 4)]),
    ),
    "`jax.ref.swap(": (
        lambda i, j, x, o: _set(o, 2, jax.ref.swap(o, 3, x[1])),
        lambda i, j, x, o: jsx.store(o, 2, jsx.swap(o, 3, x[1])),
    ),
    "`ref[idx] += x`": (
        lambda i, j, x, o: _set(o, 3, o[3] + x[1]),
        lambda i, j, x, o: jsx.store(o, 3, jsx.load(o, 3) + x[1]),
    ),
    "`jax.ref.addupdate(": (
        lambda i, j, x, o: jax.ref.addupdate(o, i[...], x[...]),
        lambda i, j, x, o: jsx.atomic_add(o, i[...], x[...]),
    ),
    "`pltpu.load(": (
        lambda i, j, x, o: _set(
            o, 0, pltriton.load(x.at[1], mask=i[...] > 3, other=7)),
        lambda i, j, x, o: jsx.store(
            o, 0, jsx.load(x.at[1], mask=i[...] > 3, other=7)),
    ),
    "`pltpu.store(": (
        lambda i, j, x, o: pltpu.store(o.at[0], x[1], mask=i[...] > 3),
        lambda i, j, x, o: jsx.store(o.at[0], None, x[1], mask=i[...] > 3),
    ),
    "`eviction_policy=`": (
        lambda i, j, x, o: pltriton.store(
            o.at[0], pltriton.load(x.at[1], cache_modifier=".cg"),
            eviction_policy="evict_first"),
        lambda i, j, x, o: jsx.store(o.at[0], None, jsx.load(x.at[1])),
    ),
    "`plsc.addupdate(": (
        lambda i, j, x, o: plsc.addupdate(o.at[0], x[1]),
        lambda i, j, x, o: jsx.atomic_add(o.at[0], None, x[1]),
    ),
    "`plsc.load_gather(": (
        lambda i, j, x, o: _set(
            o, 0, plsc.load_gather(x, [i[...], j[...]], mask=i[...] > 3)),
        lambda i, j, x, o: jsx.store(
            o, 0, jsx.load(x, (i[...], j[...]), mask=i[...] > 3)),
    ),
    "`plsc.store_scatter(": (
        lambda i, j, x, o: plsc.store_scatter(
            o, [i[...], j[...]], x[1], mask=j[...] > 1),
        lambda i, j, x, o: jsx.store(
            o, (i[...], j[...]), x[1], mask=j[...] > 1),
    ),
    "`plsc.addupdate_scatter(": (
        lambda i, j, x, o: plsc.addupdate_scatter(
            o, [i[...], j[...]], x[1], mask=i[...] > 3),
        lambda i, j, x, o: jsx.atomic_add(
            o, (i[...], j[...]), x[1], mask=i[...] > 3),
    ),
    "`plsc.load_expanded(": (
        _expanded(lambda ref, m: plsc.load_expanded(ref, mask=m)),
        _expanded(lambda ref, m: jsx.load(ref, jnp.cumsum(m) - 1, mask=m)),
    ),
    "`plsc.store_compressed(": (
        lambda i, j, x, o: plsc.store_compressed(
            o.at[0], x[1], mask=i[...] > 3),
        lambda i, j, x, o: jsx.store(
            o.at[0], jnp.cumsum(i[...] > 3) - 1, x[1], mask=i[...] > 3),
    ),
    "`plsc.addupdate_compressed(": (
        lambda i, j, x, o: plsc.addupdate_compressed(
            o.at[0], x[1], mask=i[...] > 3),
        lambda i, j, x, o: jsx.atomic_add(
            o.at[0], jnp.cumsum(i[...] > 3) - 1, x[1], mask=i[...] > 3),
    ),
    "`plgpu.load`": (
        lambda i, j, x, o: plgpu.store(o.at[0], plgpu.load(x.at[1])),
        lambda i, j, x, o: jsx.store(o.at[0], None, jsx.load(x.at[1])),
    ),
    "`plgpu.atomic_add(": (
        lambda i, j, x, o: plgpu.atomic_add(o, x[...]),
        lambda i, j, x, o: jsx.atomic_add(o, None, x[...]),
    ),
    "`pltriton.atomic_add(": (
        lambda i, j, x, o: pltriton.atomic_add(
            o, (i[...], j[...]), x[1], mask=i[...] > 3),
        lambda i, j, x, o: jsx.atomic_add(
            o, (i[...], j[...]), x[1], mask=i[...] > 3, sem="acq_rel"),
    ),
    "`pltriton.atomic_cas(": (
        lambda i, j, x, o: pltriton.atomic_cas(o.at[1, 2], x[1, 2], 77),
        lambda i, j, x, o: jsx.atomic_cas(
            o, (1, 2), x[1, 2], 77, sem="acq_rel"),
    ),
}  # fmt: skip


def _call(body, **kwargs):
  def kernel(i, j, x, o):
    o[...] = x[...]
    body(i, j, x, o)

  out = jax.ShapeDtypeStruct(_X.shape, _X.dtype)
  return pl.pallas_call(kernel, out, **kwargs)


def _ours(jaxpr, found):
  """Our primitives in a jaxpr, with what they do, but for their place in it."""
  for eqn in jaxpr.eqns:
    if eqn.primitive.name.startswith("swapext_") and "tree" in eqn.params:
      op = getattr(eqn.params.get("op"), "value", "")
      found.add((eqn.primitive.name, op, eqn.params.get("sem")))
    for inner in jax.tree.leaves(
        list(eqn.params.values()), is_leaf=lambda x: hasattr(x, "eqns")
    ):
      if hasattr(inner, "eqns"):
        _ours(inner, found)
  return found


class MigrationTest(parameterized.TestCase):

  def test_every_row_is_tested(self):
    rows = [row for row, _ in _ROWS if not row.startswith("---")]
    self.assertLen(rows, len(_KERNELS))
    for row, start in zip(rows, _KERNELS):
      self.assertStartsWith(row, start)

  @parameterized.parameters(*_KERNELS)
  def test_means_what_the_row_says(self, name):
    stock, ours = _KERNELS[name]
    got = _call(jsx.extended(stock), interpret=True)(_I, _J, _X)
    wanted = _call(ours, interpret=True)(_I, _J, _X)
    self.assertNotEqual(wanted.tolist(), _X.tolist())
    np.testing.assert_array_equal(got, wanted)

  @parameterized.parameters(*_KERNELS)
  def test_becomes_what_the_row_says(self, name):
    stock, ours = _KERNELS[name]
    with jsx.extend_everywhere():
      made, by_hand = (
          _ours(jax.make_jaxpr(_call(body))(_I, _J, _X), set())
          for body in (stock, ours)
      )
    self.assertEqual(made, by_hand)


if __name__ == "__main__":
  absltest.main()
