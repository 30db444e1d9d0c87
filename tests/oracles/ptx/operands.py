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
"""Compiles operands into functions that read or write a CTA's registers."""

from __future__ import annotations

import re

import numpy as np

from oracles.ptx import parse
from oracles.ptx.parse import PtxError


def _as(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
  """Reinterprets a register's bits, truncating or zero-extending."""
  if values.dtype == dtype:
    return values
  if values.dtype == np.bool_ or dtype == np.bool_:
    return values.astype(dtype)
  if values.dtype.itemsize != dtype.itemsize:
    values = values.astype(np.dtype(f"u{dtype.itemsize}"))
  return values.view(dtype)


def _immediate(text: str, dtype: np.dtype) -> np.ndarray:
  if text[:2] in ("0f", "0F"):
    value = np.array([int(text[2:], 16)], np.uint32).view(np.float32)
    if dtype.itemsize == 4:
      return value.view(dtype)
    return value.astype(dtype)
  if text[:2] in ("0d", "0D"):
    value = np.array([int(text[2:], 16)], np.uint64).view(np.float64)
    return value.view(dtype) if dtype.itemsize == 8 else value.astype(dtype)
  if re.fullmatch(r"-?\d*\.\d+|-?\d+\.\d*", text):
    return np.array([float(text)], dtype)
  number = int(text.rstrip("U"), 0)
  if dtype == np.bool_:
    return np.array([bool(number)])
  width = 8 * dtype.itemsize
  bits = np.array([number & ((1 << width) - 1)], np.dtype(f"u{dtype.itemsize}"))
  return bits.view(dtype)


def reader(kernel, text: str, dtype):
  """A function of the CTA giving the operand over its threads, or one item."""
  dtype = np.dtype(dtype)
  if text.startswith("!"):
    inner = reader(kernel, text[1:], np.bool_)
    return lambda cta: ~inner(cta)
  if text in kernel.registers:
    return lambda cta: _as(cta.registers[text], dtype)
  if text.startswith("%"):
    def read_special(cta):
      if text not in cta.special:
        raise PtxError(f"unsupported special register {text}")
      return np.atleast_1d(np.asarray(cta.special[text])).astype(dtype)
    return read_special
  if re.match(r"-?(\d|\.\d)", text):
    constant = _immediate(text, dtype)
    return lambda cta: constant
  if text == "WARP_SZ":
    constant = np.array([32], dtype)
    return lambda cta: constant
  return lambda cta: np.array([_symbol(cta, text)], dtype)


def _symbol(cta, text: str) -> int:
  match = re.fullmatch(r"([\w$]+)\s*(?:\+\s*(\d+))?", text)
  if not match or match.group(1) not in cta.symbols:
    raise PtxError(f"unknown operand {text!r}")
  return cta.symbols[match.group(1)] + int(match.group(2) or 0)


def full_reader(kernel, text: str, dtype):
  """As `reader`, but always an item per thread."""
  inner = reader(kernel, text, dtype)
  return lambda cta: np.broadcast_to(inner(cta), (cta.threads,))


def writer(kernel, text: str):
  """A function (cta, values) that writes the active threads' register."""
  if text == "_":
    return lambda cta, values: None
  if text not in kernel.registers:
    raise PtxError(f"unknown destination {text!r}")
  storage = parse.storage_dtype(kernel.registers[text])

  def write(cta, values):
    if values.dtype != storage:
      if values.dtype == np.bool_:
        values = values.astype(storage)
      elif storage == np.bool_:
        values = values != 0
      elif values.dtype.itemsize == storage.itemsize:
        values = np.ascontiguousarray(values).view(storage)
      else:
        if values.dtype.kind != "i":
          values = np.ascontiguousarray(values).view(
              np.dtype(f"u{values.dtype.itemsize}"))
          values = values.astype(storage)
        else:  # A signed value is sign-extended into a wider register.
          values = values.astype(np.dtype(f"i{storage.itemsize}")).view(storage)
    if cta.full and values.shape == cta.mask.shape:
      cta.registers[text] = values
    else:
      cta.registers[text] = np.where(cta.mask, values, cta.registers[text])
  return write


def vector(text: str) -> list[str]:
  """The members of `{a, b}`, or the operand alone."""
  if text.startswith("{"):
    return [x.strip() for x in text[1:-1].split(",")]
  return [text]


def address(kernel, text: str):
  """A function of the CTA giving the int64 address of `[base+offset]`."""
  inner = text.strip()[1:-1].strip()
  match = re.fullmatch(r"([%$\w@.]+)\s*(?:\+\s*(-?\w+))?", inner)
  if not match:
    raise PtxError(f"unsupported address {text!r}")
  base, offset = match.group(1), int(match.group(2) or "0", 0)
  width = np.uint64
  if base in kernel.registers:
    width = parse.storage_dtype(kernel.registers[base])
  read = full_reader(kernel, base, width)
  return lambda cta: read(cta).astype(np.int64) + offset
