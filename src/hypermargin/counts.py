"""Margins and offsets for classes that are not equally frequent, from the number of samples of each."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from hypermargin import checks

RULES = ("power", "landmark", "absolute", "ldam")


def margins_from_counts(
    counts: Tensor | Sequence[float],
    rule: str = "power",
    *,
    low: float = 0.05,
    high: float = 0.5,
    power: float | None = None,
) -> Tensor:
    """Return a margin for each class, (C,), larger for rarer ones, to be given as `class_margins`.

        power      low + (high − low)·(t_j − min t)/(max t − min t), t_j = n_j^−power, power 1/4 unless given: the
                   "dynamic margins" that won Landmarks 2020 and 2021, for ArcFace; "landmark" is the same
        absolute   low + (high − low)·t_j, whatever the other classes are: `high` for a single sample. The winner of
                   Happywhale 2022 had low = 0.05, high = 0.32126 and power = 0.364399 for its individuals
        ldam       high·t_j/max t: LDAM (Cao et al. 2019, arXiv:1906.07413), for CosFace with s = 30

    n_j counts the samples trained on, in the order of the head's labels. A class without any counts as one with a
    single sample. Classes of one size all get `high`, but with "absolute".
    """
    checks.one_of("rule", rule, RULES)
    checks.in_range("low", low, 0.0, math.inf)
    checks.in_range("high", high, low, math.inf)
    power = 0.25 if power is None else power
    checks.positive("power", power)
    t = checked_counts(counts).clamp(min=1.0) ** -power
    if rule == "ldam":
        return (high * t / t.max()).float()
    if rule == "absolute":
        return (low + (high - low) * t).float()
    spread = t.max() - t.min()
    share = (t - t.min()) / spread if spread > 0 else torch.ones_like(t)
    return (low + (high - low) * share).float()


def offsets_from_counts(counts: Tensor | Sequence[float], tau: float = 1.0) -> Tensor:
    """Return τ·ln π_j for each class, (C,), π_j its share of the samples, to be given as `class_offsets`.

    τ = 1 is balanced softmax (Ren et al. 2020, arXiv:2007.10740), any τ logit adjustment (Menon et al. 2021,
    arXiv:2007.07314). The offsets are part of the loss and absent at inference, so that frequent classes are not
    preferred there. A class without samples counts as one with a single sample.
    """
    checks.in_range("tau", tau, 0.0, math.inf)
    n = checked_counts(counts).clamp(min=1.0)
    return (tau * (n / n.sum()).log()).float()


def checked_counts(counts: object, classes: int | None = None) -> Tensor:
    """Return counts as float64, (C,); raise unless they are finite, not negative and not all 0."""
    try:
        n = torch.as_tensor(counts, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"counts must be numbers, one per class; got {type(counts).__name__}.") from None
    if n.dim() != 1 or not len(n) or (classes is not None and len(n) != classes):
        wanted = "(C,)" if classes is None else f"({classes},)"
        raise ValueError(f"counts must have shape {wanted}, one number per class; got {tuple(n.shape)}.")
    if not bool((n.isfinite() & (n >= 0)).all()) or not bool((n > 0).any()):
        raise ValueError("counts must be finite, not negative, and not all 0: samples of each class in training.")
    return n
