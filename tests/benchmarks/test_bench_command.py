"""The benchmarks are run from a checkout: each has its flags, some need only torch and numpy."""

import ast
import importlib
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from benchmarks import step

ROOT = Path(__file__).resolve().parents[2]
ON_A_GPU_MACHINE = ("head", "fused", "slices", "partial_fc", "overhead")
NAMES = (*ON_A_GPU_MACHINE, "loader", "step", "evaluate", "ranks", "shallow")
EXTRAS = ("typer", "rich", "sklearn", "scipy", "pandas", "matplotlib", "PIL", "onnx", "pytorch_metric_learning")


@pytest.mark.parametrize("name", NAMES)
def test_help_has_the_examples(name, bench):
    code, out, _ = bench(importlib.import_module(f"benchmarks.{name}"), "--help")
    assert code == 0
    assert "benchmarks/results without it" in " ".join(out.split())
    examples = out.split("examples:\n")[1].splitlines()
    assert len(examples) > 1
    assert all(line.startswith(f"  python -m benchmarks.{name}") for line in examples)


@pytest.mark.parametrize("name", NAMES)
def test_every_example_is_a_command_line_that_is_understood(name, bench, monkeypatch):
    """Up to the measuring, which is left out."""
    module = importlib.import_module(f"benchmarks.{name}")
    asked = []
    _, out, _ = bench(module, "--help")
    monkeypatch.setattr(module, "run", lambda *given, **flags: asked.append((given, flags)))
    monkeypatch.setattr(module, "as_markdown", lambda result: "the tables")
    examples = out.split("examples:\n")[1].splitlines()
    for example in examples:
        code, out, err = bench(module, *shlex.split(example)[3:])
        assert (code, out, err) == (0, "the tables\n", "")
    assert len(asked) == len(examples)


def test_a_number_that_is_too_small_or_none_is_refused(bench):
    for given, words in (
        ("0", "argument --rounds: must be at least 1; got 0."),
        ("x", "must be a whole number; got 'x'."),
    ):
        code, _, err = bench(step, "--rounds", given)
        assert code == 2
        assert words in " ".join(err.split())


def test_torch_and_numpy_are_enough_on_a_gpu_machine(tmp_path):
    """With every other package out of reach, these are imported and one of them measures."""
    code = f"""
import importlib, sys
sys.modules.update(dict.fromkeys({EXTRAS!r}))  # None: importing it fails
for name in {ON_A_GPU_MACHINE!r}:
    importlib.import_module("benchmarks." + name)
from benchmarks import partial_fc
partial_fc.SEEDS, partial_fc.RATES = (1,), (0.1,)
partial_fc.main(["--classes", "600", "--steps", "1", "--draws", "2", "--out", sys.argv[1]])
"""
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert "# Partial FC" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["partial-fc.json", "partial-fc.md"]


def test_the_wheel_has_the_package_alone():
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]
    assert build["targets"]["wheel"] == {"packages": ["src/hypermargin"]}
    assert not (ROOT / "src" / "hypermargin" / "bench").exists()


def test_the_package_imports_no_benchmark():
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] == "benchmarks" for name in names), path


@pytest.mark.parametrize("arguments", [(), ("head", "--rows", "256", "--classes", 20_000), ("shallow", "--quick")])
def test_hypermargin_bench_says_where_they_are(run, arguments):
    code, out, err = run("bench", *arguments)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert "a checkout of the repository: python -m benchmarks.NAME" in err
