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
"""Compiles Pallas Mosaic GPU kernels to PTX for a GPU that is not there.

The compiler runs in a child process, which may be killed or abort without
harm; run as a script, this file is that child.  `Kernel.run` executes what was
compiled (see `oracles.ptx`).

Needs the CUDA plugin of JAX, but no GPU.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import importlib.util
import inspect
import os
import pathlib
import pickle
import re
import select
import shutil
import struct
import subprocess
import sys
import tempfile

import numpy as np

_TIMEOUT_S = 300


class CompileError(Exception):
  """The child raised, or died; `kind` is the exception's type name there."""

  def __init__(self, kind: str, message: str):
    super().__init__(f"{kind}: {message}")
    self.kind, self.message = kind, message


@dataclasses.dataclass(frozen=True)
class Kernel:
  """A jitted function of one Mosaic GPU kernel, compiled.

  Attributes:
    ptx: the module given to ptxas.
    host: LLVM IR of the host function.
    ptxas: what ptxas reported.
    architecture: such as "sm_90a".
    operands: per operand of the kernel call, the argument that it is.
    results: (shape, dtype) per result of the kernel call.
    aliases: result to operand, where both are one buffer.
    outputs: per output of the function, the result that it is.
  """

  ptx: str
  host: str
  ptxas: str
  architecture: str
  operands: tuple[int, ...]
  results: tuple[tuple[tuple[int, ...], str], ...]
  aliases: dict[int, int]
  outputs: tuple[int, ...]

  def run(self, *arguments, **kwargs):
    """Executes the PTX; returns the function's outputs and the report.

    Args:
      *arguments: NumPy arrays, the function's arguments.
      **kwargs: as for `oracles.ptx.run_mosaic`.
    """
    from oracles import ptx
    garbage = np.random.default_rng(0)
    buffers = [np.asarray(arguments[i]) for i in self.operands]
    place = dict(self.aliases)
    for i, (shape, dtype) in enumerate(self.results):
      if i not in place:
        place[i] = len(buffers)
        dtype = _dtype(dtype)
        raw = garbage.integers(
            0, 256, int(np.prod(shape)) * dtype.itemsize, np.uint8)
        buffers.append(raw.view(dtype).reshape(shape))
    after, report = ptx.run_mosaic(self.ptx, self.host, buffers, **kwargs)
    return [after[place[i]] for i in self.outputs], report

  def counts(self, *roots: str) -> dict[str, int]:
    """How often each PTX opcode of the given roots occurs in the text."""
    found = collections.Counter()
    for match in re.finditer(
        r"^\s*(?:@!?%?\w+\s+)?([a-z][\w.:]*)\s[^;\n]*;", self.ptx, re.M):
      opcode = match.group(1)
      if opcode.split(".")[0] in roots and not opcode.startswith("ld.param"):
        found[opcode] += 1
    return dict(sorted(found.items()))

  @property
  def hardware_registers(self) -> int:
    return int(re.search(r"Used (\d+) registers", self.ptxas).group(1))

  def sass(self) -> list[str] | None:
    """The machine instructions, or None where no assembler is at hand."""
    tools = _tools()
    if tools is None:
      return None
    ptxas, nvdisasm = tools
    with tempfile.TemporaryDirectory() as folder:
      source, cubin = pathlib.Path(folder, "k.ptx"), f"{folder}/k.cubin"
      source.write_text(self.ptx)
      subprocess.run(
          [ptxas, f"-arch={self.architecture}", str(source), "-o", cubin],
          check=True, timeout=_TIMEOUT_S, capture_output=True)
      text = subprocess.run(
          [nvdisasm, "-c", cubin], check=True, timeout=_TIMEOUT_S,
          capture_output=True, text=True).stdout
    lines = re.findall(r"/\*[0-9a-f]{4,}\*/\s+(.*?);", text)
    code = [line.strip() for line in lines]
    while code and code[-1].split()[0] in ("NOP", "BRA"):
      code.pop()  # Padding, and the endless loop that ends every kernel.
    return code


def _dtype(name: str) -> np.dtype:
  import ml_dtypes
  return np.dtype(getattr(ml_dtypes, name, name))


