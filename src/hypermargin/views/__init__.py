"""What the loss takes for the class rows, one file per paper. `names()` lists them, `@register` adds yours."""

from hypermargin.views._base import AS_THEY_ARE, View, Viewed, ViewState, get, names, register
from hypermargin.views.prototypes import VariationalPrototypes
from hypermargin.views.vector_scaling import VectorScaling

__all__ = [
    "AS_THEY_ARE",
    "VariationalPrototypes",
    "VectorScaling",
    "View",
    "ViewState",
    "Viewed",
    "get",
    "names",
    "register",
]
