"""Rivals without the N×C matrix: blocks of classes, one after the other, on any device.

Forward: for each block z = f·w̃ᵀ + b, the labels masked out, Σ exp z added up. Backward: z again, P = exp(z − R),
and two products, P·w̃ into df and Pᵀ·f into the block's slice of dW: 8·N·C·d operations where dense needs 6. Beyond
the inputs and the gradients it holds one N×chunk block, one or two chunk×d blocks, a few N- and C-vectors, and as
many blocks of exp z as the memory budget allows, which then need not be computed again.

Three things keep the passes over a block few:
- factors of whole rows (the gradient g on R; exp(−R)) commute with both products: they are put on f and on df;
- 1/|W_j| is a factor of a whole column of z and of P, so no normalised copy of the weight is made;
- where |z| is bounded well inside the exponent's range, exp z needs no maximum taken off first.

The loops are opaque custom operations: torch.compile neither unrolls nor re-orders them. Around them stands one
autograd node. A second derivative (or torch.func) takes the dense formula, and dense memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hypermargin import checks
from hypermargin.numerics import unit
from hypermargin.scores.dense import Rivals

OPERANDS = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Chunked:
    """Settings of the chunked backend, for `backend=Chunked(…)`.

    - chunk: classes a block; by default chosen from the number of rows and the device
    - keep: megabytes of exp z to keep from the forward to the backward on the CPU, saving their recomputation
    - operands: dtype of the matrix products' operands on CUDA, "bfloat16" or "float16", with float32 sums;
      by default autocast's dtype, and float32 without autocast. On the CPU they are always float32 or wider.
    """

    chunk: int | None = None
    keep: int = 64
    operands: str | None = None

    def __post_init__(self) -> None:
        if self.chunk is not None:
            checks.count("Chunked(chunk=…)", self.chunk)
        checks.count("Chunked(keep=…)", self.keep, 0)
        if self.operands is not None:
            checks.one_of("Chunked(operands=…)", self.operands, OPERANDS)


def chunk_for(rows: int, classes: int, device: torch.device) -> int:
    """Classes a block: large enough for products at full speed, small enough for cache and memory."""
    block = 2**26 if device.type == "cuda" else 2**21  # numbers in z: 256 MB on a GPU, 8 MB on a CPU
    size = max(block // max(rows, 1), 1024)
    size = min(size, 262144 if device.type == "cuda" else 8192)
    return min(size // 128 * 128, classes)


def chunked_rivals(
    f: Tensor,
    weight: Tensor,
    local: Tensor,
    inside: Tensor | None,
    *,
    unit_weight: bool,
    bias: Tensor | None,
    rival_sum: bool,
    hardest: bool,
    settings: Chunked,
) -> Rivals:
    """Rivals of `f` (N, d) among `weight` (C, d), block by block; see `dense_rivals` for the arguments."""
    chunk = settings.chunk or chunk_for(f.shape[0], weight.shape[0], f.device)
    local = local if inside is None else local.masked_fill(~inside, -1)  # in no block
    kept = 0
    if f.device.type == "cpu" and torch.is_grad_enabled() and (f.requires_grad or weight.requires_grad):
        held = settings.keep * 2**20 // (max(f.shape[0], 1) * f.element_size())
        kept = min(held // chunk * chunk, weight.shape[0])
    rows, rivals, total, largest, *_ = _Node.apply(
        f, weight, bias, local, unit_weight, rival_sum, hardest, chunk, kept, settings.operands or ""
    )
    return Rivals(rows, rivals, total if rival_sum else None, largest if hardest else None)


class _Node(torch.autograd.Function):
    """The one autograd node; it owns dW, the label rows' share included."""

    @staticmethod
    def forward(
        f: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        local: Tensor,
        unit_weight: bool,
        rival_sum: bool,
        hardest: bool,
        chunk: int,
        kept: int,
        operands: str,
    ) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = _forward(
            f, weight, bias, local, unit_weight, rival_sum, hardest, chunk, kept, operands
        )
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        f, weight, bias, local, *ctx.settings = inputs
        _, rivals, _, largest, norms, plain, exps = output
        ctx.save_for_backward(f, weight, bias, local, rivals, norms, plain, exps)
        ctx.mark_non_differentiable(largest, norms, plain, exps)
        ctx.set_materialize_grads(False)  # or autograd would make zeros as large as what was kept

    @staticmethod
    def backward(
        ctx: Any, by_rows: Tensor | None, by_rivals: Tensor | None, by_sum: Tensor | None, *_: None
    ) -> tuple[Any, ...]:
        f, weight, bias, local, rivals, norms, plain, exps = ctx.saved_tensors
        unit_weight, rival_sum, _, chunk, kept, operands = ctx.settings
        by_rows = f.new_zeros(*local.shape, f.shape[1]) if by_rows is None else by_rows
        by_rivals = torch.zeros_like(rivals) if by_rivals is None else by_rivals
        by_sum = by_sum if rival_sum else None  # torch.compile may hand in an empty one
        needed = ctx.needs_input_grad[:3]
        grads: tuple[Tensor | None, ...]
        if torch.is_grad_enabled():
            rivals = _Node.apply(f, weight, bias, local, *ctx.settings)[1]
            grads = _dense_backward(f, weight, bias, local, rivals, by_rows, by_rivals, by_sum, unit_weight)
        else:
            grads = _backward(
                f, weight, bias, local, rivals, norms, plain, exps, by_rows, by_rivals,
                by_sum, unit_weight, chunk, kept, operands, *needed,
            )  # fmt: skip
        return (*(grad if need else None for grad, need in zip(grads, needed, strict=True)), *[None] * 7)


