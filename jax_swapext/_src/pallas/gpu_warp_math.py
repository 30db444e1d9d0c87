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
"""Arithmetic on arrays in warp code, where stock JAX knows scalars only.

Every operation sees its arrays in the layout of `gpu_layouts.warp_layout`, so
elementwise ones are JAX's own Lane rules, and those that move elements between
lanes are gathers. Operations on scalars stay with the stock rule, unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import contextlib
from typing import Any

from jax import lax
from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import arith
from jax._src.pallas.mosaic_gpu import core as gpu_core
from jax._src.pallas.mosaic_gpu import lowering
from jax.experimental.mosaic.gpu import dialect_lowering
from jax.experimental.mosaic.gpu import fragmented_array as fa
from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jax_swapext._src.pallas import gpu_dialect
from jax_swapext._src.pallas import gpu_gather
from jax_swapext._src.pallas import gpu_ir
from jax_swapext._src.pallas import gpu_layouts
import numpy as np

FragmentedArray = fa.FragmentedArray

_LANE = lowering.mosaic_lowering_rules[gpu_core.LANExWG_SEMANTICS]
_LANE_WARP = lowering.mosaic_lowering_rules[gpu_core.LANExWARP_SEMANTICS]
_WARPGROUP_WARP = lowering.mosaic_lowering_rules[gpu_core.WGxWARP_SEMANTICS]

_ELEMENTWISE = (
    lax.abs_p, lax.add_p, lax.and_p, lax.atan2_p, lax.bitcast_convert_type_p,
    lax.clamp_p, lax.clz_p, lax.convert_element_type_p, lax.cos_p, lax.div_p,
    lax.eq_p, lax.erf_p, lax.exp_p, lax.exp2_p, lax.ge_p, lax.gt_p,
    lax.integer_pow_p, lax.le_p, lax.log_p, lax.logistic_p, lax.lt_p, lax.max_p,
    lax.min_p, lax.mul_p, lax.ne_p, lax.neg_p, lax.not_p, lax.or_p, lax.rem_p,
    lax.round_p, lax.rsqrt_p, lax.select_n_p, lax.shift_left_p,
    lax.shift_right_arithmetic_p, lax.shift_right_logical_p, lax.sign_p,
    lax.sin_p, lax.sqrt_p, lax.square_p, lax.sub_p, lax.tanh_p, lax.xor_p,
)


def _lay_out(x: FragmentedArray, shape) -> FragmentedArray:
  return gpu_layouts.materialize(
      x, shape, gpu_layouts.warp_value_layout(tuple(shape))
  )


def _move(x, shape, source) -> FragmentedArray:
  shape = tuple(shape)
  layout = gpu_layouts.warp_value_layout(shape)
  return gpu_gather.gather(x, shape, layout, source)


@contextlib.contextmanager
def _as_warpgroup(ctx):
  """Within it JAX's Lane rules take arrays; nothing they emit is collective."""
  module = ctx.module_ctx
  saved = module.primitive_semantics
  module.primitive_semantics = gpu_core.PrimitiveSemantics.Warpgroup
  try:
    yield
  finally:
    module.primitive_semantics = saved


# ## Rules under Lane lowering, on FragmentedArrays


def _stretch(x, aval, shape):
  """Broadcasts axes of size 1, and scalars, as operands of JAX's rules may."""
  if tuple(aval.shape) == tuple(shape):
    return _lay_out(x, shape)
  if not aval.shape:
    return _lay_out(x, shape)
  return _move(
      x, shape,
      lambda i: tuple(
          0 if n == 1 else j for n, j in zip(aval.shape, i, strict=True)
      ),
  )


def _elementwise(prim):
  stock = _LANE[prim]

  def rule(ctx, *args, **params):
    [out] = ctx.avals_out
    shape = tuple(out.shape)
    xs = [
        _stretch(x, a, shape)
        for x, a in zip(args, ctx.avals_in, strict=True)
    ]
    avals = tuple(a.update(shape=shape) for a in ctx.avals_in)
    layout = gpu_layouts.warp_value_layout(shape)
    ctx = ctx.replace(avals_in=avals, out_layout_hint=layout)
    with _as_warpgroup(ctx):
      y = stock(ctx, *xs, **params)
    return [_lay_out(lowering._ensure_fa(y, out.dtype), shape)]

  return rule


