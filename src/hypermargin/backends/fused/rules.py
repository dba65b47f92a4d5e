"""Which rules the kernels know: the Triton function of each, and the numbers it is given."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from hypermargin import rules
from hypermargin.rules import Rule


class InTiles(NamedTuple):
    """A rule as the kernels compute it."""

    function: Any  # the name of a function of `rule_tiles.py`, or a function of yours with the same arguments
    numbers: tuple[float, ...] = ()  # at most four
    straight: bool = False  # the slope counts as 1


KNOWN: dict[type[Rule], Callable[[Any], InTiles]] = {
    rules.MVSoftmax: lambda of: InTiles("raised", (1.0 + of.t * (of.kind == "adaptive"), of.t)),
    rules.NPCFace: lambda of: InTiles("raised", (of.t, of.a)),
    rules.CurricularFace: lambda of: InTiles("curricular"),
    rules.Filter: lambda of: InTiles("filtered", (of.above,)),
    rules.InterTopK: lambda of: InTiles("nearest_nearer", (math.cos(of.m_prime), math.sin(of.m_prime))),
    rules.DoubleMargin: lambda of: (
        InTiles("plus", (of.m,)) if of.kind == "cosine" else InTiles("nearer", (math.cos(of.m), math.sin(of.m)))
    ),
    rules.ArcNegFace: lambda of: InTiles("near_target", (of.alpha, of.sigma)),
    rules.Circle: lambda of: InTiles("circle", (of.m,)),
    rules.LiArcFace: lambda of: InTiles("linear_in_angle"),
    rules.SphereFaceR: lambda of: InTiles("slower", (of.m,), of.derivative == "straight"),
    rules.SphereFace2: lambda of: _sphereface2(of),
    rules.UniFace: lambda of: InTiles("identity"),
    rules.P2SGrad: lambda of: InTiles("half_square"),
    rules.SFace: lambda of: InTiles("within_reach", (of.k, of.b)),
}


def _sphereface2(of: rules.SphereFace2) -> InTiles:
    straight = of.derivative == "straight"
    if of.variant == "A":
        return InTiles("power_nearer", (of.t, math.cos(of.m), math.sin(of.m)), straight)
    return InTiles("cube" if of.t == 3 else "power", (of.t, of.m), straight)


def know(kind: type[Rule], of: Callable[[Any], InTiles]) -> None:
    """Let the kernels compute a rule of yours.

    `of(rule)` returns `InTiles`: a `triton.jit` function of the cosines of a tile, two numbers of every row (those
    of `of_rows`; 0 where it has fewer) and four numbers of the rule, which returns ρ and its slope.
    """
    KNOWN[kind] = of


def knows(rule: Rule) -> bool:
    """Return whether the kernels know a rule."""
    return rule.is_softmax or (type(rule) in KNOWN and rule.row_numbers <= 2)


def in_tiles(rule: Rule) -> InTiles:
    """Return the function of a rule, its four numbers, and whether its slope counts as 1."""
    from hypermargin.backends.fused import rule_tiles

    found = KNOWN[type(rule)](rule)
    function = getattr(rule_tiles, found.function) if isinstance(found.function, str) else found.function
    return InTiles(function, (*map(float, found.numbers), 0.0, 0.0, 0.0, 0.0)[:4], found.straight)
