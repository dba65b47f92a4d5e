"""`diagnose`: measure a criterion, and name what was found."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import warnings
from collections.abc import Callable
from typing import Any

from hypermargin.diagnose import sides
from hypermargin.diagnose.chance import chance
from hypermargin.diagnose.criterion import SAID, STYLES, Criterion
from hypermargin.diagnose.diagnosis import Diagnosis
from hypermargin.diagnose.edges import edges
from hypermargin.diagnose.examination import Examination
from hypermargin.diagnose.findings import sorted_by_level
from hypermargin.diagnose.forms import find_criterion
from hypermargin.diagnose.habits import MANY, habits, memory, one_class
from hypermargin.diagnose.mistakes import mixing
from hypermargin.diagnose.outputs import later, logits
from hypermargin.diagnose.recognise import ENDS
from hypermargin.diagnose.state import random_left_alone
from hypermargin.margins import ArcFace, Circle, CosFace, ElasticArcFace, ElasticCosFace, Margin, NoMargin

# What a loss is that a mistake keeps from being a softmax.
NOT_YET = {"softmax-twice": "a softmax that is taken twice", "softmax-missing": "a loss without its logarithm"}


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

    - criterion: a module or a function. It is called with features and labels, with cosines and labels, with
      features, weight and labels, or with unit features, their lengths and labels; it returns a loss, losses by
      row, logits with the margin in them, or several of these. How is found out; `form`, one of "features",
      "cosines", "weights", "norms", says it. What is measured is a copy.
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
    drawn = isinstance(exam.margin, ElasticArcFace | ElasticCosFace)
    probes = (*edges(exam.lab, exam.scale or 0.0), *habits(exam.lab), *mixing(exam.lab, drawn, exam.softmax))
    for name, probe in probes:
        exam.attempt(name, lambda probe=probe: exam.found.extend(probe()))  # type: ignore[misc]
    exam.attempt("logits", lambda: logits(exam))
    of = exam.of
    if remake is not None:
        exam.attempt("memory", lambda: exam.found.extend(memory(find_criterion(remake(MANY), form=of.form))))
    if remake is not None or of.weight is None:
        exam.attempt("one class", lambda: exam.found.extend(one_class(of, remake)))


class _Quiet:
    """Keep what a stranger's code prints and logs, hundreds of times over, out of the way."""

    def __enter__(self) -> None:
        self.before = logging.root.manager.disable
        logging.disable(logging.WARNING)
        self.printed = contextlib.redirect_stdout(io.StringIO())
        self.printed.__enter__()

    def __exit__(self, *_: object) -> None:
        self.printed.__exit__(None, None, None)
        logging.disable(self.before)


def _diagnosis(exam: Examination, title: str) -> Diagnosis:
    """Return all of it."""
    better = ""
    if exam.replacement and exam.proof and exam.proof.holds:
        ours = exam.replacement.ours()
        better = ours.line() if ours != exam.replacement or not ours.whole else ""
    if exam.by_length is not None:
        better = exam.by_length.line
    whole = exam.replacement is not None and exam.replacement.whole
    holds = exam.proof is not None and exam.proof.holds
    return Diagnosis(
        name=title, called=_called(exam.of), kind=_kind(exam), findings=sorted_by_level(exam.found),
        margin=exam.margin, scale=exam.scale, gradient=exam.gradient,
        unit_features=exam.features.kind != sides.FREE if exam.curves else None,
        unit_weight=exam.rows.kind == sides.UNIT if exam.curves else None,
        confidence=exam.match.agreement if exam.match else 0.0, proof=exam.proof,
        same=exam.replacement.line() if exam.replacement and holds and whole else "", better=better,
        curves=exam.curves,
    )  # fmt: skip


def _kind(exam: Examination) -> str:
    """Say what it is, in a line."""
    if not exam.softmax:
        return next((NOT_YET[code] for code in NOT_YET if exam.has(code)), "no softmax with a margin")
    if exam.curves is None:
        return "not measured"
    if exam.has("rivals-by-target"):
        return f"a loss whose rivals depend on the target, s about {exam.scale:.4g}"
    if exam.ruled is not None and exam.margin is not None:
        if isinstance(exam.margin, Circle):
            return f"circle loss, m = {exam.margin.m:g}, γ = {exam.scale:.4g}"
        return f"{exam.ruled.name()}: {_named(exam.margin)}, s = {exam.scale:.4g}"
    if exam.everywhere:
        return f"the same for every class, s = {exam.scale:.4g}: no margin"
    if exam.by_length is not None:
        said = exam.by_length.said
    elif exam.margin is not None:
        said = _named(exam.margin)
    elif exam.begins is not None:
        first, until = exam.begins
        said = f"{_named(first).split(', beyond')[0]} up to {math.degrees(until):.0f}°, then another ψ"
    else:
        said = "a ψ that is not of the family" if exam.slip is None else f"ψ = {exam.slip.psi}"
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
    if exam.has("depends-on-size") or exam.has("rows-together"):
        parts.append("lengths mixed up")
    if exam.lab.outer.kind != "plain":
        parts.append(f"in {exam.lab.outer.said()}")
    return ", ".join(parts)


def _called(of: Criterion) -> str:
    """Say how it is called."""
    said = SAID[of.form]
    if of.weight is not None:
        several = f", {of.weight.centers} centers per class" if of.weight.centers > 1 else ""
        said += f" in {of.weight.name}{several}"
    labels = [word for word in (STYLES[of.label_style], "first" if of.labels_first else "") if word]
    said += f", labels {' and '.join(labels)}" if labels else ""
    return f"{said}; measured in {str(of.dtype).removeprefix('torch.')}"


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
