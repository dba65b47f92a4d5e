"""The demo: its page says what came out, whatever came out, in two languages."""

import dataclasses
import re
import string

import numpy as np
import pytest
from browser import PHONE, opened

import hypermargin.demo.plan as demo_plan
from hypermargin.compare import Plan, compare
from hypermargin.compare.numbers import Cell
from hypermargin.demo import PLAN, Findings, demo, find, page
from hypermargin.demo.findings import HEADS, Flat, Many
from hypermargin.demo.page import words
from hypermargin.training import Interrupted, RunError

LANGUAGES = {"en": "en", "zh": "zh-CN"}


def cell(*values, spread=0.001):
    return Cell(dict(enumerate(values)), float(np.mean(values)), spread)


def flat(scale, m, away):
    turns = np.arange(40) % 4 * np.pi / 2
    prototypes = np.stack((np.cos(np.arange(4) * np.pi / 2), np.sin(np.arange(4) * np.pi / 2)), 1)
    features = np.stack((np.cos(turns + np.radians(away)), np.sin(turns + np.radians(away))), 1)
    return Flat(scale, m, away, 0.975, features, np.arange(40) % 4, prototypes, tuple("0123"))


def many(scale, m, eers):
    edges = np.linspace(-1, 1, 11)
    return Many(scale, m, cell(*eers), cell(0.70, 0.72, 0.71), edges, np.arange(10), np.arange(10)[::-1])


@pytest.fixture
def found():
    """Numbers like those that come out: s matters, the margin on many classes does not."""
    return Findings(
        {"large": flat(64.0, 0.0, 6.9), "advised": flat(24.1, 0.0, 2.5), "margin": flat(24.1, 0.314, 0.8)},
        {
            "large": many(64.0, 0.0, (0.048, 0.047, 0.050)),
            "advised": many(11.7, 0.0, (0.032, 0.032, 0.033)),
            "margin": many(13.8, 0.5, (0.033, 0.031, 0.034)),
        },
        classes=1155, unseen=642, dim=64, seeds=3, epochs=10, flat_epochs=40,
    )  # fmt: skip


