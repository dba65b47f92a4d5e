"""Classes that are found by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from hypermargin import checks

T = TypeVar("T")
C = TypeVar("C", bound=type[Any])


class Registry(Generic[T]):
    """The classes of one kind, by name. `kind` is what error messages call them."""

    def __init__(self, kind: str) -> None:
        self.kind, self.entries = kind, dict[str, type[T]]()

    def register(self, name: str) -> Callable[[C], C]:
        """Make a class known under `name`, which becomes its `name`; a class decorator."""

        def enter(cls: C) -> C:
            known = self.entries.get(name)
            if known is not None and known.__qualname__ != cls.__qualname__:
                raise ValueError(f"{self.kind} name {name!r} is taken by {known.__name__}; choose another.")
            cls.name = name
            self.entries[name] = cls
            return cls

        return enter

    def names(self) -> list[str]:
        """Return the names of all registered classes."""
        return sorted(self.entries)

    def get(self, name: str) -> type[T]:
        """Return the class registered under `name`."""
        if name not in self.entries:
            known = ", ".join(self.names())
            hint = checks.near(name, self.names())
            raise ValueError(f"unknown {self.kind} {name!r}; registered are {known}.{hint}")
        return self.entries[name]
