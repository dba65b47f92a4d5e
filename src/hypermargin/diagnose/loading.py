"""A criterion by its name: MODULE:NAME, imported only if that is trusted, and made if it is a class or factory."""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any

from hypermargin import checks
from hypermargin.common.needs import ON_PATH, not_imported
from hypermargin.common.text import first_line
from hypermargin.diagnose.forms import CLASS_NAMES, CLASSES, DIM, build, has_classes

# Packages that are taken without being trusted, if they are installed, and the module of each that has the losses.
# Only that module and what is below it: elsewhere in them are functions that load files, and run what is in those.
KNOWN = {
    "hypermargin": "hypermargin",
    "insightface": "insightface",
    "pytorch_metric_learning": "pytorch_metric_learning.losses",
    "speechbrain": "speechbrain.nnet.losses",
    "torch": "torch.nn",
    "wespeaker": "wespeaker.models.projections",
}
ON_INDEX = ("pytorch_metric_learning", "speechbrain")  # those that pip finds, with their losses


class Untrusted(ValueError):  # noqa: N818  it says what the name is
    """A name of code that is not among the known packages, and was not said to be trusted."""


def check_trust(name: str, trust: bool) -> None:
    """Refuse to import code that was not trusted."""
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        raise ValueError(f"criterion must be MODULE:NAME, like losses:ArcFace; got {checks.shown(name)}.")
    where = _module(module)
    below = (
        home for home in KNOWN.values() if home != "hypermargin"
    )  # which has functions that import others' code
    if not trust and where not in KNOWN.values() and not any(where.startswith(f"{home}.") for home in below):
        raise Untrusted(
            f"criterion {checks.shown(name)} names code that would be imported and run. If you know it, add "
            f"--trust. Without it what these modules have is taken: {', '.join(KNOWN.values())}."
        )


def _module(name: str) -> str:
    """Return the module of a name before the colon: of a known package, the one with the losses."""
    plain = name.replace("-", "_")
    return KNOWN.get(plain, plain)


def load(
    name: str, settings: dict[str, Any], *, dim: int | None, classes: int | None, trust: bool
) -> Callable[..., Any]:
    """Import MODULE:NAME, and make the criterion of it."""
    check_trust(name, trust)
    found = _find(name, trust)
    made = build(found, dim=dim or DIM, classes=classes or CLASSES, settings=settings)
    if made is found and settings and not inspect.isclass(found):
        return functools.partial(found, **settings)
    return made


def remaker(
    name: str, settings: dict[str, Any], *, dim: int | None, trust: bool
) -> Callable[[int], Callable[..., Any]] | None:
    """Return what makes the same with another number of classes; None if it has none to choose."""
    found = _find(name, trust)  # which `load` has checked

    def remake(classes: int) -> Callable[..., Any]:
        return build(found, dim=dim or DIM, classes=classes, settings=settings)

    return remake if has_classes(found) and not settings.keys() & set(CLASS_NAMES) else None


def _find(name: str, trust: bool) -> Any:
    module_name, _, attribute = name.partition(":")
    module_name = _module(module_name)
    if trust and "" not in sys.path:
        sys.path.insert(0, "")  # a console script does not look into the current directory
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        package = module_name.split(".")[0]
        how = f"Run: pip install {package.replace('_', '-')}" if package in ON_INDEX else ON_PATH
        raise ValueError(f"criterion {name!r}: {not_imported(module_name, error, how)}") from None
    except Exception as error:
        told = f"{type(error).__name__}: {first_line(error)}".rstrip(".")
        raise ValueError(f"criterion {name!r}: importing {module_name!r} failed ({told}).") from error
    if not hasattr(module, attribute):
        there = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ValueError(
            f"criterion {name!r}: module {module.__name__} has no {attribute!r}.{checks.near(attribute, there)}"
        )
    found = getattr(module, attribute)
    if not trust and getattr(found, "__module__", None) and not _own(found, module_name):
        raise Untrusted(
            f"criterion {name!r} is of {found.__module__}, which {module_name} only imports; add --trust if "
            "you know it."
        )
    if not callable(found):
        raise ValueError(
            f"criterion {name!r} must be a class, a factory, an object or a function to call; it is "
            f"{checks.shown(found)}."
        )
    return found


def _own(found: Any, module: str) -> bool:
    """Tell whether something is of the package in which it was found."""
    return str(found.__module__).split(".")[0] == module.split(".")[0]
