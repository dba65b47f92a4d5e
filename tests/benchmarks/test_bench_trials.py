"""The kernels on trial: right in Triton's interpreter, compiled for a Hopper GPU, and a run that nothing ends."""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

if not os.path.exists("/dev/nvidiactl"):
    os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("these tests interpret the kernels; on a GPU, run benchmarks.trials", allow_module_level=True)

from benchmarks.trials import __main__ as trials
from benchmarks.trials import candidates, worker
from benchmarks.trials.case import Case, Exact
from benchmarks.trials.table import as_markdown

EXTRAS = ("typer", "rich", "sklearn", "scipy", "pandas", "matplotlib", "PIL", "onnx", "pytorch_metric_learning")
ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's numpy, at log 0
SIZES = ((70, 600, 48), (130, 333, 24))


@pytest.fixture(scope="module", params=SIZES, ids=str)
def case(request):
    """Float32 operands: the interpreter's bfloat16 products are wrong."""
    made = Case(*request.param, "cpu", "float32")
    made.fill()
    return made, Exact(made)


def errors(case, part, runs, each=128, keeps=()):
    made, exact = case
    made.poison(part, keeps)
    for run in runs:
        run()
    return exact.errors(made, part, each)


def test_scores_and_the_operand_they_make(case):
    made, _ = case
    for kind, B, M, programs in (("own", 128, 128, 0), ("own", 64, 64, 1), ("still", 64, 64, 0)):
        runs = candidates._scored(made, kind, B, M, 16, 4, 2, programs)
        found = errors(case, "scores", runs, B)
        assert set(found) == {"sums", "E", "ŵ"}
        assert max(found.values()) < 2e-5, (kind, B, found)


def test_the_projection_from_logarithms(case):
    """dW in tiles that finish alone: logarithms inside, or summed beside df."""
    made, _ = case
    for runs in (candidates._lone(made, 128, 32, 64, 4, 3), candidates._lone(made, 64, 16, 32, 4, 3)):
        assert errors(case, "dW", runs)["dW"] < 5e-6
    runs = candidates._along(made, 128, 16, 64, 4, 3) + candidates._lone(made, 64, 32, 32, 4, 3, 128)
    found = errors(case, "dX and dW", runs)
    assert found["dX"] < 2e-5
    assert found["dW"] < 5e-6


def test_the_projection_from_rounded_exps_is_as_exact(case):
    """With E in bfloat16, as a GPU keeps it, ln E is not quite z; the errors of E in both forms are the same."""
    made, _ = case
    made.exps.copy_(made.exps.to(torch.bfloat16))
    today = errors(case, "dW", [made.gradient])["dW"]
    alone = errors(case, "dW", candidates._lone(made, 128, 32, 64, 4, 3))["dW"]
    made.scores()
    assert today > 1e-4  # and it was really rounded
    assert alone < 1.05 * today


def test_the_step_that_writes_the_next_operand(case):
    made, _ = case
    assert errors(case, "step", candidates._step(made, True))["ŵ"] < 1e-6


def test_a_worker_tries_each_kind_of_candidate(monkeypatch, capsys):
    """All of its work but a GPU's clock and graphs."""
    able = {c.name.split(",")[0]: n for n, c in enumerate(candidates.CANDIDATES)}
    skipped = ("ping-pong in Gluon", "operand beside scores")
    numbers = [n for name, n in able.items() if name not in skipped]
    assert len(numbers) >= 7
    request = {"rows": 70, "classes": 600, "dim": 48, "candidates": numbers, "rounds": 1}
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(request)))
    monkeypatch.setattr(worker, "Case", lambda *size: Case(*size[:3], "cpu", "float32"))
    monkeypatch.setattr(worker, "graph_of", lambda runs: lambda: [run() for run in runs])
    monkeypatch.setattr(worker, "seconds", lambda run, times=1: 1.0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    worker.main()
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["begin"] for line in said if "begin" in line] == [None, *numbers]
    for line in said[2::2]:
        assert "failed" not in line["found"], line
        assert line["found"]["seconds"]["candidate"] == {"single": 1.0, "sustained": 1.0}


def test_what_is_wrong_or_unwritten_shows(case):
    made, _ = case
    assert math.isnan(errors(case, "dX and dW", [made.gradient])["dX"])
    assert errors(case, "dW", [made.gradient, lambda: made.dW[-1].add_(1)])["dW"] > 1e-2


def process(code):
    return sys.executable, "-c", "import json, sys, time\nr = json.loads(input())\n" + code


SAYS = """
def say(**words): print(json.dumps(words), flush=True)
for n in r["candidates"]:
    say(begin=n)
    if n == 1: sys.exit("illegal access")
    if n == 2: time.sleep(60)
    say(done=n, found={"errors": {"E": 1e-3}, "errors today": {"E": 1e-3}, "kernels": {"k": [255, 0, 1024]},
        "flops": 1, "bytes": 1,
        "seconds": {w: {"single": 1e-3, "sustained": 2e-3} for w in ("candidate", "today")}})
"""


def test_a_candidate_that_crashes_or_hangs_is_named_and_the_rest_go_on(monkeypatch):
    monkeypatch.setattr(trials, "PATIENCE", 1.0)
    request = {"rows": 8, "classes": 8, "dim": 8, "candidates": [0, 1, 2, 3], "rounds": 1}
    found = dict(trials.answers(request, time.monotonic() + 60, process(SAYS)))
    assert found[1] == {"failed": "the process ended: illegal access"}
    assert found[2] == {"failed": "no answer within 1 s"}
    assert "seconds" in found[0]
    assert "seconds" in found[3]
    found = dict(trials.answers(request, time.monotonic() + 60, process("sys.exit('out of memory')")))
    assert [found[n]["failed"] for n in range(4)] == ["the process ended: out of memory"] * 4
    assert not dict(trials.answers(request, time.monotonic() + 0.5, process("time.sleep(60)")))


def test_a_whole_run_is_stored(monkeypatch, tmp_path):
    monkeypatch.setattr(trials, "PATIENCE", 1.0)
    monkeypatch.setattr(trials, "CANDIDATES", candidates.CANDIDATES[:4])
    said = process(SAYS.replace("n == 2", "n == 2 and r['rounds'] == 0"))
    result = trials.run(tmp_path, lambda _: None, worker=said, device="cpu", rounds=1)
    text = (tmp_path / "trials-cpu.md").read_text()
    assert text == as_markdown(result)
    right = candidates.CANDIDATES[0], candidates.CANDIDATES[3]
    timed = [c for c in right for _, _, d in trials.SIZES if d <= c.most]
    assert text.count("| 1.000 / 2.000 | 1.000 / 2.000 |") == len(timed) > 0
    assert "the process ended: illegal access" in text
    assert "no answer within 1 s" in text


def test_without_a_gpu_it_says_so(bench):
    if not torch.cuda.is_available():
        code, _, error = bench(trials)
        assert code == 2
        assert "need a CUDA device" in error


@pytest.mark.slow
def test_every_candidate_compiles_for_a_hopper_gpu():
    """By a process that does not interpret, and has torch, Triton and numpy alone, as a GPU machine may."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    code = f"""
import sys
sys.modules.update(dict.fromkeys({EXTRAS!r}))  # None: importing it fails
import benchmarks.trials.__main__, benchmarks.trials.worker
from benchmarks.trials import offline
offline.main()
"""
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "does not compile" not in done.stdout
    assert done.stdout.count("registers") >= 2 * len(candidates.CANDIDATES) - 6
