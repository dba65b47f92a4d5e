"""The table of plain calls, made from what is stored: the benchmark itself needs a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import plain

STORED = Path(plain.__file__).parent / "results" / "plain-cuda.json"


def test_every_contender_has_a_cell_for_every_size() -> None:
    result = json.loads(STORED.read_text())
    rows = [line for line in plain.as_markdown(result).splitlines() if line.startswith("| ") and "×" not in line]
    names = [plain.FLOOR, *(c.name for c in plain.OURS), *plain.PEERS]
    assert [row.split(" | ")[0] for row in rows] == [f"| {name}" for name in names] * 2  # times, and the CPU's
    assert all(row.count(" | ") == len(result["sizes"]) for row in rows)


def test_a_contender_that_could_not_run_says_why() -> None:
    result = json.loads(STORED.read_text())
    name = plain.PEERS[0]
    for size in result["sizes"]:
        size["times"].pop(name)
    result["sizes"][0]["absent"][name] = "is not installed"
    row = next(line for line in plain.as_markdown(result).splitlines() if line.startswith(f"| {name} |"))
    assert "is not installed" in row
    assert row.count("out of memory") == len(result["sizes"]) - 1


def test_without_a_gpu_it_says_so() -> None:
    if plain.torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ValueError, match="needs a CUDA device"):
        plain.run(say=lambda _: None)
