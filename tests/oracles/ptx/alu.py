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
"""Instructions that only touch registers: arithmetic, conversions, branches."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np

from oracles.ptx import operands
from oracles.ptx import parse
from oracles.ptx.parse import PtxError

_ROUNDINGS = {"rz", "rm", "rp", "rzi", "rmi", "rpi", "rn", "rni", "rna"}


def _flush(values):
  """Subnormal float32 to a zero of the same sign."""
  tiny = np.abs(values) < np.finfo(np.float32).tiny
  return np.where(tiny, np.copysign(np.float32(0), values), values)


def _round_odd_sum(a, b):
  """a + b in float64, the last bit set where inexact: safe to round again."""
  total = a + b
  high = total - a
  error = (a - (total - high)) + (b - high)
  bits = np.ascontiguousarray(total).view(np.int64)
  even = (bits & 1) == 0
  inexact = np.isfinite(total) & (error != 0) & even
  toward = np.where(error > 0, np.inf, -np.inf)
  return np.where(inexact, np.nextafter(total, toward), total)


def _narrow(values, dtype, rounding):
  """float64 to `dtype`, rounded to nearest or in the direction named."""
  near = values.astype(dtype)
  if rounding in (None, "rn", "rna"):
    return near
  wide = near.astype(np.float64)
  if rounding == "rz":
    off = np.abs(wide) > np.abs(values)
    toward = np.zeros_like(near)
  elif rounding == "rm":
    off, toward = wide > values, np.full_like(near, -np.inf)
  else:
    off, toward = wide < values, np.full_like(near, np.inf)
  if dtype == ml_dtypes.bfloat16:
    if off.any():
      raise PtxError("directed rounding of bf16 is not modelled")
    return near
  return np.where(off, np.nextafter(near, toward), near)


def float_extreme(propagate: bool, largest: bool):
  def extreme(a, b):
    if propagate:
      result = np.maximum(a, b) if largest else np.minimum(a, b)
    else:
      result = np.fmax(a, b) if largest else np.fmin(a, b)
    # PTX orders -0 below +0.
    tie = (a == b) & (a == 0)
    negative = (np.signbit(a) & np.signbit(b) if largest
                else np.signbit(a) | np.signbit(b))
    zero = np.where(negative, -0.0, 0.0).astype(result.dtype)
    return np.where(tie, zero, result)
  return extreme


def _int_div(a, b):
  safe = np.where(b == 0, 1, b).astype(a.dtype)
  if a.dtype.kind == "u":
    return np.where(b == 0, np.array(-1).astype(a.dtype), a // safe)
  quotient = np.abs(a) // np.abs(safe)
  return np.where((a < 0) != (safe < 0), -quotient, quotient).astype(a.dtype)


def _int_rem(a, b):
  safe = np.where(b == 0, 1, b).astype(a.dtype)
  return np.fmod(a, safe)


def _shift_left(a, count):
  width = 8 * a.dtype.itemsize
  shifted = np.left_shift(a, np.minimum(count, width - 1).astype(a.dtype))
  return np.where(count < width, shifted, np.zeros((), a.dtype))


def _shift_right(a, count):
  width = 8 * a.dtype.itemsize
  shifted = np.right_shift(a, np.minimum(count, width - 1).astype(a.dtype))
  if a.dtype.kind == "i":
    return shifted
  return np.where(count < width, shifted, np.zeros((), a.dtype))


def _funnel(a, b, count, left: bool, clamp: bool):
  count = np.minimum(count, 32) if clamp else count & 31
  count = count.astype(np.uint64)
  pair = (b.astype(np.uint64) << np.uint64(32)) | a.astype(np.uint64)
  if left:
    pair = (pair << count) >> np.uint64(32)
  else:
    pair = pair >> count
  return pair.astype(np.uint32)


def _mul_high(a, b):
  width = 8 * a.dtype.itemsize
  if width < 64:
    wide = np.dtype(f"{a.dtype.kind}8")
    return ((a.astype(wide) * b.astype(wide)) >> wide.type(width)).astype(
        a.dtype)
  a, b = np.broadcast_arrays(a, b)
  product = a.astype(object) * b.astype(object) >> 64
  return product.astype(a.dtype)


def _widened(a):
  return a.astype(np.dtype(f"{a.dtype.kind}{2 * a.dtype.itemsize}"))


def _extract(a, position, length):
  width = 8 * a.dtype.itemsize
  position = (position & 255).astype(np.int64)
  length = np.minimum(length & 255, width).astype(np.int64)
  wide = a.astype(np.int64) if a.dtype.kind == "i" else a.astype(np.uint64)
  result = np.zeros(np.broadcast_shapes(a.shape, position.shape, length.shape),
                    a.dtype)
  wide, position, length, _ = np.broadcast_arrays(
      wide, position, length, result)
  for i in range(result.size):
    p, n = int(position[i]), int(length[i])
    value = int(wide[i]) & ((1 << width) - 1)
    field = (value >> p) & ((1 << n) - 1)
    sign_at = min(p + n - 1, width - 1)
    if a.dtype.kind == "i" and n and (value >> sign_at) & 1:
      have = max(min(n, width - p), 0)
      field |= ((1 << width) - 1) & ~((1 << have) - 1)
    result[i] = np.array(field, np.dtype(f"u{width // 8}")).view(a.dtype)
  return result


def _insert(source, into, position, length):
  position, length = position & 255, length & 255
  width = np.uint64(8 * into.dtype.itemsize)
  ones = np.where(length >= width, ~np.uint64(0),
                  (np.uint64(1) << length.astype(np.uint64)) - np.uint64(1))
  keep = np.where(position < width, ones << position.astype(np.uint64), 0)
  keep = keep.astype(np.uint64)
  moved = (source.astype(np.uint64) << position.astype(np.uint64)) & keep
  return ((into.astype(np.uint64) & ~keep) | moved).astype(into.dtype)


def _count_leading_zeros(a):
  width = 8 * a.dtype.itemsize
  return np.array([width - int(x).bit_length() for x in a], np.uint32)


def _popcount(a):
  return np.bitwise_count(a).astype(np.uint32)


def _bit_reverse(a):
  width = 8 * a.dtype.itemsize
  return np.array([int(f"{int(x):0{width}b}"[::-1], 2) for x in a], a.dtype)


def _permute(a, b, selector):
  pair = (b.astype(np.uint64) << np.uint64(32)) | a.astype(np.uint64)
  result = np.zeros((), np.uint32)
  for i in range(4):
    pick = (selector >> np.uint32(4 * i)) & np.uint32(15)
    byte = (pair >> (np.uint64(8) * (pick & np.uint32(7)))) & np.uint64(255)
    sign = np.where(byte & np.uint64(128), np.uint64(255), np.uint64(0))
    byte = np.where(pick & np.uint32(8), sign, byte).astype(np.uint32)
    result = result | (byte << np.uint32(8 * i))
  return result


def _logic3(a, b, c, table: int):
  result = np.zeros((), np.uint32)
  for i in range(8):
    if table >> i & 1:
      result = result | ((a if i & 4 else ~a) & (b if i & 2 else ~b)
                         & (c if i & 1 else ~c))
  return result


def _arithmetic(instruction):
  """(function of arrays, operand dtypes or None for the type's) or None."""
  root, mods = instruction.root, set(instruction.modifiers)
  if not instruction.types:
    return None
  floating = instruction.types[-1] in (
      "f16", "bf16", "f32", "f64", "f16x2", "bf16x2", "f32x2")
  rounding = next((m for m in instruction.modifiers if m in _ROUNDINGS), None)
  directed = rounding in ("rz", "rm", "rp")
  if "cc" in mods or root in ("addc", "subc", "madc"):
    return None

  def fused(a, b, c):
    if a.dtype == np.float64:
      wide = np.longdouble
      return (a.astype(wide) * b.astype(wide) + c.astype(wide)).astype(a.dtype)
    exact = _round_odd_sum(a.astype(np.float64) * b.astype(np.float64),
                           c.astype(np.float64))
    return _narrow(exact, a.dtype, rounding)

  def directed_by(function):
    if not directed or not floating:
      return function
    def rounded(a, b):
      if a.dtype == np.float64:
        raise PtxError("directed rounding of f64 is not modelled")
      return _narrow(function(a.astype(np.float64), b.astype(np.float64)),
                     a.dtype, rounding)
    return rounded

  def by_float64(function):
    return lambda a: function(a.astype(np.float64)).astype(a.dtype)

  u32 = np.uint32
  match root:
    case "add":
      if floating and "sat" in mods:
        return lambda a, b: np.clip(a + b, 0, 1).astype(a.dtype), None
      if directed and floating:
        return lambda a, b: _narrow(_round_odd_sum(
            a.astype(np.float64), b.astype(np.float64)), a.dtype, rounding
        ), None
      return np.add, None
    case "sub":
      if directed and floating:
        return lambda a, b: _narrow(_round_odd_sum(
            a.astype(np.float64), -b.astype(np.float64)), a.dtype, rounding
        ), None
      return np.subtract, None
    case "mul" if floating:
      return directed_by(np.multiply), None
    case "mul" if "wide" in mods:
      return lambda a, b: _widened(a) * _widened(b), None
    case "mul" if "hi" in mods:
      return _mul_high, None
    case "mul":
      return np.multiply, None
    case "mul24":
      return None
    case "fma" | "mad" if floating:
      return fused, None
    case "mad" if "wide" in mods:
      wide = np.dtype(f"{instruction.types[-1][0].replace('s', 'i')}"
                      f"{int(instruction.types[-1][1:]) // 4}")
      return (lambda a, b, c: _widened(a) * _widened(b) + c), (
          None, None, wide)
    case "mad" if "hi" in mods:
      return lambda a, b, c: _mul_high(a, b) + c, None
    case "mad":
      return lambda a, b, c: a * b + c, None
    case "div":
      return (directed_by(np.divide) if floating else _int_div), None
    case "rem":
      return _int_rem, None
    case "min" | "max" if floating:
      return float_extreme("NaN" in mods, root == "max"), None
    case "min":
      return np.minimum, None
    case "max":
      return np.maximum, None
    case "and":
      return np.bitwise_and, None
    case "or":
      return np.bitwise_or, None
    case "xor":
      return np.bitwise_xor, None
    case "not":
      return np.invert, None
    case "neg":
      return np.negative, None
    case "abs":
      return np.abs, None
    case "copysign":
      return lambda a, b: np.copysign(b, a), None
    case "shl":
      return _shift_left, (None, u32)
    case "shr":
      return _shift_right, (None, u32)
    case "shf":
      left, clamp = "l" in mods, "clamp" in mods
      return lambda a, b, c: _funnel(a, b, c, left, clamp), (u32, u32, u32)
    case "bfe":
      return _extract, (None, u32, u32)
    case "bfi":
      return _insert, (None, None, u32, u32)
    case "clz":
      return _count_leading_zeros, None
    case "popc":
      return _popcount, None
    case "brev":
      return _bit_reverse, None
    case "prmt" if not mods & {"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"}:
      return _permute, None
    case "lop3":
      table = int(instruction.operands[4], 0)
      return lambda a, b, c: _logic3(a, b, c, table), None
    case "ex2":
      return by_float64(np.exp2), None
    case "lg2":
      return by_float64(np.log2), None
    case "sqrt":
      return np.sqrt, None
    case "rsqrt":
      return by_float64(lambda a: 1 / np.sqrt(a)), None
    case "rcp":
      return by_float64(lambda a: 1 / a), None
    case "sin":
      return by_float64(np.sin), None
    case "cos":
      return by_float64(np.cos), None
    case "tanh":
      return by_float64(np.tanh), None
    case "mov":
      return lambda a: a, None
  return None


def _build_arithmetic(kernel, instruction, function, dtypes):
  type_name = instruction.types[-1]
  dtype = parse.type_to_dtype(type_name)
  packed = None
  if type_name in ("f16x2", "bf16x2", "f32x2") and instruction.root not in (
      "and", "or", "xor", "mov"):
    packed = parse.type_to_dtype(type_name[:-2])
  sources = instruction.operands[1:]
  if instruction.root == "lop3":
    sources = sources[:3]
  if dtypes is None:
    dtypes = (None,) * len(sources)
  read = [operands.reader(kernel, text, d or dtype)
          for text, d in zip(sources, dtypes, strict=True)]
  write = operands.writer(kernel, instruction.operands[0])
  flush = "ftz" in instruction.modifiers and dtype == np.float32

  def operation(cta):
    values = [r(cta) for r in read]
    if packed is not None:
      values = [np.ascontiguousarray(v).view(packed).reshape(-1, 2)
                for v in values]
    elif flush:
      values = [_flush(v) for v in values]
    with np.errstate(all="ignore"):
      result = function(*values)
    if flush:
      result = _flush(result)
    if packed is not None:
      result = np.ascontiguousarray(result.astype(packed)).view(
          dtype).reshape(-1)
    write(cta, np.atleast_1d(result))
  return operation


_COMPARE = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal, "lo": np.less,
    "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal}


def _comparison(name: str, floating: bool):
  if name in ("num", "nan"):
    unordered = lambda a, b: np.isnan(a) | np.isnan(b)
    return unordered if name == "nan" else lambda a, b: ~unordered(a, b)
  if floating and name.endswith("u"):
    compare = _COMPARE[name[:-1]]
    return lambda a, b: compare(a, b) | np.isnan(a) | np.isnan(b)
  compare = _COMPARE[name]
  if floating and name == "ne":
    return lambda a, b: compare(a, b) & ~np.isnan(a) & ~np.isnan(b)
  return compare


def _build_set_predicate(kernel, instruction):
  dtype = parse.type_to_dtype(instruction.types[-1])
  floating = dtype.kind == "f" or dtype == ml_dtypes.bfloat16
  compare = _comparison(instruction.modifiers[0], floating)
  combine = next((m for m in instruction.modifiers[1:]
                  if m in ("and", "or", "xor")), None)
  a = operands.reader(kernel, instruction.operands[1], dtype)
  b = operands.reader(kernel, instruction.operands[2], dtype)
  c = combine and operands.reader(kernel, instruction.operands[3], np.bool_)
  function = {"and": np.logical_and, "or": np.logical_or,
              "xor": np.logical_xor, None: None}[combine]
  flush = "ftz" in instruction.modifiers and dtype == np.float32
  destinations = [operands.writer(kernel, d.strip())
                  for d in instruction.operands[0].split("|")]

  def operation(cta):
    left, right = a(cta), b(cta)
    if flush:
      left, right = _flush(left), _flush(right)
    with np.errstate(all="ignore"):
      result = compare(left, right)
    results = [result, ~result]
    for write, value in zip(destinations, results, strict=False):
      write(cta, value if function is None else function(value, c(cta)))
  return operation


def _build_select(kernel, instruction):
  dtype = parse.type_to_dtype(instruction.types[-1])
  write = operands.writer(kernel, instruction.operands[0])
  a = operands.reader(kernel, instruction.operands[1], dtype)
  b = operands.reader(kernel, instruction.operands[2], dtype)
  p = operands.reader(kernel, instruction.operands[3], np.bool_)
  return lambda cta: write(cta, np.where(p(cta), a(cta), b(cta)))


_TO_INTEGRAL = {"rzi": np.trunc, "rni": np.rint, "rmi": np.floor,
                "rpi": np.ceil}


def _float_to_int(values, dtype):
  info = np.iinfo(dtype)
  wide = np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=np.inf,
                       neginf=-np.inf)
  low, high = wide <= float(info.min), wide >= float(info.max)
  inside = np.where(low | high, 0.0, wide).astype(dtype)
  return np.where(low, dtype.type(info.min),
                  np.where(high, dtype.type(info.max), inside))


