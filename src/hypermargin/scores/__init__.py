"""Products against every class, split into the target's geometry and the rivals. Knows nothing of margins.

A backend does the N×C work and returns `Rivals`; everything about the target is N×d work on the label rows it
hands out, written once, here. `dense` is the definition every other backend is measured against.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from hypermargin import checks
from hypermargin.numerics import angle_between, polar, unit
from hypermargin.scores.dense import Rivals, dense

__all__ = ["BACKENDS", "Rivals", "Scores", "choose", "explain_backend", "scores"]

BACKENDS: dict[str, Callable[..., Rivals]] = {"dense": dense}


class Scores(NamedTuple):
    """What a loss of the family needs to know of a batch, for z_ij = ⟨f_i, w̃_j⟩ + b_j. K labels a row.

    Slices of the classes combine: SUM of target, angle, norm and rival_sum, guarded LSE of rivals, MAX of
    hardest. A label outside the slice gives zeros in the first three.
    """

    target: Tensor  # (N, K)  ⟨f_i, w̃_y⟩: linear in f, so its gradient is w̃_y even where f or w̃_y is zero
    angle: Tensor  # (N, K)  between f_i and W_y, in [0, π]; π/2 for zero rows
    norm: Tensor  # (N, K)  |w̃_y|; 1 if the weight is normalised
    rivals: Tensor  # (N,)    log-sum-exp of z over the classes that are not the row's labels; −inf without any
    rival_sum: Tensor | None  # (N,)    sum of the same z, if asked for
    hardest: Tensor  # (N,)    maximum of the same z, without gradient


def choose(backend: str) -> tuple[str, str]:
    """The backend that will run, and why. A named backend runs or raises; only "auto" may choose."""
    if backend == "auto":
        return "dense", "dense is the only backend of this version; it holds a few N×C tensors."
    checks.one_of("backend", backend, ("auto", *BACKENDS))
    return backend, f"backend={backend!r} was asked for."


def explain_backend(backend: str = "auto") -> str:
    """Which backend a call with this setting uses, and why, in words."""
    name, why = choose(backend)
    return f"{name}: {why}"


def scores(
    f: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    unit_weight: bool,
    bias: Tensor | None = None,
    class_start: int = 0,
    total: int | None = None,
    direction: Tensor | None = None,
    rival_sum: bool = False,
    backend: str = "auto",
) -> Scores:
    """Score features `f` (N, d), already scaled, against `weight` (C, d) for `labels` (N,) or (N, K).

    `labels` are global class ids. With `total` given, `weight` is the slice of that many classes that starts at
    `class_start`. `direction` is f/|f|, if the caller has it.
    """
    run = BACKENDS[choose(backend)[0]]
    local = labels if labels.dim() == 2 else labels.unsqueeze(1)
    inside = None
    if total is not None or class_start:
        local = local - class_start
        inside = (local >= 0) & (local < weight.shape[0])
    found = run(f, weight, local, inside, unit_weight=unit_weight, bias=bias, rival_sum=rival_sum)
    target = (f.unsqueeze(1) * found.rows).sum(-1)
    unit_rows, norms = (found.rows, torch.ones_like(target).unsqueeze(-1)) if unit_weight else polar(found.rows)
    angle = angle_between((unit(f) if direction is None else direction).unsqueeze(1), unit_rows)
    norm = norms.squeeze(-1)
    if inside is not None:
        target, angle, norm = (t.masked_fill(~inside, 0.0) for t in (target, angle, norm))
    return Scores(target, angle, norm, found.rivals, found.rival_sum, found.hardest)
