"""Softmax with a margin: exact losses for embeddings and classifiers."""

from typing import TYPE_CHECKING, Any

from hypermargin import (
    advise,
    backends,
    data,
    deploy,
    evaluate,
    heads,
    hinge,
    margins,
    parallel,
    plots,
    schedule,
    testing,
    training,
)
from hypermargin.backends import explain_backend
from hypermargin.family import create_head, list_heads
from hypermargin.functional import margin_cross_entropy, margin_softmax
from hypermargin.head import MarginHead
from hypermargin.optim import FusedSGD, SampledSGD
from hypermargin.parallel import PartialFC, Shard
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
    "backends",
    "create_head",
    "data",
    "deploy",
    "evaluate",
    "explain_backend",
    "heads",
    "hinge",
    "list_heads",
    "load",
    "margin_cross_entropy",
    "margin_softmax",
    "margins",
    "parallel",
    "plots",
    "schedule",
    "testing",
    "training",
]


def __getattr__(name: str) -> Any:
    """The estimator is imported when asked for: it needs scikit-learn, which takes a second."""
    if name == "MarginSoftmaxClassifier":
        from hypermargin.estimator import MarginSoftmaxClassifier

        return MarginSoftmaxClassifier
    raise AttributeError(f"module 'hypermargin' has no attribute {name!r}")
