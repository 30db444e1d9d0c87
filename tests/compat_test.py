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
"""Every private JAX name this library uses exists and is called as it allows.

A new JAX release should fail here first, with the name that it moved.
"""

import ast
import importlib
import inspect
import pathlib
import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax_swapext._src import compat
from jax_swapext._src.xla import partition

_PACKAGE = pathlib.Path(compat.__file__).parents[1]

# What `compat` calls, and the arguments that it, or its users, pass.
_CALLS = {
    "apply_primitive": (None,),
    "register_discharge_rule": (None,),
    "constrain": (None, None, True),
    "unconstrain": (None, None, True),
    "instantiate": (None,),
    "state_remat": (None, None, None),
    "state_partial_eval_custom": (None, [], [], None),
    "moveaxis": (None, 0, 0),
    "bitcast": (None, None),
    "pp_ref_transforms": (None, None, ()),
    "pp_var": (None, None),
    "summarize_source_info": (None,),
    "auto_insert_reshard": (None, None),
    "transform_type": ((), None),
    "NDIndexer": ((), (), ()),
    "ReshapeTransform": ((),),
    "TransposeTransform": ((),),
    "BitcastTransform": (None,),
    "Slice": (0, 1, 1),
    "ReadEffect": (0,),
    "WriteEffect": (0,),
    "Primitive": ("name",),
    "insert_pvary_for_write": (None, None),
    "replace_eqns": (None, ()),
    "trace_thunk": (None, None),
    "splice": (None,),
    "discharge_call": (None, (), None),
    "trace_on": (None, ()),
    "eval_jaxpr": (None, ()),
    "evaluate_where_not_staged": (None,),
}

# Attributes that the library reads from a private class.
_ATTRIBUTES = {
    "TransformedRef": ("type", "multiref"),
    "NDIndexer": ("get_indexer_shape_static", "tree_flatten"),
    "GradAccum": ("accum",),
    "Zero": ("aval",),
    "Slice": ("is_dynamic_start",),
}


class CompatTest(parameterized.TestCase):

  @parameterized.parameters(*_CALLS)
  def test_signature(self, name):
    signature = inspect.signature(getattr(compat, name))
    signature.bind(*_CALLS[name])  # raises a TypeError if it does not fit

  def test_pp_vars_takes_print_shapes(self):
    inspect.signature(compat.pp_vars).bind([], None, print_shapes=True)

  @parameterized.parameters(*_ATTRIBUTES)
  def test_attributes(self, name):
    for attribute in _ATTRIBUTES[name]:
      with self.subTest(attribute):
        self.assertTrue(hasattr(getattr(compat, name), attribute))

  def test_tables_that_rules_are_put_into_exist(self):
    for name in ("fancy_transposes", "remat_rules", "pp_eqn_rules"):
      with self.subTest(name):
        self.assertIsInstance(getattr(compat, name), dict)

  def test_set_that_primitives_are_put_into_exists(self):
    self.assertIsInstance(compat.prim_requires_devices, set)

  def test_lowering_context_tells_who_partitions(self):
    fields = inspect.signature(partition.sharding_impls.ShardingContext)
    self.assertContainsSubset(
        ("num_devices", "abstract_mesh"), fields.parameters
    )

  def test_primitive_is_the_public_one(self):
    core = importlib.import_module("jax.extend.core")
    self.assertIs(compat.Primitive, core.Primitive)

  def test_slice_is_what_ds_returns(self):
    self.assertIsInstance(jax.ds(0, 1), compat.Slice)

  def test_dce_rules_take_the_liveness_that_this_jax_passes(self):
    default = importlib.import_module(
        "jax._src.interpreters.partial_eval"
    )._default_dce_rule
    self.assertIn(len(inspect.signature(default).parameters), (2, 3))

  @parameterized.parameters(
      ("0.12.0.1", (0, 12, 0, 1)), ("0.11.2", (0, 11, 2)), ("1.0rc1", (1,))
  )
  def test_version_tuple(self, version, expected):
    self.assertEqual(compat.version_tuple(version), expected)

  def test_private_names_come_through_their_doors(self):
    # The linter says so too, but it cannot see an attribute: `jax._src.core`.
    allowed = {_PACKAGE / "_src" / "compat.py"}
    for path in sorted(_PACKAGE.rglob("*.py")):
      if path in allowed or path.parent.name in ("pallas", "xla"):
        continue
      tree = ast.parse(path.read_text())
      private = [
          node.lineno
          for node in ast.walk(tree)
          if isinstance(node, ast.Attribute)
          and node.attr == "_src"
          and isinstance(node.value, ast.Name)
          and node.value.id == "jax"
      ]
      with self.subTest(path.name):
        self.assertEmpty(private)

  def test_rules_register_after_a_reload(self):
    # Two finders of ours that called one another would recurse for ever.
    program = (
        "import importlib, jax_swapext._src.pallas as hook;"
        "importlib.reload(hook);"
        "from jax._src.pallas import cost_estimate;"
        "import jax_swapext;"
        "assert jax_swapext.load_p in cost_estimate._cost_rules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)

  def test_every_private_name_in_compat_is_used(self):
    source = "\n".join(
        p.read_text() for p in _PACKAGE.rglob("*.py") if p.name != "compat.py"
    )
    tree = ast.parse((_PACKAGE / "_src" / "compat.py").read_text())
    names = [
        target.id
        for node in tree.body
        if isinstance(node, (ast.Assign, ast.AnnAssign))
        for target in (
            node.targets if isinstance(node, ast.Assign) else [node.target]
        )
        if isinstance(target, ast.Name) and not target.id.startswith("_")
    ]
    self.assertNotEmpty(names)
    unused = [n for n in names if f"compat.{n}" not in source]
    self.assertEmpty(unused)


if __name__ == "__main__":
  absltest.main()
