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
"""What warp code needs beside accesses: a barrier, and a fence for copies.

    warp_barrier
    warp_commit_smem
"""

from __future__ import annotations

from jax._src.lib.mlir.dialects import nvvm
from jax._src.pallas.mosaic_gpu import core as gpu_core
from jax._src.pallas.mosaic_gpu import lowering
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.mosaic.gpu import utils as mgpu_utils
import jax.extend as jex
from jax_swapext._src.pallas import gpu_dialect


def warp_barrier() -> None:
  """Waits for all lanes of the warp, and orders their memory accesses.

  Writes of any lane before it are visible to all lanes after it. Accesses of
  this library bring their own barriers unless the kernel is compiled with
  ``unsafe_no_auto_barriers``; then lanes have to be ordered by this.

  Raises:
    NotImplementedError: the kernel's code here is not warp code; a warpgroup
      has its own barriers.
  """
  warp_barrier_p.bind()


def commit_smem() -> None:
  """Makes the warp's writes to SMEM visible to copies and matrix products.

  To be called by a warp between its stores to SMEM and a
  ``plgpu.copy_smem_to_gmem`` or matrix product that reads them. It contains a
  :func:`warp_barrier`. The writes of other warps are not covered.

  Raises:
    NotImplementedError: the kernel's code here is not warp code, where
      ``plgpu.commit_smem`` does this.
  """
  warp_commit_smem_p.bind()


def _make(name: str) -> jex.core.Primitive:
  primitive = jex.core.Primitive(name)
  primitive.multiple_results = True

  def abstract_eval():
    return [], {gpu_core._memory_effect}

  primitive.def_effectful_abstract_eval(abstract_eval)
  return primitive


warp_barrier_p = _make("swapext_warp_barrier")
warp_commit_smem_p = _make("swapext_warp_commit_smem")


def _fence_and_barrier():
  nvvm.fence_proxy(
      nvvm.ProxyKind.async_shared, space=nvvm.SharedSpace.shared_cta
  )
  mgpu_utils.warp_barrier()


def _register(primitive, name, instead, emit):
  def rule(ctx):
    if not gpu_dialect.is_warp(ctx):
      raise NotImplementedError(
          f"{name}: wanted warp code (plgpu.WarpMesh), got warpgroup code. Use "
          f"{instead} here."
      )
    if ctx.module_ctx.lowering_semantics == mgpu.LoweringSemantics.Lane:
      emit()
      return []

    def body():
      emit()
      return []

    return gpu_dialect.per_thread(ctx, body, [], lambda aval: None)

  for s in gpu_dialect.ALL_SEMANTICS:
    lowering.register_lowering_rule(primitive, *s)(rule)


_register(
    warp_barrier_p,
    "warp_barrier",
    "plgpu.barrier_arrive and plgpu.barrier_wait",
    mgpu_utils.warp_barrier,
)
_register(
    warp_commit_smem_p, "commit_smem", "plgpu.commit_smem", _fence_and_barrier
)
