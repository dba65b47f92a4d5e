"""How long a run trains, in what batches, and how often it looks: from the number of images and identities.

What small sets need was tried on sets of 40 identities with 10 images each: faces, characters, voices
(benchmarks/results/small.md). It is some hundred steps, however small the set, which batches of 128 do not give.
Large sets keep what 0.1 had for all, 20 epochs in batches of 128; where millions of images make an epoch long,
there are fewer.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from hypermargin.training.config import Config

LEAST, MOST = 16, 128  # samples in a batch; AdamW's and SGD's learning rates are for the larger one
BATCHES = 16  # in an epoch of a small set, about
STEPS = 500  # of a run at least
SEEN = 150  # times that a run shows an identity at least
EPOCHS, MOST_EPOCHS = 20, 200
IMAGES = 40_000_000  # in all, that a run goes through before its epochs become fewer
FEWEST_EPOCHS = 4
WARMUP = 1 / 40  # of the epochs
LOOKS = 20  # at the validation part where epochs are many


@dataclass(frozen=True)
class Budget:
    """The settings of this kind, decided."""

    epochs: int
    batch: int
    lr_warmup: float
    log: int
    evaluate: int

    @classmethod
    def of(cls, config: Config) -> Budget:
        """Take them from resolved settings."""
        found = {field.name: getattr(config, field.name) for field in dataclasses.fields(cls)}
        missing = [name for name, value in found.items() if value is None]
        if missing:
            raise ValueError(f"{', '.join(missing)} must be decided before training; see build.resolve_budget.")
        return cls(**found)

    def warmup(self, per_epoch: int) -> int:
        """Return the steps of linear warm-up."""
        return round(self.lr_warmup * per_epoch)


def decide(config: Config, images: int, identities: int) -> tuple[Config, str]:
    """Return the settings with what was left open decided, and a sentence about it; "" if nothing was open."""
    batch = config.batch or _batch(images)
    per_epoch = max(1, math.ceil(math.ceil(images / batch) / config.accumulate))
    if config.epochs is not None:
        epochs, why = config.epochs, "epochs as given"
    else:
        epochs, why = _epochs(images, identities, per_epoch)
    total = epochs * per_epoch
    decided: dict[str, Any] = {
        "epochs": epochs,
        "batch": batch,
        "lr_warmup": max(0.5, round(WARMUP * epochs, 2)),
        "log": min(max(10, total // 5), 50) if total < 100_000 else total // 2_000,
        "evaluate": max(1, epochs // LOOKS),
    }
    taken = {name: value for name, value in decided.items() if getattr(config, name) is None}
    if "epochs" not in taken and "batch" not in taken:
        return dataclasses.replace(config, **taken), ""
    batches = f"batches of {batch}{' as given' if 'batch' not in taken else ''}"
    return dataclasses.replace(config, **taken), (
        f"budget for {images:,} samples of {identities:,} identities: {batches}, {epochs} epochs, {total:,} steps; "
        f"{why}. Change it with --epochs and --batch."
    )


def _batch(images: int) -> int:
    """Choose a power of two that gives about `BATCHES` batches in an epoch of a small set."""
    return int(min(MOST, max(LEAST, 2 ** round(math.log2(max(1, images / BATCHES))))))


def _epochs(images: int, identities: int, per_epoch: int) -> tuple[int, str]:
    """Choose the epochs, and say why."""
    steps, shown = math.ceil(STEPS / per_epoch), math.ceil(SEEN * identities / images)
    wanted, most = max(EPOCHS, steps, shown), max(FEWEST_EPOCHS, IMAGES // images)
    if wanted > most:
        return most, f"so many samples need no more than {most} epochs"
    if wanted == EPOCHS:
        return EPOCHS, f"{EPOCHS} epochs are the default for sets of this size"
    if steps >= shown:
        return min(MOST_EPOCHS, steps), f"with few samples only many epochs make some {STEPS} steps"
    return min(MOST_EPOCHS, shown), f"with few samples each, only many epochs show an identity {SEEN} times"
