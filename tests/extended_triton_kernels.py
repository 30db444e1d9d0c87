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
"""Kernels for Triton in stock syntax that stock JAX refuses.

Each takes `i`, eight numbers, `x`, and `o`, which starts as `start` is.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu_sc as plsc
from jax.experimental.pallas import triton as pltriton
import jax.numpy as jnp
import jax_swapext as jsx
import numpy as np

NUMBERS = np.array([3, 5, 5, 7, 1, 6, 3, 0], np.int32)
SHAPE = (8, 16)


@dataclasses.dataclass(frozen=True)
class Kernel:
  """One kernel.

  Attributes:
    body: of the Refs `i`, `x` and `o`.
    wanted: changes `o`, given the arrays `i`, `x` and `o`.
    message: of the stock refusal.
    dtype: of `x` and `o`.
  """

  body: Callable[..., None]
  wanted: Callable[..., None]
  message: str
  dtype: Any = np.float32

  def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`i`, `x` and `start`."""
    rng = np.random.default_rng(2)
    x, start = rng.integers(-8, 9, (2, *SHAPE)).astype(self.dtype)
    return NUMBERS, x, start

  def expected(self) -> np.ndarray:
    i, x, o = self.arrays()
    self.wanted(i, x, o)
    return o

  def call(self, decorate, interpret=False):
    """(function of `i`, `x` and `start`, the types of those)."""

    def kernel(i, x, start, o):
      del start  # The same memory as `o`, which starts as it.
      self.body(i, x, o)

    arrays = self.arrays()
    specs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays]
    return pl.pallas_call(
        decorate(kernel), out_shape=specs[2], input_output_aliases={2: 0},
        compiler_params=pltriton.CompilerParams(), interpret=interpret,
    ), specs


_VIEWS = "No support for multiple indexers"
_TRANSFORM = "'\\w+Transform' object has no attribute"
_NO_RULE = "Unimplemented primitive in Pallas Triton lowering"
KERNELS: dict[str, Kernel] = {}


def _set(o, index, value):
  o[index] = value


def _kernel(message, wanted, **kwargs):
  def with_body(body):
    KERNELS[body.__name__] = Kernel(body, wanted, message, **kwargs)
    return body

  return with_body


@_kernel(_VIEWS, lambda i, x, o: _set(o, slice(0, 2), x[5:7]))
def load_of_a_view(i, x, o):
  o[pl.ds(0, 2)] = x.at[pl.ds(2, 4)][pl.ds(i[0], 2)]


@_kernel(_VIEWS, lambda i, x, o: _set(o, (3, 2), x[2, 1]))
def elements_of_views(i, x, o):
  o.at[i[0]][2] = x.at[pl.ds(2, 4)][0, i[4]]


@_kernel(_VIEWS, lambda i, x, o: _set(o, (slice(2, 6, 2), 4), x[:2, 1]))
def store_to_a_strided_view(i, x, o):
  o.at[pl.ds(2, 2, 2)].at[:, 4][...] = x[pl.ds(0, 2), 1]


@_kernel(_VIEWS, lambda i, x, o: o.reshape(-1).__setitem__(
    slice(8, 24), x.reshape(4, 32)[1, 16:]))
def reshaped(i, x, o):
  o.reshape(128)[pl.ds(8, 16)] = x.reshape(4, 32)[1, pl.ds(16, 16)]


@_kernel(_VIEWS, lambda i, x, o: _set(o, ..., x.reshape(16, 8).T))
def transposed(i, x, o):
  o[...] = x.reshape(16, 8).transpose((1, 0))[...]


@_kernel(_TRANSFORM, lambda i, x, o: _set(
    o, ..., (x.view(np.int32) & 0x7FFFFFFF).view(np.float32)))
def bits(i, x, o):
  o.bitcast(jnp.int32)[...] = x.bitcast(jnp.int32)[...] & 0x7FFFFFFF


@_kernel("Only single indexer", lambda i, x, o: np.add.at(
    o, (2 + i[:4] % 4, 3), x[0, :4]))
def atomic_add_to_a_view(i, x, o):
  rows = i[pl.ds(0, 4)] % 4
  pltriton.atomic_add(
      o.at[pl.ds(2, 4)], (rows, jnp.full((4,), 3)), x[0, pl.ds(0, 4)]
  )


@_kernel(_VIEWS, lambda i, x, o: _set(o, 3, o[3] + x[1]))
def addupdate_of_a_view(i, x, o):
  jax.ref.addupdate(o.at[pl.ds(2, 4)], 1, x[1])


@_kernel("index out of range", lambda i, x, o: _set(o, ..., o + x))
def addupdate_of_all(i, x, o):
  jax.ref.addupdate(o, ..., x[...])


@_kernel("__jax_array__", lambda i, x, o: _set(
    o, (slice(None), 3), np.where(o[:, 3] == x[:, 3], 100, o[:, 3])))
def compare_and_swap_of_elements(i, x, o):
  pltriton.atomic_cas(o.at[:, 3], x[:, 3], jnp.full((8,), 100.0))


def _lock(i, x, o):
  o[0, 0], o[3, 5] = o[3, 5], 9


@_kernel("__jax_array__", _lock)
def compare_and_swap_of_one(i, x, o):
  held = o[i[0], i[1]]
  o[0, 0] = pltriton.atomic_cas(o.at[i[0], i[1]], held, jnp.float32(9))


@_kernel("ref must be scalar", lambda i, x, o: _set(
    o, ..., np.where(o == x, 7, o)), dtype=np.int32)
def compare_and_swap_of_all(i, x, o):
  pltriton.atomic_cas(o, x[...], jnp.full(o.shape, 7))


@_kernel("TPU|Gather|gather", lambda i, x, o: _set(
    o, (slice(None), 0), x[i, i]))
def load_gather(i, x, o):
  o[:, 0] = plsc.load_gather(x, [i[...], i[...]])


@_kernel(_NO_RULE, lambda i, x, o: np.add.at(o, (i, i), x[0, :8]))
def addupdate_scatter(i, x, o):
  at = i[...]
  plsc.addupdate_scatter(o, [at, at], x[0, pl.ds(0, 8)])


@_kernel(_NO_RULE, lambda i, x, o: _set(
    o, ([3, 3], [5, 7]), [x[3, 5] + o[3, 5], o[3, 7]]))
def atomic_add_of_mosaic_gpu(i, x, o):
  plgpu.atomic_add(o.at[3, 5], x[3, 5])


@_kernel(_NO_RULE, lambda i, x, o: _set(o, ..., np.maximum(o, x)),
         dtype=np.int32)
def atomic_max_of_mosaic_gpu(i, x, o):
  plgpu.atomic_max(o, x[...])


def build(name):
  """The decorated kernel."""
  return KERNELS[name].call(jsx.extended)
