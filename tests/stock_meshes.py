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
"""Kernels on every kind of mesh that stock JAX lowers.

Each function of `MESHES`, by backend, takes a decorator, which is put on all
that the kernel consists of; it returns a function and its argument shapes.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc
import jax.numpy as jnp
import sparse_cells

_BLOCK = jax.ShapeDtypeStruct((8, 128), jnp.float32)
_WORDS = jax.ShapeDtypeStruct((64,), jnp.float32)
_SCALARS = jax.ShapeDtypeStruct((8,), jnp.int32)
_TILES = jax.ShapeDtypeStruct((256, 128), jnp.float32)
MESHES: dict[str, dict[str, Any]] = {
    "tpu": {}, "sparsecore": {}, "mosaic_gpu": {}
}


def _mesh(backend):
  def register(function):
    MESHES[backend][function.__name__] = function
    return function

  return register


def _vector_mesh():
  return plsc.VectorSubcoreMesh(
      core_axis_name="core", subcore_axis_name="subcore", num_cores=1,
      num_subcores=1,
  )


def _scalar_mesh():
  return plsc.ScalarSubcoreMesh(axis_name="core", num_cores=1)


@_mesh("tpu")
def tensorcore(decorate):
  @decorate
  def kernel(x, o):
    def scope(s, sem):
      copy = pltpu.make_async_copy(x, s, sem)
      copy.start()
      copy.wait()
      with jax.named_scope("double"):
        s[...] = s[...] * 2
      pltpu.sync_copy(s, o)

    pl.run_scoped(
        scope, pltpu.VMEM((8, 128), jnp.float32), pltpu.SemaphoreType.DMA
    )

  mesh = pltpu.TensorCoreMesh(axis_name="core", num_cores=1)
  return pl.kernel(kernel, out_type=_BLOCK, mesh=mesh, name="named"), [_BLOCK]


@_mesh("sparsecore")
def scalar_subcore(decorate):
  @decorate
  def kernel(x, o, s):
    pltpu.sync_copy(x, s)
    s[0] = s[1] + s[2]
    pltpu.sync_copy(s, o)

  return lambda x: pl.kernel(
      kernel, out_type=_SCALARS, mesh=_scalar_mesh(),
      scratch_types=[pltpu.SMEM((8,), jnp.int32)],
  )(x), [_SCALARS]


@_mesh("sparsecore")
def keyword_scratch(decorate):
  @decorate
  def kernel(x, o, *, s):
    pltpu.sync_copy(x, s)
    s[pl.ds(0, 8)] = s[pl.ds(8, 8)] * 2
    sparse_cells.push(s, o)

  return lambda x: pl.kernel(
      kernel, out_type=_WORDS, mesh=_vector_mesh(),
      scratch_types=dict(s=pltpu.VMEM((64,), jnp.float32)),
  )(x), [_WORDS]


@_mesh("sparsecore")
def two_meshes(decorate):
  @decorate
  def vectors(x, o):
    def scope(s):
      pltpu.sync_copy(x, s)
      s[pl.ds(0, 8)] = s[pl.ds(8, 8)] * 2
      sparse_cells.push(s, o)

    pl.run_scoped(scope, pltpu.VMEM((64,), jnp.float32))

  def scalars(x, o):
    del x, o  # The other mesh does all the work, in what is decorated.

  return lambda x: pl.kernel(
      [vectors, scalars], out_type=_WORDS, mesh=[_vector_mesh(), _scalar_mesh()]
  )(x), [_WORDS]


@_mesh("mosaic_gpu")
def pipeline(decorate):
  body = decorate(lambda _, x, o: o.__setitem__(..., x[...] * 2))
  block = plgpu.BlockSpec((64, 128), lambda i: (i, 0))

  @decorate
  def kernel(x, o):
    plgpu.emit_pipeline(
        body, grid=(4,), in_specs=[block], out_specs=[block],
        max_concurrent_steps=2,
    )(x, o)

  return plgpu.kernel(kernel, out_type=_TILES), [_TILES]


@_mesh("mosaic_gpu")
def warps(decorate):
  @decorate
  def kernel(x, o):
    @functools.partial(pl.kernel, mesh=plgpu.WarpMesh(axis_name="warp"))
    def _():
      @pl.when(lax.axis_index("warp") == 0)
      def _():
        o[0] = x[1]

  return plgpu.kernel(kernel, out_type=_WORDS), [_WORDS]


@_mesh("mosaic_gpu")
def specialised_warpgroups(decorate):
  @decorate
  def kernel(x, o, s, barrier):
    which = lax.axis_index("warpgroup")

    @pl.when(which == 0)
    def _():
      plgpu.copy_gmem_to_smem(x, s, barrier)

    @pl.when(which == 1)
    def _():
      plgpu.barrier_wait(barrier)
      o[...] = s[...] * 2

  return plgpu.kernel(
      kernel, out_type=_TILES, num_threads=2, thread_name="warpgroup",
      scratch_types=[
          plgpu.SMEM(_TILES.shape, _TILES.dtype), plgpu.Barrier()
      ],
  ), [_TILES]
