"""How the class vectors are found: L-BFGS on all rows at once. (`stochastic.py`: Adam on batches of them.)

Where the magnitudes are fitted too, angle and magnitude take turns: the class vectors turn with the margin in force
and their magnitudes given, then the magnitudes are fitted without the margin and with the penalty. Each part alone
has an objective; together they settle where neither wants to move.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.sparse import csr_array, issparse

from hypermargin.estimator.objective import Array, Data, MagnitudeObjective, Objective, row_norms
from hypermargin.estimator.threads import threads_for
from hypermargin.margins import Margin, NoMargin

START_SCALE = 10.0  # of |x|·r where magnitudes are fitted; they settle in a few rounds from anywhere near
ROUNDS = 50  # of angle and magnitude, at most
STEP = 64 * np.finfo(float).eps  # the least progress of the loss, relative to it, that L-BFGS goes on for


@dataclass(frozen=True)
class Problem:
    """What is to be found. `fitted`: the magnitudes that are fitted in turn, "one" for all classes or "each"."""

    margin: Margin
    alpha: float
    classes: int
    unit_weight: bool  # magnitudes given, or fitted in turn; else W is free
    fitted: str | None = None
    scale: float | None = None  # the magnitude of all, where it is given
    bias: bool = False  # multinomial logistic regression with an intercept


@dataclass
class State:
    """Where a solver is: class vectors, bias, magnitudes (None: |W_j|), and how it got there."""

    W: Array
    b: Array | None
    r: Array | None
    n_iter: int = 0
    loss_curve: list[float] = field(default_factory=list)
    unfinished: str = ""  # why it stopped before the tolerance was reached

    @property
    def logit_weight(self) -> Array:
        """The weights r_j·ŵ_j, which the features are multiplied with."""
        return self.W if self.r is None else unit(self.W) * self.r[:, None]

    def logits(self, X: Any) -> Array:
        """Return the logits of rows as they enter the product; no margin."""
        z = np.asarray(X @ self.logit_weight.T)
        return z if self.b is None else z + self.b


class Stop(Exception):  # noqa: N818  # not an error
    """Raised by a watcher: enough, in this state."""

    def __init__(self, state: State) -> None:
        self.state = state


Watch = Callable[[State], None]  # called after every iteration; may raise Stop


def unit(W: Array) -> Array:
    """Return rows of length 1; zero rows stay."""
    norm = row_norms(W)
    return W / np.where(norm > 0, norm, 1.0)[:, None]


def start(problem: Problem, data: Data) -> State:
    """Start at the class means; at zero for the loss that is convex."""
    b = np.zeros(problem.classes) if problem.bias else None
    if isinstance(problem.margin, NoMargin) and not problem.unit_weight:
        return State(np.zeros((problem.classes, data.X.shape[1])), b, None)
    member = csr_array((data.weight, (data.y, data.rows)), shape=(problem.classes, len(data.y)))
    sums = member @ data.X
    W = unit(sums.toarray() if issparse(sums) else sums)
    if not problem.unit_weight:
        return State(W, b, None)
    return State(W, b, np.full(problem.classes, problem.scale or START_SCALE / typical_length(data)))


def lbfgs(problem: Problem, data: Data, state: State, tol: float, max_iter: int, watch: Watch) -> State:
    """Minimise from `state` until no entry of the gradient exceeds `tol`."""
    with threads_for(data.X.shape[0], data.X.shape[1], problem.classes):
        try:
            if problem.fitted is None:
                return _descend(problem, data, state, tol, max_iter, watch)
            return _in_turn(problem, data, state, tol, max_iter, watch)
        except Stop as stop:
            return stop.state


def _in_turn(problem: Problem, data: Data, state: State, tol: float, max_iter: int, watch: Watch) -> State:
    """Fit angle and magnitude in turn, until the magnitudes stay where they are.

    A step of the magnitudes is taken in part where it would undo the last one, and farther where it would go on in
    the same direction: if the last, taken s times, left the share q of itself to go, then all of it had been
    1/(1 − q) of s.
    """
    share, last = 1.0, np.zeros(len(state.W))
    for k in range(ROUNDS):
        loose = max(tol, 10.0 ** -(k + 2))
        state = _descend(problem, data, state, loose, max_iter, watch)
        before, state = state.r, fit_magnitudes(problem, data, state)
        assert before is not None
        assert state.r is not None
        step = np.log(state.r / before)
        if state.n_iter >= max_iter or (loose <= tol and np.abs(step).max() <= 10 * tol):
            return state
        if last.any():
            left = float(step @ last / (last @ last))
            share = min(max(share / (1 - left), 0.25), 4.0) if left < 1 else 1.0
        state.r, last = before * np.exp(share * step), step
    return replace(state, unfinished=f"angle and magnitude did not settle in {ROUNDS} rounds")


def _descend(problem: Problem, data: Data, state: State, tol: float, max_iter: int, watch: Watch) -> State:
    """Run L-BFGS with the magnitudes as they are."""
    shape, size = state.W.shape, state.W.size
    objective = Objective(data, problem.margin, problem.alpha, state.r)

    def flat(v: Array) -> tuple[float, Array]:
        loss, by_W, by_b = objective(v[:size].reshape(shape), None if state.b is None else v[size:])
        if not np.isfinite(loss):
            raise ValueError(
                f"the loss is {loss}: features up to {abs(data.X).max():.3g} are too large to multiply with class "
                f"vectors up to {abs(v).max():.3g}. Scale the features (sklearn.preprocessing.StandardScaler)."
            )
        return loss, by_W.ravel() if by_b is None else np.concatenate([by_W.ravel(), by_b])

    def at(v: Array) -> State:
        return replace(state, W=v[:size].reshape(shape).copy(), b=None if state.b is None else v[size:].copy())

    def after(intermediate_result: Any) -> None:
        state.n_iter += 1
        state.loss_curve.append(float(intermediate_result.fun))
        watch(at(intermediate_result.x))

    found = minimize(
        flat,
        state.W.ravel() if state.b is None else np.concatenate([state.W.ravel(), state.b]),
        jac=True,
        method="L-BFGS-B",
        callback=after,
        # As scikit-learn's LogisticRegression: only the gradient decides, unless the loss stands still.
        options={
            "maxiter": max(max_iter - state.n_iter, 1),
            "maxls": 50,
            "gtol": tol,
            "ftol": STEP,
        },
    )
    if not state.loss_curve:  # it began where it had to end
        after(found)
    new = at(found.x)
    if problem.unit_weight:
        new.W = unit(new.W)  # its length means nothing, and a long one turns slowly
    new.unfinished = "" if found.success else f"{found.message} after {new.n_iter} iterations"
    slope = float(np.abs(found.jac).max())
    if found.success and slope > max(10 * tol, 1e-4) and not isinstance(problem.margin, NoMargin):
        new.unfinished = (
            f"the loss stands still in a kink, with a gradient up to {slope:.1g}: a class vector has shrunk to "
            "nothing, or lies on a sample"
        )
    return new


def fit_magnitudes(problem: Problem, data: Data, state: State) -> State:
    """Find the magnitudes that make the plain loss least at these directions."""
    assert state.r is not None
    size = typical_length(data)  # in r·|x| the problem has no unit
    objective = MagnitudeObjective(data, np.asarray(data.X @ unit(state.W).T) / size, problem.alpha / size**2)
    classes = problem.classes

    def one(v: Array) -> tuple[float, Array]:
        loss, by_r = objective(np.full(classes, v[0]))
        return loss, by_r.sum(keepdims=True)

    before = (state.r[:1] if problem.fitted == "one" else state.r) * size
    found = minimize(
        one if problem.fitted == "one" else objective,
        before,
        jac=True,
        method="L-BFGS-B",
        bounds=[(1e-6, None)] * len(before),
        options={"gtol": 1e-8, "ftol": STEP, "maxiter": 200},
    )
    return replace(state, r=(np.full(classes, found.x[0]) if problem.fitted == "one" else found.x) / size)


def typical_length(data: Data) -> float:
    """Return the root mean square of |x|."""
    longest = float(data.lengths.max()) or 1.0  # whose square may be more than a float holds
    return longest * float(np.sqrt(data.weight @ (data.lengths / longest) ** 2 / data.total)) or 1.0


def entries(data: Data, problem: Problem) -> int:
    """Count the numbers of X and of the logits."""
    return int((data.X.nnz if issparse(data.X) else data.X.size) + len(data.y) * problem.classes)
