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
"""From a JAX function to its kernels, and the little XLA around them."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax_swapext._src import tpu_compiler
import numpy as np

from oracles.mosaic_ir import machine
from oracles.mosaic_ir import program
from oracles.mosaic_ir import transfers  # Registers its operations.
from oracles.mosaic_ir import values  # Registers its operations.

del transfers, values

# Lanes of a SparseCore's vectors; 0 where there is none.
_LANES = {"v5e": 0, "v5p": 8, "v6e": 8, "tpu7x": 16}


def lower(f: Callable[..., Any], *args: Any, generation: str = "v6e"):
  """Lowers for TPU on a machine that has none; returns `jax.stages.Lowered`."""
  with tpu_compiler.target(generation):
    return jax.jit(f).trace(*args).lower(lowering_platforms=("tpu",))


def mosaic_modules(
  f: Callable[..., Any], *args: Any, generation: str = "v6e"
) -> list[str]:
  """The text of every Mosaic module that `f` contains, without locations."""
  lowered = lower(f, *args, generation=generation)
  return [k.text for k in program.decode_kernels(lowered.compiler_ir())]


_ELEMENTWISE = {
  "stablehlo.add": np.add,
  "stablehlo.subtract": np.subtract,
  "stablehlo.multiply": np.multiply,
  "stablehlo.divide": np.divide,
  "stablehlo.maximum": np.maximum,
  "stablehlo.minimum": np.minimum,
  "stablehlo.and": np.bitwise_and,
  "stablehlo.or": np.bitwise_or,
  "stablehlo.xor": np.bitwise_xor,
  "stablehlo.not": np.invert,
  "stablehlo.negate": np.negative,
  "stablehlo.select": np.where,
}

_COMPARISONS = {
  "EQ": np.equal,
  "NE": np.not_equal,
  "LT": np.less,
  "LE": np.less_equal,
  "GT": np.greater,
  "GE": np.greater_equal,
}


def _one(op: program.Op, args: Sequence[np.ndarray]) -> np.ndarray:
  """Evaluates a StableHLO operation that has one result."""
  [t] = op.result_types
  name = op.name
  if name in _ELEMENTWISE:
    return _ELEMENTWISE[name](*args)
  match name:
    case "stablehlo.constant":
      return np.asarray(op.attrs["value"])
    case "stablehlo.convert":
      if t.dtype == np.bool_:
        return args[0] != 0
      return args[0]
    case "stablehlo.bitcast_convert":
      if args[0].dtype.itemsize != t.dtype.itemsize:
        raise program.UnknownOpError(f"{name} that changes the width")
      return np.ascontiguousarray(args[0]).view(t.dtype)
    case "stablehlo.reshape":
      return np.reshape(args[0], t.shape)
    case "stablehlo.transpose":
      return np.transpose(args[0], op.attrs["permutation"])
    case "stablehlo.concatenate":
      return np.concatenate(args, axis=op.attrs["dimension"])
    case "stablehlo.iota":
      d = op.attrs["iota_dimension"]
      shape = [t.shape[d] if k == d else 1 for k in range(len(t.shape))]
      return np.broadcast_to(np.arange(t.shape[d]).reshape(shape), t.shape)
    case "stablehlo.broadcast_in_dim":
      dims = list(op.attrs["broadcast_dimensions"])
      shape = [
        args[0].shape[dims.index(k)] if k in dims else 1
        for k in range(len(t.shape))
      ]
      return np.broadcast_to(np.reshape(args[0], shape), t.shape)
    case "stablehlo.slice":
      return args[0][
        tuple(
          slice(a, b, s)
          for a, b, s in zip(
            op.attrs["start_indices"],
            op.attrs["limit_indices"],
            op.attrs["strides"],
            strict=True,
          )
        )
      ]
    case "stablehlo.compare":
      kind = str(op.attrs["comparison_direction"]).split()[-1].rstrip(">")
      return _COMPARISONS[kind](*args)
  raise program.UnknownOpError(
    f"StableHLO op {name} is not known to the interpreter: {op.text}"
  )


def _reduce(op: program.Op, args: Sequence[np.ndarray]) -> np.ndarray:
  """Evaluates a reduction by one elementwise operation."""
  operand, initial = args
  [combine, _] = op.regions[0].ops
  if combine.name not in _ELEMENTWISE:
    raise program.UnknownOpError(f"{op.name} by {combine.name}")
  axes = tuple(op.attrs["dimensions"])
  reduce = _ELEMENTWISE[combine.name].reduce
  with np.errstate(all="ignore"):
    return reduce(operand, axis=axes, initial=initial[()], dtype=operand.dtype)


class _Program:
  def __init__(self, lowered, num_lanes: int, dma: str, seed: int):
    module = lowered.compiler_ir()
    self.functions = program.decode_functions(module)
    self.kernels = list(program.decode_kernels(module))
    # The decoder meets the calls in the same order as this numbering.
    self.numbers: dict[int, int] = {}
    for f in self.functions.values():
      self._number(f.body)
    self.num_lanes, self.dma, self.seed = num_lanes, dma, seed

  def _number(self, block: program.Block) -> None:
    for op in block.ops:
      if op.attrs.get("call_target_name") == "tpu_custom_call":
        self.numbers[id(op)] = len(self.numbers)
      for region in op.regions:
        self._number(region)

  def call(self, name: str, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    body = self.functions[name].body
    env = dict(zip(body.args, args, strict=True))
    for op in body.ops:
      operands = [env[i] for i in op.operands]
      if op.name == "func.return":
        return operands
      out = self._op(op, operands)
      for i, t, x in zip(op.results, op.result_types, out, strict=True):
        env[i] = np.broadcast_to(np.asarray(x).astype(t.dtype), t.shape)
    raise program.UnknownOpError(f"function {name} does not return")

  def _op(self, op: program.Op, args: list[np.ndarray]) -> list[np.ndarray]:
    if op.name in ("func.call", "call"):
      return self.call(op.attrs["callee"].lstrip("@"), args)
    if op.name == "stablehlo.optimization_barrier":
      return args
    if op.name == "stablehlo.reduce":
      return [_reduce(op, args)]
    if op.name != "stablehlo.custom_call":
      return [_one(op, args)]
    if id(op) in self.numbers:
      return machine.run_kernel(
        self.kernels[self.numbers[id(op)]],
        args,
        op.result_types,
        num_lanes=self.num_lanes,
        dma=self.dma,
        seed=self.seed,
      )
    called = op.attrs["call_target_name"]
    if called in ("Sharding", "annotate_device_placement"):
      return args
    raise program.UnknownOpError(f"custom call {called}")


def evaluate(
  f: Callable[..., Any],
  *args: Any,
  generation: str = "v6e",
  dma: str = "late",
  seed: int = 0,
) -> Any:
  """Runs `f(*args)` by interpreting what it lowers to for TPU.

  Args:
    f: A function of arrays that calls Pallas TPU kernels.
    *args: Trees of concrete arrays.
    generation: "v5e", "v5p", "v6e" or "tpu7x".
    dma: When a DMA moves its bytes: "late" or "early".
    seed: Draws the order in which cores run.

  Returns:
    What `f` returns, with NumPy arrays as leaves.

  Raises:
    EvaluationError: The program broke a rule of the machine.
    UnknownOpError: The interpreter does not know an operation, named.
  """
  args = jax.tree.map(np.asarray, args)
  shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), args)
  lowered = lower(f, *shapes, generation=generation)
  run = _Program(lowered, _LANES[generation], dma, seed)
  # XLA drops arguments that nothing reads.
  kept = lowered._lowering.compile_args["kept_var_idx"]
  leaves = [x for k, x in enumerate(jax.tree.leaves(args)) if k in kept]
  out = run.call("main", leaves)
  types = jax.tree.leaves(lowered.out_info)
  out = [
    x.view(t.dtype) if x.dtype != t.dtype else x
    for x, t in zip(out, types, strict=True)
  ]
  return jax.tree.unflatten(jax.tree.structure(lowered.out_info), out)
