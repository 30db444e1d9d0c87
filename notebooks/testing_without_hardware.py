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
# # Testing kernels without the hardware
#
# [![Open In Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/jax-swapext/jax_swapext/blob/main/notebooks/testing_without_hardware.ipynb)
#
# `jax_swapext.testing` compiles any JAX function for a TPU or a GPU that need
# not be there, and has assertions for absltest and pytest. It does not ask
# whether a kernel uses anything else of this library.

# %%
import importlib.util
import subprocess
import sys

if importlib.util.find_spec("jax_swapext") is None:  # As on Colab.
  pip = [sys.executable, "-m", "pip", "install", "--quiet"]
  # The extra has the compilers.
  subprocess.run([*pip, "jax_swapext[test]", "matplotlib"], check=True)

# %%
import unittest
from unittest import mock

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
import jax.numpy as jnp
import jax_swapext as jsx
from jax_swapext import testing
import matplotlib.pyplot as plt
import numpy as np

BLUE, ORANGE = "#0072B2", "#E69F00"  # Okabe and Ito: safe for all eyes.

# %% [markdown]
# ## One kernel, all targets
#
# Rows are added to a table at indices that may repeat. The body is the same for
# TPUs and GPUs.

# %%
TABLE = jax.ShapeDtypeStruct((16, 128), jnp.float32)
INDEX = jax.ShapeDtypeStruct((8,), jnp.int32)
ROWS = jax.ShapeDtypeStruct((8, 128), jnp.float32)


def add_rows(table_ref, index_ref, rows_ref, o_ref):
  jsx.store(o_ref, None, jsx.load(table_ref))
  for k in range(INDEX.size):
    row = jsx.load(index_ref, k)
    jsx.atomic_add(o_ref, row, jsx.load(rows_ref, k))


def on_tpu(*args, interpret=False):
  return pl.pallas_call(add_rows, TABLE, interpret=interpret)(*args)


def on_gpu(*args, interpret=False):
  kernel = plgpu.kernel(add_rows, out_type=TABLE, interpret=interpret)
  return kernel(*args)


compiled = {}
for target in testing.TARGETS:
  kernel = on_tpu if target.startswith("tpu") else on_gpu
  compiled[target] = testing.compile_for(target, kernel, TABLE, INDEX, ROWS)
  print(compiled[target].summary())

# %%
tpus = [t for t in compiled if compiled[t].bundles is not None]
gpus = [t for t in compiled if compiled[t].registers is not None]
_, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
bars = left.bar(tpus, [compiled[t].bundles for t in tpus], 0.6, color=BLUE)
left.bar_label(bars)
left.set(title="TPU: TensorCore", ylabel="bundles of instructions")
bars = right.bar(
    gpus, [compiled[t].registers for t in gpus], 0.6, color=ORANGE,
    hatch="///", edgecolor="white",
)
right.bar_label(bars)
right.set(title="GPU: Mosaic GPU", ylabel="registers of a thread")
for axes in (left, right):
  axes.margins(y=0.15)
left.figure.suptitle("One kernel compiles for seven targets that are not here")
plt.show()

# %% [markdown]
# ## What the result has
#
# `module` is what JAX gave to the compiler, `hlo` what XLA made of it, `ptx`
# the kernel for a GPU.

# %%
print("module:", compiled["tpu-v6e"].module[:31], "...")
print("hlo:   ", compiled["tpu-v6e"].hlo[:31], "...")
ptx = compiled["h100"].ptx
print(*[t for t in ptx.splitlines() if t.startswith((".version", ".target"))])
print("atomics in the PTX:", ptx.count("atom.") + ptx.count("red."))

# %% [markdown]
# ## What is refused
#
# JAX refuses some kernels when it lowers them; its own exception comes through.
# What the compiler refuses is a `CompileError` with the compiler's last words.
# So it is when the compiler ends its own process, or does not end in time; this
# process goes on.


# %%
def stock_scalar(o_ref):
  o_ref[...] = jnp.zeros_like(o_ref)
  o_ref[0, 0] = 1.0


