"""Adam on batches of rows, for data that are many or come in parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hypermargin.estimator.objective import Array, Data, MagnitudeObjective, Objective
from hypermargin.estimator.solvers import Problem, State, Stop, Watch, unit
from hypermargin.estimator.threads import threads_for


@dataclass
class _Moments:
    """The moments of one parameter (Kingma and Ba 2015, arXiv:1412.6980), without the cost of torch's calls."""

    mean: Array
    square: Array
    steps: int = 0

    def step(self, gradient: Array, rate: float) -> Array:
        """Return what to add to the parameter."""
        self.steps += 1
        self.mean += 0.1 * (gradient - self.mean)
        self.square += 0.001 * (gradient**2 - self.square)
        mean, square = self.mean / (1 - 0.9**self.steps), self.square / (1 - 0.999**self.steps)
        return -rate * mean / (np.sqrt(square) + 1e-8)


@dataclass
class Adam:
    """Steps on batches, and what they remember, so that a fit can go on with the next data (`partial_fit`).

    Magnitudes that are fitted take a step of their own beside every turn of the class vectors: by the plain loss,
    and as log r, so that they stay positive.
    """

    problem: Problem
    state: State
    rate: float
    moments: dict[str, _Moments] = field(default_factory=dict)

    def epoch(self, data: Data, batch_size: int, rng: np.random.RandomState, of: float | None = None) -> float:
        """Pass once over the rows in a new order; return the mean of the batches' losses.

        `of` is the weight of all rows there are, among which the penalty is shared out, if these are not all.
        """
        total = 0.0
        with threads_for(min(batch_size, len(data.y)), data.X.shape[1], self.problem.classes):
            for rows in batches(len(data.y), batch_size, rng):
                part = data.part(rows)
                if part.total > 0:
                    total += self._step(part, part.total / (of or data.total)) * part.total
        self.state.n_iter += 1
        self.state.loss_curve.append(total / data.total)
        if self.problem.unit_weight:
            self.state.W = unit(self.state.W)
        return total / data.total

    def _step(self, part: Data, share: float) -> float:
        state = self.state
        alpha = self.problem.alpha * share  # the penalty is of all rows, and so is shared out among the batches
        loss, by_W, by_b = Objective(part, self.problem.margin, alpha, state.r)(state.W, state.b)
        if self.problem.fitted and state.r is not None:
            _, by_r = MagnitudeObjective(part, np.asarray(part.X @ unit(state.W).T), alpha)(state.r)
            by_log = by_r * state.r
            by_log = np.full_like(by_log, by_log.mean()) if self.problem.fitted == "one" else by_log
            state.r = state.r * np.exp(self._change("r", by_log))
        state.W = state.W + self._change("W", by_W)
        if state.b is not None and by_b is not None:
            state.b = state.b + self._change("b", by_b)
        return loss

    def _change(self, name: str, gradient: Array) -> Array:
        if name not in self.moments:
            self.moments[name] = _Moments(np.zeros_like(gradient), np.zeros_like(gradient))
        return self.moments[name].step(gradient, self.rate)


def stochastic(
    adam: Adam,
    data: Data,
    *,
    tol: float,
    max_iter: int,
    patience: int,
    batch_size: int,
    rng: np.random.RandomState,
    watch: Watch,
) -> State:
    """Run epochs of Adam. Whenever `patience` of them have not lowered the loss by `tol`, the rate is divided.

    That is scikit-learn's "adaptive" schedule; it ends after three divisions by five.
    """
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
                adam.rate /= 5.0
                waited, slowed = 0, slowed + 1
    except Stop:
        return adam.state
    adam.state.unfinished = f"the loss still fell after {max_iter} epochs"
    return adam.state


def batches(rows: int, size: int, rng: np.random.RandomState) -> Iterator[NDArray[np.intp]]:
    """Yield all row numbers in a new order, in nearly equal parts of at most `size`."""
    yield from np.array_split(rng.permutation(rows), -(-rows // size))
