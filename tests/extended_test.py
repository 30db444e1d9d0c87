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
"""`extended`: what stock JAX refuses runs, and nothing else changes."""

import functools
import inspect
import threading
import traceback
import warnings

from absl.testing import absltest
from absl.testing import parameterized
import extended_forms
import extended_kernels as kernels
import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc
from jax.experimental.pallas import triton as pltriton
import jax.numpy as jnp
import jax_swapext as jsx
from jax_swapext._src import tpu_compiler
import numpy as np
from oracles import mosaic_ir
from oracles import tpu_compile
import pytest
import stock_modules

_TENSORCORE = kernels.TENSORCORE
_SPARSECORE = kernels.SPARSECORE
_F32 = jnp.float32


def _stock(kernel):
  return kernel


def _spec(shape=(8, 128), dtype=_F32):
  return jax.ShapeDtypeStruct(shape, dtype)


def _primitives(jaxpr):
  """The names of all primitives in a jaxpr, nested ones too."""
  names = set()
  for eqn in jaxpr.eqns:
    names.add(eqn.primitive.name)
    for value in eqn.params.values():
      for inner in value if isinstance(value, (tuple, list)) else [value]:
        if hasattr(inner, "eqns"):
          names |= _primitives(inner)
  return names


class RefusedByStockTest(parameterized.TestCase):

  @parameterized.parameters(*_TENSORCORE)
  def test_tensorcore(self, name):
    kernel = _TENSORCORE[name]
    x = kernel.x()
    with self.assertRaisesRegex(kernel.kind, kernel.message):
      mosaic_ir.lower(kernel.call(_stock), kernels.NUMBERS, x, x)
    got = mosaic_ir.evaluate(
        kernel.call(jsx.extended), kernels.NUMBERS, x, x
    )
    np.testing.assert_array_equal(got, kernel.expected())

  @parameterized.product(name=list(_TENSORCORE), mode=("hlo", "tpu"))
  @pytest.mark.slow
  def test_tensorcore_interpreted(self, name, mode):
    kernel = _TENSORCORE[name]
    x = kernel.x()
    interpret = pltpu.InterpretParams() if mode == "tpu" else True
    call = kernel.call(jsx.extended, interpret=interpret)
    got = call(kernels.NUMBERS, x, x)
    np.testing.assert_array_equal(got, kernel.expected())

  @parameterized.parameters(*_SPARSECORE)
  def test_sparsecore(self, name):
    body, wanted, message = _SPARSECORE[name]
    x = np.random.default_rng(0).integers(-8, 9, 64).astype(np.float32)
    run = lambda decorate: lambda x: kernels.vector_kernel(body, decorate)(x)
    with self.assertRaisesRegex(Exception, message):
      mosaic_ir.lower(run(_stock), x)
    got = mosaic_ir.evaluate(run(jsx.extended), x)
    np.testing.assert_array_equal(got, wanted(x))

  @parameterized.parameters(*kernels.SPARSECORE_INTERPRETED)
  def test_sparsecore_not_interpreted_by_stock(self, name):
    body, wanted = kernels.SPARSECORE_INTERPRETED[name]
    x = np.random.default_rng(0).integers(-8, 9, 64).astype(np.float32)
    lowered = lambda x: kernels.vector_kernel(body, jsx.extended)(x)
    np.testing.assert_array_equal(mosaic_ir.evaluate(lowered, x), wanted(x))
    with tpu_compiler.target("v6e"):
      interpret = pltpu.InterpretParams()
      with self.assertRaises((TypeError, NotImplementedError)):
        kernels.vector_kernel(body, _stock, interpret=interpret)(x)
      got = kernels.vector_kernel(body, jsx.extended, interpret=interpret)(x)
    np.testing.assert_array_equal(got, wanted(x))

  @parameterized.parameters(*_SPARSECORE)
  @pytest.mark.slow
  def test_sparsecore_interpreted(self, name):
    body, wanted, _ = _SPARSECORE[name]
    x = np.random.default_rng(0).integers(-8, 9, 64).astype(np.float32)
    with tpu_compiler.target("v6e"), warnings.catch_warnings():
      # A stream needs no semaphore, but the interpreter wants one.
      warnings.filterwarnings("ignore", ".*semaphore")
      got = kernels.vector_kernel(
          body, jsx.extended, interpret=pltpu.InterpretParams()
      )(x)
    np.testing.assert_array_equal(got, wanted(x))

  @pytest.mark.slow
  def test_compiled_for_a_tpu(self):
    compiled = tpu_compile.compile_all("extended_kernels", "decorated", "v6e")
    self.assertLen(compiled, len(_TENSORCORE) + len(_SPARSECORE))
    for name, result in compiled.items():
      with self.subTest(name):
        self.assertTrue(result.ok, result.error)

  @parameterized.parameters(*kernels.INTERPRETED)
  def test_interpreted(self, name):
    body, wanted = kernels.INTERPRETED[name]
    i = np.array([1, 3, 3, 0, 1, 3, 7, 7], np.int32)
    x = np.arange(1, 9, dtype=np.int32)
    try:
      stock = np.asarray(kernels.interpreted(body, _stock)(i, x))
    except (NotImplementedError, ValueError):
      stock = None
    if stock is not None:
      self.assertNotEqual(stock.tolist(), wanted(i, x).tolist())
    got = kernels.interpreted(body, jsx.extended)(i, x)
    np.testing.assert_array_equal(got, wanted(i, x))

  def test_a_masked_store_outside_is_found_in_interpret_mode(self):
    def body(i, x, o):
      o[...] = x[...]
      mask = lax.broadcasted_iota(jnp.int32, (8, 128), 0) < 1
      pltpu.store(o.at[pl.ds(i[0], 8)], x[...] + 1, mask=mask)

    smem = pl.BlockSpec(memory_space=pltpu.SMEM)
    call = pl.pallas_call(
        jsx.extended(body), _spec(), in_specs=[smem, pl.BlockSpec()],
        interpret=pltpu.InterpretParams(),
    )
    x = np.zeros((8, 128), np.float32)
    wanted = x.copy()
    wanted[5] = 1
    np.testing.assert_array_equal(call(np.int32([5]), x), wanted)
    self.addCleanup(pltpu.reset_tpu_interpret_mode_state)
    with self.assertRaisesRegex(Exception, "Out-of-bounds masked swap"):
      call(np.int32([8]), x).block_until_ready()


