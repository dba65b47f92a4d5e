"""The base class of margins, the function g that several share, and the registry that finds margins by name."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from hypermargin.class_state import ClassState
from hypermargin.fields import check_fields, number_fields
from hypermargin.numerics import constant, guarded_acos
from hypermargin.registry import Registry

if TYPE_CHECKING:
    from hypermargin.ahead import LookAhead

Numbers = float | tuple[float, ...] | None


def g(u: Tensor) -> Tensor:
    """Return g(u) = (−1)^k cos u − 2k, k = ⌊u/π⌋, the decreasing continuation of cos, which is 1 − ∫₀ᵘ |sin|.

    It equals cos on [0, π] and goes on falling beyond: C¹ and strictly decreasing. Since
    (−1)^k cos u = cos(u − kπ), one cosine is enough, and its derivative −sin(u − kπ) is −|sin u|.
    """
    k = torch.floor(u.detach() / math.pi)
    return torch.sub(torch.cos(torch.sub(u, k, alpha=math.pi)), k, alpha=2)


class Margin:
    """ψ(θ): maps the angle between a feature and its own class to the cosine that the loss uses instead of cos θ.

    A margin is a frozen dataclass of plain numbers with one method, `psi`. Subclass, decorate with
    `@register("name")`, and every head, backend, test and command-line flag knows it.
    """

    name: ClassVar[str] = ""
    formula: ClassVar[str] = ""
    # `zero` is the m that means "no margin", and `m` below is this margin's own value. Each is a float, a tuple (a
    # tensor m given to `psi` then has them in its last dimension), or None if the margin has no m.
    zero: ClassVar[Numbers] = None
    is_cosine: ClassVar[bool] = True  # target and rivals count about as cosines do; what is known of s supposes it

    def __init_subclass__(cls) -> None:
        if "psi" in vars(cls) and "of_g" not in vars(
            cls
        ):  # what is said of a parent's ψ does not hold for this one
            cls.of_g = Margin.of_g  # type: ignore[method-assign]

    @property
    def m(self) -> Numbers:
        """The margin's own numbers, which a tensor m given to `psi` replaces."""
        return None

    @property
    def m_names(self) -> tuple[str, ...]:
        """The fields that `m` is made of."""
        if isinstance(self.m, tuple):
            return tuple(field.name for field in number_fields(type(self)))[: len(self.m)]
        return () if self.m is None else ("m",)

    @property
    def breaks(self) -> frozenset[str]:
        """Laws of `hypermargin.testing.LAWS` that this variant is known not to keep."""
        return frozenset()

    def psi(self, theta: Tensor, m: Tensor | None = None) -> Tensor:
        """Return target cosines for angles in [0, π]; `m` overrides the margin's own, broadcast against theta."""
        raise NotImplementedError(f"{type(self).__name__} must define psi(theta, m=None)")

    def psi_of_cosine(self, cosine: Tensor, m: Tensor | None = None) -> Tensor:
        """Return ψ from cosines, for callers without angles. Near ±1 a cosine has lost half the angle's digits."""
        return self.psi(guarded_acos(cosine), m)

    def of_g(self) -> tuple[float, float, float] | None:
        """Return (m1, m2, m3) if ψ is g(m1·θ + m2) − m3, which backends may then compute themselves; else None."""
        return None

    def bounds(self) -> tuple[Numbers, Numbers]:
        """Return the least and the largest m allowed, in the shape of `m`."""
        if self.m is None:
            return None, None
        limits = {f.name: (f.metadata["low"], f.metadata["high"]) for f in number_fields(type(self))}
        lows, highs = zip(*(limits[name] for name in self.m_names), strict=True)
        return (lows, highs) if isinstance(self.m, tuple) else (lows[0], highs[0])

    def at(self, m: Tensor | None, lam: float | Tensor, gradient: str) -> MarginAtRows:
        """Return the margin with what it is told of each row: m, λ, and how its gradient is taken."""
        return MarginAtRows(self, m, lam, gradient)

    def at_strength(self, m: Tensor | None, strength: Tensor) -> Tensor | None:
        """Return m₀ + strength·(m − m₀), m₀ the m of no margin; `m` None is the margin's own."""
        if self.m is None:
            return m
        zero = constant(self.zero, strength)
        full = constant(self.m, strength) if m is None else m
        return zero + strength * (full - zero)

    def rises_with_m(self) -> bool:
        """Return whether a larger m raises ψ near the class, so that it is less margin."""
        near, m = (torch.tensor(x, dtype=torch.float64, device="cpu") for x in (0.1, self.m))
        return bool(self.psi(near, m + 0.01) > self.psi(near, m))

    def row_margin(self) -> RowMargin:
        """Return the module that gives every row its own m; the base's leaves m as it is."""
        return RowMargin()

    def row_term(self) -> nn.Module | None:
        """Return the row term that belongs to this margin, which every head with it adds; None if there is none."""
        return None

    def __post_init__(self) -> None:
        check_fields(
            self,
            "Per-class, per-row and learned margins are given to the head (class_margins=, learn_margin=True) or "
            "to margin_softmax(m=…).",
        )


