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
"""Our accesses as single operations of the Mosaic GPU dialect.

Under Warpgroup lowering a layout pass assigns threads to elements later, and
may do it wrongly for operations it takes for a warpgroup's. An access, or an
operation on the arrays of a warp, therefore goes into a `custom_primitive`,
whose body is written in terms of one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import math
from typing import Any, NamedTuple, cast

from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import builtin
from jax._src.lib.mlir.dialects import llvm
from jax._src.pallas.mosaic_gpu import core as gpu_core
from jax._src.pallas.mosaic_gpu import lowering
from jax.experimental.mosaic import gpu as mgpu
from jax.experimental.mosaic.gpu import constraints as cs
from jax.experimental.mosaic.gpu import dialect_lowering
from jax.experimental.mosaic.gpu import fragmented_array as fa
from jax.experimental.mosaic.gpu import inference_utils
from jax.experimental.mosaic.gpu import layout_inference
from jax.experimental.mosaic.gpu import layouts as layouts_lib
from jax.experimental.mosaic.gpu import utils as mgpu_utils
from jax_swapext._src.pallas import gpu_ir
from jax_swapext._src.pallas import gpu_layouts
import numpy as np

FragmentedArray = fa.FragmentedArray

ALL_SEMANTICS = (
    gpu_core.LANExWG_SEMANTICS,
    gpu_core.LANExWARP_SEMANTICS,
    gpu_core.WGxWG_SEMANTICS,
    gpu_core.WGxWARP_SEMANTICS,
)


def is_smem(value: ir.Value) -> bool:
  return isinstance(value.type, ir.MemRefType) and (
      mgpu_utils.is_smem_ref(value) or _is_of_cluster(value)
  )


def _is_of_cluster(value: ir.Value) -> bool:
  """Whether it is shared memory of another block, maybe."""
  return mgpu_utils.is_cluster_smem_ref(value.type)


def _attribute(layout) -> ir.Attribute:
  return layouts_lib.to_layout_attr(layout)


def with_declared_transforms(ref, ref_aval: Any, transforms):
  """An SMEM Ref with its declared tiling and swizzle attached.

  Args:
    ref: the memref.
    ref_aval: its aval.
    transforms: the Ref's transforms, those that undo tiling and swizzle first.

  Returns:
    The memref and the attribute of its transforms.
  """
  declared, logical = [], ref_aval
  for t in transforms:
    if not isinstance(t, (gpu_core.UntilingTransform, gpu_core.UnswizzleRef)):
      break
    declared.insert(0, t.undo(logical))
    logical = t.transform_type(logical)
  attribute = ir.ArrayAttr.get(
      [gpu_core.to_transform_attr(t) for t in declared]
  )
  if declared:
    ref = mgpu.dialect.with_transforms(
        lowering._reinterpret_cast(ref, cast(Any, logical)), attribute
    )
  return ref, attribute


def _as_thread_sees(value, aval, layout):
  """The operand of a custom primitive in terms of one thread."""
  signed = mgpu_utils.is_signed(aval.dtype)
  if not gpu_ir.is_array(aval):
    return FragmentedArray.splat(value, (), is_signed=signed)
  shape = layout.registers_shape(tuple(aval.shape))
  register = layout.registers_element_type(gpu_ir.element_type(aval.dtype))
  cast = builtin.UnrealizedConversionCastOp(
      [register] * math.prod(shape), [value]
  )
  cast.attributes["registers_shape"] = ir.ArrayAttr.get(
      [ir.IntegerAttr.get(gpu_ir.i64(), s) for s in shape]
  )
  cast.attributes["layout"] = _attribute(layout)
  held = np.array(list(cast.results), dtype=object).reshape(shape)
  return gpu_ir.wrap(held, layout, signed)


def per_thread(
    ctx,
    body: Callable[..., Sequence[FragmentedArray]],
    values: Sequence[ir.Value],
    layout_of: Callable[[Any], Any],
) -> list[ir.Value]:
  """An operation of warp code, in terms of one thread.

  Args:
    ctx: the lowering context.
    body: emits the operation for one thread, from the operands as it sees them.
    values: the operands: none is a Ref.
    layout_of: from the aval of an array to its layout.
  """
  with gpu_layouts.without_padding():
    layout = lambda a: layout_of(a) if gpu_ir.is_array(a) else None
    layouts = [layout(a) for a in ctx.avals_in]
    out_layouts = [layout(a) for a in ctx.avals_out]
    op = mgpu.dialect.CustomPrimitiveOp(
        result=[gpu_ir.value_type(a) for a in ctx.avals_out],
        operands_=values,
        in_layouts=[_attribute(x) for x in layouts if x is not None],
        in_transforms=[],
        out_layouts=[_attribute(x) for x in out_layouts if x is not None],
    )
    block = op.body.blocks.append(*[v.type for v in values])
    with ir.InsertionPoint(block):
      seen = [
          _as_thread_sees(*x)
          for x in zip(block.arguments, ctx.avals_in, layouts, strict=True)
      ]
      with lane_lowering(ctx):
        outs = body(*seen)
      results = []
      for out, aval, layout in zip(
          outs, ctx.avals_out, out_layouts, strict=True
      ):
        if layout is None:
          results.append(lowering._ensure_ir_value(out, aval.dtype))
        else:
          out = gpu_layouts.materialize(out, aval.shape, layout)
          results.append(dialect_lowering.fragmented_array_to_ir(
              out, gpu_ir.value_type(aval)
          ))
      mgpu.dialect.return_(results)
  return list(lowering._isolate_from_above(op).results)


class lane_lowering:
  """Within it, JAX's lowering helpers emit code for one thread."""

  def __init__(self, ctx):
    self._module = ctx.module_ctx

  def __enter__(self):
    self._saved = self._module.lowering_semantics
    self._module.lowering_semantics = mgpu.LoweringSemantics.Lane

  def __exit__(self, *_):
    self._module.lowering_semantics = self._saved


