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
"""`extended` for the loads, stores and atomics of `plgpu`.

They lower for Mosaic GPU alone, so what that refuses can be told here, and the
rest keeps its stock equation. Code for a warp is the exception: it is not known
yet whether this is some.
"""

from __future__ import annotations

import math

from jax._src.pallas.mosaic_gpu import core as gpu_core
from jax._src.pallas.mosaic_gpu import primitives
from jax_swapext._src import access as access_lib
from jax_swapext._src import atomic_rmw
from jax_swapext._src import compat
from jax_swapext._src import load
from jax_swapext._src import native
from jax_swapext._src import rewrite
from jax_swapext._src import semantics
from jax_swapext._src import swap

Access = access_lib.Access
AtomicOp = semantics.AtomicOp
Rewritten = rewrite.Rewritten

_WARPGROUP_SIZE = 128


def _is_whole_warpgroups(ref, transforms) -> bool:
  size = math.prod(rewrite.view_aval(ref, transforms).shape)
  return size % _WARPGROUP_SIZE == 0


def _load(eqn, used):
  del used
  ref, *leaves = eqn.invars
  transforms = eqn.params["tree"].unflatten(leaves)
  dtype = eqn.outvars[0].aval.dtype
  if not rewrite.is_ordinary(ref, transforms, dtype, plain=True):
    return None
  scalar = not rewrite.view_aval(ref, transforms).shape
  if scalar or _is_whole_warpgroups(ref, transforms):
    return None
  return Rewritten(
      load.load_p, ref, Access(tuple(transforms), None, ()), {}, True
  )


def _store(eqn, used):
  del used
  ref, value, *leaves = eqn.invars
  transforms = eqn.params["tree"].unflatten(leaves)
  if not rewrite.is_ordinary(ref, transforms, value.aval.dtype, plain=True):
    return None
  scalar = math.prod(value.aval.shape) == 1
  if scalar or _is_whole_warpgroups(ref, transforms):
    return None
  access = Access(tuple(transforms), None, (value,))
  return Rewritten(swap.swap_p, ref, access, {"need_old": False}, False)


def _atomic_store(eqn, used):
  del used
  args_tree, kind = eqn.params["args_tree"], eqn.params["atomic_type"]
  ref, transforms, value = args_tree.unflatten(eqn.invars)
  op = AtomicOp(kind.value)
  if not rewrite.is_ordinary(ref, transforms, value.aval.dtype, op):
    return None
  if _is_whole_warpgroups(ref, transforms):
    # The layout of the value decides, and other backends have no rule.
    update = getattr(atomic_rmw, f"atomic_{kind.value}")

    def meaning(*flat):
      ref, transforms, value = args_tree.unflatten(flat)
      update(rewrite.view(ref, transforms), None, value)
      return ()

    return native.equation(eqn, meaning)
  access = Access(tuple(transforms), None, (value,))
  params = rewrite.atomic_params(op)
  return Rewritten(atomic_rmw.atomic_rmw_p, ref, access, params, False)


def _lowers_tiles(transforms) -> bool:
  """Whether stock can move a region of a tiled Ref: whole tiles of it."""
  tiling = ()
  for t in transforms:
    if isinstance(t, gpu_core.UntilingTransform):
      tiling = t.tiling
    elif isinstance(t, compat.TransposeTransform):
      return True  # What it does to the tiles is for stock to say.
    elif isinstance(t, compat.NDIndexer) and tiling:
      tiled = t.indices[-len(tiling):]
      if t.int_indexer_shape or not all(map(_is_tiles, tiled, tiling)):
        return False
  return True


def _is_tiles(index, tile) -> bool:
  if not isinstance(index, compat.Slice) or index.stride != 1:
    return False
  known = [x for x in (index.start, index.size) if isinstance(x, int)]
  return all(x % tile == 0 for x in known)


rewrite.own_views[gpu_core.UntilingTransform] = _lowers_tiles
rewrite.own_views[gpu_core.UnswizzleRef] = _lowers_tiles
rewrite.rules[primitives.load_p] = _load
# Drop the condition once jax >= 0.12: `plgpu.store` is new there.
if hasattr(primitives, "store_p"):
  rewrite.rules[primitives.store_p] = _store
rewrite.rules[primitives.atomic_store_p] = _atomic_store
