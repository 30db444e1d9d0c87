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
"""`extended` for `plsc.addupdate`.

The compressing and expanding forms have no other meaning to give them, and the
indexed ones take what the hardware takes.
"""

from __future__ import annotations

from jax._src.pallas.mosaic import sc_primitives
from jax_swapext._src import access as access_lib
from jax_swapext._src import atomic_rmw
from jax_swapext._src import extended
from jax_swapext._src import semantics


def _swap(eqn, used):
  params = eqn.params
  if used or params["has_mask"] or not params["add"]:
    return None
  ref, value, *leaves = eqn.invars
  transforms = params["tree"].unflatten(leaves)
  op = semantics.AtomicOp.ADD
  if not extended.is_ordinary(ref, transforms, value.aval.dtype, op):
    return None
  access = access_lib.Access(tuple(transforms), None, (value,))
  return extended.Rewritten(
      atomic_rmw.atomic_rmw_p, ref, access, extended.atomic_params(op), False
  )


extended.rewrites[sc_primitives.swap_p] = _swap
