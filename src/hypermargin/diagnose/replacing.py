"""What replaces a criterion: the same loss of this library, as one line, and proof that it is the same."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hypermargin.diagnose.criterion import Criterion, row_loss
from hypermargin.diagnose.edges import Batch, spread
from hypermargin.diagnose.outer import PLAIN, Outer
from hypermargin.functional import margin_cross_entropy, margin_softmax
from hypermargin.margins import ArcFace, Combined, CosFace, Margin, NoMargin, SphereFace
from hypermargin.numerics import unit
from hypermargin.rules import SOFTMAX, STATELESS, CurricularFace, Rule
from hypermargin.rules import Circle as CircleRule

RULED = {CircleRule: "circle", CurricularFace: "curricularface"}
HEADS = {ArcFace: "arcface", CosFace: "cosface", Combined: "combined", NoMargin: "normface"}


class Proof(NamedTuple):
    """How far the replacement is from the criterion on a batch with targets at all angles, relative to its size."""

    loss: float
    gradient: float

    @property
    def holds(self) -> bool:
        """Tell whether both are equal, but for rounding in float32."""
        return self.loss < 1e-4 and self.gradient < 1e-3


@dataclass(frozen=True)
class Replacement:
    """A loss of this library: its margin and settings."""

    margin: Margin
    scale: float
    gradient: str
    unit_features: bool
    unit_weight: bool
    on_cosines: bool
    bare: bool = False  # with a weight of the caller's: margin_softmax
    centers: int = 1  # per class, of which the nearest counts
    bias: bool = False
    outer: Outer = PLAIN  # what becomes of the cross-entropy
    rule: Rule = SOFTMAX

    def line(self) -> str:
        """Return the line that replaces a criterion by the same loss."""
        more = [] if self.gradient == "exact" else [f'gradient="{self.gradient}"']
        more += [f"label_smoothing={self.smoothing:g}"] if self.smoothing else []
        scale = f"{self.scale:g}"
        if self.on_cosines:
            return _call("hypermargin.margin_cross_entropy", "cosines", "labels", self._object(), scale, *more)
        sides = [f"{name}=False" for name in ("unit_features", "unit_weight") if not getattr(self, name)]
        if self.bare:
            return _call(
                "hypermargin.margin_softmax", "features", "weight", "labels", self._object(), f"scale={scale}",
                *self._rule(), *sides, *more,
            )  # fmt: skip
        name, numbers, own = self._head()
        sides = [] if own else sides
        if self.bias:
            numbers = [each for each in numbers if each != "bias=False"]
            sides = [*sides, "bias=True"]
        if self.centers > 1:
            sides += [f"centers={self.centers}", 'pool="max"']
        return _call(
            "hypermargin.create_head", f'"{name}"', "dim", "classes", *numbers, f"scale={scale}", *sides, *more
        )

    @property
    def smoothing(self) -> float:
        """The label smoothing."""
        return self.outer.value if self.outer.kind == "smoothed" else 0.0

    @property
    def whole(self) -> bool:
        """Tell whether the line says all of it: a weight or a focal loss is around it."""
        return self.outer.kind in ("plain", "smoothed")

    def ours(self) -> Replacement:
        """Return what we would take instead: ψ continued smoothly, and its own gradient."""
        margin = self.margin
        if getattr(margin, "beyond", "smooth") != "smooth":
            margin = type(margin)(**{**vars(margin), "beyond": "smooth"})
        return dataclasses.replace(self, margin=margin, gradient="exact")

    def _rule(self) -> list[str]:
        return [] if self.rule == SOFTMAX else [f"rule=hypermargin.rules.{self.rule}".replace("'", '"')]

    def _object(self) -> str:
        return f"hypermargin.margins.{self.margin}".replace("'", '"')

    def _head(self) -> tuple[str, list[str], bool]:
        """Return the name of the head, its numbers, and whether its sides are what the name says."""
        margin = self.margin
        numbers = [
            f"{field.name}={json.dumps(getattr(margin, field.name))}"
            for field in dataclasses.fields(margin)  # type: ignore[arg-type]  # margins are dataclasses
            if field.name in ("m", "m1", "m2", "m3", "lam") or getattr(margin, field.name) != field.default
        ]
        if self.rule != SOFTMAX:
            name = RULED.get(type(self.rule)) or ("mv-arcface" if isinstance(margin, ArcFace) else "mv-am-softmax")
            numbers += [
                f"{field.name}={json.dumps(getattr(self.rule, field.name))}"
                for field in dataclasses.fields(self.rule)  # type: ignore[arg-type]  # rules are dataclasses
                if field.name != "m" and getattr(self.rule, field.name) != field.default
            ]
            return name, numbers, False
        if isinstance(margin, SphereFace):
            if not self.unit_features:
                return ("sphereface" if self.unit_weight else "l-softmax"), numbers, True
            return "sphereface", [*numbers, "unit_features=True"], True
        if isinstance(margin, NoMargin):
            if self.unit_features and self.unit_weight:
                return "normface", ["learn_scale=False"], True
            return ("modified-softmax", [], True) if self.unit_weight else ("softmax", ["bias=False"], True)
        known = HEADS.get(type(margin))
        return known or margin.name, numbers, False

    def loss(self, x: Tensor, W: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of a batch."""
        kind: Any = self.gradient
        rows = margin_softmax(
            x, W, y, self.margin, scale=self.scale, gradient=kind, unit_features=self.unit_features,
            unit_weight=self.unit_weight, label_smoothing=self.smoothing, reduction="none", backend="dense",
            rule=self.rule, rule_state=self.rule.state() or STATELESS,
        )  # fmt: skip
        return self.outer.of_rows(rows).mean()

    def on(self, cosines: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of cosines."""
        kind: Any = self.gradient
        rows = margin_cross_entropy(
            cosines, y, self.margin, self.scale, gradient=kind, label_smoothing=self.smoothing, reduction="none"
        )
        return self.outer.of_rows(rows).mean()

    def prove(self, of: Criterion) -> Proof:
        """Compare with the criterion."""
        batch = spread(of, 6 * 7)
        if self.unit_features:  # lengths should not count: of rows of different ones neither
            x = batch.x * torch.linspace(0.5, 40.0, len(batch.x), dtype=of.dtype).flip(0)[:, None]
            batch = dataclasses.replace(batch, x=x)
        ours = self.on if self.on_cosines else self.loss
        return _compare(of, batch, ours)


def _compare(of: Criterion, batch: Batch, ours: Callable[..., Tensor]) -> Proof:
    if of.form == "cosines":
        given = (unit(batch.x) @ unit(batch.W).T).double()
        mine, theirs = (given.clone().requires_grad_() for _ in range(2))
        a = ours(mine, batch.y)
        b = row_loss(of.on_cosines(theirs.to(of.dtype), batch.y), batch.y)
    else:
        mine, theirs = (batch.x.double().clone().requires_grad_() for _ in range(2))
        a = ours(mine, batch.W.double(), batch.y)
        b = row_loss(of(theirs.to(of.dtype), batch.W, batch.y), batch.y)
    (da,), (db,) = torch.autograd.grad(a, mine), torch.autograd.grad(b, theirs, allow_unused=True)
    off = abs(float(b.detach() - a.detach())) / max(1e-12, abs(float(a.detach())))
    db = torch.zeros_like(da) if db is None else db
    return Proof(off, float(((db - da).norm() / da.norm()).detach()))


def _call(name: str, *arguments: str) -> str:
    return f"{name}({', '.join(arguments)})"
