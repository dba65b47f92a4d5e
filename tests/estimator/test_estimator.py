"""MarginSoftmaxClassifier as users of scikit-learn know an estimator, and beside scikit-learn's own."""

import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from cases import FITTED
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from threadpoolctl import threadpool_info, threadpool_limits

import hypermargin as hm
from hypermargin.estimator import MarginSoftmaxClassifier
from hypermargin.estimator.objective import Data, MagnitudeObjective, Objective
from hypermargin.margins import ArcFace, Combined, NoMargin

PLAIN = {"margin": "none", "unit_weight": False, "unit_features": False}
# One of each kind: s fitted, angle only, both, alternated, free features, logistic regression, kernels.
KINDS = {
    "auto": {},
    "arcface": {"margin": "arcface"},
    "angle": {"margin": "arcface", "scale": 20.0},
    "both": {"margin": "arcface", "unit_weight": False},
    "alternated": {"margin": "arcface", "unit_weight": False, "alternate": True},
    "l-softmax": {"margin": "sphereface", "unit_weight": False, "unit_features": False},
    "plain": PLAIN,
    "rbf": {"kernel": "rbf"},
    "import": {"margin": "cosface", "kernel": "rbf", "approximation": "import", "n_components": 12},
}
over_kinds = pytest.mark.parametrize("kind", KINDS)


def standardised(load):
    X, y = load(return_X_y=True)
    return StandardScaler().fit_transform(X), y


def classifier(kind, **more):
    return MarginSoftmaxClassifier(**(KINDS[kind] | more))


@parametrize_with_checks([classifier(kind) for kind in ("auto", "rbf")])
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [classifier(kind) for kind in ("angle", "both", "alternated", "l-softmax", "plain", "arcface")]
    + [MarginSoftmaxClassifier(m="auto", **KINDS[kind]) for kind in ("auto", "both", "rbf", "import")]
    + [MarginSoftmaxClassifier(margin) for margin in FITTED]
    + [MarginSoftmaxClassifier(solver="adam", random_state=0), MarginSoftmaxClassifier(kernel="poly")]
    + [MarginSoftmaxClassifier(kernel="rbf", approximation="import", n_components=10)]
)
def test_scikit_learns_own_checks_of_every_kind(estimator, check):
    check(estimator)


@pytest.mark.parametrize("load", [load_iris, load_wine, load_breast_cancer, load_digits])
def test_without_margin_and_with_free_lengths_it_is_logistic_regression(load):
    """For two classes scikit-learn has one vector w = W_1 − W_0, and at the optimum |W_0|² + |W_1|² = |w|²/2."""
    X, y = standardised(load)
    C = 1.0 if len(np.unique(y)) > 2 else 2.0
    with threadpool_limits(1):  # its two BLAS pools stand in each other's way
        theirs = LogisticRegression(C=C, tol=1e-10, max_iter=10_000).fit(X, y)
    ours = MarginSoftmaxClassifier(**PLAIN, alpha=1.0, tol=1e-10, max_iter=10_000).fit(X, y)
    assert ours.coef_.shape == theirs.coef_.shape
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-5)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-5)
    np.testing.assert_allclose(ours.decision_function(X), theirs.decision_function(X), atol=1e-4)


def test_it_is_logistic_regression_with_weights_and_without_intercept():
    X, y = standardised(load_wine)
    weight = np.random.default_rng(0).random(len(y))
    for intercept in (True, False):
        options = {"fit_intercept": intercept, "class_weight": "balanced", "tol": 1e-9, "max_iter": 10_000}
        theirs = LogisticRegression(C=0.5, **options).fit(X, y, weight)
        ours = MarginSoftmaxClassifier(**PLAIN, alpha=2.0, **options).fit(X, y, weight)
        np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-6)


