"""The gradient seen: what softmax with a margin pulls, what it pushes, and how the rivals share the push."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
import torch

from hypermargin import checks
from hypermargin.common.arrays import Floats
from hypermargin.functional import margin_cross_entropy
from hypermargin.margins import Margin
from hypermargin.plots.catalogue import MARGINS, USUAL, label, picture, read_margin, read_margins
from hypermargin.plots.style import DASHES, Display, Panels, degrees_axis, dress, legend, look, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RIVALS, SCALES = (60.0, 65.0, 75.0, 90.0), (1.0, 10.0, 30.0, 64.0)


@dataclass(eq=False)
class PullsDisplay(Display):
    """One sample's gradient on the logits, ∂L/∂z_j = p_j − 1[j = y]: one is pulled, the rivals share the push.

    angles    (C,)  degrees from the sample to its own class, first, and to the rivals
    gradient  (C,)  sums to 0; its first entry is −q, q = 1 − p_y
    """

    angles: Floats
    gradient: Floats
    scale: float
    name: str = ""

    @classmethod
    def of(cls, margin: Margin, target: float, rivals: Sequence[float], scale: float) -> PullsDisplay:
        """Compute it from angles in degrees, by autograd."""
        angles = np.array([target, *rivals], float)
        return cls(angles, _gradient(margin, angles, [scale])[0], scale, label(margin))

    @property
    def q(self) -> float:
        """The whole push, 1 − p_y."""
        return float(self.gradient[1:].sum())

    @property
    def shares(self) -> Floats:
        """Return p_j/(1 − p_y): each rival's part of the push; they sum to 1."""
        return np.asarray(self.gradient[1:] / self.gradient[1:].sum())

    def draw(self, ax: Axes) -> None:
        """Draw the target's bar down, the rivals' up."""
        colours = look(ax)
        names = [f"{'rival' if j else 'target'}\n{angle:g}°" for j, angle in enumerate(self.angles)]
        kinds = [colours.blue] + [colours.red] * len(self.shares)
        for j, (height, colour) in enumerate(zip(self.gradient, kinds, strict=True)):
            ax.bar(
                j, height, 0.62, facecolor=colour, alpha=0.85, hatch="" if j == 0 else "///", linewidth=0,
                edgecolor=colours.ground,
            )  # fmt: skip
            words = f"−{self.q:.3f}" if j == 0 else f"{100 * self.shares[j - 1]:.1f} %"
            ax.text(
                j, height + (-0.04 if j == 0 else 0.04), words, ha="center", va="top" if j == 0 else "bottom",
                fontsize=9, color=colours.ink,
            )  # fmt: skip
        ax.axhline(0, color=colours.ink, linewidth=0.9)
        ax.set_xticks(range(len(names)), names, fontsize=9)
        ax.set_ylim(-1.2, 1.2)
        title = f"{self.name}, s = {self.scale:g}:  $q = 1 − p_y$ = {self.q:.3f}"
        dress(ax, xlabel="in %: a rival's part of q", ylabel="gradient on the logit", title=title)
        ax.grid(False, axis="x")


@dataclass(eq=False)
class RivalsDisplay(Display):
    """How the rivals share the push, and how large it is, over the scale.

    scales  (S,)
    shares  (S, C−1)  p_j/(1 − p_y)
    q       (S,)      1 − p_y
    """

    scales: Floats
    shares: Floats
    q: Floats
    rivals: Sequence[float]

    @classmethod
    def of(cls, margin: Margin, target: float, rivals: Sequence[float]) -> RivalsDisplay:
        """Compute it from angles in degrees, by autograd."""
        scales = np.geomspace(0.5, 128, 161)
        push = _gradient(margin, np.array([target, *rivals], float), scales)[:, 1:]
        q = push.sum(1)
        return cls(scales, push / q[:, None], q, rivals)

    def draw(self, ax: Axes) -> None:
        """Draw both on a log axis of s."""
        from matplotlib.ticker import FixedLocator, FuncFormatter

        colours = look(ax)
        ax.set_xscale("log")
        for j, (angle, share) in enumerate(zip(self.rivals, self.shares.T, strict=True)):
            ax.plot(
                self.scales, share, color=colours.cycle[(j + 1) % 7], linestyle=DASHES[(j + 1) % 7], linewidth=1.8,
                label=f"rival at {angle:g}°",
            )  # fmt: skip
        ax.plot(self.scales, self.q, color=colours.blue, linewidth=1.8, label="$q = 1 − p_y$, all of it")
        ax.set_xlim(self.scales[0], self.scales[-1])
        ax.set_ylim(0, 1.03)
        ax.xaxis.set_major_locator(FixedLocator([1, 10, 30, 64]))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda s, _: f"{s:g}"))
        ax.xaxis.set_minor_locator(FixedLocator([]))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda share, _: percent(share)))
        dress(
            ax,
            xlabel="scale s",
            ylabel="part of the push",
            title="The larger s, the more the hardest gets",
        )
        _legend_below(ax)


