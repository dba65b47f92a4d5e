"""The unit sphere on flat paper, seen from far away."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hypermargin import checks
from hypermargin.common.arrays import Floats
from hypermargin.plots.style import look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class View:
    """An orthographic look from `azimuth` degrees east of the x axis and `elevation` degrees above the xy plane."""

    elevation: float = 25.0
    azimuth: float = 35.0

    def __post_init__(self) -> None:
        for name in ("elevation", "azimuth"):
            checks.in_range(name, getattr(self, name), -math.inf, math.inf, "It is an angle in degrees.")

    @property
    def axes(self) -> Floats:
        """Right, up and towards the eye: three orthonormal rows."""
        e, a = math.radians(self.elevation), math.radians(self.azimuth)
        return np.array([
            [-math.sin(a), math.cos(a), 0.0],
            [-math.sin(e) * math.cos(a), -math.sin(e) * math.sin(a), math.cos(e)],
            [math.cos(e) * math.cos(a), math.cos(e) * math.sin(a), math.sin(e)],
        ])  # fmt: skip

    def project(self, points: ArrayLike) -> tuple[Floats, NDArray[np.bool_]]:
        """Return points (N, 3) as places on the paper (N, 2), and which of them (N,) are on the near side."""
        points = np.asarray(points, float)
        if points.ndim != 2 or points.shape[1] != 3:
            raise ValueError(f"points must have shape (N, 3), one point of space per row; got {points.shape}.")
        seen = points @ self.axes.T
        return seen[:, :2], seen[:, 2] >= 0

    def draw_globe(self, ax: Axes, *, step: int = 45) -> None:
        """Draw the outline, and meridians and parallels every `step` degrees, fainter on the far side."""
        t = np.linspace(0, 2 * np.pi, 91)
        ax.plot(np.cos(t), np.sin(t), color=look(ax).faint, linewidth=1.0, zorder=0.5)
        for a in np.radians(np.arange(0, 180, step)):
            self._faint(ax, np.stack([np.cos(t) * np.cos(a), np.cos(t) * np.sin(a), np.sin(t)], 1))
        for b in np.radians(np.arange(step - 90, 90, step)):
            self._faint(ax, np.stack([np.cos(b) * np.cos(t), np.cos(b) * np.sin(t), 0 * t + np.sin(b)], 1))

    def _faint(self, ax: Axes, points: Floats) -> None:
        xy, front = self.project(points)
        for side, alpha in ((front, 0.4), (~front, 0.1)):
            place = np.where(side[:, None], xy, np.nan)  # NaN breaks the line where it leaves this side
            ax.plot(place[:, 0], place[:, 1], color=look(ax).faint, alpha=alpha, linewidth=0.6, zorder=0.5)
