"""`hypermargin advise`."""

from __future__ import annotations

import math
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hypermargin.cli._app import app, plain_errors


@app.command()
def advise(
    classes: Annotated[int, typer.Option(help="How many classes there are to train on.")],
    dim: Annotated[int, typer.Option(help="The embedding's dimension.")],
    margin: Annotated[
        str,
        typer.Option(help="none, arcface, cosface, sphereface, or another margin or head, as adaface."),
    ] = "arcface",
    m: Annotated[
        float | None, typer.Option("--m", help="Take this m (ArcFace: radians) instead of choosing one.")
    ] = None,
    probability: Annotated[
        float, typer.Option(help="The target probability a sample on its center is to reach.")
    ] = 0.99,
    angle: Annotated[
        float | None, typer.Option(help="Median angle of your samples to their centers, in radians, if known.")
    ] = None,
) -> None:
    """Which s, which m, for so many classes? With the reasons.

    \b
    Examples:
      hypermargin advise --classes 10000 --dim 512
      hypermargin advise --classes 1000 --dim 128 --margin cosface
      hypermargin advise --classes 1000 --dim 128 --margin arcface --m 0.3
      hypermargin advise --classes 10 --dim 2 --margin none
      hypermargin advise --classes 10000 --dim 512 --margin adaface
    """
    from hypermargin.advise import band_width, recommend
    from hypermargin.advise.usual import named
    from hypermargin.margins import number_fields

    with plain_errors():
        numbers = {} if m is None else {"m": m}
        if m is not None and "m" not in named(margin).m_names:
            raise ValueError(f"--m sets the m of a margin with one number; {margin!r} has not. Leave --m out.")
        advice = recommend(classes, dim, margin=margin, numbers=numbers, probability=probability, angle=angle)
        square = band_width(advice.margin, math.pi / 2)

    table = Table(title=f"{classes} classes in {dim} dimensions", title_justify="left", show_header=False, box=None)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("scale s", f"{advice.s:g}")
    table.add_row("margin", f"{advice.margin.name}: ψ(θ) = {advice.margin.formula}")
    table.add_row("m", _numbers(advice.m))
    for field in number_fields(type(advice.margin)):
        if field.name not in advice.margin.m_names:
            table.add_row(field.name, f"{getattr(advice.margin, field.name):.4g}")
    table.add_row("nearest centers", f"{_angle(advice.centre_angle)} apart at best")
    table.add_row("band between them", f"{_angle(advice.width)} wide; {_angle(square)} between centers at 90°")
    if not math.isnan(advice.floor):
        table.add_row("loss floor", f"{advice.floor:.3g}, the least mean loss of balanced classes")
    console = Console(highlight=False)
    console.print(table)
    console.print()
    for reason in advice.reasons:
        console.print(_bullet(reason))


def _numbers(m: float | tuple[float, ...] | None) -> str:
    if m is None:
        return "none"
    return ", ".join(f"{number:.4g}" for number in (m if isinstance(m, tuple) else (m,)))


def _angle(theta: float) -> str:
    return f"{theta:.3g} rad ({math.degrees(theta):.3g}°)"


def _bullet(text: str) -> Table:
    """Print a paragraph with a hanging indent, wrapped to the console's width."""
    grid = Table.grid(padding=(0, 1))
    grid.add_row("-", Text(text))
    return grid
