"""The commands in the documents exist: their names, their flags, the heads they name, make's targets, the modules.

They are in blocks of ```bash and between backquotes, in .md files and in the tutorials, and are read, not run.
"""

import re
import shlex

import pytest
import typer
from test_docs import FILES, ROOT, fences

import hypermargin
from docs.site import notebooks
from hypermargin import cli

COMMANDS = typer.main.get_command(cli.app)
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.M))
STARTS = re.compile(r"(?:torchrun .*-m |python -m )?(hypermargin|make|python -m benchmarks(?:\.\w+)*)(?: (.*))?")
# The changelog is about what was.
PAGES = [*(path for path in FILES if path.name != "CHANGELOG.md"), *sorted(notebooks.FOLDER.glob("*.ipynb"))]


def lines_of(text):
    """What a reader would type: the lines of blocks, and commands between backquotes."""
    for language, _, code, *_ in fences(text):
        if language == "bash":
            yield from code.replace("\\\n", " ").splitlines()
    prose = re.sub(r"^(`{3,}).*?^\1", "", text, flags=re.M | re.S)
    yield from (re.sub(r"\s+", " ", span) for span in re.findall(r"`([^`]+)`", prose))


def complaint(line):
    """What is wrong with a command, or None; what is no command of ours is right."""
    found = STARTS.fullmatch(line.strip())
    if not found:
        return None
    program, words = found[1], shlex.split(found[2] or "", comments=True)
    if program == "make":
        return next((f"make has no target {word}" for word in words if word not in TARGETS), None)
    if program != "hypermargin":
        path = ROOT / program.split()[-1].replace(".", "/")
        return None if path.is_dir() or path.with_suffix(".py").exists() else f"there is no {path.name}"
    command = COMMANDS
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        name = words.pop(0)
        if name.isupper():  # as in `hypermargin plot NAME`
            return None
        if name not in command.commands:
            return f"{command.name} has no command {name}"
        command = command.commands[name]
    flags = {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)} | {"--help"}
    for k, word in enumerate(words):
        if re.match(r"--?[a-z]", word) and word.split("=")[0] not in flags:
            return f"{command.name} has no flag {word}"
        head = words[k + 1].split(":")[0] if word == "--head" and words[k + 1 :] else "NAME"
        if head != "NAME" and head not in hypermargin.list_heads():
            return f"there is no head {head}"
    return None


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_commands_exist(path):
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        text = "\n\n".join(cell["source"] for cell in notebooks.cells(text) if cell["cell_type"] == "markdown")
    found = [f"{line}: {wrong}" for line in lines_of(text) if (wrong := complaint(line))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("hypermargin train --data photos/ --head arcface:m=0.3  # words", None),
        ("hypermargin trian --data photos/", "has no command trian"),
        ("hypermargin train --dat photos/", "train has no flag --dat"),
        ("hypermargin compare --head arcfaec", "there is no head arcfaec"),
        ("hypermargin head merge a.safetensors --above 0.9 -o b", None),
        ("torchrun --nproc-per-node 8 -m hypermargin train --sede 1", "train has no flag --sede"),
        ("make demo", None),
        ("make dmeo", "make has no target dmeo"),
        ("python -m benchmarks.plain --busy 1", None),
        ("python -m benchmarks.plane", "there is no plane"),
        ("pip install torch", None),
    ],
)
def test_what_is_wrong_with_a_command(line, wrong):
    found = complaint(line)
    assert found is None if wrong is None else wrong in found
