"""The rivals' side of P2SGrad: Zhang et al. 2019 (arXiv:1905.02479). The target's side is `margins.P2SGrad`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hypermargin.numerics import unit, widen
from hypermargin.rules._aggregates import SUM
from hypermargin.rules._base import Rule, RuleAtRows, register

if TYPE_CHECKING:
    from hypermargin.backends import Backend, Rivals
    from hypermargin.layout import ClassTable


@register("p2sgrad")
@dataclass(frozen=True)
class P2SGrad(Rule):
    """L = s/2·((1 − cos θ_y)² + Σ_{j≠y} cos² θ_j), s = 1: the loss whose gradient is P2SGrad's.

    Σ_j cos² θ_j is x̂ᵀ(Σ_j ŵ_j ŵ_jᵀ)x̂, so no backend is asked: one d×d matrix of the classes stands for the N×C.
    Often the mean over classes is taken too, which is 2/C times as much.
    """

    formula = "c²/2"
    aggregate = SUM

    def rho(self, cosine: Tensor, threshold: Tensor | None) -> Tensor:
        """Return c²/2."""
        return cosine.square() / 2

    def slope(self, cosine: Tensor, threshold: Tensor | None) -> Tensor:
        """Return c."""
        return cosine

    def link(self, R: Tensor, T: Tensor, scale: Tensor | float) -> Tensor:
        """Return R − T."""
        return R - T

    def rivals(
        self, backend: Backend, f: Tensor, table: ClassTable, at_rows: RuleAtRows, *, rival_sum: bool = False
    ) -> Rivals:
        """Return Σ_j c_j²/2 of every row from the d×d matrix, less those of the row's own classes."""
        from hypermargin.backends import Rivals  # which know rules, and not the other way round

        if table.bias is not None or table.centers.pooled:
            return super().rivals(backend, f, table, at_rows, rival_sum=rival_sum)
        w = unit(widen(table.weight, f.dtype))
        rows = table.label_rows(w)
        squares = ((f @ (w.T @ w)) * f).sum(1) - _of_labels((f.unsqueeze(1) * rows).sum(-1).square(), table)
        return Rivals(rows, squares / (2 * at_rows.divisor().squeeze(1)), None, None)


def _of_labels(squares: Tensor, table: ClassTable) -> Tensor:
    """Return the sum of the numbers of each row's labels, (N, L·K), those held here and each class once."""
    local = table.local
    total = torch.zeros_like(squares[:, 0])
    for k in range(local.shape[1]):
        again = (local[:, :k] == local[:, k : k + 1]).any(1)
        absent = again if table.inside is None else again | ~table.inside[:, k]
        total = total + squares[:, k].masked_fill(absent, 0.0)
    return total
