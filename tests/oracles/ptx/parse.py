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
"""Reads the text of one PTX module into a list of instructions.

Only what the compilers under test emit is accepted; anything else is an error
here or, by name, when it is executed.
"""

from __future__ import annotations

import dataclasses
import re

import ml_dtypes
import numpy as np


class PtxError(Exception):
  """The module, or one of its threads, did something that is not allowed."""


_UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
_SIGNED = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
_FLOAT = {16: np.float16, 32: np.float32, 64: np.float64}

_TYPE_PATTERN = re.compile(r"(?:[bus](?:8|16|32|64)|f(?:16|32|64)|bf16|pred"
                           r"|f16x2|bf16x2|f32x2|e4m3x2|e5m2x2|b128)$")


def is_type(word: str) -> bool:
  return bool(_TYPE_PATTERN.match(word))


def type_to_dtype(name: str) -> np.dtype:
  """The NumPy dtype that holds a value of PTX type `name` (no leading dot)."""
  match name:
    case "pred":
      return np.dtype(np.bool_)
    case "bf16":
      return np.dtype(ml_dtypes.bfloat16)
    case "f16x2" | "bf16x2":
      return np.dtype(np.uint32)
    case "f32x2":
      return np.dtype(np.uint64)
    case "e4m3x2" | "e5m2x2":
      return np.dtype(np.uint16)
  table = {"b": _UNSIGNED, "u": _UNSIGNED, "s": _SIGNED, "f": _FLOAT}[name[0]]
  return np.dtype(table[int(name[1:])])


def storage_dtype(name: str) -> np.dtype:
  """The dtype of a register declared with type `name`: unsigned, or bool."""
  dtype = type_to_dtype(name)
  return dtype if dtype == np.bool_ else np.dtype(_UNSIGNED[8 * dtype.itemsize])


@dataclasses.dataclass(eq=False)
class Instruction:
  """One instruction; `target` is the index that a branch goes to."""

  text: str
  predicate: str | None
  negated: bool
  root: str
  modifiers: tuple[str, ...]
  operands: tuple[str, ...]
  target: int | None = None

  @property
  def types(self) -> tuple[str, ...]:
    return tuple(m for m in self.modifiers if is_type(m))


@dataclasses.dataclass
class Parameter:
  name: str
  offset: int
  size: int


@dataclasses.dataclass
class Kernel:
  """A parsed entry function, with the variables it can name.

  `shared` and `local` map a variable to its byte offset; `dynamic_shared` is
  the variable that starts where the launch-sized part begins; `constants` maps
  a module-scope variable to its initial bytes.
  """

  name: str
  parameters: list[Parameter]
  parameter_bytes: int
  block: tuple[int, int, int] | None
  registers: dict[str, str]
  shared: dict[str, int]
  shared_bytes: int
  dynamic_shared: str | None
  local: dict[str, int]
  local_bytes: int
  constants: dict[str, bytes]
  code: list[Instruction]


