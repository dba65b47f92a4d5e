""" "auto": the backend that is fastest for a call of that size on that device, as measured."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from hypermargin import checks
from hypermargin.backends.base import PLAIN, Backend, Call, Rivals, find_backend
from hypermargin.backends.chunked import Chunked
from hypermargin.backends.dense import Dense
from hypermargin.backends.fused import Triton, is_tested_on
from hypermargin.layout import ClassTable
from hypermargin.rules import RuleAtRows

# Up to this many logits, by device type, holding the N×C matrix is faster than computing it in blocks.
DENSE_LOGITS = {"cpu": 2**18, "cuda": 2**25}


@dataclass(frozen=True)
class Auto:
    """The backend that chooses one of the others for each call, and can say why."""

    def fitted(self, call: Call) -> Backend:
        """Return dense for few logits, triton under autocast on the GPUs it was tested on, else chunked."""
        return self._choice(call)[0].fitted(call)

    def explain(self, call: Call) -> str:
        """Return a sentence that says which backend is chosen, and why."""
        chosen, why = self._choice(call)
        name = type(chosen).__name__.lower()
        details = chosen.fitted(call).explain(call).removeprefix(name).removeprefix(": ")
        return f"{name}: {why} {details}".strip()

    def _choice(self, call: Call) -> tuple[Backend, str]:
        logits = f"{call.rows:,} rows × {call.classes:,} classes"
        tested = is_tested_on(call.device) and call.rule.is_softmax and call.dtype == torch.float32
        if tested and torch.is_autocast_enabled("cuda"):
            return Triton(), f"{logits} under autocast: its tiles were the fastest at every size measured."
        most = DENSE_LOGITS.get(call.device.type, DENSE_LOGITS["cpu"])
        if call.rows * call.classes <= most:
            return Dense(), f"{logits} are at most {most:,} logits: holding them costs less than recomputing."
        many = f"{logits} are more than {most:,} logits: computed in"
        if not tested:
            return Chunked(), f"{many} blocks, never held."
        return Chunked(), (
            f"{many} blocks, never held. (Under autocast it would be triton; blocks are faster with float32 "
            "operands.)"
        )

    def __call__(
        self,
        f: torch.Tensor,
        table: ClassTable,
        rule: RuleAtRows = PLAIN,
        *,
        rival_sum: bool = False,
        hardest: bool = False,
    ) -> Rivals:
        """Return the rivals of `f` (N, d), by the backend chosen for this call."""
        call = Call(f.shape[0], table.weight.shape[0], f.device, f.dtype, f.shape[1], rule.rule)
        return self.fitted(call)(f, table, rule, rival_sum=rival_sum, hardest=hardest)


def explain_backend(
    rows: int,
    classes: int,
    backend: str | Backend = "auto",
    device: torch.device | str = "cpu",
    dim: int = 512,
    world_size: int = 1,
) -> str:
    """Return a sentence that says which backend a call of that size uses, and why.

    `dim` affects how much the fused backend can keep for the backward. With a `world_size` above 1 the classes are
    split over that many ranks (`Shard`), each with `rows` rows, and the bytes that each rank sends per step are
    given too, for float32 features and bounded logits; `hypermargin.parallel.traffic` counts other cases.
    """
    checks.count("rows", rows, 0)
    checks.count("classes", classes)
    if world_size != 1:
        from hypermargin.parallel.traffic import traffic

        sent = traffic(rows, dim, world_size)
        each = -(-classes // world_size)
        of_one = explain_backend(rows * world_size, each, backend, device, dim)
        return f"{of_one} Each of {world_size} ranks holds {each:,} classes and sends {sent}."
    call = Call(rows, classes, torch.device(device), dim=dim)
    found = find_backend(backend)
    if isinstance(found, Auto):
        return found.explain(call)
    name, _, details = found.fitted(call).explain(call).partition(": ")
    return f"{name}: backend={backend!r} was asked for. {details}".strip()