def _scalars(x_ref, o_ref):
  o_ref[...] = jnp.zeros_like(o_ref)
  o_ref[0, 3] = jnp.sum(x_ref[...])


def _added_in_hbm():
  def kernel(x_ref, o_ref):
    jax.ref.addupdate(o_ref, (0, 0), x_ref[0, 0])  # the user's line

  hbm = pl.BlockSpec(memory_space=pltpu.HBM)
  call = pl.pallas_call(jsx.extended(kernel), _spec(), out_specs=hbm)
  return call, [_spec()]


def _swapped_in_hbm():
  def kernel(x_ref, o_ref):
    pltriton.atomic_cas(o_ref.at[0, 0], x_ref[0, 0], 3.0)  # the user's line

  hbm = pl.BlockSpec(memory_space=pltpu.HBM)
  call = pl.pallas_call(jsx.extended(kernel), _spec(), out_specs=hbm)
  return call, [_spec()]


def _loaded_as_float16():
  def kernel(x_ref, o_ref):
    mask = jnp.ones(o_ref.shape, bool)
    o_ref[...] = pltriton.load(x_ref, mask=mask, other=0)  # the user's line

  x = _spec(dtype=jnp.float16)
  return pl.pallas_call(jsx.extended(kernel), x), [x]


def _added_by_a_subcore():
  def body(hbm, x, o):
    plsc.addupdate(hbm.at[pl.ds(0, 8)], x[pl.ds(0, 8)])  # the user's line

  return lambda x: kernels.vector_kernel(body, jsx.extended)(x), [_spec((64,))]


