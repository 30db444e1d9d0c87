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
"""The stock kernels that Mosaic GPU refuses, decorated."""

from __future__ import annotations

from jax.experimental.pallas import mosaic_gpu as plgpu
import jax_swapext as jsx
import stock_gpu_corpus

# What the decorator leaves to stock: a load with an `other`, for which Triton
# has a rule; an update whose value gets its layout when it is lowered; and what
# stock has no words for.
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
