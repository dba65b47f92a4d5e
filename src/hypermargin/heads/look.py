"""Look at the rows of a head: their lengths, and which classes are nearly one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from hypermargin import checks
from hypermargin.common.union_find import UnionFind

BLOCK = 2048
MOST = 1_000_000


class Pair(NamedTuple):
    """Two classes and the cosine between their rows."""

    first: int
    second: int
    cosine: float


@torch.no_grad()
def lengths(weight: Tensor) -> Tensor:
    """Return the lengths of the rows, (C,) in float64; by blocks, so that no wide copy of the weight is made."""
    return torch.cat(
        [torch.linalg.vector_norm(part.double(), dim=1) for part in torch.split(weight.detach(), BLOCK)]
    )


@torch.no_grad()
def nearest_pairs(
    weight: Tensor, top: int = 5, *, above: float | None = None, block: int = BLOCK, centers: int = 1
) -> list[Pair]:
    """Find the `top` nearest pairs of classes, nearest first; or all with a cosine of at least `above`.

    C²·d operations, in blocks of `block`² numbers of memory: 100,000 classes of 512 dimensions take a minute or so.
    Rows with NaN or of length 0 have no direction and are left out. With several `centers` per class two classes
    are as near as the nearest of theirs.
    """
    checks.count("centers", centers, 1, checks.MOST_CENTERS)
    checks.count("top", top, 0)
    checks.count("block", block)
    if above is not None and not -1 <= above <= 1:
        raise ValueError(f"above must be a cosine in [−1, 1]; got {above:g}.")
    if top == 0 and above is None:
        return []
    size = lengths(weight)
    usable = (size.isfinite() & (size > 0)).view(-1, centers)
    found: list[Pair] = []
    parts = torch.split(usable.any(1).nonzero()[:, 0], max(block // centers, 1))
    # Without the rounding of float32, above=1 would miss most rows that are equal.
    floor = -2.0 if above is None else above - 8 * torch.finfo(torch.float32).eps
    for a, rows in enumerate(parts):
        left, left_usable = _units(weight, rows, size, centers), usable[rows.to(usable.device)].flatten()
        for b in range(a, len(parts)):
            cosines = left @ _units(weight, parts[b], size, centers).T
            if centers > 1:
                cosines.masked_fill_(~left_usable[:, None], -3.0)
                cosines.masked_fill_(~usable[parts[b].to(usable.device)].flatten(), -3.0)
                cosines = cosines.view(len(rows), centers, len(parts[b]), centers).amax((1, 3))
            if a == b:
                cosines = cosines.triu(1) - 3 * torch.ones_like(cosines).tril()  # each pair once, below any floor
            hits = (cosines >= floor).nonzero()
            if above is None and len(hits) > top:
                best = cosines.flatten().topk(min(top, cosines.numel())).indices
                hits = torch.stack((best // cosines.shape[1], best % cosines.shape[1]), 1)
                hits = hits[cosines[hits[:, 0], hits[:, 1]] >= -2]
            values = cosines[hits[:, 0], hits[:, 1]].clamp(-1, 1).tolist()
            places = zip(rows[hits[:, 0]].tolist(), parts[b][hits[:, 1]].tolist(), values, strict=True)
            found += [Pair(*place) for place in places]
            if above is None:
                found = sorted(found, key=lambda pair: (-pair.cosine, pair))[:top]
                floor = found[-1].cosine if len(found) == top else floor
            elif len(found) > MOST:
                raise ValueError(
                    f"more than {MOST:,} pairs have a cosine of {above:g} or more. Choose a higher one."
                )
    return sorted(found, key=lambda pair: (-pair.cosine, pair))


def groups_of(pairs: Iterable[tuple[int, int, float]]) -> list[list[int]]:
    """Group the classes that pairs connect, to merge them. A chain of near pairs is one group: look at it first."""
    near = UnionFind()
    for first, second, _ in pairs:
        near.union(first, second)
    return near.groups()


def _units(weight: Tensor, classes: Tensor, size: Tensor, centers: int) -> Tensor:
    """Return the directions of all rows of these classes; zeros for rows without one."""
    part = weight.detach().view(-1, centers, weight.shape[1])[classes.to(weight.device)].flatten(0, 1)
    lengths = size.view(-1, centers)[classes.to(size.device)].flatten()
    found: Tensor = (part.double() / lengths[:, None]).float()
    return found if centers == 1 else found.nan_to_num(0.0, 0.0, 0.0)