def is_warp(ctx) -> bool:
  return ctx.module_ctx.primitive_semantics == gpu_core.PrimitiveSemantics.Warp


# ## Accesses
#
# How an SMEM Ref is tiled and swizzled, and in warpgroup code how an array is
# laid out, may be up to others: a matrix product has its own ideas of both. So
# an access takes what it finds, and its body is written only when the layout
# pass has chosen. What to write is looked up in `_accesses`, which holds each
# distinct one once, as a jit cache does.


class _Access(NamedTuple):
  """An access whose body is to be written.

  Attributes:
    site: hashable; `site.emit_operands(layout, operands, transforms)` writes
      the body.
    is_open: whether the layout of the region is left to the layout pass.
    layout: of the region, unless it is open; None for one element.
  """

  site: Any
  is_open: bool
  layout: Any


_KEY = "swapext.access"
_accesses: dict[_Access, int] = {}


def access(
    site: Any, values: Sequence[ir.Value], transforms: dict[int, ir.ArrayAttr],
    layout_of: Callable[[Any], Any] | None,
) -> list[ir.Value]:
  """An access to a Ref of whatever tiling and swizzle.

  Args:
    site: as in _Access.
    values: the operands, the Ref first.
    transforms: tiling and swizzle of the Ref where they are declared, by
      position.
    layout_of: from the aval of an array to its layout; None to take any one
      layout for all arrays of the region's shape.
  """
  none = ir.ArrayAttr.get([])
  region, out_avals = site.region(), site.out_avals()
  shape = tuple(region.shape)
  values, in_layouts = list(values), []

  def known(aval):
    if layout_of is not None:
      return layout_of(aval)
    # Of an array over the region, a placeholder.
    return gpu_layouts.warpgroup_layout(tuple(aval.shape), 32)

  for i, (value, aval) in enumerate(
      zip(values, site.operand_avals(), strict=True)
  ):
    if isinstance(value.type, ir.VectorType):
      layout = known(aval)
      in_layouts.append(_attribute(layout))
      is_open = layout_of is None and tuple(aval.shape) == shape
      if not (
          is_open or site.warp or isinstance(layout, gpu_layouts.Splat)
      ):
        values[i] = mgpu.dialect.layout_cast(value, in_layouts[-1])
  types = [gpu_ir.value_type(a) for a in out_avals]
  op = mgpu.dialect.CustomPrimitiveOp(
      result=types,
      operands_=values,
      in_layouts=in_layouts,
      in_transforms=[
          transforms.get(i, none) for i, v in enumerate(values)
          if is_smem(v) and not _is_of_cluster(v)
      ],
      out_layouts=[
          _attribute(known(a)) for a in out_avals if gpu_ir.is_array(a)
      ],
  )
  block = op.body.blocks.append(*[v.type for v in values])
  with ir.InsertionPoint(block):
    # Side effects keep the operation alive until its body is known.
    llvm.inline_asm(
        ir.Type.parse("!llvm.void"), [], "// placeholder", "",
        has_side_effects=True,
    )
    mgpu.dialect.return_(
        [builtin.UnrealizedConversionCastOp([t], []).result for t in types]
    )
  layout = None
  if layout_of is not None and math.prod(shape) != 1:
    layout = layout_of(region)
  key = _Access(site, layout_of is None, layout)
  number = _accesses.setdefault(key, len(_accesses))
  op.operation.attributes[_KEY] = ir.IntegerAttr.get(gpu_ir.i64(), number)
  return list(op.results)


def _access_of(op) -> _Access:
  number = ir.IntegerAttr(op.operation.attributes[_KEY]).value
  return next(a for a, n in _accesses.items() if n == number)


