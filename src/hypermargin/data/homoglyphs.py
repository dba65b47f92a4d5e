"""Characters that look the same: Latin A, Greek Α and Cyrillic А are one shape."""

from __future__ import annotations

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
    pixels = np.stack([_blur(one) for one in shapes])
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


def _blur(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    kernel = np.exp(-np.square(np.arange(-3, 4)) / 2).astype(np.float32)
    kernel /= kernel.sum() * np.float32(np.sqrt(255))  # twice applied: ink in [0, 1]
    padded = np.pad(images.astype(np.float32), ((0, 0), (3, 3), (3, 3)))
    tall = sum(weight * padded[:, k : k + SIDE] for k, weight in enumerate(kernel))
    return np.asarray(sum(weight * tall[:, :, k : k + SIDE] for k, weight in enumerate(kernel)))
