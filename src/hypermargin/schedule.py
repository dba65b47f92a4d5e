"""Schedules of what changes in training: λ annealing, margin warm-up, alternation of angle and magnitude.

A schedule is a module with one buffer, `step`: the number of training steps done. It is in the head's
state_dict, so a resumed run goes on where it was. It advances by one at each training forward of the head, or,
after `schedule.drive(optimizer)`, at each step of the optimiser (gradient accumulation, skipped AMP steps).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hypermargin import checks
from hypermargin.numerics import snapshot


class Adjustment(NamedTuple):
    """What a schedule asks of the head at one step. Several combine: λ and penalties add, strengths multiply."""

    lam: Tensor | float = 0.0  # ψ ← (λ cos θ + ψ)/(1 + λ)
    strength: Tensor | float = 1.0  # m ← m₀ + strength·(m − m₀), m₀ the m of no margin
    penalty: Tensor | float = 0.0  # L ← L + penalty·mean_j |W_j|²


class Schedule(nn.Module):
    """The base class, which counts steps. Your own defines `at(it)` by torch operations on a float tensor."""

    step: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))
        self.driven = False

    def reset_parameters(self) -> None:
        """Count from the beginning."""
        self.step.zero_()

    def at(self, it: Tensor) -> Adjustment:
        """Return the adjustment in the `it`-th training step, counted from 1."""
        raise NotImplementedError(f"{type(self).__name__} must define at(it)")

    def forward(self, training: bool) -> Adjustment:
        """Return the adjustment of the step under way; in evaluation, that of the last step done."""
        done = snapshot(self.step)
        it = done + 1 if training else done.clamp(min=1)
        return self.at(it.to(torch.float32))

    def advance(self) -> None:
        """Count one training step as done."""
        self.step += 1

    def drive(self, optimizer: torch.optim.Optimizer) -> RemovableHandle:
        """Count the optimiser's steps instead of the head's training forwards. Return a handle to undo it.

        The hook is not saved: call this again after loading a pickled head or resuming a run.
        """
        self.driven = True

        def after_step(*_: Any) -> None:
            self.advance()

        return optimizer.register_step_post_hook(after_step)


def combined(schedules: Iterable[nn.Module], training: bool) -> Adjustment:
    """Return the adjustments of several schedules at this step, as one."""
    lam: Tensor | float = 0.0
    strength: Tensor | float = 1.0
    penalty: Tensor | float = 0.0
    for schedule in schedules:
        one: Adjustment = schedule(training)
        lam, strength, penalty = lam + one.lam, strength * one.strength, penalty + one.penalty
    return Adjustment(lam, strength, penalty)


def checked_schedules(schedule: Schedule | Sequence[Schedule] | None, unit_weight: bool) -> list[Schedule]:
    """Return the schedules given to a head, none, one or several; raise for one that it cannot follow."""
    found = [schedule] if isinstance(schedule, Schedule) else list(schedule or ())
    for each in found:
        checks.instance("schedule", each, Schedule, "schedule.MarginWarmup(steps=1000), or several")
        if unit_weight and isinstance(each, Alternation):
            raise ValueError(
                "schedule=Alternation(…) penalises |W|, which unit_weight=True takes out of the loss. "
                "Use it with unit_weight=False (l-softmax, softmax)."
            )
    return found


class LambdaAnnealing(Schedule):
    """λ(it) = max(floor, base·(1 + gamma·it)^−power), it = 1, 2, …: from plain softmax towards the margin.

    Defaults are SphereFace's; L-Softmax used base 1000, gamma 2.5e-5, power 35, floor 0 on MNIST.
    """

    def __init__(self, base: float = 1000.0, gamma: float = 0.12, power: float = 1.0, floor: float = 5.0) -> None:
        super().__init__()
        for name, value in (("base", base), ("gamma", gamma), ("power", power), ("floor", floor)):
            checks.in_range(f"LambdaAnnealing({name}=…)", value, 0.0, math.inf)
        self.base, self.gamma, self.power, self.floor = base, gamma, power, floor

    def at(self, it: Tensor) -> Adjustment:
        """Return λ = max(floor, base·(1 + gamma·it)^−power) of this step."""
        return Adjustment(lam=(self.base * (1 + self.gamma * it) ** -self.power).clamp(min=self.floor))

    def extra_repr(self) -> str:
        """Return base, gamma, power and floor for the module's repr."""
        return f"base={self.base:g}, gamma={self.gamma:g}, power={self.power:g}, floor={self.floor:g}"


class MarginWarmup(Schedule):
    """The margin grows from none to its full m over `steps` training steps, after `start` steps without it.

    With t = clamp((it − start)/steps, 0, 1): linear t; cosine (1 − cos πt)/2;
    exponential (1 − 10^−3t)/(1 − 10^−3), quick at first.
    """

    def __init__(self, steps: int, start: int = 0, shape: str = "linear") -> None:
        super().__init__()
        checks.count("MarginWarmup(steps=…)", steps)
        checks.count("MarginWarmup(start=…)", start, 0)
        checks.one_of("MarginWarmup(shape=…)", shape, ("linear", "cosine", "exponential"))
        self.steps, self.start, self.shape = steps, start, shape

    def at(self, it: Tensor) -> Adjustment:
        """Return the share of the margin that is in force at this step."""
        t = ((it - self.start) / self.steps).clamp(0.0, 1.0)
        if self.shape == "cosine":
            t = (1 - torch.cos(math.pi * t)) / 2
        elif self.shape == "exponential":
            t = (1 - 10 ** (-3 * t)) / (1 - 10**-3)
        return Adjustment(strength=t)

    def extra_repr(self) -> str:
        """Return the settings for the module's repr."""
        return f"steps={self.steps}, start={self.start}, shape={self.shape!r}"


class Alternation(Schedule):
    """Push the angle, then the magnitude, in turn, for heads whose weight is not normalised.

    For `angle_steps` the angular margin is in force; then for `magnitude_steps` there is none, and
    penalty·mean_j |W_j|² draws the class weights in, so that the next margin phase cannot be met by length alone.
    """

    def __init__(self, angle_steps: int, magnitude_steps: int, penalty: float = 0.01) -> None:
        super().__init__()
        checks.count("Alternation(angle_steps=…)", angle_steps)
        checks.count("Alternation(magnitude_steps=…)", magnitude_steps)
        checks.positive("Alternation(penalty=…)", penalty)
        self.angle_steps, self.magnitude_steps, self.penalty = angle_steps, magnitude_steps, penalty

    def at(self, it: Tensor) -> Adjustment:
        """Return the margin without the penalty, or the penalty without the margin, by the phase of this step."""
        angle = ((it - 1) % (self.angle_steps + self.magnitude_steps) < self.angle_steps).to(it.dtype)
        return Adjustment(strength=angle, penalty=self.penalty * (1 - angle))

    def extra_repr(self) -> str:
        """Return the settings for the module's repr."""
        return f"angle_steps={self.angle_steps}, magnitude_steps={self.magnitude_steps}, penalty={self.penalty:g}"