@pytest.mark.parametrize("margin", FITTED)
@pytest.mark.parametrize("kind", ["angle", "l-softmax"])
def test_the_gradient_of_the_librarys_loss_vanishes_at_the_fit(margin, kind):
    """By `margin_softmax` and autograd: what was found is a minimum of the loss that is promised."""
    X, y = standardised(load_wine)
    if margin in ("adaface", "sphereface2", "x2-softmax", "npcface", "kappaface", "dyn-arcface"):
        kind = "angle"  # margins this large let free class vectors shrink to nothing, where the loss has a kink
    kind = "angle" if margin == "none" else kind
    model = classifier(kind, margin=margin, tol=1e-7, max_iter=20_000).fit(X, y)
    rows = model._space(X)
    W = torch.tensor(model.class_vectors_, requires_grad=True)
    weight = 20 * torch.nn.functional.normalize(W) if kind == "angle" else W
    loss = hm.margin_softmax(
        torch.tensor(rows), weight, torch.tensor(y), model.margin_, unit_features=False, unit_weight=False
    )
    if kind != "angle":
        loss = loss + model.alpha_ / 2 / len(y) * W.square().sum()
    (gradient,) = torch.autograd.grad(loss, W)
    assert gradient.abs().max() < 1e-5
    assert model.loss_curve_[-1] == pytest.approx(loss.item(), abs=1e-6)


@pytest.mark.parametrize("margin", ["arcface", "cosface", "sphereface"])
@pytest.mark.parametrize("load", [load_iris, load_wine, load_breast_cancer])
def test_the_minimum_does_not_depend_on_the_start(load, margin):
    """The loss is not convex, but class means and random class vectors end in the same place."""
    X, y = standardised(load)
    model = classifier("angle", margin=margin, tol=1e-6, warm_start=True).fit(X, y)
    right = model.loss_curve_[-1]
    rng = np.random.default_rng(0)
    for _ in range(3):
        model.class_vectors_ = rng.normal(size=model.class_vectors_.shape)
        assert model.fit(X, y).loss_curve_[0] > 1.1 * right
        assert model.loss_curve_[-1] == pytest.approx(right, abs=1e-5)


@pytest.mark.parametrize("load", [load_wine, load_breast_cancer])
@pytest.mark.parametrize("kind", ["arcface", "alternated"])
def test_where_angle_and_magnitude_settle_neither_wants_to_move(kind, load):
    """On breast cancer they overshoot each other if both have their way."""
    X, y = standardised(load)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = classifier(kind, tol=1e-6, max_iter=20_000).fit(X, y)
    data = Data(model._space(X), y, np.ones(len(y)))
    _, turning, _ = Objective(data, model.margin_, 0.0, model.magnitudes_)(model.class_vectors_, None)
    _, stretching = MagnitudeObjective(data, data.X @ model.class_vectors_.T, model.alpha_)(model.magnitudes_)
    assert np.abs(turning).max() < 1e-4
    assert np.abs(stretching.sum() if kind == "arcface" else stretching).max() < 1e-6
    assert (np.ptp(model.magnitudes_) == 0) == (kind == "arcface")


def test_a_margin_turns_the_class_vectors_away_from_each_other():
    """The inputs are fixed: with more m the boundary moves, and the training cosines to the own class rise."""
    X, y = standardised(load_digits)
    own, apart = [], []
    for m in (0.0, 0.2, 0.5):
        model = MarginSoftmaxClassifier(m=m, scale=20.0).fit(X, y)
        own.append(model.transform(X)[np.arange(len(y)), y].mean())
        apart.append((model.class_vectors_ @ model.class_vectors_.T)[~np.eye(10, dtype=bool)].mean())
    assert own[0] < own[1] < own[2]
    assert apart[0] > apart[1] > apart[2]


