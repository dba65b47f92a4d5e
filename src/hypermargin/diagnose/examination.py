"""One criterion under examination: its curves, its lengths, its margin, and the loss of ours that is the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from hypermargin.common.arrays import Floats
from hypermargin.common.text import first_line
from hypermargin.diagnose import sides
from hypermargin.diagnose.angles import Curves, Lab, adds_up, goes_together, measure
from hypermargin.diagnose.criterion import Criterion
from hypermargin.diagnose.findings import Finding
from hypermargin.diagnose.laws import of_match, of_psi, of_rivals, of_sides
from hypermargin.diagnose.recognise import Match, recognise
from hypermargin.diagnose.replacing import Proof, Replacement
from hypermargin.diagnose.sides import Side
from hypermargin.margins import CosFace, LiArcFace, Margin, NoMargin

SOFTMAX = 2e-3  # how far R − T may be from that of softmax


class Examination:
    """One criterion under examination; what fails becomes a finding."""

    def __init__(self, of: Criterion) -> None:
        self.of, self.lab = of, Lab(of)
        self.found: list[Finding] = []
        self.curves: Curves | None = None
        self.scale: float | None = None
        self.match: Match | None = None
        self.gradient: str | None = None
        self.features, self.rows = Side(sides.UNIT), Side(sides.UNIT)
        self.replacement: Replacement | None = None
        self.proof: Proof | None = None
        self.softmax, self.everywhere = True, False
        self.margin: Margin | None = None

    def has(self, code: str) -> bool:
        """Tell whether something was found."""
        return any(each.code == code for each in self.found)

    def attempt(self, name: str, do: Callable[[], object]) -> None:
        """Do one thing; its failure is a finding, and the rest goes on."""
        try:
            do()
        except Exception as error:
            told = f"{type(error).__name__}: {first_line(error)}"
            self.found.append(Finding("not-measured", "doubtful", f"Not measured: {name} ({told})."))

    def measure(self) -> None:
        """Measure both curves, and see that they are those of a softmax."""
        self.lab = self.lab.level()
        if self.of.bias:
            said = f"It has a bias by class, {self.of.bias}, which was set to 0 to measure the angles."
            self.found.append(Finding("bias", "note", said))
        if self.lab.floor:
            self.found.append(
                Finding(
                    "own-term", "note",
                    f"It adds {self.lab.floor:.4g} to the loss whatever the angles are, at |x| = 1: a term of "
                    "its own, such as MagFace's of the length.",
                )
            )  # fmt: skip
        curves, scale = measure(self.lab), self.lab.scale()
        off, depends = adds_up(self.lab), goes_together(self.lab)
        if off > SOFTMAX or not scale > 0:
            self.softmax = False
            self.found.append(
                Finding(
                    "not-softmax", "note",
                    "It is not the cross-entropy of a softmax with one scale: rivals do not add up as "
                    f"exponentials (R is off by {off:.3g}), so ψ cannot be read from it.",
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
                    "What rivals count as depends on the target (or it asks one question per class): the rule "
                    "of MV-Softmax, CurricularFace, SphereFace2 and others. ψ is not named, since the two "
                    f"cannot be told apart from outside (off by {depends:.3g} in the logit).",
                    "Compare with heads of this library: mv-am-softmax, mv-arcface, curricularface, sphereface2.",
                )
            )  # fmt: skip

    def lengths(self) -> None:
        """Find out what lengths do."""
        self.features, self.rows = sides.features_side(self.lab), sides.rows_side(self.lab)
        self.found.extend(of_sides(self.features, self.rows))

    def recognise(self) -> None:
        """Name the margin, and run the same loss of ours beside it."""
        assert self.curves is not None
        assert self.scale is not None
        curves = self.curves
        verdict = of_rivals(curves, self.scale)
        if self.has("rivals-by-target"):
            return
        self.found.extend(verdict.findings)
        self.scale, self.everywhere = verdict.scale, verdict.everywhere
        psi, noise = curves.target / self.scale, curves.noise / self.scale
        self.gradient = _gradient(curves, self.scale)
        if self.everywhere:
            return
        self.match = recognise(curves.theta, psi, noise)
        self.margin = self.match.margin if self.match else None
        if self.margin is None and not self.found_rivals_plain:  # then it may have no ψ at all
            self._soften()
            return
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
                f"Classes have margins of their own: ψ({at:.0f}°) is {first:.4g} for the first class and "
                f"{last:.4g} for the last. What is named is that of the first.",
                "Here: class_margins=…, or create_head(\"ldam\", …, counts=…).",
            )
        )  # fmt: skip
        return True

    def _prove(self) -> None:
        """Run the named loss beside the criterion."""
        plain = self.rows.kind in (sides.UNIT, sides.FREE) and self.features.kind in (sides.UNIT, sides.FREE)
        known = self.gradient in ("exact", "straight")
        if isinstance(self.margin, LiArcFace) and self.found_rivals_plain:
            self.found.append(
                Finding(
                    "second-margin", "doubtful",
                    "The target is linear in its angle, and rivals are not: a second margin below 90°, a reward "
                    "beyond.",
                    'Rivals count as 1 − 2θ/π too: create_head("li-arcface", …).',
                    "AirFace with plain rivals",
                )
            )  # fmt: skip
            return
        if self.margin is None or not plain or not known or not self.found_rivals_plain:
            return
        assert self.scale is not None
        kind = "exact" if isinstance(self.margin, CosFace | NoMargin) else str(self.gradient)
        if self.of.weight is not None and self.of.weight.centers > 1:
            self.found.append(
                Finding(
                    "several-centers", "note",
                    f"A class has {self.of.weight.centers} centers. They were measured all alike: which of them "
                    "counts is not known, and taken to be the nearest.",
                )
            )  # fmt: skip
        self.replacement = Replacement(
            self.margin, float(f"{self.scale:.6g}"), kind, self.features.kind == sides.UNIT,
            self.rows.kind == sides.UNIT, self.of.form == "cosines", self.of.form == "weights",
            self.of.weight.centers if self.of.weight else 1,
            bool(self.of.bias),
        )  # fmt: skip
        self.proof = self.replacement.prove(self.of)
        if not self.proof.holds:
            self.found.append(
                Finding(
                    "not-the-same", "doubtful",
                    f"Beside {self.replacement.margin} at the same settings its loss on a batch at all angles "
                    f"differs by {100 * self.proof.loss:.2g} %, its gradient by {100 * self.proof.gradient:.2g} "
                    "%.",
                )
            )  # fmt: skip

    def _soften(self) -> None:
        """Take back what only a loss of angles can be accused of."""
        self.found.append(
            Finding(
                "unknown-loss", "note",
                "It adds up like a softmax, but neither its target nor its rivals count as a function of the angle "
                "that the family has. What is said of lengths supposes that they do.",
            )
        )  # fmt: skip
        accused = ("rows-not-normalised", "features-not-normalised")
        self.found = [replace(each, level="doubtful") if each.code in accused else each for each in self.found]

    @property
    def found_rivals_plain(self) -> bool:
        """Tell whether rivals count as their cosines."""
        return not any(each.code.startswith("rivals-") for each in self.found)

    def expected(self, expect: Margin | None) -> None:
        """Compare with the margin that was expected, if one was."""
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
