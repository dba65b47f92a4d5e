"""A loss that is not finite: the batch is kept for a closer look, and the error says where it began."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from hypermargin.data.base import Rows
from hypermargin.files import replacing
from hypermargin.training import checkpoint, watch
from hypermargin.training.learner import Batch, Forward

if TYPE_CHECKING:
    from hypermargin.training.loop import Trainer


def diverged(trainer: Trainer, step: int, rows: Rows, given: Batch, found: Forward) -> watch.DivergedError:
    """Make the error, after keeping the batch."""
    head, ranks = trainer.head, trainer.ranks
    head.settings = replace(head.settings, reduction="none")
    with torch.no_grad():
        losses = head.eval()(found.features, given.labels)
    bad, why = watch.diagnose(trainer.network, found.inputs, found.features, losses, trainer.config.precision)
    rank = f"-rank-{ranks.rank}" if ranks.world > 1 else ""
    path = trainer.folder / f"diverged-step-{step + 1:08d}{rank}.pt"
    batch = {
        "samples": given.raw.cpu(),
        "rows": torch.from_numpy(rows),
        "labels": given.labels.cpu(),
        "bad": bad,
    }
    kept = f"the batch is in {path}"
    try:
        with replacing(path) as temporary:
            torch.save(batch, temporary)
    except (OSError, RuntimeError) as error:
        kept = f"the batch could not be kept ({error})"
    names = ", ".join(trainer.data.where(int(rows[k])) for k in bad[:3])
    told = f"in {len(bad)} of {len(rows)} rows ({names}{', …' if len(bad) > 3 else ''}). {why} "
    every = ranks.gathered(told if bad else "")
    words = told if bad else next((f"on rank {rank} {text}" for rank, text in enumerate(every) if text), told)
    return watch.DivergedError(
        f"the loss is not finite at step {step + 1} (epoch {step // trainer.per_epoch + 1}), {words}"
        f"{last_good(trainer.folder)}; {kept}."
    )


def last_good(folder: Path) -> str:
    """Say which checkpoint to go back to."""
    there = checkpoint.steps(folder / "checkpoints")
    return f"The last good checkpoint is kept: {there[-1].name}" if there else "There was no checkpoint yet"
