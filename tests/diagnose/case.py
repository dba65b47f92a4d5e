"""What a case of the verdicts is."""

from collections.abc import Callable
from typing import NamedTuple

from hypermargin.margins import Margin


class Case(NamedTuple):
    """A loss, and what is to be found of it: exactly these faults, and no others."""

    name: str
    make: Callable
    margin: Margin | None
    scale: float | None = None
    gradient: str | None = "exact"
    wrong: set = frozenset()
    doubtful: set = frozenset()
    notes: set = frozenset()  # among others
    proved: bool = True  # the same loss of ours is named, and is the same on a batch
