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
"""Pallas Triton kernels, lowered and compiled by Triton with no GPU.

Run as a script in a child process, since Triton's compiler may abort;
`compiled` is for the parent.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import pathlib
import pickle
import re
import subprocess
import sys
import tempfile
import warnings

import jax
from jax.experimental import pallas as pl
import jax.numpy as jnp
import jax_swapext as jsx
from mosaic_gpu_kernels import Case
import numpy as np
import reference

_KINDS = {80: "NVIDIA A100-SXM4-80GB", 90: "NVIDIA H100 80GB HBM3"}
_DEPRECATED = "The Pallas Triton backend is deprecated and will be removed"


@dataclasses.dataclass(frozen=True)
class Compiled:
  """One kernel: its PTX and bytes of shared memory per architecture."""

  ptx: dict[int, str]
  shared: dict[int, int]


def available() -> bool:
  """Whether Triton, which is the compiler, is installed."""
  return importlib.util.find_spec("triton") is not None


def access(case: Case):
  """(function, specs): x, operands, mask and indices to old and new x.

  The kernel finds x in the last result, which is x's buffer.
  """
  n, traced = case.operands, case.traced()

  def body(*refs):
    refs = list(refs)
    del refs[0]
    operand_refs = [refs.pop(0) for _ in range(n)]
    mask_ref = refs.pop(0) if case.mask else None
    index_refs = [refs.pop(0) for _ in traced]
    old_ref = refs.pop(0) if case.returns else None
    [ref] = refs
    read = lambda r: r[...] if case.region else r[0]
    parts = []
    for part in case.parts:
      if isinstance(part, np.ndarray):
        parts.append(index_refs.pop(0)[...])
      elif isinstance(part, reference.Window):
        start = index_refs.pop(0)[0] if case.dynamic else part.start
        parts.append(pl.ds(start, part.size, part.stride))
      elif case.dynamic and isinstance(part, int):
        parts.append(index_refs.pop(0)[0])
      else:
        parts.append(part)
    operands = [read(r) for r in operand_refs]
    kwargs = dict(case.kwargs)
    if case.mask:
      kwargs["mask"] = read(mask_ref)
    if case.op == "load" and case.other:
      kwargs["other"] = operands.pop()
    index = tuple(parts) if case.index is not None else None
    old = getattr(jsx, case.op)(ref, index, *operands, **kwargs)
    if case.returns:
      jsx.store(old_ref, None if case.region else 0, old)

  spec = jax.ShapeDtypeStruct
  x = spec(case.shape, case.np_dtype)
  value = spec(case.region or (1,), case.np_dtype)
  specs = [x, *[value] * n]
  if case.mask:
    specs.append(spec(value.shape, jnp.bool_))
  specs += [spec(t.shape, t.dtype) for t in traced]
  out = [value] * case.returns + [x]
  return _call(body, out, input_output_aliases={0: len(out) - 1}), specs


def blocks():
  """x + 1 in blocks of a row, in some order; the last block leaves the row."""

  def body(x_ref, order_ref, o_ref):
    order = order_ref[...]
    jsx.store(o_ref, order, jsx.load(x_ref, order) + 1)

  spec = jax.ShapeDtypeStruct
  x, order = spec((4, 100), jnp.int32), spec((32,), jnp.int32)
  block = pl.BlockSpec((None, 32), lambda i, j: (i, j))
  return _call(
      body, x, grid=(4, 4), in_specs=[block, pl.BlockSpec()], out_specs=block,
  ), [x, order]


def form(case: Case, viewed: bool):
  """A plain access of all of x, or of pairs of its elements as one."""

  def body(x_ref, o_ref):
    if viewed:
      x_ref, o_ref = x_ref.bitcast(jnp.int16), o_ref.bitcast(jnp.int16)
    old = getattr(jsx, case.op)(x_ref, None, *[0] * (case.op != "load"))
    if case.returns:
      jsx.store(o_ref, None, old)

  x = jax.ShapeDtypeStruct(case.shape, case.np_dtype)
  return _call(body, x), [x]


def extended(name: str):
  """What stock refuses, decorated."""
  import extended_triton_kernels

  return extended_triton_kernels.build(name)


def _call(body, out, **kwargs):
  from jax.experimental.pallas import triton as pltriton

  return pl.pallas_call(
      body, out_shape=out, compiler_params=pltriton.CompilerParams(), **kwargs)


def same_as_stock(name: str, ours: bool):
  """What JAX's own syntax can say, in it or in ours."""
  from jax.experimental.pallas import triton as pltriton

  acquire = dict(sem="acq_rel")  # As JAX's atomics, which have no choice.

  def body(x_ref, o_ref):
    match name, ours:
      case "whole", True:
        jsx.store(o_ref, None, jsx.load(x_ref))
      case "whole", False:
        o_ref[...] = x_ref[...]
      case "slices", True:
        value = jsx.load(x_ref, (pl.ds(4, 2), pl.ds(1, 8, 2)))
        jsx.store(o_ref, (pl.ds(2, 2), pl.ds(0, 8)), value)
      case "slices", False:
        o_ref[pl.ds(2, 2), pl.ds(0, 8)] = x_ref[pl.ds(4, 2), pl.ds(1, 8, 2)]
      case "element", True:
        jsx.store(o_ref, (1, 2), jsx.load(x_ref, (3, 4)))
      case "element", False:
        o_ref[1, 2] = x_ref[3, 4]
      case "masked", True:
        x = jsx.load(x_ref)
        jsx.store(o_ref, None, x, mask=x > 0)
      case "masked", False:
        x = x_ref[...]
        pltriton.store(o_ref, x, mask=x > 0)
      case "atomic_add", True:
        jsx.atomic_add(o_ref, None, jsx.load(x_ref), **acquire)
      case "atomic_add", False:
        pltriton.atomic_add(o_ref, ..., x_ref[...])

  spec = jax.ShapeDtypeStruct((8, 32), jnp.float32)
  return _call(body, spec), [spec]


