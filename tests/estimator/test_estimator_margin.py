"""The default, the choice of m, and what other tools read of a fitted model."""

import warnings

import numpy as np
import pytest
from cases import FITTED
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.feature_selection import RFE, SelectFromModel
from sklearn.inspection import permutation_importance
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import StandardScaler

from hypermargin import margins
from hypermargin.estimator import MarginSoftmaxClassifier
from hypermargin.estimator.choosing import FOLDS, SHARES, folds, sizes
from hypermargin.margins import ArcFace, NoMargin

FREE = {"unit_weight": False, "unit_features": False}


def standardised(load):
    X, y = load(return_X_y=True)
    return StandardScaler().fit_transform(X), y


def test_the_default_has_no_margin():
    X, y = standardised(load_wine)
    default = MarginSoftmaxClassifier().fit(X, y)
    assert default.margin_ == NoMargin()
    assert default.m_ is None
    named = MarginSoftmaxClassifier("none").fit(X, y)
    np.testing.assert_array_equal(default.predict_proba(X), named.predict_proba(X))


def test_a_number_alone_is_arcfaces():
    """As it was when ArcFace was the default: code that gave m goes on as before, and no m is swallowed."""
    X, y = standardised(load_wine)
    model = MarginSoftmaxClassifier(m=0.3).fit(X, y)
    assert model.margin_ == ArcFace(0.3)
    assert model.m_ == 0.3
    assert MarginSoftmaxClassifier("none", m=0.3).fit(X, y).margin_ == NoMargin()  # one grid serves all
    grid = GridSearchCV(MarginSoftmaxClassifier(), {"m": [None, 0.1, "auto"]}, cv=2).fit(X, y)
    assert grid.best_score_ > 0.9


@pytest.mark.parametrize("name", FITTED)
def test_what_auto_tries(name):
    margin = margins.get(name)()
    tried = sizes(name)
    if margin.m is None:
        assert tried == [None]
        return
    assert tried[0] == margin.zero
    assert len(set(tried)) == len(SHARES)
    steps = [np.subtract(m, margin.zero) for m in tried]
    for share, step in zip(SHARES, steps, strict=True):
        assert step == pytest.approx(share * steps[3])
    for m in tried:  # each is allowed, for the name and for an object
        assert MarginSoftmaxClassifier(name, m=m).fit([[0.0], [1.0], [1.1]], [0, 1, 1]).m_ == m
    assert sizes(margin) == tried
    usual = MarginSoftmaxClassifier(name).fit([[0.0], [1.0], [1.1]], [0, 1, 1]).m_
    of_papers = "adaface", "sphereface2", "npcface", "li-arcface"  # which no modest m is known for
    assert name in of_papers or tried[3] == pytest.approx(usual)


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_auto_is_the_best_of_the_held_out_accuracies_and_refits(kernel):
    """By hand: the same parts, each m by itself."""
    X, y = standardised(load_digits)
    X, y = X[:240], y[:240]
    weight = np.random.default_rng(0).integers(0, 3, len(y)).astype(float)
    model = MarginSoftmaxClassifier(m="auto", kernel=kernel, random_state=3).fit(X, y, sample_weight=weight)
    rows = np.flatnonzero(weight)
    part = folds(X[rows], y[rows], 3)
    for m, score in model.m_scores_.items():
        right = 0.0
        for fold in range(FOLDS):
            learnt, held_out = rows[part != fold], rows[part == fold]
            each = MarginSoftmaxClassifier("arcface", m=m, kernel=kernel, random_state=3)
            each.fit(X[learnt], y[learnt], weight[learnt])
            right += weight[held_out] @ (each.predict(X[held_out]) == y[held_out])
        assert score == pytest.approx(right / weight.sum())
    best = max(model.m_scores_.values())
    assert model.m_ == min(m for m, score in model.m_scores_.items() if score == best)
    assert model.margin_ == ArcFace(model.m_)
    refit = MarginSoftmaxClassifier(m=model.m_, kernel=kernel, random_state=3).fit(X, y, weight)
    np.testing.assert_array_equal(model.predict_proba(X), refit.predict_proba(X))
    np.testing.assert_array_equal(model.predict_proba(X), clone(model).fit(X, y, weight).predict_proba(X))
    assert not hasattr(model.set_params(m=0.1).fit(X, y), "m_scores_")


