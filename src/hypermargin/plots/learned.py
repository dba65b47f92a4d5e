"""Pictures of a run. Without one, a small one is trained on digits."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import numpy as np

from hypermargin.common.arrays import Counts
from hypermargin.common.text import say
from hypermargin.evaluate import Verification, verification
from hypermargin.plots.angles import AnglesDisplay, AnglesOverTraining
from hypermargin.plots.catalogue import picture
from hypermargin.plots.features import Basis, FeaturesDisplay, together
from hypermargin.plots.norms import NormsDisplay
from hypermargin.plots.snapshots import Snapshot, effective, parts_of, small_run, snapshot, snapshots
from hypermargin.plots.sphere import View
from hypermargin.plots.style import Display, Panels
from hypermargin.plots.verification import DetDisplay, RocDisplay, ScoresDisplay
from hypermargin.plots.weights import WeightsDisplay
from hypermargin.training import load
from hypermargin.training.evaluation import Parts, choose_thresholds, open_parts

RUN = "a run's folder; without it a small one is trained on digits"
PART = "of the run's data: test, validation or train"
TRUST = "import the code that the run names (MODULE:FUNCTION)"
CONFIDENCE = 0.95
HEADS = "softmax", "a-softmax", "cosface", "arcface"
NONE: list[str] = []
FAR = tuple(10 ** (-k / 4) for k in range(2, 25))  # four per decade, so that the band bends with the curve

__all__ = ["Snapshot", "frames", "snapshot", "snapshots"]


def frames(
    run: str | Path | None = None, part: str = "test", *, on: str | None = None, trust: bool = False
) -> list[tuple[str, FeaturesDisplay]]:
    """Return the features after every kept checkpoint, to one measure, for `animate`."""
    seen = snapshots(run or small_run("a-softmax", 2), part, trust=trust)
    on = None if on == "auto" else on
    basis = _features(seen[-1], on).basis
    shown = together([_features(one, on, basis=basis) for one in seen])
    return [(one.name, display) for one, display in zip(seen, shown, strict=True)]


def _features(
    one: Snapshot, on: str | None, *, view: View | None = None, basis: Basis | None = None
) -> FeaturesDisplay:
    return FeaturesDisplay.of(
        one.features, one.labels, one.prototypes, names=one.classes, on=on, view=view, basis=basis
    )


@picture("features", "what a network has learned: each sample a dot, each class's prototype an arrow", learned=True)
def features(
    run: Annotated[str | None, RUN] = None,
    part: Annotated[str, PART] = "test",
    on: Annotated[str, "auto, plane, circle, sphere or components"] = "auto",
    trust: Annotated[bool, TRUST] = False,
) -> Display:
    """Draw features of 2-D on the plane, of 3-D on the sphere, else their first two principal components."""
    return _features(snapshot(run or small_run("a-softmax", 2), part, trust=trust), None if on == "auto" else on)


@picture("heads", "what each head makes of the same network and data, in two dimensions", learned=True)
def heads(
    runs: Annotated[list[str], "folders of runs; without any, four heads are trained on digits; repeatable"] = NONE,
    part: Annotated[str, PART] = "test",
    trust: Annotated[bool, TRUST] = False,
) -> Display:
    """Draw one panel per run, each to its own measure: lengths differ by head."""
    panels = []
    for folder in runs or [small_run(head, 2) for head in HEADS]:
        name = load(folder, trust=trust).config.head
        panels.append(dataclasses.replace(_features(snapshot(folder, part, trust=trust), None), title=name))
    return Panels(panels, columns=min(4, len(panels)), panel_size=(3.4, 3.6))


@picture("sphere", "features of three dimensions on the unit sphere", learned=True)
def sphere(
    run: Annotated[str | None, RUN] = None,
    part: Annotated[str, PART] = "test",
    elevation: Annotated[float, "degrees from which the sphere is seen, above its equator"] = 25.0,
    azimuth: Annotated[float, "degrees from which it is seen, round its axis"] = 35.0,
    trust: Annotated[bool, TRUST] = False,
) -> FeaturesDisplay:
    """Draw near dots strong, far ones faint."""
    one = snapshot(run or small_run("a-softmax", 3), part, trust=trust)
    return _features(one, "sphere", view=View(elevation, azimuth))


@picture("angles", "angles to the own class and to the nearest rival, and how training parts them", learned=True)
def angles(
    run: Annotated[str | None, RUN] = None,
    part: Annotated[str, PART] = "test",
    history: Annotated[bool, "a row for every checkpoint kept, instead of the best alone"] = True,
    trust: Annotated[bool, TRUST] = False,
) -> Display:
    """Draw angles to prototypes; in an open set to the centers of the classes."""
    folder = run or small_run("a-softmax", 2)
    seen = snapshots(folder, part, trust=trust) if history else []
    if len(seen) < 2:
        one = snapshot(folder, part, trust=trust)
        return AnglesDisplay.of(one.features, one.labels, one.prototypes)
    rows = [(one.name, AnglesDisplay.of(one.features, one.labels, one.prototypes)) for one in seen]
    return AnglesOverTraining.of(rows)


@picture("norms", "lengths of features against how well a sample fits its class", learned=True)
def norms(
    run: Annotated[str | None, RUN] = None,
    part: Annotated[str, PART] = "test",
    trust: Annotated[bool, TRUST] = False,
) -> Display:
    """Show whether a short feature means a poor image."""
    one = snapshot(run or small_run("a-softmax", 2), part, trust=trust)
    return NormsDisplay.of(one.features, one.labels)


@picture("weights", "lengths of class weights: free in l-softmax, one in a-softmax", learned=True)
def weights(
    run: Annotated[str | None, RUN] = None,
    counts: Annotated[bool, "over the number of training samples of a class"] = False,
    trust: Annotated[bool, TRUST] = False,
) -> Display:
    """Draw the weights of a run's head, or of l-softmax and a-softmax side by side."""
    folders = [run] if run else [small_run(head, 2) for head in ("l-softmax", "a-softmax")]
    heads = {}
    for folder in folders:
        trained = load(folder, trust=trust)
        heads[trained.config.head] = trained.head
    number = _training_counts(Path(folders[0]), trust) if counts else None
    unit_weight = {name: head.settings.unit_weight for name, head in heads.items()}
    return WeightsDisplay.of({name: effective(head) for name, head in heads.items()}, number, unit=unit_weight)


