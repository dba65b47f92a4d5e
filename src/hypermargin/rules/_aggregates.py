"""The ways to add up a row's rivals: R from the ρ of every rival."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hypermargin.numerics import log_add_exp, log_sum_exp, softplus


class LogSumExp:
    """R = log Σ_j exp ρ_ij: the rivals of a softmax."""

    name = "log-sum-exp"
    nothing = -math.inf  # R of a row without rivals
    needs_shift = True  # exp ρ must be kept inside the exponent's range

    def total(self, rho: Tensor) -> Tensor:
        """Return R over the last dimension; entries of −inf do not count."""
        return log_sum_exp(rho)

    def join(self, one: Tensor, other: Tensor) -> Tensor:
        """Return R of two groups of rivals together."""
        return log_add_exp(one, other)

    def gradient(self, rho: Tensor, R: Tensor) -> Tensor:
        """Return dR/dρ, for ρ (N, C) and R (N,)."""
        none = R.isneginf()
        return (rho - R.masked_fill(none, math.inf)[:, None]).exp()

    def to_share(self, R: Tensor, shift: Tensor | float) -> Tensor:
        """Return what a slice of the classes contributes to the sum over all slices."""
        return (R - shift).exp()

    def from_shares(self, total: Tensor, shift: Tensor | float) -> Tensor:
        """Return R over all slices from the sum of their `to_share`."""
        none = total == 0
        return (shift + total.masked_fill(none, 1.0).log()).masked_fill(none, -math.inf)


class Additive:
    """R = Σ_j of something of each ρ_ij alone. The base is Σ ρ_ij itself."""

    name = "plain sum"
    nothing = 0.0
    needs_shift = False

    def each(self, rho: Tensor) -> Tensor:
        """Return what every rival adds; an entry of −inf adds nothing."""
        return rho.masked_fill(rho == -math.inf, 0.0)

    def total(self, rho: Tensor) -> Tensor:
        """Return R over the last dimension; entries of −inf do not count."""
        return self.each(rho).sum(-1)

    def join(self, one: Tensor, other: Tensor) -> Tensor:
        """Return R of two groups of rivals together."""
        return one + other

    def gradient(self, rho: Tensor, R: Tensor) -> Tensor:
        """Return dR/dρ, for ρ (N, C) and R (N,)."""
        return torch.ones_like(rho)

    def to_share(self, R: Tensor, shift: Tensor | float) -> Tensor:
        """Return R itself, since the R of slices add up."""
        return R

    def from_shares(self, total: Tensor, shift: Tensor | float) -> Tensor:
        """Return the sum itself, which is R over all slices."""
        return total


class SumOfSoftplus(Additive):
    """R = Σ_j log(1 + exp ρ_ij): every rival is a binary classification of its own."""

    name = "sum of softplus"

    def each(self, rho: Tensor) -> Tensor:
        """Return log(1 + exp ρ)."""
        return softplus(rho)

    def gradient(self, rho: Tensor, R: Tensor) -> Tensor:
        """Return dR/dρ, for ρ (N, C) and R (N,)."""
        return rho.sigmoid()


LOG_SUM_EXP, SUM_OF_SOFTPLUS, SUM = LogSumExp(), SumOfSoftplus(), Additive()
Aggregate = LogSumExp | Additive
