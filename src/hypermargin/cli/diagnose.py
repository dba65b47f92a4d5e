"""`hypermargin diagnose`: what is this loss, are these settings sensible, what does this log say?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hypermargin.cli._app import app, plain_errors

if TYPE_CHECKING:
    from hypermargin.diagnose.report import Report


@app.command()
def diagnose(
    criterion: Annotated[
        str | None, typer.Argument(help="MODULE:NAME of a loss: a class, a factory, an object or a function.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Instead: a .toml file of settings, before training.")] = None,
    run: Annotated[Path | None, typer.Option(help="Instead: the folder of a run, whose log is read.")] = None,
    assign: Annotated[
        list[str] | None, typer.Option("--set", help="An argument of the class or factory, m=0.4; repeatable.")
    ] = None,
    form: Annotated[
        str | None, typer.Option(help="How it is called: features, cosines or weights; else it is tried.")
    ] = None,
    dim: Annotated[int | None, typer.Option(help="Dimension of its features; default 16.", min=3)] = None,
    classes: Annotated[
        int | None,
        typer.Option(help="Classes it is made with, default 7; with --config, instead of the data's.", min=2),
    ] = None,
    expect: Annotated[
        str | None, typer.Option(help="The margin it should have, like arcface:m=0.5; another is wrong.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the page with pictures: a .html file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    fail_on: Annotated[
        str, typer.Option(help="Exit code 1 from this level on: note, doubtful, wrong or never.")
    ] = "wrong",
    timeout: Annotated[float, typer.Option(help="Seconds a criterion may take.", min=1)] = 120.0,
    trust: Annotated[bool, typer.Option("--trust", help="Import the code that MODULE:NAME names.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Find out what a loss computes, and what is wrong with it; or check settings, or a run's log.

    A criterion is measured from outside, in a process of its own: its margin at every angle, what autograd reports,
    what rivals and lengths count as, NaN, state, precision. Exit code 0: nothing wrong, 1: something is, 2: it
    could not be called.

    \b
    Examples:
      hypermargin diagnose pytorch_metric_learning:ArcFaceLoss --set margin=28.6
      hypermargin diagnose losses:CombinedMarginLoss --set s=64 --set m1=1 --set m2=0.5 --set m3=0 --trust
      hypermargin diagnose mylosses:ArcFace --trust --expect arcface:m=0.5 --out arcface.html
      hypermargin diagnose mylosses:loss_of_cosines --form cosines --trust --json
      hypermargin diagnose --config run.toml
      hypermargin diagnose --run runs/first --fail-on doubtful
    """
    from hypermargin import checks
    from hypermargin.diagnose.findings import LEVELS, reaches
    from hypermargin.files import free_path, write_text

    with plain_errors():
        if sum(given is not None for given in (criterion, config, run)) != 1:
            raise ValueError("give one of the three: a criterion as MODULE:NAME, --config FILE or --run FOLDER.")
        checks.one_of("--fail-on", fail_on, (*LEVELS, "never"))
        if out is not None:
            free_path("--out", out, (".html",), force)
        if config is not None:
            from hypermargin.diagnose.settings import diagnose_config

            found = diagnose_config(config, classes)
        elif run is not None:
            from hypermargin.diagnose.logs import diagnose_run

            found = diagnose_run(run)
        else:
            found = _criterion(str(criterion), assign or [], form, dim, classes, expect, trust, timeout)
        if out is not None:
            write_text(out, found.page())
    typer.echo(json.dumps(found.plain(), indent=1, ensure_ascii=False) if as_json else found.text())
    if out is not None:
        typer.echo(f"written: {out}", err=True)
    if reaches(found.findings, fail_on):
        raise typer.Exit(1)


def _criterion(
    name: str, assigned: list[str], form: str | None, dim: int | None, classes: int | None, expect: str | None,
    trust: bool, timeout: float,
) -> Report:  # fmt: skip
    """Diagnose a criterion in a process of its own."""
    from hypermargin import checks
    from hypermargin.common.text import parse_assignment
    from hypermargin.diagnose.criterion import FORMS
    from hypermargin.diagnose.report import Report
    from hypermargin.diagnose.worker import Request, diagnose_apart

    if form is not None:
        checks.one_of("--form", form, FORMS)
    settings = dict(parse_assignment(text) for text in assigned)
    return Report.of(diagnose_apart(Request(name, trust, settings, form, dim, classes, expect), timeout))
