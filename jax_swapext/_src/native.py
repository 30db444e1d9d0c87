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
"""An equation in one backend's own syntax, and its meaning in ours.

Some stock syntax is one backend's own: Triton's hints for caches, SparseCore's
compressing stores. Where that backend is, the equation has to be what it was,
or the module would not be the same; anywhere else nothing knows it. So
`extended` puts both into one equation of this primitive, and who lowers or
interprets it takes the one that fits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jax.interpreters import mlir
from jax_swapext._src import compat

# Params: `stock` and `stock_params`, of the equation as it was, and `jaxpr`,
# its meaning, of the same operands and results.
native_p = compat.Primitive("swapext_native")
native_p.multiple_results = True


def equation(eqn: Any, meaning: Callable[..., Any]) -> Any:
  """An equation of `native_p` in the place of a stock one.

  Args:
    eqn: the stock equation.
    meaning: a function of its operands to its results, or to its only one. It
      may use this library's operations and JAX's.
  """
  jaxpr = compat.trace_on(meaning, [v.aval for v in eqn.invars])
  params = {
      "stock": eqn.primitive, "stock_params": tuple(eqn.params.items()),
      "jaxpr": jaxpr,
  }
  return compat.replace_eqn(eqn, native_p, eqn.invars, eqn.outvars, params)


def call_stock(
    rules: Mapping[Any, Callable[..., Any]], ctx: Any, args: Any,
    stock: Any, stock_params: Any,
) -> list[Any]:
  """The results of a backend's rule for the stock equation."""
  out = rules[stock](ctx, *args, **dict(stock_params))
  return out if stock.multiple_results else [out]


@native_p.def_effectful_abstract_eval
def _native_abstract_eval(*avals, jaxpr, **_):
  del avals  # Those of the jaxpr.
  place = {v: k for k, v in enumerate(jaxpr.invars)}
  effects = {
      e.replace(place[e.input]) if hasattr(e, "input") else e
      for e in jaxpr.effects
  }
  return [v.aval for v in jaxpr.outvars], effects


# Transformations, eager execution and XLA need the meaning alone.
compat.evaluate_where_not_staged(native_p)


def _native_evaluated(*args, jaxpr, **_):
  return compat.eval_jaxpr(jaxpr, (), *args)


mlir.register_lowering(native_p, mlir.lower_fun(_native_evaluated))


@compat.register_discharge_rule(native_p)
def _native_discharge(ctx, *args, jaxpr, **_):
  return compat.discharge_call(ctx, args, jaxpr)
