"""Speaker toolkits: parts of SpeechBrain, WeSpeaker and 3D-Speaker made of heads of this library.

    SpeechBrain   `Loss` in place of LogSoftmaxWrapper(AdditiveAngularMargin(…)), from cosines;
                  `Classifier` and `ClassifierLoss` in place of both, which hold no N×C matrix in training
    WeSpeaker     `Projection`: projection(embeddings, labels) → (logits, loss), update(margin)
    3D-Speaker    `Loss` in place of ArcMarginLoss, with update(margin) for its MarginScheduler

Nothing is imported but torch: the toolkits make these objects from their YAML files and call them. Margins are as
in `create_head`, in radians where they are angles, as theirs are.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hypermargin import checks, margins
from hypermargin.family import create_head
from hypermargin.functional import margin_cross_entropy
from hypermargin.head import MarginHead
from hypermargin.margins import Margin, RowMargin
from hypermargin.rules import InterTopK

__all__ = ["Classifier", "ClassifierLoss", "Loss", "Projection"]


class Loss(nn.Module):
    """Cross-entropy with a margin, from cosines: `loss(cosines, labels)`, for a cosine classifier of the toolkit's.

        compute_cost: !new:hypermargin.integrations.speaker.Loss    # SpeechBrain
            margin: arcface
            m: 0.2
            scale: 30

    - margin: the name of a margin (`hypermargin.margins.names()`), or a margin
    - m, and what else the margin has: `beyond="linear"` is ArcFace as SpeechBrain has it, "continuous" as WeSpeaker
      and 3D-Speaker have it; the default, "smooth", is without their jump or kink

    Cosines are (N, C) or, in SpeechBrain, (N, 1, C), labels (N,) or (N, 1). They hold N×C numbers;
    `Projection` and `Classifier` do not.
    """

    def __init__(
        self, margin: str | Margin = "arcface", scale: float = 30.0, *, label_smoothing: float = 0.0, **fields: Any
    ) -> None:
        super().__init__()
        self.function = margins.get(margin)(**fields) if isinstance(margin, str) else margin
        self.scale, self.label_smoothing = float(scale), label_smoothing

    @property
    def margin(self) -> float:
        """The m of now, which a margin scheduler reads."""
        return _one_m(self.function)

    def update(self, margin: float = 0.2) -> None:
        """Set m, as a margin scheduler does at every step."""
        self.function = _with_m(self.function, margin)

    def forward(self, cosines: Tensor, labels: Tensor, length: Tensor | None = None) -> Tensor:
        """Return the mean loss; `length` is SpeechBrain's, and not needed for one label per utterance."""
        return margin_cross_entropy(
            cosines.flatten(0, -2), labels.flatten().long(), self.function, self.scale,
            label_smoothing=self.label_smoothing,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """Return margin and scale for the module's repr."""
        return f"{self.function}, scale={self.scale:g}"


class _Owner(nn.Module):
    """Holds a head; takes and gives the class weights of their classifiers, `weight` (classes·centers, dim)."""

    def __init__(self, head: str | MarginHead, dim: int, classes: int, settings: dict[str, Any]) -> None:
        super().__init__()
        self.head = create_head(head, dim, classes, **settings) if isinstance(head, str) else head

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        theirs = state_dict.pop(prefix + "weight", None)
        if theirs is not None:
            for key, own in self.head.state_dict().items():
                state_dict.setdefault(f"{prefix}head.{key}", own)
            state_dict[prefix + "head.weight"] = theirs
        super()._load_from_state_dict(state_dict, prefix, *others)

    def as_theirs(self) -> dict[str, Tensor]:
        """Return the state_dict of the toolkit's own classifier or projection with these class weights."""
        return {"weight": self.head.weight.detach().clone()}


class Projection(_Owner):
    """A projection of WeSpeaker: `projection(embeddings, labels)` returns (logits, loss).

        projection = Projection("arcface", 256, len(spk2id_dict), scale=32.0)    # for get_projection(…)
        model.add_module("projection", projection)

    - name, dim, classes and the rest: as in `create_head`, or a head
    - logits are without a margin and without gradient, for the accuracy that WeSpeaker shows at every step; with
      `logits=False` they are computed in evaluation alone, and training returns None in their place

    `update(margin)` is what its MarginScheduler calls. It is for heads whose m is one number that is the same for
    every row. A state_dict of theirs with `weight` is loaded.
    """

    def __init__(
        self, name: str | MarginHead, dim: int = 256, classes: int = 1000, *, logits: bool = True, **settings: Any
    ) -> None:
        super().__init__(name, dim, classes, settings)
        self.logits = logits
        rule, m = self.head.settings.rule, self.head.margin.m
        # As in WeSpeaker, the nearest rivals' m′ of inter-topk grows with m.
        self.share = rule.m_prime / m if isinstance(rule, InterTopK) and isinstance(m, float) and m else None

    @property
    def margin(self) -> float:
        """The m of now, which a margin scheduler reads."""
        return _one_m(self.head.margin)

    def update(self, margin: float = 0.2) -> None:
        """Set m, as a margin scheduler does at every step."""
        settings = self.head.settings
        if margin != self.head.margin.m:
            rule = settings.rule
            if self.share is not None and isinstance(rule, InterTopK):
                rule = dataclasses.replace(rule, m_prime=self.share * margin)
            changed = _with_m(settings.margin, margin)
            self.head.settings = dataclasses.replace(settings, margin=changed, rule=rule)

    def forward(self, embeddings: Tensor, labels: Tensor) -> tuple[Tensor | None, Tensor]:
        """Return logits (N, classes), or None, and the loss."""
        with torch.no_grad():
            logits = self.head.logits(embeddings) if self.logits or not self.training else None
        return logits, self.head(embeddings, labels)


class Classifier(_Owner):
    """A classifier for SpeechBrain that holds no N×C matrix in training, with `ClassifierLoss` as its loss.

        classifier: !new:hypermargin.integrations.speaker.Classifier
            input_size: 192
            out_neurons: 1211
            head: arcface
            m: 0.2
            scale: 30
        compute_cost: !new:hypermargin.integrations.speaker.ClassifierLoss
            classifier: !ref <classifier>

    In training it returns the embeddings as they came, and the loss computes with them and the class weights; in
    evaluation it returns logits (N, 1, C) without a margin. Put it among `modules`, so that it is trained. Not for
    DDP, which must see the weights at work in the classifier's own forward: take `Loss` there.
    """

    def __init__(
        self, input_size: int, out_neurons: int, head: str | MarginHead = "arcface", **settings: Any
    ) -> None:
        super().__init__(head, input_size, out_neurons, settings)

    def forward(self, embeddings: Tensor) -> Tensor:
        """Return the embeddings in training; in evaluation the logits (N, 1, C)."""
        return embeddings if self.training else self.head.logits(embeddings.flatten(0, -2)).unsqueeze(1)


class ClassifierLoss:
    """The loss of a `Classifier`, by what that returned: with the margin in training, without it in evaluation."""

    def __init__(self, classifier: Classifier) -> None:
        checks.instance("classifier", classifier, Classifier, "Classifier(192, 1211)")
        self.classifier = classifier

    def __call__(self, outputs: Tensor, labels: Tensor, length: Tensor | None = None) -> Tensor:
        """Return the mean loss of outputs (N, 1, …) and labels (N, 1)."""
        rows, labels = outputs.flatten(0, -2), labels.flatten().long()
        if self.classifier.training:
            loss: Tensor = self.classifier.head(rows, labels)
            return loss
        return F.cross_entropy(rows, labels)


def _one_m(margin: Margin) -> float:
    """Return the m of a margin that has one, for all rows."""
    if not isinstance(margin.m, float) or type(margin.row_margin()) is not RowMargin:
        raise ValueError(
            f"{margin} has no m that is one number for every row, which a margin scheduler could move."
        )
    return margin.m


def _with_m(margin: Margin, m: float) -> Margin:
    _one_m(margin)
    changed: Margin = dataclasses.replace(margin, m=float(m))  # type: ignore[type-var]
    return changed
