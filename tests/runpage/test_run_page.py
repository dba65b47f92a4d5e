"""The page of a run and of anybody's embeddings: what it says is what `evaluate` says, and it harms nobody."""

import base64
import csv
import io
import json
import re

import numpy as np
import pytest
import torch
from browser import PHONE, opened
from command import here
from PIL import Image

import hypermargin as hm
from hypermargin.data.exclusion import read_names
from hypermargin.evaluate import evaluate, verification
from hypermargin.runpage import Subject, of_embeddings, page, thumbnails, words
from hypermargin.runpage.cloud import NODES, cloud
from hypermargin.runpage.run import SERIES, curves
from hypermargin.runpage.write import write_list

QUICK = ("--epochs", 2, "--model", "mlp", "--batch", 16, "--threads", 1, "--workers", 0, "--no-tensorboard")
EVIL = "</script><img src=x onerror=alert(1)>&\u2028'\"{k}"


def data_of(html):
    return json.loads(re.search(r'id="hm-data">(.*?)</script>', html, re.DOTALL)[1])


def embeddings(identities=30, each=5, dim=6, seed=0, noise=0.5):
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(identities), each)
    return rng.normal(size=(identities, dim))[y] + noise * rng.normal(size=(len(y), dim)), y


def page_of(x, labels, title="mine", **subject):
    result = evaluate(x, labels, confidence=None)
    v = result.verification
    subject = Subject(torch.from_numpy(x), labels, **subject)
    return page({"title": title, **of_embeddings(subject, result, {"eer": v.threshold, "0.1": v.thresholds[0.1]})})


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Images of 12 identities with evil names, and a run on them, its page written by the command."""
    folder = tmp_path_factory.mktemp("page")
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(12), 8)
    images = np.clip(rng.integers(0, 256, (12, 12, 12))[y] + rng.normal(0, 50, (96, 12, 12)), 0, 255)
    np.savez(folder / "faces.npz", images=images.astype(np.uint8), labels=np.array([f"{EVIL}{k:02d}" for k in y]))
    code, out, err = here(
        "train", "--data", folder / "faces.npz", "--split", "identity", "--dim", 3, *QUICK, "--out", folder / "run"
    )
    assert code == 0, err
    assert f"report: {folder / 'run' / 'report.html'}" in out
    return folder


@pytest.fixture(scope="module")
def report(place):
    return (place / "run" / "report.html").read_text(encoding="utf-8")


def test_the_page_of_a_run_says_what_the_run_is(place, report):
    found = data_of(report)
    assert found["title"] == "arcface on faces.npz"
    assert found["part"] == "test"
    trained = hm.load(place / "run")
    assert found["step"] == trained.step
    with np.load(place / "run" / "split.npz") as split, np.load(place / "faces.npz") as data:
        rows = split["test"]
        features, labels = trained.features(data["images"][rows]), data["labels"][rows]
    v = verification(features, labels)
    assert (found["genuine"], found["impostor"]) == (v.genuine, v.impostor)
    assert found["eer"] == pytest.approx(v.eer)
    assert found["log"]["train"]["loss"]
    assert found["settings"]["data"] == "faces.npz"
    assert str(place) not in report, "where things lie on this machine is nobody's business"
    assert found["cloud"]["classes"] == len(trained.classes)
    assert len(found["pictures"]) > 10
    row, url = next(iter(found["pictures"].items()))
    image = np.asarray(Image.open(io.BytesIO(base64.b64decode(url.split(",")[1]))))
    with np.load(place / "faces.npz") as data:
        assert np.array_equal(image, data["images"][rows[int(row)]])


def test_pictures_are_those_of_the_samples():
    rng = np.random.default_rng(0)
    gray, colour = rng.integers(0, 256, (20, 13), np.uint8), rng.integers(0, 256, (9, 17, 3), np.uint8)
    for sample in (gray, colour):
        made = thumbnails.png(thumbnails.small(sample))
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(made))), sample)
    large = thumbnails.small(rng.integers(0, 256, (500, 250, 3), np.uint8))
    assert large.shape == (48, 24, 3)
    scaled = thumbnails.small(np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8))
    assert (scaled.min(), scaled.max()) == (0, 255)
    assert thumbnails.small(np.zeros(30)) is None


def test_pictures_are_bounded():
    noise = np.random.default_rng(0).integers(0, 256, (3000, 48, 48, 3), np.uint8)
    found = thumbnails.thumbnails(range(3000), lambda row: noise[row])
    assert sum(map(len, found.values())) < thumbnails.MOST_BYTES + 20_000
    assert list(found) == list(range(len(found))), "the first that were asked for"
    small = np.zeros((3000, 4, 4), np.uint8)
    assert len(thumbnails.thumbnails(range(3000), lambda row: small[row])) == thumbnails.MOST

    def broken(row):
        raise OSError("gone") if row == 1 else ValueError("damaged") if row == 2 else StopIteration

    assert thumbnails.thumbnails([1, 2], broken) == {}


def test_without_images_and_without_a_report(place, run):
    flags = ("--data", place / "faces.npz", "--split", "identity", "--dim", 3, *QUICK, "--epochs", 1, "--quiet")
    code, out, _ = run("train", *flags, "--no-images", "--out", place / "plain")
    assert code == 0
    text = (place / "plain" / "report.html").read_text(encoding="utf-8")
    assert "data:image" not in text
    assert data_of(text)["pictures"] == {}
    code, out, _ = run("train", *flags, "--no-report", "--out", place / "bare")
    assert code == 0
    assert "report" not in out
    assert not (place / "bare" / "report.html").exists()


def test_a_page_that_cannot_be_written_costs_nothing_else(place, run, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hypermargin.runpage.write.page", full)
    flags = ("--data", place / "faces.npz", "--split", "identity", "--dim", 3, *QUICK, "--epochs", 1)
    code, out, err = run("train", *flags, "--out", place / "full")
    assert code == 0
    assert "no report written: [Errno 28] No space left on device" in err
    assert "report:" not in out
    assert (place / "full" / "result.json").exists()
    assert not list((place / "full").glob("*report*"))


def test_evaluate_writes_the_same_page(place, run):
    code, _, _ = run("evaluate", place / "run", "--out", place / "found", "--no-images")
    assert code == 0
    found = data_of((place / "found" / "report.html").read_text(encoding="utf-8"))
    assert found["head"]["name"] == "arcface"
    assert found["pictures"] == {}
    assert any(row["low"] is not None for row in found["numbers"])  # with intervals
    listed = (place / "found" / "look-first.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(io.StringIO(listed)))
    named = [row["file"] for row in rows if row["kind"] == "mislabelled"]
    assert named == read_names(place / "found" / "look-first.csv")  # what `train --exclude` takes
    assert all(name.startswith(str(place / "faces.npz")) for name in named)


def test_lines_of_a_log_that_are_no_numbers_are_passed_over():
    lines = ['{"kind": "train", "step": 1, "loss": 2.0}', '{"kind": "train", "step": 2, "loss": null}', "[1]",
             '{"kind": "train", "step": 3, "loss": 1.5}', '{"kind": "validation", "step": 3, "eer": 0.1}', "{", "",
             '{"kind": "other", "step": 4}', '{"kind": "train", "step": "x"}', '{"kind": "trai']  # fmt: skip
    found = curves(lines)
    assert found == {
        "train": {"step": [1, 2, 3], "loss": [2.0, None, 1.5]},
        "validation": {"step": [3], "eer": [0.1]},
    }
    # The last steps of an epoch have a line of the loss alone, and the curves of the others stay.
    ends = ['{"kind": "train", "step": 1, "loss": 2.0, "angle": 80.0}', '{"kind": "train", "step": 2, "loss": 1.5}']
    assert curves(ends) == {"train": {"step": [1, 2], "loss": [2.0, 1.5], "angle": [80.0, None]}}
    many = [json.dumps({"kind": "train", "step": k, "loss": 1 / k}) for k in range(1, 5001)]
    steps = curves(many)["train"]["step"]
    assert len(steps) <= SERIES
    assert (steps[0], steps[-1]) == (1, 5000)


def test_the_cloud_is_log_sum_exp():
    x = torch.nn.functional.normalize(torch.randn(50, 8, generator=torch.Generator().manual_seed(0)))
    w = torch.nn.functional.normalize(torch.randn(9, 8, generator=torch.Generator().manual_seed(1)))
    y = torch.arange(50) % 9
    found = cloud(x, y, w, "weight", most=20)
    assert (len(found.own), found.of, found.classes) == (20, 50, 9)
    cosine = (x @ w.T)[torch.from_numpy(found.rows)]
    label = y[torch.from_numpy(found.rows), None]
    others = cosine.scatter(1, label, -torch.inf)
    assert found.own == pytest.approx(cosine.gather(1, label)[:, 0].numpy(), abs=1e-6)
    assert found.rival == pytest.approx(others.amax(1).numpy(), abs=1e-6)
    for k in (0, 7, 14):
        assert found.rest[:, k] == pytest.approx((NODES[k] * others).logsumexp(1).numpy() / NODES[k], abs=1e-5)


# In a browser


def settle(page):
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def shown(page, name):
    cells = page.locator('[data-shows-list="rates"] > div').filter(has_text=name).first.locator("dd")
    return float(cells.first.inner_text().replace("\u00a0", " ").rstrip(" %")) / 100


def test_the_threshold_says_what_the_curve_says(browser, tmp_path):
    x, y = embeddings()
    v = verification(x, y)
    with opened(browser, page_of(x, y), tmp_path) as found:
        slider = found.locator("#hp-t")
        for key in ("", "ArrowLeft", "ArrowRight", "PageUp", "PageUp", "Home", "End"):
            if key:
                slider.focus()
                found.keyboard.press(key)
                settle(found)
            data = found.evaluate("JSON.parse(document.getElementById('hm-data').textContent).curve")
            t = data["threshold"][int(slider.input_value())]
            far, tar = v.curve.at(t)
            assert shown(found, "FAR") == pytest.approx(far, abs=1e-4), key
            assert shown(found, "FRR") == pytest.approx(1 - tar, abs=1e-4), key
        found.locator('[data-shows-list="presets"] button').nth(1).click()  # FAR 0.1
        settle(found)
        assert shown(found, "FAR") == pytest.approx(v.curve.at(v.thresholds[0.1])[0], abs=1e-4)
        before = slider.input_value()
        box = found.locator('[data-plot="scores"]').bounding_box()
        found.mouse.click(box["x"] + 0.9 * box["width"], box["y"] + 80)
        settle(found)
        assert int(slider.input_value()) < int(before), "a higher score is a stricter threshold"


def test_pairs_follow_the_threshold_and_are_marked_everywhere(browser, tmp_path):
    x, y = embeddings(noise=0.8)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    with opened(browser, page_of(x, y), tmp_path) as found:
        cards = found.locator('[data-shows-list="accepted"] button')
        scores = [
            float(text.split(" · ")[0]) for text in cards.locator(".hp-lines span:last-child").all_inner_texts()
        ]
        i, j = np.triu_indices(len(y), 1)
        wrong = np.sort((unit @ unit.T)[i, j][y[i] != y[j]])[::-1]
        assert scores == pytest.approx(wrong[:12].tolist(), abs=6e-4)
        marks = "plot => document.querySelectorAll(`[data-plot=${plot}] circle`).length"
        before = [found.evaluate(marks, plot) for plot in ("scores", "roc", "norms")]
        cards.nth(3).focus()
        settle(found)
        after = [found.evaluate(marks, plot) for plot in ("scores", "roc", "norms")]
        assert [b - a for a, b in zip(before, after, strict=True)] == [1, 1, 2]
        assert "different, accepted" in found.locator('[data-shows="picked"]').text_content()
        found.locator("#hp-t").focus()
        found.keyboard.press("Home")  # above all scores: nothing is accepted
        settle(found)
        assert cards.count() == 0
        assert "0 pairs" in found.locator('[data-shows="accepted"]').text_content()
        # A sample, by the keyboard: its pairs.
        found.locator('[data-plot="norms"]').focus()
        found.keyboard.press("ArrowRight")
        settle(found)
        assert found.locator('[data-shows="near"]').text_content().startswith("Pairs with ")
        own = found.locator('[data-shows-list="near"] button').count()
        assert own > 1
        marked = [found.evaluate(marks, plot) for plot in ("scores", "roc", "norms")]
        assert [b - a for a, b in zip(before, marked, strict=True)] == [own, own, 1], "its pairs, and itself"
        found.locator('[data-do="forget"]').click()
        settle(found)
        assert found.locator('[data-shows="near"]').text_content().startswith("At the line")


@pytest.mark.parametrize(
    ("size", "scheme"),
    [((1280, 900), "light"), (PHONE, "dark"), pytest.param((1920, 1000), "dark", marks=pytest.mark.slow)],
)
def test_the_page_of_a_run_in_a_browser(report, browser, tmp_path, size, scheme):
    """Evil names are text, nothing scrolls sideways, both languages are whole; `opened` watches for requests."""
    with opened(browser, report, tmp_path, size=size, scheme=scheme) as found:
        assert found.locator("img[src=x]").count() == 0
        assert EVIL in found.locator("#threshold").inner_text()
        for lang in ("zh", "en"):
            found.locator('.hm-page [data-choice="lang"]').select_option(lang)
            settle(found)
            assert found.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert found.evaluate("document.documentElement.lang") == {"zh": "zh-Hans", "en": "en"}[lang]
            text = found.locator(".hm-page").inner_text().replace("中文", "")
            assert bool(re.search(r"[一-鿿]", text)) == (lang == "zh")
            assert not re.search(r"\{[a-jl-z]\w*\}", text)
        explorer = found.locator(".hm-explorer [data-shows=file]").text_content()
        assert "against the class vectors" in explorer
        picture = found.locator('[data-plot="space"]')
        picture.focus()
        before = picture.evaluate("c => c.toDataURL()")
        found.keyboard.press("ArrowRight")
        settle(found)
        assert picture.evaluate("c => c.toDataURL()") != before


def test_known_classes_in_a_plane_have_their_vectors(browser, run, tmp_path):
    flags = ("--data", "digits", "--dim", 2, "--epochs", 1, "--model", "mlp", "--threads", 1, "--workers", 0)
    code, _, err = run("train", *flags, "--no-tensorboard", "--quiet", "--no-images", "--out", tmp_path / "run")
    assert code == 0, err
    text = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    vectors = data_of(text)["vectors"]
    seen = np.frombuffer(base64.b64decode(vectors["at"]), "<f4").reshape(10, 2)
    weight = hm.load(tmp_path / "run").head.weight.detach()
    assert seen == pytest.approx(torch.nn.functional.normalize(weight).numpy(), abs=1e-6)
    assert vectors["names"] == [str(k) for k in range(10)]
    with opened(browser, text, tmp_path) as found:
        assert "Two dimensions" in found.locator('[data-shows="space"]').text_content()


def test_the_list_is_saved_as_csv(browser, tmp_path):
    """A cell that a spreadsheet would take for a formula is text."""
    x, y = embeddings(identities=10, each=6, noise=0.1)
    names = np.array([f"=HYPERLINK({k})" for k in y])
    names[:2] = names[-1]  # two samples under another name
    with opened(browser, page_of(x, names), tmp_path) as found:
        with found.expect_download() as saved:
            found.locator('[data-do="csv"]').click()
        text = saved.value.path().read_text(encoding="utf-8-sig")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["kind"] for row in rows].count("mislabelled") == 2
    assert {row["other"] for row in rows if row["kind"] == "mislabelled"} == {" =HYPERLINK(0)"}


def test_a_name_is_no_formula_in_the_list_beside_the_page(tmp_path):
    """Numbers stay as they are, and so does the column that `train --exclude` reads."""
    look = {
        "duplicates": [{"first": "=1+1", "second": "-2", "within": None, "between": 0.5}],
        "mislabelled": [{"row": 3, "label": "@x", "other": "p", "own": 0.1, "theirs": 0.6}],
        "split": [{"label": "+cmd|' /C calc'!A0", "across": 0.2}],
    }
    write_list(tmp_path / "list.csv", look, "=photos/{}.png".format)
    with (tmp_path / "list.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["label"] for row in rows] == [" =1+1", " @x", " +cmd|' /C calc'!A0"]
    assert [row["other"] for row in rows] == ["-2", "p", ""]
    assert read_names(tmp_path / "list.csv") == ["=photos/3.png"]


def test_names_of_any_length_and_direction(browser, tmp_path):
    """They push no number out of sight, and what turns the direction of writing ends with the name."""
    x, y = embeddings(identities=10, each=6, noise=0.9)
    names = np.array([f"\u202eolleh {k}" if k % 2 else "x" * 200 + str(k) for k in y])
    with opened(browser, page_of(x, names), tmp_path, size=PHONE) as found:
        for name in ("confused", "refused"):
            place = found.locator(f'[data-shows-list="{name}"]')
            assert place.locator("tbody tr").count() > 0
            assert place.evaluate("e => e.scrollWidth <= e.clientWidth"), name
        shown = found.locator("#threshold").text_content() + found.locator("#look").text_content()
        assert shown.count("\u202e") == shown.count("\u2068\u202e") > 0
        assert shown.count("\u2068") == shown.count("\u2069")


def test_scores_alone_have_a_page(browser, run, tmp_path):
    rng = np.random.default_rng(0)
    same = rng.random(500) < 0.3
    np.savez(tmp_path / "scores.npz", scores=rng.normal(size=500) + 2 * same, same=same)
    code, _, _ = run("evaluate", tmp_path / "scores.npz", "--out", tmp_path / "out", "--confidence", 0)
    assert code == 0
    text = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    with opened(browser, text, tmp_path) as found:
        assert found.locator("#threshold").is_visible()
        for name in ("look", "numbers", "curves", "angles", "space", "settings"):
            assert not found.locator(f"#{name}").is_visible(), name


def test_words_are_whole():
    english, chinese = words()["en"], words()["zh"]
    assert list(english) == list(chinese)
    for key in english:
        named = [sorted(re.findall(r"\{(\w+)\}", each[key])) for each in (english, chinese)]
        assert named[0] == named[1], key
        assert not re.search(r"[一-鿿]", english[key]), key
