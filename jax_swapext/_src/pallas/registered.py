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
"""Places of the support matrix that lack a rule for what they promise.

When JAX moves a registry, the rules for it are registered nowhere, and nothing
says so before a kernel is lowered. This looks first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jax_swapext._src import atomic_cas
from jax_swapext._src import atomic_rmw
from jax_swapext._src import fetch_update
from jax_swapext._src import load
from jax_swapext._src import support
from jax_swapext._src import swap

Table = Mapping[Any, Any]

_ON_ARRAYS = fetch_update.fetch_update_p

PRIMITIVES = {
    "load_p": load.load_p,
    "swap_p": swap.swap_p,
    "atomic_rmw_p": atomic_rmw.atomic_rmw_p,
    "atomic_cas_p": atomic_cas.atomic_cas_p,
    "fetch_update_p": _ON_ARRAYS,
}
"""All primitives, by the names under which users find them."""


# ## Tables of rules; a table that has moved is an error of import or look-up


def _discharge() -> Table:
  from jax._src.state import discharge

  return discharge._discharge_rules


def _outside_kernels(*platforms: str) -> list[Table]:
  from jax._src.interpreters import mlir

  # An operation on a Ref is discharged into one on an array.
  lowerings = [mlir._platform_specific_lowerings[p] for p in platforms]
  return [{**_discharge(), **table} for table in lowerings]


def _tpu(core_type: str) -> list[Table]:
  from jax._src.pallas.mosaic import core
  from jax._src.pallas.mosaic import lowering
  from jax._src.pallas.mosaic import sc_lowering

  del sc_lowering  # Imported for the rules that it registers.
  return [lowering.lowering_rules[getattr(core.CoreType, core_type)]]


def _tpu_interpreter() -> list[Table]:
  from jax._src.pallas.mosaic.interpret import interpret_pallas_call

  return [_expanded_by(interpret_pallas_call._interpret_jaxpr)]


def _mosaic_gpu(*semantics: str) -> list[Table]:
  from jax._src.pallas.mosaic_gpu import core
  from jax._src.pallas.mosaic_gpu import lowering

  rules = lowering.mosaic_lowering_rules
  return [rules[getattr(core, f"{s}_SEMANTICS")] for s in semantics]


def _gpu_interpreter() -> list[Table]:
  from jax._src.pallas.mosaic_gpu.interpret import jaxpr_interpret

  return [_expanded_by(jaxpr_interpret.JaxprInterpreter.interpret)]


def _triton() -> list[Table]:
  from jax._src.pallas.triton import lowering

  return [lowering.triton_lowering_rules]


def _expanded_by(interpret: Callable[..., Any]) -> Table:
  """All of ours on Refs, if it is our function that JAX calls."""
  if not interpret.__module__.startswith(f"{__package__}."):
    return {}
  return {p: interpret for p in PRIMITIVES.values() if p is not _ON_ARRAYS}


TABLES: dict[str, Callable[[], list[Table]]] = {
    "outside kernels, CPU": lambda: _outside_kernels("cpu"),
    "outside kernels, GPU": lambda: _outside_kernels("cuda", "rocm"),
    "outside kernels, TPU": lambda: _outside_kernels("tpu"),
    "interpret=True": lambda: [_discharge()],
    "Mosaic GPU, warp code": lambda: _mosaic_gpu("LANExWARP", "WGxWARP"),
    "Mosaic GPU, warpgroup code": lambda: _mosaic_gpu("LANExWG", "WGxWG"),
    "GPU interpreter": _gpu_interpreter,
    "Pallas Triton": _triton,
    "TPU TensorCore": lambda: _tpu("TC"),
    "TPU SparseCore, vector subcore": lambda: _tpu("SC_VECTOR_SUBCORE"),
    "TPU SparseCore, scalar subcore": lambda: _tpu("SC_SCALAR_SUBCORE"),
    "TPU interpret mode": _tpu_interpreter,
}
"""The tables that a place looks our primitives up in, by name of the place."""


# ## What the matrix promises


def missing(
    promises: Iterable[tuple[str, str, str]] | None = None,
) -> list[str]:
  """What is promised and has no rule, a line for each place and primitive.

  Args:
    promises: (place, memory, operation) of each; those of the support matrix
      unless given.

  Returns:
    Lines such as ``"TPU TensorCore: no rule for swap_p (store, swap)"``.
  """
  if promises is None:
    promises = [
        (row.place, row.memory, operation)
        for row in support.support() if row.supported
        for operation in row.operations
    ]
  wanted: dict[str, dict[str, dict[str, None]]] = {}
  for place, memory, operation in promises:
    for name in primitives_of(operation, memory):
      wanted.setdefault(place, {}).setdefault(name, {})[operation] = None
  lines = []
  for place, operations_of in wanted.items():
    try:
      tables = TABLES[place]()
    except (ImportError, AttributeError, KeyError) as e:
      lines.append(f"{place}: no rules at all, {type(e).__name__}: {e}")
      continue
    for name, operations in operations_of.items():
      if not all(PRIMITIVES[name] in table for table in tables):
        lines.append(f"{place}: no rule for {name} ({', '.join(operations)})")
  return lines


def primitives_of(operation: str, memory: str) -> list[str]:
  match operation:
    case "load":
      on_ref = "load_p"
    case "store" | "swap":
      on_ref = "swap_p"
    case "atomic_cas":
      on_ref = "atomic_cas_p"
    case _:
      on_ref = "atomic_rmw_p"
  match memory:
    case "array":
      return ["fetch_update_p"]
    case "Ref" if operation.startswith("atomic_"):
      return [on_ref, "fetch_update_p"]  # the first becomes the second
    case _:
      return [on_ref]
