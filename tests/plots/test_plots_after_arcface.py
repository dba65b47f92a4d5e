"""Margins after ArcFace in the pictures."""

import pytest

from hypermargin.margins import AdaFace, CosFace, KappaFace, SphereFace, X2Softmax
from hypermargin.plots.catalogue import label, read_margin


def test_margins_by_the_names_of_heads():
    assert read_margin("ldam") == CosFace(0.5)  # the head's own number, not the margin's
    assert read_margin("ldam:m=0.2") == CosFace(0.2)
    assert read_margin("adaface:h=0.5") == AdaFace(h=0.5)
    assert label(X2Softmax()) == "X2-Softmax a = -0.9, h = 0, k = 0.65"
    for head in ("mv-arcface", "vpl"):
        with pytest.raises(ValueError, match="its ψ is arcface's"):
            read_margin(head)
    assert read_margin("sphereface-r:version=0") == SphereFace(1.5)
    assert read_margin("sphereface-r:version=1,m=2") == SphereFace(2, beyond="flat")
    with pytest.raises(ValueError, match="its ψ is none's"):
        read_margin("sphereface-r")
    assert label(KappaFace()) == "KappaFace m = 0.8, gamma = 0.7, temperature = 0.4"