def test_every_parameter_can_be_set_and_is_used():
    """Each changed from its default changes the fit, or what comes out; none is swallowed."""
    X, y = standardised(load_iris)
    shapes = {"kernel": "rbf", "approximation": "exact"}
    changes = {
        "margin": "cosface", "m": 0.4, "scale": 5.0, "unit_weight": False, "unit_features": False, "alpha": 1.0,
        "fit_intercept": False, "intercept_scaling": 3.0, "kernel": "poly", "solver": "adam", "tol": 1e-2,
        "max_iter": 3, "class_weight": {0: 5.0}, "alternate": (True, {"unit_weight": False}),
        "gamma": (0.01, shapes), "degree": (2, {"kernel": "poly"}), "coef0": (1.0, {"kernel": "poly"}),
        "approximation": ("import", shapes), "n_components": (3, {"kernel": "rbf", "approximation": "import"}),
        "learning_rate": (0.001, {"solver": "adam", "max_iter": 5}),
        "batch_size": (10, {"solver": "adam", "max_iter": 5}),
        "random_state": (7, {"solver": "adam", "max_iter": 5, "batch_size": 20}),
        "early_stopping": (True, {"random_state": 0, "n_iter_no_change": 2}),
        "validation_fraction": (0.4, {"early_stopping": True, "random_state": 0}),
        "n_iter_no_change": (1, {"early_stopping": True, "random_state": 0}),
    }  # fmt: skip
    elsewhere = {"warm_start", "transform_to", "verbose"}  # have tests of their own
    assert set(changes) | elsewhere == set(MarginSoftmaxClassifier().get_params())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for name, change in changes.items():
            value, base = change if isinstance(change, tuple) else (change, {})
            base = {"random_state": 0} | base if name != "random_state" else {**base, "random_state": 0}
            before = MarginSoftmaxClassifier(**base).fit(X, y).predict_proba(X)
            after = MarginSoftmaxClassifier(**base).set_params(**{name: value}).fit(X, y).predict_proba(X)
            assert np.abs(before - after).max() > 1e-6, name


@over_kinds
def test_cloned_pickled_and_repeated_fits_are_the_same(kind):
    X, y = standardised(load_iris)
    model = classifier(kind).fit(X, y)
    again = clone(model).fit(X, y)
    kept = pickle.loads(pickle.dumps(model))
    for other in (again, kept):
        np.testing.assert_array_equal(other.predict_proba(X), model.predict_proba(X))
    assert kept.margin_ == model.margin_


@over_kinds
def test_weights_are_repetitions(kind):
    """Of the samples, whatever is fitted; import vectors too, whose choice knows of weights."""
    X, y = standardised(load_iris)
    counts = np.random.default_rng(0).integers(0, 3, len(y))
    weighted = classifier(kind, tol=1e-6).fit(X, y, sample_weight=counts)
    repeated = classifier(kind, tol=1e-6).fit(np.repeat(X, counts, 0), np.repeat(y, counts))
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), atol=1e-4)


@over_kinds
def test_sparse_matrices(kind):
    X, y = standardised(load_iris)
    X = np.where(np.abs(X) > 0.5, X, 0.0)
    dense, sparse = classifier(kind).fit(X, y), classifier(kind).fit(csr_array(X), y)
    # "both" ends in a kink here: a class vector shrinks to nothing, which frees it of the margin.
    atol = 0.02 if kind == "both" else 1e-6
    np.testing.assert_allclose(sparse.predict_proba(csr_array(X)), dense.predict_proba(X), atol=atol)
    np.testing.assert_allclose(dense.predict_proba(csr_array(X)), dense.predict_proba(X), atol=1e-9)
    if kind != "both":
        np.testing.assert_allclose(sparse.transform(csr_array(X)), dense.transform(X), atol=atol)


@pytest.mark.parametrize(
    "labels",
    [["setosa", "versicolor", "virginica"], [-7, 0, 40], [0.0, 1.0, 2.0], np.array(["x", "yy", "z"], dtype=object)],
)
def test_any_labels(labels):
    X, y = standardised(load_iris)
    named = np.asarray(labels)[y]
    model = MarginSoftmaxClassifier().fit(X, named)
    np.testing.assert_array_equal(model.classes_, np.unique(named))
    assert model.score(X, named) == MarginSoftmaxClassifier().fit(X, y).score(X, y)
    two = MarginSoftmaxClassifier().fit(X, y > 0)
    assert two.predict(X).dtype == bool
    assert two.decision_function(X).shape == (len(y),)
    np.testing.assert_array_equal(two.decision_function(X) > 0, two.predict(X))


