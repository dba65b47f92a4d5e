"""`hypermargin train`: the settings of `training.Config` as flags."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from pathlib import Path
from typing import Annotated, Any

import typer

from hypermargin.cli._app import app, plain_errors

if typing.TYPE_CHECKING:
    from hypermargin.training import Config

ABOUT = """Train an embedding with any head of the family.

Settings come from the --config file (TOML), then from flags; what is left open is chosen from the data and saved
with the run. The same command with --resume goes on after an interruption, to the same result.

\b
Examples:
  hypermargin train
  hypermargin train --data photos/ --head arcface --set m=0.4 --set scale=32 --epochs 20 --out runs/photos
  hypermargin train --data digits --dim 2 --model-set width=24 --epochs 30
  hypermargin train --data faces/train.rec --model iresnet50 --optimizer sgd --batch 512 --precision bfloat16
  hypermargin train --data embeddings.npz --head cosface
  hypermargin train --config run.toml --out runs/photos --resume
"""


def run(config: Path | None, out: Path | None, resume: bool, quiet: bool, **flags: Any) -> None:
    """What the command does with its flags; those not given are None or empty."""
    from hypermargin.training import DivergedError, Interrupted, RunError, train
    from hypermargin.training.config import assignment, from_dict, read_toml, resumed
    from hypermargin.training.monitor import words

    with plain_errors():
        given = read_toml(config) if config else {}
        for name, value in flags.items():
            if value is None or value == []:
                continue
            if name in ("set", "model_set"):
                option = "--" + name.replace("_", "-")
                value = {**given.get(name, {}), **dict(assignment(text, option) for text in value)}
            given[name] = value
        settings = from_dict(given, str(config or "flags"))
        folder = out or _new_folder(settings)
        if resume and (folder / "run.json").exists():
            saved = from_dict(read_toml(folder / "config.toml"), str(folder / "config.toml"))
            settings = resumed(saved, given)
        try:
            result = train(settings, folder, resume=resume, quiet=quiet)
        except (RunError, OSError, DivergedError) as error:  # OSError: CheckpointError, a full disk, no permission
            typer.echo(f"hypermargin: error: {error}", err=True)
            raise typer.Exit(1) from None
        except Interrupted as stop:
            typer.echo(f"{stop}. Go on with: hypermargin train --out {folder} --resume", err=True)
            raise typer.Exit(130) from None
    for kind, values in result.metrics.items():
        typer.echo(f"{kind}: {words(values)}")
    typer.echo(f"run: {folder}")


def _new_folder(settings: Config) -> Path:
    """runs/data-head, with a number if that is taken."""
    name = f"{Path(settings.data.replace(':', '-')).stem}-{settings.head}"
    taken = [p.name for p in Path("runs").glob("*")]
    names = [name, *(f"{name}-{k}" for k in range(2, len(taken) + 3))]
    return Path("runs") / next(n for n in names if n not in taken)


def _parameter(name: str, kind: Any, flag: str, words: str, default: Any = None) -> inspect.Parameter:
    option = typer.Option(flag, help=words, show_default=False)
    annotation = Annotated[kind, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _flags() -> list[inspect.Parameter]:
    """A parameter of the command for each setting."""
    from hypermargin.training.config import KINDS, Config

    found = []
    for field in dataclasses.fields(Config):
        flag = "--" + field.name.replace("_", "-")
        kind: Any = KINDS[field.name][0]
        default = getattr(Config(), field.name)
        words = field.metadata["help"]
        if field.metadata["choices"]:
            words += f" ({', '.join(field.metadata['choices'])})"
        if default is not None and default not in ({}, []):
            shown = ", ".join(map(str, default)) if isinstance(default, list) else default
            words += f"  [default: {shown}]"
        if kind is bool:
            flag = f"{flag}/--no-{flag[2:]}"
        elif kind is dict:
            kind = list[str]
        elif kind is list:
            kind = list[float] if default and isinstance(default[0], float) else list[str]
        found.append(_parameter(field.name, kind | None, flag, words))
    return found


def _register() -> None:
    parameters = [
        _parameter("config", Path | None, "--config", "a TOML file of settings"),
        _parameter("out", Path | None, "--out", "the run's folder; default runs/DATA-HEAD"),
        _parameter("resume", bool, "--resume", "go on with the run in --out, if there is one", False),
        _parameter("quiet", bool, "--quiet", "only the result", False),
        *_flags(),
    ]

    def train(**given: Any) -> None:
        run(**given)

    train.__doc__ = ABOUT
    train.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    train.__annotations__ = {p.name: p.annotation for p in parameters}
    app.command("train")(train)


_register()
