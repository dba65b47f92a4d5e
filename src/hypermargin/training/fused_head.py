"""The setting head_optimizer = fused-sgd: class weights that step within the backward, beside another optimiser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hypermargin.backends.fused import Triton, why_not
from hypermargin.head import MarginHead
from hypermargin.optim import FusedSGD, lay_out
from hypermargin.schedule import combined

if TYPE_CHECKING:
    from hypermargin.training.config import Config


def check_fused(config: Config, head: MarginHead, device: torch.device, world: int) -> None:
    """Raise ValueError where FusedSGD cannot train the head of these settings."""
    if reason := _why_not(config, head, device, world):
        raise ValueError(f"head_optimizer = fused-sgd {reason}.")


def _why_not(config: Config, head: MarginHead, device: torch.device, world: int) -> str:
    backend = head.settings.backend
    if config.sample_rate < 1:
        return (
            f"is for all classes, and sample_rate = {config.sample_rate:g}. Leave head_optimizer out: then "
            "optimizer changes the classes that take part"
        )
    if world > 1:
        return f"trains in one process, and there are {world}. Leave head_optimizer out, or start one"
    if config.accumulate > 1:
        return (
            f"changes the class weights at every batch, and accumulate = {config.accumulate} would add up several. "
            "Set accumulate = 1, or leave head_optimizer out"
        )
    if not head.settings.view.is_identity:
        return f"changes the class rows themselves, and {config.head} has others in its loss. Leave it out"
    if config.precision == "float16":
        return (
            "steps before the scaler of precision = float16 can take its factor out of the gradient. Set "
            "precision = bfloat16, which needs none, or leave head_optimizer out"
        )
    if backend != "auto" and backend != "triton" and not isinstance(backend, Triton):
        return f"is part of the backend triton, and set has backend = {backend!r}. Leave one of them out"
    if reason := why_not(device):
        return f"is part of the backend triton, which cannot run on device = {device}: {reason}"
    if isinstance(combined(head.schedules, training=True).penalty, Tensor):
        return (
            "sees the gradient of the loss alone, and schedule has a penalty on the class weights (alternate). "
            "Leave one of them out"
        )
    return ""


class WithFusedHead(torch.optim.Optimizer):
    """An optimiser and FusedSGD as one, which share groups and state: one state_dict, one rate to set."""

    def __init__(self, others: torch.optim.Optimizer | None, head: FusedSGD) -> None:
        self.members = [each for each in (others, head) if each is not None]
        super().__init__([group for each in self.members for group in each.param_groups], {})
        self._share()

    def _share(self) -> None:
        start = 0
        for each in self.members:
            stop = start + len(each.param_groups)
            each.__setstate__({"state": self.state, "param_groups": self.param_groups[start:stop]})
            start = stop

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take the step of the others, and say that the head's is over."""
        for each in self.members:
            each.step()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a saved state into both."""
        super().load_state_dict(state_dict)
        lay_out(self)
        self._share()