@dataclass(eq=False)
class AnglePullDisplay(Display):
    """∂L/∂θ ÷ s, the pull on the angle to the own class, with all rivals at right angles.

    theta  (K,)  radians
    pulls  by the margin's name, (K,)
    """

    theta: Floats
    pulls: Mapping[str, Floats]
    scale: float
    classes: int

    @classmethod
    def of(cls, margins: Sequence[Margin], scale: float, classes: int) -> AnglePullDisplay:
        """Compute the pulls by autograd."""
        checks.count("classes", classes, 2)
        checks.in_range("classes", classes, 2, 10_001)
        theta = np.linspace(0.001, math.pi - 0.001, 241)  # at 0 and π a cosine has no slope
        pulls = {}
        for margin in margins:
            angle = torch.from_numpy(theta.copy()).requires_grad_()
            cosines = torch.cat([angle.cos()[:, None], angle.new_zeros(len(theta), classes - 1)], 1)
            labels = torch.zeros(len(theta), dtype=torch.long)
            loss = margin_cross_entropy(cosines, labels, margin, scale, reduction="sum")
            pulls[label(margin)] = torch.autograd.grad(loss, angle)[0].numpy() / scale
        return cls(theta, pulls, scale, classes)

    def draw(self, ax: Axes) -> None:
        """Draw the pulls over all angles."""
        for k, (name, pull) in enumerate(self.pulls.items()):
            ax.plot(
                self.theta, pull, color=look(ax).cycle[k % 7], linestyle=DASHES[k % 7], linewidth=1.8, label=name
            )
        degrees_axis(ax)
        ax.set_ylim(bottom=0)
        dress(
            ax, xlabel="angle to the own class θ", ylabel="pull on the angle, ∂L/∂θ ÷ s",
            title=f"s = {self.scale:g}, {self.classes - 1:,} rivals at 90°",
        )  # fmt: skip
        _legend_below(ax)


def _legend_below(ax: Axes) -> None:
    """Put the legend where it covers no curve."""
    legend(ax, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)


def _gradient(margin: Margin, angles: Floats, scales: Sequence[float] | Floats) -> Floats:
    """Return ∂L/∂z (S, C) at each scale, the target first.

    `margin_cross_entropy` differentiates by cosines; with gradient="straight" and divided by s that is ∂L/∂z.
    """
    s = torch.tensor([float(scale) for scale in scales], dtype=torch.float64)
    cosines = torch.from_numpy(np.cos(np.radians(angles))).repeat(len(s), 1).requires_grad_()
    labels = torch.zeros(len(s), dtype=torch.long)
    loss = margin_cross_entropy(cosines, labels, margin, s, gradient="straight", reduction="sum")
    return np.asarray((torch.autograd.grad(loss, cosines)[0] / s[:, None]).numpy())


def _check(target: float, rivals: Sequence[float], scales: Sequence[float]) -> None:
    if not rivals:
        raise ValueError("rivals must hold at least one angle; got none.")
    for name, angle in [("target", target), *(("rivals", angle) for angle in rivals)]:
        if not 0 <= angle <= 180:
            raise ValueError(f"{name} must lie in [0, 180] degrees; got {angle:g}.")
    for s in scales:
        checks.positive("scales", s)


@picture("gradient", "how hard a sample pulls its class and pushes each rival, as the scale grows")
def gradient(
    margin: Annotated[str, "the margin of the bars and shares, like cosface:m=0.2"] = "cosface",
    target: Annotated[float, "degrees from the sample to its own class"] = 45.0,
    rivals: Annotated[list[float], "degrees to the rivals, hardest first; repeatable"] = RIVALS,  # type: ignore[assignment]
    scales: Annotated[list[float], "s, a panel each; repeatable"] = SCALES,  # type: ignore[assignment]
    margins: Annotated[list[str], MARGINS] = USUAL,
    scale: Annotated[float, "s of the pull on the angle"] = 30.0,
    classes: Annotated[int, "how many classes pull there, 2 to 10,000"] = 1000,
) -> Display:
    """Bars for some scales, the shares over all scales, and the pull on the angle for several margins."""
    _check(target, rivals, (*scales, scale))
    one = read_margin(margin)
    bars = [PullsDisplay.of(one, target, rivals, s) for s in scales]
    curves = [RivalsDisplay.of(one, target, rivals), AnglePullDisplay.of(read_margins(margins), scale, classes)]
    return Panels([*bars, *curves], panel_size=(5.2, 3.6))
