"""The loops of the chunked backend: one over the blocks forward, one backward, each an opaque custom operation."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hypermargin.backends.crew import in_order, threads_for
from hypermargin.backends.pool import Pool
from hypermargin.numerics import far_from_limits, unit
from hypermargin.rules import SOFTMAX, RuleAtRows
from hypermargin.rules._aggregates import Additive
from hypermargin.rules._base import from_text


def _blocks(classes: int, chunk: int) -> list[slice]:
    return [slice(start, min(start + chunk, classes)) for start in range(0, classes, chunk)]


class _Buffers:
    """Memory for N×chunk numbers, one buffer for each block that is being computed."""

    def __init__(self, like: Tensor, size: int) -> None:
        self._like, self._size = like, size
        self._free: list[Tensor] = []

    def take(self) -> Tensor:
        """Return a free buffer, or a new one."""
        try:
            return self._free.pop()
        except IndexError:
            return self._like.new_empty(self._size)

    def give_back(self, buffer: Tensor) -> None:
        """Let another block use it."""
        self._free.append(buffer)


def _norms(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return |W_j| of the classes in a block, inf for zero rows."""
    norm = torch.linalg.vector_norm(weight, dim=1, dtype=dtype)
    if weight.device.type != "cpu" or not far_from_limits(norm):
        if dtype == torch.float32 and weight.device.type != "mps":  # the square of any float32 is a float64
            norm = torch.linalg.vector_norm(weight, dim=1, dtype=torch.float64).to(dtype)
        else:
            largest = torch.linalg.vector_norm(weight, math.inf, dim=1)
            largest = largest.masked_fill(largest == 0, 1.0)
            norm = largest * torch.linalg.vector_norm(weight / largest[:, None], dim=1)
    inf_for_zero: Tensor = norm.masked_fill(norm == 0, math.inf)
    return inf_for_zero


