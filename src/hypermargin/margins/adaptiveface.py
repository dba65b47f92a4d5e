"""AdaptiveFace: Liu et al. 2019 (CVPR), CosFace with a margin for every class that is learned."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hypermargin.fields import number
from hypermargin.margins._base import register
from hypermargin.margins.cosface import CosFace
from hypermargin.numerics import hashed


@register("adaptiveface")
@dataclass(frozen=True)
class AdaptiveFace(CosFace):
    """ψ(θ) = cos θ − m, m in [0, 1]. The head of this name learns m by class and rewards its mean:

        L + λ·(1 − mean m_c),     λ = 70, s = 30

    `margin_reward` counts in units of s, so λ is margin_reward·s: 70/30, which stays the same for other s unless
    given. The constant λ is left out of the loss. The margins begin evenly between m − 0.05 and m + 0.05.
    """

    m: float = number(0.35, 0.0, 1.0, help="The mean of the margins at first, a cosine.")


def first_margins(margin: CosFace, classes: int) -> Tensor:
    """Return margins by class evenly drawn from m ± 0.05, the same for every class and number of ranks."""
    share = hashed(torch.arange(classes) + 1).double() / 2**32
    return (margin.m + 0.1 * share - 0.05).clamp(0.0, 0.999).float()
