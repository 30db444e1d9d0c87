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
"""The GPU rule of `fetch_update_p` without a GPU: its kernels, in two ways.

`compiled` lowers updates for a GPU, as a user would, and keeps what jax_triton
hands to the driver. `run` then runs the rule itself, with a launch that
executes that PTX, or that runs the kernel in Triton's own interpreter. The
compiler may abort, so it works in a child process; run as a script, this file
is that child.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import pickle
import subprocess
import sys
from typing import Any
from unittest import mock

import jax
import jax_swapext as jsx
from jax_swapext._src import fetch_update
from jax_swapext._src import semantics
from jax_swapext._src.xla import cuda
import numpy as np
import triton_tensor

KINDS = {80: "NVIDIA A100", 90: "NVIDIA H200", 100: "NVIDIA B200"}


@dataclasses.dataclass(frozen=True)
class Update:
  """One binding of `fetch_update_p` to a table of `rows` rows of `columns`.

  `tile` elements go into a tile: small ones make several of few updates.
  """

  op: str
  dtype: str
  order: str
  rows: int = 11
  n: int = 200
  columns: int | None = None
  masked: bool = True
  need_old: bool = True
  reverse: bool = False
  unique: bool = False
  tile: int | None = 128

  @property
  def np_dtype(self) -> np.dtype:
    return jax.numpy.dtype(self.dtype)

  @property
  def row(self) -> tuple[int, ...]:
    return () if self.columns is None else (self.columns,)

  @property
  def params(self) -> dict[str, Any]:
    return dict(
        op=semantics.AtomicOp(self.op), order=self.order, reverse=self.reverse,
        unique_indices=self.unique, need_old=self.need_old,
    )

  def specs(self) -> list[jax.ShapeDtypeStruct]:
    """Of the table, the indices, the operands and the mask."""
    spec = jax.ShapeDtypeStruct
    value = spec((self.n, *self.row), self.np_dtype)
    operands = [value]
    if self.op == "cas":
      operands.append(value)
    if self.op == "add_or_set":
      operands.append(spec(value.shape, np.bool_))
    masks = [spec((self.n,), np.bool_)] * self.masked
    table = spec((self.rows, *self.row), self.np_dtype)
    return [table, spec((self.n,), np.int32), *operands, *masks]

  def bind(self, *args):
    """`fetch_update` on arguments of these types."""
    args, mask = (args[:-1], args[-1]) if self.masked else (args, None)
    return fetch_update.fetch_update(*args, mask=mask, **self.params)

  def tiles(self):
    """A context in which the rule makes tiles of the wanted size."""
    if self.tile is None:
      return contextlib.nullcontext()
    return mock.patch.multiple(
        cuda, _TILE_IN_ORDER=self.tile, _TILE_IN_ANY_ORDER=self.tile
    )


@dataclasses.dataclass(frozen=True)
class Launch:
  """What the driver gets: code, sizes, and scalars among the parameters."""

  ptx: str
  shared: int
  programs: int
  parameters: tuple[int | None, ...]  # None: an array


def available() -> bool:
  """Whether Triton and the plugin that holds its launcher are installed."""
  if importlib.util.find_spec("jax_triton") is None:
    return False
  from jax._src.lib import gpu_triton

  return hasattr(gpu_triton, "TritonKernel")


def abstract_gpu(capability: int = 90):
  """A context in which lowering for CUDA means lowering for that GPU."""
  device = jax.sharding.AbstractDevice(
      device_kind=KINDS[capability], num_cores=1, platform="cuda"
  )
  return jax.sharding.use_abstract_mesh(
      jax.sharding.AbstractMesh((), (), abstract_device=device)
  )


# ## Running


def run(update: Update, launch, *args) -> list[np.ndarray]:
  """The rule on arrays, with `launch` in place of jax_triton's."""
  args, mask = (args[:-1], args[-1]) if update.masked else (args, None)
  with (
      update.tiles(),
      mock.patch.multiple(
          cuda, _launch=launch, _target=lambda *_: (None, 90)
      ),
  ):
    outs = cuda._fetch_update_gpu(
        "cuda", None, *map(jax.numpy.asarray, args),
        mask=None if mask is None else jax.numpy.asarray(mask), **update.params,
    )
  return [np.asarray(o) for o in outs]


def _with_arrays(args, need_old, execute):
  """Gives `execute` copies of the arrays in `args`; puts results into Refs."""
  arrays = [np.array(a[...] if _is_ref(a) else a) for a in args]
  if need_old:
    # Whatever is not written has to be seen.
    value = arrays[-3]
    arrays.append(np.full(value.shape, 1).astype(arrays[0].dtype))
  else:
    arrays.append(arrays[-3])
  execute(arrays)
  for a, array in zip(args, arrays):
    if _is_ref(a):
      a[...] = array
  return [jax.numpy.asarray(arrays[-1])] if need_old else []


