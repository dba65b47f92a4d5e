"""What is done after every iteration of a solver."""

from __future__ import annotations

import numpy as np

from hypermargin.estimator.objective import Data
from hypermargin.estimator.solvers import State, Stop


class Watcher:
    """Prints the loss, keeps the best state by accuracy on held-out samples, and stops when it has not risen."""

    def __init__(self, verbose: bool, patience: int, held_out: Data | None) -> None:
        self.verbose, self.patience, self.held_out = verbose, patience, held_out
        self.scores: list[float] = []
        self.best: State | None = None
        self.stopped = False

    def __call__(self, state: State) -> None:
        """Look at the state after an iteration; raise Stop when it is enough."""
        if self.verbose:
            print(f"iteration {state.n_iter}  loss {state.loss_curve[-1]:.6f}")
        if self.held_out is None:
            return
        right = state.logits(self.held_out.X).argmax(1) == self.held_out.y
        self.scores.append(float(self.held_out.weight @ right / self.held_out.total))
        first = int(np.argmax(self.scores))
        if first == len(self.scores) - 1:
            self.best = State(state.W.copy(), state.b, state.r)
        if len(self.scores) - 1 - first >= self.patience:
            self.stopped = True
            raise Stop(state)
