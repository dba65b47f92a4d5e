"""What the value of a setting may be: its kind, range and words, said once beside each field of Config."""

from __future__ import annotations

import dataclasses
import types
import typing
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any

from hypermargin import checks

LONGEST_TEXT = 4096  # characters, as many as a path may have
MOST_ITEMS = 1000
MOST_SIDE = 8192  # pixels
DEEPEST = 4  # tables and lists in one another


def setting(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    low: float | None = None,
    high: float | None = None,
    above: bool = False,
    hint: str = "",
    check: Callable[[Any], object] | None = None,
    free: bool = False,
) -> Any:
    """Make a field of Config.

    - choices: the words it may be
    - low, high: of whole numbers the least and the largest; other numbers lie in [low, high), or (low, high) if
      `above`; of lists each of the items
    - check: raises ValueError for a value that will not do, once its kind is right
    - free: it may change on resuming a run, as the result does not depend on it
    """
    meta = {"help": help, "choices": choices, "free": free, "low": low, "high": high, "above": above}
    meta |= {"hint": hint, "check": check}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=meta)
    return dataclasses.field(default=default, metadata=meta)


def kinds_of(config: type) -> dict[str, tuple[Any, ...]]:
    """Return the types each setting may have, list[str] and the like whole."""
    hints = typing.get_type_hints(config)
    return {name: typing.get_args(h) if isinstance(h, types.UnionType) else (h,) for name, h in hints.items()}


def checked(name: str, value: Any, kinds: tuple[Any, ...], meta: Mapping[str, Any]) -> Any:
    """Return the value of a setting, a whole number as a float where it is one; raise if it is not allowed."""
    plain = tuple(typing.get_origin(kind) or kind for kind in kinds)
    value = _of_kind(name, value, plain)
    if value is None:
        return None
    if isinstance(value, list):
        if len(value) > MOST_ITEMS:
            raise ValueError(f"{name} must have at most {MOST_ITEMS} items; got {len(value)}.")
        item = next(typing.get_args(kind) for kind in kinds if typing.get_origin(kind) is list)
        value = [_of_kind(f"an item of {name}", each, item) for each in value]
        for each in value:
            _check_one(name, each, meta)
    elif isinstance(value, dict):
        for key, each in value.items():
            check_plain(f"{name}: {_key(name, key)}", each)
    else:
        _check_one(name, value, meta)
    if meta["check"] is not None:
        meta["check"](value)
    return value


def check_text(name: str, text: str, *, empty: bool = False) -> None:
    """Require text of one line without control characters, which no path, name or number has."""
    if not text.strip() and not empty:
        raise ValueError(f"{name} must not be empty.")
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"{name} must have at most {LONGEST_TEXT:,} characters; got {len(text):,}.")
    odd = next((c for c in text if unicodedata.category(c) in ("Cc", "Cs")), None)
    if odd is not None:
        raise ValueError(f"{name} must not hold control characters; got {checks.shown(text)}.")


def check_plain(name: str, value: Any, depth: int = 1) -> None:
    """Require numbers, words, true, false, and lists and tables of them."""
    if isinstance(value, bool):
        return
    if isinstance(value, str):
        check_text(name, value, empty=True)
    elif isinstance(value, int | float):
        if isinstance(value, int) and abs(value) >= 2**63:
            raise ValueError(f"{name} must be a whole number below 2^63 in size; got {checks.shown(value)}.")
    elif isinstance(value, list | tuple | dict):
        if depth == DEEPEST:
            raise ValueError(f"{name} is nested too deeply: at most {DEEPEST} lists and tables in one another.")
        if len(value) > MOST_ITEMS and depth > 1:
            raise ValueError(f"{name} must have at most {MOST_ITEMS} items; got {len(value)}.")
        for each in value.values() if isinstance(value, dict) else value:
            check_plain(name, each, depth + 1)
        for key in value if isinstance(value, dict) else ():
            _key(name, key)
    else:
        raise TypeError(
            f"{name} must be a number, a word, true or false, or a list or table of these; got "
            f"{checks.shown(value)} ({type(value).__name__})."
        )


def _key(name: str, key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"{name}: names must be words; got {checks.shown(key)} ({type(key).__name__}).")
    check_text(f"{name}: a name", key)
    return key if len(key) <= checks.LONGEST else checks.shown(key)


def _of_kind(name: str, value: Any, kinds: tuple[Any, ...]) -> Any:
    if isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool)):
        return value
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) <= checks.LARGEST else value  # too large a one is refused by its range
    wanted = " or ".join(k.__name__ for k in kinds if k is not type(None))
    raise TypeError(f"{name} must be of type {wanted}; got {checks.shown(value)} ({type(value).__name__}).")


def _check_one(name: str, value: Any, meta: Mapping[str, Any]) -> None:
    low, high = meta["low"], meta["high"]
    if meta["choices"]:
        checks.one_of(name, value, meta["choices"])
    elif isinstance(value, str):
        check_text(name, value, empty=meta["check"] is not None)
    elif low is not None and isinstance(high, int):
        checks.count(name, value, low, high)
    elif low is not None:
        if meta["above"]:
            checks.positive(name, value)
        checks.in_range(name, value, low, high, meta["hint"])
