"""How somebody's criterion is called and treated: forms, copies, chance, state, and what goes wrong in it."""

import copy
import json
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hypermargin.diagnose import NotUnderstood, diagnose, reaches
from hypermargin.diagnose.forms import build, find_criterion
from hypermargin.diagnose.stored import read, written
from hypermargin.functional import margin_softmax
from hypermargin.margins import ArcFace, CosFace
from hypermargin.testing import diagnose as from_testing
from tests.diagnose import published as p


class Softmax(nn.Module):
    """Wants what a case says, and is CosFace."""

    def __init__(self, returns="loss", d=p.DIM, C=p.CLASSES, transposed=False, sides=True):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(d, C) if transposed else torch.randn(C, d))
        self.transposed, self.returns, self.sides = transposed, returns, sides

    def forward(self, x, y):
        W = self.weight.T if self.transposed else self.weight
        z = 16.0 * (F.linear(F.normalize(x), F.normalize(W)) - 0.2 * F.one_hot(y, len(W)))
        losses = F.cross_entropy(z, y, reduction="none")
        return {
            "loss": losses.mean(),
            "sum": losses.sum(),
            "rows": losses,
            "logits": z,
            "dict": {"z": z, "loss": losses.mean()},
            "pair": (z, losses.mean()),
            "probabilities": z.softmax(1),
            "list": [losses.mean(), 3],
            "object": WithLoss(losses.mean()),
            "nested": {"losses": {"margin": losses.mean()}, "note": "fine"},
        }[self.returns]


class WithLoss:
    """An object that is no tuple, as frameworks return it."""

    def __init__(self, loss):
        self.loss = loss


RETURNS = ("object", "nested", "loss", "sum", "rows", "logits", "dict", "pair", "probabilities", "list")


@pytest.mark.parametrize("returns", RETURNS)
def test_whatever_comes_back_the_same_loss_is_found(returns):
    found = from_testing(Softmax(returns))
    assert found.margin == CosFace(0.2)
    assert found.scale == pytest.approx(16.0)
    assert found.proof.holds
    assert not reaches(found.findings, "wrong")


@pytest.mark.parametrize(
    ("d", "C", "transposed"), [(16, 7, True), (3, 5, False), (8, 8, False), (8, 8, True), (64, 300, False)]
)
def test_class_rows_are_found_whichever_way_they_lie(d, C, transposed):
    found = diagnose(Softmax(d=d, C=C, transposed=transposed))
    assert found.margin == CosFace(0.2)
    assert found.proof.holds


def test_several_centers_per_class_are_found_in_either_order():
    class Centers(nn.Module):
        def __init__(self, by_class):
            super().__init__()
            self.weight, self.by_class = nn.Parameter(torch.randn(21, 16)), by_class

        def forward(self, x, y):
            z = F.linear(F.normalize(x), F.normalize(self.weight))
            z = z.reshape(len(x), 7, 3).amax(2) if self.by_class else z.reshape(len(x), 3, 7).amax(1)
            return 30 * (z - 0.2 * F.one_hot(y, 7))

    for by_class in (True, False):
        found = diagnose(Centers(by_class))
        assert found.margin == CosFace(0.2)
        assert "several-centers" in found.codes()
        assert "centers=3" in found.same


def test_float32_alone_will_do():
    def in_float32(cosines, labels):
        return p.arcface("none", s=30.0)(cosines.float(), labels)

    found = diagnose(in_float32)
    assert found.margin == ArcFace(0.5, "none")


def test_the_criterion_and_the_random_numbers_are_left_as_they_were():
    criterion = p.ElasticArc()
    before = copy.deepcopy(criterion.state_dict())
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    diagnose(criterion)
    assert all(torch.equal(before[name], value) for name, value in criterion.state_dict().items())
    assert torch.equal(states[0], torch.get_rng_state())
    assert (states[1] == np.random.get_state()[1]).all()
    assert states[2] == random.getstate()


def test_state_that_moves_does_not_disturb_the_measuring():
    found = [diagnose(p.WeSpeakerSphere()) for _ in range(2)]
    assert found[0].margin == found[1].margin
    assert found[0].margin.lam == pytest.approx(1000 / 1.12, rel=1e-5)  # that of the first step, at every angle


def test_an_expected_margin_that_is_not_there_is_wrong():
    from hypermargin.margins import Combined

    asked = diagnose(p.InsightfaceCombined(), expect=Combined(1.0, 0.3, 0.2))
    assert asked.level("not-as-expected") == "wrong"
    assert "not-as-expected" not in diagnose(p.InsightfaceCombined(), expect=CosFace(0.2)).codes()


