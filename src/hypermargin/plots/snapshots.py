"""What the checkpoints of a run have learned: features, labels and prototypes, ready to be drawn or measured."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from hypermargin import checks
from hypermargin.common.text import say
from hypermargin.data.base import Rows
from hypermargin.head import MarginHead
from hypermargin.numerics import unit
from hypermargin.training import CheckpointError, Config, RunError, checkpoint, load, train
from hypermargin.training.evaluation import PARTS, Parts, classify, features_of, open_parts
from hypermargin.training.run import restore

MOST = 20_000  # samples: enough for any picture


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A part of a run's data, seen by the weights of one checkpoint.

    name        "epoch 3"; "epoch 3, step 420" of one within an epoch
    features    (N, d) as the network gives them
    labels      (N,) rows of the prototypes; identities of the data where the head does not know them
    prototypes  (C, d) class weights as the head uses them, unit if it makes them so; None in an open set
    classes     names of the labels 0, 1, …
    right       the share of the samples that the head gives to their own class; None in an open set
    """

    name: str
    step: int
    features: Tensor
    labels: Rows
    prototypes: Tensor | None
    classes: tuple[str, ...]
    right: float | None = None


def snapshots(
    run: str | Path,
    part: str = "test",
    *,
    epochs: Sequence[int] | None = None,
    most: int = MOST,
    trust: bool = False,
) -> list[Snapshot]:
    """Look through each checkpoint that the run kept (its setting `keep`), oldest first, but for damaged ones.

    - epochs: only those at the end of these, counted from 1
    - most: samples, in whole identities
    - trust: import the code that a model MODULE:FUNCTION names, as in `hypermargin.load`
    """
    folder = Path(run)
    parts = parts_of(
        folder, part, "last", most, trust, allow_older=True
    )  # the damaged are left out below, in words
    trained, found = parts.trained, []
    there: list[int] = []
    for path in checkpoint.steps(folder / "checkpoints"):
        try:
            saved = checkpoint.load(path)
        except CheckpointError as error:
            say(f"{error}. It is left out.")
            continue
        epoch, within = int(saved.state["epoch"]), bool(saved.state["position"])
        there += [] if within else [epoch]
        if epochs is not None and (within or epoch not in epochs):
            continue
        restore(saved, trained.network, trained.head, trained.config)
        name = f"epoch {epoch + 1}, step {saved.step}" if within else f"epoch {epoch}"
        found.append(_look(parts, part, name, saved.step))
    if not found:
        kept = ", ".join(map(str, there))
        raise ValueError(f"epochs: none of {list(epochs or ())} is kept in {folder}; there are {kept}.")
    return found


def snapshot(
    run: str | Path, part: str = "test", *, most: int = MOST, trust: bool = False, allow_older: bool = False
) -> Snapshot:
    """Look through the weights that `hypermargin.load` gives: the best on the validation part."""
    parts = parts_of(Path(run), part, "best", most, trust, allow_older)
    return _look(parts, part, "best", parts.trained.step)


def parts_of(
    folder: Path,
    part: str,
    which: Literal["best", "last"] = "best",
    most: int = MOST,
    trust: bool = False,
    allow_older: bool = False,
) -> Parts:
    """Open the run's data with its weights; an error if it has no such part."""
    checks.one_of("part", part, PARTS)
    if not folder.is_dir():
        raise RunError(f"run: there is no folder {folder}.")
    trained = load(folder, which, trust=trust, allow_older=allow_older)
    parts = open_parts(folder, trained, most=most, say=say)
    if len(parts.rows(part)) == 0:
        raise ValueError(f"part: the run has no {part} part. Take another.")
    return parts


def _look(parts: Parts, part: str, name: str, step: int) -> Snapshot:
    features, rows = features_of(parts.trained, parts.feed, parts.rows(part))
    labels = parts.data.labels[rows]
    head = parts.trained.head
    if parts.split.open_set and part != "train":
        return Snapshot(name, step, features, labels, None, tuple(parts.data.classes))
    targets = parts.split.targets(labels)
    prototypes = effective(head) if head.settings.centers.count == 1 else None  # else no row stands for its class
    right = classify(parts.trained, features, targets).accuracy
    return Snapshot(name, step, features, targets, prototypes, parts.trained.classes, right)


def effective(head: MarginHead) -> Tensor:
    """Copy the class weights as the logits see them: unit where the head makes them so."""
    weight = head.weight.detach().float().cpu()
    return unit(weight) if head.settings.unit_weight else weight.clone()


# In two dimensions one sees what a head does. All checkpoints are kept, to see it happen.
FLAT: dict[str, Any] = {
    "batch": 32, "lr": 0.005, "head_lr": 0.02, "weight_decay": 0.05,
    "evaluate": 0, "tensorboard": False, "workers": 0,
}  # fmt: skip
DIGITS: dict[str, Any] = {"data": "digits", "model": "lenet++", "model_set": {"width": 8}, "augment": "none"}


@functools.cache
def _kept(head: str, dim: int) -> tempfile.TemporaryDirectory[str]:
    """Train for a few seconds on one core; the folder is removed when the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="hypermargin-")
    epochs = 12
    say(f"no run given: training {head} on digits in {dim} dimensions, {epochs} epochs, some seconds")
    config = Config(**FLAT, **DIGITS, head=head, dim=dim, epochs=epochs, keep=epochs, threads=1, device="cpu")
    train(config, folder.name, quiet=True)
    return folder


def small_run(head: str, dim: int) -> str:
    """Return the folder of a run on digits, with one checkpoint per epoch; trained once per process."""
    return _kept(head, dim).name
