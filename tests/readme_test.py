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
"""README.md: its code runs, prints what it says, and names what exists."""

import contextlib
import io
import pathlib
import re
import tomllib

from absl.testing import absltest

ROOT = pathlib.Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
# Language and text of each block of code.
BLOCK = re.compile(r"(?ms)^```(\w*)\n(.*?)^```$")
BLOCKS = BLOCK.findall(README)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


class ReadmeTest(absltest.TestCase):

  def test_every_block_is_tested(self):
    self.assertSameElements({"python", "sh"}, {lang for lang, _ in BLOCKS})
    # Nor is there code in a form that the pattern does not find.
    self.assertNotRegex(BLOCK.sub("", README), r"(?m)^(    |\t|```|~~~)")

  def test_python_prints_what_it_says(self):
    code = "\n".join(text for lang, text in BLOCKS if lang == "python")
    stdout = io.StringIO()
    # Later blocks go on where earlier ones ended, as for a reader.
    with contextlib.redirect_stdout(stdout):
      exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    said = re.findall(r"(?m)^print\(.*\)  # (.*)$", code)
    self.assertNotEmpty(said)
    self.assertSequenceEqual(stdout.getvalue().splitlines(), said)

  def test_commands_exist(self):
    makefile = (ROOT / "Makefile").read_text()
    for lang, text in BLOCKS:
      for line in text.splitlines() if lang == "sh" else ():
        match line.partition("#")[0].split():
          case ["make", target]:
            self.assertRegex(makefile, rf"(?m)^{target}:")
          case ["pip", "install", what]:
            extra = re.fullmatch(r"\.|'\.\[(\w+)\]'", what)[1]
            self.assertIn(extra, [None, *PROJECT["optional-dependencies"]])
          case words:
            self.fail(f"No test for the command {words}")

  def test_floors(self):
    python = PROJECT["requires-python"].removeprefix(">=")
    self.assertIn(f"Python >= {python}", README)
    [jax] = [d for d in PROJECT["dependencies"] if d.startswith("jax>=")]
    self.assertIn(jax.replace(">=", " >= "), README)


if __name__ == "__main__":
  absltest.main()
