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
# # jax_swapext: quickstart
#
# [![Open In Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/jax-swapext/jax_swapext/blob/main/notebooks/quickstart.ipynb)
#
# Loads, stores, swaps and atomics for JAX and Pallas kernels, with any mask,
# any index, and indices that repeat. This notebook takes the four errors that
# everybody meets who writes a Pallas kernel, shows what stock JAX says, and
# then the same kernel at work. A CPU is enough: what is refused for a TPU is
# refused when the kernel is lowered, and that needs no TPU.

# %%
import importlib.util
import subprocess
import sys

if importlib.util.find_spec("jax_swapext") is None:  # As on Colab.
  pip = [sys.executable, "-m", "pip", "install", "--quiet"]
  subprocess.run([*pip, "jax_swapext", "matplotlib"], check=True)

# %%
import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import triton as pltriton
import jax.numpy as jnp
import jax_swapext as jsx
import matplotlib.pyplot as plt
import numpy as np

# %% [markdown]
# `lower_for_tpu` lowers a function as for a TPU v6e and prints what came of it.
# The description of the device is all that JAX needs. `run` runs a kernel on
# this machine, in Pallas' interpreter.


# %%
def lower_for_tpu(kernel, out, *args):
  device = jax.sharding.AbstractDevice(
      device_kind="TPU v6 lite", num_cores=1, platform="tpu"
  )
  mesh = jax.sharding.AbstractMesh((1,), ("x",), abstract_device=device)
  call = jax.jit(pl.pallas_call(kernel, out))
  try:
    with jax.sharding.use_abstract_mesh(mesh):
      call.trace(*args).lower(lowering_platforms=("tpu",))
  except Exception as e:
    print(f"{kernel.__name__}: {type(e).__name__}: {e}")
  else:
    print(f"{kernel.__name__}: lowers")


def run(kernel, out, *args):
  return np.asarray(pl.pallas_call(kernel, out, interpret=True)(*args))


x = jnp.arange(8 * 128, dtype=jnp.float32).reshape(8, 128)

# %% [markdown]
# ## 1. A scalar into a block
#
# The first kernel that most people write ends in one number, and the output of
# a kernel lies in vector memory (VMEM) unless one asks for something else.


# %%
def stock_scalar(x_ref, o_ref):
  o_ref[...] = jnp.zeros_like(o_ref)
  o_ref[0, 3] = jnp.sum(x_ref[...])


def our_scalar(x_ref, o_ref):
  o_ref[...] = jnp.zeros_like(o_ref)
  jsx.store(o_ref, (0, 3), jnp.sum(x_ref[...]))


lower_for_tpu(stock_scalar, x, x)
lower_for_tpu(our_scalar, x, x)
print(run(our_scalar, x, x)[0, 2:5], "wanted", x.sum())

# %% [markdown]
# ## 2. The ragged tail, in bfloat16
#
# Whatever is no multiple of the block ends in a mask. Stock JAX stores under a
# mask on a TPU if the elements have 32 bits.

# %%
narrow = x.astype(jnp.bfloat16)
VALID = 100


def stock_tail(x_ref, o_ref):
  o_ref[...] = jnp.zeros_like(o_ref)
  lane = jax.lax.broadcasted_iota(jnp.int32, x_ref.shape, 1)
  pltpu.store(o_ref, x_ref[...] + 1, mask=lane < VALID)


def our_tail(x_ref, o_ref):
  o_ref[...] = jnp.zeros_like(o_ref)
  lane = jax.lax.broadcasted_iota(jnp.int32, x_ref.shape, 1)
  jsx.store(o_ref, None, x_ref[...] + 1, mask=lane < VALID)


lower_for_tpu(stock_tail, narrow, narrow)
lower_for_tpu(our_tail, narrow, narrow)
wanted = np.where(np.arange(128) < VALID, narrow + 1, 0)
print("equals NumPy:", np.array_equal(run(our_tail, narrow, narrow), wanted))

# %% [markdown]
# ## 3. Adding to what is there
#
# `jax.ref.addupdate` is JAX's own way to accumulate, and has no rule for
# kernels on a TPU. `jsx.atomic_add` has.


# %%
def stock_add(x_ref, o_ref):
  o_ref[...] = jnp.ones_like(o_ref)
  jax.ref.addupdate(o_ref, (pl.ds(0, 4),), x_ref[0:4])


def our_add(x_ref, o_ref):
  o_ref[...] = jnp.ones_like(o_ref)
  jsx.atomic_add(o_ref, pl.ds(0, 4), x_ref[0:4])


lower_for_tpu(stock_add, x, x)
lower_for_tpu(our_add, x, x)
wanted = np.ones_like(x)
wanted[:4] += x[:4]
print("equals NumPy:", np.array_equal(run(our_add, x, x), wanted))