@over_kinds
def test_probabilities_and_decisions_agree(kind):
    for load in (load_iris, load_breast_cancer):
        X, y = standardised(load)
        model = classifier(kind).fit(X, y)
        p = model.predict_proba(X)
        np.testing.assert_allclose(p.sum(1), 1.0)
        np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), p, rtol=1e-9)
        np.testing.assert_array_equal(model.classes_[p.argmax(1)], model.predict(X))
        z = model.decision_function(X)
        if z.ndim == 1:
            np.testing.assert_allclose(1 / (1 + np.exp(-z)), p[:, 1], rtol=1e-9)
        else:
            np.testing.assert_allclose(np.exp(z) / np.exp(z).sum(1, keepdims=True), p, rtol=1e-9)
        if hasattr(model, "boundary_coef_"):
            length = np.hypot(np.linalg.norm(X, axis=1), model.intercept_scaling_) if model.unit_features else 1.0
            linear = (X @ model.boundary_coef_.T + model.boundary_intercept_).T / length
            np.testing.assert_allclose(linear.T.squeeze(), z, atol=1e-9)
        assert np.abs(model.transform(X)).max() <= 1 + 1e-12
        assert model.score(X, y) > 0.9


def test_transform_gives_cosines_or_unit_features():
    X, y = standardised(load_iris)
    frame = pd.DataFrame(X, columns=list("abcd"))
    model = MarginSoftmaxClassifier().set_output(transform="pandas").fit(frame, y)
    cosines = model.transform(frame)
    assert list(cosines.columns) == [f"marginsoftmaxclassifier{i}" for i in range(3)]
    assert list(model.feature_names_in_) == list("abcd")
    rows = np.column_stack([X, np.full(len(X), model.intercept_scaling_)])
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(cosines, rows @ model.class_vectors_.T, atol=1e-12)
    np.testing.assert_allclose(
        MarginSoftmaxClassifier(transform_to="features").fit_transform(X, y), rows, atol=1e-12
    )
    near = make_pipeline(MarginSoftmaxClassifier(), KNeighborsClassifier()).fit(X, y)
    assert near.score(X, y) > 0.95
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename(columns={"a": "A"}))


def test_in_scikit_learns_company():
    X, y = load_wine(return_X_y=True)
    pipe = make_pipeline(StandardScaler(), MarginSoftmaxClassifier())
    assert cross_val_score(pipe, X, y).mean() > 0.95
    grid = {"margin": ["none", ArcFace(), "cosface"], "m": [0.1, 0.2], "kernel": ["linear", "rbf"]}
    grid = {f"marginsoftmaxclassifier__{name}": values for name, values in grid.items()}
    assert GridSearchCV(pipe, grid, cv=3).fit(X, y).best_score_ > 0.95
    calibrated = CalibratedClassifierCV(pipe, cv=3, ensemble=False).fit(X, y)
    np.testing.assert_allclose(calibrated.predict_proba(X).sum(1), 1.0)
    with sklearn.config_context(enable_metadata_routing=True):
        scaler = StandardScaler().set_fit_request(sample_weight=False)
        routed = make_pipeline(scaler, MarginSoftmaxClassifier().set_fit_request(sample_weight=True))
        weight = np.where(y == 0, 10.0, 1.0)
        weighted = routed.fit(X, y, sample_weight=weight).predict_proba(X)
    direct = MarginSoftmaxClassifier().fit(StandardScaler().fit_transform(X), y, weight)
    np.testing.assert_allclose(weighted, direct.predict_proba(StandardScaler().fit_transform(X)))


