"""Text for people and from people: a line for whoever watches, the first line of an error, name:key=value."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable
from typing import Any

Say = Callable[[str], None]  # takes one line of explanation for whoever is watching


def say(text: str) -> None:
    """Print a line on stderr: stdout is for results."""
    print(text, file=sys.stderr, flush=True)


def first_line(error: BaseException) -> str:
    """Return the start of what an exception says, which may be pages; its type's name if it says nothing."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


def parse_assignment(text: str, option: str = "--set") -> tuple[str, Any]:
    """Read `m=0.4` as ("m", 0.4); the value is read as TOML, and as a plain word if it is none."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ValueError(f"{option} takes name=value, like m=0.4; got {text!r}.")
    try:
        return name.strip(), tomllib.loads(f"v = {value}")["v"]
    except tomllib.TOMLDecodeError:
        return name.strip(), value.strip()


def parse_call(text: str, option: str) -> tuple[str, dict[str, Any]]:
    """Read `warmup:steps=500,shape=cosine` as ("warmup", {"steps": 500, "shape": "cosine"})."""
    name, _, rest = text.partition(":")
    return name.strip(), dict(parse_assignment(part, option) for part in rest.split(",") if part.strip())
