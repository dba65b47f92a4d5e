"""pytorch-metric-learning: heads of this library as losses of that one.

    from hypermargin.integrations.metric_learning import MarginLoss

    loss_func = MarginLoss("arcface", num_classes=1000, embedding_size=128, margin=28.6, scale=64)
    loss = loss_func(embeddings, labels, miner(embeddings, labels))

`ArcFaceLoss`, `CosFaceLoss`, `SphereFaceLoss`, `LargeMarginSoftmaxLoss` and `SubCenterArcFaceLoss` have the names,
arguments, defaults and results of theirs, so that only an import changes.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from hypermargin import checks
from hypermargin.centers import Centers
from hypermargin.family import create_head
from hypermargin.head import MarginHead
from hypermargin.heads.cleaning import dominant_centers
from hypermargin.heads.foreign import to_metric_learning
from hypermargin.integrations import missing
from hypermargin.margins import ArcFace, DynArcFace, ElasticArcFace, KappaFace, LiArcFace, NPCFace
from hypermargin.recipes import FAMILY

try:
    from pytorch_metric_learning.distances import CosineSimilarity
    from pytorch_metric_learning.losses import BaseMetricLossFunction
    from pytorch_metric_learning.losses.mixins import WeightRegularizerMixin
    from pytorch_metric_learning.utils import common_functions as common
    from pytorch_metric_learning.utils.loss_and_miner_utils import convert_to_weights
except ModuleNotFoundError as error:
    raise missing(error, "pytorch_metric_learning", "pytorch-metric-learning", "metric-learning") from None

__all__ = [
    "ArcFaceLoss",
    "CosFaceLoss",
    "LargeMarginSoftmaxLoss",
    "MarginLoss",
    "SphereFaceLoss",
    "SubCenterArcFaceLoss",
]

# What their base classes take; every other keyword is the head's.
THEIRS = (
    "collect_stats", "distance", "embedding_reg_weight", "embedding_regularizer", "reducer", "weight_init_func",
    "weight_reg_weight", "weight_regularizer",
)  # fmt: skip
ANGLES = (ArcFace, DynArcFace, ElasticArcFace, KappaFace, LiArcFace, NPCFace)  # whose m is an angle
SMALLEST = 2.0  # degrees; a smaller margin was most likely meant in radians


class MarginLoss(WeightRegularizerMixin, BaseMetricLossFunction):
    """Any head of this library as a loss of pytorch-metric-learning.

    - name: of the family (`hypermargin.list_heads()`), or a `MarginHead`, which is taken over and from then on
      returns the loss of every row
    - margin: m, as pytorch-metric-learning gives it: in degrees where m is an angle (ArcFace and its kin), else as
      it is. `m=` is m as `create_head` takes it, in radians. Default: the head's own.
    - scale: s; default: the head's own
    - reducer, collect_stats, embedding_regularizer, weight_regularizer, weight_init_func and their weights: as in
      every loss of pytorch-metric-learning
    - the rest as in `create_head`: `backend`, `sample`, `centers`, `schedule`, …

    `loss.head` is the head, with the weight as (classes, dim); `loss.W` is a view of it, (dim, classes). Miners
    weigh the rows by how often they mined them. The weight takes device and dtype of the embeddings, as theirs do,
    except under autocast. Files that their losses saved are loaded; `as_theirs` is the way back. Their loss of the
    same name is another: it is about pairs.
    """

    head: MarginHead

    def __init__(
        self,
        name: str | MarginHead,
        num_classes: int | None = None,
        embedding_size: int | None = None,
        margin: float | None = None,
        scale: float | None = None,
        **kwargs: Any,
    ) -> None:
        theirs = {key: kwargs.pop(key) for key in THEIRS if key in kwargs}
        super().__init__(**theirs)
        _check_distance(self.distance)
        if isinstance(name, MarginHead):
            given = {"num_classes": num_classes, "embedding_size": embedding_size, "margin": margin, "scale": scale}
            head = _taken_over(name, given | kwargs)
        else:
            with torch.random.fork_rng((), enabled="weight_init_func" in theirs):  # which draws the weight
                head = _made(name, num_classes, embedding_size, margin, scale, kwargs)
        if head.settings.shard is not None:
            raise ValueError(
                "a sharded head gathers the rows of all ranks itself, and a reducer sees those of one. Call the "
                "head without MarginLoss: loss = head(embeddings, labels)."
            )
        self.head = head
        if "weight_init_func" in theirs:
            self._draw()
        self.add_to_recordable_attributes(list_of_names=["num_classes", "margin", "scale"], is_stat=False)
        self.add_to_recordable_attributes(name="avg_angle", is_stat=True)

    def compute_loss(
        self, embeddings: Tensor, labels: Tensor, indices_tuple: Any, ref_emb: Any, ref_labels: Any
    ) -> dict[str, dict[str, Any]]:
        """Return the loss of every row, weighed by the miner, for the reducer."""
        common.labels_required(labels)
        common.ref_not_supported(embeddings, labels, ref_emb, ref_labels)
        self._follow(embeddings)
        losses = self._as_theirs(self.head(embeddings, labels), embeddings)
        if indices_tuple is not None:
            losses = losses * convert_to_weights(indices_tuple, labels, dtype=losses.dtype)
        if self.collect_stats:
            angles = self.head.scores(embeddings, labels, cosines=True).angle[:, 0]
            self.avg_angle = math.degrees(angles.nanmean().item())
        indices = common.torch_arange_from_size(embeddings)
        found = {"loss": {"losses": losses, "indices": indices, "reduction_type": "element"}}
        self.add_weight_regularization_to_loss_dict(found, self.head.weight)
        return found

    def get_logits(self, embeddings: Tensor) -> Tensor:
        """Return the logits (N, classes), without a margin."""
        self._follow(embeddings)
        return self._as_theirs(self.head.logits(embeddings), embeddings)

    def as_theirs(self) -> Any:
        """Make the loss of pytorch-metric-learning that computes the same; an error where none does."""
        head = copy.copy(self.head)  # shares its tensors
        head.settings = dataclasses.replace(head.settings, reduction="mean")
        loss = to_metric_learning(head)
        for name in ("reducer", "embedding_regularizer", "embedding_reg_weight", "weight_regularizer",
                     "weight_reg_weight"):  # fmt: skip
            setattr(loss, name, getattr(self, name))
        return loss

    def get_default_distance(self) -> Any:
        """Return the cosine, the only distance of these losses."""
        return CosineSimilarity()

    @property
    def W(self) -> Tensor:
        """The class weights as their losses have them, (dim, classes); a view of `head.weight`."""
        return self.head.weight.t()

    def __setattr__(self, name: str, value: Any) -> None:
        """Let `loss.W = …` put other weights into the head, sharing their memory, as it does in their losses."""
        if name != "W":
            super().__setattr__(name, value)
        elif value.shape != self.W.shape:
            raise ValueError(f"W must have shape {tuple(self.W.shape)}; got {tuple(value.shape)}.")
        else:
            self.head.weight = nn.Parameter(value.detach().t(), value.requires_grad)

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return self.head.classes

    @property
    def margin(self) -> Any:
        """The margin's m as the head has it, angles in radians."""
        return self.head.margin.m

    @property
    def scale(self) -> float:
        """The scale s, as it is now."""
        return float(self.head.current_scale().detach())

    def _follow(self, embeddings: Tensor) -> None:
        """Move the head to the embeddings' device, and its weight to their dtype."""
        if self.head.weight.device != embeddings.device:
            self.head.to(embeddings.device)
        self.head.weight.data = self._as_theirs(self.head.weight.data, embeddings)

    @staticmethod
    def _as_theirs(tensor: Tensor, embeddings: Tensor) -> Tensor:
        """Return a tensor in the dtype of the embeddings; as it is under autocast, where theirs stay float32."""
        return tensor if torch.is_autocast_enabled(embeddings.device.type) else tensor.to(embeddings.dtype)

    @torch.no_grad()
    def _draw(self) -> None:
        """Draw the weights as their losses do, in the same order, so that a seed gives the same ones."""
        drawn = torch.empty_like(self.W, memory_format=torch.contiguous_format)
        self.weight_init_func(drawn)
        self.head.weight.copy_(drawn.t())

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        """Load what one of their losses saved too, which is W alone."""
        theirs = state_dict.pop(prefix + "W", None)
        if theirs is not None:
            for key, own in self.head.state_dict().items():
                state_dict.setdefault(f"{prefix}head.{key}", own)
            state_dict[f"{prefix}head.weight"] = theirs.t()
        super()._load_from_state_dict(state_dict, prefix, *others)


