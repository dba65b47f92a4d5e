"""The layer that holds the classes, with the state of the schedules, and gives logits or losses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops
from keras.optimizers.schedules import LearningRateSchedule

from hypermargin.classic import CLASSIC
from hypermargin.integrations import _formula as formula
from hypermargin.integrations.keras._ops import OPS
from hypermargin.integrations.keras._rivals import all_logits, check_block, rivals
from hypermargin.integrations.keras.loss import whole_labels, wide_dtype
from hypermargin.integrations.keras.schedules import LambdaAnnealing, MarginWarmup, at

SERIALIZED = ("scale", "lam", "strength", "weight_initializer", "weight_regularizer")


class Losses(NamedTuple):
    """What the head finds of a batch: the loss of every row, and whether the label's plain logit is the largest."""

    rows: Any  # (N,)
    right: Any  # (N,)  1 or 0


@keras.saving.register_keras_serializable("hypermargin")
class MarginHead(keras.layers.Layer):
    """A head of the classic family: `head(features)` are logits without a margin, `head(features, labels)` losses.

    - classes, head: how many, and a name such as "arcface", "a-softmax", "l-softmax", "normface", "combined"
    - m (combined: m1, m2, m3), beyond, scale, lam: the paper's unless given; lam=0 is the bare margin
    - strength: the share of the margin that is in force
    - block: classes to compute with at a time in training, so that N×C numbers are never held; None is all.
      On the JAX and PyTorch backends.

    scale, lam and strength take a number or a schedule: `MarginWarmup(1000)`, `LambdaAnnealing()`, or any of
    `keras.optimizers.schedules`. The step they go by is saved with the layer, and advances at each training call
    with labels. The weight is (classes, dim): the transpose of a Dense kernel.
    """

    def __init__(
        self,
        classes: int,
        head: str = "arcface",
        *,
        scale: Any = None,
        lam: Any = None,
        strength: Any = 1.0,
        learn_scale: bool | None = None,
        scale_floor: float | None = None,
        unit_features: bool | None = None,
        unit_weight: bool | None = None,
        use_bias: bool | None = None,
        block: int | None = None,
        weight_initializer: Any = None,
        weight_regularizer: Any = None,
        dtype: Any = None,
        name: str | None = None,
        trainable: bool = True,
        **numbers: Any,
    ) -> None:
        super().__init__(dtype=wide_dtype(dtype), name=name, trainable=trainable)
        self.psi = formula.margin(head, numbers)
        paper = CLASSIC[head]
        self.classes, self.head, self.numbers, self.block = classes, head, numbers, check_block(block)
        self.learn_scale = paper.learn_scale and scale is None if learn_scale is None else learn_scale
        self.scale_floor = (paper.scale_floor or 1.0) if scale_floor is None else scale_floor
        self.unit_features = paper.unit_features if unit_features is None else unit_features
        self.unit_weight = paper.unit_weight if unit_weight is None else unit_weight
        self.use_bias = paper.bias if use_bias is None else use_bias
        self.scale, self.strength = paper.scale if scale is None else scale, strength
        if lam is None:
            lam = LambdaAnnealing(*paper.annealing) if paper.annealing else 0.0
        self.lam = lam
        self.weight_initializer = keras.initializers.get(weight_initializer)
        self.weight_regularizer = keras.regularizers.get(weight_regularizer)
        self._check()

    def _check(self) -> None:
        formula.whole("classes", self.classes)
        for name in ("scale", "lam", "strength"):
            value = getattr(self, name)
            if not isinstance(value, LearningRateSchedule):
                instead = " or a schedule such as MarginWarmup(1000)"
                formula.number(name, value, positive=name == "scale", instead=instead)
        if self.learn_scale and isinstance(self.scale, LearningRateSchedule):
            raise ValueError("scale is either learned or a schedule's; give one of the two.")

    def build(self, input_shape: Any) -> None:
        """Make weight, bias, a learned scale, and the number of steps done."""
        dim = input_shape[-1]
        first = self.weight_initializer or keras.initializers.RandomNormal(stddev=dim**-0.5)
        self.weight = self.add_weight(
            name="weight", shape=(self.classes, dim), initializer=first, regularizer=self.weight_regularizer
        )
        self.bias = (
            self.add_weight(name="bias", shape=(self.classes,), initializer="zeros") if self.use_bias else None
        )
        self.learned_scale = None
        if self.learn_scale:
            self.learned_scale = self.add_weight(
                name="scale", shape=(), initializer=keras.initializers.Constant(self.scale),
                constraint=AtLeast(self.scale_floor),
            )  # fmt: skip
        self.step = self.add_weight(name="step", shape=(), initializer="zeros", dtype="int32", trainable=False)

    def call(self, features: Any, labels: Any = None, training: bool = False) -> Any:
        """Return logits (N, C) without any margin, or with labels the loss of every row, (N,)."""
        return (
            self.logits(features, training) if labels is None else self.losses_of(features, labels, training).rows
        )

    def logits(self, features: Any, training: bool = False) -> Any:
        """Return s·cos θ_j, times |x| and |W_j| where not normalised, plus bias."""
        x = ops.cast(features, self.compute_dtype)
        rows = formula.scaled_rows(OPS, x, self._scale(training), self.unit_features)
        weight, bias = self._arrays()
        return all_logits(rows.f, weight, bias, self.unit_weight)

    def losses_of(self, features: Any, labels: Any, training: bool = False, logits: Any = None) -> Losses:
        """Return the losses of a batch. `logits`, if they are there already, save a product."""
        if len(features.shape) != 2:
            raise ValueError(f"features must be (N, dim), one row per label; got {tuple(features.shape)}.")
        y = whole_labels(labels, features)
        x = ops.cast(features, self.compute_dtype)
        usable, y = formula.usable_rows(OPS, x, y, self.classes)
        rows = formula.scaled_rows(OPS, formula.only(OPS, usable, x), self._scale(training), self.unit_features)
        weight, bias = self._arrays()
        found = rivals(rows.f, weight, y, bias, self.unit_weight, self.block, logits)
        psi = self.psi.at_strength(self._now("strength", training))
        own = formula.target(OPS, rows, found.own, self.unit_weight, psi, self._now("lam", training))
        plain = ops.sum(rows.f * found.own, axis=-1)
        if bias is not None:
            of_label = ops.take(bias, y, axis=0)
            own, plain = own + of_label, plain + of_label
        right = ops.cast(ops.logical_and(plain > found.hardest, usable), self.compute_dtype)
        losses = Losses(formula.row_losses(OPS, found.rivals, own, usable), right)
        if training:
            self.step.assign(self.step + 1)
        return losses

    def _now(self, name: str, training: bool) -> Any:
        """Return the number, or the schedule's in the step under way; in evaluation, in the last step done."""
        value = getattr(self, name)
        if not isinstance(value, LearningRateSchedule):
            return value
        done = ops.convert_to_tensor(self.step)
        return at(value, done if training else ops.maximum(done - 1, 0), self.compute_dtype)

    def _arrays(self) -> tuple[Any, Any]:
        bias = None if self.bias is None else ops.convert_to_tensor(self.bias)
        return ops.convert_to_tensor(self.weight), bias

    def _scale(self, training: bool) -> Any:
        if self.learned_scale is not None:
            return ops.convert_to_tensor(self.learned_scale)
        return self._now("scale", training)

    def compute_output_shape(self, features_shape: Any, labels_shape: Any = None) -> Any:
        """Return the shape of the logits, or of the losses."""
        return (*features_shape[:-1], self.classes) if labels_shape is None else tuple(features_shape[:-1])

    def get_config(self) -> dict[str, Any]:
        """Return what makes such a layer again, every setting in full."""
        plain = (
            "classes",
            "head",
            "learn_scale",
            "scale_floor",
            "unit_features",
            "unit_weight",
            "use_bias",
            "block",
        )
        config = super().get_config() | {name: getattr(self, name) for name in plain} | dict(self.numbers)
        return config | {name: keras.saving.serialize_keras_object(getattr(self, name)) for name in SERIALIZED}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> MarginHead:
        """Return a layer from what `get_config` returned."""
        config = dict(config)
        for name in SERIALIZED:
            config[name] = keras.saving.deserialize_keras_object(config[name])
        return cls(**config)

    def torch_state(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the state_dict of `hypermargin.create_head(head, dim, classes)`, as arrays.

        LambdaAnnealing and MarginWarmup have their steps in it, for schedule=[LambdaAnnealing(…), MarginWarmup(…)].

        head.load_state_dict({name: torch.from_numpy(array) for name, array in layer.torch_state().items()})
        """
        scale = at(self._scale(False), 0, self.compute_dtype)
        state = {"weight": self.weight, "scale": ops.cast(scale, "float32")}
        if self.bias is not None:
            state["bias"] = self.bias
        both_have = (isinstance(self.lam, LambdaAnnealing), isinstance(self.strength, MarginWarmup))
        state |= {f"schedules.{i}.step": ops.cast(self.step, "int64") for i in range(sum(both_have))}
        return {name: np.array(ops.convert_to_numpy(value)) for name, value in state.items()}

    def load_torch_state(self, state: Mapping[str, Any]) -> None:
        """Take weight, bias, learned scale and step from the state_dict of a head of the library. Build first."""
        if not self.built:
            raise ValueError("this layer has no weight yet: call head.build((None, dim)) first.")
        wanted = {"weight": self.weight, "bias": self.bias, "scale": self.learned_scale}
        if missing := [name for name, variable in wanted.items() if variable is not None and name not in state]:
            raise ValueError(f"the state has no {', '.join(missing)}; it has {', '.join(state)}.")
        if state.get("bias") is not None and self.bias is None:
            raise ValueError("the state has a bias, and this head has none: make it with use_bias=True.")
        for name, variable in wanted.items():
            if variable is not None:
                variable.assign(np.asarray(state[name]))
        if "schedules.0.step" in state:
            self.step.assign(int(state["schedules.0.step"]))


@keras.saving.register_keras_serializable("hypermargin")
class AtLeast(keras.constraints.Constraint):
    """Keep a learned scale from falling below its floor: it is put back after each step of the optimiser."""

    def __init__(self, floor: float) -> None:
        self.floor = floor

    def __call__(self, value: Any) -> Any:
        """Return the value, or the floor where it is below."""
        return ops.maximum(value, self.floor)

    def get_config(self) -> dict[str, Any]:
        """Return the floor."""
        return {"floor": self.floor}
