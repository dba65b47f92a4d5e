"""Where losses break: cosines of ±1, rows of zeros, samples that lead by far, half precision, a batch of one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hypermargin.common.text import first_line
from hypermargin.diagnose.angles import Lab
from hypermargin.diagnose.criterion import Criterion, Outcome, row_loss
from hypermargin.diagnose.findings import Finding
from hypermargin.numerics import unit

NO_NAN = "clamp(−1, 1) does not prevent NaN gradients"
LEAD = 30.0  # of the target's logit over all rivals: the loss is e^-30, which float32 holds easily


@dataclass(frozen=True)
class Batch:
    """A batch, with gradients of everything that has one."""

    x: Tensor
    W: Tensor
    y: Tensor


def edges(lab: Lab, scale: float) -> Iterator[tuple[str, Callable[[], Iterator[Finding]]]]:
    """Yield each probe with its name, all in float32, as training has it."""
    of = lab.criterion.in_dtype(torch.float32)
    lab32 = Lab(of)
    yield "cosines of ±1", lambda: _on_the_axis(of)
    yield "rows of zeros", lambda: _zeros(of)
    yield "a sample that leads", lambda: _lead(lab32, scale)
    yield "samples close to their class", lambda: _near_the_center(lab)
    yield "half precision", lambda: _half(of)
    yield "autocast", lambda: _autocast(of)
    yield "a batch of one", lambda: _alone(of)


def spread(of: Criterion, rows: int = 48, number: int = 0) -> Batch:
    """Return features at all angles from their classes, the same every time."""
    generator = torch.Generator().manual_seed(number)
    W = torch.randn(of.classes, of.dim, generator=generator, dtype=torch.float64)
    y = torch.arange(rows) % of.classes
    axis = torch.randn(rows, of.dim, generator=generator, dtype=torch.float64)
    w = unit(W)[y]
    side = unit(axis - (axis * w).sum(1, keepdim=True) * w)
    theta = torch.linspace(0.06, math.pi - 0.06, rows, dtype=torch.float64)[:, None]
    x = theta.cos() * w + theta.sin() * side
    return Batch(x.to(of.dtype), W.to(of.dtype), y)


def differentiate(
    of: Criterion, batch: Batch, loss_of: Callable[[Outcome, Tensor], Tensor] = row_loss
) -> dict[str, Tensor]:
    """Return the loss, and its gradients by features (or cosines) and class rows."""
    if of.form == "cosines":
        leaf = (unit(batch.x) @ unit(batch.W).T).requires_grad_()
        loss = loss_of(of.on_cosines(leaf, batch.y), batch.y)
        (by,) = torch.autograd.grad(loss, leaf, allow_unused=True)
        return {"the loss": loss.detach(), "the gradient by the cosines": torch.zeros(()) if by is None else by}
    x = batch.x.clone().requires_grad_()
    W = batch.W.clone().requires_grad_(of.form == "weights")
    loss = loss_of(of(x, W, batch.y), batch.y)
    rows = W if of.weight is None else of.own_rows()
    leaves = [x, rows] if rows.requires_grad else [x]
    grads = torch.autograd.grad(loss, leaves, allow_unused=True)
    names = ("the gradient by the features", "the gradient by the class rows")
    made = {name: torch.zeros(()) if g is None else g for name, g in zip(names, grads, strict=False)}
    return {"the loss": loss.detach(), **made}


def _bad(found: dict[str, Tensor]) -> str:
    """Say what is not finite; an empty string if everything is."""
    bad = {"the loss" if name == "the loss" else "the gradient" for name, t in found.items() if not _finite(t)}
    if len(bad) == 2:
        return "loss and gradient are not finite"
    return f"{bad.pop()} is not finite" if bad else ""


def _finite(t: Tensor) -> bool:
    return bool(t.isfinite().all())


def _on_the_axis(of: Criterion) -> Iterator[Finding]:
    generator = torch.Generator().manual_seed(1)
    W = torch.randn(of.classes, of.dim, generator=generator)
    rows = 64
    y = torch.arange(rows) % of.classes
    where = {
        "a sample exactly on its class (cos θ = 1)": W[y],
        "a sample opposite to its class (cos θ = −1)": -W[y],
        "a sample exactly on a rival": W[(y + 1) % of.classes],
    }
    bad: dict[str, str] = {}
    for name, x in where.items():
        if of.form == "cosines":
            bad[name] = _bad_cosines(of, x, W, y)
        else:
            # Of random directions some products round to just above 1.
            bad[name] = _bad(differentiate(of, Batch(x, W, y)))
    if of.form == "cosines":
        above = torch.full((4, of.classes), 0.1)
        above[:, 0] = 1 + 2e-7
        found = of.on_cosines(above, torch.zeros(4, dtype=torch.long))
        bad["a cosine that rounding has left at 1.0000002"] = _bad(
            {"the loss": row_loss(found, torch.zeros(4, dtype=torch.long))}
        )
    told = [f"{what} for {where}" for where, what in bad.items() if what]
    if told:
        yield Finding(
            "nan-at-the-ends",
            "wrong",
            f"In float32 {'; '.join(told)}.",
            "Take the angle as 2·atan2(|x̂ − ŵ|, |x̂ + ŵ|), or guard the derivative of acos; clamp(−1, 1) does not.",
            NO_NAN,
        )


def _bad_cosines(of: Criterion, x: Tensor, W: Tensor, y: Tensor) -> str:
    cosines = (unit(x) @ unit(W).T).clamp(-1, 1)
    cosines = torch.where((cosines.abs() - 1).abs() < 1e-5, cosines.sign(), cosines).requires_grad_()
    loss = row_loss(of.on_cosines(cosines, y), y)
    (by,) = torch.autograd.grad(loss, cosines, allow_unused=True)
    return _bad({"the loss": loss.detach(), "the gradient": torch.zeros(()) if by is None else by})


def _zeros(of: Criterion) -> Iterator[Finding]:
    if of.form == "cosines":
        return
    batch = spread(of, 8)
    batch.x[3] = 0.0
    what = _bad(differentiate(of, batch))
    if what:
        yield Finding(
            "nan-at-zero", "doubtful",
            f"With one feature of zeros in the batch (a dead image, a padded row) {what}.",
            "Normalise with a floor (F.normalize has one), and check that the gradient of the length has one too.",
        )  # fmt: skip


def _lead(lab: Lab, scale: float) -> Iterator[Finding]:
    """A sample near its class, so far ahead of its rivals that the loss is e^-30 or so: tiny, and not 0."""
    theta = 0.02
    opposite = (lab.logit(theta, scale) - LEAD) / scale if scale else -2.0
    if opposite < -0.98:
        return  # the scale is too small for such a lead
    of = lab.criterion
    if of.form == "cosines":
        leaf, y = lab.cosines(theta, opposite).requires_grad_(), lab.labels
        found = of.on_cosines(leaf, y)
    else:
        at = lab.place(theta, opposite)
        leaf, y = at.x.requires_grad_(), at.y
        found = of(leaf, at.W, y)
    if found.loss is None:
        return  # its loss is ours to compute
    loss = found.loss.mean()
    (by,) = torch.autograd.grad(loss, leaf, allow_unused=True)
    value = float(loss)
    if value < 0 or not math.isfinite(value) or (by is not None and not bool(by.isfinite().all())):
        yield Finding(
            "lost-to-cancellation", "wrong",
            f"For a sample that leads by far the loss is {value:.4g} in float32, or its gradient is not finite: "
            "what is left after subtracting is rounding.",
            "Leave the target out of the sum of the rivals, L = softplus(R − T), instead of taking it out again.",
            "Do not subtract the target from the sum",
        )  # fmt: skip
    elif value == 0 and (by is None or not bool(by.any())):
        yield Finding(
            "nothing-left", "note",
            "For a sample that leads by far loss and gradient are exactly 0 in float32; the true ones are "
            "small, not 0. F.cross_entropy does the same.",
            "L = softplus(R − T) keeps pulling.",
            "The target's gradient is not p_y − 1 in float32",
        )  # fmt: skip


def _near_the_center(lab: Lab) -> Iterator[Finding]:
    """A clamp at 1 − ε makes ψ flat below √(2ε)."""
    dead = 0.0
    if not lab.gap_and_slope(math.radians(40), 0.8)[1]:
        return  # it has no gradient anywhere
    for degrees in (0.3, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0):
        _, slope = lab.gap_and_slope(math.radians(degrees), 0.9)
        if slope == 0:
            dead = degrees
    if dead >= 0.5:
        yield Finding(
            "dead-center", "doubtful",
            f"Samples within {dead:g}° of their class get a gradient of exactly 0: cosines are clamped below 1.",
            "Guard the derivative instead of clamping the cosine at 1 − ε, which is √(2ε) in angle.",
            NO_NAN,
        )  # fmt: skip


def _half(of: Criterion) -> Iterator[Finding]:
    batch = spread(of, 24)
    for dtype, name in ((torch.float16, "float16"), (torch.bfloat16, "bfloat16")):
        whole = differentiate(of, Batch(batch.x.to(dtype).float(), batch.W, batch.y))
        try:
            given = Batch(batch.x.to(dtype), batch.W, batch.y)
            found = differentiate(of, given) if of.form != "cosines" else _cosines_in(of, batch, dtype)
        except Exception:
            continue  # an error is clear; what matters is a wrong number without one
        said = _compared(found, whole)
        if said:
            yield Finding(
                f"half-{name}", "note", f"With features in {name} {said}.",
                "Compute the loss in float32: features.float(), and autocast off around the loss.",
            )  # fmt: skip


def _cosines_in(of: Criterion, batch: Batch, dtype: torch.dtype) -> dict[str, Tensor]:
    leaf = (unit(batch.x.to(dtype).float()) @ unit(batch.W).T).to(dtype).requires_grad_()
    loss = row_loss(of.on_cosines(leaf, batch.y), batch.y)
    (by,) = torch.autograd.grad(loss, leaf)
    return {"the loss": loss.detach(), "the gradient by the cosines": by}


def _autocast(of: Criterion) -> Iterator[Finding]:
    if of.form == "cosines":
        return
    batch = spread(of, 24)
    whole = differentiate(of, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        try:
            said = _compared(differentiate(of, batch), whole)
        except Exception as error:
            said = f"it raises {type(error).__name__} ({first_line(error).rstrip('.')})"
    if said:
        yield Finding(
            "autocast", "note", f"Under autocast (bfloat16) {said}; the cosines are computed in half precision.",
            "Turn autocast off around the loss: torch.autocast(device, enabled=False), with features.float().",
        )  # fmt: skip


def _compared(found: dict[str, Tensor], whole: dict[str, Tensor]) -> str:
    """Say what is not finite, or how far the loss is off; empty if it is close."""
    what = _bad(found)
    if what and not _bad(whole):
        return what
    off = abs(float(found["the loss"]) / float(whole["the loss"]) - 1) if float(whole["the loss"]) else 0.0
    return f"the loss is {100 * off:.2g} % off that of float32" if off > 0.005 else ""


def _alone(of: Criterion) -> Iterator[Finding]:
    batch = spread(of, 8)
    one = Batch(batch.x[2:3], batch.W, batch.y[2:3])
    try:
        found = differentiate(of, one)
    except Exception as error:
        yield Finding(
            "batch-of-one", "doubtful", f"A batch of one row raises {type(error).__name__}: {first_line(error)}.",
            "The end of an epoch may have one row: drop_last=True, or guard it.",
        )  # fmt: skip
        return
    what = _bad(found)
    if what:
        yield Finding(
            "batch-of-one", "doubtful", f"With a batch of one row {what} (a deviation of one row is NaN).",
            "Drop the last batch, or leave the statistics alone where there is one row.",
        )  # fmt: skip
