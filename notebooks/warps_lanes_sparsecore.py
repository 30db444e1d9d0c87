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
# # Warps, lanes and SparseCore: one kernel in five places
#
# [![Open In Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/jax-swapext/jax_swapext/blob/main/notebooks/warps_lanes_sparsecore.ipynb)
#
# A Pallas kernel runs on the TensorCore or the SparseCore of a TPU, in a
# warpgroup or a single warp of a GPU, or in Triton. Each has rules of its own
# for what may be loaded and stored. Here the body of one kernel goes to all of
# them unchanged: it is checked in JAX's interpreters, and compiled by the real
# compilers, which need no accelerator. Then we read what came out.

# %%
import importlib.util
import subprocess
import sys

if importlib.util.find_spec("jax_swapext") is None:  # As on Colab.
  pip = [sys.executable, "-m", "pip", "install", "--quiet"]
  # The extra has the compilers.
  subprocess.run([*pip, "jax_swapext[test]", "matplotlib"], check=True)

# %%
import re
import warnings

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc
from jax.experimental.pallas import triton as pltriton
import jax.numpy as jnp
import jax_swapext as jsx
from jax_swapext import testing
import matplotlib.pyplot as plt
import numpy as np

# Of two things that these kernels do as they should, JAX warns.
warnings.filterwarnings("ignore", message="The Pallas Triton backend is depr")
warnings.filterwarnings("ignore", message="Destination semaphore is ignored")

# Okabe and Ito's colours, which all eyes tell apart.
BLUE, ORANGE, GREEN = "#0072B2", "#E69F00", "#009E73"
VERMILION, GREY = "#D55E00", "#999999"

# %% [markdown]
# ## The kernel
#
# A gather under a mask: `o[k] = x[i[k]]`, and -1 where `i[k]` lies outside. The
# mask is all that guards it: a masked-off element is not accessed.

# %%
N = 128
X = jax.ShapeDtypeStruct((N,), jnp.float32)
INDEX = jax.ShapeDtypeStruct((N,), jnp.int32)


def gather(x_ref, i_ref, o_ref):
  i = jsx.load(i_ref)
  jsx.store(o_ref, None, jsx.load(x_ref, i, mask=i < N, other=-1.0))


def stock_gather(x_ref, i_ref, o_ref):  # Without the mask, even.
  o_ref[...] = x_ref[i_ref[...]]


# %% [markdown]
# ## The places
#
# What differs is how a kernel is started and where its Refs are: in VMEM, in
# the SparseCore's own VMEM, to which they are copied first, or in the GPU's
# global memory.


# %%
def tensorcore(body, interpret=False):
  return pl.pallas_call(body, X, interpret=interpret)


def sparsecore(body, interpret=False):
  def kernel(x_hbm, i_hbm, o_hbm, x_ref, i_ref, o_ref):
    pltpu.sync_copy(x_hbm, x_ref)
    pltpu.sync_copy(i_hbm, i_ref)
    body(x_ref, i_ref, o_ref)
    pltpu.sync_copy(o_ref, o_hbm)

  def call(*args):  # Which TPU this is for is known only here; the mesh asks.
    mesh = plsc.VectorSubcoreMesh(
        core_axis_name="core", subcore_axis_name="subcore",
        num_cores=1, num_subcores=1,
    )
    return pl.kernel(
        kernel, out_type=X, mesh=mesh, interpret=interpret,
        scratch_types=[pltpu.VMEM(s.shape, s.dtype) for s in (X, INDEX, X)],
        compiler_params=pltpu.CompilerParams(use_tc_tiling_on_sc=False),
    )(*args)

  return call


def warpgroup(body, interpret=False):
  return plgpu.kernel(body, out_type=X, interpret=interpret)


def warp(body, interpret=False):
  def kernel(*refs):
    def in_each_warp():
      pl.when(lax.axis_index("warp") == 0)(lambda: body(*refs))

    pl.kernel(in_each_warp, mesh=plgpu.WarpMesh(axis_name="warp"))()

  return plgpu.kernel(kernel, out_type=X, interpret=interpret)


