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
"""Equations that `extended` made, as the stock ones that they were.

JAX's interpreters run those fastest, and as they would without this library.
"""

from __future__ import annotations

from typing import Any

import jax
from jax._src import core as jax_core
from jax_swapext._src import compat
from jax_swapext._src import load
from jax_swapext._src import swap


def as_stock(eqn: Any) -> Any:
  """`ref[idx]` or `ref[idx] = value` for what was that, as far as it can be.

  Args:
    eqn: an equation.

  Returns:
    A stock equation if it comes from one, and loads, stores or swaps a window,
    all of it, of the Ref itself; else the same equation.
  """
  if eqn.primitive not in (load.load_p, swap.swap_p):
    return eqn
  if eqn.params["stock"] is None:
    return eqn
  ref, *leaves = eqn.invars
  access = eqn.params["tree"].unflatten(leaves)
  if access.mask is not None or not is_window(access):
    return eqn
  index, tree = jax.tree.flatten(access.transforms)
  if eqn.primitive is load.load_p:
    return compat.replace_eqn(
        eqn, compat.get_p, [ref, *index], eqn.outvars, {"tree": tree}
    )
  [value] = access.operands
  outs = eqn.outvars or [jax_core.DropVar(value.aval)]
  return compat.replace_eqn(
      eqn, compat.ref_swap_p, [ref, value, *index], outs, {"tree": tree}
  )


def is_window(access: Any) -> bool:
  """Whether an access is to slices without strides, and to scalars."""
  return all(
      isinstance(t, compat.NDIndexer) and selects_window(t)
      for t in access.transforms
  )


def selects_window(indexer: Any) -> bool:
  """Whether all indices are slices without strides, or scalars."""
  return not indexer.int_indexer_shape and all(
      i.stride == 1 for i in indexer.indices if isinstance(i, compat.Slice)
  )
