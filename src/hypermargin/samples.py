"""Losses among the samples of a batch themselves: no class weights, and never the N×N matrix.

They are the heads' own scores with other samples in the place of the class weights, so every backend computes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from hypermargin import checks
from hypermargin.backends import Backend
from hypermargin.checks import Gradient, Reduction
from hypermargin.functional import margin_softmax
from hypermargin.layout import WHOLE, Layout
from hypermargin.margins import Margin, NoMargin
from hypermargin.numerics import full_precision, reduced, unit, wide_dtype, widen
from hypermargin.parallel import Shard
from hypermargin.parallel.shard import Sharded
from hypermargin.rules import Rule


def contrastive(
    a: Tensor,
    b: Tensor,
    scale: float | Tensor,
    margin: Margin | None = None,
    *,
    gradient: Gradient = "exact",
    reduction: Reduction = "mean",
    check: bool | Literal["auto"] = "auto",
    backend: str | Backend = "auto",
    shard: Shard | None = None,
) -> Tensor:
    """Return ½·[L(a→b) + L(b→a)] for rows a_i and b_i that belong together: the loss of CLIP, InfoNCE both ways.

    L(a→b) is the cross-entropy of row i of s·cos(a_i, b_j) with j = i the right one, with a margin on it if wanted.
    N rows take O(N·block) memory, not N².

    - a, b (N, d): such as images and their texts. Both get a gradient.
    - scale: s > 0, a number or a tensor holding one; CLIP learns its logarithm, `log_s.exp()`
    - margin: one of `hypermargin.margins`, none unless given
    - shard: with `Shard()` the rows of all ranks are compared with those of all, without gathering b. Every rank
      has the same number of rows; "mean" and "sum" are over all of them, and "none" gives this rank's.
    - the rest as in `margin_softmax`

    Radford et al. 2021 (arXiv:2103.00020).
    """
    _check_pair(a, b)
    N, start, factor = len(a), 0, 1.0
    layout: Layout = WHOLE
    if not N and shard is None:
        return _nothing(a + b, reduction)
    if shard is not None:
        layout = parts = _EqualParts(shard, N)
        start, factor = parts.start, float(parts.world if shard.average else 1)
    labels = torch.arange(start, start + N, device=a.device)

    def one_way(of: Tensor, to: Tensor) -> Tensor:
        # Shard multiplies the gradients of rows by the number of ranks, for DDP divides them; those of classes not.
        to = to if factor == 1 else to + (factor - 1) * (to - to.detach())
        return margin_softmax(
            of, to, labels, NoMargin() if margin is None else margin, scale=scale, gradient=gradient,
            reduction=reduction, check=check, backend=backend, layout=layout,
        )  # fmt: skip

    return (one_way(a, b) + one_way(b, a)) / 2


def supervised_contrastive(
    features: Tensor,
    labels: Tensor,
    scale: float | Tensor,
    *,
    reduction: Reduction = "mean",
    check: bool | Literal["auto"] = "auto",
    backend: str | Backend = "auto",
) -> Tensor:
    """Return the supervised contrastive loss, L_i = log Σ_{k≠i} exp z_ik − mean of z_ip over the row's positives.

    z_ik = s·cos(x_i, x_k); the positives of a row are the other rows with its label. Rows without any are rivals of
    the others, have no loss of their own, and do not count in the mean (in the paper's code they count as 0).

    - features (N, d): the views of a sample are rows with one label. Every row gets a gradient from both sides.
    - labels (N,): integers, any
    - scale: s = 1/temperature; the paper's is 10, or 14.3
    - the rest as in `margin_softmax`. One process: rows on other ranks are not seen.

    Khosla et al. 2020 (arXiv:2004.11362), the form with the sum outside the logarithm.
    """
    _check_rows("features", features)
    N = len(features)
    checks.labels_like("labels", labels, N, features.device)
    if isinstance(scale, Tensor) and scale.dim():
        raise ValueError(f"scale must be one number for all rows; got {tuple(scale.shape)}.")
    checks.one_of("reduction", reduction, ("mean", "sum", "none"))
    if not N:
        return _nothing(features, reduction)
    own = torch.arange(N, device=features.device)
    rivals = margin_softmax(
        features, features, own, NoMargin(), scale=scale, rule=_RIVALS, reduction="none", check=check,
        backend=backend,
    )  # fmt: skip
    with full_precision(features):
        x = unit(widen(features, wide_dtype(features)))
        group = torch.unique(labels, return_inverse=True)[1]
        sums = torch.zeros_like(x).index_add(0, group, x)
        others = torch.zeros_like(group).index_add(0, group, torch.ones_like(group))[group] - 1
        positives = scale * torch.linalg.vecdot(x, sums[group] - x) / others.clamp(min=1)
        used = others > 0
        # A row alone has no rivals either, and −∞ − 0.
        loss = (rivals - positives).masked_fill(~used, 0.0)
    return loss if reduction == "none" else reduced(loss, used, reduction)


@dataclass(frozen=True)
class _Rivals(Rule):
    """L = R: the log-sum-exp over all rows but the label's."""

    def link(self, R: Tensor, T: Tensor, scale: Tensor | float) -> Tensor:
        """Return R."""
        return R


_RIVALS = _Rivals()


def _nothing(x: Tensor, reduction: str) -> Tensor:
    """Return the loss of no rows, which a gradient can be asked of."""
    each = widen(x, wide_dtype(x)).sum(1)
    return each if reduction == "none" else each.sum()


class _EqualParts(Sharded):
    """So many rows on every rank, this rank's part among them."""

    def __init__(self, shard: Shard, rows: int) -> None:
        here = shard.layout(1)
        super().__init__(rows * here.world, here.rank, here.world, shard)

    def agree(self, rows: int, kind: str, *others: Any) -> Any:
        """Exchange what is about to be sent; all ranks raise if one has another number of rows."""
        return super().agree(rows, f"{kind}, {rows} rows on each rank", *others)


def _check_pair(a: Tensor, b: Tensor) -> None:
    _check_rows("a", a)
    _check_rows("b", b)
    if a.shape != b.shape:
        raise ValueError(
            f"a and b must have the same shape (N, d), row i of one belonging to row i of the other; got "
            f"{tuple(a.shape)} and {tuple(b.shape)}."
        )
    if a.device != b.device:
        raise ValueError(f"b is on {b.device}, a is on {a.device}. Move one with .to(device).")


def _check_rows(name: str, x: object) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor of shape (N, d); got {type(x).__name__}. Use torch.as_tensor.")
    if x.dim() != 2 or not x.is_floating_point():
        raise ValueError(f"{name} must be floating numbers of shape (N, d); got {x.dtype} {tuple(x.shape)}.")
