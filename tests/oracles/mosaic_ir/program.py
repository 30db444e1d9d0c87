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
"""Mosaic and StableHLO modules as plain Python data.

Walking MLIR through its bindings is slow and needs a live context. Modules are
therefore decoded once; evaluation then touches no MLIR at all.
"""

import base64
from collections.abc import Sequence
import dataclasses
import json
from typing import Any

from jax._src.interpreters import mlir  # A context with JAX's dialects.
from jax._src.lib.mlir import ir  # MLIR has no public Python door in JAX.
from jax._src.lib.mlir import passmanager
from jax.experimental.mosaic.dialects import tpu
import ml_dtypes
import numpy as np


class UnknownOpError(NotImplementedError):
  """The module holds something that this interpreter does not know."""


_SCALARS = {
  "f64": np.float64,
  "f32": np.float32,
  "f16": np.float16,
  "bf16": ml_dtypes.bfloat16,
  "f8E4M3FN": ml_dtypes.float8_e4m3fn,
  "f8E5M2": ml_dtypes.float8_e5m2,
  "f8E4M3B11FNUZ": ml_dtypes.float8_e4m3b11fnuz,
  "i64": np.int64,
  "i32": np.int32,
  "i16": np.int16,
  "i8": np.int8,
  "i1": np.bool_,
  "ui64": np.uint64,
  "ui32": np.uint32,
  "ui16": np.uint16,
  "ui8": np.uint8,
  "index": np.int64,
}

SEMAPHORE = "semaphore"
DMA_SEMAPHORE = "dma_semaphore"


@dataclasses.dataclass(frozen=True)
class Type:
  """A type of the IR.

  Attributes:
    kind: "scalar", "vector", "tensor", "memref" or "semaphore".
    shape: Its shape; a negative size is dynamic.
    dtype: Element type. Semaphores count in int64.
    space: Memory space of a memref, such as "vmem".
    semaphore: What kind of semaphore a memref holds, or "".
  """

  kind: str
  shape: tuple[int, ...]
  dtype: np.dtype
  space: str = ""
  semaphore: str = ""


@dataclasses.dataclass
class Op:
  """An operation: `segments` groups operand ids where the op groups them."""

  name: str
  operands: tuple[int, ...]
  segments: tuple[tuple[int, ...], ...] | None
  operand_types: tuple[Type, ...]
  results: tuple[int, ...]
  result_types: tuple[Type, ...]
  attrs: dict[str, Any]
  regions: list["Block"]
  text: str = ""


@dataclasses.dataclass
class Block:
  """A basic block; all structured control flow here has one per region."""

  args: tuple[int, ...]
  arg_types: tuple[Type, ...]
  ops: list[Op]


@dataclasses.dataclass
class Function:
  name: str
  attrs: dict[str, Any]
  body: Block


@dataclasses.dataclass
class Kernel:
  """One `tpu_custom_call`: its Mosaic functions and how it is called."""

  name: str
  functions: dict[str, Function]
  config: dict[str, Any]
  # Result index -> operand index.
  aliases: dict[int, int]
  text: str

  @property
  def main(self) -> Function:
    # Mosaic gives the entry function the module's place, not a fixed name.
    return next(iter(self.functions.values()))


def _element(text: str) -> np.dtype:
  if text not in _SCALARS:
    raise UnknownOpError(f"element type {text} is not known")
  return np.dtype(_SCALARS[text])


def decode_type(t: ir.Type) -> Type:
  """Decodes an MLIR type.

  Raises:
    UnknownOpError: The element type is not known, sub-byte integers included.
  """
  text = str(t)
  if text.startswith("memref<"):
    t = ir.MemRefType(t)
    space = str(t.memory_space or "").split("<")[-1].rstrip(">")
    element = str(t.element_type)
    if "semaphore" in element:
      kind = DMA_SEMAPHORE if "dma" in element else SEMAPHORE
      return Type("memref", tuple(t.shape), np.dtype(np.int64), space, kind)
    return Type("memref", tuple(t.shape), _element(element), space)
  if text.startswith("vector<"):
    t = ir.VectorType(t)
    return Type("vector", tuple(t.shape), _element(str(t.element_type)))
  if text.startswith("tensor<"):
    t = ir.RankedTensorType(t)
    return Type("tensor", tuple(t.shape), _element(str(t.element_type)))
  return Type("scalar", (), _element(text))


def _decode_dense(attr: ir.Attribute) -> np.ndarray:
  t = decode_type(attr.type)
  if attr.is_splat:
    return np.full(t.shape, decode_attr(attr.get_splat_value()), t.dtype)
  return (
    np.array(
      [decode_attr(x) if isinstance(x, ir.Attribute) else x for x in attr]
    )
    .astype(t.dtype)
    .reshape(t.shape)
  )


