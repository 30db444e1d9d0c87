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
"""The Mosaic-IR interpreter on stock SparseCore kernels, against NumPy."""

import warnings

from absl.testing import absltest
from absl.testing import parameterized
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc
import jax.numpy as jnp
from mosaic_ir_kernels import array
from mosaic_ir_kernels import shape
import numpy as np
from oracles import mosaic_ir

_I32 = jnp.int32


def _sparse(body, out, scratch, layout_passes=True, subcores=1):
  """A SparseCore kernel on one core."""

  def f(*args):
    mesh = plsc.VectorSubcoreMesh(
      core_axis_name="c",
      subcore_axis_name="s",
      num_cores=1,
      num_subcores=subcores,
    )
    return pl.kernel(
      body,
      out_type=out,
      mesh=mesh,
      scratch_types=scratch,
      compiler_params=pltpu.CompilerParams(needs_layout_passes=layout_passes),
    )(*args)

  return f


def _vector_body(f):
  def body(x, o, buffer, out):
    pltpu.sync_copy(x, buffer)
    f(buffer, out)
    pltpu.sync_copy(out, o)

  return body


def _gather(b, o):
  o[pl.ds(0, 8)] = plsc.load_gather(b, [b[pl.ds(0, 8)] & 63])


def _gather_masked(b, o):
  m = b[pl.ds(0, 8)] > 0
  got = plsc.load_gather(b, [jnp.where(m, b[pl.ds(0, 8)], 9999)], mask=m)
  o[pl.ds(0, 8)] = jnp.where(m, got, 0)


def _scatter(b, o):
  o[pl.ds(0, 8)] = b[pl.ds(0, 8)]
  plsc.store_scatter(o, [b[pl.ds(0, 8)] & 3], b[pl.ds(8, 8)])


def _scatter_add(b, o):
  o[pl.ds(0, 8)] = b[pl.ds(0, 8)]
  plsc.addupdate_scatter(o, [b[pl.ds(0, 8)] & 3], b[pl.ds(8, 8)])


def _scan_count(b, o):
  counts, last = plsc.scan_count(b[pl.ds(0, 8)] & 3)
  o[pl.ds(0, 8)] = jnp.where(last, counts, -counts)


def _cumsum(b, o):
  o[pl.ds(0, 8)] = plsc.cumsum(b[pl.ds(0, 8)])


def _compress(b, o):
  o[pl.ds(0, 8)] = b[pl.ds(8, 8)]
  plsc.store_compressed(
    o.at[pl.ds(0, 8)], b[pl.ds(0, 8)], mask=b[pl.ds(0, 8)] > 0
  )


def _add(b, o):
  o[pl.ds(0, 8)] = b[pl.ds(0, 8)]
  plsc.addupdate(o.at[pl.ds(0, 8)], b[pl.ds(8, 8)])


def _sparse_expected(x):
  head, tail = x[:8], x[8:16]
  at = head & 3
  scattered, added = head.copy(), head.copy()
  counts, last = np.zeros(8, np.int32), np.zeros(8, bool)
  for k in range(8):
    scattered[at[k]] = tail[k]
    added[at[k]] += tail[k]
    counts[k] = np.sum(at[: k + 1] == at[k])
    last[k] = not np.any(at[k + 1 :] == at[k])
  kept = head[head > 0]
  return {
    _gather: x[head & 63],
    _gather_masked: np.where(head > 0, x[np.maximum(head, 0)], 0),
    _scatter: scattered,
    _scatter_add: added,
    _scan_count: np.where(last, counts, -counts),
    _cumsum: np.cumsum(head),
    _compress: np.concatenate([kept, tail[kept.size :]]),
    _add: head + tail,
  }


class MosaicIrSparseCoreTest(parameterized.TestCase):
  @parameterized.product(
    name=[f.__name__ for f in _sparse_expected(np.zeros(64, np.int32))],
    layout_passes=(False, True),
  )
  def test_vector_subcore(self, name, layout_passes):
    x = array((64,), _I32)
    bodies = {f.__name__: (f, e) for f, e in _sparse_expected(x).items()}
    body, expected = bodies[name]
    f = _sparse(
      _vector_body(body),
      shape((8,), _I32),
      [pltpu.VMEM((64,), _I32), pltpu.VMEM((8,), _I32)],
      layout_passes,
    )
    with warnings.catch_warnings():
      # Stock warns on every copy from VMEM to HBM.
      warnings.simplefilter("ignore")
      got = mosaic_ir.evaluate(f, x)
    np.testing.assert_array_equal(got, expected)

  @parameterized.parameters(0, 1, 2)
  def test_subcores_meet_at_a_barrier(self, seed):

    def body(x, o, buffer, shared):
      s = lax.axis_index("s")
      pltpu.sync_copy(x.at[pl.ds(s * 8, 8)], buffer)
      pltpu.sync_copy(buffer, shared.at[pl.ds(s * 8, 8)])
      plsc.subcore_barrier()
      other = 15 - s
      pltpu.sync_copy(shared.at[pl.ds(other * 8, 8)], buffer)
      pltpu.sync_copy(buffer, o.at[pl.ds(s * 8, 8)])

    x = array((128,), _I32)
    f = _sparse(
      body,
      shape((128,), _I32),
      [pltpu.VMEM((8,), _I32), pltpu.VMEM_SHARED((128,), _I32)],
      subcores=16,
    )
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")
      got = mosaic_ir.evaluate(f, x, seed=seed)
    np.testing.assert_array_equal(got, x.reshape(16, 8)[::-1].reshape(-1))

  def test_fetch_and_add_reaches_the_other_subcores(self):

    def body(o, buffer, counter):
      s = lax.axis_index("s")
      counter[0] = jnp.int32(0)
      plsc.subcore_barrier()
      ticket = plsc.fetch_and_add(counter.at[0], s, subcore_id=3)
      del ticket
      plsc.subcore_barrier()
      buffer[...] = jnp.full((8,), counter[0])

      @pl.when(s == 3)
      def _():
        pltpu.sync_copy(buffer, o)

    f = _sparse(
      body,
      shape((8,), _I32),
      [pltpu.VMEM((8,), _I32), pltpu.SMEM((1,), _I32)],
      subcores=16,
    )
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")
      got = mosaic_ir.evaluate(f)
    np.testing.assert_array_equal(got, np.full(8, 120))

  def test_indirect_streams(self):

    def body(x, i, o, indices, buffer, shared, semaphore):
      pltpu.sync_copy(i, indices)
      pltpu.async_copy(x.at[indices], buffer, semaphore).wait()
      pltpu.sync_copy(x.at[pl.ds(0, 64)], shared)
      pltpu.async_copy(buffer, shared.at[indices], semaphore, add=True).wait()
      pltpu.sync_copy(shared, o)

    x = array((64,), _I32)
    i = np.array([3, 9, 3, 63, 0, 9, 3, 7], np.int32)
    f = _sparse(
      body,
      shape((64,), _I32),
      [
        pltpu.VMEM((8,), _I32),
        pltpu.VMEM((8,), _I32),
        pltpu.VMEM_SHARED((64,), _I32),
        pltpu.SemaphoreType.DMA,
      ],
    )
    with warnings.catch_warnings():
      warnings.simplefilter("ignore")
      got = mosaic_ir.evaluate(f, x, i)
    expected = x.copy()
    np.add.at(expected, i, x[i])
    np.testing.assert_array_equal(got, expected)


if __name__ == "__main__":
  absltest.main()
