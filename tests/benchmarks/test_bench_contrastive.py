"""The benchmark of the contrastive loss: small, and its contenders agree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks import contrastive


def test_the_contenders_compute_one_loss() -> None:
    pairs = contrastive.Pairs(40, 8, "cpu")
    seen = []
    for loss_of in contrastive.CONTENDERS.values():
        pairs.stepper(loss_of)()
        assert pairs.x.grad is not None
        assert pairs.W.grad is not None
        assert pairs.scale.grad is not None
        seen.append((pairs.x.grad, pairs.W.grad, pairs.scale.grad))
    for other in seen[1:]:
        torch.testing.assert_close(other, seen[0])


@pytest.mark.slow
def test_a_small_run_is_stored_and_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    contrastive.main(["--sizes", "16", "32", "--dim", "4", "--rounds", "1", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "| N = 16 | N = 32 |" in printed
    assert (tmp_path / "contrastive-cpu.md").read_text(encoding="utf-8") == printed.removesuffix("\n")
    stored = json.loads((tmp_path / "contrastive-cpu.json").read_text(encoding="utf-8"))
    assert [size["rows"] for size in stored["sizes"]] == [16, 32]
    assert all(set(size["contenders"]) == set(contrastive.CONTENDERS) for size in stored["sizes"])


def test_what_ran_out_of_memory_says_so() -> None:
    stored = Path(contrastive.__file__).parent / "results" / "contrastive-cpu.json"
    result = json.loads(stored.read_text(encoding="utf-8"))
    result["sizes"][0]["contenders"][contrastive.PLAIN] = None
    row = next(line for line in contrastive.as_markdown(result).splitlines() if contrastive.PLAIN in line)
    assert row.count("out of memory") == 1


def test_without_a_gpu_it_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ValueError, match="needs a CUDA device"):
        contrastive.run("cuda", say=lambda _: None)
