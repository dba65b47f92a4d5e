"""The estimator's loss and gradients against `margin_softmax` and autograd, for every registered margin."""

import itertools

import numpy as np
import pytest
import scipy.sparse
import torch
import torch.nn.functional as F
from cases import FITTED
from hypothesis import given, settings
from hypothesis import strategies as st

import hypermargin as hm
from hypermargin import margins
from hypermargin.estimator.objective import Data, MagnitudeObjective, Objective, row_norms
from hypermargin.margins import ArcFace, CosFace, NoMargin, SphereFace

MARGINS = [margins.get(name)() for name in FITTED] + [ArcFace(0.2), CosFace(0.1), SphereFace(1.2)]


def example(seed=0, n=37, d=5, classes=4):
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(n, d)), rng.integers(0, classes, n)
    return Data(X, y, rng.random(n)), rng.normal(size=(classes, d)), 0.5 + 3 * rng.random(classes), rng


def right(data, W, b, margin, alpha, r):
    """The same by the library's own loss; the weight is normalised and stretched to r by torch."""
    W, b = torch.tensor(W, requires_grad=True), None if b is None else torch.tensor(b, requires_grad=True)
    weight = W if r is None else F.normalize(W) * torch.tensor(r)[:, None]
    losses = hm.margin_softmax(
        torch.tensor(data.X), weight, torch.tensor(data.y), margin, bias=b, unit_features=False, unit_weight=False,
        reduction="none",
    )  # fmt: skip
    total = (losses * torch.tensor(data.weight)).sum() / data.total
    if r is None:
        total = total + alpha / 2 / data.total * W.square().sum()
    return [total.item(), *(g.numpy() for g in torch.autograd.grad(total, [W] if b is None else [W, b]))]


@pytest.mark.parametrize(("margin", "given_r"), list(itertools.product(MARGINS, (False, True))), ids=str)
def test_loss_and_gradient(margin, given_r):
    data, W, r, rng = example()
    b = rng.normal(size=len(W)) if isinstance(margin, NoMargin) else None
    r = r if given_r else None
    ours = Objective(data, margin, 0.7, r)(W, b)
    for a, c in zip(ours, right(data, W, b, margin, 0.7, r), strict=False):
        np.testing.assert_allclose(a, c, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("margin", MARGINS, ids=str)
def test_sparse_rows_are_the_same(margin):
    data, W, r, _ = example()
    thin = np.where(np.abs(data.X) > 0.5, data.X, 0.0)
    for each in (None, r):
        dense, sparse = (
            Objective(Data(X, data.y, data.weight), margin, 0.7, each)(W, None)
            for X in (thin, scipy.sparse.csr_array(thin))
        )
        np.testing.assert_allclose(dense[0], sparse[0], rtol=1e-13)
        np.testing.assert_allclose(dense[1], sparse[1], rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("margin", MARGINS, ids=str)
def test_the_angles_gradient_is_orthogonal_and_the_penaltys_parallel(margin):
    """Angle and magnitude can be set apart: one turns a class vector, the other stretches it."""
    data, W, r, _ = example(1)
    _, turning, _ = Objective(data, margin, 0.7, r)(W, None)
    assert np.abs(turning).max() > 1e-3
    np.testing.assert_allclose(np.einsum("ij,ij->i", turning, W), 0.0, atol=1e-14)
    with_penalty, without = (Objective(data, margin, alpha)(W, None)[1] for alpha in (0.7, 0.0))
    np.testing.assert_allclose(with_penalty - without, 0.7 / data.total * W, atol=1e-15)
    cosines = np.einsum("ij,ij->i", with_penalty - without, W) / row_norms(W) / row_norms(with_penalty - without)
    np.testing.assert_allclose(cosines, 1.0, rtol=1e-12)


def test_the_magnitudes_objective():
    data, W, r, _ = example(2)
    projections = data.X @ (W / row_norms(W)[:, None]).T
    loss, by_r = MagnitudeObjective(data, projections, 0.7)(r)
    t = torch.tensor(r, requires_grad=True)
    losses = F.cross_entropy(torch.tensor(projections) * t, torch.tensor(data.y), reduction="none")
    total = (losses * torch.tensor(data.weight)).sum() / data.total + 0.7 / 2 / data.total * t.square().sum()
    np.testing.assert_allclose(loss, total.item(), rtol=1e-13)
    np.testing.assert_allclose(by_r, torch.autograd.grad(total, t)[0].numpy(), rtol=1e-11)


@pytest.mark.parametrize("margin", MARGINS, ids=str)
def test_gradients_are_finite_where_angles_end(margin):
    """Samples on their class vector, opposite it, and zero; class vectors that are zero."""
    W = np.array([[3.0, 0.0], [0.0, 2.0], [0.0, 0.0]])
    X = np.array([[5.0, 0.0], [-5.0, 0.0], [0.0, 0.0], [1e-300, 0.0], [0.0, 4.0], [1e9, 1e-9]])
    data = Data(X, np.array([0, 0, 1, 0, 1, 2]), np.ones(6))
    for r in (None, np.array([1.0, 20.0, 3.0])):
        loss, by_W, _ = Objective(data, margin, 0.1, r)(W, None)
        assert np.isfinite(loss)
        assert np.isfinite(by_W).all()


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    st.integers(0, 10_000), st.sampled_from(MARGINS), st.floats(0.01, 100.0), st.integers(2, 6), st.integers(2, 7)
)
def test_the_gradient_is_the_slope_of_the_loss(seed, margin, size, classes, d):
    """By differences, at any scale. In one dimension every angle is 0 or π, where some margins have a kink."""
    data, W, r, rng = example(seed, 11, d, classes)
    W *= size
    for each in (None, r):
        objective = Objective(data, margin, 0.3, each)
        step = rng.normal(size=W.shape) * size
        up, down = (objective(W + h * step, None)[0] for h in (1e-6, -1e-6))
        slope = (objective(W, None)[1] * step).sum()
        assert slope == pytest.approx((up - down) / 2e-6, rel=1e-4, abs=1e-6 * max(1.0, abs(up)))


def test_lengths_of_rows_whose_squares_overflow():
    X = np.array([[3e200, 4e200], [0.0, 1.0]])
    np.testing.assert_allclose(row_norms(X), [5e200, 1.0])
    np.testing.assert_allclose(row_norms(scipy.sparse.csr_array(X)), [5e200, 1.0])
