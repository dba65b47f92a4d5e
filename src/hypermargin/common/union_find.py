"""Groups of what is connected by pairs: a chain of pairs is one group."""

from __future__ import annotations


class UnionFind:
    """Disjoint groups of whole numbers, each named by its smallest member; a number not seen yet is alone."""

    def __init__(self) -> None:
        self._above: dict[int, int] = {}

    def find(self, k: int) -> int:
        """Return the smallest member of k's group."""
        while self._above.setdefault(k, k) != k:
            self._above[k] = self._above[self._above[k]]  # halves the path for the next time
            k = self._above[k]
        return k

    def union(self, a: int, b: int) -> None:
        """Make one group of the groups of a and b."""
        smaller, larger = sorted((self.find(a), self.find(b)))
        self._above[larger] = smaller

    def groups(self) -> list[list[int]]:
        """List the groups of all numbers seen, members and groups in ascending order."""
        found: dict[int, list[int]] = {}
        for k in sorted(self._above):
            found.setdefault(self.find(k), []).append(k)
        return [found[k] for k in sorted(found)]