def _compared_in_bfloat16():
  def kernel(x_ref, o_ref):
    pltriton.atomic_max(o_ref, (), x_ref[...])  # the user's line

  x = _spec(dtype=jnp.bfloat16)
  return pl.pallas_call(
      jsx.extended(kernel), x, compiler_params=pltriton.CompilerParams()
  ), [x]


_HBM = "wanted an atomic update of HBM.*fetch_.* outside"
_REFUSED = (
    ("tpu", _added_in_hbm, f"atomic_add: {_HBM}"),
    ("tpu", _swapped_in_hbm, f"atomic_cas: {_HBM}"),
    ("tpu", _loaded_as_float16, "load: wanted a float16 Ref.*ref.bitcast"),
    ("sparsecore", _added_by_a_subcore, "atomic_add: wanted .*(HBM|hbm)"),
    ("triton", _compared_in_bfloat16, "atomic_max: .*integers.*Mosaic GPU"),
)


class DecoratorTest(parameterized.TestCase):

  def _run(self, kernel, *args, out=None, **kwargs):
    out = _spec() if out is None else out
    call = pl.pallas_call(kernel, out, interpret=True, **kwargs)
    return np.asarray(call(*args))

  def test_keeps_name_signature_and_documentation(self):
    def kernel(x_ref, *, scale: int = 2) -> None:
      """Scales."""

    extended = jsx.extended(kernel)
    self.assertEqual(extended.__name__, "kernel")
    self.assertEqual(extended.__doc__, "Scales.")
    self.assertEqual(inspect.signature(extended), inspect.signature(kernel))

  def test_twice_is_once(self):
    once = jsx.extended(_scalars)
    self.assertIs(jsx.extended(once), once)

  def test_inside_another(self):
    @jsx.extended
    def inner(x_ref, o_ref):
      o_ref[1, 2] = x_ref[0, 0]

    def outer(x_ref, o_ref):
      o_ref[...] = x_ref[...]
      inner(x_ref, o_ref)
      inner(o_ref, o_ref)
      o_ref[3, 4] = 5.0

    x = np.arange(1024, dtype=np.float32).reshape(8, 128)
    got = self._run(jsx.extended(outer), x)
    want = x.copy()
    want[1, 2], want[3, 4] = x[0, 0], 5
    np.testing.assert_array_equal(got, want)

  def test_a_function_that_a_kernel_calls(self):
    @jsx.extended
    def add(ref, at, *, by):
      """Takes a view, a static index and a keyword; returns a tree."""
      old = ref[at]
      jax.ref.addupdate(ref, at, by["value"])
      return {"old": old, "at": at}, None

    def kernel(x_ref, o_ref):
      o_ref[...] = x_ref[...]
      out, nothing = add(o_ref.at[pl.ds(2, 2)], (1, 5), by={"value": 7.0})
      self.assertEqual(out["at"], (1, 5))
      self.assertIsNone(nothing)
      o_ref[0, 0] = out["old"]

    x = np.arange(1024, dtype=np.float32).reshape(8, 128)
    want = x.copy()
    want[3, 5], want[0, 0] = x[3, 5] + 7, x[3, 5]
    np.testing.assert_array_equal(self._run(kernel, x), want)

  def test_trees_and_keywords_of_refs(self):
    @jsx.extended
    def step(refs, *, out):
      out["o"][0, 0] = refs[0][0, 1] + refs[1][0, 2]

    def kernel(x_ref, y_ref, o_ref):
      o_ref[...] = x_ref[...]
      step((x_ref, y_ref), out={"o": o_ref})

    x = np.arange(1024, dtype=np.float32).reshape(8, 128)
    want = x.copy()
    want[0, 0] = 1 + 2
    np.testing.assert_array_equal(self._run(kernel, x, x), want)

  def test_closes_over_refs_and_values(self):
    def kernel(x_ref, o_ref):
      total = jnp.sum(x_ref[...])

      @jsx.extended
      def write(k):
        o_ref[0, k] = total

      o_ref[...] = x_ref[...]
      write(1)
      pl.loop(2, 4)(write)

    x = np.ones((8, 128), np.float32)
    want = x.copy()
    want[0, 1:4] = 1024
    np.testing.assert_array_equal(self._run(kernel, x), want)

  def test_known_values_stay_known(self):
    @jsx.extended
    def kernel(x_ref, o_ref, n=3):
      self.assertIsInstance(n, int)
      o_ref[...] = x_ref[...]
      for k in range(n):
        o_ref[k, k] = float(k)

    x = np.ones((8, 128), np.float32)
    got = self._run(functools.partial(kernel, n=2), x)
    self.assertEqual([got[0, 0], got[1, 1], got[2, 2]], [0, 1, 1])

  def test_every_nested_jaxpr(self):
    def kernel(x_ref, o_ref):
      @jax.jit
      def jitted(k):
        o_ref[k, 0] = 1.0

      @jax.custom_jvp
      def custom(v):
        return v + x_ref[0, 0]

      custom.defjvp(lambda primals, tangents: (custom(*primals), *tangents))

      def scope(scratch):
        scratch[0, 0] = 3.0
        jitted(0)

      def step(k, carry):
        lax.cond(k > 2, lambda: jitted(k), lambda: None)
        pl.run_scoped(scope, pltpu.VMEM((8, 128), _F32))
        return lax.while_loop(
            lambda c: c < carry + 1, lambda c: custom(c) + 1, carry
        )

      o_ref[0, 1] = lax.fori_loop(0, 4, step, 0.0)

    jaxpr = jax.make_jaxpr(
        pl.pallas_call(jsx.extended(kernel), _spec())
    )(jnp.zeros((8, 128)))
    names = _primitives(jaxpr)
    self.assertContainsSubset({"swapext_load", "swapext_swap"}, names)
    self.assertNoCommonElements({"get", "swap", "addupdate"}, names)

  def test_nothing_changes_outside(self):
    def shared(ref):
      ref[0, 0] = 1.0

    def kernel(o_ref):
      jax.jit(shared)(o_ref)

    def names(kernel):
      call = pl.pallas_call(kernel, _spec())
      return _primitives(jax.make_jaxpr(call)())

    self.assertIn("swap", names(kernel))
    self.assertIn("swapext_swap", names(jsx.extended(kernel)))
    self.assertIn("swap", names(kernel))
    self.assertNotIn("swapext_swap", names(kernel))

  def test_unused_old_values_are_not_asked_for(self):
    def kernel(x_ref, o_ref):
      o_ref[0, 0] = jax.ref.swap(o_ref, (1, 1), 2.0)

    call = pl.pallas_call(jsx.extended(kernel), _spec())
    [eqn] = jax.make_jaxpr(call)(jnp.zeros((8, 128))).eqns
    swaps = [e.params["need_old"] for e in eqn.params["jaxpr"].eqns]
    self.assertEqual(swaps, [True, False])

  def test_keeps_scopes(self):
    def kernel(o_ref):
      with jax.named_scope("here"):
        o_ref[0, 0] = 1.0

    call = pl.pallas_call(jsx.extended(kernel), _spec())
    [eqn] = jax.make_jaxpr(call)().eqns
    [store] = eqn.params["jaxpr"].eqns
    self.assertEqual(str(store.source_info.name_stack), "here")

  def test_semaphores_and_small_elements_are_left_alone(self):
    def kernel(x_ref, o_ref):
      o_ref[...] = x_ref[...]

    x = _spec((64, 128), jnp.int4)
    call = pl.pallas_call(jsx.extended(kernel), x)
    jaxpr = jax.make_jaxpr(call)(x)
    self.assertNotIn("swapext_load", _primitives(jaxpr))

  @parameterized.parameters(*_REFUSED)
  def test_an_error_names_the_line_the_access_and_the_way_out(
      self, backend, make, message
  ):
    text = ""
    try:
      stock_modules.modules(backend, *make())
    except NotImplementedError as e:
      text = "".join(traceback.format_exception(e))
    self.assertIn("# the user's line", text)
    self.assertRegex(text, message)


