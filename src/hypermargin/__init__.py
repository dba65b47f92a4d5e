"""Softmax with a margin: exact losses for embeddings and classifiers."""

from typing import TYPE_CHECKING, Any

from hypermargin import (
    advise,
    data,
    evaluate,
    hinge,
    life,
    margins,
    plots,
    schedule,
    scores,
    shipping,
    testing,
    training,
)
from hypermargin.family import create_head, list_heads
from hypermargin.functional import margin_cross_entropy, margin_softmax
from hypermargin.head import MarginHead
from hypermargin.optim import FusedSGD, SampledSGD
from hypermargin.scores import explain_backend
from hypermargin.scores.sampling import PartialFC
from hypermargin.scores.sharded import Shard
from hypermargin.training import load

if TYPE_CHECKING:
    from hypermargin.estimator import MarginSoftmaxClassifier

__version__ = "0.1.0"

__all__ = [
    "FusedSGD",
    "MarginHead",
    "MarginSoftmaxClassifier",
    "PartialFC",
    "SampledSGD",
    "Shard",
    "advise",
    "create_head",
    "data",
    "evaluate",
    "explain_backend",
    "hinge",
    "life",
    "list_heads",
    "load",
    "margin_cross_entropy",
    "margin_softmax",
    "margins",
    "plots",
    "schedule",
    "scores",
    "shipping",
    "testing",
    "training",
]


def __getattr__(name: str) -> Any:
    """The estimator is imported when asked for: it needs scikit-learn, which takes a second."""
    if name == "MarginSoftmaxClassifier":
        from hypermargin.estimator import MarginSoftmaxClassifier

        return MarginSoftmaxClassifier
    raise AttributeError(f"module 'hypermargin' has no attribute {name!r}")
