"""`hypermargin compare`: the table is what the runs say, nothing is lost, and differences are told from noise."""

import contextlib
import csv
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from browser import PHONE, opened
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import roc_curve

import hypermargin as hm
from hypermargin.common.student import two_sided
from hypermargin.compare import Comparison, Plan, compare, pool
from hypermargin.compare.measure import trained_margin
from hypermargin.compare.numbers import MEASURES, chance, column, table
from hypermargin.compare.plan import Run
from hypermargin.compare.reading import reading
from hypermargin.compare.report.pictures import side_by_side, together
from hypermargin.compare.report.tables import settings
from hypermargin.margins import ArcFace, SphereFace
from hypermargin.schedule import MarginWarmup
from hypermargin.training import Config, RunError

BY_KEY = {measure.key: measure for measure in MEASURES}
SMALL = {"epochs": 2, "batch": 32, "model": "lenet++", "model_set": {"width": 4}, "dim": 4, "log": 5}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Images of ten classes, each with a bright row and column of its own."""
    rng = np.random.default_rng(0)
    labels = np.arange(600) % 10
    images = rng.integers(0, 90, (600, 10, 10))
    for k, label in enumerate(labels):
        images[k, label] += 110
        images[k, :, (3 * label) % 10] += 50
    path = tmp_path_factory.mktemp("data") / "bars.npz"
    names = np.array([f"</script>{k}<i>&" for k in range(10)])  # a name is not markup
    np.savez(path, samples=images.astype(np.uint8), labels=names[labels])
    return path


@pytest.fixture(scope="module")
def done(data, tmp_path_factory):
    """A whole comparison: open set, two heads, two seeds, and the plane."""
    settings = {**SMALL, "data": str(data), "split": "identity"}
    plan = Plan(settings, ("softmax", "arcface:m=0.3"), seeds=2, plane=2)
    return compare(plan, tmp_path_factory.mktemp("out") / "first", jobs=2)


def command(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "hypermargin.cli", "compare", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
    )  # fmt: skip


def test_every_run_is_there_and_measured(done):
    assert {head: sorted(seeds) for head, seeds in done.measured.items()} == {
        "softmax": [0, 1],
        "arcface:m=0.3": [0, 1],
    }
    assert done.failed == {}
    assert sorted(p.name for p in (done.folder / "plane").iterdir()) == ["arcface-m-0.3", "data.npz", "softmax"]


def test_the_table_is_what_the_runs_say(done):
    """EER by scikit-learn from embeddings made anew; means and spreads by numpy."""
    eers = []
    for run in done.plan.runs(done.folder):
        if run.head != "softmax":
            continue
        trained = hm.load(run.folder)
        with np.load(run.folder / "split.npz") as split, np.load(run.config.data) as file:
            rows = split["test"]
            x, y = trained.embed(file["samples"][rows]).double().numpy(), file["labels"][rows]
        i, j = np.triu_indices(len(y), 1)
        far, tar, _ = roc_curve(y[i] == y[j], np.round((x[i] * x[j]).sum(1) * 2**20), drop_intermediate=False)
        k = np.flatnonzero(far >= 1 - tar)[0]
        low, high = max(far[k - 1], 1 - tar[k]), min(1 - tar[k - 1], far[k])
        assert low - 1e-9 <= done.measured["softmax"][run.seed]["numbers"]["eer"] <= high + 1e-9
        eers.append(done.measured["softmax"][run.seed]["numbers"]["eer"])
    cell = done.table["eer"]["softmax"]
    assert cell.mean == pytest.approx(np.mean(eers))
    assert cell.spread == pytest.approx(np.std(eers, ddof=1))
    rows = list(csv.DictReader((done.folder / "table.csv").open(encoding="utf-8")))
    (row,) = [row for row in rows if (row["head"], row["measure"]) == ("softmax", "eer")]
    assert float(row["mean"]) == pytest.approx(100 * np.mean(eers))


def test_margins_grow_in_two_dimensions_unless_the_head_has_a_schedule(tmp_path):
    heads = ("softmax", "normface", "a-softmax", "arcface:m=0.2", "cosface")
    found = {run.head: run.config.schedule for run in Plan({}, heads, plane=10).plane_runs(tmp_path)}
    grown = ["warmup:steps=200"]
    assert found == {
        "softmax": ["paper"], "normface": ["paper"], "a-softmax": ["paper"],
        "arcface:m=0.2": grown, "cosface": grown,
    }  # fmt: skip
    assert all(run.config.schedule == ["paper"] for run in Plan({}, heads).runs(tmp_path))


def test_numbers_of_a_head_reach_its_runs(done):
    for run in done.plan.runs(done.folder):
        m = getattr(hm.load(run.folder).head.margin, "m", None)
        assert m == (0.3 if run.head == "arcface:m=0.3" else None)


def test_seeds_are_the_same_for_every_head(done):
    """Differences are taken seed by seed, which needs the same split."""
    for seed in (0, 1):
        splits = [dict(np.load(r.folder / "split.npz")) for r in done.plan.runs(done.folder) if r.seed == seed]
        assert all(np.array_equal(splits[0][k], splits[1][k]) for k in splits[0])
    first, second = (dict(np.load(done.folder / "runs" / f"softmax-seed{k}" / "split.npz")) for k in (0, 1))
    assert not np.array_equal(first["test"], second["test"])


@pytest.mark.slow
def test_a_failed_run_is_reported_and_the_others_go_on(data, tmp_path):
    settings = {**SMALL, "data": str(data), "epochs": 1}
    plan = Plan(settings, ("normface", "cosface"), seeds=1, plane=0)
    broken = tmp_path / "runs" / "cosface-seed0"
    broken.mkdir(parents=True)
    (broken / "run.json").write_text("{")
    config = dataclasses.replace(plan.runs(tmp_path)[1].config, threads=1)
    (broken / "config.toml").write_text(config.to_toml())
    found = compare(plan, tmp_path, resume=True, jobs=2)
    assert list(found.measured["normface"]) == [0]
    assert found.measured["cosface"] == {}
    (why,) = found.failed.values()
    assert "run.json is damaged" in why
    assert os.fspath(tmp_path) not in found.report.read_text(encoding="utf-8")
    assert any("1 run failed (cosface, seed 0)" in sentence for sentence in found.sentences)
    text = found.report.read_text(encoding="utf-8")
    assert "Failed runs" in text
    assert "cosface, seed 0" in text
    # Mended, it is tried again, and nothing else is.
    before = (tmp_path / "runs" / "normface-seed0" / "measures.json").stat().st_mtime_ns
    for name in ("run.json", "config.toml"):
        (broken / name).unlink()
    again = compare(plan, tmp_path, resume=True, jobs=2)
    assert again.failed == {}
    assert list(again.measured["cosface"]) == [0]
    assert (tmp_path / "runs" / "normface-seed0" / "measures.json").stat().st_mtime_ns == before


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["term", "kill"])
def test_a_run_ended_from_outside_is_a_failure(number, data, tmp_path):
    """As by a machine without memory; only who compares may stop a run."""

    def kill(seen, about):
        if about.state == "running" and about.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(about.pid, number)

    plan = Plan({**SMALL, "data": str(data), "epochs": 50}, ("normface",), seeds=1, plane=0)
    found = compare(plan, tmp_path / "out", jobs=2, watch=kill)
    assert list(found.failed) == ["normface, seed 0"]
    assert "the process ended with" in found.failed["normface, seed 0"]
    assert "No run has finished" in found.report.read_text(encoding="utf-8")


def numbers_of(folder):
    """What must not depend on how often a comparison was stopped."""
    found = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))["runs"]
    return {
        (head, seed): {k: v for k, v in about["numbers"].items() if k not in ("cpu", "bytes")}
        for head, seeds in found.items()
        for seed, about in seeds.items()
    }


@pytest.mark.parametrize(
    "how",
    [pytest.param(signal.SIGINT, id="ctrl-c"), pytest.param(signal.SIGKILL, id="kill-9", marks=pytest.mark.slow)],
)
def test_a_stopped_comparison_goes_on_to_the_same_numbers(how, done, data, run, tmp_path):
    flags = ["--data", data, "--split", "identity", "--epochs", 2, "--batch", 32, "--model", "lenet++", "--dim", 4]
    flags += ["--model-set", "width=4", "--log", 5, "--head", "softmax", "--head", "arcface:m=0.3", "--seeds", 2]
    first = command(*flags, "--plane", 0, "--jobs", 2, "--out", tmp_path)
    for line in first.stderr:  # one is done, another under way
        if "done" in line:
            break
    first.send_signal(how)
    out, err = first.communicate(timeout=120)
    if how == signal.SIGINT:
        assert first.returncode == 130
        assert f"Go on with: hypermargin compare --out {tmp_path} --resume" in err
    for _ in range(600):  # the runs notice that nobody waits for them, and leave
        if not any(_held(folder) for folder in (tmp_path / "runs").iterdir()):
            break
        time.sleep(0.1)
    left = [each for each in Plan.read(tmp_path).runs(tmp_path) if not pool.is_done(each.folder)]
    assert left
    code, out, err = run("compare", "--out", tmp_path, "--resume")
    assert code == 0, err
    assert numbers_of(tmp_path) == numbers_of(done.folder)
    assert f"report: {tmp_path / 'report.html'}" in out


def _held(folder):
    """Does a process train in this folder? Its record lock can be seen from outside only."""
    probe = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    lock = folder / ".lock"
    return (
        lock.exists() and subprocess.run([sys.executable, "-c", probe, lock], capture_output=True).returncode != 0
    )


def test_a_comparison_grows_but_does_not_change(done, tmp_path):
    plan = Plan.read(done.folder)
    grown = plan.grown({"epochs": 2}, ("cosface", "arcface:m=0.3"), seeds=3)
    assert grown.heads == ("softmax", "arcface:m=0.3", "cosface")
    assert grown.seeds == 3
    with pytest.raises(ValueError, match=r"started, with epochs = 2; got 5"):
        plan.grown({"epochs": 5}, (), None)
    other = dataclasses.replace(plan, settings={**plan.settings, "lr": 0.5})
    with pytest.raises(ValueError, match=r"started, with lr = None; got 0\.5"):
        compare(other, done.folder, resume=True)
    with pytest.raises(RunError, match=r"holds a comparison\. Add --resume"):
        compare(plan, done.folder)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--head", "arcfase"], "arcface"),
        (["--head", "cosface:m=3"], r"--head cosface:m=3: m must lie in \[0, 2\); got 3"),
        (["--head", "arcface:k=3"], "k"),
        (["--head", "arcface", "--head", "arcface"], "--head must differ; got 'arcface' twice"),
        (["--seeds", "0"], "seeds must be at least 1; got 0"),
        (["--data", "nowhere"], "data must be one of"),
        (["--jobs", "0"], "jobs must be at least 1; got 0"),
        (["--config", "CONFIG", "--seeds", "0"], "seeds must be at least 1; got 0"),
    ],
)
def test_mistakes_are_told_before_anything_is_trained(arguments, complaint, run, tmp_path):
    config = tmp_path / "config.toml"
    config.write_text('heads = ["arcface"]\nseeds = 2\nplane = 0\n')
    arguments = [config if text == "CONFIG" else text for text in arguments]
    code, out, err = run("compare", *arguments, "--out", tmp_path / "out")
    assert (code, out) == (2, "")
    assert re.search(complaint, err), err
    assert not (tmp_path / "out" / "runs").exists()


def test_a_file_is_no_folder_for_a_comparison(run, tmp_path):
    (tmp_path / "file").touch()
    code, _, err = run("compare", "--head", "arcface", "--data", "digits", "--out", tmp_path / "file")
    assert code == 1
    assert f"--out must be a folder; {tmp_path / 'file'} is a file." in " ".join(err.split())


# Which differences exceed the noise


@given(st.floats(-30, 30), st.integers(1, 40))
def test_students_distribution_is_right(t, freedom):
    assert two_sided(t, freedom) == pytest.approx(2 * stats.t.sf(abs(t), freedom), abs=1e-12)


@given(st.integers(3, 12), st.floats(-3, 3), st.integers(0, 10_000))
def test_noise_is_judged_as_by_a_paired_t_test(n, shift, seed):
    rng = np.random.default_rng(seed)
    a = dict(enumerate(rng.normal(size=n).tolist()))
    b = dict(enumerate((rng.normal(size=n) + shift).tolist()))
    assert chance(a, b) == pytest.approx(stats.ttest_rel(list(a.values()), list(b.values())).pvalue, abs=1e-12)


def marks(key, **values):
    cells = column(BY_KEY[key], {head: dict(enumerate(v)) for head, v in values.items()})
    return {head: cell.mark for head, cell in cells.items()}


def test_marks():
    assert marks("eer", a=[0.1, 0.11, 0.121], b=[0.2, 0.21, 0.22], c=[]) == {"a": "best", "b": "behind"}
    assert marks("rank1", a=[0.1, 0.11, 0.121], b=[0.2, 0.21, 0.22]) == {"a": "behind", "b": "best"}
    assert marks("eer", a=[0.1, 0.3, 0.2], b=[0.2, 0.21, 0.22], c=[0.5, 0.9, 0.4]) == dict.fromkeys("abc", "level")
    assert marks("rank1", a=[0.1, 0.1], b=[0.9, 0.91]) == {"a": "", "b": ""}, "two seeds know nothing"
    assert marks("met", a=[0.1, 0.11, 0.1], b=[0.2, 0.2, 0.21]) == {"a": "", "b": ""}, "more is not better"
    same = marks("eer", a=[0.1, 0.2, 0.3], b=[0.101, 0.201, 0.301])
    assert same == {"a": "level", "b": "level"}, "one sample more at every seed is no proof"


def test_a_head_is_judged_on_the_seeds_it_has():
    """A failed at the hard seed, so its mean is the higher; where both ran, B is better."""
    values = {"A": {1: 0.900, 2: 0.901, 3: 0.903}, "B": {0: 0.3, 1: 0.950, 2: 0.952, 3: 0.951}}
    assert {head: cell.mark for head, cell in column(BY_KEY["rank1"], values).items()} == {
        "A": "level",
        "B": "level",
    }


@pytest.mark.parametrize(("heads", "seeds"), [(2, 3), (5, 3), (5, 10)])
def test_equal_heads_are_seldom_told_apart(heads, seeds):
    """In one column of twenty at most; 7 of 100 would be very unlikely with a thousand columns."""
    rng = np.random.default_rng(0)
    told = 0
    for _ in range(1000):
        draws = rng.normal(size=(heads, seeds))
        cells = column(BY_KEY["eer"], {str(h): dict(enumerate(v.tolist())) for h, v in enumerate(draws)})
        told += any(cell.mark == "behind" for cell in cells.values())
    assert told / 1000 < 0.07


def words_of(failed=(), **values):
    measured = {head: {k: {"eer": v, "cpu": 1.0} for k, v in enumerate(found)} for head, found in values.items()}
    return reading(table(measured), dict(failed))


def test_the_reading_says_what_can_be_said():
    assert "Fewer than 3 seeds cannot tell" in words_of(a=[0.1], b=[0.2])[0]
    clear = words_of(a=[0.10, 0.11, 0.121], b=[0.20, 0.21, 0.22])
    assert clear[0].startswith("a has the lowest mean EER, 11.03 ± 1.05 %, ahead of every other head")
    open_ = words_of(a=[0.10, 0.16, 0.12], b=[0.13, 0.12, 0.15], c=[0.50, 0.56, 0.5201])
    assert "b cannot be told apart from it; behind by more than the seeds vary: c." in open_[0]
    assert any("2 runs failed (x; y)" in text for text in words_of({"x": "", "y": ""}, a=[0.1]))
    assert not any("failed" in text for text in clear)


def test_the_margin_is_measured_as_it_was_trained():
    """a-softmax after 100 steps: ψ = (λ cos θ + g(4θ))/(1 + λ), λ = 1000/(1 + 0.12·100)."""
    head = hm.create_head("a-softmax", dim=2, classes=3).eval()
    head.schedules[0].step.fill_(100)
    found = trained_margin(head)
    assert (type(found), found.m, found.lam) == (SphereFace, 4.0, pytest.approx(1000 / 13))
    warming = hm.create_head("arcface", dim=2, classes=3, schedule=MarginWarmup(steps=10)).eval()
    assert trained_margin(warming) is None, "no margin is half of itself"
    assert trained_margin(hm.create_head("arcface", dim=2, classes=3)) == ArcFace(0.5)


# The report


def test_the_report_is_one_file_that_names_no_machine(done):
    text = done.report.read_text(encoding="utf-8")
    assert not re.search(r'(?:src|href)="(?!#|data:)', text)
    assert os.fspath(done.folder.parent) not in text
    assert os.fspath(done.plan.settings["data"]) not in text
    for head in done.plan.heads:
        assert text.count(head) > 3


def test_the_report_says_what_was_decided_where_nothing_was_given(done):
    open_still = {name: value for name, value in done.plan.settings.items() if name != "batch"}
    found = dataclasses.replace(done, plan=dataclasses.replace(done.plan, settings=open_still))
    assert "<dt>batch</dt><dd>32, by default</dd>" in settings(found)
    assert "<dt>batch</dt><dd>32</dd>" in settings(done)
    assert "<dt>data</dt><dd>bars.npz</dd>" in settings(done)


def test_the_report_in_a_browser(done, browser, tmp_path):
    from playwright.sync_api import expect

    text = done.report.read_text(encoding="utf-8")
    with opened(browser, text, tmp_path) as page:
        cells = page.locator("#table tbody tr").first.locator("td").all_inner_texts()
        shown = next(text for text in cells if text.startswith(f"{100 * done.table['eer']['softmax'].mean:,.2f}"))
        assert "±" in shown
        assert page.locator("#side svg").count() >= 8
        picture = page.locator("canvas[data-plane='0']")
        last = picture.evaluate("c => c.toDataURL()")
        page.locator("#epoch").focus()
        page.keyboard.press("ArrowLeft")
        assert picture.evaluate("c => c.toDataURL()") != last
        page.locator("#play").click()
        expect(page.locator("#play")).to_have_text("Play")  # it has come to the end
        assert picture.evaluate("c => c.toDataURL()") == last
        kept = done.arrays(done.plan.plane_runs(done.folder)[0])
        for epoch, right in enumerate(kept["right"]):  # the caption is of the epoch that is shown
            page.locator("#epoch").fill(str(epoch))
            expect(page.locator("[data-right='0']")).to_have_text(f": {100 * right:.1f} % right")
        ground = "getComputedStyle(document.querySelector('.report')).backgroundColor"
        ink = "getComputedStyle(document.querySelector('#side svg [style*=\"stroke: #222222\"]')).stroke"
        seen = []
        for theme in ("light", "dark"):
            page.locator("#theme").select_option(theme)
            seen.append((page.evaluate(ground), page.evaluate(ink)))
        assert seen == [("rgb(255, 255, 255)", "rgb(34, 34, 34)"), ("rgb(20, 23, 28)", "rgb(232, 232, 232)")]
    for size, scrolls in ((PHONE, True), ((900, 1000), True), ((1920, 1080), False)):
        with opened(browser, text, tmp_path, size=size) as page:
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert page.locator("#table .scrolls").is_visible() == scrolls
            box = page.locator("#words svg").first.bounding_box()
            assert box["y"] + min(box["height"], 200) < size[1]  # a picture without scrolling


def test_the_pictures_say_what_the_table_says(done):
    rows = {row.title: row for row in together(done)}
    cells = done.table["eer"]
    assert rows["DET"].displays[""].eers == {h: (c.mean, c.text(BY_KEY["eer"])) for h, c in cells.items()}
    for row in side_by_side(done):
        assert len({(each.xlim, each.ylim) for each in row.displays.values()}) == 1


def test_time_on_the_wall_is_no_finding(done):
    assert "seconds" not in done.table
    assert not any("took" in sentence for sentence in done.sentences)


def test_a_comparison_is_read_back(done):
    again = Comparison.read(done.folder, Plan.read(done.folder))
    assert again.table == done.table
    assert again.sentences == done.sentences


def test_the_time_left_is_from_the_steps_done(tmp_path):
    """Four runs of 100 steps, two at a time, a step a second: after 20 seconds 180 are left."""
    now = [1000.0]
    left = pool.Left(lambda: now[0])
    runs = [Run(f"r{k}", 0, tmp_path / str(k), Config()) for k in range(4)]
    seen = [pool.Seen(run) for run in runs]
    assert left.seconds(seen) is None  # nobody knows yet
    for start in (0, 2):
        for each in seen[start : start + 2]:
            each.state, each.total = "running", 100
        for step in range(0, 101, 10):
            for each in seen[start : start + 2]:
                each.step = step
            found = left.seconds(seen)
            wanted = 200 - (now[0] - 1000)
            if step >= 10 or start:
                assert found == pytest.approx(wanted, abs=0.06 * 200)
            else:
                assert found is None
            now[0] += 10 if step < 100 else 0
        for each in seen[start : start + 2]:
            each.state = "done"
    assert left.seconds(seen) == 0


def test_resumed_comparisons_count_what_is_done_now(tmp_path):
    """What was done before took no time here."""
    now = [0.0]
    left = pool.Left(lambda: now[0])
    seen = [pool.Seen(Run(f"r{k}", 0, tmp_path / str(k), Config()), "done") for k in range(3)]
    last = pool.Seen(Run("r3", 0, tmp_path / "3", Config()), "running", step=50, total=100)
    assert left.seconds([*seen, last]) is None
    now[0], last.step = 10.0, 75
    assert left.seconds([*seen, last]) == pytest.approx(10 * (100 - 71.25) / 23.75)
    assert [pool.lasting(s) for s in (None, 4.4, 65, 3723)] == ["", "0:04 left", "1:05 left", "1:02:03 left"]
