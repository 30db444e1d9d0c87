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
"""Reads a launch out of the host function that Mosaic GPU compiled.

The kernel's parameters are what its body captures, in order of first use, and
bulk copy descriptors go by value: which buffer is which is known only to the
host function.  It is straight-line LLVM IR over a dozen operations, so it is
evaluated here on the addresses of the simulated device.
"""

from __future__ import annotations

import dataclasses
import re
import struct

from oracles.ptx import execute
from oracles.ptx.parse import PtxError

# CUtensorMapDataType, as the runtime numbers it, to bytes per item.
_TENSOR_ITEMSIZE = {0: 0.5, 1: 1, 2: 2, 3: 4, 4: 8, 5: 2, 6: 4, 7: 2, 8: 0.5,
                    9: 4, 10: 8}


@dataclasses.dataclass
class Launch:
  """All that a launch needs besides the device's memory."""

  grid: tuple[int, int, int]
  cluster: tuple[int, int, int]
  block: tuple[int, int, int]
  dynamic_shared: int
  parameters: list[bytes]
  tensor_maps: list[execute.TensorMap]


def _split_types(text: str) -> list[str]:
  parts, depth, current = [], 0, ""
  for char in text:
    depth += (char in "{[(") - (char in "}])")
    if char == "," and depth == 0:
      parts.append(current.strip())
      current = ""
    else:
      current += char
  return parts + ([current.strip()] if current.strip() else [])


