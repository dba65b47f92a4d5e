"""Packages that are not always there: what is said when one is missing, in one place."""

from __future__ import annotations

from importlib.util import find_spec

MODULES = {"pillow": "PIL", "scikit-learn": "sklearn"}  # packages whose module has another name
ON_PATH = "It must be a module in the current directory or on PYTHONPATH"


def not_installed(what: str, *packages: str) -> str:
    """Say which packages are missing and how to get them: `what` is "pictures need", say."""
    names = " and ".join(filter(None, [", ".join(packages[:-1]), packages[-1]]))
    verb = "is" if len(packages) == 1 else "are"
    return f"{what} {names}, which {verb} not installed. Run: pip install {' '.join(packages)}"


def not_imported(module: str, error: ModuleNotFoundError, how: str) -> str:
    """Say what importing a user's module lacked: itself, and `how` to get it, or something that it imports."""
    if error.name and f"{module}.".startswith(f"{error.name}."):
        return f"cannot import {module!r} ({error}). {how}."
    return f"{module!r} imports what is not installed ({error})."


def absent(*packages: str) -> list[str]:
    """Return those of the packages, by their names on an index, that cannot be imported here."""
    return [name for name in packages if not _is_there(MODULES.get(name, name))]


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ValueError:  # sys.modules[name] is None, or a module without a spec
        return False
