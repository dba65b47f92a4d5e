"""Mistakes around the loss that keep it from being one: a softmax too many or too few, a wrong axis, mixed rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from hypermargin.diagnose.angles import Lab
from hypermargin.diagnose.criterion import Criterion, row_loss
from hypermargin.diagnose.edges import spread
from hypermargin.diagnose.findings import Finding

LONG = 1e4  # lengths at which a softmax of free lengths has saturated too
ACROSS = {"features": "F.normalize(x, dim=1)", "class rows": "F.normalize(W, dim=1), where a class has a row"}


def no_softmax(lab: Lab) -> Iterator[Finding]:
    """Yield what shows in the loss of a sample near its class and of one near another."""
    lab = replace(lab, floor=0.0)
    if lab.call(0.1, 0.0)[0].loss is None:
        return  # logits, whose cross-entropy we take
    near, far, between = lab.loss(0.1, -0.9), lab.loss(2.6, 0.95), lab.loss(0.1, 0.5)
    if min(near, far) < -1e-6:
        probabilities = near > -1.001 and far > -1.001
        alone = abs(near - between) < 1e-9 * abs(near)  # what rivals are does not count
        if probabilities or alone:
            took = "a probability" if probabilities else "a logit"
            yield Finding(
                "softmax-missing", "wrong",
                f"The loss is negative, {near:.3g} for a sample near its class: it is minus {took}, not minus the "
                "logarithm of a probability. F.nll_loss does that to whatever it is given.",
                "F.cross_entropy(logits, labels), or F.nll_loss(logits.log_softmax(1), labels).",
            )  # fmt: skip
        return
    long = lab if lab.criterion.form == "cosines" else lab.changed(length=LONG, own_length=LONG, rival_length=LONG)
    C = lab.criterion.classes
    least, most = math.log1p((C - 1) / math.e), math.log1p((C - 1) * math.exp(1 / (C - 1)))
    near, far = long.loss(0.1, -0.9), long.loss(2.6, 0.95)
    if abs(near - least) < 1e-3 * least and abs(far - most) < 1e-3 * most:
        yield Finding(
            "softmax-twice", "wrong",
            f"Softmax is taken twice: the loss stays between {least:.3g} and {most:.3g} for {C} classes, however "
            "right or wrong a sample is, and its gradient vanishes at both ends. F.cross_entropy takes the softmax "
            "itself.",
            "Give F.cross_entropy the logits, and no probabilities.",
        )  # fmt: skip


def mixing(lab: Lab, drawn: bool, softmax: bool) -> Iterator[tuple[str, Callable[[], Iterator[Finding]]]]:
    """Yield the probes of what a row takes from others, each with its name."""
    of = lab.criterion
    if of.form in ("features", "weights"):
        yield "the axes of lengths", lambda: _across(of)
    if softmax and not drawn:  # others may compare the rows of a batch
        yield "the number of rows", lambda: _number(lab)
    if of.form != "cosines" and not drawn:
        yield "rows of a batch", lambda: _mixed(of)


def _across(of: Criterion) -> Iterator[Finding]:
    """Lengths over the wrong axis: then a whole coordinate may be scaled, and nothing changes."""
    batch = spread(of, 24)
    base = _mean(of, batch.x, batch.W, batch.y)
    wide = torch.ones(of.dim, dtype=of.dtype)
    wide[0] = 3.0
    norms = (
        any(isinstance(each, nn.modules.batchnorm._BatchNorm) for each in of.module.modules())
        if of.module
        else False
    )
    for side, x, W in (("features", batch.x * wide, batch.W), ("class rows", batch.x, batch.W * wide)):
        off = abs(_mean(of, x, W, batch.y) - base)
        if off < 1e-5 * abs(base) and not (norms and side == "features"):
            yield Finding(
                "wrong-axis", "wrong",
                f"The {side} are normalised over the wrong axis: one coordinate of all of them may be three times "
                "as large, and the loss stays the same. Their products are no cosines.",
                f"{ACROSS[side]}: every vector by its own length.",
                "Normalised weights that are not",
            )  # fmt: skip


def _number(lab: Lab) -> Iterator[Finding]:
    """Rows that are all alike: how many of them there are should not matter."""
    two, eight = (lab.changed(alike=number).gap(1.0, 0.5) for number in (2, 8))
    if math.isfinite(two) and math.isfinite(eight) and abs(two - eight) > 1e-3 * max(1.0, abs(two)):
        yield Finding(
            "depends-on-size", "wrong",
            f"What a row costs depends on how many rows there are, all alike: R − T is {two:.4g} for two of them "
            f"and {eight:.4g} for eight.",
            "A length taken of the whole batch does that: x / x.norm() or F.normalize(x, dim=0), instead of "
            "F.normalize(x, dim=1).",
            "Normalised weights that are not",
        )  # fmt: skip


def _mixed(of: Criterion) -> Iterator[Finding]:
    """Two kinds of rows of one class, apart and together."""
    batch = spread(of, 4 * of.classes)
    rows = batch.y == 0
    x, y = batch.x[rows], batch.y[rows]
    x = x * torch.tensor([1.0, 3.0, 10.0, 30.0], dtype=of.dtype)[:, None]
    apart = [_mean(of, row.expand(len(x), -1), batch.W, y) for row in x]
    together, mean = _mean(of, x, batch.W, y), sum(apart) / len(apart)
    if all(map(math.isfinite, (together, mean))) and abs(together - mean) > 0.01 * abs(mean):
        yield Finding(
            "depends-on-batch", "note",
            f"What a row costs depends on the other rows of its batch: four rows cost {mean:.4g} on average beside "
            f"rows like themselves, and {together:.4g} beside each other. What was measured is of alike rows.",
            "Statistics of a batch do that, as AdaFace's without a running mean, or AdaCos' scale.",
            "AdaFace without a running mean",
        )  # fmt: skip


def _mean(of: Criterion, x: Tensor, W: Tensor, y: Tensor) -> float:
    return float(row_loss(of(x, W, y), y).detach())
