"""The benchmark: every contender computes the same gradient, absent peers are listed, files are whole."""

import json
import subprocess
import sys

import pytest
import torch

from hypermargin.bench import head
from hypermargin.bench.contenders import CONTENDERS, Contender, Problem

RUNNABLE = [c for c in CONTENDERS if not c.absent("cpu") and "compile" not in c.name]


@pytest.mark.parametrize("contender", RUNNABLE, ids=lambda c: c.name)
def test_every_contender_computes_the_gradient_it_is_timed_for(contender):
    error = head.gradient_error(contender, Problem(rows=6, classes=40, dim=8))
    if contender.name.endswith("(L-Softmax)"):
        assert error is None  # another loss
    elif "10 %" in contender.name:
        assert error > 0.1  # a sample of the classes is another gradient
    else:
        assert error < 1e-5


def test_absent_peers_are_listed_with_the_reason(capsys):
    result = head.run(4, 30, 5, rounds=1, only="cut", say=lambda text: None)
    assert "| cut-cross-entropy (no margin) | needs a GPU |" in head.as_markdown(result)


def test_a_contender_that_runs_out_of_memory_is_listed_and_the_others_go_on(monkeypatch):
    def exhausted(problem):
        def loss():
            raise torch.OutOfMemoryError("CUDA out of memory")

        return loss

    chunked = next(c for c in CONTENDERS if c.name == "hypermargin chunked")
    monkeypatch.setattr(head, "CONTENDERS", [Contender("greedy", exhausted), chunked])
    result = head.run(4, 30, 5, rounds=2, say=lambda text: None)
    text = head.as_markdown(result)
    assert "| greedy | out of memory |" in text
    assert next(r for r in result["table"] if r["name"] == "hypermargin chunked")["median"] > 0


def test_the_command_writes_whole_files(tmp_path):
    arguments = [
        "bench",
        "head",
        "--rows",
        "4",
        "--classes",
        "60",
        "--dim",
        "5",
        "--rounds",
        "1",
        "--growth-to",
        "10000",
    ]
    arguments += ["--only", "hypermargin chunked", "--out", str(tmp_path)]
    run = subprocess.run(
        [sys.executable, "-m", "hypermargin.cli", *arguments], capture_output=True, text=True, check=True
    )
    assert "| hypermargin chunked |" in run.stdout
    (stored,) = tmp_path.glob("*.json")
    result = json.loads(stored.read_text())
    assert result["environment"]["torch"] == torch.__version__
    assert result["environment"]["date"]
    row = next(r for r in result["table"] if r["name"] == "hypermargin chunked")
    assert row["median"] > 0
    assert row["error"] < 1e-5
    assert row["memory"] is None or row["memory"] >= 0  # None where there is no /proc
    assert result["growth"][0]["classes"] == 10_000
    assert {p.suffix for p in tmp_path.iterdir()} == {".json", ".md"}


def test_the_picture_shows_every_curve(tmp_path):
    from hypermargin.bench.plot import plot_sweep

    sweep = [
        {"name": name, "classes": c, "min": 1e-3 * c, "memory": 1000 * c}
        for name in ("hypermargin chunked", "peer")
        for c in (100, 1000)
    ]
    problem = {"rows": 4, "dim": 5, "precision": "float32"}
    plot_sweep({"problem": problem, "sweep": sweep, "environment": {"device": "test"}}, tmp_path / "x.svg")
    text = (tmp_path / "x.svg").read_text()
    assert all(word in text for word in ("hypermargin chunked", "peer", "dW alone", "N = 4"))
