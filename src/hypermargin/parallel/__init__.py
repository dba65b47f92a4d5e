"""Layouts over processes: classes in slices (`Shard`), a sample of them (`PartialFC`), and what they send."""

from hypermargin.parallel.traffic import Traffic, traffic

__all__ = ["Traffic", "traffic"]
