"""Proxy-Anchor: Kim et al. 2020 (arXiv:2003.13911), which sums over the rows of a batch for every class."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from hypermargin import checks
from hypermargin.batch import check_batch
from hypermargin.layout import WHOLE
from hypermargin.numerics import full_precision, log_sum_exp, softplus, unit, wide_dtype, widen
from hypermargin.scores import logits


def proxy_anchor(
    features: Tensor,
    weight: Tensor,
    labels: Tensor,
    alpha: float = 32.0,
    delta: float = 0.1,
    *,
    ignore_index: int = -100,
    check: bool | Literal["auto"] = "auto",
) -> Tensor:
    """Return the mean over classes of what their rows ask for, c_ij the cosine of row i and class j's weight:

        P_j = log Σ_{i: y_i = j} exp(−α(c_ij − δ)),     N_j = log Σ_{i: y_i ≠ j} exp α(c_ij + δ)
        L = mean over the classes in the batch of softplus(P_j) + mean over all classes of softplus(N_j)

    A class draws its farthest rows most and pushes the nearest of the others, whereas a head's rows push classes.
    The sums go down the columns, so this is no rule of a head; it holds the N×C matrix, and suits some ten thousand
    classes. The paper gives `weight` a hundred times the network's learning rate.

    - features (N, d), weight (C, d), labels (N,): integers in [0, C) or `ignore_index`
    - alpha: the scale; delta: the margin, a cosine
    """
    checks.positive("alpha", alpha)
    checks.in_range("delta", delta, -2.0, 2.0)
    batch = check_batch(features, weight, labels, WHOLE, scale=float(alpha), ignore_index=ignore_index, check=check)
    with full_precision(features):
        wide = wide_dtype(features, weight)
        c = unit(batch.clean(wide)) @ unit(widen(weight, wide)).T
        here = torch.zeros_like(c, dtype=torch.bool).scatter_(1, batch.classes(), True)
        counted = torch.ones_like(here) if batch.used is None else batch.used[:, None].expand_as(here)
        drawn = (-alpha * (c - delta)).masked_fill(~(here & counted), -math.inf)
        pushed = (alpha * (c + delta)).masked_fill(here | ~counted, -math.inf)
        present = (here & counted).any(0).sum().clamp(min=1)
        return softplus(log_sum_exp(drawn.T)).sum() / present + softplus(log_sum_exp(pushed.T)).mean()


class ProxyAnchor(nn.Module):
    """`proxy_anchor` with its weight, one proxy per class.

        module(features, labels) → loss          module(features) → cosines to all proxies

    It is no `MarginHead`: nothing of the heads' margins, rules and ranks applies to sums over the rows.
    """

    def __init__(
        self,
        dim: int,
        classes: int,
        alpha: float = 32.0,
        delta: float = 0.1,
        *,
        ignore_index: int = -100,
        check: bool | Literal["auto"] = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        checks.count("dim", dim)
        checks.count("classes", classes)
        checks.positive("alpha", alpha)
        checks.in_range("delta", delta, -2.0, 2.0)
        self.alpha, self.delta, self.ignore_index, self.check = alpha, delta, ignore_index, check
        self.weight = nn.Parameter(torch.empty(classes, dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new proxies, of about unit length and random direction."""
        nn.init.normal_(self.weight, std=self.weight.shape[1] ** -0.5)

    def forward(self, features: Tensor, labels: Tensor | None = None) -> Tensor:
        """Return the loss; without labels, the cosines to all proxies."""
        if labels is None:
            return logits(features, self.weight, scale=1.0)
        return proxy_anchor(
            features, self.weight, labels, self.alpha, self.delta, ignore_index=self.ignore_index, check=self.check
        )

    def extra_repr(self) -> str:
        """Return its settings on one line."""
        classes, dim = self.weight.shape
        return f"{dim}, {classes}, alpha={self.alpha:g}, delta={self.delta:g}"
