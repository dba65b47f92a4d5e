"""The named heads, as one table. `create_head` reads it, and so do the README's table and the demo."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Unpack

from hypermargin import checks
from hypermargin.head import MarginHead
from hypermargin.margins import ArcFace, Combined, CosFace, Margin, NoMargin, SphereFace
from hypermargin.rules import SOFTMAX
from hypermargin.schedule import LambdaAnnealing, Schedule
from hypermargin.settings import STATE, HeadOverrides, HeadSettings, setting_names, unknown_setting


@dataclass(frozen=True)
class Recipe:
    """One head of the family: its paper's defaults and what to know about it."""

    margin: Margin
    unit_weight: bool
    unit_features: bool
    scale: float
    boundary: str  # decision boundary between classes 1 and 2, for x at angles θ1, θ2 from them
    width: str  # width of the band between the two boundaries, for classes θ12 apart
    good: str
    bad: str
    paper: str
    bias: bool = False
    learn_scale: bool = False
    scale_floor: float | None = None
    schedule: Callable[[], Schedule] | None = None

    def settings(self, dim: int, classes: int) -> HeadSettings:
        """Return the settings of such a head, as its paper has them."""
        return HeadSettings(
            dim, classes, self.margin, scale=self.scale, bias=self.bias, unit_features=self.unit_features,
            unit_weight=self.unit_weight, learn_scale=self.learn_scale, scale_floor=self.scale_floor,
        )  # fmt: skip


def _lambda_of_l_softmax() -> Schedule:
    return LambdaAnnealing(base=1000.0, gamma=2.5e-5, power=35.0, floor=0.0)


def _lambda_of_a_softmax() -> Schedule:
    return LambdaAnnealing(base=1000.0, gamma=0.12, power=1.0, floor=5.0)


_SPHEREFACE = Recipe(
    SphereFace(m=4.0), unit_weight=True, unit_features=False, scale=1.0, schedule=_lambda_of_a_softmax,
    boundary="mθ1 = θ2", width="θ12·(m−1)/(m+1)",
    good="angle is all that separates classes", bad="hard to train without λ; thin band between close classes",
    paper="Liu et al. 2017, arXiv:1704.08063",
)  # fmt: skip

FAMILY: dict[str, Recipe] = {
    "softmax": Recipe(
        NoMargin(), unit_weight=False, unit_features=False, scale=1.0, bias=True,
        boundary="|W1|cos θ1 + b1/|x| = |W2|cos θ2 + b2/|x|", width="0",
        good="nothing to tune but weight decay; trains everywhere",
        bad="separates, does not gather; length competes with angle",
        paper="Bridle 1990",
    ),
    "l-softmax": Recipe(
        SphereFace(m=4.0), unit_weight=False, unit_features=False, scale=1.0, schedule=_lambda_of_l_softmax,
        boundary="|W1|cos mθ1 = |W2|cos θ2", width="θ12·(m−1)/(m+1) if |W1| = |W2|",
        good="the first margin; widest hypothesis space",
        bad="a long W_y meets the margin as well as a small angle",
        paper="Liu et al. 2016, arXiv:1612.02295",
    ),
    "modified-softmax": Recipe(
        NoMargin(), unit_weight=True, unit_features=False, scale=1.0,
        boundary="θ1 = θ2", width="0",
        good="decides by angle; no bias towards frequent classes",
        bad="easy samples still grow |x| instead of turning",
        paper="Liu et al. 2017, arXiv:1704.08063",
    ),
    "a-softmax": _SPHEREFACE,
    "sphereface": _SPHEREFACE,
    "normface": Recipe(
        NoMargin(), unit_weight=True, unit_features=True, scale=10.0, learn_scale=True, scale_floor=0.01,
        boundary="θ1 = θ2", width="0",
        good="trains the cosine that is tested; with s fit to C hard to beat", bad="stands or falls with s",
        paper="Wang et al. 2017, arXiv:1704.06369",
    ),
    "am-softmax": Recipe(
        CosFace(m=0.35), unit_weight=True, unit_features=True, scale=30.0,
        boundary="cos θ1 − m = cos θ2", width="2·asin(m / (2 sin(θ12/2)))",
        good="one subtraction; slope 1 everywhere; steady",
        bad="band widens as classes come closer: infeasible for m > 1 − cos θ12",
        paper="Wang et al. 2018, arXiv:1801.05599",
    ),
    "cosface": Recipe(
        CosFace(m=0.35), unit_weight=True, unit_features=True, scale=64.0,
        boundary="cos θ1 − m = cos θ2", width="2·asin(m / (2 sin(θ12/2)))",
        good="as am-softmax, with the scale for 100k classes",
        bad="as am-softmax; s = 64 is too large for few classes",
        paper="Wang et al. 2018, arXiv:1801.09414",
    ),
    "arcface": Recipe(
        ArcFace(m=0.5), unit_weight=True, unit_features=True, scale=64.0,
        boundary="θ1 + m = θ2", width="m",
        good="the same band at every θ12, in radians", bad="needs a rule past π − m; cone at θ = 0",
        paper="Deng et al. 2019, arXiv:1801.07698",
    ),
    "combined": Recipe(
        Combined(m1=1.0, m2=0.3, m3=0.2), unit_weight=True, unit_features=True, scale=64.0,
        boundary="g(m1·θ1 + m2) − m3 = cos θ2", width="numeric: advise.band_width",
        good="contains all of the above", bad="three numbers to choose",
        paper="Deng et al. 2019, arXiv:1801.07698",
    ),
}  # fmt: skip