def _block(weight: Tensor, norms: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Return a block of the weight as an operand, and the factors 1/|W_j| still to be put on its columns of z."""
    if norms is None:
        return weight.to(dtype), None
    if norms.device.type == "cpu" and far_from_limits(norms):
        return weight.to(dtype), 1 / norms
    w = torch.empty(weight.shape, dtype=dtype, device=weight.device)
    return torch.div(weight, norms[:, None], out=w), None


def _operand_dtype(f: Tensor, operands: str) -> torch.dtype:
    """Return the dtype of the matrix products' inputs; only CUDA sums those of reduced precision in float32."""
    kind: torch.dtype = getattr(torch, operands) if operands in ("bfloat16", "float16") and f.is_cuda else f.dtype
    return kind


def _product(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """Return a·b in out's dtype, and in out's memory if a and b have that dtype too."""
    if b.dtype != out.dtype:
        return torch.mm(a.to(b.dtype), b, out_dtype=out.dtype)
    return torch.mm(a, b, out=out)


def _mask_labels(z: Tensor, local: Tensor, block: slice, value: float) -> Tensor:
    """Write `value` into z, in place, where a label of the row is in the block, and return z.

    It takes one gather and scatter per row: no waiting for the GPU and no N×C mask.
    """
    columns = local - block.start
    here = (columns >= 0) & (columns < z.shape[1])
    columns = columns.clamp(0, z.shape[1] - 1)
    for k in range(local.shape[1]):
        at = columns[:, k : k + 1]
        z.scatter_(1, at, torch.where(here[:, k : k + 1], value, z.gather(1, at)))
    return z


def rule_at_rows(rule: str, length: Tensor | None, threshold: Tensor | None) -> RuleAtRows:
    """Return the rule that was given as text, with its numbers per row; "" is the softmax rule."""
    return RuleAtRows(from_text(rule) if rule else SOFTMAX, length, threshold)


def _needs_no_maximum(f: Tensor, weight: Tensor, bias: Tensor | None, unit_weight: bool) -> bool:
    """Return whether exp z, its sum and its inverse fit f's dtype, by |z| ≤ |f|·|w̃| + |b|; on the CPU only."""
    if f.device.type != "cpu" or f.numel() == 0:
        return False
    bound = float(torch.linalg.vector_norm(f, dim=1).amax())
    if not unit_weight:
        bound *= float(torch.linalg.vector_norm(weight, dim=1, dtype=f.dtype).amax())
    if bias is not None:
        bound += float(bias.abs().amax())
    return bound + math.log(weight.shape[0]) < -math.log(torch.finfo(f.dtype).tiny) - 2.5


def _exp(z: Tensor) -> Tensor:
    """Return exp z for z ≤ 0, in place; on the CPU at least e^−80 in float32, as denormal numbers are very slow."""
    return z.exp_() if z.is_cuda else z.clamp_(min=math.log(torch.finfo(z.dtype).tiny) + 7.3).exp_()


@torch.library.custom_op("hypermargin::chunked_forward", mutates_args=())
def forward(
    f: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    local: Tensor,
    unit_weight: bool,
    want_total: bool,
    hardest: bool,
    chunk: int,
    kept: int,
    operands: str,
    rule: str,
    pool: str,
    length: Tensor | None,
    threshold: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return rows (N, K, d), rivals (N,), Σ w̃ (d,) or (0,), hardest (N,) or (0,).

    Three more are for the backward: norms (C,) or (0,), whether exp z was taken without subtracting a maximum, and
    in that case exp z of the first `kept` classes.
    """
    N, C = f.shape[0], weight.shape[0]
    kind = _operand_dtype(f, operands)
    exact = torch.float32 if f.device.type == "mps" else torch.float64  # dtype of the few vectors that are summed
    at_rows, of_classes = rule_at_rows(rule, length, threshold), Pool(pool, local, length)
    aggregate = at_rows.rule.aggregate
    plain = at_rows.rule.is_softmax and _needs_no_maximum(f, weight, bias, unit_weight)
    norms, exps = f.new_empty(C if unit_weight else 0), f.new_empty(N * kept)
    buffers, blocks = _Buffers(f, N * min(chunk, C)), _blocks(C, chunk)
    largest = f.new_full((N,), 0.0 if plain else -math.inf)
    sums = torch.zeros(N, dtype=exact, device=f.device)
    total = torch.zeros(f.shape[1] if want_total else 0, dtype=exact, device=f.device)
    top = f.new_full((N if hardest else 0,), -math.inf)

    def part(number: int) -> tuple[Tensor, ...]:
        """Return Σ exp(z − max) of one block, its maximum, and Σ w̃ and its hardest where they are wanted."""
        block, columns = blocks[number], of_classes.columns(blocks[number])
        if unit_weight:
            norms[block] = _norms(weight[block], f.dtype)
        w, inverse = _block(weight[block], norms[block] if unit_weight else None, kind)
        size, buffer = w.shape[0], buffers.take()
        space = exps[N * block.start : N * block.stop] if plain and block.stop <= kept else buffer[: N * size]
        z = _product(f, w.T, space.view(N, size))
        if inverse is not None:
            z *= inverse
        z = of_classes.score(z)
        its_top, its_total = top, total
        if hardest and not at_rows.rule.is_identity:
            raw = z.clone() if bias is None else z + bias[columns]
            its_top = _mask_labels(raw, of_classes.labels, columns, -math.inf).amax(1)
        z = at_rows.rho(z)
        if bias is not None:
            z += bias[columns]
        if want_total:
            its_total = w.sum(0, dtype=f.dtype) if inverse is None else inverse @ w
        _mask_labels(z, of_classes.labels, columns, -math.inf)
        if hardest and at_rows.rule.is_identity:
            its_top = z.amax(1)
        its_largest = largest
        if isinstance(aggregate, Additive):
            z = aggregate.each(z)
        elif plain:
            z.exp_()
        else:
            its_largest = z.amax(1)
            finite = its_largest.masked_fill(its_largest == -math.inf, 0.0)  # no rival in the block
            _mask_labels(_exp(z.sub_(finite[:, None])), of_classes.labels, columns, 0.0)
        found = z.sum(1), its_largest, its_total, its_top
        buffers.give_back(buffer)
        return found

    def add(found: tuple[Tensor, ...]) -> None:
        nonlocal largest
        its_sum, its_largest, its_total, its_top = found
        if plain or isinstance(aggregate, Additive):
            sums.add_(its_sum)
        else:
            new = torch.maximum(largest, its_largest)
            finite = new.masked_fill(new == -math.inf, 0.0)  # no rival seen yet
            sums.mul_((largest - finite).exp()).add_(its_sum * (its_largest - finite).exp())
            largest = new
        if want_total:
            total.add_(its_total)
        if hardest:
            torch.maximum(top, its_top, out=top)

    in_order(len(blocks), threads_for(f.device, len(blocks)), part, add)
    if not isinstance(aggregate, Additive):
        sums = largest.masked_fill(largest == -math.inf, 0.0) + sums.log()
    rivals = sums.to(f.dtype)
    rows = weight.index_select(0, local.clamp(min=0).flatten()).to(f.dtype)
    rows = (unit(rows) if unit_weight else rows).view(*local.shape, f.shape[1])
    return rows, rivals, total.to(f.dtype), top, norms, torch.tensor(plain), exps


@forward.register_fake
def _(f, weight, bias, local, unit_weight, want_total, hardest, chunk, kept, *_rest):  # type: ignore[no-untyped-def]
    N = f.shape[0]
    return (
        f.new_empty(*local.shape, f.shape[1]),
        f.new_empty(N),
        f.new_empty(f.shape[1] if want_total else 0),
        f.new_empty(N if hardest else 0),
        f.new_empty(weight.shape[0] if unit_weight else 0),
        torch.empty((), dtype=torch.bool),
        f.new_empty(N * kept),
    )


@torch.library.custom_op("hypermargin::chunked_backward", mutates_args=())
def backward(
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
    by_total: Tensor | None,
    unit_weight: bool,
    chunk: int,
    kept: int,
    operands: str,
    rule: str,
    pool: str,
    length: Tensor | None,
    threshold: Tensor | None,
    need_f: bool,
    need_weight: bool,
    need_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return df, dW, db and the gradient by |f|; those not needed are empty."""
    (N, d), C = f.shape, weight.shape[0]
    df = torch.zeros_like(f) if need_f else f.new_empty(0)
    dW = torch.empty_like(weight) if need_weight else weight.new_empty(0)
    db = torch.zeros_like(bias) if bias is not None and need_bias else f.new_empty(0)
    at_rows, of_classes = rule_at_rows(rule, length, threshold), Pool(pool, local, length)
    aggregate = at_rows.rule.aggregate
    by_length = f.new_zeros(0 if length is None else N, 1)
    without_maximum = bool(plain)
    no_rivals = rivals == -math.inf  # never with a sum
    shift = rivals.masked_fill(no_rivals, math.inf)[:, None]
    # P·factor is the gradient of z; where no maximum was subtracted from z, the factor includes exp(−R).
    factor = by_rivals.masked_fill(no_rivals, 0.0)[:, None]
    if without_maximum:
        factor = factor * (-shift).exp()
    weighted_f = factor * f
    if f.device.type == "cpu":
        # Denormal numbers are very slow on the CPU, as in _exp.
        weighted_f = weighted_f.masked_fill(weighted_f.abs() < 100 * torch.finfo(f.dtype).tiny, 0.0)
    flat_rows, flat_local = by_rows.reshape(-1, d), local.flatten()
    kind = _operand_dtype(f, operands)
    by_kind = torch.bfloat16 if kind == torch.float16 else kind  # P is small: it needs bfloat16's range
    buffers, blocks = _Buffers(f, N * min(chunk, C)), _blocks(C, chunk)

    def part(number: int) -> tuple[Tensor, Tensor]:
        """Write dW and db of one block and return its parts of df and of the gradient by |f|."""
        block, columns = blocks[number], of_classes.columns(blocks[number])
        size, buffer = block.stop - block.start, buffers.take()
        w, inverse = _block(weight[block], norms[block] if unit_weight else None, kind)
        P, its_df, its_length = buffer[: N * size].view(N, size), df, by_length
        if without_maximum and block.stop <= kept:
            P.copy_(exps[N * block.start : N * block.stop].view(N, size))
        else:
            P = _product(f, w.T, P)
            if inverse is not None:
                P *= inverse
            by_row, z = P, of_classes.score(P)
            P = at_rows.rho(z)
            if bias is not None:
                P += bias[columns]
            if isinstance(aggregate, Additive):
                P = aggregate.gradient(P, rivals)
            else:
                P = P.exp_() if without_maximum else _exp(P.sub_(shift))
            _mask_labels(P, of_classes.labels, columns, 0.0)
        if need_bias and bias is not None:
            db[columns] = (factor.squeeze(1) @ P).to(bias.dtype)
        if not at_rows.rule.is_identity:
            its_length = (P * at_rows.slope_by_length(z)).sum(1, keepdim=True)
            P *= at_rows.slope(z)
        if pool:
            more = of_classes.by_length(P, by_row)
            its_length = its_length if more is None else more if at_rows.rule.is_identity else its_length + more
            P = of_classes.spread(P, by_row)
        if inverse is not None:
            P *= inverse
        P = P.to(by_kind)
        if need_f:
            its_df = _product(P, w.to(by_kind), torch.empty_like(f))
        if need_weight:
            in_place = by_kind == f.dtype == dW.dtype
            G = _product(P.T, weighted_f.to(by_kind), dW[block] if in_place else f.new_empty(size, d))
            places = flat_local - block.start
            here = ((places >= 0) & (places < size)).to(f.dtype)
            places = places.clamp(0, size - 1)
            G.index_add_(0, places, flat_rows * (here if inverse is None else here * inverse[places])[:, None])
            if by_total is not None:
                G += by_total if inverse is None else torch.outer(inverse, by_total)
            if unit_weight:  # remove the part along ŵ, which would only change |W_j|: G − ŵ⟨ŵ, G⟩
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
        buffers.give_back(buffer)
        return its_df, its_length

    def add(found: tuple[Tensor, Tensor]) -> None:
        if need_f:
            df.add_(found[0])
        if length is not None:
            by_length.add_(found[1])

    in_order(len(blocks), threads_for(f.device, len(blocks)), part, add)
    if need_f:
        df *= factor
    return df, dW, db, by_length * factor if length is not None else by_length


@backward.register_fake
def _(f, weight, bias, *rest):  # type: ignore[no-untyped-def]
    length = rest[-5]
    return *empty_gradients(f, weight, bias, *rest[-3:]), f.new_empty(0 if length is None else f.shape[0], 1)


def empty_gradients(
    f: Tensor, weight: Tensor, bias: Tensor | None, need_f: bool, need_weight: bool, need_bias: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return uninitialised tensors of the shapes of df, dW and db; those not needed are empty."""
    return (
        torch.empty_like(f) if need_f else f.new_empty(0),
        torch.empty_like(weight) if need_weight else weight.new_empty(0),
        torch.empty_like(bias) if need_bias and bias is not None else f.new_empty(0),
    )
