"""What a run says before it trains: data, network, head and its numbers, and how its steps are taken."""

from __future__ import annotations

import numpy as np

from hypermargin.common.text import Say
from hypermargin.training import by_counts
from hypermargin.training.loop import Trainer
from hypermargin.views import VariationalPrototypes


def announce(trainer: Trainer, advised: bool, budget: str, tell: Say) -> None:
    """Say in a few lines what is about to be trained."""
    data, parts, config, head = trainer.data, trainer.split, trainer.config, trainer.head
    sizes = [
        f"{len(rows):,} of {len(np.unique(data.labels[rows])):,} {verb}"
        for rows, verb in ((parts.train, "train"), (parts.validation, "validate"), (parts.test, "test"))
        if len(rows)
    ]
    kind = "unseen identities" if parts.open_set else "unseen samples"
    shape = "×".join(map(str, data.shape))
    tell(f"{data.name}: {', '.join(sizes)} (samples of identities; tested on {kind}), each {shape}")
    for bad in data.bad[:10]:
        tell(f"left out: {bad}")
    if len(data.bad) > 10:
        tell(f"left out: {len(data.bad) - 10} more, listed in run.json")
    size = sum(p.numel() for p in trainer.network.parameters())
    numbers = [f"s = {head.current_scale().item():g}"] if head.settings.unit_features else []
    m = head.margin.m
    if m is not None:
        numbers.append(f"m = {', '.join(f'{v:g}' for v in (m if isinstance(m, tuple) else (m,)))}")
    why = f" (advised: hypermargin advise --classes {head.classes} --dim {head.dim})" if advised else ""
    tell(f"{config.model}, {size:,} parameters, to {config.dim} dimensions; {config.head}"
         f"{': ' + ', '.join(numbers) if numbers else ''}{why}")  # fmt: skip
    if config.settings == "advised" and numbers and "scale" not in config.set and head.settings.unit_features:
        tell(f"s and the margin are {config.head}'s own: the advisor's rule is not for this loss")
    counts = by_counts.counts_of(data, parts)
    for words in by_counts.in_words(config.head, config.class_margins, config.set, counts, config.sampling):
        tell(words)
    view = head.settings.view
    if isinstance(view, VariationalPrototypes) and view.after >= trainer.total:
        tell(
            f"the class rows are as they are until step {view.after:g}, and this run has {trainer.total:,}: set "
            f"after (--set after={trainer.total // 10})"
        )
    if budget:
        tell(budget)
    tell(f"head by {trainer.learner.backend(trainer.ranks.world)}")
    if head.fused_optimizer is not None:
        clipped = f"; clip = {config.clip:g} is for all other gradients together" if config.clip else ""
        tell(f"class weights: changed within the backward by FusedSGD{clipped}")
    if trainer.device.type == "cuda":
        one_by_one = f"launched kernel by kernel: {trainer.why_eager}"
        tell(f"steps: {one_by_one if trainer.why_eager else 'replayed as a CUDA graph'}")
    tell(f"epochs: {config.epochs}, steps in each: {trainer.per_epoch}, on {config.device}, in {trainer.folder}")
