"""The explorer with the reader's own samples: its numbers are the library's."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from browser import PHONE, opened
from command import here
from explorer_page import arrays, give, go, packed, settle, value

import hypermargin as hm
from hypermargin import margin_softmax
from hypermargin.cli._flags import given_settings
from hypermargin.margins import ArcFace, Combined, ExpFace, SphereFace, X2Softmax
from hypermargin.plots import explorer
from hypermargin.training.build import resolve_head
from hypermargin.training.config import from_dict

PAGE = explorer.page()


@pytest.fixture(scope="module")
def page(browser, tmp_path_factory):
    with opened(browser, PAGE, tmp_path_factory.mktemp("samples")) as found:
        yield found


def expected(x, y, w, margin, s, lam=0.0):
    """Mean loss, share that meets the margin, and mean pull, by the library in float64."""
    x, w, y = torch.from_numpy(x).double(), torch.from_numpy(w).double(), torch.from_numpy(y)
    loss = margin_softmax(x, w, y, margin, scale=s, lam=lam, reduction="none")
    cosine = torch.nn.functional.normalize(x) @ torch.nn.functional.normalize(w).T
    theta = cosine.gather(1, y[:, None])[:, 0].clamp(-1, 1).acos().requires_grad_()
    psi = theta.cos() + (margin.psi(theta) - theta.cos()) / (1 + lam)
    (slope,) = torch.autograd.grad(psi.sum(), theta)
    rival = cosine.scatter(1, y[:, None], -torch.inf).amax(1)
    pull = -(1 - (-loss).exp()) * s * slope
    return loss.mean().item(), (psi >= rival).double().mean().item(), pull.mean().item()


SETTINGS = (
    ({"m2": 0.5, "s": 64}, ArcFace(0.5)), ({"m2": 0, "m3": 0.35, "s": 30}, Combined(1, 0, 0.35)),
    ({"m1": 4, "m2": 0, "lambda": 5, "s": 11.3}, SphereFace(4.0)), ({"m2": 0.2, "s": 1}, ArcFace(0.2)),
    ({"form": "x2", "m2": 0, "s": 30}, X2Softmax()), ({"form": "expface", "m2": 0, "s": 64}, ExpFace()),
    ({"m1": 1.2, "m2": 0.1, "m3": 0.1, "s": 128}, Combined(1.2, 0.1, 0.1)), ({"m2": 0.3, "s": 2.5}, ArcFace(0.3)),
)  # fmt: skip


@pytest.mark.parametrize("compressed", [False, True])
def test_numbers_are_the_librarys(page, compressed):
    """R(s) between the nodes is a spline: within a thousandth of s·1 beside the library's."""
    x, y, w = arrays()
    said = give(page, packed(compressed, embeddings=x, labels=y, weight=w))
    assert "400 samples, 40 classes, against the class vectors" in said
    for state, margin in SETTINGS:
        go(page, **state)
        loss, met, pull = expected(x, y, w, margin, state["s"], state.get("lambda", 0.0))
        assert value(page, "samplesLoss") == pytest.approx(loss, abs=1e-3 * state["s"] + 1e-3)
        assert value(page, "samplesMet") == pytest.approx(100 * met, abs=1e-9)
        assert value(page, "samplesPull") == pytest.approx(pull, rel=2e-3, abs=2e-3)


def test_without_class_vectors_the_classes_own_means(page):
    x, y, _ = arrays()
    names = np.array([f"<img src=x onerror=alert(1)>{k}" for k in y])
    said = give(page, packed(features=np.asfortranarray(x).astype(">f8"), y=names))
    assert "against the mean directions of the classes" in said
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    centers = np.stack([unit[y == k].sum(0) for k in range(40)])
    go(page, m2=0.3, s=30)
    loss, met, _ = expected(x, y, centers, ArcFace(0.3), 30)
    assert value(page, "samplesLoss") == pytest.approx(loss, abs=0.03)
    assert value(page, "samplesMet") == pytest.approx(100 * met, abs=1e-9)
    assert page.locator("[data-panel=samples] img").count() == 0
    assert "<img" in page.locator("[data-shows-table=moved]").inner_text()


