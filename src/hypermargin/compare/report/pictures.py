"""The pictures of a report: of all heads together, and of each of them side by side."""

from __future__ import annotations

import dataclasses
import json
import math
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hypermargin import margins
from hypermargin.compare.numbers import MEASURES
from hypermargin.compare.plan import Run
from hypermargin.compare.pool import is_done
from hypermargin.compare.results import Comparison
from hypermargin.margins import Margin, NoMargin
from hypermargin.plots import Display
from hypermargin.plots.angles import AnglesDisplay
from hypermargin.plots.boundary import BoundaryDisplay
from hypermargin.plots.comparison import (
    HeadsDetDisplay,
    HeadsNumberDisplay,
    HeadsPsiDisplay,
    HeadsRocDisplay,
    TrainingAnglesDisplay,
)
from hypermargin.plots.norms import NormsDisplay
from hypermargin.plots.psi import PsiDisplay
from hypermargin.plots.style import framed
from hypermargin.plots.verification import ScoresDisplay
from hypermargin.plots.weights import WeightsDisplay

LEGEND = 44  # characters


class Row(NamedTuple):
    """A kind of picture: its title, what to look for, and one display for each head that has it."""

    title: str
    words: str
    displays: Mapping[str, Display]


def trained_margin(about: dict[str, Any]) -> Margin:
    """Return the margin in a run's measures.json."""
    return margins.get(about["head"]["margin"])(**about["head"]["numbers"])


def places(found: Comparison) -> dict[str, int]:
    """Return the number of each head, by which its line looks the same in every picture."""
    return {head: k for k, head in enumerate(found.plan.heads)}


def summary(found: Comparison) -> Row | None:
    """Make the picture of the number that counts most: every head, every seed."""
    measure = next(
        (m for key in ("accuracy", "eer") for m in MEASURES if m.key == key and key in found.table), None
    )
    if measure is None:
        return None
    values = {head: list(cell.values.values()) for head, cell in found.table[measure.key].items()}
    side = "further right is better" if measure.better > 0 else "further left is better"
    words = f"Each stroke is a seed, the dot their mean, the bar one standard deviation either way; {side}."
    display = HeadsNumberDisplay(values, measure.title, measure.better, places(found))
    return Row(f"{measure.title[0].upper()}{measure.title[1:]} of every head", words, {"": display})


def together(found: Comparison) -> list[Row]:
    """Make the pictures that hold all heads."""
    first = {head: next(iter(seeds.values())) for head, seeds in found.measured.items() if seeds}
    rows = []
    curves: dict[str, Any] = {}
    lengths: dict[str, Any] = {}
    for run in found.plan.runs(found.folder):
        kept = found.arrays(run)
        if kept:
            curves.setdefault(run.head, []).append((kept["far"], kept["tar"], int(kept["impostors"])))
            if not first[run.head]["head"]["unit_weight"]:
                lengths.setdefault(run.head, kept["lengths"])
    if curves:
        words = "Mean and range over seeds. Further up is better; the left end shows how a head does where false "
        roc = HeadsRocDisplay.of(curves, places(found))
        rows.append(Row("ROC", f"{words}accepts must be rare.", {"": roc}))
        eer = next(measure for measure in MEASURES if measure.key == "eer")
        cells = {head: found.table["eer"][head] for head in curves}
        eers = {head: (cell.mean, cell.text(eer)) for head, cell in cells.items()}
        words = "Mean over seeds of both errors; further down and left is better. Dots: the EER of the table."
        rows.append(Row("DET", words, {"": HeadsDetDisplay(roc, eers)}))
    rows += _psi_rows(first, places(found))
    if lengths:
        words = "Heads with free weights can give a class more room by a longer weight, instead of by angle."
        display = WeightsDisplay(lengths, dict.fromkeys(lengths, False), title="", places=places(found))
        rows.append(Row("Lengths of the class weights", words, {"": display}))
    return rows


def _psi_rows(first: Mapping[str, dict[str, Any]], number: Mapping[str, int]) -> list[Row]:
    """Draw ψ and its slope, a line for all heads that have the same."""
    heads: dict[Margin, list[str]] = {}
    for head, about in first.items():
        heads.setdefault(trained_margin(about), []).append(head)
    if not heads:
        return []
    drawn = PsiDisplay.of(list(heads))
    lines = list(zip(heads.values(), drawn.curves, strict=True))
    values = {_folded(names): (number[names[0]], curve.values) for names, curve in lines}
    slopes = {_folded(names): (number[names[0]], curve.slopes) for names, curve in lines}
    words = "As trained: what each margin makes of the target's cosine."
    steep = "How hard a sample at that angle is pulled, before the softmax weighs it."
    return [
        Row("ψ(θ)", words, {"": HeadsPsiDisplay(drawn.theta, values, "target cosine ψ(θ)")}),
        Row("Slope of ψ(θ)", steep, {"": HeadsPsiDisplay(drawn.theta, slopes, "slope dψ/dθ, per radian")}),
    ]


