"""`hypermargin plot`: every picture by its name, its parameters as flags."""

import inspect

import pytest
from PIL import Image

from hypermargin import plots
from hypermargin.plots import explorer
from hypermargin.plots.catalogue import label, read_margin


def test_the_list_names_every_picture(run):
    code, out, err = run("plot")
    assert (code, err) == (0, "")
    listed = {line.split()[0]: line for line in out.splitlines() if line and not line.startswith("hypermargin")}
    assert set(listed) == set(plots.pictures()) | {"explorer"}
    for name, picture in plots.pictures().items():
        assert picture.about in listed[name]


@pytest.mark.parametrize("name", plots.pictures())
def test_help_explains_every_parameter(name, run):
    code, out, _ = run("plot", name, "--help")
    assert code == 0
    for parameter in inspect.signature(plots.pictures()[name].make).parameters:
        assert f"--{parameter.replace('_', '-')}" in out
    assert "--out" in out
    assert "--dark" in out


def test_flags_reach_the_picture(run, tmp_path):
    out = tmp_path / "new" / "psi.svg"
    code, said, err = run("plot", "psi", "--margins", "arcface", "--margins", "cosface:m=0.2", "--out", out)
    assert (code, said, err) == (0, f"written: {out}\n", "")
    assert out.read_text(encoding="utf-8") == plots.make("psi", margins=["arcface", "cosface:m=0.2"]).svg()
    code, *_ = run("plot", "width", "--dark", "--out", tmp_path / "width.svg")
    assert code == 0
    assert (tmp_path / "width.svg").read_text(encoding="utf-8") == plots.make("width").svg(dark=True)


def test_the_explorer_is_its_page(run, tmp_path):
    out = tmp_path / "explorer.html"
    assert run("plot", "explorer", "--out", out)[0] == 0
    assert out.read_text(encoding="utf-8") == explorer.page()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["psi", "--out", "psi.bmp"], "--out must end in .png, .svg, .pdf; got 'psi.bmp'"),
        (["explorer", "--out", "explorer.png"], "--out must end in .html; got 'explorer.png'"),
        (["psi", "--margins", "arcfase"], "there is no margin or head 'arcfase'. Did you mean 'arcface'?"),
        (["psi", "--margins", "arcface:k=1"], "arcface has no 'k'. It takes m, beyond."),
        (["psi", "--margins", "cosface:m=7"], "CosFace(m=…) must lie in [0, 2); got 7."),
        (["features", "--run", "nowhere"], "nowhere"),
        (["nothing"], "nothing"),
    ],
)
def test_mistakes(arguments, complaint, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run("plot", *arguments)
    assert (code, out) == (2, "")
    assert complaint in err
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written(run, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = run("plot", "width", "--out", tmp_path / "file" / "width.svg")
    assert code == 2
    assert "cannot be written" in err


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("arcface", "ArcFace m = 0.5"),
        ("softmax", "no margin"),
        ("a-softmax:m=3,lam=5", "SphereFace m = 3, λ = 5"),
        ("arcface:m=0.3,beyond=flat", "ArcFace m = 0.3, flat"),
        ("combined", "Combined m1 = 1, m2 = 0.3, m3 = 0.2"),
    ],
)
def test_margins_are_read_and_named(text, name):
    assert label(read_margin(text)) == name


@pytest.mark.slow
def test_features_move(run, tmp_path):
    code, *_ = run("plot", "features", "--out", tmp_path / "features.gif")
    assert code == 0
    assert Image.open(tmp_path / "features.gif").n_frames == 12
