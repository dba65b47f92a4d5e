"""Angles seen: how far samples are from their own class, and how far from the nearest rival."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hypermargin.common.arrays import Counts, Floats, Values
from hypermargin.evaluate.pairs import samples
from hypermargin.evaluate.prototypes import nearest_other, prototypes_of
from hypermargin.numerics import angle_between, unit
from hypermargin.plots.style import Display, dress, legend, look, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STEP = 15  # degrees; the axis ends at a multiple of it
MOST_ROWS = 8


@dataclass(eq=False)
class AnglesDisplay(Display):
    """Angles in degrees, in the order of the samples.

    own      θ_y, to the own prototype; against centers only of samples in classes of two and more
    rival    min over j ≠ y of θ_j, to the nearest other
    against  "prototype", or "center", the mean direction of a class
    """

    own: Floats
    rival: Floats
    against: str = "prototype"
    title: str = "Angles"
    until: int | None = None  # degrees: where the axis ends, if others beside it must end there too

    @classmethod
    def of(
        cls, features: Values, labels: Values, prototypes: Values | None = None, *, title: str = "Angles"
    ) -> AnglesDisplay:
        """Make it from features (N, d) and labels (N,): rows of prototypes (C, d), or any if there are none."""
        s = samples(features, labels, "features")
        y = torch.from_numpy(s.ids).to(s.x.device)
        if prototypes is None:
            if len(s.sizes) < 2:
                raise ValueError(
                    "labels must hold two identities or more: without another class there is no rival."
                )
            W = unit(s.x.new_zeros(len(s.sizes), s.x.shape[1]).index_add_(0, y, s.x))
            seen = s.sizes[s.ids] > 1  # one alone is its own center
            if not seen.any():
                raise ValueError(
                    "labels must hold an identity with two samples or more: one alone is its own center."
                )
        else:
            prototypes_of(s, prototypes, None)  # refuses what does not fit
            W = unit(torch.as_tensor(prototypes).detach().to(s.x))
            y = torch.from_numpy(s.names.astype(np.int64)[s.ids]).to(W.device)
            seen = np.ones(len(s.ids), bool)
        back = np.argsort(s.order)
        own = _degrees(angle_between(s.x, W[y]))[back][seen[back]]
        rival = _degrees(angle_between(s.x, W[nearest_other(s.x, y, W)[1]]))[back]
        return cls(own, rival, "center" if prototypes is None else "prototype", title)

    @property
    def medians(self) -> tuple[float, float]:
        """Return the medians of own and of rival."""
        return float(np.median(self.own)), float(np.median(self.rival))

    @property
    def end(self) -> int:
        """The degrees, a multiple of 15, below which 97 % of either kind lie: where the picture ends."""
        if self.until is not None:
            return self.until
        most = max(float(np.quantile(angles, 0.97)) for angles in (self.own, self.rival))
        return min(180, STEP * (int(most / STEP) + 1))

    def histogram(self, end: int | None = None) -> tuple[Floats, Counts, Counts]:
        """Return (edges, own, rival): samples in equal bins from 0° to `end`, as many as the samples can fill."""
        bins = min(90, max(30, round(3 * len(self.own) ** (1 / 3))))
        edges = np.linspace(0, end or self.end, bins + 1)
        return edges, np.histogram(self.own, edges)[0], np.histogram(self.rival, edges)[0]

    def draw(self, ax: Axes) -> None:
        """Draw filled steps, own solid and rival dashed, each with a line at its median."""
        from matplotlib.ticker import FuncFormatter, MaxNLocator

        edges, *counts = self.histogram()
        kinds = zip(counts, ("own", "nearest other"), self.medians, ("-", "--"), _colours(ax), strict=True)
        for count, what, median, dash, colour in kinds:
            share = count / len(self.own if what == "own" else self.rival)
            ax.stairs(share, edges, fill=True, alpha=0.3, color=colour)
            words = f"to the {what} {self.against}, median {median:.1f}°"
            ax.stairs(share, edges, linewidth=1.5, linestyle=dash, color=colour, label=words)
            ax.axvline(median, color=colour, linewidth=1.2, linestyle=dash)
        ax.set_xlim(0, edges[-1])
        ax.set_ylim(bottom=0)
        ax.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 1.5, 3, 4.5, 5, 10]))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda angle, _: f"{angle:g}°"))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda share, _: percent(share)))
        dress(ax, xlabel=_xlabel([self], self.end), ylabel="share of the samples", title=self.title)
        legend(ax, loc="upper center", bbox_to_anchor=(0.5, -0.16))


@dataclass(eq=False)
class AnglesOverTraining(Display):
    """The same angles at several times, one row each, the first on top.

    rows  (name, angles), evenly taken from those given, first and last among them
    """

    rows: Sequence[tuple[str, AnglesDisplay]]
    title: str = "Angles over training"

    size = 6.4, 5.6

    @classmethod
    def of(
        cls,
        rows: Sequence[tuple[str, AnglesDisplay]],
        *,
        most: int = MOST_ROWS,
        title: str = "Angles over training",
    ) -> AnglesOverTraining:
        """Make it from (name, angles) in the order of time, `most` of them at most."""
        if not rows:
            raise ValueError("rows must hold at least one (name, angles); got none.")
        taken = np.unique(np.linspace(0, len(rows) - 1, min(most, len(rows))).round().astype(int))
        return cls([rows[k] for k in taken], title)

    def draw(self, ax: Axes) -> None:
        """Draw a ridge for own and one for rival; their medians in columns at the right."""
        from matplotlib.ticker import FuncFormatter, MaxNLocator

        end = max(angles.end for _, angles in self.rows)
        colours, ink = _colours(ax), look(ax).ink
        across = ax.get_yaxis_transform()
        for row, (_, angles) in enumerate(self.rows):
            base = len(self.rows) - 1 - row
            edges, own, rival = angles.histogram(end)
            shares = own / len(angles.own), rival / len(angles.rival)
            # Each row to its own height: an early one is flat beside a late one.
            top = max(float(share.max()) for share in shares)
            for share, median, dash, colour, x in zip(
                shares, angles.medians, ("-", "--"), colours, (1.07, 1.2), strict=True
            ):
                ridge = base + 0.85 * share / top
                ax.stairs(ridge, edges, baseline=base, fill=True, alpha=0.3, color=colour)
                ax.stairs(ridge, edges, baseline=base, linewidth=1.2, linestyle=dash, color=colour)
                ax.plot([median, median], [base, base + 0.85], color=colour, linewidth=1.4, linestyle=dash)
                ax.text(
                    x,
                    base + 0.25,
                    f"{median:.1f}°",
                    transform=across,
                    ha="center",
                    va="center",
                    fontsize=9,
                    color=ink,
                )
        against = self.rows[0][1].against
        for word, dash, colour, x in zip(("own", "nearest other"), ("-", "--"), colours, (1.07, 1.2), strict=True):
            ax.plot([], [], color=colour, linewidth=1.6, linestyle=dash, label=f"to the {word} {against}")
            heading = word.split()[-1]
            ax.text(x, len(self.rows) + 0.05, heading, transform=across, ha="center", fontsize=9, color=ink)
        ax.text(1.135, len(self.rows) + 0.4, "medians", transform=across, ha="center", fontsize=9, color=ink)
        ax.set_xlim(0, end)
        ax.set_ylim(-0.1, len(self.rows))
        ax.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 1.5, 3, 4.5, 5, 10]))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda angle, _: f"{angle:g}°"))
        ax.set_yticks(
            [len(self.rows) - 1 - k + 0.25 for k in range(len(self.rows))], [name for name, _ in self.rows]
        )
        dress(ax, xlabel=_xlabel([angles for _, angles in self.rows], end), title=self.title)
        ax.tick_params(axis="y", length=0)
        ax.grid(visible=False, axis="y")
        ax.spines["left"].set_visible(False)
        legend(ax, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)


def _xlabel(shown: Sequence[AnglesDisplay], end: int) -> str:
    """Name the axis, and say what the picture leaves out."""
    angles = np.concatenate([values for one in shown for values in (one.own, one.rival)])
    beyond = float((angles > end).mean())
    return f"angle ({100 * beyond:.2g} % lie beyond {end}°)" if beyond else "angle"


def _colours(ax: Axes) -> tuple[str, str]:
    return look(ax).blue, look(ax).red


def _degrees(angles: Tensor) -> Floats:
    found: Floats = np.degrees(angles.double().cpu().numpy())
    return found
