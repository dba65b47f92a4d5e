"""`hypermargin diagnose` as a user runs it, and its page."""

import json

import pytest
from browser import PHONE, opened

from hypermargin.diagnose import Finding, diagnose
from hypermargin.diagnose.report import Report
from hypermargin.diagnose.worker import Request, diagnose_apart

BAD = """
import os


def hangs(cosines, labels):
    while True:
        pass


def dies(cosines, labels):
    os._exit(3)
"""


@pytest.fixture
def losses(tmp_path, monkeypatch):
    (tmp_path / "strange_losses.py").write_text(BAD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")


def test_a_loss_of_another_library_by_its_name(run, tmp_path):
    pytest.importorskip("pytorch_metric_learning")
    name, page = "pytorch-metric-learning:ArcFaceLoss", tmp_path / "found.html"
    code, out, err = run("diagnose", name, "--set", "margin=0.5", "--json", "--out", page)
    found = json.loads(out)
    assert code == 1
    assert "page" not in found
    assert {"degrees", "nan-at-the-ends", "memory"} <= {each["code"] for each in found["findings"]}
    assert found["margin"].startswith("ArcFace(m=0.0087")
    assert page.read_text().startswith("<!doctype html>")
    assert str(page) in err


def test_what_hangs_or_dies_is_a_finding(losses):
    found = diagnose_apart(Request("strange_losses:hangs", trust=True), timeout=1)
    assert [each.code for each in found.findings] == ["hangs"]
    found = diagnose_apart(Request("strange_losses:dies", trust=True), timeout=300)
    assert [each.code for each in found.findings] == ["crashed"]
    assert "exit code 3" in found.findings[0].said
    assert "crashed" in Report.of(found).page()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("strange_losses:hangs",), "names code that would be imported and run. If you know it, add --trust."),
        (("torch.serialization:load", "--set", "f=x.pt"), "names code that would be imported and run."),
        (("torch.hub:load", "--set", "repo_or_dir=a/b"), "names code that would be imported and run."),
        (("hypermargin.diagnose.loading:load", "--set", "name=a:b"), "names code that would be imported and run."),
        (("torch.nn.functional:Callable",), "is of collections.abc, which torch.nn.functional only imports"),
        (("torch:__doc__",), "must be a class, a factory, an object or a function to call"),
        (("strange_losses",), "criterion must be MODULE:NAME, like losses:ArcFace; got 'strange_losses'."),
        ((), "give one of the three: a criterion as MODULE:NAME, --config FILE or --run FOLDER."),
        (("a:b", "--run", "x"), "give one of the three"),
        (("torch:nothing", "--form", "cosine"), "--form must be one of 'features', 'cosines', 'weights', 'norms'"),
        (("torch:nothing", "--fail-on", "all"), "--fail-on must be one of 'note', 'doubtful', 'wrong', 'never'"),
        (("torch:nothing", "--out", "x.pdf"), "--out must end in .html; got x.pdf."),
        (("--config", "none.toml"), "there is no file none.toml"),
    ],
)
def test_usage_errors_are_one_line(run, losses, arguments, words):
    code, out, err = run("diagnose", *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


def test_the_exit_code_is_that_of_the_worst_finding(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text('data = "digits"\n[set]\nscale = 100\nm = 0.5\n')
    codes = {
        level: run("diagnose", "--config", "run.toml", "--fail-on", level)[0]
        for level in ("wrong", "doubtful", "never")
    }
    assert codes == {"wrong": 0, "doubtful": 1, "never": 0}
    _, out, _ = run("diagnose", "--config", "run.toml")
    assert out.startswith("run.toml\n  what      2 things to look at\n")
    assert "→ --set scale=" in out


NAME = "<script>alert(1)</script>&\"'"


@pytest.fixture(scope="module")
def page():
    from tests.diagnose import published

    found = Report.of(diagnose(published.InsightfaceHead(), name=NAME))
    odd = Finding("odd", "note", f"It says {NAME}.", NAME, NAME)
    return Report(found.title, NAME, found.facts, (*found.findings, odd), (("line", NAME),), found.pictures).page()


@pytest.mark.parametrize(("size", "scheme"), [(PHONE, "light"), ((1920, 1080), "dark"), ((360, 800), "dark")])
def test_the_page_fits_runs_nothing_and_names_are_harmless(browser, page, tmp_path, size, scheme):
    with opened(browser, page, tmp_path, size=size, scheme=scheme) as shown:
        assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert shown.locator("script").count() == 0
        assert NAME in shown.locator("h1").inner_text().replace("\n", "")
        assert shown.locator("svg").count() == 2
        assert shown.locator(".findings li").count() >= 5
        ground = shown.evaluate("getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(20, 23, 28)" if scheme == "dark" else "rgb(255, 255, 255)")
        policy = shown.locator("meta[http-equiv]").get_attribute("content")
        assert "default-src 'none'" in policy
        assert "script-src" not in policy
