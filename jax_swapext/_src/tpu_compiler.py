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
"""Compiling for TPUs that are not there, with the real libtpu.

libtpu reads its flags once and may abort the process, so all of this is for a
child process that is started with `environment`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
import contextlib
import glob
import importlib.util
import os
import pathlib
import re

import jax
from jax.experimental import topologies

TOPOLOGIES = {
    "v5e": "v5e:2x2",
    "v5p": "v5p:2x2x1",
    "v6e": "v6e:2x2",
    "tpu7x": "tpu7x:2x2x1",
}
_DEVICE_KINDS = {
    "v5e": "TPU v5 lite",
    "v5p": "TPU v5",
    "v6e": "TPU v6 lite",
    "tpu7x": "TPU7x",
}


def is_available() -> bool:
  """Whether libtpu, which has the compiler, is installed."""
  return importlib.util.find_spec("libtpu") is not None


def environment(dump: str | None = None) -> dict[str, str]:
  """Environment variables of the child.

  Args:
    dump: a folder. The assembly of TensorCore programs goes to its folder
      ``tc``, that of SparseCore programs to ``sc``; both must exist. None: no
      assembly is wanted.
  """
  flags = () if dump is None else (
      f"--xla_sc_dump_bundles_to={dump}/sc",
      f"--xla_jf_dump_to={dump}/tc",
      "--xla_jf_dump_llo_text=true",
      "--xla_jf_dump_llo_pass_label_regex=.*final_bundles.*",
  )
  return dict(
      os.environ,
      JAX_PLATFORMS="cpu",
      # Several processes may compile at once.
      ALLOW_MULTIPLE_LIBTPU_LOAD="1",
      TPU_WORKER_HOSTNAMES="localhost",
      TPU_ACCELERATOR_TYPE="v6e-4",
      LIBTPU_INIT_ARGS=" ".join(flags),
  )


def abstract_device(generation: str) -> jax.sharding.AbstractDevice:
  """What tracing and lowering are to see of one of `TOPOLOGIES`."""
  return jax.sharding.AbstractDevice(
      device_kind=_DEVICE_KINDS[generation.removeprefix("tpu-")],
      num_cores=1,
      platform="tpu",
  )


@contextlib.contextmanager
def target(generation: str) -> Generator[None]:
  """Makes tracing and lowering see a generation, one of `TOPOLOGIES`."""
  mesh = jax.sharding.AbstractMesh(
      (1,), ("device",), axis_types=(jax.sharding.AxisType.Auto,),
      abstract_device=abstract_device(generation),
  )
  with jax.sharding.use_abstract_mesh(mesh):
    yield


def devices_of(generation: str) -> list[jax.Device]:
  """Devices of a generation, one of `TOPOLOGIES`, to compile for."""
  topology = topologies.get_topology_desc(
      TOPOLOGIES[generation.removeprefix("tpu-")], platform="tpu"
  )
  return list(topology.devices)


def tensorcore_bundles(dump: str, names: Iterable[str]) -> int | None:
  """Bundles of instructions that the kernels of these names came to."""
  bundles = None
  for name in names:
    schedule = rf"/\d+-{re.escape(name)}(\.\d+)?-\d+-schedule-analysis_"
    for path in glob.glob(f"{dump}/tc/*final_bundles.txt"):
      if not re.search(schedule, path):
        continue
      content = pathlib.Path(path).read_text()
      found = re.search(r"total scheduled bundles:\s+(\d+)", content)
      if found is not None:
        bundles = (bundles or 0) + int(found.group(1))
  return bundles


def sparsecore_bundles(dump: str) -> tuple[int | None, int | None, str]:
  """Bundles, bundles with stalls, and assembly of the SparseCore's kernel."""
  text = "".join(
      pathlib.Path(path).read_text()
      for path in sorted(glob.glob(f"{dump}/sc/*bundles.txt"))
  )
  # A vector-subcore kernel is `execute0`; a scalar-subcore one is `main`.
  for label in ("\nexecute0_lowered:", "\nmain.1_lowered:"):
    start = text.find(label)
    if start >= 0:
      break
  else:
    return None, None, ""
  body = text[start + len(label) :]
  end = re.search(r"^(\.Lfunc_end|[A-Za-z_][\w.]*:$)", body, re.MULTILINE)
  body = body[: end.start()] if end else body
  bundles = len(re.findall(r"^0x[0-9a-f]+: \{", body, re.MULTILINE))
  stalls = re.findall(r"sdelay \$0x([0-9a-f]+)", body)
  return bundles, bundles + sum(int(s, 16) for s in stalls), body
