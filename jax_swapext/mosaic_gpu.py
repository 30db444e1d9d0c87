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
"""For warp code of Mosaic GPU kernels: what it needs and stock lacks."""

from jax.experimental.pallas import mosaic_gpu as _mosaic_gpu
from jax_swapext._src.pallas.gpu_sync import commit_smem as commit_smem
from jax_swapext._src.pallas.gpu_sync import warp_barrier as warp_barrier

del _mosaic_gpu  # Imported first, since the rules need all of it.