def _is_ref(x):
  return isinstance(jax.typeof(x), jax.ref.AbstractRef)


def emitted(launched: Launch, reports: list | None = None, **options):
  """A launch that executes PTX; its reports go to `reports`."""
  from oracles import ptx

  def launch(kernel, *args, need_old, programs, **_):
    assert programs == launched.programs, (kernel, programs)

    def execute(arrays):
      # Words of the table are updated whole, and XLA's buffers are of whole
      # words. What does not belong to the table must stay.
      table = arrays[0]
      padding = np.ones(-table.nbytes % 4 // table.itemsize, table.dtype)
      padded = np.concatenate([table.reshape(-1), padding])
      given = iter([padded, *arrays[1:]])
      values = [next(given) if p is None else p for p in launched.parameters]
      where = [i for i, v in enumerate(values) if isinstance(v, np.ndarray)]
      # Triton's kernels end with two pointers to scratch that these lack.
      after, report = ptx.run(
          launched.ptx, [*values, None, None], grid=(programs,),
          dynamic_shared=launched.shared, **options,
      )
      assert len(where) == len(after)
      flat, *rest = after
      assert (flat[table.size:] == 1).all()
      arrays[0] = flat[: table.size].reshape(table.shape)
      arrays[1 : 1 + len(rest)] = rest
      if reports is not None:
        reports.append(report)

    return _with_arrays(args, need_old, execute)

  return launch


def _interpret(kernel, *args, need_old, programs, num_warps, DTYPE, platform,
               capability, **static):
  """A launch that runs the kernel in Triton's interpreter."""
  from jax_swapext._src.xla import triton_kernels
  import triton.language as tl

  del num_warps, platform, capability
  if DTYPE.itemsize == 2 and static.get("METHOD") == "rmw":
    # Of 16 bits the interpreter has no atomic addition, or one that cannot
    # overflow.
    static["METHOD"] = "loop"

  def execute(arrays):
    [n, columns], rows = arrays[-4].shape, arrays[0].shape[0]
    # What overflows is meant to, and discarded lanes hold anything.
    with np.errstate(all="ignore"):
      getattr(triton_kernels, kernel)[(programs,)](
          *map(triton_tensor.Tensor, arrays), n, rows, columns, **static,
          DTYPE=getattr(tl, DTYPE.name), NEED_OLD=need_old,
      )

  return _with_arrays(args, need_old, execute)


def _interpret_all(requests):
  return [run(update, _interpret, *args) for update, args in requests]


def interpreted(requests) -> list[list[np.ndarray]]:
  """What the rule returns for pairs of an update and arguments.

  Triton decides on import whether it interprets, hence in a child process.
  """
  return in_child("interpret", requests, TRITON_INTERPRET="1")


# ## Compiling


class _Recorder:
  """Stands for the module through which jax_triton makes its kernels."""

  def __init__(self, library):
    self._library = library
    self._kernels = {}
    self.launches = []

  def __getattr__(self, name):
    return getattr(self._library, name)

  def TritonKernel(self, name, num_warps, num_ctas, shared, ptx, *rest):
    kernel = self._library.TritonKernel(
        name, num_warps, num_ctas, shared, ptx, *rest
    )
    # jax_triton keeps kernels, so none of these is given up.
    self._kernels[id(kernel)] = ptx, shared
    return kernel

  def create_array_parameter(self, *args):
    return None, self._library.create_array_parameter(*args)

  def create_scalar_parameter(self, value, dtype):
    return value, self._library.create_scalar_parameter(value, dtype)

  def TritonKernelCall(self, kernel, x, y, z, parameters):
    ptx, shared = self._kernels[id(kernel)]
    values = tuple(value for value, _ in parameters)
    self.launches.append(Launch(ptx, shared, x, values))
    return self._library.TritonKernelCall(
        kernel, x, y, z, [p for _, p in parameters]
    )


@contextlib.contextmanager
def _recording():
  from jax_triton import triton_lib

  recorder = _Recorder(triton_lib.triton_kernel_call_lib)
  with mock.patch.object(triton_lib, "triton_kernel_call_lib", recorder):
    yield recorder.launches


def _lower(update, platform):
  # A function of its own: tiles are no part of what jit remembers.
  return jax.jit(lambda *args: update.bind(*args)).trace(
      *update.specs()
  ).lower(lowering_platforms=(platform,))


def _compile_all(requests):
  found = []
  with _recording() as launches:
    for update, capability in requests:
      launches.clear()
      with update.tiles(), abstract_gpu(capability):
        _lower(update, "cuda")
      [launch] = launches
      found.append(launch)
  return found


def compiled(updates, capability: int = 90) -> dict[Update, Launch]:
  """Compiles updates for a GPU of the given compute capability."""
  updates = list(updates)
  done = in_child("compile", [(u, capability) for u in updates])
  return dict(zip(updates, done, strict=True))


def _compile_for_amd(updates):
  from jax._src.lib import gpu_triton
  from triton.backends.amd import compiler

  stock = compiler.HIPBackend.make_llir

  @staticmethod
  def make_llir(module, metadata, options):
    # What jax_triton 0.4.1 does not tell Triton 3.9.
    metadata.setdefault("num_ctas", options.num_ctas)
    return stock(module, metadata, options)

  found = []
  with (
      _recording() as launches,
      mock.patch.object(compiler.HIPBackend, "make_llir", make_llir),
      mock.patch.object(cuda, "_target", lambda *_: (None, None)),
      # It asks the GPU that is there.
      mock.patch.object(gpu_triton, "get_arch_details", lambda _: "gfx942"),
  ):
    for update in updates:
      launches.clear()
      _lower(update, "rocm")
      [launch] = launches
      with open(launch.ptx, "rb") as file:
        found.append(file.read(4))
  return found


def compiled_for_amd(updates) -> list[bytes]:
  """The first bytes of the code objects for gfx942."""
  return in_child("amd", updates)


def _optimise_all(requests):
  from jax_swapext._src import gpu_compiler

  [gpu] = gpu_compiler.devices_of("h200")
  device = jax.sharding.SingleDeviceSharding(gpu)
  found = []
  for builder, args, donated in requests:
    function, specs = globals()[builder](*args)
    specs = [
        jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=device) for s in specs
    ]
    with abstract_gpu():
      lowered = jax.jit(
          function, donate_argnums=0 if donated else ()
      ).lower(*specs)
    found.append(lowered.compile().as_text())
  return found


