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
"""`extended` for the masked loads and stores of Pallas."""

from __future__ import annotations

from jax import lax
from jax._src.pallas import primitives as pallas_primitives
from jax_swapext._src import access as access_lib
from jax_swapext._src import extended
from jax_swapext._src import indexing
from jax_swapext._src import load
from jax_swapext._src import swap

Rewritten = extended.Rewritten


def to_region(eqn, ref, transforms, mask, operand, name):
  """A mask and an operand of the region's type, and the equations for that.

  Args:
    eqn: the stock equation.
    ref: the variable of its Ref.
    transforms: of variables.
    mask: a variable that broadcasts to the region, or None.
    operand: the same.
    name: the operation, for error messages.

  Returns:
    The new mask, the new operand, and a list of equations.
  """
  region = extended.view_aval(ref, transforms)

  def spread(x, dtype):
    if x.dtype != dtype:
      x = lax.convert_element_type(x, dtype)
    return indexing.broadcast(name, "an operand", x, region.shape)

  eqns = []
  given = []
  for x, dtype in ((mask, bool), (operand, region.dtype)):
    if x is not None and (x.aval.shape, x.aval.dtype) != (region.shape, dtype):
      more, [x] = extended.inlined(
          eqn, lambda x, dtype=dtype: [spread(x, dtype)], x
      )
      eqns += more
    given.append(x)
  return *given, eqns


def _masked_load(eqn, used):
  del used
  params = eqn.params
  if params["cache_modifier"] or params["eviction_policy"]:
    return None  # Hints that Triton alone takes.
  if params["is_volatile"]:
    return None
  ref, transforms, mask, other = params["args_tree"].unflatten(eqn.invars)
  if not extended.is_ordinary(ref, transforms):
    return None
  if mask is None:
    other = None
  mask, other, eqns = to_region(eqn, ref, transforms, mask, other, "load")
  operands = () if other is None else (other,)
  access = access_lib.Access(tuple(transforms), mask, operands)
  return Rewritten(load.load_p, ref, access, {}, True, eqns)


def _masked_swap(eqn, used):
  if eqn.params["eviction_policy"]:
    return None
  ref, transforms, value, mask = eqn.params["args_tree"].unflatten(eqn.invars)
  if not extended.is_ordinary(ref, transforms):
    return None
  mask, _, eqns = to_region(eqn, ref, transforms, mask, None, "swap")
  access = access_lib.Access(tuple(transforms), mask, (value,))
  return Rewritten(swap.swap_p, ref, access, {"need_old": used}, used, eqns)


extended.rewrites[pallas_primitives.load_p] = _masked_load
extended.rewrites[pallas_primitives.swap_p] = _masked_swap
