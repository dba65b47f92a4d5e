"""The table of the losses after ArcFace: from made-up numbers, and as far as a CPU can make it."""

from __future__ import annotations

import json

import pytest
import torch

from benchmarks import rules
from hypermargin import list_heads

SEEN = {
    "backend": "triton", "eager": 0.011, "arcface eager": 0.01, "graph": 0.009, "arcface graph": 0.009,
    "bytes": 2**31, "errors": [1e-3, 2e-3],
}  # fmt: skip


def test_times_are_beside_arcface_and_a_failure_says_why() -> None:
    first, slow = SEEN | {"bytes": 2**30}, SEEN | {"eager": 0.012}
    table = {rules.FIRST: first, "circle": SEEN, "li-arcface": slow, "uniface": {"failed": "out of memory"}}
    result = {"environment": {"device": "a GPU"}, "rows": 8, "classes": 99, "precision": "bfloat16", "table": table}
    text = rules.as_markdown(result | {"left out": ["sface"]})
    assert "| circle | triton | 11.00 (1.10) | 9.00 (1.00) | 2.00 (2.00) | 1.0e-03 | 2.0e-03 |" in text
    assert "| uniface | out of memory |" in text
    assert "| rules | 1.1 | 1.20 (li-arcface) | 1.00 (circle) |" in text
    assert "| one question per class | 1.25 |  |  |" in text
    assert "the time was up: sface." in text


def test_every_kind_has_a_bound_and_heads() -> None:
    assert {rules.kind(name) for name in rules.HEADS} == {*rules.BOUNDS, ""}
    assert rules.kind("sphereface2, A") == "one question per class"


@pytest.mark.slow
def test_it_runs_on_a_cpu_until_the_time_is_up(bench, tmp_path) -> None:
    names = ("curricularface", "sphereface2", rules.THREE, "sface")
    flags = ("--device", "cpu", "--rows", 4, "--classes", 30, "--repeats", 1, "--out", tmp_path)
    code, out, _ = bench(rules, "--heads", *names, *flags)
    assert code == 0
    table = json.loads((tmp_path / "rules-cpu.json").read_text())["table"]
    assert list(table) == list(names)
    assert all(max(seen["errors"]) < 1e-2 for seen in table.values())
    assert "| three centers | 3.2 |" in out
    code, out, _ = bench(rules, "--heads", "circle", *flags, "--seconds", 0)
    assert code == 0
    assert "the time was up: circle." in out


def test_every_head_of_it_exists() -> None:
    assert {name.partition(",")[0] for name in rules.HEADS} <= set(list_heads())


def test_what_cannot_be_run_is_refused(bench) -> None:
    if not torch.cuda.is_available():
        code, _, error = bench(rules, "--heads", "circle")
        assert code == 2
        assert "needs a CUDA device" in error
        with pytest.raises(ValueError, match="needs a CUDA device"):
            rules.run(say=lambda _: None)