def test_the_heads_of_the_family_by_name():
    X, y = standardised(load_iris)
    for name, recipe in hm.recipes.FAMILY.items():
        if recipe.group not in ("classic", hm.recipes.PSI):
            with pytest.raises(ValueError, match=f"head='{name}' cannot be a classifier of given features: "):
                MarginSoftmaxClassifier.of(name)
            continue
        model = MarginSoftmaxClassifier.of(name).fit(X, y)
        assert type(model.margin_) is type(recipe.margin)
        assert (model.unit_weight, model.unit_features) == (recipe.unit_weight, recipe.unit_features)
        assert model.score(X, y) > 0.9
    assert MarginSoftmaxClassifier.of("arcface", m=0.05).m == 0.05
    assert MarginSoftmaxClassifier("combined", m=(1.1, 0.1, 0.0)).fit(X, y).margin_ == Combined(1.1, 0.1, 0.0)
    assert MarginSoftmaxClassifier(NoMargin()).fit(X, y).margin_ == NoMargin()
    with pytest.raises(ValueError, match=r"head must be one of softmax, .*got 'soft'"):
        MarginSoftmaxClassifier.of("soft")


def test_a_warm_start_begins_where_the_last_fit_ended():
    X, y = standardised(load_digits)
    for kind in ("auto", "angle", "both", "plain"):
        model = classifier(kind, warm_start=True, tol=1e-5).fit(X, y)
        first = model.n_iter_
        assert model.fit(X, y).n_iter_ < first / 3, kind
    model.fit(X[:, :30], y)  # other features: from the beginning
    assert model.boundary_coef_.shape == (10, 30)


def test_early_stopping_keeps_the_best():
    X, y = standardised(load_digits)
    for solver, scale in (("lbfgs", 60.0), ("lbfgs", "auto"), ("adam", 60.0)):
        options = {"solver": solver, "scale": scale, "n_iter_no_change": 3, "validation_fraction": 0.2}
        model = MarginSoftmaxClassifier(early_stopping=True, random_state=0, **options).fit(X, y)
        best = int(np.argmax(model.validation_scores_))
        held = train_test_split(
            np.arange(len(y)), test_size=0.2, stratify=y, random_state=np.random.RandomState(0)
        )[1]
        assert model.score(X[held], y[held]) == pytest.approx(max(model.validation_scores_))
        if scale == "auto":  # s is fitted to the class vectors that are kept
            rest = np.setdiff1d(np.arange(len(y)), held)
            data = Data(model._space(X[rest]), y[rest], np.ones(len(rest)))
            projections = data.X @ model.class_vectors_.T
            _, slope = MagnitudeObjective(data, projections, model.alpha_)(model.magnitudes_)
            assert abs(slope.sum()) < 1e-6
        assert len(model.validation_scores_) == best + 1 + 3 == model.n_iter_
        assert model.n_iter_ == len(model.loss_curve_)
    with pytest.raises(ValueError, match="needs at least 2 samples of every class"):
        MarginSoftmaxClassifier(early_stopping=True).fit([[0.0], [1.0], [2.0]], [0, 0, 1])
    with pytest.raises(ValueError, match=r"validation_fraction=0\.1 would hold out 1 of 4 samples; 2 classes need"):
        MarginSoftmaxClassifier(early_stopping=True).fit([[0.0], [1.0], [2.0], [3.0]], [0, 0, 1, 1])


def test_early_stopping_with_kernels_and_weights():
    X, y = standardised(load_iris)
    options = {"early_stopping": True, "random_state": 0, "validation_fraction": 0.2}
    model = MarginSoftmaxClassifier(kernel="rbf", **options).fit(X, y)
    np.testing.assert_array_equal(X[model.support_], model.support_vectors_)
    K = rbf_kernel(X, X, 0.25)
    before = K.copy()
    same = MarginSoftmaxClassifier(kernel="precomputed", **options).fit(K, y)
    np.testing.assert_array_equal(K, before)
    assert (
        same.validation_scores_
        == MarginSoftmaxClassifier(kernel="rbf", gamma=0.25, **options).fit(X, y).validation_scores_
    )
    weight = np.where(np.arange(len(y)) % 5 == 0, 1.0, 0.0)  # rows without weight validate nothing
    weighted = MarginSoftmaxClassifier(**options).fit(X, y, sample_weight=weight)
    assert np.isfinite(weighted.validation_scores_).all()
    assert set(np.round(np.array(weighted.validation_scores_) * 6, 9)) <= set(range(7))


