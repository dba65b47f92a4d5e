"""Import vectors: the few training points a kernel classifier needs (Zhu and Hastie 2005, with a margin).

Landmarks are added greedily. With S chosen, let D_nj = ∂L/∂⟨φ(x_n), W_j⟩ over all rows and classes, and let φ⊥(x_i)
be what of φ(x_i) is outside the span of S. Moving the class vectors along φ⊥/|φ⊥| changes the loss at a rate whose
square, summed over the classes, is

    gain_i = Σ_j (Σ_n D_nj·⟨φ⊥(x_i), φ(x_n)⟩)² / |φ⊥(x_i)|²

so the point with the largest gain comes next. k is orthogonalised as we go (a Cholesky factorisation in the order
of choice), so a new landmark is one more column of Φ; the class vectors are fitted again after every few.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hypermargin.estimator.features import RANK, KernelFunction, Landmarks, check_kernel_matrix, check_span
from hypermargin.estimator.objective import Array

Pull = Callable[[Array], Array]  # Φ (N, |S|) of the training rows → D (N, C), after fitting on Φ


@dataclass
class _Chosen:
    """Φ of all training rows on the landmarks so far, and what of k(x, x) lies outside their span."""

    K: Array
    phi: Array  # (N, room)
    left: Array  # (N,); 0 where a row is no candidate
    rows: list[int]

    @property
    def features(self) -> Array:
        """The coordinates Φ so far."""
        return self.phi[:, : len(self.rows)]

    def add(self, i: int) -> Array:
        """Make x_i a landmark; return its column of Φ."""
        k = len(self.rows)
        column: Array = (self.K[:, i] - self.features @ self.features[i]) / np.sqrt(self.left[i])
        column[self.rows] = 0.0  # in exact arithmetic it is
        self.phi[:, k] = column
        self.left -= column**2
        self.rows.append(i)
        self.left[self.rows] = 0.0
        return column

    def add_best(self, D: Array, count: int) -> bool:
        """Add the `count` points with the largest gains, one after the other; False if nothing is left to gain."""
        along = self.K @ D - self.features @ (self.features.T @ D)  # ⟨φ⊥(x_i), Σ_n D_nj φ(x_n)⟩
        least = RANK * self.K.diagonal().max()
        for _ in range(count):
            free = self.left > least
            gains = np.where(free, (along**2).sum(1) / np.where(free, self.left, 1.0), -1.0)
            best = int(gains.argmax())
            if gains[best] <= 0:
                return False
            column = self.add(best)
            along -= np.outer(column, column @ D)
        return True


def choose(
    kernel: KernelFunction, X: Any, candidates: NDArray[np.bool_], wanted: int, pull: Pull
) -> tuple[Landmarks, Array]:
    """Choose `wanted` landmarks of the candidates among the rows of X, or fewer that span them all; and Φ.

    `pull(Φ)` fits on Φ and returns the loss's gradient by the products; it is called after each of the first few
    landmarks, then after each tenth more of them.
    """
    K = kernel(X, X)
    check_kernel_matrix(K)
    wanted = min(wanted, int(candidates.sum()))
    chosen = _Chosen(K, np.zeros((len(K), wanted)), np.where(candidates, K.diagonal(), 0.0), [])
    while len(chosen.rows) < wanted:
        count = min(max(1, len(chosen.rows) // 10), wanted - len(chosen.rows))
        if not chosen.add_best(pull(chosen.features), count):
            break
    rows: NDArray[np.intp] = np.array(chosen.rows, dtype=np.intp)
    check_span(K.diagonal(), chosen.features)
    return Landmarks.of(kernel, X, rows, np.tril(chosen.features[rows])), chosen.features
