"""A run's settings before hours of training: what the advisor knows, as checks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hypermargin import checks
from hypermargin.advise import band_width, largest_angle, loss_floor, recommend
from hypermargin.advise.usual import draw
from hypermargin.common.text import say
from hypermargin.data import split
from hypermargin.diagnose.findings import Finding, sorted_by_level
from hypermargin.diagnose.report import Report
from hypermargin.family import head_settings
from hypermargin.margins import MagFace, Margin, NoMargin
from hypermargin.rules import SOFTMAX
from hypermargin.scales import needed_scale, psi_at, smallest_scale
from hypermargin.settings import HeadSettings
from hypermargin.training.build import read_data, resolve_head
from hypermargin.training.by_counts import BY_CLASS, placeholder
from hypermargin.training.config import Config, from_dict, read_toml

SATURATED = 2.5  # times the advised scale
REACHED = 0.5  # the least probability, margin included, that a sample on its center has to reach in training
LARGE = 0.5  # a margin, in radians of the band at 90°, that wants a warm-up at a large scale
STEEP = 32.0


@dataclass(frozen=True)
class Planned:
    """What a run would train: its settings with s and m decided, for so many classes."""

    config: Config
    classes: int
    head: HeadSettings
    scale: float
    advised: bool  # s and m were left to the advisor

    @property
    def margin(self) -> Margin:
        """The head's margin."""
        return self.head.margin


def plan(config: Config, classes: int | None = None) -> Planned:
    """Decide s and m as the trainer does; the classes are counted in the data if not given."""
    if classes is None:
        data = read_data(config, say)
        classes = len(
            split(data, config.split, validation=config.validation, test=config.test, seed=config.seed).classes
        )
    checks.count("classes", classes, 2, checks.MOST_CLASSES)
    decided, reasons = resolve_head(config, classes)
    overrides = {name: value for name, value in decided.set.items() if name not in BY_CLASS}
    settings, _ = head_settings(decided.head, decided.dim, classes, overrides | placeholder(decided.head, classes))
    scale = float(needed_scale(_number(settings), settings.unit_features, classes, decided.dim, settings.margin))
    return Planned(decided, classes, settings, scale, bool(reasons))


def _number(settings: HeadSettings) -> float | str | None:
    given = settings.scale
    return given if isinstance(given, int | float) or given is None else "advised"


def diagnose_config(path: Path, classes: int | None = None) -> Report:
    """Check the settings in a TOML file; without `classes` the data are opened to count them."""
    planned = plan(from_dict(read_toml(path), str(path)), classes)
    return report(planned, path.name)


def report(planned: Planned, title: str) -> Report:
    """Return what is to be said of a plan."""
    config = planned.config
    found = sorted_by_level([*of_scale(planned), *_margin(planned), *_decay(planned), *_other(planned)])
    facts = (
        (
            "head",
            f"{config.head}: {planned.margin}, s = {planned.scale:.4g}"
            + (", as advised" if planned.advised else ""),
        ),
        ("size", f"{planned.classes:,} classes in {config.dim} dimensions"),
        ("centers", f"at most {_degrees(largest_angle(planned.classes, config.dim))} apart"),
    )
    verdict = (
        f"{len(found)} {'thing' if len(found) == 1 else 'things'} to look at" if found else "nothing to object"
    )
    return Report(title, verdict, facts, found)


def of_scale(planned: Planned) -> Iterator[Finding]:
    """Compare s with what so many classes need; a scale that is the feature's length cannot be compared."""
    if not planned.head.unit_features or planned.head.rule != SOFTMAX:
        return
    s, C, margin = planned.scale, planned.classes, planned.margin
    try:
        needed, advice = smallest_scale(C, REACHED, margin), recommend(C, planned.config.dim, margin=margin)
    except ValueError:
        return  # the margin cannot be met at all, which is said elsewhere
    if s < needed:
        best = math.exp(-loss_floor(C, s, margin))
        yield Finding(
            "scale-too-small", "wrong",
            f"s = {s:g} is too small for {C:,} classes: even a sample exactly on its center reaches a "
            f"probability of {best:.2g} in the loss, which never falls below {loss_floor(C, s, margin):.3g}.",
            f"s ≥ {needed:.1f} reaches {REACHED:g}; the advisor has {advice.s:g} (--set scale={advice.s:g}).",
            "CosFace's bound on s leaves the margin out",
        )  # fmt: skip
    elif s > SATURATED * advice.s:
        yield Finding(
            "scale-too-large", "doubtful",
            f"s = {s:g} is {s / advice.s:.2g} times the advised {advice.s:g} for {C:,} classes: typical samples "
            "get p ≈ 1 early and teach nothing, the rest pull with all their weight.",
            f"--set scale={advice.s:g}, or leave s out. The papers' 30 to 64 are for 10,000 classes and more.",
        )  # fmt: skip


