"""What the linear model sees of X: X itself, or coordinates in which a kernel is a plain product.

A kernel k(x, x′) = ⟨φ(x), φ(x′)⟩ needs φ only on the span of some landmarks S. With k(S, S) = L·Lᵀ,

    Φ(x) = L⁻¹ k(S, x)        ⟨Φ(x), Φ(x′)⟩ = ⟨φ(x), φ(x′)⟩ for x, x′ in the span

are coordinates there, and a class vector in them is a sum over landmarks. With every training point a landmark
nothing is lost (the best class vectors lie in their span); a few of them, drawn or chosen, make the model small.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpstrf
from sklearn.gaussian_process.kernels import Kernel
from sklearn.kernel_approximation import Nystroem, RBFSampler
from sklearn.metrics.pairwise import pairwise_kernels

from hypermargin.estimator.objective import Array, row_norms

# A landmark whose squared distance to the span of those before is below this share of the largest k(x, x) would add
# nothing but rounding.
RANK = 1e-10
KERNELS = ("linear", "rbf", "poly", "laplacian", "cosine", "precomputed")
Matrix = Callable[[Any, Any], Array]


class Features(Protocol):
    """Coordinates of samples, and the lengths that they count with."""

    def __call__(self, X: Any) -> tuple[Any, Array]:
        """Return coordinates (N, d) and lengths (N,)."""


@dataclass(frozen=True)
class Plain:
    """The samples X as they are."""

    def __call__(self, X: Any) -> tuple[Any, Array]:
        """Return X and |x|."""
        return X, row_norms(X)


@dataclass(frozen=True)
class KernelFunction:
    """k(X, Y) as a matrix, from a name of scikit-learn's or a function of two matrices.

    "precomputed": X is the kernel matrix itself, a column for each training point.
    """

    kernel: str | Matrix
    gamma: float
    degree: float
    coef0: float

    def __call__(self, X: Any, Y: Any) -> Array:
        """Return the kernel matrix (len X, len Y)."""
        if self.kernel == "precomputed":
            return np.asarray(X, dtype=np.float64)
        if callable(self.kernel):
            K = np.asarray(self.kernel(X, Y), dtype=np.float64)
            if K.shape != (X.shape[0], Y.shape[0]):
                raise ValueError(
                    f"kernel must return a matrix of {X.shape[0]} × {Y.shape[0]}, the rows of its arguments; "
                    f"got {K.shape}. It is called with two matrices, as SVC calls it."
                )
            return K
        options = {"gamma": self.gamma, "degree": self.degree, "coef0": self.coef0}
        return np.asarray(pairwise_kernels(X, Y, metric=self.kernel, filter_params=True, **options))

    def diagonal(self, X: Any) -> Array:
        """Return k(x, x) of training points, row by row, in small blocks."""
        if self.kernel == "precomputed":
            return np.diagonal(X).copy()
        if self.kernel in ("rbf", "laplacian"):
            return np.ones(X.shape[0])
        blocks = [X[first : first + 64] for first in range(0, X.shape[0], 64)]
        return np.concatenate([np.diagonal(self(block, block)) for block in blocks])


@dataclass(frozen=True)
class Landmarks:
    """The map Φ of the module's docstring."""

    kernel: KernelFunction
    rows: NDArray[np.intp]  # which training points are landmarks, in the order of L
    points: Any
    L: Array
    length: float | None = None  # of every training point, if they are all the same

    def __call__(self, X: Any) -> tuple[Array, Array]:
        """Return Φ(x) and |φ(x)|, which is longer than |Φ(x)| for a sample outside the span."""
        across, lengths = self.across(X)
        features = solve_triangular(self.L, across.T, lower=True).T
        return features, row_norms(features) if lengths is None else lengths

    def across(self, X: Any) -> tuple[Array, Array | None]:
        """Return k(x, S) and |φ(x)|; None where the latter cannot be known, from rows of a precomputed kernel."""
        if self.kernel.kernel != "precomputed":
            return self.kernel(X, self.points), np.sqrt(np.maximum(self.kernel.diagonal(X), 0.0))
        known = None if self.length is None else np.full(X.shape[0], self.length)
        return X[:, self.rows], known

    def dual(self, W: Array) -> Array:
        """Return the class vectors (C, |S|) as sums over landmarks: W·L⁻¹."""
        return np.asarray(solve_triangular(self.L, W.T, lower=True, trans="T").T)

    @staticmethod
    def all_of(kernel: KernelFunction, X: Any) -> tuple[Landmarks, Array]:
        """Take every training point not in the span of the others, by Cholesky with pivoting; and Φ of all."""
        K = np.array(kernel(X, X), order="F")  # a copy: a precomputed one is the user's
        check_kernel_matrix(K)
        tol = RANK * max(float(K.diagonal().max()), np.finfo(float).tiny)
        factor, order, rank, _ = dpstrf(K, tol=tol, lower=1, overwrite_a=1)
        factor, order = np.tril(factor[:, :rank]), order - 1
        features = np.empty_like(factor, order="C")
        features[order] = factor
        check_span(kernel.diagonal(X), features)
        return Landmarks.of(kernel, X, order[:rank], factor[:rank]), features

    @staticmethod
    def of(kernel: KernelFunction, X: Any, rows: NDArray[np.intp], L: Array) -> Landmarks:
        """Take these rows of X as landmarks."""
        squares = kernel.diagonal(X)
        same = float(np.ptp(squares)) <= 1e-9 * float(squares.max())
        return Landmarks(kernel, rows, X[rows], L, float(np.sqrt(squares.max())) if same else None)


