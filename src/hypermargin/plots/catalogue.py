"""Every picture by its name: what `hypermargin plot NAME` draws and the gallery shows.

A picture is a function that returns a Display. Its parameters, all with defaults, become the command's flags;
`Annotated[float, "words"]` explains one.

    @picture("width", "how wide the band between two classes is, by their angle")
    def width(margins: Annotated[list[str], MARGINS] = ["arcface"]) -> Display: ...
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hypermargin import checks, margins
from hypermargin.common.text import parse_call
from hypermargin.margins import Margin
from hypermargin.plots.style import Display
from hypermargin.recipes import FAMILY, named
from hypermargin.rules import SOFTMAX

MARGINS = "a margin or head, like arcface or cosface:m=0.2 or sphereface:m=4,lam=5; repeatable"
USUAL: list[str] = ["none", "sphereface:m=4", "cosface", "arcface"]


@dataclass(frozen=True)
class Picture:
    """A name, one line about it, and the function that makes it. `learned`: it shows a run."""

    name: str
    about: str
    make: Callable[..., Display]
    learned: bool = False


_PICTURES: dict[str, Picture] = {}
Make = TypeVar("Make", bound=Callable[..., Display])


def picture(name: str, about: str, *, learned: bool = False) -> Callable[[Make], Make]:
    """Make a picture known under `name`, as a decorator of functions."""

    def enter(make: Make) -> Make:
        for parameter in inspect.signature(make).parameters.values():
            if parameter.default is parameter.empty:
                raise TypeError(f"picture {name!r}: parameter {parameter.name} needs a default.")
        _PICTURES[name] = Picture(name, about, make, learned)
        return make

    return enter


def pictures() -> dict[str, Picture]:
    """Return all pictures by name; those of runs come last."""
    return {each.name: each for each in sorted(_PICTURES.values(), key=lambda each: each.learned)}


def make(name: str, **options: Any) -> Display:
    """Make the picture of this name: `make("psi", margins=["arcface"]).save("psi.svg")`."""
    if name not in _PICTURES:
        raise ValueError(f"there is no picture {name!r}.{checks.near(name, list(_PICTURES))}")
    return _PICTURES[name].make(**options)


def read_margin(text: str) -> Margin:
    """Read `cosface:m=0.2` as CosFace(m=0.2). A name is that of a margin or of a head, whose margin is meant."""
    name, numbers = named(*parse_call(text, "a margin"))
    kinds: dict[str, Any] = {head: recipe.margin for head, recipe in FAMILY.items()}
    kinds |= {margin: margins.get(margin)() for margin in margins.names()}
    if name not in kinds:
        raise ValueError(f"there is no margin or head {name!r}.{checks.near(name, list(kinds))}")
    recipe = FAMILY.get(name)
    if name not in margins.names() and recipe is not None and (recipe.rule != SOFTMAX or recipe.centers.count > 1):
        own = recipe.margin.name
        raise ValueError(f"{name} changes what its rivals count as, which no picture of ψ shows; its ψ is {own}'s.")
    if name not in margins.names() and recipe is not None and not recipe.view.is_identity:
        own = recipe.margin.name
        raise ValueError(f"{name} changes the rows of its classes, which no picture of ψ shows; its ψ is {own}'s.")
    known = [field.name for field in dataclasses.fields(kinds[name])]
    for key in numbers:
        if key not in known:
            takes = ", ".join(known) or "nothing"
            raise ValueError(f"{name} has no {key!r}.{checks.near(key, known)} It takes {takes}.")
    found: Margin = dataclasses.replace(kinds[name], **numbers)
    return found


def read_margins(texts: Sequence[str]) -> list[Margin]:
    """Read each of them; an error if there is none."""
    if not texts:
        raise ValueError("margins must name at least one margin; got none.")
    return [read_margin(text) for text in texts]


NAMES = {
    "none": "no margin", "sphereface": "SphereFace", "cosface": "CosFace", "arcface": "ArcFace",
    "adaface": "AdaFace", "magface": "MagFace", "elasticface-arc": "ElasticFace-Arc",
    "elasticface-cos": "ElasticFace-Cos", "expface": "ExpFace", "sphereface2": "SphereFace2",
    "x2-softmax": "X2-Softmax", "kappaface": "KappaFace", "dyn-arcface": "Dyn-ArcFace",
    "adaptiveface": "AdaptiveFace",
}  # fmt: skip


def label(margin: Margin) -> str:
    """Name a margin: ArcFace m = 0.5; SphereFace m = 4, λ = 5."""
    name = NAMES.get(margin.name, margin.name.capitalize())
    fields = {f.name: getattr(margin, f.name) for f in margins.number_fields(type(margin))}
    if not fields:
        return name
    shown = [f"{'λ' if k == 'lam' else k} = {v:g}" for k, v in fields.items() if not (k == "lam" and v == 0)]
    beyond = getattr(margin, "beyond", "smooth")
    return f"{name} {', '.join(shown)}" + ("" if beyond == "smooth" else f", {beyond}")
