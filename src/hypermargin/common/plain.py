"""Checks of plain data from a file (JSON), before anything is done with it: kinds, ranges, and nothing missing.

A check is a function of where something is, for the message, and what it is; it raises ValueError.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hypermargin import checks

Check = Callable[[str, Any], None]
MOST_BYTES = 2**30  # of a JSON file: the names of some ten million classes
LONGEST_TEXT = 4096
MOST_COUNT = 10**15  # of samples, pairs and steps


def read_json(path: Path) -> Any:
    """Read a JSON file; FileNotFoundError, or ValueError in words."""
    if path.is_file() and path.stat().st_size > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"{error.strerror}") from None


def whole(least: int = 0, most: int = MOST_COUNT) -> Check:
    """Require a whole number."""
    return lambda where, value: _in_words(lambda: checks.count(where, value, least, most))


def number(low: float = -checks.LARGEST, high: float = checks.LARGEST) -> Check:
    """Require a finite number in [low, high)."""
    return lambda where, value: _in_words(lambda: checks.in_range(where, value, low, high))


def text(where: str, value: Any) -> None:
    """Require text that is not endless."""
    if not isinstance(value, str) or len(value) > LONGEST_TEXT:
        raise ValueError(f"{where} must be text of at most {LONGEST_TEXT:,} characters; got {checks.shown(value)}")


def yes_or_no(where: str, value: Any) -> None:
    """Require true or false."""
    if not isinstance(value, bool):
        raise ValueError(f"{where} must be true or false; got {checks.shown(value)}")


def anything(where: str, value: Any) -> None:
    """Require nothing."""


def maybe(check: Check) -> Check:
    """Allow null beside what `check` allows."""
    return lambda where, value: None if value is None else check(where, value)


def items(check: Check, least: int = 0, most: int = checks.MOST_CLASSES) -> Check:
    """Require a list."""

    def work(where: str, value: Any) -> None:
        if not isinstance(value, list) or not least <= len(value) <= most:
            count = f"at least {least:,}" if isinstance(value, list) and len(value) < least else f"at most {most:,}"
            raise ValueError(f"{where} must be a list of {count}; got {checks.shown(value)}")
        for k, each in enumerate(value):
            check(f"{where}[{k}]", each)

    return work


def table(
    fields: Mapping[str, Check], *, open: Mapping[str, Check] | None = None, rest: Check | None = None
) -> Check:
    """Require an object with these fields; those of `open` may be missing, any other needs `rest`."""
    optional = open or {}

    def work(where: str, value: Any) -> None:
        before = f"{where}." if where else ""
        if not isinstance(value, dict):
            raise ValueError(f"{where or 'it'} must be an object with names; got {checks.shown(value)}")
        for name, check in fields.items():
            if name not in value:
                raise ValueError(f"{before}{name} is missing")
            check(f"{before}{name}", value[name])
        for name in value.keys() - fields.keys():
            found = optional.get(name) or rest
            if found is None:
                raise ValueError(f"{before}{checks.shown(name)} is not known here")
            found(f"{before}{name if name.isidentifier() else checks.shown(name)}", value[name])

    return work


def _in_words(check: Callable[[], None]) -> None:
    """Turn a complaint about the type into one about the value, without the stop at its end."""
    try:
        check()
    except (TypeError, ValueError) as error:
        raise ValueError(str(error).rstrip(".")) from None
