"""What comes back besides a loss: logits with the margin in them, probabilities; and what later steps change."""

from __future__ import annotations

from dataclasses import replace

import torch

from hypermargin.diagnose.angles import Lab, measure
from hypermargin.diagnose.criterion import Criterion
from hypermargin.diagnose.edges import spread
from hypermargin.diagnose.examination import Examination
from hypermargin.diagnose.findings import Finding
from hypermargin.diagnose.recognise import recognise
from hypermargin.diagnose.state import Kept
from hypermargin.margins import ElasticArcFace, ElasticCosFace

LATER = 1000  # steps after which a criterion whose margin moves with them is measured again


def logits(exam: Examination) -> None:
    """Say what returned logits hold."""
    asked, probable = probabilities(exam.of)
    _absolute(exam, probable)
    if asked:
        what = "probabilities" if probable else "logits"
        exam.found.append(
            Finding(
                "margined-outputs", "doubtful" if probable else "note",
                f"The {what} it returns hold the margin of the label that was asked about: for training alone.",
                "To predict, take the softmax of s·cos θ without margin and label: head.predict_proba.",
                "Margined probabilities are not predictions",
            )
        )  # fmt: skip


def _absolute(exam: Examination, probable: bool) -> None:
    """From logits the offset of all classes can be seen too, which the loss does not show."""
    if probable or exam.curves is None or not exam.scale or exam.everywhere:
        return
    at = exam.lab.place(1.0, 0.0)
    found = exam.of(at.x, at.W, at.y).logits
    if found is None:
        return
    offset = -float(found[0, 1].detach()) / exam.scale
    if 1e-3 < offset < 2:
        exam.found.append(
            Finding(
                "rivals-margined", "wrong",
                f"The margin is on every class: a rival at 90° has the cosine −{offset:.3g}, not 0. Softmax does "
                "not change when all logits move alike, so that part of it does nothing.",
                "Put the margin on the label's entry alone: logits[rows, labels] = …",
                "A margin on every class is no margin",
            )
        )  # fmt: skip


def probabilities(of: Criterion) -> tuple[bool, bool]:
    """Return whether logits that come back hold the margin of the label, and whether they are probabilities."""
    batch = spread(of, 6)
    found = of(batch.x, batch.W, batch.y)
    if found.logits is None:
        return False, False
    other = of(batch.x, batch.W, (batch.y + 1) % of.classes)
    assert other.logits is not None
    asked = not torch.allclose(found.logits, other.logits, atol=1e-4)
    return asked, of.log_probabilities


def later(exam: Examination) -> None:
    """Measure once more after many steps, where the first calls have moved something."""
    of = exam.of
    if (
        of.module is None
        or of.kept is None
        or exam.scale is None
        or isinstance(exam.margin, ElasticArcFace | ElasticCosFace)
    ):
        return
    first = exam.lab.gap(1.0, 0.5)
    of.kept.restore()
    for _ in range(3):
        _step(of, exam.lab)
    kept, lost = of.kept.moved()
    if not (kept | lost) - ({of.weight.name} if of.weight else set()):
        return
    for _ in range(LATER):
        _step(of, exam.lab)
    then = exam.lab.changed(criterion=replace(of, kept=Kept(of.call)))
    moved = abs(then.gap(1.0, 0.5) - first)
    if moved > 1e-3 * exam.scale and exam.ruled is not None:
        said = "What hard rivals count as changes from step to step."
        exam.found.append(Finding("moves-with-steps", "note", said))
    elif moved > 1e-3 * exam.scale:
        curves = measure(then)
        scale = then.scale()
        match = recognise(curves.theta, curves.target / scale, curves.noise / scale)
        told = f"{match.margin}, s = {scale:.4g}" if match else f"s = {scale:.4g}, and a ψ that is not the family's"
        exam.found.append(
            Finding("moves-with-steps", "note", f"It changes from step to step: after {LATER:,} more it is {told}.")
        )
    of.kept.restore()


def _step(of: Criterion, lab: Lab) -> None:
    """Call it once, its state going on."""
    if of.form == "cosines":
        of.read(of.bare(lab.cosines(1.0, 0.5) * 1.0, lab.labels), len(lab.labels))
    else:
        at = lab.place(1.0, 0.5)
        of(at.x, at.W, at.y, fresh=False)
