"""The loss of shallow classifiers and its gradient, all rows at once, from one product forward and one backward.

The formula is that of `functional.margin_softmax`, with fixed features:

    z_ij = r_j·⟨x_i, ŵ_j⟩                ŵ = W/|W|; r_j = |W_j|, or given where the weight is normalised
    T_i  = |x_i|·r_y·ψ(θ_y)               R_i = log Σ_{j≠y} exp z_ij
    L    = Σ_i a_i·softplus(R_i − T_i) / Σ a  +  α/(2 Σ a)·Σ_j |W_j|²

The features are only ever multiplied, so they may be sparse, and nothing of N×d is kept: with q = σ(R − T),
κ = −ψ′(θ)/sin θ (the slope of ψ by the cosine) and P_ij = q_i·exp(z_ij − R_i), P_iy = −q_i·κ_i,

    ∂L/∂⟨x_i, ŵ_j⟩ = r_j·P_ij,           ∂T_y/∂|W_y| = |x|·(ψ − κ·cos θ) beside it, where r_j = |W_j|.

ψ and ψ′ on N numbers are the library's own. The tests hold all of it against `margin_softmax` in float64.

The gradient by a normalised weight is orthogonal to it: it turns the weight and leaves its length alone. That of
the penalty is α·W, parallel to it: it changes the length alone. So the two can be set apart: `Objective` with a
given `magnitude` is the angle's part, `MagnitudeObjective` the other one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import issparse
from scipy.special import expit

from hypermargin.margins import Margin, NoMargin

Array = NDArray[np.float64]
# acos resolves angles down to √eps; below it the direction of the tangent is noise, and its gradient is left out.
CONE = 1e-7


@dataclass(frozen=True)
class Data:
    """Features as they enter the product, labels as class numbers, and the weight of each row."""

    X: Any  # (N, d) array or sparse
    y: NDArray[np.intp]
    weight: Array
    given_lengths: Array | None = (
        None  # of samples that are longer than their rows: only part of them is in the span
    )

    @cached_property
    def lengths(self) -> Array:
        """The lengths |x_i|."""
        return row_norms(self.X) if self.given_lengths is None else self.given_lengths

    @cached_property
    def total(self) -> float:
        """The sum of the weights, Σ a."""
        return float(self.weight.sum())

    @cached_property
    def rows(self) -> NDArray[np.intp]:
        """The numbers 0, 1, … N − 1, to pick one entry per row."""
        return np.arange(len(self.y))

    def part(self, rows: Any) -> Data:
        """Return the data of some of the rows."""
        return Data(self.X[rows], self.y[rows], self.weight[rows], self.lengths[rows])


def row_norms(X: Any) -> Array:
    """Return |x_i|, also of sparse rows, and of rows whose squares overflow."""
    with np.errstate(over="ignore"):
        squares = X.multiply(X).sum(1) if issparse(X) else np.einsum("ij,ij->i", X, X)
    norms = np.sqrt(np.asarray(squares, dtype=np.float64).ravel())
    over = ~np.isfinite(norms)
    if over.any():
        rows = X[over].toarray() if issparse(X) else X[over]
        largest = np.abs(rows).max(1)
        norms[over] = np.linalg.norm(rows / largest[:, None], axis=1) * largest
    return norms


def psi_and_slope(margin: Margin, theta: Array) -> tuple[Array, Array]:
    """Return ψ(θ) and dψ/dθ, by the margin itself."""
    with torch.enable_grad():
        angle = torch.from_numpy(theta).requires_grad_()
        psi = margin.psi(angle)
        (slope,) = torch.autograd.grad(psi.sum(), angle)
    return psi.detach().numpy(), slope.numpy()


@dataclass(frozen=True)
class Objective:
    """The loss L of the module's docstring. `magnitude` is r (C,) for unit weights, None where |W_j| is free.

    A bias b is for the plain loss; with a margin the constant is a feature, so that it has a part in the angle.
    """

    data: Data
    margin: Margin
    alpha: float
    magnitude: Array | None = None

    def __call__(self, W: Array, b: Array | None) -> tuple[float, Array, Array | None]:
        """Return L and its gradients by W (C, d) and b (C,)."""
        data, norm = self.data, row_norms(W)
        with np.errstate(over="ignore", invalid="ignore"):  # a loss that is not finite is the caller's to report
            loss, P, by_length = self.by_products(W, b)
        by_b = None if b is None else P.sum(0)
        safe = np.where(norm > 0, norm, 1.0)
        direction = W / safe[:, None]
        G = np.asarray((data.X.T @ P).T)  # by W, as if it entered through ⟨x, W⟩ alone
        if self.magnitude is not None:
            G *= (self.magnitude / safe)[:, None]
            return loss, G - direction * np.einsum("ij,ij->i", G, direction)[:, None], by_b
        if by_length is not None:
            G += by_length[:, None] * direction
        ridge = self.alpha / data.total
        return loss + ridge / 2 * float(norm @ norm), G + ridge * W, by_b

    def by_products(self, W: Array, b: Array | None) -> tuple[float, Array, Array | None]:
        """Return the loss, P (N, C), and the gradient by |W_j| (C,) that does not go through a product, if any."""
        data, norm = self.data, row_norms(W)
        r = norm if self.magnitude is None else self.magnitude
        z = np.asarray(data.X @ W.T)
        if self.magnitude is not None:
            z *= r / np.where(norm > 0, norm, 1.0)
        plain = z[data.rows, data.y]
        if b is not None:
            z += b
        T = z[data.rows, data.y]
        z[data.rows, data.y] = -np.inf
        top = z.max(1)
        z -= top[:, None]
        P = np.exp(z, out=z)
        mass = P.sum(1)
        share = data.weight / data.total
        kappa = None
        if not isinstance(self.margin, NoMargin):
            full = data.lengths * r[data.y]
            cosine = np.clip(np.divide(plain, full, out=np.zeros_like(plain), where=full > 0), -1.0, 1.0)
            theta = np.arccos(cosine)
            psi, slope = psi_and_slope(self.margin, theta)
            sine = np.sin(theta)
            at_cone = sine < CONE
            kappa = np.where(at_cone, 1.0, -slope / np.where(at_cone, 1.0, sine))
            T = T + full * (psi - cosine)
        gap = top + np.log(mass) - T
        q = share * expit(gap)
        P *= (q / mass)[:, None]
        P[data.rows, data.y] = -q if kappa is None else -q * kappa
        loss = float(share @ np.logaddexp(0.0, gap))
        if kappa is None or self.magnitude is not None:
            return loss, P, None
        by_length: Array = -np.bincount(data.y, q * data.lengths * (psi - kappa * cosine), len(W)).astype(float)
        return loss, P, by_length


@dataclass(frozen=True)
class MagnitudeObjective:
    """The plain loss, no margin, as a function of the magnitudes r alone, with α/(2 Σ a)·Σ_j r_j²; convex.

    `projections` are ⟨x_i, ŵ_j⟩ (N, C). A margin in this part would only be bought off by length.
    """

    data: Data
    projections: Array
    alpha: float

    def __call__(self, r: Array) -> tuple[float, Array]:
        """Return L and its gradient by r (C,)."""
        data = self.data
        z = self.projections * r
        z -= z.max(1, keepdims=True)
        log_p = z[data.rows, data.y]
        P = np.exp(z, out=z)
        mass = P.sum(1)
        share = data.weight / data.total
        loss = float(share @ (np.log(mass) - log_p))
        P *= (share / mass)[:, None]
        P[data.rows, data.y] -= share
        ridge = self.alpha / data.total
        return loss + ridge / 2 * float(r @ r), np.einsum("ij,ij->j", P, self.projections) + ridge * r
