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
"""Stock Mosaic GPU kernels for the PTX interpreter's test.

Each function takes the lowering semantics' name and, as `interpret`, what
Pallas is to run it with; it returns the function and its argument shapes.
"""

from __future__ import annotations

import jax
from jax import lax
from jax._src.pallas import primitives  # masked accesses, deprecated elsewhere
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
import jax.numpy as jnp

_F32 = jnp.float32


def _spec(shape, dtype=_F32):
  return jax.ShapeDtypeStruct(shape, dtype)


def _kernel(body, semantics, out, interpret=False, barriers=True, **kwargs):
  params = plgpu.CompilerParams(
      lowering_semantics=getattr(plgpu.LoweringSemantics, semantics),
      unsafe_no_auto_barriers=not barriers)
  return plgpu.kernel(body, out_type=out, compiler_params=params,
                      interpret=interpret, **kwargs)


def _in_each_warp(body):
  pl.kernel(body, mesh=plgpu.WarpMesh(axis_name="w"))()


def vector_add(semantics, interpret=False):
  def vector_add_body(x_ref, y_ref, o_ref):
    o_ref[...] = x_ref[...] + y_ref[...]
  x = _spec((256,))
  return _kernel(vector_add_body, semantics, x, interpret), [x, x]


def grid_scale(semantics, interpret=False):
  def grid_scale_body(x_ref, o_ref):
    part = pl.ds(lax.axis_index("g") * 256, 256)
    o_ref[part] = x_ref[part] * 3.0 + 1.0
  x = _spec((1024,))
  return _kernel(grid_scale_body, semantics, x, interpret, grid=(4,),
                 grid_names=("g",)), [x]


def through_smem(semantics, interpret=False):
  def through_smem_body(x_ref, o_ref, s_ref):
    s_ref[...] = x_ref[...] + 1.0
    plgpu.commit_smem()
    o_ref[...] = s_ref[...]
  x = _spec((256,))
  return _kernel(through_smem_body, semantics, x, interpret,
                 scratch_types=[plgpu.SMEM((256,), _F32)]), [x]


def reduce_sum(semantics, interpret=False):
  def reduce_sum_body(x_ref, o_ref):
    o_ref[...] = jnp.broadcast_to(jnp.sum(x_ref[...]), (128,))
  return _kernel(reduce_sum_body, semantics, _spec((128,)),
                 interpret), [_spec((256,))]


def one_element(semantics, interpret=False):
  def one_element_body(x_ref, o_ref):
    o_ref[:1] = jnp.sum(x_ref[...]).reshape((1, 1, 1))
  return _kernel(one_element_body, semantics, _spec((2, 1, 1)),
                 interpret), [_spec((256,))]


def exponential(semantics, interpret=False):
  def exponential_body(x_ref, o_ref):
    o_ref[...] = jnp.exp(x_ref[...]) / (1.0 + jnp.abs(x_ref[...]))
  x = _spec((256,))
  return _kernel(exponential_body, semantics, x, interpret), [x]


def to_bfloat16(semantics, interpret=False):
  def to_bfloat16_body(x_ref, o_ref):
    o_ref[...] = (x_ref[...] * 2.0).astype(jnp.bfloat16)
  return _kernel(to_bfloat16_body, semantics, _spec((256,), jnp.bfloat16),
                 interpret), [_spec((256,))]


