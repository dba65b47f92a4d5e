"""`diagnose`: measure a criterion, and name what was found."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from hypermargin.common.arrays import Floats
from hypermargin.common.text import first_line
from hypermargin.diagnose import sides
from hypermargin.diagnose.angles import Curves, Lab, adds_up, goes_together, measure
from hypermargin.diagnose.criterion import SAID, Criterion
from hypermargin.diagnose.edges import edges
from hypermargin.diagnose.findings import Finding, sorted_by_level
from hypermargin.diagnose.forms import find_criterion
from hypermargin.diagnose.habits import Chance, habits, pairing, probabilities
from hypermargin.diagnose.laws import of_match, of_psi, of_rivals, of_sides
from hypermargin.diagnose.recognise import Match, recognise
from hypermargin.diagnose.replacing import Proof, Replacement
from hypermargin.diagnose.sides import Side
from hypermargin.diagnose.state import random_left_alone
from hypermargin.margins import ArcFace, CosFace, ElasticArcFace, ElasticCosFace, Margin, NoMargin

LATER = 1000  # steps after which a criterion whose margin moves with them is measured again
OF_THE_MEAN = ("unknown-psi", "jumps", "turns-back", "rewards", "margin-by-class", "not-the-same")
SOFTMAX = 2e-3  # how far R − T may be from that of softmax


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What `diagnose` found of a criterion. Numbers that could not be measured are None."""

    name: str
    called: str  # how it is called, in words
    kind: str  # what it is: "ArcFace, m = 0.5, …", or that nothing of the family explains it
    findings: tuple[Finding, ...]
    margin: Margin | None = None
    scale: float | None = None
    gradient: str | None = None  # "exact", "straight", "none" or "other"
    unit_features: bool | None = None
    unit_weight: bool | None = None
    confidence: float = 0.0  # the share of angles at which the named margin agrees with what was measured
    proof: Proof | None = None
    same: str = ""  # the line with the same loss
    better: str = ""  # the line that we would take instead; empty if it is the same
    curves: Curves | None = field(default=None, repr=False)

    @property
    def psi(self) -> Floats | None:
        """The measured ψ at `curves.theta`."""
        return None if self.curves is None or not self.scale else self.curves.target / self.scale

    def codes(self) -> set[str]:
        """Return the codes of the findings."""
        return {each.code for each in self.findings}

    def level(self, code: str) -> str | None:
        """Return the level of a finding; None if it was not found."""
        return next((each.level for each in self.findings if each.code == code), None)

    def plain(self) -> dict[str, Any]:
        """Return everything but the curves as plain data for JSON."""
        return {
            "format": 1, "name": self.name, "called": self.called, "kind": self.kind,
            "margin": None if self.margin is None else str(self.margin), "scale": self.scale,
            "gradient": self.gradient, "unit_features": self.unit_features, "unit_weight": self.unit_weight,
            "confidence": round(self.confidence, 4), "proof": None if self.proof is None else self.proof._asdict(),
            "same": self.same, "better": self.better, "findings": [each.plain() for each in self.findings],
        }  # fmt: skip