def _build_convert(kernel, instruction):
  to_name, from_name = instruction.types[-2:]
  mods = instruction.modifiers
  write = operands.writer(kernel, instruction.operands[0])
  integral = next((_TO_INTEGRAL[m] for m in mods if m in _TO_INTEGRAL), None)
  rounding = next((m for m in mods if m in ("rz", "rm", "rp")), None)
  if to_name in ("f16x2", "bf16x2") and from_name == "f32":
    half = parse.type_to_dtype(to_name[:-2])
    high, low = (operands.reader(kernel, o, np.float32)
                 for o in instruction.operands[1:3])
    relu = "relu" in mods
    def pack(cta):
      parts = []
      with np.errstate(all="ignore"):
        for read in (high, low):
          value = read(cta)
          if relu:
            value = np.maximum(value, np.float32(0))
          parts.append(_narrow(value.astype(np.float64), half, rounding)
                       .view(np.uint16).astype(np.uint32))
      write(cta, (parts[0] << np.uint32(16)) | parts[1])
    return pack
  small = {"e4m3x2": ml_dtypes.float8_e4m3fn, "e5m2x2": ml_dtypes.float8_e5m2}
  if to_name in small and from_name == "f32":
    dtype = small[to_name]
    limit = np.float32(ml_dtypes.finfo(dtype).max)
    high, low = (operands.reader(kernel, o, np.float32)
                 for o in instruction.operands[1:3])
    def pack_small(cta):
      parts = [np.clip(read(cta), -limit, limit).astype(dtype).view(
          np.uint8).astype(np.uint16) for read in (high, low)]
      write(cta, (parts[0] << np.uint16(8)) | parts[1])
    return pack_small
  if from_name in small and to_name == "f16x2":
    dtype = small[from_name]
    read_pair = operands.reader(kernel, instruction.operands[1], np.uint16)
    def unpack_small(cta):
      pair = np.ascontiguousarray(read_pair(cta)).view(dtype)
      halves = pair.astype(np.float16).view(np.uint32)
      write(cta, halves)
    return unpack_small
  if "x2" in to_name + from_name or "pack" in mods:
    return None
  to, source = parse.type_to_dtype(to_name), parse.type_to_dtype(from_name)
  read = operands.reader(kernel, instruction.operands[1], source)
  to_float = to.kind == "f" or to_name == "bf16"
  from_float = source.kind == "f" or from_name == "bf16"
  saturate, flush = "sat" in mods, "ftz" in mods

  def operation(cta):
    values = read(cta)
    with np.errstate(all="ignore"):
      if flush and from_name == "f32":
        values = _flush(values)
      if integral is not None and from_float:
        values = integral(values)
      if from_float and to_float:
        if to.itemsize < source.itemsize:
          result = _narrow(values.astype(np.float64), to, rounding)
        else:
          result = values.astype(to)
      elif from_float:
        result = _float_to_int(values, to)
      elif to_float:
        if rounding:
          result = _narrow(values.astype(np.float64), to, rounding)
        else:
          result = values.astype(to)
      elif saturate:
        info = np.iinfo(to)
        wide = np.array([min(max(int(v), info.min), info.max)
                         for v in values])
        result = wide.astype(to)
      else:
        result = values.astype(to)
      if saturate and to_float:
        result = np.clip(np.nan_to_num(result, nan=0.0), 0, 1).astype(to)
      if flush and to_name == "f32":
        result = _flush(result)
    write(cta, result)
  return operation


