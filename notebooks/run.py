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
"""Runs the notebooks: `python notebooks/run.py [--store] [NAME...]`.

A notebook is a pair: the .py file is what people write and review, the .ipynb
file has the same cells and what they printed and drew. All are run from their
.py files, each in a kernel of its own. The first cell that raises, or writes a
warning, ends the run with status 1. `--store` writes the .ipynb files.
"""

import argparse
import pathlib
import time

import jupytext
import matplotlib.font_manager  # noqa: F401  Says that it builds a cache, once.
import nbclient
import nbformat

FOLDER = pathlib.Path(__file__).parent
NAMES = sorted({path.stem for path in FOLDER.glob("*.py")} - {"run"})
CELL_SECONDS = 300
METADATA = {
    "jupytext": {"formats": "ipynb,py:percent"},
    "kernelspec": {
        "display_name": "Python 3", "language": "python", "name": "python3",
    },
    "language_info": {"name": "python"},
}


def run(name: str) -> nbformat.NotebookNode:
  """Runs one notebook.

  Args:
    name: one of `NAMES`.

  Returns:
    The notebook with its outputs.

  Raises:
    CellExecutionError: a cell raised.
    RuntimeError: a cell wrote to stderr.
  """
  notebook = jupytext.read(FOLDER / f"{name}.py")
  notebook.metadata = nbformat.from_dict(METADATA)
  for number, cell in enumerate(notebook.cells):
    cell.id = f"cell-{number}"  # The same in every run.
  nbclient.NotebookClient(
      notebook, timeout=CELL_SECONDS, record_timing=False,
      coalesce_streams=True, extra_arguments=["--log-level=ERROR"],
      resources={"metadata": {"path": str(FOLDER)}},
  ).execute()
  # What ran it, in which version, is no part of the notebook.
  notebook.metadata = nbformat.from_dict(METADATA)
  for cell in notebook.cells:
    for output in cell.get("outputs", ()):
      if output.get("name") == "stderr":
        raise RuntimeError(f"{name}, {cell.id} warns:\n{output.text}")
  return notebook


def main():
  parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
  parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME")
  parser.add_argument("--store", action="store_true", help="write the outputs")
  args = parser.parse_args()
  for name in args.names:
    start = time.perf_counter()
    notebook = run(name)
    if args.store:
      nbformat.write(notebook, FOLDER / f"{name}.ipynb")
    print(f"{name:26}{time.perf_counter() - start:6.0f} s", flush=True)


if __name__ == "__main__":
  main()
