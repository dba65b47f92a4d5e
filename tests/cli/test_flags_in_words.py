"""A complaint of the library, raised under a command, names the flags of that command."""

import ast
import re
from pathlib import Path

import pytest
from typer.main import get_command

import hypermargin
from hypermargin.cli import app
from hypermargin.cli._app import in_flags


def commands(command=None, path=()):
    command = command or get_command(app)
    subcommands = getattr(command, "commands", None)
    if subcommands:
        return {k: v for name, each in subcommands.items() for k, v in commands(each, (*path, name)).items()}
    return {" ".join(path): command.params}


ALL = commands()


@pytest.mark.parametrize("command", ALL)
def test_every_parameter_of_every_command(command):
    known = {each.name: each.opts[0] for each in ALL[command] if each.opts[0].startswith("--")}
    for name, flag in known.items():
        assert in_flags(f"{name} must be positive; got -1.", ALL[command]) == f"{flag} must be positive; got -1."
        assert in_flags(f"{flag} must be positive.", ALL[command]) == f"{flag} must be positive."
        assert in_flags(f"goes on with {name} = 3; got 4", ALL[command]) == f"goes on with {flag} = 3; got 4"
        if "_" in name:
            assert in_flags(f"choose {name}, or none", ALL[command]) == f"choose {flag}, or none"
        else:  # an English word
            assert in_flags(f"the {name} is broken", ALL[command]) == f"the {name} is broken"
        text = f"runs/{name}/x_{name}.npz: {name}.npz is no file"
        assert in_flags(text, ALL[command]) == text
    for other in {"lr_warmup", "theta12", "ids_out", "on_bad"} - set(known):
        assert in_flags(f"{other} must be positive", ALL[command]) == f"{other} must be positive"


@pytest.mark.parametrize(
    ("command", "said", "wanted"),
    [
        ("train", "ArcFace(m=…) must lie in [0, 3.14); got 4.", "--set m must lie in [0, 3.14); got 4."),
        ("train", "scale must be positive", "--set scale must be positive"),
        ("advise", "ArcFace(m=…) must lie in [0, 3.14)", "--m must lie in"),
        (
            "data",
            '0.png: broken (on_bad="skip" leaves such out.)',
            "0.png: broken (--on-bad skip leaves such out.)",
        ),
        ("embed", "load with trust=True, or not", "load with --trust, or not"),
        ("export", "path must end in .onnx", "--out must end in .onnx"),
        ("verify", "threshold and far both decide", "--threshold and --far both decide"),
        ("train", "sample_rate = 0.5 needs accumulate = 1", "--sample-rate = 0.5 needs --accumulate = 1"),
        ("compare", "heads must differ", "--head must differ"),
        ("train", "--set takes name=value, like m=0.4; got", "--set takes name=value, like m=0.4; got"),
        ("train", "pairs: there is no file x.bin", "--verify: there is no file x.bin"),
        (
            "train",
            "arcface has no setting 'x'. It takes m, unit_weight",
            "arcface has no setting 'x'. It takes m, unit_w",
        ),
    ],
)
def test_words_of_the_library(command, said, wanted):
    assert in_flags(said, ALL[command]).startswith(wanted)


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ("train --data digits --lr-warmup -1", "--lr-warmup must lie in [0, 1e+06); got -1"),
        ("train --data digits --set m=-1 --out {}/a", "--set m must lie in"),
        ("data digits --color grey", "--color must be one of"),
        ("compare --data digits --weight-decay -1", "--weight-decay must lie in"),
        ("advise --classes 1 --dim 2", "--classes must be at least 2; got 1"),
        ("plot boundary-circle --theta12 400 --out {}/a.png", "--theta12 must"),
    ],
)
def test_from_the_command_line(run, tmp_path, arguments, wanted):
    code, _, err = run(*arguments.format(tmp_path).split())
    assert code == 2
    assert wanted in err
    assert "(m=…)" not in err


def said_in(file):
    """Every text that an error, or a line for the user, is made of; what is filled in is `word`."""
    for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(call, ast.Call):
            continue
        name = getattr(call.func, "id", getattr(call.func, "attr", ""))
        if not name.endswith("Error") and name not in ("say", "tell"):
            continue
        parts = {id(part) for f in ast.walk(call) if isinstance(f, ast.JoinedStr) for part in f.values}
        for text in ast.walk(call):
            if isinstance(text, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else "word" for part in text.values)
            elif isinstance(text, ast.Constant) and isinstance(text.value, str) and id(text) not in parts:
                yield text.value


SAID = sorted({text for path in Path(hypermargin.__file__).parent.rglob("*.py") for text in said_in(path)})
# Of functions that no command calls, and numbers of heads as the command line has them too.
ELSEWHERE = re.compile(r"needs counts=, the number|without optimizer=|\bm=0\.\d|give class_counts, the")


@pytest.mark.parametrize("command", ALL)
def test_no_message_answers_in_arguments_of_python(command):
    """on_bad="skip" is --on-bad skip wherever the command has such a flag: in every message of the library."""
    assert len(SAID) > 500
    for text in SAID:
        if ELSEWHERE.search(text):
            continue
        said = in_flags(text, ALL[command])
        for each in ALL[command]:
            assert not re.search(rf"(?<![\w-])(?<!--set ){each.name}=", said), said
