"""Open-set identification: probes, some of people who are not in the gallery."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from hypermargin import checks
from hypermargin.common.arrays import Counts, Values, to_numpy
from hypermargin.evaluate.curve import Curve, count_scores
from hypermargin.evaluate.pairs import GRID, cells, samples

NOWHERE = -2.0  # the score of a known probe whose nearest in the gallery is somebody else: below every cosine


@dataclass(frozen=True)
class OpenSet:
    """What a watch list would do.

    tpir        by FPIR f: the share of known probes found, as the nearest and at a threshold with FPIR ≤ f
    thresholds  by FPIR f: the lowest score with FPIR ≤ f
    rank1       the share of known probes whose nearest is themselves, at no threshold
    known       probes with a sample in the gallery
    unknown     the others; f·unknown ≥ 1 or the FPIR cannot be shown (`curve.supports`)
    curve       FPIR (as its FAR) and TPIR (as its TAR) at every threshold
    """

    tpir: dict[float, float]
    thresholds: dict[float, float]
    rank1: float
    known: int
    unknown: int
    curve: Curve = field(compare=False, repr=False)


def open_set(
    gallery: Values,
    gallery_labels: Values,
    probes: Values,
    probe_labels: Values,
    fpir: Sequence[float] = (0.1, 0.01),
    *,
    block: int | None = None,
) -> OpenSet:
    """Let each probe find its nearest sample of the gallery, by cosine rounded as in `verification`.

        FPIR(t) = unknown probes whose nearest has a score ≥ t / unknown probes
        TPIR(t) = known probes whose nearest is themselves, with a score ≥ t / known probes

    A tie between oneself and a stranger is lost. `block` is the number of probes at a time.
    """
    for f in fpir:
        checks.in_range("fpir", f, 0.0, 1.0)
    g = samples(gallery, gallery_labels, "gallery", least=1)
    p = samples(probes, probe_labels, "probes", least=1)
    if g.x.shape[1] != p.x.shape[1]:
        raise ValueError(f"probes must have {g.x.shape[1]} columns like gallery; got {p.x.shape[1]}.")
    # Numbers in the gallery of the probes' names; −1: not there.
    place = {name: number for number, name in enumerate(g.names.tolist())}
    of_name = np.array([place.get(name, -1) for name in p.names.tolist()], dtype=np.int64)
    who = torch.from_numpy(of_name[p.ids]).to(g.x.device)
    x, ids = p.x.to(g.x), torch.from_numpy(g.ids).to(g.x.device)
    if block is not None:
        checks.count("block", block)
    step = block or max(1, (2**26 if g.x.is_cuda else 2**20) // len(ids))
    parts = []
    for at in range(0, len(x), step):
        scores = cells(x[at : at + step], g.x)
        own = who[at : at + step, None] == ids
        parts.append(torch.stack((scores.masked_fill(~own, -1).amax(1), scores.masked_fill(own, -1).amax(1))))
    mine, others = torch.cat(parts, 1).cpu().numpy()
    known = of_name[p.ids] >= 0
    if known.all() or not known.any():
        missing, kind = ("unknown", "outside") if known.all() else ("known", "inside")
        raise ValueError(f"there are no {missing} probes. Give some of identities {kind} the gallery.")
    right = mine > others
    score = np.where(known, np.where(right, mine / GRID - 1, NOWHERE), others / GRID - 1)
    curve = Curve.of(*count_scores(score, known))
    return OpenSet(
        {float(f): curve.tar_at(f) for f in fpir},
        {float(f): curve.threshold_at(f) for f in fpir},
        float(right[known].mean()),
        int(known.sum()),
        int((~known).sum()),
        curve,
    )


def half_enrolled(labels: Values, seed: int = 0) -> tuple[Counts, Counts]:
    """Draw (gallery rows, probe rows): one sample of every second identity enrols, all others probe.

    Which identities and samples is drawn by `seed`. One sample alone does not enrol: nobody would look for it.
    """
    ids = np.unique(to_numpy(labels), return_inverse=True)[1]
    rng = np.random.default_rng(seed)
    sizes = np.bincount(ids)
    able = rng.permutation(np.flatnonzero(sizes > 1))
    if len(sizes) < 2 or len(able) == 0:
        raise ValueError("labels must hold two identities or more, one of them with two samples, to enrol it.")
    enrolled = able[: len(sizes) // 2]
    order = rng.permutation(len(ids))
    first = order[np.unique(ids[order], return_index=True)[1]]  # a random row of each identity
    gallery = np.sort(first[enrolled])
    return gallery, np.setdiff1d(np.arange(len(ids)), gallery)
