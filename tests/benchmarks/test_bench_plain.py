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


def test_the_picture_has_every_contender_that_ran(tmp_path, monkeypatch, bench) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.axes import Axes

    drawn, scatter = {}, Axes.scatter

    def noting(self, x, y, **given):
        drawn[given["label"]] = list(y)
        return scatter(self, x, y, **given)

    monkeypatch.setattr(Axes, "scatter", noting)
    stored = tmp_path / "plain-cuda.json"
    result = json.loads(STORED.read_text())
    result["sizes"][0]["times"].pop(plain.PEERS[0])
    stored.write_text(json.dumps(result))
    code, _, _ = bench(plain, "--draw", stored)
    assert code == 0
    assert stored.with_suffix(".png").stat().st_size > 10_000
    ran = {name for size in result["sizes"] for name in size["times"]} - {plain.FLOOR}
    assert set(drawn) == ran
    assert len(drawn[plain.PEERS[0]]) == len(result["sizes"]) - 1
    size = min(result["sizes"], key=lambda size: size["rows"] * size["classes"])
    ours = plain.OURS[0].name
    assert drawn[ours][0] == size["times"][ours]["median"] / size["times"][plain.FLOOR]["median"]


def test_what_was_not_measured_is_said() -> None:
    result = json.loads(STORED.read_text())
    for size in result["sizes"]:
        size["times"].pop(plain.CUTE, None)
        size["absent"].pop(plain.CUTE, None)
    text = plain.as_markdown(result)
    row = next(line for line in text.splitlines() if line.startswith(f"| {plain.CUTE} |"))
    assert row.count(plain.NOT_MEASURED) == len(result["sizes"])
    assert plain.WITHOUT_CUTE in text
    result["sizes"][0]["times"][plain.CUTE] = result["sizes"][0]["times"][plain.FLOOR]
    assert plain.WITHOUT_CUTE not in plain.as_markdown(result)