def _iota(ctx, *dynamic_shape, dtype, shape, dimension, **params):
  del dynamic_shape, params  # Unused.
  [out] = ctx.avals_out
  element = gpu_ir.element_type(dtype)
  layout = gpu_layouts.warp_value_layout(tuple(shape))
  if isinstance(layout, gpu_layouts.Splat):
    return [_lay_out(lowering._ensure_fa(np.zeros((), dtype), dtype), shape)]

  def number(i):
    x = arith.index_cast(gpu_ir.i32(), gpu_ir.to_value(i))
    if isinstance(element, ir.FloatType):
      return arith.sitofp(element, x)
    width = mgpu_utils.bitwidth(element)
    if width > 32:
      return arith.extui(element, x)
    return x if width == 32 else arith.trunci(element, x)

  held = np.empty(layout.registers_shape(tuple(shape)), dtype=object)
  for position, elements in gpu_layouts.registers(layout, shape):
    held[position] = gpu_ir.pack([number(i[dimension]) for i in elements])
  return [gpu_ir.wrap(held, layout, mgpu_utils.is_signed(out.dtype))]


def _broadcast_in_dim(ctx, x, *dynamic_shape, broadcast_dimensions, shape,
                      **params):
  del dynamic_shape, params  # Unused.
  [aval] = ctx.avals_in[:1]
  return [_move(
      x, shape,
      lambda i: tuple(
          0 if n == 1 else i[d]
          for n, d in zip(aval.shape, broadcast_dimensions, strict=True)
      ),
  )]


def _reshape(ctx, x, **params):
  del params  # Row-major order says it all.
  [aval], [out] = ctx.avals_in, ctx.avals_out
  return [_move(
      x, out.shape,
      lambda i: gpu_ir.delinearize(
          gpu_ir.linearize(i, out.shape), aval.shape
      ),
  )]


def _slice(ctx, x, *, start_indices, limit_indices, strides):
  del limit_indices  # The result's shape says it.
  [out] = ctx.avals_out
  strides = strides or (1,) * len(start_indices)
  return [_move(
      x, out.shape,
      lambda i: tuple(
          gpu_ir.add(gpu_ir.mul(j, stride), start)
          for j, start, stride in zip(i, start_indices, strides, strict=True)
      ),
  )]


def _transpose(ctx, x, *, permutation):
  [out] = ctx.avals_out
  inverse = np.argsort(permutation)
  return [_move(x, out.shape, lambda i: tuple(i[int(k)] for k in inverse))]


def _rev(ctx, x, *, dimensions):
  [out] = ctx.avals_out

  def source(i):
    return tuple(
        gpu_ir.add(n - 1, gpu_ir.mul(j, -1)) if d in dimensions else j
        for d, (j, n) in enumerate(zip(i, out.shape, strict=True))
    )

  return [_move(x, out.shape, source)]


def _select_by_index(shape, dimension, bound, below, above):
  """`below` where the index along an axis is less than `bound`."""
  layout = gpu_layouts.warp_value_layout(tuple(shape))
  held = np.empty(layout.registers_shape(tuple(shape)), dtype=object)
  limit = gpu_ir.to_value(bound)
  for position, elements in gpu_layouts.registers(layout, shape):
    chosen = []
    for e, i in enumerate(elements):
      is_below = arith.cmpi(
          arith.CmpIPredicate.ult, gpu_ir.to_value(i[dimension]), limit
      )
      chosen.append(arith.select(
          is_below,
          gpu_ir.extract(below.registers[position], e),
          gpu_ir.extract(above.registers[position], e),
      ))
    held[position] = gpu_ir.pack(chosen)
  return gpu_ir.wrap(held, layout, below.is_signed)


