"""What a margin is, the carrier g they share, and the registry that finds them by name."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from hypermargin import checks
from hypermargin.numerics import guarded_acos

Numbers = float | tuple[float, ...] | None


def g(u: Tensor) -> Tensor:
    """The monotone carrier: g(u) = (−1)^k cos u − 2k, k = ⌊u/π⌋, which is 1 − ∫₀ᵘ |sin|.

    It equals cos on [0, π], then goes on falling: continuous, C¹, strictly decreasing. Since
    (−1)^k cos u = cos(u − kπ), one cosine does it, and its derivative −sin(u − kπ) is −|sin u|.
    """
    k = torch.floor(u / math.pi)
    return torch.cos(u - math.pi * k) - 2 * k


class Margin:
    """ψ(θ): from the angle between a feature and its own class to the cosine the loss pretends it had.

    A margin is a frozen dataclass of plain numbers with one method, `psi`. Subclass, decorate with
    `@register("name")`, and every head, backend, test and command-line flag knows it.
    """

    name: ClassVar[str] = ""
    formula: ClassVar[str] = ""
    # What `psi` may be given as a tensor (per row, per class, learned): the value of m in this margin, and the
    # m that means "no margin". A float, a tuple (the tensor's last dimension then holds them), or None.
    zero: ClassVar[Numbers] = None

    @property
    def m(self) -> Numbers:
        """The margin's own numbers, which a tensor given to `psi` stands in for."""
        return None

    @property
    def breaks(self) -> frozenset[str]:
        """Laws of `hypermargin.testing.LAWS` that this variant is known not to keep."""
        return frozenset()

    def psi(self, theta: Tensor, m: Tensor | None = None) -> Tensor:
        """Target angles in [0, π] to target cosines; `m` overrides the margin's own, broadcast against theta."""
        raise NotImplementedError(f"{type(self).__name__} must define psi(theta, m=None)")

    def psi_of_cosine(self, cosine: Tensor, m: Tensor | None = None) -> Tensor:
        """ψ for people who hold only cosines. Near ±1 a cosine has lost half the angle's digits."""
        return self.psi(guarded_acos(cosine), m)

    def bounds(self) -> tuple[Numbers, Numbers]:
        """The least and the largest m allowed, in the shape of `m`."""
        if self.m is None:
            return None, None
        limits = {f.name: (f.metadata["low"], f.metadata["high"]) for f in number_fields(type(self))}
        if isinstance(self.m, tuple):
            return tuple(low for low, _ in limits.values()), tuple(high for _, high in limits.values())
        return limits["m"]

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]  # subclasses are dataclasses
            value, meta = getattr(self, field.name), field.metadata
            where = f"{type(self).__name__}({field.name}=…)"
            if "low" in meta:
                _check_number(where, value, meta)
            elif "choices" in meta:
                checks.one_of(where, value, meta["choices"])


def _check_number(where: str, value: object, meta: Any) -> None:
    interval = f"{'(' if meta['open_low'] else '['}{meta['low']:g}, {meta['high']:.6g})"
    if isinstance(value, Tensor):
        raise TypeError(
            f"{where} must be a plain number; got a tensor. Per-class, per-row and learned margins are given to "
            f"the head (class_margins=, learn_margin=True) or to margin_softmax(m=…)."
        )
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{where} must be a number in {interval}; got {value!r} ({type(value).__name__}).")
    above = value > meta["low"] if meta["open_low"] else value >= meta["low"]
    if not (above and value < meta["high"]):
        raise ValueError(f"{where} must lie in {interval}; got {value:g}. {meta['help']}")


def number(default: float, low: float, high: float = math.inf, *, open_low: bool = False, help: str) -> Any:
    """A dataclass field holding a number in [low, high) (or (low, high)), with its explanation."""
    return dataclasses.field(
        default=default, metadata={"low": low, "high": high, "open_low": open_low, "help": help}
    )


def choice(default: str, choices: tuple[str, ...], *, help: str) -> Any:
    """A dataclass field holding one of a few words, with its explanation."""
    return dataclasses.field(default=default, metadata={"choices": choices, "help": help})


def number_fields(margin: type[Margin]) -> Iterator[dataclasses.Field[Any]]:
    """The fields of a margin that hold numbers, in order."""
    for field in dataclasses.fields(margin):  # type: ignore[arg-type]  # every registered margin is a dataclass
        if "low" in field.metadata:
            yield field


_REGISTRY: dict[str, type[Margin]] = {}
M = TypeVar("M", bound=type[Margin])


def register(name: str) -> Any:
    """Class decorator: make a margin known under `name`."""

    def enter(cls: M) -> M:
        if name in _REGISTRY and _REGISTRY[name].__qualname__ != cls.__qualname__:
            raise ValueError(f"margin name {name!r} is taken by {_REGISTRY[name].__name__}; choose another.")
        cls.name = name
        _REGISTRY[name] = cls
        return cls

    return enter


def names() -> list[str]:
    """The names of all registered margins."""
    return sorted(_REGISTRY)


def get(name: str) -> type[Margin]:
    """The margin class registered under `name`."""
    try:
        return _REGISTRY[name]
    except KeyError:
        known = ", ".join(names())
        raise ValueError(f"unknown margin {name!r}; registered are {known}.{checks.near(name, names())}") from None