def test_dragging_says_who_gains_and_who_loses(page):
    x, y, w = arrays()
    give(page, packed(embeddings=x, labels=y, weight=w))
    go(page, m2=0, s=30, head="")
    assert (value(page, "samplesGain"), value(page, "samplesLose")) == (0, 0)
    go(page, m2=0.5, s=30)
    assert value(page, "samplesGain") > 20
    page.locator('[data-do="pin"]').click()
    settle(page)
    assert (value(page, "samplesGain"), value(page, "samplesLose")) == (0, 0), "compared with itself"
    assert page.locator("[data-plot=psi] .hm-pinned").count() == 1
    slider = page.locator('[data-slider="m2"] input[type=range]')
    slider.focus()
    for _ in range(30):
        page.keyboard.press("ArrowLeft")
    settle(page)
    assert value(page, "samplesLose") > 20
    assert page.locator("[data-shows-table=moved] tbody tr").count() >= 5
    page.locator('[data-do="pin"]').click()
    settle(page)
    assert page.locator("[data-plot=psi] .hm-pinned").count() == 0


def test_the_page_of_a_run_opens_in_the_explorer(browser, tmp_path):
    flags = (
        "--data",
        "digits",
        "--dim",
        8,
        "--set",
        "m=0.37",
        "--epochs",
        1,
        "--model",
        "mlp",
        "--threads",
        1,
        "--workers",
        0,
    )
    code, _, err = here("train", *flags, "--no-tensorboard", "--quiet", "--out", tmp_path / "run")
    assert code == 0, err
    report = (tmp_path / "run" / "report.html").read_bytes()
    trained = hm.load(tmp_path / "run")
    with opened(browser, PAGE, tmp_path) as page:
        said = give(page, report, "report.html")
        assert "10 classes, against the class vectors" in said
        scale = float(trained.head.current_scale())
        shown = float(page.locator('[data-slider="s"] input[type=number]').input_value())
        assert shown == pytest.approx(max(scale, 1), rel=1e-5)
        assert page.locator('[data-slider="classes"] input[type=number]').input_value() == "10"
        m = float(page.locator('[data-slider="m2"] input[type=number]').input_value())
        assert m == pytest.approx(trained.head.margin.m, rel=1e-5), "as trained, not the paper's"
        assert page.locator('[data-shows="ball"]').text_content() == "Your samples on the sphere"
        assert "is no page of a run" in give(page, b"<p>hello", "other.html")
    with opened(browser, report.decode(), tmp_path) as page:
        m2 = page.locator('[data-slider="m2"] input[type=number]')
        assert float(m2.input_value()) == pytest.approx(trained.head.margin.m, rel=1e-5)
        m2.fill("0.2")
        m2.press("Enter")
        page.wait_for_function("() => location.hash.includes('m2=0.2')")
        page.reload()
        settle(page)
        assert m2.input_value() == "0.2", "a link to a setting goes before the run's own"


def test_what_is_copied_runs(browser, tmp_path):
    states = (
        ({"m1": 1.3, "m2": 0.2, "m3": 0.1, "s": 25.5, "classes": 77}, "combined"),
        ({"head": "arcface"}, "arcface"), ({"m1": 4, "m2": 0, "lambda": 5, "s": 12}, "combined"),
    )  # fmt: skip
    theta = torch.linspace(0.1, 3, 20, dtype=torch.float64)
    with opened(browser, PAGE, tmp_path) as page:
        page.evaluate("navigator.clipboard.writeText = async text => { window.copied = text; }")
        for state, name in states:
            go(page, **state)
            page.locator('[data-do="python"]').click()
            features, labels = torch.randn(3, 128), torch.tensor([0, 1, 2])
            place = {"features": features, "labels": labels}
            exec(page.evaluate("copied"), place)
            head = place["head"]
            assert place["loss"].isfinite()
            assert head.classes == state.get("classes", 1000)
            assert float(head.current_scale()) == state.get("s", 64)
            psi = head.margin.psi(theta)
            lam = float(head.current_adjustment().lam)
            blended = theta.cos() + (psi - theta.cos()) / (1 + lam)
            numbers = {"m1": 1.0, "m2": 0.5, "m3": 0.0, "lambda": 0.0} | {
                k: v for k, v in state.items() if k != "head"
            }
            found = page.evaluate(
                "([ts, c]) => ts.map(t => window.hypermarginExplorer.psi(t, c))", [theta.tolist(), numbers]
            )
            assert blended.tolist() == pytest.approx(found, abs=1e-9)
            page.locator('[data-do="command"]').click()
            words = page.evaluate("copied").split()
            assert words[:4] == ["hypermargin", "train", "--data", "photos/"]
            config = config_of(words)
            assert config.head == name
            assert config.set["scale"] == state.get("s", 64)
        page.locator(".hm-link").click()
        assert page.evaluate("copied") == page.evaluate("location.href")
        assert "lambda=5" in page.evaluate("copied")
        page.wait_for_function("() => document.querySelector('[data-shows=copied]').textContent.includes('link')")