class FormsTest(parameterized.TestCase):

  @parameterized.parameters(*extended_forms.FORMS)
  def test_as_without_the_decorator(self, name):
    form = extended_forms.FORMS[name]
    np.testing.assert_array_equal(form(jsx.extended), form(_stock))

  def test_what_runs_later_is_refused(self):
    def generator(o):
      yield o[0]

    async def coroutine(o):
      del o

    for kernel in (generator, coroutine, 3):
      with self.assertRaisesRegex(TypeError, "extended: wanted a function"):
        jsx.extended(kernel)

  def test_an_exception_ends_it(self):
    def kernel(o):
      raise ZeroDivisionError

    with self.assertRaises(ZeroDivisionError):
      pl.pallas_call(jsx.extended(kernel), _spec())()
    with self.assertRaises(ValueError):  # Stock's, of what it refuses.
      mosaic_ir.lower(pl.pallas_call(_scalars, _spec()), _spec())


class TransformsTest(parameterized.TestCase):

  def test_vmap(self):
    call = pl.pallas_call(jsx.extended(_scalars), _spec(), interpret=True)
    x = np.arange(3 * 1024, dtype=np.float32).reshape(3, 8, 128)
    got = jax.vmap(call)(x)
    np.testing.assert_array_equal(got[:, 0, 3], x.sum((1, 2)))

  def test_jvp(self):
    @jsx.extended
    def kernel(x_ref, o_ref):
      o_ref[...] = x_ref[...]
      o_ref[1, 2] = x_ref[0, 0] * 3.0
      jax.ref.addupdate(o_ref, (0, 1), x_ref[0, 2])

    call = pl.pallas_call(kernel, _spec(), interpret=True)
    x = np.ones((8, 128), np.float32)
    t = np.arange(1024, dtype=np.float32).reshape(8, 128)
    _, got = jax.jvp(call, (x,), (t,))
    want = t.copy()
    want[1, 2], want[0, 1] = 3 * t[0, 0], t[0, 1] + t[0, 2]
    np.testing.assert_array_equal(got, want)

  def test_one_backends_own_syntax(self):
    @jsx.extended
    def kernel(x, o):
      o[...] = pltriton.load(x, mask=x[...] > 2, other=1.0) * 2
      at = jnp.zeros(8, jnp.int32)
      pl.loop(0, 2)(lambda i: plsc.addupdate_scatter(o, [at + i], x[...]))

    call = pl.pallas_call(kernel, _spec((8,)), interpret=True)
    x, t = np.arange(8, dtype=np.float32), np.ones(8, np.float32)
    wanted = 2 * np.where(x > 2, x, 1)
    wanted[:2] += x.sum()
    _, dot = jax.jit(lambda x, t: jax.jvp(call, (x,), (t,)))(x, t)
    np.testing.assert_array_equal(jax.vmap(call)(np.stack([x, x]))[1], wanted)
    np.testing.assert_array_equal(dot, 2 * (x > 2) + 8 * (x < 2))

  def test_one_backends_own_syntax_outside_kernels(self):
    @jsx.extended
    def update(ref, v):
      mask = jnp.array([True, True, False])
      at = jnp.array([0, 0, 1])
      pltriton.atomic_add(ref, (at,), v * jnp.ones(3), mask=mask)
      return pltriton.load(ref, mask=mask, other=v).sum()

    function = lambda v: update(jax.new_ref(jnp.zeros(3)), v)
    np.testing.assert_array_equal(function(5.0), 15.0)
    np.testing.assert_array_equal(jax.jit(jax.grad(function))(5.0), 3.0)
    np.testing.assert_array_equal(
        jax.vmap(jax.grad(function))(jnp.arange(2.0)), [3.0, 3.0]
    )

  def test_scan(self):
    call = pl.pallas_call(jsx.extended(_scalars), _spec(), interpret=True)
    x = np.ones((2, 8, 128), np.float32)
    total, _ = lax.scan(lambda c, x: (c + call(x)[0, 3], None), 0.0, x)
    self.assertEqual(total, 2048)

  def test_shard_map(self):
    call = pl.pallas_call(jsx.extended(_scalars), _spec(), interpret=True)
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((1,), ("d",), auto, devices=jax.devices()[:1])
    run = jax.shard_map(
        call, mesh=mesh, in_specs=jax.P("d"), out_specs=jax.P("d"),
        check_vma=False,
    )
    x = np.ones((8, 128), np.float32)
    self.assertEqual(jax.jit(run)(x)[0, 3], 1024)

  def test_a_ref_outside_kernels(self):
    @jsx.extended
    def add(ref):
      ref[0] += 1
      jax.ref.addupdate(ref, jnp.array([1, 1]), jnp.array([2, 3]))

    def run(x):
      ref = jax.new_ref(x)
      add(ref)
      return jax.freeze(ref)

    x = jnp.zeros(4, jnp.int32)
    np.testing.assert_array_equal(run(x), [1, 5, 0, 0])
    np.testing.assert_array_equal(jax.jit(run)(x), [1, 5, 0, 0])


