"""Tests for margins, rules and backends of your own: `check_margin(MyMargin())`, `check_backend(my_backend)`.

And for a loss of anybody's: `diagnose(criterion)`, which is of the application and imported when it is called.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from hypermargin import rules
from hypermargin.backends import Backend, Call, Dense, find_backend, fitted
from hypermargin.centers import ONE, Centers
from hypermargin.layout import ClassTable, rows_of
from hypermargin.margins import Margin, Piecewise
from hypermargin.rules import SOFTMAX, Rule

if TYPE_CHECKING:
    from hypermargin.diagnose import Diagnosis

__all__ = ["LAWS", "LawBroken", "broken_laws", "check_backend", "check_margin", "check_rule", "diagnose"]


class LawBroken(AssertionError):  # noqa: N818  it reads better where it is caught
    """A margin, a rule or a backend does not keep a law it promised."""


def check_margin(margin: Margin) -> None:
    """Raise `LawBroken` if a margin breaks a law of `LAWS` that it does not list in `margin.breaks`."""
    unknown = margin.breaks - set(LAWS)
    if unknown:
        raise LawBroken(f"{margin}.breaks names {sorted(unknown)}; the laws are {', '.join(LAWS)}.")
    problems = {law: why for law, why in broken_laws(margin).items() if law not in margin.breaks}
    if problems:
        lines = "\n".join(f"  {law}: {why}" for law, why in problems.items())
        raise LawBroken(f"{margin} breaks what it promises:\n{lines}")


def diagnose(criterion: Callable[..., Any], **options: Any) -> Diagnosis:
    """Measure a loss as a black box, and name what it is and what is wrong with it; see `hypermargin.diagnose`.

    assert not reaches(diagnose(MyLoss(128, 10)).findings, "wrong")
    """
    from hypermargin.diagnose import diagnose as measured

    return measured(criterion, **options)


def broken_laws(margin: Margin) -> dict[str, str]:
    """Return the laws that a margin breaks, declared or not, each with a sentence that says where."""
    found = {law: test(margin) for law, test in LAWS.items()}
    return {law: why for law, why in found.items() if why}


def _grid() -> Tensor:
    return torch.linspace(0.0, math.pi, 20_001, dtype=torch.float64)


def _continuous(margin: Margin) -> str:
    """Return where ψ jumps, or "".

    The intervals where ψ differs most from what its slope predicts are halved forty times; a difference that is
    still there is a jump.
    """
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
    """Return where ψ or dψ/dθ is not finite on [0, π], ends included, or dψ/dθ is not the slope of ψ; else ""."""
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
    """Return by how much ψ with m as a tensor, one per row, differs from ψ with the number; "" if it does not."""
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


def check_rule(rule: Rule) -> None:
    """Raise `LawBroken` unless a rule's `slope` is the derivative of its `rho`, both finite, on all cosines.

    A rule that is `detached` counts a factor of ρ as constant, for autograd too; the slope of another must also be
    that of ρ's values.
    """
    cosine = torch.linspace(-1, 1, 4001, dtype=torch.float64)[None]
    problems = []
    for threshold in (-1.5, -0.3, 0.0, 0.7, 1.0):
        of_row = row_numbers(rule, torch.full((1, 1), threshold, dtype=torch.float64))
        c = cosine.clone().requires_grad_()
        value, slope = rule.rho(c, of_row), rule.slope(cosine, of_row)
        (derivative,) = torch.autograd.grad(value.sum(), c)
        if not bool(value.isfinite().all() and slope.isfinite().all()):
            problems.append(f"ρ or its slope is not finite (threshold {threshold:g})")
        off = (derivative - slope).abs() / (1 + slope.abs())
        if off.max() > 1e-9:
            where = float(cosine[0, int(off.argmax())])
            problems.append(
                f"slope differs from dρ/dcos by {off.max():.3g} at {where:.4g} (threshold {threshold:g})"
            )
        inner, step = cosine[:, 1:-1], 1e-6
        difference = (rule.rho(inner + step, of_row) - rule.rho(inner - step, of_row)) / (2 * step)
        wrong = (difference - slope[:, 1:-1]).abs() > 1e-5 * (1 + slope[:, 1:-1].abs())
        if not rule.detached and wrong.sum() > 40:  # at a jump, or beside an infinite slope, a few may be
            problems.append(
                f"ρ rises by {difference[wrong][0]:.3g} at {inner[wrong][0]:.4g}, where slope says otherwise "
                f"(threshold {threshold:g}). If a factor of ρ counts as constant, say detached = True."
            )
        if slope.dtype != cosine.dtype or value.shape != cosine.shape or slope.shape != cosine.shape:
            problems.append("ρ and slope must have the shape and dtype of the cosines")
        if not rule.row_numbers:
            break
    if problems:
        raise LawBroken(f"{rule} breaks its laws:\n  " + "\n  ".join(problems))


def row_numbers(rule: Rule, threshold: Tensor) -> Tensor | None:
    """Return as many numbers per row as a rule wants: the threshold (N, 1) and any others."""
    others = [torch.full_like(threshold, 0.3)] * (rule.row_numbers - 1)
    return torch.cat([threshold, *others], 1) if rule.row_numbers else None


def check_backend(
    backend: str | Backend,
    *,
    float32_factor: float = 2.0,
    float64: bool = True,
    device: torch.device | str = "cpu",
) -> None:
    """Raise `LawBroken` unless a backend computes what `Dense` does, on every kind of input and with every rule
    it takes.

    `backend` is an object with the methods of `hypermargin.backends.Backend`, or a registered name. In float64
    values and gradients must agree to 1e-9; in float32 the error may be `float32_factor` times that of dense in
    float32, plus a floor. float64=False is for backends that know float32 only. Rules and pools of centers that
    `fitted` refuses are left out.
    """
    found, problems = find_backend(backend), []
    every = [SOFTMAX, *(rules.get(name)() for name in rules.names() if name != SOFTMAX.name)]
    for (name, case), rule in itertools.product(_backend_cases(), every):
        if not rule.is_softmax and case.f.shape[0] == 17:
            continue  # for rules the other sizes are enough
        if not _takes(found, case, rule, torch.device(device)):
            continue
        one_way = not rule.is_softmax or case.centers.soft
        sides = [(True, True)] if one_way else itertools.product((True, False), repeat=2)
        for unit_weight, with_bias in sides:
            setting = f"{name}, {rule.name}, unit_weight={unit_weight}, bias={with_bias}"

            def outcome(by: Backend, dtype: torch.dtype, case: _Case = case, rule: Rule = rule,
                        unit: bool = unit_weight, bias: bool = with_bias) -> dict[str, Tensor]:  # fmt: skip
                return _outcome(by, case.on(torch.device(device), dtype), rule, unit, bias)

            longest = case.weight.norm(dim=1).max().item() if not unit_weight else 1.0
            product = max(case.f.norm(dim=1).tolist(), default=0.0) * longest
            right = outcome(Dense(), torch.float64)
            usual, ours = outcome(Dense(), torch.float32), outcome(found, torch.float32)
            ours_double = outcome(found, torch.float64) if float64 else right
            for what, value in right.items():
                size = value.abs().nan_to_num(posinf=0.0).max().item() if value.numel() else 0.0
                size = size if size > 1e-6 else 1.0  # where all values are 0; the logits are about 1 to 10
                if what in {"rivals", "hardest"}:  # rounded as the terms of the product are, however small it is
                    size = max(size, product)
                off = _distance(ours_double[what], value)
                if off > 1e-9 * size:
                    problems.append(f"{setting}: {what} is off by {off:.3g} in float64")
                off = _distance(ours[what], value)
                # A rule rounds a few more times than softmax, and does so at logits in the hundreds too.
                floor = 1e-6 if rule.is_softmax else 5e-6
                allowed = float32_factor * _distance(usual[what], value) + floor * size
                if off > allowed:
                    problems.append(f"{setting}: {what} is off by {off:.3g} in float32, allowed {allowed:.3g}")
    if problems:
        raise LawBroken(f"{found} differs from dense:\n  " + "\n  ".join(problems))


class _Case(NamedTuple):
    f: Tensor
    weight: Tensor
    local: Tensor
    inside: Tensor | None = None
    centers: Centers = ONE

    def on(self, device: torch.device, dtype: torch.dtype) -> _Case:
        return _Case._make(
            t.to(device, dtype if t.is_floating_point() else None) if isinstance(t, Tensor) else t for t in self
        )


def _takes(backend: Backend, case: _Case, rule: Rule, device: torch.device) -> bool:
    """Return whether a backend accepts such a call; it must accept softmax's rule without a pool."""
    try:
        size, dim = (len(case.f), len(case.weight)), case.f.shape[1]
        fitted(backend, Call(*size, device, torch.float32, dim, rule, case.centers))
    except ValueError:
        if rule.is_softmax and not case.centers.pooled:
            raise
        return False
    return True


