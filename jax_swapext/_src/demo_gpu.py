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
"""One warp of a Hopper GPU stores an array: compiled here, with no GPU.

Compilers may abort, and tell a dump's place by the environment: both are kept
to a child process, which is this file run as a module.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

TITLE = "128 float32 numbers stored to shared memory by one warp"
PLUGINS = ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12")
MISSING = (
    "needs the compiler, but no GPU: pip install jax-cuda13-plugin"
)
CALLS = {"stock": "ref[...] = x", "ours": "jsx.store"}

_TIMEOUT_S = 300
_HOPPER = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block_optin: 232448
  core_count: 132
  cuda_compute_capability { major: 9 feature_extension: ACCELERATED_FEATURES }
}
platform_name: "CUDA"
"""


def is_available() -> bool:
  """Whether a plugin with the compiler is installed."""
  if importlib.util.find_spec("jax_plugins") is None:
    return False
  return any(importlib.util.find_spec(name) for name in PLUGINS)


def attempts() -> dict[str, tuple[str, str]]:
  """For each library (status, PTX instructions of the store or the error).

  The status is "compiles" or "refused".
  """
  with tempfile.TemporaryDirectory() as folder:
    env = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
        "MOSAIC_GPU_DUMP_PTX": "1",
        "MOSAIC_GPU_DUMP_TO": folder,
    }
    answer = pathlib.Path(folder) / "answer"
    try:
      done = subprocess.run(
          # What the compiler warns of is not what is to be shown.
          [sys.executable, "-W", "ignore", "-m", __name__, str(answer)],
          env=env, timeout=_TIMEOUT_S, capture_output=True, text=True,
      )
    except subprocess.TimeoutExpired:
      return {library: ("refused", "the compiler hangs") for library in CALLS}
    if not answer.exists():
      last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
      why = f"the compiler exits with {done.returncode}, saying {last}"
      return {library: ("refused", why) for library in CALLS}
    return {k: tuple(v) for k, v in json.loads(answer.read_text()).items()}


# ## The child


def _compile(library: str) -> tuple[str, str]:
  """Compiles the kernel and reads the store in the dump."""
  import jax
  from jax import lax
  from jax.experimental import pallas as pl
  from jax.experimental import topologies
  from jax.experimental.pallas import mosaic_gpu as plgpu
  import jax.numpy as jnp
  import jax_swapext as jsx

  def store(ref: Any, x: jax.Array) -> None:
    if library == "stock":
      ref[...] = x
    else:
      jsx.store(ref, None, x)

  def kernel(x_ref, o_ref, scratch_ref):
    def in_warp():
      @pl.when(lax.axis_index("warp") == 0)
      def _():
        x = x_ref[0] + lax.iota(jnp.float32, 128)
        store(scratch_ref, x)
        o_ref[0] = scratch_ref[127]

    warps = plgpu.WarpMesh(axis_name="warp")
    run: Any = pl.kernel(in_warp, mesh=warps)
    run()

  out = jax.ShapeDtypeStruct((1,), jnp.float32)
  scratch = plgpu.SMEM((128,), jnp.float32)
  call = plgpu.kernel(kernel, out_type=out, scratch_types=[scratch])
  topology = topologies.get_topology_desc(
      "1x1x1", platform="cuda", target_config=_HOPPER, topology="1x1x1"
  )
  sharding = jax.sharding.SingleDeviceSharding(topology.devices[0])
  x = jax.ShapeDtypeStruct((1,), jnp.float32, sharding=sharding)
  jax.jit(call).lower(x).compile()
  dump = pathlib.Path(os.environ["MOSAIC_GPU_DUMP_TO"])
  text = "".join(path.read_text() for path in dump.glob("*.ptx"))
  stores = [line for line in text.splitlines() if "st.shared" in line]
  return "compiles", " ".join(" ".join(stores).split())


def main(answer: str) -> None:
  """Writes what `attempts` returns to the file `answer`."""
  found = {}
  for library in CALLS:
    try:
      found[library] = _compile(library)
    except Exception as e:  # Whatever was raised is what there is to show.
      said = str(e).strip().split("\n")[0].split(". ")[0]
      found[library] = "refused", f"{type(e).__name__}: {said}"
  # Where it is moved to, it is there as a whole or not at all.
  part = pathlib.Path(f"{answer}.part")
  part.write_text(json.dumps(found))
  part.rename(answer)


if __name__ == "__main__":
  main(sys.argv[1])