def triton(body, interpret=False):
  params = pltriton.CompilerParams()
  return pl.pallas_call(body, X, compiler_params=params, interpret=interpret)


# Place: what to compile for, and the interpreter that knows its rules.
PLACES = {
    tensorcore: ("tpu-v6e", "tpu"),
    sparsecore: ("tpu-v6e", "tpu"),
    warpgroup: ("h100", "gpu"),
    warp: ("h100", "gpu"),
    triton: ("h100", "hlo"),
}

# %% [markdown]
# ## The same values everywhere

# %%
rng = np.random.default_rng(0)
x = rng.normal(size=N).astype(np.float32)
i = rng.integers(0, 2 * N, N, np.int32)  # Half of them outside.
TPU_V6E = jax.sharding.AbstractMesh(
    (1,), ("x",), (jax.sharding.AxisType.Auto,),
    abstract_device=jax.sharding.AbstractDevice(
        device_kind="TPU v6 lite", num_cores=1, platform="tpu"
    ),
)


def reference(x, i):
  return np.where(i < N, x[np.minimum(i, N - 1)], np.float32(-1))


case = testing.KernelTestCase()
for place, (_, mode) in PLACES.items():

  def kernel(x, i, interpret, place=place):
    with jax.sharding.use_abstract_mesh(TPU_V6E):
      return jax.jit(place(gather, interpret))(x, i)

  case.assertMatchesReference(kernel, reference, x, i, modes=(mode,))
  print(f"{place.__name__:12} equals NumPy in the {mode} interpreter")

# %% [markdown]
# ## The real compilers
#
# `testing.compile_for` lowers a function, compiles it in a process of its own,
# and returns what came out. First stock JAX's `o_ref[...] = x_ref[i_ref[...]]`,
# which Triton alone lowers, then ours, which has the mask.

# %%
compiled = {}
for place, (target, _) in PLACES.items():
  for body in (stock_gather, gather):
    try:
      result = testing.compile_for(target, place(body), X, INDEX)
      said = result.summary()
    except Exception as e:  # What stock JAX says is what there is to show.
      said = str(e).split("\n")[0]
      said = said if len(said) < 90 else f"{said[:90]}..."
      said = f"{type(e).__name__}: {said}"
    print(f"{place.__name__:11} {body.__name__:13} {said}")
  compiled[place] = result

# %% [markdown]
# ## Reading the PTX
#
# The instructions that reach memory, and what decides whether they do. A thread
# of a warpgroup has one of the 128 elements. A lane of a warp has four
# neighbours: their indices come by one 16-byte load and their results leave by
# one 16-byte store. A masked-off load is jumped over in Mosaic GPU, or has a
# predicate in Triton.

# %%
MEMORY = re.compile(r"\b(ld|st|atom|red)\.(global|shared)|\bbra\b")


def instructions(ptx):
  """The instructions of a program in PTX, without what is between them."""
  lines = re.sub(r"//[^\n]*", "", ptx).splitlines()
  wanted = r"\s*(@!?%\w+\s+)?[a-z][\w:]*(\.[\w:]+)*\s.*;"
  return [" ".join(line.split()) for line in lines if re.match(wanted, line)]


for place in (warpgroup, warp, triton):
  print(f"{place.__name__}:")
  for line in instructions(compiled[place].ptx):
    if MEMORY.search(line):
      print("   ", line)

# %%
KINDS = {
    "loads": (r"\bld\.global", BLUE, ""),
    "stores": (r"\bst\.global", VERMILION, "///"),
    "branches, predicates": (r"\bbra\b|\bsetp\b", ORANGE, "..."),
    "barriers": (r"\bbar\b|\bbarrier\b", GREEN, "xxx"),
    "the rest": (r"", GREY, ""),
}

