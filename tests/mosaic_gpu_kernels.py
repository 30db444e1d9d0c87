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
"""Kernels that the Mosaic GPU tests compile in a child process."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
import jax.numpy as jnp
import jax_swapext as jsx
import ml_dtypes
import numpy as np
import reference
import stock_gpu_corpus


@dataclasses.dataclass(frozen=True)
class Case:
  """One access in one place.

  Attributes:
    op: the public function.
    semantics: "Lane" or "Warpgroup" lowering.
    warp: in warp code, else in warpgroup code.
    space: "smem" or "gmem".
    dtype: name of the Ref's.
    shape: of the Ref.
    index: as `reference` takes it.
    dynamic: ints and starts of Windows are read from memory.
    mask: whether there is one.
    other: whether masked-off elements of a load are not 0.
    kwargs: of the public function.
    barriers: whether the kernel has automatic ones.
  """

  op: str
  semantics: str = "Lane"
  warp: bool = True
  space: str = "smem"
  dtype: str = "float32"
  shape: tuple[int, ...] = (128,)
  index: Any = None
  dynamic: bool = False
  mask: bool = False
  other: bool = False
  kwargs: tuple[tuple[str, Any], ...] = ()
  barriers: bool = True

  @property
  def np_dtype(self):
    return np.dtype(getattr(ml_dtypes, self.dtype, self.dtype))

  @property
  def parts(self) -> tuple[Any, ...]:
    if self.index is None:
      return ()
    return self.index if isinstance(self.index, tuple) else (self.index,)

  @property
  def region(self) -> tuple[int, ...]:
    return reference.positions(self.shape, self.index).shape

  @property
  def operands(self) -> int:
    if self.op == "load":
      return int(self.other)
    return 2 if self.op == "atomic_cas" else 1

  @property
  def returns(self) -> bool:
    return self.op != "store"

  def traced(self) -> list[np.ndarray]:
    """The parts of the index that the kernel reads from memory."""
    found = []
    for part in self.parts:
      if isinstance(part, np.ndarray):
        found.append(part.astype(np.int32))
      elif self.dynamic and isinstance(part, reference.Window):
        found.append(np.array([part.start], np.int32))
      elif self.dynamic and isinstance(part, int):
        found.append(np.array([part], np.int32))
    return found


def in_warp(body):
  """Runs `body` in the second warp of the warpgroup."""
  def only_one():
    pl.when(lax.axis_index("warp") == 1)(body)
  pl.kernel(only_one, mesh=plgpu.WarpMesh(axis_name="warp"))()


def make_kernel(body, out, *, semantics, barriers=True, interpret=False,
                **kwargs):
  params = plgpu.CompilerParams(
      lowering_semantics=getattr(plgpu.LoweringSemantics, semantics),
      unsafe_no_auto_barriers=not barriers)
  return plgpu.kernel(body, out_type=out, compiler_params=params,
                      interpret=interpret, **kwargs)


def _vector_shape(shape):
  return shape or (1,)


def _read(ref, shape):
  """All of a GMEM Ref, as an array of `shape`."""
  return ref[0] if not shape else jsx.load(ref)


def access(case: Case, interpret=False):
  """(function, specs): from x, operands, mask and indices to old and new x."""
  region, n = case.region, case.operands
  traced = case.traced()
  n_inputs = 1 + n + case.mask + len(traced)

  def index_of(refs):
    refs, parts = list(refs), []
    for part in case.parts:
      if isinstance(part, np.ndarray):
        parts.append(jsx.load(refs.pop(0)))
      elif isinstance(part, reference.Window):
        start = refs.pop(0)[0] if case.dynamic else part.start
        parts.append(pl.ds(start, part.size, part.stride))
      elif case.dynamic and isinstance(part, int):
        parts.append(refs.pop(0)[0])
      else:
        parts.append(part)
    return tuple(parts) if case.index is not None else None

  def body(*refs):
    inputs, rest = refs[:n_inputs], list(refs[n_inputs:])
    x_ref, *others = inputs
    operand_refs, others = others[:n], others[n:]
    mask_refs, index_refs = others[: case.mask], others[case.mask:]
    old_ref = rest.pop(0) if case.returns else None
    new_ref = rest.pop(0)
    ref = rest.pop(0) if case.space == "smem" else new_ref

    def run():
      jsx.store(ref, None, jsx.load(x_ref))
      operands = [_read(r, region) for r in operand_refs]
      mask = _read(mask_refs[0], region) if case.mask else None
      function = getattr(jsx, case.op)
      kwargs = dict(case.kwargs, mask=mask)
      if case.op == "load" and case.other:
        kwargs["other"] = operands.pop()
      old = function(ref, index_of(index_refs), *operands, **kwargs)
      if case.returns:
        jsx.store(old_ref, None if region else 0, old)
      if case.space == "smem":
        jsx.store(new_ref, None, jsx.load(ref))

    if case.warp:
      in_warp(run)
    else:
      run()

  spec = jax.ShapeDtypeStruct
  x = spec(case.shape, case.np_dtype)
  value = spec(_vector_shape(region), case.np_dtype)
  specs = [x, *[value] * n]
  if case.mask:
    specs.append(spec(_vector_shape(region), jnp.bool_))
  specs += [spec(t.shape, t.dtype) for t in traced]
  out = ([value] if case.returns else []) + [x]
  scratch = [plgpu.SMEM(case.shape, case.np_dtype)] if (
      case.space == "smem") else []
  body.__name__ = f"{case.op}_kernel"
  return make_kernel(
      body, out, semantics=case.semantics, barriers=case.barriers,
      interpret=interpret, scratch_types=scratch), specs


def every_dtype(cases: tuple[Case, ...], interpret=False):
  """(function, specs): whole Refs under masks, one after another.

  The cases differ in nothing but their dtypes; of each the arguments and the
  results are those of `access`.
  """
  first = cases[0]
  n_inputs = 2 + first.operands

  def every_dtype_body(*refs):
    refs = list(refs)
    inputs = [[refs.pop(0) for _ in range(n_inputs)] for _ in cases]
    outs = [[refs.pop(0) for _ in range(1 + first.returns)] for _ in cases]

    def run():
      for (x_ref, *operand_refs, mask_ref), out_refs in zip(inputs, outs):
        new_ref = out_refs[-1]
        ref = refs.pop(0) if first.space == "smem" else new_ref
        jsx.store(ref, None, jsx.load(x_ref))
        old = getattr(jsx, first.op)(
            ref, None, *map(jsx.load, operand_refs), mask=jsx.load(mask_ref))
        if first.returns:
          jsx.store(out_refs[0], None, old)
        if first.space == "smem":
          jsx.store(new_ref, None, jsx.load(ref))

    if first.warp:
      in_warp(run)
    else:
      run()

  spec = jax.ShapeDtypeStruct
  values = [spec(c.shape, c.np_dtype) for c in cases]
  specs, out, scratch = [], [], []
  for v in values:
    specs += [v] * (1 + first.operands) + [spec(v.shape, jnp.bool_)]
    out += [v] * (1 + first.returns)
    if first.space == "smem":
      scratch.append(plgpu.SMEM(v.shape, v.dtype))
  return make_kernel(
      every_dtype_body, out, semantics=first.semantics, interpret=interpret,
      scratch_types=scratch), specs


def refused_form(op, form, semantics, warp, space):
  """An access of a form that no operation of Mosaic GPU kernels can have."""
  def refused_form_body(x_ref, o_ref, s_ref):
    del o_ref
    def run():
      ref = s_ref if space == "smem" else x_ref
      index = None
      match form:
        case "more than 512 elements per thread":
          ref, index = ref.reshape(127, 43), (slice(0, 43), slice(0, 31))
        case "view as a dtype of another width":
          ref = ref.bitcast(jnp.int16)
        case "multicast view":
          ref, index = plgpu.multicast_ref(ref, "device"), pl.ds(0, 32)
        case "integer arrays in a view":
          ref, index = ref.at[jnp.zeros((64,), jnp.int32)], pl.ds(0, 32)
      n_values = {"load": 0, "atomic_cas": 2}.get(op, 1)
      getattr(jsx, op)(ref, index, *[1] * n_values)
    if warp:
      in_warp(run)
    else:
      run()

  x = jax.ShapeDtypeStruct((127 * 43,), jnp.int32)
  if form == "view as a dtype of another width":
    x = jax.ShapeDtypeStruct((8, 128), jnp.int32)
  return make_kernel(
      refused_form_body, x, semantics=semantics,
      scratch_types=[plgpu.SMEM(x.shape, x.dtype)]), [x]


def refused_tmem(op, semantics):
  def refused_tmem_body(x_ref, o_ref, t_ref):
    del x_ref, o_ref
    n_values = {"load": 0, "atomic_cas": 2}.get(op, 1)
    getattr(jsx, op)(t_ref, None, *[1.0] * n_values)

  x = jax.ShapeDtypeStruct((128, 128), jnp.float32)
  return make_kernel(
      refused_tmem_body, x, semantics=semantics,
      scratch_types=[plgpu.TMEM(x.shape, x.dtype)]), [x]


def _loop_carry(x, y):
  def body(i, carry):
    return carry * 0.5 + y + i.astype(jnp.float32)
  return lax.fori_loop(0, 5, body, x)


def _while_carry(x, y):
  def cond(carry):
    return carry[0] < 4
  def body(carry):
    i, a = carry
    return i + 1, a + y
  return lax.while_loop(cond, body, (0, x))[1]


def _scan_carry(x, y):
  return lax.fori_loop(0, 3, lambda i, c: (c[0] + c[1], c[1] * 0.5), (x, y))[0]


def _softmax(x, y):
  e = jnp.exp(x - jnp.max(x, axis=1, keepdims=True))
  return e / jnp.sum(e, axis=1, keepdims=True) + 0 * y


# Functions of two (4, 64) float32 arrays, in terms that NumPy's twin in JAX
# evaluates outside the kernel.
WARP_MATH = {
    "axpy": lambda x, y: x * 2.0 + y,
    "divide": lambda x, y: x / (1.0 + jnp.abs(y)),
    "where": lambda x, y: jnp.where(x < y, x, y * y),
    "functions": lambda x, y: jnp.exp(x) + jnp.tanh(y) + lax.rsqrt(
        jnp.abs(x) + 1.0),
    "sin_log": lambda x, y: jnp.sin(x) + jnp.log(jnp.abs(y) + 1.0),
    "clip_sign": lambda x, y: jnp.clip(x, -0.5, 0.5) + jnp.sign(y),
    "logistic": lambda x, y: jax.nn.sigmoid(x) * y,
    "integer_pow": lambda x, y: x**3 - jnp.square(y),
    "casts": lambda x, y: (x.astype(jnp.bfloat16).astype(jnp.float32)
                           + y.astype(jnp.int32).astype(jnp.float32)),
    "bits": lambda x, y: lax.bitcast_convert_type(
        lax.bitcast_convert_type(x, jnp.int32) & 0x7FFFFFFF, jnp.float32) + y,
    "integers": lambda x, y: (
        ((x * 8).astype(jnp.int32) << 2) // 3
        + (y * 8).astype(jnp.int32) % 5).astype(jnp.float32),
    "logic": lambda x, y: ((x > 0) & ~(y > 0) | (x > y)).astype(jnp.float32),
    "full": lambda x, y: jnp.full((4, 64), 3.0) + x,
    "iota": lambda x, y: lax.broadcasted_iota(jnp.float32, (4, 64), 1) + (
        lax.broadcasted_iota(jnp.int32, (4, 64), 0).astype(jnp.float32) * x),
    "reshape": lambda x, y: x.reshape(256).reshape(8, 32).reshape(4, 64) - y,
    "transpose": lambda x, y: x.T.reshape(4, 64) + y,
    "row": lambda x, y: x + y[2:3],
    "squeeze": lambda x, y: x + lax.squeeze(y[1:2], (0,))[None, :],
    "slice": lambda x, y: lax.concatenate(
        [x[:, 3:35], y[:, 32:]], 1),
    "strided": lambda x, y: jnp.concatenate([x[:, ::2], y[:, 1::2]], axis=1),
    "concatenate": lambda x, y: jnp.concatenate([x[:1], y[1:3], x[3:]], axis=0),
    "odd_pieces": lambda x, y: jnp.concatenate([x[:, :7], y[:, 7:]], axis=1),
    "reverse": lambda x, y: jnp.flip(x, 1) + y,
    "sum": lambda x, y: x + jnp.sum(y),
    "max_axis0": lambda x, y: x + jnp.max(y, axis=0)[None, :],
    "sum_axis1": lambda x, y: x * jnp.sum(y, axis=1)[:, None],
    "min_keepdims": lambda x, y: x - jnp.min(y, axis=1, keepdims=True),
    "prod": lambda x, y: x + jnp.prod(1.0 + y[:1, :4] * 0.1),
    "any": lambda x, y: jnp.where(jnp.any(x > 2.0), x, y),
    "softmax": _softmax,
    "cumsum": lambda x, y: jnp.cumsum(x, axis=1) + y,
    "cumsum_axis0": lambda x, y: jnp.cumsum(x, axis=0) + y,
    "cummax_reverse": lambda x, y: lax.cummax(x, axis=1, reverse=True) + y,
    "cond": lambda x, y: lax.cond(jnp.sum(x) > 0, lambda: x + y, lambda: x - y),
    "fori": _loop_carry,
    "while": _while_carry,
    "two_carries": _scan_carry,
    "rounding": lambda x, y: y + lax.round(
        x * 2.0, lax.RoundingMethod.TO_NEAREST_EVEN) + lax.round(y * 2.0),
    "more_functions": lambda x, y: jnp.cos(x) + lax.erf(y) + lax.exp2(
        x) + jnp.sqrt(jnp.abs(y)) + lax.atan2(x, y),
    "extremes": lambda x, y: jnp.maximum(x, y) * 2.0 - jnp.minimum(x, 0.5),
    "bit_counts": lambda x, y: lax.clz((x * 64).astype(jnp.int32)).astype(
        jnp.float32) + lax.shift_right_logical(
            (y * 64).astype(jnp.int32), 28).astype(jnp.float32),
    "compare": lambda x, y: sum(
        jnp.where(c, 2.0**i, 0.0) for i, c in enumerate((
            x == y, x != y, x < y, x <= y, x > y, x >= y))),
    "full_max_min": lambda x, y: x * jnp.max(y) + jnp.min(y),
    "integer_reductions": lambda x, y: x + (
        jnp.sum((y * 8).astype(jnp.int32), axis=0)[None, :]
        - jnp.max((y * 8).astype(jnp.int32), axis=1, keepdims=True)
        + jnp.prod((y[:, :2] * 2).astype(jnp.int32), axis=1)[:, None]
        ).astype(jnp.float32),
    "both_axes": lambda x, y: x + jnp.sum(y, axis=(0, 1), keepdims=True),
    "mean": lambda x, y: x - jnp.mean(y, axis=0, keepdims=True),
    "prod_axis": lambda x, y: x * jnp.prod(
        1.0 + 0.1 * y, axis=0, keepdims=True),
    "all_axis": lambda x, y: jnp.where(
        jnp.all(x < 2.0, axis=1, keepdims=True), x, y),
    "expand_dims": lambda x, y: (x[:, None, :] * y[None, :, :]).sum(axis=1),
    "transpose_3d": lambda x, y: jnp.transpose(
        x.reshape(4, 8, 8), (1, 0, 2)).reshape(4, 64) + y,
    "concatenate_many": lambda x, y: jnp.concatenate(
        [x[:, i:i + 8] if i % 16 else y[:, i:i + 8] for i in range(0, 64, 8)],
        axis=1),
    "cumprod": lambda x, y: jnp.cumprod(1.0 + 0.1 * x, axis=1) + y,
    "cummin_axis0": lambda x, y: lax.cummin(x, axis=0) + y,
    "cumsum_integers": lambda x, y: jnp.cumsum(
        (x * 8).astype(jnp.int32), axis=1).astype(jnp.float32) + y,
    "scan": lambda x, y: lax.scan(
        lambda c, _: (c * 0.5 + y, None), x, None, length=3)[0],
    "switch": lambda x, y: lax.switch(
        (x[0, 0] > 0).astype(jnp.int32), [lambda: x, lambda: x * y]),
    "cond_in_loop": lambda x, y: lax.fori_loop(
        0, 4, lambda i, c: lax.cond(
            jnp.sum(c) > 0, lambda c: c - y, lambda c: c + x, c), x),
    "while_on_vector": lambda x, y: lax.while_loop(
        lambda c: jnp.max(c) < 4.0, lambda c: c + jnp.abs(y) + 0.5, x),
    "odd_size": lambda x, y: x + jnp.sum(y[:1, :33] * y[1:2, :33]),
    "odd_reduce": lambda x, y: x + jnp.sum(
        x[:3, :11] * y[1:, :11], axis=0)[4] + jnp.prod(
            1.0 + 0.1 * y[:3, :5], axis=1)[2],
    "odd_extremes": lambda x, y: x + jnp.max(y[:3, :7]) - jnp.min(
        y[:3, :11], axis=1, keepdims=True)[1, 0],
    "odd_integers": lambda x, y: x + jnp.sum(
        lax.broadcasted_iota(jnp.int32, (5, 9), 1)).astype(jnp.float32) + (
            jnp.any(y[:3, :33] > 1.0)).astype(jnp.float32),
    "odd_cumsum": lambda x, y: x + jnp.cumsum(
        y[:1, :50], axis=1)[:, 40:41] + jnp.cumsum(
            y[:3, :7], axis=0)[2, 6],
    "odd_moves": lambda x, y: x + jnp.concatenate(
        [y[:, :33].reshape(132)[::-1], y[:, 33:].T.reshape(124)]
        ).reshape(4, 64),
    "odd_carry": lambda x, y: x + lax.fori_loop(
        0, 3, lambda i, c: c * 0.5 + x[:3, :37], y[:3, :37])[2, 36],
    "one_element": lambda x, y: x + (y[1:2, 5:6] * 2.0 + 1.0),
}


def warp_math(name: str, semantics: str, interpret=False):
  """(function, specs): a function of WARP_MATH in each of the four warps."""
  def warp_math_body(x_ref, y_ref, o_ref):
    def one_warp():
      w = lax.axis_index("warp")
      # Warps work on different rows, so that a mix-up between them shows.
      x = jsx.load(x_ref, w)
      y = jsx.load(y_ref, w)
      jsx.store(o_ref, w, WARP_MATH[name](x, y))
    pl.kernel(one_warp, mesh=plgpu.WarpMesh(axis_name="warp"))()

  spec = jax.ShapeDtypeStruct((4, 4, 64), jnp.float32)
  return make_kernel(warp_math_body, spec, semantics=semantics,
                     interpret=interpret), [spec, spec]


# ## Kernels whose PTX is counted


def warp_copy(semantics, shape, dtype, masked=False):
  """GMEM to SMEM to GMEM in one warp, by way of registers."""
  def warp_copy_body(x_ref, *rest):
    *mask_refs, o_ref, s_ref = rest
    def run():
      mask = jsx.load(mask_refs[0]) if masked else None
      jsx.store(s_ref, None, jsx.load(x_ref), mask=mask)
      jsx.store(o_ref, None, jsx.load(s_ref))
    in_warp(run)
  dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
  spec = jax.ShapeDtypeStruct(shape, dtype)
  masks = [jax.ShapeDtypeStruct(shape, np.bool_)] * masked
  return make_kernel(warp_copy_body, spec, semantics=semantics, scratch_types=[
      plgpu.SMEM(shape, dtype)]), [spec, *masks]


def copy_by_hand(shape, dtype):
  """`warp_copy` as one would write it without this library.

  Under Lane lowering: the other has no scalar load from SMEM in warp code.
  """
  def copy_by_hand_body(x_ref, o_ref, s_ref):
    def copy(source, target):
      def body(i, carry):
        at = jnp.unravel_index(i, shape)
        target[at] = source[at]
        return carry
      lax.fori_loop(0, math.prod(shape), body, 0)
    def run():
      copy(x_ref, s_ref)
      copy(s_ref, o_ref)
    in_warp(run)
  spec = jax.ShapeDtypeStruct(
      shape, np.dtype(getattr(ml_dtypes, dtype, dtype)))
  return make_kernel(copy_by_hand_body, spec, semantics="Lane", scratch_types=[
      plgpu.SMEM(shape, spec.dtype)]), [spec]


def masked_by_hand(semantics):
  """What one would write for a masked store without this library."""
  del semantics
  def function(x, mask):
    def masked_by_hand_body(x_ref, mask_ref, o_ref, s_ref):
      def run():
        def body(i, carry):
          @pl.when(mask_ref[i] != 0)
          def _():
            s_ref[i] = x_ref[i]
          return carry
        lax.fori_loop(0, 128, body, 0)
        def out(i, carry):
          o_ref[i] = s_ref[i]
          return carry
        lax.fori_loop(0, 128, out, 0)
      in_warp(run)
    return make_kernel(
        masked_by_hand_body, jax.ShapeDtypeStruct((128,), jnp.float32),
        semantics="Lane", scratch_types=[plgpu.SMEM((128,), jnp.float32)])(
            x, mask)
  return function, [jax.ShapeDtypeStruct((128,), jnp.float32),
                    jax.ShapeDtypeStruct((128,), jnp.int32)]


def accumulate(semantics, space, warp):
  """Atomic updates whose old values nobody wants."""
  def accumulate_body(x_ref, o_ref, s_ref):
    def run():
      jsx.atomic_add(
          s_ref if space == "smem" else o_ref, None, jsx.load(x_ref))
    if warp:
      in_warp(run)
    else:
      run()
    if space == "smem":
      jsx.store(o_ref, None, jsx.load(s_ref))
  x = jax.ShapeDtypeStruct((128,), jnp.int32)
  return make_kernel(accumulate_body, x, semantics=semantics, scratch_types=[
      plgpu.SMEM((128,), jnp.int32)]), [x]


def atomics(semantics, space, dtype):
  """Every atomic operation that the dtype has, old values wanted."""
  dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
  names = ["xchg", "cas", "add", "max", "min"]
  if dtype.kind in "iu":
    names += ["and", "or", "xor"]
  def atomics_body(x_ref, o_ref, s_ref):
    def run():
      x = jsx.load(x_ref)
      for i, name in enumerate(names):
        values = (x, x) if name == "cas" else (x,)
        ref = s_ref if space == "smem" else o_ref.at[len(names)]
        jsx.store(o_ref, i, getattr(jsx, f"atomic_{name}")(ref, None, *values))
    in_warp(run)
  spec = jax.ShapeDtypeStruct
  return make_kernel(
      atomics_body, spec((len(names) + 1, 32), dtype), semantics=semantics,
      scratch_types=[plgpu.SMEM((32,), dtype)]), [spec((32,), dtype)]


class _Stock:
  """The accesses in stock syntax, under the names of ours."""

  @staticmethod
  def load(ref, idx=None):
    return ref[...] if idx is None else ref[idx]

  @staticmethod
  def store(ref, idx, value):
    ref[... if idx is None else idx] = value

  @staticmethod
  def swap(ref, idx, value):
    return jax.ref.swap(ref, ... if idx is None else idx, value)


def _same_whole(api, x_ref, o_ref, s_ref):
  api.store(s_ref, None, api.load(x_ref))
  api.store(o_ref, None, api.load(s_ref))


def _same_row(api, x_ref, o_ref, s_ref):
  api.store(s_ref, 1, api.load(x_ref, 2) * 2)
  api.store(o_ref, 3, api.load(s_ref, 1))


def _same_dynamic(api, x_ref, o_ref, s_ref):
  del s_ref
  def body(i, carry):
    api.store(o_ref, (pl.ds(i * 2, 2),), api.load(x_ref, (pl.ds(i * 2, 2),)))
    return carry
  lax.fori_loop(0, 2, body, 0)


def _same_scalar(api, x_ref, o_ref, s_ref):
  del s_ref
  api.store(o_ref, (0, 3), api.load(x_ref, (1, 2)) + 1)


def _same_scalar_in_warp(api, x_ref, o_ref, s_ref):
  del s_ref
  in_warp(lambda: api.store(o_ref, (0, 3), api.load(x_ref, (1, 2)) + 1))


STOCK_ACCESSES = {
    "whole": _same_whole, "row": _same_row, "dynamic": _same_dynamic,
    "scalar": _same_scalar, "scalar_in_warp": _same_scalar_in_warp}


def same_as_stock(name, semantics, ours: bool, dtype="float32"):
  """One kernel in stock syntax or in ours."""
  api = jsx if ours else _Stock
  dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
  def same_body(x_ref, o_ref, s_ref):
    STOCK_ACCESSES[name](api, x_ref, o_ref, s_ref)
  spec = jax.ShapeDtypeStruct((4, 128), dtype)
  return make_kernel(same_body, spec, semantics=semantics, scratch_types=[
      plgpu.SMEM((4, 128), dtype)]), [spec]


# ## Whole programs of several threads


def spin_lock(semantics, interpret=False):
  """Every warp adds to unprotected data under a lock made of cas and xchg."""
  def spin_lock_body(rounds_ref, count_ref, log_ref, lock_ref, data_ref):
    jsx.store(lock_ref, 0, 0)
    jsx.store(data_ref, None, jnp.zeros((32,), jnp.int32))
    def one_warp():
      def acquire(_):
        return jsx.atomic_cas(lock_ref, 0, 0, 1, sem="acquire")
      def body(i, carry):
        lax.while_loop(lambda seen: seen != 0, acquire, jnp.int32(1))
        old = jsx.load(data_ref)
        jsx.store(data_ref, None, old + 1)
        jsx.atomic_xchg(lock_ref, 0, 0, sem="release")
        return carry
      lax.fori_loop(0, rounds_ref[0], body, 0)
    pl.kernel(one_warp, mesh=plgpu.WarpMesh(axis_name="warp"))()
    jsx.store(count_ref, None, jsx.load(data_ref))
    jsx.store(log_ref, 0, jsx.load(lock_ref, 0))
  spec = jax.ShapeDtypeStruct
  return make_kernel(
      spin_lock_body, [spec((32,), jnp.int32), spec((1,), jnp.int32)],
      semantics=semantics, interpret=interpret, scratch_types=[
          plgpu.SMEM((1,), jnp.int32), plgpu.SMEM((32,), jnp.int32)]), [
              spec((1,), jnp.int32)]


RING_SLOTS, RING_STEPS = 2, 6


def ring(semantics, interpret=False):
  """One warp produces rows into a ring in SMEM, another consumes them.

  A slot's flag counts how often it was filled and emptied: even is empty.
  """
  def ring_body(x_ref, o_ref, slots_ref, flag_ref):
    jsx.store(flag_ref, None, jnp.zeros((RING_SLOTS,), jnp.int32))
    def wait_for(slot, wanted):
      def look(_):
        return jsx.atomic_or(flag_ref, slot, 0, sem="acquire")
      lax.while_loop(lambda seen: seen != wanted, look, jnp.int32(-1))
    def one_warp():
      w = lax.axis_index("warp")
      @pl.when(w == 0)
      def _():
        def produce(i, carry):
          slot, turn = i % RING_SLOTS, i // RING_SLOTS
          wait_for(slot, 2 * turn)
          jsx.store(slots_ref, slot, jsx.load(x_ref, i) + 1.0)
          jsx.atomic_add(flag_ref, slot, 1, sem="release")
          return carry
        lax.fori_loop(0, RING_STEPS, produce, 0)
      @pl.when(w == 1)
      def _():
        def consume(i, carry):
          slot, turn = i % RING_SLOTS, i // RING_SLOTS
          wait_for(slot, 2 * turn + 1)
          jsx.store(o_ref, i, jsx.load(slots_ref, slot) * 2.0)
          jsx.atomic_add(flag_ref, slot, 1, sem="release")
          return carry
        lax.fori_loop(0, RING_STEPS, consume, 0)
    pl.kernel(one_warp, mesh=plgpu.WarpMesh(axis_name="warp"))()
  spec = jax.ShapeDtypeStruct((RING_STEPS, 64), jnp.float32)
  return make_kernel(ring_body, spec, semantics=semantics, interpret=interpret,
                     scratch_types=[
                         plgpu.SMEM((RING_SLOTS, 64), jnp.float32),
                         plgpu.SMEM((RING_SLOTS,), jnp.int32)]), [spec]


def histogram(semantics, interpret=False):
  """A block's histogram in SMEM, with the rank of each item in its bin."""
  def histogram_body(x_ref, bins_ref, rank_ref, s_ref):
    jsx.store(s_ref, None, jnp.zeros((16,), jnp.int32))
    def one_warp():
      w = lax.axis_index("warp")
      at = jsx.load(x_ref, w)
      rank = jsx.atomic_add(s_ref, at, jnp.ones((64,), jnp.int32))
      jsx.store(rank_ref, w, rank)
    pl.kernel(one_warp, mesh=plgpu.WarpMesh(axis_name="warp"))()
    jsx.store(bins_ref, None, jsx.load(s_ref))
  x = jax.ShapeDtypeStruct((4, 64), jnp.int32)
  return make_kernel(
      histogram_body, [jax.ShapeDtypeStruct((16,), jnp.int32), x],
      semantics=semantics, interpret=interpret,
      scratch_types=[plgpu.SMEM((16,), jnp.int32)]), [x]


