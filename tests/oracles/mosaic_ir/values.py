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
"""Operations on values: arith, math, vector, and the value part of tpu."""

import re

import numpy as np

from oracles.mosaic_ir import machine
from oracles.mosaic_ir import memory
from oracles.mosaic_ir import program

handles = machine.handles


def _as(op: program.Op, value) -> np.ndarray:
  [t] = op.result_types
  return np.broadcast_to(np.asarray(value).astype(t.dtype), t.shape).copy()


def _unsigned(x) -> np.ndarray:
  x = np.asarray(x)
  if x.dtype == np.bool_:
    return x.astype(np.uint8)
  return x.view(np.dtype(f"u{x.dtype.itemsize}"))


def _truncating_divide(a, b):
  a, b = np.asarray(a).astype(np.int64), np.asarray(b).astype(np.int64)
  return (np.abs(a) // np.abs(b)) * np.sign(a) * np.sign(b)


_BINARY = {
  "arith.addi": np.add,
  "arith.subi": np.subtract,
  "arith.muli": np.multiply,
  "arith.addf": np.add,
  "arith.subf": np.subtract,
  "arith.mulf": np.multiply,
  "arith.divf": np.divide,
  "arith.remf": np.fmod,
  "arith.andi": np.bitwise_and,
  "arith.ori": np.bitwise_or,
  "arith.xori": np.bitwise_xor,
  "arith.maxsi": np.maximum,
  "arith.minsi": np.minimum,
  "arith.maximumf": np.maximum,
  "arith.minimumf": np.minimum,
  "arith.maxnumf": np.fmax,
  "arith.minnumf": np.fmin,
  "arith.maxui": lambda a, b: np.maximum(_unsigned(a), _unsigned(b)),
  "arith.minui": lambda a, b: np.minimum(_unsigned(a), _unsigned(b)),
  "arith.divsi": _truncating_divide,
  "arith.remsi": lambda a, b: (
    np.asarray(a).astype(np.int64)
    - _truncating_divide(a, b) * np.asarray(b).astype(np.int64)
  ),
  "arith.divui": lambda a, b: _unsigned(a) // _unsigned(b),
  "arith.remui": lambda a, b: _unsigned(a) % _unsigned(b),
  "math.powf": np.power,
  "math.atan2": np.arctan2,
}


@handles(*_BINARY)
def _binary(core, op, a, b):
  del core  # Unused.
  with np.errstate(all="ignore"):
    return _as(op, _BINARY[op.name](a, b))


@handles("arith.shli", "arith.shrsi", "arith.shrui")
def _shift(core, op, a, b):
  del core  # Unused.
  [t] = op.result_types
  bits = 8 * t.dtype.itemsize
  amount = _unsigned(b).astype(np.int64)
  if np.any(amount >= bits):
    # Undefined in MLIR; a program may compute it where it selects otherwise.
    amount = np.minimum(amount, bits - 1)
  wide = np.asarray(a).astype(np.int64)
  if op.name == "arith.shli":
    return _as(op, wide << amount)
  if op.name == "arith.shrui":
    wide = _unsigned(a).astype(np.int64)
  return _as(op, wide >> amount)


_UNARY = {
  "arith.negf": np.negative,
  "math.absf": np.abs,
  "math.absi": np.abs,
  "math.exp": np.exp,
  "math.exp2": np.exp2,
  "math.expm1": np.expm1,
  "math.log": np.log,
  "math.log1p": np.log1p,
  "math.log2": np.log2,
  "math.sqrt": np.sqrt,
  "math.rsqrt": lambda x: 1 / np.sqrt(x),
  "math.tanh": np.tanh,
  "math.sin": np.sin,
  "math.cos": np.cos,
  "math.floor": np.floor,
  "math.ceil": np.ceil,
  "math.round": np.round,
  "math.roundeven": np.rint,
  "math.trunc": np.trunc,
  "tpu.reciprocal": lambda x: 1 / x,
  "tpu.logistic": lambda x: 1 / (1 + np.exp(-x)),
}


@handles(*_UNARY)
def _unary(core, op, x):
  del core  # Unused.
  x = np.asarray(x)
  if memory.float_dtype(x.dtype):
    x = x.astype(np.float32)
  with np.errstate(all="ignore"):
    return _as(op, _UNARY[op.name](x))


@handles("math.fma")
def _fma(core, op, a, b, c):
  del core  # Unused.
  a, b, c = (np.asarray(x).astype(np.float64) for x in (a, b, c))
  return _as(op, a * b + c)


@handles("math.ctpop")
def _population(core, op, x):
  del core  # Unused.
  return _as(op, np.bitwise_count(_unsigned(x)))


@handles("arith.constant")
def _constant(core, op):
  del core  # Unused.
  return _as(op, op.attrs["value"])


def _to_integer(x, dtype: np.dtype):
  info = np.iinfo(dtype)
  wide = np.nan_to_num(np.trunc(np.asarray(x).astype(np.float64)))
  return np.clip(wide, info.min, info.max)


@handles(
  "arith.index_cast",
  "arith.extf",
  "arith.truncf",
  "arith.extsi",
  "arith.trunci",
  "arith.sitofp",
  "tpu.extf",
  "tpu.truncf",
  "tpu.sitofp",
  "tpu.mask_cast",
)
def _convert(core, op, x):
  del core  # Unused.
  rounding = op.attrs.get("rounding_mode")
  if rounding is not None and "to_nearest" not in str(rounding):
    raise program.UnknownOpError(f"{op.name} with rounding {rounding}")
  if op.name == "arith.extsi" and np.asarray(x).dtype == np.bool_:
    return _as(op, -np.asarray(x).astype(np.int64))
  if op.name == "arith.trunci" and op.result_types[0].dtype == np.bool_:
    return _as(op, np.asarray(x) & 1)
  return _as(op, x)


@handles("arith.extui", "arith.index_castui", "arith.uitofp", "tpu.uitofp")
def _convert_unsigned(core, op, x):
  del core  # Unused.
  return _as(op, _unsigned(x))


@handles("arith.fptosi", "tpu.fptosi")
def _to_signed(core, op, x):
  del core  # Unused.
  return _as(op, _to_integer(x, op.result_types[0].dtype))


@handles("arith.fptoui", "tpu.fptoui")
def _to_unsigned(core, op, x):
  del core  # Unused.
  dtype = op.result_types[0].dtype
  unsigned = np.dtype(f"u{dtype.itemsize}")
  return _as(op, _to_integer(x, unsigned).astype(unsigned).view(dtype))


@handles("arith.bitcast")
def _bitcast(core, op, x):
  del core  # Unused.
  [t] = op.result_types
  return np.ascontiguousarray(x).view(t.dtype).reshape(t.shape)


_INTEGER_PREDICATES = (
  np.equal,
  np.not_equal,
  np.less,
  np.less_equal,
  np.greater,
  np.greater_equal,
)


@handles("arith.cmpi")
def _compare_integers(core, op, a, b):
  del core  # Unused.
  predicate = op.attrs["predicate"]
  if predicate >= 6:
    a, b, predicate = _unsigned(a), _unsigned(b), predicate - 4
  return _as(op, _INTEGER_PREDICATES[predicate](a, b))


_FLOAT_ORDERED = {
  1: np.equal,
  2: np.greater,
  3: np.greater_equal,
  4: np.less,
  5: np.less_equal,
  6: np.not_equal,
}


@handles("arith.cmpf")
def _compare_floats(core, op, a, b):
  del core  # Unused.
  predicate = op.attrs["predicate"]
  a, b = np.asarray(a), np.asarray(b)
  unordered = np.isnan(a) | np.isnan(b)
  if predicate in (0, 15):
    return _as(op, predicate == 15)
  if predicate == 7:
    return _as(op, ~unordered)
  if predicate == 14:
    return _as(op, unordered)
  if predicate < 7:
    return _as(op, _FLOAT_ORDERED[predicate](a, b) & ~unordered)
  return _as(op, _FLOAT_ORDERED[predicate - 7](a, b) | unordered)


@handles("arith.select")
def _select(core, op, condition, a, b):
  del core  # Unused.
  return _as(op, np.where(condition, a, b))


# vector


@handles("vector.broadcast")
def _broadcast(core, op, x):
  del core  # Unused.
  return _as(op, x)


@handles("vector.shape_cast", "tpu.reshape")
def _shape_cast(core, op, x):
  del core  # Unused.
  return np.reshape(x, op.result_types[0].shape)


@handles("vector.extract")
def _extract(core, op, x, *dynamic):
  del core  # Unused.
  dynamic = list(dynamic)
  # The least int64 marks a position that is an operand.
  position = tuple(
    int(dynamic.pop(0)) if p == np.iinfo(np.int64).min else p
    for p in op.attrs["static_position"]
  )
  return np.asarray(x)[position]


@handles("vector.extract_strided_slice")
def _extract_slice(core, op, x):
  del core  # Unused.
  if any(s != 1 for s in op.attrs["strides"]):
    raise program.UnknownOpError("vector.extract_strided_slice with strides")
  return x[
    tuple(
      slice(o, o + s)
      for o, s in zip(op.attrs["offsets"], op.attrs["sizes"], strict=True)
    )
  ].copy()


_REDUCTIONS = {
  "add": np.add,
  "sum": np.add,
  "mul": np.multiply,
  "maximumf": np.maximum,
  "max": np.maximum,
  "maxf": np.maximum,
  "maxsi": np.maximum,
  "minimumf": np.minimum,
  "min": np.minimum,
  "minf": np.minimum,
  "minsi": np.minimum,
  "and": np.bitwise_and,
  "or": np.bitwise_or,
  "xor": np.bitwise_xor,
  "maxui": np.maximum,
  "minui": np.minimum,
}


def _kind(op: program.Op) -> str:
  kind = re.search(r"<(\w+)>", str(op.attrs["kind"]))
  name = kind.group(1) if kind else str(op.attrs["kind"])
  return name


def _reduction(op: program.Op) -> np.ufunc:
  if _kind(op) not in _REDUCTIONS:
    raise program.UnknownOpError(f"{op.name} of kind {_kind(op)}")
  return _REDUCTIONS[_kind(op)]


@handles("vector.multi_reduction")
def _multi_reduction(core, op, x, accumulator):
  del core  # Unused.
  reduce = _reduction(op)
  if _kind(op).endswith("ui"):
    x, accumulator = _unsigned(x), _unsigned(accumulator)
  dims = tuple(op.attrs["reduction_dims"])
  return _as(op, reduce(reduce.reduce(x, axis=dims), accumulator))


@handles("tpu.reduce")
def _reduce(core, op, x):
  del core  # Unused.
  dims = tuple(op.attrs["dimensions"])
  return _as(op, _reduction(op).reduce(x, axis=dims))


# tpu


@handles("tpu.iota")
def _iota(core, op):
  del core  # Unused.
  [t] = op.result_types
  dims = op.attrs["dimensions"]
  out = np.zeros(t.shape, np.int64)
  for d in dims:
    shape = [t.shape[d] if k == d else 1 for k in range(len(t.shape))]
    out = out * t.shape[d] + np.arange(t.shape[d]).reshape(shape)
  return _as(op, out)


@handles("tpu.dynamic_rotate")
def _rotate(core, op, x, amount):
  del core  # Unused.
  dim = op.attrs["dimension"]
  stride = op.attrs.get("stride")
  if stride is None:
    return np.roll(x, int(amount), axis=dim)
  along = op.attrs["stride_dimension"]
  parts = [
    np.roll(np.take(x, [k], axis=along), int(amount) + k * stride, axis=dim)
    for k in range(x.shape[along])
  ]
  return np.concatenate(parts, axis=along)


@handles("tpu.concatenate")
def _concatenate(core, op, *sources):
  del core  # Unused.
  return np.concatenate(sources, axis=op.attrs["dimension"])


@handles("tpu.transpose", "vector.transpose")
def _transpose(core, op, x):
  del core  # Unused.
  return np.transpose(x, op.attrs["permutation"]).copy()


@handles("tpu.dynamic_gather")
def _dynamic_gather(core, op, source, indices):
  del core  # Unused.
  if len(op.attrs["dimensions"]) != 1:
    raise program.UnknownOpError("tpu.dynamic_gather along several dimensions")
  [dim] = op.attrs["dimensions"]
  indices = indices.astype(np.int64)
  if np.any((indices < 0) | (indices >= source.shape[dim])):
    raise memory.EvaluationError("tpu.dynamic_gather: index out of range")
  return np.take_along_axis(source, indices, axis=dim)


@handles("tpu.bitcast", "vector.bitcast")
def _vector_bitcast(core, op, x):
  [t] = op.result_types
  if x.dtype.itemsize == t.dtype.itemsize:
    return np.ascontiguousarray(x).view(t.dtype)
  changed = [
    d for d, (a, b) in enumerate(zip(x.shape, t.shape, strict=True)) if a != b
  ]
  # SparseCore packs along lanes, TensorCore along sublanes.
  default = -1 if core.machine.core_type != "tc" or x.ndim < 2 else -2
  dim = changed[0] if changed else default
  x = np.ascontiguousarray(np.moveaxis(x, dim, -1))
  return np.moveaxis(x.view(t.dtype), -1, dim).copy()


@handles("tpu.reduce_index")
def _reduce_index(core, op, x):
  del core  # Unused.
  pick = {"arg_max": np.argmax, "arg_min": np.argmin}[_kind(op)]
  return _as(op, pick(x, axis=op.attrs["axis"]))


@handles("tpu.matmul")
def _matmul(core, op, lhs, rhs, accumulator):
  del core  # Unused.
  lhs, rhs = lhs.astype(np.float32), rhs.astype(np.float32)
  numbers = str(op.attrs.get("dimension_numbers", ""))
  groups = re.search(r"<\[(.*?)\], \[(.*?)\], ", numbers)
  left = int(groups.group(1)) if groups else 1
  right = int(groups.group(2)) if groups else 0
  if lhs.ndim != 2 or rhs.ndim != 2:
    raise program.UnknownOpError("tpu.matmul of more than two dimensions")
  lhs = lhs.T if op.attrs.get("transpose_lhs") or left == 0 else lhs
  rhs = rhs.T if op.attrs.get("transpose_rhs") or right == 1 else rhs
  return _as(op, lhs @ rhs + accumulator.astype(np.float32))


@handles("tpu.all_reduce")
def _all_reduce(core, op, x):
  del core  # Unused.
  kind = _kind(op)
  if kind in ("sum", "population_count"):
    return _as(op, np.sum(x))
  if kind == "find_first_set":
    return _as(op, np.argmax(x) if np.any(x) else x.size)
  raise program.UnknownOpError(f"tpu.all_reduce of kind {kind}")


@handles("tpu.scan")
def _scan(core, op, x, *mask):
  del core  # Unused.
  reduce = _reduction(op)
  if x.dtype == np.bool_:
    x = x.astype(np.int32)
  unsigned = _kind(op).endswith("ui")
  x = _unsigned(x) if unsigned else x
  if mask:
    if x.ndim != 1:
      raise program.UnknownOpError("masked tpu.scan of several dimensions")
    [m] = mask
    # A masked-off lane repeats the value before it.
    out, total = np.zeros_like(x), None
    for k in range(x.size):
      if m[k]:
        total = x[k] if total is None else reduce(total, x[k])
      if total is not None:
        out[k] = total
    return _as(op, out)
  return _as(op, reduce.accumulate(x, axis=op.attrs["dimension"]))


@handles("tpu.scan_count")
def _scan_count(core, op, mask, values):
  del core, op  # Unused.
  counts = np.zeros(values.shape, np.int32)
  last = np.zeros(values.shape, bool)
  latest: dict[bytes, int] = {}
  for k in range(values.size):
    if not mask[k]:
      continue
    key = values[k].tobytes()
    counts[k] = 1 + (counts[latest[key]] if key in latest else 0)
    if key in latest:
      last[latest[key]] = False
    latest[key], last[k] = k, True
  return last, counts


@handles("tpu.sort")
def _sort(core, op, keys, values, *mask):
  del core  # Unused.
  # Keys compare as unsigned integers; those masked off go last.
  live = mask[0] if mask else np.ones(keys.shape, bool)
  rank = _unsigned(keys) if not memory.float_dtype(keys.dtype) else keys
  order = np.argsort(rank, kind="stable")
  if op.attrs.get("descending"):
    order = np.argsort(-rank.astype(np.float64), kind="stable")
  order = np.concatenate([order[live[order]], order[~live[order]]])
  return live[order], keys[order], values[order]


@handles("tpu.create_mask")
def _create_mask(core, op, low, high):
  del core  # Unused.
  [t] = op.result_types
  out = np.zeros(t.shape, bool)
  out[tuple(slice(int(a), int(b)) for a, b in zip(low, high, strict=True))] = (
    True
  )
  return out
