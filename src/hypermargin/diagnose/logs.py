"""A run's log: what it says, each with the remedy. Reads text alone, and the class rows of the last checkpoint."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hypermargin import heads
from hypermargin.common.text import first_line
from hypermargin.diagnose.findings import Finding, sorted_by_level
from hypermargin.diagnose.report import Report
from hypermargin.diagnose.settings import Planned, first_loss, of_scale, plan
from hypermargin.margins import MagFace
from hypermargin.rules import SOFTMAX
from hypermargin.training.config import Config, read_config
from hypermargin.training.head_settings import read_schedules
from hypermargin.training.run import About
from hypermargin.training.watch import doubt_of_lengths

MOST_BYTES = 2**28  # of a log
MOST_CLASSES = 20_000  # whose rows are compared with each other
SHORT = 0.01  # of the median length: a row that has died
SAME = math.radians(10)  # of two classes' rows: they share a place


@dataclass(frozen=True)
class Log:
    """The lines of log.jsonl by their kind, and how many could not be read."""

    train: list[dict[str, Any]]
    validation: list[dict[str, Any]]
    unread: int = 0

    @classmethod
    def read(cls, path: Path) -> Log:
        """Read the file; ValueError if there is none, or nothing in it."""
        try:
            if path.stat().st_size > MOST_BYTES:
                raise ValueError(f"run: {path} has more than {MOST_BYTES:,} bytes.")
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError as error:
            raise ValueError(f"run: {path} cannot be read ({error.strerror}). Is it the folder of a run?") from None
        kinds: dict[str, list[dict[str, Any]]] = {"train": [], "validation": []}
        unread, strange = 0, list[dict[str, Any]]()
        for line in lines:
            try:
                record = json.loads(line)
                into = kinds.get(record["kind"])
                numbered = isinstance(record["step"], int) and isinstance(record["epoch"], int | float)
            except (ValueError, KeyError, TypeError, RecursionError):
                unread += 1
                continue
            if into is not None:
                (into if numbered else strange).append(record)
        if not kinds["train"]:
            raise ValueError(f"run: {path} has no line of training yet.")
        return cls(kinds["train"], kinds["validation"], unread + len(strange))

    def of(self, name: str) -> list[float]:
        """Return a number of the training lines, where it is one."""
        return [float(line[name]) for line in self.train if isinstance(line.get(name), int | float)]


def diagnose_run(folder: Path) -> Report:
    """Say what the log of a run tells, and what to do about it."""
    if not (folder / "config.toml").is_file():
        raise ValueError(f"run must be the folder of a run; {folder} has no config.toml, which every run has.")
    config = read_config(folder)
    if not (folder / "log.jsonl").exists() and _diverged(folder):
        return Report(folder.name, "1 thing to look at", (("log", "none yet"),), tuple(_finite(folder, None)))
    log = Log.read(folder / "log.jsonl")
    try:
        classes = len(About.read(folder).classes)
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"run: {first_line(error)}") from None
    planned = plan(config, max(classes, 2))
    last = log.train[-1]
    partly = list(_schedules(config, int(last["step"])))  # the margin is not all there yet: it is not asked whether
    asked = [] if partly else [*_met(planned, log), *_fold(log)]  # it is met, or too large
    found = [
        *_finite(folder, log), *of_scale(planned), *_stuck(planned, log), *_angles(log), *asked,
        *_lengths(planned, log), *partly, *_best(log), *_rows(folder, planned),
    ]  # fmt: skip
    if log.unread:
        found.append(Finding("lines-unread", "note", f"{log.unread} lines of the log could not be read."))
    facts = [
        (
            "head",
            f"{config.head}: {planned.margin}, s = {planned.scale:.4g}, {classes:,} classes, dim {config.dim}",
        ),
        ("log", f"{len(log.train)} lines of training, to step {last['step']:,}, epoch {last['epoch']}"),
    ]
    seen = {name: last[name] for name in ("loss", "accuracy", "angle", "rival_angle") if last.get(name) is not None}
    if seen:
        facts.append(("last", ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in seen.items())))
    ordered = sorted_by_level(found)
    verdict = (
        f"{len(ordered)} {'thing' if len(ordered) == 1 else 'things'} to look at"
        if ordered
        else "nothing to object"
    )
    return Report(folder.name, verdict, tuple(facts), ordered)


def _diverged(folder: Path) -> list[Path]:
    """Return the batches that were kept because their loss was not finite."""
    return sorted(folder.glob("diverged-step-*.pt"))


def _finite(folder: Path, log: Log | None) -> Iterator[Finding]:
    kept = _diverged(folder)
    if kept:
        yield Finding(
            "diverged", "wrong", f"The loss was not finite; the batch is in {kept[-1].name}.",
            "The error of that run names the rows and the likely reason. Lower --lr, lengthen --lr-warmup, set "
            "--clip, or take bfloat16 instead of float16.",
        )  # fmt: skip
    elif log is not None and any(line.get("loss", 0.0) is None for line in log.train):
        yield Finding("diverged", "wrong", "Some lines of the log have a loss that is not finite.")


def _stuck(planned: Planned, log: Log) -> Iterator[Finding]:
    """A loss where it was at the beginning: ln C without a margin, more with one."""
    losses, right = log.of("loss"), log.of("accuracy")
    if len(losses) < 3 or not planned.head.unit_features or planned.head.rule != SOFTMAX:
        return
    start = first_loss(planned.classes, planned.scale, planned.margin)
    late = float(np.mean(losses[-max(1, len(losses) // 4) :]))
    guessing = 1 / planned.classes
    known = float(np.mean(right[-max(1, len(right) // 4) :])) if right else math.nan
    if late > 0.85 * start and not known > 5 * guessing + 0.05:
        yield Finding(
            "stuck", "wrong",
            f"The loss is where it begins: {late:.3g}, and {start:.3g} is that of features at 90° to every class "
            f"(ln C = {math.log(planned.classes):.3g}, and the margin); {100 * known:.2g} % are right.",
            f"{_other_lr(planned.config, log)} --schedule warmup:steps=…; a smaller m; are the labels right?",
        )  # fmt: skip


def _other_lr(config: Config, log: Log) -> str:
    """Say which learning rate to try: that of a run that did not move was too small, or so large that it jumps."""
    usual = {"sgd": 0.1}.get(config.optimizer, 0.002)
    seen = max(log.of("lr"), default=config.lr or usual)
    if seen < usual / 100:
        return f"A larger --lr: {seen:.2g} is far below the usual {usual:g}."
    if seen > usual * 10:
        return f"A lower --lr: {seen:.2g} is far above the usual {usual:g}."
    return "A lower --lr or a longer --lr-warmup if the loss jumps, a larger --lr if it is flat;"


def _angles(log: Log) -> Iterator[Finding]:
    own, rival = log.of("angle"), log.of("rival_angle")
    if len(own) < 3 or len(rival) != len(own):
        return
    if abs(own[-1] - own[0]) < 2 and own[-1] > 60:
        yield Finding(
            "angles-still", "wrong",
            f"The mean angle to the own class went from {own[0]:.1f}° to {own[-1]:.1f}°: nothing turns.",
            "A larger --lr if the loss is flat, a lower one if it jumps; see that the network's weights are "
            "trained.",
        )  # fmt: skip


def _met(planned: Planned, log: Log) -> Iterator[Finding]:
    own, rival = log.of("angle"), log.of("rival_angle")
    margin = planned.margin
    if len(own) >= 3 and len(rival) == len(own) and planned.head.rule == SOFTMAX:
        with torch.no_grad():
            psi = margin.psi(torch.tensor(own, dtype=torch.float64).deg2rad()).numpy()
        met = psi >= np.cos(np.radians(rival))
        if margin.m is not None and not met.any():
            yield Finding(
                "margin-not-met", "doubtful",
                f"The margin was met at no line of the log: at the end the mean own angle is {own[-1]:.1f}°, "
                "which with the margin counts as "
                f"{_as_angle(float(psi[-1]))}, and the nearest rival is at {rival[-1]:.1f}°.",
                "More epochs or a larger network first; then a smaller m.",
            )  # fmt: skip


def _as_angle(psi: float) -> str:
    return f"{math.degrees(math.acos(psi)):.1f}°" if -1 <= psi <= 1 else "more than 180°"


def _fold(log: Log) -> Iterator[Finding]:
    folded = log.of("past_fold")
    late = float(np.mean(folded[-max(1, len(folded) // 4) :])) if folded else 0.0
    if late > 0.05:
        yield Finding(
            "past-the-fold", "doubtful",
            f"{100 * late:.2g} % of the samples are so far from their class that the margin passes 180°.",
            "The m is too large for these data, or labels are wrong: look at these samples (hypermargin evaluate).",
        )  # fmt: skip


def _lengths(planned: Planned, log: Log) -> Iterator[Finding]:
    middle = log.of("norm_p50")
    if len(middle) >= 3 and middle[0] > 0:
        grown = middle[-1] / middle[0]
        if grown > (3 if not planned.head.unit_features else 20):
            yield Finding(
                "lengths-run-away", "doubtful",
                f"The features' median length grew {grown:.3g}-fold, to {middle[-1]:.3g}.",
                "Harmless to normalised heads, but float16 overflows and the gradient by the features falls "
                "with 1/|x|: more --weight-decay, or --precision bfloat16."
                if planned.head.unit_features
                else "Length is the scale here: more --weight-decay, or a head with unit features.",
            )  # fmt: skip
        if middle[-1] < 1e-2:
            yield Finding(
                "lengths-vanish", "doubtful", f"The features' median length is {middle[-1]:.2g}: direction "
                f"becomes noise.",
                "Less --weight-decay.",
            )  # fmt: skip
    if isinstance(planned.margin, MagFace) and log.of("norm_p10"):
        low, high = log.of("norm_p10")[-1], log.of("norm_p90")[-1]
        if high < planned.margin.l_a or low > planned.margin.u_a:
            yield Finding(
                "lengths-outside", "doubtful",
                f"Lengths of {low:.3g} to {high:.3g} lie outside of MagFace's {planned.margin.l_a:g} to "
                f"{planned.margin.u_a:g}, so all samples get the same margin.",
                "Set l_a and u_a by norm_p10 and norm_p90 of the log.",
            )  # fmt: skip
    follows = log.of("length_angle")
    doubt = doubt_of_lengths(planned.margin, follows[-1]) if follows else None
    if doubt:
        yield Finding("lengths-against-angles", "doubtful", doubt)


def _schedules(config: Config, step: int) -> Iterator[Finding]:
    """Say where λ is still high at the last step."""
    from hypermargin.recipes import FAMILY, named

    schedules = read_schedules(config.schedule)
    if schedules is None:
        recipe = FAMILY[named(config.head, config.set)[0]]
        schedules = [recipe.schedule()] if recipe.schedule and "lam" not in config.set else []
    at = torch.tensor(float(max(step, 1)))
    for schedule in schedules:
        asked = schedule.at(at)
        lam, strength = float(asked.lam), float(asked.strength)
        if lam > 10:
            yield Finding(
                "lambda-high", "doubtful",
                f"λ is still {lam:.4g} at step {step:,}: the margin counts for 1/{1 + lam:.3g} of what it is.",
                "Let λ fall faster: --schedule lambda:base=1000,gamma=0.12,floor=5 reaches 5 after 1,659 steps.",
            )  # fmt: skip
        if strength < 0.5:
            yield Finding(
                "still-warming-up", "doubtful",
                f"The margin is at {100 * strength:.0f} % of its size at step {step:,}, by the schedule.",
                "A warm-up that ends within the run.",
            )  # fmt: skip


def _best(log: Log) -> Iterator[Finding]:
    """Say where the validation part was best long ago."""
    for name, better in (("eer", -1), ("accuracy", 1)):
        values = [
            (float(line[name]), int(line["epoch"])) for line in log.validation if isinstance(line.get(name), float)
        ]
        if len(values) < 4:
            continue
        best = max(values, key=lambda pair: better * pair[0])
        last = values[-1]
        if best[1] <= last[1] / 2 and abs(best[0] - last[0]) > 0.1 * max(
            abs(1 - best[0] if better > 0 else best[0]), 1e-3
        ):
            yield Finding(
                "best-long-ago", "note",
                f"On the validation part {name} was best in epoch {best[1]} of {last[1]} ({best[0]:.4g}, now "
                f"{last[0]:.4g}).",
                "It overfits: --augment affine, more --weight-decay, fewer --epochs.",
            )  # fmt: skip
        return


def _rows(folder: Path, planned: Planned) -> Iterator[Finding]:
    """Look at the class rows themselves: dead ones, and classes that share a place."""
    try:
        weights = heads.read(folder, allow_older=True)
    except Exception as error:  # no checkpoint yet, or one of another network: the log is what was asked about
        yield Finding("rows-unread", "note", f"The class rows were not looked at: {first_line(error)}.")
        return
    W = weights.weight.float()
    lengths = W.norm(dim=1)
    dead = int((lengths < SHORT * lengths.median()).sum())
    if dead:
        yield Finding(
            "dead-centers", "doubtful",
            f"{dead:,} of {len(W):,} class rows are shorter than a hundredth of the median: no sample pulls at "
            f"them.",
            "Classes without samples, or with sampled classes ones that were never drawn: leave them out "
            "(hypermargin head remove).",
        )  # fmt: skip
    if weights.centers > 1 or len(W) > MOST_CLASSES:
        return
    W = W / lengths.clamp(min=1e-12)[:, None]
    closest = torch.stack([(row @ W.T).scatter(0, torch.tensor(k), -1.0).max() for k, row in enumerate(W)])
    together = int((closest > math.cos(SAME)).sum())
    if together:
        yield Finding(
            "classes-together", "doubtful",
            f"{together:,} classes have another class within {math.degrees(SAME):.0f}° of their row: perhaps the "
            "same identity twice.",
            "hypermargin head merge joins them; look at their images first.",
        )  # fmt: skip
