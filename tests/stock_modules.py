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
"""Modules that kernels lower to, as text without locations; and stock kernels.

`CORPUS` has kernels that stock JAX lowers, by backend.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import functools
import re
from typing import Any
from unittest import mock
import warnings

import jax
from jax import lax
from jax._src.pallas.mosaic_gpu import lowering as gpu_lowering
from jax._src.pallas.triton import lowering as triton_lowering
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc
from jax.experimental.pallas import triton as pltriton
import jax.numpy as jnp
from oracles import mosaic_ir
import sparse_cells
import stock_gpu_corpus

with warnings.catch_warnings():
  # JAX keeps its example kernels elsewhere now; these are examples.
  warnings.filterwarnings("ignore", ".* is deprecated", DeprecationWarning)
  from jax.experimental.pallas.ops.gpu import rms_norm
  from jax.experimental.pallas.ops.gpu import softmax
  from jax.experimental.pallas.ops.tpu import flash_attention
  from jax.experimental.pallas.ops.tpu import matmul
  from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm

_F32 = jnp.float32


def _spec(shape, dtype=_F32):
  return jax.ShapeDtypeStruct(shape, dtype)


@contextlib.contextmanager
def _gpu_target():
  device = jax.sharding.AbstractDevice(
    device_kind="NVIDIA H100 80GB HBM3", num_cores=132, platform="cuda"
  )
  mesh = jax.sharding.AbstractMesh(
    (1,), ("device",), axis_types=(jax.sharding.AxisType.Auto,),
    abstract_device=device,
  )  # fmt: skip
  with jax.sharding.use_abstract_mesh(mesh), warnings.catch_warnings():
    warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated")
    yield


def _captured(owner: Any, name: str, function, args) -> list[str]:
  """Lowers for CUDA; returns the modules that `owner.name` makes."""
  found = []
  stock = getattr(owner, name)

  def lower(*args, **kwargs):
    result = stock(*args, **kwargs)
    # It counts the kernels of the process.
    found.append(re.sub('dump_basename = "[^"]*"', "", str(result.module)))
    return result

  with mock.patch.object(owner, name, lower), _gpu_target():
    jax.jit(function).trace(*args).lower(lowering_platforms=("cuda",))
  return found


def modules(backend: str, function: Callable[..., Any], args) -> list[str]:
  """The modules of all kernels in a function."""
  match backend:
    case "tpu" | "sparsecore":
      return mosaic_ir.mosaic_modules(function, *args)
    case "mosaic_gpu":
      return _captured(
        gpu_lowering, "lower_unpipelined_jaxpr_to_module", function, args
      )
    case "triton":
      return _captured(
        triton_lowering, "lower_jaxpr_to_triton_module", function, args
      )
  raise ValueError(backend)


# ## TensorCore


def _tensorcore(body, dtype=_F32, shape=(32, 256), grid=()):
  def make():
    smem = pl.BlockSpec(memory_space=pltpu.SMEM)
    whole = pl.BlockSpec(memory_space=pltpu.VMEM)
    call = pl.pallas_call(
      body, grid=grid, out_shape=_spec(shape, dtype), in_specs=[smem, whole],
      out_specs=whole, scratch_shapes=[pltpu.VMEM(shape, dtype)],
    )  # fmt: skip
    return call, [_spec((8,), jnp.int32), _spec(shape, dtype)]

  return make


def _set(ref, index, value):
  ref[index] = value


def _loop(body):
  def looped(i, x, o, s):
    o[...] = x[...]
    pl.loop(0, 4)(lambda k: body(k, i, x, o))

  return looped


def _mask(x):
  return lax.broadcasted_iota(jnp.int32, x.shape, 1) < 5


def _rows(k):
  return pl.ds(pl.multiple_of(k * 8, 8), 8)


def _stores(i, x, o, s):
  s[...] = x[...] * 2
  o[...] = s[...] + 1


_BODIES = {
  "whole": _stores,
  "rows": lambda i, x, o, s: _set(o, slice(8, 16), x[16:24]),
  "columns": lambda i, x, o, s: _set(o, (slice(None), slice(0, 128)),
                                     x[:, 128:]),
  "dynamic_rows": lambda i, x, o, s: _set(o, _rows(i[0]), x[_rows(i[1])]),
  "row_of_scalar_index": lambda i, x, o, s: _set(o, 3, x[5]),
  "dynamic_row": lambda i, x, o, s: _set(o, pl.ds(i[0], 1), x[pl.ds(i[1], 1)]),
  "scalar_load": lambda i, x, o, s: _set(o, ..., jnp.full((32, 256), x[3, 5])),
  "swap": lambda i, x, o, s: _set(s, ..., jax.ref.swap(o, ..., x[...])),
  "augmented": lambda i, x, o, s: _set(o, ..., o[...] + x[...]),
  "masked_store": lambda i, x, o, s: pltpu.store(o, x[...], mask=_mask(x)),
  "primitives": lambda i, x, o, s: pltpu.store(o, pltpu.load(x)),
  "chain": lambda i, x, o, s: _set(o.at[pl.ds(0, 16)].at[pl.ds(8, 8)], ...,
                                   x.at[pl.ds(8, 8)][...]),
  "bitcast": lambda i, x, o, s: _set(o.bitcast(jnp.int32), ...,
                                     x.bitcast(jnp.int32)[...]),
  "loop": _loop(lambda k, i, x, o: _set(o, _rows(k), x[_rows(k)] + 1.0)),
  "condition": _loop(lambda k, i, x, o: pl.when(k % 2 == 0)(
      lambda: _set(o, ..., x[...]))),
}  # fmt: skip


def _tensorcore_strided(i, x, o, s):
  o[pl.ds(0, 8, 4), :] = x[pl.ds(1, 8, 2), :]


def _tensorcore_strided_load(i, x, o, s):
  o[pl.ds(0, 8), :] = x[pl.ds(1, 8, 3), :]


def _smem_copy():
  smem = pl.BlockSpec(memory_space=pltpu.SMEM)

  def body(x, o):
    @pl.loop(0, 8)
    def _(k):
      o[k] = x[7 - k] + 1

  x = _spec((8,), jnp.int32)
  call = pl.pallas_call(body, out_shape=x, in_specs=[smem], out_specs=smem)
  return call, [x]


def _pipelined():
  def body(x, o):
    o[...] = x[...] * 2

  spec = pl.BlockSpec((8, 128), lambda i, j: (i, j))
  x = _spec((32, 256))
  return pl.pallas_call(
    body, grid=(4, 2), out_shape=x, in_specs=[spec], out_specs=spec
  ), [x]


def _inner_pipeline():
  def body(x, o):
    o[...] = x[...] * 2

  def kernel(x, o):
    spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
    pltpu.emit_pipeline(body, grid=(4,), in_specs=[spec], out_specs=[spec])(
      x, o
    )

  hbm = pl.BlockSpec(memory_space=pltpu.HBM)
  x = _spec((32, 128))
  return pl.pallas_call(kernel, out_shape=x, in_specs=[hbm], out_specs=hbm), [x]


def _op(function, *shapes, **kwargs):
  dtype = kwargs.pop("dtype", _F32)
  args = [_spec(s, dtype) for s in shapes]
  return lambda: (functools.partial(function, **kwargs), args)


def _gmm():
  args = [
    _spec((512, 128)), _spec((4, 128, 128)), _spec((4,), jnp.int32)
  ]  # fmt: skip
  return gmm, args


TENSORCORE = {
  **{name: _tensorcore(body) for name, body in _BODIES.items()},
  **{
    f"{name}_{dtype.__name__}": _tensorcore(_BODIES[name], dtype)
    for name in ("whole", "rows", "swap", "augmented")
    for dtype in (jnp.bfloat16, jnp.int8, jnp.bool_)
    if dtype is not jnp.bool_ or name in ("rows", "swap")
  },
  "grid": _tensorcore(_BODIES["whole"], grid=(2, 3)),
  "strided": _tensorcore(_tensorcore_strided, shape=(32, 128)),
  "strided_narrow": _tensorcore(_tensorcore_strided, shape=(32, 4)),
  "strided_packed": _tensorcore(
    _tensorcore_strided_load, jnp.bfloat16, (32, 128)
  ),
  # libtpu refuses it in its own words.
  "float16": _tensorcore(lambda i, x, o, s: _set(o, ..., x[...]), jnp.float16),
  "scalars_in_smem": _smem_copy,
  "pipelined": _pipelined,
  "inner_pipeline": _inner_pipeline,
  "ops_matmul": _op(
    matmul.matmul, (512, 512), (512, 512), block_shape=(256, 256), block_k=256
  ),
  "ops_flash_attention": _op(
    flash_attention.flash_attention, *[(1, 2, 256, 128)] * 3, causal=True
  ),
  "ops_gmm": _gmm,
}


# ## SparseCore


def _subcore(body, dtype=_F32):
  def make():
    def function(x):
      mesh = plsc.VectorSubcoreMesh(
        core_axis_name="c", subcore_axis_name="s", num_cores=1, num_subcores=1
      )
      scratch = [
        pltpu.VMEM((64,), dtype), pltpu.VMEM((64,), dtype),
        pltpu.SMEM((8,), jnp.int32),
      ]  # fmt: skip

      def kernel(x_hbm, o_hbm, x, o, s):
        pltpu.sync_copy(x_hbm, x)
        body(x, o, s)
        sparse_cells.push(o, o_hbm)

      return pl.kernel(
        kernel, out_type=_spec((64,), dtype), mesh=mesh, scratch_types=scratch
      )(x)

    return function, [_spec((64,), dtype)]

  return make


_LANE = pl.ds(0, 8)


def _subcore_scalars(x, o, s):
  s[0] = 3
  s[1] = s[0] * 2
  o[pl.ds(s[1] * 8, 8)] = x[_LANE]


SPARSECORE = {
  "vectors": _subcore(lambda x, o, s: _set(o, _LANE, x[pl.ds(8, 8)] + 1.0)),
  "loop": _subcore(lambda x, o, s: pl.loop(0, 8)(
      lambda k: _set(o, pl.ds(k * 8, 8), x[pl.ds(k * 8, 8)]))),
  "scalars": _subcore(_subcore_scalars),
  "swap": _subcore(lambda x, o, s: _set(
      x, _LANE, jax.ref.swap(o, _LANE, x[pl.ds(8, 8)]))),
  "addupdate": _subcore(lambda x, o, s: plsc.addupdate(
      o.at[_LANE], x[pl.ds(8, 8)])),
  "addupdate_in_loop": _subcore(lambda x, o, s: pl.loop(0, 8)(
      lambda k: plsc.addupdate(o.at[pl.ds(k * 8, 8)], x[_LANE]))),
  "unused": _subcore(lambda x, o, s: x[_LANE] + 1.0),
  "chain": _subcore(lambda x, o, s: _set(
      o.at[pl.ds(8, 16)].at[pl.ds(8, 8)], ..., x.at[pl.ds(8, 8)][...])),
  "scalar_chain": _subcore(lambda x, o, s: _set(
      s.at[pl.ds(2, 4)].at[pl.ds(1, 2)], 1, 7)),
  # Under the tiling that this has, ours would refuse it.
  "packed": _subcore(lambda x, o, s: _set(
      o, pl.ds(16, 16), x[pl.ds(0, 16)]), jnp.bfloat16),
  "gather": _subcore(lambda x, o, s: _set(
      o, _LANE, plsc.load_gather(x, [lax.iota(jnp.int32, 8) * 3]))),
  "masked_gather": _subcore(lambda x, o, s: _set(
      o, _LANE, plsc.load_gather(
          x.at[pl.ds(8, 32)], [lax.iota(jnp.int32, 8) * 3],
          mask=x[_LANE] > 0))),
  "compress": _subcore(lambda x, o, s: plsc.store_compressed(
      o.at[_LANE], x[_LANE], mask=x[_LANE] > 0)),
  "addupdate_compressed": _subcore(lambda x, o, s: plsc.addupdate_compressed(
      o.at[_LANE], x[_LANE], mask=x[_LANE] > 0)),
  "expand": _subcore(lambda x, o, s: _set(o, _LANE, plsc.load_expanded(
      x.at[pl.ds(8, 8)], mask=x[_LANE] > 0))),
  "store_scatter": _subcore(lambda x, o, s: plsc.store_scatter(
      o, [lax.iota(jnp.int32, 8) * 3], x[_LANE], mask=x[_LANE] > 0)),
  "scatter": _subcore(lambda x, o, s: plsc.addupdate_scatter(
      o, [lax.iota(jnp.int32, 8) * 3], x[_LANE])),
}  # fmt: skip


# ## GPUs

_PLAIN = (
  "vector_add", "grid_scale", "through_smem", "reduce_sum", "exponential",
  "to_bfloat16", "integers", "bulk_copies", "two_warpgroups", "warp_scalars",
  "atomic_add", "atomic_max",
  "one_element",
)  # fmt: skip

MOSAIC_GPU = {
  f"{name}_{semantics}": functools.partial(
    getattr(stock_gpu_corpus, name), semantics
  )
  for name in _PLAIN
  for semantics in ("Lane", "Warpgroup")
  if (name, semantics) != ("atomic_max", "Warpgroup")  # Stock is wrong there.
}


def _triton(body, dtype=_F32, shape=(64,)):
  def make():
    params = pltriton.CompilerParams()

    def kernel(i, x, start, o):
      del start
      body(i, x, o)

    call = pl.pallas_call(
      kernel, out_shape=_spec(shape, dtype), compiler_params=params,
      input_output_aliases={2: 0},
    )  # fmt: skip
    x = _spec(shape, dtype)
    return call, [_spec(shape[:1] or (8,), jnp.int32), x, x]

  return make


def _triton_mask(x):
  return lax.iota(jnp.int32, 64) < 50


def _triton_old(i, x, o):
  o[...] = pltriton.atomic_add(o, (i[...],), x[...])


TRITON = {
  "whole": _triton(lambda i, x, o: _set(o, ..., x[...] * 2)),
  "slices": _triton(lambda i, x, o: _set(o, pl.ds(0, 32), x[pl.ds(32, 32)])),
  "dynamic": _triton(lambda i, x, o: _set(o, pl.ds(i[0], 16),
                                          x[pl.ds(i[1], 16)])),
  "scalar": _triton(lambda i, x, o: _set(o, 3, x[5])),
  "integer_array": _triton(lambda i, x, o: _set(o, i[...], x[i[...]])),
  "masked_load": _triton(lambda i, x, o: _set(
      o, ..., pltriton.load(x, mask=_triton_mask(x)))),
  "masked_load_other": _triton(lambda i, x, o: _set(
      o, ..., pltriton.load(x, mask=_triton_mask(x), other=1.0))),
  "masked_store": _triton(lambda i, x, o: pltriton.store(
      o, x[...], mask=_triton_mask(x))),
  "hints": _triton(lambda i, x, o: pltriton.store(
      o, pltriton.load(x, eviction_policy="evict_first"))),
  "atomic_add": _triton(lambda i, x, o: pltriton.atomic_add(
      o, (i[...],), x[...])),
  "atomic_add_old": _triton(_triton_old),
  "atomic_max": _triton(lambda i, x, o: pltriton.atomic_max(o, (), x[...])),
  "atomic_masked": _triton(lambda i, x, o: pltriton.atomic_xchg(
      o, (), x[...], mask=_triton_mask(x))),
  "addupdate": _triton(lambda i, x, o: jax.ref.addupdate(
      o, pl.ds(0, 32), x[pl.ds(0, 32)])),
  "atomic_masked_by_column": _triton(lambda i, x, o: pltriton.atomic_add(
      o, (), x[...], mask=(i[...] > 3)[:, None]), shape=(8, 8)),
  "masked_by_column": _triton(lambda i, x, o: pltriton.store(
      o, pltriton.load(x, mask=(i[...] > 3)[:, None], other=0.0),
      mask=(i[...] > 5)[:, None]), shape=(8, 8)),
  "array_and_scalar": _triton(lambda i, x, o: _set(
      o, (i[...], 2), x[3, i[...]]), shape=(8, 8)),
  "compare_and_swap": _triton(lambda i, x, o: _set(
      o, ..., pltriton.atomic_cas(o, x[...], 3)), jnp.int32, ()),
  "ops_softmax": _op(softmax.softmax, (8, 256)),
  "ops_rms_norm": _op(rms_norm.rms_norm, (2, 8, 256), (256,), (256,)),
}  # fmt: skip

CORPUS = {
  "tpu": TENSORCORE,
  "sparsecore": SPARSECORE,
  "mosaic_gpu": MOSAIC_GPU,
  "triton": TRITON,
}
