"""The command line, run as a user runs it; the many small cases run in this process to save the start-up."""

import importlib
import sys
from importlib.metadata import version

import pytest
from command import shell

from hypermargin import cli
from hypermargin.advise import recommend


@pytest.mark.slow
def test_advise_as_a_process():
    code, out, err = shell("advise", "--classes", "10000", "--dim", "512")
    assert (code, err) == (0, "")
    assert "\x1b" not in out  # no colours where there is no terminal
    lines = [" ".join(line.split()) for line in out.splitlines()]
    advice = recommend(10_000, 512)
    assert f"scale s {advice.s:g}" in lines
    assert "m 0.5" in lines
    assert "margin arcface: ψ(θ) = g(θ + m)" in lines
    assert f"loss floor {advice.floor:.3g}, the least mean loss of balanced classes" in lines
    words = " ".join(lines)
    for reason in advice.reasons:
        assert reason in words


def test_errors_as_a_process():
    code, out, err = shell("advise", "--classes", "10", "--dim", "2", "--m", "0.7", script=True)
    assert (code, out) == (2, "")
    assert "ArcFace's m must stay below 0.628" in err
    assert err.count("\n") == 1


def test_ascii_terminal():
    code, out, _ = shell("advise", "--classes", "10", "--dim", "16", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert code == 0
    assert "scale s" in out


def test_version(run):
    assert run("--version") == (0, f"hypermargin {version('hypermargin')}\n", "")


def test_no_arguments_show_help(run):
    code, out, _ = run()
    assert code == 0
    assert "Usage: hypermargin" in out
    assert "advise" in out
    assert run("--help")[:2] == (code, out)


def test_help_examples_run(run):
    _, out, _ = run("advise", "--help")
    examples = [line.split()[1:] for line in out.splitlines() if line.strip().startswith("hypermargin advise")]
    assert len(examples) >= 4
    for example in examples:
        code, printed, err = run(*example)
        assert (code, err) == (0, "")
        assert "scale s" in printed


def test_options_reach_the_advice(run):
    _, plain, _ = run("advise", "--classes", "1000", "--dim", "128", "--margin", "none")
    assert "cos θ" in plain
    _, own, _ = run("advise", "--classes", "1000", "--dim", "128", "--margin", "cosface", "--m", "0.2")
    assert "0.2\n" in own.replace(" ", "")
    _, three, _ = run("advise", "--classes", "1000", "--dim", "128", "--margin", "combined")
    assert "1, 0.3, 0.2" in three
    _, sure, _ = run("advise", "--classes", "1000", "--dim", "128", "--probability", "0.999")
    assert "p_y ≥ 0.999" in sure
    _, far, _ = run("advise", "--classes", "1000", "--dim", "128", "--angle", "0.9")
    assert "at 51.6°" in " ".join(far.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("advise", "Missing option '--classes'"),
        ("advise --classes 0 --dim 3", "classes must be at least 2; got 0"),
        ("advise --classes ten --dim 3", "Invalid value for '--classes'"),
        ("advise --classes 10 --dim 3 --margin arcfase", "Did you mean 'arcface'?"),
        ("advise --classes 10 --dim 20 --margin combined --m 0.2", "'combined' has not. Leave --m out."),
        ("advise --classes 10 --dim 20 --m -1", "--m must lie in [0, 3.14159); got -1"),
        ("advise --classes 10 --dim 20 --probability 1", "probability must lie in (0, 1); got 1"),
        ("advise --classes 10 --dim 20 --nope", "No such option"),
        ("train --head arcfase", "unknown head 'arcfase'. Did you mean 'arcface'? The family has"),
        ("train --set s=64", "arcface has no setting 's'. It is called scale here: --set scale=64. It takes"),
        ("train --set scal=64", "arcface has no setting 'scal'. Did you mean 'scale'? It takes"),
        ("train --schedule warmup:step=3", "warmup has no 'step'. Did you mean 'steps'?"),
        ("compare --head arcface:q=3", "--head arcface:q=3: arcface has no setting 'q'. It takes m,"),
        ("verify nowhere a.png b.png", "there is no folder nowhere"),
        ("export nowhere", "there is no folder nowhere"),
        ("nonsense", "No such command 'nonsense'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(run, arguments, message):
    code, out, err = run(*arguments.split())
    assert (code, out) == (2, "")
    assert err.startswith("hypermargin: error: ")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["train", "compare"])
def test_a_mistyped_head_is_refused_before_data_are_read(run, tmp_path, monkeypatch, command):
    monkeypatch.setattr("hypermargin.data.open_data", lambda *_, **__: pytest.fail("the data were read"))
    code, _, err = run(command, "--data", "glyphs", "--head", "arcfase", "--out", tmp_path / "out")
    assert code == 2
    assert "Did you mean 'arcface'?" in err
    assert not (tmp_path / "out").exists()


def test_a_bug_is_not_hidden(monkeypatch):
    def broken(*_, **__):
        raise KeyError("a bug")

    monkeypatch.setattr("hypermargin.advise.recommend", broken)
    monkeypatch.setattr(sys, "argv", ["hypermargin", "advise", "--classes", "10", "--dim", "3"])
    with pytest.raises(KeyError):
        cli.main()


@pytest.mark.parametrize("package", ["typer", "rich.console"])
def test_missing_extra_says_what_to_install(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "hypermargin.cli")
    with pytest.raises(SystemExit, match=rf"pip install {package.split('.')[0]}$"):
        importlib.import_module("hypermargin.cli")