SAME_AS_STOCK = ("whole", "slices", "element", "masked", "atomic_add")


# ## The child


def lower(builder, *args, architecture: int = 90) -> str:
  """The kernel in Triton's language, as JAX hands it to the compiler."""
  # Private: nothing public gives a kernel's module in a form that can be read.
  from jax._src.pallas.triton import lowering

  function, specs = builder(*args)
  device = jax.sharding.AbstractDevice(
      device_kind=_KINDS[architecture], num_cores=1, platform="cuda")
  auto = (jax.sharding.AxisType.Auto,)
  mesh = jax.sharding.AbstractMesh((1,), ("x",), auto, abstract_device=device)
  texts = []
  stock = lowering.lower_jaxpr_to_triton_module

  def keep_text(*args, **kwargs):
    result = stock(*args, **kwargs)
    texts.append(result.module.operation.get_asm(enable_debug_info=False))
    return result

  lowering.lower_jaxpr_to_triton_module = keep_text
  try:
    with warnings.catch_warnings(), jax.sharding.use_abstract_mesh(mesh):
      warnings.filterwarnings(
          "ignore", message=_DEPRECATED, category=DeprecationWarning)
      jax.jit(function).trace(*specs).lower(lowering_platforms=("cuda",))
  finally:
    lowering.lower_jaxpr_to_triton_module = stock
  [text] = texts
  return text


def _compile_all(requests):
  import triton
  from triton.backends.compiler import GPUTarget

  found = []
  with tempfile.TemporaryDirectory() as folder:
    for i, (builder, args) in enumerate(requests):
      ptx, shared = {}, {}
      try:
        for architecture in _KINDS:
          path = pathlib.Path(folder, f"k{i}_{architecture}.ttir")
          path.write_text(
              lower(globals()[builder], *args, architecture=architecture))
          result = triton.compile(
              str(path), target=GPUTarget("cuda", architecture, 32),
              options={"num_warps": 4})
          ptx[architecture] = result.asm["ptx"]
          shared[architecture] = result.metadata.shared
        found.append(Compiled(ptx, shared))
      except Exception as e:
        found.append(f"{type(e).__name__}: {e}")
  return found


def compiled(requests, x64: bool = False) -> list[Compiled | str]:
  """Compiles (name of a builder here, arguments) in one child process.

  Args:
    requests: what to compile.
    x64: whether arrays may have 64-bit elements.

  Returns:
    For each request the kernel, or what was raised.
  """
  done = subprocess.run(
      [sys.executable, "-W", "ignore", __file__], input=pickle.dumps(requests),
      capture_output=True, timeout=600, env=_environment(x64))
  if done.returncode:
    raise RuntimeError(done.stderr.decode(errors="replace")[-3000:])
  return pickle.loads(done.stdout)


def _environment(x64):
  return os.environ | {
      "JAX_PLATFORMS": "cpu",
      "JAX_ENABLE_X64": str(int(x64)),
      "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
  }


def instructions(text: str) -> list[str]:
  """The lines of PTX without comments, source locations and blank ones."""
  text = re.sub(r"//[^\n]*", "", text).split(".section")[0]
  lines = [line.strip() for line in text.splitlines()]
  places = (".loc", ".file", "$L__tmp")
  return [line for line in lines if line and not line.startswith(places)]


if __name__ == "__main__":
  # Pickles name this module as its importers do.
  import pallas_triton_kernels

  answer = pallas_triton_kernels._compile_all(pickle.load(sys.stdin.buffer))
  sys.stdout.buffer.write(pickle.dumps(answer))
