"""Softmax with a margin: exact losses for embeddings and classifiers."""

from hypermargin import advise, hinge, margins, schedule, scores, testing
from hypermargin.family import create_head, list_heads
from hypermargin.functional import margin_cross_entropy, margin_softmax
from hypermargin.head import MarginHead
from hypermargin.scores import explain_backend

__version__ = "0.1.0"

__all__ = [
    "MarginHead",
    "advise",
    "create_head",
    "explain_backend",
    "hinge",
    "list_heads",
    "margin_cross_entropy",
    "margin_softmax",
    "margins",
    "schedule",
    "scores",
    "testing",
]
