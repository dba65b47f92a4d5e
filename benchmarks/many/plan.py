"""Which runs are made: for every head as many settings, chosen on identities of their own, then three seeds.

Questions are worth more the earlier they stand in QUESTIONS: a study that ends early has answered the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.heads import loop
from benchmarks.heads.plan import MULTIPLICATIVE
from benchmarks.study.agenda import Agenda, Result
from hypermargin.advise import recommend

SEEDS = 0, 1, 2
EACH = 8  # settings per head
COUNTS = 500, 1000, 2000, 4000, 8000, 16_000, 28_000  # training identities
QUESTIONS = "gain", "ladder", "imbalance", "scale", "published"
HEADS = (
    "softmax", "normface", "arcface", "cosface", "normface-learned", "a-softmax", "combined", "curricularface",
    "sphereface2",
)  # fmt: skip
LADDER = "sum-hinge", "max-hinge", "lse-hinge", "softplus-hinge", "cosface"
IMBALANCE = "softmax", "modified-softmax", "balanced-softmax", "normface", "arcface"
MARGINS: dict[str, tuple[dict[str, float], dict[str, float]]] = {  # a low one and the papers'
    "cosface": ({"m": 0.15}, {"m": 0.35}),
    "arcface": ({"m": 0.25}, {"m": 0.5}),
    "combined": ({"m1": 1.0, "m2": 0.15, "m3": 0.1}, {"m1": 1.0, "m2": 0.3, "m3": 0.2}),
    "curricularface": ({"m": 0.25}, {"m": 0.5}),
    "sphereface2": ({"m": 0.2}, {"m": 0.4}),
    **dict.fromkeys(LADDER[:4], ({"m": 0.15}, {"m": 0.35})),
}
FREE = "softmax", "modified-softmax", "balanced-softmax"  # whose scale is the length of the features
DECAYS, RATES = (0.05, 0.5, 2.0, 4.0), (0.001, 0.003)
RATE, DECAY = 0.003, 0.05
SCALES = 0.7, 1.0, 1.4  # of the advised s
MAP_SCALES, MAP_MARGINS = (4.0, 8.0, 16.0, 24.0, 32.0, 48.0, 64.0), (0.0, 0.1, 0.2, 0.35, 0.5)
CHOSEN_BY = "tar0.0001"  # on the held identities, in unseen typefaces


@dataclass(frozen=True)
class Spec(loop.Spec):
    """All that decides a run."""

    model: str = "iresnet18"  # or lenet++, of `width`
    head_decay: float | None = None  # weight decay of the class weights; None: as the network
    tail: bool = False  # 2 to 20 images per identity, as in the study of the successors
    least_steps: int = 0  # epochs are added until there are so many


@dataclass(frozen=True)
class Size:
    """How much is trained."""

    model: str = Spec.model
    width: int = 32
    dim: int = 256
    batch: int = 1024
    epochs: int = 8
    least_steps: int = 1500
    precision: str = "bfloat16"
    counts: tuple[int, ...] = COUNTS
    seeds: tuple[int, ...] = SEEDS


def advised(head: str, classes: int, dim: int) -> float:
    """The scale that the advisor names for this head, or for the margin that it is made of."""
    name = {"curricularface": "arcface", "sphereface2": "cosface", "normface-learned": "normface"}.get(head, head)
    return float(recommend(classes, dim, margin="cosface" if name.endswith("-hinge") else name).s)


def advised_margin(head: str, classes: int, dim: int) -> float:
    """The m that the advisor names for this head; 0 for one without a margin."""
    return 0.0 if head == "normface" else float(getattr(recommend(classes, dim, margin=head).margin, "m", 0.0))


def settings(head: str, classes: int, dim: int) -> list[dict[str, Any]]:
    """Eight settings, as fields of a Spec, the same number for every head."""
    if head in FREE:
        return [{"weight_decay": d, "lr": r} for d in DECAYS for r in RATES]
    if head == "a-softmax":
        chosen = [MULTIPLICATIVE[k] for k in (0, 1, 3, 4)]
        return [{"set": dict(m), "lam_floor": floor, "weight_decay": d} for m, floor in chosen for d in (0.5, 2.0)]
    s = advised(head, classes, dim)
    if head == "normface-learned":
        found: list[dict[str, Any]] = [
            {"set": {"scale": s}, "weight_decay": d, "lr": r} for d in (0.05, 0.5) for r in RATES
        ]
        return found + [{"set": {"scale": f * s}, "weight_decay": d} for d in (0.05, 0.5) for f in (0.5, 2.0)]
    if head == "normface":
        return [
            {"set": {"scale": f * s, "learn_scale": False}, "weight_decay": d}
            for f in (0.5, 0.7, 1.0, 1.4)
            for d in (0.05, 0.5)
        ]
    low, high = MARGINS[head]
    found = [{"set": {"scale": f * s, **m}} for f in SCALES for m in (low, high)]
    found += [{"set": {"scale": s, **high}, "weight_decay": 0.5}, {"set": {"scale": s, **high}, "head_decay": 0.5}]
    return found


def search(question: str, head: str, classes: int, size: Size) -> list[Spec]:
    """The settings of a head at so many training identities, measured on the held identities."""
    base = Spec(
        f"{question} search", "glyphs", "select", head, lr=RATE, weight_decay=DECAY, epochs=size.epochs,
        batch=size.batch, identities=classes, width=size.width, dim=size.dim, precision=size.precision,
        model=size.model, least_steps=size.least_steps, tail=question == "imbalance",
    )  # fmt: skip
    return [replace(base, **each) for each in settings(head, classes, size.dim)]


def scale_map(head: str, classes: int, size: Size) -> list[Spec]:
    """Every s with every m, one seed, on the held identities: what the advisor's rule is held against."""
    base = replace(search("scale", "normface", classes, size)[0], study="scale map", weight_decay=DECAY)
    found = []
    for s in MAP_SCALES:
        for m in MAP_MARGINS if head != "normface" else (0.0,):
            numbers: dict[str, Any] = {"scale": s}
            numbers |= {"m": m} if head != "normface" else {"learn_scale": False}
            found.append(replace(base, head=head, set=numbers))
    return found


