"""`hypermargin compare`: several heads, several seeds, one report."""

from __future__ import annotations

import functools
import inspect
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hypermargin.cli._app import app, complaint, plain_errors
from hypermargin.cli._flags import add_command, flag, given_settings, list_of_heads, setting_flags
from hypermargin.cli._tables import Section, show

if TYPE_CHECKING:
    from hypermargin.compare import Comparison

ABOUT = """Train several heads on one data set under one budget, with several seeds, and write one report.

The report is a single HTML file that needs no network: the table (means and spreads; the best is marked only where
it is ahead by more than the noise), pictures of every head side by side, settings, versions, and plain words.
Settings are those of `hypermargin train`. A head may carry numbers of its own: arcface:m=0.3,scale=16.

\b
Examples:
  hypermargin compare
  hypermargin compare --data photos/ --head softmax --head cosface --head arcface --epochs 20 --seeds 5
  hypermargin compare --data photos/ --head arcface:m=0.2 --head arcface:m=0.4 --out comparisons/margins
  hypermargin compare --out comparisons/margins --head arcface:m=0.6 --resume
"""


def run(
    head: list[str] | None,
    seeds: int | None,
    plane: int | None,
    jobs: int | None,
    out: Path | None,
    config: Path | None,
    resume: bool,
    trust: bool,
    **flags: Any,
) -> None:
    """Run the command with its flags; those not given are None or empty."""
    from hypermargin.compare import compare
    from hypermargin.compare.plan import HEADS, Plan
    from hypermargin.compare.pool import shown
    from hypermargin.training import Interrupted, RunError

    with plain_errors():
        given = given_settings(config, flags)
        of_file = {name: given.pop(name, None) for name in ("heads", "seeds", "plane")}
        wanted = tuple(head or of_file["heads"] or ())
        seeds = of_file["seeds"] if seeds is None else seeds
        plane = of_file["plane"] if plane is None else plane
        folder = out or Path("comparisons") / Path(str(given.get("data", "glyphs")).replace(":", "-")).stem
        try:
            if resume and (folder / "plan.json").exists():
                # With the settings of these flags alone: what they do not name must not look as if they had.
                plan = replace(Plan.read(folder).grown(given, wanted, seeds, plane), settings=given)
            else:
                numbers = {k: v for k, v in (("seeds", seeds), ("plane", plane)) if v is not None}
                plan = Plan(given, wanted or HEADS, **numbers)
            with shown() as watch:
                found = compare(plan, folder, resume=resume, jobs=jobs, trust=trust, watch=watch)
        except (RunError, OSError, ModuleNotFoundError) as error:
            typer.echo(f"hypermargin: error: {complaint(error)}", err=True)
            raise typer.Exit(1) from None
        except Interrupted as stop:
            typer.echo(f"{stop}. Go on with: hypermargin compare --out {folder} --resume", err=True)
            raise typer.Exit(130) from None
    show(_sections(found))
    for sentence in found.sentences:
        typer.echo(f"- {sentence}")
    typer.echo(f"\nreport: {found.report}")
    if not found.table:
        raise typer.Exit(1)


def _sections(found: Comparison) -> list[Section]:
    """Lay out the table, and what failed."""
    from hypermargin.compare.numbers import MEASURES

    measures = [measure for measure in MEASURES if measure.key in found.table]
    signs = {"best": " *", "level": " =", "behind": "", "": ""}
    rows = []
    for head in found.plan.heads:
        cells = [(m, found.table[m.key].get(head)) for m in measures]
        texts = ["–" if cell is None else cell.text(m, unit=False) + signs[cell.mark] for m, cell in cells]
        rows.append((head, f"{len(found.measured[head])}/{found.plan.seeds}", *texts))
    title = (
        "mean ± standard deviation over seeds; * ahead of all by more than the noise, = not told apart from best"
    )
    sections = [Section(title, ("head", "runs", *(f"{m.title}, {m.unit}" for m in measures)), rows)]
    failed = found.failed | found.failed_flat
    if failed:
        sections.append(Section("failed", (), list(failed.items())))
    return sections


def _flags() -> list[inspect.Parameter]:
    from hypermargin.compare.plan import HEADS, OWN

    heads = f"a head, like arcface:m=0.3; repeatable  [default: {', '.join(HEADS)}]"
    own = functools.partial(flag, group="Command")
    return [
        own("head", list[str] | None, heads),
        own("seeds", int | None, "runs of each head  [default: 3]"),
        own("plane", int | None, "epochs of a run in two dimensions, for pictures; 0: none  [default: 30]"),
        own("jobs", int | None, "runs at a time  [default: one per core; on a GPU one]"),
        own("out", Path | None, "the comparison's folder; default comparisons/DATA"),
        own("config", Path | None, "a TOML file of settings; heads, seeds and plane may stand there too"),
        own("resume", bool, "go on with the comparison in --out; with --head or --seeds, add to it", False),
        own("trust", bool, "with --resume: import the code that the comparison names (MODULE:FUNCTION)", False),
        *(each for each in setting_flags() if each.name not in OWN),
    ]


add_command(app, "compare", ABOUT, run, _flags(), list_of_heads())
