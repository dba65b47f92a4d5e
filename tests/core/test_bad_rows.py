"""A row of NaN or inf, or with a label that is no class, spoils its own loss and no other gradient."""

import copy
import math

import pytest
import torch
from cases import needed
from conftest import over_backends

import hypermargin as hm
from hypermargin.backends import Chunked
from hypermargin.backends.fused import why_not
from hypermargin.margins import AdaFace, ArcFace, CosFace, SphereFace2
from hypermargin.rules import MVSoftmax
from hypermargin.terms import RingLoss

D, C, GOOD = 6, 7, 8
BAD = 6  # rows: NaN, inf, −inf, and three labels that are no class
SLOTS = [
    (ArcFace(), {}),
    (ArcFace(), {"reduction": "sum"}),
    (ArcFace(), {"learn_scale": True, "label_smoothing": 0.1, "bias": True}),
    (ArcFace(), {"centers": 2, "bias": "shared"}),
    (CosFace(), {"class_margins": [0.1, 0.2, 0.3, 0.4, 0.3, 0.2, 0.1], "learn_margin": True, "reduction": "sum"}),
    (CosFace(), {"rule": MVSoftmax(), "unit_features": False}),
    (CosFace(), {"unit_weight": False, "unit_features": False, "label_smoothing": 0.2}),
    (CosFace(), {"row_terms": [RingLoss(0.5, 2.0)]}),
    (AdaFace(momentum=0.3), {"learn_margin": True, "reduction": "sum"}),
    (SphereFace2(), {"rule": hm.rules.SphereFace2(), "bias": "shared", "learn_scale": True}),
    (ArcFace(), {"schedule": hm.schedule.MarginWarmup(4)}),
]


# What is added beside the loss, here to every row of it, so that more rows add it more often.
BESIDE = {"adaptiveface": {"margin_reward": 0.0}, "soft-triple": {"centers": hm.Centers(3, "soft")}}


def batch(dtype=torch.float64):
    """Good rows and, at the end, bad ones; one of the good has no label."""
    rng = torch.Generator().manual_seed(5)
    x = torch.randn(GOOD + BAD, D, generator=rng, dtype=dtype)
    y = torch.randint(0, C, (GOOD + BAD,), generator=rng)
    x[GOOD], x[GOOD + 1, 2], x[GOOD + 2, 0] = math.nan, math.inf, -math.inf
    y[2], y[-3:] = -100, torch.tensor([C, -1, 10**9])
    return x, y


def step(head, x, y, **options):
    """The loss, and every gradient."""
    x = x.clone().requires_grad_()
    loss = head(x, y, **options)
    head.zero_grad()
    loss.sum().backward()
    return loss.detach(), x.grad, [p.grad for p in head.parameters()]


def assert_only_the_bad_are_spoiled(make, x, y, tolerance, mix=None):
    loss, dx, others = step(make(), x, y, mix=mix)
    mix = mix if mix is None else (mix[0][:GOOD], mix[1])
    right, right_dx, right_others = step(make(), x[:GOOD], y[:GOOD], mix=mix)
    if loss.dim():
        assert loss[GOOD:].isnan().all()
        torch.testing.assert_close(loss[:GOOD], right, rtol=tolerance, atol=tolerance)
    else:
        assert loss.isnan()
    assert dx[GOOD:].isnan().all()  # as of any number that is computed from it
    for ours, theirs in ((dx[:GOOD], right_dx), *zip(others, right_others, strict=True)):
        assert ours.isfinite().all()
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


@over_backends
@pytest.mark.parametrize("name", hm.list_heads())
def test_in_every_head(name, backend):
    x, y = batch()

    def make():
        torch.manual_seed(1)
        given = needed(name, C) | BESIDE.get(name, {})
        made = hm.create_head(name, D, C, **given, check=False, reduction="none", backend=backend)
        return made.double().eval() if "pairing" in repr(made.margin) else made.double()  # ranks among all rows

    assert_only_the_bad_are_spoiled(make, x, y, 1e-9)


