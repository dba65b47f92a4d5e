"""Kernels: exact ones against explicit features and scikit-learn, approximations, import vectors."""

import numpy as np
import pytest
from cases import FITTED
from scipy.linalg import cho_factor
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, make_circles
from sklearn.gaussian_process.kernels import RBF
from sklearn.kernel_approximation import Nystroem, RBFSampler
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.pairwise import polynomial_kernel, rbf_kernel
from sklearn.model_selection import cross_val_score
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from hypermargin.estimator import MarginSoftmaxClassifier
from hypermargin.estimator.features import KernelFunction, Landmarks

PLAIN = {"margin": "none", "unit_weight": False, "unit_features": False}


def standardised(load):
    X, y = load(return_X_y=True)
    return StandardScaler().fit_transform(X), y


def linear(A, B):
    return A @ B.T


def rbf(A, B):
    return rbf_kernel(A, B, 0.1)


@pytest.mark.parametrize("unit_features", [True, False])
@pytest.mark.parametrize("margin", FITTED)
def test_the_linear_kernel_is_the_linear_model(margin, unit_features):
    """Coordinates differ, products do not: the same boundary, probabilities and cosines for new samples too."""
    X, y = standardised(load_iris)
    options = {
        "margin": margin,
        "unit_features": unit_features,
        "scale": 5.0,
        "intercept_scaling": 1.0,
        "tol": 1e-7,
    }
    plain = MarginSoftmaxClassifier(**options).fit(X[::2], y[::2])
    kernel = MarginSoftmaxClassifier(**options, kernel=linear).fit(X[::2], y[::2])
    np.testing.assert_allclose(kernel.predict_proba(X), plain.predict_proba(X), atol=1e-5)
    np.testing.assert_allclose(kernel.transform(X), plain.transform(X), atol=1e-5)
    assert len(kernel.support_) == X.shape[1]  # as many landmarks as the span has dimensions


def test_a_polynomial_kernel_is_a_model_on_polynomials():
    X, y = standardised(load_iris)
    kernel = MarginSoftmaxClassifier(
        scale=5.0, kernel="poly", degree=2, gamma=1.0, coef0=1.0, fit_intercept=False, tol=1e-7
    ).fit(X, y)
    products = PolynomialFeatures(2).fit(X)
    root = np.where(products.powers_.max(1) < 2, np.sqrt(2.0), 1.0)  # (⟨x, y⟩ + 1)² = Σ of these products
    root[0] = 1.0
    rows = products.transform(X) * root
    np.testing.assert_allclose(rows @ rows.T, polynomial_kernel(X, X, degree=2, gamma=1.0, coef0=1.0))
    explicit = MarginSoftmaxClassifier(scale=5.0, fit_intercept=False, tol=1e-7).fit(rows, y)
    np.testing.assert_allclose(kernel.predict_proba(X), explicit.predict_proba(rows), atol=1e-5)


def test_without_margin_it_is_kernel_logistic_regression():
    """scikit-learn has none; its linear one on a square root of the kernel matrix is the same."""
    X, y = standardised(load_iris)
    K = rbf(X, X)
    root = np.tril(cho_factor(K + 1e-12 * np.eye(len(K)), lower=True)[0])
    theirs = LogisticRegression(C=2.0, tol=1e-9, max_iter=10_000).fit(root, y)
    ours = MarginSoftmaxClassifier(**PLAIN, alpha=0.5, kernel="rbf", gamma=0.1, tol=1e-9, max_iter=10_000).fit(X, y)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(root), atol=1e-5)