class ArcFaceLoss(MarginLoss):
    """ArcFace as theirs computes it, which past π goes on as cos θ − m·sin m; `beyond="smooth"` is ours."""

    def __init__(
        self, num_classes: int, embedding_size: int, margin: float = 28.6, scale: float = 64, **kwargs: Any
    ) -> None:
        defaults = {"beyond": "linear", "weight_init_func": _normal()}
        super().__init__("arcface", num_classes, embedding_size, margin, scale, **defaults | kwargs)


class CosFaceLoss(MarginLoss):
    """CosFace; the margin is a cosine."""

    def __init__(
        self, num_classes: int, embedding_size: int, margin: float = 0.35, scale: float = 64, **kwargs: Any
    ) -> None:
        defaults = {"weight_init_func": _normal()}
        super().__init__("cosface", num_classes, embedding_size, margin, scale, **defaults | kwargs)


class LargeMarginSoftmaxLoss(MarginLoss):
    """L-Softmax without λ, as theirs: the margin is the m of cos mθ, a whole number in theirs."""

    def __init__(
        self, num_classes: int, embedding_size: int, margin: float = 4, scale: float = 1, **kwargs: Any
    ) -> None:
        defaults = {"lam": 0.0, "bias": False, "weight_init_func": _normal()}
        super().__init__("l-softmax", num_classes, embedding_size, margin, scale, **defaults | kwargs)


