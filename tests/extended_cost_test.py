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
"""`extended`: what it adds to the time that JAX takes to trace a kernel."""

import gc
import math
import time

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
import jax_swapext as jsx

_BOUND = 1.5
_ROUNDS = 12
_X = jax.ShapeDtypeStruct((8, 128), jnp.float32)


def _stock(kernel):
  return kernel


def _evaluated_again(kernel):
  """A decorator that is too slow: it traces the kernel, then evaluates that."""

  def wrapper(*refs):
    for _ in range(2):
      jaxpr = jax.make_jaxpr(lambda: kernel(*refs))()
    jax.core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts)

  return wrapper


def _body(x_ref, o_ref):
  for k in range(100):
    part = k % 8, pl.ds(0, 64)
    o_ref[part] = jnp.sin(x_ref[part] * 2.0 + 1.0)


def _pallas_call(kernel):
  return pl.pallas_call(kernel, _X)


def _kernel(kernel):
  mesh = pltpu.TensorCoreMesh(axis_name="core", num_cores=1)
  return pl.kernel(kernel, out_type=_X, mesh=mesh)


def _gpu_kernel(kernel):
  return plgpu.kernel(kernel, out_type=_X)


def _seconds(entry, decorate) -> float:
  """Of this process, whatever else the machine does, for a new kernel."""

  def kernel(x_ref, o_ref):
    _body(x_ref, o_ref)

  call = entry(decorate(kernel))
  start = time.process_time()
  jax.make_jaxpr(call)(_X)
  return time.process_time() - start


def _ratio(entry, decorate, rounds=_ROUNDS) -> float:
  """Decorated to undecorated, each at its best, measured in turns.

  Ends as soon as the bound holds: more rounds make both times more exact, and
  a decorator that is too slow stays too slow.
  """
  best = {_stock: math.inf, decorate: math.inf}
  for d in best:
    _seconds(entry, d)  # Fills JAX's caches.
  gc.disable()
  try:
    for k in range(rounds):
      for d in best:
        best[d] = min(best[d], _seconds(entry, d))
      if k > 1 and best[decorate] < _BOUND * best[_stock]:
        break
  finally:
    gc.enable()
  return best[decorate] / best[_stock]


class CostTest(parameterized.TestCase):

  def test_the_kernel_has_500_equations(self):
    [eqn] = jax.make_jaxpr(_pallas_call(_body))(_X).eqns
    self.assertLen(eqn.params["jaxpr"].eqns, 500)

  @parameterized.parameters(_pallas_call, _kernel, _gpu_kernel)
  def test_tracing(self, entry):
    self.assertLess(_ratio(entry, jsx.extended), _BOUND)

  def test_the_measure_finds_what_is_slow(self):
    ratio = _ratio(_pallas_call, _evaluated_again, rounds=4)
    self.assertGreater(ratio, _BOUND)


if __name__ == "__main__":
  absltest.main()
