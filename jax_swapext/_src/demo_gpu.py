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
"""One warp of a Hopper GPU stores an array: compiled here, with no GPU."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax
import jax.numpy as jnp
from jax_swapext._src import compile_for
from jax_swapext._src import demo
from jax_swapext._src import gpu_compiler
from jax_swapext._src import swap
import numpy as np

NAME = "warp store"
TITLE = "128 float32 numbers stored to shared memory by one warp"
MISSING = "needs the compiler, but no GPU: pip install jax-cuda13-plugin"
TARGET = "h100"
CALLS = {"stock": "ref[...] = x", "ours": "jsx.store"}

is_available = gpu_compiler.is_available


def attempt(library: str) -> demo.Attempt:
  """Compiles the kernel with one of the libraries in `CALLS`."""
  made = demo.Attempt(library, CALLS[library], f"for {TARGET}", "refused", "")
  try:
    compiled = compile_for.compile_for(
        TARGET, _kernel(library), np.zeros(1, np.float32)
    )
  except Exception as e:  # Whatever was raised is what there is to show.
    return made._replace(detail=demo.first_sentence(e))
  lines = (compiled.ptx or "").splitlines()
  stores = [line for line in lines if "st.shared" in line]
  ptx = " ".join(" ".join(stores).split())
  return made._replace(status="compiles", detail=ptx, ptx=ptx)


def _kernel(library: str) -> Any:
  from jax.experimental import pallas as pl
  from jax.experimental.pallas import mosaic_gpu as plgpu

  def store(ref: Any, x: jax.Array) -> None:
    if library == "stock":
      ref[...] = x
    else:
      swap.store(ref, None, x)

  def kernel(x_ref, o_ref, scratch_ref):
    def in_warp():
      @pl.when(lax.axis_index("warp") == 0)
      def _():
        x = x_ref[0] + lax.iota(jnp.float32, 128)
        store(scratch_ref, x)
        o_ref[0] = scratch_ref[127]

    run: Any = pl.kernel(in_warp, mesh=plgpu.WarpMesh(axis_name="warp"))
    run()

  return plgpu.kernel(
      kernel,
      out_type=jax.ShapeDtypeStruct((1,), jnp.float32),
      scratch_types=[plgpu.SMEM((128,), jnp.float32)],
  )
