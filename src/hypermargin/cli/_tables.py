"""Tables for people: by rich in a terminal, as plain aligned text in a pipe, where lines must not be folded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text


class Section(NamedTuple):
    """A title, the names of the columns (empty: none), and the cells."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def show(sections: Sequence[Section]) -> None:
    """Print all sections on stdout."""
    console = Console(highlight=False)
    for section in sections:
        if console.is_terminal:
            table = Table(box=None, pad_edge=False, show_header=bool(section.columns))
            for name in section.columns or [""] * len(section.rows[0]):
                table.add_column(name, header_style="dim")
            for row in section.rows:
                table.add_row(*map(Text, row))  # Text: a [ in a name is no markup
            console.print(Text(section.title, "bold"))
            console.print(table, "")
        else:
            typer.echo("\n".join(_plain(section)) + "\n")


def _plain(section: Section) -> list[str]:
    rows = [section.columns, *section.rows] if section.columns else list(section.rows)
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return [section.title, *(f"  {line}".rstrip() for line in lines)]
