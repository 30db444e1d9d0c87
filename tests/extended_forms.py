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
"""What people decorate, and what is in it: all of it stock JAX runs too.

Each entry of `FORMS` takes a decorator and returns an array.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import functools
from typing import Any
import warnings

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp
import numpy as np

X = np.arange(1024, dtype=np.float32).reshape(8, 128)
SPEC = jax.ShapeDtypeStruct(X.shape, X.dtype)
FORMS: dict[str, Callable[[Any], Any]] = {}


def _form(function):
  FORMS[function.__name__] = function
  return function


def _kernel_form(body):
  """A kernel as it is, all of it decorated."""
  FORMS[body.__name__] = lambda decorate: _run(decorate(body))
  return body


def _run(kernel, *args, out=SPEC, interpret: Any = True, **kwargs):
  call = pl.pallas_call(kernel, out, interpret=interpret, **kwargs)
  return call(*args or (X,))


def _set(o, index, value):
  o[index] = value


# ## What is decorated


class _Kernels:
  """Its kernels are decorated by each form, in a class of its own."""

  row = 3


def _kernels(decorate, kind):
  def body(owner, x, o):
    o[...] = x[...]
    o[owner.row, 0] = 7.0

  return type("Kernels", (_Kernels,), {"kernel": kind(decorate(body))})


@_form
def method(decorate):
  return _run(_kernels(decorate, lambda f: f)().kernel)


@_form
def class_method(decorate):
  return _run(_kernels(decorate, classmethod).kernel)


@_form
def static_method(decorate):
  kind = lambda f: staticmethod(functools.partial(f, _Kernels))
  return _run(_kernels(decorate, kind).kernel)


@_form
def callable_object(decorate):
  class Doubles:

    def __call__(self, x, o):
      o[...] = x[...] * 2

  return _run(decorate(Doubles()))


def _with_row(row, x, o):
  o[...] = x[...]
  o[row, 0] = 7.0


@_form
def partial_decorated(decorate):
  return _run(decorate(functools.partial(_with_row, 3)))


@_form
def partial_of_decorated(decorate):
  return _run(functools.partial(decorate(_with_row), 3))


@_form
def copied_attributes(decorate):
  kernel = decorate(lambda x, o: _set(o, ..., x[...] * 2))

  @functools.wraps(kernel)
  def wrapper(x, o):
    kernel(x, o)
    o[0, 0] = 9.0

  return _run(decorate(wrapper)) + _run(wrapper)


@_form
def recursion(decorate):
  @decorate
  def fill(o, n):
    o[n, 0] = 1.0
    if n:
      fill(o, n - 1)

  def kernel(x, o):
    o[...] = x[...]
    fill(o, 4)

  return _run(kernel)


@_form
def in_the_body_of_a_loop(decorate):
  def kernel(x, o):
    o[...] = x[...]
    step = decorate(lambda i, c: (_set(o, (i, 0), 7.0), c + 1)[1])
    lax.fori_loop(0, 4, step, 0)

  return _run(kernel)


# ## What it takes and returns


@_form
def view_with_an_index_of_its_own(decorate):
  @decorate
  def view(o, i):
    return {"row": o.at[i], "none": None, "all": o, "i": i * 2}

  def kernel(x, o):
    o[...] = x[...]
    got = view(o, x[0, 1].astype(jnp.int32))
    got["row"][0] = got["i"].astype(jnp.float32)
    got["all"][0, 0] = 9.0

  return _run(kernel)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class _Pair:
  a: Any
  b: Any


class _Opaque:
  """A class that JAX knows nothing of."""

  def __init__(self, a, b):
    self.a, self.b = a, b


def _copy_pair(pair):
  pair.b[...] = pair.a[...]
  pair.b[0, 0] = 1.0


@_form
def dataclass_of_refs(decorate):
  copy = decorate(_copy_pair)
  return _run(lambda x, o: copy(_Pair(x, o)))


@_form
def object_of_refs(decorate):
  copy = decorate(_copy_pair)
  return _run(lambda x, o: copy(_Opaque(x, o)))


@_form
def keyword_scratch(decorate):
  @decorate
  def kernel(x, o, *, s):
    s[...] = x[...]
    o[...] = s[...] * 2

  return _run(
      lambda x, o, s: kernel(x, o, s=s),
      scratch_shapes=[pltpu.VMEM(X.shape, X.dtype)],
  )


@_form
def descriptor_of_a_copy(decorate):
  @decorate
  def start(i, x, o, sem):
    rows = x.at[pl.ds(i, 1)], o.at[pl.ds(2 * i, 1)]
    copy = pltpu.make_async_copy(*rows, sem)
    copy.start()
    return copy

  def kernel(i, x, o):
    def scope(sem):
      start(i[0], x, o, sem).wait()

    pl.run_scoped(scope, pltpu.SemaphoreType.DMA)

  anywhere = pl.BlockSpec(memory_space=pl.ANY)
  smem = pl.BlockSpec(memory_space=pltpu.SMEM)
  out = _run(
      kernel, np.array([1], np.int32), X, in_specs=[smem, anywhere],
      out_specs=anywhere, interpret=pltpu.InterpretParams(),
  )
  return out[2]  # No other row is written.


@_form
def scalar_prefetch(decorate):
  block = pl.BlockSpec(X.shape, lambda i, s: (0, 0))
  grid = pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=1, grid=(1,), in_specs=[block], out_specs=block
  )
  kernel = lambda s, x, o: _set(o, ..., x[...] * s[0])
  return _run(decorate(kernel), jnp.array([2.0]), X, grid_spec=grid)


@_form
def flags(decorate):
  def kernel(x, o):
    o[...] = x[...] > 3
    o[0, 0] = True

  out = jax.ShapeDtypeStruct(X.shape, jnp.bool_)
  return _run(decorate(kernel), out=out)


# ## What is in it


@_kernel_form
def scan(x, o):
  def step(carry, i):
    o[i, :] = x[i, :] + carry
    return carry + 1, x[i, 0]

  _, found = lax.scan(step, 0.0, jnp.arange(8))
  o[0, pl.ds(0, 8)] = found


@_kernel_form
def unrolled_loop(x, o):
  def step(i, carry):
    o[i] = x[i]
    return carry

  lax.fori_loop(0, 8, step, 0, unroll=4)


@jax.custom_vjp
def _doubled(v):
  return v * 2


_doubled.defvjp(lambda v: (_doubled(v), None), lambda _, g: (g,))


@_kernel_form
def custom_vjp(x, o):
  o[...] = _doubled(x[...])
  o[0, 0] = _doubled(x[0, 1])


@_kernel_form
def derivative(x, o):
  o[...] = jax.grad(lambda v: jnp.sum(v * v))(x[...])


@_kernel_form
def vectorised(x, o):
  o[...] = jax.vmap(jax.checkpoint(lambda row: row * 2))(x[...])


@_kernel_form
def result_of_a_scope(x, o):
  def scope(s):
    s[...] = x[...]
    return s[0, :] + 1

  o[...] = x[...]
  o[2, :] = pl.run_scoped(scope, pltpu.VMEM(X.shape, X.dtype))


@_kernel_form
def ref_of_its_own(x, o):
  ref = jax.new_ref(x[...])
  ref[0, 0] = 5.0
  o[...] = ref[...]


@_form
def donated_argument(decorate):
  double = jax.jit(lambda v: v * 2, donate_argnums=0)
  with warnings.catch_warnings():
    warnings.filterwarnings("ignore", ".*donated", UserWarning)
    return _run(decorate(lambda x, o: _set(o, ..., double(x[...]))))


@_form
def jitted_access(decorate):
  @jax.jit
  def put(ref, value):
    ref[0, 0] = value
    return ref[0, 1]

  def kernel(x, o):
    o[...] = x[...]
    o[1, 0] = put(o, 5.0)

  return _run(decorate(kernel))


@_form
def printing(decorate):
  def kernel(x, o):
    pl.debug_print("first {}", x[0, 0])
    o[...] = x[...]

  return _run(decorate(kernel))


@_form
def inner_pipeline(decorate):
  def kernel(x, o):
    block = pl.BlockSpec((8, 128), lambda i: (i, 0))
    body = decorate(lambda x, o: _set(o, ..., x[...] * 2))
    pltpu.emit_pipeline(body, grid=(1,), in_specs=[block], out_specs=[block])(
        x, o
    )

  anywhere = pl.BlockSpec(memory_space=pl.ANY)
  return _run(
      decorate(kernel), in_specs=[anywhere], out_specs=anywhere,
      interpret=pltpu.InterpretParams(),
  )


# ## Where it is called


def _squares(ref, v):
  ref[0] = v * v
  return ref[0] * v


def _outside(decorate):
  update = decorate(_squares)
  return lambda v: update(jax.new_ref(jnp.zeros(3)), v)


@_form
def outside_kernels(decorate):
  return _outside(decorate)(3.0)


@_form
def outside_kernels_differentiated(decorate):
  return jax.grad(_outside(decorate))(3.0)


@_form
def outside_kernels_vectorised(decorate):
  return jax.jit(jax.vmap(_outside(decorate)))(jnp.arange(3.0))


@_form
def outside_kernels_without_jit(decorate):
  with jax.disable_jit():
    return _outside(decorate)(3.0)


@_form
def without_refs(decorate):
  return decorate(lambda v: v * 2)(np.ones(3))


@_form
def exported(decorate):
  kernel = decorate(lambda x, o: _set(o, ..., x[...] * 2))
  call = jax.jit(pl.pallas_call(kernel, SPEC, interpret=True))
  return jax.export.export(call)(SPEC).call(X)


@_form
def rematerialised(decorate):
  kernel = decorate(lambda x, o: _set(o, ..., x[...] * 2))
  return jax.checkpoint(pl.pallas_call(kernel, SPEC, interpret=True))(X)
