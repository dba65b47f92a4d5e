"""The application object and what every command shares."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from hypermargin.version import __version__

app = typer.Typer(
    name="hypermargin",
    add_completion=False,
    rich_markup_mode=None,  # plain help: the same in a terminal, a pipe and a log
    pretty_exceptions_enable=False,
)


ALLOW_OLDER = "If the checkpoint is damaged, take the newest that is whole, and say so."


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn the library's complaints about input, which name the argument already, into usage errors.

    With HYPERMARGIN_DEBUG set, they keep their traceback.
    """
    try:
        yield
    except (ValueError, TypeError) as error:
        if os.environ.get("HYPERMARGIN_DEBUG"):
            raise
        raise typer.BadParameter(str(error)) from None


@contextmanager
def progress() -> Iterator[Callable[[int, int], None]]:
    """Show a bar in a terminal, a line every tenth elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    from hypermargin.common.text import say

    console = Console(stderr=True)
    if not console.is_terminal:
        told = 0

        def line(done: int, total: int) -> None:
            nonlocal told
            if 10 * done // total > told and done < total:
                told = 10 * done // total
                say(f"embedded {done:,} of {total:,}")

        yield line
        return
    with Progress(BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task("")
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hypermargin {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def hypermargin(
    context: typer.Context,
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Softmax with a margin.

    \b
    Examples:
      hypermargin train --data glyphs --head arcface --out runs/first
      hypermargin compare --data photos/ --head cosface --head arcface --seeds 3
      hypermargin plot boundary-circle --out band.svg
      hypermargin evaluate runs/first
      hypermargin evaluate embeddings.npy labels.npy --out evaluation
      hypermargin verify runs/first a.png b.png
      hypermargin embed runs/first photos/ -o embeddings.npz
      hypermargin export runs/first --format onnx
      hypermargin data photos/ --out photos.npz
      hypermargin advise --classes 1000 --dim 128
      hypermargin train --help
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
