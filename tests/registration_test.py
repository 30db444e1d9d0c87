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
"""Each place has a rule for what the support matrix promises, and no others.

One rule is then taken away at each place, and all that look have to name it.
`demo_test` has a whole run of the demo without one.
"""

import contextlib
import importlib
import io
import sys
import unittest
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
from jax._src.interpreters import mlir
from jax._src.pallas.mosaic import core as tpu_core
from jax._src.pallas.mosaic import lowering as tpu_registry
from jax._src.pallas.mosaic.interpret import interpret_pallas_call
from jax._src.pallas.mosaic_gpu import core as gpu_core
from jax._src.pallas.mosaic_gpu import lowering as gpu_registry
from jax._src.pallas.mosaic_gpu.interpret import jaxpr_interpret
from jax._src.pallas.triton import lowering as triton_registry
from jax._src.state import discharge
import jax_swapext as jsx
from jax_swapext import __main__ as main
from jax_swapext._src import fetch_update
from jax_swapext._src import pallas
from jax_swapext._src.pallas import registered
import support_test

_CORES = tpu_core.CoreType


def _without(table, primitive):
  """As long as it is entered, a table has no rule for a primitive."""
  rest = {p: rule for p, rule in table.items() if p is not primitive}
  return mock.patch.dict(table, rest, clear=True)


def _gpu(semantics):
  return gpu_registry.mosaic_lowering_rules[semantics]


# What is taken away, where it is missed, and what is said of it.
_BROKEN = (
    ("cpu", lambda: _without(
        mlir._platform_specific_lowerings["cpu"], jsx.fetch_update_p),
     "outside kernels, CPU", "fetch_update_p", "atomic_add"),
    ("cuda", lambda: _without(
        mlir._platform_specific_lowerings["cuda"], jsx.fetch_update_p),
     "outside kernels, GPU", "fetch_update_p", "atomic_add"),
    ("rocm", lambda: _without(
        mlir._platform_specific_lowerings["rocm"], jsx.fetch_update_p),
     "outside kernels, GPU", "fetch_update_p", "atomic_xor"),
    ("tpu", lambda: _without(
        mlir._platform_specific_lowerings["tpu"], jsx.fetch_update_p),
     "outside kernels, TPU", "fetch_update_p", "atomic_add"),
    ("discharge", lambda: _without(discharge._discharge_rules, jsx.load_p),
     "interpret=True", "load_p", "load"),
    ("warp_code", lambda: _without(
        _gpu(gpu_core.WGxWARP_SEMANTICS), jsx.swap_p),
     "Mosaic GPU, warp code", "swap_p", "store, swap"),
    ("warpgroup_code", lambda: _without(
        _gpu(gpu_core.LANExWG_SEMANTICS), jsx.atomic_rmw_p),
     "Mosaic GPU, warpgroup code", "atomic_rmw_p", "atomic_min"),
    ("gpu_interpreter", lambda: mock.patch.object(
        jaxpr_interpret.JaxprInterpreter, "interpret",
        jaxpr_interpret.JaxprInterpreter.__init__),
     "GPU interpreter", "atomic_cas_p", "atomic_cas"),
    ("triton", lambda: _without(
        triton_registry.triton_lowering_rules, jsx.atomic_cas_p),
     "Pallas Triton", "atomic_cas_p", "atomic_cas"),
    ("tensorcore", lambda: _without(
        tpu_registry.lowering_rules[_CORES.TC], jsx.swap_p),
     "TPU TensorCore", "swap_p", "store, swap"),
    ("vector_subcore", lambda: _without(
        tpu_registry.lowering_rules[_CORES.SC_VECTOR_SUBCORE], jsx.load_p),
     "TPU SparseCore, vector subcore", "load_p", "load"),
    ("scalar_subcore", lambda: _without(
        tpu_registry.lowering_rules[_CORES.SC_SCALAR_SUBCORE], jsx.swap_p),
     "TPU SparseCore, scalar subcore", "swap_p", "store, swap"),
    ("tpu_interpreter", lambda: mock.patch.object(
        interpret_pallas_call, "_interpret_jaxpr",
        interpret_pallas_call.interpret_pallas_call),
     "TPU interpret mode", "load_p", "load"),
)


class RegistrationTest(parameterized.TestCase):

  def test_what_is_promised_is_registered(self):
    self.assertEmpty(registered.missing())

  def test_what_is_registered_is_promised(self):
    self.assertSameElements(
        registered.TABLES, {row.place for row in jsx.support()}
    )
    refuse = fetch_update.refuse_in_kernel
    promised = {(r.place, p) for r in jsx.support() if r.supported
                for o in r.operations
                for p in registered.primitives_of(o, r.memory)}
    found = {(place, name) for place, tables in registered.TABLES.items()
             for name, primitive in registered.PRIMITIVES.items()
             if any(table.get(primitive, refuse) is not refuse
                    for table in tables())}
    self.assertSetEqual(found, promised)

  @parameterized.parameters(*pallas._RULES_FOR.items())
  def test_jax_has_each_registry_that_is_waited_for(self, theirs, ours):
    importlib.import_module(theirs)
    self.assertIn(ours, sys.modules)

  def test_a_registry_that_has_moved_is_named(self):
    with mock.patch.dict(sys.modules, {triton_registry.__package__: None}):
      [line] = registered.missing()
    self.assertStartsWith(line, "Pallas Triton: no rules at all, Mod")
    self.assertIn(triton_registry.__package__, line)


class BrokenRuleTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    # Loads all backends: a rule that comes while its table is patched would be
    # lost with the patch.
    self.assertEmpty(registered.missing())

  @parameterized.named_parameters(*_BROKEN)
  def test_all_name_what_is_missing(
      self, broken, place, primitive, operations
  ):
    said = rf"{place}: no rule for {primitive} \(.*{operations}.*\)"
    with broken():
      for case, test in (
          (RegistrationTest, "test_what_is_promised_is_registered"),
          (support_test.SupportTest, "test_page_promises_what_is_registered"),
      ):
        result = unittest.TestResult()
        case(test).run(result)
        [(_, trace)] = result.failures
        self.assertRegex(trace, said)
      with contextlib.redirect_stdout(io.StringIO()) as stdout:
        main._say_rules()
    self.assertRegex(stdout.getvalue(), said)
    self.assertEmpty(registered.missing())


if __name__ == "__main__":
  absltest.main()
