"""`--help` at every width, with colours only where they are wanted, and what a shell completes."""

import os
import re
import shlex

import pytest
from test_flags_in_words import ALL
from typer.main import get_command

from hypermargin.cli import app
from hypermargin.cli._flags import GROUPS, setting_flags
from hypermargin.recipes import FAMILY
from hypermargin.training import Config

WIDE = 1000


def words(text):
    """The words of a page, without the marks of lines that go on."""
    return [word for word in text.split() if word != "\\"]


@pytest.fixture(scope="module")
def pages():
    """The help of a command at a width, made once."""
    from command import here

    made = {}

    def page(command, width):
        if (command, width) not in made:
            before = os.environ.get("COLUMNS")
            os.environ["COLUMNS"] = str(width)
            try:
                code, made[command, width], _ = here(*command.split(), "--help")
            finally:
                os.environ.pop("COLUMNS") if before is None else os.environ.update(COLUMNS=before)
            assert code == 0
        return made[command, width]

    return page


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("command", ["", "plot", "head", *ALL])
def test_no_word_is_broken(pages, command, width):
    """A word too long for a line may only go on below after a comma."""
    known = set(words(pages(command, WIDE)))
    page = pages(command, width)
    for line in page.splitlines():
        for word in set(words(line)) - known:
            assert any(re.search(rf"(^|,){re.escape(word)}($|(?<=,))", long) for long in known), line
        assert len(line) <= width or len(words(line)[-1]) > width - 8, line


def test_settings_are_in_groups(pages):
    page = pages("train", 80)
    assert set(GROUPS) <= {each.name for each in setting_flags()}
    places = [page.index(f"\n{title}\n") for title in GROUPS.values()]
    assert places == sorted(places)
    for name in vars(Config()):
        assert re.search(rf"\n  --{name.replace('_', '-')}\b", page), name
    assert page.index("\nOptimiser\n") < page.index("\n  --lr ") < page.index("\nSpeed\n")


def test_heads_are_listed(pages, run):
    for text in (pages("train", 80), pages("compare", 80), run("train", "--head")[2]):
        listed = text.split("Heads, for --head")[1]
        assert {word.strip(",") for word in words(listed)} >= set(FAMILY)


def test_colours_only_in_a_terminal_that_wants_them(monkeypatch):
    from rich.console import Console

    from hypermargin.cli._help import coloured

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert coloured(Console(force_terminal=True))
    assert not coloured(Console(force_terminal=False))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not coloured(Console(force_terminal=True))


def test_a_shell_completes_commands_flags_and_values(run, monkeypatch):
    def completed(line):
        asked = {"_HYPERMARGIN_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        for name, value in asked.items():
            monkeypatch.setenv(name, value)
        return run()[1].split()

    assert "train" in completed("hypermargin tr")
    assert "--lr-warmup" in completed("hypermargin train --lr-w")
    assert completed("hypermargin train --head arcf") == ["arcface"]
    assert completed("hypermargin train --on-bad s") == ["skip"]


@pytest.mark.parametrize("command", ["", *ALL])
def test_examples_are_commands(pages, command):
    """Every example can be copied: its flags are there, and no word is left over."""
    whole = pages(command, WIDE).replace(" \\\n", " ")  # a long line goes on below
    examples = [line.strip() for line in whole.splitlines() if line.startswith("  hypermargin ")]
    for example in examples:
        found, arguments = get_command(app), shlex.split(example)[1:]
        while hasattr(found, "commands"):
            found, arguments = found.commands[arguments[0]], arguments[1:]
        _, rest, _ = found.make_parser(found.context_class(found)).parse_args(arguments)
        assert rest == [], example
