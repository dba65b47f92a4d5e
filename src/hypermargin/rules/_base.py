"""The base class of rules, their state, and the registry that finds rules by name."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from hypermargin.centers import ONE, Centers
from hypermargin.fields import check_fields
from hypermargin.numerics import softplus
from hypermargin.registry import Registry
from hypermargin.rules._aggregates import LOG_SUM_EXP, Aggregate

if TYPE_CHECKING:
    from hypermargin.backends import Backend, Rivals
    from hypermargin.layout import ClassTable
    from hypermargin.margins import MarginAtRows, RowFacts


class Rule:
    """ρ: what the cosine of a rival counts as. The base leaves the cosine as it is, and the loss is softmax's.

    With s the length of the scaled feature, b_j an offset and τ_i the numbers of row i that the rule asked for
    (one threshold, unless it says otherwise: the margined cosine ψ of the row's own class), without gradient:

        ρ_ij = s·ρ(cos θ_ij; τ_i) + b_j,     R_i = aggregate of ρ_ij over j ≠ y,     L_i = link(R_i, T_i)

    A rule is a frozen dataclass of numbers and words. Subclass, define `rho` and its derivative `slope`,
    decorate with `@register("name")`, and every head, the dense and the chunked backend, the shards and the
    laws know it. Both methods must treat each entry by itself and be made of differentiable torch operations.
    """

    name: ClassVar[str] = ""
    formula: ClassVar[str] = ""
    row_numbers: ClassVar[int] = 0  # how many numbers of its row ρ is told
    detached: ClassVar[bool] = False  # a factor of ρ counts as constant, so `slope` is not its derivative
    aggregate: ClassVar[Aggregate] = LOG_SUM_EXP

    _text: ClassVar[str] = ""  # of an object, once made: torch.compile guards a word, but cannot write one

    is_identity: ClassVar[bool] = True  # ρ(c) = c, so that backends may leave it out; set by __init_subclass__
    is_softmax: ClassVar[bool] = True  # R is the log-sum-exp of the plain logits, which every backend can do

    def __init_subclass__(cls) -> None:
        cls.is_identity = cls.rho is Rule.rho
        cls.is_softmax = cls.is_identity and cls.aggregate is LOG_SUM_EXP

    def rho(self, cosine: Tensor, threshold: Tensor | None) -> Tensor:
        """Return ρ(cos θ_ij; τ_i) for cosines (N, C) and what `of_rows` returned, (N, row_numbers)."""
        return cosine

    def slope(self, cosine: Tensor, threshold: Tensor | None) -> Tensor:
        """Return the derivative dρ/dcos at each cosine."""
        return torch.ones_like(cosine)

    def of_rows(self, rows: RowFacts, psi: MarginAtRows) -> Tensor | None:
        """Return the numbers of each row that ρ is told, (N, row_numbers), without gradient; None if it needs none.

        The base returns the margined cosine of the row's own class, for rules that ask for one number.
        """
        return rows.ahead.margined(psi) if self.row_numbers else None

    def state(self) -> RuleState:
        """Return the module that holds what the rule learns from batch to batch; the base's holds nothing."""
        return RuleState()

    def rivals(
        self, backend: Backend, f: Tensor, table: ClassTable, at_rows: RuleAtRows, *, rival_sum: bool = False
    ) -> Rivals:
        """Return the rivals of scaled features `f`; the base lets the backend compute them."""
        return table.rivals(backend, f, at_rows, rival_sum=rival_sum)

    def link(self, R: Tensor, T: Tensor, scale: Tensor | float) -> Tensor:
        """Return the loss of each row from its rivals R and target T, both (N,); `scale` is s, without gradient."""
        return softplus(R - T)

    def first_bias(self, classes: int, scale: float) -> float:
        """Return the initial value of a learned bias, where so many classes take part in a step."""
        return 0.0

    def at(
        self, length: Tensor | None = None, threshold: Tensor | None = None, centers: Centers = ONE
    ) -> RuleAtRows:
        """Return the rule together with the lengths |f_i| (N, 1) and the numbers τ_i (N, n) of a batch's rows."""
        return RuleAtRows(self, None if self.is_identity and not centers.soft else length, threshold)

    def __post_init__(self) -> None:
        check_fields(self)
        with contextlib.suppress(TypeError):  # fields that are no text: for backends that need none
            object.__setattr__(self, "_text", _written(self))


class RuleAtRows(NamedTuple):
    """A rule for one batch. z_ij = |f_i|·cos θ_ij goes in, |f_i|·ρ(cos θ_ij; τ_i) comes out."""

    rule: Rule
    length: Tensor | None = None  # (N, 1)  |f_i|; None if neither the rule nor the centers go by cosines
    threshold: Tensor | None = None  # (N, n)  τ_i

    def cosine(self, z: Tensor) -> Tensor:
        """Return cos θ; 0 where f is zero, or so short that 1/|f| is infinite."""
        return z / self.divisor()

    def divisor(self) -> Tensor:
        """Return |f|, (N, 1); 1 where f is zero, or so short that 1/|f| is infinite."""
        assert self.length is not None
        return self.length.masked_fill(self._no_direction(), 1.0)

    def _no_direction(self) -> Tensor:
        assert self.length is not None
        return self.length < torch.finfo(self.length.dtype).tiny

    def rho(self, z: Tensor) -> Tensor:
        """Return |f|·ρ(z/|f|), or z for the identity."""
        if self.length is None or self.rule.is_identity:
            return z
        return self.length * self.rule.rho(self.cosine(z), self.threshold)

    def slope(self, z: Tensor) -> Tensor:
        """Return the derivative of `rho` by z; 0 where f is zero."""
        assert self.length is not None
        return self.rule.slope(self.cosine(z), self.threshold) * ~self._no_direction()

    def slope_by_length(self, z: Tensor) -> Tensor:
        """Return the derivative of `rho` by |f|, z held fixed: ρ(c) − c·ρ′(c)."""
        c = self.cosine(z)
        return self.rule.rho(c, self.threshold) - c * self.rule.slope(c, self.threshold)


class RuleState(nn.Module):
    """Asks a rule for the numbers of each row. The base has no state.

    A state of your own goes into buffers: `forward` computes the next state without storing it, and `advance`,
    called in training only and after the loss was computed, stores it. With a sharded head every rank sees the rows
    of all ranks, so that all compute the same state.
    """

    def forward(self, rule: Rule, rows: RowFacts, psi: MarginAtRows) -> Tensor | None:
        """Return the numbers of each row that `rho` is told, (N, n)."""
        return rule.of_rows(rows, psi)

    def advance(self) -> None:
        """Advance the state by one training step."""


STATELESS = RuleState()

RULES = Registry[Rule]("rule")
register, names, get = RULES.register, RULES.names, RULES.get


def to_text(rule: Rule) -> str:
    """Return a rule as text, because an operation of torch.library takes no Python objects."""
    if get(rule.name) is not type(rule):
        raise ValueError(f"{rule} is not registered. Decorate its class with @hypermargin.rules.register('name').")
    return rule._text or _written(rule)


def _written(rule: Rule) -> str:
    return json.dumps([rule.name, dataclasses.asdict(rule)])  # type: ignore[call-overload]  # rules are dataclasses


def from_text(text: str) -> Rule:
    """Return the rule that `to_text` wrote."""
    kind: Any = get(json.loads(text)[0])
    return _made(kind, text)


@functools.lru_cache
def _made(kind: Any, text: str) -> Rule:
    """Make a rule once per class, so that a class written anew in a notebook is not taken for the one before."""
    rule: Rule = kind(**json.loads(text)[1])
    return rule