def _concatenate(ctx, *xs, dimension):
  [out] = ctx.avals_out
  result, start = None, 0
  for x, aval in zip(xs, ctx.avals_in, strict=True):
    if not aval.shape[dimension]:
      continue
    last = aval.shape[dimension] - 1

    def source(i, start=start, last=last):
      # Outside the piece any element will do: it is not selected.
      return tuple(
          _clamp(gpu_ir.add(j, -start), last) if d == dimension else j
          for d, j in enumerate(i)
      )

    piece = _move(x, out.shape, source)
    piece = gpu_layouts.materialize(
        piece, out.shape, gpu_layouts.warp_value_layout(tuple(out.shape))
    )
    result = piece if result is None else _select_by_index(
        out.shape, dimension, start, result, piece
    )
    start += aval.shape[dimension]
  return [result]


def _clamp(i: gpu_ir.Index, last: int) -> gpu_ir.Index:
  if isinstance(i, int):
    return min(max(i, 0), last)
  low = arith.maxsi(i, gpu_ir.to_value(0))
  return arith.minsi(low, gpu_ir.to_value(last))


def _reduce(op: str):
  def rule(ctx, x, *, axes, **params):
    del params  # Hints for other layouts.
    [aval], [out] = ctx.avals_in, ctx.avals_out
    return [_reduced(op, x, aval, out, axes)]
  return rule


def _powers_of_two(op, x, axes):
  """A padded array in one of larger sizes, in which it reduces to the same."""
  sizes = x.shape
  shape = tuple(1 << (n - 1).bit_length() for n in sizes)
  # More of the last element changes no maximum and no minimum.
  x = _move(
      x, shape,
      lambda i: tuple(map(gpu_ir.least, i, (n - 1 for n in sizes))),
  )
  if op not in _NEUTRAL:
    return x
  neutral = _lay_out(
      FragmentedArray.splat(
          gpu_ir.constant(x.mlir_dtype, _NEUTRAL[op]), shape,
          is_signed=x.is_signed,
      ),
      shape,
  )
  for axis in axes:
    if sizes[axis] != shape[axis]:
      x = _select_by_index(shape, axis, sizes[axis], x, neutral)
  return x


_NEUTRAL = {"add": 0, "prod": 1}


def _reduced(op, x, aval, out, axes):
  if isinstance(x.layout, gpu_layouts.Splat):  # One element.
    return _lay_out(
        FragmentedArray.splat(
            gpu_layouts.scalar(x), out.shape, is_signed=x.is_signed
        ),
        out.shape,
    )
  if isinstance(x.layout, gpu_layouts.Padded):
    x = _powers_of_two(op, x, axes)
  combine = op
  if op == "prod":
    is_float = isinstance(gpu_ir.element_type(aval.dtype), ir.FloatType)
    combine = arith.mulf if is_float else arith.muli
  for axis in sorted(axes, reverse=True):
    x = x.reduce(combine, axis)
  if not out.shape:
    return FragmentedArray.splat(
        gpu_layouts.scalar(x), (), is_signed=x.is_signed
    )
  return _move(x, out.shape, lambda i: i) if not isinstance(
      x.layout, gpu_layouts.Splat) else _lay_out(x, out.shape)


def _reduce_bool(op: str):
  """and/or of bools as min/max of numbers."""
  def rule(ctx, x, *, axes, **params):
    del params  # Unused.
    [aval], [out] = ctx.avals_in, ctx.avals_out
    if aval.dtype != np.dtype(bool):
      raise NotImplementedError(
          f"reduce_{op} in warp code: wanted bools, got {aval.dtype}. Reduce "
          "one bit at a time, or in warpgroup code."
      )
    number = x.astype(gpu_ir.i32(), is_signed=True)
    wide = aval.update(dtype=np.dtype(np.int32))
    y = _reduced(
        "min" if op == "and" else "max", number, wide,
        out.update(dtype=wide.dtype), axes,
    )
    zero = FragmentedArray.splat(
        gpu_ir.const_i32(0), out.shape, is_signed=True
    )
    return [y != _lay_out(zero, out.shape)]
  return rule


