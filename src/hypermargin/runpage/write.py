"""Put together what is known, and write it as a file beside the run or the evaluation."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hypermargin.common.environment import now
from hypermargin.evaluate import Evaluation, Thresholds, evaluate
from hypermargin.files import replacing, write_text
from hypermargin.runpage import run
from hypermargin.runpage.content import Subject, against_centers, angles, named, of_samples
from hypermargin.runpage.page import page
from hypermargin.training.evaluation import PARTS, Parts

REPORT, LOOK_FIRST = "report.html", "look-first.csv"
MOST = 5_000  # samples compared for the page of a run that has just ended: seconds
MOST_TRAINED = 2_000  # of its training samples
HEADING = "kind", "label", "other", "file", "own", "other_score"


def write_report(folder: Path, parts: Parts, thresholds: Thresholds | None = None, *, images: bool = True) -> Path:
    """Write RUN/report.html, and RUN/look-first.csv beside it, of the weights and data in `parts`.

    At most 5,000 samples are compared, in whole identities, and no intervals are computed; `hypermargin evaluate`
    does both in full. The part is the test part, or the next that has pairs.
    """
    trained, feed = parts.trained, parts.feed
    smaller = Parts(trained, parts.data, parts.split, feed=feed, most=min(parts.most, MOST))
    why = "it has no part with samples."
    content: dict[str, Any] = {}
    for part in PARTS:
        if len(smaller.rows(part)) == 0:
            continue
        try:
            features, labels = smaller.compared(part)
            result = evaluate(features, labels, confidence=None)
        except ValueError as error:  # no pairs of both kinds
            why = str(error)
            continue
        subject = subject_of(smaller, part, images=images)
        chosen = named(thresholds) if thresholds is not None else named(own_thresholds(result))
        content = of_samples(subject, result, chosen) | {"part": part, "angles": of_centers(subject)}
        content["chosen"] = None if thresholds is None else thresholds.part
        break
    about = of_run(folder, Parts(trained, parts.data, parts.split, feed=feed, most=MOST_TRAINED))
    whole = content | about | {"angles": about["angles"] + content.get("angles", [])}
    if not content:
        whole["why"] = why
    path = folder / REPORT
    write_text(path, page(whole))
    if content:
        write_list(folder / LOOK_FIRST, content["look"], file_of(smaller, whole["part"]))
    return path


def of_run(folder: Path, parts: Parts) -> dict[str, Any]:
    """Return what a page says of a run: its title, log, settings, head, and how its training samples stand."""
    trained = parts.trained
    found: dict[str, Any] = {
        "title": f"{trained.config.head} on {Path(trained.about.data['name']).name}",
        "step": trained.step, "date": now()[:10], "log": run.read_curves(folder),
        "settings": run.settings(trained.config), "head": run.of_head(trained), "angles": [],
    }  # fmt: skip
    found["vectors"] = run.class_vectors(trained)
    cloud = run.training_cloud(parts)
    if cloud is not None:
        found["cloud"] = cloud.as_plain()
        found["angles"] = [angles("prototypes", cloud)]
    return found


def of_centers(subject: Subject) -> list[dict[str, Any]]:
    """Return the angles of samples to the centers of their classes, where there are two of one."""
    cloud = against_centers(subject.features, subject.labels)
    return [] if cloud is None else [angles("centers", cloud)]


def subject_of(parts: Parts, part: str, *, images: bool) -> Subject:
    """Return a part of a run's data as it is compared, identities by name."""
    features, labels = parts.compared(part)
    rows = parts.compared_rows(part)
    image = run.image_of(parts.data, rows) if images else None
    return Subject(features, np.array(parts.data.classes)[labels], run.where_of(parts.data, rows), image)


def of_embeddings(subject: Subject, result: Evaluation, thresholds: Mapping[str, float]) -> dict[str, Any]:
    """Return what a page shows of anybody's embeddings."""
    found = of_samples(subject, result, thresholds) | {"angles": []}
    cloud = against_centers(subject.features, subject.labels)
    if cloud is not None:
        found |= {"angles": [angles("centers", cloud)], "cloud": cloud.as_plain()}
    return found


def own_thresholds(result: Evaluation) -> Thresholds:
    """Return thresholds chosen on the very pairs."""
    v = result.verification
    far = {f: v.thresholds[f] for f in v.supported}
    return Thresholds(v.threshold, far, "these", result.geometry.identities, v.genuine, v.impostor, 0)


def file_of(parts: Parts, part: str) -> Callable[[int], str]:
    """Return a function that names a sample as `train --exclude` wants it."""
    rows = parts.compared_rows(part)
    return lambda k: parts.data.where(int(rows[k]))


def write_list(path: Path, look: Mapping[str, Any], where: Callable[[int], str]) -> None:
    """Write what deserves a look as a .csv file; its column `file` names samples that may be another's.

    Names of identities are text to a spreadsheet; `file` stays as `train --exclude` reads it.
    """
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(HEADING)
        for d in look["duplicates"]:
            lines.writerow(("duplicate", as_text(d["first"]), as_text(d["second"]), "", d["within"], d["between"]))
        for m in look["mislabelled"]:
            label, other = as_text(m["label"]), as_text(m["other"])
            lines.writerow(("mislabelled", label, other, where(m["row"]), m["own"], m["theirs"]))
        for s in look["split"]:
            lines.writerow(("split", as_text(s["label"]), "", "", "", s["across"]))


def as_text(name: str) -> str:
    """Return a name that no spreadsheet takes for a formula: a space before = + - @, but not before a number."""
    if not name.startswith(("=", "+", "-", "@", "\t", "\r")):
        return name
    try:
        float(name)
    except ValueError:
        return f" {name}"
    return name