def config_of(words):
    """Return the settings of a command as it was copied."""
    flags = {}
    for flag, given in zip(words[4::2], words[5::2], strict=True):
        flags.setdefault(flag[2:], []).append(given)
    return from_dict(given_settings(None, {k: v if k in ("set", "schedule") else v[0] for k, v in flags.items()}))


def test_command_and_python_make_the_same_head(browser, tmp_path):
    """With few classes in few dimensions the advisor would take another margin: the command must not ask it."""
    with opened(browser, PAGE, tmp_path) as page:
        page.evaluate("navigator.clipboard.writeText = async text => { window.copied = text; }")
        for each in explorer.heads():
            page.locator('[data-choice="head"]').select_option(each["name"])
            settle(page)
            page.locator('[data-do="python"]').click()
            place = {"features": torch.randn(2, 128), "labels": torch.tensor([0, 1])}
            exec(page.evaluate("copied"), place)
            page.locator('[data-do="command"]').click()
            config = dataclasses.replace(config_of(page.evaluate("copied").split()), dim=3)
            config, _ = resolve_head(config, classes=36)
            head = hm.create_head(config.head, 3, 36, **config.set)
            assert head.margin == place["head"].margin, each["name"]
            assert head.current_scale().item() == place["head"].current_scale().item(), each["name"]
            assert config.schedule == ["paper"]


def test_a_scale_that_is_learned_is_not_too_small(page):
    for name, small in (("softmax", False), ("a-softmax", False), ("normface", True)):
        go(page, head="arcface")
        page.locator('[data-choice="head"]').select_option(name)
        settle(page)
        said = page.locator('[data-shows="scale"]').text_content()
        assert said.startswith("This s is too small") == small, said


def test_title_and_language_follow(page):
    page.locator('[data-choice="lang"]').select_option("zh")
    settle(page)
    assert page.evaluate("[document.title, document.documentElement.lang]") == ["间隔探索器", "zh-Hans"]
    page.locator('[data-choice="lang"]').select_option("en")
    settle(page)
    assert page.evaluate("[document.title, document.documentElement.lang]") == ["Margin explorer", "en"]


def test_the_ball_turns_by_keys_and_by_dragging(browser, tmp_path):
    with opened(browser, PAGE, tmp_path, size=PHONE, scheme="dark") as page:
        ball = page.locator('[data-plot="ball"]')
        ball.scroll_into_view_if_needed()
        settle(page)
        seen = {ball.evaluate("c => c.toDataURL()")}
        ball.focus()
        for key in ("ArrowLeft", "ArrowUp"):
            page.keyboard.press(key)
            settle(page)
            seen.add(ball.evaluate("c => c.toDataURL()"))
        box = ball.bounding_box()
        page.mouse.move(box["x"] + 60, box["y"] + 60)
        page.mouse.down()
        page.mouse.move(box["x"] + 120, box["y"] + 90)
        page.mouse.up()
        settle(page)
        seen.add(ball.evaluate("c => c.toDataURL()"))
        assert len(seen) == 4
        assert math.isfinite(sum(json.loads(ball.get_attribute("data-view"))))


def test_many_samples_do_not_freeze_the_page(browser, tmp_path):
    """While fifty thousand are measured, the page answers; afterwards every one of them is drawn."""
    x, y, w = arrays(n=50_000, dim=16, classes=50)
    with opened(browser, PAGE, tmp_path) as page:
        content = packed(embeddings=x, labels=y, weight=w)
        page.evaluate("""() => {
          const said = document.querySelector('[data-shows=file]');
          window.breaths = 0;
          setInterval(() => window.breaths += said.textContent.includes('%'));
        }""")
        page.locator("input[type=file]").set_input_files({"name": "m.npz", "mimeType": "", "buffer": content})
        page.wait_for_function(
            "() => document.querySelector('[data-shows=file]').textContent.startsWith('m.npz: 50,000')"
        )
        settle(page)
        assert page.evaluate("window.breaths") >= 3, "others had their turn while it was measuring"
        loss, met, _ = expected(x, y, w, ArcFace(0.5), 64)
        assert value(page, "samplesLoss") == pytest.approx(loss, abs=0.07)
        assert value(page, "samplesMet") == pytest.approx(100 * met, abs=0.01)
