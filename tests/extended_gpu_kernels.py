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
"""Kernels for Mosaic GPU that stock JAX refuses, decorated.

`WORKS` and `STAYS_STOCK` are of `stock_gpu_corpus.REFUSED`; `OWN` are more.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import triton as pltriton
import jax.numpy as jnp
import jax_swapext as jsx
import numpy as np
import stock_gpu_corpus

# `plgpu` has no such functions.
STAYS_STOCK = ("atomic_exchange", "atomic_compare_and_swap")
WORKS = tuple(x for x in stock_gpu_corpus.REFUSED if x not in STAYS_STOCK)


def extended(name, semantics, interpret=False):
  """(function, specs) of a kernel of `stock_gpu_corpus.REFUSED`."""
  body = stock_gpu_corpus.REFUSED[name][0]

  @jsx.extended
  def extended_body(x_ref, o_ref, s_ref):
    body(x_ref, o_ref, s_ref)

  x = stock_gpu_corpus.argument(name)
  return stock_gpu_corpus._kernel(
      extended_body, semantics, x, interpret,
      scratch_types=[plgpu.SMEM(x.shape, x.dtype)],
  ), [x]


@dataclasses.dataclass(frozen=True)
class Kernel:
  """One kernel, of its result `o` and of `s` in shared memory, a copy of `x`.

  Attributes:
    body: of the Refs `x`, `o` and `s`; `s` is copied to `o` after it.
    wanted: changes `o`, a copy of `x`, to what the kernel makes of it.
    stock: for Lane and for Warpgroup lowering, what stock says; empty where it
      lowers something else than is meant.
    dtype: of `x` and `o`.
    tiled: whether `s` is tiled and swizzled.
  """

  body: Callable[..., None]
  wanted: Callable[[np.ndarray], None]
  stock: tuple[str, str]
  dtype: Any = np.float32
  tiled: bool = False

  def x(self) -> np.ndarray:
    x = np.random.default_rng(0).integers(-9, 10, (64, 64))
    return x.astype(self.dtype)


_NO_RULE = ("Unimplemented primitive in Pallas Mosaic GPU lowering",) * 2
_ROW = ("multiple of 128", _NO_RULE[1])
_NO_VIEW = ("__jax_array__",) * 2
_SCALAR = ("Unsupported index type",) * 2
_TILES = ("to be divisible by the tile size",) * 2
OWN: dict[str, Kernel] = {}


def _kernel(stock, wanted, **kwargs):
  def with_body(body):
    OWN[body.__name__] = Kernel(body, wanted, stock, **kwargs)
    return body

  return with_body


def _set(o, index, value):
  o[index] = value


@_kernel(_NO_RULE, lambda o: _set(o, ..., np.where(o > 0, o, 2)))
def masked_load_with_a_scalar(x, o, s):
  value = s[...]
  s[...] = pltriton.load(s, mask=value > 0, other=2.0)


@_kernel(_ROW, lambda o: _set(o, 3, np.where(o[5] > 0, o[5], o[3])))
def masked_row_with_a_hint(x, o, s):
  value = s[5, :]
  pltriton.store(
      s.at[3, :], value, mask=value > 0, eviction_policy="evict_first"
  )


@_kernel(_ROW, lambda o: _set(o, 3, o[3] + 2 * (o[5] > 0)))
def masked_atomic_add(x, o, s):
  pltriton.atomic_add(s, 3, jnp.full((64,), 2.0), mask=x[5, :] > 0)


@_kernel(_NO_VIEW, lambda o: _set(o, (3, 5), 9))
def compare_and_swap(x, o, s):
  pltriton.atomic_cas(s.at[3, 5], s[3, 5], jnp.float32(9))


@_kernel(("", ""),
         lambda o: _set(o, ..., np.maximum(o, 2 - o)), dtype=np.int32)
def signed_maximum(x, o, s):
  plgpu.atomic_max(s, 2 - x[...])


@_kernel(("addupdate",) * 2, lambda o: _set(o, ..., 2 * o), tiled=True)
def addupdate_of_tiles(x, o, s):
  value = s[...]
  jax.ref.addupdate(s, ..., value)


@_kernel(_NO_RULE, lambda o: _set(o, ..., np.where(o > 0, 2, o)), tiled=True)
def masked_store_of_tiles(x, o, s):
  value = s[...]
  pltriton.store(s, jnp.full_like(value, 2), mask=value > 0)


@_kernel(_SCALAR, lambda o: _set(o, (3, 5), o[9, 40] + 1), tiled=True)
def element_of_a_tile(x, o, s):
  s[3, 5] = s[9, 40] + 1


@_kernel(_SCALAR, lambda o: _set(o, (3, 5), o[3, 5] + 1), tiled=True)
def atomic_add_to_an_element_of_a_tile(x, o, s):
  plgpu.atomic_add(s.at[3, 5], jnp.float32(1))


@_kernel(_SCALAR, lambda o: _set(o, 3, o[4]), tiled=True)
def row_of_tiles(x, o, s):
  s[3, :] = s[4, :]


@_kernel(_TILES, lambda o: _set(o, slice(9, 12), o[4:7]), tiled=True)
def parts_of_tiles(x, o, s):
  s[pl.ds(9, 3)] = s[pl.ds(4, 3)]


def own(name, semantics, decorate=jsx.extended, interpret=False):
  """(function, specs) of a kernel of `OWN`."""
  kernel = OWN[name]

  @decorate
  def body(x_ref, o_ref, s_ref, barrier):
    plgpu.copy_gmem_to_smem(x_ref, s_ref, barrier)
    plgpu.barrier_wait(barrier)
    kernel.body(x_ref, o_ref, s_ref)
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(s_ref, o_ref)
    plgpu.wait_smem_to_gmem(0)

  x = stock_gpu_corpus._spec((64, 64), kernel.dtype)
  transforms = (
      plgpu.TilingTransform((8, 32)), plgpu.SwizzleTransform(128)
  ) if kernel.tiled else ()
  return stock_gpu_corpus._kernel(
      body, semantics, x, interpret, scratch_types=[
          plgpu.SMEM(x.shape, x.dtype, transforms=transforms),
          plgpu.Barrier(),
      ],
  ), [x]


def own_of_stock(name, semantics):
  return own(name, semantics, decorate=lambda body: body)
