"""A trained run, measured: features of its parts, thresholds for its use, and what training promised."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hypermargin import checks
from hypermargin.common.environment import cores
from hypermargin.common.text import Say
from hypermargin.data import Data, Feed, Split, at_most, decode_once
from hypermargin.data.base import Rows
from hypermargin.evaluate import Geometry, Thresholds, Verification, geometry, verification
from hypermargin.evaluate.geometry import spearman
from hypermargin.evaluate.identification import identification
from hypermargin.head import MarginHead
from hypermargin.margins import Margin
from hypermargin.training import watch
from hypermargin.training.build import read_again
from hypermargin.training.quality import MEASURES, are_images, measure
from hypermargin.training.run import About, RunError, Trained, fingerprint, read_split

PARTS = "test", "validation", "train"
MOST = 50_000  # samples whose pairs are all compared: half a minute or so
CONFUSIONS = 10
Progress = Callable[[int, int], None]


def silent(done: int, total: int) -> None:
    """Show no progress."""


class Parts:
    """The parts of a run with their features, computed once; of an open set, and of training, `most` samples."""

    def __init__(
        self,
        trained: Trained,
        data: Data,
        split: Split,
        *,
        feed: Feed | None = None,
        most: int = MOST,
        progress: Progress = silent,
    ) -> None:
        checks.count("most", most, 2)
        self.trained, self.data, self.split, self.most, self.progress = trained, data, split, most, progress
        workers = min(trained.config.workers or 0, cores())
        device = trained.head.weight.device
        self.feed = feed or Feed(data.samples, device, workers=workers, on_bad=trained.config.on_bad)
        self._found: dict[str, tuple[Tensor, Rows]] = {}
        self._images: dict[str, list[Tensor]] = {}

    def rows(self, part: str) -> Rows:
        """Return the rows of the data in a part; none if the run has no such part."""
        checks.one_of("part", part, PARTS)
        rows: Rows = getattr(self.split, part)
        limited = self.split.open_set or part == "train"
        return at_most(rows, self.data.labels, self.most) if limited else rows

    def features(self, part: str) -> tuple[Tensor, Rows]:
        """Return (N, dim) features as the network gives them, and the rows that could be read."""
        if part not in self._found:
            rows = self.rows(part)
            if len(rows) == 0:
                raise ValueError(f"part: the run has no {part} part. Take another, or other data.")
            seen = self._images[part] = []

            def look(raw: Tensor) -> None:
                if are_images(raw):
                    seen.append(measure(raw))

            self._found[part] = features_of(self.trained, self.feed, rows, self.progress, look)
        return self._found[part]

    def images(self, part: str) -> dict[str, Tensor]:
        """Return sharpness and contrast (N,) of the samples of `features`; nothing if they are no images."""
        self.features(part)
        seen = self._images[part]
        return dict(zip(MEASURES, torch.cat(seen).unbind(1), strict=True)) if seen else {}

    def compared(self, part: str) -> tuple[Tensor, Rows]:
        """Return features on the run's device and their labels, to form pairs: at most `most` samples."""
        kept = self._compared(part)
        features, rows = self.features(part)
        taken = features[torch.from_numpy(kept)].to(self.trained.head.weight.device)
        return taken, self.data.labels[rows[kept]]

    def compared_rows(self, part: str) -> Rows:
        """Return the rows of the data that `compared` takes."""
        return self.features(part)[1][self._compared(part)]

    def _compared(self, part: str) -> Rows:
        rows = self.features(part)[1]
        return at_most(np.arange(len(rows), dtype=np.int64), self.data.labels[rows], self.most)


def open_parts(
    folder: Path,
    trained: Trained,
    *,
    data: str | None = None,
    most: int = MOST,
    progress: Progress = silent,
    say: Say = lambda _: None,
) -> Parts:
    """Open the parts of the run in `folder`, from the data it was trained on, read again; `data`: where it lies."""
    config = trained.config if data is None else dataclasses.replace(trained.config, data=data)
    workers = min(config.workers or 0, cores())
    found = read_again(config, say)
    found = decode_once(found, memory=config.memory, workers=workers, on_bad=config.on_bad, say=say)
    check_same(folder, trained.about, found, "Restore the data, or evaluate other data with --data.")
    split = read_split(folder / "split.npz", len(found), len(found.classes))
    return Parts(trained, found, split, most=most, progress=progress)