def _backend_cases() -> Iterator[tuple[str, _Case]]:
    """Yield odd sizes, one and two labels per row, labels outside a slice, zero, repeated and parallel rows."""
    rng = torch.Generator().manual_seed(5)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    for N, C, d in ((5, 37, 8), (1, 2, 3), (0, 4, 3), (3, 1, 2), (17, 130, 5)):
        local = torch.randint(0, C, (N, 1), generator=rng)
        yield f"N={N} C={C} d={d}", _Case(3 * normal(N, d), normal(C, d), local)
        if C > 2:
            other = torch.cat((local, (local + 1) % C), 1)
            yield f"N={N} C={C} d={d}, two labels per row", _Case(3 * normal(N, d), normal(C, d), other)
            shifted = other - C // 2
            inside = (shifted >= 0) & (shifted < C)
            yield f"N={N} C={C} d={d}, a slice", _Case(3 * normal(N, d), normal(C, d), shifted, inside)
        for pool in ("max", "soft"):
            centers = Centers(3, "max" if pool == "max" else "soft")
            rows = rows_of(local, 3)
            yield f"N={N} C={C} d={d}, {pool}", _Case(3 * normal(N, d), normal(3 * C, d), rows, None, centers)
            shifted = rows - C // 2 * 3
            inside = (shifted >= 0) & (shifted < 3 * C)
            yield (
                f"N={N} C={C} d={d}, {pool}, a slice",
                _Case(3 * normal(N, d), normal(3 * C, d), shifted, inside, centers),
            )
    f, weight, local = normal(6, 4), normal(9, 4), torch.arange(6)[:, None]
    f[0], f[1], weight[2], weight[8], weight[4] = 0.0, 2 * weight[1], 0.0, 0.0, weight[3]
    yield "zero, parallel and repeated rows", _Case(f, weight, local)
    yield "large logits", _Case(100 * normal(6, 4), normal(9, 4), local)


