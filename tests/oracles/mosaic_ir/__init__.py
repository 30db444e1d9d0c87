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
"""An interpreter of the Mosaic modules that JAX hands to libtpu.

It executes, on NumPy memory, exactly what the TPU compiler would be given, so
a test can compare the *emitted* program with an oracle on a machine that has
neither a TPU nor libtpu. It is deliberately stricter than the hardware:

* memory that nothing wrote holds poison, the padding of tiles included;
* an access outside the padded buffer, a slice outside the logical shape and a
  broken `assume_multiple` claim are errors;
* a DMA moves its bytes only when it is waited for ("late") or at once
  ("early"); a kernel must give the same result either way, and one that is
  never waited for is an error;
* SparseCore subcores run as coroutines under a seeded scheduler.

What it does not know, it refuses by name. It does not know the compiler's
alignment and layout rules: those need the real compiler.
"""

from oracles.mosaic_ir.hlo import evaluate
from oracles.mosaic_ir.hlo import lower
from oracles.mosaic_ir.hlo import mosaic_modules
from oracles.mosaic_ir.memory import EvaluationError
from oracles.mosaic_ir.program import UnknownOpError

__all__ = (
  "EvaluationError",
  "UnknownOpError",
  "evaluate",
  "lower",
  "mosaic_modules",
)
