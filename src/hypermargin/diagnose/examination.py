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
from hypermargin.diagnose.hard import Ruled, circle, hard
from hypermargin.diagnose.laws import of_match, of_psi, of_rivals, of_scale, of_sides, of_unknown
from hypermargin.diagnose.mistakes import no_softmax
from hypermargin.diagnose.recognise import Match, begins, recognise
from hypermargin.diagnose.replacing import Proof, Replacement
from hypermargin.diagnose.sides import Side
from hypermargin.diagnose.slips import Slip, slip
from hypermargin.margins import Circle, CosFace, LiArcFace, Margin, NoMargin

OUTER = {
    "weighted": "It counts for that many learning rates.",
    "focal": "Samples that are right already count for less than in softmax, besides the margin.",
    "smoothed": "Smoothed labels ask for a finite lead over rivals, which a margin raises.",
}
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
        self.ruled: Ruled | None = None  # a rule for rivals
        self.begins: tuple[Margin, float] | None = None  # which ψ is at first, and up to which angle
        self.by_length: sides.ByLength | None = None  # a margin that follows the length
        self.slip: Slip | None = None  # that explains ψ where no margin does

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
        if self.of.backwards:
            said = f"It is the wrong way round: {self.of.backwards}. Training pushes samples away from their class."
            remedy = "Look for a missing minus, a margin on the wrong side, or degrees where radians are taken."
            self.found.append(Finding("backwards", "wrong", said, remedy))
        if self.of.silenced:
            said = f"It has dropout ({', '.join(self.of.silenced)}), which was switched off to measure it."
            self.found.append(Finding("dropout", "note", said))
        missing = list(no_softmax(self.lab))
        if missing:  # which leave a loss that does not fall further, as a term of its own does
            self.found = [each for each in self.found if each.code != "own-term"]
        if missing:
            self.softmax = False
            self.found.extend(missing)
            return
        off, depends = adds_up(self.lab), goes_together(self.lab)
        if not (off <= SOFTMAX and depends <= SOFTMAX):
            self._outer()
            off, depends = adds_up(self.lab), goes_together(self.lab)
        curves, scale = measure(self.lab), self.lab.scale()
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

    def _outer(self) -> None:
        """See whether it is a weighted, a focal, or a smoothed cross-entropy, and measure what is inside."""
        self.lab = self.lab.with_outer()
        kind = self.lab.outer.kind
        if kind != "plain":
            self.found.append(Finding(kind, "note", f"It is {self.lab.outer.said()}. {OUTER[kind]}"))

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
            self._ruled(hard(self.lab))
            return
        if any(each.code == "rivals-changed" for each in verdict.findings) and self._ruled(circle(curves)):
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
        self.slip = None if self.margin else slip(curves.theta, psi, max(5 * noise, 2e-6))
        self.found.extend(of_psi(curves.theta, psi, noise, self.margin))
        if self.slip is not None:
            self.found.append(self.slip.finding)
        elif self.margin is None:
            self.begins = begins(curves.theta, psi, noise)
            self.found.append(of_unknown(self.begins))
        self.found.extend(of_match(self.margin, self.gradient))
        if self.features.kind == self.rows.kind == sides.UNIT and self.of.form != "cosines":
            self.found.extend(of_scale(self.scale, self._learns_scale()))
        if self.features.kind == sides.MARGIN:
            self.by_length = sides.by_length(self.lab, self.scale, getattr(self.margin, "beyond", ""))
        elif not self._by_class(psi, noise):
            self._prove()

    def _ruled(self, found: Ruled | None) -> bool:
        """Name a margin with a rule for rivals, and run it beside the criterion; tell whether there is one."""
        if found is None:
            return False
        self.ruled, self.curves, self.scale, self.match = found, found.curves, found.scale, found.match
        self.margin = found.match.margin
        self.gradient = _gradient(found.curves, found.scale, self.margin)
        self.found = [each for each in self.found if each.code != "rivals-by-target"]
        said = f"Rivals do not count as their cosines, but by the rule of {found.name()}: {found.rule.formula}."
        self.found.extend((Finding("rivals-by-rule", "note", said), *of_match(self.margin, self.gradient)))
        if self.of.form == "cosines" or sides.MIXED in (self.features.kind, self.rows.kind):
            return True
        units = self.features.kind == sides.UNIT, self.rows.kind == sides.UNIT
        for margin, rule in found.all_of_them():
            self.replacement = Replacement(
                margin, found.scale, self.gradient if self.gradient == "straight" else "exact", *units, False,
                self.of.form == "weights", rule=rule,
            )  # fmt: skip
            self.proof = self.replacement.prove(self.of)
            if self.proof.holds:
                self.margin = margin
                break
        return True

    def _learns_scale(self) -> bool:
        """Tell whether it has a parameter that may be its scale."""
        module = self.of.module
        return module is not None and any(p.numel() == 1 and p.requires_grad for p in module.parameters())

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
            bool(self.of.bias), self.lab.outer,
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


def _gradient(curves: Curves, scale: float, margin: Margin | None = None) -> str:
    """Tell which derivative autograd reports: that of what was measured, that of the plain cosine, or another.

    Of a margin whose own derivative is not that of its ψ, as circle loss has it, its own is "exact".
    """
    inner = (curves.theta > math.radians(3)) & (curves.theta < math.radians(177)) & np.isfinite(curves.target)
    real, told = curves.differences[inner], curves.reported[inner]
    if isinstance(margin, Circle):
        angle = torch.from_numpy(curves.theta[inner]).requires_grad_()
        (slope,) = torch.autograd.grad(margin.psi(angle).sum(), angle)
        real = scale * slope.numpy()
    if not np.isfinite(told).any():
        return "none"
    straight = -scale * np.sin(curves.theta[inner])
    allowed = 0.01 * scale + 0.01 * np.abs(real) + 100 * curves.noise
    exact_share = float((np.abs(told - real) < allowed).mean())
    straight_share = float((np.abs(told - straight) < allowed).mean())
    if max(exact_share, straight_share) < 0.9:
        return "none" if float((np.abs(told) < 1e-9).mean()) > 0.9 else "other"
    return "exact" if exact_share >= straight_share else "straight"
