"""Partial FC: each step uses only the labels of the batch and a random sample of the other classes.

An et al. 2022 (arXiv:2203.15565). For given labels the sample depends on seed and step alone, not on the number of
ranks: the permutation it comes from can be evaluated at single class numbers, so each rank evaluates it at its own
classes and at the labels.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from hypermargin import checks
from hypermargin.centers import Centers
from hypermargin.layout import ClassTable, Layout, Share, bias_by_row, by_center, places, rows_of
from hypermargin.numerics import hashed
from hypermargin.parallel.shard import is_in_ddp, never_empty
from hypermargin.rules import LOG_SUM_EXP, Aggregate
from hypermargin.wrapped import Wrapped

if TYPE_CHECKING:
    from hypermargin.batch import Batch

_ROUNDS = 8


@dataclass(frozen=True)
class PartialFC:
    """Settings of sampling, for `MarginHead(…, sample=PartialFC(0.1))`, with or without a shard.

    - rate: ⌊rate·C⌋ classes take part in a training step: all labels of the batch (of all ranks), however many,
      and rivals drawn from the others. 1 is the full head. In evaluation all classes take part.
    - correct: a class that was drawn with probability p counts 1/p times, so that Σ exp z has the expectation of
      the sum over all classes. Without it the sum is too small, and the loss too small by about log(1/rate). So
      that p is never 0, ⌈rate·others⌉ rivals are then drawn however many labels there are, a few more than
      ⌊rate·C⌋ in all. The correction makes losses comparable between rates. It need not improve training: at small
      rates a few rivals with large weights add noise.
    - seed: the classes of a step depend on it and on the number of the step

    Gradients are sparse: they hold only the rows that took part, and `SampledSGD` and `SampledAdamW` leave the
    others unchanged. DDP does not reduce sparse gradients, so with several processes use `shard=Shard()`.
    """

    rate: float
    correct: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        checks.positive("PartialFC(rate=…)", self.rate)
        if self.rate > 1:
            raise ValueError(f"PartialFC(rate=…) must lie in (0, 1]; got {self.rate:g}. 1 is all classes.")
        checks.count("PartialFC(seed=…)", self.seed, 0)


class Sample(NamedTuple):
    """The classes that take part in one step and are held by this process."""

    rows: Tensor  # (S,)  their rows in the slice, ascending
    log_times: Tensor | None  # (S,)  log of how often each class counts; None without correction
    bound: float  # the largest possible entry of log_times

    def of(self, table: Tensor) -> Tensor:
        """Return the sampled rows of a table by class; the gradient of the table is sparse."""
        return pick_rows(table, self.rows)

    def find(self, local: Tensor) -> Tensor:
        """Return the rows in the sample of rows of the slice; −1 where the sample does not contain them."""
        if not self.rows.numel():
            return torch.full_like(local, -1)
        at = torch.searchsorted(self.rows, local).clamp(max=self.rows.shape[0] - 1)
        return at.masked_fill(self.rows[at] != local, -1)


class Sampled(Wrapped):
    """The layout of one step: the sampled classes of another layout, `inner`. A new one is made for every step."""

    def __init__(self, inner: Layout, settings: PartialFC, step: Tensor) -> None:
        super().__init__(inner)
        self.settings, self.step, self.covers_all = settings, step, False

    def busiest(self, here: int) -> int:
        """Return about how many sampled classes the busiest process has."""
        most = self.inner.busiest(here)
        return max(min(math.ceil(self.settings.rate * most), most), 1)

    def gather(self, check: Callable[[], Batch], asked: str, weight: Tensor) -> Batch:
        """Return the batch that the inner layout gathers."""
        return self.inner.gather(check, f"{asked}, sampled", weight)

    def table(
        self, weight: Tensor, batch: Batch, *, unit: bool, bias: Tensor | None, centers: Centers
    ) -> ClassTable:
        """Return the rows of the drawn classes; the gradients of weight and of a bias per class are sparse."""
        K = centers.count
        held = self.inner.held(weight.shape[0] // K)
        sample = draw(self.settings, self.step, held, self.classes(len(held)), batch.y)
        rows = rows_of(sample.rows.unsqueeze(1), K).flatten()
        if bias is not None:
            bias = self.shared(bias).expand(len(sample.rows)) if bias.dim() == 0 else sample.of(bias)
        if sample.log_times is not None:
            bias = sample.log_times if bias is None else bias + sample.log_times
        local = rows_of(sample.find(places(batch.y, held)), K)
        m = None if batch.class_m is None else batch.class_m.index_select(0, sample.rows)
        weight = pick_rows(weight, rows)
        bias, m = bias_by_row(bias, weight, batch, K), by_center(m, K)
        times = bias_by_row(sample.log_times, weight, batch, K)
        return never_empty(
            ClassTable(
                weight, unit, bias, local, local >= 0, centers, m,
                raised=sample.bound, picked=sample.rows, times=times,
            )
        )  # fmt: skip

    def combine(
        self, table: ClassTable, aggregate: Aggregate, share: Share, bound: float | Tensor | None = None
    ) -> Share:
        """Return the shares added up by the inner layout; raise if the rule cannot be corrected."""
        if self.settings.correct and aggregate is not LOG_SUM_EXP:
            raise ValueError(
                f"PartialFC(correct=True) raises the logits of a log-sum-exp; a {aggregate.name} has none. Leave "
                "it out."
            )
        return self.inner.combine(table, aggregate, share, bound)

    def refuse_ddp(self, weight: Tensor) -> None:
        """Raise inside DistributedDataParallel, which cannot add up sparse gradients."""
        self.inner.refuse_ddp(weight)
        if is_in_ddp(weight):
            raise RuntimeError(
                "sample=PartialFC(…) makes sparse gradients, which DistributedDataParallel cannot add up. Give the "
                "head shard=Shard() as well, wrap the network alone, and call the head outside."
            )


@cache
def _silence() -> None:
    """Disable torch's checks of sparse tensors explicitly: some versions of torch warn unless that is done."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not torch.sparse.check_sparse_tensor_invariants.is_enabled():
            torch.sparse.check_sparse_tensor_invariants.disable()


