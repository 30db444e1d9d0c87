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
"""How the SparseCore kernel that is being lowered tiles its memory.

The place of an 8- or 16-bit element in VMEM depends on the tiling. That is a
compiler parameter, which rules of primitives do not get to see; so it is kept
while the rule of the whole kernel runs.
"""

from __future__ import annotations

import contextvars
import functools

from jax._src.pallas.mosaic import pallas_call_registration

_TC_TILING: contextvars.ContextVar[bool | None] = contextvars.ContextVar(
  "jax_swapext_tc_tiling", default=None
)


def is_tc_tiling() -> bool | None:
  """Whether the kernel has the TensorCore's tiling; None if not known."""
  return _TC_TILING.get()


def _remember(rule):
  @functools.wraps(rule)
  def remembering(ctx, *args, **params):
    # By default it has that tiling.
    chosen = getattr(params.get("compiler_params"), "use_tc_tiling_on_sc", None)
    token = _TC_TILING.set(chosen is None or bool(chosen))
    try:
      return rule(ctx, *args, **params)
    finally:
      _TC_TILING.reset(token)

  return remembering


# JAX looks the rule up in its module whenever it lowers a kernel.
pallas_call_registration.mpmd_map_tpu_lowering_rule = _remember(
  pallas_call_registration.mpmd_map_tpu_lowering_rule
)
