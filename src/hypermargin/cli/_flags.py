"""Commands whose flags are made from something else: the settings of a run, the parameters of a picture."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from hypermargin.cli._help import App


def flag(
    name: str, kind: Any, words: str, default: Any = None, *, spelt: str = "", group: str | None = None,
    choices: Sequence[str] = (),
) -> inspect.Parameter:  # fmt: skip
    """Make a flag of a command, spelt --like-this; what is not given is None. A shell completes its `choices`."""
    option = typer.Option(
        spelt or "--" + name.replace("_", "-"), help=words, show_default=False, metavar=_metavar(kind),
        rich_help_panel=group, autocompletion=(lambda: list(choices)) if choices else None,
    )  # fmt: skip
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=default, annotation=Annotated[kind, option])


def _metavar(kind: Any) -> str | None:
    """Return what stands for a value in the help."""
    plain = next(k for k in (*get_args(kind), kind) if k is not type(None))
    of = (get_args(plain) or (plain,))[0]  # list[str] is given one at a time
    return {str: "TEXT", int: "N", float: "X", Path: "PATH"}.get(of)


def add_command(
    app: App, name: str, about: str, work: Callable[..., None], flags: list[inspect.Parameter], epilog: str = ""
) -> None:
    """Let `app NAME --flags…` call `work` with the flags."""

    def command(**given: Any) -> None:
        work(**given)

    command.__doc__ = about
    command.__signature__ = inspect.Signature(flags)  # type: ignore[attr-defined]  # typer reads it
    command.__annotations__ = {each.name: each.annotation for each in flags}
    app.command(name, epilog=epilog or None)(command)


# The settings at which a group of the help begins; it goes on until the next.
GROUPS = {
    "data": "Data",
    "split": "Parts",
    "augment": "Samples in training",
    "verify": "Pairs to verify",
    "memory": "Reading",
    "model": "Network",
    "head": "Head",
    "epochs": "Length",
    "optimizer": "Optimiser",
    "precision": "Speed",
    "seed": "The run",
    "watch": "Watching and saving",
}


def list_of_heads() -> str:
    """List the heads as the epilog of a command that takes one."""
    from hypermargin.recipes import FAMILY

    groups: dict[str, list[str]] = {}
    for name, recipe in FAMILY.items():
        groups.setdefault(recipe.group, []).append(name)
    return "\n".join(["Heads, for --head", *(f"{group}: {', '.join(names)}" for group, names in groups.items())])


def setting_flags() -> list[inspect.Parameter]:
    """Make a flag for each setting of `training.Config`."""
    from hypermargin.recipes import FAMILY
    from hypermargin.training.config import KINDS, Config

    found, group = [], None
    for field in dataclasses.fields(Config):
        group = GROUPS.get(field.name, group)
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
        choices = FAMILY if field.name == "head" else field.metadata["choices"]
        found.append(flag(field.name, kind | None, words, spelt=spelt, group=group, choices=tuple(choices)))
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
