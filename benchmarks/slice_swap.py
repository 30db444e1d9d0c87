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
"""Swaps in a large Ref, and what importing and tracing this library cost.

Prints tables: the time of a swap of 1000 elements in a donated table of 40 MB
and the copies of the table in the compiled module, beside stock JAX; the import
time of each module; the time to trace and lower kernels with 32 swaps.
"""

import os
import re
import statistics
import subprocess
import sys
import time

import jax
from jax.experimental import pallas as pl
import jax.numpy as jnp
import jax_swapext as jsx
import numpy as np

ROUNDS = 9
TABLE = 10**7
SWAPS = 32


def us(times_ns):
  """Median and minimum, in microseconds."""
  median, least = statistics.median(times_ns), min(times_ns)
  return f"{median / 1e3:12.1f} {least / 1e3:12.1f}"


def print_swap_table():
  starts = np.arange(ROUNDS, dtype=np.int32) * 1000 + 7
  value = jnp.ones(1000, np.float32)
  calls, times, copies = {}, {}, {}
  for name, swap in ("jax.ref.swap", jax.ref.swap), ("jsx.swap", jsx.swap):

    def swapped(x, start, value, swap=swap):
      ref = jax.new_ref(x)
      old = swap(ref, (jax.ds(start, value.size),), value)
      return jax.freeze(ref), old

    table = jnp.zeros(TABLE, np.float32)
    call = jax.jit(swapped, donate_argnums=0)
    hlo = call.lower(table, starts[0], value).compile().as_text()
    copies[name] = len(re.findall(rf"= f32\[{TABLE}\]\S* copy\(", hlo))
    table, old = call(table, starts[0], value)
    calls[name], times[name] = (call, table), []
  for start in starts:
    for name, (call, table) in calls.items():
      begin = time.perf_counter_ns()
      table, old = jax.block_until_ready(call(table, start, value))
      times[name].append(time.perf_counter_ns() - begin)
      calls[name] = call, table
  print("Swap of 1000 elements in a donated table of 40 MB, float32, by jit")
  print(f"  {'':<14} {'median us':>12} {'min us':>12} {'table copies':>13}")
  for name, ns in times.items():
    print(f"  {name:<14} {us(ns)} {copies[name]:13}")
  stock, own = (statistics.median(t) for t in times.values())
  print(f"  stock / own: {stock / own:.0f}")


def import_times():
  """Microseconds of its own for each module `import jax_swapext` loads."""
  # Without this, a user's setting may have every import compile the sources.
  env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
  done = subprocess.run(
      [sys.executable, "-X", "importtime", "-c", "import jax, jax_swapext"],
      check=True, capture_output=True, text=True, env=env,
  )
  rows = re.findall(r"import time: +(\d+) \| +\d+ \| +(\S+)", done.stderr)
  names = [name for _, name in rows]
  return {name: int(own) for own, name in rows[names.index("jax") + 1 :]}


def print_import_table():
  import_times()  # writes the bytecode
  runs = [import_times() for _ in range(5)]
  print("\nImport of jax_swapext after jax, medians of 5")
  print(f"  {'':<36} {'us':>8}")
  for name in runs[0]:
    print(f"  {name:<36} {statistics.median(r[name] for r in runs):8}")
  total = statistics.median(sum(r.values()) for r in runs)
  print(f"  {'in all':<36} {total:8}")


def make_kernel(swap):
  def kernel(x_ref, o_ref):
    i = pl.program_id(0)
    o_ref[...] = jnp.zeros_like(o_ref)
    value = x_ref[...]
    for k in range(SWAPS):
      value = swap(o_ref, (i, pl.ds(8 * k, 8)), value[:8])
    o_ref[i, :8] = value

  return kernel


def print_tracing_table():
  x = jax.ShapeDtypeStruct((8,), np.float32)
  out = jax.ShapeDtypeStruct((4, 8 * SWAPS), np.float32)
  swaps = {"jax.ref.swap": jax.ref.swap, "jsx.swap": jsx.swap}
  trace_ns = {name: [] for name in swaps}
  lower_ns = {name: [] for name in swaps}
  for _ in range(ROUNDS + 1):
    for name, swap in swaps.items():
      # A new kernel each time, or the second time would only hit caches.
      call = jax.jit(
          pl.pallas_call(
              make_kernel(swap), grid=(4,), out_shape=out, interpret=True
          )
      )
      begin = time.perf_counter_ns()
      traced = call.trace(x)
      between = time.perf_counter_ns()
      traced.lower()
      trace_ns[name].append(between - begin)
      lower_ns[name].append(time.perf_counter_ns() - between)
  print(f"\nA kernel with {SWAPS} swaps, interpret=True, medians of {ROUNDS}")
  print(f"  {'':<14} {'trace us':>12} {'lower us':>12} {'both us':>12}")
  totals = []
  for name in swaps:
    # The first of each fills caches that all kernels share.
    trace, lower = trace_ns[name][1:], lower_ns[name][1:]
    both = statistics.median(map(sum, zip(trace, lower)))
    totals.append(both)
    columns = statistics.median(trace), statistics.median(lower), both
    print(f"  {name:<14}" + "".join(f" {ns / 1e3:12.0f}" for ns in columns))
  print(f"  own / stock: {totals[1] / totals[0]:.2f}")


def main():
  print_swap_table()
  print_import_table()
  print_tracing_table()


if __name__ == "__main__":
  main()
