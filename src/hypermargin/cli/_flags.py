"""Commands whose flags are made from something else: the settings of a run, the parameters of a picture."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer


def flag(name: str, kind: Any, words: str, default: Any = None, *, spelt: str = "") -> inspect.Parameter:
    """Make a flag of a command, spelt --like-this; what is not given is None."""
    option = typer.Option(spelt or "--" + name.replace("_", "-"), help=words, show_default=False)
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=default, annotation=Annotated[kind, option])


def add_command(
    app: typer.Typer, name: str, about: str, work: Callable[..., None], flags: list[inspect.Parameter]
) -> None:
    """Let `app NAME --flags…` call `work` with the flags."""

    def command(**given: Any) -> None:
        work(**given)

    command.__doc__ = about
    command.__signature__ = inspect.Signature(flags)  # type: ignore[attr-defined]  # typer reads it
    command.__annotations__ = {each.name: each.annotation for each in flags}
    app.command(name)(command)


def setting_flags() -> list[inspect.Parameter]:
    """Make a flag for each setting of `training.Config`."""
    from hypermargin.training.config import KINDS, Config

    found = []
    for field in dataclasses.fields(Config):
        kind: Any = KINDS[field.name][0]
        default = getattr(Config(), field.name)
        words, spelt = field.metadata["help"], ""
        if field.metadata["choices"]:
            words += f" ({', '.join(field.metadata['choices'])})"
        if default is not None and default not in ({}, []):
            shown = ", ".join(map(str, default)) if isinstance(default, list) else default
            words += f"  [default: {shown}]"
        if kind is bool:
            name = field.name.replace("_", "-")
            spelt = f"--{name}/--no-{name}"
        elif kind is dict:
            kind = list[str]
        elif kind is list:
            kind = list[float] if default and isinstance(default[0], float) else list[str]
        found.append(flag(field.name, kind | None, words, spelt=spelt))
    return found


def given_settings(config: Path | None, flags: dict[str, Any]) -> dict[str, Any]:
    """Read settings from the TOML file, then from the flags that were given."""
    from hypermargin.common.text import parse_assignment
    from hypermargin.training.config import read_toml

    given = read_toml(config) if config else {}
    for name, value in flags.items():
        if value is None or value == []:
            continue
        if name in ("set", "model_set"):
            option = "--" + name.replace("_", "-")
            value = {**given.get(name, {}), **dict(parse_assignment(text, option) for text in value)}
        given[name] = value
    return given
