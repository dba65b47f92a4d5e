"""The short way: a last layer that returns cosines, and a loss that puts the margin on the label's."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from hypermargin.classic import CLASSIC
from hypermargin.integrations import _formula as formula
from hypermargin.integrations.keras._ops import OPS


def wide_dtype(given: Any) -> str:
    """Return the dtype to compute in: float64 if that is the policy's or the one given, else float32.

    Under a mixed policy a cosine of 8 or 11 bits would lose the angle, so what follows the features is float32.
    """
    policy = keras.dtype_policies.get(given or keras.config.dtype_policy())
    if given is not None and policy.compute_dtype not in ("float32", "float64"):
        raise ValueError(f"dtype must be 'float32' or 'float64', whatever the features have; got {policy.name!r}.")
    return "float64" if policy.variable_dtype == "float64" else "float32"


def whole_labels(labels: Any, rows: Any) -> Any:
    """Return labels (N,) as integers, given as (N,) or (N, 1)."""
    if getattr(labels.shape, "rank", 1) is None:  # TensorFlow, once it has seen both shapes
        return ops.cast(ops.reshape(labels, (-1,)), "int32")
    shape = tuple(labels.shape)
    if len(shape) == 2 and shape[1] == 1:
        labels = labels[:, 0]
    elif len(shape) != 1:
        raise ValueError(
            f"labels must be integers of shape (N,) or (N, 1), for outputs of shape {tuple(rows.shape)}; "
            f"got {shape}. One-hot rows become integers with keras.ops.argmax(labels, axis=-1)."
        )
    return ops.cast(labels, "int32")


@keras.saving.register_keras_serializable("hypermargin")
class CosineDense(keras.layers.Layer):
    """A dense layer without bias whose outputs are cosines: the directions of features and of kernel columns.

    The kernel is (dim, units), as that of `keras.layers.Dense`. The outputs are float32 under every mixed policy.
    """

    def __init__(
        self,
        units: int,
        *,
        kernel_initializer: Any = "glorot_uniform",
        kernel_regularizer: Any = None,
        dtype: Any = None,
        **options: Any,
    ) -> None:
        formula.whole("units", units)
        super().__init__(dtype=wide_dtype(dtype), **options)
        self.units = units
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)

    def build(self, input_shape: Any) -> None:
        """Make the kernel."""
        self.kernel = self.add_weight(
            name="kernel", shape=(input_shape[-1], self.units), initializer=self.kernel_initializer,
            regularizer=self.kernel_regularizer,
        )  # fmt: skip

    def call(self, features: Any) -> Any:
        """Return the cosines (N, units) between features and classes."""
        columns, _ = formula.polar(OPS, ops.transpose(ops.convert_to_tensor(self.kernel)))
        return OPS.matmul(formula.polar(OPS, features)[0], ops.transpose(columns))

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Return the shape of the cosines."""
        return (*input_shape[:-1], self.units)

    def get_config(self) -> dict[str, Any]:
        """Return what makes such a layer again."""
        return super().get_config() | {
            "units": self.units,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
        }


@keras.saving.register_keras_serializable("hypermargin")
class MarginLoss(keras.losses.Loss):
    """The loss of a margin head from cosines (N, C), as `CosineDense` returns them, and integer labels.

        T = s·ψ(θ_y),     R = log Σ_{j≠y} exp(s·cos θ_j),     L = softplus(R − T)

    It is the cross-entropy of s·cos θ with ψ in the place of the label's cosine. Numbers that are not given (m;
    combined: m1, m2, m3; scale) are the paper's; beyond says what ψ is past π. λ ≥ 0 blends in the plain cosine.
    A row that holds a cosine beyond ±1, or a label that is no class, has a loss of NaN.

    The loss has no state: schedules, a learned scale and heads that keep a length are MarginModel's.
    """

    def __init__(
        self,
        head: str = "arcface",
        *,
        scale: float | None = None,
        lam: float = 0.0,
        reduction: str | None = "sum_over_batch_size",
        name: str = "margin_loss",
        dtype: Any = None,
        **numbers: Any,
    ) -> None:
        super().__init__(name=name, reduction=reduction, dtype=wide_dtype(dtype))
        self.psi = formula.margin(head, numbers)
        if not (CLASSIC[head].unit_features and CLASSIC[head].unit_weight):
            raise ValueError(
                f"{head} keeps the length of the features, which cosines do not have: use "
                f'MarginModel(backbone, MarginHead(classes, "{head}")).'
            )
        self.scale = CLASSIC[head].scale if scale is None else scale
        formula.number("scale", self.scale, positive=True)
        formula.number("lam", lam, positive=False)
        self.head, self.lam, self.numbers = head, lam, numbers

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Return the loss of every row, (N,)."""
        if len(y_pred.shape) != 2:
            raise ValueError(f"MarginLoss needs cosines of shape (N, C); got {tuple(y_pred.shape)}.")
        y = whole_labels(y_true, y_pred)
        usable, y = formula.usable_rows(OPS, y_pred, y, y_pred.shape[1], most=1.01)  # ±1 and rounding
        own = formula.only(OPS, usable, ops.take_along_axis(y_pred, y[:, None], axis=1))[:, 0]
        lift = self.psi.lift_of_cosine(OPS, own)
        rivals = ops.logsumexp(formula.rivals_of(OPS, self.scale * y_pred, y, usable), axis=-1)
        return formula.row_losses(OPS, rivals, self.scale * (own + lift / (1 + self.lam)), usable)

    def get_config(self) -> dict[str, Any]:
        """Return what makes such a loss again."""
        own = {"head": self.head, "scale": self.scale, "lam": self.lam, "dtype": self.dtype}
        return super().get_config() | own | self.numbers