def _constraints(ctx, op):
  """Layouts and transforms as they are known, or none at all."""
  kinds = layout_inference.VariableType
  access = _access_of(op)
  shape = tuple(access.site.region().shape)
  assignments, constraints, sites, open_sites = {}, [], {}, []

  def arrays(values, kind, attributes):
    for i, x in enumerate(values):
      if not isinstance(x.type, ir.VectorType):
        continue
      attribute = next(attributes)
      site = layout_inference.ValueSite(op, kind, i)
      if access.is_open and tuple(ir.VectorType(x.type).shape) == shape:
        open_sites.append(site)
        continue
      variable = cs.Variable(site)
      sites[variable] = [site]
      assignments[variable] = cs.RegisterLayout(
          layouts_lib.from_layout_attr(attribute)
      )

  arrays(op.operands, kinds.OPERAND, iter(op.in_layouts))
  arrays(op.results, kinds.RESULT, iter(op.out_layouts))
  if open_sites:
    variable = cs.Variable(open_sites[-1])
    sites[variable] = open_sites
    constraints.append(cs.NotOfType(variable, gpu_layouts.Splat))
  declared, none = iter(op.in_transforms), ir.ArrayAttr.get([])
  for i, x in enumerate(op.operands):
    if layout_inference._is_smem_ref(x):
      site = layout_inference.ValueSite(op, kinds.OPERAND, i)
      variable = cs.Variable(site)
      constraints.append(
          cs.Equals(lhs=ctx.producer_ref(site), rhs=variable)
      )
      sites[variable] = [site]
      # Those of another block's memory are declared where the Ref comes from.
      transforms = none if _is_of_cluster(x) else next(declared)
      if i or len(transforms):
        extract = layout_inference
        assignments[variable] = (
            extract._extract_smem_transforms_from_custom_transform_attrs(
                transforms
            )
        )
  return cs.ConstraintSystem(assignments, constraints), sites


def _lower(ctx, op):
  del ctx  # Unused.
  site, is_open, layout = _access_of(op)
  layouts = iter(
      inference_utils.in_layouts(op)
      if inference_utils.has_in_layouts_set(op) else ()
  )
  transforms = iter(op.in_transforms)
  operands, of_ref = [], None
  for value, aval in zip(op.operands, site.operand_avals(), strict=True):
    if isinstance(value.type, ir.VectorType):
      x = dialect_lowering._fragmented_array_from_ir(
          value, next(layouts), mgpu_utils.is_signed(aval.dtype)
      )
      operands.append(x)
      if is_open and x.shape == tuple(site.region().shape):
        layout = x.layout
    elif is_smem(value):
      given = next(transforms)
      of_ref = given if of_ref is None else of_ref
      operands.append(dialect_lowering.unwrap_transformed_memref(value, given))
    elif isinstance(value.type, ir.MemRefType):
      operands.append(value)
    else:
      operands.append(FragmentedArray.splat(
          value, (), is_signed=mgpu_utils.is_signed(aval.dtype)
      ))
  if is_open and any(isinstance(r.type, ir.VectorType) for r in op.results):
    layout = layouts_lib.from_layout_attr(inference_utils.out_layouts(op)[0])
  is_ref_in_smem = is_smem(op.operands[0])
  outs = site.emit_operands(
      layout, operands, _tiling_and_swizzle(of_ref) if is_ref_in_smem else None
  )
  return [
      dialect_lowering.fragmented_array_to_ir(o, r.type)
      if isinstance(r.type, ir.VectorType)
      else gpu_layouts.scalar(o)
      for o, r in zip(outs, op.results, strict=True)
  ]


def _tiling_and_swizzle(attributes):
  """(tiling or None, swizzle in bytes or None) of a Ref's transforms."""
  found = layout_inference._extract_smem_transforms_from_custom_transform_attrs(
      attributes
  )
  tiling = None if found.tiling is None else tuple(found.tiling.tiling)
  return tiling, found.swizzle


def _install():
  """Lets the two passes over the dialect know our accesses.

  Every other custom primitive goes to the rules that were there.
  """
  name = mgpu.dialect.CustomPrimitiveOp.OPERATION_NAME
  constraint_rules = layout_inference._constraint_system_derivation_rules
  lowering_rules = dialect_lowering._lowerings
  stock_constraints, stock_lower = constraint_rules[name], lowering_rules[name]

  def constraints(ctx, op):
    ours = _KEY in op.operation.attributes
    return (_constraints if ours else stock_constraints)(ctx, op)

  def lower(ctx, op):
    ours = _KEY in op.operation.attributes
    return (_lower if ours else stock_lower)(ctx, op)

  constraint_rules[name], lowering_rules[name] = constraints, lower


_install()
