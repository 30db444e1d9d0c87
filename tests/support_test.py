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
"""The support matrix says what the code does: every cell of it is tried."""

import collections
import pathlib
import xml.etree.ElementTree

from absl.testing import absltest
from absl.testing import parameterized
import cases
import jax
from jax.experimental import pallas as pl
import jax.numpy as jnp
import jax_swapext as jsx
from jax_swapext._src.pallas import registered
import numpy as np
import pytest

_SHAPE = (4, 3)
_ARRAY = np.array([2, 0, 2])

# An index for each form, on an array of shape _SHAPE, as NumPy takes it; the
# array in it is passed to the kernel.
_INDICES = {
    "whole": lambda a: ...,
    "integers": lambda a: (1, 2),
    "slices": lambda a: (slice(0, 4, 2), slice(1, 3)),
    "pl.ds": lambda a: (slice(1, 3), slice(None)),
    "integer arrays": lambda a: (a, a),
    "mixed": lambda a: (slice(0, 2), a),
}


def _jax_index(form, a):
  if form == "pl.ds":
    return pl.ds(a[1] + 1, 2), slice(None)
  return _INDICES[form](a)


def _on_array(op, x, form, a, *values):
  return op.fetch(x, _jax_index(form, a), *values)


def _on_ref(op, x, form, a, *values):
  return op.pure(x, _jax_index(form, a), *values)


def _interpreted(op, x, form, a, *values):
  n = len(values)
  result = jax.ShapeDtypeStruct(np.zeros(_SHAPE)[_INDICES[form](_ARRAY)].shape,
                                x.dtype)

  def kernel(x_ref, a_ref, *refs):
    new_ref, result_ref = refs[n:]
    new_ref[...] = x_ref[...]
    operands = [r[...] for r in refs[:n]]
    out = op.apply(new_ref, _jax_index(form, a_ref[...]), *operands)
    if out is not None:
      result_ref[...] = out

  new, out = pl.pallas_call(
      kernel,
      out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype), result],
      interpret=True,
  )(x, a, *values)
  return (None if op.name == "store" else out), new


_PLACES = {
    ("outside kernels, CPU", "array"): _on_array,
    ("outside kernels, CPU", "Ref"): _on_ref,
    ("interpret=True", "any"): _interpreted,
}

_OPS = {op.name: op for op in cases.OPS}


def _supported():
  """One test for all index forms of an operation, place and dtype."""
  tests = collections.defaultdict(set)
  for row in jsx.support():
    if row.supported and (row.place, row.memory) in _PLACES:
      for operation, dtype, index in row.cells():
        tests[row.place, row.memory, operation, dtype].add(index)
  return [(*key, tuple(sorted(forms))) for key, forms in tests.items()]


def _refused():
  return [
      (row.memory, operation, dtype, row.note)
      for row in jsx.support()
      if not row.supported and (row.place, row.memory) in _PLACES
      for operation in row.operations
      for dtype in row.dtypes
  ]


class SupportTest(parameterized.TestCase):

  @parameterized.parameters(*_supported())
  @pytest.mark.slow  # above, parameterized would lose it
  def test_supported(self, place, memory, operation, dtype, forms):
    op = _OPS[operation]
    run = _PLACES[place, memory]
    dtype = np.dtype(dtype)
    x = (np.arange(12) % 5).reshape(_SHAPE).astype(dtype)

    def values(form):
      shape = x[_INDICES[form](_ARRAY)].shape
      size = int(np.prod(shape))
      value = (np.arange(size) % 3).reshape(shape).astype(dtype)
      return (value,) * op.operands

    def all_forms(x, a, values):
      return {f: run(op, x, f, a, *values[f]) for f in forms}

    with jax.enable_x64(True):
      operands = {f: values(f) for f in forms}
      got = jax.jit(all_forms)(x, _ARRAY.astype(np.int32), operands)
      for form in forms:
        with self.subTest(form):
          op.check(got[form], x, _INDICES[form](_ARRAY), *operands[form])

  @parameterized.parameters(*_refused())
  def test_refused(self, memory, operation, dtype, note):
    op = _OPS[operation]
    with jax.enable_x64(True):
      x = jnp.zeros(_SHAPE, jnp.dtype(dtype))
      values = (x,) * op.operands
      with self.assertRaises(TypeError) as raised:
        if memory == "array":
          op.fetch(x, ..., *values)
        else:
          op.pure(x, ..., *values)
    message = str(raised.exception).lower()
    self.assertIn(note.lower(), message)
    self.assertIn(op.fetch_name if memory == "array" else op.name, message)

  def test_rows_do_not_overlap(self):
    cells = [
        (row.place, row.memory, *cell)
        for row in jsx.support()
        for cell in row.cells()
    ]
    self.assertLen(set(cells), len(cells))

  def test_filters(self):
    [row] = jsx.support("fetch_xor", "CPU", "bfloat16")
    self.assertEqual((row.memory, row.supported), ("array", False))
    self.assertSequenceEqual(
        jsx.support(jsx.atomic_add, "triton", jnp.bfloat16),
        jsx.support("atomic_add", "Pallas Triton", "bfloat16"),
    )
    self.assertEqual(str(jsx.support("fetch_add", "warp")), "no such row")

  @parameterized.named_parameters(
      ("operation", ("atomic_ad",), "atomic_add, .*got 'atomic_ad'"),
      ("fetch_load", ("fetch_load",), "got 'fetch_load'"),
      ("place", (None, "H100"), "warp code, .*got 'H100'"),
      ("dtype", (None, None, "f32"), "float32, .*got 'f32'"),
  )
  def test_unknown_filter(self, args, regex):
    with self.assertRaisesRegex(ValueError, regex):
      jsx.support(*args)

  def test_prints_as_a_table(self):
    lines = str(jsx.support("atomic_add")).splitlines()
    self.assertStartsWith(lines[0], "place")
    self.assertIn("row-major order", " ".join(" ".join(lines).split()))

  def test_notebooks_show_every_row(self):
    matrix = jsx.support(place="CPU")
    page = xml.etree.ElementTree.fromstring(matrix._repr_html_())
    title, *rows = page.iter("tr")
    self.assertEqual([c.text for c in title][:2], ["place", "memory"])
    self.assertEqual(
        [tuple(c.text for c in row) for row in rows],
        [row.texts() for row in matrix],
    )

  def test_page_of_the_documentation(self):
    page = pathlib.Path(__file__).parents[1] / "docs" / "support.md"
    title, _, rest = page.read_text().partition("\n## ")
    self.assertStartsWith(title, "# What works where")
    # `make docs/support.md` writes it anew.
    self.assertEqual(f"## {rest}".rstrip(), jsx.support().markdown().rstrip())

  def test_page_promises_what_is_registered(self):
    page = pathlib.Path(__file__).parents[1] / "docs" / "support.md"
    places = {place.lower(): place for place in registered.TABLES}
    promises = []
    for line in page.read_text().splitlines():
      match line.replace(r"\|", " ").split(" | "):
        case [heading] if heading.startswith("## "):
          place = places[heading.removeprefix("## ").lower()]
        case [memory, operations, _, "yes", _]:
          memory = memory.removeprefix("| ")
          promises += [(place, memory, o) for o in operations.split(", ")]
    self.assertSameElements({p for p, *_ in promises}, registered.TABLES)
    self.assertEmpty(registered.missing(promises))


if __name__ == "__main__":
  absltest.main()
