"""ψ, one file a paper. `names()` lists them, `get(name)` finds one, `@register(name)` adds yours."""

from hypermargin.margins._base import Margin, g, get, names, number_fields, register
from hypermargin.margins.arcface import ArcFace
from hypermargin.margins.combined import Combined
from hypermargin.margins.cosface import CosFace
from hypermargin.margins.nomargin import NoMargin
from hypermargin.margins.piecewise import Piecewise
from hypermargin.margins.sphereface import SphereFace

__all__ = [
    "ArcFace",
    "Combined",
    "CosFace",
    "Margin",
    "NoMargin",
    "Piecewise",
    "SphereFace",
    "g",
    "get",
    "names",
    "number_fields",
    "register",
]
