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
"""Compiling for TPUs and GPUs that are not there; see `jax_swapext.testing`."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import inspect
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from typing import Any

import jax
from jax import export
import jax.numpy as jnp
from jax_swapext._src import gpu_compiler
from jax_swapext._src import tpu_compiler

TARGETS = (
    *(g if g == "tpu7x" else f"tpu-{g}" for g in tpu_compiler.TOPOLOGIES),
    *gpu_compiler.GPUS,
)


class CompileError(Exception):
  """A compiler refused a program, hung or ended its process.

  Attributes:
    target: what was compiled for.
    output: the compiler's last words.
  """

  def __init__(self, target: str, reason: str, output: str):
    super().__init__(f"{target}: {reason}\n{output}".rstrip())
    self.target, self.output = target, output


@dataclasses.dataclass(frozen=True, repr=False)
class Compiled:
  """A program that has been compiled.

  Attributes:
    target: what for, one of `TARGETS`.
    module: StableHLO, as given to the compiler.
    hlo: what XLA made of it.
    ptx: GPU: PTX of all Mosaic GPU kernels; where there are kernels of Pallas
      Triton, of those and all else that XLA compiles.
    registers: GPU: hardware registers of a thread, in the Mosaic GPU kernel
      that needs most of them.
    bundles: TPU: how many bundles of instructions the kernels have, on the
      TensorCore or else on the SparseCore.
    cycles: SparseCore: bundles and stalls, each instruction counted once.
    temporary_bytes: memory for what is neither argument nor result.

  What there is none of is None.
  """

  target: str
  module: str
  hlo: str
  ptx: str | None = None
  registers: int | None = None
  bundles: int | None = None
  cycles: int | None = None
  temporary_bytes: int | None = None

  def __repr__(self) -> str:
    return f"<Compiled for {self.summary()}>"

  def summary(self) -> str:
    """One line with what has been counted."""
    counts = {
        "bundles": self.bundles,
        "cycles": self.cycles,
        "registers": self.registers,
        "bytes of temporary memory": self.temporary_bytes,
    }
    if self.ptx is not None:
      instruction = r"^\s*(?:@!?%\w+\s+)?[a-z][\w.:]*\s[^;\n]*;"
      counts["PTX instructions"] = len(
          re.findall(instruction, self.ptx, re.MULTILINE)
      )
    known = [f"{n} {what}" for what, n in counts.items() if n is not None]
    return f"{self.target}: {', '.join(known) or 'compiles'}"


def compile_for(
    target: str, fn: Callable[..., Any], *args: Any, timeout: float = 300,
    **options: Any,
) -> Compiled:
  """Compiles a function for a TPU or GPU that need not be there.

  The function is traced and lowered here; a child process compiles it, since
  compilers can abort. Meshes of SparseCore kernels ask what device there is, so
  make them in the function.

  Args:
    target: one of ``"tpu-v5e"``, ``"tpu-v5p"``, ``"tpu-v6e"``, ``"tpu7x"``,
      ``"h100"``, ``"h200"``, ``"b200"``.
    fn: any function that :func:`jax.jit` takes.
    *args: its arguments: arrays, or anything with a shape and a dtype; static
      ones as they are.
    timeout: seconds that the compiler has.
    **options: for :func:`jax.jit`, such as ``donate_argnums``.

  Returns:
    What came out, see :class:`Compiled`.

  Raises:
    ValueError: unknown target.
    ModuleNotFoundError: the compiler is not installed.
    CompileError: the compiler refused, aborted or hung.
    Exception: whatever tracing and lowering raise.
  """
  check_target(target)
  module, exported, donated = _lower(target, fn, args, options)
  with tempfile.TemporaryDirectory() as folder:
    program = pathlib.Path(folder, "program")
    dump = pathlib.Path(folder, "dump")
    program.write_bytes(exported)
    for kind in ("sc", "tc"):
      (dump / kind).mkdir(parents=True)
    compiler = tpu_compiler if _is_tpu(target) else gpu_compiler
    env = compiler.environment(str(dump))
    env["JAX_ENABLE_X64"] = str(jax.config.jax_enable_x64)
    env["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    command = [
        sys.executable, "-m", "jax_swapext._src.compile_child", target,
        str(program), str(dump), *map(str, donated),
    ]
    try:
      done = subprocess.run(
          command, env=env, timeout=timeout, capture_output=True, text=True,
          errors="replace",
      )
    except subprocess.TimeoutExpired as e:
      said = (e.stderr or b"")[-2000:].decode(errors="replace")
      raise CompileError(
          target, f"the compiler did not finish in {timeout} s", said
      ) from None
    answer = pathlib.Path(folder, "program.json")
    if not answer.exists():
      raise CompileError(
          target,
          f"the compiler ended its process with status {done.returncode}",
          done.stderr[-2000:],
      )
    found = json.loads(answer.read_text())
  if "error" in found:
    raise CompileError(target, "the compiler refused", found["error"])
  return Compiled(target=target, module=module, **found)


def _is_tpu(target: str) -> bool:
  return target.startswith("tpu")


def check_target(target: str) -> None:
  """Raises unless a target is known and its compiler is installed."""
  if target not in TARGETS:
    raise ValueError(
        f"compile_for: wanted one of {', '.join(TARGETS)}, got {target!r}."
    )
  if _is_tpu(target):
    compiler, package = tpu_compiler, "libtpu"
  else:
    compiler, package = gpu_compiler, "jax-cuda13-plugin"
  if not compiler.is_available():
    raise ModuleNotFoundError(
        f"compile_for: {target} needs a compiler that is not installed: pip"
        f" install {package}"
    )


def _lower(target, fn, args, options) -> tuple[str, bytearray, list[int]]:
  """Lowers here, where the function is.

  Returns:
    The program as text; what the child can read; and which arguments, counted
    over all leaves, are donated.
  """
  if _is_tpu(target):
    platform, device = "tpu", tpu_compiler.abstract_device(target)
  else:
    platform, device = "cuda", gpu_compiler.abstract_device(target)
  mesh = jax.sharding.AbstractMesh(
      (1,), ("device",), axis_types=(jax.sharding.AxisType.Auto,),
      abstract_device=device,
  )
  static = _static_positions(fn, len(args), **options)
  specs = [
      a if k in static else jax.tree.map(_spec, a) for k, a in enumerate(args)
  ]
  with jax.sharding.use_abstract_mesh(mesh):
    traced = jax.jit(fn, **options).trace(*specs)
    lowered = traced.lower(lowering_platforms=(platform,))
    module = lowered.as_text()
    # The child has the same version of everything, so any call is safe.
    calls = set(re.findall(r'custom_call @"?([\w.$]+)', module))
    program = export.export(
        jax.jit(fn, **options), platforms=[platform],
        disabled_checks=[
            export.DisabledSafetyCheck.custom_call(name) for name in calls
        ],
    )(*specs)
  leaves = jax.tree.leaves(lowered.args_info)
  donated = [k for k, info in enumerate(leaves) if info.donated]
  return module, program.serialize(), donated


def _static_positions(
    fn, count, *, static_argnums=(), static_argnames=(), **_
) -> set[int]:
  """Which of `count` arguments `jax.jit` takes for static."""
  if isinstance(static_argnums, int):
    static_argnums = (static_argnums,)
  if isinstance(static_argnames, str):
    static_argnames = (static_argnames,)
  positions = {k % count for k in static_argnums or () if -count <= k < count}
  if static_argnames:
    parameters = enumerate(inspect.signature(fn).parameters)
    positions |= {k for k, name in parameters if name in static_argnames}
  return positions


def _spec(x: Any) -> jax.ShapeDtypeStruct:
  if not hasattr(x, "dtype"):
    x = jnp.asarray(x)
  return jax.ShapeDtypeStruct(x.shape, x.dtype)
