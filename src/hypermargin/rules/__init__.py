"""The rules ρ, which say what a rival counts as, one file per paper.

`names()` lists them, `get(name)` finds one, `@register(name)` adds yours.
"""

from hypermargin.rules._aggregates import LOG_SUM_EXP, SUM, SUM_OF_SOFTPLUS, Aggregate
from hypermargin.rules._base import STATELESS, Rule, RuleAtRows, RuleState, get, names, register
from hypermargin.rules.curricularface import CurricularFace
from hypermargin.rules.mv_softmax import MVSoftmax
from hypermargin.rules.softmax import SOFTMAX, Softmax
from hypermargin.rules.sphereface2 import SphereFace2

__all__ = [
    "LOG_SUM_EXP",
    "SOFTMAX",
    "STATELESS",
    "SUM",
    "SUM_OF_SOFTPLUS",
    "Aggregate",
    "CurricularFace",
    "MVSoftmax",
    "Rule",
    "RuleAtRows",
    "RuleState",
    "Softmax",
    "SphereFace2",
    "get",
    "names",
    "register",
]
