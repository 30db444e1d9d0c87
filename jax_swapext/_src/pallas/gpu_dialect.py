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
from typing import Any, cast

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


def is_smem(value: ir.Value) -> bool:
  return isinstance(value.type, ir.MemRefType) and (
      mgpu_utils.is_smem_ref(value)
      or mgpu_utils.is_cluster_smem_ref(value.type)
  )


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


def _as_thread_sees(value, aval, layout, transforms):
  """The operand of a custom primitive in terms of one thread."""
  if isinstance(value.type, ir.MemRefType):
    if not is_smem(value):
      return value
    ty = dialect_lowering.transform_type(ir.MemRefType(value.type), transforms)
    return builtin.UnrealizedConversionCastOp([ty], [value]).result
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


def fixed(
    ctx,
    body: Callable[..., Sequence[FragmentedArray]],
    values: Sequence[ir.Value],
    avals: Sequence[Any],
    out_avals: Sequence[Any],
    layout_of: Callable[[Any], Any],
    transforms: dict[int, ir.ArrayAttr],
) -> list[ir.Value]:
  """A custom primitive whose arrays have the layouts that `layout_of` gives.

  Args:
    ctx: the lowering context.
    body: emits the operation for one thread, from the operands as it sees them.
    values: the operands.
    avals: theirs; anything for a memref.
    out_avals: of the results.
    layout_of: from an aval with a shape.
    transforms: of the SMEM operands that have any, by position.
  """
  with gpu_layouts.without_padding():
    return list(_fixed(
        ctx, body, values, avals, out_avals, layout_of, transforms
    ))


def _fixed(ctx, body, values, avals, out_avals, layout_of, transforms):
  none = ir.ArrayAttr.get([])
  warp = is_warp(ctx)
  values, layouts = list(values), []
  for i, (value, aval) in enumerate(zip(values, avals, strict=True)):
    if isinstance(value.type, ir.VectorType):
      layout = layout_of(aval)
      if not warp and not isinstance(layout, gpu_layouts.Splat):
        # A custom primitive takes its operands as they come, splats too.
        values[i] = mgpu.dialect.layout_cast(value, _attribute(layout))
      layouts.append(layout)
    else:
      layouts.append(None)
  out_layouts = [
      layout_of(a) if gpu_ir.is_array(a) else None for a in out_avals
  ]
  op = mgpu.dialect.CustomPrimitiveOp(
      result=[gpu_ir.value_type(a) for a in out_avals],
      operands_=values,
      in_layouts=[_attribute(x) for x in layouts if x is not None],
      in_transforms=[
          transforms.get(i, none) for i, v in enumerate(values) if is_smem(v)
      ],
      out_layouts=[_attribute(x) for x in out_layouts if x is not None],
  )
  block = op.body.blocks.append(*[v.type for v in values])
  with ir.InsertionPoint(block):
    seen = [
        _as_thread_sees(v, a, x, transforms.get(i, none))
        for i, (v, a, x) in enumerate(
            zip(block.arguments, avals, layouts, strict=True)
        )
    ]
    with lane_lowering(ctx):
      outs = body(*seen)
    results = []
    for out, aval, layout in zip(outs, out_avals, out_layouts, strict=True):
      if layout is None:
        results.append(lowering._ensure_ir_value(out, aval.dtype))
      else:
        out = gpu_layouts.materialize(out, aval.shape, layout)
        results.append(dialect_lowering.fragmented_array_to_ir(
            out, gpu_ir.value_type(aval)
        ))
    mgpu.dialect.return_(results)
  return lowering._isolate_from_above(op).results


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


# ## Layout-polymorphic accesses
#
# In warpgroup code the layout of a value may be imposed from elsewhere: an
# accumulator of a matrix product has the hardware's. So the access takes any
# layout, all its arrays one and the same, and its body is written only when the
# layout pass has chosen. What to write is looked up in `_sites`, which holds
# each distinct access once, as a jit cache does.

_KEY = "swapext.site"
_sites: dict[Any, int] = {}