_, axes = plt.subplots(figsize=(8, 2.8), layout="constrained")
names = ["one warp\n(4 elements a lane)", "warpgroup\n(1 a thread)"]
names += ["Triton\n(1 a thread)"]
left = np.zeros(3)
rest = [instructions(compiled[p].ptx) for p in (warp, warpgroup, triton)]
for kind, (pattern, color, hatch) in KINDS.items():
  found = np.array([sum(bool(re.search(pattern, t)) for t in r) for r in rest])
  rest = [[t for t in r if not re.search(pattern, t)] for r in rest]
  axes.barh(
      names, found, left=left, color=color, hatch=hatch, edgecolor="white",
      label=kind,
  )
  left += found
axes.set(
    title="Four elements a lane take less than twice the instructions of one",
    xlabel="PTX instructions of a thread",
)
axes.invert_yaxis()
axes.legend()
plt.show()

# %% [markdown]
# ## Vectors in a warp
#
# Stock JAX has no array operations in warp code, and says so at the first one.
# The arithmetic in this kernel works once `jax_swapext` is imported; so what is
# left for stock to refuse is the store.


# %%
def warp_store(n, store):
  def kernel(x_ref, o_ref, scratch_ref):
    def in_each_warp():
      @pl.when(lax.axis_index("warp") == 0)
      def _():
        store(scratch_ref, x_ref[0] + lax.iota(jnp.float32, n))
        o_ref[0] = scratch_ref[n - 1]

    pl.kernel(in_each_warp, mesh=plgpu.WarpMesh(axis_name="warp"))()

  return plgpu.kernel(
      kernel, out_type=jax.ShapeDtypeStruct((1,), jnp.float32),
      scratch_types=[plgpu.SMEM((n,), jnp.float32)],
  )


def stock_store(ref, value):
  ref[...] = value


def our_store(ref, value):
  jsx.store(ref, None, value)


ONE = jax.ShapeDtypeStruct((1,), jnp.float32)
try:
  testing.compile_for("h100", warp_store(128, stock_store), ONE)
except NotImplementedError as e:
  print("stock:", e)

stores = {}
for n in (32, 128, 512):
  ptx = testing.compile_for("h100", warp_store(n, our_store), ONE).ptx
  stores[n] = [t for t in instructions(ptx) if "st.shared" in t]
  print(f"{n:4} numbers, {len(stores[n])} stores:", stores[n][0])

