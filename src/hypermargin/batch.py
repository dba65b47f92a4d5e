"""What the caller gives, checked; of a sharded head, what all ranks give, brought together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from hypermargin import checks
from hypermargin.numerics import wide_dtype, widen
from hypermargin.parallel.messages import Rows, gather_rows
from hypermargin.parallel.shard import Part


class Given(NamedTuple):
    """A checked batch; of a sharded head, the rows of all ranks."""

    features: Tensor  # (N, d)
    y: Tensor  # (N, K)  labels
    all_used: bool  # no row is ignored, and this is known
    scale: float | Tensor
    share: float | Tensor  # of the first label, with mixup
    m: Tensor | None
    rows: Rows | None = None  # whose they are, with a shard


def given(
    features: Tensor,
    weight: Tensor,
    labels: Tensor | None,
    *,
    scale: float | Tensor,
    bias: Tensor | None,
    ignore_index: int = -100,
    mix: checks.Mix | None = None,
    m: Tensor | None = None,
    numbers: int | None = None,
    check: bool | Literal["auto"] = "auto",
    part: Part | None = None,
    call: str = "",
) -> Given:
    """Check a batch, and with a shard bring together those of all ranks.

    `numbers` is how many an m consists of. `call` says what is asked for, which must be the same on all ranks.
    """

    def checked() -> Given:
        checks.features_and_weight(features, weight, bias, 1 if part is None else 0)
        if part is not None:
            part.check_slice(weight)
        rows, classes = features.shape[0], weight.shape[0] if part is None else part.classes
        checks.row_scale(scale, rows)
        if labels is None:
            nothing = torch.empty(rows, 0, dtype=torch.int64, device=features.device)
            return Given(features, nothing, True, scale, 1.0, m)
        checks.labels_like("labels", labels, rows, features.device)
        checks.mixture(mix, rows, features.device)
        checks.margin_tensor(m, numbers, rows, weight.shape[0])
        both = [labels] if mix is None else [labels, mix[0]]
        y = torch.stack([each.long() for each in both], 1)
        all_used = False
        if checks.wanted(check, features, labels):
            for name, each in zip(("labels", "mix[0] (other_labels)"), both, strict=False):
                checks.label_values(name, each, classes, ignore_index)
            is_used = (y != ignore_index).all(1)
            checks.finite_rows("features", features, is_used)
            checks.positive_values("scale", scale)
            all_used = bool(is_used.all())
        return Given(features, y, all_used, scale, 1.0 if mix is None else mix[1], m)

    if part is None:
        return checked()
    return _of_all_ranks(checked, part, weight, axes_of(m, numbers), call)


def axes_of(m: Tensor | None, numbers: int | None) -> int:
    """0: one m for all; 1: one a class, (C,); 2: one a row, (N, 1)."""
    return 0 if m is None else m.dim() - (numbers is not None and numbers > 1)


def _of_all_ranks(checked: Callable[[], Given], part: Part, weight: Tensor, axes: int, call: str) -> Given:
    """The batch of all ranks, or an error on all ranks."""
    if part.world == 1:
        one = checked()
        return one._replace(rows=Rows([one.features.shape[0]], 0, part.group))
    try:
        one = checked()
    except Exception as error:
        part.refuse(error, weight.device)
    x, share = one.features, one.share
    wide = wide_dtype(x, weight)
    tables: dict[str, Tensor | float | None] = {"scale": one.scale, "m": one.m if axes == 2 else None}
    if one.y.shape[1] == 2:  # each rank may have drawn a number of its own
        share = share.to(wide) if isinstance(share, Tensor) else x.new_full((), share, dtype=wide)
        tables["mix weight"] = share.expand(x.shape[0])
    by_row = {name: t for name, t in tables.items() if isinstance(t, Tensor) and t.dim()}
    learns = torch.is_grad_enabled()
    words = [call, f"{x.dtype} features", f"{one.y.shape[1]} labels a row"]
    words += [f"gradients {'on' if learns else 'off'}"]
    words += [] if isinstance(one.scale, Tensor) else [f"scale {one.scale:g}"]
    words += [f"{name} by row, {t.dtype}, gradient {t.requires_grad}" for name, t in by_row.items()]
    rows, by_rank = part.agree(x.shape[0], ", ".join(words), (learns and x.requires_grad, one.all_used), x.device)
    if any(flags[0] for flags in by_rank) and not x.requires_grad:
        x = x.detach().requires_grad_()  # nobody wants its gradient, but the others wait for my share of theirs
    of_all = {name: gather_rows(t, rows) for name, t in by_row.items()}
    scale, m = one.scale, one.m
    if isinstance(scale, Tensor) and "scale" not in by_row:
        scale = part.spread(widen(scale, wide))
    if m is not None and axes == 0:
        m = part.spread(widen(m, wide))
    return Given(
        gather_rows(x, rows, wide),
        rows.collected(one.y),
        all(flags[1] for flags in by_rank),
        of_all.get("scale", scale),
        of_all.get("mix weight", share),
        of_all.get("m", m),
        rows,
    )
