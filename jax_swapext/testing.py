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
"""Tests for kernels on machines that have no accelerator.

:func:`compile_for` compiles any JAX function, Pallas kernels above all, with
the real compiler of a TPU or GPU that need not be there.
:class:`KernelTestCase` has assertions built on it, and others that run a kernel
in JAX's interpreters. Nothing here needs a kernel to use jax_swapext.

Example::

  class CopyTest(testing.KernelTestCase):

    def test_compiles(self):
      self.assertCompiles(copy, x, targets=("tpu-v6e", "h100"))

    def test_copies(self):
      self.assertMatchesReference(copy, lambda x: x, x)

The compilers are those of libtpu and of JAX's CUDA plugin, 500 MB that need no
device: ``pip install libtpu jax-cuda13-plugin``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from absl.testing import absltest
import jax
import jax.numpy as jnp
from jax_swapext._src import compile_for as _compile_for
from jax_swapext._src.compile_for import TARGETS as TARGETS
from jax_swapext._src.compile_for import Compiled as Compiled
from jax_swapext._src.compile_for import CompileError as CompileError
from jax_swapext._src.compile_for import compile_for as compile_for
import numpy as np


class KernelTestCase(absltest.TestCase):
  """Assertions on kernels, for absltest and pytest."""

  def assertCompiles(
      self, fn: Callable[..., Any], *args: Any,
      targets: str | Sequence[str] = ("tpu-v6e", "h100"), **options: Any,
  ) -> dict[str, Compiled]:
    """Fails unless `fn` compiles for every target.

    Args:
      fn: as for :func:`compile_for`.
      *args: its arguments.
      targets: what for, one or more.
      **options: as for :func:`compile_for`.

    Returns:
      What :func:`compile_for` returns, for each target.
    """
    compiled = {}
    for target in _checked(targets):
      with self.subTest(target):
        try:
          compiled[target] = compile_for(target, fn, *args, **options)
        except CompileError as e:
          self.fail(str(e))
    return compiled

  def assertRefuses(
      self, regex: str, fn: Callable[..., Any], *args: Any,
      targets: str | Sequence[str] = ("tpu-v6e", "h100"), **options: Any,
  ) -> None:
    """Fails unless every target refuses `fn` with a message that matches.

    Args:
      regex: searched for in the message, be it JAX's or the compiler's.
      fn: as for :func:`compile_for`.
      *args: its arguments.
      targets: what for, one or more.
      **options: as for :func:`compile_for`.
    """
    for target in _checked(targets):
      with self.subTest(target):
        try:
          compiled = compile_for(target, fn, *args, **options)
        except Exception as e:  # JAX's refusals are of many types.
          self.assertRegex(str(e), regex)
        else:
          self.fail(
              f"{compiled.summary()}; wanted a refusal that matches {regex!r}"
          )

  def assertMatchesReference(
      self, kernel: Callable[..., Any], reference: Callable[..., Any],
      *args: Any, modes: str | Sequence[str] = ("hlo",),
  ) -> None:
    """Fails unless a kernel, interpreted on the CPU, equals a reference.

    Integers and bools have to be equal. Floats may differ by a few units in
    the last place, see :meth:`tolerance`; NaN equals NaN.

    Args:
      kernel: called as ``kernel(*args, interpret=...)``, and passes the keyword
        on to :func:`pl.pallas_call` or :func:`pl.kernel`.
      reference: called as ``reference(*args)``.
      *args: arrays.
      modes: which interpreters: ``"hlo"`` (``interpret=True``), ``"tpu"`` and
        ``"gpu"``, which know that device's memories and threads.
    """
    want, tree = jax.tree.flatten(reference(*args))
    for mode in (modes,) if isinstance(modes, str) else modes:
      with self.subTest(mode):
        got = kernel(*args, interpret=_interpret(mode))
        self.assertEqual(jax.tree.structure(got), tree)
        for g, w in zip(jax.tree.leaves(got), want, strict=True):
          g, w = np.asarray(g), np.asarray(w)
          self.assertEqual(
              (g.shape, g.dtype), (w.shape, w.dtype),
              "shape and dtype of the kernel's result and of the reference's",
          )
          if not jnp.issubdtype(w.dtype, jnp.inexact):
            np.testing.assert_array_equal(g, w)
            continue
          wide = np.promote_types(w.dtype, np.float32)
          bound = self.tolerance(w.dtype)
          np.testing.assert_allclose(
              g.astype(wide), w.astype(wide), rtol=bound, atol=bound
          )

  def tolerance(self, dtype: Any) -> float:
    """How far floats of a dtype may be off; override to change it.

    Args:
      dtype: a floating-point dtype.

    Returns:
      Absolute and relative tolerance: eight units in the last place of 1.
    """
    return 8 * float(jnp.finfo(dtype).eps)


def _checked(targets: str | Sequence[str]) -> tuple[str, ...]:
  """The targets, if all are known and have their compilers here."""
  targets = (targets,) if isinstance(targets, str) else tuple(targets)
  for target in targets:
    _compile_for.check_target(target)
  return targets


def _interpret(mode: str) -> Any:
  if mode == "hlo":
    return True
  if mode == "tpu":
    from jax.experimental.pallas import tpu as pltpu

    return pltpu.InterpretParams()
  if mode == "gpu":
    from jax.experimental.pallas import mosaic_gpu as plgpu

    # Newer names of JAX come first; drop the older once it is gone.
    names = ("InterpretParams", "InterpretGPUParams")
    return next(getattr(plgpu, n) for n in names if hasattr(plgpu, n))()
  raise ValueError(
      "assertMatchesReference: wanted modes to be among 'hlo', 'tpu' and"
      f" 'gpu', got {mode!r}."
  )
