"""Classifiers of two classes in the plane: what is drawn are their own lines, distances and support points."""

import math
import sys

import numpy as np
import pytest
from sklearn.datasets import load_iris, make_moons
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC

from hypermargin import MarginSoftmaxClassifier, plots
from hypermargin.advise import band_width
from hypermargin.plots import PlaneDisplay
from hypermargin.plots.stretches import psi


@pytest.fixture(scope="module")
def iris():
    """Two species, petal length and sepal width, standardised."""
    data = load_iris()
    two = data.target < 2
    return StandardScaler().fit_transform(data.data[two][:, [2, 1]]), data.target[two]


def shown(model, X, y, **options):
    return PlaneDisplay.of(model.fit(X, y), X, y, **options)


def drawn(display, name):
    """Points of the lines with this label, on the picture."""
    lines = [line for line in display.plot().ax_.lines if line.get_label() == name]
    return np.concatenate([line.get_xydata() for line in lines])


@pytest.mark.parametrize("model", [SVC(kernel="linear", C=100), SVC(kernel="linear", C=0.1), LogisticRegression()])
def test_lines_of_a_linear_model_are_where_f_is_one(model, iris):
    display = shown(model, *iris, names=("a", "b"))
    w, b = model.coef_[0], model.intercept_[0]
    length = np.linalg.norm(w)
    for name, f in (("a: margin met", -1), ("b: margin met", 1), ("boundary", 0)):
        assert (drawn(display, name) @ w + b) / length == pytest.approx(f / length, abs=1e-6)
    assert display.margin == pytest.approx(1 / length, abs=1e-6)
    signed = (iris[0] @ w + b) / length * (2 * iris[1] - 1)
    assert display.distances == pytest.approx(signed, abs=1e-6)
    # The boundary at height 1 and the origin span a plane; a sample's angle to it, from its normal.
    rays, normal = np.column_stack([iris[0], np.ones(len(iris[0]))]), np.array([*w, b])
    cosine = rays @ normal / np.linalg.norm(rays, axis=1) / np.linalg.norm(normal)
    assert display.angles == pytest.approx((math.pi / 2 - np.arccos(cosine)) * (2 * iris[1] - 1), abs=1e-9)


def test_support_points_are_the_models_own(iris):
    X, y = iris
    svm = SVC(kernel="linear")
    display = shown(svm, X, y)
    assert display.support.tolist() == sorted(svm.support_)
    assert sorted(map(tuple, drawn(display, "support point"))) == sorted(map(tuple, X[svm.support_]))
    assert f"support: {len(svm.support_)} on" in display.words
    assert shown(LogisticRegression(), X, y).support is None
    assert shown(MarginSoftmaxClassifier("none", kernel="rbf"), X, y).support is None  # support_ is something else
    hinge = LinearSVC(C=10.0)
    within = np.flatnonzero(hinge.fit(X, y).decision_function(X) * (2 * y - 1) <= 1)
    assert shown(hinge, X, y).support.tolist() == within.tolist()


@pytest.mark.parametrize(
    "model",
    [
        MarginSoftmaxClassifier(m=0.6, scale=30.0),
        MarginSoftmaxClassifier("cosface", m=0.3),
        MarginSoftmaxClassifier("sphereface", m=1.5, transform_to="features"),
        MarginSoftmaxClassifier(unit_weight=False, m=0.4),
        MarginSoftmaxClassifier(m=0.4, kernel="rbf"),
    ],
    ids=["arcface", "cosface", "sphereface", "free-lengths", "rbf"],
)
def test_lines_of_margin_softmax_are_where_the_margin_is_met(model, iris):
    X, y = iris
    display = shown(model, X, y, names=("a", "b"))
    model.set_params(transform_to="cosines")
    r = model.magnitudes_ / model.magnitudes_.max()

    def surplus(points, own):
        theta = np.arccos(model.transform(points))
        return r[own] * psi(model.margin_, theta[:, own].copy()) - r[1 - own] * np.cos(theta[:, 1 - own])

    for own, name in enumerate(("a: margin met", "b: margin met")):
        assert surplus(drawn(display, name), own) == pytest.approx(0, abs=1e-3)
    own = np.where(y == 0, surplus(X, 0), surplus(X, 1))
    assert display.support.tolist() == np.flatnonzero(own < 0).tolist()
    assert model.decision_function(drawn(display, "boundary")) == pytest.approx(
        0, abs=1e-3 * model.magnitudes_.max()
    )
    if model.unit_weight:
        W = model.class_vectors_ / np.linalg.norm(model.class_vectors_, axis=1, keepdims=True)
        assert display.band == pytest.approx(band_width(model.margin_, math.acos(W[0] @ W[1])))


