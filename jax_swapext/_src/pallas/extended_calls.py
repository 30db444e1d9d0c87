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
"""Where Pallas traces a kernel, for `extended` and `extend_everywhere`.

`pl.pallas_call` gives its kernel to one function to trace it; `pl.kernel`,
`plgpu.kernel` and what is inside of them (`plgpu.WarpMesh`) trace theirs and
bind a primitive. There the whole jaxpr is rewritten; a decorated kernel, which
would have its part rewritten and evaluated, is traced without the decorator.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools

from jax._src.pallas import mpmd
from jax._src.pallas import pallas_call
from jax_swapext._src import extended
from jax_swapext._src import rewrite

_trace_kernel_to_jaxpr = pallas_call._trace_kernel_to_jaxpr
_mpmd_map = mpmd._mpmd_map
_bind = mpmd.mpmd_map_p.bind


@functools.wraps(_trace_kernel_to_jaxpr)
def _trace_extended(kernel, *args, **kwargs):
  kernel, decorated = extended.undecorated(kernel)
  with extended.tracing() if decorated else contextlib.nullcontext():
    jaxpr, consts = _trace_kernel_to_jaxpr(kernel, *args, **kwargs)
  if decorated or extended.is_everywhere():
    jaxpr = rewrite.rewritten(jaxpr)
  return jaxpr, consts


# For each kernel of the equation that is about to be bound, whether to rewrite
# it; empty where that equation is not one that was traced just now.
_chosen: contextvars.ContextVar[tuple[bool, ...]] = contextvars.ContextVar(
    "chosen", default=()
)


@contextlib.contextmanager
def _choose(which):
  token = _chosen.set(which)
  try:
    yield
  finally:
    _chosen.reset(token)


def _traced_as_decorated(kernel):
  @functools.wraps(kernel)
  def wrapper(*args, **kwargs):
    with extended.tracing(), _choose(()):
      return kernel(*args, **kwargs)

  return wrapper


@functools.wraps(_mpmd_map)
def _mpmd_map_extended(meshes_and_fns, *args, **kwargs):
  meshes, fns = zip(*meshes_and_fns, strict=True)
  fns, decorated = zip(*map(extended.undecorated, fns), strict=True)
  wrapped = [*map(_traced_as_decorated, fns)]

  def wrapper(*operands):
    chosen = [d or extended.is_everywhere() for d in decorated]
    kernels = [w if c else fn for c, w, fn in zip(chosen, wrapped, fns)]
    call = _mpmd_map([*zip(meshes, kernels)], *args, **kwargs)
    with _choose(tuple(chosen)):
      return call(*operands)

  return wrapper


@functools.wraps(_bind)
def _bind_extended(*args, jaxprs, **params):
  if any(chosen := _chosen.get()):
    jaxprs = tuple(
        rewrite.rewritten(jaxpr) if c else jaxpr
        for jaxpr, c in zip(jaxprs, chosen, strict=True)
    )
  with _choose(()):
    return _bind(*args, jaxprs=jaxprs, **params)


pallas_call._trace_kernel_to_jaxpr = _trace_extended
mpmd._mpmd_map = _mpmd_map_extended
mpmd.mpmd_map_p.bind = _bind_extended
