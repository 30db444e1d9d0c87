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
"""SparseCore kernels that tests evaluate and compile.

As `tpu_cells` for TensorCores: a cell is one access, `vector_kernel` makes it a
kernel of the vector subcore and `scalar_kernel` one of the scalar subcore, both
`(x, dynamic, *rest) -> (new x, result)`. What enters and leaves such a kernel
are vectors, so scalars are lanes of them.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any
import warnings

from absl.testing import parameterized
import cases
import jax
from jax import lax
from jax._src.pallas.mosaic import sc_core
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc
import jax.numpy as jnp
import jax_swapext as jsx
import numpy as np
from oracles import mosaic_ir
import tpu_cells
from tpu_cells import Cell

# Lanes on v5p and v6e; kernels for tpu7x are made with twice as many.
LANES = 8
INT, WORD, FLOAT = map(np.dtype, ("int32", "uint32", "float32"))
WORDS = (INT, WORD, FLOAT)
FLAGS = np.dtype(bool)
PACKED = (
    *map(np.dtype, ("int8", "uint8", "int16", "uint16")),
    *(t for t in cases.FLOATS if t.itemsize == 2), *cases.FP8,
)  # fmt: skip


class TestCase(parameterized.TestCase):
  """Kernels here copy from VMEM to HBM with a semaphore, of which JAX warns."""

  def setUp(self):
    super().setUp()
    caught = warnings.catch_warnings()
    caught.__enter__()
    self.addCleanup(caught.__exit__, None, None, None)
    ignore_push_warnings()

  def check(self, cell: Cell, setting: Setting, seed: int = 0):
    """Runs a cell's kernel of the vector subcore from its Mosaic module."""
    kernel = vector_kernel(cell, LANES, setting)
    self.check_kernel(cell, kernel, f"{cell.name} {setting}", seed)

  def check_kernel(self, cell: Cell, kernel: Any, name="", seed: int = 0):
    """The same of any kernel of a cell."""
    with self.subTest(name or cell.name):
      arguments, inputs = inputs_of(cell, LANES, seed)
      check(cell, arguments, mosaic_ir.evaluate(kernel, *inputs))


def ignore_push_warnings() -> None:
  """For factories of kernels, which a child process of its own compiles."""
  warnings.filterwarnings("ignore", message="Destination semaphore is ignored")


def push(source: Any, target: Any) -> None:
  """Copies out of VMEM in a way of which JAX does not warn."""
  # Drop the other branch once jax >= 0.12: a stream out of VMEM then needs no
  # semaphore.
  if hasattr(sc_core, "SparseCorePushStreamWarning"):
    pltpu.async_copy(source, target, None).wait()
  else:
    pltpu.sync_copy(source, target)


def vector_mesh():
  return plsc.VectorSubcoreMesh(
    core_axis_name="c", subcore_axis_name="s", num_cores=1, num_subcores=1
  )


def scalar_mesh():
  return plsc.ScalarSubcoreMesh(axis_name="c", num_cores=1)


@dataclasses.dataclass(frozen=True)
class Setting:
  """Compiler parameters that the lowering depends on."""

  layout_passes: bool = False
  tiling: bool | None = None

  @property
  def params(self):
    return pltpu.CompilerParams(
      needs_layout_passes=self.layout_passes, use_tc_tiling_on_sc=self.tiling
    )


def _word(dtype: Any) -> np.dtype:
  """The dtype in which a scalar of `dtype` travels as a lane."""
  dtype = np.dtype(dtype)
  return dtype if dtype.itemsize == 4 else np.dtype(np.int32)


def _integer(dtype: Any) -> np.dtype:
  return np.dtype(f"int{8 * np.dtype(dtype).itemsize}")


def _from_word(x: Any, dtype: Any) -> Any:
  """A scalar of `dtype` from its representation."""
  dtype = np.dtype(dtype)
  if x.dtype == dtype:
    return x
  if dtype == FLAGS:
    return x != 0
  if dtype.kind in "iu":
    return x.astype(dtype)
  return lax.bitcast_convert_type(x.astype(_integer(dtype)), dtype)


