"""`hypermargin bench`: where the benchmarks are, for those who look for them here."""

from __future__ import annotations

import typer

from hypermargin.cli._app import app


# Whatever follows is accepted: old command lines, with all their flags, get the answer too.
@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def bench() -> None:
    """Say where the benchmarks are.

    They are in a checkout of the repository, `python -m benchmarks.NAME`, and no part of the package.
    """
    typer.echo(
        "The benchmarks are in a checkout of the repository: python -m benchmarks.NAME, such as benchmarks.head "
        "(benchmarks/README.md lists them).",
        err=True,
    )
    raise typer.Exit(2)  # nothing was measured, which a script should notice
