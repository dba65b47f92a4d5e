"""The collectives of a sharded head, and their gradients. Nothing here depends on classes or margins.

A quantity is *partial* where every rank holds a share of a sum, and *replicated* where all ranks hold the same
value. Each autograd node below turns one kind into the other, and its backward turns the gradients back:

    gather_rows   own rows → all rows, from which each rank makes a partial result: gradients are summed over ranks
    sum_partial   partial → replicated: the gradient is replicated too, and passes through unchanged
    spread        replicated → partial results: gradients are summed over ranks, so every rank gets the full one
    own_rows      replicated → own rows: the gradients of all ranks' rows are gathered
    join          own rows → all rows, used alike by all ranks: the gradient is that of the own rows

A backward that contains a collective must run on every rank. Autograd runs nodes in the reverse order of their
creation, so the order is the same on all ranks. Ranks may have different numbers of rows: smaller ones are padded
to the largest for sending.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

Group = dist.ProcessGroup | None
# torch 2.13 renamed both.
_all_gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Rows(NamedTuple):
    """How many rows each rank has, and which rank this is."""

    sizes: Sequence[int]
    rank: int
    group: Group
    factor: float = 1.0  # multiplies the gradients that go back to the rows

    @property
    def own(self) -> slice:
        """The slice of this rank's rows among the rows of all ranks."""
        start = sum(self.sizes[: self.rank])
        return slice(start, start + self.sizes[self.rank])

    def stacked(self, x: Tensor) -> Tensor:
        """Return the rows of all ranks, (ranks, largest, …), each rank's padded with zeros to the largest."""
        world, largest = len(self.sizes), max(self.sizes)
        if x.shape[0] < largest:
            x = torch.cat((x, x.new_zeros(largest - x.shape[0], *x.shape[1:])))
        out = x.new_empty(world * largest, *x.shape[1:])
        if out.numel():
            _run(_all_gather, out, x.contiguous(), group=self.group)
        return out.unflatten(0, (world, largest)) if largest else out.new_empty(world, 0, *x.shape[1:])

    def collected(self, x: Tensor) -> Tensor:
        """Return the rows of all ranks, in the order of the ranks, from this rank's rows."""
        if len(self.sizes) == 1:
            return x
        stack = self.stacked(x)
        if min(self.sizes) == max(self.sizes):
            return stack.flatten(0, 1)
        return torch.cat([part[:size] for part, size in zip(stack, self.sizes, strict=True)])

    def summed(self, x: Tensor) -> Tensor:
        """Return the sums over the ranks for this rank's rows, from partial values of all rows."""
        if len(self.sizes) == 1 or not x.numel():
            return x
        if not scatters(x, self.group):
            return all_reduce(x, "SUM", self.group)[self.own]
        largest = max(self.sizes)
        if min(self.sizes) < largest:
            parts = x.split(list(self.sizes))
            x = torch.cat([torch.cat((p, p.new_zeros(largest - p.shape[0], *p.shape[1:]))) for p in parts])
        out = x.new_empty(largest, *x.shape[1:])
        _run(_reduce_scatter, out, x.contiguous(), group=self.group)
        return out[: self.sizes[self.rank]]


def scatters(x: Tensor, group: Group) -> bool:
    """Return whether to use reduce-scatter: with NCCL. With gloo only some versions of torch have it."""
    return x.is_cuda and "cuda:nccl" in str(dist.get_backend_config(group))


def _run(call: Callable[..., Any], *tensors: Tensor, **options: Any) -> None:
    try:
        call(*tensors, **options)
    except RuntimeError as error:
        raise RuntimeError(
            f"a rank of the process group did not come to {call.__name__}: it has ended, or is somewhere else. "
            f"Look for the first error in the outputs of all ranks, and resume from the last checkpoint. ({error})"
        ) from error


def all_reduce(x: Tensor, how: str, group: Group) -> Tensor:
    """Return the sum ("SUM") or the maximum ("MAX") of `x` over the ranks, as a copy without gradient."""
    out = x.detach().clone(memory_format=torch.contiguous_format)
    if out.numel():
        _run(dist.all_reduce, out, op=getattr(dist.ReduceOp, how), group=group)
    return out


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype, rows: Rows) -> Tensor:
        ctx.rows, ctx.dtype = rows, x.dtype
        return rows.collected(x).to(dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        limit = torch.finfo(ctx.dtype).max
        mine = ctx.rows.summed(grad) * ctx.rows.factor  # summed in the wide dtype, then rounded once
        return mine.clamp(-limit, limit).to(ctx.dtype), None, None


class _SumPartial(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        return all_reduce(x, "SUM", group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return all_reduce(grad, "SUM", ctx.group), None


class _OwnRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Rows) -> Tensor:
        ctx.rows = rows
        return x[rows.own].clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.rows.collected(grad), None


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Rows) -> Tensor:
        ctx.rows = rows
        return rows.collected(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad[ctx.rows.own], None


def gather_rows(x: Tensor, rows: Rows, dtype: torch.dtype | None = None) -> Tensor:
    """Return the rows of all ranks, in `dtype`. Gradients are summed over the ranks in it, times `rows.factor`."""
    return _of(_GatherRows, x, x.dtype if dtype is None else dtype, rows)


def sum_partial(x: Tensor, group: Group) -> Tensor:
    """Return the sum over the ranks, which all ranks go on to use in the same way."""
    return _of(_SumPartial, x, group)


def spread(x: Tensor, group: Group) -> Tensor:
    """Return `x`, the same on all ranks, for use in partial results; its gradients are summed over the ranks."""
    return _of(_Spread, x, group)


def own_rows(x: Tensor, rows: Rows) -> Tensor:
    """Return this rank's rows of a tensor that all ranks hold alike."""
    return _of(_OwnRows, x, rows)


def join(x: Tensor, rows: Rows) -> Tensor:
    """Return the rows of all ranks, which all ranks go on to use in the same way."""
    return _of(_Join, x, rows)


def _of(node: type[torch.autograd.Function], *inputs: Any) -> Tensor:
    out: Tensor = node.apply(*inputs)
    return out
