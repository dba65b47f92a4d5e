"""The rows that are multiplied with class vectors, from samples: mapped, with a constant, unit if wanted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack, issparse

from hypermargin.estimator import importing
from hypermargin.estimator.features import Features, KernelFunction, Landmarks, Plain, fourier, nystroem
from hypermargin.estimator.objective import Array, Data, Objective, row_norms
from hypermargin.estimator.settings import is_auto
from hypermargin.estimator.solvers import Problem, State, lbfgs, start

EXACT_ROWS = 2000  # kernel matrices up to this are factorised whole


@dataclass(frozen=True)
class Space:
    """Features, a constant beside them (0: none), divided by their length if `unit`, times `factor`."""

    features: Features
    constant: float
    unit: bool
    factor: float

    def __call__(self, X: Any) -> Any:
        """Return the rows for samples."""
        return self.complete(*self.features(X))

    def logits(self, X: Any, state: State) -> Array:
        """Return the logits of samples, no margin; with landmarks by their sums, which need no coordinates."""
        if not isinstance(self.features, Landmarks):
            return state.logits(self(X))
        across, lengths = self.features.across(X)
        if lengths is None:
            return state.logits(self(X))
        weight = state.logit_weight
        body = weight[:, :-1] if self.constant else weight
        z = across @ self.features.dual(body).T
        z += self.constant * weight[:, -1] if self.constant else 0.0
        z *= (self.factor / self.divisors(lengths))[:, None]
        return z if state.b is None else z + state.b

    def linear_form(self, state: State) -> tuple[Array, Array]:
        """Return weights (C, d) and intercepts (C,) of the logits, before division by the length of a sample."""
        weight = state.logit_weight * self.factor
        if self.constant:
            return weight[:, :-1], weight[:, -1] * self.constant
        return weight, np.zeros(len(weight)) if state.b is None else state.b

    def data(self, features: Any, lengths: Array, y: NDArray[np.intp], weight: Array) -> Data:
        """Make training data of such features and lengths."""
        full = self.factor * np.hypot(lengths, self.constant) / self.divisors(lengths)
        return Data(self.complete(features, lengths), y, weight, full)

    def complete(self, features: Any, lengths: Array) -> Any:
        """Return the rows for features of such lengths."""
        by_row = self.factor / self.divisors(lengths)
        if issparse(features):
            if self.constant:
                column = csr_array(np.full((features.shape[0], 1), self.constant))
                features = hstack([features, column], format="csr")
            return csr_array(features.multiply(by_row[:, None]))
        if self.constant:
            features = np.column_stack([features, np.full(len(features), self.constant)])
        return features if (by_row == 1).all() else features * by_row[:, None]

    def divisors(self, lengths: Array) -> Array:
        """Return what each row is divided by."""
        if not self.unit:
            return np.ones_like(lengths)
        full = np.hypot(lengths, self.constant)
        return np.where(full > 0, full, 1.0)

    @property
    def on_the_sphere(self) -> Space:
        """Return the same space with rows of length 1."""
        return replace(self, unit=True, factor=1.0)


def uses_kernel(estimator: Any) -> bool:
    """Tell whether X itself is not what the model is linear in."""
    return callable(estimator.kernel) or estimator.kernel != "linear"


def _approximation(estimator: Any, rows: int, more_to_come: bool) -> str:
    if estimator.approximation != "auto":
        return str(estimator.approximation)
    if estimator.kernel == "precomputed":
        return "exact"
    if more_to_come:
        return "fourier" if estimator.kernel == "rbf" else "nystroem"
    return "exact" if rows <= EXACT_ROWS else "nystroem"


def settle(
    estimator: Any,
    problem: Problem,
    X: Any,
    y: NDArray[np.intp],
    weight: Array,
    random_state: Any,
    more_to_come: bool = False,
) -> tuple[Space, Data]:
    """Make the space for an estimator's parameters and training data, and these data in it."""
    kernel = None
    if estimator.kernel == "precomputed" and X.shape[0] != X.shape[1]:
        raise ValueError(f'kernel="precomputed" needs a square X, k of every two training samples; got {X.shape}.')
    if uses_kernel(estimator):
        kernel = KernelFunction(
            estimator.kernel, _gamma(estimator.gamma, X, weight), estimator.degree, estimator.coef0
        )
        lengths = np.sqrt(np.maximum(kernel.diagonal(X), 0.0))
        typical = lengths
    else:
        lengths = row_norms(X)
        typical = lengths / np.sqrt(X.shape[1])
    constant = 0.0
    if estimator.fit_intercept and not problem.bias:
        longest = float(typical.max()) or 1.0  # whose square may be more than a float holds
        rms = longest * float(np.sqrt(weight @ (typical / longest) ** 2 / weight.sum())) or 1.0
        constant = rms if is_auto(estimator.intercept_scaling) else float(estimator.intercept_scaling)
    scaled = not problem.unit_weight and not is_auto(estimator.scale)
    space = Space(Plain(), constant, bool(estimator.unit_features), float(estimator.scale) if scaled else 1.0)
    if kernel is None:
        return space, space.data(X, lengths, y, weight)
    how = _approximation(estimator, X.shape[0], more_to_come)
    if estimator.kernel == "precomputed" and how in ("nystroem", "fourier"):
        raise ValueError(
            'kernel="precomputed" is for fit with approximation="exact" or "import": there are no samples to '
            "approximate it by."
        )
    if how in ("nystroem", "fourier"):
        make = nystroem if how == "nystroem" else fourier
        space = replace(space, features=make(kernel, X, estimator.n_components or 500, random_state))
        return space, space.data(*space.features(X), y, weight)
    if how == "exact":
        landmarks, phi = Landmarks.all_of(kernel, X)
    else:
        wanted = estimator.n_components or max(min(X.shape[0] // 10, 200), 1)
        pull = _pull(space, problem, lengths, y, weight, max(estimator.tol, 1e-3))
        landmarks, phi = importing.choose(kernel, X, weight > 0, wanted, pull)
    return replace(space, features=landmarks), space.data(phi, lengths, y, weight)


def _gamma(gamma: Any, X: Any, weight: Array) -> float:
    """Return gamma as SVC has it: "scale" is 1/(d·Var X), here of the weighted samples; "auto" 1/d."""
    if gamma == "auto":
        return 1.0 / int(X.shape[1])
    if gamma == "scale":
        share = weight / weight.sum() / X.shape[1]
        mean = float((share @ X).sum())
        if issparse(X):
            variance = float(share @ row_norms(X) ** 2) - mean**2
        else:
            variance = float(share @ row_norms(X - mean) ** 2)
        return 1.0 / (int(X.shape[1]) * variance) if variance > 0 else 1.0
    return float(gamma)


def _pull(
    space: Space, problem: Problem, lengths: Array, y: NDArray[np.intp], weight: Array, tol: float
) -> importing.Pull:
    """Fit roughly on the landmarks so far, and say where the loss wants every sample to go (for import vectors)."""
    divisors = space.divisors(lengths)[:, None]
    last: list[State] = []

    def pull(phi: Array) -> Array:
        data = space.data(phi, lengths, y, weight)
        if data.X.shape[1] == 0:  # neither landmarks nor a constant: every class is as likely
            share = weight / data.total
            D = np.tile(share[:, None] / problem.classes, problem.classes)
            D[data.rows, y] -= share
            return D / divisors
        state = start(problem, data)
        if last:  # the class vectors so far, with nothing along the new landmarks
            before, kept = last[-1], last[-1].W.shape[1] - (space.constant > 0)
            state = State(np.zeros_like(state.W), before.b, before.r)
            state.W[:, :kept] = before.W[:, :kept]
            state.W[:, phi.shape[1] :] = before.W[:, kept:]
        state = lbfgs(problem, data, state, tol, 100, lambda _: None)
        last[:] = [state]
        _, P, _ = Objective(data, problem.margin, problem.alpha, state.r).by_products(state.W, state.b)
        return P * space.factor / divisors

    return pull
