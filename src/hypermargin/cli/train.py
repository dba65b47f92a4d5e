"""`hypermargin train`: the settings of `training.Config` as flags."""

from __future__ import annotations

import functools
import inspect
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hypermargin.cli._app import app, complaint, plain_errors
from hypermargin.cli._flags import add_command, flag, given_settings, list_of_heads, setting_flags

if TYPE_CHECKING:
    from hypermargin.training import Config

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
  torchrun --nproc-per-node 8 -m hypermargin train --data faces/train.rec --optimizer sgd --out runs/faces
"""


def run(config: Path | None, out: Path | None, resume: bool, trust: bool, quiet: bool, **flags: Any) -> None:
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
            result = train(settings, folder, resume=resume, quiet=quiet, trust=trust)
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
        *setting_flags(),
    ]


add_command(app, "train", ABOUT, run, _flags(), list_of_heads())