@functools.cache
def _tools() -> tuple[str, str] | None:
  """Paths of ptxas and nvdisasm: on PATH, or those that Triton brings."""
  folders = [None]
  spec = importlib.util.find_spec("triton")
  if spec is not None and spec.origin:
    folders.append(str(pathlib.Path(spec.origin).parent / "backends" / "nvidia"
                       / "bin"))
  for folder in folders:
    # Triton's newer one comes first: the older may not know the PTX version.
    ptxas = (shutil.which("ptxas-blackwell", path=folder)
             or shutil.which("ptxas", path=folder))
    nvdisasm = shutil.which("nvdisasm", path=folder)
    if ptxas and nvdisasm:
      return ptxas, nvdisasm
  return None


def available() -> bool:
  """Whether the CUDA plugin that holds the compiler is installed."""
  return _gpus().is_available()


class Compiler:
  """A child process that compiles for one target; restarts when it dies.

  Args:
    target: "h200" or "b200".
    environment: more variables for the child.
    devices: how many run the function, along a mesh axis named "device". What
      is compiled for more than one cannot be run.
  """

  def __init__(self, target: str = "h200", environment=None, devices: int = 1):
    self._target, self._devices = target, devices
    self._environment = environment or {}
    self._child: subprocess.Popen | None = None

  def _start(self):
    environment = dict(
        os.environ, JAX_PLATFORMS="cpu", JAX_SKIP_CUDA_CONSTRAINTS_CHECK="1",
        MOSAIC_GPU_DUMP_PTX="1", MOSAIC_GPU_DUMP_PTXAS="1",
        MOSAIC_GPU_DUMP_HOST_LLVM="1", **self._environment)
    root = pathlib.Path(__file__).parents[2]
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(root), str(root / "tests"), *filter(None, [
            os.environ.get("PYTHONPATH")])])
    self._log = tempfile.TemporaryFile()
    self._child = subprocess.Popen(
        [sys.executable, "-W", "ignore", __file__, self._target,
         str(self._devices)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
        env=environment)

  def close(self):
    if self._child is not None:
      self._child.stdin.close()
      self._child.stdout.close()
      try:
        self._child.wait(timeout=10)
      except subprocess.TimeoutExpired:
        self._child.kill()
        self._child.wait()
      self._log.close()
      self._child = None

  def compile(self, builder, *args, **kwargs) -> Kernel:
    """Compiles `fn` for arguments `specs`, where builder(...) gives both.

    Args:
      builder: a function at module level returning (fn, specs); it runs in the
        child, which imports its file.
      *args: for the builder; pickled.
      **kwargs: for the builder; pickled.

    Raises:
      CompileError: whatever the child raised, or that it died.
    """
    if self._child is None or self._child.poll() is not None:
      self.close()
      self._start()
    request = (inspect.getsourcefile(builder), builder.__qualname__, args,
               kwargs)
    try:
      _send(self._child.stdin, request)
      ready, _, _ = select.select([self._child.stdout], [], [], _TIMEOUT_S)
      if not ready:
        self._child.kill()
        raise EOFError
      kind, *rest = _receive(self._child.stdout)
    except (EOFError, BrokenPipeError):
      self._child.wait()
      self._log.seek(0)
      tail = self._log.read()[-2000:].decode(errors="replace")
      code = self._child.returncode
      self.close()
      raise CompileError("Died", f"exit status {code}\n{tail}") from None
    if kind == "error":
      raise CompileError(*rest)
    return Kernel(*rest)


@functools.cache
def compiler(target: str = "h200") -> Compiler:
  """The one compiler of this process for a target."""
  import atexit
  result = Compiler(target)
  atexit.register(result.close)
  return result


def _send(stream, message):
  data = pickle.dumps(message)
  stream.write(struct.pack("<Q", len(data)) + data)
  stream.flush()


def _receive(stream):
  header = stream.read(8)
  if len(header) < 8:
    raise EOFError
  return pickle.loads(stream.read(struct.unpack("<Q", header)[0]))


# The child -------------------------------------------------------------------


@functools.cache
def _load(path: str):
  name = "kernels_of_" + pathlib.Path(path).stem
  spec = importlib.util.spec_from_file_location(name, path)
  module = importlib.util.module_from_spec(spec)
  sys.modules[name] = module
  spec.loader.exec_module(module)
  return module


def _gpus():
  """The package's `gpu_compiler`, without the package.

  Importing that changes what stock refuses, which the child is to find out.
  """
  root = pathlib.Path(__file__).parents[2]
  return _load(str(root / "jax_swapext" / "_src" / "gpu_compiler.py"))


@functools.cache
def _mesh(target: str, devices: int):
  import jax
  found = _gpus().devices_of(target, devices)
  return jax.sharding.Mesh(np.array(found), ("device",))


def _kernel_call(lowered):
  """(key, operands, results, aliases, outputs) of the lowered function."""
  module = lowered.compiler_ir("stablehlo")
  [main] = [op for op in module.body.operations
            if op.operation.name == "func.func" and op.name.value == "main"]
  body = main.regions[0].blocks[0]
  calls = [op for op in body.operations if op.operation.name ==
           "stablehlo.custom_call"]
  if len(calls) != 1 or len(list(body.operations)) != 2:
    raise ValueError(
        f"expected nothing but one kernel call, got\n{str(main)[:2000]}")
  call, terminator = list(body.operations)
  arguments = list(body.arguments)
  operands = tuple(arguments.index(v) for v in call.operands)
  results = tuple(
      (tuple(r.type.shape), _item_name(r.type.element_type))
      for r in call.results)
  aliases = {}
  for alias in call.attributes["output_operand_aliases"] if (
      "output_operand_aliases" in call.attributes) else ():
    text = str(alias)
    output = re.search(r"output_tuple_indices = \[(\d*)\]", text).group(1)
    operand = re.search(r"operand_index = (\d+)", text).group(1)
    aliases[int(output or 0)] = int(operand)
  returned = list(call.results)
  outputs = tuple(returned.index(v) for v in terminator.operands)
  key = str(call.attributes["mhlo.backend_config"]["kernel_hash"])
  return key, operands, results, aliases, outputs


def _item_name(element) -> str:
  text = str(element)
  small = {"f8E4M3FN": "float8_e4m3fn", "f8E5M2": "float8_e5m2",
           "bf16": "bfloat16", "i1": "bool"}
  if text in small:
    return small[text]
  match = re.fullmatch(r"(ui|i|f)(\d+)", text)
  return {"ui": "uint", "i": "int", "f": "float"}[match.group(1)] + (
      match.group(2))


_texts: dict[str, tuple[str, str, str]] = {}


def _compile_here(target, devices, path, qualname, args, kwargs):
  import jax
  builder = _load(path)
  for name in qualname.split("."):
    builder = getattr(builder, name)
  function, specs = builder(*args, **kwargs)
  mesh = _mesh(target, devices)
  sharding = jax.sharding.SingleDeviceSharding(mesh.devices[0])
  if devices > 1:
    whole = jax.sharding.PartitionSpec()
    sharding = jax.sharding.NamedSharding(mesh, whole)
    function = jax.shard_map(function, mesh=mesh, in_specs=whole,
                             out_specs=whole, check_vma=False)
  specs = [jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding)
           for s in specs]
  with tempfile.TemporaryDirectory() as folder:
    os.environ["MOSAIC_GPU_DUMP_TO"] = folder
    lowered = jax.jit(function).trace(*specs).lower()
    key, *call = _kernel_call(lowered) if devices == 1 else (
        None, (), (), {}, ())
    lowered.compile()
    texts = []
    for suffix in ("ptx", "ll", "ptxas"):
      files = list(pathlib.Path(folder).glob(f"*.{suffix}"))
      # A module compiled before gives no new dump.
      texts.append(files[0].read_text() if files else None)
  if texts[0] is not None:
    _texts[key] = tuple(texts)
  return (*_texts[key], _gpus().architecture(target), *call)


def _serve(target: str, devices: int):
  replies = os.fdopen(os.dup(1), "wb")
  os.dup2(2, 1)  # The compiler prints to the standard output.
  requests = sys.stdin.buffer
  while True:
    try:
      request = _receive(requests)
    except EOFError:
      return
    try:
      reply = ("kernel", *_compile_here(target, devices, *request))
    except Exception as error:
      reply = ("error", type(error).__name__, str(error))
    _send(replies, reply)


if __name__ == "__main__":
  _serve(sys.argv[1], int(sys.argv[2]))