def test_fits_in_threads_give_the_threads_of_others_back():
    X, y = standardised(load_iris)

    def pools():
        return [each["num_threads"] for each in threadpool_info()]

    with threadpool_limits(2):  # a fit takes one
        before = pools()
        assert set(before) == {2}
        with ThreadPoolExecutor(4) as pool:
            list(
                pool.map(lambda i: MarginSoftmaxClassifier(max_iter=50 + i, tol=0.01).fit(X[i:], y[i:]), range(20))
            )
        assert pools() == before
        with pytest.raises(ValueError, match="too large"):
            MarginSoftmaxClassifier(**PLAIN).fit(X * 1e300, y)
        assert pools() == before


def test_the_features_unit_does_not_matter():
    """With alpha = 0; where lengths are free the magnitudes take the inverse unit."""
    X, y = standardised(load_iris)
    right = MarginSoftmaxClassifier(unit_features=False, alpha=0.0).fit(X, y).predict_proba(X)
    for unit in (1e-8, 1e-4, 1e4, 1e8):
        other = MarginSoftmaxClassifier(unit_features=False, alpha=0.0, tol=1e-4).fit(X * unit, y)
        np.testing.assert_allclose(other.predict_proba(X * unit), right, atol=2e-3)


def test_a_fit_that_begins_at_the_end():
    X, y = standardised(load_iris)
    model = MarginSoftmaxClassifier(**PLAIN, warm_start=True).fit(X, y).fit(X, y)
    assert model.n_iter_ == len(model.loss_curve_) == 1
    with torch.no_grad():
        MarginSoftmaxClassifier().fit(X, y)


def test_a_kink_is_not_called_converged():
    """Jointly, the margin costs |W_y|·(cos θ − ψ): a class vector that shrinks to nothing is free of it."""
    X, y = standardised(load_wine)
    with pytest.warns(ConvergenceWarning, match="stands still in a kink"):
        model = MarginSoftmaxClassifier("sphereface", unit_weight=False, tol=1e-5).fit(X, y)
    assert model.magnitudes_.min() < 1e-3 * model.magnitudes_.max()


def test_nothing_of_an_earlier_fit_stays():
    X, y = standardised(load_iris)
    model = MarginSoftmaxClassifier(early_stopping=True, random_state=0).fit(X, y)
    model.set_params(kernel="rbf", early_stopping=False, transform_to="features").fit(X, y)
    assert not hasattr(model, "boundary_coef_")
    assert not hasattr(model, "validation_scores_")
    assert len(model.get_feature_names_out()) == model.transform(X).shape[1]
    model.set_params(kernel="linear", transform_to="cosines").fit(X, y)
    assert not any(hasattr(model, name) for name in ("support_", "support_vectors_", "dual_coef_"))
    assert len(model.get_feature_names_out()) == 3


def test_adam_finds_what_lbfgs_finds():
    X, y = standardised(load_digits)
    for kind in ("auto", "plain", "l-softmax"):
        full = classifier(kind).fit(X, y)
        batches = classifier(kind, solver="adam", random_state=0).fit(X, y)
        assert batches.loss_curve_[-1] == pytest.approx(full.loss_curve_[-1], rel=0.03)
        assert np.abs(full.predict_proba(X) - batches.predict_proba(X)).mean() < 0.005
        assert (full.predict(X) == batches.predict(X)).mean() > 0.99


@pytest.mark.parametrize("kind", ["auto", "plain", "rbf"])
def test_partial_fit_goes_on(kind):
    X, y = standardised(load_digits)
    parts = np.array_split(np.random.default_rng(0).permutation(len(y)), 6)
    model = classifier(kind, random_state=0, learning_rate=0.03, n_components=100)
    for epoch in range(4):
        for rows in parts:
            model.partial_fit(X[rows], y[rows], classes=np.arange(10))
        if epoch == 1:
            kept = pickle.loads(pickle.dumps(model))
    assert model.n_iter_ == len(model.loss_curve_) == 24
    assert model.score(X, y) > 0.85
    for _ in range(2):  # a pickled half-trained model goes on to the same place
        for rows in parts:
            kept.partial_fit(X[rows], y[rows])
    np.testing.assert_array_equal(kept.class_vectors_, model.class_vectors_)
    fitted = classifier(kind, random_state=0, approximation="nystroem", n_components=100).fit(X, y)
    before = fitted.score(X, y)
    assert fitted.partial_fit(X, y).score(X, y) > before - 0.02


