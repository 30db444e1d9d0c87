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
import functools
from typing import Any

from jax.interpreters import mlir
from jax_swapext._src import compat

# Params: `stock` and `stock_params`, of the equation as it was, and `jaxpr`,
# its meaning, of the same operands and results.
native_p = compat.Primitive("swapext_native")
native_p.multiple_results = True


def equation(eqn: Any, meaning: Callable[..., Any], *key: Any) -> Any:
  """An equation of `native_p` in the place of a stock one.

  Args:
    eqn: the stock equation.
    meaning: a function of `key` to one of the equation's operands to its
      results, or to its only one. That may use this library's operations and
      JAX's.
    key: hashable; all that the second function depends on.
  """
  avals = tuple(v.aval for v in eqn.invars)
  jaxpr = _traced(meaning, key, avals, compat.trace_context())
  # Errors are to point at the user's line, not at `meaning`.
  jaxpr = jaxpr.replace(eqns=[compat.at_line_of(eqn, e) for e in jaxpr.eqns])
  params = {
      "stock": eqn.primitive, "stock_params": tuple(eqn.params.items()),
      "jaxpr": jaxpr,
  }
  return compat.replace_eqn(eqn, native_p, eqn.invars, eqn.outvars, params)


# A kernel may have hundreds of such equations, most of them alike.
@functools.lru_cache(maxsize=1024)
def _traced(meaning, key, avals, context):
  del context  # That of the trace; only here to tell cached ones apart.
  return compat.trace_on(meaning(*key), avals)


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
  effects = compat.by_place(jaxpr.effects, jaxpr.invars)
  return [v.aval for v in jaxpr.outvars], effects


# Transformations, eager execution and XLA need the meaning alone.
compat.evaluate_where_not_staged(native_p)


def _native_evaluated(*args, jaxpr, **_):
  return compat.eval_jaxpr(jaxpr, (), *args)


mlir.register_lowering(native_p, mlir.lower_fun(_native_evaluated))


@compat.register_discharge_rule(native_p)
def _native_discharge(ctx, *args, jaxpr, **_):
  return compat.discharge_call(ctx, args, jaxpr)
