"""What is to be trained next, given what has been: searches, and the runs that follow from each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any

from benchmarks.heads.loop import Spec

Result = dict[str, Any]


class Agenda:
    """Searches in the order of their worth; `finals` says what to train once all runs of a search are in."""

    def __init__(
        self,
        searches: Sequence[Sequence[Spec]],
        finals: Callable[[Sequence[Result]], Sequence[Spec]],
        results: Sequence[Result],
    ) -> None:
        self.searches = [_by_key(search) for search in searches]
        self.follow = finals
        self.finals: dict[int, dict[str, Spec]] = {}  # by the number of the search, once that is over
        kind = type(searches[0][0]) if searches and searches[0] else Spec
        self.done = {key_of(r, kind): r for r in results}
        self.taken = set(self.done)

    def next(self) -> Spec | None:
        """The next run, which is then taken; None if there is none before another result is in."""
        for key, spec in self._open():
            self.taken.add(key)
            return spec
        return None

    def finished(self, spec: Spec, result: Result) -> None:
        """Take in a result."""
        self.done[spec.key] = result

    def give_back(self, spec: Spec) -> None:
        """A run that was begun and will have no result: another may take it."""
        self.taken.discard(spec.key)

    def _open(self) -> Iterator[tuple[str, Spec]]:
        for number, tried in enumerate(self.searches):
            if number not in self.finals and all(key in self.done for key in tried):
                self.finals[number] = _by_key(self.follow([self.done[key] for key in tried]))
            for runs in (tried, self.finals.get(number, {})):
                yield from ((key, spec) for key, spec in runs.items() if key not in self.taken)


def key_of(result: Result, kind: type[Spec]) -> str:
    """The key of the run that a stored result is of; "" if it is of another study."""
    known = {field.name for field in fields(kind)}
    return kind(**result["spec"]).key if set(result["spec"]) <= known else ""


def _by_key(specs: Sequence[Spec]) -> dict[str, Spec]:
    return {spec.key: spec for spec in specs}
