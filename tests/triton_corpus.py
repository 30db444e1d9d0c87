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
"""Triton kernels for the PTX interpreter's test, compiled and interpreted.

Run as a script in a child process: Triton decides on import whether it compiles
or interprets, and its compiler may abort.  `compiled()` and `interpreted()` are
for the parent.
"""

from __future__ import annotations

import functools
import os
import pickle
import subprocess
import sys

import numpy as np
from triton_tensor import TYPES
from triton_tensor import Tensor

_N, _BLOCK = 200, 256


def inputs() -> dict[str, list]:
  """Arguments per kernel: arrays, then an int; outputs start as given."""
  rng = np.random.default_rng(7)
  f32 = lambda n=_N: rng.standard_normal(n).astype(np.float32)
  i32 = lambda low, high, n=_N: rng.integers(low, high, n, dtype=np.int32)
  index = i32(0, 40)
  distinct = rng.permutation(_N).astype(np.int32)
  cases = {
      "vector_add": [f32(), f32(), np.zeros(_N, np.float32), _N],
      "softmax": [f32(), np.zeros(_N, np.float32), _N],
      "segmented_scan": [i32(0, 9), np.cumsum(i32(0, 2)).astype(np.int32),
                         np.zeros(_N, np.int32), _N],
      "histogram": [i32(0, 16), np.zeros(16, np.int32), _N],
      "sort": [i32(-99, 99, _BLOCK), np.zeros(_BLOCK, np.int32), _N],
      "loop_sum": [f32(1024), np.zeros(_BLOCK, np.float32), 1024],
      "transpose": [f32(256), np.zeros(256, np.float32), _N],
      "compare_and_swap": [i32(0, 3), distinct, i32(0, 3), i32(0, 3),
                           np.zeros(_N, np.int32), _N],
  }
  for name, dtype in (("add", np.float32), ("add", np.int32),
                      ("add", np.float64), ("max", np.float32),
                      ("min", np.int32), ("max", np.uint32),
                      ("and", np.int32), ("or", np.int32), ("xor", np.int64),
                      ("exchange", np.int32)):
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
      table = rng.standard_normal(_N).astype(dtype)
      value = rng.standard_normal(_N).astype(dtype)
    else:
      low = 0 if dtype.kind == "u" else -50
      table = rng.integers(low, 50, _N).astype(dtype)
      value = rng.integers(low, 50, _N).astype(dtype)
    # Old values are those of one order only where indices do not repeat.
    where = distinct if name == "exchange" or dtype.kind == "f" else index
    cases[f"{name}_{dtype.name}"] = [table, where, value,
                                     np.zeros(_N, dtype), _N]
  return cases


