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
"""The demo's kernels that fit a TPU, compiled where libtpu is installed."""

from __future__ import annotations

from jax.experimental import pallas as pl
from jax_swapext._src import compile_for
from jax_swapext._src import demo
from jax_swapext._src import tpu_compiler

TARGET = "tpu-v6e"

is_available = tpu_compiler.is_available


def attempt(example: demo.Demo) -> demo.Attempt:
  """Compiles one of the demo's kernels, written with this library."""
  call, operations = example.own
  kernel = pl.pallas_call(
      example.kernel(*operations()), **example.pallas_call
  )
  found = demo.Attempt("ours", call, f"for {TARGET}", "refused", "")
  try:
    compiled = compile_for.compile_for(TARGET, kernel, *example.operands)
  except Exception as e:  # Whatever was raised is what there is to show.
    # With some of the compiler's last words, if it died.
    said = " ".join(f"{type(e).__name__}: {e}".split())
    return found._replace(detail=said[:300])
  bundles = compiled.bundles
  return found._replace(
      status="compiles", detail=f"{bundles} bundles", bundles=bundles
  )
