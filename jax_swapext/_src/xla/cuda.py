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
"""The rules of `fetch_update_p` for GPUs: Triton kernels, by jax_triton.

A kernel gets the table as a Ref, so XLA updates it in place where it can.

* In any order, every element is updated on its own, by one atomic instruction
  or a loop around a compare-and-swap.
* In index order, tiles of up to 4096 updates are sorted and combined side by
  side, and meet the table one after another. That is one kernel that reads each
  update once, with a word of scratch for a tile. What it costs beyond the
  traffic is the hand-over: a tile waits until the one before has read the
  table, written it and passed a fence. For operations that are not exactly
  associative (sums of floats, compare-and-swap) a tile also takes as many steps
  as its most frequent index has updates.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import math
from typing import Any
import warnings

import jax
from jax import lax
from jax.interpreters import mlir
import jax.numpy as jnp
from jax_swapext._src import compat
from jax_swapext._src import fetch_update
from jax_swapext._src import semantics
import numpy as np

AtomicOp = semantics.AtomicOp

# Elements of a tile of either kernel. In order more of them mean fewer
# hand-overs; out of order the retries of the slowest one hold up the others.
_TILE_IN_ORDER, _TILE_IN_ANY_ORDER = 4096, 512


def _fetch_update_gpu(platform, device, x, idx, *operands, mask, op, order,
                      reverse, unique_indices, need_old):
  params = dict(mask=mask, op=op, unique_indices=unique_indices,
                need_old=need_old)
  reason, capability = _target(platform, device)
  if reason is not None:
    _warn_of_xla(reason)
    return fetch_update.portable(
        x, idx, *operands, order=order, reverse=reverse, **params
    )
  if 0 in (x.size, idx.size):
    return [jnp.zeros_like(operands[0])] * need_old + [x]
  columns = math.prod(x.shape[1:])
  table = jax.new_ref(lax.reshape(x, (x.shape[0], columns)))
  rows = [lax.reshape(v, (idx.size, columns)) for v in operands]
  call = functools.partial(_launch, platform=platform, capability=capability)
  idx = lax.convert_element_type(idx, np.int32)
  if unique_indices or _is_orderless(op, x.dtype, order, need_old):
    old = _in_any_order(call, table, idx, rows, **params)
  else:
    old = _in_index_order(
        call, table, idx, rows, mask, op, reverse, need_old
    )
  x = lax.reshape(jax.freeze(table), x.shape)
  return [lax.reshape(o, operands[0].shape) for o in old] + [x]


def _is_orderless(op, dtype, order, need_old):
  """Whether the updates may come in any order."""
  if op is AtomicOp.ADD_OR_SET:
    return False
  exact = op in semantics.BITWISE or op in (AtomicOp.MAX, AtomicOp.MIN)
  exact = exact or op is AtomicOp.ADD and not _is_float(dtype)
  return order == "any" or exact and not need_old


def _is_float(dtype):
  return jnp.issubdtype(dtype, jnp.floating)


def _seen_as(op, dtype):
  """The dtype in which elements are computed with: of bits where they move."""
  moves = op in (AtomicOp.XCHG, AtomicOp.CAS) or op in semantics.BITWISE
  if moves or dtype == np.dtype(bool):
    return np.dtype(f"uint{8 * dtype.itemsize}")
  return dtype


# ## In any order


def _in_any_order(call, table, idx, rows, mask, op, unique_indices, need_old):
  dtype = _seen_as(op, table.dtype)
  n, columns = rows[0].shape
  width = min(_power_of_two(columns), _TILE_IN_ANY_ORDER)
  height = _TILE_IN_ANY_ORDER // width
  return call(
      "in_any_order",
      table,
      idx,
      *_operands(rows, idx, mask),
      need_old=need_old,
      programs=-(-n // height) * -(-columns // width),
      num_warps=4,
      OP=op.value,
      DTYPE=dtype,
      BITS=8 * dtype.itemsize,
      METHOD="plain" if unique_indices else _method(op, dtype),
      MASKED=mask is not None,
      ROWS=height,
      COLUMNS=width,
  )


def _method(op, dtype):
  """How the hardware does it; see the kernel."""
  if _is_float(dtype):
    # Its maximum and minimum drop NaNs.
    return "rmw" if op is AtomicOp.ADD else "loop"
  if dtype.itemsize < 4:
    return "loop"
  return "cas" if op is AtomicOp.CAS else "rmw"


# ## In index order


def _in_index_order(call, table, idx, rows, mask, op, reverse, need_old):
  dtype = _seen_as(op, table.dtype)
  n, columns = rows[0].shape
  width = min(_power_of_two(columns), 16)
  height = min(max(_power_of_two(n), 128), _TILE_IN_ORDER // width)
  blocks = -(-columns // width)
  tiles = -(-n // height)
  turns = jax.new_ref(jnp.zeros((blocks, tiles + 1), np.int32))
  serial = op in (AtomicOp.CAS, AtomicOp.ADD_OR_SET)
  serial = serial or op is AtomicOp.ADD and _is_float(dtype)
  return call(
      "in_index_order",
      table,
      turns,
      idx,
      *_operands(rows, idx, mask),
      need_old=need_old,
      programs=tiles * blocks,
      num_warps=min(max(height * width // 256, 4), 16),
      OP=op.value,
      DTYPE=dtype,
      SCAN=not serial,
      REVERSE=reverse,
      MASKED=mask is not None,
      ROWS=height,
      COLUMNS=width,
  )


# ## Calling the kernels


def _power_of_two(n):
  return 1 << (n - 1).bit_length()


def _operands(rows, idx, mask):
  """Two operands and a mask; what there is none of is not read either."""
  first, second = (*rows, idx)[:2]
  return first, second, idx if mask is None else mask


def _launch(kernel, *args, platform, capability, need_old, programs, num_warps,
            DTYPE, **static):
  """Runs a kernel on its table and arrays; returns `[old]` or `[]`."""
  from jax_swapext._src.xla import triton_kernels
  import jax_triton
  import triton.language as tl

  table, value = args[0], args[-3]
  n, columns = value.shape
  sizes = dict(n=n, rows=table.shape[0], columns=columns)
  old = jax.ShapeDtypeStruct(value.shape, table.dtype)
  options: dict[str, Any] = dict(enable_fp_fusion=False)
  if platform == "cuda":
    options["ptx_version"] = _ptx_version(capability)
  return jax_triton.triton_call(
      *args,
      kernel=getattr(triton_kernels, kernel),
      out_type=[old] if need_old else [],
      grid=(programs,),
      num_warps=num_warps,
      compute_capability=capability,
      backend_options=options,
      name=f"jax_swapext_{kernel}",
      **({} if need_old else {"old": value}),
      **sizes,
      **static,
      DTYPE=getattr(tl, DTYPE.name),
      NEED_OLD=need_old,
  )


# ## What the kernels are compiled for


_UNKNOWN = (
    "it is not known which GPU to compile for (lower for the device of a GPU,"
    " or under jax.sharding.use_abstract_mesh with an abstract_device)"
)


def _target(platform, device) -> tuple[str | None, int | None]:
  """Why Triton cannot be used, if so, and the GPU's compute capability."""
  if importlib.util.find_spec("jax_triton") is None:
    return "jax_triton is not installed (pip install jax-triton)", None
  from jax._src.lib import gpu_triton

  if not hasattr(gpu_triton, "TritonKernel"):
    return (
        "JAX's plugin is not installed, which launches kernels (pip install"
        " jax[cuda13]; to lower without a GPU jax-cuda13-plugin will do)"
    ), None
  if platform == "rocm":
    # Drop once jax_triton > 0.4.1 tells Triton >= 3.9 what it asks of it:
    # without, it fails with a KeyError.
    versions = [
        compat.version_tuple(importlib.metadata.version(p))
        for p in ("jax_triton", "triton")
    ]
    if versions[0] <= (0, 4, 1) and versions[1] >= (3, 9):
      return "jax_triton 0.4.1 fails with Triton >= 3.9 for AMD GPUs", None
    # jax_triton compiles for the AMD GPU that is there, and for no other.
    return None if _has_amd_gpu(gpu_triton) else _UNKNOWN, None
  capability = _compute_capability(gpu_triton, device)
  if capability is None:
    return _UNKNOWN, None
  if capability < 80:
    return f"Triton needs compute capability 8.0, got {capability / 10}", None
  return None, capability