def optimised(requests) -> list[str]:
  """The HLO that XLA makes for an H200.

  Args:
    requests: triples of the name of a builder below, its arguments and whether
      the first argument of the function is donated.
  """
  return in_child("optimise", requests)


def on_array(update: Update):
  return update.bind, update.specs()


def on_ref(name: str, operands: int):
  """A function of `jsx` with an index array, on a Ref made of the argument."""
  rows, n = 10**5, 1000

  def function(x, idx, *values):
    ref = jax.new_ref(x)
    old = getattr(jsx, name)(ref, idx, *values)
    return old, jax.freeze(ref)

  spec = jax.ShapeDtypeStruct
  specs = [spec((n,), np.int32)] * (1 + operands)
  return function, [spec((rows,), np.int32), *specs]


def _export():
  from jax import export

  def function(x, idx, value):
    return jsx.fetch_add(x, idx, value)

  check = export.DisabledSafetyCheck.custom_call("triton_kernel_call_ffi")
  spec = jax.ShapeDtypeStruct
  with abstract_gpu():
    exported = export.export(
        jax.jit(function), platforms=("cpu", "cuda"), disabled_checks=[check]
    )(spec((5,), np.int32), spec((6,), np.int32), spec((6,), np.int32))
  return exported.mlir_module(), exported.serialize()


def exported() -> tuple[str, bytearray]:
  """`fetch_add` for CPU and CUDA in one module: its text, and serialised."""
  return in_child("export")


def in_child(task: str, *args, **environment) -> Any:
  """The answer of a task of this file, done in a child process."""
  environment = os.environ | {
      "JAX_PLATFORMS": "cpu",
      "JAX_ENABLE_X64": "1",
      "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
      "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
      **environment,
  }
  done = subprocess.run(
      [sys.executable, "-W", "error", "-W", _KEPT, __file__, task],
      input=pickle.dumps(args), capture_output=True, timeout=600,
      env=environment,
  )
  if done.returncode:
    raise RuntimeError(done.stderr.decode(errors="replace")[-3000:])
  return pickle.loads(done.stdout)


# jax_triton has a temporary folder that it leaves to be removed at exit.
_KEPT = "ignore:Implicitly cleaning up:ResourceWarning"


if __name__ == "__main__":
  # Pickles name this module as its importers do.
  import xla_cuda_kernels

  tasks = {
      "amd": xla_cuda_kernels._compile_for_amd,
      "compile": xla_cuda_kernels._compile_all,
      "export": xla_cuda_kernels._export,
      "interpret": xla_cuda_kernels._interpret_all,
      "optimise": xla_cuda_kernels._optimise_all,
  }
  with os.fdopen(os.dup(1), "wb") as replies:
    os.dup2(2, 1)  # A compiler may print to the standard output.
    pickle.dump(tasks[sys.argv[1]](*pickle.load(sys.stdin.buffer)), replies)
