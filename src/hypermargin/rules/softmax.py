"""Softmax: a rival counts as its plain cosine."""

from __future__ import annotations

from dataclasses import dataclass

from hypermargin.rules._base import Rule, register


@register("softmax")
@dataclass(frozen=True)
class Softmax(Rule):
    """ρ(c) = c, R = log Σ exp, L = softplus(R − T): cross-entropy of the margined logits."""

    formula = "c"


SOFTMAX = Softmax()