def attempt(what, target, function, *args, lines=1, **options):
  try:
    testing.compile_for(target, function, *args, **options)
  except Exception as e:
    said = str(e).split(". ")[0].splitlines()[:lines]
    print(f"{what}, {type(e).__name__}:", *said, sep="\n    ")


HUGE = jax.ShapeDtypeStruct((2**36,), jnp.float32)
attempt("JAX refuses", "tpu-v6e", pl.pallas_call(stock_scalar, ROWS))
attempt("libtpu refuses", "tpu-v6e", jnp.negative, HUGE, lines=2)
attempt("too slow", "h100", jnp.negative, ROWS, timeout=0.01)
with mock.patch.dict("os.environ", XLA_FLAGS="--no_such_flag"):
  attempt("XLA exits", "h100", jnp.negative, ROWS)

# %% [markdown]
# ## A test case
#
# `KernelTestCase` is an absltest case. `assertMatchesReference` runs a kernel
# in JAX's interpreters: `"hlo"` (`interpret=True`), and `"tpu"` and `"gpu"`,
# which know that device's memories and threads. `assertCompiles` returns what
# `compile_for` does, so a test can bound the cost.

# %%
rng = np.random.default_rng(0)
ARGS = (
    rng.integers(-9, 9, TABLE.shape).astype(np.float32),
    np.array([3, 0, 3, 15, 3, 7, 0, 3], np.int32),
    rng.integers(-9, 9, ROWS.shape).astype(np.float32),
)


def reference(table, index, rows):
  result = table.copy()
  np.add.at(result, index, rows)
  return result


class AddRowsTest(testing.KernelTestCase):

  def test_values_as_on_a_tpu(self):
    self.assertMatchesReference(
        on_tpu, reference, *ARGS, modes=("hlo", "tpu")
    )

  def test_values_as_on_a_gpu(self):
    self.assertMatchesReference(on_gpu, reference, *ARGS, modes=("gpu",))

  def test_cost(self):
    found = self.assertCompiles(on_tpu, *ARGS, targets=("tpu-v6e",))
    self.assertLess(found["tpu-v6e"].bundles, 200)

  def test_stock_still_refuses(self):
    self.assertRefuses(
        "Cannot store scalars to VMEM", pl.pallas_call(stock_scalar, ROWS),
        targets=("tpu-v6e",),
    )


# %% [markdown]
# In a file of tests the last lines are `if __name__ == "__main__":
# absltest.main()`, and pytest finds the class too. In a notebook, unittest's
# loader does the same:


# %%
def run(case):
  tests = unittest.defaultTestLoader.loadTestsFromTestCase(case)
  for test in tests:
    result = test.run(unittest.TestResult())
    name = test.id().rpartition(".")[-1]
    print(f"{name:28}", "passed" if result.wasSuccessful() else "FAILED")
    for _, text in result.failures + result.errors:
      reason = text[text.rindex("Error: ") + len("Error: "):].strip()
      print("    " + reason.replace("\n", "\n    "))


run(AddRowsTest)

# %% [markdown]
# ## Tests that fail
#
# A test is worth something if it can fail. This kernel accumulates by a load
# and a store at all indices at once, so of the rows that go to one index a
# single one counts.


# %%
def forgets_repeats(*args, interpret=False):
  def body(table_ref, index_ref, rows_ref, o_ref):
    jsx.store(o_ref, None, jsx.load(table_ref))
    index = jsx.load(index_ref)
    jsx.store(o_ref, index, jsx.load(o_ref, index) + jsx.load(rows_ref))

  return pl.pallas_call(body, TABLE, interpret=interpret)(*args)


class ForgetsRepeatsTest(testing.KernelTestCase):

  def test_values(self):
    self.assertMatchesReference(forgets_repeats, reference, *ARGS)

  def test_cost(self):
    found = self.assertCompiles(on_tpu, *ARGS, targets=("tpu-v6e",))
    self.assertLess(found["tpu-v6e"].bundles, 10)


run(ForgetsRepeatsTest)
