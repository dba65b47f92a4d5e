"""Products against every class, split into the target's geometry and the rivals. Knows nothing of margins.

A backend does the N×C work and returns `Rivals`; everything about the target is N×d work on the label rows it
hands out, written once, here. `dense` is the definition every other backend is measured against.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hypermargin import checks
from hypermargin.backends.blocks import REDUCED_OPERANDS_WORK
from hypermargin.backends.chunked import Chunked, chunk_for, chunked_rivals
from hypermargin.backends.dense import Dense, Rivals, dense_rivals
from hypermargin.backends.fused import Triton, fused_rivals, is_tested_on, plan, why_not
from hypermargin.numerics import angle_between, polar, unit
from hypermargin.optim import FusedSGD
from hypermargin.parallel.traffic import Traffic, traffic

__all__ = [
    "BACKENDS",
    "Chunked",
    "Dense",
    "Rivals",
    "Scores",
    "Traffic",
    "Triton",
    "choose",
    "explain_backend",
    "scores",
    "traffic",
]

Settings = Dense | Chunked | Triton
BACKENDS: dict[str, type[Settings]] = {"dense": Dense, "chunked": Chunked, "triton": Triton}
Backend = str | Settings
# Up to this many logits the N×C matrix costs less time than the blocks that avoid it, as measured.
DENSE_LOGITS = {"cpu": 2**18, "cuda": 2**25}


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
    hardest: Tensor | None  # (N,)    maximum of the same z, without gradient, if asked for


def choose(
    backend: Backend, rows: int, classes: int, device: torch.device, dtype: torch.dtype = torch.float32
) -> tuple[Settings, str]:
    """The settings of the backend that will run, and why. A named one runs or raises; only "auto" may choose."""
    if isinstance(backend, Settings):
        settings, why = backend, f"backend={backend} was asked for."
    elif backend == "auto":
        logits = f"{rows:,} rows × {classes:,} classes"
        most = DENSE_LOGITS.get(device.type, DENSE_LOGITS["cpu"])
        if rows * classes <= most:
            settings = Dense()
            why = f"{logits} are at most {most:,} logits: holding them costs less than recomputing."
        else:
            reduced = device.type == "cuda" and torch.is_autocast_enabled("cuda") and dtype == torch.float32
            fused = reduced and is_tested_on(device)
            settings = Triton() if fused else Chunked()
            why = (
                f"{logits} are more than {most:,} logits: computed in {'tiles' if fused else 'blocks'}, never held."
            )
            if device.type == "cuda" and not reduced and is_tested_on(device):
                why += " (Under autocast it would be triton; blocks are faster with float32 operands.)"
    else:
        checks.one_of("backend", backend, ("auto", *BACKENDS))
        settings, why = BACKENDS[backend](), f"backend={backend!r} was asked for."
    if isinstance(settings, Dense):
        return settings, why
    if isinstance(settings, Triton):
        reason = why_not(device)
        if reason:
            raise ValueError(f'backend="triton" cannot run here: {reason}. Use "auto" or "chunked".')
    elif settings.chunk is None:
        settings = replace(settings, chunk=chunk_for(rows, classes, device))
    reduced = isinstance(settings, Triton) or REDUCED_OPERANDS_WORK
    if reduced and settings.operands is None and device.type == "cuda" and torch.is_autocast_enabled("cuda"):
        settings = replace(settings, operands=str(torch.get_autocast_dtype("cuda")).removeprefix("torch."))
    return settings, why


def explain_backend(
    rows: int,
    classes: int,
    backend: Backend = "auto",
    device: torch.device | str = "cpu",
    dim: int = 512,
    world_size: int = 1,
) -> str:
    """Which backend a call of that size uses, and why, in words. `dim` matters to what the fused one can keep.

    With a `world_size` the classes lie on so many ranks (`Shard`), each bringing `rows` rows, and what a rank sends
    in a step is counted too, for float32 features and bounded logits; `hypermargin.parallel.traffic` counts others.
    """
    checks.count("rows", rows, 0)
    checks.count("classes", classes)
    if world_size != 1:
        sent = traffic(rows, dim, world_size)
        each = -(-classes // world_size)
        of_one = explain_backend(rows * world_size, each, backend, device, dim)
        return f"{of_one} Each of {world_size} ranks holds {each:,} classes and sends {sent}."
    settings, why = choose(backend, rows, classes, torch.device(device))
    if isinstance(settings, Dense):
        return f"dense: {why}"
    operands = f", {settings.operands} operands" if settings.operands else ""
    if isinstance(settings, Chunked):
        held = f"{rows * min(settings.chunk or classes, classes) * 4 / 2**20:,.0f} MB"
        return f"chunked: {why} Blocks of {settings.chunk:,} classes, {held} of float32 logits at a time{operands}."
    cut = plan(rows, classes, dim, settings)
    share = "all" if cut.kept == classes else "none" if not cut.kept else f"{cut.kept:,}"
    return f"triton: {why} exp z of {share} of the classes is kept for the backward{operands}."


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
    hardest: bool = False,
    backend: Backend = "auto",
    update: FusedSGD | None = None,
) -> Scores:
    """Score features `f` (N, d), already scaled, against `weight` (C, d) for `labels` (N,) or (N, K).

    `labels` are global class ids. With `total` given, `weight` is the slice of that many classes that starts at
    `class_start`. `direction` is f/|f|, if the caller has it. `update` takes the weight's gradient.
    """
    settings, _ = choose(backend, f.shape[0], weight.shape[0], f.device, f.dtype)
    if update is not None and not isinstance(settings, Triton):
        raise ValueError(f'FusedSGD needs backend="triton"; got {backend!r}.')
    local = labels if labels.dim() == 2 else labels.unsqueeze(1)
    inside = None
    if total is not None or class_start:
        local = local - class_start
        inside = (local >= 0) & (local < weight.shape[0])
    options: dict[str, Any] = {
        "unit_weight": unit_weight,
        "bias": bias,
        "rival_sum": rival_sum,
        "hardest": hardest,
    }
    if isinstance(settings, Dense):
        found = dense_rivals(f, weight, local, inside, **options)
    elif isinstance(settings, Chunked):
        found = chunked_rivals(f, weight, local, inside, **options, settings=settings)
    else:
        found = fused_rivals(f, weight, local, inside, **options, settings=settings, update=update)
    target = (f.unsqueeze(1) * found.rows).sum(-1)
    unit_rows, norms = (found.rows, torch.ones_like(target).unsqueeze(-1)) if unit_weight else polar(found.rows)
    angle = angle_between((unit(f) if direction is None else direction).unsqueeze(1), unit_rows)
    norm = norms.squeeze(-1)
    if inside is not None:
        target, angle, norm = (t.masked_fill(~inside, 0.0) for t in (target, angle, norm))
    return Scores(target, angle, norm, found.rivals, found.rival_sum, found.hardest)
