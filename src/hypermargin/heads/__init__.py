"""Change a head: more classes, fewer, merged, in another order, in slices, from other libraries and back.

What changes a head or `Weights` works in place and returns the new id of every old class, so that labels follow:
`labels = ids[labels]`. Give `optimizer=` and its state follows too.
"""

from hypermargin.heads.change import add_classes, by_name, merge_classes, remove_classes, reorder_classes
from hypermargin.heads.cleaning import Cleaned, dominant_centers
from hypermargin.heads.convert import head_from, restore_optimizer, weights_of
from hypermargin.heads.foreign import from_linear, from_metric_learning, to_linear, to_metric_learning
from hypermargin.heads.look import Pair, groups_of, nearest_pairs
from hypermargin.heads.reading import read
from hypermargin.heads.shards import join, split
from hypermargin.heads.weights import Weights
from hypermargin.heads.writing import write

__all__ = [
    "Cleaned",
    "Pair",
    "Weights",
    "add_classes",
    "by_name",
    "dominant_centers",
    "from_linear",
    "from_metric_learning",
    "groups_of",
    "head_from",
    "join",
    "merge_classes",
    "nearest_pairs",
    "read",
    "remove_classes",
    "reorder_classes",
    "restore_optimizer",
    "split",
    "to_linear",
    "to_metric_learning",
    "weights_of",
    "write",
]
