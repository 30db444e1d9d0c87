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
"""NumPy arrays as Triton's interpreter takes them, and Triton's type names.

This knows nothing of Triton, which decides on import whether it interprets.
"""

from __future__ import annotations

TYPES = {
    "bool": "i1", "bfloat16": "bf16", "float16": "fp16", "float32": "fp32",
    "float64": "fp64", "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5",
    **{f"int{b}": f"i{b}" for b in (8, 16, 32, 64)},
    **{f"uint{b}": f"u{b}" for b in (8, 16, 32, 64)},
}


class Tensor:
  """What Triton's interpreter asks of a tensor, around a NumPy array."""

  device = "cpu"

  def __init__(self, array):
    self.array = array

  @property
  def dtype(self):
    return TYPES[self.array.dtype.name]

  @property
  def shape(self):
    return self.array.shape

  def data_ptr(self):
    return self.array.ctypes.data

  def untyped_storage(self):
    return self

  def cpu(self):
    return self

  def storage_offset(self):
    return 0

  def size(self):
    return self.array.shape

  def stride(self):
    return tuple(s // self.array.itemsize for s in self.array.strides)

  def new_empty(self, *args, **kwargs):
    del args, kwargs  # It shares the memory: it is a copy of the interpreter's.
    return Tensor(self.array)

  def set_(self, storage, *args):
    del args
    self.array = storage.array

  def copy_(self, other):
    if self.array is not other.array:
      self.array[...] = other.array
