"""The margins ψ, one file per paper. `names()` lists them, `get(name)` finds one, `@register(name)` adds yours."""

from hypermargin.fields import number_fields
from hypermargin.margins._base import Margin, MarginAtRows, RowFacts, RowMargin, g, get, names, register
from hypermargin.margins.adaface import AdaFace
from hypermargin.margins.adaptiveface import AdaptiveFace
from hypermargin.margins.arcface import ArcFace
from hypermargin.margins.circle import Circle
from hypermargin.margins.combined import Combined
from hypermargin.margins.cosface import CosFace
from hypermargin.margins.dyn_arcface import DynArcFace
from hypermargin.margins.elasticface import ElasticArcFace, ElasticCosFace
from hypermargin.margins.expface import ExpFace
from hypermargin.margins.kappaface import KappaFace
from hypermargin.margins.li_arcface import LiArcFace
from hypermargin.margins.magface import MagFace
from hypermargin.margins.nomargin import NoMargin
from hypermargin.margins.npcface import NPCFace
from hypermargin.margins.p2sgrad import P2SGrad
from hypermargin.margins.piecewise import Piecewise
from hypermargin.margins.sface import SFace
from hypermargin.margins.sphereface import SphereFace
from hypermargin.margins.sphereface2 import SphereFace2
from hypermargin.margins.x2softmax import X2Softmax

__all__ = [
    "AdaFace",
    "AdaptiveFace",
    "ArcFace",
    "Circle",
    "Combined",
    "CosFace",
    "DynArcFace",
    "ElasticArcFace",
    "ElasticCosFace",
    "ExpFace",
    "KappaFace",
    "LiArcFace",
    "MagFace",
    "Margin",
    "MarginAtRows",
    "NPCFace",
    "NoMargin",
    "P2SGrad",
    "Piecewise",
    "RowFacts",
    "RowMargin",
    "SFace",
    "SphereFace",
    "SphereFace2",
    "X2Softmax",
    "g",
    "get",
    "names",
    "number_fields",
    "register",
]
