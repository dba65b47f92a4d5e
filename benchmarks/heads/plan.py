"""Which runs are made: for every head the same number of settings, then three seeds of the best one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from benchmarks.heads.loop import Spec
from benchmarks.heads.tasks import CLOSED
from hypermargin.advise import equivalent_margin, recommend
from hypermargin.margins import number_fields
from hypermargin.recipes import FAMILY

SEEDS = 0, 1, 2
EPOCHS = {"omniglot": 30, "omniglot-turns": 20, "audiomnist": 5, "mnist": 4, "fashion-mnist": 4}

# Six settings a head: overrides of the head, and the floor of λ. am-softmax is cosface and sphereface is a-softmax
# under other names. For hundreds of classes, and for few.
Setting = tuple[dict[str, Any], float | None]
MULTIPLICATIVE: list[Setting] = [
    ({"m": 1.35, "lam": 0.0}, None),
    ({"m": 2.0}, 1.0),
    ({"m": 2.0}, 5.0),
    ({"m": 3.0}, 5.0),
    ({"m": 4.0}, 5.0),
    ({"m": 4.0}, 20.0),
]


def _unit(*settings: tuple[float, dict[str, float]]) -> list[Setting]:
    """Heads with unit features, by s and margin; NormFace with a fixed s, so that the search is over it."""
    return [({"scale": float(s), **m, **({} if m else {"learn_scale": False})}, None) for s, m in settings]


def _m(*values: float) -> dict[str, float]:
    return {"m": values[0]} if len(values) == 1 else dict(zip(("m1", "m2", "m3"), values, strict=True))


SETTINGS: dict[str, list[Setting]] = {"l-softmax": MULTIPLICATIVE, "a-softmax": MULTIPLICATIVE}
MANY = SETTINGS | {
    "normface": _unit((4, {}), (6, {}), (8, {}), (12, {}), (16, {}), (30, {})),
    "cosface": _unit((6, _m(0.1)), (10, _m(0.1)), (10, _m(0.2)), (16, _m(0.2)), (16, _m(0.35)), (30, _m(0.35))),
    "arcface": _unit((6, _m(0.2)), (10, _m(0.2)), (10, _m(0.5)), (16, _m(0.3)), (16, _m(0.5)), (30, _m(0.5))),
    "combined": _unit(
        (6, _m(1.0, 0.1, 0.05)),
        (10, _m(1.0, 0.1, 0.1)),
        (10, _m(1.0, 0.3, 0.2)),
        (16, _m(1.0, 0.3, 0.2)),
        (16, _m(1.2, 0.1, 0.1)),
        (30, _m(1.0, 0.3, 0.2)),
    ),
}
FEW = SETTINGS | {
    "normface": _unit((3, {}), (4, {}), (6, {}), (8, {}), (12, {}), (16, {})),
    "cosface": _unit((4, _m(0.1)), (4, _m(0.2)), (6, _m(0.1)), (10, _m(0.1)), (10, _m(0.2)), (16, _m(0.2))),
    "arcface": _unit((4, _m(0.2)), (4, _m(0.5)), (6, _m(0.2)), (10, _m(0.2)), (10, _m(0.5)), (16, _m(0.3))),
    "combined": _unit(
        (4, _m(1.0, 0.1, 0.05)),
        (6, _m(1.0, 0.1, 0.05)),
        (10, _m(1.0, 0.1, 0.1)),
        (10, _m(1.0, 0.3, 0.2)),
        (16, _m(1.0, 0.3, 0.2)),
        (16, _m(1.2, 0.1, 0.1)),
    ),
}
HEADS = ("softmax", "l-softmax", "modified-softmax", "a-softmax", "normface", "cosface", "arcface", "combined")


def _base(study: str, task: str, stage: str) -> Spec:
    batch, lr = (512, 0.004) if task in CLOSED else (256, 0.003)
    width = {"omniglot": 32, "audiomnist": 8}.get(task, 16)
    precision = "bfloat16" if task in CLOSED else "float32"
    return Spec(study, task, stage, "", lr=lr, epochs=EPOCHS[task], batch=batch, width=width, precision=precision)


def search(task: str) -> list[Spec]:
    """As many settings for every head: 18 on Omniglot, twelve on AudioMNIST, six on the closed sets."""
    base = _base("search", task, "select")
    settings = MANY if task == "omniglot" else FEW
    decays = {"omniglot": (0.05, 0.5, 3.0), "audiomnist": (3.0,)}.get(task, (0.05,))
    rates = (base.lr / 2, base.lr, 2 * base.lr) if task == "omniglot" else (base.lr,)
    found = []
    for epochs in (3, 8) if task == "audiomnist" else (base.epochs,):
        for head in HEADS:
            if head in settings:
                found += [
                    replace(base, head=head, set=values, lam_floor=floor, weight_decay=decay, epochs=epochs)
                    for values, floor in settings[head]
                    for decay in decays
                ]
            else:  # nothing to choose but the optimiser's numbers
                found += [
                    replace(base, head=head, lr=lr, weight_decay=decay, epochs=epochs)
                    for lr in rates
                    for decay in (0.05, 0.2, 0.5, 1.0, 3.0, 6.0)
                ]
    return found


def value(result: dict[str, Any]) -> float:
    """What settings are chosen by: 1 − EER, or accuracy; −1 for a run that failed."""
    if result["broken"]:
        return -1.0
    test = result["test"]
    return float(1 - test["eer"] if "eer" in test else test["accuracy"])


def best(results: Iterable[dict[str, Any]], task: str, head: str) -> Spec | None:
    """The setting that did best on the held-out part of the training data."""
    found = [r for r in results if (s := r["spec"])["study"] == "search" and (s["task"], s["head"]) == (task, head)]
    return Spec(**max(found, key=value)["spec"]) if found else None


def finals(results: list[dict[str, Any]], task: str, heads: Iterable[str] = HEADS) -> list[Spec]:
    """Three seeds of each head's best setting, trained on all training data."""
    chosen = [best(results, task, head) for head in heads]
    return [replace(s, study="final", stage="final", seed=seed) for s in chosen if s for seed in SEEDS]


