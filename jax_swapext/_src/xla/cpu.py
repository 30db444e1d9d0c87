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
"""The CPU rule of `fetch_update_p`: a loop in place, or XLA's own scatter."""

from __future__ import annotations

import math

from jax.interpreters import mlir
from jax_swapext._src import fetch_update


def _fetch_update_cpu(x, idx, *operands, mask, op, order, reverse,
                      unique_indices, need_old):
  del order  # The loop's order costs nothing, and XLA CPU scatters in order.
  args = (x, idx, *operands)
  # Between these sizes the gather and the scatter of whole rows are faster than
  # the loop; for shorter and longer rows they are not.
  if unique_indices and 8 <= math.prod(x.shape[1:]) < 256:
    return fetch_update.at_once(*args, mask=mask, op=op, need_old=need_old)
  if not need_old and fetch_update.can_scatter(op, x.dtype, not reverse):
    return fetch_update.scatter(*args, mask=mask, op=op)
  return fetch_update.sequential(
      *args, mask=mask, op=op, reverse=reverse, need_old=need_old
  )


mlir.register_lowering(
    fetch_update.fetch_update_p,
    fetch_update.lowering(_fetch_update_cpu),
    platform="cpu",
)
