"""Heads as other libraries have them: nn.Linear, and the losses of pytorch-metric-learning."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from hypermargin import checks
from hypermargin.centers import ONE, Centers
from hypermargin.common.needs import not_installed
from hypermargin.head import MarginHead
from hypermargin.heads.weights import by_class, refuse_centers
from hypermargin.margins import ArcFace, CosFace, Margin, NoMargin, SphereFace
from hypermargin.numerics import unit
from hypermargin.rules import SOFTMAX

LOSSES = (
    "ArcFaceLoss", "CosFaceLoss", "NormalizedSoftmaxLoss", "SphereFaceLoss", "LargeMarginSoftmaxLoss",
    "SubCenterArcFaceLoss",
)  # fmt: skip


@torch.no_grad()
def from_linear(linear: nn.Linear) -> MarginHead:
    """Make a softmax head, without a margin, with a copy of the layer's weight and bias: the same logits."""
    checks.instance("linear", linear, nn.Linear, "nn.Linear(512, 1000)")
    head = MarginHead(
        linear.in_features, linear.out_features, NoMargin(), bias=linear.bias is not None, unit_features=False,
        unit_weight=False, device=linear.weight.device, dtype=linear.weight.dtype,
    )  # fmt: skip
    head.weight.copy_(linear.weight)
    if head.bias is not None:
        head.bias.copy_(linear.bias)
    return head


@torch.no_grad()
def to_linear(head: MarginHead) -> nn.Linear:
    """Make a layer with the logits of the head; its weight holds s·W, or s·W/|W| where the head normalises it."""
    checks.instance("head", head, MarginHead, "create_head(…)")
    by_class(head)  # all of them, or an error
    refuse_centers(head, "the logit of a class is its nearest center's, which no linear layer computes")
    if head.settings.unit_features:
        raise ValueError(
            "head has unit_features=True, and an nn.Linear does not normalise its input. Write the rows alone, "
            "--to npy (heads.write in Python; head.logits computes the logits)."
        )
    weight = unit(head.weight) if head.settings.unit_weight else head.weight
    linear = nn.Linear(head.dim, head.classes, head.bias is not None, weight.device, weight.dtype)
    linear.weight.copy_(head.current_scale() * weight)
    if head.bias is not None:
        linear.bias.copy_(head.bias)
    return linear


@torch.no_grad()
def from_metric_learning(loss: Any) -> MarginHead:
    """Make a head with the same loss as one of pytorch-metric-learning's, which holds W as (dim, classes).

    Knows ArcFaceLoss (its `margin` is given in degrees), SubCenterArcFaceLoss, CosFaceLoss, NormalizedSoftmaxLoss,
    SphereFaceLoss and LargeMarginSoftmaxLoss, with their own distance. Its reducer, miner and weight
    regularizer stay behind.
    """
    name = type(loss).__name__
    if name not in LOSSES:
        raise TypeError(f"loss must be one of {', '.join(LOSSES)}; got {name}.{checks.near(name, LOSSES)}")
    distance = "DotProductSimilarity" if name == "NormalizedSoftmaxLoss" else "CosineSimilarity"
    own = loss.distance
    if (type(own).__name__, own.p, own.power, own.normalize_embeddings) != (distance, 2, 1, True):
        raise ValueError(f"loss uses {own}, and only its own {distance} gives the logits of a head of this family.")
    scale = 1 / loss.temperature if name == "NormalizedSoftmaxLoss" else loss.scale
    margin: Margin = NoMargin()
    centers = Centers(loss.sub_centers, "max") if name == "SubCenterArcFaceLoss" else ONE
    if name in ("ArcFaceLoss", "SubCenterArcFaceLoss"):
        margin = ArcFace(float(loss.margin), beyond="linear")  # radians: the loss has converted its degrees
    elif name == "CosFaceLoss":
        margin = CosFace(float(loss.margin))
    elif name != "NormalizedSoftmaxLoss":
        margin = SphereFace(float(loss.margin))
    head = MarginHead(
        loss.W.shape[0], loss.W.shape[1] // centers.count, margin, scale=float(scale), centers=centers,
        device=loss.W.device, dtype=loss.W.dtype,
        unit_features=name not in ("SphereFaceLoss", "LargeMarginSoftmaxLoss"),
        unit_weight=name != "LargeMarginSoftmaxLoss",
    )  # fmt: skip
    head.weight.copy_(loss.W.T)
    return head


