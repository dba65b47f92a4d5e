"""What is the same for every launch of the fused backend, and each kernel's launch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from hypermargin.backends.fused import kernels, row_kernels
from hypermargin.backends.fused.tiles import Tiles, power, processors, tiles_for

SLAB = kernels.SLAB.value
STORE, ADD, SGD = row_kernels.STORE.value, row_kernels.ADD.value, row_kernels.SGD.value
PROGRAMS = 1024  # enough to fill any GPU, for kernels that loop
# float16 holds P down to 2⁻²⁴ of this; P itself may be as small as 1/C.
FLOAT16_SHIFT = 15
# The matrix units cut off low bits at every addition, so a sum over a million classes is made of shorter ones.
LONGEST_SUM = 32768


@dataclass(frozen=True)
class Step:
    """What is the same for every launch of a step."""

    N: int
    C: int
    d: int
    kind: torch.dtype  # of the operands
    tiles: Tiles
    precision: str
    processors: int

    @property
    def width(self) -> int:
        """Columns of an operand's buffer: its rows begin at multiples of 16 bytes."""
        return -(-self.d // 16) * 16

    @property
    def padded(self) -> int:
        """Rows of a slab of E: whole tiles."""
        return -(-self.N // 128) * 128

    @property
    def feature_tiles(self) -> int:
        """Of df."""
        tile = self.tiles.features
        return int(triton.cdiv(self.N, tile.rows) * triton.cdiv(self.d, tile.columns))

    @property
    def splits(self) -> int:
        """Shares of the classes for df, to fill the GPU."""
        return max(self.processors // self.feature_tiles, 1)

    @property
    def lift(self) -> int:
        """P is stored times two to this power."""
        return FLOAT16_SHIFT if self.kind == torch.float16 else 0


def step_of(f: Tensor, weight: Tensor, operands: str) -> Step:
    """Sizes, operands and tiles of a call."""
    kind: torch.dtype = getattr(torch, operands)
    (N, d), C = f.shape, weight.shape[0]
    # float32 means float32: on the matrix units three products stand in for one, never TF32's ten bits.
    precision = "tf32x3" if f.is_cuda else "ieee"
    return Step(N, C, d, kind, tiles_for(N, d, kind.itemsize, f.device), precision, processors(f.device))


def slabs(step_rows: int, classes: int) -> tuple[int, int]:
    """The shape of E for so many classes; see kernels.py for the layout."""
    return -(-classes // SLAB) * -(-step_rows // 128) * 128, SLAB


def ranges(first: int, last: int, chunk: int) -> Iterator[tuple[int, int]]:
    """From first to last in chunks."""
    for start in range(first, last, chunk):
        yield start, min(start + chunk, last)


def room(step: Step, like: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """For the operands w̃ of some classes and their 1/|W|."""
    return like.new_empty(classes, step.width, dtype=step.kind), like.new_empty(classes)


def tiled(x: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """A matrix to be read or written in such tiles."""
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [rows, columns])


def operand(x: Tensor, step: Step, scale: float = 1.0, factor: Tensor | None = None) -> Tensor:
    """x (N, d) times a number and a factor a row, as an operand: its rows padded, what does not fit saturated."""
    out = x.new_empty(step.N, step.width, dtype=step.kind)
    row_kernels.pack[(step.N,)](
        x, x if factor is None else factor, out, step.d, step.width, scale, factor is not None,
        torch.finfo(step.kind).max, power(step.width),
    )  # fmt: skip
    return out


def unit_rows(
    step: Step, weight: Tensor, unit_weight: bool, w: Tensor, inverse: Tensor, total: Tensor | None = None
) -> None:
    """Fill w with w̃ of the rows of `weight` and `inverse` with their 1/|W|; add Σ w̃ to `total`."""
    count, D = weight.shape[0], power(step.width)
    each = max(4096 // D, 1)
    programs = min(triton.cdiv(count, each), 8 * PROGRAMS)
    parts = w if total is None else weight.new_empty(programs, step.d, dtype=torch.float32)
    row_kernels.operands[(programs,)](
        weight, w, inverse, parts, count, step.d, step.width, unit_weight, total is not None,
        each, D, torch.finfo(step.kind).max,
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
    """`kernels.scores` for the classes of `w`, the first of which is number `first`."""
    tile, C = step.tiles.scores, w.shape[0]
    blocks = triton.cdiv(C, tile.columns)
    unused = labels  # stands where a pointer is not followed
    kernels.scores[(triton.cdiv(step.N, tile.rows), blocks if redo is None else min(blocks, PROGRAMS))](
        tiled(x, tile.rows, tile.step),
        tiled(w, tile.columns, tile.step),
        tiled(x, tile.rows, tile.step) if out is None else tiled(out, tile.rows, tile.columns),
        labels,
        *(unused if t is None else t for t in (bias, shift, redo, sums, tops)),
        step.N, step.padded, C, first, step.d, labels.shape[1], mode, out is not None, bias is not None,
        redo is not None, step.precision, tile.rows, tile.columns, tile.step,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


class Update(NamedTuple):
    """What becomes of the weight's gradient: a mode of the kernels, where it goes, and SGD's state."""

    mode: int
    out: Tensor
    momentum: Tensor | None = None
    settings: Tensor | None = None
    nesterov: bool = False
    renormalize: bool = False


def feature_sums(step: Step, e: Tensor, w: Tensor, parts: Tensor, added: bool) -> None:
    """E·w̃, in shares of the classes, to `parts` (splits, N, d)."""
    tile, splits = step.tiles.features, parts.shape[0]
    for first, last in ranges(0, w.shape[0], splits * LONGEST_SUM):
        some = w[first:last]
        each = triton.cdiv(triton.cdiv(last - first, splits), tile.step) * tile.step
        kernels.feature_gradient[(step.feature_tiles, splits)](
            tiled(e[first // SLAB * step.padded :], tile.rows, tile.step), tiled(some, tile.step, tile.columns),
            parts, step.N, step.padded, last - first, step.d, each, added or first > 0, step.precision,
            8 if step.kind == torch.float32 else 0, SLAB,
            tile.rows, tile.columns, tile.step, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip


class Labels(NamedTuple):
    """What the rows of the labels receive, sorted by class, and where each tile of classes begins in it."""

    sorted: Tensor
    order: Tensor
    starts: Tensor
    by_rows: Tensor

    @staticmethod
    def of(local: Tensor, by_rows: Tensor, classes: int, tile: int) -> Labels:
        """Of labels (N, K), for tiles of so many classes."""
        found, order = torch.sort(local.flatten(), stable=True)
        edges = torch.arange(0, (triton.cdiv(classes, tile) + 1) * tile, tile, device=local.device)
        starts = torch.searchsorted(found, edges.to(found.dtype), out_int32=True)
        return Labels(found, order, starts, by_rows.reshape(-1, by_rows.shape[-1]).contiguous())


def weight_rows(
    step: Step, e: Tensor, f: Tensor, half: Tensor, weight: Tensor, inverse: Tensor, unit_weight: bool,
    labels: Labels, by_total: Tensor | None, update: Update, raw: Tensor, first: int, last: int,
) -> None:  # fmt: skip
    """The gradients of W_first … W_last, to where they go. `raw`, if not empty, is used in between."""
    tile, C, whole = step.tiles.weight, last - first, raw.numel() == 0
    some, out = weight[first:last], update.out[first:last]
    limit = torch.finfo(out.dtype).max
    kernels.weight_gradient[(triton.cdiv(C, tile.rows),)](
        tiled(e, tile.step, tile.rows), tiled(f, tile.step, tile.columns), some, inverse, out if whole else raw,
        half if by_total is None else by_total, half, labels.starts[first // tile.rows :], labels.order,
        labels.sorted, labels.by_rows, step.N, step.padded, C, first, step.d, unit_weight and whole,
        by_total is not None, limit if whole else torch.finfo(torch.float32).max, step.precision,
        triton.cdiv(step.d, tile.columns),
        tile.rows, tile.columns, tile.step, num_warps=tile.warps, num_stages=tile.stages,
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
    """From raw sums of W_first … W_last to their gradients, and where those go."""
    some, out, D = weight[first:last], update.out[first:last], power(step.d)
    each = max(2048 // D, 1)
    row_kernels.finish_rows[(triton.cdiv(last - first, each),)](
        raw, some, inverse, out, out if update.momentum is None else update.momentum[first:last],
        raw if update.settings is None else update.settings, last - first, step.d, unit_weight, update.mode,
        update.momentum is not None, update.nesterov, update.renormalize, torch.finfo(out.dtype).max, each, D,
    )  # fmt: skip
