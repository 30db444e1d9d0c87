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
"""`extended` for the loads, stores and additions of `plsc`.

Vector subcores lower them for VMEM. Elsewhere, and in interpreters, they are
accesses by arrays of indices.
"""

from __future__ import annotations

import jax
from jax import numpy as jnp
from jax._src.pallas.mosaic import sc_lowering
from jax._src.pallas.mosaic import sc_primitives
from jax_swapext._src import access as access_lib
from jax_swapext._src import atomic_rmw
from jax_swapext._src import extended
from jax_swapext._src import load
from jax_swapext._src import native
from jax_swapext._src import rewrite
from jax_swapext._src import semantics
from jax_swapext._src import swap
import numpy as np

ADD = semantics.AtomicOp.ADD

_GATHERED = (np.dtype(np.int32), np.dtype(np.float32))


def _store(ref, index, value, mask, add):
  if add:
    atomic_rmw.atomic_add(ref, index, value, mask=mask)
  else:
    swap.store(ref, index, value, mask=mask)


def _places(mask):
  """Where the elements of a compressed vector are: one per true."""
  return jnp.cumsum(mask.astype(jnp.int32)) - 1


def _load(eqn, used):
  del used
  [out], tree = eqn.outvars, eqn.params["tree"]
  ref, *leaves = eqn.invars
  if not eqn.params["has_mask"] or out.aval.ndim != 1:
    return None
  transforms = tree.unflatten(leaves[:-1])
  if not rewrite.is_ordinary(ref, transforms, out.aval.dtype):
    return None

  def meaning(ref, *leaves):
    *index, mask = leaves
    view = rewrite.view(ref, tree.unflatten(index))
    return load.load(view, _places(mask), mask=mask)

  return native.equation(eqn, meaning)


def _swap(eqn, used):
  params, tree = eqn.params, eqn.params["tree"]
  has_mask, add = params["has_mask"], params["add"]
  ref, value, *leaves = eqn.invars
  transforms = tree.unflatten(leaves[:-1] if has_mask else leaves)
  op = ADD if add else None
  if not rewrite.is_ordinary(ref, transforms, value.aval.dtype, op):
    return None
  if has_mask and value.aval.ndim == 1:

    def meaning(ref, value, *leaves):
      *index, mask = leaves
      view = rewrite.view(ref, tree.unflatten(index))
      _store(view, _places(mask), value, mask, add)
      return value

    return native.equation(eqn, meaning)
  if used or has_mask or not add:
    return None
  access = access_lib.Access(tuple(transforms), None, (value,))
  return rewrite.Rewritten(
      atomic_rmw.atomic_rmw_p, ref, access, rewrite.atomic_params(ADD), False
  )


def _gather(eqn, used):
  del used
  tree = eqn.params["tree"]
  ref, transforms, _, _ = tree.unflatten(eqn.invars)
  if not rewrite.is_ordinary(ref, transforms, eqn.outvars[0].aval.dtype):
    return None

  def meaning(*flat):
    ref, transforms, indices, mask = tree.unflatten(flat)
    view = rewrite.view(ref, transforms)
    return load.load(view, tuple(indices), mask=mask)

  return native.equation(eqn, meaning)


def _scatter(eqn, used):
  del used
  tree, add = eqn.params["tree"], eqn.params["add"]
  ref, transforms, _, value, _ = tree.unflatten(eqn.invars)
  op = ADD if add else None
  if not rewrite.is_ordinary(ref, transforms, value.aval.dtype, op):
    return None

  def meaning(*flat):
    ref, transforms, indices, value, mask = tree.unflatten(flat)
    view = rewrite.view(ref, transforms)
    _store(view, tuple(indices), value, mask, add)
    return ()

  return native.equation(eqn, meaning)


def _is_vector(aval) -> bool:
  """Whether stock gathers such a value where this is traced for."""
  if aval.dtype not in _GATHERED:
    return False
  try:
    sc_lowering._check_aval_is_supported("Gather", aval)
  except (NotImplementedError, ValueError):  # The latter where there is no TPU.
    return False
  return True


def _gather_others(*flat, tree):
  """Stock takes words that are no unsigned integers, in whole vectors."""
  ref, transforms, indices, mask = tree.unflatten(flat)
  view = rewrite.view(ref, transforms)
  shape = indices[0].shape if indices else ()
  if _is_vector(jax.core.ShapedArray(shape, view.dtype)):
    return None
  return load.load(view, tuple(indices), mask=mask)


def _scatter_others(*flat, tree, add):
  ref, transforms, indices, value, mask = jax.tree.unflatten(tree, flat)
  view = rewrite.view(ref, transforms)
  if view.dtype in _GATHERED:
    return None
  _store(view, tuple(indices), value, mask, add)
  return ()


rewrite.rules[sc_primitives.load_p] = _load
rewrite.rules[sc_primitives.swap_p] = _swap
rewrite.rules[sc_primitives.gather_p] = _gather
rewrite.rules[sc_primitives.scatter_p] = _scatter
extended.take_more(sc_primitives.gather_p, _gather_others)
extended.take_more(sc_primitives.scatter_p, _scatter_others)