# %% [markdown]
# ## 4. Rows by number
#
# An integer array as an index, which NumPy calls advanced indexing and a kernel
# author a gather.

# %%
rows = jnp.array([6, 0, 3, 3], jnp.int32)
picked = jax.ShapeDtypeStruct((4, 128), x.dtype)


def stock_gather(x_ref, row_ref, o_ref):
  o_ref[...] = x_ref[row_ref[...]]


def our_gather(x_ref, row_ref, o_ref):
  jsx.store(o_ref, None, jsx.load(x_ref, row_ref[...]))


lower_for_tpu(stock_gather, picked, x, rows)
lower_for_tpu(our_gather, picked, x, rows)
wanted = np.asarray(x)[rows]
print("equals NumPy:", np.array_equal(run(our_gather, picked, x, rows), wanted))

# %% [markdown]
# ## Worse than an error: indices that repeat
#
# A histogram adds to one element many times. Stock Pallas has an `atomic_add`
# for GPUs, and its interpreter adds once for each index: the result is wrong
# and nothing says so. `jsx.atomic_add` counts all repeats.

# %%
TEXT = b"""a kernel that counts has to add to one element again and again, and
the sum is right only if every one of the repeats is seen by the hardware"""
letters = np.frombuffer(TEXT, np.uint8)
letters = letters[(letters >= ord("a")) & (letters <= ord("z"))] - ord("a")
letters = jnp.asarray(letters, jnp.int32)
counts = jax.ShapeDtypeStruct((26,), jnp.int32)


def stock_histogram(letter_ref, count_ref):
  count_ref[...] = jnp.zeros_like(count_ref)
  ones = jnp.ones_like(letter_ref)
  pltriton.atomic_add(count_ref, (letter_ref[...],), ones)


def our_histogram(letter_ref, count_ref):
  count_ref[...] = jnp.zeros_like(count_ref)
  jsx.atomic_add(count_ref, letter_ref[...], 1)


stock = run(stock_histogram, counts, letters)
ours = run(our_histogram, counts, letters)
true = np.bincount(letters, minlength=26)
print("letters in the text:", letters.size)
print("counted by stock:   ", stock.sum())
print("counted by ours:    ", ours.sum())
print("ours equals NumPy:  ", np.array_equal(ours, true))

# %%
BLUE, VERMILION = "#0072B2", "#D55E00"  # Okabe and Ito: safe for all eyes.

_, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
[present] = np.nonzero(true)
axes.bar(present, true[present], 0.7, color="#DDDDDD", label="NumPy")
axes.plot(
    present, ours[present], "o", color=BLUE, ms=8, label="jsx.atomic_add"
)
axes.plot(
    present, stock[present], "x", color=VERMILION, ms=8, mew=2,
    label="pltriton.atomic_add, interpreted",
)
axes.set_xticks(present, [chr(ord("a") + i) for i in present])
axes.set(
    title="Repeats count: stock's interpreter counts every letter once",
    xlabel="letter", ylabel="times counted",
)
axes.legend()
plt.show()

# %% [markdown]
# ## Kernels that are written already
#
# `@jsx.extended` gives a kernel's stock syntax the same meaning. The bodies
# from above, unchanged:

# %%
for kernel, args in (
    (stock_scalar, [x]), (stock_tail, [narrow]), (stock_add, [x]),
    (stock_gather, [x, rows]),
):
  out = picked if kernel is stock_gather else args[0]
  lower_for_tpu(jsx.extended(kernel), out, *args)

# %% [markdown]
# ## Outside kernels
#
# `fetch_*` are the same operations on arrays: pure functions that return the
# old elements and the new array. Repeats count one after another, so the old
# elements number them.

# %%
bins = jnp.array([0, 2, 2, 2, 1, 2])
rank, count = jsx.fetch_add(jnp.zeros(4, jnp.int32), bins, 1)
print("rank within its bin:", rank)
print("size of each bin:   ", count)


# %% [markdown]
# They batch, and they differentiate: here the sum of squares of three bins.


# %%
def energy(value):
  _, total = jsx.fetch_add(jnp.zeros(3), jnp.array([0, 2, 2]), value)
  return jnp.sum(total**2)


values = jnp.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
print(jax.vmap(energy)(values))
print(jax.vmap(jax.grad(energy))(values))

# %% [markdown]
# ## What works where
#
# `jsx.support()` is the whole matrix, as data and as a table, and takes
# filters. What cannot be done is in it, with the reason and the way out; the
# error says the same.

# %%
jsx.support(place="TensorCore", operation="atomic_add")


# %%
def f16_add(x_ref, o_ref):
  jsx.atomic_add(o_ref, 0, x_ref[0])


lower_for_tpu(f16_add, x.astype(jnp.float16), x.astype(jnp.float16))
