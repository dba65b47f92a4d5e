"""Softmax with a margin: exact losses for embeddings and classifiers.

Everything is imported on first use, so that `hypermargin.training` needs no import of its own, and so that Keras on
JAX or TensorFlow and plain JAX (`hypermargin.integrations`) do not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hypermargin.version import __version__ as __version__

if TYPE_CHECKING:  # the same names as in _LATER, for editors and type checkers
    from hypermargin import (
        advise,
        backends,
        compare,
        data,
        deploy,
        diagnose,
        estimator,
        evaluate,
        heads,
        hinge,
        integrations,
        margins,
        parallel,
        plots,
        rules,
        schedule,
        terms,
        testing,
        training,
        views,
    )
    from hypermargin.backends import explain_backend, register_backend
    from hypermargin.centers import Centers
    from hypermargin.estimator import MarginSoftmaxClassifier
    from hypermargin.family import create_head, list_heads
    from hypermargin.functional import margin_cross_entropy, margin_softmax
    from hypermargin.head import MarginHead
    from hypermargin.optim import FusedSGD, SampledAdamW, SampledSGD
    from hypermargin.parallel import PartialFC, Shard
    from hypermargin.proxies import ProxyAnchor, proxy_anchor
    from hypermargin.samples import contrastive, supervised_contrastive
    from hypermargin.settings import HeadSettings
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
    "integrations",
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

# Packages and modules by their own name, and the functions and classes that some of them lend.
_MODULES = (
    "advise", "backends", "compare", "data", "deploy", "diagnose", "estimator", "evaluate", "heads", "hinge",
    "integrations", "margins", "parallel", "plots", "rules", "schedule", "terms", "testing", "training", "views",
)  # fmt: skip
_LATER = {
    **dict.fromkeys(_MODULES, ""),
    **dict.fromkeys(("explain_backend", "register_backend"), "backends"),
    "Centers": "centers",
    "MarginSoftmaxClassifier": "estimator",
    **dict.fromkeys(("create_head", "list_heads"), "family"),
    **dict.fromkeys(("margin_cross_entropy", "margin_softmax"), "functional"),
    "MarginHead": "head",
    **dict.fromkeys(("FusedSGD", "SampledAdamW", "SampledSGD"), "optim"),
    **dict.fromkeys(("PartialFC", "Shard"), "parallel"),
    **dict.fromkeys(("ProxyAnchor", "proxy_anchor"), "proxies"),
    **dict.fromkeys(("contrastive", "supervised_contrastive"), "samples"),
    "HeadSettings": "settings",
    "load": "training",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is asked for (PEP 562)."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    owner = _LATER[name]
    try:
        module = import_module(f"{__name__}.{owner or name}")
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(
            f"hypermargin.{name} needs PyTorch, which is not installed. Run: pip install torch. Only "
            "hypermargin.integrations.keras and hypermargin.integrations.jax do without it.",
            name="torch",
        ) from None
    found = getattr(module, name) if owner else module
    globals()[name] = found  # once: the next access does not come here
    return found


def __dir__() -> list[str]:
    """List all names, imported or not."""
    return sorted({*globals(), *__all__})