class EverywhereTest(parameterized.TestCase):

  def _lowers(self, function, *args):
    try:
      mosaic_ir.lower(function, *args)
    except ValueError:
      return False
    return True

  def test_pallas_call(self):
    call = pl.pallas_call(_scalars, _spec())
    self.assertFalse(self._lowers(call, _spec()))
    with jsx.extend_everywhere():
      self.assertTrue(self._lowers(call, _spec()))
      with jsx.extend_everywhere():
        self.assertTrue(self._lowers(call, _spec()))
      self.assertTrue(self._lowers(call, _spec()))
    self.assertFalse(self._lowers(call, _spec()))

  def test_kernel_on_a_mesh(self):
    def run(x):
      mesh = pltpu.TensorCoreMesh(axis_name="core")

      def kernel(x_ref, o_ref, s_ref):
        pltpu.sync_copy(x_ref, s_ref)
        s_ref[0, 3] = s_ref[1, 1]
        pltpu.sync_copy(s_ref, o_ref)

      return pl.kernel(
          kernel, out_type=_spec(), mesh=mesh,
          scratch_types=[pltpu.VMEM((8, 128), _F32)],
      )(x)

    self.assertFalse(self._lowers(run, _spec()))
    with jsx.extend_everywhere():
      x = np.arange(1024, dtype=np.float32).reshape(8, 128)
      got = mosaic_ir.evaluate(run, x)
    self.assertEqual(got[0, 3], x[1, 1])

  def test_is_part_of_the_key_of_jit(self):
    traces = []

    @jax.jit
    def run(x):
      traces.append(None)
      return pl.pallas_call(_add_to_repeated, _spec((4,), jnp.int32),
                            interpret=True)(x)

    i = jnp.array([2, 2, 2, 0])
    self.assertEqual(run(i).tolist(), [1, 0, 1, 0])
    with jsx.extend_everywhere():
      self.assertEqual(run(i).tolist(), [1, 0, 3, 0])
    self.assertEqual(run(i).tolist(), [1, 0, 1, 0])
    self.assertLen(traces, 2)

  def test_other_threads_are_left_alone(self):
    call = pl.pallas_call(_scalars, _spec())
    found = []
    with jsx.extend_everywhere():
      thread = threading.Thread(
          target=lambda: found.append(self._lowers(call, _spec()))
      )
      thread.start()
      thread.join()
    self.assertEqual(found, [False])

  def test_set_global(self):
    call = pl.pallas_call(_scalars, _spec())
    jsx.extend_everywhere().set_global(True)
    try:
      self.assertTrue(self._lowers(call, _spec()))
    finally:
      jsx.extend_everywhere().set_global(False)
    self.assertFalse(self._lowers(call, _spec()))


def _add_to_repeated(i_ref, o_ref):
  o_ref[...] = jnp.zeros_like(o_ref)
  pltriton.atomic_add(o_ref, (i_ref[...],), jnp.ones((4,), jnp.int32))


if __name__ == "__main__":
  absltest.main()
