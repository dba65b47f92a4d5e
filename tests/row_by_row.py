"""A backend of one's own, in some forty lines, for the tests."""

import dataclasses

import torch

from hypermargin.backends import PLAIN, Rivals
from hypermargin.numerics import unit


@dataclasses.dataclass(frozen=True)
class RowByRow:
    """Scores one row after the other, which is slow and needs C numbers at a time."""

    calls: list = dataclasses.field(default_factory=list, compare=False, repr=False)

    def fitted(self, call):
        if not call.rule.is_softmax:
            raise ValueError(f"RowByRow knows softmax's rule alone, not {call.rule}.")
        return self

    def explain(self, call):
        return f"row by row: {call.rows:,} times {call.classes:,} logits."

    def __call__(self, f, table, rule=PLAIN, *, rival_sum=False, hardest=False):
        self.calls.append(len(f))
        w = table.weight.to(f.dtype)
        w = unit(w) if table.unit else w
        inside = torch.ones_like(table.local, dtype=torch.bool) if table.inside is None else table.inside
        numbers = []
        for row, labels, here in zip(f, table.local, inside, strict=True):
            z = w @ row if table.bias is None else w @ row + table.bias
            rival = torch.ones(len(w), dtype=torch.bool).index_fill(0, labels[here], False)
            z = z[rival]
            numbers.append((z.logsumexp(0), z.sum(), z.detach().amax() if len(z) else z.new_tensor(-torch.inf)))
        R, total, top = (torch.stack(each) for each in zip(*numbers, strict=True)) if numbers else [f.sum(1)] * 3
        rows = table.label_rows(w)
        return Rivals(rows, R, total if rival_sum else None, top.detach() if hardest else None)
