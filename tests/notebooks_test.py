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
"""The notebooks as they are stored: pairs that agree, with clean outputs.

Whether they still run is for `make notebooks` to say.
"""

import importlib.util
import json
import pathlib
import re
import subprocess
import sys
import tomllib
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jupytext
import nbformat

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = ROOT / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# A file on the machine that ran them, and no URL, closing tag or a/b/c.
MACHINE = re.compile(r"(?<![\w.:/<])/\w[\w.-]*/\w|[A-Z]:\\\w")


def stored(name):
  return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def code(notebook):
  return [cell for cell in notebook.cells if cell.cell_type == "code"]


def texts(cell):
  """What a cell printed or returned, but for pictures."""
  for output in cell.outputs:
    if output.output_type == "stream":
      yield output.text
    else:
      for kind, value in output.data.items():
        if kind != "image/png":
          yield value


class NotebooksTest(parameterized.TestCase):

  def test_there_are_pairs(self):
    scripts = {path.stem for path in FOLDER.glob("*.py")} - {"run"}
    self.assertSetEqual(scripts, set(NAMES))
    self.assertLen(NAMES, 4)

  @parameterized.parameters(*NAMES)
  def test_pairs_agree(self, name):
    cells = lambda notebook: [(c.cell_type, c.source) for c in notebook.cells]
    source = jupytext.read(FOLDER / f"{name}.py")
    self.assertSequenceEqual(cells(source), cells(stored(name)))

  @parameterized.parameters(*NAMES)
  def test_is_valid(self, name):
    nbformat.validate(stored(name))
    license_header = pathlib.Path(__file__).read_text().split('"""')[0]
    self.assertStartsWith((FOLDER / f"{name}.py").read_text(), license_header)

  @parameterized.parameters(*NAMES)
  def test_title_and_badge(self, name):
    title = stored(name).cells[1]
    self.assertStartsWith(title.source, "# ")
    repository = PROJECT["urls"]["Repository"].removeprefix("https://")
    colab = "https://colab.research.google.com"
    self.assertIn(
        f"[![Open In Colab]({colab}/assets/colab-badge.svg)]"
        f"({colab}/{repository.replace('.com', '')}/blob/main/notebooks/"
        f"{name}.ipynb)",
        title.source,
    )

  @parameterized.product(name=NAMES, installed=(True, False))
  def test_install_cell(self, name, installed):
    cell = code(stored(name))[1]
    found = importlib.util.find_spec("jax_swapext") if installed else None
    with (
        mock.patch.object(importlib.util, "find_spec", return_value=found),
        mock.patch.object(subprocess, "run") as run,
    ):
      exec(cell.source, {})
    if installed:
      run.assert_not_called()
      return
    [((command,), options)] = run.call_args_list
    self.assertEqual(command[:4], [sys.executable, "-m", "pip", "install"])
    self.assertEqual(options, {"check": True})
    [ours] = [c for c in command if c.startswith(PROJECT["name"])]
    extras = re.findall(r"\[(\w+)\]", ours)
    self.assertContainsSubset(extras, PROJECT["optional-dependencies"])

  @parameterized.parameters(*NAMES)
  def test_outputs(self, name):
    cells = code(stored(name))
    self.assertSequenceEqual(
        [cell.execution_count for cell in cells], range(1, len(cells) + 1)
    )
    outputs = [output for cell in cells for output in cell.outputs]
    self.assertTrue(any("image/png" in o.get("data", ()) for o in outputs))
    for output in outputs:
      self.assertNotEqual(output.output_type, "error")
      self.assertNotEqual(output.get("name"), "stderr")
    for cell in cells:
      if "print(" in cell.source and "def " not in cell.source:
        self.assertNotEmpty(cell.outputs, cell.source)

  @parameterized.parameters(*NAMES)
  def test_nothing_of_the_machine(self, name):
    notebook = stored(name)
    for cell in code(notebook):
      for text in texts(cell):
        self.assertNotRegex(text, MACHINE)
    self.assertNotIn("version", json.dumps(notebook.metadata))

  @parameterized.parameters(
      ("/home/me/x.py", True),
      ('File "/usr/lib/x"', True),
      ("('/root/x')", True),
      ("C:\\x", True),
      ("https://jax.dev/en/x", False),
      ("</td></tr>", False),
      ("load/store/swap", False),
  )
  def test_machine_is_recognised(self, text, is_path):
    self.assertEqual(bool(MACHINE.search(text)), is_path)

  @parameterized.parameters("README.md", "docs/index.md")
  def test_are_linked(self, page):
    text = (ROOT / page).read_text()
    for name in NAMES:
      self.assertIn(f"notebooks/{name}.ipynb", text)


if __name__ == "__main__":
  absltest.main()
