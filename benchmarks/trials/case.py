"""One size: all that the kernels read and write, the present kernels on it, and errors against float64."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from hypermargin.backends.fused import kernels, launch
from hypermargin.backends.fused.ops import LOG2_E

SCALE = 64.0
# What each part of a step writes.
WRITES = {
    "scores": ("units", "inverse", "exps", "sums"),
    "dX": ("parts", "along"),
    "dW": ("dW",),
    "dX and dW": ("parts", "along", "dW"),
    "step": ("units",),
}
PIECE = 50_000  # classes at a time in float64


class Case:
    """A batch whose rows lie some 50° from their class, as in training, and buffers for all that is computed.

    After `fill` they hold what the present kernels compute.
    """

    def __init__(self, N: int, C: int, d: int, device: str, operands: str = "bfloat16") -> None:
        self.N, self.C, self.d, self.device = N, C, d, torch.device(device)
        self.step = launch.step_of(N, C, d, operands, torch.device(device, 0) if device == "cuda" else self.device)
        rng = torch.Generator(device).manual_seed(0)
        self.weight = torch.randn(C, d, device=device, generator=rng) * d**-0.5
        y = torch.randint(0, C, (N,), device=device, generator=rng)
        own = F.normalize(self.weight[y])
        self.f = SCALE * F.normalize(own + 1.2 * F.normalize(torch.randn(N, d, device=device, generator=rng)))
        self.labels, new = y[:, None].to(torch.int32), self.weight.new_empty
        self.base, self.by_rows = new(N), -self.f / N
        self.x = new(N, self.step.width, dtype=self.step.kind)
        self.units, self.inverse = launch.room(self.step, self.weight, C)
        self.exps = new(launch.slabs(N, C), dtype=self.step.kind)
        self.sums, self.tops = new(launch.cdiv(C, 64), N), new(launch.cdiv(C, 64), N)
        self.parts, self.dW = new(self.step.splits, N, d), torch.empty_like(self.weight)
        self.along, self.by_labels = new(launch.cdiv(N, 64), C), new(N)
        self.whole = new(0)
        # What `fill` sets: of the rows R, φ over the largest |φ|, the root of that, and f times the former.
        self.rivals2, self.relative, self.root, self.weighted = self.base, self.base, self.base, self.x
        self.sorted: dict[int, launch.Labels] = {}
        self.momentum: Tensor | None = None
        self.settings: Tensor | None = None
        self.fast = device == "cuda"  # whether kernels may hold instructions of the GPU's own

    def fill(self) -> None:
        """Compute everything by the present kernels, and with it what the backward is given."""
        self.x = launch.operand(self.f, self.step, LOG2_E, labels=self.labels, base=self.base, unit_weight=True)
        self.operands()
        self.scores()
        step, blocks = self.step, launch.cdiv(self.C, self.step.tiles.scores.columns)
        self.rivals2 = self.sums.flatten()[: blocks * self.N].view(blocks, self.N).sum(0).log2() + self.base
        self.factors = launch.Factors.of(step, self.rivals2, self.base, torch.full_like(self.base, 1 / self.N))
        self.relative, self.root = self.factors.relative[0], self.factors.largest[0]
        self.weighted = launch.operand(self.f, step, factor=self.relative)
        self.restore()

    def restore(self) -> None:
        """Compute by the present kernels what a candidate may have left wrong; W is never changed."""
        self.operands()
        self.scores()
        self.features()
        self.gradient()

    def labels_in(self, tile: int) -> launch.Labels:
        """The labels sorted, with where each tile of so many classes begins among them."""
        if tile not in self.sorted:
            self.sorted[tile] = launch.Labels.of(self.labels, self.by_rows, self.C, tile)
        return self.sorted[tile]

    def operands(self) -> None:
        """ŵ and 1/|W|."""
        launch.unit_rows(self.step, self.weight, True, self.units, self.inverse)

    def scores(self, first: int = 0, last: int | None = None) -> None:
        """E and its sums of a range of the classes, which begins at a slab."""
        last = self.C if last is None else last
        at = first // self.step.tiles.scores.columns * self.N
        launch.scores(
            self.step, kernels.SUM.value, self.x, self.units[first:last], self.labels, None, first,
            shift=self.base, out=self.exps[first // launch.SLAB * self.step.padded :],
            sums=self.sums.flatten()[at:], tops=self.tops.flatten()[at:],
        )  # fmt: skip

    def features(self) -> None:
        """Σ_j E_ij·ŵ_j, in shares of the classes."""
        launch.feature_sums(self.step, self.exps, self.units, self.parts, False)

    def gradient(self) -> None:
        """dW."""
        launch.weight_rows(
            self.step, self.exps, self.weighted, self.root, self.weight, self.inverse, True,
            self.labels_in(self.step.tiles.weight.rows), None, launch.Update(launch.STORE, self.dW), self.whole, 0,
            self.C,
        )  # fmt: skip

    def poison(self, part: str, keeps: tuple[str, ...] = ()) -> None:
        """Fill with NaN what that part computes."""
        for name in WRITES[part]:
            if name not in keeps:
                getattr(self, name).fill_(torch.nan)

    def products(self) -> dict[str, Callable[[], object]]:
        """The bare products of cuBLAS at this size, over as many bytes."""
        flat, out = self.exps.flatten()[: self.N * self.C].view(self.N, self.C), torch.empty_like
        e = out(flat)
        by_class = torch.empty(self.C, self.units.shape[1], dtype=self.step.kind, device=self.device)
        by_row = torch.empty_like(self.x)
        return {
            "scores": lambda: torch.mm(self.x, self.units.T, out=e),
            "dX": lambda: torch.mm(flat, self.units, out=by_row),
            "dW": lambda: torch.mm(flat.T, self.x, out=by_class),
        }


class Exact:
    """What a sample of the rows and of the classes should be, in float64; R as the present kernels have it."""

    def __init__(self, case: Case) -> None:
        N, C = case.N, case.C
        self.rows = torch.unique(torch.tensor([*range(0, N, 96), N - 1], device=case.device))
        others = torch.linspace(0, C - 1, 32, device=case.device).long()
        self.classes = torch.unique(torch.cat([case.labels[:32, 0].long(), others]))
        f = case.f.double()
        pieces, units = [], torch.zeros(len(self.rows), case.d, dtype=torch.float64, device=case.device)
        for first in range(0, C, PIECE):
            w = F.normalize(case.weight[first : first + PIECE].double())
            e = torch.exp2(LOG2_E * f[self.rows] @ w.T - case.base[self.rows, None].double())
            own = case.labels[self.rows, 0].long() - first
            e[torch.arange(first, first + len(w), device=case.device)[None] - first == own[:, None]] = 0
            pieces.append(e)
            units += e @ w
        self.exps, self.features = torch.cat(pieces, 1), units
        rows = case.weight[self.classes].double()
        w = F.normalize(rows)
        share = torch.exp2(LOG2_E * f @ w.T - case.rivals2[:, None].double()) / N
        is_own = case.labels.long() == self.classes[None]
        raw = share.masked_fill(is_own, 0).T @ f + is_own.double().T @ case.by_rows.double()
        self.dW = (raw - w * (raw * w).sum(1, keepdim=True)) / rows.norm(dim=1, keepdim=True)
        self.units = w

    def errors(self, case: Case, part: str, each: int) -> dict[str, float]:
        """Relative errors of what a kernel of that part has written; NaN where anything is left unwritten.

        `each` is the number of classes per row of the sums.
        """
        found: dict[str, float] = {}
        if part == "scores":
            slabs = case.exps.view(-1, case.step.padded, launch.SLAB)
            e = slabs[:, self.rows].transpose(0, 1).reshape(len(self.rows), -1)[:, : case.C]
            blocks = launch.cdiv(case.C, each)
            sums = case.sums.flatten()[: blocks * case.N].view(blocks, case.N)
            whole = sums.isnan().any() | _nan(case.units[:, : case.d]) | _nan(case.inverse)
            for first in range(0, len(slabs), 256):
                end = min(256, len(slabs) - first)
                some = slabs[first : first + end, : case.N]
                whole |= _nan(some if first + end < len(slabs) else some[:-1])
            found["sums"] = _relative(sums[:, self.rows].sum(0), self.exps.sum(1), whole)
            found["E"] = _relative(e, self.exps, whole)
            found["ŵ"] = _relative(case.units[self.classes, : case.d], self.units, whole)
        if part == "step":
            found["ŵ"] = _relative(case.units[self.classes, : case.d], self.units, _nan(case.units[:, : case.d]))
        if part in ("dX", "dX and dW"):
            found["dX"] = _relative(case.parts.sum(0)[self.rows], self.features, _nan(case.parts))
        if part in ("dW", "dX and dW"):
            found["dW"] = _relative(case.dW[self.classes], self.dW, _nan(case.dW))
        return found


def _nan(x: Tensor) -> Tensor:
    return x.isnan().any()


def _relative(found: Tensor, right: Tensor, unwritten: Tensor) -> float:
    error = (found.double() - right).norm() / right.norm()
    return float(error + torch.where(unwritten, torch.nan, 0.0))