def _margin(planned: Planned) -> Iterator[Finding]:
    margin, phi = planned.margin, largest_angle(planned.classes, planned.config.dim)
    if phi < math.pi / 3 and planned.classes > planned.config.dim + 1:
        yield Finding(
            "crowded", "doubtful",
            f"{planned.classes:,} centers in {planned.config.dim} dimensions are at most {_degrees(phi)} apart.",
            "Take a larger dim (--dim), unless you want a picture.",
        )  # fmt: skip
    if isinstance(margin, NoMargin) or planned.head.rule != SOFTMAX:
        return
    if psi_at(margin, 0.0) <= math.cos(phi):
        yield Finding(
            "margin-infeasible", "wrong",
            f"{margin} cannot be met: with centers {_degrees(phi)} apart even a sample on its center misses it.",
            f"ArcFace's m must stay below {phi:.3g}, CosFace's below {1 - math.cos(phi):.3g}; half of that is "
            f"much.",
        )  # fmt: skip
        return
    width = band_width(margin, phi)
    if width > phi / 2 * (1 + 1e-9):
        yield Finding(
            "margin-too-large", "doubtful",
            f"Between centers {_degrees(phi)} apart the band of {margin} is {_degrees(width)} wide, more than "
            "half: wider than the classes it leaves.",
            "Take a smaller m.",
        )  # fmt: skip
    warm = any(text.split(":")[0] in ("warmup", "lambda") for text in planned.config.schedule)
    if (
        band_width(margin, math.pi / 2) >= LARGE
        and planned.scale >= STEEP
        and not warm
        and planned.config.init is None
    ):
        yield Finding(
            "no-warm-up", "note",
            f"{margin} at s = {planned.scale:g} starts at a loss near {_first_loss(planned):.3g}, from random "
            "weights and at the full margin.",
            "If the angles do not move: --schedule warmup:steps=1000, or start from a run without a margin "
            "(--init).",
        )  # fmt: skip
    if isinstance(margin, MagFace) and margin.lambda_g < draw(margin, planned.scale):
        yield Finding(
            "lambda-g", "doubtful",
            f"λ_g = {margin.lambda_g:g} is below its bound {draw(margin, planned.scale):.3g} at this s: lengths "
            f"shrink.",
            errata="MagFace's default weight is below its own bound",
        )  # fmt: skip


def _first_loss(planned: Planned) -> float:
    """Return the loss when every angle is 90°, which is where random weights are."""
    return first_loss(planned.classes, planned.scale, planned.margin)


def first_loss(classes: int, scale: float, margin: Margin) -> float:
    """Return log(1 + (C − 1)·exp(−s·ψ(90°)))."""
    x = math.log(classes - 1) - scale * psi_at(margin, math.pi / 2)
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def _decay(planned: Planned) -> Iterator[Finding]:
    config = planned.config
    for name in ("weight_decay", "head_weight_decay"):
        decay = getattr(config, name)
        flag = f"--{name.replace('_', '-')}"
        if decay is None:
            continue
        if config.optimizer == "sgd" and decay >= 0.01:
            yield Finding(
                "decay-too-large", "doubtful",
                f"{name} = {decay:g} is AdamW's size: SGD adds it to the gradient at every step, and 5e-4 is "
                f"usual.",
                f"{flag} 5e-4",
            )  # fmt: skip
        if config.optimizer == "adamw" and 0 < decay < 5e-3:
            yield Finding(
                "decay-too-small", "note",
                f"{name} = {decay:g} is SGD's size: AdamW multiplies it with lr, and it then does next to nothing.",
                f"{flag} 0.05",
            )  # fmt: skip
    decays = (config.weight_decay, config.head_weight_decay)
    if not planned.head.unit_features and 0.0 in decays:
        yield Finding(
            "nothing-holds-lengths", "doubtful",
            "Features keep their length, which is the scale here, and no weight decay holds it: lengths grow "
            "instead of angles shrinking.",
            "Leave weight_decay out (the trainer takes 3 with AdamW where batch normalisation allows), or "
            "normalise.",
        )  # fmt: skip


def _other(planned: Planned) -> Iterator[Finding]:
    config = planned.config
    if config.precision == "float16" and not planned.head.unit_features:
        yield Finding(
            "float16-lengths", "doubtful",
            "With precision float16 and features of free length products overflow above 65,504.",
            "--precision bfloat16, or a head with unit features.",
        )  # fmt: skip
    if config.sample_rate < 1 and planned.classes < 10_000:
        yield Finding(
            "sampling-few", "note",
            f"sample_rate = {config.sample_rate:g} leaves out rivals of only {planned.classes:,} classes: it saves "
            "little, and hard rivals are missed.",
            "Leave sample_rate out below some 10,000 classes.",
        )  # fmt: skip
    if config.lr is not None and config.optimizer == "adamw" and config.lr > 0.02:
        yield Finding(
            "lr-of-sgd",
            "doubtful",
            f"lr = {config.lr:g} is SGD's size; AdamW's default here is 0.002.",
            "--lr 0.002",
        )
    if config.lr is not None and config.optimizer == "sgd" and config.lr < 1e-3:
        yield Finding(
            "lr-of-adamw", "note", f"lr = {config.lr:g} is AdamW's size; SGD's default is 0.1.", "--lr 0.1"
        )
    if config.batch is not None and config.batch * config.accumulate < 8:
        yield Finding(
            "batch-of-few", "note", f"A batch of {config.batch} rows: batch normalisation and statistics by "
            f"batch are noise.",
            "Sixteen or more, or --accumulate for the steps.",
        )  # fmt: skip


def _degrees(angle: float) -> str:
    return f"{math.degrees(angle):.3g}°"
