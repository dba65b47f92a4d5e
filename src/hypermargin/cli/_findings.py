"""What `hypermargin evaluate` says of a run's part, of embeddings, of pairs: for the screen, for JSON, to draw."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from hypermargin.cli._tables import Section
from hypermargin.common.arrays import Values, to_numpy
from hypermargin.common.text import say
from hypermargin.data import Feed, Pairs
from hypermargin.evaluate import Thresholds, Verification, evaluate, from_scores, kfold, operating
from hypermargin.evaluate.files import Scored
from hypermargin.evaluate.report import SAME_LENGTH, verification_dict, verification_rows
from hypermargin.runpage.content import Subject, named, of_verification
from hypermargin.runpage.write import file_of, of_embeddings, of_run, subject_of
from hypermargin.training import Trained
from hypermargin.training.evaluation import (
    Parts,
    classify,
    features_of,
    kept_promises,
    lengths_against_angles,
    lengths_against_images,
    margin_of,
    prototypes,
)
from hypermargin.training.pairs import UNNAMED, familiar, score_pairs


@dataclass
class Findings:
    """Sections to show, a document to write, and what pictures need."""

    confidence: float | None
    sections: list[Section] = field(default_factory=list)
    document: dict[str, Any] = field(default_factory=dict)
    verification: Verification | None = None
    thresholds: dict[str, float] = field(default_factory=dict)
    samples: tuple[Values, Values] | None = None  # features of different lengths, and their labels
    unit: str = "cosine"
    images: bool = True  # small pictures of samples in the page
    page: dict[str, Any] = field(default_factory=dict)  # what the page shows, as far as it is known
    where: Callable[[int], str] | None = None  # a sample's file, for the list of what deserves a look

    def add_part(self, folder: Path, parts: Parts, part: str, known: Thresholds | None) -> None:
        """Add a part of a run's data; for classes that the head knows also what it takes them for."""
        all_rows, rows = getattr(parts.split, part), parts.rows(part)
        if len(rows) < len(all_rows):
            say(f"of the {part} part's {len(all_rows):,} samples {len(rows):,} are taken, in whole identities")
        familiar = not parts.split.open_set or part == "train"
        if familiar:
            features, rows = parts.features(part)
            self._add_classes(parts.trained, features, parts.split.targets(parts.data.labels)[rows])
        try:
            features, labels = parts.compared(part)
            options: dict[str, Any] = {}
            if familiar:
                head, labels = parts.trained.head, parts.split.targets(labels)
                if (weight := prototypes(head)) is not None:
                    options = {"prototypes": weight, "margin": margin_of(head)}
            subject = subject_of(parts, part, images=self.images)
            self.add_samples(features, labels, known, f"the {part} part", subject, **options)
            self.where = file_of(parts, part)
            self.page["part"] = part
        except ValueError as error:
            if not familiar:
                raise ValueError(f"the {part} part: {error}") from None
            say(f"the {part} part has no pairs to compare: {error}")
        if len(parts.split.train):
            self._add_lengths(parts, part)
        try:
            self._add_training(parts)
        except ValueError as error:
            say(f"the training samples are not looked at: {error}")
        for bad in parts.feed.bad.values():
            say(f"left out: {bad}")
        found = of_run(folder, parts)
        self.page |= found | {"angles": found["angles"] + self.page.get("angles", [])}

    def _add_classes(self, trained: Trained, features: Tensor, targets: Any) -> None:
        found = classify(trained, features, targets)
        self.document["classification"] = dataclasses.asdict(found)
        lines = [
            ("samples", f"{found.samples:,}"),
            ("accuracy", f"{100 * found.accuracy:.2f} %"),
            ("loss, without margin", f"{found.loss:.4f}"),
            *(("confused", f"{a} taken for {b}: {count:,}") for a, b, count in found.confused),
        ]
        self.sections.append(Section("classification", (), lines))

    def _add_lengths(self, parts: Parts, part: str) -> None:
        """Add whether longer features lie closer to their class, and a warning where a margin supposes it.

        Of images also whether they are the sharper ones, which this part says without having been trained on.
        """
        found = lengths_against_angles(parts)
        elsewhere = found.images if part == "train" else lengths_against_images(parts, part)
        self.document["length_angle"] = dataclasses.asdict(found) | {
            "images": {"train": found.images, part: elsewhere}
        }
        closer = "longer features lie closer" if found.angle < 0 else "longer features do not lie closer"
        line = f"{found.angle:+.3f} ({closer})" if found.angle else "0: the lengths do not differ"
        title = f"length of the feature, {found.samples:,} training samples"
        lines = [("correlation with the angle to the own class", line)]
        for name, value in found.images.items():
            also = f", {elsewhere[name]:+.3f} in the {part} part" if name in elsewhere else ""
            lines.append((f"rank correlation with the image's {name}", f"{value:+.3f}{also}"))
        self.sections.append(Section(title, (), lines))
        if found.doubt:
            say(f"warning: {found.doubt}")

    def _add_training(self, parts: Parts) -> None:
        """Add whether training did what it promised to the samples it was done with."""
        found = kept_promises(parts)
        near, norms = found.prototypes, found.norms
        assert near is not None  # they were given
        self.document["training"] = {
            "samples": found.samples,
            "of": len(parts.split.train),
            "met": near.met,
            "nearer_to_own": near.accuracy,
            "separated": found.separated,
            "norms": {"mean": norms.mean, "within": norms.within, "between": norms.between},
        }
        lines = [
            ("samples", f"{found.samples:,} of {len(parts.split.train):,}"),
            (
                f"meet the margin {parts.trained.head.margin}",
                "not known: every class has its own" if near.met is None else f"{100 * near.met:.2f} %",
            ),
            ("nearer to their own prototype", f"{100 * near.accuracy:.2f} %"),
            ("classes farther apart than wide", f"{100 * found.separated:.2f} %"),
            ("mean norm", f"{norms.mean:.4g}"),
            ("spread of norms within classes", f"{100 * norms.within:.1f} %"),
            ("spread of norms between classes", f"{100 * norms.between:.1f} %"),
        ]
        self.sections.append(Section("the training samples: was the promise kept?", (), lines))

    def add_samples(
        self,
        features: Tensor,
        labels: Values,
        known: Thresholds | None,
        what: str,
        subject: Subject | None = None,
        **options: Any,
    ) -> None:
        """Add all about labelled features, at `known` thresholds or their own; `options` as in `evaluate`.

        The `subject` says what the page may tell of the samples; without it, their numbers.
        """
        result = evaluate(features, labels, confidence=self.confidence, **options)
        v, g = result.verification, result.geometry
        own = Thresholds(
            v.threshold, {f: v.thresholds[f] for f in v.supported}, what, g.identities, v.genuine, v.impostor, 0
        )
        chosen = known or own
        points = operating(chosen, v.curve)
        self.verification, self.thresholds = v, _named(chosen)
        self.samples = (features, labels) if max(g.norms.within, g.norms.between) >= SAME_LENGTH else None
        self.page |= of_embeddings(subject or Subject(features, to_numpy(labels)), result, named(chosen))
        self.page["chosen"] = None if known is None else known.part
        self.document |= result.to_dict()
        supports = {far: chosen.support(far) for far in chosen.far}
        self.document["thresholds"] = {
            "chosen_on": chosen.part,
            "impostor": chosen.impostor,
            "support": {far: dataclasses.asdict(each) for far, each in supports.items()},
            "points": [dataclasses.asdict(point) for point in points],
        }
        rows = result.rows()
        for group in dict.fromkeys(row[0] for row in rows):
            if group != "verification":
                self.sections.append(Section(group, (), [row[1:3] for row in rows if row[0] == group]))
                continue
            title = f"verification: {what}, {g.samples:,} samples of {g.identities:,} identities"
            self.sections.append(Section(title, self._columns(), [row[1:] for row in rows if row[0] == group]))
            where = "the same pairs, which flatters them"
            if known is not None and f"the {known.part} part" != what:
                where = f"the {known.part} part ({known.impostor:,} impostor pairs), measured on {what}"
            columns = "chosen for", "cosine", "angle", "squared L2", "FAR", "TAR"
            title = f"thresholds chosen on {where}"
            self.sections.append(Section(title, columns, [point.cells() for point in points]))
        if few := [(f"FAR {s.far:g}", s.rests_on()) for s in supports.values() if not s.enough]:
            self.sections.append(Section("thresholds that rest on few pairs", (), few))

    def add_pairs(self, name: str, pairs: Pairs, trained: Trained) -> None:
        """Add pairs of images, and whether the training set knows people of theirs."""
        feed = Feed(pairs.samples, trained.head.weight.device, on_bad=trained.config.on_bad)
        scored = score_pairs(pairs, *features_of(trained, feed, np.arange(len(pairs.samples))))
        found = from_scores(scored.scores, scored.same, identities=scored.identities, confidence=self.confidence)
        document = self._add_given(name, found, scored)
        known = familiar(pairs, trained.classes)
        say(f"{name}: {known or UNNAMED}")
        document["of_the_training_set"] = known and dataclasses.asdict(known)
        self.document.setdefault("pairs", {})[name] = document
        for bad in (*pairs.bad, *feed.bad.values()):
            say(f"left out: {bad}")

    def add_scores(self, given: Scored, unit: str = "score", name: str = "") -> None:
        """Add somebody's scores, of whatever unit; those of one of several lists of pairs by its name."""
        self.unit = unit
        found = from_scores(given.scores, given.same, identities=given.identities, confidence=self.confidence)
        document = self._add_given(name or "verification", found, given)
        if name:
            self.document.setdefault("pairs", {})[name] = document
        else:
            self.document |= document
        if found.auc < 0.5:
            say("impostors score higher than genuine pairs. Are these distances? Higher has to mean more alike.")
        self.verification = found
        far = {f: found.thresholds[f] for f in found.supported}
        self.page |= of_verification(found, {"eer": found.threshold, **{f"{f:g}": t for f, t in far.items()}}, unit)
        self.thresholds = _named(Thresholds(found.threshold, far, "", 0, found.genuine, found.impostor, 0))

    def _add_given(self, title: str, found: Verification, given: Scored) -> dict[str, Any]:
        rows = [row[1:] for row in verification_rows(found, self.unit)]
        document = {"verification": verification_dict(found, self.confidence)}
        if given.fold is not None or len(given.scores) >= 10:
            folds = kfold(given.scores, given.same, given.fold)
            document["folds"] = dataclasses.asdict(folds)
            kind = f"its {len(folds.accuracies)}" if given.fold is not None else "ten contiguous"
            rows.append(
                (f"accuracy over {kind} folds", f"{100 * folds.accuracy:.2f} ± {100 * folds.error:.2f} %", "")
            )
        whose = "identities" if given.identities else "pairs"
        title += f", intervals over {whose}" if self.confidence else ""
        self.sections.append(Section(title, self._columns(), rows))
        return document

    def _columns(self) -> tuple[str, ...]:
        return ("", "", f"{100 * self.confidence:g} % interval") if self.confidence else ()


def _named(chosen: Thresholds) -> dict[str, float]:
    return {"equal errors": chosen.eer, **{f"FAR {f:g}": threshold for f, threshold in chosen.far.items()}}