def more_classes(results: list[dict[str, Any]], task: str) -> list[Spec]:
    """Changed copies as classes of their own, quarter turns or warped voices, at the settings chosen without."""
    name = {"omniglot": "omniglot-turns", "audiomnist": "audiomnist-warped"}.get(task)
    chosen = finals(results, task, ("softmax", "normface", "arcface")) if name else []
    return [replace(s, study="turns", task=name, epochs=EPOCHS.get(name, s.epochs)) for s in chosen if name]


def untuned(task: str, classes: int) -> list[Spec]:
    """Nothing searched: every head with its paper's s, m and λ, and with what the advisor says."""
    seeds = SEEDS[:1] if task in CLOSED else SEEDS
    found = []
    for seed in seeds:
        found += [replace(_base("paper", task, "final"), head=head, seed=seed) for head in HEADS]
        for head in ("normface", "cosface", "arcface", "combined"):
            advice = recommend(classes, Spec.dim, margin=FAMILY[head].margin.name)
            numbers = {f.name: getattr(advice.margin, f.name) for f in number_fields(type(advice.margin))}
            fixed = {"learn_scale": False} if head == "normface" else {}
            values = {"scale": advice.s, **numbers, **fixed}
            found.append(replace(_base("advised", task, "final"), head=head, set=values, seed=seed))
    return found


# Difficulty: the three kinds of margin with the same width of the band between classes at right angles.
WIDTHS = 0.0, 0.1, 0.2, 0.35, 0.5, 0.7


def margins_of_width(width: float) -> dict[str, tuple[str, dict[str, float]]]:
    """Head and m of each kind, unit features and weights for all, so that only ψ differs."""
    same = equivalent_margin(math.pi / 2, arcface=width)
    return {
        "multiplicative": ("a-softmax", {"m": same.sphereface}),
        "cosine": ("cosface", {"m": same.cosface}),
        "angular": ("arcface", {"m": width}),
    }


def difficulty(scale: float, identities: int | None = None, seeds: Iterable[int] = SEEDS) -> list[Spec]:
    """Every kind at every width, at one scale, without λ or warm-up."""
    found = []
    for width in WIDTHS:
        for kind, (head, m) in margins_of_width(width).items():
            if width == 0 and kind != "angular":  # all three are NormFace
                continue
            sides: dict[str, Any] = {"lam": 0.0, "unit_features": True} if kind == "multiplicative" else {}
            found += [
                replace(
                    _base(f"difficulty s={scale:g} {identities or 'all'}", "omniglot", "final"),
                    head=head,
                    set={"scale": scale, **m, **sides},
                    epochs=20,
                    width=16,
                    seed=seed,
                    identities=identities,
                )
                for seed in seeds
            ]
    return found
