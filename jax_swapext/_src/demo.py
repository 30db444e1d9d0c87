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
"""Three kernels on real input, each run by stock JAX and by this library.

A kernel is written once and takes the memory operations as arguments. Nothing
is told in advance: what a table says is what a run made there and then gave.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
import jax_swapext as jsx
import numpy as np

INTERPRETED = "interpret=True"
LOWERED = "lowered for TPU"


class Attempt(NamedTuple):
  """What came of one kernel at one place.

  Attributes:
    library: "stock" or "ours".
    call: the operations used.
    place: how it was run, or what for it was compiled.
    status: "right" or "WRONG" against NumPy; "lowers", "compiles" or "refused".
    detail: how much is right, what was counted, or what was said at the
      refusal.
    milliseconds: of a run in native code, compiled before; else None.
    bundles: instructions of a kernel compiled for a TPU; else None.
    ptx: what stores in a kernel compiled for a GPU; else None.
  """

  library: str
  call: str
  place: str
  status: str
  detail: str
  milliseconds: float | None = None
  bundles: int | None = None
  ptx: str | None = None

  @property
  def is_failure(self) -> bool:
    """Whether this library owes a result here that it did not give."""
    return self.library == "ours" and self.status in ("WRONG", "refused")


class Demo(NamedTuple):
  """One kernel with its input.

  Attributes:
    name: what failures are reported under.
    title: one line on what it computes.
    kernel: given the operations of a library, the function for `pallas_call`.
    stock: the names of stock JAX's operations, and a function that gets them
      (imports are part of the attempt).
    own: the same of this library.
    places: where to try it.
    pallas_call: the other arguments of `pallas_call`.
    operands: its input.
    wanted: its results as NumPy computes them.
    detail: from the results got, and those wanted, how much is right.
  """

  name: str
  title: str
  kernel: Callable[..., Callable[..., None]]
  stock: tuple[str, Callable[[], Sequence[Callable[..., Any]]]]
  own: tuple[str, Callable[[], Sequence[Callable[..., Any]]]]
  places: tuple[str, ...]
  pallas_call: dict[str, Any]
  operands: tuple[np.ndarray, ...]
  wanted: tuple[np.ndarray, ...]
  detail: Callable[..., str]

  def attempts(self) -> Iterator[Attempt]:
    """Makes every attempt and yields each as it ends."""
    libraries = {"stock": self.stock, "ours": self.own}
    for library, (call, operations) in libraries.items():
      for place in self.places:
        run = self._interpret if place == INTERPRETED else self._lower
        try:
          status, detail = run(self.kernel(*operations()))
        except Exception as e:  # Whatever was raised is what there is to show.
          status, detail = "refused", first_sentence(e)
        yield Attempt(library, call, place, status, detail)

  def _interpret(self, kernel):
    call = pl.pallas_call(kernel, interpret=True, **self.pallas_call)
    got = jax.tree.leaves(call(*self.operands))
    got = [np.asarray(g, w.dtype) for g, w in zip(got, self.wanted)]
    right = all(np.array_equal(g, w) for g, w in zip(got, self.wanted))
    return "right" if right else "WRONG", self.detail(got, self.wanted)

  def _lower(self, kernel):
    # An abstract device is enough to lower for a TPU that is not here.
    device = jax.sharding.AbstractDevice(
        device_kind="TPU v5e", num_cores=1, platform="tpu"
    )
    mesh = jax.sharding.AbstractMesh((1,), ("x",), abstract_device=device)
    call = jax.jit(pl.pallas_call(kernel, **self.pallas_call))
    with jax.sharding.use_abstract_mesh(mesh):
      call.trace(*self.operands).lower(lowering_platforms=("tpu",))
    return "lowers", ""


def first_sentence(e: Exception) -> str:
  """What was raised, in a line."""
  # JAX's next sentence is where to file an issue.
  said = str(e).strip().split("\n")[0].split(". ")[0]
  return f"{type(e).__name__}: {said or '(no message)'}"


def _equal(got, wanted) -> str:
  right = sum(int((g == w).sum()) for g, w in zip(got, wanted))
  return f"{right} of {sum(w.size for w in wanted)} elements"


def demos(text: bytes) -> list[Demo]:
  return [_histogram(text), _scalar_swap(text), _ragged_tail(text)]


# ## Indices that repeat


def _histogram(text):
  byte = np.frombuffer(text, np.uint8).astype(np.int32)

  def make_kernel(atomic_add):
    def kernel(byte_ref, count_ref):
      count_ref[...] = jnp.zeros_like(count_ref)
      byte = byte_ref[...]
      atomic_add(count_ref, (byte,), jnp.ones_like(byte))

    return kernel

  def stock():
    from jax.experimental.pallas import triton as pltriton

    return [pltriton.atomic_add]

  return Demo(
      name="histogram",
      title="how often each byte occurs, all bytes added at once",
      kernel=make_kernel,
      stock=("pltriton.atomic_add", stock),
      own=("jsx.atomic_add", lambda: [jsx.atomic_add]),
      # Stock has an `atomic_add` with indices for GPUs alone.
      places=(INTERPRETED,),
      pallas_call=dict(out_shape=jax.ShapeDtypeStruct((256,), np.int32)),
      operands=(byte,),
      wanted=(np.bincount(byte, minlength=256),),
      detail=lambda got, _: f"{got[0].sum()} of {byte.size} bytes",
  )


# ## A scalar in a block that stays in vector memory from step to step


def _scalar_swap(text):
  length = np.array([len(line) for line in text.splitlines()], np.int32)
  before = np.append(np.zeros(1, np.int32), length[:-1])
  held = np.zeros((8, 128), np.int32)
  held[0, 0] = length[-1]

  def make_kernel(swap):
    def kernel(length_ref, before_ref, held_ref):
      i = pl.program_id(0)

      @pl.when(i == 0)
      def _():
        held_ref[...] = jnp.zeros_like(held_ref)

      before_ref[i] = swap(held_ref, (0, 0), length_ref[i])

    return kernel

  smem = pl.BlockSpec(memory_space=pltpu.SMEM)
  resident = pl.BlockSpec(held.shape, lambda i: (0, 0))
  return Demo(
      name="scalar swap",
      title="for each line the length of the one before, held in one element",
      kernel=make_kernel,
      stock=("jax.ref.swap", lambda: [jax.ref.swap]),
      own=("jsx.swap", lambda: [jsx.swap]),
      places=(INTERPRETED, LOWERED),
      pallas_call=dict(
          grid=length.shape,
          in_specs=[smem],
          out_specs=[smem, resident],
          out_shape=[
              jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (before, held)
          ],
      ),
      operands=(length,),
      wanted=(before, held),
      detail=_equal,
  )


# ## A window that hangs out of the array, in front and at the tail


def _ragged_tail(text, block=512):
  # The difference of two bytes has 8 bits and a sign: bfloat16 is exact.
  byte = np.frombuffer(text, np.uint8).astype(jnp.bfloat16)
  n = byte.size

  def make_kernel(load, store):
    def kernel(byte_ref, o_ref):
      start = pl.program_id(0) * block
      i = start + jax.lax.iota(np.int32, block)
      inside = i < n
      here = load(byte_ref, pl.ds(start, block), inside)
      before = load(byte_ref, pl.ds(start - 1, block), (i >= 1) & inside)
      store(o_ref, pl.ds(start, block), here - before, inside)

    return kernel

  def stock():
    return (
        lambda ref, idx, mask: jnp.where(
            mask, pltpu.load(ref.at[idx], mask=mask), 0
        ),
        lambda ref, idx, value, mask: pltpu.store(
            ref.at[idx], value, mask=mask
        ),
    )

  def own():
    return (
        lambda ref, idx, mask: jsx.load(ref, idx, mask=mask),
        lambda ref, idx, value, mask: jsx.store(ref, idx, value, mask=mask),
    )

  return Demo(
      name="ragged tail",
      title=f"bfloat16 differences, masked blocks of {block}, {n % block} in "
      "the last",
      kernel=make_kernel,
      stock=("pltpu.load, .store", stock),
      own=("jsx.load, .store", own),
      places=(INTERPRETED, LOWERED),
      pallas_call=dict(
          grid=(pl.cdiv(n, block),),
          out_shape=jax.ShapeDtypeStruct(byte.shape, byte.dtype),
      ),
      operands=(byte,),
      wanted=(np.diff(byte.astype(np.float32), prepend=np.float32(0)),),
      detail=_equal,
  )
