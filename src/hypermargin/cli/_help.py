"""How `--help` looks: options in groups, words that are never broken, colours where a terminal shows them.

An option's group is its `rich_help_panel`; those without one come last. Where there is room the explanation stands
beside the option, in a narrow terminal below it. The first line of a command's `epilog` is a heading, and each
further line, `name: words`, an entry below it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import typer
from rich.console import Console
from typer.core import TyperCommand, TyperGroup

WIDEST = 110  # columns: longer lines are hard to read
LEFT = 26  # columns for the option, where the explanation stands beside it
NARROW = 68  # columns, below which it does not
HEADING, NAME, OFF = "\x1b[1m", "\x1b[36m", "\x1b[0m"
KINDS = {"text|str": "TEXT", "int": "N", "integer": "N", "float": "X", "path": "PATH"}
Entry = tuple[str, str]
Work = TypeVar("Work", bound=Callable[..., Any])


class Command(TyperCommand):
    """A command with help in groups."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the page."""
        formatter.write(page(self, ctx))


class Group(TyperGroup):
    """The same for a command of commands."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the page."""
        formatter.write(page(self, ctx))


class App(typer.Typer):
    """An application whose commands, and those below them, have help in groups."""

    def __init__(self, **options: Any) -> None:
        # Without markup: a [ in an explanation is no style.
        super().__init__(cls=Group, rich_markup_mode=None, pretty_exceptions_enable=False, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[Work], Work]:
        """Make a command of a function."""
        return super().command(name, cls=Command, **options)


def coloured(console: Console) -> bool:
    """Return whether to colour what goes there: NO_COLOR and a pipe say no."""
    return console.is_terminal and not console.no_color and not console.is_dumb_terminal


def page(command: Any, ctx: Any) -> str:
    """Return the help of a command, as wide as the terminal."""
    console = Console()
    width = min(WIDEST, console.width)
    inked = coloured(console)
    blocks = [
        "\n".join(_wrapped(f"Usage: {ctx.command_path} {_pieces(command, ctx)}", width, 7)),
        *_prose(command.help or "", width),
        *(_section(title, entries, width, inked) for title, entries in _sections(command, ctx)),
    ]
    return "\n\n".join(blocks) + "\n"


def _pieces(command: Any, ctx: Any) -> str:
    """Return what may follow the command, arguments in capitals whatever the version of typer."""
    pieces = " ".join(command.collect_usage_pieces(ctx))
    return re.sub(r"\{(\w+)\}|(?<=\[)(\w+)(?=\])", lambda found: (found[1] or found[2]).upper(), pieces)


def listing(text: str) -> str:
    """Return a heading and lines of `name: words`, as an epilog has them, as wide as the terminal."""
    console = Console()
    return _section(*_read(text), min(WIDEST, console.width), coloured(console))


def _read(text: str) -> tuple[str, list[Entry]]:
    heading, *lines = text.splitlines() or [""]
    return heading, [(name.strip(), words.strip()) for name, _, words in (line.partition(":") for line in lines)]


def _sections(command: Any, ctx: Any) -> Iterator[tuple[str, Sequence[Entry]]]:
    """Yield what is listed: arguments, groups of options, what the epilog lists, commands."""
    groups: dict[str, list[Entry]] = {}
    arguments: list[Entry] = []
    rest: list[Entry] = []
    for each in command.get_params(ctx):
        record = each.get_help_record(ctx)
        if record is None:  # hidden
            continue
        if each.param_type_name == "argument":
            arguments.append((record[0].split()[0].strip("{}[]").upper(), record[1]))
        else:
            group = getattr(each, "rich_help_panel", None)
            (groups.setdefault(group, []) if group else rest).append((_spelt(record[0]), record[1]))
    found = {"Arguments": arguments, **groups, "Options" if not groups else "Help": rest}
    heading, entries = _read(command.epilog or "")
    found[heading] = entries
    names = command.list_commands(ctx) if hasattr(command, "list_commands") else ()
    inner = {name: command.get_command(ctx, name) for name in names}
    found["Commands"] = [(k, each.get_short_help_str(1000)) for k, each in inner.items() if not each.hidden]
    return ((title, entries) for title, entries in found.items() if entries)


def _spelt(written: str) -> str:
    """Write the kind of a value alike, whatever the version of typer: `--size INTEGER RANGE` as `--size N`."""
    names = " ".join(word for word in written.split() if word.startswith("-") or word == "/")
    kind = written.split(names.split()[-1], 1)[1].strip()
    for theirs, ours in KINDS.items():
        if re.match(rf"<?(list\[)?({theirs})\b", kind, re.IGNORECASE):
            kind = ours
    return f"{names} {kind}".strip()


def _prose(text: str, width: int) -> Iterator[str]:
    """Wrap paragraphs; of those that begin with \\b, whose lines are kept, only what is too long goes on below."""
    for paragraph in text.strip().split("\n\n"):
        if not paragraph.startswith("\b"):
            yield "\n".join(_wrapped(" ".join(paragraph.split()), width))
            continue
        lines = []
        for line in paragraph.removeprefix("\b").strip("\n").splitlines():
            indent = len(line) - len(line.lstrip())
            pieces = _wrapped(line.strip(), width - 2, indent + 4, start=indent)
            lines += [piece + " \\" for piece in pieces[:-1]] + pieces[-1:]
        yield "\n".join(lines)


def _section(title: str, entries: Sequence[Entry], width: int, inked: bool) -> str:
    """Return a heading and its entries."""
    beside = width >= NARROW
    lines = [f"{HEADING}{title}{OFF}" if inked else title]
    for name, words in entries:
        shown = f"{NAME}{name}{OFF}" if inked else name
        below = _wrapped(" ".join(words.split()), width, LEFT + 2 if beside else 6, start=LEFT + 2 if beside else 6)
        if beside and len(name) <= LEFT - 2 and below:
            lines.append(f"  {shown}{' ' * (LEFT - len(name))}{below.pop(0).lstrip()}")
        else:
            lines += [f"  {shown}"] if len(name) + 2 <= width else _wrapped(name, width, 4, start=2)
        lines += below
    return "\n".join(lines)


def _wrapped(text: str, width: int, indent: int = 0, *, start: int = 0) -> list[str]:
    """Wrap at spaces alone; a word longer than a line is broken after a comma, if it has one."""
    lines = [" " * start]
    for word in text.split():
        pieces = [word] if len(word) <= width - indent else re.findall(r"[^,]+,?", word)
        for k, piece in enumerate(pieces):
            space = "" if k or not lines[-1].strip() else " "
            if lines[-1].strip() and len(lines[-1] + space + piece) > width:
                lines.append(" " * indent + piece)
            else:
                lines[-1] += space + piece
    return lines if text.split() else []
