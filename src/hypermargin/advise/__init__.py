"""Advice on s and m: bounds, band widths, and a rule made of them. And on how many GPUs.

    bounds   what the number of classes and the dimension allow, whatever is trained
    bands    what a margin does between two classes, and which margins do the same
    rule     `recommend`: a scale and a margin
    usual    the margins that people use, by name
    reasons  the sentences that say why; own, those about a loss's own numbers
    machines `step_cost`: time and memory of a step with the classes on several GPUs

Angles are radians. Everything here is a few lines of arithmetic on plain numbers.
"""

from hypermargin.advise.bands import EquivalentMargins, band_width, equivalent_margin, guaranteed_margin
from hypermargin.advise.bounds import largest_margin, loss_floor
from hypermargin.advise.machines import INFINIBAND, NVLINK, Link, StepCost, step_cost
from hypermargin.advise.rule import Recommendation, recommend
from hypermargin.scales import adacos_scale, largest_angle, smallest_scale, typical_angle

__all__ = [
    "INFINIBAND",
    "NVLINK",
    "EquivalentMargins",
    "Link",
    "Recommendation",
    "StepCost",
    "adacos_scale",
    "band_width",
    "equivalent_margin",
    "guaranteed_margin",
    "largest_angle",
    "largest_margin",
    "loss_floor",
    "recommend",
    "smallest_scale",
    "step_cost",
    "typical_angle",
]