def tickets(semantics, interpret=False):
  """Every warpgroup of every block draws tickets from one counter in GMEM."""
  def function(counter):
    ref = jax.new_ref(counter)
    def tickets_body(counter_ref, o_ref):
      b, w = lax.axis_index("block"), lax.axis_index("wg")
      o_ref[b * 2 + w] = jsx.atomic_add(counter_ref, 0, 1)
    drawn = make_kernel(
        tickets_body, jax.ShapeDtypeStruct((8,), jnp.int32),
        semantics=semantics, interpret=interpret, grid=(4,),
        grid_names=("block",), num_threads=2, thread_name="wg")(ref)
    return drawn, jax.freeze(ref)
  return function, [jax.ShapeDtypeStruct((1,), jnp.int32)]


def planted_race(semantics, interpret=False):
  """As `spin_lock`, with nobody asking for the lock."""
  def planted_race_body(x_ref, o_ref, data_ref):
    jsx.store(data_ref, None, jsx.load(x_ref))
    def one_warp():
      jsx.store(data_ref, None, jsx.load(data_ref) + 1)
    pl.kernel(one_warp, mesh=plgpu.WarpMesh(axis_name="warp"))()
    jsx.store(o_ref, None, jsx.load(data_ref))
  spec = jax.ShapeDtypeStruct((32,), jnp.int32)
  return make_kernel(planted_race_body, spec, semantics=semantics,
                     interpret=interpret, scratch_types=[
                         plgpu.SMEM((32,), jnp.int32)]), [spec]


