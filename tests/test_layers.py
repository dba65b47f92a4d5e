"""The layers of the package, read from its imports: the core computes losses, the application stands on it.

Imports inside functions count as much as those of a module: a package that needs another needs it, early or late.
Imports for type checkers alone do not count.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import hypermargin

ROOT = Path(hypermargin.__file__).parent
APPLICATION = {
    "advise", "cli", "common", "compare", "data", "deploy", "estimator", "evaluate", "heads", "integrations",
    "plots", "training",
}  # fmt: skip
OWN = "hypermargin"
MOST_MODULES = 85  # one file per paper, in margins, rules and views


class Import(NamedTuple):
    """One import: which module has it, which it names, in which line, and whether inside a function."""

    by: str
    name: str
    line: int
    late: bool

    def __str__(self) -> str:
        return f"{self.by}:{self.line} imports {self.name}{' in a function' if self.late else ''}"


def read_modules() -> dict[str, Path]:
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = read_modules()


def read_imports(name: str) -> list[Import]:
    """All imports of a module, each with the longest name that is one of ours; those for type checkers left out."""
    found: list[Import] = []

    def walk(node: ast.AST, late: bool) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.orelse:
                walk(child, late)
            return
        if isinstance(node, ast.Import):
            found.extend(Import(name, alias.name, node.lineno, late) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}:{node.lineno} is a relative import: name the module."
            assert node.module is not None
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found.append(Import(name, whole if whole in MODULES else node.module, node.lineno, late))
        inner = late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            walk(child, inner)

    walk(ast.parse(MODULES[name].read_text(encoding="utf-8")), False)
    return found


IMPORTS = {name: read_imports(name) for name in MODULES}
FACADE = (OWN, f"{OWN}.__main__")  # over both layers


def room(module: str) -> str:
    """The package of the application that a module is in, or "core"."""
    first = f"{module}.".split(".")[1]
    return first if first in APPLICATION else "core"


def ours() -> list[Import]:
    """Imports of our own modules by our own modules, the facade's left out."""
    every = [each for name in MODULES if name not in FACADE for each in IMPORTS[name]]
    return [each for each in every if each.name.split(".")[0] == OWN]


def listed(found: list[Import]) -> str:
    return "\n".join(map(str, found))


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """A way round for every node that can reach itself, shortest first."""
    found = []
    for start in sorted(graph):
        ways = {start: [start]}
        queue = [start]
        for here in queue:
            for there in sorted(graph.get(here, ())):
                if there == start:
                    found.append([*ways[here], start])
                if there not in ways:
                    ways[there] = [*ways[here], there]
                    queue.append(there)
    return sorted(found, key=len)


def test_the_readers_see_what_is_there(tmp_path, monkeypatch):
    path = tmp_path / "example.py"
    path.write_text(
        "from typing import TYPE_CHECKING\nimport torch\n"
        "if TYPE_CHECKING:\n    import pandas\nelse:\n    import json\n"
        "class A:\n    import csv\n    def f(self):\n        from hypermargin import head, load\n"
    )
    monkeypatch.setitem(MODULES, "example", path)
    names = [(each.name, each.late) for each in read_imports("example")]
    assert names == [
        ("typing", False), ("torch", False), ("json", False), ("csv", False),
        ("hypermargin.head", True), ("hypermargin", True),
    ]  # fmt: skip
    assert cycles({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert cycles({"a": {"b"}, "b": {"a", "c"}, "c": {"a"}})[0] == ["a", "b", "a"]


def test_every_package_is_in_a_layer():
    core = {"backends", "margins", "parallel", "rules", "views"}
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages <= core | APPLICATION
    assert packages >= APPLICATION


def test_the_core_imports_nothing_of_the_application():
    found = [each for each in ours() if room(each.by) == "core" and room(each.name) != "core"]
    assert not found, listed(found)


def test_the_core_imports_torch_and_numpy_alone():
    allowed = {OWN, "torch", "numpy", *sys.stdlib_module_names}
    found = [
        each
        for name, imports in IMPORTS.items()
        if name not in FACADE and room(name) == "core"
        for each in imports
        if each.name.split(".")[0] not in allowed
        and not (each.name.split(".")[0] == "triton" and name.startswith(f"{OWN}.backends.fused"))
    ]
    assert not found, listed(found)


def test_nobody_imports_the_facade():
    """Names are imported from where they are defined: through the package, everything would need everything."""
    found = [each for each in ours() if each.name == OWN]
    assert not found, listed(found)


def test_no_cycle_between_packages():
    graph: dict[str, set[str]] = {}
    for each in ours():
        if room(each.by) != room(each.name):
            graph.setdefault(room(each.by), set()).add(room(each.name))
    assert not cycles(graph), cycles(graph)


def test_no_cycle_between_modules_of_the_application():
    """Stricter, so that a package and its own subpackages are told apart: compare and compare.report, say."""
    graph: dict[str, set[str]] = {}
    for each in ours():
        if room(each.by) != "core" and room(each.name) != "core" and each.by != each.name:
            graph.setdefault(each.by, set()).add(each.name)
    assert not cycles(graph), cycles(graph)


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def loaded() -> list[str]:
    return run("import sys, hypermargin; print(*sys.modules)").split()


def test_import_loads_few_modules(loaded):
    mine = [name for name in loaded if name.split(".")[0] == OWN]
    assert len(mine) <= MOST_MODULES, mine


def test_import_loads_nothing_of_the_application(loaded):
    early = [name for name in loaded if name.startswith(f"{OWN}.") and room(name) != "core"]
    assert not early, early


def test_every_public_name_resolves():
    """In a fresh process, where nothing else has imported the application before."""
    code = """
import hypermargin
listed = dir(hypermargin)
for name in hypermargin.__all__:
    assert name in listed, name
    assert getattr(hypermargin, name) is getattr(hypermargin, name)
from hypermargin import *
print(training.load is load, estimator.MarginSoftmaxClassifier is MarginSoftmaxClassifier)
"""
    assert run(code) == "True True\n"
    assert sorted(set(hypermargin.__all__)) == sorted(hypermargin.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'hypermargin' has no attribute 'lode'"):
        _ = hypermargin.lode
    with pytest.raises(ImportError, match="cannot import name 'lode'"):
        exec("from hypermargin import lode")
    assert not hasattr(hypermargin, "lode")


def test_type_checkers_see_what_is_imported_later():
    """The names under TYPE_CHECKING are those that `__getattr__` knows: editors complete all of them."""
    tree = ast.parse(MODULES[OWN].read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == set(hypermargin._LATER)
    assert seen <= set(hypermargin.__all__)
