"""Which runs are made: for every head the same number of settings, then three seeds of the best one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from benchmarks.heads.loop import Spec
from benchmarks.heads.tasks import CLOSED
from hypermargin.advise import equivalent_margin, recommend
from hypermargin.family import FAMILY
from hypermargin.margins import number_fields

SEEDS = 0, 1, 2
EPOCHS = {"omniglot": 30, "omniglot-turns": 20, "audiomnist": 10, "mnist": 8, "fashion-mnist": 8}
DECAYS = 0.05, 0.5, 3.0

# Six settings a head: overrides of the head, and the floor of λ. am-softmax is cosface and sphereface is a-softmax
# under other names.
Setting = tuple[dict[str, Any], float | None]
MULTIPLICATIVE: list[Setting] = [
    ({"m": 1.35, "lam": 0.0}, None),
    ({"m": 2.0}, 1.0),
    ({"m": 2.0}, 5.0),
    ({"m": 3.0}, 5.0),
    ({"m": 4.0}, 5.0),
    ({"m": 4.0}, 20.0),
]
SETTINGS: dict[str, list[Setting]] = {
    "l-softmax": MULTIPLICATIVE,
    "a-softmax": MULTIPLICATIVE,
    "normface": [({"scale": s, "learn_scale": False}, None) for s in (4.0, 6.0, 8.0, 12.0, 16.0, 30.0)],
    "cosface": [
        ({"scale": s, "m": m}, None)
        for s, m in ((6.0, 0.1), (10.0, 0.1), (10.0, 0.2), (16.0, 0.2), (16.0, 0.35), (30.0, 0.35))
    ],
    "arcface": [
        ({"scale": s, "m": m}, None)
        for s, m in ((6.0, 0.2), (10.0, 0.2), (10.0, 0.5), (16.0, 0.3), (16.0, 0.5), (30.0, 0.5))
    ],
    "combined": [
        ({"scale": s, "m1": m1, "m2": m2, "m3": m3}, None)
        for s, m1, m2, m3 in (
            (6.0, 1.0, 0.1, 0.05),
            (10.0, 1.0, 0.1, 0.1),
            (10.0, 1.0, 0.3, 0.2),
            (16.0, 1.0, 0.3, 0.2),
            (16.0, 1.2, 0.1, 0.1),
            (30.0, 1.0, 0.3, 0.2),
        )
    ],
}
HEADS = ("softmax", "l-softmax", "modified-softmax", "a-softmax", "normface", "cosface", "arcface", "combined")


def _base(study: str, task: str, stage: str) -> Spec:
    batch, lr = (512, 0.004) if task in CLOSED else (256, 0.003)
    width = 32 if task.startswith("omniglot") else 16
    return Spec(study, task, stage, "", lr=lr, epochs=EPOCHS[task], batch=batch, width=width)


def search(task: str) -> list[Spec]:
    """Open sets: eighteen settings a head. Closed sets: six, with the usual weight decay but for plain softmax."""
    base = _base("search", task, "select")
    found = []
    for head in HEADS:
        if head in SETTINGS:
            decays = (0.05,) if task in CLOSED else DECAYS
            found += [
                replace(base, head=head, set=values, lam_floor=floor, weight_decay=decay)
                for values, floor in SETTINGS[head]
                for decay in decays
            ]
        else:  # nothing to choose but the optimiser's numbers
            rates = (base.lr,) if task in CLOSED else (base.lr / 2, base.lr, 2 * base.lr)
            found += [
                replace(base, head=head, lr=lr, weight_decay=decay)
                for lr in rates
                for decay in (0.05, 0.2, 0.5, 1.0, 3.0, 6.0)
            ]
    return found


def value(result: dict[str, Any]) -> float:
    """What settings are chosen by: 1 − EER, or accuracy; −1 for a run that failed."""
    if result["broken"]:
        return -1.0
    test = result["test"]
    return 1 - test["eer"] if "eer" in test else test["accuracy"]


def best(results: Iterable[dict[str, Any]], task: str, head: str) -> Spec | None:
    """The setting that did best on the held-out part of the training data."""
    found = [r for r in results if (s := r["spec"])["study"] == "search" and (s["task"], s["head"]) == (task, head)]
    return Spec(**max(found, key=value)["spec"]) if found else None


def finals(results: list[dict[str, Any]], task: str, heads: Iterable[str] = HEADS) -> list[Spec]:
    """Three seeds of each head's best setting, trained on all training data."""
    chosen = [best(results, task, head) for head in heads]
    return [replace(s, study="final", stage="final", seed=seed) for s in chosen if s for seed in SEEDS]


def turns(results: list[dict[str, Any]]) -> list[Spec]:
    """Omniglot with quarter turns as classes, at the settings chosen without."""
    heads = "softmax", "normface", "arcface"
    return [
        replace(s, study="turns", task="omniglot-turns", epochs=EPOCHS["omniglot-turns"])
        for s in finals(results, "omniglot", heads)
    ]


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
