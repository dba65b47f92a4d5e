"""`diagnose`: measure a criterion, and name what was found."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

from hypermargin.diagnose import sides
from hypermargin.diagnose.chance import chance
from hypermargin.diagnose.criterion import SAID, Criterion
from hypermargin.diagnose.diagnosis import Diagnosis
from hypermargin.diagnose.edges import edges
from hypermargin.diagnose.examination import Examination
from hypermargin.diagnose.findings import sorted_by_level
from hypermargin.diagnose.forms import find_criterion
from hypermargin.diagnose.habits import MANY, habits, memory, one_class
from hypermargin.diagnose.outputs import later, logits
from hypermargin.diagnose.recognise import ENDS
from hypermargin.diagnose.state import random_left_alone
from hypermargin.margins import ArcFace, CosFace, ElasticArcFace, ElasticCosFace, Margin, NoMargin


def diagnose(
    criterion: Callable[..., Any],
    *,
    form: str | None = None,
    dim: int | None = None,
    classes: int | None = None,
    expect: Margin | None = None,
    remake: Callable[[int], Any] | None = None,
    name: str | None = None,
) -> Diagnosis:
    """Measure somebody's criterion as a black box, and name what was found.

    - criterion: a module or a function. It is called with features and labels, with cosines and labels, or with
      features, weight and labels; it returns a loss, losses by row, logits with the margin in them, or several of
      these. How is found out; `form`, one of "features", "cosines", "weights", says it. What is measured is a copy.
    - dim, classes: of its class weights, where their shape and its attributes do not tell
    - expect: the margin it is meant to have, such as ArcFace(0.5); another one is a finding
    - remake: makes the same criterion with so many classes: with many memory is counted, with one it is tried

    It runs on the CPU, takes about a second, and draws no random numbers from yours.
    """
    title = name or str(getattr(criterion, "__name__", type(criterion).__name__))
    with random_left_alone(), warnings.catch_warnings(), _Quiet():
        warnings.simplefilter("ignore")
        of = find_criterion(criterion, form=form, dim=dim, classes=classes)
        exam = Examination(of)
        _examine(exam, expect, remake)
    return _diagnosis(exam, title)


def _examine(exam: Examination, expect: Margin | None, remake: Callable[[int], Any] | None) -> None:
    """Do all of it."""
    exam.attempt("the angles", exam.measure)
    if exam.curves is not None and exam.softmax:
        exam.attempt("the lengths", exam.lengths)
        exam.attempt("the margin", exam.recognise)
        exam.attempt("chance", lambda: chance(exam))
        exam.attempt("later steps", lambda: later(exam))
        exam.attempt("what is expected", lambda: exam.expected(expect))
    for name, probe in (*edges(exam.lab, exam.scale or 0.0), *habits(exam.lab)):
        exam.attempt(name, lambda probe=probe: exam.found.extend(probe()))  # type: ignore[misc]
    exam.attempt("logits", lambda: logits(exam))
    of = exam.of
    if remake is not None:
        exam.attempt("memory", lambda: exam.found.extend(memory(find_criterion(remake(MANY), form=of.form))))
    if remake is not None or of.form != "features":
        exam.attempt("one class", lambda: exam.found.extend(one_class(of, remake)))


class _Quiet:
    """Keep torch's and others' log lines of a stranger's code out of the report."""

    def __enter__(self) -> None:
        self.before = logging.root.manager.disable
        logging.disable(logging.WARNING)

    def __exit__(self, *_: object) -> None:
        logging.disable(self.before)


def _diagnosis(exam: Examination, title: str) -> Diagnosis:
    """Return all of it."""
    better = ""
    if exam.replacement and exam.proof and exam.proof.holds:
        ours = exam.replacement.ours()
        better = ours.line() if ours != exam.replacement else ""
    holds = exam.proof is not None and exam.proof.holds
    return Diagnosis(
        name=title, called=_called(exam.of), kind=_kind(exam), findings=sorted_by_level(exam.found),
        margin=exam.margin, scale=exam.scale, gradient=exam.gradient,
        unit_features=exam.features.kind != sides.FREE if exam.curves else None,
        unit_weight=exam.rows.kind == sides.UNIT if exam.curves else None,
        confidence=exam.match.agreement if exam.match else 0.0, proof=exam.proof,
        same=exam.replacement.line() if exam.replacement and holds else "", better=better, curves=exam.curves,
    )  # fmt: skip


def _kind(exam: Examination) -> str:
    """Say what it is, in a line."""
    if not exam.softmax:
        return "no softmax with a margin"
    if exam.curves is None:
        return "not measured"
    if exam.has("rivals-by-target"):
        return f"a loss whose rivals depend on the target, s about {exam.scale:.4g}"
    if exam.everywhere:
        return f"the same for every class, s = {exam.scale:.4g}: no margin"
    said = _named(exam.margin) if exam.margin is not None else "a ψ that is not of the family"
    parts = [said, f"s = {exam.scale:.4g}"]
    if isinstance(exam.margin, ElasticArcFace | ElasticCosFace):
        pass
    elif exam.gradient == "straight" and not isinstance(exam.margin, CosFace | NoMargin):
        parts.append("straight-through gradient")
    elif exam.gradient not in ("exact", "straight", None):
        parts.append("a gradient that is not that of its loss")
    if exam.features.kind == sides.FREE:
        parts.append("|x| free")
    if exam.rows.kind == sides.FREE:
        parts.append("|W| free")
    return ", ".join(parts)


def _called(of: Criterion) -> str:
    """Say how it is called."""
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
        f"{'λ' if k == 'lam' else k} = {v:.6g}" if isinstance(v, float) else f"{k} = {v}"
        for k, v in numbers.items()
    )
    seen = not (isinstance(margin, ArcFace) and margin.m < ENDS)  # whose fold lies where nothing was compared
    continued = f", beyond = {beyond}" if beyond and seen else ""
    return f"{type(margin).__name__}{', ' if shown else ''}{shown}{continued}"