@dataclass(frozen=True)
class Approximate:
    """A feature map of scikit-learn's, fitted."""

    transformer: Any

    def __call__(self, X: Any) -> tuple[Array, Array]:
        """Return its features, which stand for φ, and their lengths."""
        features = np.asarray(self.transformer.transform(X))
        return features, row_norms(features)


class _AsKernel(Kernel):
    """A function of two matrices in the one form in which scikit-learn's Nystroem does not call it pair by pair."""

    def __init__(self, function: Matrix) -> None:
        self.function = function

    def __call__(self, X: Any, Y: Any = None, eval_gradient: bool = False) -> Array:
        """Return k(X, Y)."""
        return np.asarray(self.function(X, X if Y is None else Y))

    def diag(self, X: Any) -> Array:
        """Return k(x, x)."""
        return np.diagonal(self(X))

    def is_stationary(self) -> bool:
        """Answer that it is not known to be."""
        return False


def nystroem(kernel: KernelFunction, X: Any, components: int, random_state: Any) -> Approximate:
    """Draw random landmarks."""
    named = isinstance(kernel.kernel, str)
    options = {"gamma": kernel.gamma, "degree": kernel.degree, "coef0": kernel.coef0} if named else {}
    metric = kernel.kernel if isinstance(kernel.kernel, str) else _AsKernel(kernel.kernel)
    made = Nystroem(metric, n_components=min(components, X.shape[0]), random_state=random_state, **options)
    return Approximate(made.fit(X))


def fourier(kernel: KernelFunction, X: Any, components: int, random_state: Any) -> Approximate:
    """Draw random Fourier features of the rbf kernel."""
    if kernel.kernel != "rbf":
        raise ValueError(
            f'approximation="fourier" is for kernel="rbf"; got {kernel.kernel!r}. "nystroem" takes any kernel.'
        )
    made = RBFSampler(gamma=kernel.gamma, n_components=components, random_state=random_state)
    return Approximate(made.fit(X))


def check_kernel_matrix(K: Array) -> None:
    """Check for a finite, symmetric matrix with nothing negative on its diagonal."""
    if not np.isfinite(K).all():
        raise ValueError("kernel returned NaN or infinity. Scale the features, or lower gamma or degree.")
    largest = max(float(np.abs(K).max()), np.finfo(float).tiny)
    if float(np.abs(K - K.T).max()) > 1e-6 * largest:
        raise ValueError("kernel must be symmetric, k(x, y) = k(y, x); it is not on the training data.")
    if float(K.diagonal().min()) < -1e-6 * largest:
        raise ValueError("kernel must be positive semi-definite; k(x, x) is negative for a training point.")


def check_span(squares: Array, features: Array) -> None:
    """Check that what is left of k(x, x) outside the span of the landmarks is a square, but for rounding."""
    left = squares - row_norms(features) ** 2
    if float(left.min()) < -1e-6 * max(1.0, float(squares.max())):
        raise ValueError(
            "kernel must be positive semi-definite, some ⟨φ(x), φ(y)⟩; on the training data it is not: a sample "
            f"would have a squared length of {float(left.min()):.3g} outside the span of others."
        )