def check_same(folder: Path, about: About, data: Data, advice: str) -> None:
    """Refuse data that a run was not trained on: the row numbers of its split would mean other samples."""
    if about.data["fingerprint"] not in (fingerprint(data), fingerprint(data, about.data["name"])):
        raise RunError(
            f"{folder} was started on other data than {data.name} holds now: {about.data['samples']} samples of "
            f"{about.data['classes']} identities then, {len(data)} of {len(data.classes)} now, or other labels or "
            f"pixels. {advice}"
        )


def features_of(
    trained: Trained,
    feed: Feed,
    rows: Rows,
    progress: Progress = silent,
    look: Callable[[Tensor], None] = lambda raw: None,
) -> tuple[Tensor, Rows]:
    """Compute features of samples, on the CPU, and the rows that could be read; show `look` the raw samples."""
    found = []
    done = 0
    with closing(feed(np.split(rows, range(256, len(rows), 256)))) as groups:
        for raw, read in groups:
            look(raw)
            found.append((trained.features(raw), read))
            done += len(read)
            progress(done, len(rows))
    return torch.cat([f for f, _ in found]), np.concatenate([r for _, r in found])


def choose_thresholds(parts: Parts) -> Thresholds:
    """Measure thresholds on the validation part, or on the test part where that has no pairs of both kinds."""
    why = "it has neither a validation nor a test part."
    for part in ("validation", "test"):
        if len(parts.rows(part)) == 0:
            continue
        try:
            features, labels = parts.compared(part)
            found = verification(features, labels)
        except ValueError as error:
            why = f"{part} part: {error}"
            continue
        far = {f: found.thresholds[f] for f in found.supported}
        identities = len(np.unique(labels))
        return Thresholds(found.threshold, far, part, identities, found.genuine, found.impostor, parts.trained.step)
    raise ValueError(f"the run gives no thresholds: {why}")


def kept_promises(parts: Parts) -> Geometry:
    """Compare the training samples with the prototypes and the margin that they were trained with."""
    features, rows = parts.features("train")
    head = parts.trained.head
    labels = parts.split.targets(parts.data.labels)[rows]
    weight = prototypes(head)
    if weight is None:
        raise ValueError(
            f"the head has {head.settings.centers.count} centers per class, so no class has one prototype"
        )
    return geometry(features.to(weight.device), labels, prototypes=weight, margin=margin_of(head))


def prototypes(head: MarginHead) -> Tensor | None:
    """Return the row of each class; None where a class has several, its centers."""
    return head.weight.detach() if head.settings.centers.count == 1 else None


def margin_of(head: MarginHead) -> Margin | None:
    """Return the margin with the m that was learned, if one was; None if every class has its own."""
    m = head.current_margins()
    if m is None or head.margin.m is None:
        return head.margin
    wide = 1 if isinstance(head.margin.m, tuple) else 0
    if m.dim() > wide:
        return None
    names = head.margin.m_names
    numbers = zip(names, m.detach().reshape(-1).tolist(), strict=True)
    return dataclasses.replace(head.margin, **dict(numbers))  # type: ignore[type-var]  # all are dataclasses


@dataclass(frozen=True)
class Lengths:
    """What the length of a feature goes with in the training samples, and what that speaks against."""

    samples: int
    angle: float  # to the own class; below 0, longer features lie closer
    quality: float | None  # a measured one, where it was given
    images: dict[str, float]  # rank correlation with sharpness and contrast, if the samples are images
    doubt: str | None  # of a margin that follows |x|


