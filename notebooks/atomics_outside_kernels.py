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

# %% [markdown]
# # Atomics outside kernels
#
# [![Open In Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/jax-swapext/jax_swapext/blob/main/notebooks/atomics_outside_kernels.ipynb)
#
# `jsx.fetch_*` update an array at indices that may repeat, one element after
# another, and return the old elements with the new array: `(old, new)`. The old
# elements are what a scatter does not give. With them a mixture of experts or a
# hash table becomes a few lines. The functions here are those of
# `jax_swapext.examples`, beside what people write today.

# %%
import importlib.util
import subprocess
import sys

if importlib.util.find_spec("jax_swapext") is None:  # As on Colab.
  pip = [sys.executable, "-m", "pip", "install", "--quiet"]
  subprocess.run([*pip, "jax_swapext", "matplotlib"], check=True)

# %%
import inspect
import time

import jax
import jax.numpy as jnp
import jax_swapext as jsx
from jax_swapext import examples
import matplotlib.pyplot as plt
import numpy as np

# Okabe and Ito's colours, which all eyes tell apart; ours is the first.
STYLES = (
    dict(color="#0072B2", marker="o", linestyle="-"),
    dict(color="#D55E00", marker="s", linestyle="--"),
    dict(color="#009E73", marker="^", linestyle=":"),
)
rng = np.random.default_rng(0)


def ints(high, size):
  return jnp.asarray(rng.integers(0, high, size, np.int32))


# %% [markdown]
# ## The old elements
#
# Add 1 to a counter for each token: the old values number the tokens of each
# expert, in the order of the tokens. Exchange an empty slot for a key: the old
# value says who came first.

# %%
expert = jnp.array([2, 0, 2, 2, 1, 0])
old, count = jsx.fetch_add(jnp.zeros(3, jnp.int32), expert, 1)
print("expert ", expert)
print("old    ", old)
print("count  ", count)

slots = jnp.array([4, 4, 7])
old, table = jsx.fetch_cas(jnp.full(8, -1), slots, -1, jnp.array([10, 11, 12]))
print("old    ", old)
print("table  ", table)

# %% [markdown]
# ## How we measure
#
# Each contestant is compiled ahead of time; they take turns, and the fastest
# run of each counts, since whatever else runs here can only add. *Temporary* is
# the memory that XLA sets aside beside arguments and results.


# %%
ROUNDS = 7
print("Times and memory of:", jax.default_backend())


def measure(contestants, *args):
  """Seconds and temporary bytes for each of `{name: function}`."""
  programs = {
      name: jax.jit(f).lower(*args).compile() for name, f in contestants.items()
  }
  seconds = {name: [] for name in programs}
  for _ in range(ROUNDS):
    for name, program in programs.items():
      for _ in range(2):  # The first finds the caches as the others left them.
        start = time.perf_counter()
        jax.block_until_ready(program(*args))
        seconds[name].append(time.perf_counter() - start)
  return {
      name: (
          min(seconds[name]),
          program.memory_analysis().temp_size_in_bytes,
      )
      for name, program in programs.items()
  }


def plot(title, unit, sizes, measured):
  """Time and temporary memory against size, for each contestant."""
  _, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
  for name, style in zip(measured[0], STYLES):
    seconds, temporary = zip(*(m[name] for m in measured))
    left.plot(sizes, 1e3 * np.array(seconds), label=name, **style)
    right.plot(sizes, np.array(temporary) / 1e6, label=name, **style)
  left.set(xscale="log", yscale="log", xlabel=unit, ylabel="time, ms")
  right.set(xscale="log", xlabel=unit, ylabel="temporary memory, MB")
  right.set_yscale("symlog", linthresh=0.01)  # Logarithmic, but with a 0.
  right.set_ylim(0, 300)
  left.figure.suptitle(title)
  left.legend()
  for axes in (left, right):
    axes.grid(alpha=0.3)
  plt.show()


def print_largest(size, measured):
  ours = next(iter(measured[-1].values()))[0]
  print(f"{size}:")
  for name, (seconds, temporary) in measured[-1].items():
    print(f"  {name:26}{1e3 * seconds:9.2f} ms{seconds / ours:9.1f} x"
          f"{temporary / 1e6:10.2f} MB")


# %% [markdown]
# ## Mixtures of experts
#
# Every token needs its place among the tokens of its expert. Today that is a
# cumulative sum of a one-hot matrix, tokens times experts large, or a stable
# sort.


# %%
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


EXPERTS = 64
positions = {
    "fetch_add": lambda e: examples.expert_positions(e, EXPERTS),
    "one-hot, cumulative sum": lambda e: one_hot_positions(e, EXPERTS),
    "stable sort": lambda e: sorted_positions(e, EXPERTS),
}
expert = ints(EXPERTS, 1000)
results = [f(expert) for f in positions.values()]
for other in results[1:]:
  assert all(map(np.array_equal, results[0], other))
