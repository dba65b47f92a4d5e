"""The application object and what every command shares."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from hypermargin.cli._help import App
from hypermargin.version import __version__

app = App(name="hypermargin")


ALLOW_OLDER = "If the checkpoint is damaged, take the newest that is whole, and say so."


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn the library's complaints about input, which name the argument, into usage errors that name the flag.

    With HYPERMARGIN_DEBUG set, they keep their traceback.
    """
    try:
        yield
    except (ValueError, TypeError) as error:
        if os.environ.get("HYPERMARGIN_DEBUG"):
            raise
        raise typer.BadParameter(complaint(error)) from None
    except ModuleNotFoundError as error:
        if os.environ.get("HYPERMARGIN_DEBUG"):
            raise
        typer.echo(f"hypermargin: error: {error}", err=True)
        raise typer.Exit(1) from None


def complaint(error: BaseException) -> str:
    """Return what an error says, in the flags of the command under way."""
    found = getattr(typer.main, "get_current_context", None)  # typer's own copy of click, or the real one
    context = (found or typer.main.click.get_current_context)(silent=True)  # type: ignore[attr-defined]
    return str(error) if context is None else in_flags(str(error), context.command.params)


def in_flags(text: str, parameters: Sequence[Any]) -> str:
    """Write names of a command's parameters as the flags they are: lr_warmup as --lr-warmup, m as --set m.

    A name that is an English word too is only taken for one where a complaint begins, or before " = ".
    """
    flags = {each.name: option for each in parameters for option in each.opts[:1] if option.startswith("--")}
    # What functions of the library call it.
    for ours, theirs in (("out", "path"), ("head", "heads"), ("verify", "pairs"), ("to", "format")):
        if ours in flags:
            flags.setdefault(theirs, flags[ours])
    text = re.sub(r"[\w.]+=[\w.…]* \((--[\w-]+[^()]*)\)", r"\1", text)  # workers=0 (--workers 0)
    text = re.sub(r" \([^()]*\bin Python\b[^()]*\)", "", text)  # what those write who call the function
    if "force" in flags:
        text = text.replace("replace=True", flags["force"])
    if "set" in flags:  # of the head, and of its margin
        flags = {name: f"--set {name}" for name in (*OF_A_HEAD, "m", "m1", "m2", "m3")} | flags
    if "m" in flags:
        text = re.sub(r"^(?:set: )?\w+\((m\d?)=…\) must", r"\1 must", text)  # ArcFace(m=…)
    if "head" in flags:
        text = re.sub(r"\b[A-Z]\w+\((\w+)=…\)", r"\1", text)  # of what the head is made
    for name, flag in flags.items():
        bare = rf"(?<![\w\-./'\",:]){name}"
        text = re.sub(rf"^{name}(?= must\b| takes\b| needs\b| '| and [\w\-]+ both| = |: |\[)", flag, text)
        text = re.sub(rf"(?<= and ){name}(?= both)|(?<=needs ){name}(?=[,:])|{bare}(?= = )", flag, text)
        if flag.startswith("--set "):
            text = re.sub(rf"{bare}=(?=\S)", f"{flag}=", text) if name in OF_A_HEAD else text
            continue
        text = re.sub(rf"{bare}=True\b", flag, text)
        text = re.sub(rf"{bare}=(['\"]?)(\w+)\1", rf"{flag} \2", text)
        if "_" in name:
            text = re.sub(rf"{bare}(?![\w\-/(=])(?!\.\w)", flag, text)
    return text


# Arguments of create_head that a user of the command line may set.
OF_A_HEAD = (
    "scale", "bias", "unit_features", "unit_weight", "centers", "pool", "learn_scale", "scale_floor",
    "learn_margin",
)  # fmt: skip


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
      hypermargin diagnose pytorch_metric_learning:ArcFaceLoss
      hypermargin train --help
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