def _kernels():
  """Kernel and its constants, per case."""
  # Triton's interpreter looks names up in the module; the parent, which may
  # have no Triton, imports this module too.
  global combine, tl
  import triton
  import triton.language as tl

  @triton.jit
  def vector_add(x, y, o, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    tl.store(o + i, tl.load(x + i, m) + tl.load(y + i, m), m)

  @triton.jit
  def softmax(x, o, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    m = i < n
    v = tl.load(x + i, m, other=float("-inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(o + i, e / tl.sum(e, 0), m)

  @triton.jit
  def combine(a, s, b, t):
    return tl.where(s == t, a + b, b), t

  @triton.jit
  def segmented_scan(x, s, o, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    m = i < n
    pair = (tl.load(x + i, m, other=0), tl.load(s + i, m, other=0))
    total, _ = tl.associative_scan(pair, 0, combine)
    tl.store(o + i, total, m)

  @triton.jit
  def histogram(x, o, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    m = i < n
    tl.atomic_add(o + tl.load(x + i, m, other=0), 1, m, sem="relaxed")

  @triton.jit
  def sort(x, o, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(o + i, tl.sort(tl.load(x + i)))

  @triton.jit
  def loop_sum(x, o, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
      total += tl.load(x + start + i)
    tl.store(o + i, total)

  @triton.jit
  def transpose(x, o, n, BLOCK: tl.constexpr):
    i = tl.arange(0, 16)
    at = i[:, None] * 16 + i[None, :]
    tl.store(o + at, tl.trans(tl.load(x + at)))

  @triton.jit
  def compare_and_swap(x, where, expected, value, old, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    m = i < n
    at = tl.load(where + i, m, other=0)
    e = tl.load(expected + i, m, other=0)
    v = tl.load(value + i, m, other=0)
    # There is no masked cas: lanes past the end use elements of their own.
    o = tl.atomic_cas(x + tl.where(m, at, 0), tl.where(m, e, -77), v,
                      sem="relaxed")
    tl.store(old + i, o, m)

  @triton.jit
  def update(x, where, value, old, n, OP: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    m = i < n
    at = x + tl.load(where + i, m, other=0)
    v = tl.load(value + i, m, other=0)
    if OP == "add":
      o = tl.atomic_add(at, v, m, sem="relaxed")
    elif OP == "max":
      o = tl.atomic_max(at, v, m, sem="relaxed")
    elif OP == "min":
      o = tl.atomic_min(at, v, m, sem="relaxed")
    elif OP == "and":
      o = tl.atomic_and(at, v, m, sem="relaxed")
    elif OP == "or":
      o = tl.atomic_or(at, v, m, sem="relaxed")
    elif OP == "xor":
      o = tl.atomic_xor(at, v, m, sem="relaxed")
    else:
      o = tl.atomic_xchg(at, v, m, sem="relaxed")
    tl.store(old + i, o, m)

  plain = dict(
      vector_add=vector_add, softmax=softmax, segmented_scan=segmented_scan,
      histogram=histogram, sort=sort, loop_sum=loop_sum, transpose=transpose,
      compare_and_swap=compare_and_swap)
  for name in inputs():
    if name in plain:
      yield name, plain[name], dict(BLOCK=_BLOCK)
    else:
      yield name, update, dict(OP=name.split("_")[0], BLOCK=_BLOCK)


def _compile_all():
  import triton
  from triton.backends.compiler import GPUTarget
  from triton.compiler import ASTSource
  found = {}
  for name, kernel, constants in _kernels():
    arguments = inputs()[name]
    types = ["*" + TYPES[a.dtype.name] if isinstance(a, np.ndarray) else "i32"
             for a in arguments]
    signature = dict(zip(kernel.arg_names, types, strict=False))
    signature |= {c: "constexpr" for c in constants}
    result = triton.compile(
        ASTSource(kernel, signature, constants),
        target=GPUTarget("cuda", 90, 32))
    found[name] = result.asm["ptx"], result.metadata.shared
  return found


def _interpret_all():
  found = {}
  for name, kernel, constants in _kernels():
    arguments = [Tensor(a) if isinstance(a, np.ndarray) else a
                 for a in inputs()[name]]
    kernel[(1,)](*arguments, **constants)
    found[name] = [a.array for a in arguments if isinstance(a, Tensor)]
  return found


def _child(mode: str):
  environment = dict(os.environ, TRITON_INTERPRET=str(int(mode == "interpret")))
  done = subprocess.run(
      [sys.executable, "-W", "ignore", __file__, mode], capture_output=True,
      env=environment, timeout=300)
  if done.returncode:
    raise RuntimeError(done.stderr.decode()[-3000:])
  return pickle.loads(done.stdout)


@functools.cache
def compiled() -> dict[str, tuple[str, int]]:
  """(PTX, bytes of shared memory) per kernel, for Hopper."""
  return _child("compile")


@functools.cache
def interpreted() -> dict[str, list[np.ndarray]]:
  """The arrays after each kernel ran in Triton's interpreter."""
  return _child("interpret")


if __name__ == "__main__":
  results = _compile_all() if sys.argv[1] == "compile" else _interpret_all()
  sys.stdout.buffer.write(pickle.dumps(results))
