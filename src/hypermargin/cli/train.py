"""`hypermargin train`: the settings of `training.Config` as flags."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hypermargin.cli._app import app, complaint, plain_errors
from hypermargin.cli._flags import add_command, flag, given_settings, list_of_heads, setting_flags

if TYPE_CHECKING:
    from hypermargin.evaluate import Thresholds
    from hypermargin.training import Config
    from hypermargin.training.ending import Finish
    from hypermargin.training.evaluation import Parts

ABOUT = """Train an embedding with any head of the family.

Settings come from the --config file (TOML), then from flags; what is left open is chosen from the data and saved
with the run. The same command with --resume goes on after an interruption, to the same result.

Under torchrun all processes train one run together: each holds a slice of the classes and takes its share of every
batch. The run may be resumed by any number of them.

\b
Examples:
  hypermargin train
  hypermargin train --data photos/ --head arcface --set m=0.4 --set scale=32 --epochs 20 --out runs/photos
  hypermargin train --data digits --dim 2 --model-set width=24 --epochs 30
  hypermargin train --data faces/train.rec --model iresnet50 --optimizer sgd --batch 512 --precision bfloat16
  hypermargin train --data embeddings.npz --head cosface
  hypermargin train --config run.toml --out runs/photos --resume
  hypermargin train --data photos/ --live
  torchrun --nproc-per-node 8 -m hypermargin train --data faces/train.rec --optimizer sgd --out runs/faces
"""


def run(
    config: Path | None,
    out: Path | None,
    resume: bool,
    trust: bool,
    quiet: bool,
    report: bool,
    images: bool,
    live: bool,
    **flags: Any,
) -> None:
    """Run the command with its flags; those not given are None or empty."""
    from hypermargin.training import DivergedError, Interrupted, RunError, train
    from hypermargin.training.config import from_dict, read_config, resumed
    from hypermargin.training.monitor import words
    from hypermargin.training.ranks import LostRankError, of_another

    with plain_errors():
        given = given_settings(config, flags)
        settings = from_dict(given, str(config or "flags"))
        if out is None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ValueError("several processes need --out, the run's folder: each would choose one for itself.")
        folder = out or _new_folder(settings)
        if resume and (folder / "run.json").exists():
            named = {name: given[name] for name in ("model", "model_set") if name in given}
            # What the run names and the user has not named here must not look as if he had.
            settings = replace(resumed(read_config(folder), given), **{"model": None, "model_set": {}, **named})
        # The first of torchrun's processes speaks for all that train together.
        first = settings.shard_classes is False or os.environ.get("RANK", "0") == "0"
        again = f"Go on with: hypermargin train --out {folder} --resume"
        try:
            written: list[Path] = []
            finish = _write_report(folder, images, written) if report else None
            with _served(folder, settings) if live and first else nullcontext():
                result = train(settings, folder, resume=resume, quiet=quiet, trust=trust, finish=finish)
        except LostRankError as error:
            typer.echo(f"hypermargin: error: {error} {again}", err=True)
            raise typer.Exit(1) from None
        except (RunError, OSError, DivergedError) as error:  # OSError: CheckpointError, a full disk, no permission
            if not of_another(error) and (first or not isinstance(error, DivergedError)):
                typer.echo(f"hypermargin: error: {complaint(error)}", err=True)
            raise typer.Exit(1) from None
        except Interrupted as stop:
            if first:
                typer.echo(f"{stop}. {again}", err=True)
            raise typer.Exit(130) from None
    if not first:
        return
    for kind, values in result.metrics.items():
        typer.echo(f"{kind}: {words(values)}  (step {result.step}: {result.why})")
    for warning in result.warnings if quiet else ():  # else it was said already
        typer.echo(f"warning: {warning}", err=True)
    typer.echo(f"run: {folder}")
    if report and not written and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        _report_of_ranks(folder, images, written)
    for path in written:
        typer.echo(f"report: {path}")


def _report_of_ranks(folder: Path, images: bool, written: list[Path]) -> None:
    """Write the page of a run that several processes trained: none of them held all of it."""
    from hypermargin.evaluate import Thresholds
    from hypermargin.training import load
    from hypermargin.training.evaluation import open_parts

    try:
        parts = open_parts(folder, load(folder))
        _write_report(folder, images, written)(parts, Thresholds.read(folder))
    except Exception as error:  # whatever it is, the run stands
        typer.echo(f"no report written: {error}", err=True)


@contextmanager
def _served(folder: Path, settings: Config) -> Iterator[None]:
    """Show the run under way on this machine, and say where."""
    from hypermargin.runpage.live import live

    with live(folder, f"{settings.head} on {Path(settings.data).name}") as address:
        typer.echo(f"live: {address}", err=True)
        yield


def _write_report(folder: Path, images: bool, written: list[Path]) -> Finish:
    """Return what writes the page of the run when it has ended, and notes that it did."""

    def finish(parts: Parts, thresholds: Thresholds | None) -> None:
        from hypermargin.runpage import write_report

        written.append(write_report(folder, parts, thresholds, images=images))

    return finish


def _new_folder(settings: Config) -> Path:
    """Return runs/data-head, with a number if that is taken."""
    name = f"{Path(settings.data.replace(':', '-')).stem}-{settings.head}"
    taken = [p.name for p in Path("runs").glob("*")]
    names = [name, *(f"{name}-{k}" for k in range(2, len(taken) + 3))]
    return Path("runs") / next(n for n in names if n not in taken)


def _flags() -> list[inspect.Parameter]:
    own = functools.partial(flag, group="Command")
    return [
        own("config", Path | None, "a TOML file of settings"),
        own("out", Path | None, "the run's folder; default runs/DATA-HEAD"),
        own("resume", bool, "go on with the run in --out, if there is one", False),
        own("trust", bool, "with --resume: import the code that the run names (MODULE:FUNCTION)", False),
        own("quiet", bool, "only the result", False),
        own("report", bool, "end with report.html  [default: report]", True, spelt="--report/--no-report"),
        own("images", bool, "with small pictures in it  [default: images]", True, spelt="--images/--no-images"),
        own("live", bool, "show the run in a browser of this machine while it trains", False),
        *setting_flags(),
    ]


add_command(app, "train", ABOUT, run, _flags(), list_of_heads())
