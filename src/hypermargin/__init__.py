"""Softmax with a margin: exact losses for embeddings and classifiers.

The core, which computes losses, is imported with the package. The application, which trains, evaluates, draws and
exports, is imported on first use: `hypermargin.training` needs no import of its own.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hypermargin import backends, margins, parallel, rules, schedule, terms, views
from hypermargin.backends import explain_backend, register_backend
from hypermargin.centers import Centers
from hypermargin.family import create_head, list_heads
from hypermargin.functional import margin_cross_entropy, margin_softmax
from hypermargin.head import MarginHead
from hypermargin.optim import FusedSGD, SampledAdamW, SampledSGD
from hypermargin.parallel import PartialFC, Shard
from hypermargin.settings import HeadSettings
from hypermargin.version import __version__ as __version__

if TYPE_CHECKING:  # the same names as in _LATER, for editors and type checkers
    from hypermargin import (
        advise,
        compare,
        data,
        deploy,
        diagnose,
        estimator,
        evaluate,
        heads,
        hinge,
        plots,
        testing,
        training,
    )
    from hypermargin.estimator import MarginSoftmaxClassifier
    from hypermargin.proxies import ProxyAnchor, proxy_anchor
    from hypermargin.samples import contrastive, supervised_contrastive
    from hypermargin.training import load

__all__ = [
    "Centers",
    "FusedSGD",
    "HeadSettings",
    "MarginHead",
    "MarginSoftmaxClassifier",
    "PartialFC",
    "ProxyAnchor",
    "SampledAdamW",
    "SampledSGD",
    "Shard",
    "advise",
    "backends",
    "compare",
    "contrastive",
    "create_head",
    "data",
    "deploy",
    "diagnose",
    "estimator",
    "evaluate",
    "explain_backend",
    "heads",
    "hinge",
    "list_heads",
    "load",
    "margin_cross_entropy",
    "margin_softmax",
    "margins",
    "parallel",
    "plots",
    "proxy_anchor",
    "register_backend",
    "rules",
    "schedule",
    "supervised_contrastive",
    "terms",
    "testing",
    "training",
    "views",
]

# What is imported on first use: packages by their own name, and the functions and classes that some of them lend.
# hinge, testing, proxies and samples are core, but no head needs them.
_PACKAGES = (
    "advise",
    "compare",
    "data",
    "deploy",
    "diagnose",
    "estimator",
    "evaluate",
    "heads",
    "plots",
    "training",
)
_LATER = {
    **dict.fromkeys((*_PACKAGES, "hinge", "testing"), ""),
    "MarginSoftmaxClassifier": "estimator",
    **dict.fromkeys(("ProxyAnchor", "proxy_anchor"), "proxies"),
    **dict.fromkeys(("contrastive", "supervised_contrastive"), "samples"),
    "load": "training",
}


def __getattr__(name: str) -> Any:
    """Import a name of the application when it is asked for (PEP 562)."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    owner = _LATER[name]
    found = getattr(import_module(f"{__name__}.{owner}"), name) if owner else import_module(f"{__name__}.{name}")
    globals()[name] = found  # once: the next access does not come here
    return found


def __dir__() -> list[str]:
    """List the names of the application too, imported or not."""
    return sorted({*globals(), *__all__})
