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
"""Costs of the Ref primitives for `pl.estimate_cost`.

As for JAX's own Ref operations, the bytes are those of the function's arguments
and results, which are counted there; only arithmetic is counted here.
"""

from __future__ import annotations

import math

from jax._src.pallas import cost_estimate
from jax_swapext._src import atomic_cas
from jax_swapext._src import atomic_rmw
from jax_swapext._src import load
from jax_swapext._src import native
from jax_swapext._src import semantics
from jax_swapext._src import swap


def _moves(ctx, **_):
  """Loads, stores and exchanges compute nothing."""
  del ctx
  return cost_estimate.CostEstimate(
      flops=0, transcendentals=0, bytes_accessed=0
  )


def _computes(ctx, *, tree, op=semantics.AtomicOp.CAS, **_):
  """One operation an element; a masked-off one may cost as much as any."""
  if op is semantics.AtomicOp.XCHG:
    return _moves(ctx)
  _, *leaves = ctx.avals_in
  [value, *_] = tree.unflatten(leaves).operands
  return cost_estimate.CostEstimate(
      flops=math.prod(value.shape), transcendentals=0, bytes_accessed=0
  )


def _means(ctx, *, jaxpr, **_):
  del ctx
  return cost_estimate.cost_estimate_jaxpr(jaxpr)


cost_estimate.register_cost_rule(load.load_p, _moves)
cost_estimate.register_cost_rule(swap.swap_p, _moves)
cost_estimate.register_cost_rule(atomic_rmw.atomic_rmw_p, _computes)
cost_estimate.register_cost_rule(atomic_cas.atomic_cas_p, _computes)
cost_estimate.register_cost_rule(native.native_p, _means)
