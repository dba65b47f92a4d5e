"""Pictures, in scikit-learn's manner: a Display is computed once and drawn on any axes.

RocDisplay.of(found).plot(ax)          on axes of yours; without `ax` on new ones, then in `.ax_` and `.figure_`
RocDisplay.of(found).save("roc.png")   as a file: png, svg or pdf; dark=True for a dark ground
make("psi", margins=["arcface"])       a picture of the catalogue, by the name that `hypermargin plot` knows
"""

from hypermargin.plots import caps, gradient, ladder, learned, pipeline, softmax  # noqa: F401  # for the catalogue
from hypermargin.plots.angles import AnglesDisplay, AnglesOverTraining
from hypermargin.plots.animation import animate
from hypermargin.plots.bands import ThetaPlaneDisplay, WidthDisplay
from hypermargin.plots.boundary import BoundaryDisplay
from hypermargin.plots.catalogue import make, pictures
from hypermargin.plots.features import FeaturesDisplay
from hypermargin.plots.monotone import MonotoneDisplay
from hypermargin.plots.norms import NormsDisplay
from hypermargin.plots.plane import PlaneDisplay
from hypermargin.plots.psi import PsiDisplay
from hypermargin.plots.regions import RegionsDisplay
from hypermargin.plots.style import Display, Panels
from hypermargin.plots.verification import DetDisplay, RocDisplay, ScoresDisplay
from hypermargin.plots.weights import WeightsDisplay

__all__ = [
    "AnglesDisplay",
    "AnglesOverTraining",
    "BoundaryDisplay",
    "DetDisplay",
    "Display",
    "FeaturesDisplay",
    "MonotoneDisplay",
    "NormsDisplay",
    "Panels",
    "PlaneDisplay",
    "PsiDisplay",
    "RegionsDisplay",
    "RocDisplay",
    "ScoresDisplay",
    "ThetaPlaneDisplay",
    "WeightsDisplay",
    "WidthDisplay",
    "animate",
    "make",
    "pictures",
]
