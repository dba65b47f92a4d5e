"""Dataclass fields that know which values they allow, for margins and rules."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from hypermargin import checks


def number(
    default: float,
    low: float,
    high: float = math.inf,
    *,
    open_low: bool = False,
    closed_high: bool = False,
    help: str,
) -> Any:
    """Return a dataclass field for a number in [low, high), and its explanation.

    `open_low` leaves out the lower end, `closed_high` lets in the upper one.
    """
    ends = {"low": low, "high": high, "open_low": open_low, "closed_high": closed_high}
    return dataclasses.field(default=default, metadata=ends | {"help": help})


def choice(default: str, choices: tuple[str, ...], *, help: str) -> Any:
    """Return a dataclass field for one of a few words, and its explanation."""
    return dataclasses.field(default=default, metadata={"choices": choices, "help": help})


def number_fields(kind: type) -> Iterator[dataclasses.Field[Any]]:
    """Yield the fields of a dataclass that were made by `number`, in order."""
    for field in dataclasses.fields(kind):
        if "low" in field.metadata:
            yield field


def check_fields(made: Any, tensors_go: str = "") -> None:
    """Raise unless every field holds an allowed value.

    `tensors_go` says, for the error message, where a tensor could be given instead.
    """
    if torch.compiler.is_compiling():  # there it is made from one that was checked; and 2.6 cannot read metadata
        return
    for field in dataclasses.fields(made):
        value, meta = getattr(made, field.name), field.metadata
        where = f"{type(made).__name__}({field.name}=…)"
        if "low" in meta:
            _check_number(where, value, meta, tensors_go)
        elif "choices" in meta:
            checks.one_of(where, value, meta["choices"])


def _check_number(where: str, value: object, meta: Mapping[str, Any], tensors_go: str) -> None:
    ends = "(" if meta["open_low"] else "[", "]" if meta["closed_high"] else ")"
    interval = f"{ends[0]}{meta['low']:g}, {meta['high']:.6g}{ends[1]}"
    if isinstance(value, Tensor):
        raise TypeError(f"{where} must be a plain number; got a tensor.{tensors_go and ' ' + tensors_go}")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(
            f"{where} must be a number in {interval}; got {checks.shown(value)} ({type(value).__name__})."
        )
    above = value > meta["low"] if meta["open_low"] else value >= meta["low"]
    below = value <= meta["high"] if meta["closed_high"] else value < meta["high"]
    if above and below and value <= checks.LARGEST:
        return
    hint = meta["help"]
    if meta["high"] == math.pi and math.pi < value < 180:
        hint += f" {value:g} degrees are {math.radians(value):.4g}."
    raise ValueError(f"{where} must lie in {interval}; got {checks.number(value)}. {hint}")