def test_partial_fit_goes_on_with_what_may_change_and_refuses_the_rest():
    X, y = standardised(load_iris)
    model = MarginSoftmaxClassifier(random_state=0).partial_fit(X, y, classes=[0, 1, 2])
    before = model.class_vectors_.copy()
    model.set_params(margin="cosface", alpha=100.0, learning_rate=1e-9).partial_fit(X, y)
    assert model.margin_.name == "cosface"
    np.testing.assert_allclose(model.class_vectors_, before, atol=1e-7)
    for change in ({"kernel": "rbf"}, {"unit_features": False}, {"scale": 3.0}, {"unit_weight": False}):
        with pytest.raises(ValueError, match="goes on with the model there is"):
            clone(model).partial_fit(X, y, classes=[0, 1, 2]).set_params(**change).partial_fit(X, y)
    with pytest.raises(
        ValueError, match=r"classes must be those of the first call, \[0, 1, 2\]; got \[0, 1, 2, 7\]"
    ):
        model.partial_fit(X, y, classes=[0, 1, 2, 7])
    steps = model.n_iter_
    assert model.partial_fit(X, y, sample_weight=np.zeros(len(y))).n_iter_ == steps  # nothing came
    few = model.partial_fit(X[:50], y[:50])  # a batch that lacks classes
    assert few.n_iter_ == steps + 1


def test_a_few_more_samples_after_a_fit_do_not_outweigh_it():
    """The penalty is shared out among the samples of the fit and those that come."""
    X, y = standardised(load_digits)
    model = MarginSoftmaxClassifier(**PLAIN, alpha=10.0, random_state=0).fit(X, y)
    before = np.abs(model.coef_).max()
    for first in range(0, 300, 10):
        model.partial_fit(X[first : first + 10], y[first : first + 10])
    assert np.abs(model.coef_).max() > 0.9 * before


def test_partial_fit_complains():
    X, y = standardised(load_iris)
    with pytest.raises(ValueError, match="classes must be given to the first call"):
        MarginSoftmaxClassifier().partial_fit(X, y)
    with pytest.raises(ValueError, match="2 is not among"):
        MarginSoftmaxClassifier().partial_fit(X, y, classes=[0, 1])
    with pytest.raises(ValueError, match="'balanced' needs all samples"):
        MarginSoftmaxClassifier(class_weight="balanced").partial_fit(X, y, classes=[0, 1, 2])
    for parameters in ({"kernel": "rbf", "approximation": "exact"}, {"kernel": "precomputed"}):
        whole = MarginSoftmaxClassifier(**parameters)
        assert not hasattr(whole, "partial_fit")
        with pytest.raises(AttributeError) as caught:
            whole.partial_fit(X, y, classes=[0, 1, 2])
        assert "made of all samples" in str(caught.value.__cause__)


def test_a_fit_that_does_not_converge_warns_as_scikit_learn_does():
    X, y = standardised(load_digits)
    for solver in ("lbfgs", "adam"):
        with pytest.warns(ConvergenceWarning, match=r"failed to converge: .* Increase max_iter"):
            MarginSoftmaxClassifier(max_iter=3, solver=solver).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MarginSoftmaxClassifier().fit(X, y)


