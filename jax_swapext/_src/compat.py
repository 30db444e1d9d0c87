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
"""The one backend-neutral door to private JAX.

Every name below is private to JAX and needed by more than one file here, or by
one that must not import ``jax._src`` itself. Each has the reason why no public
name serves. ``tests/compat_test.py`` checks that each exists with the signature
that this library calls, so that a new JAX release fails there first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
from typing import Any

import jax
from jax._src import ad_util as _ad_util
from jax._src import api_util as _api_util
from jax._src import config as _config
from jax._src import core as _core
from jax._src import dispatch as _dispatch
from jax._src import flattree as _flattree
from jax._src import pretty_printer as pp  # jaxpr printing has no public door
from jax._src import source_info_util as _source_info_util
from jax._src.indexing import Slice as Slice  # what `jax.ds` returns
from jax._src.interpreters import ad as _ad
from jax._src.interpreters import batching as _batching
from jax._src.interpreters import partial_eval as _pe
from jax._src.interpreters import remat as _remat
from jax._src.state import discharge as _discharge
from jax._src.state import indexing as _indexing
from jax._src.state import primitives as _state_primitives
from jax._src.state import types as _state_types
import jaxlib

# This is `jax.extend.core.Primitive`, taken from where it is defined: importing
# `jax.extend` loads Pallas, which costs 30 ms and most programs do not need.
Primitive = _core.Primitive

# Eager execution of a primitive: the only way to make an `impl` that compiles.
apply_primitive = _dispatch.apply_primitive

# Views of Refs. `ref.at[...]`, `.bitcast`, `.reshape` and `.transpose` return a
# TransformedRef; its transforms are what a kernel's lowering understands.
TransformedRef = _state_types.TransformedRef
NDIndexer = _indexing.NDIndexer
BitcastTransform = _state_types.BitcastTransform
ReshapeTransform = _state_types.ReshapeTransform
TransposeTransform = _state_types.TransposeTransform


def transform_type(transforms: Sequence[Any], aval: Any) -> Any:
  """The type of the view that `transforms` make of an array or a Ref."""
  return _state_types.transform_type(transforms, aval)


def indexer_shape(indexer: NDIndexer) -> tuple[int, ...]:
  """The shape of the region that an indexer selects; all sizes are static."""
  return indexer.get_indexer_shape_static()


bitcast = _discharge.bitcast

# Effects that tell JAX which Ref an equation reads or writes.
ReadEffect = _state_types.ReadEffect
WriteEffect = _state_types.WriteEffect

# A rule that turns a Ref operation into one on the Ref's value.
register_discharge_rule = _discharge.register_discharge_rule


def discharge_call(ctx: Any, args: Sequence[Any], jaxpr: Any) -> Any:
  """The discharge rule of a primitive that does what a jaxpr says."""
  return _discharge._eval_jaxpr_discharge_rule(
      _pe.eval_jaxpr_p, ctx, *args, call_jaxpr=jaxpr
  )


constrain = _discharge.constrain
unconstrain = _discharge.unconstrain

# Reverse mode of Ref operations accumulates into a cotangent Ref; the public
# `jax.interpreters.ad` has only the table for pure primitives.
fancy_transposes = _ad.fancy_transposes
GradAccum: Any = _ad.GradAccum
Zero: Any = _ad_util.Zero
instantiate = _ad_util.instantiate


def zero_tangent(x: Any) -> Any:
  """The symbolic zero among the tangents of `x`."""
  return _ad_util.Zero(jax.typeof(x).to_tangent_aval())


# Rematerialisation and partial evaluation of Ref operations. Without them
# `jax.checkpoint` gives wrong gradients silently.
remat_rules = _remat.rules
state_remat = _state_primitives._state_remat
state_partial_eval_custom = _state_primitives._state_partial_eval_custom

# Batching helpers that `jax.interpreters.batching` lacks.
moveaxis = _batching.moveaxis

# Jaxpr printing.
pp_eqn_rules = _core.pp_eqn_rules
pp_var = _core.pp_var
pp_vars = _core.pp_vars
pp_ref_transforms = _state_primitives.pp_ref_transforms
summarize_source_info = _source_info_util.summarize

# Inside `shard_map`, gives all operands of a primitive the same varying axes,
# as every `lax` function does before it binds.
auto_insert_reshard = _core.auto_insert_reshard


# Primitives whose lowering has to know the mesh, which XLA's partitioner needs.
prim_requires_devices = _dispatch.prim_requires_devices_during_lowering


def lowered_for(ctx: Any, platforms: Sequence[str]) -> Any:
  """The device that a lowering rule works for, or None if nobody knows.

  Args:
    ctx: the rule's context.
    platforms: what its platform may be called.

  Returns:
    A device or an AbstractDevice.
  """
  context = ctx.module_context.axis_context
  devices = getattr(context, "device_assignment", None)
  mesh = getattr(context, "mesh", None)
  if devices is None and isinstance(mesh, jax.sharding.Mesh):
    devices = mesh.devices.flat
  abstract = jax.sharding.get_abstract_mesh().abstract_device
  for device in (*(devices if devices is not None else ())[:1], abstract):
    # To lower for several platforms, or for another one, is common.
    if device is not None and device.platform in platforms:
      return device
  return None


def varying_axes(aval: Any) -> frozenset[Any]:
  """The mesh axes over which a value in `shard_map` varies."""
  return aval.mat.varying


def insert_pvary_for_write(ref, value):
  """Gives `value` the varying manual axes that `ref` has (shard_map)."""
  return _insert_pvary_for_write(ref, value)


# Drop once jax >= 0.12: 0.11 has no such helper because its swap does not
# promote; there an explicit `pvary` by the user is needed, as for stock swap.
_insert_pvary_for_write = getattr(
    _state_primitives, "_insert_pvary_for_write", lambda ref, value: value
)


def registered_dce_rule(rule):
  """Adapts `rule(used_outs, eqn)` to the arity this JAX calls DCE rules with.

  Also drops the equation when its Ref is dead, which only newer JAX can tell.
  """

  # Drop the two-argument form once jax >= 0.12: rules then always get live_ins.
  def dce(used_outs: Sequence[bool], *rest: Any):
    *live_ins, eqn = rest
    if not any(used_outs) and not _has_effects(eqn, *live_ins):
      return [False] * len(eqn.invars), None
    return rule(used_outs, eqn)

  return dce


def _has_effects(eqn, *live_ins) -> bool:
  return _pe.has_effects(eqn, *live_ins)


def version_tuple(version: str) -> tuple[int, ...]:
  """"0.12.0.1" -> (0, 12, 0, 1); stops at the first part that is no number."""
  parts = []
  for part in version.split("."):
    if not part.isdigit():
      break
    parts.append(int(part))
  return tuple(parts)


@functools.cache
def pair_barrier_is_in_place() -> bool:
  """Whether XLA CPU updates a loop carry in place behind a barrier on a pair.

  Older XLA does not hoist such a loop into one native function and is about
  thirty times slower. No attribute tells the two apart, only the version.
  """
  # Drop once jaxlib >= 0.12 is the floor: the pair form then always wins.
  return version_tuple(jaxlib.__version__) >= (0, 12)


def is_ref(x: Any) -> bool:
  """Whether `x` is a Ref or a view of one."""
  if isinstance(x, TransformedRef):
    return True
  try:
    return isinstance(jax.typeof(x), jax.ref.AbstractRef)
  except TypeError:
    return False


# ## Jaxprs that are rewritten
#
# `jax.extend.core` has the types of a jaxpr, but importing it loads Pallas; and
# no public function makes an equation, or traces for the jaxpr of a kernel.

Jaxpr: Any = _core.Jaxpr

# What `ref[idx]`, `ref[idx] = x` and `jax.ref.addupdate` trace to.
get_p = _state_primitives.get_p
ref_swap_p = _state_primitives.swap_p
addupdate_p = _state_primitives.addupdate_p
# What an index that mixes integer arrays and scalars makes of the scalars.
broadcast_to_p = _state_primitives.broadcast_to_p

eval_jaxpr = _core.eval_jaxpr


def replace_eqn(
    eqn: Any, primitive: Any, invars: Sequence[Any], outvars: Sequence[Any],
    params: dict[str, Any], effects: Any = None,
) -> Any:
  """An equation in the place of another: with its line, scope and context.

  Args:
    eqn: the other one.
    primitive: of the new one, as are all that follow.
    invars: its operands.
    outvars: its results.
    params: its parameters.
    effects: its effects, on variables; asks the primitive if left out.
  """
  if effects is None:
    _, effects = primitive.abstract_eval(*(v.aval for v in invars), **params)
    effects = _core.resolve_input_effects(effects, invars)
  return eqn.replace(list(invars), list(outvars), primitive, params, effects)


def at_line_of(other: Any, eqn: Any) -> Any:
  """An equation as if the line that another one is from had made it."""
  traceback = other.source_info.traceback
  return eqn.replace(source_info=eqn.source_info.replace(traceback=traceback))


def replace_eqns(jaxpr: Any, eqns: Sequence[Any]) -> Any:
  """A jaxpr with the same variables and other equations."""
  effects = _pe.make_jaxpr_effects(
      jaxpr.constvars, jaxpr.invars, jaxpr.outvars, eqns
  )
  return jaxpr.replace(eqns=eqns, effects=effects)


def trace_thunk(fun: Callable[[], Any], named_after: Callable[..., Any]) -> Any:
  """The jaxpr, with constants, of a function without arguments."""
  debug_info = _api_util.debug_info("extended", named_after, (), {})
  debug_info = debug_info._replace(arg_names=())
  jaxpr, _ = _pe.trace_to_jaxpr_nocache(
      fun, _flattree.flatten_args(), debug_info
  )
  return jaxpr


def trace_context() -> Any:
  """What a trace depends on besides the function and the types it is given."""
  return _config.trace_context()


def trace_on(fun: Callable[..., Any], avals: Sequence[Any]) -> Any:
  """The jaxpr of a function of Refs and arrays, without unused results."""
  jaxpr = jax.make_jaxpr(fun)(*avals)
  return _pe.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)[0]


def evaluate_where_not_staged(primitive: Any) -> None:
  """Makes a primitive with a `jaxpr` do what that says, except in a jaxpr.

  Whatever transforms an equation of it then transforms those of the jaxpr.
  """

  def bind_with_trace(trace, args, avals, params, /):
    if isinstance(trace, _pe.DynamicJaxprTrace):
      return stage(trace, args, avals, params)
    with _core.set_current_trace(trace):
      return _core.eval_jaxpr(params["jaxpr"], (), *args)

  stage = primitive.bind_with_trace
  primitive.def_bind_with_trace(bind_with_trace)


def by_place(effects: Any, invars: Sequence[Any]) -> set[Any]:
  """Effects on some of the variables, as ones on the places of these."""
  place = {v: k for k, v in enumerate(invars) if type(v) is _core.Var}
  return {
      e.replace(place[e.input]) if hasattr(e, "input") else e for e in effects
  }


def splice(jaxpr: Any) -> list[Any]:
  """Does what a jaxpr with constants says, where this is called.

  In a trace, `eval_jaxpr` would check each equation again, which takes as long
  as the first time; here they move over as they are.
  """
  trace = _core.trace_ctx.trace
  if type(trace) is not _pe.DynamicJaxprTrace or jaxpr.is_high:
    return _core.eval_jaxpr(jaxpr, jaxpr.consts)
  scope = _source_info_util.current_name_stack()
  values = dict(zip(jaxpr.constvars, jaxpr.consts, strict=True))

  def read(atom, source_info):
    known = isinstance(atom, _core.Literal)
    x = atom.val if known else values[atom]
    return trace.to_jaxpr_tracer(x, source_info)

  for eqn in jaxpr.eqns:
    source_info, effects = eqn.source_info, eqn.effects
    if scope.stack:
      source_info = source_info.replace(
          name_stack=scope + source_info.name_stack
      )
    if effects:
      effects = by_place(effects, eqn.invars)
    outs = trace.emit_eqn(
        [read(v, source_info) for v in eqn.invars],
        [v.aval for v in eqn.outvars],
        eqn.primitive, eqn.params, effects, source_info, eqn.ctx,
    )
    values.update(zip(eqn.outvars, outs, strict=True))
  return [
      v.val if isinstance(v, _core.Literal) else values[v]
      for v in jaxpr.outvars
  ]