def odd_old_values(semantics):
  """Arithmetic on the old values of an atomic on 33 elements, in each warp."""
  def odd_old_values_body(x_ref, most_ref, sum_ref, s_ref):
    def one_warp():
      w = lax.axis_index("warp")
      jsx.store(s_ref, w, jsx.load(x_ref, w))
      old = jsx.atomic_add(s_ref, w, jnp.ones((33,), jnp.int32))
      jsx.store(most_ref, w, jnp.max(old))
      jsx.store(sum_ref, w, jnp.sum(old + jsx.load(s_ref, w)))
    pl.kernel(one_warp, mesh=plgpu.WarpMesh(axis_name="warp"))()
  spec = jax.ShapeDtypeStruct
  each = spec((4,), jnp.int32)
  return make_kernel(
      odd_old_values_body, [each, each], semantics=semantics,
      scratch_types=[plgpu.SMEM((4, 33), jnp.int32)]), [
          spec((4, 33), jnp.int32)]


def bulk_store_from_warp(semantics, commit=True):
  """A warp fills SMEM and copies it out, the fence in between."""
  from jax_swapext import mosaic_gpu as jsx_gpu
  def bulk_store_body(x_ref, o_ref, s_ref):
    def run():
      jsx.store(s_ref, None, jsx.load(x_ref) * 2.0)
      if commit:
        jsx_gpu.commit_smem()
      plgpu.copy_smem_to_gmem(s_ref, o_ref)
      plgpu.wait_smem_to_gmem(0)
    in_warp(run)
  spec = jax.ShapeDtypeStruct((128,), jnp.float32)
  return make_kernel(bulk_store_body, spec, semantics=semantics, scratch_types=[
      plgpu.SMEM((128,), jnp.float32)]), [spec]


