"""Layouts over processes: classes in slices (`Shard`), samples of them (`PartialFC`), and the bytes they send."""

from hypermargin.parallel.partial_fc import PartialFC, Sampled
from hypermargin.parallel.shard import Shard, Sharded, class_range
from hypermargin.parallel.traffic import Traffic, traffic

__all__ = ["PartialFC", "Sampled", "Shard", "Sharded", "Traffic", "class_range", "traffic"]
