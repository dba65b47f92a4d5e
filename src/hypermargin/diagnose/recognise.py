"""Which margin of the family gave a measured ψ, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from hypermargin.common.arrays import Floats
from hypermargin.diagnose.numbers import tidy
from hypermargin.margins import (
    ArcFace,
    Combined,
    CosFace,
    ExpFace,
    LiArcFace,
    Margin,
    NoMargin,
    SphereFace,
    X2Softmax,
)
from hypermargin.margins.arcface import BEYOND

CLOSE = 0.02  # of the fit on the first angles, which only has to find the numbers
ENDS = math.radians(5)  # near 0 and π many clamp the cosine, whatever their margin is
EXPLAINED = 0.97  # the share of angles that have to agree before a margin is named


@dataclass(frozen=True)
class Match:
    """A margin, and how well it explains what was measured."""

    margin: Margin
    agreement: float  # the share of angles at which it agrees, within the noise of measuring
    worst: float  # the largest difference of ψ, in cosines
    next_best: str = ""  # the other margin that came nearest
    next_agreement: float = 0.0


def recognise(theta: Floats, psi: Floats, noise: float) -> Match | None:
    """Find the margin of the family with this ψ; None if none explains it."""
    inner = (theta > ENDS) & (theta < math.pi - ENDS)
    known = np.isfinite(psi) & inner
    share = float(known.sum() / inner.sum())
    theta, psi = theta[known], psi[known]
    if len(theta) < 20:
        return None
    tolerance = max(5 * noise, 2e-6)
    found = [_match(margin, theta, psi, tolerance) for margin in _candidates(theta, psi, tolerance)]
    found = [replace(each, agreement=each.agreement * share) for each in found]
    found.sort(key=lambda each: (-round(each.agreement, 6), _numbers(each.margin), each.worst))
    if not found or found[0].agreement < EXPLAINED:
        return None
    best = found[0]
    others = [each for each in found[1:] if each.margin != best.margin]
    if not others:
        return best
    return Match(best.margin, best.agreement, best.worst, str(others[0].margin), others[0].agreement)


def begins(theta: Floats, psi: Floats, noise: float) -> tuple[Margin, float] | None:
    """Return the margin that ψ is at first, and up to which angle; None if not for some 60°."""
    known = np.isfinite(psi) & (theta > ENDS)
    theta, psi = theta[known], psi[known]
    best: tuple[Margin, float] | None = None
    tolerance = max(5 * noise, 2e-6)
    for margin in _candidates(theta, psi, tolerance) if len(theta) > 60 else ():
        off = np.flatnonzero(np.abs(_values(margin, theta) - psi) >= tolerance)
        until = float(theta[off[0] - 1]) if len(off) and off[0] else 0.0
        if until > (math.radians(60) if best is None else best[1]):
            best = margin, until
    return best


def _match(margin: Margin, theta: Floats, psi: Floats, tolerance: float) -> Match:
    off = np.abs(_values(margin, theta) - psi)
    return Match(margin, float((off < tolerance).mean()), float(off.max()))


def _values(margin: Margin, theta: Floats) -> Floats:
    with torch.no_grad():
        return np.asarray(margin.psi(torch.from_numpy(np.ascontiguousarray(theta))).numpy())


def _numbers(margin: Margin) -> int:
    """Return how many numbers a margin has: of two that explain the same, the simpler one is named."""
    m = margin.m
    return (len(m) if isinstance(m, tuple) else m is not None) + (getattr(margin, "lam", 0.0) > 0)


def _candidates(theta: Floats, psi: Floats, tolerance: float) -> Iterator[Margin]:
    """Yield margins with their numbers fitted to the first angles, in every continuation."""
    early = (theta > math.radians(4)) & (theta < math.radians(40))
    t, p = theta[early], psi[early]

    yield NoMargin()
    m = float(np.median(np.cos(t) - p))
    if 0 < m <= 2:
        yield CosFace(tidy(m, tolerance))
    angle = np.arccos(np.clip(p, -1, 1))
    m = float(np.median(angle - t))
    if 0 < m < math.pi:
        for beyond in BEYOND:
            yield ArcFace(tidy(m, tolerance), beyond)
    m = float(np.median(angle / t))
    if m > 1:
        for beyond in ("smooth", "flat", "none"):
            yield SphereFace(tidy(m, tolerance), beyond=beyond)
    yield from _blended(t, p, tolerance)
    yield from _combined(t, p, tolerance)
    # ψ = 1 − 2(θ + m)/π
    m = float(np.median((1 - p) * math.pi / 2 - t))
    if 0 < m < math.pi:
        yield LiArcFace(tidy(m, tolerance))
    m = float(np.median(np.log(angle / math.pi) / np.log(t / math.pi)))
    if 0.5 <= m < 1:
        yield ExpFace(tidy(m, tolerance))
    k = float(np.median(p + 0.9 * t**2))
    if k <= 1:
        yield X2Softmax(k=tidy(k, tolerance))


def _blended(t: Floats, p: Floats, tolerance: float) -> Iterator[Margin]:
    """Yield ψ = (λ cos θ + cos mθ)/(1 + λ) for the m in use: cos θ − ψ is 1/(1 + λ) of cos θ − cos mθ."""
    for m in (2.0, 3.0, 4.0, 5.0, 1.35, 1.5, 1.7):
        inner = t < math.pi / m
        whole = np.cos(t[inner]) - np.cos(m * t[inner])
        part = np.cos(t[inner]) - p[inner]
        share = float((whole * part).sum() / (whole**2).sum())
        if not 1e-6 < share < 0.9999 or np.abs(part - share * whole).max() > CLOSE * share:
            continue
        lam = 1 / share - 1
        yield SphereFace(m, lam=tidy(lam, 1e-5 * lam))


def _combined(t: Floats, p: Floats, tolerance: float) -> Iterator[Margin]:
    """Yield cos(m1·θ + m2) − m3, its numbers by Gauss and Newton from several starts."""
    for start in ((1.0, 0.3, 0.1), (0.9, 0.4, 0.15), (1.2, 0.1, 0.1), (1.5, 0.3, 0.0)):
        numbers = np.array(start)
        for _ in range(40):
            u = numbers[0] * t + numbers[1]
            inner = u < math.pi
            off = (np.cos(u) - numbers[2] - p)[inner]
            slopes = np.stack((-np.sin(u) * t, -np.sin(u), -np.ones_like(t)), 1)[inner]
            if inner.sum() < 8:
                break
            step, *_ = np.linalg.lstsq(slopes, -off, rcond=None)
            numbers = numbers + np.clip(step, -0.2, 0.2)
            if np.abs(step).max() < 1e-12:
                break
        # The three are told apart worse than ψ itself is: rounded, if that changes nothing.
        for allowed in (100 * tolerance, tolerance / 10):
            m1, m2, m3 = (tidy(float(n), allowed) for n in numbers)
            if m1 > 0 and 0 <= m2 < math.pi and 0 <= m3 <= 2:
                for beyond in ("smooth", "none"):
                    yield Combined(m1, m2, m3, beyond)
        return