def _folded(names: list[str]) -> str:
    """Return names as lines of a legend that is no wider than its picture."""
    return textwrap.fill(", ".join(names), LEGEND, break_long_words=False, break_on_hyphens=False)


def side_by_side(found: Comparison) -> list[Row]:
    """Make one picture per head, of its first seed that is done; training angles over all seeds.

    The pictures of a row have the same axes.
    """
    firsts: dict[str, tuple[Run, dict[str, Any]]] = {}
    for run in found.plan.runs(found.folder):
        if run.head not in firsts and (kept := found.arrays(run)):
            firsts[run.head] = run, kept
    bands: dict[str, Display] = {}
    for head, seeds in found.measured.items():
        for about in list(seeds.values())[:1]:
            margin = trained_margin(about)
            if not isinstance(margin, NoMargin):
                bands[head] = BoundaryDisplay.of(margin, math.pi / 2, circle=True, title="")
    angles, scores, norms = {}, {}, {}
    for head, (_, kept) in firsts.items():
        angles[head] = AnglesDisplay(kept["own"], kept["rival"], str(kept["against"]), title="")
        thresholds = {f"threshold of the {kept['threshold_part']} part": float(kept["threshold"])}
        scores[head] = ScoresDisplay(kept["edges"], kept["genuine"], kept["impostor"], thresholds, per=0.05)
        norms[head] = NormsDisplay(kept["norms"], kept["cosines"], float(kept["correlation"]))
    end = max((each.end for each in angles.values()), default=None)
    angles = {head: dataclasses.replace(each, until=end) for head, each in angles.items()}
    without = ", chosen without the test" if all(k["threshold_part"] != "test" for _, k in firsts.values()) else ""
    rows = [
        Row("The band between two classes 90° apart", "No sample of either class may lie in it.", bands),
        Row("Angles while training", "Means and their range over seeds. The own class must come below the others.",
            _training(found)),
        Row("Angles of the test samples", "To the own class, and to the nearest other one.", angles),
        Row("Scores of the test pairs", f"The line is the threshold for equal errors{without}.", scores),
        Row("Length and fit", "Does a short feature mean a poor image?", norms),
    ]  # fmt: skip
    return [row._replace(displays=framed(row.displays)) for row in rows if row.displays]


def _training(found: Comparison) -> dict[str, Display]:
    """Draw the angles while training, from the logs."""
    seen: dict[str, list[tuple[list[int], list[float], list[float]]]] = {}
    epochs: dict[str, int] = {}
    for run in found.plan.runs(found.folder):
        if is_done(run.folder):
            lines = [line for line in _log(run.folder) if line["kind"] == "train" and "angle" in line]
            columns = ([line[name] for line in lines] for name in ("step", "angle", "rival_angle"))
            seen.setdefault(run.head, []).append(tuple(columns))  # type: ignore[arg-type]  # three of them
            epochs[run.head] = lines[-1]["epoch"] if lines else 0
    displays: dict[str, Display] = {}
    for head, seeds in seen.items():
        steps = seeds[0][0]
        alike = [each for each in seeds if each[0] == steps]
        if len(steps) > 1:
            own, rival = (np.array([each[k] for each in alike]) for k in (1, 2))
            displays[head] = TrainingAnglesDisplay(np.array(steps) * (epochs[head] / steps[-1]), own, rival)
    return displays


def _log(folder: Path) -> Iterator[dict[str, Any]]:
    for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


def plane(found: Comparison) -> list[dict[str, Any]]:
    """Return, for the moving picture, by head the features at every epoch, three digits of them."""
    heads = []
    for run in found.plan.plane_runs(found.folder):
        kept = found.arrays(run)
        if not kept:
            continue
        features, prototypes = kept["features"], kept["prototypes"]
        right = kept.get("right")  # 0.1 did not keep it
        heads.append(
            {
                "head": run.head,
                "right": None if right is None or not np.isfinite(right).all() else _short(right),
                "epochs": [str(name) for name in kept["epochs"]],
                "labels": kept["labels"].tolist(),
                "names": [str(name) for name in kept["names"]],
                "features": [_short(frame) for frame in features],
                "directions": [
                    _short(p / np.linalg.norm(p, axis=1, keepdims=True).clip(1e-12)) for p in prototypes
                ],
            }
        )
    return heads


def _short(values: Any) -> list[float]:
    return [float(f"{value:.3g}") for value in values.reshape(-1).tolist()]
