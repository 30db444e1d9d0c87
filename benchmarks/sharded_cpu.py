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
"""`fetch_add` on a table that is sharded over 1 to 8 CPU devices.

Prints nanoseconds per update, a median; and how often the compiled program
communicates. The devices share this machine's cores, so more of them cannot be
faster than there are cores: what to look at is that the time does not explode.
"""

import re
import statistics
import time

import jax
from jax.sharding import AxisType
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import jax_swapext as jsx
import numpy as np

ROUNDS, UPDATES, ROWS = 9, 10**5, 2**20


def main():
  jax.config.update("jax_num_cpu_devices", 8)
  rng = np.random.default_rng(0)
  x = np.zeros(ROWS, np.int32)
  idx = rng.integers(0, ROWS, UPDATES, np.int32)
  value = np.ones(UPDATES, np.int32)
  print(f"{UPDATES} updates of {ROWS} rows")
  for count in (1, 2, 4, 8):
    mesh = jax.make_mesh(
        (count,), ("d",), axis_types=(AxisType.Auto,),
        devices=jax.devices()[:count],
    )
    at = lambda spec, mesh=mesh: NamedSharding(mesh, spec)
    args = [
        jax.device_put(x, at(P("d"))),
        *(jax.device_put(a, at(P())) for a in (idx, value)),
    ]
    compiled = jax.jit(jsx.fetch_add).lower(*args).compile()
    kinds = re.findall(
        r" (all-reduce|all-gather|collective-permute)(?:-start)?\(",
        compiled.as_text(),
    )
    times = []
    for _ in range(ROUNDS + 1):
      start = time.perf_counter()
      jax.block_until_ready(compiled(*args))
      times.append((time.perf_counter() - start) * 1e9 / UPDATES)
    print(f"{count} devices {statistics.median(times[1:]):10.2f} ns  "
          f"{', '.join(kinds) or 'no communication'}")


if __name__ == "__main__":
  main()
