"""From several centers per class to one, and which samples do not belong: Deng et al. 2020, section 3.4.

Mislabelled and odd samples gather at centers of their own. What is far from the center that most samples of a class
are nearest to is left out, and training goes on with one center.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from hypermargin import checks
from hypermargin.centers import ONE
from hypermargin.common.arrays import Array
from hypermargin.head import MarginHead
from hypermargin.heads.weights import Weights, by_class, centers_of, classes_of
from hypermargin.numerics import meeting, unit, widen

T = TypeVar("T", MarginHead, Weights)
RIGHT = math.radians(75.0)
BLOCK = 8192


class Cleaned(NamedTuple):
    """What `dominant_centers` finds, with N samples and C classes."""

    head: Any  # as it was given, with one center per class
    keep: Tensor  # (N,)  False: farther from the dominant center of its class than `angle`
    angle: Tensor  # (N,)  to that center, in radians
    nearest: Tensor  # (N,)  which center of its class each sample is nearest to
    dominant: Tensor  # (C,)  which center is that of most samples; of equally many the first
    unseen: Tensor  # classes without a sample; their dominant center is the first


@torch.no_grad()
def dominant_centers(
    head: T, embeddings: Tensor | Array, labels: Tensor | Array, angle: float = RIGHT, *, block: int = BLOCK
) -> Cleaned:
    """Make a head with one center per class, the dominant one, and find the samples that do not belong to it.

    - embeddings (N, dim), labels (N,): of the training samples; also a memory map, which is read in blocks of
      `block` rows
    - angle: samples farther than this from the dominant center of their class are to be left out, in radians.
      Samples that are nearest to another center, but not as far, stay.

        cleaned = heads.dominant_centers(head, embeddings, labels)
        data = data[cleaned.keep]            # and train again, with one center

    The head that is given stays as it is.
    """
    checks.count("block", block)
    N = len(embeddings)
    if len(labels) != N:
        raise ValueError(f"embeddings and labels must be as many; got {N} and {len(labels)}.")
    parts = ((embeddings[k : k + block], labels[k : k + block]) for k in range(0, N, block))
    return clean(head, parts, angle)


@torch.no_grad()
def clean(head: T, parts: Iterable[tuple[Tensor | Array, Tensor | Array]], angle: float = RIGHT) -> Cleaned:
    """Do the same with embeddings and labels that come part by part."""
    _check_angle(angle)
    classes, K = classes_of(head), centers_of(head)
    rows = by_class(head)["weight"].detach().reshape(classes, K, -1)
    counts, angles, every = torch.zeros(classes, K, dtype=torch.int64), [], []
    done = 0
    for embeddings, labels in parts:
        x, y = _checked(embeddings, labels, rows, done)
        found = _angles(x, rows, y).cpu()
        counts.index_put_((y.cpu(), found.argmin(1)), torch.ones(len(y), dtype=torch.int64), accumulate=True)
        angles.append(found)
        every.append(y.cpu())
        done += len(y)
    if not done:
        raise ValueError("embeddings must have at least one row; got none.")
    to_centers, of_sample = torch.cat(angles), torch.cat(every)
    dominant = counts.argmax(1)
    to_dominant = to_centers.gather(1, dominant[of_sample][:, None]).squeeze(1)
    unseen = (counts.sum(1) == 0).nonzero()[:, 0]
    return Cleaned(
        _with_one(head, rows, dominant), to_dominant <= angle, to_dominant, to_centers.argmin(1), dominant, unseen
    )


def _check_angle(angle: float) -> None:
    hint = ""
    if isinstance(angle, int | float) and angle > math.pi:
        hint = f"It is in radians; {angle:g} degrees are {math.radians(angle):.4g}."
    checks.in_range("angle", angle, 0.0, math.nextafter(math.pi, 4.0), hint)


def _checked(embeddings: Any, labels: Any, rows: Tensor, before: int) -> tuple[Tensor, Tensor]:
    """Return features and labels of a part on the head's device; an error names the row, counted from the first."""
    x, y = (torch.as_tensor(np.array(t) if isinstance(t, np.ndarray) else t) for t in (embeddings, labels))
    dim = rows.shape[2]
    if x.dim() != 2 or x.shape[1] != dim or not x.is_floating_point():
        raise ValueError(f"embeddings must be numbers of shape (N, {dim}); got {x.dtype}, {tuple(x.shape)}.")
    if y.shape != x.shape[:1] or y.is_floating_point() or y.dtype == torch.bool:
        raise ValueError(f"labels must be {len(x)} class ids; got {y.dtype}, {tuple(y.shape)}.")
    y = y.long()
    wrong = ((y < 0) | (y >= len(rows))).nonzero()[:, 0]
    if len(wrong):
        at = int(wrong[0])
        raise ValueError(
            f"labels must lie in [0, {len(rows)}); got {int(y[at])} in row {before + at}. Leave out rows "
            "without a class."
        )
    bad = (~x.isfinite().all(1)).nonzero()[:, 0]
    if len(bad):
        raise ValueError(f"embeddings hold NaN or inf in row {before + int(bad[0])}. Leave that row out.")
    return x.to(rows.device), y.to(rows.device)


def _angles(x: Tensor, rows: Tensor, y: Tensor) -> Tensor:
    """Return the angles (N, K) of features to the centers of their classes; π/2 where either is zero."""
    wide = torch.promote_types(torch.promote_types(x.dtype, rows.dtype), torch.float32)
    u, w = unit(widen(x, wide)), unit(widen(rows[y], wide).flatten(0, 1)).view(len(y), *rows.shape[1:])
    return meeting(u, u, w)[1]


def _with_one(head: T, rows: Tensor, dominant: Tensor) -> T:
    """Return a copy of the head with these centers alone; its optimiser's state stays behind."""
    weight = rows[torch.arange(len(rows), device=rows.device), dominant.to(rows.device)].clone()
    if isinstance(head, Weights):
        rest = {k: t for k, t in head.rest.items() if not k.startswith("optimizer.")}
        return dataclasses.replace(head, weight=weight, rest=dict(rest), state={}, centers=1)
    shell = copy.copy(head)  # the rows are large, and the optimiser that changes them belongs to the old ones
    shell.__dict__["training_backend"] = None
    made = copy.deepcopy(shell, {id(head.weight): nn.Parameter(weight, head.weight.requires_grad)})
    made.settings = dataclasses.replace(head.settings, centers=ONE)
    return made
