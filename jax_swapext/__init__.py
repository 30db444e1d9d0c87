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
"""Memory operations that work in every JAX kernel, and outside kernels.

On a Ref, inside any Pallas kernel or from :func:`jax.new_ref`: :func:`load`,
:func:`store`, :func:`swap`, ``atomic_*`` and :func:`atomic_cas`. On arrays, as
pure functions: ``fetch_*`` and :func:`fetch_cas`. For kernels in stock syntax:
:func:`extended` and :func:`extend_everywhere`. For warp code of Mosaic GPU
kernels: ``jax_swapext.mosaic_gpu``; for tests of kernels on machines without
accelerators: ``jax_swapext.testing``; for reading: ``jax_swapext.examples``.
These are loaded on first use.
"""

import importlib as _importlib
import types as _types
from typing import TYPE_CHECKING

from jax_swapext._src import pallas as _pallas
from jax_swapext._src.atomic_cas import atomic_cas as atomic_cas
from jax_swapext._src.atomic_cas import atomic_cas_p as atomic_cas_p
from jax_swapext._src.atomic_rmw import atomic_add as atomic_add
from jax_swapext._src.atomic_rmw import atomic_and as atomic_and
from jax_swapext._src.atomic_rmw import atomic_max as atomic_max
from jax_swapext._src.atomic_rmw import atomic_min as atomic_min
from jax_swapext._src.atomic_rmw import atomic_or as atomic_or
from jax_swapext._src.atomic_rmw import atomic_rmw_p as atomic_rmw_p
from jax_swapext._src.atomic_rmw import atomic_xchg as atomic_xchg
from jax_swapext._src.atomic_rmw import atomic_xor as atomic_xor
from jax_swapext._src.extended import extend_everywhere as extend_everywhere
from jax_swapext._src.extended import extended as extended
from jax_swapext._src.fetch import fetch_add as fetch_add
from jax_swapext._src.fetch import fetch_and as fetch_and
from jax_swapext._src.fetch import fetch_cas as fetch_cas
from jax_swapext._src.fetch import fetch_max as fetch_max
from jax_swapext._src.fetch import fetch_min as fetch_min
from jax_swapext._src.fetch import fetch_or as fetch_or
from jax_swapext._src.fetch import fetch_xchg as fetch_xchg
from jax_swapext._src.fetch import fetch_xor as fetch_xor
from jax_swapext._src.fetch_update import fetch_update_p as fetch_update_p
from jax_swapext._src.load import load as load
from jax_swapext._src.load import load_p as load_p
from jax_swapext._src.support import support as support
from jax_swapext._src.swap import store as store
from jax_swapext._src.swap import swap as swap
from jax_swapext._src.swap import swap_p as swap_p
from jax_swapext._src.xla import cpu as _cpu
from jax_swapext._src.xla import cuda as _cuda
from jax_swapext._src.xla import tpu as _tpu
from jax_swapext.version import __version__ as __version__

if TYPE_CHECKING:  # They need Pallas, which importing this must not load.
  from jax_swapext import examples as examples
  from jax_swapext import mosaic_gpu as mosaic_gpu
  from jax_swapext import testing as testing

# Imported for the rules that they register, now or later.
del _cpu, _cuda, _pallas, _tpu


_LAZY = ("examples", "mosaic_gpu", "testing")


if not TYPE_CHECKING:  # To a type checker, any name would be a module then.
  def __getattr__(name: str) -> _types.ModuleType:
    if name in _LAZY:
      return _importlib.import_module(f"jax_swapext.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
  return sorted({*globals(), *_LAZY})