def lanes_through_smem(semantics, barrier=True):
  """Without automatic barriers, lanes meet at an explicit one."""
  from jax_swapext import mosaic_gpu as jsx_gpu
  def lanes_body(x_ref, o_ref, s_ref):
    def run():
      jsx.store(s_ref, None, jsx.load(x_ref))
      if barrier:
        jsx_gpu.warp_barrier()
      backwards = 127 - lax.iota(jnp.int32, 128)
      jsx.store(o_ref, None, jsx.load(s_ref, backwards))
    in_warp(run)
  spec = jax.ShapeDtypeStruct((128,), jnp.float32)
  return make_kernel(lanes_body, spec, semantics=semantics, barriers=False,
                     scratch_types=[plgpu.SMEM((128,), jnp.float32)]), [spec]


# ## Layouts and memory that come from elsewhere


def cluster(semantics, warp, op):
  """Each of two blocks works on the other's shared memory."""
  def cluster_body(x_ref, v_ref, m_ref, o_ref, old_ref, s_ref, before, after):
    me = lax.axis_index("cluster")
    jsx.store(s_ref, None, jsx.load(x_ref, me))
    plgpu.barrier_arrive(before)
    plgpu.barrier_wait(before)
    def run():
      peer = plgpu.cluster_ref(s_ref, {"cluster": 1 - me})
      part, kwargs = pl.ds(2, 64), {}
      if op in ("load", "atomic_add"):
        kwargs["mask"] = jsx.load(m_ref)
      values = () if op == "load" else (jsx.load(v_ref),)
      if op == "atomic_cas":
        values = (jsx.load(x_ref, (1 - me, part)), *values)
      old = getattr(jsx, op)(peer, part, *values, **kwargs)
      if old is not None:
        jsx.store(old_ref, me, old)
      jsx.store(peer, 1, jsx.load(peer, 0) + 1.0)
    if warp:
      in_warp(run)
    else:
      run()
    plgpu.barrier_arrive(after)
    plgpu.barrier_wait(after)
    jsx.store(o_ref, me, jsx.load(s_ref))
  spec = jax.ShapeDtypeStruct
  x, old = spec((2, 128), jnp.float32), spec((2, 64), jnp.float32)
  barrier = plgpu.ClusterBarrier(collective_axes=("cluster",))
  return make_kernel(
      cluster_body, [x, old], semantics=semantics, grid=(2,),
      grid_names=("block",), cluster=(2,), cluster_names=("cluster",),
      scratch_types=[plgpu.SMEM((128,), jnp.float32), barrier, barrier]), [
          x, spec((64,), jnp.float32), spec((64,), jnp.bool_)]


