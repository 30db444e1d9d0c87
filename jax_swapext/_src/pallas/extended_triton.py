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
from jax_swapext._src import atomic_rmw
from jax_swapext._src import extended
from jax_swapext._src import semantics


def _atomic_rmw(eqn, used):
  args_tree, kind = eqn.params["args_tree"], eqn.params["atomic_type"]
  ref, transforms, value, mask = args_tree.unflatten(eqn.invars)
  op = semantics.AtomicOp(kind.value)
  if not extended.is_ordinary(ref, transforms, value.aval.dtype, op):
    return None
  if not extended.has_region_shape(mask, ref, transforms):
    return None
  access = access_lib.Access(tuple(transforms), mask, (value,))
  params = extended.atomic_params(op, sem="acq_rel", need_old=used)
  return extended.Rewritten(
      atomic_rmw.atomic_rmw_p, ref, access, params, used
  )


extended.rewrites[primitives.atomic_rmw_p] = _atomic_rmw
