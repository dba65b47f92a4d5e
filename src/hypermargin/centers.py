"""Several rows of the weight per class, its centers: how many, and what a class is to a sample because of them."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from hypermargin import checks
from hypermargin.numerics import unit, wide_dtype, widen

Pool = Literal["sum", "max", "soft"]
POOLS = get_args(Pool)


@dataclass(frozen=True)
class Centers:
    """How many centers a class has, and how their cosines become the class's: `centers=Centers(3, pool="max")`.

    - count: K, the rows of the weight per class. With one all pools are the same.
    - pool: "sum": every center of another class is a rival of its own; the target is the nearest of the own class.
      "max": a class is its nearest center, as a rival too (Deng et al. 2020). Only that center has a gradient;
      of equally near ones it is the first. R is at most ln K smaller than with "sum".
      "soft": the cosine of a class is the mean of those to its centers, weighed by softmax(cosine/gamma), as a
      target too (Qian et al. 2019, arXiv:1909.05235). It needs unit class vectors.
    - gamma: of "soft"; towards 0 it becomes "max"
    - together: a `MarginHead` adds so many times the mean over the classes of Σ_{k<l} |ŵ_k − ŵ_l| / (K(K − 1)) to
      its training loss, half the mean distance between the centers of a class: what is not needed grows together
      (SoftTriple's τ). It is about all classes, so not for `PartialFC`.
    """

    count: int = 1
    pool: Pool = "sum"
    gamma: float = 0.1
    together: float = 0.0

    def __post_init__(self) -> None:
        checks.count("centers", self.count, 1, checks.MOST_CENTERS)
        checks.one_of("pool", self.pool, POOLS)
        checks.in_range("gamma", self.gamma, 1e-3, math.inf)
        checks.in_range("together", self.together, 0.0, math.inf)

    @staticmethod
    def of(given: int | Centers) -> Centers:
        """Return the centers that a number, or such an object, stands for."""
        return given if isinstance(given, Centers) else Centers(given)

    @property
    def pooled(self) -> bool:
        """Whether a class is one rival, where otherwise each of its centers is."""
        return self.count > 1 and self.pool != "sum"

    @property
    def soft(self) -> bool:
        """Whether all centers of a class have a part in its cosine."""
        return self.count > 1 and self.pool == "soft"

    def by_class(self, by_row: Tensor) -> Tensor:
        """Return (…, C·K) numbers by row of the weight as (…, C, K)."""
        return by_row.view(*by_row.shape[:-1], by_row.shape[-1] // self.count, self.count)

    def score(self, z: Tensor, length: Tensor | None = None) -> Tensor:
        """Return the z of each class, (…, C), from those of its centers, (…, C, K).

        z are cosines, or with `length` (broadcastable to the result) cosines times it.
        """
        if not self.soft:
            return z.gather(-1, z.detach().argmax(-1, keepdim=True)).squeeze(-1)
        return (self._cosines_and_shares(z, length)[1] * z).sum(-1)

    def spread(self, by_class: Tensor, z: Tensor, length: Tensor | None = None) -> Tensor:
        """Return the gradient by z, (…, C, K), from that by `score`, (…, C), with the length held fixed."""
        if not self.soft:
            return torch.zeros_like(z).scatter(-1, z.argmax(-1, keepdim=True), by_class.unsqueeze(-1))
        c, p = self._cosines_and_shares(z, length)
        mean = (p * c).sum(-1, keepdim=True)
        return by_class.unsqueeze(-1) * p * (1 + (c - mean) / self.gamma)

    def slope_by_length(self, z: Tensor, length: Tensor) -> Tensor:
        """Return the derivative of "soft"'s `score` by the length, with z held fixed, (…, C)."""
        c, p = self._cosines_and_shares(z, length)
        mean = (p * c).sum(-1, keepdim=True)
        return -(p * (c - mean).square()).sum(-1) / self.gamma

    def angle(self, product: Tensor, angles: Tensor, length: Tensor) -> Tensor:
        """Return the angle whose cosine is "soft"'s `score`, (…,), from products and angles to the centers, (…, K).

        1 − cos θ is the mean of 1 − cos θ_k. Sines and cosines of half angles keep the digits near 0 and π.
        """
        p, half = self._cosines_and_shares(product, length)[1], angles / 2
        sine, cosine = (p * half.sin().square()).sum(-1), (p * half.cos().square()).sum(-1)
        return 2 * torch.atan2(_root(sine), _root(cosine))

    def _cosines_and_shares(self, z: Tensor, length: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the cosines to the centers, and softmax(cosine/gamma) over the centers of each class."""
        c = z if length is None else z / _divisor(length).unsqueeze(-1)
        each = ((c - c.detach().amax(-1, keepdim=True)) / self.gamma).exp()  # softmax of so few is slow on the CPU
        return c, each / each.sum(-1, keepdim=True)

    def distance(self, weight: Tensor, classes: int) -> Tensor:
        """Return what `together` weighs: the part that the classes in `weight` have in the mean over `classes`."""
        w = unit(widen(weight, wide_dtype(weight))).view(-1, self.count, weight.shape[1])
        first, second = torch.triu_indices(self.count, self.count, 1, device=w.device)
        cosines = torch.bmm(w, w.transpose(1, 2))[:, first, second]
        # 1e-5, as in the paper's code, keeps the root's slope finite where two centers are one.
        return (2 + 1e-5 - 2 * cosines).sqrt().sum() / (classes * self.count * max(self.count - 1, 1))

    @property
    def text(self) -> str:
        """The same as text, because an operation of torch.library takes no Python objects."""
        return f"{self.count} {self.pool} {self.gamma!r}"

    def __str__(self) -> str:
        """Return the number, with what else is not as usual."""
        if self.pool == "sum" and not self.together:
            return str(self.count)
        words = f'Centers({self.count}, pool="{self.pool}"'
        words += f", gamma={self.gamma:g}" if self.pool == "soft" else ""
        return words + (f", together={self.together:g})" if self.together else ")")


ONE = Centers()


@functools.lru_cache
def from_text(text: str) -> Centers:
    """Return the centers that `text` was made from, but for what no operation needs."""
    count, pool, gamma = text.split()
    return Centers(int(count), pool, float(gamma))  # type: ignore[arg-type]


def _divisor(length: Tensor) -> Tensor:
    """Return the length, 1 where it is 0, or so short that its inverse is infinite: all products are 0 there."""
    return length.masked_fill(length < torch.finfo(length.dtype).tiny, 1.0)


def _root(x: Tensor) -> Tensor:
    """Return √x, with slope 0 where x is 0."""
    inside = x > 0
    return torch.where(inside, x.masked_fill(~inside, 1.0).sqrt(), 0.0)
