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

from collections.abc import Iterator
import importlib.util
import textwrap

from jax.experimental import pallas as pl
from jax_swapext._src import compile_for
from jax_swapext._src import demo

_TARGET = "tpu-v6e"


def report(text: bytes) -> Iterator[str]:
  """Lines on the kernels of `demo.demos(text)`, compiled for a TPU."""
  yield f"\nCompiled for {_TARGET}"
  if importlib.util.find_spec("libtpu") is None:
    yield "  libtpu is not installed; pip install 'jax_swapext[tpu]' gets it"
    return
  for example in demo.demos(text):
    if demo.LOWERED not in example.places:
      continue
    call, operations = example.own
    kernel = pl.pallas_call(
        example.kernel(*operations()), **example.pallas_call
    )
    row = f"  {example.name:<12} {call:<20}"
    try:
      compiled = compile_for.compile_for(_TARGET, kernel, *example.operands)
    except Exception as e:  # Whatever was raised is what there is to show.
      yield row.rstrip()
      said = f"{type(e).__name__}: {e}"[:300]
      yield from (f"         {line}" for line in textwrap.wrap(said, 70))
    else:
      yield f"{row} {compiled.bundles} bundles"