def value(result: Result) -> float:
    """What settings are chosen by; 1 − EER where pairs are too few for that; −1 for a run that failed."""
    if result["broken"]:
        return -1.0
    test = result["test"]
    return float(test[CHOSEN_BY] if CHOSEN_BY in test else 1 - test["eer"])


def finals(searched: Sequence[Result], seeds: Sequence[int] = SEEDS) -> list[Spec]:
    """The seeds of the setting that did best, measured on the test; none after a map."""
    if not searched or not searched[0]["spec"]["study"].endswith(" search"):
        return []
    best = max(searched, key=value)
    if value(best) < 0:  # every setting failed
        return []
    spec = Spec(**best["spec"])
    study = spec.study.removesuffix(" search")
    return [replace(spec, study=study, stage="final", seed=seed) for seed in seeds]


def searches(questions: Sequence[str], heads: Sequence[str], available: int, size: Size) -> list[list[Spec]]:
    """The searches of the questions, those of the largest number of classes before the ones between."""
    counts = [c for c in size.counts if c <= available]
    if not counts:
        raise ValueError(f"there are {available} identities to train on, fewer than the {min(size.counts)} asked.")
    order = [counts[-1], counts[0], *counts[1:-1]] if len(counts) > 1 else counts
    middle = min(counts, key=lambda c: abs(c - 4000))
    found = list[list[Spec]]()
    for question in questions:
        if question == "gain":
            found += [search(question, head, c, size) for c in order for head in HEADS if head in heads]
        elif question == "ladder":
            large = max(c for c in counts if c <= 16_000 or c == counts[0])
            found += [search(question, head, large, size) for head in LADDER if head in heads or head not in HEADS]
        elif question == "imbalance":
            found += [search(question, head, middle, size) for head in IMBALANCE]
        elif question == "scale":
            found += [scale_map(head, c, size) for c in order for head in ("normface", "arcface", "cosface")]
    return found


def agenda(chosen: list[list[Spec]], seeds: Sequence[int], results: Sequence[Result]) -> Agenda:
    """The searches, each followed by seeds of its best setting."""
    return Agenda(chosen, lambda searched: finals(searched, seeds), results)
