"""Schedules of λ and of the margin. Any schedule of Keras's own can be given in their place, and for the scale."""

from __future__ import annotations

import math
from typing import Any

import keras
from keras import ops
from keras.optimizers.schedules import LearningRateSchedule

from hypermargin.integrations import _formula as formula


def at(value: Any, step: Any, dtype: str) -> Any:
    """Return a number, or what a schedule has for the step, counted from 0."""
    return ops.cast(value(step), dtype) if isinstance(value, LearningRateSchedule) else value


@keras.saving.register_keras_serializable("hypermargin")
class LambdaAnnealing(LearningRateSchedule):
    """λ(it) = max(floor, base·(1 + gamma·it)^−power), it = step + 1: from plain softmax towards the margin.

    Defaults are SphereFace's; L-Softmax used base 1000, gamma 2.5e-5, power 35, floor 0 on MNIST.
    """

    def __init__(self, base: float = 1000.0, gamma: float = 0.12, power: float = 1.0, floor: float = 5.0) -> None:
        for name, value in (("base", base), ("gamma", gamma), ("power", power), ("floor", floor)):
            if not 0 <= value < math.inf:
                raise ValueError(f"LambdaAnnealing({name}=…) must lie in [0, inf); got {value!r}.")
        self.base, self.gamma, self.power, self.floor = base, gamma, power, floor

    def __call__(self, step: Any) -> Any:
        """Return λ in the step, counted from 0."""
        it = ops.cast(step, "float32") + 1
        return ops.maximum(self.base * (1 + self.gamma * it) ** -self.power, self.floor)

    def get_config(self) -> dict[str, Any]:
        """Return base, gamma, power and floor."""
        return {"base": self.base, "gamma": self.gamma, "power": self.power, "floor": self.floor}


@keras.saving.register_keras_serializable("hypermargin")
class MarginWarmup(LearningRateSchedule):
    """The share of the margin in force: from 0 to 1 over `steps` training steps, after `start` steps without any.

    With t = clip((it − start)/steps, 0, 1), it = step + 1: linear t; cosine (1 − cos πt)/2;
    exponential (1 − 10^−3t)/(1 − 10^−3), quick at first.
    """

    def __init__(self, steps: int, start: int = 0, shape: str = "linear") -> None:
        formula.one_of("MarginWarmup(shape=…)", shape, ("linear", "cosine", "exponential"))
        if steps < 1 or start < 0:
            raise ValueError(
                f"MarginWarmup needs steps of at least 1 and start of at least 0; got {steps}, {start}."
            )
        self.steps, self.start, self.shape = steps, start, shape

    def __call__(self, step: Any) -> Any:
        """Return the share in the step, counted from 0."""
        t = ops.clip((ops.cast(step, "float32") + 1 - self.start) / self.steps, 0.0, 1.0)
        if self.shape == "cosine":
            return (1 - ops.cos(math.pi * t)) / 2
        return (1 - 10 ** (-3 * t)) / (1 - 10**-3) if self.shape == "exponential" else t

    def get_config(self) -> dict[str, Any]:
        """Return steps, start and shape."""
        return {"steps": self.steps, "start": self.start, "shape": self.shape}
