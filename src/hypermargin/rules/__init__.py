"""The rules ρ, which say what a rival counts as, one file per paper.

`names()` lists them, `get(name)` finds one, `@register(name)` adds yours.
"""

from hypermargin.rules._base import LOG_SUM_EXP, SUM_OF_SOFTPLUS, Aggregate, Rule, RuleAtRows, get, names, register
from hypermargin.rules.mv_softmax import MVSoftmax
from hypermargin.rules.softmax import SOFTMAX, Softmax
from hypermargin.rules.sphereface2 import SphereFace2

__all__ = [
    "LOG_SUM_EXP",
    "SOFTMAX",
    "SUM_OF_SOFTPLUS",
    "Aggregate",
    "MVSoftmax",
    "Rule",
    "RuleAtRows",
    "Softmax",
    "SphereFace2",
    "get",
    "names",
    "register",
]