def test_verbose_prints_the_loss(capsys):
    X, y = standardised(load_iris)
    model = MarginSoftmaxClassifier(verbose=True).fit(X, y)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == model.n_iter_
    assert lines[0] == f"iteration 1  loss {model.loss_curve_[0]:.6f}"


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"margin": "arc"}, "unknown margin 'arc'.*Did you mean 'arcface'"),
        ({"margin": 3}, r"margin must be a Margin such as .*got 3"),
        ({"m": "big"}, 'm must be a number or "auto" for ArcFace; got .big'),
        ({"m": -1.0}, r"ArcFace\(m=…\) must lie in \[0, 3.14159\); got -1"),
        ({"margin": "combined", "m": 0.1}, "m must be 3 numbers, m1, m2, m3, or .auto. for Combined; got 0.1"),
        ({"scale": -2}, r'scale must be a number in \(0, inf\) or "auto"; got -2'),
        ({"scale": "big"}, "scale must be a number .*got 'big'"),
        ({"alpha": -1}, r"alpha must be a number in \[0, inf\)"),
        ({"alternate": True, "scale": 3.0}, 'alternate=True fits the magnitudes.*got scale=3.0'),
        ({"unit_weight": "yes"}, "unit_weight must be True or False; got 'yes'"),
        ({"kernel": "rbg"}, "kernel must be one of .*Did you mean 'rbf'"),
        ({"kernel": "poly", "approximation": "fourier"}, 'is for kernel="rbf"; got .poly'),
        ({"gamma": 0}, "gamma must be a number"),
        ({"solver": "sag"}, "solver must be one of 'auto', 'lbfgs', 'adam'; got 'sag'"),
        ({"max_iter": 0}, "max_iter must be a whole number, at least 1; got 0"),
        ({"tol": 0.0}, "tol must be a number in"),
        ({"validation_fraction": 1.0}, "validation_fraction must be a number in"),
        ({"transform_to": "x"}, "transform_to must be one of"),
        ({"class_weight": "even"}, "class_weight"),
        ({"kernel": lambda A, B: np.ones(3)}, "kernel must return a matrix"),
        ({"kernel": lambda A, B: np.full((len(A), len(B)), np.nan)}, "kernel returned NaN"),
        ({"kernel": lambda A, B: A @ B.T + np.arange(len(B))}, "kernel must be symmetric"),
        ({"kernel": lambda A, B: -A @ B.T}, "kernel must be positive semi-definite"),
    ],
)  # fmt: skip
def test_wrong_parameters_are_named(parameters, message):
    X, y = standardised(load_iris)
    with pytest.raises((ValueError, TypeError), match=message):
        MarginSoftmaxClassifier(**parameters).fit(X, y)


def test_bad_data_is_named():
    X, y = standardised(load_iris)
    for value, word in ((np.nan, "NaN"), (np.inf, "infinity")):
        bad = X.copy()
        bad[3, 1] = value
        with pytest.raises(ValueError, match=word):
            MarginSoftmaxClassifier().fit(bad, y)
        with pytest.raises(ValueError, match=word):
            MarginSoftmaxClassifier().fit(X, y).predict(bad)
    with pytest.raises(ValueError, match=r"at least 2 classes; y has only one class: 0\.0"):
        MarginSoftmaxClassifier().fit(X, np.zeros(len(y)))
    with pytest.raises(ValueError, match="of one class; at least 2 classes are needed"):
        MarginSoftmaxClassifier().fit(X, y, sample_weight=y == 0)
    with pytest.raises(ValueError, match="sample_weight must not be negative"):
        MarginSoftmaxClassifier().fit(X, y, sample_weight=y - 1.0)
    with pytest.raises(ValueError, match="too large to multiply"):
        MarginSoftmaxClassifier(**PLAIN).fit(X * 1e300, y)
    model = MarginSoftmaxClassifier().fit(X, y)
    before = model.predict(X)
    with pytest.raises(ValueError, match="one class"):
        model.fit(X, np.zeros(len(y)))
    np.testing.assert_array_equal(model.predict(X), before)  # a fit that fails leaves the last one


def test_huge_features_are_fine_where_only_their_direction_counts():
    X, y = standardised(load_iris)
    small, huge = (MarginSoftmaxClassifier().fit(X * size, y) for size in (1.0, 1e200))
    np.testing.assert_allclose(huge.predict_proba(X * 1e200), small.predict_proba(X), atol=1e-6)
