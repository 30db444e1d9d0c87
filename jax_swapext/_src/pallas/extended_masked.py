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

Only Triton takes an `other`, a mask to be broadcast and the hints for caches;
elsewhere the first two are ours to lower, and the hints mean nothing.
"""

from __future__ import annotations

from jax._src.pallas import primitives as pallas_primitives
from jax_swapext._src import access as access_lib
from jax_swapext._src import load
from jax_swapext._src import native
from jax_swapext._src import rewrite
from jax_swapext._src import swap

Access = access_lib.Access
Rewritten = rewrite.Rewritten


def _masked_load(eqn, used):
  del used
  params = eqn.params
  tree = params["args_tree"]
  ref, transforms, mask, other = tree.unflatten(eqn.invars)
  # To read again what others write means something everywhere.
  if params["is_volatile"]:
    return None
  if not rewrite.is_ordinary(ref, transforms, eqn.outvars[0].aval.dtype):
    return None
  hints = params["cache_modifier"] or params["eviction_policy"]
  whole = rewrite.has_region_shape(mask, ref, transforms)
  if hints or other is not None or not whole:

    def meaning(*flat):
      ref, transforms, mask, other = tree.unflatten(flat)
      view = rewrite.view(ref, transforms)
      return load.load(view, mask=mask, other=other)

    return native.equation(eqn, meaning)
  access = Access(tuple(transforms), mask, ())
  return Rewritten(load.load_p, ref, access, {}, True)


def _masked_swap(eqn, used):
  tree = eqn.params["args_tree"]
  ref, transforms, value, mask = tree.unflatten(eqn.invars)
  if not rewrite.is_ordinary(ref, transforms, value.aval.dtype):
    return None
  whole = rewrite.has_region_shape(mask, ref, transforms)
  if eqn.params["eviction_policy"] or not whole:

    def meaning(*flat):
      ref, transforms, value, mask = tree.unflatten(flat)
      view = rewrite.view(ref, transforms)
      old = swap.swap(view, None, value, mask=mask)
      return old if used else value

    return native.equation(eqn, meaning)
  access = Access(tuple(transforms), mask, (value,))
  return Rewritten(swap.swap_p, ref, access, {"need_old": used}, used)


rewrite.rules[pallas_primitives.load_p] = _masked_load
rewrite.rules[pallas_primitives.swap_p] = _masked_swap
