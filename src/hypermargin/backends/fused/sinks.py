"""What may take the weight's gradient in place of autograd: an optimiser, or Megatron's `main_grad`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from hypermargin.backends.fused.launch import Update
    from hypermargin.optim import FusedSGD


def sink_of(weight: Tensor, update: FusedSGD | None) -> FusedSGD | Tensor | None:
    """Return the optimiser or tensor that takes the weight's gradient; None if autograd does."""
    sink = update if update is not None else getattr(weight, "main_grad", None)
    if sink is None:
        return None
    if isinstance(sink, Tensor):
        if not (
            sink.shape == weight.shape
            and sink.dtype == torch.float32
            and sink.device == weight.device
            and sink.is_contiguous()
        ):
            raise ValueError(
                f"weight.main_grad must be contiguous, float32, on {weight.device}, of the weight's shape "
                f"{tuple(weight.shape)}; got {sink.dtype}, {sink.device}, {tuple(sink.shape)}, strides "
                f"{sink.stride()}."
            )
    elif sink.param_groups[0]["params"][0] is not weight:
        raise ValueError(
            "Triton(update=FusedSGD(…)) belongs to another weight. Make a new one for the head as it is now; "
            "for a sample of the classes, SampledSGD is the optimiser."
        )
    if torch.compiler.is_compiling():
        raise RuntimeError(
            "FusedSGD and weight.main_grad work in eager mode and CUDA graphs, not under torch.compile."
        )
    if not weight.is_contiguous():
        raise ValueError("FusedSGD and weight.main_grad need a contiguous weight; call .contiguous() on it first.")
    return sink


@contextmanager
def updating(sink: FusedSGD | Tensor, weight: Tensor) -> Iterator[Update]:
    """Give a backward what it should do with the weight's gradient, and note afterwards that it was done."""
    from hypermargin.backends.fused import launch

    if isinstance(sink, Tensor):
        update = launch.Update(launch.ADD, sink)
        yield update
    else:
        sink.refuse_a_second()
        update = launch.Update(launch.SGD, weight, **sink.begin())
        yield update
    torch.autograd.graph.increment_version(update.out)
    if not isinstance(sink, Tensor):
        sink.wait_for_step()
