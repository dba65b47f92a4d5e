"""The sphere as a page: turned by mouse, touch and keyboard, and no name can harm it."""

import json

import numpy as np
import pytest
from browser import DESKTOP, PHONE, opened

from hypermargin.plots.features import FeaturesDisplay
from hypermargin.plots.sphere import View
from hypermargin.plots.turnable import turnable

EVIL = "</script><img src=x onerror=alert(1)>"


def display(dim=3, **more):
    x = np.random.default_rng(0).normal(size=(60, dim))
    return FeaturesDisplay.of(x, np.arange(60) % 3, np.eye(3)[:, :dim], names=[EVIL, "b", "c"], **more)


def view(page):
    return json.loads(page.locator("canvas").get_attribute("data-view"))


@pytest.mark.parametrize(("size", "scheme"), [(DESKTOP, "light"), (PHONE, "dark")])
def test_it_turns(browser, tmp_path, size, scheme):
    turnable(display(view=View(10, 20)), tmp_path / "sphere.html")
    text = (tmp_path / "sphere.html").read_text(encoding="utf-8")
    with opened(browser, text, tmp_path, size=size, scheme=scheme) as page:
        canvas = page.locator("canvas")
        assert page.locator("img").count() == 0
        assert EVIL in page.locator(".hm-legend").inner_text()
        assert "arrow keys" in canvas.get_attribute("aria-label")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        canvas.focus()
        page.keyboard.press("ArrowLeft")
        assert view(page) == pytest.approx([np.radians(20) + 0.1, np.radians(10)]), "from where the picture is seen"
        before, box = view(page), canvas.bounding_box()
        middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        if size == PHONE:
            session = page.context.new_cdp_session(page)
            for kind, by in (("touchStart", 0), ("touchMove", 10), ("touchMove", 60), ("touchEnd", None)):
                points = [] if by is None else [{"x": middle[0] + by, "y": middle[1]}]
                session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
        else:
            page.mouse.move(*middle)
            page.mouse.down()
            page.mouse.move(middle[0] + 60, middle[1])
            page.mouse.up()
        assert view(page)[0] == pytest.approx(before[0] - 3 * 60 / box["width"], abs=0.05)


def test_dark_and_what_is_no_sphere(tmp_path):
    turnable(display(), tmp_path / "dark.html", dark=True)
    assert 'data-theme="dark"' in (tmp_path / "dark.html").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match='display must be features on the sphere; got on="plane"'):
        turnable(display(dim=2), tmp_path / "no.html")
    assert not (tmp_path / "no.html").exists()


def test_the_command_writes_it(run, tmp_path, monkeypatch):
    monkeypatch.setattr("hypermargin.plots.learned.small_run", lambda *_: "a run")
    monkeypatch.setattr("hypermargin.plots.learned.snapshot", lambda *_, **__: None)
    monkeypatch.setattr("hypermargin.plots.learned._features", lambda *_, **__: display())
    code, _, err = run("plot", "sphere", "--out", tmp_path / "sphere.html")
    assert code == 0, err
    assert "<canvas" in (tmp_path / "sphere.html").read_text(encoding="utf-8")
    code, _, err = run("plot", "norms", "--out", tmp_path / "norms.html")
    assert code != 0
    assert "--out must end in .png, .svg, .pdf; got" in err