def lengths_against_images(parts: Parts, part: str) -> dict[str, float]:
    """Return the rank correlation of |x| with sharpness and contrast of a part's images.

    Nothing without images, and nothing where all are alike.
    """
    norms = parts.features(part)[0].double().norm(dim=1).numpy()
    found = {name: spearman(norms, seen.double().numpy()) for name, seen in parts.images(part).items()}
    return {name: value for name, value in found.items() if np.isfinite(value)}


@torch.no_grad()
def lengths_against_angles(parts: Parts, quality: np.ndarray[Any, Any] | None = None) -> Lengths:
    """Correlate |x| of the training samples with the angle to their class; and with `quality`, one per sample."""
    features, rows = parts.features("train")
    head = parts.trained.head
    labels = torch.from_numpy(parts.split.targets(parts.data.labels)[rows])
    block = max(1, 2**24 // head.classes)
    place = head.weight.device
    angles = [
        head.scores(x.to(place), y.to(place)).angle[:, 0].cpu()
        for x, y in zip(torch.split(features, block), torch.split(labels, block), strict=True)
    ]
    norms, measured = features.double().norm(dim=1), None
    if quality is not None:
        if quality.shape != (len(parts.data),):
            raise ValueError(f"quality must have one number per sample, ({len(parts.data)},); got {quality.shape}.")
        measured = float(watch.correlation(norms, torch.from_numpy(quality[rows]).double()))
    found = float(watch.correlation(norms, torch.cat(angles).double()))
    images = lengths_against_images(parts, "train")
    doubts = watch.doubt_of_lengths(head.margin, found), watch.doubt_of_images(head.margin, images)
    return Lengths(len(rows), found, measured, images, " ".join(doubt for doubt in doubts if doubt) or None)


@dataclass(frozen=True)
class Classification:
    """How samples of known classes are classified: the mean cross-entropy, without any margin, and what for what.

    confused  (class, taken for, how many), most frequent first; classes by name
    """

    samples: int
    accuracy: float
    loss: float
    confused: tuple[tuple[str, str, int], ...]


def compare_all(features: Tensor, labels: Tensor) -> tuple[dict[str, float], Verification]:
    """Compare identities that training did not see: EER, TAR at FAR = 1e-3 and AUC of all pairs, and rank-1."""
    pairs = verification(features, labels)
    values = {
        "eer": pairs.eer,
        "tar": pairs.tar[1e-3],
        "auc": pairs.auc,
        "rank1": identification(features, labels, (1,)).rank[1],
    }
    return values, pairs


@torch.no_grad()
def decide(head: MarginHead, features: Tensor, targets: Rows) -> tuple[float, Rows]:
    """Return the sum of the cross-entropies without any margin, and the class each sample is taken for.

    The ranks of a sharded head come together, each with samples of its own.
    """
    block = max(1, 2**24 // head.classes // head.layout.world)  # 64 MB of logits
    device, own = head.weight.device, torch.from_numpy(targets)
    # All ranks ask as often as the one with most samples.
    most = int(head.layout.largest(torch.tensor(len(features), device=device)))
    loss, taken = 0.0, []
    for start in range(0, most, block):
        logits = head.logits(features[start : start + block].to(device)).cpu()
        loss += float(nn.functional.cross_entropy(logits, own[start : start + block], reduction="sum"))
        taken.append(logits.argmax(1))
    return loss, torch.cat(taken).numpy()


def classify(trained: Trained, features: Tensor, targets: Rows) -> Classification:
    """Classify features, given the head's class of each."""
    head = trained.head
    loss, taken = decide(head, features, targets)
    wrong = taken != targets
    kinds, counts = np.unique(targets[wrong] * head.classes + taken[wrong], return_counts=True)
    most = np.argsort(-counts, kind="stable")[:CONFUSIONS]
    names = trained.classes
    confused = tuple((names[k // head.classes], names[k % head.classes], int(n)) for k, n in zip(
        kinds[most].tolist(), counts[most].tolist(), strict=True))  # fmt: skip
    return Classification(len(targets), float(1 - wrong.mean()), loss / len(targets), confused)
