"""`advise.step_cost`: its numbers are the stored measurements, and one GPU takes what was measured there."""

import json
from pathlib import Path

import pytest

from hypermargin import advise
from hypermargin.advise import machines
from hypermargin.parallel import traffic

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
SLICES = json.loads((RESULTS / "slices-cuda.json").read_text())["table"]
FUSED = json.loads((RESULTS / "fused-cuda.json").read_text())
M = 1_000_000


def of(row):
    """The model of a measured row."""
    sampled = row["optimizer"] == "SampledSGD"
    name = row["optimizer"] if row["optimizer"] in machines.OPTIMIZERS else "FusedSGD"
    return advise.step_cost(
        row["classes"], row["rows"], keep=row["memory"] > 480, optimizer=name, rate=0.1 if sampled else 1.0
    )


def test_the_numbers_are_those_of_the_stored_benchmark():
    for keep, table in ((False, machines.RECOMPUTED), (True, machines.KEPT)):
        measured = {
            row["rows"]: 1e9 * row["compute"] / row["classes"]
            for row in SLICES
            if row["optimizer"] == "none" and (row["memory"] > 480) == keep and row["classes"] != M
            if row["rows"] != 8192 or row["classes"] < M * 2  # measured with both numbers of classes
        }
        assert table == pytest.approx(measured, rel=2e-3)
    found = {(row["rows"], row["classes"], row["optimizer"], row["memory"]): row for row in SLICES}
    eighth = 12_500_000

    def ns(name, key, rows=1024):
        return 1e9 * found[rows, eighth, name, 480][key] / eighth

    assert machines.OPTIMIZERS["FusedSGD"][0] == pytest.approx(
        ns("FusedSGD", "compute") - ns("none", "compute"), abs=0.01
    )
    for name in ("SGD", "SGD(fused=True)"):
        assert machines.OPTIMIZERS[name][0] == pytest.approx(ns(name, "step"), abs=0.01)
    assert machines.SAMPLED[0] == pytest.approx(ns("SampledSGD", "draw", 8192), abs=0.01)
    assert machines.SAMPLED[1] == pytest.approx(10 * ns("SampledSGD", "step", 8192), abs=0.1)


@pytest.mark.parametrize("row", SLICES, ids=lambda row: f"{row['rows']}-{row['classes']}-{row['optimizer']}")
def test_one_gpu_takes_the_time_and_memory_that_were_measured(row):
    cost = of(row)
    seconds = cost.compute + (0 if row["optimizer"] == "none" else cost.optimizer)
    launching = (
        10e-3 if row["optimizer"] == "SampledSGD" else 4e-3
    )  # left out, and felt where there is little to do
    assert seconds == pytest.approx(row["compute"] + row["step"], rel=0.03, abs=launching)
    assert cost.messages == 0
    assert 0.98 * row["peak"] < cost.memory < 1.04 * row["peak"] + 3e9


def test_it_agrees_with_the_earlier_benchmark():
    """Another day, N = 1,024 and 512, up to 29 million classes; eager, as these are."""
    for row in FUSED["growth"][1:]:
        assert advise.step_cost(row["classes"], row["rows"]).compute == pytest.approx(row["min"], rel=0.03)
    large = FUSED["large"]
    cost = advise.step_cost(large["classes"], large["rows"])
    assert cost.seconds == pytest.approx(large["seconds"][-1], rel=0.06)
    assert cost.memory == pytest.approx(large["peak"], rel=0.04)


def test_ranks_share_the_classes_and_send_what_traffic_counts():
    one, eight = advise.step_cost(80 * M, 8192), advise.step_cost(80 * M, 1024, 8)
    assert eight.classes == 10 * M
    assert eight.rows == one.rows == 8192
    assert eight.compute == pytest.approx(one.compute / 8)
    assert eight.operations == 6 * 8192 * 512 * 10 * M
    assert eight.weight == 4 * 512 * 10 * M
    assert eight.sent == traffic(1024, 512, 8)
    assert eight.link is advise.NVLINK
    assert eight.messages == pytest.approx(eight.sent.total / 360e9 + 5 * 30e-6)
    assert eight.seconds == eight.compute + eight.optimizer + eight.messages
    assert advise.step_cost(80 * M, 1024, 16).link is advise.INFINIBAND
    slow = advise.Link("a wire", 1e9, 0.5, 0.0)
    assert advise.step_cost(80 * M, 1024, 8, link=slow).messages == pytest.approx(eight.sent.total / 0.5e9)
    assert advise.step_cost(80 * M, 1024, 8, optimizer="SGD").memory - eight.memory == 2 * eight.weight
    half = advise.step_cost(80 * M, 1024, 8, dim=256)
    assert half.compute == eight.compute / 2
    assert f"weight {eight.weight / 1e9:.1f} GB" in str(eight)
    assert "messages" in str(eight)
    assert "messages" not in str(one)
    assert not one.fits
    assert eight.fits


def test_rows_between_and_beyond_the_measured_ones():
    at = [advise.step_cost(M, rows).per_class for rows in (1, 128, 576, 1024, 65536, 131072)]
    assert at[0] == at[1]
    assert at[2] == pytest.approx((at[1] + at[3]) / 2)
    assert at[5] == pytest.approx(2 * at[4])
    every = [advise.step_cost(M, rows, keep=True).per_class for rows in range(1, 70_000, 500)]
    assert every == sorted(every)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"classes": 0, "rows": 1}, "classes must be at least 1; got 0"),
        ({"classes": 5, "rows": 1, "world_size": 0}, "world_size must be at least 1"),
        ({"classes": 5, "rows": 1, "optimizer": "sgd"}, "optimizer must be one of"),
        ({"classes": 5, "rows": 1, "rate": 2.0}, r"rate must lie in \(0, 1\]; got 2"),
        ({"classes": 5, "rows": 1, "rate": 0.0}, "rate must be positive"),
    ],
)
def test_nonsense_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        advise.step_cost(**given)
