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
from hypermargin.compare import Comparison, Plan, compare, pool
from hypermargin.compare.numbers import MEASURES, T95, column, exceeds_noise, table
from hypermargin.compare.reading import reading
from hypermargin.training import RunError

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


def test_a_crash_of_a_run_is_a_failure(data, tmp_path):
    """Killed from outside, as by a machine without memory."""

    def kill(seen, about):
        if about.state == "running" and about.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(about.pid, signal.SIGKILL)

    plan = Plan({**SMALL, "data": str(data), "epochs": 50}, ("normface",), seeds=1, plane=0)
    found = compare(plan, tmp_path / "out", jobs=2, watch=kill)
    assert list(found.failed) == ["normface, seed 0"]
    assert "the process ended with signal 9" in found.failed["normface, seed 0"]
    assert "No run has finished" in found.report.read_text(encoding="utf-8")


def numbers_of(folder):
    """What must not depend on how often a comparison was stopped."""
    found = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))["runs"]
    return {
        (head, seed): {k: v for k, v in about["numbers"].items() if k not in ("seconds", "bytes")}
        for head, seeds in found.items()
        for seed, about in seeds.items()
    }


@pytest.mark.parametrize(
    "how",
    [pytest.param(signal.SIGINT, id="ctrl-c"), pytest.param(signal.SIGKILL, id="kill-9", marks=pytest.mark.slow)],
)
def test_a_stopped_comparison_goes_on_to_the_same_numbers(how, done, data, tmp_path):
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
        if not any(_held(run) for run in (tmp_path / "runs").iterdir()):
            break
        time.sleep(0.1)
    left = [run for run in Plan.read(tmp_path).runs(tmp_path) if not pool.is_done(run.folder)]
    assert left
    again = command("--out", tmp_path, "--resume")
    out, err = again.communicate(timeout=240)
    assert again.returncode == 0, err
    assert numbers_of(tmp_path) == numbers_of(done.folder)
    assert f"report: {tmp_path / 'report.html'}" in out


def _held(run):
    """Does a process train in this folder? Its record lock can be seen from outside only."""
    probe = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    lock = run / ".lock"
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
        (["--head", "cosface:m=3"], r"CosFace\(m=…\) must lie in \[0, 2\); got 3"),
        (["--head", "arcface:k=3"], "k"),
        (["--head", "arcface", "--head", "arcface"], "heads must differ; got 'arcface' twice"),
        (["--seeds", "0"], "seeds must be at least 1; got 0"),
        (["--data", "nowhere"], "data must be one of"),
        (["--jobs", "0"], "jobs must be at least 1; got 0"),
    ],
)
def test_mistakes_are_told_before_anything_is_trained(arguments, complaint, run, tmp_path):
    code, out, err = run("compare", *arguments, "--out", tmp_path / "out")
    assert (code, out) == (2, "")
    assert re.search(complaint, err), err
    assert not (tmp_path / "out" / "runs").exists()


# Which differences exceed the noise


def test_students_t_is_right():
    assert [round(float(stats.t.ppf(0.975, k + 1)), 3) for k in range(len(T95))] == list(T95)


@given(st.integers(2, 12), st.floats(-3, 3), st.integers(0, 10_000))
def test_noise_is_judged_as_by_a_paired_t_test(n, shift, seed):
    rng = np.random.default_rng(seed)
    a = dict(enumerate(rng.normal(size=n).tolist()))
    b = dict(enumerate((rng.normal(size=n) + shift).tolist()))
    p = stats.ttest_rel(list(a.values()), list(b.values())).pvalue
    if abs(p - 0.05) > 1e-3:  # the table of t has three digits
        assert exceeds_noise(a, b) == (p < 0.05)


def test_marks():
    cells = column(BY_KEY["eer"], {"a": {0: 0.1, 1: 0.11, 2: 0.12}, "b": {0: 0.2, 1: 0.21, 2: 0.22}, "c": {}})
    assert {head: cell.mark for head, cell in cells.items()} == {"a": "best", "b": "behind"}
    cells = column(BY_KEY["eer"], {"a": {0: 0.1, 1: 0.3}, "b": {0: 0.2, 1: 0.21}, "c": {0: 0.9, 1: 0.91}})
    assert {head: cell.mark for head, cell in cells.items()} == {"a": "level", "b": "level", "c": "level"}
    cells = column(BY_KEY["rank1"], {"a": {0: 0.1}, "b": {0: 0.2}})
    assert {cell.mark for cell in cells.values()} == {""}
    cells = column(BY_KEY["met"], {"a": {0: 0.1, 1: 0.1}, "b": {0: 0.2, 1: 0.2}})
    assert {cell.mark for cell in cells.values()} == {""}, "meeting the margin more often is not better"


def test_noise_alone_is_seldom_marked():
    """Five equal heads, three seeds: a best one is named by chance only, and seldom."""
    rng = np.random.default_rng(0)
    marked = 0
    for _ in range(300):
        values = {str(h): dict(enumerate(rng.normal(size=3).tolist())) for h in range(5)}
        marked += any(cell.mark == "best" for cell in column(BY_KEY["eer"], values).values())
    assert marked / 300 < 0.05


def words_of(values, seeds, failed=()):
    measured = {
        head: {k: {"eer": v, "seconds": 1.0} for k, v in enumerate(found)} for head, found in values.items()
    }
    return reading(table(measured), seeds, dict(failed))


def test_the_reading_says_what_can_be_said():
    one = words_of({"a": [0.1], "b": [0.2]}, 1)
    assert "With one seed nobody knows whether that is more than luck" in one[0]
    clear = words_of({"a": [0.10, 0.11, 0.12], "b": [0.20, 0.21, 0.22]}, 3)
    assert clear[0].startswith("a has the lowest EER, 11.00 ± 1.00 %, ahead of every other head")
    open_ = words_of({"a": [0.10, 0.16, 0.12], "b": [0.13, 0.12, 0.15], "c": [0.50, 0.52, 0.51]}, 3)
    assert "b cannot be told apart from it with 3 seeds; behind by more than the seeds vary: c" in open_[0]
    assert any("2 runs failed (x; y)" in text for text in words_of({"a": [0.1]}, 1, {"x": "", "y": ""}))


# The report


def test_the_report_is_one_file_that_names_no_machine(done):
    text = done.report.read_text(encoding="utf-8")
    assert not re.search(r'(?:src|href)="(?!#|data:)', text)
    assert os.fspath(done.folder.parent) not in text
    assert os.fspath(done.plan.settings["data"]) not in text
    for head in done.plan.heads:
        assert text.count(head) > 3


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
        expect(page.locator("#play")).to_have_text("Stop")
        expect(page.locator("#play")).to_have_text("Play")  # it has come to the end
        assert picture.evaluate("c => c.toDataURL()") == last
        ground = "getComputedStyle(document.querySelector('.report')).backgroundColor"
        ink = "getComputedStyle(document.querySelector('#side svg [style*=\"stroke: #222222\"]')).stroke"
        seen = []
        for theme in ("light", "dark"):
            page.locator("#theme").select_option(theme)
            seen.append((page.evaluate(ground), page.evaluate(ink)))
        assert seen == [("rgb(255, 255, 255)", "rgb(34, 34, 34)"), ("rgb(20, 23, 28)", "rgb(232, 232, 232)")]
    with opened(browser, text, tmp_path, size=PHONE) as page:
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_comparison_is_read_back(done):
    again = Comparison.read(done.folder, Plan.read(done.folder))
    assert again.table == done.table
    assert again.sentences == done.sentences