class SphereFaceLoss(MarginLoss):
    """SphereFace without λ, as theirs: the margin is the m of cos mθ, a whole number in theirs."""

    def __init__(
        self, num_classes: int, embedding_size: int, margin: float = 4, scale: float = 1, **kwargs: Any
    ) -> None:
        defaults = {"lam": 0.0, "weight_init_func": _normal()}
        super().__init__("sphereface", num_classes, embedding_size, margin, scale, **defaults | kwargs)


class SubCenterArcFaceLoss(MarginLoss):
    """ArcFace with `sub_centers` per class, of which the nearest counts."""

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        margin: float = 28.6,
        scale: float = 64,
        sub_centers: int = 3,
        **kwargs: Any,
    ) -> None:
        defaults = {"beyond": "linear", "centers": Centers(sub_centers, "max"), "weight_init_func": _normal()}
        super().__init__("arcface", num_classes, embedding_size, margin, scale, **defaults | kwargs)

    @property
    def sub_centers(self) -> int:
        """Centers per class."""
        return self.head.settings.centers.count

    @torch.no_grad()
    def get_outliers(
        self, embeddings: Tensor, labels: Tensor, threshold: float = 75, return_dominant_centers: bool = True
    ) -> Any:
        """Return which samples are more than `threshold` degrees from the dominant center of their class.

        With `return_dominant_centers` the centers follow, (dim, classes). Of a class without a sample it is the
        first center, where theirs gives zeros.
        """
        self._follow(embeddings)
        angle = math.radians(threshold)
        cleaned = dominant_centers(self.head, embeddings, labels, min(angle, math.pi))
        outliers = (~cleaned.keep).nonzero()[:, 0].to(embeddings.device)
        return (outliers, cleaned.head.weight.detach().t()) if return_dominant_centers else outliers


def _normal() -> Any:
    """Return how their losses draw their weights."""
    return common.TorchInitWrapper(nn.init.normal_)


def _made(
    name: str, classes: int | None, dim: int | None, margin: float | None, scale: float | None, more: dict[str, Any]
) -> MarginHead:
    """Make the head, with `margin` in the unit of pytorch-metric-learning."""
    if "reduction" in more:
        raise TypeError(
            "MarginLoss has no reduction; a reducer says how rows become one loss: reducer=SumReducer()."
        )
    checks.count("num_classes", classes)
    checks.count("embedding_size", dim)
    assert classes is not None
    assert dim is not None
    settings = more | {"reduction": "none"}
    if scale is not None:
        settings["scale"] = float(scale)
    if margin is not None:
        if "m" in more:
            raise TypeError(
                f"margin={margin!r} and m={more['m']!r} say the same, in degrees and radians; give one."
            )
        found = FAMILY[name].margin if name in FAMILY else None
        settings["m"] = _in_radians(float(margin)) if isinstance(found, ANGLES) else float(margin)
    return create_head(name, dim, classes, **settings)


def _in_radians(degrees: float) -> float:
    if 0 < degrees < SMALLEST:
        warnings.warn(
            f"margin={degrees:g} is in degrees, as in pytorch-metric-learning, and next to nothing. Were radians "
            f"meant? They are given as m={degrees:g}.",
            stacklevel=5,
        )
    return math.radians(degrees)


def _taken_over(head: MarginHead, given: dict[str, Any]) -> MarginHead:
    """Return the head, which from now on returns the loss of every row."""
    said = [key for key, value in given.items() if value is not None]
    if said:
        raise TypeError(f"the head has its settings already; got {', '.join(said)} too.")
    if head.settings.reduction != "none":
        head.settings = dataclasses.replace(head.settings, reduction="none")
    return head


def _check_distance(own: Any) -> None:
    if type(own) is not CosineSimilarity or (own.p, own.power, own.normalize_embeddings) != (2, 1, True):
        raise ValueError(f"distance must be CosineSimilarity(), which these losses are made of; got {own}.")
