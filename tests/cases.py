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
"""The table of operations, and how tests call them and judge the outcome.

One row per public operation; every law loops over these rows.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax_swapext as jsx
import ml_dtypes
import numpy as np
import reference

BOOL = (np.dtype(bool),)
INTS = tuple(
    np.dtype(t) for t in ("int8", "int16", "int32", "uint8", "uint16", "uint32")
)
FLOATS = tuple(
    np.dtype(t) for t in (np.float16, ml_dtypes.bfloat16, np.float32)
)
FP8 = tuple(
    np.dtype(t) for t in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
)
WIDE = tuple(np.dtype(t) for t in ("int64", "uint64", "float64"))
NARROW = BOOL + INTS + FLOATS + FP8


@dataclasses.dataclass(frozen=True)
class Op:
  """A public operation on a Ref: its name, operands and meaning."""

  name: str
  operands: int = 1
  kinds: str = "biufv"  # bool, int, uint, float, fp8

  @property
  def rmw(self) -> str:
    """Name of the operation without its prefix: "add" for atomic_add."""
    return self.name.removeprefix("atomic_")

  @property
  def is_atomic(self) -> bool:
    return self.name.startswith("atomic_")

  @property
  def fetch_name(self) -> str:
    return f"fetch_{self.rmw}"

  def accepts(self, dtype) -> bool:
    dtype = np.dtype(dtype)
    return kind(dtype) in self.kinds

  def apply(self, ref, idx, *operands, mask=None, **kwargs):
    """Calls the public function on a Ref; operands may be left out of load."""
    function = getattr(jsx, self.name)
    if self.name == "load":
      [other] = operands or [None]
      return function(ref, idx, mask=mask, other=other, **kwargs)
    return function(ref, idx, *operands, mask=mask, **kwargs)

  def fetch(self, x, idx, *operands, mask=None, **kwargs):
    """Calls the function on arrays; returns `(old, new_x)`."""
    return getattr(jsx, self.fetch_name)(x, idx, *operands, mask=mask, **kwargs)

  def pure(self, x, idx, *operands, mask=None, **kwargs):
    """The operation on a Ref of its own; returns `(result, new_x)`."""
    ref = jax.new_ref(x)
    result = self.apply(ref, idx, *operands, mask=mask, **kwargs)
    return result, jax.freeze(ref)

  def expected(self, x, idx, *operands, mask=None):
    """What `pure` must return, by the reference. A store returns None."""
    match self.name:
      case "load":
        return reference.load(x, idx, mask, *operands)
      case "store":
        return None, reference.swap(x, idx, *operands, mask)[1]
      case "swap":
        return reference.swap(x, idx, *operands, mask)
      case "atomic_cas":
        return reference.cas(x, idx, *operands, mask)
    return reference.rmw(self.rmw, x, idx, *operands, mask)

  def check(self, got, x, idx, *operands, mask=None, dropped=False):
    """Raises unless `got`, as `pure` returns it, is what is promised.

    Args:
      got: the result and the new array.
      x, idx, *operands, mask: what the operation was applied to.
      dropped: whether the test dropped the result, so that `got[0]` is None.
    """
    result, new = got
    want, want_new = self.expected(x, idx, *operands, mask=mask)
    if dropped:
      assert result is None
    elif want is None:
      assert result is None, f"store returned {result!r}"
    else:
      self.check_same(result, want)
    if self.name not in ("store", "swap"):
      self.check_same(new, want_new)
      return
    # Repeated positions: any of the writes may remain.
    new = np.asarray(new)
    assert (new.shape, new.dtype) == (x.shape, x.dtype), (new.shape, new.dtype)
    allowed = reference.remaining(x, idx, *operands, mask)
    for k, bits in enumerate(allowed):
      if not any(reference.same_bits(new.reshape(-1)[k], b) for b in bits):
        raise AssertionError(
            f"element {k} is {new.reshape(-1)[k]!r}, not one of {bits}; all of "
            f"it is {new!r}"
        )

  def check_same(self, got, want):
    # lax leaves open which zero max and min return, and arithmetic which NaN.
    if self.rmw in ("max", "min"):
      assert_same(got, want, signed_zeros=False, nan_bits=False)
    else:
      assert_same(got, want, nan_bits=self.rmw != "add")


LOAD, STORE, SWAP = Op("load"), Op("store"), Op("swap")
XCHG = Op("atomic_xchg")
ADD = Op("atomic_add", kinds="iuf")
MAX, MIN = (Op(f"atomic_{op}", kinds="biuf") for op in ("max", "min"))
AND, OR, XOR = (Op(f"atomic_{op}", kinds="biu") for op in ("and", "or", "xor"))
CAS = Op("atomic_cas", operands=2)

BITWISE = (AND, OR, XOR)
RMW = (XCHG, ADD, MAX, MIN, *BITWISE)
ATOMICS = (*RMW, CAS)
OPS = (LOAD, STORE, SWAP, *ATOMICS)


def kind(dtype) -> str:
  """One letter per family: b, i, u, f, v (fp8)."""
  dtype = np.dtype(dtype)
  if dtype in FP8:
    return "v"
  return "f" if dtype in FLOATS else dtype.kind


FLOAT_OPS = tuple(op for op in OPS if op.accepts(np.float32))


def named(*rows):
  """Rows for `parameterized.named_parameters`, named after their cells."""
  rows = [row if isinstance(row, tuple) else (row,) for row in rows]
  return [
      ("_" + "_".join(getattr(c, "name", str(c)) for c in row), *row)
      for row in rows
  ]


def ops_by_dtype(dtypes, ops=OPS):
  return [(op, d) for op in ops for d in dtypes if op.accepts(d)]


def assert_same(got, want, *, signed_zeros=True, nan_bits=True):
  """Same shape, same dtype, same bits; NaN payloads and zeros as told."""
  got, want = np.asarray(got), np.asarray(want)
  assert got.dtype == want.dtype, f"dtype {got.dtype}, not {want.dtype}"
  assert got.shape == want.shape, f"shape {got.shape}, not {want.shape}"
  bits = np.dtype(f"u{got.dtype.itemsize}")
  same = got.reshape(-1).view(bits) == want.reshape(-1).view(bits)
  same = same.reshape(got.shape)
  if not nan_bits:
    same = same | (np.isnan(got) & np.isnan(want))
  if not signed_zeros:
    zero = np.zeros((), got.dtype)
    same = same | ((got == zero) & (want == zero))
  assert same.all(), f"got {got!r}, not {want!r}"


@functools.cache
def sample(dtype: np.dtype, size: int, seed: int = 0) -> np.ndarray:
  """`size` values that wrap, round and compare in every way `dtype` can."""
  rng = np.random.default_rng(seed)
  small = rng.integers(-40, 40, size)
  match kind(dtype):
    case "b":
      x = small % 2 == 0
    case "i" | "u":
      info = np.iinfo(dtype)
      edges = np.array([info.min, info.max, info.max - 1, 0, 1], dtype)
      x = np.where(
          small % 3 == 0, edges[small % 5], small.astype(dtype)
      ).astype(dtype)
    case _:
      # Eighths: sums are never subnormal, which XLA on CPU flushes to zero.
      x = (small / 8).astype(dtype)
      special = [np.nan, -0.0, 0.0, float(ml_dtypes.finfo(dtype).max)]
      if dtype != ml_dtypes.float8_e4m3fn:  # has no infinities
        special += [np.inf, -np.inf]
      special = np.array(special).astype(dtype)
      x = np.where(small % 3 == 0, special[small % len(special)], x)
      x = x.astype(dtype)
  x.setflags(write=False)
  return x


def values(dtype, shape, seed: int = 0) -> np.ndarray:
  size = int(np.prod(shape))
  return sample(np.dtype(dtype), size, seed).reshape(shape)


def tame(dtype, shape, seed: int = 0) -> np.ndarray:
  """Distinct finite values, none of them equal to another or to zero."""
  rng = np.random.default_rng(seed)
  size = int(np.prod(shape))
  ranks = rng.permutation(size) + 1.0 + seed / 8
  signs = np.where(rng.integers(0, 2, size) == 0, -1, 1)
  return (signs * ranks / 4).reshape(shape).astype(dtype)


def example(op, seed=0):
  """Arguments `x, idx, *values` of a call; its positions repeat if they may."""
  dtype = np.float32 if op.accepts(np.float32) else np.int32
  # Which write of a repeated position remains is open for swap and store.
  repeats = op.is_atomic or op is LOAD
  idx = np.array([1, 1, 3, 1] if repeats else [1, 0, 3, 4], np.int32)
  x = tame(dtype, (5,), seed)
  values = [tame(dtype, (4,), seed + 1 + k) for k in range(op.operands)]
  if op is CAS:
    # Succeeds, fails, succeeds, succeeds on what the first one wrote.
    values[0] = np.array([x[1], x[1], x[3], values[1][0]])
  return x, idx, *values


def to_jax_index(idx: Any) -> Any:
  """An index of the reference's in JAX's terms."""
  if isinstance(idx, tuple):
    return tuple(map(to_jax_index, idx))
  if isinstance(idx, reference.Window):
    return jax.ds(idx.start, idx.size, idx.stride)
  return idx
