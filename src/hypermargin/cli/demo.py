"""`hypermargin demo`: some trainings, and one page that shows what s and a margin do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hypermargin.cli._app import app, complaint, plain_errors


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="the demo's folder")] = Path("comparisons/demo"),
    jobs: Annotated[int | None, typer.Option(help="runs at a time  [default: one per core]")] = None,
) -> None:
    """Train one small network with three losses, and write a page that shows what s and a margin do.

    It takes about two minutes on two cores and needs no network. It can be stopped at any time, and goes on
    when it is run again.

    \b
    Examples:
      hypermargin demo
      hypermargin demo --out /tmp/demo
    """
    from hypermargin.compare.pool import shown
    from hypermargin.demo import TITLES
    from hypermargin.demo import demo as run
    from hypermargin.training import Interrupted, RunError

    with plain_errors():
        try:
            with shown(TITLES) as watch:
                page = run(out, jobs=jobs, watch=watch)
        except (RunError, OSError, ModuleNotFoundError) as error:
            typer.echo(f"hypermargin: error: {complaint(error)}", err=True)
            raise typer.Exit(1) from None
        except Interrupted as stop:
            typer.echo(f"{stop}. Go on with: hypermargin demo --out {out}", err=True)
            raise typer.Exit(130) from None
    typer.echo(f"open {page}")
