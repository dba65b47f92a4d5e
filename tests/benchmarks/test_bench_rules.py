"""The table of the losses after ArcFace on a GPU, from made-up numbers: the benchmark itself needs one."""

from __future__ import annotations

import pytest
import torch

from benchmarks import rules
from hypermargin import list_heads

SEEN = {"backend": "triton", "eager": 0.011, "graph": 0.009, "bytes": 2**31, "errors": [1e-3, 2e-3]}


def test_times_are_beside_arcface_and_a_failure_says_why() -> None:
    table = {rules.FIRST: SEEN | {"eager": 0.01}, "circle": SEEN, "uniface": {"failed": "out of memory"}}
    result = {"environment": {"device": "a GPU"}, "rows": 8, "classes": 99, "precision": "bfloat16", "table": table}
    text = rules.as_markdown(result)
    assert "| circle | triton | 11.00 (1.10) | 9.00 (1.00) | 2.00 | 1.0e-03 | 2.0e-03 |" in text
    assert "| uniface | out of memory |" in text


def test_every_head_of_it_exists() -> None:
    assert {name.partition(",")[0] for name in rules.HEADS} <= set(list_heads())


def test_what_cannot_be_run_is_refused(bench) -> None:
    if not torch.cuda.is_available():
        code, _, error = bench(rules, "--heads", "circle")
        assert code == 2
        assert "needs a CUDA device" in error
        with pytest.raises(ValueError, match="needs a CUDA device"):
            rules.run(say=lambda _: None)
