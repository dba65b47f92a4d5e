"""A model of a backbone and a margin head, trained by fit(x, labels) and used without labels."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from hypermargin.integrations.keras.head import MarginHead

FEATURES = "_hypermargin_features"  # where the logits of a call carry the features that they were made of


@keras.saving.register_keras_serializable("hypermargin")
class MarginModel(keras.Model):
    """A classifier whose head puts a margin on the label's class in training: `fit(x, labels)`, `predict(x)`.

        model = MarginModel(backbone, MarginHead(10, "arcface", m=0.3, scale=16.0))
        model.compile("adam", metrics=["accuracy"])

    The head is the loss, so compile takes none. `model(x)` are logits without any margin; `model.backbone(x)` are
    the embeddings. The loss of `evaluate` has the margin of the last training step; metrics never have one.

    With `MarginHead(block=…)` the training call returns features, since the logits are not held; the accuracy is
    then the model's own, and compile takes no metrics.
    """

    def __init__(self, backbone: Any, head: MarginHead, **options: Any) -> None:
        super().__init__(**options)
        if not isinstance(head, MarginHead):
            raise TypeError(f"head must be a MarginHead such as MarginHead(10, 'arcface'); got {head!r}.")
        self.backbone, self.head = backbone, head
        self.reduction = _Given(name="given", dtype=head.compute_dtype)
        self.accuracy = None if head.block is None else keras.metrics.Mean(name="accuracy")

    def build(self, input_shape: Any) -> None:
        """Build backbone and head."""
        # A symbolic call builds any backbone, a subclass of keras.Model too, which cannot say its output's shape.
        x = keras.tree.map_shape_structure(lambda shape: keras.Input(batch_shape=shape), input_shape)
        features = self.backbone(x)
        if not self.head.built:
            self.head.build(features.shape)

    def call(self, x: Any, training: bool = False) -> Any:
        """Return logits without any margin; in training with blocks, the features."""
        features = self.backbone(x, training=training)
        if training and self.head.block is not None:
            return features
        logits = self.head(features, training=training)
        with contextlib.suppress(AttributeError):  # else compute_loss asks the backbone again
            setattr(logits, FEATURES, features)
        return logits

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, training: bool = True
    ) -> Any:
        """Return the mean loss of the head, and what layers added."""
        if self._compile_loss is not None:
            raise ValueError("the head of a MarginModel is its loss: call compile without loss=.")
        if y is None:
            raise ValueError("there are no labels: call fit(x, labels) or evaluate(x, labels).")
        if training and self.head.block is not None:
            features, logits = y_pred, None
        else:
            features, logits = getattr(y_pred, FEATURES, None), y_pred
            features = self.backbone(x, training=training) if features is None else features
        found = self.head.losses_of(features, y, training, logits)
        if self.accuracy is not None:
            self.accuracy.update_state(found.right, sample_weight)
        loss = self.reduction(found.rows, found.rows, sample_weight)
        for more in self.losses:
            loss = loss + ops.cast(ops.sum(more), loss.dtype)
        return loss

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        """Return the metrics of compile, from logits; with blocks, the model's own accuracy."""
        if self.accuracy is None:
            return super().compute_metrics(x, y, y_pred, sample_weight)
        if self._compile_metrics is not None:
            raise ValueError(
                "with block= there are no logits in training, so compile takes no metrics=; "
                "the accuracy is reported anyway."
            )
        return self.get_metrics_result()

    def get_config(self) -> dict[str, Any]:
        """Return backbone and head, each as its own config."""
        parts = {"backbone": self.backbone, "head": self.head}
        return super().get_config() | {
            name: keras.saving.serialize_keras_object(part) for name, part in parts.items()
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Any = None) -> MarginModel:
        """Return a model from what `get_config` returned."""
        config = dict(config)
        for name in ("backbone", "head"):
            config[name] = keras.saving.deserialize_keras_object(config[name], custom_objects=custom_objects)
        return cls(**config)


class _Given(keras.losses.Loss):
    """The mean of losses that are there, as Keras takes it: with sample weights, masks and distribution."""

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Return the losses."""
        return y_pred