def _to_word(x: Any) -> Any:
  if x.dtype.itemsize == 4:
    return x
  if jnp.issubdtype(x.dtype, jnp.floating):
    x = lax.bitcast_convert_type(x, _integer(x.dtype))
  return x.astype(jnp.int32)


class _Lane:
  """A vector whose first lane is the scalar that the cell asks for."""

  def __init__(self, ref: Any, dtype: Any):
    self.ref, self.dtype = ref, dtype

  def __getitem__(self, k: int) -> Any:
    return _from_word(self.ref[...][k], self.dtype)


class _Carried:
  """A vector that travels as words."""

  def __init__(self, ref: Any, dtype: Any):
    self.ref, self.dtype = ref, dtype

  def __getitem__(self, index: Any) -> Any:
    return _from_words(self.ref[index], self.dtype)


def _is_packed(dtype: Any) -> bool:
  return np.dtype(dtype).itemsize < 4 and dtype != FLAGS


def _carrier(shape: tuple[int, ...], dtype: Any):
  """Shape and dtype in which a vector travels.

  Flags are words in memory. Packed vectors have no memory of one dimension
  under TensorCore tiling.
  """
  if _is_packed(dtype) and len(shape) == 1:
    shape = (shape[0] * np.dtype(dtype).itemsize // 4,)
  elif dtype != FLAGS:
    return jax.ShapeDtypeStruct(shape, dtype)
  return jax.ShapeDtypeStruct(shape, np.int32)


def _from_words(x: Any, dtype: Any) -> Any:
  if dtype == FLAGS:
    return x != 0
  if x.dtype == dtype or x.ndim > 1:
    return x
  return _bitcast(x, dtype)


def _to_words(x: Any) -> Any:
  if x.dtype == FLAGS:
    one = jnp.full(x.shape, 1, jnp.int32)
    return jnp.where(x, one, jnp.zeros_like(one))
  if _is_packed(x.dtype) and x.ndim == 1:
    return _bitcast(x, jnp.int32)
  return x


# Its own function before jax 0.12, which TPU interpret mode then lacks.
BITCASTS = "dim" in inspect.signature(pltpu.bitcast).parameters


def _bitcast(x: Any, dtype: Any) -> Any:
  if BITCASTS:
    return pltpu.bitcast(x, dtype, dim=-1)
  return plsc.bitcast(x, dtype)


def inputs_of(cell: Cell, lanes: int, seed: int = 0):
  """The arguments of a cell, and the kernel's inputs that carry them."""
  arguments = tpu_cells.arguments_of(cell, seed)
  arrays = [i for i in cell.index if isinstance(i, np.ndarray)]
  others = list(arguments.operands)
  if arguments.mask is not None:
    others.append(arguments.mask)
  scalar = cell.region_shape == ()
  inputs = [arguments.x, np.resize(arguments.inputs[1], lanes), *arrays]
  for x in others:
    if scalar:
      x = np.asarray(x)
      if _is_packed(x.dtype):
        x = x.view(_integer(x.dtype))
      x = np.resize(x.astype(_word(x.dtype)), lanes)
    elif x is arguments.mask and _is_packed(cell.dtype):
      # Flags of packed lanes are as narrow as those.
      x = _packed_words(x.astype(_integer(cell.dtype)))
    else:
      x = _packed_words(x)
    inputs.append(x)
  return arguments, inputs


def _packed_words(x: np.ndarray) -> np.ndarray:
  if x.dtype == FLAGS:
    return x.astype(np.int32)
  if _is_packed(x.dtype) and x.ndim == 1:
    return np.ascontiguousarray(x).view(np.int32)
  return x


def check(cell: Cell, arguments: Any, got: Any) -> None:
  """Raises unless a kernel returned what the reference says."""
  new, result = map(np.asarray, got)
  dtype = np.dtype(cell.dtype)
  if cell.region_shape == ():
    result = result[:1]
    if _is_packed(dtype):
      result = result.astype(_integer(dtype))
  if dtype == FLAGS:
    result = result != 0
  result = np.ascontiguousarray(result).view(dtype)
  tpu_cells.check(cell, arguments, (new.astype(dtype), result))


def vector_kernel(
  cell: Cell, lanes: int, setting: Setting = Setting(), interpret: Any = False
):
  """A kernel of the vector subcore."""
  scalar = cell.region_shape == ()
  has_result = cell.op.name != "store" and not cell.drop
  arrays = sum(isinstance(i, np.ndarray) for i in cell.index)
  if scalar:
    out = jax.ShapeDtypeStruct((lanes,), _word(cell.dtype))
  else:
    out = _carrier(cell.region_shape, cell.dtype)

  def body(*refs):
    n = (len(refs) - 3) // 2
    sources, (new, result) = refs[:n], refs[n : n + 2]
    home, *buffers, got_ref = refs[n + 2 : 2 * n + 3]
    if cell.space == "hbm":
      home = new
    for source, buffer in zip(sources, (home, *buffers), strict=True):
      pltpu.sync_copy(source, buffer)
    ref = home
    if cell.space == "smem":
      ref = refs[-1]
      _move_elements(home, ref)
    at, *rest = buffers
    at = at[...]
    indices, operands = rest[:arrays], rest[arrays:]
    masks = [operands.pop()] if cell.masked else []
    if scalar:
      operands = [_Lane(o, cell.dtype) for o in operands]
      masks = [_Lane(m, np.int32) for m in masks]
    else:
      narrow = _integer(cell.dtype) if _is_packed(cell.dtype) else np.int32
      operands = [_Carried(o, cell.dtype) for o in operands]
      masks = [_Carried(m, narrow) for m in masks]
    positions = [at[k] for k in range(len(cell.index))]
    got = tpu_cells.access(cell, ref, positions, [*indices, *operands, *masks])
    if has_result and scalar:
      got_ref[...] = jnp.full((lanes,), _to_word(got))
    elif has_result:
      got_ref[...] = _to_words(got)
    pltpu.sync_copy(got_ref, result)
    if ref is not home:
      _move_elements(ref, home)
    if cell.space != "hbm":
      pltpu.sync_copy(home, new)

  memory = pltpu.VMEM_SHARED if cell.space == "vmem_shared" else pltpu.VMEM
  smem = [pltpu.SMEM(cell.shape, cell.dtype)] * (cell.space == "smem")

  def f(x, *rest):
    return pl.kernel(
      body,
      out_type=[jax.ShapeDtypeStruct(x.shape, x.dtype), out],
      mesh=vector_mesh(),
      scratch_types=[
        memory(x.shape, x.dtype),
        *(pltpu.VMEM(a.shape, a.dtype) for a in (*rest, out)),
        *smem,
      ],
      compiler_params=setting.params,
      interpret=interpret,
      name="k",
    )(x, *rest)

  return f


def _move_elements(source: Any, target: Any) -> None:
  """Copies between VMEM and SMEM of a vector subcore, which no DMA does."""
  for k in range(source.shape[0]):
    jsx.store(target, k, jsx.load(source, k))


def scalar_kernel(cell: Cell, interpret: Any = False):
  """A kernel of the scalar subcore; `cell.space` is SMEM, HBM or shared."""
  has_result, word = cell.op.name != "store", _word(cell.dtype)
  memory = pltpu.VMEM_SHARED if cell.space == "vmem_shared" else pltpu.SMEM

  def f(*inputs):
    def body(*refs):
      n = len(inputs)
      sources, (new, result), buffers = refs[:n], refs[n : n + 2], refs[n + 2 :]
      ref, at, *rest, out = buffers
      if cell.space == "hbm":
        ref = new
      for source, buffer in zip(sources, (ref, at, *rest), strict=True):
        pltpu.sync_copy(source, buffer)
      got = tpu_cells.access(cell, ref, [at[0]], rest)
      out[0] = _to_word(got) if has_result else jnp.zeros((), word)
      pltpu.sync_copy(out, result)
      if cell.space != "hbm":
        pltpu.sync_copy(ref, new)

    return pl.kernel(
      body,
      out_type=[
        jax.ShapeDtypeStruct(cell.shape, cell.dtype),
        jax.ShapeDtypeStruct((8,), word),
      ],
      mesh=scalar_mesh(),
      scratch_types=[
        memory(cell.shape, cell.dtype),
        *(pltpu.SMEM(a.shape, a.dtype) for a in inputs[1:]),
        pltpu.SMEM((8,), word),
      ],
      interpret=interpret,
      name="k",
    )(*inputs)

  return f
