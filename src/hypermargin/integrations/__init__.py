"""Heads of this library in the training loops of other frameworks: one module per framework, imported when used."""

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from hypermargin.common.needs import not_installed

__all__ = sorted(module.name for module in iter_modules(__path__) if not module.name.startswith("_"))


def __getattr__(name: str) -> Any:
    """Import the module of a framework when it is asked for (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    """List the modules, imported or not."""
    return sorted({*globals(), *__all__})


def missing(error: ModuleNotFoundError, module: str, package: str, extra: str | None = None) -> ModuleNotFoundError:
    """Return the error for a framework that is not installed, or the error itself if it is about something else.

    `extra` is the name of hypermargin's extra that holds the package, if it is not the package's.
    """
    if error.name != module:
        return error
    told = f"{not_installed('this needs', package)} (in hypermargin's extra {extra or package!r})"
    return ModuleNotFoundError(told, name=module)
