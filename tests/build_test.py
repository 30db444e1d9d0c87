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
"""BUILD has what the tree has: each file, each test, each import."""

import ast
import pathlib
import re
import sys
import tomllib

from absl.testing import absltest
from absl.testing import parameterized

ROOT = pathlib.Path(__file__).resolve().parents[1]
TESTS = sorted(path.stem for path in (ROOT / "tests").glob("*_test.py"))
TIMEOUTS = {"small": "short", "medium": "moderate", "large": "long"}
# Loaded in child processes, by name.
COMPILERS = {"jax_cuda13_plugin", "libtpu"}


def _evaluate():
  """The targets of BUILD by name, and its tables: Starlark is Python's."""
  targets = {}

  def rule(kind):
    def declare(name, **attributes):
      if name in targets:
        raise ValueError(f"{name} is declared twice")
      targets[name] = attributes | {"kind": kind}

    return declare

  def glob(include, exclude=()):
    found = {str(path.relative_to(ROOT))
             for pattern in include for path in ROOT.glob(pattern)}
    for pattern in exclude:
      found -= {str(path.relative_to(ROOT)) for path in ROOT.glob(pattern)}
    return sorted(found)

  scope = {name: lambda *_, **__: None
           for name in ("exports_files", "licenses", "load", "package")}
  scope |= {name: rule(name) for name in ("py_library", "py_test")}
  exec((ROOT / "BUILD").read_text(), tables := scope | {"glob": glob})
  return targets, tables


TARGETS, TABLES = _evaluate()
LIBRARIES = [n for n, t in TARGETS.items() if t["kind"] == "py_library"]


def _reaches(target):
  """Modules of the tree and packages that a target has, by its deps too."""
  modules, packages = set(), set()
  for src in TARGETS[target]["srcs"]:
    folder, *rest = pathlib.PurePath(src).with_suffix("").parts
    modules.add(rest[0] if folder == "tests" else folder)
  for dep in TARGETS[target]["deps"]:
    if dep.startswith("@pypi//"):
      packages.add(dep.removeprefix("@pypi//"))
    else:
      below = _reaches(dep.removeprefix(":"))
      modules |= below[0]
      packages |= below[1]
  return modules, packages


def _imports(target):
  """What a target's files import: modules of the tree, and packages."""
  names = set()
  for src in TARGETS[target]["srcs"]:
    for node in ast.walk(ast.parse((ROOT / src).read_text())):
      match node:
        case ast.Import():
          names |= {alias.name.partition(".")[0] for alias in node.names}
        case ast.ImportFrom(level=0):
          names.add(node.module.partition(".")[0])
  names -= sys.stdlib_module_names
  ours = {n for n in names if n == "jax_swapext"
          or (ROOT / "tests" / f"{n}.py").exists()
          or (ROOT / "tests" / n).is_dir()}
  return ours, {{"absl": "absl_py"}.get(n, n) for n in names - ours}


class BuildTest(parameterized.TestCase):

  @parameterized.parameters(*TESTS)
  def test_every_test_file_is_a_test(self, name):
    test = TARGETS[name]
    self.assertEqual(test["kind"], "py_test")
    self.assertEqual(test["srcs"], [f"tests/{name}.py"])
    self.assertEqual(test["main"], f"tests/{name}.py")
    self.assertEqual(test["timeout"], TIMEOUTS[test["size"]])

  def test_nothing_else_is_a_test(self):
    tests = {n for n, t in TARGETS.items() if t["kind"] == "py_test"}
    self.assertSetEqual(tests, set(TESTS))
    for table in ("DATA", "DEPS", "SIZES"):
      with self.subTest(table):
        self.assertContainsSubset(TABLES[table], TESTS)

  def test_every_file_is_in_a_target(self):
    sources = [s for target in TARGETS.values() for s in target["srcs"]]
    files = [str(path.relative_to(ROOT)) for folder in ("jax_swapext", "tests")
             for path in (ROOT / folder).rglob("*.py")]
    self.assertCountEqual(sources, files)

  def test_data_exists(self):
    for name, target in TARGETS.items():
      for path in target.get("data", ()):
        with self.subTest(name, path=path):
          self.assertTrue((ROOT / path).is_file())

  def test_the_library_needs_what_the_project_does(self):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = [re.match(r"[\w-]+", d)[0] for d in project["dependencies"]]
    self.assertCountEqual(
        TARGETS["jax_swapext"]["deps"],
        [f"@pypi//{n.replace('-', '_')}" for n in names],
    )
    module = (ROOT / "MODULE.bazel").read_text()
    floor = project["requires-python"].removeprefix(">=")
    self.assertEqual(
        set(re.findall(r'python_version = "(.*)"', module)), {floor}
    )

  @parameterized.parameters(*TARGETS)
  def test_packages_are_locked(self, name):
    lock = (ROOT / "requirements_lock.txt").read_text()
    locked = {n.replace("-", "_") for n in re.findall(r"(?m)^([\w-]+)==", lock)}
    self.assertContainsSubset(_reaches(name)[1], locked)

  @parameterized.parameters(*(n for n in TARGETS if n != "jax_swapext"))
  def test_what_is_imported_is_there(self, name):
    modules, packages = _reaches(name)
    ours, theirs = _imports(name)
    self.assertContainsSubset(ours, modules)
    self.assertContainsSubset(theirs, packages)

  @parameterized.parameters(*(
      n for n in TABLES["DEPS"] if ":test_support" not in TARGETS[n]["deps"]
  ))
  def test_lean_tests_import_what_they_have(self, name):
    own = {d.removeprefix("@pypi//") for d in TARGETS[name]["deps"]}
    _, theirs = _imports(name)
    self.assertSetEqual(own - COMPILERS - {":jax_swapext"}, theirs)

  @parameterized.parameters(*TESTS)
  def test_runs_without_pytest(self, name):
    # Marks mean nothing to absltest; all else of pytest's does.
    tree = ast.parse((ROOT / "tests" / f"{name}.py").read_text())
    used = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)
            and isinstance(n.value, ast.Name) and n.value.id == "pytest"}
    self.assertLessEqual(used, {"mark"})
    loose = [n.name for n in tree.body if isinstance(n, ast.FunctionDef)
             and n.name.startswith("test")]
    self.assertEmpty(loose)


if __name__ == "__main__":
  absltest.main()
