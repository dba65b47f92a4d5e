"""`MarginSoftmaxClassifier`: what a user of scikit-learn sees."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_softmax, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from hypermargin import checks
from hypermargin.estimator import inputs
from hypermargin.estimator.choosing import M, choose, sizes
from hypermargin.estimator.features import Landmarks
from hypermargin.estimator.going_on import check_unchanged, continued, may_come_in_parts
from hypermargin.estimator.linear_form import LinearForm, of_difference
from hypermargin.estimator.objective import Array, Data, row_norms
from hypermargin.estimator.settings import OUTPUTS, check_rest, is_auto, problem_of, why_not
from hypermargin.estimator.solvers import Problem, State, entries, fit_magnitudes, lbfgs, start, unit
from hypermargin.estimator.space import Space, settle
from hypermargin.estimator.stochastic import Adam, stochastic
from hypermargin.estimator.watch import Watcher
from hypermargin.margins import Margin
from hypermargin.recipes import FAMILY

LBFGS_ENTRIES = 50_000_000  # of X and the logits, up to which all rows are taken at once


class MarginSoftmaxClassifier(
    LinearForm, ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClassifierMixin, BaseEstimator
):
    """Softmax as a classifier by itself, by angle, with a margin if wanted; linear or with a kernel.

    Minimises Σ_i a_i·softplus(R_i − T_i) + α/2·Σ_j |W_j|², where T = |x||W_y|·ψ(θ_y) carries the margin and R is
    the log-sum-exp of the other classes; predictions are made without the margin. The features are given, so a
    margin moves the boundary, not the data. Scale them first (`StandardScaler`), as for LogisticRegression or SVC.

        MarginSoftmaxClassifier()                                     cosines, s fitted; no margin
        MarginSoftmaxClassifier(m="auto")                             ArcFace, m chosen by cross-validation
        MarginSoftmaxClassifier("none", unit_weight=False,
                                unit_features=False)                  multinomial logistic regression, C = 1
        MarginSoftmaxClassifier("cosface", m=0.1, kernel="rbf")       with a kernel, as SVC
        MarginSoftmaxClassifier.of("l-softmax", alpha=0.1)            a head of the family by its name

    Which part of the class vectors is trained how:

        unit_weight=True, scale=20.0            angle only: |W_j| = s, given
        unit_weight=True, scale="auto"          angle with the margin and one s for all without it, in turn
        unit_weight=False                       angle and magnitude together, in one objective
        unit_weight=False, alternate=True       angle with the margin and each |W_j| without it, in turn

    Parameters
    ----------
    margin : name of a registered margin ("none", "arcface", "cosface", "sphereface", "combined", …) or a Margin;
        None: no margin, or ArcFace where m is given
    m : its number, or numbers for "combined"; None: a modest one for a name, the margin's own for a Margin;
        "auto": of five, from no margin to twice the modest one, by the accuracy in three stratified folds, which
        takes 16 fits for one; "none" has no use for it
    scale : s, or "auto": fitted where `unit_weight`, else 1
    unit_weight, unit_features : whether class vectors and samples count by their direction alone
    alternate : fit the magnitudes |W_j| in turn with the angles
    alpha : the L2 penalty on the magnitudes, 1/C of LogisticRegression (2/C for two classes, for which it has half
        the parameters); "auto": 1, or 0.01 with unit features or a kernel
    fit_intercept : without a margin and with free lengths a bias, as in LogisticRegression; otherwise a constant
        feature, since an angle has to know of it
    intercept_scaling : that constant; "auto": the root mean square of the entries of X (1 if they are standardised)
    kernel : "linear", "rbf", "poly", "laplacian", "cosine", "precomputed", or a function of two
        matrices, as for SVC
    gamma, degree, coef0 : of the kernel, as for SVC
    approximation : "exact", "nystroem" or "fourier" (scikit-learn's), "import" (a few training points, chosen
        greedily); "auto": exact up to 2,000 samples, nystroem beyond
    n_components : of the approximation, or the number of import vectors; None: 500, for "import" a tenth of the
        samples and at most 200
    solver : "lbfgs" (all samples at once, deterministic), "adam" (batches); "auto": adam where X and the logits
        together have over 50 million entries
    tol : for lbfgs the largest entry of the gradient of the mean loss; for adam the least progress of an epoch
    max_iter : iterations of lbfgs, epochs of adam
    learning_rate, batch_size : of adam
    early_stopping, validation_fraction, n_iter_no_change : stop when the accuracy on held-out samples has not risen
        for so many iterations, and keep the best; n_iter_no_change is also adam's patience
    class_weight : None, "balanced" or {class: weight}
    warm_start : begin with the class vectors of the last fit (linear kernel, same classes and features)
    transform_to : "cosines" to the class vectors (n_samples, n_classes), or the "features" themselves,
        divided by their lengths
    verbose : print the loss of every iteration
    random_state : of the validation split, the folds of m="auto", adam's batches and the approximations

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_, n_iter_, loss_curve_ (mean loss with the margin, and with the
        penalty where `unit_weight` is False and nothing alternates)
    class_vectors_ : W (n_classes, n_features, +1 with a constant feature)
    magnitudes_ : |W_j|, or the given or fitted s, class by class
    coef_, intercept_ : decision_function is X·coef_ᵀ + intercept_; only where that is so, with the linear kernel
        and unit_features=False. For two classes the difference, (1, n_features)
    boundary_coef_, boundary_intercept_ : the same before division by |x|, with unit_features too
    feature_importances_ : how much the classes' weights of a feature differ; with the linear kernel
    support_, support_vectors_, dual_coef_ : landmarks of an "exact" or "import" kernel, and the logits' weights on
        them
    margin_, m_, alpha_, intercept_scaling_, validation_scores_ : what was used, and seen
    m_scores_ : of m="auto", the held-out accuracy of each m that was tried
    """

    def __init__(
        self,
        margin: str | Margin | None = None,
        *,
        m: float | Sequence[float] | str | None = None,
        scale: float | str = "auto",
        unit_weight: bool = True,
        unit_features: bool = True,
        alternate: bool = False,
        alpha: float | str = "auto",
        fit_intercept: bool = True,
        intercept_scaling: float | str = "auto",
        kernel: str | Callable[[Any, Any], Any] = "linear",
        gamma: float | str = "scale",
        degree: float = 3,
        coef0: float = 0.0,
        approximation: str = "auto",
        n_components: int | None = None,
        solver: str = "auto",
        tol: float = 1e-4,
        max_iter: int = 1000,
        learning_rate: float = 0.01,
        batch_size: int = 256,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        class_weight: dict[Any, float] | str | None = None,
        warm_start: bool = False,
        transform_to: str = "cosines",
        verbose: bool = False,
        random_state: Any = None,
    ) -> None:
        self.margin = margin
        self.m = m
        self.scale = scale
        self.unit_weight = unit_weight
        self.unit_features = unit_features
        self.alternate = alternate
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.intercept_scaling = intercept_scaling
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.approximation = approximation
        self.n_components = n_components
        self.solver = solver
        self.tol = tol
        self.max_iter = max_iter
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.class_weight = class_weight
        self.warm_start = warm_start
        self.transform_to = transform_to
        self.verbose = verbose
        self.random_state = random_state

    @classmethod
    def of(cls, head: str, **parameters: Any) -> Self:
        """Make one like a head of the family: its margin and the sides it normalises, a modest m, a fitted s."""
        if head not in FAMILY:
            raise ValueError(f"head must be one of {', '.join(FAMILY)}; got {head!r}.")
        recipe = FAMILY[head]
        if (why := why_not(recipe)) is not None:
            raise ValueError(f"head={head!r} cannot be a classifier of given features: {why}.")
        sides = {"unit_weight": recipe.unit_weight, "unit_features": recipe.unit_features}
        return cls(**({"margin": recipe.margin.name} | sides | parameters))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self.kernel == "precomputed"
        tags.input_tags.sparse = not tags.input_tags.pairwise
        return tags

    def fit(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> Self:
        """Find the class vectors."""
        check_rest(self)
        X, y = inputs.samples(self, X, y, first=True)
        classes, labels = inputs.classes_of(y)
        tried = sizes(self.margin) if is_auto(self.m) else [self.m]
        problem = problem_of(self, len(classes), tried[0])  # complains now, and not after some fits
        weight = inputs.weights(sample_weight, self.class_weight, X, y, classes)
        inputs.check_positive_classes(labels, weight)
        scores: dict[M, float] | None = None
        if is_auto(self.m):
            m, scores = choose(self, X, y, weight)
            problem = problem_of(self, len(classes), m)
        rng = check_random_state(self.random_state)
        kept, held_out = np.arange(len(labels)), None
        if self.early_stopping:
            kept, out = inputs.hold_out(labels, weight, self.validation_fraction, rng)
            columns = kept if self.kernel == "precomputed" else slice(None)
            held_out = Data(X[out][:, columns], labels[out], weight[out])
            X, labels, weight = X[kept][:, columns], labels[kept], weight[kept]
        space, data = settle(self, problem, X, labels, weight, rng)
        if held_out is not None:
            held_out = Data(space(held_out.X), held_out.y, held_out.weight)
        watcher = Watcher(self.verbose, self.n_iter_no_change, held_out)
        state = start(problem, data)
        if self.warm_start and hasattr(self, "class_vectors_") and np.array_equal(classes, self.classes_):
            state = continued(self, space, state)
        if self.solver == "lbfgs" or (self.solver == "auto" and entries(data, problem) <= LBFGS_ENTRIES):
            state = lbfgs(problem, data, state, self.tol, self.max_iter, watcher)
        else:
            state = stochastic(
                Adam(problem, state, self.learning_rate),
                data,
                tol=self.tol,
                max_iter=self.max_iter,
                patience=self.n_iter_no_change,
                batch_size=self.batch_size,
                rng=rng,
                watch=watcher,
            )
        for name in ("validation_scores_", "m_scores_"):  # of another fit
            self.__dict__.pop(name, None)
        if scores is not None:
            self.m_scores_ = scores
        if watcher.best is not None:
            W, state.b, state.r = watcher.best.W, watcher.best.b, watcher.best.r
            state.W = unit(W) if problem.unit_weight else W
            if problem.fitted:  # those of the best moment were of a round before
                state = fit_magnitudes(problem, data, state)
            self.validation_scores_ = watcher.scores
        if state.unfinished and not watcher.stopped:
            warnings.warn(
                f"MarginSoftmaxClassifier failed to converge: {state.unfinished}. Increase max_iter, raise tol, or "
                "scale the features (sklearn.preprocessing.StandardScaler).",
                ConvergenceWarning,
                stacklevel=2,
            )
        self._adam: Adam | None = None
        self._seen = data.total
        self._publish(problem, classes, space, state)
        if isinstance(space.features, Landmarks):
            self.support_ = kept[space.features.rows]
        return self

    @available_if(may_come_in_parts)  # type: ignore[untyped-decorator]
    def partial_fit(
        self,
        X: Any,
        y: Any,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Run one epoch of adam over these samples, going on from where the model is.

        The first call needs all `classes`, and settles the constant feature and the kernel's gamma and
        approximation by its samples; "auto" is then "fourier" for rbf, "nystroem" for others. `alpha` is shared out
        among all samples that ever came, also those that came twice.
        """
        check_rest(self)
        first = not hasattr(self, "class_vectors_")
        X, y = inputs.samples(self, X, y, first=first)
        known = inputs.classes_to_come(classes, None if first else self.classes_)
        labels = inputs.labels_among(y, known)
        problem = problem_of(self, len(known), self.m)
        inputs.refuse_words(self.class_weight)
        if not first and sample_weight is not None and not np.any(sample_weight):
            return self
        weight = inputs.weights(sample_weight, self.class_weight, X, y, known)
        if not first and not weight.any():
            return self
        if first:
            self._rng, self._seen = check_random_state(self.random_state), 0.0
            space, data = settle(self, problem, X, labels, weight, self._rng, more_to_come=True)
            self._adam = Adam(problem, start(problem, data), self.learning_rate)
        else:
            space = self._space
            data = space.data(*space.features(X), labels, weight)
            if self._adam is None:  # after fit
                self._rng = check_random_state(self.random_state)
                self._adam = Adam(problem, self._state(), self.learning_rate)
            check_unchanged(self, self._adam.problem, problem)
            self._adam.problem, self._adam.rate = problem, self.learning_rate
        self._seen += data.total
        self._adam.epoch(data, self.batch_size, self._rng, of=self._seen)
        self._publish(problem, known, space, self._adam.state)
        return self

    def decision_function(self, X: Any) -> Array:
        """Return the logits, without a margin; for two classes the second's less the first's."""
        z = self._logits(X)
        return z[:, 1] - z[:, 0] if len(self.classes_) == 2 else z

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the class with the largest logit."""
        best = self._logits(X).argmax(1)
        found: NDArray[Any] = self.classes_[best]
        return found

    def predict_proba(self, X: Any) -> Array:
        """Return the softmax of the logits."""
        return np.asarray(softmax(self._logits(X), axis=1))

    def predict_log_proba(self, X: Any) -> Array:
        """Return the log-softmax of the logits, which keeps digits that predict_proba loses."""
        return np.asarray(log_softmax(self._logits(X), axis=1))

    def transform(self, X: Any) -> Any:
        """Return cosines to the class vectors, or unit features, as `transform_to` says."""
        check_is_fitted(self)
        checks.one_of("transform_to", self.transform_to, OUTPUTS)
        features = self._space.on_the_sphere(inputs.samples(self, X, first=False))
        return np.asarray(features @ unit(self.class_vectors_).T) if self.transform_to == "cosines" else features

    def _logits(self, X: Any) -> Array:
        check_is_fitted(self)
        return self._space.logits(inputs.samples(self, X, first=False), self._state())

    def _state(self) -> State:
        return State(self.class_vectors_, self._b, self._r, self.n_iter_, list(self.loss_curve_))

    @property
    def _n_features_out(self) -> int:
        """The number of columns that `transform` returns, for their names."""
        return len(self.classes_) if self.transform_to == "cosines" else int(self.class_vectors_.shape[1])

    def _publish(self, problem: Problem, classes: NDArray[Any], space: Space, state: State) -> None:
        """Set what was found as attributes."""
        self.classes_, self._space = classes, space
        self.class_vectors_, self._b, self._r = state.W, state.b, state.r
        self.n_iter_, self.loss_curve_ = state.n_iter, state.loss_curve
        self.margin_, self.alpha_, self.intercept_scaling_ = problem.margin, problem.alpha, space.constant
        self.magnitudes_ = row_norms(state.W) if state.r is None else state.r
        self.m_ = problem.margin.m
        for name in ("support_", "support_vectors_", "dual_coef_"):  # of another kernel, before
            self.__dict__.pop(name, None)
        if isinstance(space.features, Landmarks):
            self.support_, self.support_vectors_ = space.features.rows, space.features.points
            self.dual_coef_ = of_difference(space.features.dual(space.linear_form(state)[0]))