def draw(settings: PartialFC, step: Tensor, held: range, classes: int, labels: Tensor) -> Sample:
    """Return which classes out of `held` take part in a step.

    They are those in `labels` (any shape, −1: none) and the first others in a permutation of all `classes`.
    """
    _silence()
    positives = labels.flatten().unique()
    positives = positives[positives >= 0]
    known = positives.shape[0]
    others = classes - known
    if settings.correct:
        wanted = max(math.ceil(settings.rate * others - 1e-9), 0)
    else:
        wanted = max(math.floor(settings.rate * classes + 1e-9) - known, 0)
    # `end` is the place in the permutation before which `wanted` others lie: each positive among them adds a place.
    own = torch.arange(held.start, held.stop, device=labels.device)
    place, place_of_own = permuted(torch.cat((positives, own)), classes, settings.seed, step).tensor_split([known])
    end = wanted + (place.sort().values - torch.arange(known, device=place.device) < wanted).sum()
    taken = place_of_own < end
    mine = positives[(positives >= held.start) & (positives < held.stop)] - held.start
    is_label = torch.zeros_like(taken).index_fill(0, mine, True)
    rows = (taken | is_label).nonzero().squeeze(1)
    if not settings.correct or not wanted:
        return Sample(rows, None, 0.0)
    log_times = math.log(others / wanted)
    return Sample(rows, torch.where(is_label[rows], 0.0, log_times), log_times)


def permuted(ids: Tensor, classes: int, seed: int, step: Tensor) -> Tensor:
    """Return π(ids), with π a pseudo-random permutation of 0 … classes−1 for each (seed, step).

    A Feistel network with modular sums permutes 0 … a·b−1, with a = ⌈√C⌉ and b = ⌈C/a⌉. Results that are not below
    C, at most one in √C, are permuted again until they are.
    """
    a = math.isqrt(classes - 1) + 1
    b = -(-classes // a)
    key = hashed(step.to(ids.device) + hashed(torch.full((), seed & 0xFFFFFFFF, device=ids.device)))
    keys = [hashed(key + 0x9E3779B9 * (number + 1)) for number in range(_ROUNDS)]

    def once(x: Tensor) -> Tensor:
        high, low = x // b, x % b
        for number, round_key in enumerate(keys):
            if number % 2:
                low = (low + hashed(high + round_key)) % b
            else:
                high = (high + hashed(low + round_key)) % a
        return high * b + low

    out = once(ids)
    while (beyond := (out >= classes).nonzero().squeeze(1)).numel():  # fewer in every round
        out[beyond] = once(out[beyond])
    return out


def pick_rows(table: Tensor, rows: Tensor) -> Tensor:
    """Return table[rows] for ascending rows; the gradient of the table is sparse."""
    out: Tensor = _Rows.apply(table, rows)
    return out


class _Rows(torch.autograd.Function):
    """table[rows] with rows ascending; the backward returns a coalesced sparse gradient."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        ctx.shape = table.shape
        return table.index_select(0, rows)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (rows,) = ctx.saved_tensors
        by_table = torch.sparse_coo_tensor(rows[None], grad, ctx.shape, is_coalesced=True, check_invariants=False)
        return by_table, None