def _align(offset: int, alignment: int) -> int:
  return -(-offset // alignment) * alignment


def _parse_parameters(text: str) -> tuple[list[Parameter], int]:
  parameters, offset = [], 0
  for declaration in re.findall(r"\.param\s+([^,]+)", text):
    words = declaration.split()
    array = re.match(r"(.*)\[(\d+)\]$", words[-1])
    [type_name] = [w[1:] for w in words if w[0] == "." and is_type(w[1:])]
    itemsize = type_to_dtype(type_name).itemsize
    size, alignment = itemsize, itemsize
    if array:
      size = int(array.group(2)) * itemsize
      alignment = int(words[words.index(".align") + 1])
    offset = _align(offset, alignment)
    name = array.group(1) if array else words[-1]
    parameters.append(Parameter(name, offset, size))
    offset += size
  return parameters, offset


_VARIABLE = re.compile(
    r"\.(?P<space>shared|local|global|const)\s+(?:\.align\s+(?P<align>\d+)\s+)?"
    r"\.(?P<type>\w+)\s+(?P<name>[\w$]+)(?P<array>\[\d*\])?"
    r"\s*(?:=\s*(?P<init>\{[^}]*\}|[^;{]+))?;")


def _initial_bytes(match: re.Match) -> bytes:
  dtype = type_to_dtype(match["type"])
  count = int(match["array"].strip("[]") or 1) if match["array"] else 1
  values = np.zeros(count, dtype)
  if match["init"]:
    words = match["init"].strip("{} ").split(",")
    values[: len(words)] = [int(w.strip().rstrip("U"), 0) for w in words]
  return values.tobytes()


def _statements(body: str):
  """Yields statements, "{", "}" and "label:" in order."""
  current = ""
  for token in re.split(r"([{};\n])", body):
    if token == ";":
      yield current.strip()
      current = ""
    elif token in ("{", "}"):
      # A brace opens a scope only where a statement could start; elsewhere it
      # belongs to a vector operand.
      if current.strip():
        current += token
      else:
        yield token
        current = ""
    elif token == "\n":
      if re.match(r"\s*\.(loc|file)\b", current):
        current = ""
      else:
        current += " "
    else:
      current += token
      while label := re.match(r"\s*([$\w]+):(?!:)", current):
        yield label.group(1) + ":"
        current = current[label.end():]
  if current.strip():
    raise PtxError(f"unterminated statement: {current.strip()!r}")


def _split_operands(text: str) -> tuple[str, ...]:
  operands, depth, current = [], 0, ""
  for char in text:
    depth += (char in "{[(") - (char in "}])")
    if char == "," and depth == 0:
      operands.append(current.strip())
      current = ""
    else:
      current += char
  if current.strip():
    operands.append(current.strip())
  return tuple(operands)


class _Scopes:
  """Lexical scopes of registers and labels; inner names are made unique."""

  def __init__(self):
    self._stack: list[tuple[int, dict[str, str]]] = [(0, {})]
    self._count = 0
    self.registers: dict[str, str] = {}

  def push(self):
    self._count += 1
    self._stack.append((self._count, {}))

  def pop(self):
    self._stack.pop()

  @property
  def path(self) -> tuple[int, ...]:
    return tuple(number for number, _ in self._stack)

  def declare(self, name: str, type_name: str):
    number, names = self._stack[-1]
    unique = name if number == 0 else f"{name}@{number}"
    names[name] = unique
    self.registers[unique] = type_name

  def resolve(self, operand: str) -> str:
    if all(not names for _, names in self._stack[1:]):
      return operand
    def rename(match):
      for _, names in reversed(self._stack):
        if match.group(0) in names:
          return names[match.group(0)]
      return match.group(0)
    return re.sub(r"%?[A-Za-z_$][\w$]*", rename, operand)


def _declare_registers(statement: str, scopes: _Scopes):
  _, type_name, names = statement.split(None, 2)
  for name in names.split(","):
    name = name.strip()
    if counted := re.match(r"(.*)<(\d+)>$", name):
      for i in range(int(counted.group(2))):
        scopes.declare(f"{counted.group(1)}{i}", type_name[1:])
    else:
      scopes.declare(name, type_name[1:])


_INSTRUCTION = re.compile(r"(?:@(!?)([%\w]+)\s+)?([a-z]\w*)([\w.:]*)\s*(.*)$",
                          re.S)


def _parse_body(body: str) -> tuple[list[Instruction], dict[str, str]]:
  scopes, code, labels, branches = _Scopes(), [], {}, []
  for statement in _statements(body):
    if statement == "{":
      scopes.push()
    elif statement == "}":
      scopes.pop()
    elif statement.endswith(":"):
      labels[(statement[:-1], scopes.path)] = len(code)
    elif statement.startswith(".reg"):
      _declare_registers(statement, scopes)
    elif statement and not statement.startswith("."):
      match = _INSTRUCTION.match(statement)
      if not match:
        raise PtxError(f"not an instruction: {statement!r}")
      negated, predicate, root, modifiers, operands = match.groups()
      instruction = Instruction(
          text=" ".join(statement.split()),
          predicate=predicate and scopes.resolve(predicate),
          negated=bool(negated),
          root=root,
          modifiers=tuple(m for m in modifiers.split(".") if m),
          operands=tuple(map(scopes.resolve, _split_operands(operands))))
      if root == "bra":
        branches.append((instruction, scopes.path))
      code.append(instruction)
  for instruction, path in branches:
    while (instruction.operands[0], path) not in labels:
      if not path:
        raise PtxError(f"unknown label: {instruction.text}")
      path = path[:-1]
    instruction.target = labels[(instruction.operands[0], path)]
  return code, scopes.registers


def parse(text: str) -> Kernel:
  """Parses the one entry function of a PTX module."""
  text = re.sub(r"//[^\n]*", "", text)
  entries = list(re.finditer(
      r"\.entry\s+([\w$.]+)\s*\((.*?)\)\s*([^{;]*)\{", text, re.S))
  if len(entries) != 1:
    raise PtxError(f"expected one entry function, found {len(entries)}")
  [entry] = entries
  depth, end = 1, entry.end()
  while depth:
    depth += (text[end] == "{") - (text[end] == "}")
    end += 1
  body = text[entry.end(): end - 1]
  parameters, parameter_bytes = _parse_parameters(entry.group(2))

  block = re.search(r"\.(?:reqntid|maxntid)\s+(\d+)\s*(?:,\s*(\d+))?"
                    r"\s*(?:,\s*(\d+))?", entry.group(3))
  shared, local, constants = {}, {}, {}
  sizes = {"shared": 0, "local": 0}
  dynamic_shared = None
  for match in _VARIABLE.finditer(text):
    name, space = match["name"], match["space"]
    if space in ("global", "const"):
      constants[name] = _initial_bytes(match)
    elif space == "shared" and (
        match["array"] == "[]" or name.startswith("__dynamic_shmem__")):
      # The launch sizes this one: either extern, or "demoted" to one byte.
      dynamic_shared = name
    else:
      offset = _align(sizes[space], int(match["align"] or 8))
      (shared if space == "shared" else local)[name] = offset
      sizes[space] = offset + len(_initial_bytes(match))
  code, registers = _parse_body(_VARIABLE.sub("", body))
  return Kernel(
      name=entry.group(1), parameters=parameters,
      parameter_bytes=parameter_bytes,
      block=block and tuple(int(x or 1) for x in block.groups()),
      registers=registers, shared=shared, shared_bytes=sizes["shared"],
      dynamic_shared=dynamic_shared, local=local, local_bytes=sizes["local"],
      constants=constants, code=code)