def _build_move(kernel, instruction):
  """mov, where one side may be a vector of narrower registers."""
  destination, source = instruction.operands
  dtype = parse.type_to_dtype(instruction.types[-1])
  if source.startswith("{"):
    parts = operands.vector(source)
    width = 8 * dtype.itemsize // len(parts)
    part_dtype = np.dtype(f"u{width // 8}")
    readers = [operands.reader(kernel, p, part_dtype) for p in parts]
    write = operands.writer(kernel, destination)
    def join(cta):
      total = np.zeros((), dtype)
      for i, read in enumerate(readers):
        total = total | (read(cta).astype(dtype) << dtype.type(width * i))
      write(cta, total)
    return join
  if destination.startswith("{"):
    parts = operands.vector(destination)
    width = 8 * dtype.itemsize // len(parts)
    part_dtype = np.dtype(f"u{width // 8}")
    writers = [operands.writer(kernel, p) for p in parts]
    read_whole = operands.reader(kernel, source, dtype)
    def split(cta):
      whole = read_whole(cta)
      for i, write in enumerate(writers):
        write(cta, (whole >> dtype.type(width * i)).astype(part_dtype))
    return split
  return None


def _build_branch(instruction):
  target = instruction.target
  def operation(cta):
    here = cta.pc[cta.mask][0] - 1
    cta.pc = np.where(cta.mask, target, cta.pc)
    if target <= here:
      cta.back_edges = cta.back_edges + cta.mask
  return operation


def _build_return():
  def operation(cta):
    cta.done = cta.done | cta.mask
    cta.sync.threads_left()
  return operation


def _build_trap(instruction):
  def operation(cta):
    thread = int(np.flatnonzero(cta.mask)[0])
    raise PtxError(f"{instruction.text} in {cta.describe(thread)}")
  return operation


def build(kernel, instruction):
  """Compiles one instruction, or returns None if it is not of this kind."""
  match instruction.root:
    case "setp":
      return _build_set_predicate(kernel, instruction)
    case "selp":
      return _build_select(kernel, instruction)
    case "cvt":
      return _build_convert(kernel, instruction)
    case "bra":
      return _build_branch(instruction)
    case "ret" | "exit":
      return _build_return()
    case "trap" | "brkpt":
      return _build_trap(instruction)
    case "nanosleep" | "setmaxnreg" | "griddepcontrol" | "prefetch":
      return lambda cta: None
    case "mov":
      if re.search(r"[{]", " ".join(instruction.operands)):
        return _build_move(kernel, instruction)
  spec = _arithmetic(instruction)
  if spec is None:
    return None
  return _build_arithmetic(kernel, instruction, *spec)
