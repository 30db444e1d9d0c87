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
`plgpu.kernel` and what is inside of them (`plgpu.WarpMesh`) to another.
"""

from __future__ import annotations

import functools

from jax._src.pallas import mpmd
from jax._src.pallas import pallas_call
from jax_swapext._src import extended

_trace_kernel_to_jaxpr = pallas_call._trace_kernel_to_jaxpr
_mpmd_map = mpmd._mpmd_map


@functools.wraps(_trace_kernel_to_jaxpr)
def _trace_extended(kernel, *args, **kwargs):
  # A decorated kernel need not be evaluated a second time here.
  kernel, decorated = extended.undecorated(kernel)
  jaxpr, consts = _trace_kernel_to_jaxpr(kernel, *args, **kwargs)
  if decorated or extended.is_everywhere():
    jaxpr = extended.rewrite(jaxpr)
  return jaxpr, consts


def _extended_if_everywhere(kernel):
  """The kernel, decorated if `extend_everywhere` is on when it is traced."""

  @functools.wraps(kernel)
  def wrapper(*args, **kwargs):
    fun = extended.extended(kernel) if extended.is_everywhere() else kernel
    return fun(*args, **kwargs)

  return wrapper


@functools.wraps(_mpmd_map)
def _mpmd_map_extended(meshes_and_fns, *args, **kwargs):
  meshes_and_fns = [
    (mesh, _extended_if_everywhere(fn)) for mesh, fn in meshes_and_fns
  ]
  return _mpmd_map(meshes_and_fns, *args, **kwargs)


pallas_call._trace_kernel_to_jaxpr = _trace_extended
mpmd._mpmd_map = _mpmd_map_extended
