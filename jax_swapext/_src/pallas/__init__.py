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
"""Kernel rules, registered when a Pallas backend is loaded, not before.

Importing this library must import no Pallas backend: they are slow to import
and most programs use one at most. A backend's registry of lowering rules lives
in a module that JAX itself imports only when it lowers a kernel, so our rules
are registered right after that module has been executed.

To add a backend: give its registry's module and the module of ours that
registers rules with it, as a side effect of being imported, a line in
`_RULES_FOR`. Ours may be imported while the backend's public package is still
half imported; it must use what it takes from there inside functions only.
"""

from __future__ import annotations

from collections.abc import Sequence
import importlib
import importlib.abc
import importlib.machinery
import sys
from types import ModuleType

_RULES_FOR = {
  "jax._src.pallas.primitives": "jax_swapext._src.pallas.extended_masked",
  "jax._src.pallas.mpmd": "jax_swapext._src.pallas.extended_calls",
  "jax._src.pallas.mosaic.interpret.interpret_pallas_call": (
    "jax_swapext._src.pallas.interpret"
  ),
  "jax._src.pallas.mosaic.lowering": "jax_swapext._src.pallas.mosaic_tpu",
  "jax._src.pallas.mosaic.sc_lowering": "jax_swapext._src.pallas.mosaic_sc",
  "jax._src.pallas.mosaic.sc_primitives": "jax_swapext._src.pallas.extended_sc",
  "jax._src.pallas.mosaic.pallas_call_registration": (
    "jax_swapext._src.pallas.sc_tiling"
  ),
  "jax._src.pallas.cost_estimate": "jax_swapext._src.pallas.cost",
  "jax._src.pallas.mosaic_gpu.lowering": "jax_swapext._src.pallas.mosaic_gpu",
  "jax._src.pallas.mosaic_gpu.primitives": (
    "jax_swapext._src.pallas.extended_gpu"
  ),
  "jax._src.pallas.mosaic_gpu.interpret.jaxpr_interpret": (
    "jax_swapext._src.pallas.gpu_interpret"
  ),
  "jax._src.pallas.triton.lowering": "jax_swapext._src.pallas.triton",
  "jax._src.pallas.triton.primitives": (
    "jax_swapext._src.pallas.extended_triton"
  ),
}


class _AfterImport(importlib.abc.MetaPathFinder):
  """Imports our module after one of JAX's has been executed."""

  def find_spec(
    self,
    fullname: str,
    path: Sequence[str] | None,
    target: ModuleType | None = None,
  ) -> importlib.machinery.ModuleSpec | None:
    ours = _RULES_FOR.get(fullname)
    if ours is None:
      return None
    # The other finders first: JAX may be installed in any way they know.
    others = (f for f in sys.meta_path if not _is_ours(f))
    specs = (f.find_spec(fullname, path, target) for f in others)
    spec = next((s for s in specs if s is not None), None)
    if spec is None or spec.loader is None:
      return spec
    execute = spec.loader.exec_module

    def execute_then_register(module: ModuleType) -> None:
      execute(module)
      importlib.import_module(ours)

    spec.loader.exec_module = execute_then_register
    return spec


def _is_ours(finder: object) -> bool:
  # By name: a reloaded module has another class.
  kind = type(finder)
  return (kind.__module__, kind.__name__) == (__name__, _AfterImport.__name__)


def _install() -> None:
  sys.meta_path[:] = [f for f in sys.meta_path if not _is_ours(f)]
  for theirs, ours in _RULES_FOR.items():
    if theirs in sys.modules:
      importlib.import_module(ours)
  sys.meta_path.insert(0, _AfterImport())


_install()
