"""The evaluation benchmark: what is compared works, and the files are whole."""

import json

import pytest
import torch

from benchmarks import evaluate


def test_results_are_whole(tmp_path):
    before = torch.get_num_threads()
    result = evaluate.run(300, 8, threads=1, rounds=1, memory=False, out=tmp_path, say=lambda text: None)
    assert torch.get_num_threads() == before
    (written,) = tmp_path.glob("evaluate-n300-d8-cpu.json")
    assert json.loads(written.read_text()) == result
    assert [row["name"] for row in result["table"]] == list(evaluate.CONTENDERS)
    for row in result["table"]:
        assert row["pairs"] == 300 * 299 // 2
        assert row["to_product"] == pytest.approx(row["seconds"] / result["table"][0]["seconds"])
    markdown = written.with_suffix(".md").read_text()
    assert all(f"| {words} |" in markdown for words in evaluate.CONTENDERS.values())


@pytest.mark.slow
def test_memory_is_measured_elsewhere():
    problem = evaluate.Problem(200, 8, "cpu")
    histogram = 2 * (2**21 + 1) * 8
    assert histogram / 2 < evaluate.memory_in_a_fresh_process("verification", problem) < 10 * histogram
    with pytest.raises(RuntimeError, match="measuring the memory of nobody failed: KeyError"):
        evaluate.memory_in_a_fresh_process("nobody", problem)
