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
"""The support matrix, as data: what works where, how, and what cannot.

Tests run every supported row and match the error of every other one, so this
page cannot promise what the code does not do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import dataclasses
import html
import textwrap
from typing import Any

from jax.typing import DTypeLike
import numpy as np

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = tuple(
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
)
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
ALL = ("bool", *INTEGERS, *FLOATS, *FLOAT8)
SUB_BYTE = ("int4", "uint4", "int2", "uint2", "float4_e2m1fn")
COMPLEX = ("complex64", "complex128")

MOVES = ("load", "store", "swap", "atomic_xchg", "atomic_cas")
COMPARES = ("atomic_max", "atomic_min")
BITWISE = ("atomic_and", "atomic_or", "atomic_xor")
REF_OPERATIONS = (*MOVES, "atomic_add", *COMPARES, *BITWISE)

INDICES = ("whole", "integers", "slices", "pl.ds", "integer arrays", "mixed")


@dataclasses.dataclass(frozen=True)
class Row:
  """Cells of the matrix that share an answer.

  Attributes:
    operations: public names. On arrays, `fetch_*` stands for `atomic_*`.
    place: where the operation runs.
    memory: the memory space of the Ref; "array" for the functions on arrays.
    dtypes: dtypes of the Ref. 64-bit ones need ``jax_enable_x64``.
    indices: forms of the index.
    supported: whether it works.
    note: how it is done and what it costs, or why it cannot be and the way out.
  """

  operations: tuple[str, ...]
  place: str
  memory: str
  dtypes: tuple[str, ...]
  indices: tuple[str, ...]
  supported: bool
  note: str

  def cells(self) -> Iterator[tuple[str, str, str]]:
    """All (operation, dtype, form of index) of this row."""
    for operation in self.operations:
      for dtype in self.dtypes:
        for index in self.indices:
          yield operation, dtype, index


  def texts(self) -> tuple[str, ...]:
    """What a table has of this row, a text for each of `_TITLES`."""
    forms = "" if self.indices == INDICES else f"{', '.join(self.indices)}: "
    return (
        self.place, self.memory, ", ".join(self.operations),
        ", ".join(self.dtypes), "yes" if self.supported else "no",
        forms + self.note,
    )


_TITLES = ("place", "memory", "operations", "dtypes", "works", "note")


class Matrix(tuple[Row, ...]):
  """Rows of the support matrix; prints as a table, in a notebook too."""

  def __str__(self) -> str:
    if not self:
      return "no such row"
    widths = (20, 11, 22, 22, 5, 40)
    lines = [_line(_TITLES, widths), _line(["-" * w for w in widths], widths)]
    for row in self:
      wrapped = [
          textwrap.wrap(c, w) or [""] for c, w in zip(row.texts(), widths)
      ]
      for i in range(max(map(len, wrapped))):
        lines.append(
            _line([w[i] if i < len(w) else "" for w in wrapped], widths)
        )
    return "\n".join(lines)

  __repr__ = __str__

  def markdown(self) -> str:
    """A section for each place: a table of what works and what does not."""
    parts = []
    for place in dict.fromkeys(row.place for row in self):
      parts += [f"## {place[0].upper()}{place[1:]}", ""]
      parts += [_bars(_TITLES[1:]), _bars(["---"] * len(_TITLES[1:]))]
      parts += [_bars(r.texts()[1:]) for r in self if r.place == place]
      parts.append("")
    return "\n".join(parts)

  def _repr_html_(self) -> str:
    """The table that notebooks show."""

    def line(tag, cells, style=""):
      inner = "".join(
          f"<{tag} style='text-align: left; vertical-align: top'>"
          f"{html.escape(cell)}</{tag}>"
          for cell in cells
      )
      return f"<tr{style}>{inner}</tr>"

    # Not by colour alone: the column with yes and no says it too.
    rows = [
        line("td", row.texts(), "" if row.supported else " style='color: gray'")
        for row in self
    ]
    return f"<table>{line('th', _TITLES)}{''.join(rows)}</table>"


def _bars(cells) -> str:
  return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"


def _line(cells, widths) -> str:
  return "  ".join(c.ljust(w) for c, w in zip(cells, widths)).rstrip()


def support(
    operation: str | Callable[..., Any] | None = None,
    place: str | None = None,
    dtype: DTypeLike | None = None,
) -> Matrix:
  """What works where: the support matrix, or the part of it that is asked for.

  Args:
    operation: a public function or its name, such as ``"atomic_add"``;
      ``"fetch_add"`` means the same operation on arrays.
    place: a part of a place's name, such as ``"CPU"``, ``"SparseCore"``,
      ``"warp code"`` or ``"Triton"``.
    dtype: a dtype or its name.

  Returns:
    A tuple of rows that prints as a table.

  Raises:
    ValueError: there is no such operation, place or dtype; the message has
      those that there are.

  Example:
    >>> import jax_swapext as jsx
    >>> [row.supported for row in jsx.support("fetch_xor", "CPU", "bfloat16")]
    [False]
  """
  rows = _ROWS
  if operation is not None:
    fetches = tuple(
        o.replace("atomic_", "fetch_") for o in REF_OPERATIONS
        if o.startswith("atomic_")
    )
    operation = str(getattr(operation, "__name__", operation))
    if operation not in (*REF_OPERATIONS, *fetches):
      raise _unknown("operation", operation, (*REF_OPERATIONS, *fetches))
    on_ref = operation.replace("fetch_", "atomic_")
    rows = [r for r in rows if on_ref in r.operations]
    if operation in fetches:
      rows = [r for r in rows if r.memory == "array"]
  if place is not None:
    places = tuple(dict.fromkeys(r.place for r in _ROWS))
    among = [p for p in places if place.lower() in p.lower()]
    if not among:
      raise _unknown("place", place, places)
    rows = [r for r in rows if r.place in among]
  if dtype is not None:
    names = tuple(dict.fromkeys(d for r in _ROWS for d in r.dtypes))
    dtype = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    if dtype not in names:
      raise _unknown("dtype", dtype, names)
    rows = [r for r in rows if dtype in r.dtypes]
  return Matrix(rows)


def _unknown(what, given, known):
  return ValueError(
      f"support: wanted one of these as {what}: {', '.join(known)}; got"
      f" {given!r}."
  )


def _rows(
    place: str,
    memory: str,
    *,
    moves: str,
    exchanges: str | None = None,
    adds: str | None = None,
    compares: str | None = None,
    bitwise: str | None = None,
    extra: Iterator[Row] | tuple[Row, ...] = (),
) -> list[Row]:
  """The rows of a place that can do what the hardware's dtypes allow.

  Args:
    place: as in Row.
    memory: as in Row.
    moves: the note on operations that move values.
    exchanges: that on atomic ones of these; this note and those that follow are
      `moves` unless given.
    adds: that on atomic_add.
    compares: that on atomic_max and atomic_min.
    bitwise: that on atomic_and, atomic_or and atomic_xor.
    extra: more rows of this place.
  """
  operations = REF_OPERATIONS
  if memory == "array":
    operations = tuple(o for o in operations if o.startswith("atomic_"))

  def row(wanted, dtypes, supported, note):
    these = tuple(o for o in operations if o in wanted)
    return Row(these, place, memory, dtypes, INDICES, supported, note)

  no_arithmetic = "keep the accumulator in a wider dtype"
  rows = [row(MOVES, ALL, True, moves)]
  if exchanges is not None:
    plain = tuple(o for o in MOVES if not o.startswith("atomic_"))
    atomic = tuple(o for o in MOVES if o.startswith("atomic_"))
    rows = [row(plain, ALL, True, moves), row(atomic, ALL, True, exchanges)]
  rows += [
      row(("atomic_add",), (*INTEGERS, *FLOATS), True, adds or moves),
      row(COMPARES, ("bool", *INTEGERS, *FLOATS), True, compares or moves),
      row(BITWISE, ("bool", *INTEGERS), True, bitwise or moves),
      row(("atomic_add",), ("bool",), False, "use atomic_or or atomic_xor"),
      row(("atomic_add", *COMPARES), FLOAT8, False, no_arithmetic),
      row(BITWISE, (*FLOATS, *FLOAT8), False,
          "view the Ref as integers with ref.bitcast"),
      row(operations, SUB_BYTE, False,
          "keep them in an 8-bit Ref and convert when loading"),
      row(operations, COMPLEX, False,
          "keep the parts of a structured value in separate Refs"),
      *extra,
  ]
  return [r for r in rows if r.operations]


# ## GPUs, outside kernels


def _gpu_arrays(memory: str) -> list[Row]:
  """The rows of arrays and Refs on a GPU, where Triton updates repeat."""
  moves = (
      "slices: one update in place by XLA; integer arrays: one Triton kernel in"
      " place (without jax_triton, or below compute capability 8.0, XLA's loop,"
      " microseconds per update). No kernel has run on a GPU yet. ROCm is"
      " unverified: the kernels compile for gfx942, but jax_triton 0.4.1 fails"
      " with Triton >= 3.9 there, and then XLA's loop is what runs"
  )
  any_order = 'order="any": one atomic instruction per element'
  in_order = (
      'order="index": tiles of up to 4096 updates are sorted and combined side'
      " by side and meet the table one after another"
  )
  words = "8- and 16-bit ones by compare-and-swap of the word around them"
  serial = "a tile takes as many steps as its most frequent index has updates"
  return _rows(
      "outside kernels, GPU", memory, moves=moves,
      exchanges=(
          f"{moves}. {any_order}, {words}; {in_order}; for compare-and-swap"
          f" {serial}"
      ),
      adds=(
          f"{any_order}, 8- and 16-bit integers by compare-and-swap of the word"
          " around them; float32 subnormals then count as zero, before and"
          f" after: so PTX defines it; {in_order}; of floats {serial}"
      ),
      compares=(
          f"{any_order}, floats, since the hardware's drop NaNs, and {words};"
          f" {in_order}"
      ),
      bitwise=f"{any_order}, {words}; {in_order}",
  )


# ## Mosaic GPU

_IN_WORDS = (
    "through an atomic update of the 32-bit word around them, exclusive:"
    " meanwhile nobody may store plainly to its other bytes, though atomics"
    " there are fine"
)
_REPLICAS = {
    "warp": (
        "Scalars, and sizes that 32 does not divide: several lanes hold an"
        " element, under Warpgroup lowering up to all of them every one, so"
        " swap waits at a barrier of the warp."
    ),
    "warpgroup": (
        "Scalars, and sizes that 128 does not divide: several threads hold an"
        " element, so swap waits at a barrier of the warpgroup; integer arrays"
        " mixed with slices take 32 bytes of shared memory per index, and masks"
        " of values that are not 32 bits wide 8 per element under Lane"
        " lowering, in units of 1 KiB."
    ),
}
_ELSEWHERE = {
    "SMEM": (
        "Also another block's, by plgpu.cluster_ref. Tiling and swizzle are"
        " followed, declared or inferred; but under Warpgroup lowering scalar"
        " stores, and in warpgroup code scalar loads, are stock's, whose layout"
        " pass rejects them where it has to infer any."
    ),
    "GMEM": (
        "Also another device's, by plgpu.remote_ref, compiled but not run;"
        ' atomics of that device itself need scope="system".'
    ),
}
_OLD_VALUES = {
    "warp": "old values of elements held by several lanes come by shuffles",
    "warpgroup": (
        "old values of scalars, and of sizes that 128 does not divide, go"
        " through shared memory: 8 times their bytes, in units of 1 KiB"
    ),
}
_IN_ORDER = (
    'order="index" with integer arrays takes turns, a barrier after each index'
)
_FLUSHES = {
    "SMEM": "float32 keeps subnormals",
    "GMEM": (
        "float32 subnormals count as zero, before and after: so PTX defines it"
    ),
}


def _mosaic_gpu(code: str, memory: str) -> list[Row]:
  """The rows of one kind of code and one memory of Mosaic GPU kernels."""
  place = f"Mosaic GPU, {code} code"
  one = "one instruction per element"
  small = f"8- and 16-bit elements {_IN_WORDS}"

  def refused(operations, form, note):
    # One row for all dtypes that an operation takes elsewhere.
    for wanted, dtypes in (
        (MOVES, ALL),
        (("atomic_add",), (*INTEGERS, *FLOATS)),
        (COMPARES, ("bool", *INTEGERS, *FLOATS)),
        (BITWISE, ("bool", *INTEGERS)),
    ):
      these = tuple(o for o in wanted if o in operations)
      if these:
        yield Row(these, place, memory, dtypes, (form,), False, note)

  return _rows(
      place,
      memory,
      moves=(
          "vector instructions where the start is known to be aligned, else one"
          " per element; a mask predicates them; what stock supports is"
          f" stock's. {_REPLICAS[code]} {_ELSEWHERE[memory]}"
      ),
      exchanges=f"{one}; {_IN_ORDER}; {small}; {_OLD_VALUES[code]}",
      adds=(
          f"{one}; {_IN_ORDER}; {_FLUSHES[memory]}; 8- and 16-bit integers"
          f" {_IN_WORDS}; {_OLD_VALUES[code]}"
      ),
      compares=(
          "integers: one instruction per element, signed or not as the dtype;"
          " floats: a compare-and-swap loop, since the hardware's drop NaNs;"
          f" {_IN_ORDER}; {small}; {_OLD_VALUES[code]}"
      ),
      bitwise=f"{one}; {_IN_ORDER}; {small}; {_OLD_VALUES[code]}",
      extra=(
          *refused(
              REF_OPERATIONS, "more than 512 elements per thread",
              "make its size a multiple of 32 in warp code, of 128 in warpgroup"
              " code, or work on it in parts",
          ),
          *refused(
              REF_OPERATIONS, "view as a dtype of another width",
              "bitcast the loaded value instead",
          ),
          *refused(
              REF_OPERATIONS, "integer arrays in a view",
              "combine the two indices into one",
          ),
          *(refused(
              REF_OPERATIONS, "multicast view",
              "use plgpu.multimem_store or plgpu.multimem_load_reduce, or"
              " plgpu.remote_ref for each device",
          ) if memory == "GMEM" else ()),
      ),
  )


# ## Pallas Triton


def _pallas_triton() -> list[Row]:
  """The rows of Pallas Triton kernels; delete them with its file of rules."""
  wide = tuple(d for d in INTEGERS if d.endswith(("32", "64")))
  real = (*INTEGERS, *FLOATS)
  words = (*wide, "float32", "float64")
  halves = ("int16", "uint16", "float16", "bfloat16")
  adds = (*words, "float16")
  one = "one instruction per element; a mask predicates it"
  narrow = "keep them in a 32-bit Ref, or lower through Mosaic GPU"
  typed = _rows("Pallas Triton", "GMEM", moves="")

  def row(operations, dtypes, supported, note, forms=INDICES):
    return Row(
        operations, "Pallas Triton", "GMEM", dtypes, forms, supported, note
    )

  def without(dtypes, given):
    return tuple(d for d in dtypes if d not in given)

  plain = ("load", "store", "swap")
  cas = (*words, *halves)
  orders = 'integer arrays, order="index"'
  any_order = 'pass order="any", or use jsx.fetch_* outside the kernel'
  return [
      row(plain, ALL, True,
          "Triton's masked loads and stores, what stock supports as stock does;"
          " swap waits at a barrier of the block"),
      row(("atomic_xchg",), words, True, one),
      row(("atomic_xchg",), without(ALL, words), False, narrow),
      row(("atomic_add",), adds, True, one),
      row(("atomic_add",), without(real, adds), False, narrow),
      row(COMPARES, wide, True, one),
      row(COMPARES, without(("bool", *INTEGERS), wide), False, narrow),
      row(COMPARES, FLOATS, False, "lower through Mosaic GPU"),
      row(BITWISE, wide, True, one),
      row(BITWISE, without(("bool", *INTEGERS), wide), False, narrow),
      row(("atomic_cas",), cas, True, "one instruction per element"),
      row(("atomic_cas",), without(ALL, cas), False, narrow),
      *(r for r in typed if not r.supported),
      row(("atomic_cas",), cas, False,
          "access exactly the elements that are meant, or lower through Mosaic"
          " GPU", ("under a mask",)),
      row(("atomic_xchg",), words, False, any_order, (orders,)),
      row(("atomic_add",), adds, False, any_order, (orders,)),
      row((*COMPARES, *BITWISE), wide, False, any_order, (orders,)),
      row(("atomic_cas",), cas, False, any_order, (orders,)),
      row(plain, ALL, False, "access the next larger one under a mask",
          ("sizes that are no powers of two",)),
      row(plain, ALL, False, "bitcast the value",
          ("views of elements as larger or smaller ones",)),
  ]


# ## TPU kernels

_NARROW_INTEGERS = tuple(
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32)
)
_TENSORCORE = ("bool", *_NARROW_INTEGERS, "bfloat16", "float32", *FLOAT8)
_WORDS = ("int32", "uint32", "float32")
_PACKED = (
    "int8", "uint8", "int16", "uint16", "float16", "bfloat16", *FLOAT8,
)
_PLAIN = ("load", "store", "swap")
_ATOMICS = tuple(o for o in REF_OPERATIONS if o.startswith("atomic_"))


def _meaningful(operations, dtypes):
  """Pairs of operations and dtypes: those on which an operation is defined."""
  floats = (*FLOATS, *FLOAT8)
  for wanted, excluded in (
      (MOVES, ()),
      (("atomic_add",), ("bool", *FLOAT8)),
      (COMPARES, FLOAT8),
      (BITWISE, floats),
  ):
    left = tuple(d for d in dtypes if d not in excluded)
    these = tuple(o for o in operations if o in wanted)
    if left and these:
      yield these, left


def _tpu(place, memory, operations, dtypes, indices, supported, note):
  return [
      Row(these, place, memory, left, indices, supported, note)
      for these, left in _meaningful(operations, dtypes)
  ]


def _tensorcore() -> list[Row]:
  place, half = "TPU TensorCore", (
      "has no float16 vectors; Use bfloat16 or float32, or view the Ref as"
      " int16 with ref.bitcast(jnp.int16)"
  )
  return [
      *_tpu(place, "VMEM", REF_OPERATIONS, _TENSORCORE, INDICES, True,
            "as stock where stock can; a 32-bit element by a masked store of"
            " its row; else one window of tiles is read and rewritten, (8, 128)"
            " elements or 16 or 32 rows of narrower ones: the caller must own"
            " it; integer arrays in row-major order, one row or element after"
            " the other"),
      *_tpu(place, "SMEM", REF_OPERATIONS, _TENSORCORE, INDICES[:-1], True,
            "scalars by the scalar unit; arrays of up to 16 elements one after"
            " the other, longer ones through a copy in VMEM: the caller must"
            " own the Ref"),
      *_tpu(place, "HBM", _PLAIN, _TENSORCORE, INDICES, True,
            "a window of tiles is copied to VMEM or SMEM and back, and the"
            " kernel waits: the caller must own it"),
      *_tpu(place, "HBM", _ATOMICS, _TENSORCORE, INDICES, False,
            "the DMA engine has none; Update a VMEM or SMEM block, or use"
            " fetch_* outside the kernel"),
      *(row for memory in ("VMEM", "SMEM", "HBM")
        for row in _tpu(place, memory, REF_OPERATIONS, ("float16",), INDICES,
                        False, half)),
  ]


def _sparsecore() -> list[Row]:
  vector = "TPU SparseCore, vector subcore"
  scalar = "TPU SparseCore, scalar subcore"
  forms = ("integers", "slices", "pl.ds", "integer arrays")
  arrays = ("slices", "pl.ds")
  words = ("bool", *_WORDS)
  remote = "HBM or VMEM_SHARED"
  return [
      *_tpu(vector, "VMEM", REF_OPERATIONS, words, (*forms, "mixed"), True,
            "indexed loads and stores, lanes under the mask and nothing else;"
            " atomics with integer arrays at once where no position repeats,"
            " else lane after lane; shapes other than the lane count, of up to"
            " two dimensions, need needs_layout_passes=True"),
      *_tpu(vector, "VMEM", REF_OPERATIONS, _PACKED, forms, True,
            "a vector of whole words at once; else one element after the other"
            " through the word that holds it. Under TensorCore tiling Refs of"
            " two dimensions or more, else Refs of at least a vector's length"),
      *(row for memory, operations in (("VMEM", REF_OPERATIONS),
                                       (remote, _PLAIN))
        for form, note in (
            ("one dimension under TensorCore tiling",
             "under TensorCore tiling neighbouring elements lie 128 words"
             " apart; or use a 32-bit Ref"),
            ("with layout passes before jax 0.12",
             "before jax 0.12 the layout passes do not know vectors of words as"
             " such of narrower elements; Set needs_layout_passes=False"),
        )
        for row in _tpu(vector, memory, operations, _PACKED, (form,), False,
                        note)),
      *_tpu(vector, remote, _PLAIN, words, forms, True,
            "neighbours by one stream through VMEM, and back where masked: the"
            " caller must own them; loads at a vector of positions by a"
            " gathering stream; all else by a stream per element"),
      *_tpu(vector, remote, _ATOMICS, (*words, *_PACKED), forms, False,
            "are not atomic against the other subcores; use fetch_* outside"
            " the kernel"),
      *_tpu(vector, remote, _PLAIN, _PACKED, forms, True,
            "the words that hold them pass through VMEM, and go back but of"
            " loads: the caller must own them, and under TensorCore tiling rows"
            " share words. Neighbours by a stream per word, or by one where"
            " they are whole blocks of 32 (of 128 under TensorCore tiling);"
            " others one after the other, as are masked stores that may lie"
            " partly outside. No Refs of one dimension under TensorCore"
            " tiling"),
      *_tpu(vector, "SMEM", REF_OPERATIONS, words, forms, True,
            "by the scalar unit, one vector's elements one after the"
            " other; nobody else writes there"),
      *(row for place in (vector, scalar)
        for row in _tpu(place, "SMEM", REF_OPERATIONS, _PACKED, ("integers",),
                        False, "the scalar unit loads and stores words only;"
                        " Use a 32-bit Ref")),
      *_tpu(scalar, "SMEM", REF_OPERATIONS, words, ("integers",), True,
            "scalars, by the scalar unit; nobody else writes there"),
      *_tpu(scalar, "SMEM", REF_OPERATIONS, words, arrays, False,
            "SMEM holds scalars there; Access one element at a time"),
      *(row for memory in ("HBM", "VMEM_SHARED")
        for row in _tpu(scalar, memory, _PLAIN, _PACKED, ("integers",), False,
                        "its SMEM holds words; Access them from a vector"
                        " subcore, or use a 32-bit Ref")),
      *_tpu(scalar, "HBM", _PLAIN, words, ("integers",), True,
            "the 32 bytes around an element are copied to SMEM and back: the"
            " caller must own them; Refs of one dimension, a multiple of 8"
            " long"),
      *_tpu(scalar, "VMEM_SHARED", ("load",), words, ("integers",), True,
            "a copy of the element in SMEM"),
      *_tpu(scalar, "VMEM_SHARED", ("store", "swap"), words, ("integers",),
            False,
            "no transfer goes from its SMEM there; Write from a vector"
            " subcore"),
      *_tpu(scalar, remote, _PLAIN, words, arrays, False,
            "its SMEM holds scalars; Access one element at a time"),
      *_tpu(scalar, remote, _ATOMICS, words, forms[:-1], False,
            "are not atomic against the other subcores; use fetch_* outside"
            " the kernel"),
  ]


def _tpu_interpreter() -> list[Row]:
  place = "TPU interpret mode"
  return [
      *_tpu(place, "VMEM", REF_OPERATIONS, _TENSORCORE, INDICES, True,
            "one access of the interpreter's buffer and no more, so its race"
            " detection sees what the kernel does"),
      *_tpu(place, "SMEM", REF_OPERATIONS, _TENSORCORE, INDICES[:-1], True,
            "as in VMEM"),
      *_tpu(place, "HBM", _PLAIN, _TENSORCORE, INDICES, True, "as in VMEM"),
      *_tpu(place, "VMEM_SHARED", _PLAIN, ("bool", *_WORDS, *_PACKED), INDICES,
            True, "as in VMEM; the interpreter runs each subcore as number 0,"
            " so kernels with one are what it can test"),
      *_tpu(place, "HBM", _ATOMICS, _TENSORCORE, INDICES, False,
            "a TPU kernel, which has none there; Update a VMEM or SMEM block,"
            " or use fetch_* outside the kernel"),
  ]


def _outside_tpu(memory: str) -> list[Row]:
  place = "outside kernels, TPU"
  wide = tuple(d for d in (*INTEGERS, *FLOATS) if d.endswith("64"))
  words = ("int32", "uint32", "float32")
  narrow = tuple(d for d in ALL if d not in (*wide, *words))
  no_sums = tuple(d for d in narrow if d != "float16")
  slices = "slices: one update in place; integer arrays: "
  loop = f"{slices}XLA's loop, some microseconds per update"
  widened = (
      f"{slices}widened to 32 bits and back, if the table fits in VMEM so"
      " (1 million elements on any TPU, 6 to 12 on later ones); else XLA's loop"
  )

  def row(operations, dtypes, note):
    return _tpu(place, memory, operations, dtypes, INDICES, True, note)

  others = tuple(o for o in _ATOMICS if o != "atomic_add")
  plain = () if memory == "array" else _PLAIN
  return [
      *row(plain, ALL, "XLA's slices, gathers and scatters"),
      *row(_ATOMICS, words,
           f"{slices}a TensorCore kernel, in row-major order; the table is"
           " updated in place, yet passes through VMEM as a whole. XLA's loop"
           " where that costs more: few updates of a huge table, rows of more"
           " than 8192 elements or of more than 1024 where they would be padded"
           " to multiples of 128. On v5p, v6e and tpu7x a SparseCore kernel"
           " instead where the compiler's counts make it look cheaper:"
           " thousands of updates of scalars, and updates of rows of 128 to"
           " 1024 elements (multiples of 128) of a large table, of which"
           " nothing else is read then. unique_indices=True: XLA's gather and"
           " scatter"),
      *row(others, narrow, widened),
      *row(("atomic_add",), no_sums, widened),
      *row(("atomic_add",), ("float16",), f"{loop}: it has no such vectors"),
      *row(_ATOMICS, wide, loop),
      *(r for r in _rows(place, memory, moves="") if not r.supported),
  ]


_ROWS: list[Row] = [
    *_rows(
        "outside kernels, CPU", "array",
        moves="slices: one update in place; integer arrays: one native loop in"
        " place, in row-major order",
    ),
    *_rows(
        "outside kernels, CPU", "Ref",
        moves="as on arrays; the Ref's buffer is updated in place",
    ),
    *_gpu_arrays("array"),
    *_gpu_arrays("Ref"),
    *_outside_tpu("array"),
    *_outside_tpu("Ref"),
    *_rows(
        "interpret=True", "any",
        moves="as outside kernels on CPU; repeated indices count every time",
    ),
    *_mosaic_gpu("warp", "SMEM"),
    *_mosaic_gpu("warp", "GMEM"),
    *_mosaic_gpu("warpgroup", "SMEM"),
    *_mosaic_gpu("warpgroup", "GMEM"),
    Row(
        (*MOVES, "atomic_add", *COMPARES), "Mosaic GPU, warpgroup code",
        "TMEM", ("float32",),
        INDICES, False,
        "use plgpu.async_load_tmem and plgpu.async_store_tmem",
    ),
    *_rows(
        "GPU interpreter", "any",
        moves="element after element in row-major order, under the lock of the"
        " simulated memory; bounds are checked, races reported on demand",
    ),
    *_pallas_triton(),
    *_tensorcore(),
    *_sparsecore(),
    *_tpu_interpreter(),
]