def test_what_cannot_be_called_says_what_was_tried():
    def of_one(features):
        return features.sum()

    with pytest.raises(
        NotUnderstood, match=r"could not be called in any known way\.\n  criterion\(cosines, labels\)"
    ):
        diagnose(of_one)
    with pytest.raises(NotUnderstood, match=r"a sample on its own class costs"):
        diagnose(lambda cosines, labels: cosines.sum())
    with pytest.raises(NotUnderstood, match=r"neither a loss nor \(3, 7\) logits, but \(2, 2\)"):
        diagnose(lambda cosines, labels: cosines[:2, :2])
    with pytest.raises(
        ValueError, match="form must be one of 'features', 'cosines', 'weights', 'norms'; got 'cosine'"
    ):
        diagnose(p.airface, form="cosine")
    with pytest.raises(TypeError, match="criterion must be a module or a function; got 3"):
        diagnose(3)


def test_a_probe_that_fails_is_a_finding_and_the_rest_goes_on():
    class Fragile(p.Rows):
        def forward(self, x, y):
            if len(x) > 20:
                raise RuntimeError("no more than twenty rows, please")
            z = self.cosines(x)
            return F.cross_entropy(self.s * p.put(z, y, p.own(z, y) - 0.3), y)

    found = diagnose(Fragile())
    assert found.margin == CosFace(0.3)
    told = [each.said for each in found.findings if each.code == "not-measured"]
    assert any("no more than twenty rows" in said for said in told)


def test_nan_at_some_angles_is_said():
    def broken(cosines, labels):
        c = p.own(cosines, labels)
        return p.put(30 * cosines, labels, 30 * torch.where((c > 0.2) & (c < 0.3), torch.nan, c - 0.2))

    found = diagnose(broken)
    assert found.level("nan-inside") == "wrong"
    assert found.margin is None or found.confidence < 0.98


def test_it_can_be_stored_and_read_back():
    found = diagnose(p.WeSpeakerArc(), name="<b>x</b>")
    again = read(json.loads(json.dumps(written(found))))
    assert again.plain() == found.plain()
    np.testing.assert_allclose(again.curves.target, found.curves.target)
    assert json.dumps(diagnose(p.P2SGrad()).plain(), allow_nan=False)


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"mm": 1.0}, "set: Rows takes no 'mm'; it takes s, m, classes, dim. Did you mean 'm'?"), ({"m": 0.1}, None)],
)
def test_a_class_is_made_with_its_size_and_the_settings(settings, words):
    if words is None:
        made = build(p.Rows, dim=5, classes=4, settings=settings)
        assert (made.weight.shape, made.m) == ((4, 5), 0.1)
    else:
        with pytest.raises(ValueError, match="takes no 'mm'") as caught:
            build(p.Rows, dim=5, classes=4, settings=settings)
        assert str(caught.value) == words


def test_a_class_that_needs_more_says_what():
    class Wants:
        def __init__(self, num_classes, temperature):
            pass

    with pytest.raises(ValueError, match=r"set: Wants needs temperature\. Give them, like --set temperature=8"):
        build(Wants, dim=5, classes=4, settings={})
    assert build(p.airface, dim=5, classes=4, settings={}) is p.airface


def test_form_weights_is_told_by_three_arguments():
    assert find_criterion(p.crossed_norms).form == "weights"
    assert find_criterion(p.airface).form == "cosines"


class Linear(nn.Module):
    def __init__(self, dim, classes):
        super().__init__()
        self.layer = nn.Linear(dim, classes)

    def forward(self, x, y):
        return F.cross_entropy(self.layer(x), y)


def test_a_bias_is_said_and_does_not_disturb_the_angles():
    found = diagnose(Linear(16, 7))
    assert "bias" in found.codes()
    assert (found.scale, found.unit_features, found.unit_weight) == (pytest.approx(1.0), False, False)
    assert "bias=True" in found.same


def test_the_same_with_other_classes_shows_memory_and_one_class():
    class NeedsRivals(p.Rows):
        def forward(self, x, y):
            z = self.cosines(x)
            rivals = z.scatter(1, y[:, None], -9.0).topk(2)[0]
            return F.cross_entropy(self.s * z, y) + 0 * rivals.sum()

    found = diagnose(NeedsRivals(), remake=lambda classes: NeedsRivals(classes=classes))
    assert "one-class" in found.codes()
    found = diagnose(p.Clamped(), remake=lambda classes: p.Clamped(classes=classes))
    assert "memory" in found.codes()
    assert "one-class" not in found.codes()
    plain = diagnose(p.BothBack(), remake=lambda classes: p.Rows(classes=classes))
    assert "not-measured" in plain.codes()  # what was remade is another criterion, and cannot be called
    assert "one-class" not in diagnose(Linear(16, 7), remake=lambda classes: Linear(16, classes)).codes()


class Counted(nn.Module):
    """Counts its calls, and adds a number to its loss; the loss of angles stays as it is."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(p.CLASSES, p.DIM))
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x, y):
        self.steps += 1
        return margin_softmax(x, self.weight, y, ArcFace(0.3), scale=32.0) + 0.5


def test_a_term_of_its_own_is_no_movement():
    found = diagnose(Counted())
    assert found.level("own-term") == "note"
    assert "state" in found.codes()
    assert "moves-with-steps" not in found.codes()