@torch.no_grad()
def to_metric_learning(head: MarginHead) -> Any:
    """Make the loss of pytorch-metric-learning that computes what this head does; an error where none does.

    A learned scale stays what it is now: their losses do not learn one.
    """
    checks.instance("head", head, MarginHead, "create_head(…)")
    by_class(head)  # all of them, or an error
    try:
        from pytorch_metric_learning import losses
    except ModuleNotFoundError:
        raise ModuleNotFoundError(not_installed("this needs", "pytorch-metric-learning")) from None
    problem = _unlike(head)
    if problem:
        raise ValueError(
            f"pytorch-metric-learning has no such head: {problem} Write the rows alone with heads.write."
        )
    margin, s = head.margin, float(head.current_scale().detach())
    size = {"num_classes": head.classes, "embedding_size": head.dim}
    loss: Any
    if isinstance(margin, ArcFace):
        several = head.settings.centers.count > 1
        kind = losses.SubCenterArcFaceLoss if several else losses.ArcFaceLoss
        more = {"sub_centers": head.settings.centers.count} if several else {}
        loss = kind(**size, **more, margin=math.degrees(margin.m), scale=s)
        loss.margin = margin.m  # to the bit
    elif isinstance(margin, CosFace):
        loss = losses.CosFaceLoss(**size, margin=margin.m, scale=s)
    elif isinstance(margin, SphereFace):
        kind = losses.SphereFaceLoss if head.settings.unit_weight else losses.LargeMarginSoftmaxLoss
        loss = kind(**size, margin=int(margin.m), scale=s)
    else:
        loss = losses.NormalizedSoftmaxLoss(**size, temperature=1 / s)
    loss.W = nn.Parameter(head.weight.detach().T.clone(), head.weight.requires_grad)
    return loss


def _unlike(head: MarginHead) -> str:
    """Say what keeps the head from being a loss of theirs; an empty string if nothing does."""
    margin, centers = head.margin, head.settings.centers
    sides = (head.settings.unit_features, head.settings.unit_weight)
    allowed = [(False, True), (False, False)] if isinstance(margin, SphereFace) else [(True, True)]
    if not isinstance(margin, ArcFace | CosFace | SphereFace | NoMargin):
        return f"its margin is {margin}."
    if sides not in allowed:
        return f"unit_features={sides[0]} and unit_weight={sides[1]} with {type(margin).__name__}."
    if isinstance(margin, ArcFace) and margin.beyond != "linear":
        return f'it continues ArcFace past π with beyond="linear", yours is {margin.beyond!r}.'
    if isinstance(margin, SphereFace) and (margin.m % 1 or margin.lam or margin.beyond != "smooth"):
        return f"its m is a whole number without λ; yours is {margin}."
    if head.bias is not None or head.m is not None or len(head.schedules) or head.settings.label_smoothing:
        return "it has no bias, no margins by class, no schedules and no label smoothing."
    if (
        head.settings.rule != SOFTMAX
        or not (centers.count == 1 or (isinstance(margin, ArcFace) and centers.pooled and not centers.soft))
        or head.offsets is not None
        or len(head.row_terms)
        or not head.settings.view.is_identity
    ):
        return (
            "it has softmax's rule, no view, no offsets and no row terms, and one center per class, or several of "
            'which the nearest counts (ArcFace, pool="max").'
        )
    if head.settings.sample is not None or head.settings.scale == "adacos-dynamic":
        return "it uses all classes at every step, and one scale."
    if head.settings.reduction != "mean":
        return f"its loss is the mean over the rows, yours has reduction={head.settings.reduction!r}."
    if head.settings.gradient != "exact":
        return f'its gradient is "exact", yours is {head.settings.gradient!r}.'
    return ""
