"""Which runs are made, and in which order: six settings per head, chosen by one seed, then three seeds of the best.

The order is that of their worth, so that a study that ends early has answered the first questions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.heads import loop
from benchmarks.heads.plan import value
from benchmarks.study.agenda import Agenda, Result

SEEDS = 0, 1, 2
EACH = 6  # settings per head
CONDITIONS = "clean", "noise20", "noise40", "tail"
NOISE = {"noise20": 0.2, "noise40": 0.4}
EPOCHS = {
    "clean": 12,
    "noise20": 12,
    "noise40": 12,
    "tail": 36,
}  # of the tail there is a third
RATE = 0.003

Setting = dict[str, Any]  # fields of a Spec


@dataclass(frozen=True)
class Spec(loop.Spec):
    """All that decides a run, with what was done to its training labels."""

    condition: str = "clean"


def _decays(rates: Sequence[float] = (RATE, 2 * RATE), **numbers: float) -> list[Setting]:
    """For heads whose scale is the length of the features: weight decay and learning rate."""
    return [{"set": dict(numbers), "weight_decay": d, "lr": r} for r in rates for d in (0.5, 3.0, 6.0)]


def _scales(*margins: dict[str, float], scales: Sequence[float] = (6.0, 12.0, 24.0)) -> list[Setting]:
    """For heads with a scale and a margin: three of the one, two of the other."""
    return [{"set": {"scale": s, **margin}} for s in scales for margin in margins]


def _two(low: float, high: float) -> list[Setting]:
    return _scales({"m": low}, {"m": high})


# A low margin and the paper's (ExpFace has none at m = 1). What successors have besides s and m stays at their
# papers' values.
SETTINGS: dict[str, list[Setting]] = {
    "softmax": _decays(),
    "l-softmax": [
        {"set": {"m": 4.0}, "lam_floor": floor, "weight_decay": d} for floor in (1.0, 5.0, 20.0) for d in (0.5, 3.0)
    ],
    "normface": [{"set": {"scale": s, "learn_scale": False}} for s in (4.0, 6.0, 8.0, 12.0, 16.0, 24.0)],
    "cosface": _two(0.1, 0.35),
    "arcface": _two(0.2, 0.5),
    "subcenter-arcface": _two(0.2, 0.5),
    "uniface": _two(0.1, 0.4),
    "curricularface": _two(0.2, 0.5),
    "mv-arcface": _two(0.2, 0.5),
    "sface": [{"set": {"a": a, "b": b}} for a in (0.5, 0.65, 0.8) for b in (1.23, 1.4)],  # AdamW undoes its s
    "adaface": _two(0.2, 0.4),
    "magface": _scales({"l_m": 0.15, "u_m": 0.3}, {"l_m": 0.45, "u_m": 0.8}),
    "elasticface-arc": _two(0.2, 0.5),
    "sphereface2": _two(0.2, 0.4),
    "circle": _scales({"m": 0.25}, {"m": 0.4}, scales=(16.0, 64.0, 256.0)),
    "li-arcface": _two(0.2, 0.45),
    "sphereface-r-v0": _two(1.2, 1.5),
    "expface": _two(0.7, 0.85),
    "ldam": _two(0.2, 0.5),
    "arcface-by-counts": _two(0.2, 0.5),
    "balanced-softmax": _decays(),
    "logit-adjustment": [*_decays((RATE,), tau=0.5), *_decays((RATE,), tau=1.5)],
}
ANCHORS = "softmax", "normface", "cosface", "arcface"
ASKED = "subcenter-arcface", "uniface", "curricularface", "mv-arcface"  # what they claim of noise
BY_COUNTS = "ldam", "balanced-softmax", "arcface-by-counts", "logit-adjustment"
OTHERS = tuple(head for head in SETTINGS if head not in (*ANCHORS, *ASKED, *BY_COUNTS))


def groups() -> list[tuple[str, str]]:
    """(condition, head) in the order of their worth. On equally frequent classes counts say nothing."""
    first = [(c, head) for c in ("clean", "noise40") for head in (*ANCHORS, *ASKED)]
    tail = [("tail", head) for head in (*ANCHORS, *BY_COUNTS)]
    second = [("noise20", head) for head in (*ANCHORS, *ASKED)]
    third = [(c, head) for c in ("clean", "noise40", "noise20") for head in OTHERS]
    return [*first, *tail, *second, *third, *(("tail", head) for head in (*ASKED, *OTHERS))]


@dataclass(frozen=True)
class Size:
    """How much is trained: the network's width, the batch, and the epochs as a multiple of EPOCHS."""

    width: int = 16
    batch: int = 256
    epochs: float = 1.0


def search(condition: str, head: str, size: Size) -> list[Spec]:
    """Six settings, trained on a part of the training alphabets and measured on the rest."""
    epochs = max(1, round(size.epochs * EPOCHS[condition]))
    base = Spec(
        "search", "omniglot", "select", head, lr=RATE, epochs=epochs, batch=size.batch, width=size.width,
        condition=condition,
    )  # fmt: skip
    return [replace(base, **setting) for setting in SETTINGS[head]]


def finals(searched: Sequence[Result]) -> list[Spec]:
    """Three seeds of the setting that did best, on all training data."""
    best = max(searched, key=value)
    if value(best) < 0:  # every setting failed
        return []
    return [replace(Spec(**best["spec"]), study="final", stage="final", seed=seed) for seed in SEEDS]


def agenda(wanted: Sequence[tuple[str, str]], size: Size, results: Sequence[Result]) -> Agenda:
    """The searches of heads under conditions, each followed by three seeds of the best setting."""
    return Agenda([search(condition, head, size) for condition, head in wanted], finals, results)