def _blocks(classes: int, chunk: int) -> Iterator[slice]:
    for start in range(0, classes, chunk):
        yield slice(start, min(start + chunk, classes))


def _norms(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """|W_j| of a block, inf for zero rows."""
    norm = torch.linalg.vector_norm(weight, dim=1, dtype=dtype)
    if weight.device.type != "cpu" or not _safe(norm):
        if dtype == torch.float32 and weight.device.type != "mps":  # the square of any float32 is a float64
            norm = torch.linalg.vector_norm(weight, dim=1, dtype=torch.float64).to(dtype)
        else:
            largest = torch.linalg.vector_norm(weight, math.inf, dim=1)
            largest = largest.masked_fill(largest == 0, 1.0)
            norm = largest * torch.linalg.vector_norm(weight / largest[:, None], dim=1)
    inf_for_zero: Tensor = norm.masked_fill(norm == 0, math.inf)
    return inf_for_zero


def _safe(norms: Tensor) -> bool:
    """Are these lengths and their inverses far from the ends of the exponent's range? Only asked on the CPU."""
    return float(norms.amin()) > 1e-15 and float(norms.amax()) < 1e15


def _block(weight: Tensor, norms: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """A block of the weight as a product's operand, and the factors 1/|W_j| its columns of z still need."""
    if norms is None:
        return weight.to(dtype), None
    if norms.device.type == "cpu" and _safe(norms):
        return weight.to(dtype), 1 / norms
    w = torch.empty(weight.shape, dtype=dtype, device=weight.device)
    return torch.div(weight, norms[:, None], out=w), None


def _operand_dtype(f: Tensor, operands: str) -> torch.dtype:
    """Of the matrix products' inputs; only CUDA sums reduced ones in float32."""
    kind: torch.dtype = getattr(torch, operands) if operands in ("bfloat16", "float16") and f.is_cuda else f.dtype
    return kind


def _product(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """a·b in out's dtype, in out's memory where a and b are of that dtype too."""
    if b.dtype != out.dtype:
        return torch.mm(a.to(b.dtype), b, out_dtype=out.dtype)
    return torch.mm(a, b, out=out)


def _mask_labels(z: Tensor, local: Tensor, block: slice, value: float) -> None:
    """Put `value` where a label of the row is in the block: one gather and scatter a row, no sync, no N×C."""
    columns = local - block.start
    here = (columns >= 0) & (columns < z.shape[1])
    columns = columns.clamp(0, z.shape[1] - 1)
    for k in range(local.shape[1]):
        at = columns[:, k : k + 1]
        z.scatter_(1, at, torch.where(here[:, k : k + 1], value, z.gather(1, at)))


def _needs_no_maximum(f: Tensor, weight: Tensor, bias: Tensor | None, unit_weight: bool) -> bool:
    """Are exp z, its sum and its inverse well inside f's dtype? |z| ≤ |f|·|w̃| + |b| tells, where it may be read."""
    if f.device.type != "cpu" or f.numel() == 0:
        return False
    bound = float(torch.linalg.vector_norm(f, dim=1).amax())
    if not unit_weight:
        bound *= float(torch.linalg.vector_norm(weight, dim=1, dtype=f.dtype).amax())
    if bias is not None:
        bound += float(bias.abs().amax())
    return bound + math.log(weight.shape[0]) < -math.log(torch.finfo(f.dtype).tiny) - 2.5


def _exp(z: Tensor) -> Tensor:
    """exp z for z ≤ 0, in place, at least e^−80 in float32: denormal numbers make a CPU's products crawl."""
    return z.exp_() if z.is_cuda else z.clamp_(min=math.log(torch.finfo(z.dtype).tiny) + 7.3).exp_()


@torch.library.custom_op("hypermargin::chunked_forward", mutates_args=())
def _forward(
    f: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    local: Tensor,
    unit_weight: bool,
    rival_sum: bool,
    hardest: bool,
    chunk: int,
    kept: int,
    operands: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """rows (N, K, d), rivals (N,), rival_sum and hardest (N,) or (0,); for the backward, norms (C,) or (0,),

    whether exp z was taken without a maximum, and those exp z of the first `kept` classes.
    """
    N, C = f.shape[0], weight.shape[0]
    kind = _operand_dtype(f, operands)
    exact = torch.float32 if f.device.type == "mps" else torch.float64  # a few N-vectors: their sums lose nothing
    plain = _needs_no_maximum(f, weight, bias, unit_weight)
    largest = f.new_full((N,), 0.0 if plain else -math.inf)
    sums = torch.zeros(N, dtype=exact, device=f.device)
    total = torch.zeros(N if rival_sum else 0, dtype=exact, device=f.device)
    top = f.new_full((N if hardest else 0,), -math.inf)
    norms = f.new_empty(C if unit_weight else 0)
    buffer, exps = f.new_empty(N * min(chunk, C)), f.new_empty(N * kept)
    for block in _blocks(C, chunk):
        if unit_weight:
            norms[block] = _norms(weight[block], f.dtype)
        w, inverse = _block(weight[block], norms[block] if unit_weight else None, kind)
        size = w.shape[0]
        space = exps[N * block.start : N * block.stop] if plain and block.stop <= kept else buffer[: N * size]
        z = _product(f, w.T, space.view(N, size))
        if inverse is not None:
            z *= inverse
        if bias is not None:
            z += bias[block]
        if rival_sum:
            _mask_labels(z, local, block, 0.0)
            total += z.sum(1)
        _mask_labels(z, local, block, -math.inf)
        if hardest:
            torch.maximum(top, z.amax(1), out=top)
        if plain:
            z.exp_()
        else:
            new = torch.maximum(largest, z.amax(1))
            finite = new.masked_fill(new == -math.inf, 0.0)  # no rival seen yet
            sums *= (largest - finite).exp()
            largest = new
            _mask_labels(_exp(z.sub_(finite[:, None])), local, block, 0.0)
        sums += z.sum(1)
    rivals = (largest.masked_fill(largest == -math.inf, 0.0) + sums.log()).to(f.dtype)
    rows = weight.index_select(0, local.clamp(min=0).flatten()).to(f.dtype)
    rows = (unit(rows) if unit_weight else rows).view(*local.shape, f.shape[1])
    return rows, rivals, total.to(f.dtype), top, norms, torch.tensor(plain), exps


@_forward.register_fake
def _(f, weight, bias, local, unit_weight, rival_sum, hardest, chunk, kept, operands):  # type: ignore[no-untyped-def]
    N = f.shape[0]
    return (
        f.new_empty(*local.shape, f.shape[1]),
        f.new_empty(N),
        f.new_empty(N if rival_sum else 0),
        f.new_empty(N if hardest else 0),
        f.new_empty(weight.shape[0] if unit_weight else 0),
        torch.empty((), dtype=torch.bool),
        f.new_empty(N * kept),
    )


@torch.library.custom_op("hypermargin::chunked_backward", mutates_args=())
def _backward(
    f: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    local: Tensor,
    rivals: Tensor,
    norms: Tensor,
    plain: Tensor,
    exps: Tensor,
    by_rows: Tensor,
    by_rivals: Tensor,
    by_sum: Tensor | None,
    unit_weight: bool,
    chunk: int,
    kept: int,
    operands: str,
    need_f: bool,
    need_weight: bool,
    need_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """df, dW, db; those not needed are empty."""
    (N, d), C = f.shape, weight.shape[0]
    df = torch.zeros_like(f) if need_f else f.new_empty(0)
    dW = torch.empty_like(weight) if need_weight else weight.new_empty(0)
    db = torch.zeros_like(bias) if bias is not None and need_bias else f.new_empty(0)
    without_maximum = bool(plain)
    no_rivals = rivals == -math.inf
    shift = rivals.masked_fill(no_rivals, math.inf)[:, None]
    # P·factor is the gradient by z; where exp z is taken as it is, the factor holds exp(−R) too.
    factor = by_rivals.masked_fill(no_rivals, 0.0)[:, None]
    if without_maximum:
        factor = factor * (-shift).exp()
    weighted_f = f if by_sum is not None else factor * f
    if f.device.type == "cpu":
        weighted_f = weighted_f.masked_fill(weighted_f.abs() < 100 * torch.finfo(f.dtype).tiny, 0.0)  # the same
    flat_rows, flat_local = by_rows.reshape(-1, d), local.flatten()
    kind = _operand_dtype(f, operands)
    buffer = f.new_empty(N * min(chunk, C))
    for block in _blocks(C, chunk):
        size = block.stop - block.start
        w, inverse = _block(weight[block], norms[block] if unit_weight else None, kind)
        P = buffer[: N * size].view(N, size)
        if without_maximum and block.stop <= kept:
            P.copy_(exps[N * block.start : N * block.stop].view(N, size))
        else:
            P = _product(f, w.T, P)
            if inverse is not None:
                P *= inverse
            if bias is not None:
                P += bias[block]
            P = P.exp_() if without_maximum else _exp(P.sub_(shift))
            _mask_labels(P, local, block, 0.0)
        if by_sum is not None:  # label smoothing: rows are no longer only scaled
            P *= factor
            P += by_sum[:, None]
            _mask_labels(P, local, block, 0.0)
        if need_bias and bias is not None:
            db[block] = (P.sum(0) if by_sum is not None else factor.squeeze(1) @ P).to(bias.dtype)
        if inverse is not None:
            P *= inverse
        P = P.to(kind)
        if need_f:
            _ = df.addmm_(P, w) if kind == f.dtype else df.add_(_product(P, w, df))
        if need_weight:
            in_place = kind == f.dtype == dW.dtype
            G = _product(P.T, weighted_f.to(kind), dW[block] if in_place else f.new_empty(size, d))
            columns = flat_local - block.start
            here = ((columns >= 0) & (columns < size)).to(f.dtype)
            columns = columns.clamp(0, size - 1)
            G.index_add_(0, columns, flat_rows * (here if inverse is None else here * inverse[columns])[:, None])
            if unit_weight:  # off with what only lengthens: G − ŵ⟨ŵ, G⟩
                if inverse is not None:
                    along = torch.linalg.vecdot(w, G) * inverse.square()
                else:
                    w = w if w.dtype == f.dtype else weight[block] / norms[block, None]
                    along = torch.linalg.vecdot(w, G)
                G.addcmul_(w, along[:, None], value=-1.0)
                if inverse is None:
                    G /= norms[block, None]
            if dW.dtype != f.dtype or (unit_weight and inverse is None):
                limit = torch.finfo(dW.dtype).max
                G.clamp_(-limit, limit)
            if not in_place:
                dW[block] = G
    if need_f and by_sum is None:
        df *= factor
    return df, dW, db


@_backward.register_fake
def _(f, weight, bias, *_rest):  # type: ignore[no-untyped-def]
    need_f, need_weight, need_bias = _rest[-3:]
    return (
        torch.empty_like(f) if need_f else f.new_empty(0),
        torch.empty_like(weight) if need_weight else weight.new_empty(0),
        torch.empty_like(bias) if need_bias and bias is not None else f.new_empty(0),
    )


def _dense_backward(
    f: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    local: Tensor,
    rivals: Tensor,
    by_rows: Tensor,
    by_rivals: Tensor,
    by_sum: Tensor | None,
    unit_weight: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The same gradients as a formula that can be differentiated again, whole."""
    classes = weight.shape[0]
    wide = weight.to(f.dtype)
    w = unit(wide) if unit_weight else wide
    z = f @ w.T if bias is None else f @ w.T + bias
    is_label = torch.zeros(f.shape[0], classes + 1, dtype=torch.bool, device=f.device)
    is_label = is_label.scatter(1, local.masked_fill(local < 0, classes), True)[:, :classes]
    empty = (rivals == -math.inf)[:, None]
    P = (z - rivals[:, None].masked_fill(empty, 0.0)).exp().masked_fill(is_label | empty, 0.0) * by_rivals[:, None]
    if by_sum is not None:
        P = P + by_sum[:, None].expand_as(P).masked_fill(is_label, 0.0)
    G = (P.T @ f).index_add(0, local.clamp(min=0).flatten(), by_rows.reshape(-1, f.shape[1]))
    if unit_weight:
        norms = torch.linalg.vector_norm(wide, dim=1, keepdim=True)
        G = (G - w * (w * G).sum(1, keepdim=True)) / norms.masked_fill(norms == 0, math.inf)
    return P @ w, G.to(weight.dtype), None if bias is None else P.sum(0).to(bias.dtype)