class MarginAtRows(NamedTuple):
    """A margin with the m, λ and gradient that it is evaluated with."""

    margin: Margin
    m: Tensor | None  # broadcasts against angles (N, L); None: the margin's own
    lam: float | Tensor
    gradient: str

    def lift(self, at: Tensor, *, is_cosine: bool = False) -> Tensor:
        """Return what the margin adds to the target's cosine: (ψ − cos θ)/(1 + λ), at angles or at cosines.

        Adding it to the plain product, rather than replacing that by |f||w|ψ, keeps the product's own gradient
        exact where a zero row leaves the angle without one: a zero-initialised classifier still learns.
        """
        lift = self.margin.psi_of_cosine(at, self.m) - at if is_cosine else self.margin.psi(at, self.m) - at.cos()
        if isinstance(self.lam, Tensor) or self.lam:
            lift = lift / (1 + self.lam)
        return lift.detach() if self.gradient == "straight" else lift

    def bare(self) -> MarginAtRows:
        """Return it with the margin as its formula stands, without what is done where the angle passes π."""
        if not hasattr(self.margin, "beyond"):
            return self
        margin = dataclasses.replace(self.margin, beyond="none")  # type: ignore[type-var]
        return MarginAtRows(margin, self.m, self.lam, self.gradient)


class RowMargin(ClassState):
    """The source of the m of each row. The base returns the m it is given and has no state.

    A source of your own is a module whose `forward` returns m as a tensor, one per row: (N, 1), with a last
    dimension if the margin has several numbers. State goes into buffers: `forward` computes the next state without
    storing it, and `advance`, called in training only and after the loss was computed, stores it. With a sharded
    head every rank sees the rows of all ranks, so that all compute the same state; what has one row per class is
    this rank's slice (`ClassState`).
    """

    part = "row_margin"

    def forward(self, m: Tensor | None, rows: RowFacts) -> Tensor | None:
        """Return m for these rows; the argument is the m that was given or learned, None for the margin's own."""
        return m


class RowFacts(NamedTuple):
    """What a `RowMargin` or a row term is told about a batch; with a sharded head, about the rows of all ranks."""

    features: Tensor  # (N, d)  as given, float32 or wider; zeros in rows that do not count
    norm: Tensor  # (N, 1)  |x|, with its gradient
    labels: Tensor  # (N, L)  class numbers; negative in rows that do not count or are bad
    ahead: LookAhead  # what can be asked about the classes before the loss, without gradient
    shared: Callable[[Tensor], Tensor] = lambda x: x  # apply it to a parameter that all ranks hold, before use


KEEP = RowMargin()


MARGINS = Registry[Margin]("margin")
register, names, get = MARGINS.register, MARGINS.names, MARGINS.get
