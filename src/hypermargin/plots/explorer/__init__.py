"""The explorer: one page, without network or libraries, in which margins are understood by moving sliders.

    write("explorer.html")           a page of its own
    css, body, script = parts()      the same explorer inside another page, all of it below `.hm-explorer`

The page computes by itself; its numbers are those of `margins`, `functional`, `advise` and `hinge`, and tests hold
them together. Heads and colours come from the library, words from words.json.

    maths.js     the formulas                    draw.js    SVG from numbers
    panels.js    what follows from the state     ladder.js  from the hinge to AM-Softmax, a step at a time
    npz.js       arrays from a file              opened.js    the file, or the page of a run, that the reader gives
    measured.js  where the samples stand         samples.js   what a setting makes of them
    shown.js     the panel of these samples      sphere.js    points that can be turned
    explorer.js  the state and its controls
"""

from __future__ import annotations

import json
import os
from importlib.resources import files
from pathlib import Path
from typing import Any

from hypermargin import checks
from hypermargin.files import write_text
from hypermargin.margins import (
    AdaFace,
    ArcFace,
    Combined,
    CosFace,
    ExpFace,
    MagFace,
    Margin,
    NoMargin,
    SphereFace,
    X2Softmax,
)
from hypermargin.plots.html import as_json, colours, document
from hypermargin.recipes import FAMILY
from hypermargin.rules import SOFTMAX
from hypermargin.schedule import LambdaAnnealing

__all__ = [
    "TAGS",
    "asset",
    "form_of",
    "heads",
    "numbers_of",
    "page",
    "parts",
    "words",
    "write",
]
TAGS = {"en": "en", "zh": "zh-Hans"}  # what documents say of their language
SCRIPTS = (
    "maths.js", "draw.js", "sphere.js", "panels.js", "ladder.js",
    "npz.js", "measured.js", "opened.js", "samples.js", "shown.js", "explorer.js",
)  # fmt: skip
STYLES = "base.css", "explorer.css", "samples.css"

# Heads whose ψ has a form of its own, at the numbers that maths.js has.
FORMS_AT = (X2Softmax(), "x2"), (ExpFace(), "expface")
# Heads whose margin follows the length of the feature: at its shortest, mean or longest, (m2, m3).
AT_LENGTHS = (
    ("adaface", "ẑ = −1", AdaFace().m, 0.0),
    ("adaface", "ẑ = 0", 0.0, AdaFace().m),
    ("magface", "|x| ≤ l_a", MagFace().l_m, 0.0),
    ("magface", "|x| ≥ u_a", MagFace().u_m, 0.0),
)


def page(lang: str = "en") -> str:
    """Return the whole HTML document; `lang` is the language it opens in, "en" or "zh"."""
    css, body, script = parts(lang)
    title = words()[lang]["title"]
    return document(title, f"body {{ margin: 0; }}\n{css}", body, script, lang=TAGS[lang])


def parts(lang: str = "en") -> tuple[str, str, str]:
    """Return CSS, body and script, which runs once, after the body, on the first `.hm-explorer` of the document."""
    checks.one_of("lang", lang, list(words()))
    data = as_json({"lang": lang, "words": words(), "heads": heads()})
    code = "\n".join(asset(name) for name in SCRIPTS)
    script = f'((root, data) => {{\n"use strict";\n{code}\n}})(document.querySelector(".hm-explorer"), {data});'
    css = "\n".join((colours(".hm-explorer"), *map(asset, STYLES)))
    return css, asset("page.html"), script


def write(path: str | os.PathLike[str], lang: str = "en") -> None:
    """Write `page` as a file."""
    write_text(Path(path), page(lang))


def words() -> dict[str, dict[str, str]]:
    """Return every word on the page, by language and key."""
    found: dict[str, dict[str, str]] = json.loads(asset("words.json"))
    return found


def heads() -> list[dict[str, Any]]:
    """Return the family as settings of sliders: m1, m2, m3, λ where its schedule ends, s, and unit sides.

    A head whose ψ is not g(m1·θ + m2) − m3, or whose ψ does not tell all of it, has no such setting.
    """
    found = []
    for name, recipe in FAMILY.items():
        form = form_of(recipe.margin)
        numbers = (1.0, 0.0, 0.0) if form else numbers_of(recipe.margin)
        if numbers is None or recipe.rule != SOFTMAX or recipe.centers.count > 1 or recipe.by_counts:
            continue
        if not recipe.view.is_identity:
            continue
        schedule = recipe.schedule() if recipe.schedule else None
        found.append(
            {
                "name": name,
                "of": name,
                "form": form,
                **dict(zip(("m1", "m2", "m3"), numbers, strict=True)),
                "lambda": schedule.floor if isinstance(schedule, LambdaAnnealing) else 0.0,
                "s": recipe.scale,
                "unit_features": recipe.unit_features,
                "unit_weight": recipe.unit_weight,
                "paper": recipe.paper,
            }
        )
    return found + [_at_length(*each) for each in AT_LENGTHS]


def _at_length(name: str, what: str, m2: float, m3: float) -> dict[str, Any]:
    """Return a head whose margin follows the length of the feature, at one length."""
    recipe = FAMILY[name]
    return {
        "name": f"{name}: {what}", "of": name, "form": "", "m1": 1.0, "m2": m2, "m3": m3, "lambda": 0.0,
        "s": recipe.scale, "unit_features": True, "unit_weight": True, "paper": recipe.paper,
    }  # fmt: skip


def form_of(margin: Margin) -> str:
    """Return the form of ψ in maths.js that a margin has; none if the sliders say it, or nothing does."""
    return next((form for known, form in FORMS_AT if margin == known), "")


def numbers_of(margin: Margin) -> tuple[float, float, float] | None:
    """Return (m1, m2, m3) of a margin g(m1·θ + m2) − m3; None for one that is not of this form."""
    if type(margin) not in (NoMargin, SphereFace, ArcFace, CosFace, Combined):
        return None  # a subclass adds something
    match margin:
        case NoMargin():
            return 1.0, 0.0, 0.0
        case SphereFace(m=m, beyond="smooth"):
            return m, 0.0, 0.0
        case ArcFace(m=m, beyond="smooth"):
            return 1.0, m, 0.0
        case CosFace(m=m):
            return 1.0, 0.0, m
        case Combined(m1=m1, m2=m2, m3=m3, beyond="smooth"):
            return m1, m2, m3
    return None


def asset(name: str) -> str:
    """Return the text of a file of the page; base.css, draw.js and sphere.js serve the page of a run too."""
    return files(__name__).joinpath(name).read_text(encoding="utf-8")
