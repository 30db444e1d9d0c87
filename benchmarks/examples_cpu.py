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
"""The examples beside what one writes today, on this machine's CPU.

Prints medians in milliseconds, over rounds in which both take turns, and the
megabytes of temporary memory that each program has.
"""

import statistics
import time

import jax
import jax.numpy as jnp
from jax_swapext import examples
import numpy as np

ROUNDS = 9


def one_hot_positions(expert, num_experts):
  one_hot = jax.nn.one_hot(expert, num_experts, dtype=np.int32)
  before = jnp.cumsum(one_hot, 0) - one_hot
  return jnp.take_along_axis(before, expert[:, None], 1)[:, 0], one_hot.sum(0)


def sorted_positions(expert, num_experts):
  order = jnp.argsort(expert, stable=True)
  count = jnp.bincount(expert, length=num_experts)
  start = jnp.cumsum(count) - count
  place = jnp.zeros_like(expert).at[order].set(jnp.arange(expert.size))
  return place - start[expert], count


def one_hot_gradient(token, gradient, vocabulary):
  return jax.nn.one_hot(token, vocabulary, dtype=gradient.dtype).T @ gradient


def scatter_gradient(token, gradient, vocabulary):
  zeros = jnp.zeros((vocabulary, gradient.shape[1]), gradient.dtype)
  return zeros.at[token].add(gradient)


def sorted_insert(table, key):
  """A sorted array of the distinct keys, for a table that is built once."""
  distinct = jnp.unique(key, size=table.shape[0], fill_value=2**31 - 1)
  return distinct, jnp.searchsorted(distinct, key)


def time_all(contestants):
  """Milliseconds and megabytes for each of `(function, args, static)`."""
  programs = []
  for fun, args, static in contestants:
    bound = jax.jit(lambda *a, fun=fun, static=static: fun(*a, *static))
    compiled = bound.lower(*args).compile()
    jax.block_until_ready(compiled(*args))
    programs.append((compiled, args))
  times = [[] for _ in programs]
  for _ in range(ROUNDS):
    for program, found in zip(programs, times, strict=True):
      compiled, args = program
      start = time.perf_counter()
      jax.block_until_ready(compiled(*args))
      found.append(time.perf_counter() - start)
  return [
      (1e3 * statistics.median(found),
       compiled.memory_analysis().temp_size_in_bytes / 1e6)
      for (compiled, _), found in zip(programs, times, strict=True)
  ]


def main():
  rng = np.random.default_rng(0)
  ints = lambda high, n: jnp.asarray(rng.integers(0, high, n, np.int32))
  expert, token = ints(256, 65_536), ints(4_096, 8_192)
  gradient = jnp.asarray(rng.normal(size=(8_192, 128)).astype(np.float32))
  x, key = ints(256, 10**6), ints(2**30, 10**5)
  empty = jnp.full(2**18, examples.EMPTY)
  rows = {
      "MoE positions, 65536 tokens, 256 experts": {
          "fetch_add": (examples.expert_positions, (expert,), (256,)),
          "one-hot cumsum": (one_hot_positions, (expert,), (256,)),
          "stable sort": (sorted_positions, (expert,), (256,)),
      },
      "histogram of 1e6 bytes": {
          "fetch_add": (examples.bincount, (x,), (256,)),
          "jnp.bincount": (lambda x: jnp.bincount(x, length=256), (x,), ()),
      },
      "embedding gradient, 8192 tokens x 128": {
          "fetch_add": (
              examples.embedding_gradient, (token, gradient), (4_096,)
          ),
          ".at[].add": (scatter_gradient, (token, gradient), (4_096,)),
          "one-hot matmul": (one_hot_gradient, (token, gradient), (4_096,)),
      },
      "1e5 keys into 2^18 slots": {
          "fetch_cas": (examples.hash_insert, (empty, key), ()),
          "jnp.unique": (sorted_insert, (empty, key), ()),
      },
  }
  for title, contestants in rows.items():
    print(title)
    found = time_all(contestants.values())
    for name, (milliseconds, megabytes) in zip(contestants, found):
      ratio = milliseconds / found[0][0]
      print(f"  {name:18}{milliseconds:10.2f} ms{ratio:9.1f} x"
            f"{megabytes:10.1f} MB")


if __name__ == "__main__":
  main()
