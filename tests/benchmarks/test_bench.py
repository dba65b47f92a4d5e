"""The benchmark: every contender computes the same gradient, absent peers are listed, files are whole."""

import json
import subprocess

import pytest
import torch

from benchmarks import fused, fused_tables, head, measure, slices
from benchmarks.contenders import CONTENDERS, Contender, Problem

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


def test_other_processes_are_busy_while_times_are_taken(monkeypatch):
    started, start = [], subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *given: started.append(start(*given)) or started[-1])
    with measure.busy(2):
        assert [each.poll() for each in started] == [None, None]
    assert all(each.poll() is not None for each in started)


@pytest.mark.slow
def test_several_contenders_are_asked_for_with_commas_and_triton_says_why_it_is_absent(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    result = head.run(4, 30, 5, rounds=1, only="within 480, chunked", say=lambda text: None)
    names = [row["name"] for row in result["table"][1:]]
    assert all("within 480" in name or "chunked" in name for name in names)
    assert len(names) == 4
    reasons = {row["absent"] for row in result["table"] if "triton" in row["name"]}
    assert len(reasons) == 1
    assert "Triton" in str(reasons) or "NVIDIA" in str(reasons)
    assert result["psi"]  # as a share of the first of ours that ran


def test_the_fused_backend_s_model_counts_every_product():
    N, C, d = 1024, 100_000, 512
    for kept, products in ((C, 6), (0, 8)):
        assert sum(flops for flops, _ in fused.model(N, C, d, kept).values()) == products * N * C * d


def test_the_reference_of_some_rows_is_the_gradient_of_all(monkeypatch):
    monkeypatch.setattr(fused, "PIECE", 17)
    p = Problem(6, 60, 8, dtype=torch.float64)
    x, W = p.x.detach(), p.W.detach()
    picked = torch.cat([p.y[:3], torch.tensor([c for c in range(60) if c not in p.y][:4])])
    loss, rows = fused.exact_rows(x, W, p.y, picked)
    whole = fused.exact(x, p.W, p.y)
    (gradient,) = torch.autograd.grad(whole, p.W)
    assert loss == pytest.approx(whole.item(), rel=1e-12)
    torch.testing.assert_close(rows, gradient[picked], rtol=1e-9, atol=1e-15)


def test_the_fused_table_has_every_section():
    row = {"name": "one pass", "min": 0.01, "median": 0.011, "to_floor": 1.2, "beyond": 2**30}
    bare = row | {"name": fused.FLOOR, "beyond": None}
    kernel = {"name": "scores", "launches": 2.0, "seconds": 0.002, "flops": 10**12, "bytes": 2 * 10**9}
    rest = {"name": "the rest, 9 kernels", "launches": 12.0, "seconds": 1e-4, "flops": 0, "bytes": 0}
    size = {"rows": 1024, "classes": 1_000_000}
    errors = {"change_error": 1e-3, "gradient_error_labels": 1e-3, "gradient_error_others": 1e-3}
    checked = {"sampled": 64, "labels_sampled": 32, "finite": True, "changed": True, "loss_error": 1e-4, **errors}
    memory = {"peak": 120 * 2**30, "total": 140 * 2**30}
    steps = {"rows": 512, "classes": 29_000_000, "seconds": [9.0, 0.2, 0.2], "losses": [50.0, 49.0, 48.0]}
    case = {"name": "untrained", "loss": 50.0, "table": [{"name": "triton", "loss": 0.0, "dX": 1e-3, "dW": 1e-3}]}
    result = {
        "environment": {"device": "a GPU", "torch": "2.11"},
        "rounds": 3,
        "ceilings": {"copied": 8 * 10**9, "side": 8192, "bytes_per_s": 4e12, "flops_per_s": 7e14},
        "routes": [size | {"table": [bare, row]}],
        "kernels": [size | {"name": "one pass", "kept": 1_000_000, "table": [kernel, rest]}],
        "growth": [size | {"min": 0.02, "per_class": 2e-8, "beyond": 2**29}],
        "large": steps | checked | memory,
        "precision": {"seed": 1, "rows": 512, "classes": 20_000, "cases": [case]},
    }
    text = fused_tables.as_markdown(result)
    titles = [line for line in text.splitlines() if line.startswith("#")]
    assert titles == [
        "# The fused backend, a GPU",
        "## Ceilings, measured",
        "## Routes",
        "## Kernels",
        "## Growth",
        "## 29 million classes",
        "## Precision",
    ]
    assert "| scores | 2 | 2.000 | 1.00 | 2.00 | 500 (71%) | 1,000 (25%) |" in text
    assert "| the rest, 9 kernels | 12 | 0.100 |  |  |  |  |" in text
    assert "| 1,024 | 1,000,000 | one pass | 10.000 | 11.000 | 1.20 | 1.00 |" in text
    assert "120.0 of 140.0 GiB" in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("module", [fused, slices], ids=["fused", "slices"])
def test_a_benchmark_of_the_gpu_says_so_where_there_is_none(bench, module):
    code, _, err = bench(module)
    assert code == 2
    assert "there is no CUDA device" in err
    assert "Traceback" not in err


@pytest.mark.slow
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


@pytest.mark.slow
def test_the_command_writes_whole_files(bench, tmp_path):
    size = ("--rows", 4, "--classes", 60, "--dim", 5, "--rounds", 1, "--growth-to", 10_000)
    code, out, _ = bench(head, *size, "--only", "hypermargin chunked", "--out", tmp_path)
    assert code == 0
    assert "| hypermargin chunked |" in out
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
    from benchmarks.plot import plot_sweep

    sweep = [
        {"name": name, "classes": c, "min": 1e-3 * c, "memory": 1000 * c}
        for name in ("hypermargin chunked", "peer")
        for c in (100, 1000)
    ]
    problem = {"rows": 4, "dim": 5, "precision": "float32"}
    plot_sweep({"problem": problem, "sweep": sweep, "environment": {"device": "test"}}, tmp_path / "x.svg")
    text = (tmp_path / "x.svg").read_text()
    assert all(word in text for word in ("hypermargin chunked", "peer", "dW alone", "N = 4"))