def test_ways_to_give_the_same_kernel():
    X, y = standardised(load_iris)
    half = slice(None, None, 2)
    by_name = MarginSoftmaxClassifier(kernel="rbf", gamma=0.1).fit(X[half], y[half]).predict_proba(X)
    for kernel in (rbf, RBF(np.sqrt(5.0))):
        same = MarginSoftmaxClassifier(kernel=kernel).fit(X[half], y[half])
        np.testing.assert_allclose(same.predict_proba(X), by_name, atol=1e-6)
    matrix = MarginSoftmaxClassifier(kernel="precomputed").fit(rbf(X[half], X[half]), y[half])
    np.testing.assert_allclose(matrix.predict_proba(rbf(X, X[half])), by_name, atol=1e-6)  # k(x, x) is always 1
    # Where k(x, x) differs, that of new samples is not to be known from their row, and so are their lengths.
    named = MarginSoftmaxClassifier(kernel="poly", gamma=1.0, coef0=1.0).fit(X[half], y[half])
    matrix = MarginSoftmaxClassifier(kernel="precomputed").fit(
        polynomial_kernel(X[half], X[half], gamma=1.0, coef0=1.0), y[half]
    )
    across = polynomial_kernel(X, X[half], gamma=1.0, coef0=1.0)
    np.testing.assert_array_equal(matrix.predict(across), named.predict(X))
    np.testing.assert_allclose(matrix.predict_proba(across[half]), named.predict_proba(X[half]), atol=1e-5)
    score = cross_val_score(MarginSoftmaxClassifier(kernel="precomputed"), rbf(X, X), y)  # slices both sides
    np.testing.assert_allclose(
        score, cross_val_score(MarginSoftmaxClassifier(kernel="rbf", gamma=0.1), X, y), atol=1e-9
    )
    indefinite = rbf(X, X) - 0.5 * np.outer(y == 1, y == 1)
    with pytest.raises(ValueError, match="positive semi-definite"):
        MarginSoftmaxClassifier(kernel="precomputed").fit(indefinite, y)
    with pytest.raises(ValueError, match="square"):
        MarginSoftmaxClassifier(kernel="precomputed").fit(X, y)
    with pytest.raises(ValueError, match='"precomputed" is for fit with approximation="exact" or "import"'):
        MarginSoftmaxClassifier(kernel="precomputed", approximation="nystroem").fit(rbf(X, X), y)


@pytest.mark.parametrize("approximation", ["exact", "import"])
@pytest.mark.parametrize("load", [load_iris, load_breast_cancer])
def test_the_dual_coefficients_are_the_model(load, approximation):
    X, y = standardised(load)
    model = MarginSoftmaxClassifier(
        kernel="rbf", gamma=0.1, approximation=approximation, n_components=20, random_state=0
    ).fit(X[::3], y[::3])
    np.testing.assert_array_equal(model.support_vectors_, X[::3][model.support_])
    length = np.hypot(1.0, model.intercept_scaling_)  # |φ(x)| = 1 for rbf
    z = (rbf(X, model.support_vectors_) @ model.dual_coef_.T + model.boundary_intercept_) / length
    np.testing.assert_allclose(z.squeeze(), model.decision_function(X), atol=1e-4)
    assert not hasattr(model, "coef_")


def test_landmarks_are_coordinates_in_which_the_kernel_is_a_product():
    X, _ = standardised(load_breast_cancer)
    X = np.vstack([X[:60], X[:10]])  # duplicates are in the span, and no landmarks
    kernel = KernelFunction("rbf", 0.1, 3, 0.0)
    landmarks, phi = Landmarks.all_of(kernel, X)
    assert len(landmarks.rows) == 60
    np.testing.assert_allclose(phi @ phi.T, kernel(X, X), atol=1e-9)
    np.testing.assert_allclose(landmarks(X)[0], phi, atol=1e-7)
    inside, lengths = landmarks(X + 3.0)
    assert (np.linalg.norm(inside, axis=1) < lengths).all()  # new samples stick out of the span


