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
"""What is done to a whole kernel made by `pl.kernel` before it is lowered.

The place of an 8- or 16-bit element in a SparseCore's VMEM depends on the
tiling. That is a compiler parameter, which rules of primitives do not get to
see; so it is kept while the rule of the whole kernel runs.

Results that nobody uses are dropped, as `pl.pallas_call` does: ours then cost
less. Kernels in stock syntax stay as they are.
"""

from __future__ import annotations

import contextvars
import functools
from typing import Any

from jax._src import core
from jax._src.interpreters import partial_eval as pe
from jax._src.pallas.mosaic import pallas_call_registration
from jax_swapext._src import native
from jax_swapext._src.pallas import tpu_lowering

_TC_TILING: contextvars.ContextVar[bool | None] = contextvars.ContextVar(
  "jax_swapext_tc_tiling", default=None
)


def is_tc_tiling() -> bool | None:
  """Whether the kernel has the TensorCore's tiling; None if not known."""
  return _TC_TILING.get()


def _has_ours(jaxpr: Any) -> bool:
  """Whether it has accesses of ours that stand for no stock equation."""
  ours = any(
    eqn.primitive in tpu_lowering.PRIMITIVES and eqn.params.get("stock") is None
    for eqn in jaxpr.eqns
  )
  # What an equation of `native` means elsewhere is not in this kernel.
  inner = [
    j
    for eqn in jaxpr.eqns
    if eqn.primitive is not native.native_p
    for j in core.jaxprs_in_params(eqn.params)
  ]
  return ours or any(map(_has_ours, inner))


def _without_unused(jaxpr: Any) -> Any:
  if not _has_ours(jaxpr):
    return jaxpr
  used = [True] * len(jaxpr.outvars)
  return pe.dce_jaxpr(jaxpr, used, instantiate=True)[0]


def _prepared(rule):
  @functools.wraps(rule)
  def preparing(ctx, *args, jaxprs, **params):
    # By default it has that tiling.
    chosen = getattr(params.get("compiler_params"), "use_tc_tiling_on_sc", None)
    token = _TC_TILING.set(chosen is None or bool(chosen))
    try:
      return rule(
        ctx, *args, jaxprs=tuple(map(_without_unused, jaxprs)), **params
      )
    finally:
      _TC_TILING.reset(token)

  return preparing


# JAX looks the rule up in its module whenever it lowers a kernel.
pallas_call_registration.mpmd_map_tpu_lowering_rule = _prepared(
  pallas_call_registration.mpmd_map_tpu_lowering_rule
)
