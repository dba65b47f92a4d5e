"""What a margin is, the carrier g they share, and the registry that finds them by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from hypermargin.fields import check_fields, number_fields
from hypermargin.numerics import guarded_acos
from hypermargin.registry import Registry

Numbers = float | tuple[float, ...] | None


def g(u: Tensor) -> Tensor:
    """The monotone carrier: g(u) = (−1)^k cos u − 2k, k = ⌊u/π⌋, which is 1 − ∫₀ᵘ |sin|.

    It equals cos on [0, π], then goes on falling: continuous, C¹, strictly decreasing. Since
    (−1)^k cos u = cos(u − kπ), one cosine does it, and its derivative −sin(u − kπ) is −|sin u|.
    """
    k = torch.floor(u.detach() / math.pi)
    return torch.sub(torch.cos(torch.sub(u, k, alpha=math.pi)), k, alpha=2)


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

    def row_margin(self) -> RowMargin:
        """Return what gives every row an m of its own; the base gives none, and m is what it is."""
        return RowMargin()

    def __post_init__(self) -> None:
        check_fields(
            self,
            "Per-class, per-row and learned margins are given to the head (class_margins=, learn_margin=True) or "
            "to margin_softmax(m=…).",
        )


class RowMargin(nn.Module):
    """Where the m of each row comes from. The base gives what it is given and has no state.

    A source of your own is a module whose `forward` returns m as a tensor, one per row: (N, 1), with a last
    dimension if the margin has several numbers. State goes into buffers; `forward` works out what follows,
    `advance` makes it so, after the loss was computed and in training only. With a sharded head every rank sees
    the rows of all ranks, so that all work out the same.
    """

    def forward(self, m: Tensor | None, rows: RowFacts) -> Tensor | None:
        """Return m for these rows; `m` is what was given or learned, None for the margin's own."""
        return m

    def advance(self) -> None:
        """Move the state on by one training step."""


class RowFacts(NamedTuple):
    """What a source of margins or a row term may know of a batch; of a sharded head, of the rows of all ranks."""

    features: Tensor  # (N, d)  as given, float32 or wider; zeros in rows that do not count
    norm: Tensor  # (N, 1)  |x|, with its gradient
    labels: Tensor  # (N, L)  class numbers; −1 in rows that do not count
    shared: Callable[[Tensor], Tensor] = lambda x: x  # for a parameter that all ranks hold alike, before use


KEEP = RowMargin()


MARGINS = Registry[Margin]("margin")
register, names, get = MARGINS.register, MARGINS.names, MARGINS.get
