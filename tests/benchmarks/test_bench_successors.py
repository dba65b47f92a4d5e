"""The study of the successors: the same search for all, runs that can be killed and go on, tables that add up."""

import json
import math
import os
import signal
import stat
import statistics
import subprocess
import sys
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.heads.tasks import Part, Task
from benchmarks.study import mps, workers
from benchmarks.successors import __main__ as successors
from benchmarks.successors import conditions, findings, plan, run, tables
from benchmarks.successors.__main__ import read
from benchmarks.successors.picture import draw
from benchmarks.successors.plan import Size, Spec

ROOT = Path(__file__).resolve().parents[2]
SMALL = Size(width=2, batch=16, epochs=0.05)
ENVIRONMENT = {"device": "a GPU", "torch": "2.11", "triton": "absent"}


@pytest.fixture(scope="module")
def omniglot(tmp_path_factory):
    """A folder with ten alphabets of three characters in Omniglot's format, drawn 20 times each."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(30), 20)
    shapes = 200.0 * (rng.random((30, 28, 28)) > 0.8)
    images = (shapes[labels] + rng.normal(0, 20, (600, 28, 28))).clip(0, 255).astype(np.uint8)
    folder = tmp_path_factory.mktemp("omniglot")
    np.savez(folder / "omniglot28.npz", images=images, label=labels, alphabet=labels // 3, split=labels // 24)
    return folder


def result(spec, eer=0.05, broken=False, **more):
    """What a run would hand in."""
    aside = {"accuracy": 0.9, "right": 0.8, "believed": 0.3, "seen_through": 0.5}
    aside |= {"left_out_few": 0.4, "left_out_some": 0.5, "left_out_many": 0.6}
    measured = {} if broken else {"test": {"eer": eer, "tar0.001": 0.7, "rank1": 0.9}, "train": aside}
    return {
        "spec": asdict(spec), "seconds": 1.0, "steps": 10, "broken": broken, "environment": ENVIRONMENT, **measured,
        **more,
    }  # fmt: skip


def everything(eer=lambda spec: 0.05, wanted=None):
    """Results of the whole plan, by a rule."""
    agenda, found = plan.agenda(plan.groups() if wanted is None else wanted, Size(), []), []
    while (spec := agenda.next()) is not None:
        found.append(result(spec, eer(spec)))
        agenda.finished(spec, found[-1])
    return found


# The plan.


def test_every_head_has_as_many_settings_and_all_differ():
    for head, settings in plan.SETTINGS.items():
        assert len({repr(s) for s in settings}) == plan.EACH, head
    assert len(set(plan.groups())) == len(plan.groups())
    assert {c for c, _ in plan.groups()} == set(plan.CONDITIONS)
    assert {h for c, h in plan.groups() if c != "tail"} == set(plan.SETTINGS) - set(plan.BY_COUNTS)
    assert {h for c, h in plan.groups() if c == "tail"} == set(plan.SETTINGS)


def test_every_setting_can_be_trained(omniglot):
    data = run.Data(omniglot, torch.device("cpu"))
    for head in plan.SETTINGS:
        for spec in plan.search("tail", head, SMALL):
            one = run.StudyRun(spec, data.of(spec))
            one.advance()
            one.advance()
            assert one.losses[:2].isfinite().all(), spec


def test_three_seeds_of_the_best_setting_come_once_all_six_are_in():
    agenda = plan.agenda([("clean", "arcface")], Size(), [])
    searched = [agenda.next() for _ in range(6)]
    assert agenda.next() is None
    for at, spec in enumerate(searched):
        agenda.finished(spec, result(spec, 0.01 if at == 3 else 0.02))
    finals = [agenda.next() for _ in range(3)]
    assert agenda.next() is None
    assert [s.seed for s in finals] == [0, 1, 2]
    assert {(s.study, s.stage, s.set["m"], s.set["scale"]) for s in finals} == {("final", "final", 0.5, 12.0)}


def test_a_head_that_fails_everywhere_has_no_finals_and_one_that_fails_once_has():
    for lost in (5, 6):
        agenda = plan.agenda([("clean", "arcface")], Size(), [])
        for at, spec in enumerate([agenda.next() for _ in range(6)]):
            agenda.finished(spec, result(spec, broken=at < lost))
        assert (agenda.next() is None) == (lost == 6)


def test_what_is_known_is_not_made_again_and_what_was_given_back_is():
    found = everything(wanted=[("clean", "arcface")])
    again = plan.agenda([("clean", "arcface")], Size(), json.loads(json.dumps(found[:7])))
    left = again.next()
    assert [left.key, again.next().key] == [Spec(**r["spec"]).key for r in found[7:]]
    assert again.next() is None
    again.give_back(left)
    assert again.next() == left


# The conditions.


def test_so_many_labels_are_wrong_and_all_classes_are_as_likely():
    labels = np.repeat(np.arange(20), 500)
    wrong = conditions.wrong_labels(labels, 0.4, seed=0)
    changed = wrong != labels
    assert changed.sum() == 4000
    away = np.bincount((wrong - labels)[changed] % 20, minlength=20)
    assert away[0] == 0
    assert abs(away[1:] - 4000 / 19).max() < 5 * math.sqrt(4000 / 19)
    assert (conditions.wrong_labels(labels, 0.4, seed=0) == wrong).all()
    assert (conditions.wrong_labels(labels, 0.4, seed=1) != wrong).any()


def test_the_tail_has_the_sizes_of_the_power_law():
    sizes = conditions.sizes(964)
    assert (sizes.min(), sizes.max(), len(sizes)) == (2, 20, 964)
    found = np.bincount(sizes)
    n = np.arange(2, 21)
    assert found[2:] == pytest.approx(964 * n**-1.5 / (n**-1.5).sum(), abs=1)
    labels = np.random.default_rng(3).permutation(np.repeat(np.arange(964), 20))
    kept = conditions.long_tail(labels, seed=0)
    assert sorted(np.bincount(labels[kept])) == sorted(sizes)
    other = conditions.long_tail(labels, seed=1)
    assert (np.bincount(labels[kept]) != np.bincount(labels[other])).any()


@pytest.mark.parametrize("condition", plan.CONDITIONS)
def test_a_condition_changes_the_training_part_alone(condition):
    images = torch.arange(600).reshape(-1, 1, 1)
    task = Task("omniglot", Part(images, torch.arange(600) // 20), Part(images[:40], torch.arange(40) // 20), True)
    found = conditions.changed(task, Spec("", "omniglot", "final", "arcface", condition=condition))
    assert found.test is task.test
    assert (found.truth == found.train.images[:, 0, 0] // 20).all()
    wrong = (found.train.labels != found.truth).float().mean()
    assert wrong == pytest.approx(plan.NOISE.get(condition, 0.0))
    together = torch.cat([found.train.images, found.left_out.images]).flatten()
    assert (together.sort().values == torch.arange(600)).all()
    assert (found.left_out.labels == found.left_out.images[:, 0, 0] // 20).all()
    assert found.counts.sum() == len(found.train.labels) < (601 if condition != "tail" else 300)


def test_what_is_measured_of_the_training_part(omniglot):
    data = run.Data(omniglot, torch.device("cpu"))
    spec = replace(plan.search("noise40", "arcface", SMALL)[0], stage="final")
    one = run.StudyRun(spec, data.of(spec))
    task = one.task
    one.decided = lambda features: task.truth
    assert one.measure_train() | {"norm": 0} == {
        "accuracy": pytest.approx(0.6), "norm": 0, "right": 1.0, "believed": 0.0, "seen_through": 1.0,
    }  # fmt: skip
    spec = replace(plan.search("tail", "ldam", SMALL)[0], stage="final")
    one = run.StudyRun(spec, data.of(spec))
    labels = one.task.left_out.labels
    one.decided = lambda features: labels if len(features) == len(labels) else one.task.train.labels
    found = one.measure_train()
    assert {k: v for k, v in found.items() if k != "norm"} == {
        "accuracy": 1.0, "left_out_few": 1.0, "left_out_some": 1.0, "left_out_many": 1.0,
    }  # fmt: skip
    assert found["norm"] > 0


def test_margins_and_offsets_go_by_the_counts(omniglot):
    data = run.Data(omniglot, torch.device("cpu"))
    for head, name, rising in (
        ("arcface-by-counts", "m", -1),
        ("ldam", "m", -1),
        ("balanced-softmax", "offsets", 1),
    ):
        spec = plan.search("tail", head, SMALL)[0]
        one = run.StudyRun(spec, data.of(spec))
        order = one.task.counts.argsort()
        numbers = getattr(one.head, name)[order]
        assert (rising * numbers.diff() >= -1e-6).all(), head
        assert numbers.max() > numbers.min()


# The runner.


def runner(folder, out, *more):
    """The command, on the CPU, with the smallest runs."""
    return [
        sys.executable, "-m", "benchmarks.successors", "--data", str(folder), "--out", str(out), "--device", "cpu",
        "--width", "2", "--batch", "16", "--epochs", "0.05", "--processes", "2", "--at-once", "2",
        "--conditions", "clean", "noise40", "--heads", "curricularface", *more,
    ]  # fmt: skip


@pytest.mark.slow
def test_it_can_be_killed_and_goes_on(omniglot, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out.jsonl"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    first = subprocess.Popen(runner(omniglot, out), cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 120
    while (not out.exists() or out.read_text().count("\n") < 3) and time.monotonic() < end:
        assert first.poll() is None, "it ended by itself"
        time.sleep(0.05)
    first.send_signal(signal.SIGKILL)
    first.wait()
    with out.open("a") as file:
        file.write('{"spec": {"study": "sea')  # a line that was cut off
    before = out.read_text().count("\n")
    assert 3 <= before < 18
    again = subprocess.run(
        runner(omniglot, out), cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert "a line is no JSON and is left out" in again.stderr
    assert f"{before} results are known" in again.stderr
    found = read(out)
    assert Counter((r["spec"]["study"], r["spec"]["condition"], r["spec"]["head"]) for r in found) == {
        (study, condition, head): times
        for study, times in (("search", 6), ("final", 3))
        for condition in ("clean", "noise40")
        for head in ("curricularface",)
    }
    assert len({Spec(**r["spec"]).key for r in found}) == len(found)
    assert not any(r["broken"] for r in found)
    assert tables.document(found)
    monkeypatch.setattr(sys, "argv", runner(omniglot, tmp_path / "other.jsonl", "--known", str(out))[2:])
    successors.main()
    assert "\n0 runs" in capsys.readouterr().err


class Quick:
    """A run that does nothing, dies with one head, is wrong with another and waits with a third."""

    total, graph, why_not = 1, None, ""

    def __init__(self, spec, task):
        self.spec, self.done = spec, 0

    def advance(self):
        if self.spec.head == "arcface" and self.spec.set["scale"] == 12.0:
            os._exit(1)
        if self.spec.head == "cosface":
            raise ValueError("m is too large\nfor this")
        if self.spec.head == "normface":
            time.sleep(0.2)
        self.done = 1

    def result(self):
        found = result(self.spec)
        return found | ({"seconds": 0.2} if self.spec.head == "normface" else {"seconds": 0.0})


@pytest.fixture
def quick(monkeypatch):
    """`quick("arcface")`: results of the runner with runs that take no time, and what it said."""
    monkeypatch.setattr(run, "StudyRun", Quick)
    monkeypatch.setattr(run.Data, "of", lambda self, spec: None)

    def call(*heads, seconds=60.0):
        said = []
        settings = workers.Settings(Path("nowhere"), "cpu", processes=2, at_once=2)
        agenda = plan.agenda([("clean", head) for head in heads], Size(), [])
        return list(workers.train_all(agenda, settings, seconds=seconds, say=said.append)), said

    return call


def test_a_process_that_dies_costs_its_own_runs_alone(quick):
    found, said = quick("arcface", "softmax")
    bad = [r for r in found if r["broken"]]
    assert {r["spec"]["head"] for r in bad} == {"arcface"}
    assert {r["error"] for r in bad} == {"the process died twice with it"}
    assert {r["spec"]["set"]["scale"] for r in bad} >= {12.0}
    assert sum(r["spec"]["head"] == "softmax" for r in found) == 9
    assert "a process has died" in said[0]


def test_a_setting_that_raises_is_told_and_the_others_go_on(quick):
    found, said = quick("cosface", "softmax")
    bad = [r for r in found if r["broken"]]
    assert [r["error"] for r in bad] == ["ValueError: m is too large"] * 6
    assert len(found) == 6 + 9
    assert said == []


def test_nothing_is_begun_that_would_not_end_in_time(quick):
    assert quick("normface", seconds=0.0)[0] == []
    begun = time.monotonic()
    found, _ = quick("normface", seconds=1.0)
    assert len(found) < 9
    assert time.monotonic() - begun < 30


def test_a_step_that_cannot_be_captured_is_taken_as_it_is(omniglot, monkeypatch):
    class Refused:
        def __enter__(self):
            pass

        def __exit__(self, *error):
            raise RuntimeError("operation not permitted when stream is capturing\nand so on")

    spec = plan.search("clean", "adaface", SMALL)[0]
    one = run.StudyRun(spec, run.Data(omniglot, torch.device("cpu")).of(spec))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", lambda *a, **k: Refused())
    one.stream = object()
    one._step = lambda: taken.append(one.done)
    taken = []
    for _ in range(6):
        one.advance()
    assert taken == [0, 1, 2, 3, 3, 4, 5]  # the fourth was tried to be captured first
    assert one.graph is None
    assert one.why_not == "operation not permitted when stream is capturing"


def test_without_mps_it_says_why_and_leaves_the_environment(tmp_path, monkeypatch):
    with mps.mps(False) as why:
        assert why == "not asked for"
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(mps, "FOLDER", tmp_path / "pipes")
    with mps.mps(True) as why:
        assert why == "nvidia-cuda-mps-control is not there"
    control = tmp_path / mps.CONTROL
    control.write_text("#!/bin/sh\nexit 3\n")
    control.chmod(control.stat().st_mode | stat.S_IXUSR)
    with mps.mps(True) as why:
        assert why.startswith("it did not start: ")
        assert not set(mps.NAMES) & set(os.environ)
    control.write_text("#!/bin/sh\nexit 0\n")
    with mps.mps(True) as why:  # there is no GPU to use it
        assert why.startswith("a process could not use it: ")


# Tables, picture, findings.


def test_tables_have_the_numbers():
    def eer(spec):
        slope = {"clean": 0.03, "noise20": 0.05, "noise40": 0.08, "tail": 0.06}[spec.condition]
        return slope + 0.001 * spec.seed - (0.01 if spec.head == "uniface" else 0.0)

    found = everything(eer)
    text = tables.document(found)
    assert "| uniface | s 6, m 0.1 | 2.10 ± 0.10 | 70.00 ± 0.00 | 90.00 ± 0.00 | 90.0 |" in text
    assert "| softmax | wd 0.5 | 3.10 ± 0.10 |" in text
    assert "| arcface | 3.10 ± 0.10 | 5.10 ± 0.10 | 8.10 ± 0.10 | +5.00 |" in text
    assert "| uniface | s 6, m 0.1 | 7.10 ± 0.10 | 70.00 ± 0.00 | 90.00 ± 0.00 | 80.0 | 30.0 | 50.0 |" in text
    assert tables.heads_of(found, "clean")[0] == "uniface"
    assert f"{len(found)} runs, {10 * len(found):,} steps, on one a GPU. torch 2.11." in text
    assert "triton" not in text
    assert "failed" not in text
    axes = draw(found).axes
    assert [ax.get_title() for ax in axes] == ["right labels", "20 % wrong", "40 % wrong", "long tail"]


def test_failures_are_told_and_half_a_study_has_tables():
    found = everything(wanted=[("clean", "arcface"), ("clean", "circle"), ("noise40", "arcface")])
    worst = next(r for r in found if r["spec"]["head"] == "circle" and r["spec"]["study"] == "final")
    found[found.index(worst)] = result(Spec(**worst["spec"]), broken=True)
    text = tables.document(found[:-1])  # and a seed is missing
    assert "not finite: circle in the final runs 1." in text
    assert "arcface" in text
    assert tables.heads_of(found, "clean") == ["arcface"]
    assert tables.heads_of(found[:-1], "noise40") == []
    assert draw(found)
    assert all(findings.answers(found).values())


def test_a_difference_is_of_the_same_seeds_and_has_students_interval():
    values = {("arcface", 0): 0.031, ("arcface", 1): 0.030, ("arcface", 2): 0.034}
    values |= {("uniface", 0): 0.032, ("uniface", 1): 0.032, ("uniface", 2): 0.035}
    wanted = [("clean", "arcface"), ("clean", "uniface")]
    found = everything(lambda s: values[s.head, s.seed] if s.study == "final" else 0.05, wanted)
    half = 4.303 * statistics.stdev([0.1, 0.2, 0.1]) / math.sqrt(3)
    assert findings.less(found, "clean", "uniface", "arcface") == f"+0.13 ± {half:.2f}"
    values = {**values, ("uniface", 1): 0.0312}
    found = everything(lambda s: values[s.head, s.seed] if s.study == "final" else 0.05, wanted)
    assert findings.less(found, "clean", "uniface", "arcface").startswith("**+0.11 ± 0.0")
    assert findings.less(found, "clean", "uniface", "softmax") == "–"


def test_the_findings_are_written_between_their_markers():
    found = everything()
    begin, end = findings.markers("wrong labels")
    page = f"before 3.25\n{begin}old{end}\nafter"
    text = findings.with_tables(page, found)
    assert text == f"before 3.25\n{begin}{findings.noise(found)}{end}\nafter"
    assert findings.with_tables(text, found) == text
    assert findings.decimals("3.25, 2.5, 1.234, 10.75 ± 0.03, v2.11.0") == {"3.25", "10.75", "0.03"}