def _outcome(backend: Backend, case: _Case, rule: Rule, unit_weight: bool, with_bias: bool) -> dict[str, Tensor]:
    """Return all values that a backend returns, and the gradients of a fixed weighted sum of them."""
    f, weight, local, inside, centers = case
    leaves = {"df": f, "dW": weight}
    if with_bias:
        leaves["db"] = torch.linspace(-1, 1, len(weight), dtype=f.dtype, device=f.device)
    if not rule.is_identity or centers.soft:
        leaves["by length"] = f.norm(dim=1, keepdim=True)
    leaves = {name: leaf.detach().clone().requires_grad_() for name, leaf in leaves.items()}
    # No threshold equals a cosine, so rounding does not decide which rivals are above it.
    threshold = torch.linspace(-0.503, 0.807, max(len(f), 1), dtype=f.dtype, device=f.device)[: len(f), None]
    at_rows = rule.at(leaves.get("by length"), row_numbers(rule, threshold), centers)
    table = ClassTable(leaves["dW"], unit_weight, leaves.get("db"), local, inside, centers)
    found_backend = fitted(backend, Call(len(f), len(weight), f.device, f.dtype, f.shape[1], rule, centers))
    summed = rule.is_softmax and not centers.pooled  # for label smoothing, which wants one center
    found = found_backend(leaves["df"], table, at_rows, rival_sum=summed, hardest=True)
    rows = found.rows if inside is None else found.rows.masked_fill(~inside[..., None], 0.0)
    if found.hardest is None or (found.rival_sum is None and summed):
        raise LawBroken("a backend must return rival_sum and hardest when asked for; got None.")
    values = {"rows": rows, "rivals": found.rivals, "hardest": found.hardest}
    weights = torch.linspace(0.5, 1.5, max(f.shape[0], 1), dtype=f.dtype, device=f.device)[: f.shape[0]]
    goal = (weights * found.rivals.masked_fill(found.rivals == -math.inf, 0.0)).sum()
    if found.rival_sum is not None:
        values["rival_sum"] = found.rival_sum
        goal = goal + 0.1 * (weights * found.rival_sum).sum()
    by_rows = torch.linspace(-1, 1, max(rows.numel(), 1), dtype=f.dtype, device=f.device)[: rows.numel()]
    goal = goal + (rows * by_rows.reshape(rows.shape)).sum()
    grads = torch.autograd.grad(goal, list(leaves.values()), allow_unused=True)
    zeros = (torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves.values(), grads, strict=True))
    return {k: v.detach() for k, v in values.items()} | dict(zip(leaves, zeros, strict=True))


def _distance(a: Tensor, b: Tensor) -> float:
    """Return the largest difference, not counting equal infinities; inf where shapes or infinities differ."""
    if a.shape != b.shape or not torch.equal(a.isfinite(), b.isfinite()):
        return math.inf
    off = (a.double() - b.double()).masked_fill(~a.isfinite(), 0.0)
    return off.abs().max().item() if off.numel() else 0.0