def diagnose(
    criterion: Callable[..., Any],
    *,
    form: str | None = None,
    dim: int | None = None,
    classes: int | None = None,
    expect: Margin | None = None,
    larger: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Diagnosis:
    """Measure somebody's criterion as a black box, and name what was found.

    - criterion: a module or a function. It is called with features and labels, with cosines and labels, or with
      features, weight and labels; it returns a loss, losses by row, logits with the margin in them, or several of
      these. How is found out; `form`, one of "features", "cosines", "weights", says it. What is measured is a copy.
    - dim, classes: of its class weights, where their shape and its attributes do not tell
    - expect: the margin it is meant to have, such as ArcFace(0.5); another one is a finding
    - larger: the same criterion with some hundred classes, from which memory is counted

    It runs on the CPU, takes about a second, and draws no random numbers from yours.
    """
    title = name or getattr(criterion, "__name__", type(criterion).__name__)
    found: list[Finding] = []
    with random_left_alone(), warnings.catch_warnings(), _quiet():
        warnings.simplefilter("ignore")
        of = find_criterion(criterion, form=form, dim=dim, classes=classes)
        exam = _Examination(of, found)
        exam.run(expect, larger)
    return exam.diagnosis(title)


class _quiet:  # noqa: N801  used as a function
    """Keep torch's and others' log lines of a stranger's code out of the report."""

    def __enter__(self) -> None:
        self.before = logging.root.manager.disable
        logging.disable(logging.WARNING)

    def __exit__(self, *_: object) -> None:
        logging.disable(self.before)


class _Examination:
    """One criterion under examination; what fails becomes a finding."""

    def __init__(self, of: Criterion, found: list[Finding]) -> None:
        self.of, self.lab, self.found = of, Lab(of), found
        self.curves: Curves | None = None
        self.scale: float | None = None
        self.match: Match | None = None
        self.gradient: str | None = None
        self.features, self.rows = Side(sides.UNIT), Side(sides.UNIT)
        self.replacement: Replacement | None = None
        self.proof: Proof | None = None
        self.softmax, self.everywhere = True, False
        self.margin: Margin | None = None

    def run(self, expect: Margin | None, larger: Callable[..., Any] | None) -> None:
        """Do all of it."""
        self.attempt("the angles", self._measure)
        if self.curves is not None and self.softmax:
            self.attempt("the lengths", self._sides)
            self.attempt("the margin", self._recognise)
            self.attempt("chance", self._chance)
            self.attempt("later steps", self._later)
            self.attempt("what is expected", lambda: self._expected(expect))
        for name, probe in (*edges(self.lab, self.scale or 0.0), *habits(self.lab)):
            self.attempt(name, lambda probe=probe: self.found.extend(probe()))  # type: ignore[misc]
        self.attempt("logits", self._logits)
        if larger is not None:
            self.attempt("memory", lambda: self._larger(larger))

    def attempt(self, name: str, do: Callable[[], object]) -> None:
        """Do one thing; its failure is a finding, and the rest goes on."""
        try:
            do()
        except Exception as error:
            told = f"{type(error).__name__}: {first_line(error)}"
            self.found.append(Finding("not-measured", "doubtful", f"Not measured: {name} ({told})."))

    def _measure(self) -> None:
        self.lab = self.lab.level()
        if self.lab.floor:
            self.found.append(
                Finding(
                    "own-term", "note",
                    f"It adds {self.lab.floor:.4g} to the loss whatever the angles are, at |x| = 1: a term of its own, "
                    "such as MagFace's of the length.",
                )
            )  # fmt: skip
        curves, scale = measure(self.lab), self.lab.scale()
        off, depends = adds_up(self.lab), goes_together(self.lab)
        if off > SOFTMAX or not scale > 0:
            self.softmax = False
            self.found.append(
                Finding(
                    "not-softmax", "note",
                    f"It is not the cross-entropy of a softmax with one scale: rivals do not add up as exponentials "
                    f"(R is off by {off:.3g}), so ψ cannot be read from it.",
                    "Losses of this kind here: sphereface2, uniface, sface, p2sgrad; with a scale that follows the "
                    'batch: scale="adacos-dynamic".',
                )
            )  # fmt: skip
            return
        self.curves, self.scale = curves, scale
        if depends > SOFTMAX + 10 * curves.noise:
            self.found.append(
                Finding(
                    "rivals-by-target", "note",
                    "What rivals count as depends on the target (or it asks one question per class): the rule of "
                    "MV-Softmax, CurricularFace, SphereFace2 and others. ψ is not named, since the two cannot be told "
                    f"apart from outside (off by {depends:.3g} in the logit).",
                    "Compare with heads of this library: mv-am-softmax, mv-arcface, curricularface, sphereface2.",
                )
            )  # fmt: skip

    def _sides(self) -> None:
        self.features, self.rows = sides.features_side(self.lab), sides.rows_side(self.lab)
        self.found.extend(of_sides(self.features, self.rows))

    def _recognise(self) -> None:
        assert self.curves is not None
        assert self.scale is not None
        curves = self.curves
        verdict = of_rivals(curves, self.scale)
        if "rivals-by-target" in {each.code for each in self.found}:
            return
        self.found.extend(verdict.findings)
        self.scale, self.everywhere = verdict.scale, verdict.everywhere
        psi, noise = curves.target / self.scale, curves.noise / self.scale
        self.gradient = _gradient(curves, self.scale)
        if self.everywhere:
            return
        self.match = recognise(curves.theta, psi, noise)
        self.margin = self.match.margin if self.match else None
        self.found.extend(of_psi(curves.theta, psi, noise, self.margin))
        self.found.extend(of_match(self.margin, self.gradient))
        if not self._by_class(psi, noise):
            self._prove()

    def _by_class(self, psi: Floats, noise: float) -> bool:
        """Tell whether another class has another margin, and say so."""
        assert self.curves is not None
        assert self.scale is not None
        theta = self.curves.theta[70]
        first = self.lab.logit(theta, self.scale) / self.scale
        last = self.lab.changed(target=self.of.classes - 1).logit(theta, self.scale) / self.scale
        if abs(first - last) < 1e-4 + 10 * noise:
            return False
        at = math.degrees(theta)
        self.found.append(
            Finding(
                "margin-by-class", "note",
                f"Classes have margins of their own: ψ({at:.0f}°) is {first:.4g} for the first class and {last:.4g} "
                "for the last. What is named is that of the first.",
                "Here: class_margins=…, or create_head(\"ldam\", …, counts=…).",
            )
        )  # fmt: skip
        return True

    def _prove(self) -> None:
        """Run the named loss beside the criterion."""
        plain = self.rows.kind in (sides.UNIT, sides.FREE) and self.features.kind in (sides.UNIT, sides.FREE)
        known = self.gradient in ("exact", "straight")
        if self.margin is None or not plain or not known or not self.found_rivals_plain:
            return
        assert self.scale is not None
        kind = "exact" if isinstance(self.margin, CosFace | NoMargin) else str(self.gradient)
        self.replacement = Replacement(
            self.margin, float(f"{self.scale:.6g}"), kind, self.features.kind == sides.UNIT,
            self.rows.kind == sides.UNIT, self.of.form == "cosines", self.of.form == "weights",
        )  # fmt: skip
        self.proof = self.replacement.prove(self.of)
        if not self.proof.holds:
            self.found.append(
                Finding(
                    "not-the-same", "doubtful",
                    f"Beside {self.replacement.margin} at the same settings its loss on a batch at all angles differs "
                    f"by {100 * self.proof.loss:.2g} %, its gradient by {100 * self.proof.gradient:.2g} %.",
                )
            )  # fmt: skip

    @property
    def found_rivals_plain(self) -> bool:
        """Tell whether rivals count as their cosines."""
        return not any(each.code.startswith("rivals-") for each in self.found)

    def _chance(self) -> None:
        assert self.scale is not None
        chance = Chance(self.lab, self.scale)
        if not chance.drawn:
            return
        # Alike rows have draws of their own: a margin is named from single ones.
        alone = self.lab.changed(alike=1)
        curves = measure(alone)
        match = recognise(curves.theta, curves.target / self.scale, curves.noise / self.scale)
        self.match = match or self.match
        self.curves = curves
        angular = match is not None and isinstance(match.margin, ArcFace)
        mean, deviation = Chance(alone, self.scale).mean_and_deviation(angular)
        how = pairing(self.of, angular)
        numbers: dict[str, Any] = {"m": _short(mean), "sigma": _short(deviation), "pairing": how or "none"}
        if match is not None and isinstance(match.margin, ArcFace):
            self.margin = ElasticArcFace(**numbers, beyond=match.margin.beyond)
        else:
            self.margin = ElasticCosFace(**numbers)
        self.found = [each for each in self.found if each.code not in OF_THE_MEAN]
        self.replacement = self.proof = None
        self.found.append(
            Finding(
                "drawn-margin", "note",
                f"Its margin is drawn anew for every row: {mean:.2g} ± {deviation:.2g} over 200 draws.",
                "It draws in eval() too unless it asks self.training." if self._draws_in_eval() else "",
            )
        )  # fmt: skip
        if how == "published":
            self.found.append(
                Finding(
                    "pairs-at-random", "doubtful",
                    "The margins of a batch are sorted and given to the rows by the order of the order, which pairs "
                    "them at random; the largest was meant for the hardest row.",
                    'Row i gets the margin at the rank of its cosine: here pairing="paper".',
                    "ElasticFace+ pairs margins at random",
                )
            )  # fmt: skip
        elif how == "paper":
            self.found.append(Finding("pairs-by-rank", "note", "The hardest row of a batch gets the largest margin."))

    def _draws_in_eval(self) -> bool:
        module = self.of.module
        if module is None:
            return False
        was = module.training
        module.eval()
        try:
            a, b = (self.lab.changed(criterion=self.of.seeded(n)).gap(1.0, 0.5) for n in (1, 2))  # type: ignore[arg-type]
        finally:
            module.train(was)
        return a != b

    def _later(self) -> None:
        """Measure once more after many steps, where the first calls have moved something."""
        of = self.of
        if of.module is None or of.kept is None or self.scale is None or isinstance(self.margin, ElasticArcFace):
            return
        at = self.lab.place(1.0, 0.5)
        first = self.lab.gap(1.0, 0.5)
        of.kept.restore()
        for _ in range(3):
            of(at.x, at.W, at.y, fresh=False) if of.form != "cosines" else _step_on_cosines(of, self.lab)
        kept, lost = of.kept.moved()
        if not (kept | lost) - ({of.weight.name} if of.weight else set()):
            return
        for _ in range(LATER):
            of(at.x, at.W, at.y, fresh=False) if of.form != "cosines" else _step_on_cosines(of, self.lab)
        now = Criterion(**{**vars(of), "kept": type(of.kept)(of.call)})
        then = Lab(now)
        moved = abs(then.gap(1.0, 0.5) - first)
        if moved > 1e-3 * self.scale:
            curves = measure(then)
            scale = then.scale()
            match = recognise(curves.theta, curves.target / scale, curves.noise / scale)
            told = f"{match.margin}, s = {scale:.4g}" if match else f"s = {scale:.4g}, and a ψ that is not the family's"
            self.found.append(
                Finding("moves-with-steps", "note", f"It changes from step to step: after {LATER:,} more it is {told}.")
            )
        of.kept.restore()

    def _expected(self, expect: Margin | None) -> None:
        if expect is None or self.curves is None or self.scale is None:
            return
        with torch.no_grad():
            meant = expect.psi(torch.from_numpy(self.curves.theta)).numpy()
        off = np.abs(meant - self.curves.target / self.scale)
        if np.nanmax(off) > 1e-3:
            worst = int(np.nanargmax(off))
            self.found.append(
                Finding(
                    "not-as-expected", "wrong",
                    f"{expect} was expected; at {math.degrees(self.curves.theta[worst]):.0f}° the target's cosine "
                    f"differs from it by {off[worst]:.3g}.",
                    "Look at which of its arguments the code reads: some are accepted and ignored.",
                    "Combined margins that do not combine",
                )
            )  # fmt: skip

    def _logits(self) -> None:
        asked, probable = probabilities(self.of)
        self._absolute(probable)
        if asked:
            what = "probabilities" if probable else "logits"
            self.found.append(
                Finding(
                    "margined-outputs", "doubtful" if probable else "note",
                    f"The {what} it returns hold the margin of the label that was asked about: for training alone.",
                    "To predict, take the softmax of s·cos θ without margin and label: head.predict_proba.",
                    "Margined probabilities are not predictions",
                )
            )  # fmt: skip

    def _absolute(self, probable: bool) -> None:
        """From logits the offset of all classes can be seen too, which the loss does not show."""
        if probable or self.curves is None or not self.scale or self.everywhere:
            return
        at = self.lab.place(1.0, 0.0)
        found = self.of(at.x, at.W, at.y).logits
        if found is None:
            return
        offset = -float(found[0, 1].detach()) / self.scale
        if 1e-3 < offset < 2:
            self.found.append(
                Finding(
                    "rivals-margined", "wrong",
                    f"The margin is on every class: a rival at 90° has the cosine −{offset:.3g}, not 0. Softmax does "
                    "not change when all logits move alike, so that part of it does nothing.",
                    "Put the margin on the label's entry alone: logits[rows, labels] = …",
                    "A margin on every class is no margin",
                )
            )  # fmt: skip

    def _larger(self, larger: Callable[..., Any]) -> None:
        of = find_criterion(larger, form=self.of.form)
        for name, probe in habits(Lab(of)):
            if name == "memory":
                self.found.extend(probe())

    def diagnosis(self, title: str) -> Diagnosis:
        """Return all of it."""
        better = ""
        if self.replacement and self.proof and self.proof.holds:
            ours = _ours(self.replacement)
            better = ours.line() if ours != self.replacement else ""
        holds = self.proof is not None and self.proof.holds
        return Diagnosis(
            name=title, called=_called(self.of), kind=self._kind(), findings=sorted_by_level(self.found),
            margin=self.margin, scale=self.scale, gradient=self.gradient,
            unit_features=self.features.kind != sides.FREE if self.curves else None,
            unit_weight=self.rows.kind == sides.UNIT if self.curves else None,
            confidence=self.match.agreement if self.match else 0.0, proof=self.proof,
            same=self.replacement.line() if self.replacement and holds else "", better=better, curves=self.curves,
        )  # fmt: skip

    def _kind(self) -> str:
        if not self.softmax:
            return "no softmax with a margin"
        if self.curves is None:
            return "not measured"
        if "rivals-by-target" in {each.code for each in self.found}:
            return f"a loss whose rivals depend on the target, s about {self.scale:.4g}"
        if self.everywhere:
            return f"the same for every class, s = {self.scale:.4g}: no margin"
        said = _named(self.margin) if self.margin is not None else "a ψ that is not of the family"
        parts = [said, f"s = {self.scale:.4g}"]
        if isinstance(self.margin, ElasticArcFace | ElasticCosFace):
            pass
        elif self.gradient == "straight" and not isinstance(self.margin, CosFace | NoMargin):
            parts.append("straight-through gradient")
        elif self.gradient not in ("exact", "straight", None):
            parts.append("a gradient that is not that of its loss")
        if self.features.kind == sides.FREE:
            parts.append("|x| free")
        if self.rows.kind == sides.FREE:
            parts.append("|W| free")
        return ", ".join(parts)


def _step_on_cosines(of: Criterion, lab: Lab) -> None:
    of.read(of.call(lab.cosines(1.0, 0.5) * 1.0, of.labels(lab.labels)), len(lab.labels))


def _ours(same: Replacement) -> Replacement:
    """Return what we would take: ψ continued smoothly, and its own gradient."""
    margin = same.margin
    if getattr(margin, "beyond", "smooth") != "smooth":
        margin = type(margin)(**{**vars(margin), "beyond": "smooth"})
    return Replacement(
        margin, same.scale, "exact", same.unit_features, same.unit_weight, same.on_cosines, same.bare
    )


def _gradient(curves: Curves, scale: float) -> str:
    """Tell which derivative autograd reports: that of what was measured, that of the plain cosine, or another."""
    inner = (curves.theta > math.radians(3)) & (curves.theta < math.radians(177)) & np.isfinite(curves.target)
    real, told = curves.differences[inner], curves.reported[inner]
    if not np.isfinite(told).any():
        return "none"
    straight = -scale * np.sin(curves.theta[inner])
    allowed = 0.01 * scale + 0.01 * np.abs(real) + 100 * curves.noise
    exact_share = float((np.abs(told - real) < allowed).mean())
    straight_share = float((np.abs(told - straight) < allowed).mean())
    if max(exact_share, straight_share) < 0.9:
        return "none" if float((np.abs(told) < 1e-9).mean()) > 0.9 else "other"
    return "exact" if exact_share >= straight_share else "straight"


def _called(of: Criterion) -> str:
    said = SAID[of.form]
    if of.weight is not None:
        several = f", {of.weight.centers} centers per class" if of.weight.centers > 1 else ""
        said += f" in {of.weight.name}{several}"
    labels = {"numbers": "", "one-hot": ", labels one-hot", "column": ", labels as a column"}[of.label_style]
    return f"{said}{labels}; measured in {str(of.dtype).removeprefix('torch.')}"


def _named(margin: Margin) -> str:
    """Name a margin with all its numbers, as pictures do."""
    beyond = getattr(margin, "beyond", None)
    numbers = {k: v for k, v in vars(margin).items() if k != "beyond" and not (k == "lam" and v == 0)}
    shown = ", ".join(
        f"{'λ' if k == 'lam' else k} = {v:.6g}" if isinstance(v, float) else f"{k} = {v}" for k, v in numbers.items()
    )
    continued = f", beyond = {beyond}" if beyond and not isinstance(margin, NoMargin) else ""
    return f"{type(margin).__name__}{', ' if shown else ''}{shown}{continued}"


def _short(value: float) -> float:
    return max(0.0, float(f"{value:.2g}"))


__all__ = ["Diagnosis", "Iterator", "diagnose"]
