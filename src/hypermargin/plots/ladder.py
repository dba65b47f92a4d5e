"""The ladder from the hinge loss to AM-Softmax as curves: see `hypermargin.hinge` for the rungs and their order."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
import torch
from torch import Tensor

from hypermargin import checks
from hypermargin.common.arrays import Floats
from hypermargin.hinge import lse_hinge, max_hinge, softplus_hinge, sum_hinge
from hypermargin.plots.catalogue import picture
from hypermargin.plots.style import DASHES, Display, Panels, dress, legend, look

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RUNGS = "sum hinge S", "max hinge H", "LSE hinge $H_s$", "AM-Softmax L/s"
BEHIND, GROWING = (0.0, 0.1, 0.3), (4.0, 10.0, 30.0, 64.0)


@dataclass(eq=False)
class LadderDisplay(Display):
    """Curves over one number, with a shade between two of them.

    x       (K,)  what they go over
    curves  by name, (K,)
    shade   its words, its lower edge (K,) and its upper edge (K,)
    """

    x: Floats
    curves: Mapping[str, Floats]
    xlabel: str
    ylabel: str
    title: str
    shade: tuple[str, Floats, Floats] | None = None
    log: bool = False

    @classmethod
    def rungs(cls, behind: Sequence[float], m: float, s: float) -> LadderDisplay:
        """Show the four losses against the worst violation v; other rivals are `behind` it by so much cosine."""
        v = _violation_axis()
        curves = {name: rung(*_batch(v, behind, m)).numpy() for name, rung in _rungs(m, s).items()}
        return cls(v, curves, VIOLATION, "loss", f"Four rungs of the ladder, s = {s:g}, {_rivals(behind)}")

    @classmethod
    def pulls(cls, behind: Sequence[float], m: float, s: float) -> LadderDisplay:
        """Show |∂/∂c|₁ of the four: how hard each pulls at the scores, by autograd."""
        v = _violation_axis()
        curves = {}
        for name, rung in _rungs(m, s).items():
            scores, labels = _batch(v, behind, m)
            scores.requires_grad_()
            (slope,) = torch.autograd.grad(rung(scores, labels).sum(), scores)
            curves[name] = slope.abs().sum(1).numpy()
        title = f"How hard they pull, s = {s:g}, {_rivals(behind)}"
        return cls(v, curves, VIOLATION, "pull: sum of |gradient|", title)

    @classmethod
    def scales(cls, behind: Sequence[float], m: float, scales: Sequence[float]) -> LadderDisplay:
        """Show AM-Softmax L/s for growing s above the hinge H; H ≤ L/s ≤ H + ln(C)/s is shaded for the least s."""
        v = _violation_axis()
        batch = _batch(v, behind, m)
        H = max_hinge(*batch, m=m, reduction="none").numpy()
        curves = {"max hinge H": H}
        for s in sorted(scales):
            curves[f"L/s, s = {s:g}"] = softplus_hinge(*batch, m=m, s=s, reduction="none").numpy() / s
        least, classes = min(scales), len(behind) + 1
        shade = f"H … H + ln({classes})/{least:g}", H, H + math.log(classes) / least
        return cls(v, curves, VIOLATION, "loss", "The larger s, the closer to the hinge", shade)

    @classmethod
    def gaps(cls, behind: Sequence[float], m: float) -> LadderDisplay:
        """Show L/s − H at v = 0, where it is largest, against s: rivals as given, and level, meeting the bound."""
        s, classes = np.geomspace(1, 128, 57), len(behind) + 1
        zero = np.zeros(1)

        def gap(offsets: Sequence[float]) -> Floats:
            batch = _batch(zero, offsets, m)
            H = float(max_hinge(*batch, m=m))
            return np.array([float(softplus_hinge(*batch, m=m, s=float(k))) / k - H for k in s])

        curves = {
            f"bound ln({classes})/s": math.log(classes) / s,
            "rivals all level": gap([0.0] * len(behind)),
            "rivals as in the other panels": gap(behind),
        }
        return cls(s, curves, "scale s", "L/s − H at v = 0", "How far above the hinge", log=True)

    def draw(self, ax: Axes) -> None:
        """Draw the lines, told apart by dashes too."""
        from matplotlib.ticker import FuncFormatter

        colours = look(ax)
        if self.log:
            ax.set_xscale("log")
            ax.set_yscale("log")
            for axis in (ax.xaxis, ax.yaxis):
                axis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:g}"))
                axis.set_minor_formatter("")
        if self.shade is not None:
            words, low, high = self.shade
            ax.fill_between(self.x, low, high, color=colours.sky, alpha=0.22, linewidth=0, label=words)
        for k, (name, curve) in enumerate(self.curves.items()):
            ax.plot(self.x, curve, color=colours.cycle[k % 7], linestyle=DASHES[k % 7], linewidth=1.8, label=name)
        ax.set_xlim(self.x[0], self.x[-1])
        dress(ax, xlabel=self.xlabel, ylabel=self.ylabel, title=self.title)
        legend(ax, loc="upper right" if self.log else "upper left")


VIOLATION = "violation of the margin by the worst rival, $v = m + c − c_y$"
Rung = Callable[[Tensor, Tensor], Tensor]


def _rungs(m: float, s: float) -> dict[str, Rung]:
    """Return all four in units of v, row by row."""
    return dict(
        zip(
            RUNGS,
            (
                lambda c, y: sum_hinge(c, y, m=m, reduction="none"),
                lambda c, y: max_hinge(c, y, m=m, reduction="none"),
                lambda c, y: lse_hinge(c, y, m=m, s=s, reduction="none"),
                lambda c, y: softplus_hinge(c, y, m=m, s=s, reduction="none") / s,
            ),
            strict=True,
        )
    )


def _rivals(behind: Sequence[float]) -> str:
    return f"{len(behind)} rival{'s' * (len(behind) > 1)}"


def _violation_axis() -> Floats:
    return np.linspace(-0.4, 0.6, 301)


def _batch(v: Floats, behind: Sequence[float], m: float) -> tuple[Tensor, Tensor]:
    """Return a row of scores for each v: the target at 0, then the rivals at v − m − behind."""
    rivals = (v - m)[:, None] - np.asarray(behind, float)
    scores = torch.from_numpy(np.concatenate([np.zeros((len(v), 1)), rivals], 1))
    return scores, torch.zeros(len(v), dtype=torch.long)


@picture("hinge", "the ladder from the hinge loss to AM-Softmax, which becomes the hinge as the scale grows")
def hinge(
    behind: Annotated[list[float], "how far each rival is behind the worst, in cosine; repeatable"] = BEHIND,  # type: ignore[assignment]
    m: Annotated[float, "the margin, in cosine"] = 0.35,
    scale: Annotated[float, "s of the smooth rungs"] = 10.0,
    scales: Annotated[list[float], "growing s of AM-Softmax; repeatable"] = GROWING,  # type: ignore[assignment]
) -> Display:
    """The rungs, their pulls, the limit, and the distance to it."""
    if not behind or min(behind) != 0:
        raise ValueError(f"behind must hold the worst rival itself, 0, and nothing below it; got {list(behind)}.")
    if not scales:
        raise ValueError("scales must hold at least one scale; got none.")
    for s in (scale, *scales):
        checks.positive("scale" if s == scale else "scales", s)
    return Panels([
        LadderDisplay.rungs(behind, m, scale),
        LadderDisplay.pulls(behind, m, scale),
        LadderDisplay.scales(behind, m, scales),
        LadderDisplay.gaps(behind, m),
    ], panel_size=(5.2, 3.9))  # fmt: skip
