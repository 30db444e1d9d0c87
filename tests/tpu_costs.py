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
"""What accesses in TensorCore kernels cost: ours beside the same by hand.

Each row is one access of ours and the tuned form in stock operations. A test
compiles both and compares the bundles; `benchmarks/tpu_bundles.py` prints them.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
from typing import Any, NamedTuple

import cases
import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
import jax_swapext as jsx
import numpy as np
import tpu_by_hand
import tpu_cells

_F32, _I32, _I8, _BOOL = map(np.dtype, ("float32", "int32", "int8", "bool"))
_BF16 = np.dtype(jnp.bfloat16)


class Args(NamedTuple):
  """What a row's access may use.

  Attributes:
    o: The Ref.
    i: A row, known at run time only.
    j: A column, likewise.
    v: A scalar of the Ref's dtype.
    w: An array of it, of the row's `value` shape, or None.
  """

  o: Any
  i: Any
  j: Any
  v: Any
  w: Any


@dataclasses.dataclass(frozen=True)
class Row:
  """One access.

  Attributes:
    dtype: The Ref's dtype.
    shape: Its shape.
    ours: Takes `Args`, returns the result or None.
    hand: The same in stock operations.
    space: The Ref's memory space, as in `tpu_cells.SPACES`.
    value: Shape of the array that it may use, or None.
    result: Shape of its result; () for a scalar or none.
  """

  dtype: np.dtype
  shape: tuple[int, ...]
  ours: Callable[[Args], Any]
  hand: Callable[[Args], Any]
  space: str = "vmem"
  value: tuple[int, ...] | None = None
  result: tuple[int, ...] = ()

  def inputs(self) -> list[np.ndarray]:
    """Arguments of the kernels."""
    carrier = tpu_cells.carrier(self.dtype)
    x = cases.values(np.int8, self.shape).astype(self.dtype)
    position = np.array([37, 99], np.int32) % np.array(
      [self.shape[0], self.shape[-1]], np.int32
    )
    inputs = [x, position, np.array([3], carrier)]
    if self.value is not None:
      inputs.append(cases.values(np.int8, self.value, 1).astype(self.dtype))
    return inputs

  def kernel(self, access: Callable[[Args], Any], copies: bool = False):
    """A kernel with one access: (x, position, v[, w]) -> (new x, result).

    Args:
      access: `ours` or `hand`.
      copies: Whether the kernel copies x; else x is the output, which a kernel
        that is only compiled may take for granted.
    """
    result = jax.ShapeDtypeStruct(
      self.result or (1,),
      self.dtype if self.result else tpu_cells.carrier(self.dtype),
    )

    def body(x, position, v, *refs):
      *w, o, out = refs
      if copies:
        tpu_cells.copy_whole(x, o, self)
      value = tpu_cells.as_dtype(v[0], self.dtype)
      got = access(Args(o, position[0], position[1], value, w[0] if w else w))
      if self.result:
        out[...] = got
      else:
        out[0] = v[0] if got is None else got.astype(out.dtype)

    space, smem = tpu_cells.SPACES[self.space], pltpu.SMEM
    values = [pltpu.VMEM] * (self.value is not None)
    spaces = (space, smem, smem, *values)
    return pl.pallas_call(
      body,
      out_shape=[jax.ShapeDtypeStruct(self.shape, self.dtype), result],
      in_specs=[pl.BlockSpec(memory_space=m) for m in spaces],
      out_specs=[
        pl.BlockSpec(memory_space=m)
        for m in (space, pltpu.VMEM if self.result else smem)
      ],
      input_output_aliases={} if copies else {0: 0},
      name="k",
    )


def _scalars():
  rows = {}
  for dtype in (_F32, _BF16, _I8, _BOOL):
    for columns in (128, 256):
      tile = {_BF16: 16, _I8: 32}.get(dtype, 1 if columns == 128 else 8)
      shape, name = (64, columns), f"{dtype.name}_{columns}"

      def add(operation, ours, hand, shape=shape, dtype=dtype, name=name):
        rows[f"{operation}_{name}"] = Row(dtype, shape, ours, hand)

      add(
        "store",
        lambda a: jsx.store(a.o, tpu_by_hand.at(a), a.v),
        tpu_by_hand.store(tile),
      )
      add(
        "swap",
        lambda a: jsx.swap(a.o, tpu_by_hand.at(a), a.v),
        tpu_by_hand.update(tile, tpu_by_hand.replaced),
      )
      add(
        "load",
        lambda a: jsx.load(a.o, tpu_by_hand.at(a)),
        tpu_by_hand.load(tile),
      )
      if columns == 256:
        add(
          "static_store",
          lambda a: jsx.store(a.o, (3, 5), a.v),
          tpu_by_hand.static_store,
        )
        add(
          "static_load",
          lambda a: jsx.load(a.o, (3, 5)),
          tpu_by_hand.static_load,
        )
      if dtype == _BOOL:
        continue
      add(
        "add",
        lambda a: jsx.atomic_add(a.o, tpu_by_hand.at(a), a.v),
        tpu_by_hand.update(tile, tpu_by_hand.add),
      )
      add(
        "add_dropped",
        lambda a: _drop(jsx.atomic_add(a.o, tpu_by_hand.at(a), a.v)),
        tpu_by_hand.update(tile, tpu_by_hand.add, returns=False),
      )
      if columns == 256:
        add(
          "static_add",
          lambda a: jsx.atomic_add(a.o, (3, 5), a.v),
          tpu_by_hand.static_add,
        )
  for columns in (128, 256):  # Words are words: one dtype stands for others.
    rows[f"swap_int32_{columns}"] = Row(
      _I32,
      (64, columns),
      lambda a: jsx.swap(a.o, (a.i, a.j), a.v),
      tpu_by_hand.update(1 if columns == 128 else 8, tpu_by_hand.replaced),
    )
  return rows | {
    "cas_float32_256": Row(
      _F32,
      (64, 256),
      lambda a: jsx.atomic_cas(a.o, (a.i, a.j), a.v, a.v * 2),
      tpu_by_hand.cas,
    ),
    "store_float32_2048": Row(
      _F32,
      (64, 2048),
      lambda a: jsx.store(a.o, (a.i, a.j), a.v),
      tpu_by_hand.store(8),
    ),
    "store_float32_line": Row(
      _F32,
      (4096,),
      lambda a: jsx.store(a.o, a.i, a.v),
      tpu_by_hand.line,
    ),
    "swap_float32_1": Row(
      _F32,
      (1,),
      lambda a: jsx.swap(a.o, 0, a.v),
      tpu_by_hand.only,
    ),
    "swap_float32_1x1": Row(
      _F32,
      (1, 1),
      lambda a: jsx.swap(a.o, (0, 0), a.v),
      tpu_by_hand.only,
    ),
    "swap_bfloat16_1x1": Row(
      _BF16,
      (1, 1),
      lambda a: jsx.swap(a.o, (0, 0), a.v),
      tpu_by_hand.only,
    ),
  }


def _drop(old):
  del old  # Nobody wants it.


def _arrays():
  rows, shape = {}, (32, 128)

  def masked(access):
    def ours(a):
      mask, value = tpu_by_hand.masked_value(a)
      return access(a.o, value, mask)

    return ours

  for dtype in (_F32, _I32, _BF16, _I8, _BOOL):
    name = dtype.name
    rows[f"masked_store_{name}"] = Row(
      dtype,
      shape,
      masked(lambda o, value, mask: jsx.store(o, ..., value, mask=mask)),
      tpu_by_hand.masked_store,
    )
    if dtype in (_I32, _BOOL):
      continue
    rows[f"masked_swap_{name}"] = Row(
      dtype,
      shape,
      masked(lambda o, value, mask: jsx.swap(o, ..., value, mask=mask)),
      tpu_by_hand.masked_swap,
      result=shape,
    )
    rows[f"masked_load_{name}"] = Row(
      dtype,
      shape,
      masked(lambda o, value, mask: jsx.load(o, ..., mask=mask)),
      tpu_by_hand.masked_load,
      result=shape,
    )
    rows[f"array_add_{name}"] = Row(
      dtype,
      shape,
      lambda a: _drop(jsx.atomic_add(a.o, ..., tpu_by_hand.masked_value(a)[1])),
      tpu_by_hand.array_add,
    )
    rows[f"masked_add_{name}"] = Row(
      dtype,
      shape,
      masked(
        lambda o, value, mask: _drop(jsx.atomic_add(o, ..., value, mask=mask))
      ),
      tpu_by_hand.masked_add,
    )
  rows["strided_store_float32"] = Row(
    _F32,
    shape,
    lambda a: jsx.store(a.o, tpu_by_hand.STRIDED, a.w[...]),
    tpu_by_hand.strided,
    value=(8, 128),
  )
  rows["masked_strided_store_float32"] = Row(
    _F32,
    shape,
    lambda a: jsx.store(a.o, tpu_by_hand.STRIDED, a.w[...], mask=a.w[...] > 0),
    tpu_by_hand.masked_strided,
    value=(8, 128),
  )
  return rows


def _remote():
  rows = {}
  for shape in ((8,), (16,), (64,), (128,), (8, 128)):
    name = "smem_" + "x".join(map(str, shape))
    rows[f"store_{name}"] = Row(
      _F32,
      shape,
      lambda a: jsx.store(a.o, ..., a.w[...]),
      tpu_by_hand.smem_store,
      "smem",
      value=shape,
    )
    rows[f"load_{name}"] = Row(
      _F32,
      shape,
      lambda a: jsx.load(a.o),
      tpu_by_hand.smem_load,
      "smem",
      result=shape,
    )
    rows[f"swap_{name}"] = Row(
      _F32,
      shape,
      lambda a: jsx.swap(a.o, ..., a.w[...]),
      tpu_by_hand.smem_swap,
      "smem",
      value=shape,
      result=shape,
    )
  rows["add_smem"] = Row(
    _F32,
    (8,),
    lambda a: jsx.atomic_add(a.o, a.i, a.v),
    tpu_by_hand.smem_add,
    "smem",
  )
  rows["masked_store_smem"] = Row(
    _F32,
    (8,),
    lambda a: jsx.store(a.o, a.i, a.v, mask=a.v > 0),
    tpu_by_hand.smem_masked,
    "smem",
  )
  for space in ("hbm", "any"):
    shape = (64, 256)
    rows[f"store_{space}"] = Row(
      _F32,
      shape,
      lambda a: jsx.store(a.o, ..., a.w[...]),
      tpu_by_hand.hbm_store,
      space,
      value=shape,
    )
    rows[f"static_swap_{space}"] = Row(
      _F32,
      shape,
      lambda a: jsx.swap(a.o, (3, 5), a.v),
      tpu_by_hand.hbm_swap(True),
      space,
    )
    rows[f"swap_{space}"] = Row(
      _F32,
      shape,
      lambda a: jsx.swap(a.o, (a.i, a.j), a.v),
      tpu_by_hand.hbm_swap(False),
      space,
    )
  return rows


# (generation, row) -> bundles by which ours is above. It does what the other
# does, or less: the compiler schedules it worse there.
ABOVE = {("v6e", "swap_smem_16"): 1, ("tpu7x", "load_bool_256"): 1}

ROWS: dict[str, Row] = _scalars() | _arrays() | _remote()


def kernels():
  """What `oracles.tpu_compile` compiles: each row twice, "ours" and "hand"."""
  out = {}
  for name, row in ROWS.items():
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in row.inputs()]
    for who in ("ours", "hand"):
      out[f"{name} {who}"] = row.kernel(getattr(row, who)), shapes
  return out
