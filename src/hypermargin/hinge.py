"""The ladder from the hinge loss to AM-Softmax, each rung a smoother form of the one before.

With scores c (N, C), labels y, and the violations of a margin m

    v_j = m + c_j − c_y,   j ≠ y          (the rivals; the target has none)

the rungs are

    S   = Σ_j [v_j]₊                       sum_hinge        every violator pulls: |∂S/∂c|₁ = 2·violators
    H   = [max_j v_j]₊                     max_hinge        only the worst pulls: |∂H/∂c|₁ ≤ 2
    H_s = [LSE_j(s·v_j)/s]₊                lse_hinge        the worst few share the pull, still ≤ 2
    L   = softplus(LSE_j(s·v_j))           softplus_hinge   AM-Softmax: the pull fades, |∂(L/s)/∂c|₁ = 2(1 − p_y)

and they are ordered, for every scale s > 0:

    H ≤ S ≤ (C−1)·H,    H ≤ H_s ≤ L/s ≤ H + ln(C)/s,    L/s → H as s → ∞.

L is log(1 + Σ_j exp(s·v_j)), which is the cross-entropy of s·c with s·m taken off the target.
Scores may be cosines or raw products. One class has no rivals: every rung is then 0, with gradient 0.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hypermargin import checks
from hypermargin.checks import Reduction
from hypermargin.numerics import log_sum_exp, reduced, softplus, wide_dtype, widen


def sum_hinge(scores: Tensor, labels: Tensor, *, m: float, reduction: Reduction = "mean") -> Tensor:
    """Return S = Σ_j [m + c_j − c_y]₊, the multi-class hinge of Weston and Watkins.

    Its gradient grows with the number of violators, which at the start of training is about the number of classes.
    """
    return _reduce(_violations(scores, labels, m).relu().sum(-1), reduction)


def max_hinge(scores: Tensor, labels: Tensor, *, m: float, reduction: Reduction = "mean") -> Tensor:
    """Return H = [max_j (m + c_j − c_y)]₊, the multi-class hinge of Crammer and Singer.

    Only the hardest rival is pushed (tied ones share the push), so a step can make the next one the hardest.
    """
    return _reduce(_violations(scores, labels, m).amax(-1).relu(), reduction)


def lse_hinge(scores: Tensor, labels: Tensor, *, m: float, s: float, reduction: Reduction = "mean") -> Tensor:
    """Return H_s = [LSE_j(s·(m + c_j − c_y))/s]₊, the maximum made smooth.

    The derivative of LSE is the softmax over the rivals, so each is pushed by its share. The smooth maximum
    exceeds the true one by `hidden_margin`, which acts as that much extra m.
    """
    return _reduce((_smooth_maximum(scores, labels, m, s) / s).relu(), reduction)


def softplus_hinge(scores: Tensor, labels: Tensor, *, m: float, s: float, reduction: Reduction = "mean") -> Tensor:
    """Return L = softplus(LSE_j(s·(m + c_j − c_y))), the outer hinge made smooth too: AM-Softmax.

    This is L itself, the loss people train with. Divide it by s to compare it with the other rungs.
    """
    return _reduce(softplus(_smooth_maximum(scores, labels, m, s)), reduction)


def hidden_margin(scores: Tensor, labels: Tensor, *, s: float) -> Tensor:
    """Return LSE_j(s·c_j)/s − max_j c_j over the rivals, row by row: the margin that smoothing adds by itself.

    It lies in [0, ln(C−1)/s]: near 0 when one rival stands out, at the upper bound when all are equal. So plain
    softmax with a small scale already has a margin, and a larger scale takes it away.
    """
    checks.positive("s", s)
    rivals = _violations(scores, labels, 0.0)
    if rivals.shape[1] == 1:  # no rivals: −inf − (−inf) would be NaN
        return rivals.new_zeros(rivals.shape[0])
    return (log_sum_exp(s * rivals) - (s * rivals).amax(-1)) / s


def _smooth_maximum(scores: Tensor, labels: Tensor, m: float, s: float) -> Tensor:
    """Return LSE_j(s·v_j), s times a smooth maximum of the violations; −inf without rivals."""
    checks.positive("s", s)
    return log_sum_exp(s * _violations(scores, labels, m))


def _violations(scores: Tensor, labels: Tensor, m: float) -> Tensor:
    """Return v_j = m + c_j − c_y, with −inf in the target's column, so that sums, maxima and LSE pass over it."""
    _check(scores, labels, m)
    c = widen(scores, wide_dtype(scores))
    index = labels.long().unsqueeze(1)
    v = m + c - c.gather(1, index)
    return v.masked_fill(torch.zeros_like(v, dtype=torch.bool).scatter(1, index, True), -math.inf)


def _reduce(loss: Tensor, reduction: Reduction) -> Tensor:
    checks.one_of("reduction", reduction, ("mean", "sum", "none"))
    return loss if reduction == "none" else reduced(loss, None, reduction)


def _check(scores: Tensor, labels: Tensor, m: float) -> None:
    if scores.ndim != 2 or scores.shape[1] == 0 or not scores.is_floating_point():
        raise ValueError(
            f"scores must be a floating (N, C) matrix with C ≥ 1; got {scores.dtype} of shape "
            f"{tuple(scores.shape)}. Give one row per sample and one column per class."
        )
    checks.labels_like("labels", labels, scores.shape[0], scores.device, of="scores")
    if checks.wanted("auto", labels):
        checks.label_values("labels", labels, scores.shape[1])
    if not math.isfinite(m):
        raise ValueError(f"m must be a finite number; got {m}. m = 0 is no margin.")
