"""What to look at while training: means over a window, kept on the device; and why a loss is not a number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from hypermargin.head import MarginHead
from hypermargin.margins import AdaFace, ArcFace, Combined, MagFace, Margin, SphereFace

QUANTILES = {"norm_p10": 0.1, "norm_p50": 0.5, "norm_p90": 0.9}
AGAINST = 0.1  # a correlation of lengths with angles from which on it is not by chance
MOST_LOGITS = 2**20  # to look at: with many classes some rows must do for the batch, or watching costs as training


class DivergedError(ArithmeticError):
    """The loss or the gradient is not a finite number. The message says where, and what to try."""


class Window:
    """Means of named numbers since the last line of the log."""

    def __init__(self, state: dict[str, list[float]] | None = None) -> None:
        self.sums = {name: list(pair) for name, pair in (state or {}).items()}  # name → [sum, weight]

    def add(self, weight: float, **values: float) -> None:
        """Add one observation of each, counting `weight` times."""
        for name, value in values.items():
            self._add(name, weight * value, weight)

    @classmethod
    def of(cls, windows: Sequence[dict[str, list[float]]]) -> Window:
        """Return the sums of several windows together."""
        every = cls()
        for sums in windows:
            for name, (total, weight) in sums.items():
                every._add(name, total, weight)
        return every

    def _add(self, name: str, total: float, weight: float) -> None:
        sums = self.sums.setdefault(name, [0.0, 0.0])
        sums[0] += total
        sums[1] += weight

    def read(self) -> dict[str, float]:
        """Return the means so far; the window starts anew."""
        means = {name: total / weight for name, (total, weight) in self.sums.items() if weight}
        self.sums = {}
        return means


@torch.no_grad()
def look(head: MarginHead, features: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Measure accuracy, mean angles in degrees, share past the margin's fold, norm percentiles of one batch.

    `length_angle` is the correlation of |x| with the angle to the own class: below 0, longer features lie closer.

    The numbers stay on the device; `numbers` reads them.
    """
    features = features.detach().float()
    ordered = features.norm(dim=1).sort().values
    rows = max(16, MOST_LOGITS // head.classes)
    features, labels = features[:rows], labels[:rows]
    found = head.scores(features, labels)
    # Logits of weights of unit length are cosines but for one factor a row.
    plain = head.settings.unit_weight and head.bias is None
    cosines = found if plain else head.scores(features, labels, cosines=True)
    if not len(ordered):  # the other ranks have rows
        return {}
    assert found.hardest is not None
    assert cosines.hardest is not None
    seen = {"accuracy": (found.target[:, 0] > found.hardest).float().mean()}
    length = head.current_scale() * (1.0 if head.settings.unit_features else features.norm(dim=1))
    rival = cosines.hardest / length if plain else cosines.hardest
    seen["angle"] = found.angle[:, 0].mean().rad2deg()
    seen["rival_angle"] = rival.clamp(-1, 1).acos().mean().rad2deg()
    seen["length_angle"] = correlation(features.norm(dim=1), found.angle[:, 0])
    fold = past_fold(head, found.angle[:, 0])
    if fold is not None:
        seen["past_fold"] = fold
    for name, q in QUANTILES.items():  # sorted once: cheaper than torch.quantile
        seen[name] = ordered[round(q * (len(ordered) - 1))]
    return seen


def numbers(seen: dict[str, Tensor]) -> dict[str, float]:
    """Read what `look` measured: one wait for the GPU, not ten."""
    return dict(zip(seen, torch.stack(list(seen.values())).tolist(), strict=True)) if seen else {}


def past_fold(head: MarginHead, angle: Tensor) -> Tensor | None:
    """Return the share of targets at m1·θ + m2 > π, where the bare cosine would turn back (ArcFace: θ > π − m).

    None for margins that do not turn.
    """
    margin = head.margin
    if isinstance(margin, ArcFace):
        m1, m2 = 1.0, margin.m
    elif isinstance(margin, SphereFace):
        m1, m2 = margin.m, 0.0
    elif isinstance(margin, Combined):
        m1, m2 = margin.m1, margin.m2
    else:
        return None
    return (m1 * angle + m2 > math.pi).float().mean()


def correlation(a: Tensor, b: Tensor) -> Tensor:
    """Return Pearson's correlation of two rows of numbers; 0 where one of them differs by rounding alone."""
    parts = [t - t.mean() for t in (a, b)]
    spreads = [torch.linalg.vector_norm(t) for t in parts]
    least = [1e-5 * torch.linalg.vector_norm(t) for t in (a, b)]
    differ = (spreads[0] > least[0]) & (spreads[1] > least[1])
    product = (parts[0] * parts[1]).sum() / torch.where(differ, spreads[0] * spreads[1], 1.0)
    return torch.where(differ, product, 0.0)


def follows_length(margin: Margin) -> bool:
    """Return whether a margin takes the length of a feature for the quality of its sample."""
    return isinstance(margin, MagFace) or (isinstance(margin, AdaFace) and margin.h > 0)


def doubt_of_images(margin: Margin, images: Mapping[str, float]) -> str | None:
    """Say where long features are those of the poor images, by the rank correlations of |x| with what was seen."""
    against = {name: value for name, value in images.items() if value < -AGAINST}
    if not follows_length(margin) or not against:
        return None
    seen = " and ".join(f"{name} ({value:+.2f})" for name, value in against.items())
    return f"{type(margin).__name__} takes long features for good images, and here they go with less {seen}."


def doubt_of_lengths(margin: Margin, length_angle: float) -> str | None:
    """Say where lengths and angles run against what a margin that follows |x| supposes; None where they do not."""
    if not follows_length(margin) or length_angle <= AGAINST:
        return None
    return (
        f"{type(margin).__name__} takes long features for the good ones, and here they lie farther from their "
        f"class than short ones: the correlation of |x| with the angle is {length_angle:+.2f}. "
        + (
            "Take h = 0 (--set h=0)"
            if isinstance(margin, AdaFace)
            else "Compare l_a and u_a with the norms of the log"
        )
        + ", or a margin that does not follow |x|."
    )


def diagnose(
    network: nn.Module, inputs: Tensor, features: Tensor, losses: Tensor, precision: str
) -> tuple[list[int], str]:
    """Find which rows of the batch are not finite, and the likely reason."""

    def bad(t: Tensor) -> Tensor:
        finite = t.detach().isfinite()
        return ~(finite.flatten(1).all(1) if t.dim() > 1 else finite)

    ruined = [name for name, p in network.named_parameters() if not bool(p.isfinite().all())]
    if bool(bad(inputs).any()):
        return _rows(bad(inputs)), "These samples hold NaN or inf themselves: look at the data."
    if ruined:
        return _rows(bad(features)), (
            f"{len(ruined)} parameters of the network are not finite (first: {ruined[0]}), so the update before "
            "this step was too large. Lower lr, lengthen lr_warmup, or set clip."
        )
    if bool(bad(features).any()):
        what = (
            "float16 overflows above 65504: use precision bfloat16 or float32"
            if precision == "float16"
            else ("the activations overflow: lower lr or weight the network's layers less")
        )
        return _rows(
            bad(features)
        ), f"The features of these rows are not finite while input and weights are; {what}."
    return _rows(bad(losses)), (
        "Features and weights are finite, so the head overflowed: the scale or the features' norms are too large. "
        "Lower --set scale, lower lr, or use a head with normalised features."
    )


def _rows(mask: Tensor) -> list[int]:
    return [int(row) for row in mask.nonzero()[:, 0]]
