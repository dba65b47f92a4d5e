"""The benchmark of what a call costs: the walk is the one made, and each checkout is measured by its own code."""

import json
import shutil
import sys
import types
from pathlib import Path

import pytest

from benchmarks import overhead, overhead_probe

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Two files: `outer` calls json, and twice `Inner.method`, which runs a generator to its end."""
    folder = tmp_path / "walked"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "import json\n"
        "from walked.inner import Inner\n"
        "def outer(a, b=1, *rest, c=2, **more):\n"
        "    json.dumps([a], indent=1)\n"
        "    return Inner().method(a) + Inner().method(b)\n"
    )
    (folder / "inner.py").write_text(
        "class Inner:\n"
        "    def method(self, a):\n"
        "        return sum(self.three())\n"
        "    def three(self):\n"
        "        yield 1\n"
        "        yield 2\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("walked", "walked.inner"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import walked

    yield walked, folder
    for name in ("walked", "walked.inner"):
        sys.modules.pop(name, None)


def test_the_walk_is_every_call_of_the_package_in_order(package):
    walked, folder = package
    found = overhead_probe.walk(lambda: walked.outer(1), folder)
    assert [(step["depth"], step["function"], step["file"]) for step in found["steps"]] == [
        (0, "outer", "walked/__init__.py"),
        (1, "Inner.method", "walked/inner.py"),
        (2, "Inner.three", "walked/inner.py"),
        (1, "Inner.method", "walked/inner.py"),
        (2, "Inner.three", "walked/inner.py"),
    ]
    assert (found["files"], found["functions"], found["calls"]) == (2, 3, 5)
    assert found["python_calls"] > 5  # json's too
    assert (found["most_parameters"], found["most_parameters_of"]) == (5, "outer")
    assert found["mean_parameters"] == pytest.approx((5 + 1 + 0) / 3)


def test_a_peer_that_does_something_else_is_refused(monkeypatch):
    monkeypatch.setattr(overhead_probe, "M", 0.4)
    with pytest.raises(RuntimeError, match="they do not do the same"):
        overhead_probe.Case(8, 5, 4)


def test_medians_and_ratios_follow_from_the_rounds():
    def one(head, textbook, ms):
        us = {which: {"head": head, "textbook": textbook} for which in overhead.PASSES}
        return {"import": {"version": "1", "ms": ms}, "cases": [{"rows": 8, "us": us}]}

    found = overhead.summary([one(6.0, 2.0, 50.0), one(10.0, 2.0, 40.0), one(8.0, 2.0, 60.0)])
    us = found["cases"][0]["us"]["forward"]
    assert us == {"head": [6.0, 10.0, 8.0], "textbook": [2.0, 2.0, 2.0], "to_textbook": 4.0}
    assert found["import"]["ms"] == [50.0, 40.0, 60.0]


def test_a_folder_that_is_no_checkout_is_refused(bench, tmp_path):
    code, _, err = bench(overhead, "--before", tmp_path)
    assert code == 2
    assert "--before must be a checkout of hypermargin" in " ".join(err.split())


@pytest.mark.slow
def test_an_older_checkout_is_measured_by_its_own_code(bench, tmp_path):
    """A copy whose head takes one function more."""
    older, out = tmp_path / "older", tmp_path / "out"
    shutil.copytree(ROOT / "src", older / "src", ignore=shutil.ignore_patterns("__pycache__"))
    start = older / "src" / "hypermargin" / "__init__.py"
    version = start.with_name("version.py")
    version.write_text(version.read_text().replace('__version__ = "', '__version__ = "older than '))
    start.write_text(
        start.read_text()
        + "\n\ndef _detour(forward):\n    return lambda *given: forward(*given)\n\n\n"
        + "MarginHead.forward = _detour(MarginHead.forward)\n"
    )
    code, printed, _ = bench(overhead, "--before", older, "--rounds", 1, "--calls", 2, "--out", out)
    assert code == 0
    result = json.loads((out / "overhead-cpu.json").read_text())
    assert (out / "overhead-cpu.md").read_text() == overhead.as_markdown(result) == printed[:-1]
    assert str(tmp_path) not in (out / "overhead-cpu.json").read_text()  # nor any path of this machine
    before, now = (result["checkouts"][name] for name in ("before", "now"))
    assert before["version"].startswith("older than ")
    assert len(before["cases"]) == len(now["cases"]) == 2
    for old, new in zip(before["cases"], now["cases"], strict=True):
        assert old["walk"]["steps"][0]["function"] == "_detour.<locals>.<lambda>"
        assert new["walk"]["steps"][0]["function"] == "MarginHead.forward"
        assert old["walk"]["calls"] == new["walk"]["calls"] + 1
    assert now["import"]["own_modules"] <= now["import"]["modules"]
    assert result["environment"]["threads"] == "1"
    assert {"torch", "date", "device"} <= set(result["environment"])


def test_another_package_than_the_checkout_s_is_refused(tmp_path, monkeypatch):
    answer = {"import": {"package": str(tmp_path / "elsewhere" / "hypermargin")}, "cases": []}
    done = types.SimpleNamespace(returncode=0, stdout=json.dumps(answer), stderr="")
    monkeypatch.setattr(overhead.subprocess, "run", lambda *_, **__: done)
    with pytest.raises(RuntimeError, match="but Python imports the one in"):
        overhead.probe(ROOT, 1)
