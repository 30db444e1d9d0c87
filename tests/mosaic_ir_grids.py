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
"""Stock TensorCore kernels and what they compute: grids, DMAs, semaphores."""

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
from mosaic_ir_kernels import array
from mosaic_ir_kernels import call
from mosaic_ir_kernels import copy
from mosaic_ir_kernels import dma
from mosaic_ir_kernels import shape
import numpy as np

_F32, _I32, _BF16 = jnp.float32, jnp.int32, jnp.bfloat16

CASES = {}


def case(name, f, args, expected):
  """Adds a kernel, its arguments and its result to `CASES`."""
  CASES[name] = (f, args, expected)


def _grid(body, out, in_blocks, out_block, grid, maps, out_map, **kwargs):
  def f(*args, interpret=False):
    return pl.pallas_call(
      body,
      out_shape=out,
      grid=grid,
      in_specs=[
        pl.BlockSpec(b, m) for b, m in zip(in_blocks, maps, strict=True)
      ],
      out_specs=pl.BlockSpec(out_block, out_map),
      interpret=interpret,
      **kwargs,
    )(*args)

  return f


_x = array((32, 256))
case(
  "grid",
  _grid(
    copy,
    shape((32, 256)),
    [(8, 128)],
    (8, 128),
    (4, 2),
    [lambda i, j: (i, j)],
    lambda i, j: (i, j),
  ),
  (_x,),
  _x,
)
_x = array((30, 128))
case(
  "grid_with_remainder",
  _grid(
    copy,
    shape((30, 128)),
    [(8, 128)],
    (8, 128),
    (4,),
    [lambda i: (i, 0)],
    lambda i: (i, 0),
  ),
  (_x,),
  _x,
)


def _accumulate_body(x, o):
  @pl.when(pl.program_id(0) == 0)
  def _():
    o[...] = jnp.zeros_like(o)

  o[...] += x[...]


_x = array((32, 128))
case(
  "grid_accumulates",
  _grid(
    _accumulate_body,
    shape((8, 128)),
    [(8, 128)],
    (8, 128),
    (4,),
    [lambda i: (i, 0)],
    lambda i: (0, 0),
  ),
  (_x,),
  _x.reshape(4, 8, 128).sum(axis=0),
)
_x = array((3, 8, 128))
case(
  "squeezed_block",
  _grid(
    copy,
    shape((8, 128)),
    [(None, 8, 128)],
    (8, 128),
    (3,),
    [lambda i: (i, 0, 0)],
    lambda i: (0, 0),
  ),
  (_x,),
  _x[2],
)


def _prefetch(s, x, interpret=False):
  spec = pltpu.PrefetchScalarGridSpec(
    num_scalar_prefetch=1,
    grid=(4,),
    in_specs=[pl.BlockSpec((8, 128), lambda i, s: (s[i], 0))],
    out_specs=pl.BlockSpec((8, 128), lambda i, s: (i, 0)),
    scratch_shapes=[pltpu.VMEM((8, 128), _F32)],
  )

  def body(s, x, o, scratch):
    scratch[...] = x[...] + s[pl.program_id(0)].astype(_F32)
    o[...] = scratch[...]

  return pl.pallas_call(
    body, out_shape=shape((32, 128)), grid_spec=spec, interpret=interpret
  )(s, x)


_x, _s = array((32, 128)), np.array([2, 0, 3, 3], np.int32)
case(
  "scalar_prefetch",
  _prefetch,
  (_s, _x),
  (_x.reshape(4, 8, 128)[_s] + _s[:, None, None]).reshape(32, 128),
)
case(
  "vmap",
  lambda x, interpret=False: jax.vmap(
    lambda y: call(copy, shape((8, 128)))(y, interpret=interpret)
  )(x),
  (_x.reshape(4, 8, 128),),
  _x.reshape(4, 8, 128),
)

# DMA.
case(
  "dma_hbm",
  call(dma, shape((32, 128)), ins=(pl.ANY,), outs=pl.ANY),
  (_x,),
  _x,
)


def _dma_window_body(i, x, o, buffer, semaphore):
  copy = pltpu.make_async_copy(
    x.at[pl.ds(pl.multiple_of(i[0] * 8, 8), 8), :], buffer, semaphore
  )
  copy.start()
  copy.wait()
  o[...] = buffer[...] * 2


case(
  "dma_window",
  call(
    _dma_window_body,
    shape((8, 128)),
    ins=(pltpu.SMEM, pl.ANY),
    scratch_shapes=[pltpu.VMEM((8, 128), _F32), pltpu.SemaphoreType.DMA],
  ),
  (np.array([3], np.int32), _x),
  _x[24:] * 2,
)


def _scoped_body(x, o):
  def inner(buffer):
    pltpu.sync_copy(x, buffer)
    o[...] = buffer[...] + 1

  pl.run_scoped(inner, pltpu.VMEM((32, 128), _F32))


case(
  "run_scoped",
  call(_scoped_body, shape((32, 128)), ins=(pl.ANY,)),
  (_x,),
  _x + 1,
)


def _semaphore_body(o, semaphore):
  pl.semaphore_signal(semaphore, 3)
  pl.semaphore_wait(semaphore, 2)
  o[0] = jnp.int32(1)
  pl.semaphore_wait(semaphore, 1)


case(
  "semaphores",
  call(
    _semaphore_body,
    shape((1,), _I32),
    outs=pltpu.SMEM,
    scratch_shapes=[pltpu.SemaphoreType.REGULAR],
  ),
  (),
  np.array([1], np.int32),
)
