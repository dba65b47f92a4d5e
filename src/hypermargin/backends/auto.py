""" "auto": the backend that is fastest for a call of that size on that device, as measured."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hypermargin import checks
from hypermargin.backends.base import PLAIN, Backend, Call, Rivals, find_backend
from hypermargin.backends.chunked import Chunked
from hypermargin.backends.dense import Dense
from hypermargin.backends.fused import Triton, is_tested_on
from hypermargin.backends.fused.rules import knows
from hypermargin.centers import Centers
from hypermargin.layout import ClassTable
from hypermargin.rules import SOFTMAX, Rule, RuleAtRows

# Up to this many logits holding the N×C matrix is faster than computing it in blocks, by device type. On a GPU it
# is faster by 10 to 30 % without end, but takes some 20 bytes per logit.
DENSE_LOGITS = {"cpu": 2**18, "cuda": 2**27}
# Where the fused backend is the fastest of ours on the GPUs that it was measured on
# (benchmarks/results/auto-cuda.md).
FUSED_LABELS = (
    4096  # with reduced operands: up to this many labels in a tile of 64 classes, which it adds one by one
)
FUSED_ROWS = 256  # with float32 operands: up to this many rows,
FUSED_LOGITS = 2**25  # or up to this many logits of at most
FUSED_LOGIT_ROWS = 1024  # so many rows

LOGITS = "{rows:,} rows × {classes:,} classes"  # filled in only where somebody reads it


def _most(call: Call) -> int:
    """Return up to how many logits the N×C matrix is held."""
    return DENSE_LOGITS.get(call.device.type, DENSE_LOGITS["cpu"])


@dataclass(frozen=True)
class Auto:
    """The backend that chooses one of the others for each call, and can say why."""

    def fitted(self, call: Call) -> Backend:
        """Return what was measured as the fastest, as long as it takes little memory."""
        return self._choice(call)[0].fitted(call)

    def explain(self, call: Call) -> str:
        """Return a sentence that says which backend is chosen, and why."""
        chosen, why = self._choice(call)
        name, why = (
            type(chosen).__name__.lower(),
            why.format(rows=call.rows, classes=call.classes, most=_most(call)),
        )
        details = chosen.fitted(call).explain(call).removeprefix(name).removeprefix(": ")
        return f"{name}: {why} {details}".strip()

    def _choice(self, call: Call) -> tuple[Backend, str]:
        rows, classes = call.rows, call.classes
        if call.dtype == torch.float32 and _is_known(call) and is_tested_on(call.device):
            if torch.is_autocast_enabled("cuda"):
                if rows * min(classes, 64) <= FUSED_LABELS * classes:
                    return Triton(), f"{LOGITS} under autocast: computed in tiles, measured as the fastest."
                return Dense(), f"{LOGITS} have many rows per class, which tiles are slow at."
            few = rows <= FUSED_LOGIT_ROWS and rows * classes <= FUSED_LOGITS
            if (rows <= FUSED_ROWS or few) and rows * min(classes, 64) <= FUSED_LABELS // 4 * classes:
                return Triton(), f"{LOGITS} in float32: computed in tiles, measured as the fastest."
        if rows * classes <= _most(call):
            return Dense(), f"{LOGITS} are at most {{most:,}} logits: holding them costs less than recomputing."
        return Chunked(), f"{LOGITS} are more than {{most:,}} logits: computed in blocks, never held."

    def __call__(
        self,
        f: torch.Tensor,
        table: ClassTable,
        rule: RuleAtRows | None = None,
        *,
        rival_sum: bool = False,
        hardest: bool = False,
    ) -> Rivals:
        """Return the rivals of `f` (N, d), by the backend chosen for this call."""
        rule = PLAIN if rule is None else rule
        call = Call(f.shape[0], table.weight.shape[0], f.device, f.dtype, f.shape[1], rule.rule, table.centers)
        return self.fitted(call)(f, table, rule, rival_sum=rival_sum, hardest=hardest)


def _is_known(call: Call) -> bool:
    """Return whether a call is about what the fused kernels know."""
    return knows(call.rule) and not call.centers.pooled


def explain_backend(
    rows: int,
    classes: int,
    backend: str | Backend = "auto",
    device: torch.device | str = "cpu",
    dim: int = 512,
    world_size: int = 1,
    rule: Rule = SOFTMAX,
    centers: int | Centers = 1,
) -> str:
    """Return a sentence that says which backend a call of that size uses, and why.

    `dim` affects how much the fused backend can keep for the backward. With a `world_size` above 1 the classes are
    split over that many ranks (`Shard`), each with `rows` rows, and the bytes that each rank sends per step are
    given too, for float32 features and bounded logits; `hypermargin.parallel.traffic` counts other cases. `rule`
    and `centers` are the head's; with several centers `classes` are rows of the weight.
    """
    checks.count("rows", rows, 0)
    checks.count("classes", classes)
    if world_size != 1:
        from hypermargin.parallel.traffic import traffic

        sent = traffic(rows, dim, world_size)
        each = -(-classes // world_size)
        of_one = explain_backend(rows * world_size, each, backend, device, dim, rule=rule, centers=centers)
        return f"{of_one} Each of {world_size} ranks holds {each:,} classes and sends {sent}."
    call = Call(rows, classes, torch.device(device), dim=dim, rule=rule, centers=Centers.of(centers))
    found = find_backend(backend)
    if isinstance(found, Auto):
        return found.explain(call)
    name, _, details = found.fitted(call).explain(call).partition(": ")
    return f"{name}: backend={backend!r} was asked for. {details}".strip()
