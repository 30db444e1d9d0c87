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
"""The examples compute what they say, and beat what is written today."""

import doctest
import time

from absl.testing import absltest
from absl.testing import parameterized
import jax
import jax.numpy as jnp
from jax_swapext import examples
import numpy as np


def _one_hot_positions(expert, num_experts):
  """What one writes today: a cumulative sum over tokens x experts."""
  one_hot = jax.nn.one_hot(expert, num_experts, dtype=np.int32)
  before = jnp.cumsum(one_hot, 0) - one_hot
  position = jnp.take_along_axis(before, expert[:, None], 1)[:, 0]
  return position, one_hot.sum(0)


class ExamplesTest(parameterized.TestCase):

  def test_docstrings(self):
    self.assertEqual(doctest.testmod(examples).failed, 0)
    self.assertGreater(doctest.testmod(examples).attempted, 0)

  @parameterized.parameters(0, 1, 1000)
  def test_expert_positions(self, tokens):
    expert = np.random.default_rng(0).integers(0, 7, tokens)
    got = jax.jit(examples.expert_positions, static_argnums=1)(expert, 7)
    for a, b in zip(got, _one_hot_positions(expert, 7), strict=True):
      np.testing.assert_array_equal(a, b)

  def test_expert_positions_are_cheap(self):
    tokens, experts = 65_536, 256
    expert = jnp.asarray(
        np.random.default_rng(0).integers(0, experts, tokens, np.int32)
    )
    seconds, memory = [], []
    for f in examples.expert_positions, _one_hot_positions:
      compiled = jax.jit(f, static_argnums=1).lower(expert, experts).compile()
      memory.append(compiled.memory_analysis().temp_size_in_bytes)
      jax.block_until_ready(compiled(expert))
      best = np.inf
      for _ in range(5):
        start = time.perf_counter()
        jax.block_until_ready(compiled(expert))
        best = min(best, time.perf_counter() - start)
      seconds.append(best)
    self.assertLess(10 * seconds[0], seconds[1])
    self.assertLess(memory[0], 16 * (tokens + experts))

  def test_dispatch(self):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3)).astype(np.float32)
    expert = rng.integers(0, 5, 40)  # 4 is no expert.
    buffers, slot = examples.dispatch(x, expert, 4, capacity=6)
    want = np.zeros((4, 6, 3), np.float32)
    filled = [0] * 4
    for k, e in enumerate(expert):
      if e == 4 or filled[e] == 6:
        self.assertGreaterEqual(slot[k], 24)
        continue
      want[e, filled[e]] = x[k]
      self.assertEqual(slot[k], e * 6 + filled[e])
      filled[e] += 1
    np.testing.assert_array_equal(buffers, want)

  @parameterized.parameters((0, 3, 2), (4, 3, 0), (4, 0, 2))
  def test_dispatch_of_nothing(self, tokens, experts, capacity):
    x, expert = jnp.ones((tokens, 5)), jnp.zeros(tokens, np.int32)
    buffers, slot = examples.dispatch(x, expert, experts, capacity)
    np.testing.assert_array_equal(buffers, np.zeros((experts, capacity, 5)))
    np.testing.assert_array_equal(slot, np.full(tokens, experts * capacity))

  def test_bincount(self):
    x = np.random.default_rng(0).integers(0, 40, (30, 20))
    want = np.bincount(x.reshape(-1), minlength=40)[:33]
    np.testing.assert_array_equal(examples.bincount(x, 33), want)

  def test_embedding_gradient(self):
    rng = np.random.default_rng(0)
    token = rng.integers(0, 9, 50)
    gradient = rng.normal(size=(50, 4)).astype(np.float32)
    want = np.zeros((12, 4), np.float32)
    for t, g in zip(token, gradient, strict=True):
      want[t] += g
    got = examples.embedding_gradient(token, gradient, 12)
    np.testing.assert_array_equal(got, want)