def _training_counts(folder: Path, trust: bool) -> Counts:
    parts = open_parts(folder, load(folder, trust=trust), say=say)
    targets = parts.split.targets(parts.data.labels)[parts.split.train]
    return np.bincount(targets, minlength=parts.trained.head.classes)


@picture("roc", "what is accepted of the right pairs, at the price of which wrong ones, with a band", learned=True)
def roc(
    run: Annotated[str | None, RUN] = None,
    part: Annotated[str, PART] = "test",
    trust: Annotated[bool, TRUST] = False,
) -> Display:
    """Draw the curve of all pairs of the part; the band is a 95 % interval over identities."""
    return RocDisplay.of(_verified(run, part, trust)[1])


@picture("det", "both errors of verification on axes of the normal distribution, with a band", learned=True)
def det(
    run: Annotated[str | None, RUN] = None,
    part: Annotated[str, PART] = "test",
    trust: Annotated[bool, TRUST] = False,
) -> Display:
    """Draw the curve of all pairs of the part; the band is a 95 % interval over identities."""
    return DetDisplay.of(_verified(run, part, trust)[1])


@picture("scores", "scores of genuine and impostor pairs, with the thresholds that validation chose", learned=True)
def scores(
    run: Annotated[str | None, RUN] = None,
    part: Annotated[str, PART] = "test",
    trust: Annotated[bool, TRUST] = False,
) -> Display:
    """Draw the scores of all pairs of the part."""
    parts, found = _verified(run, part, trust, confidence=None)
    chosen = choose_thresholds(parts)
    thresholds = {"equal errors": chosen.eer, **{f"FAR {f:g}": t for f, t in chosen.far.items()}}
    return ScoresDisplay.of(found.curve, thresholds)


def _verified(
    run: str | None, part: str, trust: bool, confidence: float | None = CONFIDENCE
) -> tuple[Parts, Verification]:
    parts = parts_of(Path(run or small_run("a-softmax", 2)), part)
    embeddings, labels = parts.compared(part)
    return parts, verification(embeddings, labels, far=FAR, confidence=confidence)
