"""The files that the settings of a run name. They are written down absolute, so that a run is used from anywhere.

A recorded directory beside relative paths would do the same with two things to know; an absolute path is seen in
config.toml, can be changed there, and the file can start another run from any directory. Runs of 0.1 hold paths as
they were given, and those are looked for from the current directory, as ever.
"""

from __future__ import annotations

import os
from typing import Any

from hypermargin.data import BUILT_IN, DataError
from hypermargin.data.scripts import glyphs_named

PATHS = "data", "exclude", "verify", "verify_images", "init"
GLYPHS = "glyphs:"  # before scripts, a folder of fonts, or both


def absolutes(settings: dict[str, Any]) -> dict[str, Any]:
    """Return those of the settings that are paths, absolute where there is such a file."""
    return {name: _absolute(settings[name]) for name in PATHS if name in settings}


def _absolute(value: Any) -> Any:
    if isinstance(value, list):
        return [_absolute(each) for each in value]
    if not isinstance(value, str) or value in BUILT_IN:
        return value
    path = _path(value)
    before = value.removesuffix(path) if path else value
    return before + os.path.abspath(path) if path and os.path.exists(path) else value


def same(name: str, one: Any, other: Any) -> bool:
    """Tell whether two values of a setting mean the same, from this directory."""
    return bool(one == other or (name in PATHS and _absolute(one) == _absolute(other)))


def gone(data: str) -> bool:
    """Tell whether the data of a run are no longer where they were."""
    path = _path(data)
    return bool(path) and not os.path.exists(path)


def _path(data: str) -> str:
    """Return the file or folder that data are in, "" for those that are in none."""
    if data in BUILT_IN:
        return ""
    return glyphs_named(data)[1] if data.startswith(GLYPHS) else data


def check_there(data: str) -> None:
    """Refuse data of a run that are gone, with where they were looked for and what to do."""
    if gone(data):
        path = os.path.abspath(_path(data))
        raise DataError(
            f"the data of the run were {data}, and there is no {path} now. If they have moved, give their new "
            "place as --data: to evaluate, or to train with --resume, which writes it down."
        )