def decode_attr(attr: ir.Attribute) -> Any:
  """Decodes an MLIR attribute; an enum stays its text."""
  text = str(attr)
  match attr:
    case ir.BoolAttr() | ir.StringAttr() | ir.FloatAttr():
      return attr.value
    case ir.IntegerAttr():
      # `i1` attributes are printed, and read, as integers in some bindings.
      return bool(attr.value) if str(attr.type) == "i1" else attr.value
    case ir.FlatSymbolRefAttr():
      return attr.value
    case ir.TypeAttr():
      return str(attr.value)
    case ir.ArrayAttr():
      return [decode_attr(a) for a in attr]
    case ir.DictAttr():
      return {n.name: decode_attr(n.attr) for n in attr}
    case (
      ir.DenseI32ArrayAttr() | ir.DenseI64ArrayAttr() | ir.DenseBoolArrayAttr()
    ):
      return list(attr)
    case ir.DenseElementsAttr():
      return _decode_dense(attr)
    case ir.AffineMapAttr():
      return attr
  return text


def _attr_items(attributes) -> dict[str, Any]:
  # JAX 0.11 iterates over named attributes, 0.12 over names.
  # Drop once jax >= 0.12.
  out = {}
  for item in attributes:
    name = item if isinstance(item, str) else item.name
    out[name] = attributes[name]
  return out


class _Decoder:
  def __init__(self):
    self.ids: dict[ir.Value, int] = {}

  def id(self, value: ir.Value) -> int:
    return self.ids.setdefault(value, len(self.ids))

  def block(self, block: ir.Block) -> Block:
    return Block(
      tuple(self.id(a) for a in block.arguments),
      tuple(decode_type(a.type) for a in block.arguments),
      [self.op(o.operation) for o in block.operations],
    )

  def op(self, op: ir.Operation) -> Op:
    attributes = _attr_items(op.attributes)
    sizes = attributes.pop("operandSegmentSizes", None)
    operands = tuple(self.id(v) for v in op.operands)
    segments = None
    if sizes is not None:
      segments, start = [], 0
      for size in decode_attr(sizes):
        segments.append(operands[start : start + size])
        start += size
      segments = tuple(segments)
    # The body of a custom call is decoded elsewhere.
    attrs = {
      k: decode_attr(v) for k, v in attributes.items() if k != "backend_config"
    }
    return Op(
      op.name,
      operands,
      segments,
      tuple(decode_type(v.type) for v in op.operands),
      tuple(self.id(v) for v in op.results),
      tuple(decode_type(v.type) for v in op.results),
      attrs,
      [self.block(b) for r in op.regions for b in r.blocks],
      str(op).splitlines()[0][:200] if not op.regions else "",
    )


def _decode_function(op: ir.Operation) -> Function:
  attrs = {k: decode_attr(v) for k, v in _attr_items(op.attributes).items()}
  decoder = _Decoder()
  return Function(
    attrs["sym_name"], attrs, decoder.block(op.regions[0].blocks[0])
  )


def decode_functions(module: ir.Module) -> dict[str, Function]:
  functions = [
    _decode_function(o.operation)
    for o in module.body.operations
    if o.operation.name == "func.func"
  ]
  return {f.name: f for f in functions}


def _walk(op: ir.Operation):
  for region in op.regions:
    for block in region.blocks:
      for o in block.operations:
        yield o.operation
        yield from _walk(o.operation)


def is_kernel_call(op: ir.Operation) -> bool:
  return (
    op.name == "stablehlo.custom_call"
    and ir.StringAttr(op.attributes["call_target_name"]).value
    == "tpu_custom_call"
  )


def decode_kernels(module: ir.Module) -> Sequence[Kernel]:
  """Decodes every Mosaic kernel of a lowered module, in program order."""
  kernels = []
  for op in _walk(module.operation):
    if not is_kernel_call(op):
      continue
    config = json.loads(ir.StringAttr(op.attributes["backend_config"]).value)
    body = base64.b64decode(config["custom_call_config"].pop("body"))
    aliases = {}
    for alias in ir.ArrayAttr(op.attributes["output_operand_aliases"]):
      fields = dict(
        f.split(" = ")
        for f in str(alias)[str(alias).index("<") + 1 : -1]
        .replace("], ", "];")
        .replace(", operand_t", ";operand_t")
        .split(";")
      )
      result = fields["output_tuple_indices"].strip("[] ")
      aliases[int(result or 0)] = int(fields["operand_index"])
    context = mlir.make_ir_context()
    tpu.register_dialect(context)
    # The serialised form uses a versioned dialect that only the pass knows.
    context.allow_unregistered_dialects = True
    with context:
      mosaic = ir.Module.parse(body)
      passmanager.PassManager.parse(
        "builtin.module(mosaic-serde{serialize=false})"
      ).run(mosaic.operation)
      kernels.append(
        Kernel(
          ir.StringAttr(op.attributes["kernel_name"]).value
          if "kernel_name" in op.attributes
          else "",
          decode_functions(mosaic),
          config,
          aliases,
          mosaic.operation.get_asm(),
        )
      )
  return kernels