def test_support_points_of_margin_softmax_have_less_than_half_with_the_margin(iris):
    """p_y < ½ with the margin, by the library's own loss."""
    import torch

    from hypermargin import margin_softmax

    X, y = iris
    model = MarginSoftmaxClassifier(m=0.6, scale=30.0).fit(X, y)
    features = torch.from_numpy(np.column_stack([X, np.full(len(X), model.intercept_scaling_)]))
    W = torch.from_numpy(model.class_vectors_)
    loss = margin_softmax(features, W, torch.from_numpy(y), model.margin_, scale=30.0, reduction="none")
    missed = np.flatnonzero(np.exp(-loss.numpy()) < 0.5)
    assert 0 < len(missed) < 10
    assert PlaneDisplay.of(model, X, y).support.tolist() == missed.tolist()


def test_a_pipeline_is_drawn_in_its_own_inputs(iris):
    X, y = iris
    moved = X * [3.0, 3.0] + [5.0, -2.0]
    plain = shown(MarginSoftmaxClassifier(m=0.6, scale=30.0), X, y)
    piped = shown(make_pipeline(StandardScaler(), MarginSoftmaxClassifier(m=0.6, scale=30.0)), moved, y)
    assert piped.support.tolist() == plain.support.tolist()
    assert piped.distances == pytest.approx(3 * plain.distances, rel=1e-4, abs=1e-4)
    assert piped.angles == pytest.approx(plain.angles, abs=1e-6)
    assert piped.band == pytest.approx(plain.band)


def test_a_kernel_has_no_angle_in_the_plane():
    X, y = make_moons(60, noise=0.1, random_state=0)
    display = shown(SVC(), X, y)
    assert np.isnan(display.angles).all()
    assert "°" not in display.words
    assert ((display.distances > 0) == (display.boundary != []) * (SVC().fit(X, y).predict(X) == y)).all()


def test_lines_may_be_out_of_view(iris):
    display = shown(LogisticRegression(C=1e-6), *iris)
    assert "out of view" in display.words
    display.plot()


def test_each_wins_by_its_own_measure(iris):
    """What docs/shallow.md says of the picture, and of the defaults, with which it is the other way round."""
    svm, logistic, arcface = plots.make("plane").panels
    assert svm.distances.min() > max(logistic.distances.min(), arcface.distances.min()) > 0
    assert arcface.angles.min() > max(svm.angles.min(), logistic.angles.min()) > 0
    assert math.degrees(arcface.band) == pytest.approx(math.degrees(0.6))
    for model, distance, angle in ((SVC(kernel="linear"), 0.42, 15.1), (MarginSoftmaxClassifier(), 0.48, 13.7)):
        display = shown(model, *iris)
        assert display.distances.min() == pytest.approx(distance, abs=0.006)
        assert math.degrees(display.angles.min()) == pytest.approx(angle, abs=0.06)


def test_words_of_a_model_that_is_never_right(iris):
    X, y = iris
    model = SVC(kernel="linear").fit(X, y)
    display = PlaneDisplay.of(model, X, 1 - y)
    assert "no sample is right" in display.words


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"X": np.ones((100, 3))}, r"X must have shape \(N, 2\), two features to draw; got \(100, 3\)"),
        ({"X": np.full((100, 2), np.nan)}, "X must be finite"),
        ({"y": np.zeros(7)}, r"y must have shape \(100,\)"),
        ({"y": np.full(100, 4)}, r"y must hold the model's classes \[0, 1\]; got 4"),
        ({"model": LogisticRegression()}, "model must be fitted; this LogisticRegression is not"),
        ({"model": MarginSoftmaxClassifier()}, "model must be fitted; this MarginSoftmaxClassifier is not"),
        ({"model": make_pipeline(StandardScaler(), SVC())}, "model must be fitted; this Pipeline is not"),
        ({"names": ["one"]}, "names must be 2 words"),
        ({"axes": "ab"}, "axes must be 2 words; got 'ab'"),
    ],
)
def test_mistakes(change, complaint, iris):
    given = {"model": SVC().fit(*iris), "X": iris[0], "y": iris[1]} | change
    with pytest.raises(ValueError, match=complaint):
        PlaneDisplay.of(**given)


def test_models_that_do_not_fit():
    X, y = load_iris(return_X_y=True)
    with pytest.raises(ValueError, match="model must be fitted on 2 classes; got 3"):
        PlaneDisplay.of(SVC().fit(X[:, :2], y), X[:, :2], y)
    two = y < 2
    with pytest.raises(ValueError, match="model must be fitted on 2 features; got 4"):
        PlaneDisplay.of(SVC().fit(X[two], y[two]), X[two, :2], y[two])
    with pytest.raises(TypeError, match=r"model must have a decision_function.*got Ridge"):
        PlaneDisplay.of(Ridge().fit(X[two, :2], y[two]), X[two, :2], y[two])
    svm = SVC(C=1e-3).fit(X[two, :2], y[two])
    with pytest.raises(ValueError, match="X must be the samples that model was fitted on; it has 60 rows"):
        PlaneDisplay.of(svm, X[two, :2][:60], y[two][:60])


def test_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs scikit-learn.*pip install scikit-learn$"):
        plots.make("plane")


@pytest.mark.parametrize("name", ["scale", "svm_c", "logistic_c"])
def test_numbers_are_positive(name):
    with pytest.raises(ValueError, match=f"{name} must be positive"):
        plots.make("plane", **{name: 0.0})
