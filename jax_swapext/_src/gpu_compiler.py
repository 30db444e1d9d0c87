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
"""Compiling for GPUs that are not there, with the CUDA plugin alone.

Compilers may abort the process, so all of this is for a child process that is
started with `environment`.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re

import jax
from jax.experimental import topologies

PLUGINS = ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12")

# By name: what JAX calls it, compute capability, bytes of memory, multi-
# processors, and bytes per second from memory; from NVIDIA's data sheets.
_GPUS = {
    "h100": ("NVIDIA H100 80GB HBM3", 9, 80 << 30, 132, 3_350),
    "h200": ("NVIDIA H200", 9, 141 << 30, 132, 4_800),
    "b200": ("NVIDIA B200", 10, 180 << 30, 148, 8_000),
}
GPUS = tuple(_GPUS)

# XLA divides by most of these.
_CONFIGURATION = """
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: {cores}
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {bandwidth}
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: {memory}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  cuda_compute_capability {{
    major: {major}
    feature_extension: ACCELERATED_FEATURES
  }}
}}
platform_name: "CUDA"
device_description_str: "{kind}"
"""


def is_available() -> bool:
  """Whether a plugin with the compiler is installed."""
  if importlib.util.find_spec("jax_plugins") is None:
    return False
  return any(importlib.util.find_spec(name) for name in PLUGINS)


def environment(dump: str) -> dict[str, str]:
  """Environment variables of the child; PTX goes to the folder `dump`."""
  flags = (
      os.environ.get("XLA_FLAGS", ""),
      f"--xla_dump_to={dump}/xla",
      "--xla_dump_emitter_re=.*",  # Without it there is no PTX of Triton's.
  )
  return dict(
      os.environ,
      XLA_FLAGS=" ".join(flags),
      JAX_PLATFORMS="cpu",
      # The plugin is to compile only, without the libraries that run code.
      JAX_SKIP_CUDA_CONSTRAINTS_CHECK="1",
      MOSAIC_GPU_DUMP_PTX="1",
      MOSAIC_GPU_DUMP_PTXAS="1",
      MOSAIC_GPU_DUMP_TO=dump,
  )


def abstract_device(gpu: str) -> jax.sharding.AbstractDevice:
  """What tracing and lowering are to see of a GPU, one of `GPUS`."""
  return jax.sharding.AbstractDevice(
      device_kind=_GPUS[gpu][0], num_cores=None, platform="gpu"
  )


def architecture(gpu: str) -> str:
  """What ptxas calls a GPU, one of `GPUS`."""
  return f"sm_{_GPUS[gpu][1]}0a"


def devices_of(gpu: str, count: int = 1) -> list[jax.Device]:
  """Devices of a kind, one of `GPUS`, to compile for."""
  kind, major, memory, cores, gigabytes = _GPUS[gpu]
  configuration = _CONFIGURATION.format(
      kind=kind, major=major, memory=memory, cores=cores,
      bandwidth=gigabytes * 10**9,
  )
  shape = f"1x1x{count}"  # slices, hosts of each, devices of each
  topology = topologies.get_topology_desc(
      shape, platform="cuda", topology=shape, target_config=configuration
  )
  return list(topology.devices)


def ptx(dump: str, hlo: str) -> str:
  """The PTX of all Mosaic GPU kernels.

  Kernels of Pallas Triton have one text with all that XLA compiles itself.
  """
  paths = sorted(pathlib.Path(dump).glob("*.ptx"))
  if "xla.gpu.triton" in hlo:
    paths += sorted(pathlib.Path(dump, "xla").glob("*.ptx"))
  return "".join(path.read_text() for path in paths)


def registers(dump: str) -> int | None:
  """Hardware registers of a thread, of the kernel that needs most of them."""
  text = "".join(p.read_text() for p in pathlib.Path(dump).glob("*.ptxas"))
  found = [int(n) for n in re.findall(r"Used (\d+) registers", text)]
  return max(found, default=None)
