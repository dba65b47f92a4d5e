"""Margins that are drawn: their mean and deviation, and which row of a batch gets which."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from hypermargin.diagnose.angles import Lab, measure
from hypermargin.diagnose.criterion import Criterion
from hypermargin.diagnose.examination import Examination
from hypermargin.diagnose.findings import Finding
from hypermargin.diagnose.recognise import recognise
from hypermargin.margins import ArcFace, ElasticArcFace, ElasticCosFace

SEEDS = range(1, 401)
# What a batch of alike rows shows of ψ is the mean of several draws, and no ψ.
OF_THE_MEAN = (
    "unknown-psi", "jumps", "turns-back", "rewards", "margin-by-class", "not-the-same", "scales-differ",
    "margin-sign", "degrees",
)  # fmt: skip


def chance(exam: Examination) -> None:
    """Find out whether the margin is drawn, and name it then."""
    assert exam.scale is not None
    if not Chance(exam.lab, exam.scale, range(1, 4)).drawn:
        return
    # Alike rows have draws of their own: a margin is named from single ones.
    alone = exam.lab.changed(alike=1)
    curves = measure(alone)
    match = recognise(curves.theta, curves.target / exam.scale, curves.noise / exam.scale)
    exam.match = match or exam.match
    exam.curves = curves
    angular = match is not None and isinstance(match.margin, ArcFace)
    mean, deviation = Chance(alone, exam.scale).mean_and_deviation(angular)
    how = pairing(exam.of, angular)
    numbers: dict[str, Any] = {"m": _short(mean), "sigma": _short(deviation), "pairing": how or "none"}
    if match is not None and isinstance(match.margin, ArcFace):
        exam.margin = ElasticArcFace(**numbers, beyond=match.margin.beyond)
    else:
        exam.margin = ElasticCosFace(**numbers)
    exam.found = [each for each in exam.found if each.code not in OF_THE_MEAN]
    exam.replacement = exam.proof = exam.slip = None
    exam.found.append(
        Finding(
            "drawn-margin", "note",
            f"Its margin is drawn anew for every row: {mean:.2g} ± {deviation:.2g} over {len(SEEDS)} draws.",
            "It draws in eval() too unless it asks exam.training." if _draws_in_eval(exam) else "",
        )
    )  # fmt: skip
    if how == "published":
        exam.found.append(
            Finding(
                "pairs-at-random", "doubtful",
                "The margins of a batch are sorted and given to the rows by the order of the order, which pairs "
                "them at random; the largest was meant for the hardest row.",
                'Row i gets the margin at the rank of its cosine: here pairing="paper".',
                "ElasticFace+ pairs margins at random",
            )
        )  # fmt: skip
    elif how == "paper":
        exam.found.append(Finding("pairs-by-rank", "note", "The hardest row of a batch gets the largest margin."))


def _draws_in_eval(exam: Examination) -> bool:
    module = exam.of.module
    if module is None:
        return False
    was = module.training
    module.eval()
    try:
        a, b = (exam.lab.changed(criterion=exam.of.seeded(n)).gap(1.0, 0.5) for n in (1, 2))
    finally:
        module.train(was)
    return a != b


def _short(value: float) -> float:
    return max(0.0, float(f"{value:.2g}"))


class Chance:
    """What a criterion that draws its margins gives, by seeds: the mean and deviation of its margin."""

    def __init__(self, lab: Lab, scale: float, seeds: range = SEEDS) -> None:
        of = lab.criterion
        self.angles: list[float] = []
        self.cosines: list[float] = []
        theta = math.radians(60)
        for number in seeds:
            drawn = lab.changed(criterion=of.seeded(number))
            psi = drawn.logit(theta, scale) / scale
            self.angles.append(math.acos(max(-1.0, min(1.0, psi))) - theta)
            self.cosines.append(math.cos(theta) - psi)

    @property
    def drawn(self) -> bool:
        """Tell whether other seeds give another margin."""
        return max(self.cosines) - min(self.cosines) > 1e-5

    def mean_and_deviation(self, angular: bool) -> tuple[float, float]:
        """Return both, of the angle that is added or of the cosine that is subtracted."""
        values = torch.tensor(self.angles if angular else self.cosines, dtype=torch.float64)
        return float(values.mean()), float(values.std())


def pairing(of: Criterion, angular: bool) -> str:
    """Tell how a criterion that draws margins gives them to the rows of a batch.

    "" at random; "paper": the largest to the hardest row; "published": by the order of the order, which is random.
    Only for criteria whose logits can be seen.
    """
    # Cosines whose order, as argsort gives it, is not its own inverse.
    theta = torch.tensor([0.9, 1.5, 0.6, 1.2, 1.8], dtype=torch.float64)
    order = theta.cos().argsort(descending=True)
    margins = torch.zeros_like(theta)
    for number in range(1, 129):
        psi = _targets(of.seeded(number), theta.to(of.dtype))
        if psi is None:
            return ""
        margins += psi.clamp(-1, 1).acos() - theta if angular else theta.cos() - psi
    places = {"published": order, "paper": order.argsort()}
    by = {name: float(torch.corrcoef(torch.stack((margins, p.double())))[0, 1]) for name, p in places.items()}
    best = max(by, key=lambda name: by[name])
    return best if by[best] > 0.9 else ""


def _targets(of: Criterion, theta: Tensor) -> Tensor | None:
    """Return the target's logit of each row, over the scale of the rivals'; None if rows cannot be told apart."""
    rows = len(theta)
    y = torch.zeros(rows, dtype=torch.long)
    axes = torch.eye(max(3, of.dim), dtype=of.dtype)[:3, : of.dim]
    W = torch.cat((axes[:1], axes[2:3].expand(of.classes - 1, of.dim)))
    x = theta.cos()[:, None] * axes[0] + theta.sin()[:, None] * axes[1]
    found = of(x, W, y)
    if found.logits is None:
        return None
    logits = found.logits.detach().double()
    scale = Lab(of).scale()
    return logits[:, 0] / scale
