"""Criteria that are called in other ways, end the process, keep state, or do more with the cross-entropy."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from hypermargin.diagnose import NotUnderstood, diagnose
from hypermargin.diagnose.outer import Outer, find_outer
from hypermargin.margins import CosFace
from tests.diagnose import published as p
from tests.diagnose import slips


class Asks(p.Rows):
    """CosFace that is called in another way."""

    def loss(self, x, y):
        return F.cross_entropy(self.s * p.put(self.cosines(x), y, p.own(self.cosines(x), y) - 0.2), y)


class LabelsFirst(Asks):
    def forward(self, labels, features):
        return self.loss(features, labels)


class OneHotFirst(Asks):
    def forward(self, y_true, y_pred):
        return self.loss(y_pred, y_true.argmax(1))


class Int32(Asks):
    def forward(self, x, y):
        if y.dtype != torch.int32:
            raise TypeError("labels must be int32")
        return self.loss(x, y.long())


class Lengths(Asks):
    """The form of AdaFace's head: unit features, their lengths, labels."""

    def forward(self, embeddings, norms, label):
        assert norms.shape == (len(embeddings), 1)
        assert (embeddings.norm(dim=1) < 1.01).all()
        return self.loss(embeddings, label)


@pytest.mark.parametrize(
    ("kind", "called"),
    [
        (LabelsFirst, "labels first"),
        (OneHotFirst, "labels one-hot and first"),
        (Int32, "labels as int32"),
        (Lengths, "criterion(unit features, lengths, labels)"),
    ],
)
def test_other_orders_and_labels_are_found(kind, called):
    found = diagnose(kind())
    assert called in found.called
    assert found.margin == CosFace(0.2)
    assert found.proof.holds
    assert not found.codes() & {"not-measured", "not-the-same"}


def test_one_that_ends_the_process_or_prints_is_no_trouble_in_a_session(capsys):
    class Exits(p.Rows):
        def forward(self, x, y):
            raise SystemExit(3)

    class Prints(p.Rows):
        def forward(self, x, y):
            print("hello")
            return F.cross_entropy(self.s * self.cosines(x), y)

    with pytest.raises(NotUnderstood, match=r"it asks the process to exit \(3\)") as caught:
        diagnose(Exits())
    assert str(caught.value).count("asks the process to exit") == 1  # not once per kind of label
    assert diagnose(Prints()).scale == pytest.approx(64.0)
    assert capsys.readouterr().out == ""


def test_rows_that_cannot_be_class_rows_are_named():
    class OneClass(p.Rows):
        def __init__(self):
            super().__init__(classes=1)

    with pytest.raises(NotUnderstood, match=r"it has no matrix of class rows, .* but weight \(1, 16\)"):
        diagnose(OneClass())


def test_the_state_of_an_object_that_is_no_module_is_put_back():
    class Counts:
        def __init__(self):
            self.steps = 0

        def __call__(self, cosines, labels):
            self.steps += 1
            psi = p.own(cosines, labels) - min(0.35, 0.01 * self.steps)
            return F.cross_entropy(30 * p.put(cosines, labels, psi), labels)

    counts = Counts()
    assert diagnose(counts).margin == CosFace(0.01)
    assert counts.steps == 0


def test_a_batch_whose_rows_know_each_other_is_said():
    """AdaFace without a running mean: alike rows have no deviation, so what is measured of them is CosFace."""
    found = diagnose(p.AdaFace(momentum=1.0))
    assert found.margin == CosFace(0.4)
    assert {"depends-on-batch", "not-the-same"} <= found.codes()


def test_margins_that_follow_the_length_are_named():
    assert diagnose(p.AdaFace()).kind == "AdaFace, m = 0.4, s = 64"
    assert 'create_head("adaface", dim, classes, m=0.4, scale=64)' in diagnose(p.AdaFace()).better
    found = diagnose(p.MagFace())
    assert found.kind == "MagFace, m = 0.45 at |x| ≤ 10 to 0.8 at |x| ≥ 110, beyond = easy, s = 64"
    assert "l_m=0.45, u_m=0.8, l_a=10, u_a=110" in found.better


def test_what_psi_is_at_first_is_said_of_one_that_is_not_known():
    """FaceX-Zoo's: past π − m the target counts as its cosine."""

    def logits(cosines, labels):
        c = p.own(cosines, labels)
        psi = torch.where(c > math.cos(math.pi - 0.5), p.arcface_psi(c, 0.5, "none"), c)
        return 32 * p.put(cosines, labels, psi)

    found = diagnose(logits)
    assert found.kind == "ArcFace, m = 0.5 up to 151°, then another ψ, s = 32"
    assert found.level("jumps") == "doubtful"


@pytest.mark.parametrize(
    ("kind", "value", "by"),
    [
        ("weighted", 10.0, "times 10"),
        ("weighted", 1 / 7, "divided by 7"),
        ("focal", 2.0, "γ = 2"),
        ("smoothed", 0.1, "0.1"),
    ],
)
def test_what_becomes_of_a_cross_entropy_is_undone(kind, value, by):
    g = np.linspace(-8, 25, 60)
    outer = Outer(kind, value, 7)
    losses = outer(g)
    rises = np.flatnonzero(np.diff(losses) > 0)[0]
    np.testing.assert_allclose(outer.inverse(losses)[rises + 1 :], g[rises + 1 :], atol=1e-6)
    step = 1e-6
    for at in (-3.0, 0.0, 2.0):
        slope = (outer(np.array([at + step])) - outer(np.array([at - step])))[0] / (2 * step)
        assert outer.slope(at) == pytest.approx(slope, rel=1e-6)
    cosines = np.linspace(-0.9, 0.9, 37)
    found = find_outer(cosines, outer(30 * cosines + 2.0), 7)
    assert (found.kind, found.value) == (kind, pytest.approx(value, rel=1e-6))
    assert by in found.said()
    assert find_outer(cosines, Outer()(30 * cosines + 2.0), 7).kind == "plain"


@pytest.mark.parametrize(
    ("loss", "kind"),
    [
        (slips.circle, "circle loss, m = 0.25, γ = 256"),
        (slips.target_without_scale, "ψ = 0.03333·cos θ, s = 30"),
        (slips.Focal(), "CosFace, m = 0.35, s = 30, in a focal loss, γ = 2"),
        (slips.Smoothed(), "CosFace, m = 0.35, s = 30, in a cross-entropy with labels smoothed by 0.1"),
    ],
)
def test_the_name_says_all_of_it(loss, kind):
    assert diagnose(loss).kind == kind
