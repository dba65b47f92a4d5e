"""Vector scaling: Kini et al. 2021 (arXiv:2103.01550), logits scaled and shifted by how frequent a class is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from hypermargin.class_state import ByClass
from hypermargin.counts import offsets_from_counts
from hypermargin.fields import number
from hypermargin.layout import ClassTable
from hypermargin.numerics import snapshot, unit, wide_dtype, widen
from hypermargin.views._base import View, ViewState, register

if TYPE_CHECKING:
    from hypermargin.batch import Batch
    from hypermargin.centers import Centers
    from hypermargin.rules import Rule


@register("vector-scaling")
@dataclass(frozen=True)
class VectorScaling(View):
    """In the loss the logit z_j of class j counts as z_j/Δ_j + ι_j:

        Δ_j = (n_max/n_j)^γ      ι_j = τ·ln π_j,     π_j = n_j/Σ n

    n_j are the training samples of the class (`class_counts`); one without any counts as one with a single sample.
    z_j includes the bias, and the target's its margin. γ = 0 is logit adjustment, τ = 0 as well is softmax.
    """

    gamma: float = number(0.3, 0.0, help="How much the logits of rare classes are scaled down; 0 is not.")
    tau: float = number(1.0, 0.0, help="Factor on the logarithm of the share of a class.")
    formula = "z/Δ + ι"

    def state(self) -> ViewState:
        """Return the factors and offsets of the classes."""
        return ScaledClasses(self)

    def check(self, rule: Rule, unit_weight: bool, centers: Centers) -> None:
        """Require softmax's rule, since the rows do not keep their length."""
        if not rule.is_softmax:
            raise ValueError(f"view={self} scales the class rows, so it needs softmax's rule; got rule={rule}.")
        if centers.soft:
            raise ValueError(f"view={self} scales the class rows, and pool='soft' needs unit ones; take \"max\".")


class ScaledClasses(ViewState):
    """1/Δ and ι of every class."""

    by_class_entries: ClassVar[dict[str, ByClass]] = {"factors": ByClass("mean", 1.0), "offsets": ByClass("mean")}
    factors: Tensor
    offsets: Tensor

    def __init__(self, view: VectorScaling) -> None:
        super().__init__()
        self.view = view

    def hold(self, held: range, dim: int, counts: Tensor | None) -> None:
        """Compute the numbers of these classes from the samples of all."""
        super().hold(held, dim, counts)
        if counts is None:
            raise TypeError(
                f"view={self.view} goes by how frequent a class is: give class_counts, the samples of each."
            )
        n = counts.clamp(min=1.0)
        own = slice(held.start, held.stop)
        self._told("factors", ((n / n.max()) ** self.view.gamma).float()[own])
        self._told("offsets", offsets_from_counts(counts, self.view.tau)[own])

    def forward(self, table: ClassTable, batch: Batch) -> ClassTable:
        """Return rows w/Δ, unit ones first made so, and the bias b/Δ + ι; PartialFC's correction stays as it is."""
        dtype = wide_dtype(batch.features, table.weight)
        factor, offset = (snapshot(table.by_row(own)).to(dtype) for own in (self.factors, self.offsets))
        w = widen(table.weight, dtype)
        bias, times = table.bias, table.times
        if bias is not None:
            b = widen(bias, dtype)
            offset = offset + factor * b if times is None else offset + times + factor * (b - times)
        w = (unit(w) if table.unit else w) * factor.unsqueeze(1)
        return table.with_rows(w, False, offset)
