"""`hypermargin plot NAME`: every picture of the catalogue as a command, its parameters as flags."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from hypermargin.cli._app import app, plain_errors
from hypermargin.cli._flags import add_command, flag
from hypermargin.cli._help import App
from hypermargin.plots.catalogue import Picture, pictures

ABOUT = """Pictures: curves, decision boundaries, spheres, what a run has learned, and an interactive page.

Without a name, lists them. The ending of --out chooses the format: png, svg or pdf; of features over the epochs,
also gif or html; of the sphere also html, which can be turned.

\b
Examples:
  hypermargin plot
  hypermargin plot psi --margins arcface --margins cosface:m=0.2 --out psi.svg
  hypermargin plot boundary-circle --theta12 60 --out band.pdf
  hypermargin plot features --run runs/digits --out features.gif
  hypermargin plot explorer --out explorer.html
"""
plots = App(invoke_without_command=True, help=ABOUT)


@plots.callback()
def plot(context: typer.Context) -> None:  # noqa: D103  # ABOUT is its help
    if context.invoked_subcommand is None:
        entries = {name: each.about for name, each in pictures().items()} | {"explorer": EXPLORER}
        wide = max(map(len, entries))
        for name, about in entries.items():
            typer.echo(f"{name:<{wide}}  {about}")
        typer.echo("\nhypermargin plot NAME --out FILE draws one; hypermargin plot NAME --help says what it takes.")


EXPLORER = "a page with sliders: margin, scale, classes, band, loss and gradient, in English and Chinese"


@plots.command("explorer", help=EXPLORER)
def explorer(
    out: Annotated[Path, typer.Option(help="The page to write, .html.")] = Path("explorer.html"),
) -> None:
    """One file, no network needed."""
    from hypermargin.plots.explorer import write

    with plain_errors():
        _check_ending(out, ("html",))
        _written(out, write)


def _check_ending(out: Path, allowed: tuple[str, ...]) -> None:
    if out.suffix.lower().lstrip(".") not in allowed:
        kinds = ", ".join(f".{ending}" for ending in allowed)
        raise ValueError(f"--out must end in {kinds}; got {str(out)!r}.")


def _written(out: Path, write: Callable[[Path], Any]) -> None:
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write(out)
    except OSError as error:
        raise ValueError(f"--out: {out} cannot be written ({error}).") from None
    typer.echo(f"written: {out}")


MORE = {"features": ("gif", "html"), "sphere": ("html",)}  # endings beside those of every picture


def _add(picture: Picture) -> None:
    """Make a command for a picture."""
    from hypermargin.plots.style import ENDINGS

    endings = (*ENDINGS, *MORE.get(picture.name, ()))

    def draw(out: Path, dark: bool, **options: Any) -> None:
        given = {name: value for name, value in options.items() if value is not None and value != []}
        with plain_errors():
            _check_ending(out, endings)
            try:
                if picture.name == "features" and out.suffix.lower() in (".gif", ".html"):
                    from hypermargin.plots.animation import animate
                    from hypermargin.plots.learned import frames

                    moving = frames(**given)
                    _written(out, lambda path: animate(moving, path, dark=dark))
                elif out.suffix.lower() == ".html":
                    from hypermargin.plots.learned import sphere
                    from hypermargin.plots.turnable import turnable

                    seen = sphere(**given)
                    _written(out, lambda path: turnable(seen, path, dark=dark))
                else:
                    display = picture.make(**given)
                    _written(out, lambda path: display.save(path, dark=dark))
            except (RuntimeError, ModuleNotFoundError) as error:  # RunError; no matplotlib
                raise ValueError(str(error)) from None

    flags = [
        flag("out", Path, f"the file to write: {', '.join(endings)}", Path(f"{picture.name}.png")),
        flag("dark", bool, "on a dark ground", False),
    ]
    hints = get_type_hints(picture.make, include_extras=True)
    for name, parameter in inspect.signature(picture.make).parameters.items():
        kind, words = get_args(hints[name])[:2]
        default = parameter.default
        shown = ", ".join(map(str, default)) if isinstance(default, list | tuple) else default
        if shown not in (None, "", False):
            words += f"  [default: {shown}]"
        spelt = f"--{name}/--no-{name}" if default is True else ""
        flags.append(flag(name, kind | None, words, spelt=spelt))  # None: the picture's own default
    add_command(plots, picture.name, picture.about, draw, flags)


for each in pictures().values():
    _add(each)
app.add_typer(plots, name="plot")
