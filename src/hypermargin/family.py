"""The named heads: made by `create_head`, and as Markdown tables. What they are is in recipes.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Unpack

from torch import Tensor

from hypermargin import checks
from hypermargin.centers import Centers
from hypermargin.counts import checked_counts
from hypermargin.fields import number_fields
from hypermargin.head import MarginHead
from hypermargin.margins import Margin
from hypermargin.recipes import FAMILY, VERSIONS, Recipe, named
from hypermargin.rules import SOFTMAX
from hypermargin.settings import STATE, HeadOverrides, HeadSettings, UnknownSettingError, setting_names
from hypermargin.views import View


def list_heads() -> list[str]:
    """Return the names that `create_head` knows; sphereface and a-softmax are the same head."""
    return list(FAMILY)


def create_head(name: str, dim: int, classes: int, **overrides: Unpack[HeadOverrides]) -> MarginHead:
    """Return a head of the family by name, with its paper's defaults, λ schedule included.

    `hypermargin train` takes the s and m that are advised for so many classes instead; scale="advised" does for s.
    The one exception: ArcFace continues smoothly past π (beyond="smooth"), where its paper says nothing.

    `overrides` are fields of its margin (m, or m1, m2, m3; lam, beyond), of its rule (t, …), of its centers (pool,
    gamma, together; `centers` is their number) and arguments of `MarginHead` (scale, bias, learn_scale, backend,
    …); a field that margin and rule both have is set in both.
    A given `lam` is constant, so it replaces the λ schedule; lam=0 is the bare margin. Heads that go by how
    frequent a class is need `counts`, the samples of each class in training; logit-adjustment takes `tau` too.
    sphereface-r has a `version`, 0, 1 or 2.

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
        raise ValueError(f"unknown head {name!r}.{checks.near(name, FAMILY)} The family has {known}.")
    name, given = named(name, overrides)
    recipe = FAMILY[name]
    own_parts = {"margin": recipe.margin, "rule": recipe.rule, "view": recipe.view}
    parts: dict[str, Any] = {key: given.pop(key, own) for key, own in own_parts.items()}
    checks.margin_object(parts["margin"])
    checks.rule_object(parts["rule"])
    if "centers" in given and not isinstance(given["centers"], Centers):
        given["centers"] = dataclasses.replace(recipe.centers, count=given["centers"])
    parts["centers"] = given.pop("centers", recipe.centers)
    checks.instance("view", parts["view"], View, "hypermargin.views.VectorScaling()")
    counts = given.pop("counts", None)
    tau = None if hasattr(parts["view"], "tau") else given.pop("tau", None)
    fields = {key: [f.name for f in dataclasses.fields(part)] for key, part in parts.items()}
    fields["centers"].remove("count")  # which is `centers`
    if given.get("pool", parts["centers"].pool) != "soft":
        fields["centers"].remove("gamma")  # it would be lost; often s is meant
    of_parts = list(dict.fromkeys(name for names in fields.values() for name in names))
    of_head = ["margin", *setting_names()]
    for key, value in given.items():
        if key not in of_parts and key not in of_head:
            raise UnknownSettingError(name, key, value, [*of_parts, *of_head])
    changes = {key: value for key, value in given.items() if key in of_head and key not in STATE}
    if isinstance(given.get("scale"), str):  # a rule sets s, so the recipe must not learn it as well
        changes = {"learn_scale": False, "scale_floor": None} | changes
    for key, part in parts.items():
        changes[key] = dataclasses.replace(part, **{k: v for k, v in given.items() if k in fields[key]})
    state: dict[str, Any] = _from_counts(name, counts, tau, classes, changes["margin"], given)
    if recipe.by_classes and changes.get("learn_margin", recipe.learn_margin):
        state["class_margins"] = recipe.by_classes(changes["margin"], classes)
    state |= {key: given[key] for key in STATE if key in given}
    if recipe.schedule and not {"lam", "margin"} & overrides.keys():
        state.setdefault("schedule", recipe.schedule())
    return dataclasses.replace(recipe.settings(dim, classes), **changes), state


def _from_counts(
    name: str, counts: object, tau: float | None, classes: int, margin: Margin, given: dict[str, Any]
) -> dict[str, Tensor]:
    """Return the arguments of a head that depend on how frequent its classes are."""
    recipe = FAMILY[name]
    if tau is not None and name != "logit-adjustment":
        raise TypeError(f"{name} has no tau; logit-adjustment has.")
    if recipe.by_counts is None:
        if counts is not None:
            hint = "class_margins=margins_from_counts(counts)" if recipe.margin.m is not None else "class_offsets"
            raise TypeError(f"{name} does not go by counts. Give {hint}, or take ldam or logit-adjustment.")
        return {}
    if counts is None:
        if {"class_margins", "class_offsets", "class_counts"} & given.keys():
            return {}  # they say the same
        raise TypeError(f"{name} needs counts=, the number of training samples of each of the {classes} classes.")
    found = recipe.by_counts(checked_counts(counts, classes), margin, 1.0 if tau is None else tau)
    if twice := found.keys() & given.keys():
        raise TypeError(f"{name} makes {', '.join(twice)} of its counts; give one of the two.")
    return found


def as_markdown() -> str:
    """Return the classic family as a Markdown table, for the README."""
    rows = ["| head | ψ(θ) | unit W | unit x | s | m | boundary | width | for | against |", "|" + "---|" * 10]
    for name, r in FAMILY.items():
        if name == "sphereface" or r.group != "classic":
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


def successors_as_markdown() -> str:
    """Return what came after it as a Markdown table, by what of the loss it changes."""
    rows = ["| head | ψ(θ) | rivals, centers | s | numbers | for | against | paper |", "|" + "---|" * 8]
    groups = dict.fromkeys(r.group for r in FAMILY.values() if r.group != "classic")
    for group in groups:
        rows.append(f"| **{group}** |" + " |" * 7)
        for name, r in FAMILY.items():
            if r.group != group or name in VERSIONS:
                continue
            rivals = ", ".join(filter(None, ("" if r.rule is SOFTMAX else r.rule.formula, r.view.formula)))
            rivals += _centers_in_words(r.centers)
            numbers = {
                f.name: getattr(part, f.name)
                for part in (r.margin, r.rule, r.view)
                for f in number_fields(type(part))
            }
            cells = (
                _title(name, r), r.margin.formula + (", bias" if r.bias else ""), rivals or "–",
                f"{r.scale:g}" if r.unit_features else "–",
                ", ".join(f"{key} {value:g}" for key, value in numbers.items()) or "–",
                r.good, r.bad, r.paper,
            )  # fmt: skip
            rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def _title(name: str, recipe: Recipe) -> str:
    return recipe.version or f"`{name}`"


def _centers_in_words(centers: Centers) -> str:
    """Return how many centers a class has, and what the class is because of them; nothing if it has one."""
    pools = {"sum": "", "max": ", the nearest counts", "soft": f", weighed by softmax(c/{centers.gamma:g})"}
    return f"{centers.count} per class{pools[centers.pool]}" if centers.count > 1 else ""


def groups_as_markdown() -> str:
    """Return the names of what came after it, by what of the loss they change, for the README."""
    groups: dict[str, list[str]] = {}
    for name, r in FAMILY.items():
        if r.group != "classic" and name not in VERSIONS:
            groups.setdefault(r.group, []).append(_title(name, r))
    rows = [f"| {group} | {', '.join(names)} |" for group, names in groups.items()]
    return "\n".join(["| what is changed | heads |", "|---|---|", *rows])
