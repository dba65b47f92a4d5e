"""Characters that look the same: Latin A, Greek Α and Cyrillic А are one shape."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hypermargin.common.union_find import UnionFind
from hypermargin.data.base import Rows

SIDE = 28  # shapes are compared at this size, whatever the size of the samples
SAME = 0.2  # DejaVu: A/А 0.01, µ/μ 0.08, 3/З 0.16, ô/ȏ 0.18 are the same; n/п 0.22, ā/ă 0.25, I/l 0.36 are not
NEAR = 0.1  # rms difference up to which a pair is looked at closely; the pairs below SAME lie under 0.07
BLOCK = 512


def same_shapes(shapes: NDArray[np.uint8], drawn: NDArray[np.bool_]) -> Rows:
    """Find for each character the first one that looks like it, itself if none does.

    shapes  (faces, characters, SIDE, SIDE), drawn (faces, characters) which of them there are

    Two characters are the same if the mean over the faces both have of max |G∗(a − b)| is below SAME, with ink in
    [0, 1] and G a Gaussian of one pixel. A stroke moved a little gives + and − that cancel under G; an accent too
    many gives a peak. Same as the same is the same.
    """
    faces, count = drawn.shape
    pixels = np.stack([_blur(one.astype(np.float32) / 255) for one in shapes])
    cells = pixels.reshape(faces, count, SIDE // 2, 2, SIDE // 2, 2).mean((3, 5)).reshape(faces, count, -1)
    cells *= drawn[:, :, None]
    flat = cells.transpose(1, 0, 2).reshape(count, -1)
    there = drawn.T.astype(np.float32)
    squares = np.square(cells).sum(2).T
    same = UnionFind()
    for start in range(0, count, BLOCK):
        rows = slice(start, start + BLOCK)
        shared = there[rows] @ there.T
        distance = squares[rows] @ there.T + there[rows] @ squares.T - 2 * flat[rows] @ flat.T
        a, b = np.nonzero((distance < NEAR**2 * cells.shape[2] * shared) & (shared > 0))
        a, b = a[a + start < b] + start, b[a + start < b]
        peak = np.zeros(len(a))
        for face in range(faces):
            both = drawn[face, a] & drawn[face, b]
            peak[both] += np.abs(pixels[face, a[both]] - pixels[face, b[both]]).max((1, 2), initial=0)
        for one, other in zip(*(x[peak < SAME * (drawn[:, a] & drawn[:, b]).sum(0)] for x in (a, b)), strict=True):
            same.union(int(one), int(other))
    return np.array([same.find(k) for k in range(count)], dtype=np.int64)


def same_means(
    means: NDArray[np.float32],
    of_both: Callable[[int, int], tuple[NDArray[np.float32], NDArray[np.float32]]],
) -> Rows:
    """Find the same as `same_shapes`, of so many characters that not all typefaces can be compared at once.

    means    (characters, side, side), each averaged over its typefaces; pairs whose means are near are looked at
    of_both  the images of two characters in the typefaces that draw both, ink in [0, 1]

    The means are over typefaces that differ from character to character, so pairs are found by them and not judged.
    """
    count, side = means.shape[:2]
    blurred = _blur(means)
    cells = blurred[:, : side // 2 * 2, : side // 2 * 2]
    cells = cells.reshape(count, side // 2, 2, side // 2, 2).mean((2, 4)).reshape(count, -1)
    squares = np.square(cells).sum(1)
    same = UnionFind()
    for start in range(0, count, BLOCK):
        rows = slice(start, start + BLOCK)
        distance = squares[rows, None] + squares - 2 * cells[rows] @ cells.T
        a, b = np.nonzero(distance < NEAR**2 * cells.shape[1])
        a, b = a[a + start < b] + start, b[a + start < b]
        for part in range(0, len(a), BLOCK):
            one, other = a[part : part + BLOCK], b[part : part + BLOCK]
            near = np.abs(blurred[one] - blurred[other]).max((1, 2)) < SAME
            for k, j in zip(one[near].tolist(), other[near].tolist(), strict=True):
                x, y = of_both(k, j)
                if len(x) and np.abs(_blur(x) - _blur(y)).max((1, 2)).mean() < SAME:
                    same.union(k, j)
    return np.array([same.find(k) for k in range(count)], dtype=np.int64)


def _blur(images: NDArray[np.float32]) -> NDArray[np.float32]:
    """Blur images by a Gaussian of one pixel."""
    side = images.shape[-1]
    kernel = np.exp(-np.square(np.arange(-3, 4)) / 2).astype(np.float32)
    kernel /= kernel.sum()
    padded = np.pad(images, ((0, 0), (3, 3), (3, 3)))
    tall = sum(weight * padded[:, k : k + side] for k, weight in enumerate(kernel))
    return np.asarray(sum(weight * tall[:, :, k : k + side] for k, weight in enumerate(kernel)))
