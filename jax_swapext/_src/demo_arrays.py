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
"""Outside kernels: which one of its equals each byte is, run and timed."""

from __future__ import annotations

from collections.abc import Iterator
import time

import jax
import jax.numpy as jnp
from jax_swapext._src import demo
from jax_swapext._src import fetch
import numpy as np

NAME = "positions"
TITLE = "for each byte, how many like it came before"
_RUNS = 5


def attempts(text: bytes) -> Iterator[demo.Attempt]:
  """Runs and times it by JAX's own means, and by this library's."""
  byte = np.frombuffer(text, np.uint8).astype(np.int32)
  wanted = _positions(byte)
  [device] = jnp.zeros(()).devices()  # the CPU, if JAX was not told otherwise
  for library, call, function in (
      ("stock", "one-hot, cumsum", _by_cumsum),
      ("ours", "jsx.fetch_add", _by_fetch_add),
  ):
    place = f"jit, {device.platform.upper()}"
    attempt = demo.Attempt(library, call, place, "refused", "")
    try:
      run = jax.jit(function)
      got = np.asarray(run(byte))
      milliseconds = min(_milliseconds(run, byte) for _ in range(_RUNS))
    except Exception as e:  # Whatever was raised is what there is to show.
      yield attempt._replace(detail=demo.first_sentence(e))
      continue
    right = int((got == wanted).sum())
    yield attempt._replace(
        status="right" if right == byte.size else "WRONG",
        detail=f"{right} of {byte.size}, {milliseconds:.2g} ms",
        milliseconds=milliseconds,
    )


def _positions(byte: np.ndarray) -> np.ndarray:
  order = np.argsort(byte, kind="stable")
  first = np.searchsorted(byte[order], byte[order])
  positions = np.empty_like(byte)
  positions[order] = np.arange(byte.size) - first
  return positions


def _by_cumsum(byte: jax.Array) -> jax.Array:
  is_value = jax.nn.one_hot(byte, 256, dtype=jnp.int32)
  count = jnp.cumsum(is_value, axis=0)
  return jnp.take_along_axis(count, byte[:, None], axis=1)[:, 0] - 1


def _by_fetch_add(byte: jax.Array) -> jax.Array:
  positions, _ = fetch.fetch_add(jnp.zeros(256, jnp.int32), byte, 1)
  return positions


def _milliseconds(run, byte) -> float:
  start = time.perf_counter()
  jax.block_until_ready(run(byte))
  return (time.perf_counter() - start) * 1e3
