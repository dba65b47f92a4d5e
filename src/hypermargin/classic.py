"""The classic heads as numbers: recipes.py makes those of torch, hypermargin.integrations those of others.

This file imports nothing but Python's own modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Annealing(NamedTuple):
    """λ(it) = max(floor, base·(1 + gamma·it)^−power), it = 1, 2, …: the share of plain cos θ in ψ."""

    base: float
    gamma: float
    power: float
    floor: float


@dataclass(frozen=True)
class Classic:
    """One head as its paper has it."""

    margin: str  # the name of ψ, one of NUMBERS
    numbers: Mapping[str, float] = field(default_factory=dict)
    scale: float = 1.0
    unit_weight: bool = True
    unit_features: bool = True
    bias: bool = False
    learn_scale: bool = False
    scale_floor: float | None = None
    annealing: Annealing | None = None


_SPHEREFACE = Classic("sphereface", {"m": 4.0}, unit_features=False, annealing=Annealing(1000.0, 0.12, 1.0, 5.0))

CLASSIC: dict[str, Classic] = {
    "softmax": Classic("none", unit_weight=False, unit_features=False, bias=True),
    "l-softmax": Classic(
        "sphereface", {"m": 4.0}, unit_weight=False, unit_features=False,
        annealing=Annealing(1000.0, 2.5e-5, 35.0, 0.0),
    ),
    "modified-softmax": Classic("none", unit_features=False),
    "a-softmax": _SPHEREFACE,
    "sphereface": _SPHEREFACE,
    "normface": Classic("none", scale=10.0, learn_scale=True, scale_floor=0.01),
    "am-softmax": Classic("cosface", {"m": 0.35}, scale=30.0),
    "cosface": Classic("cosface", {"m": 0.35}, scale=64.0),
    "arcface": Classic("arcface", {"m": 0.5}, scale=64.0),
    "combined": Classic("combined", {"m1": 1.0, "m2": 0.3, "m3": 0.2}, scale=64.0),
}  # fmt: skip

# Every ψ of the classic family is g(m1·θ + m2) − m3: which of the three each number of a margin is.
NUMBERS: dict[str, dict[str, str]] = {
    "none": {},
    "sphereface": {"m": "m1"},
    "arcface": {"m": "m2"},
    "cosface": {"m": "m3"},
    "combined": {"m1": "m1", "m2": "m2", "m3": "m3"},
}
