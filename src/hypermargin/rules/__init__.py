"""The rules ρ, which say what a rival counts as, one file per paper.

`names()` lists them, `get(name)` finds one, `@register(name)` adds yours.
"""

from hypermargin.rules._aggregates import LOG_SUM_EXP, SUM, SUM_OF_SOFTPLUS, Aggregate
from hypermargin.rules._base import STATELESS, Rule, RuleAtRows, RuleState, get, names, register
from hypermargin.rules.arcnegface import ArcNegFace
from hypermargin.rules.circle import Circle
from hypermargin.rules.curricularface import CurricularFace
from hypermargin.rules.double_margin import DoubleMargin
from hypermargin.rules.filter import Filter
from hypermargin.rules.inter_topk import InterTopK
from hypermargin.rules.li_arcface import LiArcFace
from hypermargin.rules.mv_softmax import MVSoftmax
from hypermargin.rules.npcface import NPCFace
from hypermargin.rules.p2sgrad import P2SGrad
from hypermargin.rules.sface import SFace
from hypermargin.rules.softmax import SOFTMAX, Softmax
from hypermargin.rules.sphereface2 import SphereFace2
from hypermargin.rules.sphereface_r import SphereFaceR
from hypermargin.rules.uniface import UniFace

__all__ = [
    "LOG_SUM_EXP",
    "SOFTMAX",
    "STATELESS",
    "SUM",
    "SUM_OF_SOFTPLUS",
    "Aggregate",
    "ArcNegFace",
    "Circle",
    "CurricularFace",
    "DoubleMargin",
    "Filter",
    "InterTopK",
    "LiArcFace",
    "MVSoftmax",
    "NPCFace",
    "P2SGrad",
    "Rule",
    "RuleAtRows",
    "RuleState",
    "SFace",
    "Softmax",
    "SphereFace2",
    "SphereFaceR",
    "UniFace",
    "get",
    "names",
    "register",
]
