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
"""`extended` for the masked loads and stores of Pallas.

Only Triton takes an `other`, a mask to be broadcast and the hints for caches:
such an access is for it, and lowers there. What a masked swap returns where its
mask is off differs by backend (the value, or what memory has): none is ours.
"""

from __future__ import annotations

from jax._src.pallas import primitives as pallas_primitives
from jax_swapext._src import access as access_lib
from jax_swapext._src import extended
from jax_swapext._src import load
from jax_swapext._src import swap

Access = access_lib.Access
Rewritten = extended.Rewritten


def _masked_load(eqn, used):
  del used
  params = eqn.params
  if params["cache_modifier"] or params["eviction_policy"]:
    return None
  ref, transforms, mask, other = params["args_tree"].unflatten(eqn.invars)
  if params["is_volatile"] or other is not None:
    return None
  if not extended.is_ordinary(ref, transforms, eqn.outvars[0].aval.dtype):
    return None
  if not extended.has_region_shape(mask, ref, transforms):
    return None
  access = Access(tuple(transforms), mask, ())
  return Rewritten(load.load_p, ref, access, {}, True)


def _masked_swap(eqn, used):
  if eqn.params["eviction_policy"]:
    return None
  ref, transforms, value, mask = eqn.params["args_tree"].unflatten(eqn.invars)
  if not extended.is_ordinary(ref, transforms, value.aval.dtype):
    return None
  if not extended.has_region_shape(mask, ref, transforms):
    return None
  if used and mask is not None:
    return None
  access = Access(tuple(transforms), mask, (value,))
  return Rewritten(swap.swap_p, ref, access, {"need_old": used}, used)


extended.rewrites[pallas_primitives.load_p] = _masked_load
extended.rewrites[pallas_primitives.swap_p] = _masked_swap
