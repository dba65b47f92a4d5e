"""The number of bytes that each rank of a class-parallel head sends in one training step."""

from __future__ import annotations

from typing import NamedTuple

from hypermargin import checks


class Traffic(NamedTuple):
    """Bytes that each rank sends per step with ring algorithms, which NCCL uses for large messages."""

    features: float  # all-gather of N×d, in the features' dtype
    labels: float  # all-gather of N×L int64, of N float32 with mixup, and of a header of 40 bytes per rank
    sums: float  # all-reduces of N-vectors: Σ exp(R − bound), T and what else was asked for
    gradient: float  # reduce-scatter of N×d float32; with gloo an all-reduce, twice that

    @property
    def total(self) -> float:
        """The sum of the four parts, in bytes."""
        return sum(self)

    def __str__(self) -> str:
        parts = zip(("features", "labels", "sums", "their gradient"), self, strict=True)
        return f"{_size(self.total)} a step: " + ", ".join(f"{name} {_size(size)}" for name, size in parts)


def traffic(
    rows: int,
    dim: int,
    world_size: int,
    *,
    feature_bytes: int = 4,
    labels: int = 1,
    smoothing: bool = False,
    bounded: bool = True,
) -> Traffic:
    """Return the bytes sent for `rows` rows of `dim` dimensions on each rank, whatever the number of classes.

    - labels: how many labels each row has; 2 with mixup
    - bounded: s is fixed, both sides are normalised and there is no bias; else the largest R is found first
    """
    checks.count("rows", rows, 0)
    checks.count("dim", dim)
    checks.count("world_size", world_size)
    others, everything = world_size - 1, rows * world_size
    around = 2 * others / world_size  # a ring all-reduce is a reduce-scatter and an all-gather
    columns = 1 + labels + (labels if labels > 1 else 0) + smoothing
    return Traffic(
        others * rows * dim * feature_bytes,
        others * (rows * (8 * labels + (4 if labels > 1 else 0)) + 40),
        around * everything * (8 * columns + (0 if bounded else 4)),
        others * rows * dim * 4,
    )


def _size(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} bytes"
