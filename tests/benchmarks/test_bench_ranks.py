"""The benchmark of ranks: files are whole, every number follows from the stored times, and a lost rank is told."""

import json
import math
import multiprocessing
import os
import signal
import statistics
from pathlib import Path

import pytest

from benchmarks import partial_fc, ranks
from benchmarks.crew import RankError
from hypermargin.parallel import traffic

C, D, N, WORLDS = 30_000, 64, 24, (1, 3)


def silent(text):
    pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("ranks")
    result = ranks.run(N, C, D, worlds=WORLDS, rounds=2, out=out, say=silent)
    (out / "result").write_text(json.dumps(result))
    return out


@pytest.fixture(scope="module")
def result(folder):
    return json.loads((folder / "ranks-cpu.json").read_text())


@pytest.mark.slow
def test_files_are_whole(folder, result):
    assert {path.name for path in folder.iterdir()} == {"ranks-cpu.json", "ranks-cpu.md", "result"}
    assert json.loads((folder / "result").read_text()) == result
    assert {"torch", "device", "date", "cores"} <= set(result["environment"])
    assert result["problem"] == {"rows": N, "classes": C, "dim": D, "worlds": [1, 3], "rounds": 2, "rate": 0.1}
    tables = (folder / "ranks-cpu.md").read_text().split("\n## ")[1:]
    assert len(tables) == 3
    for table, lines in zip(tables, (3, 4, 3), strict=True):  # plain with 8 and with 24 rows
        cells = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith("|")]
        assert {len(line) for line in cells} == {13}
        assert len(cells) == 2 + lines


@pytest.mark.slow
def test_every_number_of_ranks_is_there_with_its_rows(result):
    found = [(line["world"], line["rows"]) for line in result["full"]]
    assert found == [(0, 8), (0, 24), (1, 8), (1, 24), (3, 24)]  # three times 8 rows are 24
    assert [(line["world"], line["rows"]) for line in result["sampled"]] == [(0, 24), (1, 24), (3, 24)]
    for line in result["full"] + result["sampled"]:
        world = max(line["world"], 1)
        assert line["rows_each"] * world == line["rows"]
        assert line["classes_each"] == C // world
        assert line["threads"] == max(os.cpu_count() // world, 1)
        assert line["sent"] == traffic(line["rows_each"], D, world).total


@pytest.mark.slow
def test_ratios_are_those_of_the_stored_times(result):
    for lines in (result["full"], result["sampled"]):
        plain = {line["rows"]: line for line in lines if line["world"] == 0}
        for line in lines:
            for key, median, ratio in (("seconds", "median", "to_plain"), ("cpu", "cpu_median", "cpu_to_plain")):
                assert len(line[key]) == 2
                assert all(0 < each < math.inf for each in line[key])
                assert line[median] == statistics.median(line[key])
                assert math.isclose(line[ratio], line[median] / statistics.median(plain[line["rows"]][key]))
            if line["world"] > 1:
                alone = statistics.median(line["alone_seconds"])
                assert math.isclose(line["messages"], 1 - alone / line["median"])
                alone = statistics.median(line["alone_cpu"])
                assert math.isclose(line["cpu_messages"], 1 - alone / line["cpu_median"])
            else:
                assert "messages" not in line


@pytest.mark.slow
def test_memory_falls_with_the_ranks(result):
    for name, tables in (("full", 3), ("sampled", 2.1)):
        peaks = {line["world"]: line for line in result[name] if line["rows"] == N}
        for world, line in peaks.items():
            assert line["tables"] == pytest.approx(tables * 4 * C * D / max(world, 1))
            assert line["peak"] > 0.95 * line["tables"]
        assert peaks[3]["peak"] < 0.6 * peaks[0]["peak"]
        assert peaks[1]["peak"] == pytest.approx(peaks[0]["peak"], rel=0.3)
        assert peaks[3]["loss"] == pytest.approx(peaks[0]["loss"], rel=1e-5)


@pytest.mark.slow
def test_a_lost_rank_ends_the_benchmark_with_its_name():
    lost = []

    def lose_one(text):
        if "round 1" in text and not lost:
            (above,) = (child.pid for child in multiprocessing.active_children())
            children = Path(f"/proc/{above}/task/{above}/children").read_text().split()
            lost.append(children[-1])  # plain, then the ranks 0, 1, 2
            os.kill(int(children[-1]), signal.SIGKILL)

    with pytest.raises(RankError, match=r"rank 2 of 3 failed, .* killed by SIGKILL. Is there enough memory\?"):
        ranks.run(6, 300, 8, worlds=(3,), rounds=50, say=lose_one)
    assert lost
    assert not any(Path(f"/proc/{pid}").exists() for pid in lost)


def test_different_losses_are_refused():
    with pytest.raises(RankError, match=r"2 ranks begin with a loss of 3.1, the plain head with 3.0"):
        ranks._same_loss(2, {0: 3.0, 2: 3.1})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--worlds", "1,two"], "--worlds: must be whole numbers with commas, such as 1,2,4; got '1,two'"),
        (["--worlds", "2,2"], "--worlds must be different numbers of ranks from 1 on"),
        (["--worlds", "0,2"], "--worlds must be different numbers of ranks from 1 on"),
        (["--rows", "250"], "got 250. Take 252."),
        (["--rows", "0"], "--rows must be at least 1; got 0"),
        (["--rate", "1.5"], "--rate must lie in (0, 1]"),
        (["--classes", "3"], "--classes must be at least one per rank, 4; got 3"),
        (["--classes", "9000000000"], "Take fewer."),
    ],
)
def test_nonsense_is_refused_in_words(arguments, words, bench):
    code, _, err = bench(ranks, *arguments)
    assert code == 2
    assert words in " ".join(err.split())


def test_a_failure_on_the_command_line(bench, monkeypatch):
    def fail(*_, **__):
        raise RankError("rank 1 of 2 failed, which ends the benchmark: it was killed by SIGKILL.")

    monkeypatch.setattr(ranks, "run", fail)
    code, _, _ = bench(ranks)
    assert code == "Error: rank 1 of 2 failed, which ends the benchmark: it was killed by SIGKILL."  # exit code 1


def test_a_sample_of_the_classes(tmp_path, monkeypatch):
    """The correction brings Σ exp z nearer, at every rate; the table says what the numbers say."""
    monkeypatch.setattr(partial_fc, "SEEDS", (1,))
    found = partial_fc.run(tmp_path, lambda _: None, classes=3000, steps=2, draws=3)
    assert json.loads((tmp_path / "partial-fc.json").read_text())["estimates"] == found["estimates"]
    for as_published, corrected in zip(found["estimates"][::2], found["estimates"][1::2], strict=True):
        assert not as_published["correct"]
        assert corrected["correct"]
        assert as_published["bias"] < corrected["bias"] < 0.1
        assert as_published["gap"] < corrected["gap"]
    text = (tmp_path / "partial-fc.md").read_text()
    assert text.count("| first |") == text.count("| trained |") == 6
    assert [row["rate"] for row in found["trained"]] == [1, 0.3, 0.3, 0.1, 0.1, 0.03, 0.03]