def polymorphic(
    site: Any, values: Sequence[ir.Value], out_avals: Sequence[Any],
    transforms: dict[int, ir.ArrayAttr],
) -> list[ir.Value]:
  """An access with any one layout for all its arrays.

  Args:
    site: hashable; `site.emit_operands(layout, operands)` writes the body.
    values: the operands.
    out_avals: of the results.
    transforms: of the SMEM operands that have any, by position.
  """
  none = ir.ArrayAttr.get([])
  types = [gpu_ir.value_type(a) for a in out_avals]
  values = list(values)
  shape = tuple(site.region().shape)

  def placeholder(ty):
    # Of an array over the region; of an index array it is the layout.
    return _attribute(
        gpu_layouts.warpgroup_layout(tuple(ir.VectorType(ty).shape), 32)
    )

  for i, value in enumerate(values):
    if isinstance(value.type, ir.VectorType) and (
        tuple(ir.VectorType(value.type).shape) != shape
    ):
      values[i] = mgpu.dialect.layout_cast(value, placeholder(value.type))

  op = mgpu.dialect.CustomPrimitiveOp(
      result=types,
      operands_=values,
      in_layouts=[placeholder(v.type) for v in values
                  if isinstance(v.type, ir.VectorType)],
      in_transforms=[
          transforms.get(i, none) for i, v in enumerate(values) if is_smem(v)
      ],
      out_layouts=[placeholder(t) for t in types
                   if isinstance(t, ir.VectorType)],
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
  number = _sites.setdefault(site, len(_sites))
  op.operation.attributes[_KEY] = ir.IntegerAttr.get(gpu_ir.i64(), number)
  return list(op.results)


def _site_of(op) -> Any:
  number = ir.IntegerAttr(op.operation.attributes[_KEY]).value
  return next(s for s, n in _sites.items() if n == number)


def _constraints(ctx, op):
  """One variable for the layouts of all arrays; SMEM as declared."""
  kinds = layout_inference.VariableType
  shape = tuple(_site_of(op).region().shape)
  vectors = [
      (layout_inference.ValueSite(op, kinds.OPERAND, i),
       tuple(ir.VectorType(x.type).shape))
      for i, x in enumerate(op.operands)
      if layout_inference.is_vector(x)
  ]
  arrays = [s for s, its_shape in vectors if its_shape == shape] + [
      layout_inference.ValueSite(op, kinds.RESULT, i)
      for i, x in enumerate(op.results)
      if isinstance(x.type, ir.VectorType)
  ]
  assignments, constraints, sites = {}, [], {}
  for (site, its_shape), attribute in zip(
      vectors, op.in_layouts, strict=True
  ):
    if its_shape != shape:
      variable = cs.Variable(site)
      sites[variable] = [site]
      assignments[variable] = cs.RegisterLayout(
          layouts_lib.from_layout_attr(attribute)
      )
  if arrays:
    variable = cs.Variable(arrays[-1])
    sites[variable] = arrays
    constraints.append(cs.NotOfType(variable, gpu_layouts.Splat))
  declared = iter(op.in_transforms)
  for i, x in enumerate(op.operands):
    if layout_inference._is_smem_ref(x):
      site = layout_inference.ValueSite(op, kinds.OPERAND, i)
      variable = cs.Variable(site)
      constraints.append(
          cs.Equals(lhs=ctx.producer_ref(site), rhs=variable)
      )
      extract = layout_inference
      assignments[variable] = (
          extract._extract_smem_transforms_from_custom_transform_attrs(
              next(declared)
          )
      )
      sites[variable] = [site]
  return cs.ConstraintSystem(assignments, constraints), sites


def _lower(ctx, op):
  del ctx  # Unused.
  site = _site_of(op)
  layouts = iter(
      inference_utils.in_layouts(op)
      if inference_utils.has_in_layouts_set(op) else ()
  )
  transforms = iter(op.in_transforms)
  operands, layout = [], None
  for value, aval in zip(op.operands, site.operand_avals(), strict=True):
    if isinstance(value.type, ir.VectorType):
      x = dialect_lowering._fragmented_array_from_ir(
          value, next(layouts), mgpu_utils.is_signed(aval.dtype)
      )
      operands.append(x)
      if x.shape == tuple(site.region().shape):
        layout = x.layout
    elif is_smem(value):
      operands.append(
          dialect_lowering.unwrap_transformed_memref(value, next(transforms))
      )
    elif isinstance(value.type, ir.MemRefType):
      operands.append(value)
    else:
      operands.append(FragmentedArray.splat(
          value, (), is_signed=mgpu_utils.is_signed(aval.dtype)
      ))
  if any(isinstance(r.type, ir.VectorType) for r in op.results):
    layout = layouts_lib.from_layout_attr(inference_utils.out_layouts(op)[0])
  outs = site.emit_operands(layout, operands)
  return [
      dialect_lowering.fragmented_array_to_ir(o, r.type)
      if isinstance(r.type, ir.VectorType)
      else gpu_layouts.scalar(o)
      for o, r in zip(outs, op.results, strict=True)
  ]


def _install():
  """Lets the two passes over the dialect know our polymorphic accesses.

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
