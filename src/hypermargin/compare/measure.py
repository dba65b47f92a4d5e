"""What the table and the pictures need of one run: measures.json and arrays.npz in its folder."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from hypermargin.common.environment import find_device
from hypermargin.data.base import Rows
from hypermargin.evaluate import evaluate, thin
from hypermargin.evaluate.pairs import samples
from hypermargin.evaluate.prototypes import prototypes_of
from hypermargin.files import replacing, write_text
from hypermargin.head import MarginHead
from hypermargin.margins import Margin, NoMargin, SphereFace
from hypermargin.plots.angles import AnglesDisplay
from hypermargin.plots.norms import NormsDisplay
from hypermargin.plots.snapshots import snapshots
from hypermargin.plots.verification import ScoresDisplay
from hypermargin.training import evaluation, load
from hypermargin.training.evaluation import (
    PARTS,
    Parts,
    choose_thresholds,
    classify,
    margin_of,
    open_parts,
)

MOST_KEPT = 4000  # samples whose angles and lengths are kept for pictures
MOST_DOTS = 600  # of a picture in the plane
Numbers = dict[str, float]
Arrays = dict[str, Any]


def measure(folder: Path, *, plane: bool, spent: Numbers) -> None:
    """Measure a finished run for the table, or for the picture if in the `plane`; `spent` is what it took."""
    # trust: the code that the settings name is what the comparison names, or was trusted.
    trained = load(folder, device=find_device("auto"), trust=True)
    parts = open_parts(folder, trained)
    head, split, labels = trained.head, parts.split, parts.data.labels
    numbers, arrays = _plane(folder, parts) if plane else _table(parts)
    numbers |= spent
    with replacing(folder / "arrays.npz") as temporary:
        np.savez_compressed(temporary, **arrays)
    about: dict[str, Any] = {
        "numbers": {name: value for name, value in numbers.items() if math.isfinite(value)},
        "head": {
            **head.settings.as_plain(),
            "margin": head.margin.name,
            "numbers": dataclasses.asdict(trained_margin(head) or head.margin),  # type: ignore[call-overload]
            "scale": float(head.current_scale().detach()),
        },
        "data": {
            "name": Path(parts.data.name).name,
            "open_set": bool(split.open_set),
            "parts": {name: _sizes(labels, getattr(split, name)) for name in PARTS},
        },
    }
    write_text(folder / "measures.json", json.dumps(about, indent=1))  # last: a run that has it is done


def _sizes(labels: Rows, rows: Rows) -> list[int]:
    """Count the samples and identities of a part."""
    return [len(rows), len(np.unique(labels[rows]))]


def _table(parts: Parts) -> tuple[Numbers, Arrays]:
    """Measure verification, identification and angles on the test part, and whether training met the margin."""
    head = parts.trained.head
    features, labels = parts.compared("test")
    found = evaluate(features, labels, confidence=None)
    v, g = found.verification, found.geometry
    numbers = {
        "eer": v.eer,
        "tar": v.tar[1e-3] if 1e-3 in v.supported else math.nan,
        "rank1": found.identification.rank[1],
        "intra": math.degrees(g.intra),
        "inter": math.degrees(g.inter),
    }
    prototypes, targets = None, labels
    known = choose_thresholds(parts)
    if parts.split.open_set:
        far, tar = v.curve.at(known.eer)
        numbers["pair_accuracy"] = (tar + 1 - far) / 2 if known.part != "test" else math.nan
    else:
        numbers["accuracy"] = _accuracy(parts)
        prototypes, targets = evaluation.prototypes(head), parts.split.targets(labels)
    margin = trained_margin(head)
    if margin is not None and not isinstance(margin, NoMargin):
        met = _met(parts, margin)
        numbers |= {} if met is None else {"met": met}
    points = thin(v.curve, list(v.tar))
    scores = ScoresDisplay.of(v.curve)
    norms = NormsDisplay.of(features, labels)
    angles = AnglesDisplay.of(features, targets, prototypes)
    kept = np.random.default_rng(0).permutation(len(norms.norms))[:MOST_KEPT]
    arrays = {
        "far": v.curve.far[points], "tar": v.curve.tar[points], "impostors": np.array(v.impostor),
        "edges": scores.edges, "genuine": scores.genuine, "impostor": scores.impostor,
        "threshold": np.array(known.eer), "threshold_part": np.array(known.part),
        "norms": norms.norms[kept], "cosines": norms.cosines[kept], "correlation": np.array(norms.correlation),
        "own": angles.own, "rival": angles.rival, "against": np.array(angles.against),
        "lengths": head.weight.detach().norm(dim=1).cpu().numpy(),
    }  # fmt: skip
    return numbers, arrays


def trained_margin(head: MarginHead) -> Margin | None:
    """Return ψ as it is after the last step, λ included; None where no margin of ours is that ψ."""
    margin, now = margin_of(head), head.current_adjustment()
    if margin is None or now.strength < 1:
        return None
    if now.lam < 1e-3:
        return margin
    return dataclasses.replace(margin, lam=float(now.lam)) if isinstance(margin, SphereFace) else None


def _met(parts: Parts, margin: Margin) -> float | None:
    """Return the share of training samples that meet the margin."""
    features, rows = parts.features("train")
    head = parts.trained.head
    weight = evaluation.prototypes(head)
    if weight is None:
        return None
    targets = parts.split.targets(parts.data.labels)[rows]
    found = prototypes_of(samples(features.to(weight.device), targets, "features"), weight, margin)
    return None if found is None else found.met


def _plane(folder: Path, parts: Parts) -> tuple[Numbers, Arrays]:
    """Keep features of the test part at every checkpoint, some hundred of them."""
    frames = snapshots(folder, part="test", trust=True)
    rows = np.random.default_rng(0).permutation(len(frames[0].labels))[:MOST_DOTS]
    arrays = {
        "epochs": np.array([frame.name for frame in frames]),
        "features": np.stack([frame.features[rows].numpy() for frame in frames]),
        "prototypes": np.stack(
            [np.zeros((0, 2)) if f.prototypes is None else f.prototypes.numpy() for f in frames]
        ),
        "labels": frames[0].labels[rows],
        "right": np.array([frame.right for frame in frames], float),
        "names": np.array(parts.trained.classes),
    }
    return {"accuracy": _accuracy(parts)}, arrays


def _accuracy(parts: Parts) -> float:
    features, rows = parts.features("test")
    return classify(parts.trained, features, parts.split.targets(parts.data.labels)[rows]).accuracy