def _cumulative(combine_p):
  """A scan by doubling: log2(n) steps of a shift and a combination."""
  def rule(ctx, x, *, axis, reverse):
    [out] = ctx.avals_out
    n = out.shape[axis]
    combine = _elementwise(combine_p)
    context = ctx.replace(
        prim=combine_p, avals_in=(out, out), avals_out=(out,)
    )
    step = 1
    while step < n:
      offset = step if reverse else -step

      def source(i, offset=offset):
        return tuple(
            _clamp(gpu_ir.add(j, offset), n - 1) if d == axis else j
            for d, j in enumerate(i)
        )

      [combined] = combine(context, x, _move(x, out.shape, source))
      below, above = (combined, x) if reverse else (x, combined)
      bound = n - step if reverse else step
      x = _select_by_index(out.shape, axis, bound, below, above)
      step *= 2
    return [x]
  return rule


_MOVING: dict[object, Callable[..., Sequence[Any]]] = {
    lax.iota_p: _iota,
    lax.broadcast_in_dim_p: _broadcast_in_dim,
    lax.reshape_p: _reshape,
    lax.squeeze_p: _reshape,
    lax.slice_p: _slice,
    lax.transpose_p: _transpose,
    lax.rev_p: _rev,
    lax.concatenate_p: _concatenate,
    lax.reduce_sum_p: _reduce("add"),
    lax.reduce_max_p: _reduce("max"),
    lax.reduce_min_p: _reduce("min"),
    lax.reduce_prod_p: _reduce("prod"),
    lax.reduce_and_p: _reduce_bool("and"),
    lax.reduce_or_p: _reduce_bool("or"),
    lax.cumsum_p: _cumulative(lax.add_p),
    lax.cummax_p: _cumulative(lax.max_p),
    lax.cummin_p: _cumulative(lax.min_p),
    lax.cumprod_p: _cumulative(lax.mul_p),
}


# ## Registration


def _has_arrays(ctx) -> bool:
  return any(map(gpu_ir.is_array, (*ctx.avals_in, *ctx.avals_out)))


def _lane_rule(ours, ctx, *args, **params):
  xs = [
      lowering._ensure_fa(x, a.dtype)
      for x, a in zip(args, ctx.avals_in, strict=True)
  ]
  xs = [
      _lay_out(x, a.shape) if gpu_ir.is_array(a) else x
      for x, a in zip(xs, ctx.avals_in, strict=True)
  ]
  return ours(ctx, *xs, **params)


def _warpgroup_rule(ours, ctx, *args, **params):
  values = [
      lowering._ensure_ir_value(x, a.dtype)
      for x, a in zip(args, ctx.avals_in, strict=True)
  ]
  return gpu_dialect.per_thread(
      ctx, lambda *seen: ours(ctx, *seen, **params), values,
      lambda a: gpu_layouts.warp_value_layout(tuple(a.shape)),
  )


def _make_rule(prim, ours, adapt, stock):
  def rule(ctx, *args, **params):
    if stock is not None and not _has_arrays(ctx):
      return stock(ctx, *args, **params)
    results = adapt(ours, ctx, *args, **params)
    return results if prim.multiple_results else results[0]

  return rule


def _register(prim, ours):
  for rules, adapt in (
      (_LANE_WARP, _lane_rule), (_WARPGROUP_WARP, _warpgroup_rule)
  ):
    rules[prim] = _make_rule(prim, ours, adapt, rules.get(prim))


def register():
  """Gives warp code rules for arrays, beside those it has for scalars."""
  for prim in _ELEMENTWISE:
    _register(prim, _elementwise(prim))
  for prim, ours in _MOVING.items():
    _register(prim, ours)
  # None emits anything collective; stock does not list them for warps.
  dialect_lowering._supported_warp_lowerings.update(
      {"memref.load", "mosaic_gpu.get_cluster_ref", "scf.while"}
  )