print("All three agree. Ours is:")
print(inspect.getsource(examples.expert_positions).splitlines()[-1])

# %%
sizes = [2**k for k in (10, 12, 14, 16)]
measured = [measure(positions, ints(EXPERTS, n)) for n in sizes]
plot(
    f"Positions of tokens among {EXPERTS} experts: a counter needs no matrix",
    "tokens", sizes, measured,
)
print_largest(f"{sizes[-1]} tokens", measured)

# %% [markdown]
# With the positions, `examples.dispatch` moves the tokens to their experts'
# buffers. Those that do not fit are the last ones, and their slot lies past the
# end.

# %%
tokens = jnp.arange(6.0)[:, None]
buffers, slot = examples.dispatch(tokens, jnp.array([2, 0, 2, 2, 1, 0]), 3, 2)
print("buffers of two rows:", *buffers[..., 0].tolist())
print("slots of the tokens:", slot)

# %% [markdown]
# ## Histograms
#
# Nobody asks for the old elements here. Under `jit` they are then not fetched:
# what is left is the scatter that `jnp.bincount` is, too.

# %%
BINS = 256
histograms = {
    "fetch_add": lambda x: examples.bincount(x, BINS),
    "jnp.bincount": lambda x: jnp.bincount(x, length=BINS),
    "sum of one-hot": lambda x: jax.nn.one_hot(x, BINS, dtype=np.int32).sum(0),
}
x = ints(BINS, 5000)
for f in histograms.values():
  assert np.array_equal(f(x), np.bincount(x, minlength=BINS))

sizes = [10**k for k in (3, 4, 5)]
measured = [measure(histograms, ints(BINS, n)) for n in sizes]
plot(
    f"Histograms of {BINS} bins: the same scatter, far from one-hot", "numbers",
    sizes, measured,
)
print_largest(f"{sizes[-1]} numbers", measured)

# %% [markdown]
# ## A hash table
#
# All keys are inserted at once: each tries to exchange an empty slot for
# itself, and those that find another key there go on to the next slot. There is
# no sort, and a table can take more keys later. What JAX offers today is a
# sorted array of the distinct keys.


# %%
def sorted_insert(key, size):
  distinct = jnp.unique(key, size=size, fill_value=2**31 - 1)
  return distinct, jnp.searchsorted(distinct, key)


def insert(key):
  """Into a new table of between two and four times the room."""
  empty = jnp.full(2 << key.size.bit_length(), examples.EMPTY)
  return examples.hash_insert(empty, key)


key = ints(2**30, 5000)
filled, slot = insert(key)
assert np.array_equal(filled[slot], key)
assert np.array_equal(examples.hash_find(filled, key), slot)
assert examples.hash_find(filled, jnp.array([2**30]))[0] == -1
print("slots:", filled.size, "filled:", np.count_nonzero(filled != -1))
print("distinct keys:", np.unique(key).size)

more = ints(2**30, 1000)
fuller, slot = examples.hash_insert(filled, more)
assert np.array_equal(fuller[slot], more)
print("filled after more keys:", np.count_nonzero(fuller != -1))

tables = {
    "fetch_cas": insert,
    "jnp.unique": lambda key: sorted_insert(key, key.size),
}
sizes = [10**k for k in (3, 4, 5)]
measured = [measure(tables, ints(2**30, n)) for n in sizes]
plot(
    "A table of distinct keys: exchanging needs less memory than sorting",
    "keys", sizes, measured,
)
print_largest(f"{sizes[-1]} keys", measured)

# %% [markdown]
# ## In place
#
# A donated table is updated where it lies: the program has no temporary the
# size of the table, and its result is the argument's memory.

# %%
big = jnp.zeros(10**7, jnp.int32)
where = ints(big.size, 1000)
program = jax.jit(
    lambda x, i: jsx.fetch_add(x, i, 1), donate_argnums=0
).lower(big, where).compile()
memory = program.memory_analysis()
print("table:    ", big.nbytes / 1e6, "MB")
print("aliased:  ", memory.alias_size_in_bytes / 1e6, "MB")
print("temporary:", memory.temp_size_in_bytes / 1e6, "MB")

# %% [markdown]
# ## The same to the last bit
#
# Row-major order means that a sum of floats comes out the same every time: here
# a gradient of an embedding, against a loop in NumPy, in float32 throughout.

# %%
token = ints(50, 2000)
gradient = jnp.asarray(rng.normal(size=(2000, 8)).astype(np.float32))
wanted = np.zeros((50, 8), np.float32)
for t, g in zip(np.asarray(token), np.asarray(gradient)):
  wanted[t] += g
got = examples.embedding_gradient(token, gradient, 50)
print("equal to the last bit:", np.array_equal(got, wanted))
