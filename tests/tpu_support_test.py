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
"""The support matrix of TPU kernels: each row is tested, or refused as told."""

import functools
import itertools

from absl.testing import absltest
from absl.testing import parameterized
import cases
import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
import jax_swapext as jsx
import numpy as np
from oracles import mosaic_ir
import sparse_cells
import sparse_tables
import tpu_cells

_TENSORCORE = "TPU TensorCore"
_VECTOR = "TPU SparseCore, vector subcore"
_SCALAR = "TPU SparseCore, scalar subcore"
_INTERPRETER = "TPU interpret mode"
_ROWS = [r for r in jsx.support(place="TPU") if r.place.startswith("TPU ")]
_REFUSED = [r for r in _ROWS if not r.supported]
_OPS = {op.name: op for op in cases.OPS}


def _tested():
  """(place, memory, operation, dtype) of what other tests here compare."""
  out = set()

  def add(place, cells):
    for c in cells:
      memory = "HBM" if c.space in ("hbm", "any") else c.space.upper()
      out.add((place, memory, c.op.name, np.dtype(c.dtype).name))

  for place, groups in (
    (_TENSORCORE, tpu_cells.tensorcore_cells()),
    (_INTERPRETER, tpu_cells.interpreted_cells()),
  ):
    for cells in groups.values():
      add(place, cells)
  linear = sparse_cells.Setting(layout_passes=False, tiling=False)
  add(_VECTOR, sparse_tables.vmem_cells(8).values())
  add(_VECTOR, sparse_tables.flag_cells(8).values())
  for dtype in sparse_cells.PACKED:
    add(_VECTOR, sparse_tables.packed_cells(8, dtype, linear).values())
  for place in (_VECTOR, _SCALAR):
    add(place, sparse_tables.smem_cells().values())
  add(_SCALAR, sparse_tables.scalar_remote_cells().values())
  for table in ("vmem_shared", "packed_vmem_shared"):
    _, cells = sparse_tables.interpreted_cells()[table]
    add(_INTERPRETER, cells)
  remote = []
  for space in ("hbm", "vmem_shared"):
    cells = [*sparse_tables.remote_cells(8, space).values()]
    for dtype in sparse_cells.PACKED:
      packed = sparse_tables.remote_packed_cells(8, dtype, space, linear)
      cells += packed.values()
    remote.append({(c.op.name, np.dtype(c.dtype).name) for c in cells})
  for operation, dtype in set.intersection(*remote):
    out.add((_VECTOR, "HBM or VMEM_SHARED", operation, dtype))
  return out


# An index of each form, into a Ref of 64 elements.
_INDICES = {
  "whole": lambda: ...,
  "integers": lambda: 3,
  "slices": lambda: slice(0, 8),
  "pl.ds": lambda: pl.ds(8, 8),
  "integer arrays": lambda: jnp.arange(8, dtype=jnp.int32),
  "mixed": lambda: (slice(0, 8), jnp.arange(8, dtype=jnp.int32)),
  "one dimension under TensorCore tiling": lambda: 3,
  "with layout passes before jax 0.12": lambda: 3,
}
# Compiler parameters of a SparseCore kernel.
_SETTINGS = {
  "with layout passes before jax 0.12": sparse_cells.Setting(
    layout_passes=True, tiling=False
  ),
}


def _access(operation, dtype, form, ref):
  op = _OPS[operation]
  zero = np.zeros((), jnp.dtype(dtype))[()]
  operands = () if operation == "load" else (zero,) * op.operands
  out = op.apply(ref, _INDICES[form](), *operands)
  if out is not None:  # What nobody uses is not even lowered.
    jsx.store(ref, _INDICES[form](), out)


def _lower_tensorcore(memory, shape, dtype, access, interpret=False):
  space = tpu_cells.SPACES[memory.lower()]
  spec = pl.BlockSpec(memory_space=space)
  f = pl.pallas_call(
    lambda x, o: access(o),
    out_shape=jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)),
    in_specs=[spec],
    out_specs=spec,
    interpret=interpret,
  )
  x = jnp.zeros(shape, jnp.dtype(dtype))
  if interpret:
    jax.block_until_ready(f(x))
  else:
    mosaic_ir.lower(f, x)


def _lower_sparsecore(place, memory, shape, dtype, access, setting):
  # The output is in HBM; a scratch is anywhere else.
  space = pltpu.SMEM if memory == "HBM" else getattr(pltpu, memory)

  def body(x, o, ref):
    del x  # Unused.
    access(o if memory == "HBM" else ref)

  vector, scalar = sparse_cells.vector_mesh, sparse_cells.scalar_mesh
  mesh = vector if place == _VECTOR else scalar

  def f(x):
    return pl.kernel(
      body,
      out_type=jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)),
      mesh=mesh(),
      scratch_types=[space(shape, jnp.dtype(dtype))],
      compiler_params=setting.params,
    )(x)

  mosaic_ir.lower(f, np.zeros(8, np.int32))


class TpuSupportTest(sparse_cells.TestCase):
  def test_what_is_supported_is_tested(self):
    rows = {
      (row.place, row.memory, operation, dtype)
      for row in _ROWS
      if row.supported
      for operation, dtype, _ in row.cells()
    }
    self.assertGreater(len(rows), 400)
    self.assertEmpty(sorted(rows - _tested()))

  @parameterized.named_parameters(
    (f"{k}_{row.operations[0]}_{row.memory}".replace(" ", "_"), row)
    for k, row in enumerate(_REFUSED)
  )
  def test_what_is_not_is_refused(self, row):
    mixed = "mixed" in row.indices
    shape = (64, 128) if mixed and row.memory != "SMEM" else (64,)
    memory = row.memory.split(" or ")[-1]
    forms = [f for f in row.indices if f != "mixed" or len(shape) > 1]
    if sparse_cells.BITCASTS and "with layout passes before" in forms[0]:
      return  # Here these are among the supported.
    # Every operation and dtype, the forms of the index in turn.
    pairs = itertools.product(row.operations, row.dtypes)
    for (operation, dtype), form in zip(pairs, itertools.cycle(forms)):
      with self.subTest(f"{operation} {dtype} {form}"):
        access = functools.partial(_access, operation, dtype, form)
        with self.assertRaises(NotImplementedError) as raised:
          match row.place:
            case "TPU TensorCore":
              _lower_tensorcore(memory, shape, dtype, access)
            case "TPU interpret mode":
              _lower_tensorcore(
                memory, shape, dtype, access, pltpu.InterpretParams()
              )
            case _:
              setting = _SETTINGS.get(form, sparse_cells.Setting(True))
              _lower_sparsecore(
                row.place, memory, shape, dtype, access, setting
              )
        message = str(raised.exception)
        self.assertStartsWith(message, f"{operation}: wanted ")
        for words in row.note.split("; "):
          self.assertIn(words, message)


if __name__ == "__main__":
  absltest.main()
