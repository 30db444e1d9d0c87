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
"""Compiles kernels with the real libtpu on a machine that has no TPU.

The compiler may abort the process, and reads its flags once. So kernels are
compiled in a child process that reports each one as it goes: when it dies, the
kernel it was at is the culprit, and a new child goes on with the next.

A factory is a function, named by module and name, that returns
`{kernel name: (function, shapes of its arguments)}`.
"""

from collections.abc import Sequence
import dataclasses
import glob
import importlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import traceback

from jax_swapext._src import tpu_compiler

GENERATIONS = tuple(tpu_compiler.TOPOLOGIES)
SPARSE_GENERATIONS = ("v5p", "v6e", "tpu7x")

_TESTS = pathlib.Path(__file__).resolve().parents[1]
_SECONDS_PER_CHILD = 500


@dataclasses.dataclass(frozen=True)
class Compiled:
  """What became of one kernel.

  Attributes:
    error: The exception, or how the compiler died; empty when it compiled.
    bundles: Scheduled instruction bundles of all its cores' programs.
    cycles: Bundles plus the stalls scheduled into them; SparseCore only.
    text: The final TensorCore or SparseCore assembly, when asked for.
  """

  error: str = ""
  bundles: int | None = None
  cycles: int | None = None
  text: str = ""

  @property
  def ok(self) -> bool:
    return not self.error


def compile_all(
  module: str,
  factory: str,
  generation: str,
  *,
  names: Sequence[str] = (),
  share: tuple[int, int] = (0, 1),
  text: bool = False,
) -> dict[str, Compiled]:
  """Compiles all kernels of a factory, or those named, or a share of them.

  Args:
    module: Module of the factory, importable from the tests folder.
    factory: Its name there.
    generation: One of `GENERATIONS`.
    names: Which kernels; none means all.
    share: `(k, n)`: the k-th of these, the n-th after it and so on.
    text: Whether to return the assembly too.

  Returns:
    One entry per kernel.

  Raises:
    RuntimeError: The child died before it compiled anything.
  """
  results: dict[str, Compiled] = {}
  request = dict(
    module=module,
    factory=factory,
    generation=generation,
    names=list(names),
    share=share,
    skip=[],
    text=text,
  )
  while True:
    request["skip"] = list(results)
    current, finished, stderr = _run_child(request, results)
    if finished:
      return results
    if current is None:
      raise RuntimeError(f"the compiler's process died:\n{stderr[-2000:]}")
    results[current] = Compiled(
      error=f"the compiler aborted:\n{stderr[-2000:]}"
    )


def _run_child(request, results):
  with tempfile.TemporaryDirectory() as dump:
    request["dump"] = dump
    environment = dict(
      tpu_compiler.environment(dump),
      PYTHONPATH=os.pathsep.join(
        [str(_TESTS), str(_TESTS.parent), os.environ.get("PYTHONPATH", "")]
      ),
    )
    with tempfile.TemporaryFile("w+") as stderr:
      child = subprocess.Popen(
        [sys.executable, "-m", "oracles.tpu_compile", json.dumps(request)],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env=environment,
      )
      current, finished = None, False
      watchdog = threading.Timer(_SECONDS_PER_CHILD, child.kill)
      watchdog.start()
      try:
        for line in child.stdout:
          if not line.startswith("@"):
            continue
          message = json.loads(line[1:])
          match message["kind"]:
            case "start":
              current = message["name"]
            case "done":
              results[message["name"]] = Compiled(**message["result"])
              current = None
            case "end":
              finished = True
        child.wait()
      finally:
        watchdog.cancel()
        child.kill()
        child.stdout.close()
        child.wait()
      stderr.seek(0)
      return current, finished, stderr.read()


def _tell(**message) -> None:
  print("@" + json.dumps(message), flush=True)


def _tensorcore(dump: str, names: Sequence[str], want_text: bool):
  text = ""
  for name in names:
    final = rf"/\d+-{re.escape(name)}(\.\d+)?-\d+-final_bundles"
    for path in glob.glob(f"{dump}/tc/*final_bundles.txt"):
      if want_text and re.search(final, path):
        text += pathlib.Path(path).read_text()
  return tpu_compiler.tensorcore_bundles(dump, names), text


def _wipe(dump: str) -> None:
  for path in glob.glob(f"{dump}/*/**", recursive=True):
    if os.path.isfile(path):
      os.unlink(path)


def _error_text(error: Exception) -> str:
  text = f"{type(error).__name__}: {error}"
  return text if str(error) else "".join(traceback.format_exception(error))


def _child(request) -> None:
  import jax

  from oracles.mosaic_ir import program

  dump = request["dump"]
  generation = request["generation"]
  for folder in ("sc", "tc"):
    os.makedirs(f"{dump}/{folder}", exist_ok=True)
  sharding = jax.sharding.SingleDeviceSharding(
    tpu_compiler.devices_of(generation)[0]
  )
  module = importlib.import_module(request["module"])
  kernels = getattr(module, request["factory"])()
  first, step = request["share"]
  for name, (f, shapes) in list(kernels.items())[first::step]:
    if name in request["skip"]:
      continue
    if request["names"] and name not in request["names"]:
      continue
    _tell(kind="start", name=name)
    _wipe(dump)
    try:
      shapes = jax.tree.map(
        lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding),
        tuple(shapes),
      )
      with tpu_compiler.target(generation):
        lowered = jax.jit(f).lower(*shapes)
        called = program.decode_kernels(lowered.compiler_ir())
        lowered.compile()
      if any("sparse_core_config" in k.config for k in called):
        bundles, cycles, text = tpu_compiler.sparsecore_bundles(dump)
        text = text if request["text"] else ""
      else:
        bundles, text = _tensorcore(
          dump, sorted({k.name for k in called}), request["text"]
        )
        cycles = None
      result = Compiled("", bundles, cycles, text)
    except Exception as error:  # Whatever it is, it is the kernel's result.
      result = Compiled(error=_error_text(error))
    _tell(kind="done", name=name, result=dataclasses.asdict(result))
  _tell(kind="end")


if __name__ == "__main__":
  _child(json.loads(sys.argv[1]))
