"""Bad input: an exception that names the argument, what came, what is allowed and what to do."""

import math

import pytest
import torch

import hypermargin as hm
from hypermargin.margins import ArcFace, CosFace, NoMargin
from hypermargin.rules import MVSoftmax, SphereFace2
from hypermargin.terms import RingLoss

X, W, Y = torch.ones(4, 3), torch.eye(5, 3), torch.tensor([0, 1, 2, 4])


def call(**changes):
    given = {"features": X, "weight": W, "labels": Y, "margin": ArcFace(), "scale": 8.0} | changes
    return hm.margin_softmax(**given)


def with_row(value, row=2):
    x = X.clone()
    x[row, 1] = value
    return x


def labels(*values):
    return torch.tensor(values)


# fmt: off
BAD = [
    ({"labels": labels(0, 1, 2, 5)}, ValueError, r"labels must lie in \[0, 5\); got 5 at row 3\. Labels start"),
    ({"labels": labels(0, -1, 2, 3)}, ValueError, r"labels must lie in \[0, 5\); got -1 at row 1\. .*ignore_index"),
    ({"labels": Y.float()}, TypeError, r"labels must be integer class ids; got torch.float32\. Convert with"),
    ({"labels": Y > 1}, TypeError, "labels must be integer class ids; got torch.bool"),
    ({"labels": Y[:3]}, ValueError, r"labels must have shape \(4,\), one per row of features; got \(3,\)"),
    ({"labels": torch.ones(4, 5, dtype=torch.long)}, ValueError, r"got \(4, 5\)\. One-hot rows become ids"),
    ({"labels": [0, 1, 2, 3]}, TypeError, "labels must be an integer tensor.*got list"),
    ({"labels": Y.to("meta")}, ValueError, "labels is on meta, features are on cpu"),
    ({"features": X[0]}, ValueError, r"features must have shape \(rows, dim\); got \(3,\)"),
    ({"features": X.long()}, TypeError, "features must be of a floating dtype; got torch.int64"),
    ({"features": X[:, :2]}, ValueError, r"features must have 3 columns like weight \(at least 1\); got \(4, 2\)"),
    ({"features": with_row(math.nan)}, ValueError, r"features must be finite; got NaN at row 2 \(1 such rows\)"),
    ({"features": with_row(math.inf, 0)}, ValueError, "got inf at row 0"),
    ({"features": X.numpy()}, TypeError, "features must be a tensor.*got ndarray"),
    ({"weight": W.to("meta")}, ValueError, "weight is on meta"),
    ({"weight": W[:0]}, ValueError, r"weight must have at least one class; got shape \(0, 3\)"),
    ({"weight": W[0]}, ValueError, r"weight must have shape \(classes, dim\)"),
    ({"weight": W.T}, ValueError, "features must have 5 columns like weight"),
    ({"bias": torch.zeros(4)}, ValueError, r"bias must have shape \(5,\)"),
    ({"scale": 0.0}, ValueError, "scale must be positive and finite; got 0"),
    ({"scale": -3}, ValueError, "scale must be positive and finite; got -3"),
    ({"scale": math.nan}, ValueError, "scale must be positive"),
    ({"scale": "64"}, TypeError, "scale must be a number; got '64'"),
    ({"scale": torch.tensor(-1.0)}, ValueError, "scale must be positive; got -1.*floor"),
    ({"scale": torch.ones(3)}, ValueError, r"scale must be a number or have shape \(4,\)"),
    ({"margin": 0.5}, TypeError, r"margin must be a Margin such as ArcFace\(m=0.5\); got 0.5"),
    ({"margin": ArcFace}, TypeError, "margin must be a Margin"),
    ({"m": torch.ones(3)}, ValueError, r"m must have shape \(\) .*\(5,\) .*\(4, 1\) .*got \(3,\)"),
    ({"margin": NoMargin(), "m": torch.tensor(0.1)}, ValueError, "NoMargin has no m"),
    ({"lam": -1.0}, ValueError, r"lam must lie in \[0, inf\); got -1"),
    ({"label_smoothing": 1.0}, ValueError, r"label_smoothing must lie in \[0, 1\); got 1"),
    ({"gradient": "strait"}, ValueError, r"gradient must be one of 'exact', 'straight'.*Did you mean 'straight'\?"),
    ({"reduction": "avg"}, ValueError, "reduction must be one of 'mean', 'sum', 'none'; got 'avg'"),
    ({"backend": "fast"}, ValueError, "backend must be one of 'auto', 'dense', 'chunked', 'triton'; got 'fast'"),
    ({"check": "yes"}, ValueError, "check must be one of 'auto'; got 'yes'"),
    ({"mix": Y}, TypeError, r"mix must be a pair \(other_labels, weight\)"),
    ({"mix": (Y[:2], 0.5)}, ValueError, r"mix\[0\] \(other_labels\) must have shape \(4,\)"),
    ({"mix": (labels(0, 0, 0, 9), 0.5)}, ValueError, r"mix\[0\] .* must lie in \[0, 5\); got 9 at row 3"),
    ({"mix": (Y, 1.5)}, ValueError, r"mix\[1\] \(weight\) must lie in \[0, 1\]; got 1.5"),
    ({"mix": (Y, torch.ones(2))}, ValueError, r"mix\[1\] \(weight\) must be a number or have shape \(4,\)"),
]
# fmt: on


