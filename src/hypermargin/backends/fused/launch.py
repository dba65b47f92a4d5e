"""The settings that all launches of the fused backend share, and one function per kernel that launches it."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hypermargin.backends.fused import OUTSIDE, feature_kernels, kernels, loss_kernels, row_kernels
from hypermargin.backends.fused.compiled import launch, tiled
from hypermargin.backends.fused.tiles import Tiles, power, processors, tiles_for

SLAB = kernels.SLAB.value
STORE, ADD, SGD = row_kernels.STORE.value, row_kernels.ADD.value, row_kernels.SGD.value
PROGRAMS = 1024  # enough to fill any GPU, for kernels that loop
# P is stored as P·2^15 in float16, whose smallest number is 2⁻²⁴; P itself may be as small as 1/C.
FLOAT16_SHIFT = 15
FLOAT16_RULED_SHIFT = 12  # slopes of up to 8 fit above it
# In classes. The matrix units drop low bits at every addition, so a sum over a million classes is split up.
LONGEST_SUM = 32768


@dataclass(frozen=True)
class Step:
    """The sizes, dtype and tiles that all launches of a forward or backward share."""

    N: int
    C: int
    d: int
    kind: torch.dtype  # of the operands
    tiles: Tiles
    precision: str
    processors: int
    ruled: bool = False  # rivals count by a rule

    @property
    def width(self) -> int:
        """The columns of an operand's buffer, padded so that its rows begin at multiples of 16 bytes."""
        return -(-self.d // 16) * 16

    @property
    def padded(self) -> int:
        """The rows of a slab of E, padded to whole tiles."""
        return -(-self.N // 128) * 128

    @property
    def feature_tiles(self) -> int:
        """The number of tiles that df is computed in."""
        tile = self.tiles.features
        return cdiv(self.N, tile.rows) * cdiv(self.d, tile.columns)

    @property
    def splits(self) -> int:
        """The number of shares that the classes are split into for df, so that the GPU is filled."""
        return max(self.processors // self.feature_tiles, 1)

    @property
    def window(self) -> tuple[float, float]:
        """The range of R − base in which E, its sum, and the ratio of exp(−R) of any two rows are exact enough.

        They must be far from overflow and underflow in float32's exponents, which bfloat16 has too; in float16 no E
        may exceed 65,504 = exp 11.09, and those of 2⁻¹⁴ and less lose digits. A rule multiplies E by its slope.
        """
        if self.kind == torch.float16:
            return (3.0, 9.0) if self.ruled else (5.0, 11.0)
        return -16.0, 58.0

    @property
    def sample(self) -> int:
        """The number of classes that a row's base is guessed from; 0: it is known well enough without.

        In float16 it has to be known closely; a rule may make logits of any size.
        """
        if self.kind == torch.float16:
            return min(self.C, 16384)
        return min(self.C, max(self.C // 64, 1024)) if self.ruled else 0

    @property
    def more(self) -> float:
        """What is added to log₂ Σ exp of the sample, for the base: up to all classes, and down into the window."""
        low, high = self.window
        return math.log2(self.C / self.sample) - (low + high) / 2 * math.log2(math.e) if self.sample else 0.0

    @property
    def lift(self) -> int:
        """The power of two that P is multiplied by when stored."""
        if self.kind != torch.float16:
            return 0
        return FLOAT16_RULED_SHIFT if self.ruled else FLOAT16_SHIFT


@functools.lru_cache(1024)
def step_of(N: int, C: int, d: int, operands: str, device: torch.device, ruled: bool = False) -> Step:
    """Return the sizes, operand dtype and tiles of a call."""
    kind: torch.dtype = getattr(torch, operands)
    # float32 operands keep float32's precision: the matrix units do three TF32 products for one, never just one.
    precision = "tf32x3" if device.type == "cuda" else "ieee"
    return Step(N, C, d, kind, tiles_for(N, d, kind.itemsize, device), precision, processors(device), ruled)


def cdiv(a: int, b: int) -> int:
    """Return a/b rounded up."""
    return -(-a // b)


def slabs(step_rows: int, classes: int) -> tuple[int, int]:
    """Return the shape of E for that many rows and classes; see kernels.py for the layout."""
    return -(-classes // SLAB) * -(-step_rows // 128) * 128, SLAB


def ranges(first: int, last: int, chunk: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of the chunks from `first` to `last`."""
    for start in range(first, last, chunk):
        yield start, min(start + chunk, last)


def room(step: Step, like: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Return empty buffers for the operands w̃ of some classes and for their 1/|W|."""
    return like.new_empty(classes, step.width, dtype=step.kind), like.new_empty(classes)


def operand(
    x: Tensor,
    step: Step,
    scale: float = 1.0,
    *,
    factor: Tensor | None = None,
    labels: Tensor | None = None,
    base: Tensor | None = None,
    unit_weight: bool = False,
) -> Tensor:
    """Return x (N, d) times a number and one factor per row, as an operand: rows padded, entries saturated.

    Rows with NaN or inf become zeros; with `labels` (N, K) the base of every row is written to `base`.
    """
    out = x.new_empty(step.N, step.width, dtype=step.kind)
    launch(
        feature_kernels.pack, (step.N,), x, x if factor is None else factor, x if labels is None else labels,
        x if base is None else base, out, step.C, step.d, step.width, float(scale), factor is not None,
        base is not None, unit_weight, 0 if labels is None else labels.shape[1], OUTSIDE,
        torch.finfo(step.kind).max, power(step.width),
    )  # fmt: skip
    return out


def unit_rows(
    step: Step, weight: Tensor, unit_weight: bool, w: Tensor, inverse: Tensor, total: Tensor | None = None
) -> None:
    """Fill w with w̃ of the rows of `weight` and `inverse` with their 1/|W|; add Σ w̃ to `total`."""
    count, D = weight.shape[0], power(step.width)
    each = max(4096 // D, 1)
    programs = min(cdiv(count, each), 8 * PROGRAMS)
    parts = w if total is None else weight.new_empty(programs, step.d, dtype=torch.float32)
    launch(
        row_kernels.operands, (programs,), weight, w, inverse, parts, count, step.d, step.width, unit_weight, total
        is not None, each, D, torch.finfo(step.kind).max,
    )  # fmt: skip
    if total is not None:
        total += parts.sum(0, dtype=torch.float64)


def scores(
    step: Step,
    mode: int,
    x: Tensor,
    w: Tensor,
    labels: Tensor,
    bias: Tensor | None,
    first: int,
    *,
    out: Tensor | None = None,
    shift: Tensor | None = None,
    redo: Tensor | None = None,
    sums: Tensor | None = None,
    tops: Tensor | None = None,
) -> None:
    """Launch `kernels.scores` for the classes of `w`, the first of which is number `first`."""
    tile, C = step.tiles.scores, w.shape[0]
    blocks = cdiv(C, tile.columns)
    unused = labels  # any tensor, for pointer arguments that the kernel does not read
    launch(
        kernels.scores, (cdiv(step.N, tile.rows), blocks if redo is None else min(blocks, PROGRAMS)),
        tiled(x, tile.rows, tile.step),
        tiled(w, tile.columns, tile.step),
        tiled(x, tile.rows, tile.step) if out is None else tiled(out, tile.rows, tile.columns),
        labels,
        *(unused if t is None else t for t in (bias, shift, redo, sums, tops)),
        step.N, step.padded, C, first, step.d, labels.shape[1], mode, out is not None, bias is not None,
        redo is not None, step.precision, tile.rows, tile.columns, tile.step,
        warps=tile.warps, stages=tile.stages,
    )  # fmt: skip


class Update(NamedTuple):
    """How the weight's gradient is used: STORE, ADD or SGD, the tensor it is written to, and SGD's state."""

    mode: int
    out: Tensor
    momentum: Tensor | None = None
    settings: Tensor | None = None
    nesterov: bool = False
    renormalize: bool = False


def feature_sums(step: Step, e: Tensor, w: Tensor, parts: Tensor, added: bool) -> None:
    """Compute E·w̃ in shares of the classes, into `parts` (splits, N, d); `added` adds to what is there."""
    tile, splits = step.tiles.features, parts.shape[0]
    for first, last in ranges(0, w.shape[0], splits * LONGEST_SUM):
        some = w[first:last]
        each = cdiv(cdiv(last - first, splits), tile.step) * tile.step
        launch(
            kernels.feature_gradient, (step.feature_tiles, splits),
            tiled(e[first // SLAB * step.padded :], tile.rows, tile.step), tiled(some, tile.step, tile.columns),
            parts, step.N, step.padded, last - first, step.d, each, added or first > 0, step.precision,
            8 if step.kind == torch.float32 else 0, SLAB,
            tile.rows, tile.columns, tile.step, warps=tile.warps, stages=tile.stages,
        )  # fmt: skip


class Labels(NamedTuple):
    """The gradients of the label rows, their labels sorted by class, and where each tile of classes begins."""

    sorted: Tensor
    order: Tensor
    starts: Tensor
    by_rows: Tensor

    @staticmethod
    def of(labels: Tensor, by_rows: Tensor, classes: int, tile: int) -> Labels:
        """Return the sorted form of labels (N, K), for tiles of `tile` classes."""
        n, tiles, P = labels.numel(), cdiv(classes, tile), 16
        found, order, starts = torch.empty_like(labels), torch.empty_like(labels), labels.new_empty(tiles + 1)
        programs = cdiv(n, P)
        launch(
            loss_kernels.sort_labels, (programs + cdiv(tiles + 1, P),), labels, found, order, starts, n, programs,
            tiles, tile, P, 128,
        )  # fmt: skip
        return Labels(found, order, starts, by_rows)


class Factors(NamedTuple):
    """The factors φ and φ' of every row for the backward, in parts; see `row_kernels.factors`."""

    shift: Tensor
    redo: Tensor
    relative: Tensor
    roots: Tensor
    largest: Tensor

    @staticmethod
    def of(step: Step, rivals2: Tensor, base: Tensor, by_rivals: Tensor) -> Factors:
        """Compute them from R and its gradient."""
        N, M = step.N, step.tiles.scores.rows
        shift, redo = torch.empty_like(rivals2), torch.empty_like(rivals2, dtype=torch.int32)
        relative, roots = rivals2.new_empty(2, N), rivals2.new_empty(2, N)
        largest = rivals2.new_empty(2, 1)
        launch(
            row_kernels.factors, (1,), rivals2, base, by_rivals, base, shift, redo, relative, roots, largest, N,
            step.lift, 0, *step.window, 1024 // M, M, warps=8,
        )  # fmt: skip
        return Factors(shift, redo, relative, roots, largest)


def weight_rows(
    step: Step, e: Tensor, f: Tensor, half: Tensor, weight: Tensor, inverse: Tensor, unit_weight: bool,
    labels: Labels, by_total: Tensor | None, update: Update, raw: Tensor, first: int, last: int,
) -> None:  # fmt: skip
    """Compute the gradients of classes first … last−1 and use them as `update` says.

    `raw`, if not empty, is a buffer for the sums before `finish`.
    """
    tile, C, whole = step.tiles.weight, last - first, raw.numel() == 0
    some, out = weight[first:last], update.out[first:last]
    limit = torch.finfo(out.dtype).max
    launch(
        kernels.weight_gradient, (cdiv(C, tile.rows),),
        tiled(e, tile.step, tile.rows), tiled(f, tile.step, tile.columns), some, inverse, out if whole else raw,
        half if by_total is None else by_total, half, labels.starts[first // tile.rows :], labels.order,
        labels.sorted, labels.by_rows, step.N, step.padded, C, first, step.d, unit_weight and whole,
        by_total is not None, limit if whole else torch.finfo(torch.float32).max, step.precision,
        cdiv(step.d, tile.columns),
        tile.rows, tile.columns, tile.step, warps=tile.warps, stages=tile.stages,
    )  # fmt: skip
    if not whole:
        finish(step, raw, weight, inverse, unit_weight, update, first, last)


def finish(
    step: Step,
    raw: Tensor,
    weight: Tensor,
    inverse: Tensor,
    unit_weight: bool,
    update: Update,
    first: int,
    last: int,
) -> None:
    """Turn the raw sums of classes first … last−1 into gradients, and use those as `update` says."""
    some, out, D = weight[first:last], update.out[first:last], power(step.d)
    each = max(2048 // D, 1)
    launch(
        row_kernels.finish_rows, (cdiv(last - first, each),), raw, some, inverse, out, out if update.momentum is
        None else update.momentum[first:last], raw if update.settings is None else update.settings, last - first,
        step.d, unit_weight, update.mode,
        update.momentum is not None, update.nesterov, update.renormalize, torch.finfo(out.dtype).max, each, D,
    )  # fmt: skip
