"""The command line: `hypermargin advise`, `hypermargin bench head`, and room for more.

A command is a function with `@app.command()`. It imports what it needs inside, so that `--help` stays quick, and
does its work within `_plain_errors()`, so that bad input ends in one line and exit code 2.
"""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

try:
    import typer
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text
except ModuleNotFoundError as missing:
    raise SystemExit(
        f"hypermargin: the command line needs {missing.name}, which is not installed. "
        "Run: pip install 'hypermargin[cli]'"
    ) from None

if TYPE_CHECKING:
    from hypermargin.margins import Margin

app = typer.Typer(
    name="hypermargin",
    add_completion=False,
    rich_markup_mode=None,  # plain help: the same in a terminal, a pipe and a log
    pretty_exceptions_enable=False,
)


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Turn the library's complaints about input, which name the argument already, into usage errors."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise typer.BadParameter(str(error)) from None


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hypermargin {version('hypermargin')}")
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
      hypermargin advise --classes 1000 --dim 128
      hypermargin bench head --rows 256 --classes 20000
      hypermargin advise --help
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def advise(
    classes: Annotated[int, typer.Option(help="How many classes there are to train on.")],
    dim: Annotated[int, typer.Option(help="The embedding's dimension.")],
    margin: Annotated[
        str, typer.Option(help="none, arcface, cosface, sphereface, or another registered margin.")
    ] = "arcface",
    m: Annotated[
        float | None, typer.Option("--m", help="Take this m (ArcFace: radians) instead of choosing one.")
    ] = None,
    probability: Annotated[
        float, typer.Option(help="The target probability a sample on its centre is to reach.")
    ] = 0.99,
    angle: Annotated[
        float | None, typer.Option(help="Median angle of your samples to their centres, in radians, if known.")
    ] = None,
) -> None:
    """Which s, which m, for so many classes? With the reasons.

    \b
    Examples:
      hypermargin advise --classes 10000 --dim 512
      hypermargin advise --classes 1000 --dim 128 --margin cosface
      hypermargin advise --classes 1000 --dim 128 --margin arcface --m 0.3
      hypermargin advise --classes 10 --dim 2 --margin none
    """
    from hypermargin.advise import band_width, recommend

    with _plain_errors():
        chosen = margin if m is None else _margin(margin, m)
        advice = recommend(classes, dim, margin=chosen, probability=probability, angle=angle)
        square = band_width(advice.margin, math.pi / 2)

    table = Table(title=f"{classes} classes in {dim} dimensions", title_justify="left", show_header=False, box=None)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("scale s", f"{advice.s:g}")
    table.add_row("margin", f"{advice.margin.name}: ψ(θ) = {advice.margin.formula}")
    table.add_row("m", _numbers(advice.m))
    table.add_row("nearest centres", f"{_angle(advice.centre_angle)} apart at best")
    table.add_row("band between them", f"{_angle(advice.width)} wide; {_angle(square)} between centres at 90°")
    table.add_row("loss floor", f"{advice.floor:.3g}, the least mean loss of balanced classes")
    console = Console(highlight=False)
    console.print(table)
    console.print()
    for reason in advice.reasons:
        console.print(_bullet(reason))


bench = typer.Typer(help="Measure: time, memory and exactness beside the peers.", no_args_is_help=True)
app.add_typer(bench, name="bench")


@bench.callback()
def _bench() -> None:
    """Measure: time, memory and exactness beside the peers."""


@bench.command()
def head(
    rows: Annotated[int, typer.Option(help="Rows of the batch, N.", min=1)] = 256,
    classes: Annotated[int, typer.Option(help="Classes, C.", min=2)] = 100_000,
    dim: Annotated[int, typer.Option(help="Dimension of the features, d.", min=1)] = 512,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    precision: Annotated[str, typer.Option(help="float32, or bfloat16 or float16 by autocast.")] = "float32",
    rounds: Annotated[int, typer.Option(help="Interleaved rounds to time.", min=1)] = 5,
    only: Annotated[str, typer.Option(help="Only the contenders whose name contains this.")] = "",
    growth_to: Annotated[int, typer.Option(help="Also our cost a class up to so many classes; 0: no.")] = 0,
    sweep_to: Annotated[int, typer.Option(help="Also all against C up to so many classes, with a picture.")] = 0,
    out: Annotated[Path | None, typer.Option(help="A folder for the JSON, the Markdown and the picture.")] = None,
) -> None:
    """One training step of the head, ours beside the peers and the floor of the three matrix products.

    \b
    Examples:
      hypermargin bench head --rows 256 --classes 20000
      hypermargin bench head --classes 100000 --growth-to 400000 --sweep-to 100000 --out results
      hypermargin bench head --device cuda --precision bfloat16 --rows 1024 --classes 1000000
    """
    from hypermargin import checks
    from hypermargin.bench.head import as_markdown, run

    with _plain_errors():
        checks.one_of("--device", device, ("cpu", "cuda"))
        checks.one_of("--precision", precision, ("float32", "bfloat16", "float16"))
    console = Console(stderr=True, highlight=False)
    with console.status("") as status:

        def say(text: str) -> None:
            status.update(text)
            if not console.is_terminal:
                console.print(text)

        result = run(
            rows, classes, dim, device=device, precision=precision, rounds=rounds,
            only=only, growth_to=growth_to, sweep_to=sweep_to, out=out, say=say,
        )  # fmt: skip
    typer.echo(as_markdown(result))


def _margin(name: str, m: float) -> Margin:
    """The registered margin with this m."""
    from hypermargin import margins

    kind = margins.get(name)
    if "m" not in [field.name for field in margins.number_fields(kind)]:
        raise ValueError(f"--m sets the m of a margin with one number; {name!r} has not. Leave --m out.")
    return kind(m=m)  # type: ignore[call-arg]  # checked above


def _numbers(m: float | tuple[float, ...] | None) -> str:
    if m is None:
        return "none"
    return ", ".join(f"{number:.4g}" for number in (m if isinstance(m, tuple) else (m,)))


def _angle(theta: float) -> str:
    return f"{theta:.3g} rad ({math.degrees(theta):.3g}°)"


def _bullet(text: str) -> Table:
    """A paragraph with a hanging indent, wrapped to the console's width."""
    grid = Table.grid(padding=(0, 1))
    grid.add_row("-", Text(text))
    return grid


def main() -> None:
    """The console script: usage errors in one line, exit code 2, no traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # θ and ≥ must not end a run on an ASCII terminal
    try:
        code = app(prog_name="hypermargin", standalone_mode=False)
    except Exception as error:
        # typer carries its own copy of click or uses the real one, by version; both errors look like this.
        if not hasattr(error, "format_message"):
            raise
        typer.echo(f"hypermargin: error: {' '.join(error.format_message().split())}", err=True)
        code = 2
    sys.exit(code)


if __name__ == "__main__":
    main()
