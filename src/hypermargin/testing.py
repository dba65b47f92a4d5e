"""The laws of a margin, for people who write their own: `check_margin(MyMargin())`."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from hypermargin.margins import Margin, Piecewise

__all__ = ["LAWS", "LawBroken", "broken_laws", "check_margin"]


class LawBroken(AssertionError):  # noqa: N818  it reads better where it is caught
    """A margin does not keep a law it promised."""


def check_margin(margin: Margin) -> None:
    """Raise `LawBroken` if a margin breaks a law of `LAWS` that it does not list in `margin.breaks`."""
    unknown = margin.breaks - set(LAWS)
    if unknown:
        raise LawBroken(f"{margin}.breaks names {sorted(unknown)}; the laws are {', '.join(LAWS)}.")
    problems = {law: why for law, why in broken_laws(margin).items() if law not in margin.breaks}
    if problems:
        lines = "\n".join(f"  {law}: {why}" for law, why in problems.items())
        raise LawBroken(f"{margin} breaks what it promises:\n{lines}")


def broken_laws(margin: Margin) -> dict[str, str]:
    """Which laws a margin breaks, declared or not, and where."""
    found = {law: test(margin) for law, test in LAWS.items()}
    return {law: why for law, why in found.items() if why}


def _grid() -> Tensor:
    return torch.linspace(0.0, math.pi, 20_001, dtype=torch.float64)


def _continuous(margin: Margin) -> str:
    """Take the cells where ψ moves least as its slope says, and halve them forty times: only a jump stays."""
    theta = _grid().requires_grad_()
    value = margin.psi(theta)
    (slope,) = torch.autograd.grad(value.sum(), theta)
    theta, value = theta.detach(), value.detach()
    surprise = value.diff() - theta.diff() * (slope[1:] + slope[:-1]) / 2
    cells = surprise.abs().nan_to_num(nan=math.inf).topk(16).indices
    low, high = theta[cells], theta[cells + 1]
    for _ in range(40):
        middle = (low + high) / 2
        at_low, at_middle, at_high = margin.psi(low), margin.psi(middle), margin.psi(high)
        left = (at_middle - at_low).abs() > (at_high - at_middle).abs()
        low, high = torch.where(left, low, middle), torch.where(left, middle, high)
    before, after = margin.psi(low), margin.psi(high)
    worst = int((after - before).abs().argmax())
    where, jump = float(low[worst]), f"ψ jumps from {before[worst]:.6g} to {after[worst]:.6g}"
    if (after - before).abs().max() <= 1e-6:
        return ""
    if isinstance(margin, Piecewise) and abs(where - math.pi / margin.m) < 1e-9:
        return f"D(π/m) must be −1, where cos mθ has arrived; got {after[worst]:.6g} at π/m = {where:.6g}"
    return f"{jump} at θ = {where:.6g}"


def _decreasing(margin: Margin) -> str:
    theta = _grid()
    rise = margin.psi(theta).diff()
    worst = int(rise.argmax())
    return f"ψ rises by {rise[worst]:.3g} at θ = {theta[worst]:.6g}" if rise[worst] > 1e-12 else ""


def _below_cos(margin: Margin) -> str:
    theta = _grid()
    above = margin.psi(theta) - theta.cos()
    worst = int(above.argmax())
    return f"ψ exceeds cos θ by {above[worst]:.3g} at θ = {theta[worst]:.6g}" if above[worst] > 1e-12 else ""


def _plain_at_zero(margin: Margin) -> str:
    if margin.zero is None or (isinstance(margin, Piecewise) and margin.D is not None):
        return ""  # nothing to set to zero
    theta = _grid()
    off = (margin.psi(theta, torch.tensor(margin.zero, dtype=theta.dtype)) - theta.cos()).abs().max()
    return f"ψ(θ, m = {margin.zero}) differs from cos θ by {off:.3g}" if off > 1e-12 else ""


def _finite_slope(margin: Margin) -> str:
    """ψ and dψ/dθ finite on [0, π], ends included, and the slope that of ψ."""
    theta = _grid().requires_grad_()
    value = margin.psi(theta)
    (slope,) = torch.autograd.grad(value.sum(), theta)
    bad = ~(value.isfinite() & slope.isfinite())
    if bool(bad.any()):
        return f"ψ or its slope is not finite at θ = {theta[bad][0]:.6g}"
    step = 1e-6
    middle = theta.detach()[1:-1]
    difference = (margin.psi(middle + step) - margin.psi(middle - step)) / (2 * step)
    off = (difference - slope[1:-1]).abs()
    # A kink or a jump between the two points is not the slope's fault; a wrong slope is wrong nearly everywhere.
    wrong = off > 1e-5 * (1 + slope[1:-1].abs())
    return f"dψ/dθ is not the slope of ψ at θ = {middle[wrong][0]:.6g}" if wrong.sum() > 20 else ""


def _by_row(margin: Margin) -> str:
    """A tensor m, one a row, means the same as the number."""
    if margin.m is None or (isinstance(margin, Piecewise) and margin.D is not None):
        return ""
    theta = _grid()[::500]
    m = torch.tensor(margin.m, dtype=theta.dtype).expand(*theta.shape, *torch.tensor(margin.m).shape)
    off = (margin.psi(theta, m) - margin.psi(theta)).abs().max()
    return f"ψ with m as a tensor differs from ψ with the same number by {off:.3g}" if off > 1e-12 else ""


LAWS: dict[str, Callable[[Margin], str]] = {
    "continuous": _continuous,
    "decreasing": _decreasing,
    "below cos": _below_cos,
    "plain at zero": _plain_at_zero,
    "finite slope": _finite_slope,
    "same by row": _by_row,
}