def list_heads() -> list[str]:
    """Return the names that `create_head` knows; sphereface and a-softmax are the same head."""
    return list(FAMILY)


def create_head(name: str, dim: int, classes: int, **overrides: Unpack[HeadOverrides]) -> MarginHead:
    """Return a head of the family by name, with its paper's defaults, λ schedule included.

    The one exception: ArcFace continues smoothly past π (beyond="smooth"), where its paper says nothing.

    `overrides` are fields of its margin (m, or m1, m2, m3; lam, beyond), of its rule (t, …) and arguments of
    `MarginHead` (scale, bias, learn_scale, backend, …); a field that margin and rule both have is set in both.
    A given `lam` is constant, so it replaces the λ schedule; lam=0 is the bare margin.

        create_head("arcface", 512, 10_000, m=0.4, scale=32.0)
    """
    settings, state = head_settings(name, dim, classes, overrides)
    return MarginHead.of(settings, **state)


def head_settings(
    name: str, dim: int, classes: int, overrides: Mapping[str, Any]
) -> tuple[HeadSettings, dict[str, Any]]:
    """Return the settings of such a head, checked, and the arguments of `MarginHead` that are its state."""
    if name not in FAMILY:
        known = ", ".join(FAMILY)
        raise ValueError(f"unknown head {name!r}; the family has {known}.{checks.near(name, FAMILY)}")
    recipe, given = FAMILY[name], dict[str, Any](overrides)
    parts: dict[str, Any] = {"margin": given.pop("margin", recipe.margin), "rule": given.pop("rule", SOFTMAX)}
    checks.margin_object(parts["margin"])
    checks.rule_object(parts["rule"])
    of_parts = dict.fromkeys(f.name for part in parts.values() for f in dataclasses.fields(part))
    of_head = ["margin", *setting_names()]
    for key, value in given.items():
        if key not in of_parts and key not in of_head:
            raise unknown_setting(name, key, value, [*of_parts, *of_head])
    changes = {key: value for key, value in given.items() if key in of_head and key not in STATE}
    if isinstance(given.get("scale"), str):  # a rule sets s, so the recipe must not learn it as well
        changes = {"learn_scale": False, "scale_floor": None} | changes
    for key, part in parts.items():
        own = {f.name for f in dataclasses.fields(part)}
        changes[key] = dataclasses.replace(part, **{k: v for k, v in given.items() if k in own})
    state = {key: given[key] for key in STATE if key in given}
    if recipe.schedule and not {"lam", "margin"} & overrides.keys():
        state.setdefault("schedule", recipe.schedule())
    return dataclasses.replace(recipe.settings(dim, classes), **changes), state


def as_markdown() -> str:
    """Return the family as a Markdown table, for the README."""
    rows = ["| head | ψ(θ) | unit W | unit x | s | m | boundary | width | for | against |", "|" + "---|" * 10]
    for name, r in FAMILY.items():
        if name == "sphereface":
            continue
        title = "a-softmax = sphereface" if name == "a-softmax" else name
        m = (
            "–"
            if r.margin.m is None
            else ", ".join(f"{v:g}" for v in ([r.margin.m] if isinstance(r.margin.m, float) else r.margin.m))
        )
        scale = (
            "|x|"
            if not r.unit_features and r.unit_weight
            else "–"
            if not r.unit_features
            else f"{r.scale:g}" + (", learned" if r.learn_scale else "")
        )
        sides = ("yes" if r.unit_weight else "no", "yes" if r.unit_features else "no")
        blend = f", λ: {r.schedule().extra_repr()}" if r.schedule else ""
        cells = (
            f"`{title}`",
            r.margin.formula + (", bias" if r.bias else ""),
            *sides,
            scale,
            m + blend,
            r.boundary,
            r.width,
            r.good,
            r.bad,
        )
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)
