"""Decide whether two images are of one identity."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hypermargin.data.folder import FileImages
from hypermargin.deploy.metadata import check_preparation, in_all_units
from hypermargin.deploy.model import Model
from hypermargin.evaluate.thresholds import Support


@dataclass(frozen=True)
class Match:
    """One image against the first: cosine and angle of the embeddings, and the decision cosine ≥ threshold."""

    image: str
    cosine: float
    angle_degrees: float
    same: bool


@dataclass(frozen=True)
class Verdict:
    """The threshold, where it came from, the matches, `passed_over` as in `Trained`, and what a FAR rests on."""

    first: str
    threshold: float
    origin: str
    matches: tuple[Match, ...]
    passed_over: tuple[str, ...] = ()
    support: Support | None = None


def verify(
    model: Model,
    images: Sequence[str | os.PathLike[str]],
    *,
    far: float | None = None,
    threshold: float | None = None,
) -> Verdict:
    """Compare every image with the first.

    The threshold is the cosine given, or the one measured for a false-accept rate `far`, or that of equal errors.
    """
    paths = [os.fspath(image) for image in images]
    if len(paths) < 2:
        raise ValueError(f"images must be at least two; got {len(paths)}.")
    if model.dtype != "uint8":
        raise ValueError(f"verify compares image files; {model.name} takes {model.dtype} of shape {model.shape}.")
    check_preparation(model.about)
    threshold, origin = _threshold(model, far, threshold)
    files = FileImages(paths, model.shape)
    unit, _ = model.run(torch.from_numpy(np.stack([files[k] for k in range(len(paths))])).to(model.device))
    cosines = (unit[1:].double() @ unit[0].double()).clamp(-1, 1).tolist()
    matches = (
        Match(path, cosine, in_all_units(cosine)["angle_degrees"], cosine >= threshold)
        for path, cosine in zip(paths[1:], cosines, strict=True)
    )
    known = model.thresholds
    support = None if far is None or known is None else known.support(far)
    passed_over = tuple(model.about.get("passed_over", ()))
    return Verdict(paths[0], threshold, origin, tuple(matches), passed_over, support)


def _threshold(model: Model, far: float | None, threshold: float | None) -> tuple[float, str]:
    if threshold is not None:
        if far is not None:
            raise ValueError(f"threshold and far both decide; got {threshold:g} and {far:g}. Give one of them.")
        if not -1 <= threshold <= 1:
            raise ValueError(f"threshold must lie in [−1, 1]; got {threshold:g}. It is a cosine.")
        return threshold, "given"
    known = model.thresholds
    if known is None:
        why = "".join(f" ({note})" for note in model.about["notes"] if note.startswith("thresholds"))
        raise ValueError(
            f"{model.name} has no thresholds{why}, so nothing says from which score on two images count as one "
            "identity. Run `hypermargin evaluate RUN` first, or give a threshold (--threshold 0.4)."
        )
    rate = "equal errors" if far is None else f"FAR = {far:g}"
    pairs = f"{known.genuine:,} genuine and {known.impostor:,} impostor pairs of the {known.part} part"
    return known.at(far), f"{rate} on {pairs}"