def _layout(type_name: str) -> tuple[int, int]:
  """(size, alignment) in bytes of an LLVM type."""
  type_name = type_name.strip()
  if type_name.startswith("ptr"):
    return 8, 8
  if match := re.fullmatch(r"i(\d+)", type_name):
    size = -(-int(match.group(1)) // 8)
    return size, size
  if match := re.fullmatch(r"\[(\d+) x (.*)\]", type_name):
    size, alignment = _layout(match.group(2))
    return int(match.group(1)) * size, alignment
  if type_name.startswith("{"):
    offset, largest = 0, 1
    for part in _split_types(type_name[1:-1]):
      size, alignment = _layout(part)
      offset = -(-offset // alignment) * alignment + size
      largest = max(largest, alignment)
    return -(-offset // largest) * largest, largest
  raise PtxError(f"unknown LLVM type {type_name!r}")


def _element(type_name: str, index: int) -> tuple[str, int]:
  """(type, byte offset) of a member of an aggregate."""
  if match := re.fullmatch(r"\[(\d+) x (.*)\]", type_name):
    return match.group(2), index * _layout(match.group(2))[0]
  offset = 0
  for i, part in enumerate(_split_types(type_name[1:-1])):
    size, alignment = _layout(part)
    offset = -(-offset // alignment) * alignment
    if i == index:
      return part, offset
    offset += size
  raise PtxError(f"no member {index} in {type_name}")


def _typed(text: str) -> tuple[str, str]:
  """Splits "i32 %4" into type and value."""
  text = text.strip()
  if text[0] in "{[":
    depth = 0
    for i, char in enumerate(text):
      depth += (char in "{[") - (char in "}]")
      if depth == 0:
        return text[: i + 1], text[i + 1:].strip()
  type_name, value = text.split(None, 1)
  return type_name, value


class _Evaluator:
  """Runs one straight-line LLVM function over a small host memory."""

  def __init__(self, buffers, parameter_sizes):
    self._parameter_sizes = parameter_sizes
    self._memory = bytearray(1 << 20)
    self._top = 64
    self._values: dict[str, object] = {}
    self._tensor_maps: list[execute.TensorMap] = []
    self.launch: Launch | None = None
    self._spec = self._allocate(64, 16)
    table = self._allocate(8 * max(len(buffers), 1), 8)
    for i, address in enumerate(buffers):
      self._store(table + 8 * i, address, 8)
    self._table = table

  def _allocate(self, size: int, alignment: int) -> int:
    self._top = -(-self._top // alignment) * alignment
    start = self._top
    self._top += size
    return start

  def _store(self, address: int, value: int, size: int):
    self._memory[address: address + size] = (
        value & ((1 << 8 * size) - 1)).to_bytes(size, "little")

  def _load(self, address: int, size: int) -> int:
    return int.from_bytes(self._memory[address: address + size], "little")

  def _value(self, text: str):
    if text.startswith("%"):
      return self._values[text]
    if text in ("undef", "poison", "zeroinitializer"):
      return {}
    if text == "null":
      return 0
    if text in ("true", "false"):
      return int(text == "true")
    return int(text)

  def run(self, parameters: list[str], body: str):
    # The buffers come last; before them is what the runtime wants to know.
    self._values = dict.fromkeys(parameters, self._spec)
    self._values[parameters[-1]] = self._table
    for line in body.splitlines():
      line = re.sub(r",?\s*!\w+.*$", "", line).strip()
      if not line or line.startswith((";", "ret")):
        continue
      target, _, text = line.partition(" = ")
      if not text:
        target, text = "", line
      result = self._evaluate(text.strip())
      if target:
        self._values[target] = result

  def _evaluate(self, text: str):
    root, _, rest = text.partition(" ")
    parts = _split_types(rest)
    match root:
      case "alloca":
        type_name, count = parts[0], 1
        for part in parts[1:]:
          if not part.startswith("align"):
            count = self._value(_typed(part)[1])
        size, alignment = _layout(type_name)
        return self._allocate(size * count, max(alignment, 64))
      case "load":
        address = self._value(_typed(parts[1])[1])
        return self._load(address, _layout(parts[0])[0])
      case "store":
        type_name, value = _typed(parts[0])
        address = self._value(_typed(parts[1])[1])
        return self._store(address, self._value(value), _layout(type_name)[0])
      case "getelementptr":
        rest = re.sub(r"^(inbounds|nuw|nusw|nsw| )+ ", "", rest)
        return self._element_pointer(_split_types(rest))
      case "insertvalue":
        aggregate = dict(self._value(_typed(parts[0])[1]))
        aggregate[tuple(parts[2:])] = self._value(_typed(parts[1])[1])
        return aggregate
      case "extractvalue":
        return self._value(_typed(parts[0])[1])[tuple(parts[1:])]
      case "add" | "sub" | "mul" | "udiv" | "sdiv" | "urem" | "and" | "or":
        rest = re.sub(r"^(nuw|nsw|exact|disjoint| )+ ", "", rest)
        first, second = _split_types(rest)
        a, b = self._value(_typed(first)[1]), self._value(second)
        return {"add": a + b, "sub": a - b, "mul": a * b, "and": a & b,
                "or": a | b}[root] if root in (
                    "add", "sub", "mul", "and", "or") else (
                        a % b if root == "urem" else a // b)
      case "ptrtoint" | "inttoptr" | "zext" | "sext" | "trunc" | "bitcast" | (
          "addrspacecast"):
        return self._value(_typed(rest.split(" to ")[0])[1])
      case "call":
        return self._call(rest)
    raise PtxError(f"unsupported host operation: {text}")

  def _element_pointer(self, parts: list[str]) -> int:
    type_name = parts[0]
    address = self._value(_typed(parts[1])[1])
    indices = [self._value(_typed(p)[1]) for p in parts[2:]]
    address += indices[0] * _layout(type_name)[0]
    for index in indices[1:]:
      type_name, offset = _element(type_name, index)
      address += offset
    return address

  def _call(self, text: str):
    match = re.search(r"@([\w.]+)\((.*)\)", text)
    arguments = [self._value(_typed(a)[1]) for a in
                 _split_types(match.group(2))]
    match match.group(1):
      case "mosaic_gpu_build_kernel_spec":
        self._launch(arguments[1:], arguments[-2])
      case "mosaic_gpu_launch_kernel":  # Drop once jax >= 0.12.
        self._launch(arguments[1:], arguments[-1])
      case "mosaic_gpu_init_tma_desc":
        self._init_descriptor(arguments)
      case name:
        raise PtxError(f"unsupported host call: {name}")

  def _launch(self, dimensions, pointers):
    parameters = []
    for i, size in enumerate(self._parameter_sizes):
      address = self._load(pointers + 8 * i, 8)
      parameters.append(bytes(self._memory[address: address + size]))
    self.launch = Launch(
        tuple(dimensions[:3]), tuple(max(c, 1) for c in dimensions[3:6]),
        tuple(dimensions[6:9]), dimensions[9], parameters, self._tensor_maps)

  def _init_descriptor(self, arguments):
    place, base, element, rank, sizes, strides, swizzle, window = arguments
    itemsize = _TENSOR_ITEMSIZE[element]
    if itemsize < 1:
      raise PtxError("bulk copies of items below a byte are not modelled")
    read = lambda at: [self._load(at + 8 * i, 8) for i in range(rank)][::-1]
    self._tensor_maps.append(execute.TensorMap(
        address=base, shape=tuple(read(sizes)),
        strides=tuple(s * itemsize for s in read(strides)),
        box=tuple(read(window)), itemsize=itemsize, swizzle=swizzle))
    self._memory[place: place + 8] = struct.pack(
        "<Q", len(self._tensor_maps) - 1)


def read_launch(llvm: str, buffers: list[int],
                parameter_sizes: list[int]) -> Launch:
  """Evaluates the host function of a compiled Mosaic GPU module.

  Args:
    llvm: the host module's LLVM IR.
    buffers: device addresses of the custom call's operands and then of those
      results that alias no operand.
    parameter_sizes: bytes of each parameter of the kernel.
  """
  functions = re.findall(
      r"define (?:void|i32) @(?!_mlir_ciface)(\w+)\(([^)]*)\)[^{]*"
      r"\{\n(.*?)\n\}",
      llvm, re.S)
  if len(functions) != 1:
    raise PtxError(f"expected one host function, found {len(functions)}")
  [(_, parameters, body)] = functions
  evaluator = _Evaluator(buffers, parameter_sizes)
  evaluator.run([p.split()[-1] for p in parameters.split(",")], body)
  if evaluator.launch is None:
    raise PtxError("the host function launches nothing")
  return evaluator.launch