def text_of(html, lang="en"):
    """What a reader of one language sees."""
    for other in LANGUAGES.values():
        if other != LANGUAGES[lang]:
            html = re.sub(rf'<span lang="{other}">(?:[^<]|<a.*?</a>)*</span>', "", html)
    html = re.sub(r"<(style|script|svg).*?</\1>", "", html, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", html).replace("\u00a0", " ").split())


def with_flat(found, **away):
    return dataclasses.replace(
        found, flat={key: head._replace(away=away.get(key, head.away)) for key, head in found.flat.items()}
    )


def with_eer(found, **eers):
    changed = {
        key: head._replace(eer=cell(*eers[key])) if key in eers else head for key, head in found.many.items()
    }
    return dataclasses.replace(found, many=changed)


def test_both_languages_say_the_same_things():
    english, chinese = words().values()
    assert english.keys() == chinese.keys()
    for key in english:
        numbers = [
            {name for _, name, _, _ in string.Formatter().parse(said[key]) if name} for said in words().values()
        ]
        assert numbers[0] == numbers[1], key


def test_the_headline_is_true_however_it_came_out(found):
    said = text_of(page(found))
    assert (
        "a test digit lies 6.9° from the direction of its class with s = 64, 2.5° with the advised s = 24.1, "
        "and 0.8° with a margin of 18° added." in said
    )
    assert "not bring them" not in said
    assert "the dots gather at the arrows" in said
    scale, margin = (
        "the advised s did not bring them clearly closer",
        "the margin did not bring them clearly closer",
    )
    said = text_of(page(with_flat(found, large=2.6)))
    assert scale in said
    assert margin not in said
    assert "the dots gather" not in said
    said = text_of(page(with_flat(found, advised=7.0, margin=7.0)))
    assert scale in said
    assert margin in said
    assert "没有使它们明显靠近" in text_of(page(with_flat(found, margin=2.4)), "zh")


@pytest.mark.parametrize(
    ("advised", "verdict", "words_of_it"),
    [
        ((0.032, 0.032, 0.033), "better", "is better than s = 64 by more than the seeds vary"),
        ((0.068, 0.068, 0.070), "worse", "Here s = 64 is better than the advised s"),
        ((0.020, 0.090, 0.030), "level", "cannot tell s = 64 and the advised s apart"),
        ((0.032, 0.032), "level", "cannot tell s = 64 and the advised s apart"),
    ],
)
def test_nothing_is_called_better_that_the_seeds_do_not_show(found, advised, verdict, words_of_it):
    changed = with_eer(found, advised=advised)
    assert changed.verdict("eer", "advised", "large") == verdict
    assert words_of_it in text_of(page(changed))


def test_the_margin_is_judged_too(found):
    assert "cannot tell whether the margin helps" in text_of(page(found))
    better, worse = (with_eer(found, margin=eers) for eers in ((0.012, 0.013, 0.013), (0.052, 0.051, 0.053)))
    assert "The margin improves on the advised s alone" in text_of(page(better))
    assert "The margin does worse than the advised s alone" in text_of(page(worse))


def test_the_page_stays_on_the_machine_and_speaks_both_languages(browser, found, tmp_path):
    html = page(found)
    for lang in LANGUAGES:
        assert "{" not in text_of(html, lang)
    for size in ((1280, 900), PHONE):
        with opened(browser, html, tmp_path, size=size) as shown:
            assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth")
            top, height = shown.evaluate(
                "[document.querySelector('.circle svg').getBoundingClientRect().bottom, innerHeight]"
            )
            assert top < height, "a picture belongs on the first screen"
            assert shown.locator("h1").inner_text().startswith("The same network")
            shown.locator("#lang").select_option("zh")
            assert shown.locator("h1").inner_text().startswith("同一个网络")
            assert shown.evaluate("[document.documentElement.lang, document.title]") == [
                "zh-CN", words()["zh"]["title"],
            ]  # fmt: skip
            assert "完整报告" in shown.locator("main").inner_text()
            light = shown.evaluate("getComputedStyle(document.body).backgroundColor")
            shown.locator("#theme").select_option("dark")
            assert shown.evaluate("getComputedStyle(document.body).backgroundColor") != light


def test_what_is_missing_is_said_before_anything_is_trained(monkeypatch, tmp_path):
    monkeypatch.setattr(demo_plan, "absent", lambda *names: [name for name in names if name != "pillow"])
    with pytest.raises(ModuleNotFoundError, match=r"pip install matplotlib scikit-learn$"):
        demo(tmp_path / "demo")
    assert not (tmp_path / "demo").exists()


def test_another_comparison_is_left_alone(tmp_path):
    Plan({"data": "digits"}).save(tmp_path)
    with pytest.raises(
        RunError, match=r"holds another comparison than this demo. Remove it, or choose another --out"
    ):
        demo(tmp_path)


def test_the_command_says_where_the_page_is_and_how_to_go_on(monkeypatch, run, tmp_path):
    monkeypatch.setattr("hypermargin.demo.demo", lambda out, **_: out / "index.html")
    assert run("demo", "--out", tmp_path) == (0, f"open {tmp_path / 'index.html'}\n", "")

    def stopped(out, **_):
        raise Interrupted("stopped; every run under way is saved")

    monkeypatch.setattr("hypermargin.demo.demo", stopped)
    code, _, err = run("demo", "--out", tmp_path)
    assert (code, err) == (
        130,
        f"stopped; every run under way is saved. Go on with: hypermargin demo --out {tmp_path}\n",
    )


def test_the_heads_differ_in_one_thing_each():
    """As the page says: s alone from the first to the second; the network and the data are one plan's."""
    assert PLAN.heads == tuple(HEADS.values())
    assert HEADS["large"].replace("scale=64,", "") == HEADS["advised"]
    assert PLAN.seeds >= 3


@pytest.mark.slow
def test_a_small_demo_from_beginning_to_end(monkeypatch, tmp_path):
    """On digits, in two epochs: the page is there, is made again without training, and says what arrays say."""
    small = Plan(
        {"data": "digits", "split": "identity", "model": "lenet++", "model_set": {"width": 4}, "dim": 4,
         "epochs": 1, "batch": 32, "log": 5, "device": "cpu"}, PLAN.heads, seeds=1, plane=2,
    )  # fmt: skip
    monkeypatch.setattr(demo_plan, "PLAN", small)
    path = demo(tmp_path / "demo")
    first = path.read_text(encoding="utf-8")
    found = find(compare(small, tmp_path / "demo", resume=True))
    for head in found.flat.values():
        x, w = head.features, head.prototypes[head.labels]
        cosines = (x * w).sum(1) / np.sqrt((x**2).sum(1) * (w**2).sum(1))
        assert head.away == pytest.approx(np.degrees(np.arccos(cosines.clip(-1, 1))).mean())
    assert found.flat["margin"].m == pytest.approx(np.pi / 10)
    assert f"{found.flat['large'].away:.1f}°" in text_of(first)
    trained = {p: p.stat().st_mtime_ns for p in (tmp_path / "demo").rglob("measures.json")}
    assert demo(tmp_path / "demo").read_text(encoding="utf-8") == first
    assert trained == {p: p.stat().st_mtime_ns for p in (tmp_path / "demo").rglob("measures.json")}
