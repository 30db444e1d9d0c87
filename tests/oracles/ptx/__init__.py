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
"""Executes PTX, the text handed to the assembler, on NumPy arrays.

`run_mosaic` runs a compiled Mosaic GPU kernel as its host function would launch
it; `run` runs any one-kernel module, such as Triton's.
"""

from __future__ import annotations

import struct

import numpy as np

from oracles.ptx import execute
from oracles.ptx import host
from oracles.ptx import memory
from oracles.ptx import parse
from oracles.ptx.execute import Report as Report
from oracles.ptx.parse import PtxError as PtxError


def _pack(kernel, values) -> bytes:
  space = bytearray(kernel.parameter_bytes)
  for parameter, value in zip(kernel.parameters, values, strict=True):
    if isinstance(value, bytes):
      data = value
    elif isinstance(value, float):
      data = struct.pack("<f" if parameter.size == 4 else "<d", value)
    else:
      data = int(value).to_bytes(parameter.size, "little", signed=value < 0)
    if len(data) != parameter.size:
      raise PtxError(f"parameter {parameter.name} takes {parameter.size} bytes,"
                     f" got {len(data)}")
    space[parameter.offset: parameter.offset + parameter.size] = data
  return bytes(space)


def run(text: str, arguments, *, grid, block=None, dynamic_shared: int = 0,
        cluster=(1, 1, 1), seed: int | None = None, detect_races: bool = True,
        max_steps: int = 1_000_000):
  """Runs a PTX module on arrays and scalars.

  Args:
    text: the module; it has one entry function.
    arguments: in the order of the kernel's parameters: a NumPy array (a pointer
      to a copy of it), a Python int or float, or None (a null pointer).
    grid: CTAs along x, y, z; missing ones are 1.
    block: threads along x, y, z; by default what the module states.
    dynamic_shared: bytes of shared memory sized by the launch.
    cluster: CTAs per cluster along x, y, z.
    seed: chooses a thread schedule; None is lockstep.
    detect_races: whether the report lists data races.
    max_steps: limit on instructions issued.

  Returns:
    The arrays after the run, in order, and a Report.

  Raises:
    PtxError: on an illegal access, unsupported instruction or deadlock.
  """
  kernel = parse.parse(text)
  device = memory.GlobalMemory()
  values, places = [], []
  for argument in arguments:
    if isinstance(argument, np.ndarray):
      address = device.upload(argument)
      places.append((address, argument))
      values.append(address)
    else:
      values.append(0 if argument is None else argument)
  pad = lambda shape: tuple(shape) + (1,) * (3 - len(shape))
  report = execute.Grid(
      text, pad(grid), pad(block or kernel.block), _pack(kernel, values),
      device, dynamic_shared=dynamic_shared, cluster=pad(cluster), seed=seed,
      detect_races=detect_races, max_steps=max_steps).run()
  return [device.download(a, x.shape, x.dtype) for a, x in places], report


def run_mosaic(text: str, host_llvm: str, buffers, *, seed: int | None = None,
               detect_races: bool = True, max_steps: int = 1_000_000):
  """Runs a compiled Mosaic GPU kernel.

  Args:
    text: the PTX module.
    host_llvm: LLVM IR of the host function compiled with it.
    buffers: NumPy arrays, the custom call's operands followed by the results
      that alias no operand.
    seed: chooses a thread schedule; None is lockstep.
    detect_races: whether the report lists data races.
    max_steps: limit on instructions issued.

  Returns:
    The buffers after the run, in order, and a Report.

  Raises:
    PtxError: on an illegal access, unsupported instruction or deadlock.
  """
  device = memory.GlobalMemory()
  addresses = [device.upload(b) for b in buffers]
  kernel = parse.parse(text)
  launch = host.read_launch(
      host_llvm, addresses, [p.size for p in kernel.parameters])
  report = execute.Grid(
      text, launch.grid, launch.block, _pack(kernel, launch.parameters), device,
      dynamic_shared=launch.dynamic_shared, cluster=launch.cluster,
      tensor_maps=launch.tensor_maps, seed=seed, detect_races=detect_races,
      max_steps=max_steps).run()
  return [device.download(a, b.shape, b.dtype)
          for a, b in zip(addresses, buffers, strict=True)], report