@pytest.mark.parametrize(("changes", "kind", "message"), BAD, ids=lambda v: v if isinstance(v, str) else "")
def test_margin_softmax_says_what_is_wrong(changes, kind, message):
    with pytest.raises(kind, match=message):
        call(**changes)


def test_the_good_call_is_good():
    assert call().isfinite()
    assert call(labels=Y.to(torch.int32)).isfinite()
    assert call(labels=torch.tensor([0, 1, -100, 2])).isfinite()
    assert call(labels=torch.tensor([0, 1, 9, 2]), ignore_index=9).isfinite()
    assert call(
        labels=torch.tensor([0, 1, -100, 2]), features=with_row(math.nan)
    ).isfinite()  # an ignored row may be bad
    assert call(features=with_row(math.nan), check=False).isnan()  # nobody looked


@pytest.mark.parametrize(
    ("cosines", "labels", "message"),
    [
        (torch.full((4, 5), 37.0), Y, r"cosines must lie in \[−1, 1\]; got a magnitude of 37.*give s as `scale`"),
        (torch.zeros(4, 0), Y, "cosines must have at least one class"),
        (torch.zeros(4, 3), Y, r"labels must lie in \[0, 3\); got 4 at row 3"),
        (torch.zeros(4), Y, r"cosines must have shape \(rows, classes\)"),
    ],
)
def test_margin_cross_entropy_says_what_is_wrong(cosines, labels, message):
    with pytest.raises(ValueError, match=message):
        hm.margin_cross_entropy(cosines, labels, CosFace(), 30.0)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"classes": 0}, ValueError, "classes must be at least 1; got 0"),
        ({"classes": 2.5}, TypeError, "classes must be a whole number; got 2.5"),
        ({"dim": -1}, ValueError, "dim must be at least 1"),
        ({"margin": None}, TypeError, "margin must be a Margin"),
        ({"scale": "auto"}, ValueError, "scale must be one of 'advised', 'adacos', 'adacos-dynamic'; got 'auto'"),
        ({"scale": "adacos", "learn_scale": True}, ValueError, "choose one"),
        ({"scale": 0}, ValueError, "scale must be positive"),
        ({"scale": None}, ValueError, r"scale must be given with unit features.*\"advised\" \(4\.8 for 5 classes"),
        ({"margin": 28.6}, TypeError, r"radians; 28\.6 degrees are 0\.4992: ArcFace\(m=0\.4992\)"),
        ({"margin": ArcFace}, TypeError, r"add \(\)"),
        ({"s": 64.0}, TypeError, r"MarginHead has no setting 's'.*It is called scale here: scale=64\.0"),
        ({"num_classes": 5}, TypeError, r"num_classes.*Here it is classes"),
        ({"bakend": "auto"}, TypeError, r"Did you mean 'backend'\?"),
        ({"rule": 3}, TypeError, "rule must be a Rule"),
        ({"rule": MVSoftmax(), "unit_weight": False}, ValueError, "is about cosines, so it needs unit_weight=True"),
        ({"rule": MVSoftmax(), "label_smoothing": 0.1}, ValueError, "is about softmax's logits"),
        ({"row_terms": RingLoss()}, TypeError, r"row_terms must be a list of modules such as \[terms.RingLoss"),
        (
            {"rule": SphereFace2(), "sample": hm.PartialFC(0.5, correct=True)},
            ValueError,
            "raises the logits of a log-sum-exp, and rule=.* has a sum of softplus",
        ),
        ({"centers": 0}, ValueError, "centers must be at least 1"),
        ({"bias": "all"}, ValueError, "bias must be True, False or"),
        ({"class_offsets": [0.0, 1.0]}, ValueError, r"class_offsets must have shape \(5,\), one per class"),
        ({"scale_floor": 0.0}, ValueError, "scale_floor must be positive"),
        ({"margin_reward": -1.0}, ValueError, "margin_reward must lie in"),
        ({"label_smoothing": -0.1}, ValueError, "label_smoothing must lie in"),
        ({"backend": "gpu"}, ValueError, "backend must be one of"),
        ({"schedule": "warmup"}, TypeError, "schedule must be a Schedule"),
    ],
)
def test_the_head_says_what_is_wrong(arguments, kind, message):
    with pytest.raises(kind, match=message):
        hm.MarginHead(**{"dim": 3, "classes": 5, "margin": ArcFace(), "scale": 8.0} | arguments)


def test_features_of_another_width_name_the_width():
    with pytest.raises(ValueError, match="features must have 3 columns"):
        hm.create_head("arcface", 3, 5).logits(torch.ones(2, 4))
