"""How the class vectors are found: L-BFGS on all rows at once, or Adam on batches of them.

Where the magnitudes are fitted too, angle and magnitude take turns: the class vectors turn with the margin in force
and their magnitudes given, then the magnitudes are fitted without the margin and with the penalty. Each part alone
has an objective; together they settle where neither wants to move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.sparse import csr_array, issparse
from threadpoolctl import ThreadpoolController

from hypermargin.estimator.objective import Array, Data, MagnitudeObjective, Objective, row_norms
from hypermargin.margins import Margin, NoMargin

START_SCALE = 10.0  # of |x|·r where magnitudes are fitted; they settle in a few rounds from anywhere near
ROUNDS = 50  # of angle and magnitude, at most
SMALL = 2e8  # operations of a product below which a second thread costs more than it brings


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
        """r_j·ŵ_j, which the features are multiplied with."""
        return self.W if self.r is None else unit(self.W) * self.r[:, None]

    def logits(self, X: Any) -> Array:
        """Of rows as they enter the product; no margin."""
        z = np.asarray(X @ self.logit_weight.T)
        return z if self.b is None else z + self.b


class Stop(Exception):  # noqa: N818  # not an error
    """Raised by a watcher: enough, in this state."""

    def __init__(self, state: State) -> None:
        self.state = state


Watch = Callable[[State], None]  # called after every iteration; may raise Stop


def unit(W: Array) -> Array:
    """Rows of length 1; zero rows stay."""
    norm = row_norms(W)
    return W / np.where(norm > 0, norm, 1.0)[:, None]


def start(problem: Problem, data: Data) -> State:
    """Class means; and nothing at all for the loss that is convex."""
    b = np.zeros(problem.classes) if problem.bias else None
    if isinstance(problem.margin, NoMargin) and not problem.unit_weight:
        return State(np.zeros((problem.classes, data.X.shape[1])), b, None)
    member = csr_array((data.weight, (data.y, data.rows)), shape=(problem.classes, len(data.y)))
    sums = member @ data.X
    W = unit(sums.toarray() if issparse(sums) else sums)
    if not problem.unit_weight:
        return State(W, b, None)
    typical = float(np.sqrt(data.weight @ data.lengths**2 / data.total)) or 1.0
    return State(W, b, np.full(problem.classes, problem.scale or START_SCALE / typical))


def lbfgs(problem: Problem, data: Data, state: State, tol: float, max_iter: int, watch: Watch) -> State:
    """Minimise from `state` until no entry of the gradient exceeds `tol`."""
    with threads_for(data, len(state.W)):
        try:
            if problem.fitted is None:
                return _descend(problem, data, state, tol, max_iter, watch)
            return _in_turn(problem, data, state, tol, max_iter, watch)
        except Stop as stop:
            return stop.state


def _in_turn(problem: Problem, data: Data, state: State, tol: float, max_iter: int, watch: Watch) -> State:
    """Angle and magnitude, until the magnitudes stay where they are.

    A step of the magnitudes is taken in part where the last one was undone: the two then overshoot each other.
    """
    share, last = 1.0, np.zeros(len(state.W))
    for k in range(ROUNDS):
        loose = max(tol, 0.1 ** (k + 2))
        state = _descend(problem, data, state, loose, max_iter, watch)
        before, state = state.r, _with_magnitudes(problem, data, state)
        assert before is not None
        assert state.r is not None
        step = np.log(state.r / before)
        if state.n_iter >= max_iter or (loose == tol and np.abs(step).max() <= 100 * tol):
            return state
        share = share / 2 if step @ last < -0.25 * (last @ last) else min(1.5 * share, 1.0)
        state.r, last = before * np.exp(share * step), step
    return replace(state, unfinished=f"angle and magnitude did not settle in {ROUNDS} rounds")


def _descend(problem: Problem, data: Data, state: State, tol: float, max_iter: int, watch: Watch) -> State:
    """L-BFGS with the magnitudes as they are."""
    shape, size = state.W.shape, state.W.size
    objective = Objective(data, problem.margin, problem.alpha, state.r)

    def flat(v: Array) -> tuple[float, Array]:
        loss, by_W, by_b = objective(v[:size].reshape(shape), None if state.b is None else v[size:])
        if not np.isfinite(loss):
            raise ValueError(
                f"the loss is {loss}: the features, up to {abs(data.X).max():.3g}, are too large to multiply. "
                "Scale them (sklearn.preprocessing.StandardScaler)."
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
            "ftol": 64 * np.finfo(float).eps,
        },
    )
    new = at(found.x)
    new.n_iter, new.loss_curve = state.n_iter, state.loss_curve
    if problem.unit_weight:
        new.W = unit(new.W)  # its length means nothing, and a long one turns slowly
    new.unfinished = "" if found.success else f"{found.message} after {new.n_iter} iterations"
    return new


def _with_magnitudes(problem: Problem, data: Data, state: State) -> State:
    """The magnitudes that make the plain loss least at these directions."""
    assert state.r is not None
    objective = MagnitudeObjective(data, np.asarray(data.X @ unit(state.W).T), problem.alpha)
    classes = len(state.W)

    def one(v: Array) -> tuple[float, Array]:
        loss, by_r = objective(np.full(classes, v[0]))
        return loss, by_r.sum(keepdims=True)

    before = state.r[:1] if problem.fitted == "one" else state.r
    found = minimize(
        one if problem.fitted == "one" else objective,
        before,
        jac=True,
        method="L-BFGS-B",
        bounds=[(1e-6, None)] * len(before),
        options={"gtol": 1e-8, "ftol": 64 * np.finfo(float).eps, "maxiter": 200},
    )
    return replace(state, r=np.full(classes, found.x[0]) if problem.fitted == "one" else found.x)


@dataclass
class Adam:
    """Steps on batches, by torch's own Adam, so that a fit can go on with the next data (`partial_fit`).

    Magnitudes that are fitted take a step of their own beside every turn of the class vectors: by the plain loss,
    and as log r, so that they stay positive.
    """

    problem: Problem
    state: State
    learning_rate: float

    def __post_init__(self) -> None:
        r = self.state.r if self.problem.fitted else None
        wanted = (self.state.W, self.state.b, None if r is None else np.log(r))
        self._parameters = [None if p is None else torch.from_numpy(p.copy()).requires_grad_() for p in wanted]
        self._optimizer = torch.optim.Adam([p for p in self._parameters if p is not None], lr=self.learning_rate)

    def slow_down(self, factor: float) -> None:
        """Divide the learning rate."""
        for group in self._optimizer.param_groups:
            group["lr"] /= factor

    def epoch(self, data: Data, batch_size: int, rng: np.random.RandomState, of: float | None = None) -> float:
        """One pass over the rows in a new order; the mean of the batches' losses.

        `of` is the weight of all rows there are, among which the penalty is shared out, if these are not all.
        """
        total = 0.0
        with threads_for(data, len(self.state.W)):
            for rows in batches(len(data.y), batch_size, rng):
                part = data.part(rows)
                if part.total > 0:
                    total += self._step(part, part.total / (of or data.total)) * part.total
        self.state.n_iter += 1
        self.state.loss_curve.append(total / data.total)
        if self.problem.unit_weight:
            W = self._parameters[0]
            assert W is not None
            W.data.copy_(torch.from_numpy(unit(W.detach().numpy())))
        return total / data.total

    def _step(self, part: Data, share: float) -> float:
        W, b, log_r = (None if p is None else p.detach().numpy() for p in self._parameters)
        assert W is not None
        r = self.state.r if log_r is None else np.exp(log_r)
        alpha = self.problem.alpha * share  # the penalty is of all rows, and so is shared out among the batches
        loss, *gradients = Objective(part, self.problem.margin, alpha, r)(W, b)
        if log_r is not None and r is not None:
            _, by_r = MagnitudeObjective(part, np.asarray(part.X @ unit(W).T), alpha)(r)
            by_log = by_r * r
            gradients.append(np.full_like(by_log, by_log.mean()) if self.problem.fitted == "one" else by_log)
        for parameter, gradient in zip(self._parameters, gradients, strict=False):
            if parameter is not None:
                parameter.grad = torch.from_numpy(np.ascontiguousarray(gradient))
        self._optimizer.step()
        W, b, log_r = (None if p is None else p.detach().numpy().copy() for p in self._parameters)
        assert W is not None
        self.state.W, self.state.b = W, b
        self.state.r = self.state.r if log_r is None else np.exp(log_r)
        return loss


def stochastic(
    problem: Problem,
    data: Data,
    state: State,
    *,
    tol: float,
    max_iter: int,
    patience: int,
    learning_rate: float,
    batch_size: int,
    rng: np.random.RandomState,
    watch: Watch,
) -> State:
    """Epochs of Adam. Whenever `patience` of them have not lowered the loss by `tol`, the learning rate is divided.

    That is scikit-learn's "adaptive" schedule; it ends after three divisions by five.
    """
    adam = Adam(problem, state, learning_rate)
    best, waited, slowed = np.inf, 0, 0
    try:
        for _ in range(max_iter):
            loss = adam.epoch(data, batch_size, rng)
            watch(adam.state)
            waited = 0 if loss < best - tol else waited + 1
            best = min(best, loss)
            if waited >= patience:
                if slowed == 3:
                    return adam.state
                adam.slow_down(5.0)
                waited, slowed = 0, slowed + 1
    except Stop:
        return adam.state
    adam.state.unfinished = f"the loss still fell after {max_iter} epochs"
    return adam.state


def batches(rows: int, size: int, rng: np.random.RandomState) -> Iterator[NDArray[np.intp]]:
    """All row numbers in a new order, in nearly equal parts of at most `size`."""
    order = rng.permutation(rows)
    yield from np.array_split(order, -(-rows // size))


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


def threads_for(data: Data, classes: int) -> AbstractContextManager[Any]:
    """One BLAS thread for small products.

    numpy and scipy bring a BLAS each, whose threads wait for work by spinning: on two cores, products of a hundred
    microseconds then take ten times as long.
    """
    small = 2.0 * data.X.shape[0] * data.X.shape[1] * classes < SMALL
    return _controller().limit(limits=1, user_api="blas") if small else nullcontext()
