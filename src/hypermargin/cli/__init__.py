"""The command line: one file per command.

A command is a function with `@app.command()`, or one whose flags are made by `_flags.py`. It imports what it needs
inside where it can, and does its work within `plain_errors()`, so that bad input ends in one line and exit code 2.
"""

from __future__ import annotations

import io
import sys

from hypermargin.common.needs import absent, not_installed

try:
    import rich.console  # noqa: F401
    import typer
except ModuleNotFoundError as missing:
    packages = absent("typer", "rich") or [str(missing.name).split(".")[0]]
    raise SystemExit(not_installed("hypermargin: the command line needs", *packages)) from None

from hypermargin.cli import (  # noqa: F401  # importing a command registers it
    advise,
    bench,
    clean,
    compare,
    data,
    demo,
    diagnose,
    embed,
    evaluate,
    export,
    head,
    plot,
    train,
    verify,
)
from hypermargin.cli._app import app
from hypermargin.cli._flags import list_of_heads
from hypermargin.cli._help import listing


def main() -> None:
    """Run the console script: usage errors in one line, exit code 2, no traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # θ and ≥ must not end a run on an ASCII terminal
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors="replace")
    try:
        code = app(prog_name="hypermargin", standalone_mode=False)
    except Exception as error:
        # typer carries its own copy of click or uses the real one, by version; both errors look like this.
        if not hasattr(error, "format_message"):
            raise
        # What the library says of a value names it; "Invalid value: " before it would only be noise.
        message = " ".join(error.format_message().split()).removeprefix("Invalid value: ")
        typer.echo(f"hypermargin: error: {message}", err=True)
        if getattr(error, "option_name", "") == "--head":  # given without a name
            typer.echo(listing(list_of_heads()), err=True)
        code = 2
    sys.exit(code)
