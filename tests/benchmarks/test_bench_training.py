"""The benchmarks of loader and trainer: what is compared does the same work, and the files are whole."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch

from benchmarks import loader, step
from hypermargin.data import read_records

SMALL_STEPS = [dataclasses.replace(case, classes=min(case.classes, 30), batch=8, steps=3) for case in step.CASES]


def silent(text):
    pass


@pytest.fixture
def stored():
    def read(folder):
        assert {path.suffix for path in folder.iterdir()} == {".json", ".md"}
        (found,) = folder.glob("*.json")
        (tables,) = folder.glob("*.md")
        return json.loads(found.read_text()), tables.read_text()

    return read


@pytest.mark.parametrize("case", SMALL_STEPS, ids=lambda case: case.name)
def test_the_trainer_and_the_bare_loop_reach_the_same_weights(case):
    setup = step.Setup(case)
    reached = []
    for name in step.CONTENDERS:
        network = setup.network()
        start = [weight.clone() for weight in network.parameters()]
        seconds = setup.seconds(name, network)
        assert len(seconds) == case.steps
        assert (seconds > 0).all()
        reached.append(list(network.parameters()))
        assert not any(torch.equal(*pair) for pair in zip(start, reached[-1], strict=True))
    for bare, repeatable, ours in zip(*reached, strict=True):
        torch.testing.assert_close(repeatable, bare)
        # The same operations on the same shapes in the same order: equal to the bit, on every machine.
        assert torch.equal(ours, repeatable)
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.slow
def test_step_results_are_whole(tmp_path, stored):
    before = torch.get_num_threads()
    result = step.run((SMALL_STEPS[2],), rounds=2, threads=2, out=tmp_path, say=silent)
    assert torch.get_num_threads() == before
    written, markdown = stored(tmp_path)
    assert written == result
    (row,) = written["table"]
    assert set(row["ms"]) == set(step.CONTENDERS)
    for ratio, against in (("ratio", "bare"), ("ratio_deterministic", "repeatable")):
        assert math.isclose(row[ratio], row["ms"]["ours"] / row["ms"][against])
        assert 0 < row[ratio] < math.inf
    assert {"torch", "threads", "date", "cores"} <= set(written["environment"])
    assert written["environment"]["threads"] == "2"
    assert f"| {row['name']} | {row['ms']['bare']:.3f} |" in markdown


def test_a_step_counts_with_its_least_time_of_the_rounds(monkeypatch):
    seconds = iter(3 * [[9.0, 9.0], [1.0, 4.0], [3.0, 2.0]])  # of two steps; the first round is for warming up

    def in_turn(steps, rounds, device):
        for run in steps.values():
            for _ in range(rounds + 1):
                run()

    monkeypatch.setattr(step, "interleaved", in_turn)
    monkeypatch.setattr(step.Setup, "seconds", lambda *_: np.array(next(seconds)))
    row = step.measure(SMALL_STEPS[2], 2)
    assert row["ms"] == dict.fromkeys(step.CONTENDERS, 1500.0)


@pytest.mark.slow
def test_loader_results_are_whole(tmp_path, stored):
    result = loader.run(150, 16, 1, rounds=1, out=tmp_path, say=silent)
    written, markdown = stored(tmp_path)
    assert written == result
    assert len(written["table"]) == 4
    for row in written["table"]:
        lazy = ".npz" not in row["name"]
        assert set(row["images_per_s"]) == set(loader.CONTENDERS) - (set() if lazy else {"lazy"})
        assert row["to_torch"]["torch"] == 1
        assert all(0 < ratio < math.inf for ratio in row["to_torch"].values())
        assert f"| {row['name']} | {row['bytes'] / 1000:.1f} |" in markdown
    assert written["environment"]["pillow"]


def test_the_contenders_read_the_same_images(tmp_path):
    for case in loader.make(tmp_path, 45, 16):
        found = {}
        for name, source in loader.contenders(case, 16, 0).items():
            pixels = torch.cat(list(source()))
            found[name] = sorted(image.sum().item() for image in pixels)
            assert len(found[name]) == 45
        for name, sums in found.items():
            assert sums == pytest.approx(found["loop"], abs=1e-2), (case.name, name)


def test_an_epoch_that_loses_images_is_refused():
    with pytest.raises(RuntimeError, match="3 of 4 images came"):
        loader._whole(lambda: iter([torch.zeros(3, 3, 16, 16)]), 4, 16)()
    with pytest.raises(RuntimeError, match=r"a batch came as torch.uint8"):
        loader._whole(lambda: iter([torch.zeros(4, 3, 16, 16, dtype=torch.uint8)]), 4, 16)()


def test_made_images_weigh_what_photographs_weigh():
    aligned = [len(loader.jpeg(image, 90)) for image in loader.crops(50, 112)]
    lfw = [len(loader.jpeg(image, 75)) for image in loader.crops(50, 250)]
    assert 4000 < np.mean(aligned) < 8000
    assert 12000 < np.mean(lfw) < 17000


def test_made_records_are_insightfaces(tmp_path):
    loader.write_records(tmp_path / "train.rec", [loader.jpeg(image, 90) for image in loader.crops(41, 16)])
    data = read_records(tmp_path / "train.rec")
    assert data.labels.tolist() == [0] * 20 + [1] * 20 + [2]
    (tmp_path / "train.idx").unlink()
    assert len(read_records(tmp_path / "train.rec")) == 41  # scanned: the padding is right


def test_step_of_an_unknown_case_is_refused(bench):
    code, _, err = bench(step, "--only", "resnet")
    assert code == 2
    assert "--only 'resnet' is in no case's name: lenet++" in err