# %%
_, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
sizes = list(stores)
axes.plot(
    sizes, [n // 32 for n in sizes], "s--", color=VERMILION,
    label="one 4-byte store for each number",
)
axes.plot(
    sizes, [len(stores[n]) for n in sizes], "o-", color=BLUE,
    label="jsx.store, compiled",
)
axes.set_xscale("log", base=2)
axes.set_yscale("log", base=2)
axes.set_xticks(sizes, sizes)
axes.set_yticks([1, 2, 4, 8, 16], [1, 2, 4, 8, 16])
axes.set(
    title="A lane stores 16 bytes at a time",
    xlabel="float32 numbers stored by one warp",
    ylabel="store instructions of a lane",
)
axes.legend()
plt.show()

# %% [markdown]
# ## Atomics
#
# Each of 128 threads updates the element that its index names. `sem` and
# `scope` become part of the instruction. What has no instruction, like a
# maximum of floats that keeps NaN, is a loop around compare-and-swap.


# %%
def atomics(bin_ref, o_ref, flag_ref, largest_ref):
  for ref in (o_ref, flag_ref, largest_ref):
    jsx.store(ref, None, 0)
  bins = jsx.load(bin_ref)
  jsx.atomic_xor(flag_ref, bins, 5, mask=bins > 9)
  jsx.atomic_max(largest_ref, bins, bins.astype(jnp.float32))
  jsx.atomic_add(o_ref, bins, 1, sem="acq_rel", scope="system")


def count(bins, interpret=False):
  scratch = [plgpu.SMEM((N,), dtype) for dtype in (jnp.int32, jnp.float32)]
  return plgpu.kernel(
      atomics, out_type=INDEX, scratch_types=scratch, interpret=interpret
  )(bins)


bins = rng.integers(0, 20, N, np.int32)
wanted = np.bincount(bins, minlength=N).astype(np.int32)
case.assertMatchesReference(count, lambda _: wanted, bins, modes=("gpu",))

ptx = testing.compile_for("h100", count, INDEX).ptx
print(*[t for t in instructions(ptx) if "atom." in t], sep="\n")

# %% [markdown]
# ## SparseCore
#
# Stock JAX stores whole vectors there. Two other things that one tries early,
# and the words with which they are refused:


# %%
def copy(x_ref, i_ref, o_ref):
  jsx.store(o_ref, None, jsx.load(x_ref))


def stock_masked(x_ref, i_ref, o_ref):
  x = x_ref[pl.ds(0, 8)]
  pltpu.store(o_ref.at[pl.ds(0, 8)], x, mask=x > 0)


def our_masked(x_ref, i_ref, o_ref):
  copy(x_ref, i_ref, o_ref)
  jsx.store(o_ref, None, 0.0, mask=jsx.load(x_ref) < 0)


def stock_scalar(x_ref, i_ref, o_ref):
  o_ref[3] = 1.0


def our_scalar(x_ref, i_ref, o_ref):
  copy(x_ref, i_ref, o_ref)
  jsx.store(o_ref, 3, 1.0)


for body in (stock_masked, stock_scalar):
  try:
    testing.compile_for("tpu-v6e", sparsecore(body), X, INDEX)
  except NotImplementedError as e:
    print(f"{body.__name__}: {e}")

# %% [markdown]
# ## Bundles
#
# The cores of a TPU take instructions in bundles. The compilers say how many a
# kernel has; the body of a loop counts once, so this is the size of a program
# and not its time. Ours of the two kernels above are among these. The one that
# only copies `x` to the output is the floor.


# %%
def our_add(x_ref, i_ref, o_ref):
  copy(x_ref, i_ref, o_ref)
  jsx.atomic_add(o_ref, jsx.load(i_ref), jsx.load(x_ref))


TITLES = {
    copy: "copy",
    our_scalar: "copy, store a scalar",
    our_masked: "copy, store under a mask",
    gather: "gather under a mask",
    our_add: "copy, add at 128 indices\nthat may repeat",
}
bundles = {}
for place in (tensorcore, sparsecore):
  for body in TITLES:
    bundles[place, body] = (
        compiled[place] if body is gather
        else testing.compile_for("tpu-v6e", place(body), X, INDEX)
    ).bundles

_, axes = plt.subplots(figsize=(8, 4), layout="constrained")
at = np.arange(len(TITLES))
for place, shift, color, hatch in (
    (tensorcore, -0.2, BLUE, ""), (sparsecore, 0.2, ORANGE, "///"),
):
  bars = axes.barh(
      at + shift, [bundles[place, body] for body in TITLES], 0.38,
      color=color, hatch=hatch, edgecolor="white", label=place.__name__,
  )
  axes.bar_label(bars, padding=3)
axes.set_yticks(at, TITLES.values())
axes.invert_yaxis()
axes.margins(x=0.08)
axes.set(
    title="On a TPU v6e a gather is shorter on the SparseCore, the rest is not",
    xlabel="bundles of instructions in the kernel, each counted once",
)
axes.legend()
plt.show()

# %% [markdown]
# What each place can do, with the cost and the reasons where it cannot, is in
# `jsx.support()`:

# %%
for name in ("TensorCore", "vector subcore", "warp code", "Triton"):
  rows = jsx.support("atomic_add", place=name)
  memories = {row.memory: [] for row in rows}
  for row in rows:
    memories[row.memory] += row.dtypes if row.supported else ()
  for memory, dtypes in memories.items():
    print(f"{name:15} {memory:18} {' '.join(dtypes) or 'no'}")
