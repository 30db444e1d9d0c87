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
"""Sharded arrays: shard_map, and meshes under plain jit, on eight devices."""

import functools
import itertools
import json
import os
import re
import socket
import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized
import cases
from cases import ATOMICS
from cases import OPS
import jax
from jax.experimental import topologies
import jax.export
from jax.sharding import AxisType
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import jax_swapext as jsx
from jax_swapext._src import gpu_compiler
from jax_swapext._src import tpu_compiler
import numpy as np
import pytest
import reference

_DEVICES = 8


def on_eight_devices(test):
  """Runs a test method in a child process that has eight CPU devices.

  The number of devices is fixed once a process has used JAX, and the tests of
  other files, which share this process, need only one.
  """

  @functools.wraps(test)
  def wrapped(self, *args):
    if os.environ.get("JAX_NUM_CPU_DEVICES") == str(_DEVICES):
      self.assertEqual(jax.device_count(), _DEVICES)
      test(self, *args)
      return
    env = os.environ | {
        "JAX_NUM_CPU_DEVICES": str(_DEVICES),
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    name = f"{type(self).__name__}.{self._testMethodName}"
    child = subprocess.run(
        [sys.executable, __file__, name],
        env=env, capture_output=True, text=True, timeout=300, check=False,
    )
    self.assertEqual(child.returncode, 0, child.stderr)
    self.assertIn("Ran 1 test", child.stderr)

  return wrapped


@pytest.mark.slow
class ShardingTest(parameterized.TestCase):
  """shard_map, and meshes under plain jit."""

  def _mesh(self, axis_type=AxisType.Auto):
    return jax.make_mesh((_DEVICES,), ("d",), axis_types=(axis_type,))

  def _many(self, op):
    """Arguments for each device, and all of them joined along axis 0."""
    each = [cases.example(op, seed) for seed in range(_DEVICES)]
    return each, [np.concatenate(a) for a in zip(*each, strict=True)]

  def _check_each(self, op, each, result, new):
    parts = [
        None if a is None else np.split(np.asarray(a), _DEVICES)
        for a in (result, new)
    ]
    for d, (x, *args) in enumerate(each):
      got = None if parts[0] is None else parts[0][d], parts[1][d]
      op.check(got, x, *args)

  @on_eight_devices
  def test_shard_map(self):
    for op in OPS:
      with self.subTest(op.name):
        each, joined = self._many(op)
        f = jax.shard_map(
            op.pure, mesh=self._mesh(), in_specs=P("d"), out_specs=P("d")
        )
        self._check_each(op, each, *jax.jit(f)(*joined))

  @on_eight_devices
  def test_shard_map_of_replicated_arrays(self):
    for op in OPS:
      with self.subTest(op.name):
        x, *args = cases.example(op)
        f = jax.shard_map(
            op.pure, mesh=self._mesh(), in_specs=P(), out_specs=P()
        )
        op.check(jax.jit(f)(x, *args), x, *args)

  @on_eight_devices
  def test_shard_map_of_a_replicated_index(self):
    # Where only some operands vary over the mesh, the result still does.
    for op in OPS:
      with self.subTest(op.name):
        each, (xs, _, *values) = self._many(op)
        idx = each[0][1]
        f = jax.shard_map(
            op.pure,
            mesh=self._mesh(),
            in_specs=(P("d"), P(), *[P("d")] * len(values)),
            out_specs=P("d"),
        )
        result = jax.jit(f)(xs, idx, *values)
        self._check_each(op, [(x, idx, *v) for x, _, *v in each], *result)

  @on_eight_devices
  def test_shard_map_without_varying_types(self):
    for op in OPS:
      with self.subTest(op.name):
        each, joined = self._many(op)
        f = jax.shard_map(
            op.pure,
            mesh=self._mesh(),
            in_specs=P("d"),
            out_specs=P("d"),
            check_vma=False,
        )
        self._check_each(op, each, *jax.jit(f)(*joined))

  @on_eight_devices
  def test_shard_map_of_a_ref(self):
    mesh = self._mesh()
    for op in OPS:
      with self.subTest(op.name):
        each, (x, *args) = self._many(op)
        ref = jax.new_ref(jax.device_put(x, NamedSharding(mesh, P("d"))))
        f = jax.shard_map(
            op.apply, mesh=mesh, in_specs=P("d"), out_specs=P("d")
        )
        result = jax.jit(f)(ref, *args)
        self._check_each(op, each, result, ref[...])

  @on_eight_devices
  def test_vmap_and_grad_inside_shard_map(self):
    for op in cases.FLOAT_OPS:
      with self.subTest(op.name):
        each, joined = self._many(op)
        idx = each[0][1]

        def loss(x, *values, op=op, idx=idx):
          result, new = op.pure(x, idx, *values)
          return (new**2).sum() + (0 if result is None else (3 * result).sum())

        grad = jax.vmap(jax.grad(loss))
        xs, _, *values = [a.reshape(_DEVICES, -1) for a in joined]
        f = jax.shard_map(
            grad, mesh=self._mesh(), in_specs=P("d"), out_specs=P("d")
        )
        got = jax.jit(f)(xs, *values)
        np.testing.assert_allclose(got, grad(xs, *values), rtol=1e-6)

  @on_eight_devices
  def test_fetch_of_sharded_arrays(self):
    # Operands sharded in every combination, on both kinds of mesh.
    for axis_type in (AxisType.Auto, AxisType.Explicit):
      mesh = self._mesh(axis_type)
      for op in ATOMICS:
        x, _, *values = cases.example(op)
        x = np.resize(x, 16)
        idx = np.array([1, 15, 1, 7, 8, 1, 0, 99], np.int32)
        values = [np.resize(v, 8) for v in values]
        want = reference.fetch(op.rmw, x, idx, *values)
        for specs in ((P("d"), P()), (P(), P("d")), (P("d"), P("d"))):
          with self.subTest(f"{op.name} {axis_type} {specs}"):
            with jax.set_mesh(mesh):
              table = jax.device_put(x, specs[0])
              rest = [jax.device_put(a, specs[1]) for a in (idx, *values)]
              got = jax.jit(op.fetch)(table, *rest)
            for a, b in zip(got, want, strict=True):
              op.check_same(a, b)

  @on_eight_devices
  def test_arrays_that_are_on_no_mesh(self):
    for axis_type in (AxisType.Auto, AxisType.Explicit):
      with jax.set_mesh(self._mesh(axis_type)):
        for op in OPS:
          with self.subTest(f"{op.name} {axis_type}"):
            x, *args = cases.example(op)
            op.check(jax.jit(op.pure)(x, *args), x, *args)

  @on_eight_devices
  def test_jit_of_a_sharded_ref(self):
    with jax.set_mesh(self._mesh()):
      for op in OPS:
        with self.subTest(op.name):
          x, *args = cases.example(op)
          x = np.resize(x, 16)
          ref = jax.new_ref(jax.device_put(x, P("d")))
          result = jax.jit(op.apply)(ref, *args)
          op.check((result, ref[...]), x, *args)

  @on_eight_devices
  def test_ref_sharded_on_explicit_axes(self):
    x, mesh = np.arange(128.0, dtype=np.float32), self._mesh(AxisType.Explicit)
    x = x.reshape(8, 16)
    rows = np.array([1, 1, 5])
    accesses = (
        (jsx.atomic_add, (3,), (16,)),
        (jsx.atomic_max, rows, (3, 16)),
        (jsx.atomic_add, (slice(None), rows), (8, 3)),
        (jsx.atomic_add, slice(2, 6), (4, 16)),
    )
    for (op, idx, shape), spec in itertools.product(
        accesses, (P("d"), P(None, "d"))
    ):

      def f(x, v, idx=idx, op=op):
        ref = jax.new_ref(x)
        old = op(ref, idx, v)
        return (old**2).sum() + (ref[...] ** 3).sum()

      with self.subTest(f"{op.__name__} {idx} {spec}"):
        v = np.full(shape, 40, np.float32)
        want = jax.grad(f, (0, 1))(x, v)
        with jax.set_mesh(mesh):
          got = jax.jit(jax.grad(f, (0, 1)))(jax.device_put(x, spec), v)
        for a, b in zip(got, want, strict=True):
          np.testing.assert_allclose(a, b, rtol=1e-6)

  @on_eight_devices
  def test_vmap_over_a_sharded_axis(self):
    mesh = self._mesh(AxisType.Explicit)
    sharded = jax.sharding.NamedSharding(mesh, P("d"))
    x = np.arange(3.0 * _DEVICES, dtype=np.float32).reshape(_DEVICES, 3)
    idx = np.array([0, 0])
    for mask in None, np.array([True, False]):
      with self.subTest(str(mask)), jax.set_mesh(mesh):
        f = jax.vmap(lambda x, v, m=mask: jsx.fetch_add(x, idx, v, mask=m))
        v = jax.device_put(np.ones((_DEVICES, 2), np.float32), sharded)
        old, new = jax.jit(f)(jax.device_put(x, sharded), v)
        once = mask is not None
        np.testing.assert_array_equal(
            old, np.stack([x[:, 0], (x[:, 0] + 1) * (not once)], 1)
        )
        np.testing.assert_array_equal(new, x + [2.0 - once, 0, 0])

  @on_eight_devices
  def test_varying_write_to_an_invariant_ref(self):
    def f(x, i):
      ref = jax.new_ref(x)
      jsx.atomic_add(ref, i, 1.0)
      return ref[...]

    f = jax.shard_map(
        f, mesh=self._mesh(), in_specs=(P(), P("d")), out_specs=P()
    )
    with self.assertRaisesRegex(
        ValueError, "atomic_add: wanted a Ref that varies.*pcast"
    ):
      jax.jit(f)(np.zeros(3, np.float32), np.arange(_DEVICES))


def _collectives(compiled):
  """How often each kind of communication stands in a compiled program."""
  text = compiled.as_text()
  found = re.findall(
      r" (all-gather|all-reduce|all-to-all|reduce-scatter|"
      r"collective-permute)(?:-start)?\(", text
  )
  return {kind: found.count(kind) for kind in sorted(set(found))}


@pytest.mark.slow
class PartitionTest(parameterized.TestCase):
  """Tables of many rows under jit: no device holds another's part."""

  def _mesh(self, axis_type=AxisType.Auto):
    return jax.make_mesh((4, 2), ("a", "b"), axis_types=(axis_type,) * 2)

  def _arguments(self, op, dtype, row=()):
    """A table of 64 rows and 40 updates of few of them, some outside."""
    rng = np.random.default_rng(0)
    x = cases.values(dtype, (64, *row))
    idx = rng.choice([-64, -1, 0, 7, 8, 31, 63, 64, -65, 99], 40)
    values = [
        cases.values(dtype, (40, *row), k + 1).copy()
        for k in range(op.operands)
    ]
    if op is cases.CAS:
      values[0][::2] = x[np.clip(idx, -64, 63)][::2]
    return x, idx.astype(np.int32), *values

  def _put(self, mesh, table, updates, x, *args):
    return [
        jax.device_put(a, NamedSharding(mesh, s))
        for a, s in ((x, table), *((a, updates) for a in args))
    ]

  @parameterized.parameters("asked", "compact")
  @on_eight_devices
  def test_every_operation(self, form):
    mesh = self._mesh()
    for op in ATOMICS:
      dtype = np.float32 if op.accepts(np.float32) else np.int32
      arguments = self._arguments(op, dtype)
      tables = (P(("b", "a")),)
      if op is cases.ADD:
        tables += (P("a"), P("b"), P(("a", "b")), P())
      for table, updates in itertools.product(tables, (P(), P("b"))):
        with self.subTest(f"{op.name} {table} {updates}"):
          sharded = self._put(mesh, table, updates, *arguments)
          got = _run(form, op.fetch, *sharded)
          _check(op, got, *arguments)

  @parameterized.parameters("asked", "compact")
  @on_eight_devices
  def test_rows_and_masks(self, form):
    mesh = self._mesh()
    mask = np.random.default_rng(1).random((40, 1)) < 0.6
    for op, table in (
        (cases.ADD, P("a")),
        (cases.MAX, P(None, "a")),
        (cases.XCHG, P("b", "a")),
        (cases.CAS, P("a", "b")),
    ):
      with self.subTest(f"{op.name} {table}"):
        f = lambda *args, op=op: op.fetch(*args[:-1], mask=args[-1])
        arguments = self._arguments(op, np.float32, row=(4,))
        sharded = self._put(mesh, table, P(), *arguments, mask)
        _check(op, _run(form, f, *sharded), *arguments, mask=mask)

  @parameterized.parameters("asked", "compact")
  @on_eight_devices
  def test_unique_indices(self, form):
    x, _, value = self._arguments(cases.ADD, np.float32)
    idx = np.arange(-64, 80, dtype=np.int32)[::4]  # Some are outside.
    idx, value = idx[16:], value[: idx.size - 16]
    f = functools.partial(jsx.fetch_add, unique_indices=True)
    for table in (P("a"), P(("b", "a")), P()):
      with self.subTest(str(table)):
        sharded = self._put(self._mesh(), table, P(), x, idx, value)
        _check(cases.ADD, _run(form, f, *sharded), x, idx, value)

  @parameterized.parameters("asked", "compact")
  @on_eight_devices
  def test_old_values_keep_their_bits(self, form):
    # They are summed over the devices, with zeros.
    mesh = self._mesh()
    for dtype in cases.NARROW:
      with self.subTest(str(dtype)):
        arguments = self._arguments(cases.XCHG, dtype)
        sharded = self._put(mesh, P("a"), P(), *arguments)
        _check(cases.XCHG, _run(form, jsx.fetch_xchg, *sharded), *arguments)

  @parameterized.parameters(AxisType.Auto, AxisType.Explicit)
  @on_eight_devices
  def test_communication(self, axis_type):
    mesh = self._mesh(axis_type)
    arguments = self._arguments(cases.XCHG, np.float32)
    with jax.set_mesh(mesh):
      sharded = self._put(mesh, P(("a", "b")), P(), *arguments)
      lower = jax.jit(jsx.fetch_xchg, donate_argnums=0).lower
      compiled = lower(*sharded).compile()
      self.assertEqual(_collectives(compiled), {"all-reduce": 1})
      self.assertIn("input_output_alias", compiled.as_text())
      self.assertEqual(compiled.output_shardings[1], sharded[0].sharding)
      unique = functools.partial(jsx.fetch_xchg, unique_indices=True)
      compiled = jax.jit(unique).lower(*sharded).compile()
      self.assertEqual(_collectives(compiled), {"all-reduce": 1})
      without_old = jax.jit(lambda *args: jsx.fetch_xchg(*args)[1])
      compiled = without_old.lower(*sharded).compile()
      self.assertEqual(_collectives(compiled), {})

  @on_eight_devices
  def test_communication_of_the_compact_form(self):
    mesh = self._mesh()
    sharded = self._put(
        mesh, P(("a", "b")), P(), *self._arguments(cases.XCHG, np.float32)
    )
    program = jax.export.export(jax.jit(jsx.fetch_xchg))(*sharded)
    compiled = jax.jit(program.call).lower(*sharded).compile()
    self.assertEqual(_collectives(compiled), {"all-reduce": 1})

  @on_eight_devices
  def test_shardings_given_to_jit(self):
    # Then the arguments' types know of no mesh.
    x, idx, value = self._arguments(cases.ADD, np.float32)
    at = lambda *axes: NamedSharding(self._mesh(), P(*axes))
    f = jax.jit(
        jsx.fetch_add, in_shardings=(at("a"), at(), at()),
        out_shardings=(at(), at("a")),
    )
    compiled = f.lower(x, idx, value).compile()
    self.assertEqual(_collectives(compiled), {"all-reduce": 1})
    _check(cases.ADD, compiled(x, idx, value), x, idx, value)

  @on_eight_devices
  def test_ref(self):
    mesh = self._mesh()
    x, idx, value = self._arguments(cases.ADD, np.float32)

    @jax.jit
    def f(x, idx, value):
      ref = jax.new_ref(x)
      old = jsx.atomic_add(ref, idx, value)
      return old, ref[...]

    idx = np.where(idx < 0, 0, idx)  # A Ref's may not be outside.
    idx = np.where(idx > 63, 63, idx)
    sharded = self._put(mesh, P("a"), P(), x, idx, value)
    compiled = f.lower(*sharded).compile()
    self.assertEqual(_collectives(compiled), {"all-reduce": 1})
    _check(cases.ADD, compiled(*sharded), x, idx, value)

  @on_eight_devices
  def test_table_that_does_not_divide(self):
    x, idx, value = self._arguments(cases.ADD, np.float32)
    f = jax.jit(lambda x, *args: jsx.fetch_add(x[:61], *args))
    sharded = self._put(self._mesh(), P("a"), P(), x, idx, value)
    _check(cases.ADD, f(*sharded), x[:61], idx, value)

  @on_eight_devices
  def test_loop(self):
    x, idx, value = self._arguments(cases.ADD, np.float32)

    @jax.jit
    def f(x, idx, value):
      def step(x, update):
        old, x = jsx.fetch_add(x, *update)
        return x, old

      x, old = jax.lax.scan(
          step, x, (idx.reshape(5, 8), value.reshape(5, 8))
      )
      return old.reshape(-1), x

    sharded = self._put(self._mesh(), P("a"), P(), x, idx, value)
    _check(cases.ADD, f(*sharded), x, idx, value)

  @on_eight_devices
  def test_derivatives(self):
    for op in (cases.ADD, cases.MAX, cases.CAS):
      x, idx, *values = self._arguments(op, np.float32)
      x = cases.tame(np.float32, x.shape)
      values = [cases.tame(np.float32, v.shape, k + 1)
                for k, v in enumerate(values)]

      def loss(x, idx, *values, op=op):
        old, new = op.fetch(x, idx, *values)
        return (old**2).sum() + (new**3).sum()

      grad = jax.grad(loss, argnums=(0, 2))
      with self.subTest(op.name):
        sharded = self._put(self._mesh(), P("a"), P("b"), x, idx, *values)
        for got, want in zip(
            jax.jit(grad)(*sharded), grad(x, idx, *values), strict=True
        ):
          np.testing.assert_allclose(got, want, rtol=1e-6)


class ManyProcessesTest(parameterized.TestCase):

  @pytest.mark.slow
  def test_two_processes(self):
    with socket.socket() as free:
      free.bind(("localhost", 0))
      address = f"localhost:{free.getsockname()[1]}"
    children = [
        _child(
            f"update_in_one_of_two({address!r}, {k})",
            JAX_PLATFORMS="cpu", JAX_NUM_CPU_DEVICES="4",
        )
        for k in range(2)
    ]
    for child in children:
      _, stderr = child.communicate(timeout=200)
      self.assertEqual(child.returncode, 0, stderr)


class CompileTest(parameterized.TestCase):
  """A table of 4 GB over eight accelerators, of which there are none here."""

  @parameterized.product(
      target=("v5p", "h200"), axis_type=(AxisType.Auto, AxisType.Explicit)
  )
  @pytest.mark.slow
  def test_table_stays_where_it_is(self, target, axis_type):
    child = _child(
        f"compile_large({target!r}, t.{axis_type})",
        **tpu_compiler.environment(),
    )
    stdout, stderr = child.communicate(timeout=300)
    self.assertEqual(child.returncode, 0, stderr[-2000:])
    found = json.loads(stdout.splitlines()[-1])
    self.assertEqual(found["collectives"], {"all-reduce": 1})
    self.assertEqual(found["copies"], [])


def _child(call, **env):
  """Starts a process that calls a function of this file."""
  path = [os.path.dirname(__file__), *filter(None, sys.path)]
  env["PYTHONPATH"] = os.pathsep.join(path)
  return subprocess.Popen(
      [sys.executable, "-c", f"import sharding_test as t; t.{call}"],
      env=os.environ | env, text=True,
      stdout=subprocess.PIPE, stderr=subprocess.PIPE,
  )


def update_in_one_of_two(address, process):
  """What each of two processes with four devices does, and checks."""
  jax.distributed.initialize(address, num_processes=2, process_id=process)
  mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
  rng = np.random.default_rng(0)
  x = rng.integers(0, 9, 64, np.int32)
  idx = rng.integers(-70, 70, 40, np.int32)
  value = rng.integers(0, 9, 40, np.int32)
  arrays = [
      jax.make_array_from_callback(
          a.shape, NamedSharding(mesh, s), lambda part, a=a: a[part]
      )
      for a, s in ((x, P("d")), (idx, P("d")), (value, P()))
  ]
  got = jax.jit(jsx.fetch_add)(*arrays)
  want = reference.fetch("add", x, idx, value)
  for a, b in zip(got, want, strict=True):
    for shard in a.addressable_shards:
      np.testing.assert_array_equal(shard.data, b[shard.index])


def compile_large(target, axis_type):
  """Prints what compiling for eight of `target` gives."""
  if target == "h200":
    devices = gpu_compiler.devices_of(target, 8)
  else:
    topology = topologies.get_topology_desc(f"{target}:2x2x2", platform="tpu")
    devices = topology.devices[:8]
  mesh = jax.sharding.Mesh(
      np.array(devices), ("d",), axis_types=(axis_type,)
  )

  def array(size, dtype, *axes):
    sharding = NamedSharding(mesh, P(*axes))
    return jax.ShapeDtypeStruct((size,), dtype, sharding=sharding)

  f = jax.jit(jsx.fetch_xchg, donate_argnums=0)
  compiled = f.lower(
      array(2**30, np.float32, "d"),
      array(1000, np.int32),
      array(1000, np.float32),
  ).compile()
  copies = re.findall(
      r"f32\[(?:134217728|1073741824)\]\S* copy.*", compiled.as_text()
  )
  print(json.dumps(
      {"collectives": _collectives(compiled), "copies": copies}
  ))


def _check(op, got, x, idx, *values, mask=None):
  want = reference.fetch(op.rmw, x, idx, *values, mask=mask)
  for a, b in zip(got, want, strict=True):
    op.check_same(a, b)


def _run(form, f, *args):
  if form == "asked":
    return jax.jit(f)(*args)
  # An exported program has nobody to ask.
  return jax.jit(jax.export.export(jax.jit(f))(*args).call)(*args)


if __name__ == "__main__":
  absltest.main()
