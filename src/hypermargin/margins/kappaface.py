"""KappaFace: Oinar et al. 2022 (arXiv:2201.07394), a larger margin for classes that scatter and for rare ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hypermargin.class_state import ByClass, add_rows
from hypermargin.fields import number
from hypermargin.layout import Layout
from hypermargin.margins._base import RowFacts, RowMargin, register
from hypermargin.margins.arcface import ArcFace
from hypermargin.numerics import constant, snapshot, unit


@register("kappaface")
@dataclass(frozen=True)
class KappaFace(ArcFace):
    """ArcFace's ψ with a margin m·w_c by class, larger for classes that scatter and for rare ones.

    A head adds up the directions of the features of every class, as they were when they were seen, and makes new
    weights of them when an epoch ends (`MarginHead.end_epoch`, which the trainer calls); w = 1 until then. With N_c
    features seen in the epoch, n_c training samples (`class_counts`; without them N_c), in d dimensions:

        r_c = |Σ x̂|/N_c      κ_c = r_c·(d − r_c²)/(1 − r_c²)      κ̂ = (κ − mean κ)/deviation of κ
        w_c = γ·(1 − σ(T·κ̂_c)) + (1 − γ)·(1 + cos(π·n_c/K))/2      K = 1.05·max n

    κ is infinite for a class seen once, and counts as the largest finite one. A class that was not seen keeps its
    weight. In place of the sum the paper's code has a memory of every sample (or a second encoder), in which an old
    feature has a share of 0.1; its class has m = 0.62 and T = 0.55, its configuration the numbers here, and its ψ
    is `beyond="none"`. With mixup a row counts for its first label.
    """

    m: float = number(0.8, 0.0, math.pi, help="The margin in radians of a class whose weight is 1.")
    gamma: float = number(0.7, 0.0, 1.001, help="Share of how a class scatters; the rest is how rare it is.")
    temperature: float = number(0.4, 0.0, help="How strongly κ̂ moves the margin; 0 is half a weight for all.")

    def row_margin(self) -> RowMargin:
        """Return what adds up the features of every class, and holds the weights."""
        return Concentrations(self)


class Concentrations(RowMargin):
    """Σ x̂ and N of every class in this epoch, its number of training samples, and the weight of its margin."""

    by_class_entries: ClassVar[dict[str, ByClass]] = {
        "sums": ByClass("sum"), "seen": ByClass("sum"), "samples": ByClass("sum"), "weights": ByClass("mean", 1.0),
    }  # fmt: skip
    sums: Tensor
    seen: Tensor
    samples: Tensor
    weights: Tensor

    def __init__(self, margin: KappaFace) -> None:
        super().__init__()
        self.margin = margin
        self._next: tuple[Tensor, Tensor, Tensor] | None = None
        self.hold(range(0), 1, None)

    def hold(self, held: range, dim: int, counts: Tensor | None) -> None:
        """Make room for these classes; their margins are m until the first epoch has ended."""
        super().hold(held, dim, counts)
        C = len(held)
        samples = torch.zeros(C) if counts is None else counts[held.start : held.stop].float()
        self.register_buffer("sums", torch.zeros(C, dim))
        self.register_buffer("seen", torch.zeros(C))
        self._told("samples", samples)
        self.register_buffer("weights", torch.ones(C))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Forget what was seen; every margin is m again."""
        super().reset_parameters()
        self.sums.zero_()
        self.seen.zero_()
        self.weights.fill_(1.0)

    def forward(self, m: Tensor | None, rows: RowFacts) -> Tensor | None:
        """Return m·w of the class of every row, (N, L); m where another process holds the class."""
        if not len(self.weights):  # without a head, or on a rank without classes
            return m
        at = self.places(rows.labels, len(self.weights))
        w = snapshot(self.weights).to(rows.norm.dtype)[at.clamp(min=0)].masked_fill(at < 0, 1.0)
        if self.training:
            x = unit(rows.features.detach())
            counts = ((at[:, 0] >= 0) & x.isfinite().all(1) & (x != 0).any(1)).unsqueeze(1)
            self._next = at[:, 0].clamp(min=0), x.masked_fill(~counts, 0.0), counts.squeeze(1)
        found: Tensor = w * (constant(self.margin.m, w) if m is None else m.to(w.dtype))
        return found

    @torch.no_grad()
    def advance(self) -> None:
        """Add the features of the last training forward."""
        if self._next is not None:
            at, x, counts = self._next
            add_rows(self.sums, at, x.to(self.sums.dtype))
            add_rows(self.seen, at, counts.to(self.seen.dtype))
            self._next = None

    @torch.no_grad()
    def end_epoch(self, layout: Layout) -> None:
        """Set the weight of every class that was seen since the last call; nothing, if none was."""
        n, margin, d = self.seen, self.margin, self.sums.shape[1]
        known = n > 0
        count = layout.sum(known.sum().to(n.dtype))
        if not float(count):
            return
        r = torch.linalg.vector_norm(self.sums, dim=1) / n.clamp(min=1)
        rest, rounding = 1 - r.square(), 8 * torch.finfo(r.dtype).eps
        finite = known & (n > 1) & (rest > rounding)  # equal directions leave the rounding of their sum
        kappa = r * (d - r.square()) / rest.masked_fill(~finite, 1.0)
        most = _largest(kappa.masked_fill(~finite, -math.inf), layout)
        kappa = torch.where(finite, kappa, most.masked_fill(most == -math.inf, 0.0)) * known
        off = (kappa - layout.sum(kappa.sum()) / count) * known
        deviation = (layout.sum(off.square().sum()) / (count - 1).clamp(min=1)).sqrt()
        alike = deviation <= rounding * most.abs()  # as where all but one were seen once: what differs is rounding
        scattered = 1 - (margin.temperature * off / deviation.masked_fill(alike, math.inf)).sigmoid()
        told = float(layout.sum(self.samples.sum())) > 0
        samples = self.samples if told else n
        rare = (1 + (math.pi * samples / (1.05 * _largest(samples, layout))).cos()) / 2
        weights = margin.gamma * scattered + (1 - margin.gamma) * rare
        self.weights.copy_(torch.where(known, weights, self.weights))
        self.sums.zero_()
        self.seen.zero_()


def _largest(x: Tensor, layout: Layout) -> Tensor:
    """Return the largest number of all ranks, of which some may have none."""
    return layout.largest(torch.cat((x, x.new_full((1,), -math.inf))).amax())
