"""The laws, for people who write their own: `check_margin(MyMargin())`, `check_backend(my_backend)`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from hypermargin.backends import Rivals
from hypermargin.backends.dense import dense_rivals
from hypermargin.margins import Margin, Piecewise

__all__ = ["LAWS", "LawBroken", "broken_laws", "check_backend", "check_margin"]


class LawBroken(AssertionError):  # noqa: N818  it reads better where it is caught
    """A margin or a backend does not keep a law it promised."""


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


def check_backend(
    backend: Callable[..., Rivals],
    *,
    float32_factor: float = 2.0,
    float64: bool = True,
    device: torch.device | str = "cpu",
) -> None:
    """Raise `LawBroken` unless a backend computes what `dense` does, on every kind of input.

    `backend(f, weight, local, inside, *, unit_weight, bias, rival_sum, hardest) -> Rivals` as docs/architecture.md
    describes it. In float64 values and gradients must agree to 1e-9; in float32 the error may be `float32_factor`
    times that of dense in float32, plus a floor. float64=False is for backends that know float32 only.
    """

    def there(*tensors: Tensor | None, dtype: torch.dtype) -> list[Tensor | None]:
        return [None if t is None else t.to(device, dtype if t.is_floating_point() else None) for t in tensors]

    problems = []
    for name, (f, weight, local, inside) in _backend_cases():
        for unit_weight, with_bias in itertools.product((True, False), repeat=2):
            bias = torch.linspace(-1, 1, weight.shape[0], dtype=f.dtype) if with_bias else None
            setting = f"{name}, unit_weight={unit_weight}, bias={with_bias}"
            double, single = (
                there(f, weight, local, inside, bias, dtype=d) for d in (torch.float64, torch.float32)
            )
            right = _outcome(dense_rivals, double, unit_weight)
            usual = _outcome(dense_rivals, single, unit_weight)
            ours = _outcome(backend, single, unit_weight)
            ours_double = _outcome(backend, double, unit_weight) if float64 else right
            for what, value in right.items():
                size = value.abs().nan_to_num(posinf=0.0).max().item() if value.numel() else 0.0
                size = size or 1.0  # of zeros; the logits are about 1 to 10
                off = _distance(ours_double[what], value)
                if off > 1e-9 * size:
                    problems.append(f"{setting}: {what} is off by {off:.3g} in float64")
                off = _distance(ours[what], value)
                allowed = float32_factor * _distance(usual[what], value) + 1e-6 * size
                if off > allowed:
                    problems.append(f"{setting}: {what} is off by {off:.3g} in float32, allowed {allowed:.3g}")
    if problems:
        raise LawBroken(f"{getattr(backend, '__name__', backend)} differs from dense:\n  " + "\n  ".join(problems))


def _backend_cases() -> Iterator[tuple[str, tuple[Tensor, Tensor, Tensor, Tensor | None]]]:
    """Odd sizes, one and two labels a row, labels outside a slice, zero, repeated and parallel rows."""
    rng = torch.Generator().manual_seed(5)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    for N, C, d in ((5, 37, 8), (1, 2, 3), (0, 4, 3), (3, 1, 2), (17, 130, 5)):
        local = torch.randint(0, C, (N, 1), generator=rng)
        yield f"N={N} C={C} d={d}", (3 * normal(N, d), normal(C, d), local, None)
        if C > 2:
            other = torch.cat((local, (local + 1) % C), 1)
            yield f"N={N} C={C} d={d}, two labels a row", (3 * normal(N, d), normal(C, d), other, None)
            shifted = other - C // 2
            inside = (shifted >= 0) & (shifted < C)
            yield f"N={N} C={C} d={d}, a slice", (3 * normal(N, d), normal(C, d), shifted, inside)
    f, weight, local = normal(6, 4), normal(9, 4), torch.arange(6)[:, None]
    f[0], f[1], weight[2], weight[8], weight[4] = 0.0, 2 * weight[1], 0.0, 0.0, weight[3]
    yield "zero, parallel and repeated rows", (f, weight, local, None)
    yield "large logits", (100 * normal(6, 4), normal(9, 4), local, None)


def _outcome(backend: Callable[..., Rivals], batch: list[Any], unit_weight: bool) -> dict[str, Tensor]:
    """All a backend returns, and the gradients of a fixed weighting of it."""
    f, weight, local, inside, bias = batch
    leaves = {"df": f, "dW": weight} | ({} if bias is None else {"db": bias})
    leaves = {name: leaf.detach().clone().requires_grad_() for name, leaf in leaves.items()}
    found = backend(
        leaves["df"], leaves["dW"], local, inside,
        unit_weight=unit_weight, bias=leaves.get("db"), rival_sum=True, hardest=True,
    )  # fmt: skip
    rows = found.rows if inside is None else found.rows.masked_fill(~inside[..., None], 0.0)
    if found.rival_sum is None or found.hardest is None:
        raise LawBroken("a backend must return rival_sum and hardest when asked for; got None.")
    values = {"rows": rows, "rivals": found.rivals, "rival_sum": found.rival_sum, "hardest": found.hardest}
    weights = torch.linspace(0.5, 1.5, max(f.shape[0], 1), dtype=f.dtype, device=f.device)[: f.shape[0]]
    finite = found.rivals.masked_fill(found.rivals == -math.inf, 0.0)
    goal = (weights * finite).sum() + 0.1 * (weights * found.rival_sum).sum()
    by_rows = torch.linspace(-1, 1, max(rows.numel(), 1), dtype=f.dtype, device=f.device)[: rows.numel()]
    goal = goal + (rows * by_rows.reshape(rows.shape)).sum()
    grads = torch.autograd.grad(goal, list(leaves.values()))
    return {k: v.detach() for k, v in values.items()} | dict(zip(leaves, grads, strict=True))


def _distance(a: Tensor, b: Tensor) -> float:
    """Largest difference, equal infinities not counted; inf where shapes or infinities differ."""
    if a.shape != b.shape or not torch.equal(a.isfinite(), b.isfinite()):
        return math.inf
    off = (a.double() - b.double()).masked_fill(~a.isfinite(), 0.0)
    return off.abs().max().item() if off.numel() else 0.0