def _has_amd_gpu(gpu_triton: Any) -> bool:
  try:
    gpu_triton.get_arch_details(0)
  except RuntimeError:
    return False
  return True


def _compute_capability(gpu_triton: Any, device: Any) -> int | None:
  """Ten times the compute capability, if known: of `device`, else of GPU 0."""
  from jax._src.pallas.triton import gpu_info

  if device is not None:
    found = getattr(device, "compute_capability", None)
    if found is not None:
      return int(found.replace(".", ""))
    version = gpu_info.gpu_version_from_device_kind(device.device_kind)
    if version is not None:
      return gpu_info.get_gpu_info_from_version(version).compute_capability
  try:
    return gpu_triton.get_compute_capability(0)
  except RuntimeError:
    return None


def _ptx_version(capability: int) -> int | None:
  """Ten times the oldest PTX version that knows the GPU, and at least 8.0.

  Triton's own choice is the newest, which the assembler that XLA finds may not
  know; so that is only for a GPU which nothing is known of here. A version that
  is too old for the GPU makes LLVM end the process.
  """
  if capability <= 90:
    return 80
  return {100: 86, 101: 86, 103: 88, 120: 87, 121: 88}.get(capability)


@functools.cache
def _warn_of_xla(reason: str):
  warnings.warn(
      f"fetch_update: {reason}, so updates on the GPU go through XLA alone,"
      " which applies them one after another: microseconds each.",
      stacklevel=2,
  )


def _rule(platform, ctx, *args, **params):
  # Devices say "gpu", whatever their maker; abstract ones also say "cuda".
  device = compat.lowered_for(ctx, ("gpu", platform))
  fun = functools.partial(_fetch_update_gpu, platform, device)
  return fetch_update.lowering(fun)(ctx, *args, **params)


for _platform in ("cuda", "rocm"):
  mlir.register_lowering(
      fetch_update.fetch_update_p,
      functools.partial(_rule, _platform),
      platform=_platform,
  )