def integers(semantics, interpret=False):
  def integers_body(x_ref, y_ref, o_ref):
    x, y = x_ref[...], y_ref[...]
    bits = (x ^ (y << 3)) & (x | 7)
    o_ref[...] = jnp.where(x < y, bits // 3, jnp.maximum(x, y) % 5 - (x >> 2))
  x = _spec((256,), jnp.int32)
  return _kernel(integers_body, semantics, x, interpret), [x, x]


def bulk_copies(semantics, interpret=False, swizzle=None, rows=64, columns=64):
  def bulk_copies_body(x_ref, o_ref, s_ref, barrier):
    plgpu.copy_gmem_to_smem(x_ref, s_ref, barrier)
    plgpu.barrier_wait(barrier)
    s_ref[...] = s_ref[...] + 1.0
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(s_ref, o_ref)
    plgpu.wait_smem_to_gmem(0)
  transforms = () if swizzle is None else (
      plgpu.TilingTransform((8, swizzle // 4)),
      plgpu.SwizzleTransform(swizzle))
  x = _spec((rows, columns))
  return _kernel(bulk_copies_body, semantics, x, interpret, scratch_types=[
      plgpu.SMEM((rows, columns), _F32, transforms=transforms),
      plgpu.Barrier()]), [x]


def matrix_product(semantics, interpret=False, dtype="bfloat16", swizzle=128,
                   k=64, transposed=(False, False), fenced=True):
  """[64, k] by [k, 64]; a transposed operand lies in memory the other way."""
  a, b = ((k, 64) if transposed[0] else (64, k),
          (64, k) if transposed[1] else (k, 64))
  def matrix_product_body(a_ref, b_ref, o_ref, a_smem, b_smem, barrier):
    for x_ref, x_smem in ((a_ref, a_smem), (b_ref, b_smem)):
      plgpu.copy_gmem_to_smem(x_ref, x_smem, barrier)
      plgpu.barrier_wait(barrier)
    if not fenced:
      b_smem[...] = b_smem[...] * 2
    def multiply(acc_ref):
      left = plgpu.transpose_ref(a_smem, (1, 0)) if transposed[0] else a_smem
      right = plgpu.transpose_ref(b_smem, (1, 0)) if transposed[1] else b_smem
      plgpu.wgmma(acc_ref, left, right)
      return acc_ref[...]
    o_ref[...] = pl.run_scoped(multiply, plgpu.ACC((64, 64), _F32))
  tile = swizzle // jnp.dtype(dtype).itemsize
  transforms = (plgpu.TilingTransform((8, tile)),
                plgpu.SwizzleTransform(swizzle))
  return _kernel(matrix_product_body, semantics, _spec((64, 64)), interpret,
                 scratch_types=[
                     plgpu.SMEM(a, dtype, transforms=transforms),
                     plgpu.SMEM(b, dtype, transforms=transforms),
                     plgpu.Barrier()]), [_spec(a, dtype), _spec(b, dtype)]


def two_warpgroups(semantics, interpret=False):
  def two_warpgroups_body(x_ref, o_ref):
    which = pl.ds(lax.axis_index("wg") * 128, 128)
    o_ref[which] = x_ref[which] * 2.0
  x = _spec((256,))
  return _kernel(two_warpgroups_body, semantics, x, interpret, num_threads=2,
                 thread_name="wg"), [x]


def warp_scalars(semantics, interpret=False):
  """A scalar loop in one warp (stock has no SMEM load there in Warpgroup)."""
  def warp_scalars_body(x_ref, index_ref, o_ref):
    @_in_each_warp
    def _():
      @pl.when(lax.axis_index("w") == 1)
      def _():
        def body(i, carry):
          o_ref[index_ref[i]] = x_ref[i] * 2.0
          return carry
        lax.fori_loop(0, 16, body, 0)
  return _kernel(warp_scalars_body, semantics, _spec((16,)), interpret), [
      _spec((16,)), _spec((16,), jnp.int32)]


def atomic_add(semantics):
  def function(x, y):
    def atomic_add_body(x_ref, y_ref):
      plgpu.atomic_add(y_ref, x_ref[...])
    ref = jax.new_ref(y)
    _kernel(atomic_add_body, semantics, ())(x, ref)
    return jax.freeze(ref)
  return function, [_spec((256,)), _spec((256,))]


def atomic_max(semantics):
  def function(x, y):
    def atomic_max_body(x_ref, y_ref):
      plgpu.atomic_max(y_ref, x_ref[...])
    ref = jax.new_ref(y)
    _kernel(atomic_max_body, semantics, ())(x, ref)
    return jax.freeze(ref)
  x = _spec((256,), jnp.int32)
  return function, [x, x]


def planted_store_race(semantics):
  """Two warps store different values to one place."""
  def planted_store_race_body(x_ref, o_ref):
    del x_ref  # Unused.
    @_in_each_warp
    def _():
      o_ref[0] = lax.axis_index("w")
  return _kernel(planted_store_race_body, semantics, _spec((8,), jnp.int32),
                 barriers=False), [_spec((8,))]


def planted_load_race(semantics):
  """A warp reads what another writes, with no barrier between."""
  def planted_load_race_body(x_ref, o_ref):
    @_in_each_warp
    def _():
      @pl.when(lax.axis_index("w") == 0)
      def _():
        o_ref[0] = x_ref[0]
      @pl.when(lax.axis_index("w") == 1)
      def _():
        o_ref[1] = o_ref[0]
  return _kernel(planted_load_race_body, semantics, _spec((8,)),
                 barriers=False), [_spec((8,))]


def planted_copy_race(semantics):
  """A bulk copy reads shared memory that no proxy fence made visible."""
  def planted_copy_race_body(x_ref, o_ref, s_ref):
    s_ref[...] = x_ref[...]
    plgpu.copy_smem_to_gmem(s_ref, o_ref)
    plgpu.wait_smem_to_gmem(0)
  x = _spec((256,))
  return _kernel(planted_copy_race_body, semantics, x, scratch_types=[
      plgpu.SMEM((256,), _F32)]), [x]


def out_of_bounds(semantics):
  def out_of_bounds_body(start_ref, o_ref):
    o_ref[pl.ds(start_ref[0], 128)] = jnp.zeros((128,), _F32)
  return _kernel(out_of_bounds_body, semantics, _spec((256,))), [
      _spec((1,), jnp.int32)]


# ## What stock refuses
#
# Each kernel has a twin in mosaic_gpu_kernels.py, in this library's terms.


def _warp_one(body):
  def one():
    pl.when(lax.axis_index("w") == 1)(body)
  _in_each_warp(one)


def _store_in_warp(x_ref, o_ref, s_ref):
  del x_ref, s_ref
  _warp_one(lambda: o_ref.__setitem__(..., jnp.zeros((128,), _F32)))


def _load_in_warp(x_ref, o_ref, s_ref):
  del s_ref
  _warp_one(lambda: o_ref.__setitem__(0, x_ref[...][0]))


def _iota_in_warp(x_ref, o_ref, s_ref):
  del x_ref, s_ref
  _warp_one(lambda: o_ref.__setitem__(
      0, jnp.sum(lax.iota(_F32, 128))))


def _broadcast_in_warp(x_ref, o_ref, s_ref):
  del s_ref
  _warp_one(lambda: o_ref.__setitem__(
      0, jnp.sum(jnp.broadcast_to(x_ref[1], (128,)))))


def _reduce_in_warp(x_ref, o_ref, s_ref):
  del s_ref
  _warp_one(lambda: o_ref.__setitem__(0, jnp.sum(x_ref[...])))


def _masked_load(x_ref, o_ref, s_ref):
  del s_ref
  o_ref[...] = primitives.load(
      x_ref, (slice(None),), mask=x_ref[...] > 1.5, other=-1.0)


def _masked_store(x_ref, o_ref, s_ref):
  s_ref[...] = jnp.zeros((128,), _F32)
  primitives.store(s_ref, (slice(None),), x_ref[...], mask=x_ref[...] > 1.5)
  o_ref[...] = s_ref[...]


def _whole(x_ref, o_ref, s_ref):
  del s_ref
  o_ref[...] = x_ref[...]


def _odd_size(x_ref, o_ref, s_ref):
  del s_ref
  o_ref[pl.ds(0, 33)] = x_ref[pl.ds(2, 33)]


def _strided(x_ref, o_ref, s_ref):
  del s_ref
  o_ref[pl.ds(0, 64)] = x_ref[pl.ds(0, 64, 2)]


def _integer_array(x_ref, o_ref, s_ref):
  del s_ref
  o_ref[...] = x_ref[jnp.full((128,), 3, jnp.int32)]


def _atomic_scalar(x_ref, o_ref, s_ref):
  s_ref[...] = x_ref[...]
  plgpu.atomic_add(s_ref.at[3], jnp.float32(1))
  o_ref[...] = s_ref[...]


def _atomic_odd(x_ref, o_ref, s_ref):
  s_ref[...] = x_ref[...]
  plgpu.atomic_add(s_ref.at[pl.ds(0, 33)], jnp.ones((33,), _F32))
  o_ref[...] = s_ref[...]


def _atomic_splat(x_ref, o_ref, s_ref):
  s_ref[...] = x_ref[...]
  plgpu.atomic_add(s_ref, jnp.ones((128,), _F32))
  o_ref[...] = s_ref[...]


def _atomic_exchange(x_ref, o_ref, s_ref):
  s_ref[...] = x_ref[...]
  o_ref[...] = plgpu.atomic_xchg(s_ref, x_ref[...] + 1.0)


def _atomic_compare_and_swap(x_ref, o_ref, s_ref):
  s_ref[...] = x_ref[...]
  o_ref[...] = plgpu.atomic_cas(s_ref, x_ref[...], x_ref[...] + 1.0)


def _atomic_float_min(x_ref, o_ref, s_ref):
  s_ref[...] = x_ref[...]
  plgpu.atomic_min(s_ref, x_ref[...] - 1.0)
  o_ref[...] = s_ref[...]


def _atomic_float_max(x_ref, o_ref, s_ref):
  s_ref[...] = x_ref[...]
  plgpu.atomic_max(s_ref, x_ref[...] + 1.0)
  o_ref[...] = s_ref[...]


def _scalar_smem_load_in_warp(x_ref, o_ref, s_ref):
  s_ref[...] = x_ref[...]
  _warp_one(lambda: o_ref.__setitem__(0, s_ref[5]))


def _while_result_in_warp(x_ref, o_ref, s_ref):
  del s_ref
  def run():
    o_ref[0] = lax.while_loop(lambda i: i < 9.0, lambda i: i * 2.0, x_ref[1])
  _warp_one(run)


# Kernel, and what each lowering says.
_NO_RULE = "Unimplemented primitive in Pallas Mosaic GPU lowering: "
_NOT_128 = "must have a number of elements that is a multiple of 128"
_NO_LAYOUT = "Failed to infer a possible set of layouts"
REFUSED = {
    "store_in_warp": (_store_in_warp, *[_NO_RULE + "broadcast_in_dim"] * 2),
    "load_in_warp": (
        _load_in_warp, *["Can only load scalars in warp-level code"] * 2),
    "iota_in_warp": (_iota_in_warp, *[_NO_RULE + "iota"] * 2),
    "broadcast_in_warp": (
        _broadcast_in_warp, *[_NO_RULE + "broadcast_in_dim"] * 2),
    # Without our arithmetic no array gets as far as a sum, or a store.
    "reduce_in_warp": (
        _reduce_in_warp, *["Can only load scalars in warp-level code"] * 2),
    "masked_load": (_masked_load, *[_NO_RULE + "masked_load"] * 2),
    "masked_store": (_masked_store, *[_NO_RULE + "masked_swap"] * 2),
    "bools": (_whole, _NOT_128, _NO_LAYOUT),
    "odd_size": (_odd_size, _NOT_128, _NO_LAYOUT),
    "strided": (_strided, *["Strided slices not implemented"] * 2),
    "integer_array": (_integer_array, *["int_indexer_shape non-empty"] * 2),
    "atomic_scalar": (
        _atomic_scalar, "Atomic stores not supported for splat layout",
        "must be fixed-length vector"),
    "atomic_odd": (
        _atomic_odd, *["Atomic stores not supported for splat layout"] * 2),
    "atomic_splat": (
        _atomic_splat, *["Atomic stores not supported for splat layout"] * 2),
    "atomic_exchange": (
        _atomic_exchange, *["has no attribute 'atomic_xchg'"] * 2),
    "atomic_compare_and_swap": (
        _atomic_compare_and_swap, *["has no attribute 'atomic_cas'"] * 2),
    "atomic_float_min": (
        _atomic_float_min, *["f32 only supports add atomics, got min"] * 2),
    "atomic_float_max": (
        _atomic_float_max, *["f32 only supports add atomics, got max"] * 2),
    "scalar_smem_load_in_warp": (
        _scalar_smem_load_in_warp, None,
        "Op memref.load does not support warp semantics"),
    "while_result_in_warp": (
        _while_result_in_warp, None,
        "Op scf.while does not support warp semantics"),
}


def argument(name):
  """Of the kernel that stock refuses, and of its twin."""
  return _spec((256,), jnp.bool_) if name == "bools" else _spec((128,))


def refused(name, semantics):
  body = REFUSED[name][0]
  def refused_body(x_ref, o_ref, s_ref):
    body(x_ref, o_ref, s_ref)
  x = argument(name)
  return _kernel(refused_body, semantics, x, scratch_types=[
      plgpu.SMEM(x.shape, x.dtype)]), [x]
