"""Pictures, in scikit-learn's manner: a Display is computed once and drawn on any axes.

RocDisplay.of(found).plot(ax)          on axes of yours; without `ax` on new ones, then in `.ax_` and `.figure_`
RocDisplay.of(found).save("roc.png")   as a file: png, svg or pdf; dark=True for a dark ground
make("psi", margins=["arcface"])       a picture of the catalogue, by the name that `hypermargin plot` knows
"""

from hypermargin.plots.catalogue import make, pictures
from hypermargin.plots.norms import NormsDisplay
from hypermargin.plots.style import Display, Panels
from hypermargin.plots.verification import DetDisplay, RocDisplay, ScoresDisplay

__all__ = ["DetDisplay", "Display", "NormsDisplay", "Panels", "RocDisplay", "ScoresDisplay", "make", "pictures"]