def test_approximations_are_scikit_learns():
    X, y = standardised(load_digits)
    X, y = X[:600], y[:600]
    for name, theirs in (("nystroem", Nystroem), ("fourier", RBFSampler)):
        options = {"gamma": 0.01, "n_components": 60}
        made = MarginSoftmaxClassifier(
            **PLAIN, kernel="rbf", approximation=name, **options, random_state=0, tol=1e-6
        ).fit(X, y)
        rows = theirs(**options, random_state=np.random.RandomState(0)).fit_transform(X)
        plain = MarginSoftmaxClassifier(**PLAIN, alpha=made.alpha_, tol=1e-6).fit(rows, y)
        np.testing.assert_allclose(made.predict_proba(X), plain.predict_proba(rows), atol=1e-6)
    whole = MarginSoftmaxClassifier(kernel="rbf", approximation="nystroem", n_components=600, random_state=0)
    exact = MarginSoftmaxClassifier(kernel="rbf", approximation="exact")
    np.testing.assert_allclose(whole.fit(X, y).predict_proba(X), exact.fit(X, y).predict_proba(X), atol=1e-3)
    called = MarginSoftmaxClassifier(kernel=rbf, approximation="nystroem", n_components=60, random_state=0)
    named = MarginSoftmaxClassifier(
        kernel="rbf", gamma=0.1, approximation="nystroem", n_components=60, random_state=0
    )
    np.testing.assert_allclose(called.fit(X, y).predict_proba(X), named.fit(X, y).predict_proba(X), atol=1e-9)


def test_a_kernel_separates_what_no_line_can():
    X, y = make_circles(200, noise=0.05, factor=0.4, random_state=0)
    assert MarginSoftmaxClassifier(kernel="rbf").fit(X[::2], y[::2]).score(X[1::2], y[1::2]) == 1.0
    assert MarginSoftmaxClassifier().fit(X[::2], y[::2]).score(X[1::2], y[1::2]) < 0.8


@pytest.mark.parametrize(
    "margin", ["arcface", *(pytest.param(name, marks=pytest.mark.slow) for name in ("none", "sphereface"))]
)
def test_import_vectors_are_few_and_well_chosen(margin):
    """The loss falls with their number towards the exact kernel's."""
    X, y = standardised(load_digits)
    X, y = X[:300], y[:300]
    options = {"margin": margin, "kernel": "rbf", "scale": 20.0}
    losses = []
    for size in (10, 30, 90):
        model = MarginSoftmaxClassifier(**options, approximation="import", n_components=size).fit(X, y)
        assert len(model.support_) == len(set(model.support_.tolist())) == size
        losses.append(model.loss_curve_[-1])
    exact = MarginSoftmaxClassifier(**options, approximation="exact").fit(X, y).loss_curve_[-1]
    assert losses[0] > losses[1] > losses[2] > exact - 1e-3


def test_chosen_landmarks_beat_drawn_ones():
    X, y = standardised(load_digits)
    options = {**PLAIN, "kernel": "rbf", "n_components": 30}
    chosen = MarginSoftmaxClassifier(**options, approximation="import").fit(X[:300], y[:300])
    for k in range(3):
        drawn = MarginSoftmaxClassifier(**options, approximation="nystroem", random_state=k).fit(X[:300], y[:300])
        assert chosen.loss_curve_[-1] < drawn.loss_curve_[-1]


def test_import_vectors_of_everything_are_the_exact_kernel():
    X, y = standardised(load_iris)
    every = MarginSoftmaxClassifier(kernel="rbf", approximation="import", n_components=1000, tol=1e-6).fit(X, y)
    exact = MarginSoftmaxClassifier(kernel="rbf", approximation="exact", tol=1e-6).fit(X, y)
    np.testing.assert_allclose(every.predict_proba(X), exact.predict_proba(X), atol=1e-3)
    without = MarginSoftmaxClassifier(kernel="rbf", approximation="import", n_components=5, fit_intercept=False)
    assert without.fit(X, y).score(X, y) > 0.85


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_kernel_of_large_values_is_still_a_square():
    """k(x, x) near 1e9 is rounded by 1e-7, which is no sign that the kernel is none."""
    rng = np.random.default_rng(0)
    X, y = 30 * rng.normal(size=(100, 2)), rng.integers(0, 2, 100)
    MarginSoftmaxClassifier(kernel="poly", gamma=1.0, max_iter=5).fit(X, y)
