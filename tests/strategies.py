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
"""Hypothesis strategies: any access that the contract allows.

Importing this module selects the profile: a small number of examples, the same
ones every time. `HYPOTHESIS_PROFILE=thorough` takes others, and many more.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import cases
import hypothesis as hp
from hypothesis import strategies as st
import numpy as np
import reference
from reference import Window

_THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"

hp.settings.register_profile(
    "swapext",
    derandomize=not _THOROUGH,
    deadline=None,  # compilation takes most of the time, and it varies
    database=None,
    suppress_health_check=[
        hp.HealthCheck.too_slow,
        hp.HealthCheck.data_too_large,
    ],
)
hp.settings.load_profile("swapext")


def examples(n: int) -> hp.settings:
  """Settings of a test with `n` examples, or many more in the thorough run."""
  return hp.settings(max_examples=20 * n if _THOROUGH else n)


# Enough to tell layouts apart; compiling and the oracle stay quick.
MAX_REGION = 96


@dataclasses.dataclass(frozen=True)
class Index:
  """An index in the reference's terms, and which parts tests shall trace.

  Attributes:
    parts: ints, slices, Windows, integer arrays, None, Ellipsis.
    traced: for each part, whether it is passed as an argument of the jitted
      function (of a Window, its start).
    ranges: for each part, the smallest and largest value that its dynamic form
      may take, or None.
    bare: pass the only part as it is, not in a tuple.
  """

  parts: tuple[Any, ...]
  traced: tuple[bool, ...]
  ranges: tuple[tuple[int, int] | None, ...]
  bare: bool = False

  def variant(self, seed: int) -> Index:
    """The same index with other values in its traced parts."""
    rng, parts = np.random.default_rng(seed), list(self.parts)
    for k, (part, limits) in enumerate(
        zip(self.parts, self.ranges, strict=True)
    ):
      if not self.traced[k] or limits is None:
        continue
      low, high = limits
      if isinstance(part, Window):
        start = int(rng.integers(low, high + 1))
        parts[k] = Window(start, part.size, part.stride)
      else:
        new = rng.integers(low, high + 1, part.shape)
        parts[k] = np.asarray(new).astype(part.dtype)
    return dataclasses.replace(self, parts=tuple(parts))

  def dynamic(self) -> list[np.ndarray]:
    """The traced parts, to be passed as arguments."""
    return [
        np.asarray(p.start, np.int32) if isinstance(p, Window) else p
        for p, traced in zip(self.parts, self.traced, strict=True)
        if traced
    ]

  def numpy(self) -> Any:
    return self.parts[0] if self.bare else self.parts

  def jax(self, dynamic) -> Any:
    """The index for the public functions, with `dynamic` for traced parts."""
    dynamic, parts = iter(dynamic), []
    for part, traced in zip(self.parts, self.traced, strict=True):
      if traced and isinstance(part, Window):
        part = Window(next(dynamic), part.size, part.stride)
      elif traced:
        part = next(dynamic)
      parts.append(part)
    parts = cases.to_jax_index(tuple(parts))
    return parts[0] if self.bare else parts


@dataclasses.dataclass(frozen=True)
class Access:
  """An index into an array of `shape`, and a mask or None."""

  shape: tuple[int, ...]
  index: Index
  mask: np.ndarray | None

  @property
  def region(self) -> tuple[int, ...]:
    return reference.positions(self.shape, self.index.numpy()).shape


def shapes(min_rank=0, max_rank=5, min_size=0):
  """Shapes, small ones and ones with sizes 0 and 1 among them."""
  sizes = [n for n in (3, 4, 2, 5, 3, 4, 2, 1, 0) if n >= min_size]
  ranks = [n for n in (1, 2, 3, 2, 1, 4, 5, 0) if min_rank <= n <= max_rank]
  return st.sampled_from(ranks).flatmap(
      lambda n: st.tuples(*[st.sampled_from(sizes)] * n)
  )


def int_dtypes():
  return st.sampled_from(["int32", "int32", "int8", "uint8", "int16", "uint32"])


@st.composite
def slices(draw, size: int):
  """Slices with strides; the empty ones and ones beyond the end included."""
  bound = st.none() | st.integers(-size - 1, size + 1)
  return slice(draw(bound), draw(bound), draw(st.sampled_from([None, 1, 2, 3])))


@st.composite
def windows(draw, size: int, outside: bool = False):
  """Windows within `size`; with `outside`, ones that overhang both ends."""
  stride = draw(st.sampled_from([1, 1, 2, 3]))
  if outside:
    start, length = draw(st.integers(-2, size + 1)), draw(st.integers(0, 5))
  else:
    start = draw(st.integers(0, size))
    most = -(-(size - start) // stride)
    length = draw(st.integers(0, most))
  return Window(start, length, stride)


@st.composite
def indices(
    draw,
    shape: tuple[int, ...],
    outside: str = "",
    static_arrays: bool = True,
):
  """Any index into an array of `shape`.

  Args:
    draw: given by hypothesis.
    shape: shape of the array.
    outside: what may be beyond the bounds: "", "integers" or "integers,
      windows".
    static_arrays: whether arrays may be known when the function is traced.

  Returns:
    An `Index`.
  """
  rank = len(shape)
  taken = draw(st.integers(0, rank))
  ellipsis = draw(st.booleans())
  # Dimensions before and after the Ellipsis; without one, the first ones.
  before = draw(st.integers(0, taken)) if ellipsis else taken
  dims = [*shape[:before], *shape[rank - (taken - before) :]]
  arrays = draw(_array_shapes(len(dims)))
  parts, traced, ranges = [], [], []
  for size, array in zip(dims, arrays, strict=True):
    part, limits = draw(_part(size, array, outside))
    trace = limits is not None and draw(st.booleans())
    if isinstance(part, np.ndarray) and not static_arrays:
      trace = True
    if trace and isinstance(part, int):
      part = np.asarray(part, np.int32)
    parts.append(part)
    traced.append(trace)
    ranges.append(limits)

  def insert(at, part):
    parts.insert(at, part)
    traced.insert(at, False)
    ranges.insert(at, None)

  if ellipsis:
    insert(before, Ellipsis)
  for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
    insert(draw(st.integers(0, len(parts))), None)
  # None alone means the whole array, (None,) a new axis.
  bare = len(parts) == 1 and parts[0] is not None and draw(st.booleans())
  return Index(tuple(parts), tuple(traced), tuple(ranges), bare)


@st.composite
def _part(draw, size: int, array: tuple[int, ...] | None, outside: str):
  """What indexes one dimension, and the limits of its dynamic form."""
  low, high = -size, size - 1
  if "integers" in outside:
    low, high = low - 2, high + 2
  if array is not None and (low <= high or 0 in array):
    dtype = np.dtype(draw(int_dtypes()))
    low = max(low, 0) if dtype.kind == "u" else low
    if 0 in array:
      return np.zeros(array, dtype), (0, 0)
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    return rng.integers(low, high + 1, array).astype(dtype), (low, high)
  forms = ["slice", "window", "int"] if low <= high else ["slice", "window"]
  match draw(st.sampled_from(forms)):
    case "slice":
      return draw(slices(size)), None
    case "window":
      overhang = "windows" in outside
      part = draw(windows(size, overhang))
      reach = max(0, (part.size - 1) * part.stride + 1)
      limits = (-2, size + 1) if overhang else (0, size - reach)
      return part, limits
  return draw(st.integers(low, high)), (low, high)


# More elements than a dimension has: positions repeat.
_ARRAY_SHAPES = [(4,), (7,), (2, 3), (), (2, 2, 2), (3, 1, 2), (1,), (0,)]


@st.composite
def _array_shapes(draw, n: int):
  """For each of n dimensions, None or the shape of an integer array.

  The shapes are of rank 0 to 3 and broadcast together.
  """
  full = draw(st.sampled_from(_ARRAY_SHAPES))
  result = []
  for _ in range(n):
    array = draw(st.sampled_from([True, True, False]))
    result.append(draw(_broadcasts_to(full)) if array else None)
  return result


@st.composite
def _broadcasts_to(draw, shape: tuple[int, ...]):
  """A shape that broadcasts to `shape`."""
  skip = draw(st.sampled_from([0, 0, 1, len(shape)]))
  return tuple(
      draw(st.sampled_from([n, n, 1])) for n in shape[min(skip, len(shape)) :]
  )


@st.composite
def masks(draw, region: tuple[int, ...]):
  """A mask for a region: scalar, broadcast, all true, all false or mixed."""
  shape = draw(_broadcasts_to(region))
  match draw(st.sampled_from(["mixed", "mixed", "true", "false"])):
    case "true":
      return np.ones(shape, bool)
    case "false":
      return np.zeros(shape, bool)
  seed = draw(st.integers(0, 1000))
  return np.random.default_rng(seed).integers(0, 2, shape).astype(bool)


@st.composite
def accesses(
    draw, shape=None, masked=None, out_of_range=False, static_arrays=True
):
  """Any legal access, as an `Access`.

  Args:
    draw: given by hypothesis.
    shape: a strategy for the shape of the accessed array.
    masked: whether there is a mask; None lets hypothesis choose.
    out_of_range: let integers be out of bounds without being masked off, as
      the functions on arrays allow.
    static_arrays: whether index arrays may be known when tracing.

  Returns:
    An `Access`.
  """
  shape = draw(shapes() if shape is None else shape)
  masked = draw(st.booleans()) if masked is None else masked
  outside = "integers" if out_of_range else ""
  if masked and draw(st.booleans()):
    outside = "integers, windows"
  index = draw(indices(shape, outside, static_arrays))
  at = reference.positions(shape, index.numpy())
  hp.assume(at.size <= MAX_REGION)
  mask = None
  if masked:
    mask = draw(masks(at.shape))
    if (at < 0).any():
      mask = mask & (at >= 0)
  return Access(shape, index, mask)


@st.composite
def operands(draw, dtype, region: tuple[int, ...], seed=None):
  """Values that broadcast to `region`, NaN, inf and -0.0 among them."""
  shape = draw(_broadcasts_to(region))
  seed = draw(st.integers(0, 1000)) if seed is None else seed
  return cases.values(dtype, shape, seed)


@st.composite
def calls(draw, ops, dtypes, **kwargs):
  """An operation, an access, an array, operands: everything for one call."""
  op = draw(st.sampled_from(ops))
  dtype = draw(st.sampled_from([d for d in dtypes if op.accepts(d)]))
  access = draw(accesses(**kwargs))
  x = cases.values(dtype, access.shape, draw(st.integers(0, 1000)))
  values = [draw(operands(dtype, access.region)) for _ in range(op.operands)]
  if op is cases.CAS and draw(st.booleans()):
    # Otherwise hardly any comparison succeeds.
    at = reference.positions(access.shape, access.index.numpy())
    if x.size:
      values[0] = x.reshape(-1)[at]
  return op, access, x, values


@dataclasses.dataclass(frozen=True)
class View:
  """A chain of `ref.at[...]`, of the forms that JAX itself accepts there.

  Attributes:
    shape: shape of the array.
    steps: indices; NumPy arrays in them are to be traced.
    positions: where each element of the view is in the array, in row-major
      order; an element may appear more than once.
  """

  shape: tuple[int, ...]
  steps: tuple[tuple[Any, ...], ...]
  positions: np.ndarray

  @property
  def has_array(self) -> bool:
    return any(part.ndim for part in self.dynamic())

  def dynamic(self) -> list[np.ndarray]:
    parts = [part for step in self.steps for part in step]
    return [part for part in parts if isinstance(part, np.ndarray)]

  def jax(self, ref, dynamic):
    """The view of a Ref, with `dynamic` for the arrays."""
    dynamic = iter(dynamic)
    for step in self.steps:
      ref = ref.at[
          tuple(next(dynamic) if isinstance(p, np.ndarray) else p for p in step)
      ]
    return ref


@st.composite
def views(draw):
  """A `View` of one or two steps, not empty."""
  shape = draw(shapes(min_rank=1, max_rank=4, min_size=1))
  at, steps = np.arange(np.prod(shape)).reshape(shape), []
  for _ in range(draw(st.integers(1, 2))):
    if not at.ndim:
      break
    step, array = [], None
    for size in at.shape[: draw(st.integers(1, at.ndim))]:
      number = draw(st.integers(-size, size - 1))
      stop = draw(st.integers(number % size + 1, size))
      form = draw(st.sampled_from(["slice", "int", "traced", "array"]))
      if form == "array" and array is None:
        rng = np.random.default_rng(draw(st.integers(0, 100)))
        array = rng.integers(0, size, draw(st.integers(1, 3))).astype(np.int32)
        step.append(array)
      elif form == "int" and array is None:
        step.append(number)
      elif form == "traced" and array is None:
        step.append(np.asarray(number % size, np.int32))
      else:
        stride = draw(st.sampled_from([1, 1, 2]))
        step.append(slice(number % size, stop, stride))
    # JAX mixes neither arrays nor traced integers with other integers.
    if any(isinstance(p, np.ndarray) for p in step):
      step = [
          slice(p % n, p % n + 1) if isinstance(p, int) else p
          for p, n in zip(step, at.shape, strict=False)
      ]
    if sum(isinstance(p, np.ndarray) for p in step) > 1:
      step = [p if p is step[0] else slice(None) for p in step]
    at = at[tuple(step)]
    steps.append(tuple(step))
  return View(shape, tuple(steps), np.asarray(at))