@over_backends
@pytest.mark.parametrize(("margin", "options"), SLOTS, ids=str)
def test_in_every_slot(margin, options, backend):
    x, y = batch()

    def make():
        torch.manual_seed(1)
        given = {"scale": 8.0, "reduction": "none"} | copy.deepcopy(options)
        return hm.MarginHead(D, C, margin, **given, check=False, backend=backend).double()

    assert_only_the_bad_are_spoiled(make, x, y, 1e-9)
    if "rule" not in options and "label_smoothing" not in options:
        other = y.flip(0).clamp(0, C - 1)
        other[GOOD + 3] = C  # either label
        assert_only_the_bad_are_spoiled(make, x, y, 1e-9, mix=(other, 0.3))


@pytest.mark.skipif(bool(why_not(torch.device("cpu"))), reason="no Triton here, or no interpreter of it")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("options", [{}, {"learn_margin": True, "reduction": "sum"}, {"bias": True}], ids=str)
def test_in_the_fused_backend(options):
    x, y = batch(torch.float32)

    def make():
        torch.manual_seed(1)
        given = {"scale": 8.0, "reduction": "none"} | options
        return hm.MarginHead(D, C, ArcFace(), **given, check=False, backend="triton")

    assert_only_the_bad_are_spoiled(make, x, y, 1e-5)


@over_backends
def test_the_mean_counts_bad_rows(backend):
    x, y = batch()
    W = torch.randn(C, D, dtype=x.dtype).requires_grad_()
    given = {"scale": 8.0, "check": False, "backend": backend}
    mean = hm.margin_softmax(x, W, y, ArcFace(), **given)
    assert mean.isnan()
    by_mean = torch.autograd.grad(mean, W)[0]
    by_sum = torch.autograd.grad(hm.margin_softmax(x, W, y, ArcFace(), reduction="sum", **given), W)[0]
    torch.testing.assert_close(by_mean * (GOOD - 1 + BAD), by_sum)


@over_backends
def test_scores_of_bad_rows_are_nan(backend):
    x, y = batch()
    head = hm.MarginHead(D, C, ArcFace(), scale=8.0, check=False, backend=backend).double()
    found = head.scores(x, y)
    right = head.scores(x[:GOOD], y[:GOOD])
    for ours, theirs in zip(found, right, strict=True):
        assert ours[GOOD:].isnan().all()
        torch.testing.assert_close(ours[:GOOD], theirs, equal_nan=True)


def test_from_cosines():
    x, y = batch()
    W = torch.randn(C, D, dtype=x.dtype)
    cosines = (torch.nn.functional.normalize(x) @ torch.nn.functional.normalize(W).T).requires_grad_()
    loss = hm.margin_cross_entropy(cosines, y, ArcFace(), 8.0, check=False, reduction="none")
    right = hm.margin_cross_entropy(cosines[:GOOD], y[:GOOD], ArcFace(), 8.0, reduction="none")
    assert loss[GOOD:].isnan().all()
    torch.testing.assert_close(loss[:GOOD], right)
    ours, theirs = (torch.autograd.grad(each.sum(), cosines)[0][:GOOD] for each in (loss, right))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("backend", ["dense", Chunked(chunk=3)], ids=str)
def test_second_derivatives_and_transforms_keep_to_it(backend):
    x, y = batch()
    W = torch.randn(C, D, dtype=x.dtype)

    def loss(W, x, y):
        return hm.margin_softmax(x, W, y, ArcFace(), scale=8.0, check=False, reduction="sum", backend=backend)

    def squared(W, x, y):
        return torch.func.grad(loss)(W, x, y).square().sum()

    for of in (torch.func.grad(loss), torch.func.grad(squared)):
        torch.testing.assert_close(of(W, x, y), of(W, x[:GOOD], y[:GOOD]), rtol=1e-9, atol=1e-9)


def test_compiled():
    torch._dynamo.reset()
    x, y = batch()
    W = torch.randn(C, D, dtype=x.dtype)

    def gradients(loss, rows):
        leaves = [x[rows].clone().requires_grad_(), W.clone().requires_grad_()]
        return torch.autograd.grad(loss(*leaves, y[rows]).nansum(), leaves)

    def loss(x, W, y):
        return hm.margin_softmax(x, W, y, ArcFace(), scale=8.0, check=False, reduction="none")

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    by_x, by_weight = gradients(compiled, slice(None))
    right_x, right_weight = gradients(loss, slice(GOOD))
    torch.testing.assert_close(by_x[:GOOD], right_x)
    torch.testing.assert_close(by_weight, right_weight)