def peer_device(semantics, op, warp):
  """An access to the output of the other one of two devices."""
  def peer_device_body(x_ref, m_ref, o_ref):
    other = 1 - lax.axis_index("device")
    peer = plgpu.remote_ref(
        o_ref, other, device_id_type=pl.DeviceIdType.LOGICAL)
    def run():
      x, mask = jsx.load(x_ref), jsx.load(m_ref)
      match op:
        case "load":
          jsx.store(o_ref, None, jsx.load(peer, mask=mask))
        case "store":
          jsx.store(peer, None, x, mask=mask)
        case "atomic_add":
          jsx.atomic_add(peer, None, x, mask=mask)
    if warp:
      in_warp(run)
    else:
      run()
  x = jax.ShapeDtypeStruct((128,), jnp.float32)
  return make_kernel(peer_device_body, x, semantics=semantics), [
      x, jax.ShapeDtypeStruct((128,), jnp.bool_)]


def _tiled_smem(shape, dtype, swizzle):
  itemsize = np.dtype(dtype).itemsize
  return plgpu.SMEM(shape, dtype, transforms=(
      plgpu.TilingTransform((8, swizzle // itemsize)),
      plgpu.SwizzleTransform(swizzle)))


def accumulator(semantics, atomic=False, layout="WGMMA", rows=64):
  """Stores a value in the layout of a matrix product's result, under a mask."""
  layout = getattr(plgpu.Layout, layout)
  def accumulator_body(x_ref, n_ref, o_ref):
    row, column = (plgpu.broadcasted_iota(
        jnp.int32, (rows, 64), d, layout=layout) for d in (0, 1))
    x = (row * 64 + column).astype(jnp.float32) * x_ref[0]
    _store_rows_before(o_ref, n_ref[0], x, atomic, layout)
  spec = jax.ShapeDtypeStruct
  return make_kernel(
      accumulator_body, spec((rows, 64), jnp.float32), semantics=semantics), [
          spec((1,), jnp.float32), spec((1,), jnp.int32)]


def _store_rows_before(o_ref, n, x, atomic=False, layout=plgpu.Layout.WGMMA):
  jsx.store(o_ref, None, jnp.full(x.shape, -1.0))
  row = plgpu.broadcasted_iota(jnp.int32, x.shape, 0, layout=layout)
  if atomic:
    jsx.atomic_add(o_ref, None, x, mask=row < n)
  else:
    jsx.store(o_ref, None, x, mask=row < n)


def tensor_memory(semantics):
  """Stores what comes from tensor memory under a mask."""
  def tensor_memory_body(n_ref, o_ref, t_ref):
    x = plgpu.async_load_tmem(t_ref)
    plgpu.wait_load_tmem()
    _store_rows_before(o_ref, n_ref[0], x, layout=plgpu.Layout.TCGEN05)
  spec = jax.ShapeDtypeStruct
  return make_kernel(
      tensor_memory_body, spec((128, 64), jnp.float32), semantics=semantics,
      scratch_types=[plgpu.TMEM((128, 64), jnp.float32)]), [
          spec((1,), jnp.int32)]


def product(semantics, atomic=False, declared=True, warp=False):
  """Rows of a matrix product, after a store into one of its operands."""
  from jax_swapext import mosaic_gpu as jsx_gpu
  def product_body(a_ref, b_ref, row_ref, n_ref, o_ref, a_smem, b_smem,
                   barrier):
    for x_ref, x_smem in ((a_ref, a_smem), (b_ref, b_smem)):
      plgpu.copy_gmem_to_smem(x_ref, x_smem, barrier)
      plgpu.barrier_wait(barrier)
    def change():
      jsx.store(a_smem, 3, jsx.load(row_ref))
    if warp:
      def change_and_commit():
        change()
        jsx_gpu.commit_smem()
      in_warp(change_and_commit)
    else:
      change()
      plgpu.commit_smem()
    def multiply(acc_ref):
      plgpu.wgmma(acc_ref, a_smem, b_smem)
      return acc_ref[...]
    x = pl.run_scoped(multiply, plgpu.ACC((64, 64), jnp.float32))
    _store_rows_before(o_ref, n_ref[0], x, atomic)
  spec, dtype = jax.ShapeDtypeStruct, jnp.bfloat16
  smem = _tiled_smem((64, 64), dtype, 128) if declared else (
      plgpu.SMEM((64, 64), dtype))
  return make_kernel(
      product_body, spec((64, 64), jnp.float32), semantics=semantics,
      scratch_types=[smem, smem, plgpu.Barrier()]), [
          spec((64, 64), dtype), spec((64, 64), dtype), spec((64,), dtype),
          spec((1,), jnp.int32)]


def swizzled(semantics, warp, op, dtype="float32", swizzle=128, mask=True):
  """A row of a tiled and swizzled SMEM Ref, between two bulk copies."""
  dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
  width = 128
  def swizzled_body(x_ref, v_ref, m_ref, r_ref, o_ref, old_ref, s_ref, barrier):
    plgpu.copy_gmem_to_smem(x_ref, s_ref, barrier)
    plgpu.barrier_wait(barrier)
    def run():
      v = jsx.load(v_ref)
      kwargs = dict(mask=jsx.load(m_ref)) if mask else {}
      old = getattr(jsx, op)(s_ref, r_ref[0], v, **kwargs)
      jsx.store(old_ref, None, v if old is None else old)
    if warp:
      in_warp(run)
    else:
      run()
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(s_ref, o_ref)
    plgpu.wait_smem_to_gmem(0)
  spec = jax.ShapeDtypeStruct
  x, v = spec((16, width), dtype), spec((width,), dtype)
  return make_kernel(
      swizzled_body, [x, v], semantics=semantics, scratch_types=[
          _tiled_smem((16, width), dtype, swizzle), plgpu.Barrier()]), [
              x, v, spec((width,), jnp.bool_), spec((1,), jnp.int32)]


def swizzled_block(semantics, warp):
  """A masked swap of a two-dimensional part of a swizzled Ref."""
  def swizzled_block_body(x_ref, m_ref, o_ref, s_ref, barrier):
    plgpu.copy_gmem_to_smem(x_ref, s_ref, barrier)
    plgpu.barrier_wait(barrier)
    def run():
      part = (slice(8, 16), slice(32, 64))
      v = jsx.load(s_ref, part)
      jsx.store(s_ref, part, v * 2, mask=jsx.load(m_ref))
    if warp:
      in_warp(run)
    else:
      run()
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(s_ref, o_ref)
    plgpu.wait_smem_to_gmem(0)
  spec = jax.ShapeDtypeStruct
  x = spec((16, 64), jnp.float32)
  return make_kernel(
      swizzled_block_body, x, semantics=semantics, scratch_types=[
          _tiled_smem((16, 64), jnp.float32, 128), plgpu.Barrier()]), [
              x, spec((8, 32), jnp.bool_)]


def inferred_tiling(warp, op):
  """Accesses to SMEM whose tiling and swizzle stock stores make necessary."""
  def inferred_tiling_body(x_ref, m_ref, o_ref, old_ref, rows_ref, s_ref):
    row, column = (plgpu.broadcasted_iota(
        jnp.int32, (64, 64), d, layout=plgpu.Layout.WGMMA) for d in (0, 1))
    s_ref[...] = (row * 64 + column).astype(jnp.float32)
    def run():
      x, mask = jsx.load(x_ref), jsx.load(m_ref)
      values = () if op == "load" else (x,)
      old = getattr(jsx, op)(s_ref, 17, *values, mask=mask)
      jsx.store(old_ref, None, x if old is None else old)
      jsx.store(s_ref, (slice(1, 64, 2), 5), jnp.full((32,), -1.0))
      at = jnp.full((32,), 17, jnp.int32)
      jsx.store(rows_ref, None, jsx.load(s_ref, at))
    if warp:
      in_warp(run)
    else:
      run()
    o_ref[...] = plgpu.layout_cast(s_ref[...], plgpu.Layout.WGMMA)
  spec = jax.ShapeDtypeStruct
  x, square = spec((64,), jnp.float32), spec((64, 64), jnp.float32)
  return make_kernel(
      inferred_tiling_body, [square, x, spec((32, 64), jnp.float32)],
      semantics="Warpgroup", scratch_types=[
          plgpu.SMEM((64, 64), jnp.float32)]), [x, spec((64,), jnp.bool_)]


def views(semantics, warp):
  """Reshapes, transposes and chained views of a Ref."""
  def views_body(x_ref, o_ref, p_ref):
    def run():
      turned = x_ref.at[pl.ds(2, 4)].transpose((1, 0))
      jsx.store(o_ref, None, jsx.load(turned, (slice(0, 32), slice(None))))
      flat = x_ref.reshape(8 * 32)
      jsx.store(p_ref, None, jsx.load(flat, pl.ds(5, 32, 7)))
    if warp:
      in_warp(run)
    else:
      run()
  spec = jax.ShapeDtypeStruct
  return make_kernel(
      views_body, [spec((32, 4), jnp.float32), spec((32,), jnp.float32)],
      semantics=semantics), [spec((8, 32), jnp.float32)]


# ## What stock refuses, in our terms (see stock_gpu_corpus.REFUSED)


def _twin_atomic(function):
  def twin(x_ref, o_ref, s_ref):
    jsx.store(s_ref, None, jsx.load(x_ref))
    function(x_ref, s_ref)
    jsx.store(o_ref, None, jsx.load(s_ref))
  return twin


def _twin_returning(function):
  """The old values plus ten times the new ones."""
  def twin(x_ref, o_ref, s_ref):
    jsx.store(s_ref, None, jsx.load(x_ref))
    old = function(jsx.load(x_ref), s_ref)
    jsx.store(o_ref, None, old + 10.0 * jsx.load(s_ref))
  return twin


def _twin_masked_store(x_ref, o_ref, s_ref):
  jsx.store(s_ref, None, jnp.zeros((128,), jnp.float32))
  x = jsx.load(x_ref)
  jsx.store(s_ref, None, x, mask=x > 1.5)
  jsx.store(o_ref, None, jsx.load(s_ref))


def _twin_warp(function):
  def twin(x_ref, o_ref, s_ref):
    def run():
      jsx.store(s_ref, None, jsx.load(x_ref))
      function(x_ref, o_ref, s_ref)
    in_warp(run)
  return twin


def _twin_while(x_ref, o_ref, s_ref):
  del s_ref
  jsx.store(o_ref, 0, lax.while_loop(
      lambda i: i < 9.0, lambda i: i * 2.0, jsx.load(x_ref, 1)))


def _doubled_to_nine(x):
  while x < 9:
    x = x * 2
  return x


# Kernel, and the elements of its output that NumPy expects.
ACCEPTED = {
    "store_in_warp": (
        _twin_warp(lambda x, o, s: jsx.store(o, None, jnp.zeros((128,)))),
        lambda x: 0 * x),
    "load_in_warp": (
        _twin_warp(lambda x, o, s: jsx.store(o, None, jsx.load(x))),
        lambda x: x),
    "iota_in_warp": (
        _twin_warp(lambda x, o, s: jsx.store(
            o, 0, jnp.sum(lax.iota(jnp.float32, 128)))),
        lambda x: [8128.0]),
    "broadcast_in_warp": (
        _twin_warp(lambda x, o, s: jsx.store(
            o, 0, jnp.sum(jnp.broadcast_to(jsx.load(x, 1), (128,))))),
        lambda x: [128 * x[1]]),
    "reduce_in_warp": (
        _twin_warp(lambda x, o, s: jsx.store(o, 0, jnp.sum(jsx.load(x)))),
        lambda x: [x.sum()]),
    "masked_load": (
        lambda x, o, s: jsx.store(o, None, jsx.load(
            x, mask=jsx.load(x) > 1.5, other=-1.0)),
        lambda x: np.where(x > 1.5, x, -1)),
    "masked_store": (
        _twin_masked_store, lambda x: np.where(x > 1.5, x, 0)),
    "bools": (
        lambda x, o, s: jsx.store(o, None, jsx.load(x)), lambda x: x),
    "odd_size": (
        lambda x, o, s: jsx.store(o, pl.ds(0, 33), jsx.load(x, pl.ds(2, 33))),
        lambda x: x[2:35]),
    "strided": (
        lambda x, o, s: jsx.store(
            o, pl.ds(0, 64), jsx.load(x, pl.ds(0, 64, 2))),
        lambda x: x[::2]),
    "integer_array": (
        lambda x, o, s: jsx.store(
            o, None, jsx.load(x, jnp.full((128,), 3, jnp.int32))),
        lambda x: x[3] + 0 * x),
    "atomic_scalar": (
        _twin_atomic(lambda x, s: jsx.atomic_add(s, 3, 1.0)),
        lambda x: [*x[:3], x[3] + 1, *x[4:]]),
    "atomic_odd": (
        _twin_atomic(lambda x, s: jsx.atomic_add(s, pl.ds(0, 33), 1.0)),
        lambda x: [*(x[:33] + 1), *x[33:]]),
    "atomic_splat": (
        _twin_atomic(lambda x, s: jsx.atomic_add(s, None, 1.0)),
        lambda x: x + 1),
    "atomic_exchange": (
        _twin_returning(lambda x, s: jsx.atomic_xchg(s, None, x + 1.0)),
        lambda x: x + 10 * (x + 1)),
    "atomic_compare_and_swap": (
        _twin_returning(lambda x, s: jsx.atomic_cas(s, None, x, x + 1.0)),
        lambda x: x + 10 * (x + 1)),
    "atomic_float_min": (
        _twin_atomic(lambda x, s: jsx.atomic_min(s, None, jsx.load(x) - 1.0)),
        lambda x: x - 1),
    "atomic_float_max": (
        _twin_atomic(lambda x, s: jsx.atomic_max(s, None, jsx.load(x) + 1.0)),
        lambda x: x + 1),
    "scalar_smem_load_in_warp": (
        _twin_warp(lambda x, o, s: jsx.store(o, 0, jsx.load(s, 5))),
        lambda x: [x[5]]),
    "while_result_in_warp": (
        _twin_warp(_twin_while), lambda x: [_doubled_to_nine(x[1])]),
}


def accepted(name, semantics):
  body = ACCEPTED[name][0]
  def accepted_body(x_ref, o_ref, s_ref):
    body(x_ref, o_ref, s_ref)
  x = stock_gpu_corpus.argument(name)
  return make_kernel(accepted_body, x, semantics=semantics, scratch_types=[
      plgpu.SMEM(x.shape, x.dtype)]), [x]


def signed_max(semantics):
  """As `atomic_max` of the stock corpus."""
  def function(x, y):
    def signed_max_body(x_ref, y_ref):
      jsx.atomic_max(y_ref, None, jsx.load(x_ref))
    ref = jax.new_ref(y)
    make_kernel(signed_max_body, (), semantics=semantics)(x, ref)
    return jax.freeze(ref)
  x = jax.ShapeDtypeStruct((256,), jnp.int32)
  return function, [x, x]


def stock_store_in_warp(semantics):
  """Stock syntax, which stays as it was without the decorator."""
  def stock_store_body(x_ref, o_ref):
    in_warp(lambda: o_ref.__setitem__(..., jsx.load(x_ref)))
  x = jax.ShapeDtypeStruct((128,), jnp.float32)
  return make_kernel(stock_store_body, x, semantics=semantics), [x]


# ## What we refuse


def refused(name, semantics):
  def refused_body(x_ref, o_ref, s_ref):
    del o_ref
    jsx.store(s_ref, None, jsx.load(x_ref))
    match name:
      case "too_many_registers":
        jsx.load(x_ref.reshape(127, 43), (slice(0, 43), slice(0, 31)))
      case "narrowing_bitcast":
        jsx.load(s_ref.reshape(8, 16).bitcast(jnp.int16))
      case "nested_arrays":
        jsx.load(s_ref.at[jnp.zeros((64,), jnp.int32)], pl.ds(0, 32))
      case "barrier_of_a_warpgroup":
        from jax_swapext import mosaic_gpu as jsx_gpu
        jsx_gpu.warp_barrier()
      case "fence_of_a_warpgroup":
        from jax_swapext import mosaic_gpu as jsx_gpu
        jsx_gpu.commit_smem()
  n = 127 * 43 if name == "too_many_registers" else 128
  x = jax.ShapeDtypeStruct((n,), jnp.float32)
  small = jax.ShapeDtypeStruct((128,), jnp.float32)
  if name == "too_many_registers":
    def refused_body(x_ref, o_ref, s_ref):
      del s_ref
      jsx.store(o_ref, pl.ds(0, 31), jsx.load(
          x_ref.reshape(127, 43), (slice(0, 43), slice(0, 31)))[0])
  return make_kernel(refused_body, small, semantics=semantics, scratch_types=[
      plgpu.SMEM((128,), jnp.float32)]), [x]
