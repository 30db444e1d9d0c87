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
"""`extended` for the atomics of Pallas Triton."""

from __future__ import annotations

from jax._src.pallas.triton import primitives
from jax_swapext._src import access as access_lib
from jax_swapext._src import atomic_cas
from jax_swapext._src import atomic_rmw
from jax_swapext._src import compat
from jax_swapext._src import extended
from jax_swapext._src import native
from jax_swapext._src import rewrite
from jax_swapext._src import semantics
import numpy as np

_SEM = "acq_rel"
_NARROW = frozenset({"bool", "int8", "int16", "bfloat16"})


def _update(ref, transforms, value, mask, kind):
  function = getattr(atomic_rmw, f"atomic_{kind.value}")
  view = rewrite.view(ref, transforms)
  return function(view, None, value, mask=mask, sem=_SEM)


def _atomic_rmw(eqn, used):
  args_tree, kind = eqn.params["args_tree"], eqn.params["atomic_type"]
  ref, transforms, value, mask = args_tree.unflatten(eqn.invars)
  op = semantics.AtomicOp(kind.value)
  if not rewrite.is_ordinary(ref, transforms, value.aval.dtype, op):
    return None
  if not rewrite.has_region_shape(mask, ref, transforms):

    def meaning(*flat):
      ref, transforms, value, mask = args_tree.unflatten(flat)
      old = _update(ref, transforms, value, mask, kind)
      return old if used else value

    return native.equation(eqn, meaning)
  access = access_lib.Access(tuple(transforms), mask, (value,))
  params = rewrite.atomic_params(op, sem=_SEM, need_old=used)
  return rewrite.Rewritten(
      atomic_rmw.atomic_rmw_p, ref, access, params, used
  )


def _narrow_atomic_rmw(*flat, args_tree, atomic_type):
  """Stock refuses elements of 16 and 8 bits for all backends."""
  ref, transforms, value, mask = args_tree.unflatten(flat)
  name = np.dtype(value.dtype).name
  is_add = atomic_type is primitives.AtomicOpType.ADD
  if name not in _NARROW and (name != "float16" or is_add):
    return None
  return _update(ref, transforms, value, mask, atomic_type)


def _cas(ref, expected, value):
  return atomic_cas.atomic_cas(ref, None, expected, value, sem=_SEM)


def _atomic_cas(eqn, used):
  del used
  ref, _, value = eqn.invars
  op = semantics.AtomicOp.CAS
  if not rewrite.is_ordinary(ref, (), value.aval.dtype, op):
    return None
  return native.equation(eqn, _cas)


def _atomic_cas_of_elements(ref, expected, value):
  """Stock wants a Ref that is an element; there are no such Refs to others."""
  if not isinstance(ref, compat.TransformedRef) and not ref.shape:
    return None
  return _cas(ref, expected, value)


rewrite.rules[primitives.atomic_rmw_p] = _atomic_rmw
rewrite.rules[primitives.atomic_cas_p] = _atomic_cas
extended.take_more(primitives.atomic_rmw_p, _narrow_atomic_rmw)
extended.take_more(primitives.atomic_cas_p, _atomic_cas_of_elements)