class PagedCacheTest(absltest.TestCase):

  def test_against_lists(self):
    # Sequences grow and end at random, until pages run out and beyond.
    rng = np.random.default_rng(0)
    pages, size, sequences, per_sequence = 10, 4, 6, 3
    cache = examples.PagedCache.empty(pages, size, 2, sequences, per_sequence)
    append = jax.jit(examples.append, donate_argnums=0)
    release = jax.jit(examples.release, donate_argnums=0)
    model = [[] for _ in range(sequences)]
    refused = 0
    for step in range(120):
      active = rng.random(sequences) < 0.7
      row = rng.normal(size=(sequences, 2)).astype(np.float32)
      cache, written = append(cache, row, active)
      in_use = sum(-(-len(rows) // size) for rows in model)
      for s, rows in enumerate(model):
        starts = len(rows) % size == 0
        fits = len(rows) < size * per_sequence and not (
            starts and in_use == pages
        )
        self.assertEqual(bool(written[s]), bool(active[s] and fits))
        refused += active[s] and not fits
        if active[s] and fits:
          in_use += starts
          rows.append(row[s])
      if step % 9 == 8:
        done = rng.random(sequences) < 0.3
        cache = release(cache, done)
        model = [[] if d else rows for d, rows in zip(done, model)]
      self._check(cache, model, size)
    self.assertGreater(refused, 0)

  def _check(self, cache, model, size):
    np.testing.assert_array_equal(cache.length, [len(rows) for rows in model])
    used = []
    for s, rows in enumerate(model):
      mine = list(np.asarray(cache.table[s])[: -(-len(rows) // size)])
      used += mine
      if rows:
        got = np.asarray(cache.pages)[mine].reshape(-1, 2)[: len(rows)]
        np.testing.assert_array_equal(got, rows)
    self.assertLen(set(used), len(used))
    self.assertEqual(cache.taken[0], len(used))
    free = np.asarray(cache.free)[len(used):]
    self.assertCountEqual([*used, *free], range(len(cache.free)))


class HashTableTest(parameterized.TestCase):

  @parameterized.parameters((64, 64), (64, 40), (1, 1), (256, 100))
  def test_insert_and_find(self, slots, keys):
    rng = np.random.default_rng(0)
    key = rng.choice(10_000, keys, replace=False).astype(np.int32)
    table = jnp.full(slots, examples.EMPTY)
    table, slot = jax.jit(examples.hash_insert)(table, key)
    np.testing.assert_array_equal(np.asarray(table)[slot], key)
    self.assertLen(set(slot.tolist()), keys)
    np.testing.assert_array_equal(examples.hash_find(table, key), slot)
    absent = np.arange(10_000, 10_020, dtype=np.int32)
    self.assertTrue((examples.hash_find(table, absent) == -1).all())

  def test_repeated_keys_share_a_slot(self):
    key = np.random.default_rng(0).integers(0, 30, 500).astype(np.int32)
    table, slot = examples.hash_insert(jnp.full(64, examples.EMPTY), key)
    np.testing.assert_array_equal(np.asarray(table)[slot], key)
    self.assertEqual((np.asarray(table) != examples.EMPTY).sum(),
                     len(set(key.tolist())))

  def test_full_table(self):
    key = np.arange(10, dtype=np.int32)
    table, slot = examples.hash_insert(jnp.full(8, examples.EMPTY), key)
    self.assertEqual((np.asarray(slot) == -1).sum(), 2)
    self.assertNotIn(examples.EMPTY, table.tolist())

  @parameterized.parameters(0, 12)
  def test_number_of_slots(self, slots):
    with self.assertRaisesRegex(ValueError, f"power of two.* got {slots}"):
      examples.hash_insert(
          jnp.full(slots, examples.EMPTY), np.zeros(1, np.int32)
      )


if __name__ == "__main__":
  absltest.main()
