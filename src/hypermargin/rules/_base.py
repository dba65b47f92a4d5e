"""What a rule is, how the rivals of a row add up, and the registry that finds rules by name."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from hypermargin import checks
from hypermargin.fields import check_fields
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
        """Return what a slice of the classes puts into a sum over the slices."""
        return (R - shift).exp()

    def from_shares(self, total: Tensor, shift: Tensor | float) -> Tensor:
        """Return R over all slices from that sum."""
        none = total == 0
        return (shift + total.masked_fill(none, 1.0).log()).masked_fill(none, -math.inf)


class SumOfSoftplus:
    """R = Σ_j log(1 + exp ρ_ij): every rival is a question of its own, answered yes or no."""

    name = "sum of softplus"
    nothing = 0.0
    needs_shift = False

    def total(self, rho: Tensor) -> Tensor:
        """Return R over the last dimension; entries of −inf do not count."""
        return softplus(rho).sum(-1)

    def join(self, one: Tensor, other: Tensor) -> Tensor:
        """Return R of two groups of rivals together."""
        return one + other

    def gradient(self, rho: Tensor, R: Tensor) -> Tensor:
        """Return dR/dρ, for ρ (N, C) and R (N,)."""
        return rho.sigmoid()

    def to_share(self, R: Tensor, shift: Tensor | float) -> Tensor:
        """Return R itself: slices add up."""
        return R

    def from_shares(self, total: Tensor, shift: Tensor | float) -> Tensor:
        """Return the sum itself."""
        return total


LOG_SUM_EXP, SUM_OF_SOFTPLUS = LogSumExp(), SumOfSoftplus()
Aggregate = LogSumExp | SumOfSoftplus


class Rule:
    """ρ: what the cosine of a rival counts as. The base leaves it as it is, and the loss is softmax's.

    With s the length of the scaled feature, b_j an offset and τ_i a threshold of the row (its own margined
    cosine ψ, without gradient):

        ρ_ij = s·ρ(cos θ_ij; τ_i) + b_j,     R_i = aggregate of ρ_ij over j ≠ y,     L_i = link(R_i, T_i)

    A rule is a frozen dataclass of numbers and words. Subclass, define `rho` and its derivative `slope`,
    decorate with `@register("name")`, and every head, the dense and the chunked backend, the shards and the
    laws know it. Both methods must treat each entry by itself and be made of differentiable torch operations.
    """

    name: ClassVar[str] = ""
    formula: ClassVar[str] = ""
    needs_threshold: ClassVar[bool] = False
    aggregate: ClassVar[Aggregate] = LOG_SUM_EXP

    _text: ClassVar[str] = ""  # of an object, once made: torch.compile guards a word, but cannot write one

    is_identity: ClassVar[bool] = True  # ρ(c) = c, so that backends may leave it out; found by itself
    is_softmax: ClassVar[bool] = True  # R is the log-sum-exp of the plain logits, which every backend can do

    def __init_subclass__(cls) -> None:
        cls.is_identity = cls.rho is Rule.rho
        cls.is_softmax = cls.is_identity and cls.aggregate is LOG_SUM_EXP

    def rho(self, cosine: Tensor, threshold: Tensor | None) -> Tensor:
        """Return ρ(cos θ_ij; τ_i) for cosines (N, C) and thresholds (N, 1)."""
        return cosine

    def slope(self, cosine: Tensor, threshold: Tensor | None) -> Tensor:
        """Return dρ/dcos."""
        return torch.ones_like(cosine)

    def link(self, R: Tensor, T: Tensor, scale: Tensor | float) -> Tensor:
        """Return the loss of each row from its rivals R and its target T, both (N,); `scale` is s."""
        return softplus(R - T)

    def first_bias(self, classes: int, scale: float) -> float:
        """Return where a learned bias begins."""
        return 0.0

    def at(self, length: Tensor | None = None, threshold: Tensor | None = None) -> RuleAtRows:
        """Return the rule with what it needs to know of each row: |f_i| (N, 1) and τ_i (N, 1)."""
        return RuleAtRows(self, None if self.is_identity else length, threshold)

    def __post_init__(self) -> None:
        check_fields(self)
        with contextlib.suppress(TypeError):  # fields that are no text: for backends that need none
            object.__setattr__(self, "_text", _written(self))


class RuleAtRows(NamedTuple):
    """A rule for one batch. z_ij = |f_i|·cos θ_ij goes in, |f_i|·ρ(cos θ_ij; τ_i) comes out."""

    rule: Rule
    length: Tensor | None = None  # (N, 1)  |f_i|; None for the identity
    threshold: Tensor | None = None  # (N, 1)  τ_i

    @property
    def is_identity(self) -> bool:
        """Tell whether z comes out as it went in."""
        return self.length is None

    def cosine(self, z: Tensor) -> Tensor:
        """Return cos θ; 0 where f is zero, or so short that 1/|f| is infinite."""
        assert self.length is not None
        return z / self.length.masked_fill(self._no_direction(), 1.0)

    def _no_direction(self) -> Tensor:
        assert self.length is not None
        return self.length < torch.finfo(self.length.dtype).tiny

    def rho(self, z: Tensor) -> Tensor:
        """Return |f|·ρ(z/|f|)."""
        return z if self.length is None else self.length * self.rule.rho(self.cosine(z), self.threshold)

    def slope(self, z: Tensor) -> Tensor:
        """Return the derivative of `rho` by z; 0 where f is zero."""
        assert self.length is not None
        return self.rule.slope(self.cosine(z), self.threshold) * ~self._no_direction()

    def slope_by_length(self, z: Tensor) -> Tensor:
        """Return the derivative of `rho` by |f|, z held fixed: ρ(c) − c·ρ′(c)."""
        c = self.cosine(z)
        return self.rule.rho(c, self.threshold) - c * self.rule.slope(c, self.threshold)


_REGISTRY: dict[str, type[Rule]] = {}
R = TypeVar("R", bound=type[Rule])


def register(name: str) -> Callable[[R], R]:
    """Make a rule known under `name`; a class decorator."""

    def enter(cls: R) -> R:
        if name in _REGISTRY and _REGISTRY[name].__qualname__ != cls.__qualname__:
            raise ValueError(f"rule name {name!r} is taken by {_REGISTRY[name].__name__}; choose another.")
        cls.name = name
        _REGISTRY[name] = cls
        from_text.cache_clear()  # a rule written anew in a notebook is not the one that was read before
        return cls

    return enter


def names() -> list[str]:
    """Return the names of all registered rules."""
    return sorted(_REGISTRY)


def get(name: str) -> type[Rule]:
    """Return the rule class registered under `name`."""
    try:
        return _REGISTRY[name]
    except KeyError:
        known = ", ".join(names())
        raise ValueError(f"unknown rule {name!r}; registered are {known}.{checks.near(name, names())}") from None


def to_text(rule: Rule) -> str:
    """Write a rule as text, which is all that an operation of torch.library can be given of it."""
    if get(rule.name) is not type(rule):
        raise ValueError(f"{rule} is not registered. Decorate its class with @hypermargin.rules.register('name').")
    return rule._text or _written(rule)


def _written(rule: Rule) -> str:
    return json.dumps([rule.name, dataclasses.asdict(rule)])  # type: ignore[call-overload]  # rules are dataclasses


@functools.lru_cache
def from_text(text: str) -> Rule:
    """Read what `to_text` wrote."""
    name, fields = json.loads(text)
    made: Any = get(name)(**fields)
    rule: Rule = made
    return rule