def test_auto_takes_a_margin_only_where_it_pays():
    """Classes that overlap: a margin costs accuracy, so none is taken."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 8, 800)
    X = rng.normal(size=(8, 4))[y] + 0.9 * rng.normal(size=(800, 4))
    model = MarginSoftmaxClassifier(m="auto").fit(X[:400], y[:400])
    assert model.m_ < 0.2
    assert model.m_scores_[0.4] < model.m_scores_[model.m_]
    plain, usual = MarginSoftmaxClassifier(), MarginSoftmaxClassifier("arcface")
    assert model.score(X[400:], y[400:]) >= usual.fit(X[:400], y[:400]).score(X[400:], y[400:])
    assert plain.fit(X[:400], y[:400]).score(X[400:], y[400:]) > usual.score(X[400:], y[400:])


def test_parts_hold_equal_samples_together_and_every_class_alike():
    X, y = standardised(load_iris)
    part = folds(X, y, 0)
    for label in range(3):
        counts = np.bincount(part[y == label], minlength=FOLDS)
        assert np.ptp(counts) <= 2  # iris has duplicates
    order = np.random.default_rng(1).permutation(np.repeat(np.arange(len(y)), 2))
    np.testing.assert_array_equal(folds(X[order], y[order], 0), part[order])
    sparse = np.where(np.abs(X) > 0.5, X, -0.0)
    np.testing.assert_array_equal(folds(csr_array(sparse), y, 0), folds(sparse, y, 0))
    assert (folds(X, y, 1) != part).any()
    np.testing.assert_array_equal(folds(X, y, None), folds(X, y, None))  # fixed, too


def test_auto_with_few_samples_and_other_parameters():
    X, y = standardised(load_iris)
    rows = np.r_[0:4, 50:54, 100]  # a class of one: it is held out once, and taken for another
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = MarginSoftmaxClassifier(m="auto", class_weight={0: 3.0, 1: 1.0, 2: 1.0}).fit(X[rows], y[rows])
    assert max(model.m_scores_.values()) <= 1 - 1 / (4 * 3 + 4 + 1) + 1e-12
    K = X @ X.T
    same = MarginSoftmaxClassifier(m="auto", kernel="precomputed", intercept_scaling=1.0).fit(K, y)
    assert same.m_ in sizes(None)
    assert MarginSoftmaxClassifier("none", m="auto").fit(X, y).m_scores_ == {}
    with pytest.raises(ValueError, match='m="auto" needs samples to hold out'):
        MarginSoftmaxClassifier(m="auto").fit([[0.0], [1.0]], [0, 1])
    auto = MarginSoftmaxClassifier(m="auto")
    assert not hasattr(auto, "partial_fit")
    with pytest.raises(AttributeError) as caught:
        auto.partial_fit(X, y, classes=[0, 1, 2])
    assert 'partial_fit cannot choose m="auto"' in str(caught.value.__cause__)


@pytest.mark.parametrize("load", [load_iris, load_breast_cancer])
@pytest.mark.parametrize(
    "parameters",
    [
        {"unit_features": unit, "unit_weight": weight, "margin": margin, "fit_intercept": intercept, "scale": scale}
        for unit in (True, False)
        for weight, scale in ((True, "auto"), (True, 5.0), (False, "auto"), (False, 2.0))
        for margin, intercept in (("none", True), ("arcface", True), ("cosface", False))
    ],
)
def test_where_there_is_a_coef_decisions_are_linear(load, parameters):
    X, y = standardised(load)
    model = MarginSoftmaxClassifier(**parameters, tol=1e-2).fit(X, y)
    z = model.decision_function(X).reshape(len(y), -1)
    assert hasattr(model, "coef_") == hasattr(model, "intercept_") == (not parameters["unit_features"])
    if hasattr(model, "coef_"):
        np.testing.assert_allclose(X @ model.coef_.T + model.intercept_, z, atol=1e-10 * np.abs(z).max())
        return
    lengths = np.hypot(np.linalg.norm(X, axis=1), model.intercept_scaling_)
    numerators = X @ model.boundary_coef_.T + model.boundary_intercept_
    np.testing.assert_allclose(numerators / lengths[:, None], z, atol=1e-10 * np.abs(z).max())
    with pytest.raises(
        AttributeError, match=r"coef_: with unit_features=True .* is not linear in X.*boundary_coef_"
    ):
        _ = model.coef_
    with pytest.raises(AttributeError, match="intercept_: with unit_features=True"):
        _ = model.intercept_


def test_a_model_with_a_kernel_or_not_fitted_has_none():
    X, y = standardised(load_iris)
    for approximation in ("exact", "nystroem"):
        model = MarginSoftmaxClassifier(kernel="rbf", approximation=approximation, **FREE).fit(X, y)
        for name in ("coef_", "intercept_", "boundary_coef_", "feature_importances_"):
            with pytest.raises(AttributeError, match=f"{name}: with a kernel the model has no weights by feature"):
                getattr(model, name)
    fresh = MarginSoftmaxClassifier()
    assert not any(hasattr(fresh, name) for name in ("coef_", "intercept_", "boundary_intercept_"))


def test_tools_that_choose_features_go_on():
    """Two features decide, the third does not; one that all classes want alike decides nothing either."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 300)
    X = np.column_stack([np.array([[2, 0], [0, 2], [-2, -2]])[y], 3 + np.zeros(300)])
    X += 0.5 * rng.normal(size=X.shape)
    for parameters in ({}, FREE, {"m": 0.2}, {"scale": 20.0}):
        model = MarginSoftmaxClassifier(**parameters)
        assert SelectFromModel(model).fit(X, y).get_support().tolist() == [True, True, False], parameters
        assert RFE(model, n_features_to_select=2).fit(X, y).get_support().tolist() == [True, True, False]
        found = model.fit(X, y).feature_importances_
        assert found.shape == (3,)
        assert found[2] < 0.5 * found[:2].min()
        measured = permutation_importance(model, X, y, n_repeats=2, random_state=0).importances_mean
        assert measured.argmin() == 2
