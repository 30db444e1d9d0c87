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
"""`fetch_add` on the CPU beside a compiled C loop, NumPy and plain XLA.

Prints nanoseconds per update and, in brackets, the ratio to the C loop: medians
over rounds in which all contestants take turns. Arguments are warm and int32,
indices uniform. C and NumPy write into arrays that exist; XLA allocates the old
values in each call, and below n = 1e5 the cost of a call counts for most.
"""

import argparse
import ctypes
import pathlib
import shutil
import statistics
import subprocess
import tempfile
import time

import jax
from jax import lax
import jax.numpy as jnp
import jax_swapext as jsx
import numpy as np

ROUNDS = 9
SIZES = [
    (10**4, 10**3), (10**4, 10**5), (10**4, 10**6),
    (10**5, 10**3), (10**5, 10**5), (10**5, 10**6),
    (10**6, 10**3), (10**6, 10**5), (10**6, 10**6),
]
LARGE = [(10**7, 10**3), (10**7, 10**5), (10**7, 10**6)]

C_SOURCE = """
#include <stdint.h>

void fetch_add(int32_t *restrict x, const int32_t *restrict idx,
               const int32_t *restrict value, int32_t *restrict old,
               int64_t n) {
  for (int64_t k = 0; k < n; ++k) {
    const int32_t held = x[idx[k]];
    old[k] = held;
    x[idx[k]] = held + value[k];
  }
}
"""


def compile_c():
  """The C loop as a function on NumPy arrays; None if it cannot be compiled."""
  compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
  if compiler is None:
    print("No C compiler (cc, gcc, clang): no C loop, hence no ratios.")
    return None
  with tempfile.TemporaryDirectory() as folder:
    source = pathlib.Path(folder, "fetch_add.c")
    library = source.with_suffix(".so")
    source.write_text(C_SOURCE)
    command = [compiler, "-O3", "-shared", "-fPIC", "-o", library, source]
    if subprocess.run(command).returncode:
      print(f"{compiler} failed: no C loop, hence no ratios.")
      return None
    fun = ctypes.CDLL(str(library)).fetch_add
  array = np.ctypeslib.ndpointer(np.int32, flags="C_CONTIGUOUS")
  fun.argtypes = [array, array, array, array, ctypes.c_int64]
  fun.restype = None
  return fun


def naive(x, idx, value):
  """What one writes first; XLA copies the table in every iteration."""

  def body(k, carry):
    x, log = carry
    old = lax.dynamic_index_in_dim(x, idx[k], keepdims=False)
    log = lax.dynamic_update_index_in_dim(log, old, k, 0)
    return lax.dynamic_update_index_in_dim(x, old + value[k], idx[k], 0), log

  x, log = lax.fori_loop(0, idx.size, body, (x, jnp.zeros_like(idx)))
  return log, x


def donating(fun, t, *args):
  """A timed call of `fun(x, *args)`, each call's table donated to the next."""
  fun = jax.jit(fun, donate_argnums=0)
  args = jax.device_put(args)
  table = jnp.zeros(t, np.int32)

  def call():
    nonlocal table
    *old, table = fun(table, *args)
    jax.block_until_ready((old, table))

  return call


def contestants(n, t, c_loop):
  """Functions without arguments, by name, each of which makes all n updates."""
  rng = np.random.default_rng(0)
  idx = rng.integers(0, t, n, np.int32)
  value = rng.integers(0, 9, n, np.int32)
  mask = rng.random(n) < 0.9
  table, old = np.zeros(t, np.int32), np.zeros(n, np.int32)
  calls = {}
  if c_loop is not None:
    calls["C loop"] = lambda: c_loop(table, idx, value, old, n)
  calls["np.add.at"] = lambda: np.add.at(table, idx, value)
  calls["np.bincount"] = lambda: np.bincount(idx, minlength=t)
  calls["XLA scatter"] = donating(
      lambda x, i, v: (x.at[i].add(v),), t, idx, value
  )
  calls["fetch_add"] = donating(jsx.fetch_add, t, idx, value)
  calls["with mask"] = donating(
      lambda x, i, v, m: jsx.fetch_add(x, i, v, mask=m), t, idx, value, mask
  )
  # Its time is that of n copies of the table.
  if n * t <= 10**9:
    calls["fori_loop"] = donating(naive, t, idx, value)
  return calls


def medians_ns(calls):
  """Nanoseconds per call, by name; the calls take turns."""
  times = {name: [] for name in calls}
  for call in calls.values():
    call()
  for _ in range(ROUNDS):
    for name, call in calls.items():
      start = time.perf_counter_ns()
      call()
      times[name].append(time.perf_counter_ns() - start)
  return {name: statistics.median(t) for name, t in times.items()}


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--large", action="store_true", help="n = 1e7 as well")
  args = parser.parse_args()
  c_loop = compile_c()
  names = ["C loop", "np.add.at", "np.bincount", "XLA scatter", "fetch_add",
           "with mask", "fori_loop"]
  print(f"ns per update (ratio to C), medians of {ROUNDS}; n updates of T "
        "elements, int32.\nNo old values: np.add.at, np.bincount, XLA scatter.")
  print(f"{'n':>6} {'T':>6}" + "".join(f" {name:>14}" for name in names))
  for n, t in SIZES + (LARGE if args.large else []):
    print(f"{n:6.0e} {t:6.0e}", end="", flush=True)
    times = medians_ns(contestants(n, t, c_loop))
    for name in names:
      cell = ""
      if name in times:
        cell = f"{times[name] / n:.2f}"
      if name in times and c_loop is not None:
        cell += f" ({times[name] / times['C loop']:.1f})"
      print(f" {cell:>14}", end="")
    print(flush=True)


if __name__ == "__main__":
  main()
