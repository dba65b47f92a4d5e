"""What a page shows of embeddings: numbers, curve, pairs, samples, what deserves a look. All of it fits JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hypermargin.common.arrays import Array, Counts, Floats
from hypermargin.evaluate import Evaluation, LookFirst, Thresholds, Verification, WorstPairs, thin
from hypermargin.evaluate.look_first import of_samples as look_first
from hypermargin.evaluate.pairs import Samples, samples
from hypermargin.evaluate.report import plain
from hypermargin.evaluate.worst import worst_pairs
from hypermargin.numerics import unit
from hypermargin.runpage.cloud import Cloud, cloud, packed
from hypermargin.runpage.thumbnails import thumbnails

MOST_PAIRS = 800  # of each kind, whole scores at a time
DRAWN = 2  # pairs per bin between the worst
MOST_DOTS = 2500
MOST_POINTS = 2500  # in space
CURVE = 1200  # operating points
BINS = 80
SHOWN_FIRST = 24  # of the worst pairs of each kind
LISTED = 200  # of each kind that deserves a look
PICTURED = 12  # of these, with pictures


@dataclass(frozen=True, eq=False)
class Subject:
    """Embeddings, and what is known of their samples.

    labels  (N,) names of identities
    where   the name of a sample, by row
    image   a sample by row, where the samples can be shown
    """

    features: Tensor
    labels: Array
    where: Callable[[int], str] = "sample {}".format
    image: Callable[[int], Array] | None = None


def of_verification(v: Verification, thresholds: Mapping[str, float], unit: str = "cosine") -> dict[str, Any]:
    """Return the curve, its histogram, and the thresholds that were chosen."""
    curve = v.curve
    # Those that were chosen elsewhere need not be scores of these pairs; what they do is said exactly all the same.
    chosen = [(at, *curve.at(at)) for at in thresholds.values()]
    thinned = thin(curve, list(v.tar), CURVE).tolist()
    far, tar = curve.far, curve.tar
    points = [(curve.threshold(k), float(far[k]), float(tar[k])) for k in thinned] + chosen
    points.sort(key=lambda point: (-point[0], point[1], point[2]))
    columns = ("threshold", "far", "tar")
    edges, genuine, impostor = curve.histogram(BINS)
    return {
        "unit": unit,
        "curve": {name: [point[k] for point in points] for k, name in enumerate(columns)},
        "genuine": v.genuine, "impostor": v.impostor, "eer": v.eer,
        "histogram": {"edges": [edges[0], edges[-1]], "genuine": genuine.tolist(), "impostor": impostor.tolist()},
        "thresholds": [{"name": name, "at": at} for name, at in thresholds.items()],
    }  # fmt: skip


def named(chosen: Thresholds) -> dict[str, float]:
    """Return thresholds by what they were chosen for: "eer", or the FAR."""
    return {"eer": chosen.eer, **{f"{f:g}": threshold for f, threshold in chosen.far.items()}}


def of_samples(subject: Subject, result: Evaluation, thresholds: Mapping[str, float]) -> dict[str, Any]:
    """Return all that a page shows of labelled embeddings that `evaluate` has looked at."""
    s = samples(subject.features, subject.labels)
    at = thresholds.get("eer", result.verification.threshold)
    pairs = worst_pairs(s, result.verification.curve, MOST_PAIRS, DRAWN)
    look = look_first(s, at, most=LISTED)
    pictures = {} if subject.image is None else thumbnails(_by_importance(pairs, look, at), subject.image)
    listed = np.unique(np.concatenate((pairs.first, pairs.second)))
    rest = np.random.default_rng(0).permutation(len(s.ids))[:MOST_DOTS]
    rows = np.unique(np.concatenate((listed, rest)))
    g = result.geometry
    told = sorted({*listed.tolist(), *_pictured(look), *(each.row for each in look.mislabelled)})
    return {
        **of_verification(result.verification, thresholds),
        "about": {"samples": g.samples, "identities": g.identities, "dim": g.dim},
        "numbers": numbers(result),
        "samples": _samples(s, rows),
        "pairs": {
            "first": np.searchsorted(rows, pairs.first).tolist(),
            "second": np.searchsorted(rows, pairs.second).tolist(),
            "score": pairs.score.tolist(),  # unrounded: whether one reaches a threshold is asked in the page
            "genuine": pairs.genuine.astype(int).tolist(),
            "highest": _finite(pairs.highest), "lowest": _finite(pairs.lowest),
        },
        "where": {str(row): subject.where(row) for row in told},
        "pictures": {str(row): text for row, text in pictures.items()},
        "look": plain(asdict(look)),
        "points": points(s),
    }  # fmt: skip


def _samples(s: Samples, rows: Counts) -> dict[str, Any]:
    """Return length, cosine to the own center, and class of the samples in these rows."""
    y = torch.from_numpy(s.ids).to(s.x.device)
    centers = unit(s.x.new_zeros(len(s.sizes), s.x.shape[1]).index_add_(0, y, s.x))
    cosine = (s.x * centers[y]).sum(1).double().cpu().numpy()
    place = np.argsort(s.order)[rows]  # where the given rows are among the sorted
    used, label = np.unique(s.ids[place], return_inverse=True)
    return {
        "rows": rows.tolist(), "norm": packed(s.norms.double().cpu().numpy()[place]),
        "cosine": packed(cosine[place]), "label": label.tolist(), "names": [str(name) for name in s.names[used]],
        "alone": [int(k) for k in np.flatnonzero(s.sizes[used] == 1)],
    }  # fmt: skip


def points(s: Samples) -> dict[str, Any]:
    """Return samples as points of space: as they are in two and three dimensions, else three components.

    Components are those of the directions, enlarged until the farthest point is near the rim.
    """
    kept = np.sort(np.random.default_rng(0).permutation(len(s.ids))[:MOST_POINTS])
    x = s.x[torch.from_numpy(kept).to(s.x.device)].double().cpu().numpy()
    d = x.shape[1]
    share = 1.0
    if d <= 3:
        seen = x * s.norms.double().cpu().numpy()[kept][:, None] if d == 2 else x
    else:
        _, strength, axes = np.linalg.svd(x, full_matrices=False)
        seen = x @ axes[:3].T
        seen *= 0.97 / np.linalg.norm(seen, axis=1).max()
        share = float((strength[:3] ** 2).sum() / (strength**2).sum())
    used, label = np.unique(s.ids[kept], return_inverse=True)
    return {
        "dim": d, "share": share, "at": packed(seen), "width": int(seen.shape[1]), "label": label.tolist(),
        "names": [str(name) for name in s.names[used]], "rows": s.order[kept].tolist(),
    }  # fmt: skip


def against_centers(features: Tensor, labels: Array) -> Cloud | None:
    """Measure samples against the mean directions of their classes; None without two classes of two."""
    s = samples(features, labels)
    y = torch.from_numpy(s.ids).to(s.x.device)
    centers = unit(s.x.new_zeros(len(s.sizes), s.x.shape[1]).index_add_(0, y, s.x))
    social = np.flatnonzero(s.sizes[s.ids] > 1)  # one alone is its own center
    if len(s.sizes) < 2 or not len(social):
        return None
    at = torch.from_numpy(social).to(s.x.device)
    return cloud(s.x[at], y[at], centers, "means")


def _by_importance(pairs: WorstPairs, look: LookFirst, at: float) -> Iterator[int]:
    """Yield rows whose picture a reader wants first, first."""
    yield from _pictured(look)
    genuine, impostor = np.flatnonzero(pairs.genuine)[::-1], np.flatnonzero(~pairs.genuine)
    near = np.argsort(np.abs(pairs.score - at), kind="stable")[: 2 * SHOWN_FIRST]
    rest = np.random.default_rng(0).permutation(len(pairs.score))
    for order in (impostor[:SHOWN_FIRST], genuine[:SHOWN_FIRST], near, rest):
        yield from np.stack((pairs.first[order], pairs.second[order]), 1).ravel().tolist()


def _pictured(look: LookFirst) -> list[int]:
    pairs = [each.rows for each in look.duplicates[:PICTURED]] + [each.rows for each in look.split[:PICTURED]]
    pairs += [(each.row, each.example) for each in look.mislabelled[:PICTURED]]
    return [row for both in pairs for row in both]


def numbers(result: Evaluation) -> list[dict[str, Any]]:
    """Return the table: key, value, perhaps what it is at, perhaps an interval; angles are in degrees."""
    v, i, g = result.verification, result.identification, result.geometry
    known = v.intervals or {}

    def row(
        group: str, key: str, value: float, kind: str, name: Any = None, at: float | None = None
    ) -> dict[str, Any]:
        low, high = known.get(name, (None, None)) if name is not None else (None, None)
        return {"group": group, "key": key, "value": value, "kind": kind, "at": at, "low": low, "high": high}

    rows = [row("verification", "eer", v.eer, "share", "eer")]
    rows += [row("verification", "tar", v.tar[f], "share", f, f) for f in v.supported]
    rows += [
        row("verification", "auc", v.auc, "share", "auc"),
        row("verification", "dcf", v.min_dcf, "number", "min_dcf"),
    ]
    rows += [row("identification", "rank", share, "share", at=k) for k, share in i.rank.items()]
    rows += [row("identification", "map", i.map, "share")]
    angles = {
        "own_center": g.own_centre.mean,
        "other_center": g.other_centre.mean,
        "intra": g.intra,
        "inter": g.inter,
    }
    rows += [row("geometry", key, math.degrees(angle), "angle") for key, angle in angles.items()]
    rows += [row("geometry", "separated", g.separated, "share"), row("geometry", "norm", g.norms.mean, "number")]
    rows += [row("geometry", "norm_within", g.norms.within, "share")]
    if g.prototypes is not None:
        p = g.prototypes
        rows += [row("prototypes", "own", math.degrees(p.own.mean), "angle")]
        rows += [row("prototypes", "rival", math.degrees(p.rival.mean), "angle")]
        rows += [row("prototypes", "nearer", p.accuracy, "share")]
        rows += [] if p.met is None else [row("prototypes", "met", p.met, "share")]
    found: list[dict[str, Any]] = plain([each for each in rows if math.isfinite(each["value"])])
    return found


def angles(what: str, found: Cloud) -> dict[str, Any]:
    """Count the angles of samples to their own class and to the nearest other, in whole degrees."""

    def counts(cosines: Floats) -> list[int]:
        degrees = np.degrees(np.arccos(np.clip(cosines, -1, 1)))
        number: list[int] = np.histogram(degrees, np.arange(181))[0].tolist()
        return number

    return {"what": what, "n": len(found.own), "own": counts(found.own), "rival": counts(found.rival)}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
