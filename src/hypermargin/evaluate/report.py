"""Everything that can be said about features and labels, in one object: for people, and for JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch

from hypermargin.common.arrays import Values, to_numpy
from hypermargin.evaluate.curve import Curve
from hypermargin.evaluate.geometry import Geometry
from hypermargin.evaluate.geometry import of_samples as _geometry
from hypermargin.evaluate.identification import Identification
from hypermargin.evaluate.identification import of_samples as _identification
from hypermargin.evaluate.intervals import check as check_interval
from hypermargin.evaluate.openset import OpenSet, half_enrolled, open_set
from hypermargin.evaluate.pairs import samples
from hypermargin.evaluate.prototypes import prototypes_of
from hypermargin.evaluate.thresholds import ENOUGH, Thresholds
from hypermargin.evaluate.units import cosine_to_angle, cosine_to_squared_distance
from hypermargin.evaluate.verification import FAR, Verification
from hypermargin.evaluate.verification import of_samples as _verification
from hypermargin.margins import Margin

Row = tuple[str, str, str, str]  # group, name, value, interval

SAME_LENGTH = 1e-5  # a spread of norms below this is rounding


@dataclass(frozen=True)
class Evaluation:
    """Verification with its intervals, identification and geometry of one set; see each for its numbers.

    open_set  with one sample of every second identity enrolled, as `half_enrolled` draws them
    """

    verification: Verification
    identification: Identification
    geometry: Geometry
    open_set: OpenSet
    confidence: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers for JSON, without the arrays by sample; NaN is None."""
        g = asdict(self.geometry)
        if self.geometry.prototypes is not None:
            for name in ("classes", "margin", "worst"):
                del g["prototypes"][name]
            g["prototypes"]["margin"] = float(self.geometry.prototypes.margin.mean())
            g["prototypes"]["worst"] = float(self.geometry.prototypes.worst.min())
        found = {
            "verification": verification_dict(self.verification, self.confidence),
            "identification": {name: getattr(self.identification, name) for name in ("rank", "map", "queries")},
            "open_set": {f.name: getattr(self.open_set, f.name) for f in fields(OpenSet) if f.name != "curve"},
            "geometry": g,
        }
        result: dict[str, Any] = plain(found)
        return result

    def rows(self) -> list[Row]:
        """Return (group, name, value, interval) for a table. Angles are in degrees here."""
        i, g, o = self.identification, self.geometry, self.open_set
        rows = verification_rows(self.verification)
        rows += [("identification", f"rank-{k}", _number(share), "") for k, share in i.rank.items()]
        rows += [("identification", "mAP", _number(i.map), ""), ("identification", "queries", f"{i.queries:,}", "")]
        rows.append(("open set", "probes", f"{o.known:,} known, {o.unknown:,} unknown", ""))
        for f, share in o.tpir.items():
            note = "" if o.curve.supports(f) else " (too few unknown: at no false alarm)"
            rows.append(("open set", f"TPIR at FPIR {f:g}", f"{_number(share)}{note}", ""))
        rows += [
            ("geometry", "angle to own center", _degrees(g.own_centre.mean), ""),
            ("geometry", "angle to nearest other center", _degrees(g.other_centre.mean), ""),
            ("geometry", "angle of genuine pairs", _degrees(g.intra), ""),
            ("geometry", "angle of impostor pairs", _degrees(g.inter), ""),
            ("geometry", "classes farther apart than wide", _number(g.separated), ""),
            ("geometry", "alignment", f"{g.alignment:.4f}", ""),
            ("geometry", "uniformity", f"{g.uniformity:.4f}", ""),
            ("norms", "mean", f"{g.norms.mean:.4g}", ""),
        ]
        if max(g.norms.within, g.norms.between) < SAME_LENGTH:
            rows.append(("norms", "spread", "none: all have one length, which says nothing", ""))
        else:
            rows += [
                ("norms", "spread within classes", _number(g.norms.within), ""),
                ("norms", "spread between classes", _number(g.norms.between), ""),
                ("norms", "rank correlation with own-center cosine", _correlation(g.norms.correlation), ""),
            ]
        p = g.prototypes
        if p is not None:
            rows += [
                ("prototypes", "angle to own", _degrees(p.own.mean), ""),
                ("prototypes", "angle to nearest other", _degrees(p.rival.mean), ""),
                ("prototypes", "nearer to own", _number(p.accuracy), ""),
                ("prototypes", "margin of a class, mean", _degrees(float(p.margin.mean())), ""),
                ("prototypes", "margin of a sample, least", _degrees(float(p.worst.min())), ""),
            ]
            if p.met is not None:
                rows.append(("prototypes", "samples that meet the margin", _number(p.met), ""))
            a, b, angle = p.closest[0]
            rows.append(("prototypes", "closest two", f"{_degrees(angle)} (classes {a} and {b})", ""))
        return rows


def evaluate(
    features: Values,
    labels: Values,
    *,
    prototypes: Values | None = None,
    margin: Margin | None = None,
    far: Sequence[float] = FAR,
    k: Sequence[int] = (1, 5, 10),
    confidence: float | None = 0.95,
    method: str = "auto",
) -> Evaluation:
    """Evaluate features (N, d) as the network gives them with labels (N,); `geometry` explains prototypes.

    `confidence` is that of the intervals; None or 0: none are computed.
    """
    confidence = check_interval(confidence, method)
    s = samples(features, labels, "features")
    against = prototypes_of(s, prototypes, margin)
    verified = _verification(s, far, confidence, method, None)
    identified = _identification(s, k, None)
    x, y = torch.as_tensor(features).detach(), to_numpy(labels)
    gallery, probes = half_enrolled(y)
    watched = open_set(x[gallery], y[gallery], x[probes], y[probes])
    laid = _geometry(s, verified.curve, identified, against)
    return Evaluation(verified, identified, laid, watched, confidence)


def verification_rows(v: Verification, unit: str = "cosine") -> list[Row]:
    """Return the rows of verification in the table; `unit` is what the scores are; for "distance", minus that."""
    sign = -1 if unit == "distance" else 1

    def interval(name: str | float, write: Callable[[float], str] = _number) -> str:
        if v.intervals is None or (isinstance(name, float) and name * v.impostor < ENOUGH):
            return ""
        low, high = v.intervals[name]
        return f"{write(low)} … {write(high)}"

    rows = [
        ("verification", "pairs", f"{v.genuine:,} genuine, {v.impostor:,} impostor", ""),
        ("verification", "EER", f"{_number(v.eer)} at {unit} {sign * v.threshold:.3f}", interval("eer")),
        ("verification", "AUC", _number(v.auc), interval("auc")),
        ("verification", "minDCF (1 % genuine)", _cost(v.min_dcf), interval("min_dcf", _cost)),
    ]
    for f, tar in v.tar.items():
        value = f"{_number(tar)} at {unit} {sign * v.thresholds[f]:.3f}"
        if not v.curve.supports(f):
            value = f"{_number(tar)} (too few pairs: at no false accept)"
        elif f * v.impostor < ENOUGH:
            value += f" (on {int(f * v.impostor)} false accepts: take it with care)"
        rows.append(("verification", f"TAR at FAR {f:g}", value, interval(f)))
    return rows


def verification_dict(v: Verification, confidence: float | None) -> dict[str, Any]:
    """Return verification for JSON, before `plain`."""
    found = {f.name: getattr(v, f.name) for f in fields(v) if f.name != "curve"}
    return found | {"supported": v.supported, "confidence": confidence}


@dataclass(frozen=True)
class Operating:
    """What a threshold, chosen for a FAR (None: equal errors), does on a curve; the threshold in three units."""

    chosen_for: float | None
    cosine: float
    angle_degrees: float
    squared_l2: float
    far: float
    tar: float

    def cells(self) -> tuple[str, ...]:
        """Return the cells of a row of a table."""
        wanted = "equal errors" if self.chosen_for is None else f"FAR {self.chosen_for:g}"
        units = f"{self.cosine:.4f}", f"{self.angle_degrees:.1f}°", f"{self.squared_l2:.4f}"
        return wanted, *units, _number(self.far), _number(self.tar)


def operating(thresholds: Thresholds, curve: Curve) -> list[Operating]:
    """Return FAR and TAR, on a curve, of thresholds that may come from other pairs: those are the honest ones."""
    return [
        Operating(f, t, math.degrees(cosine_to_angle(t)), float(cosine_to_squared_distance(t)), *curve.at(t))
        for f, t in ((None, thresholds.eer), *thresholds.far.items())
    ]


def _number(share: float) -> str:
    """Write shares in per cent: two digits after the point, and more where the distance from 0 or 1 needs them."""
    rest = min(share, 1 - share) if 0 < share < 1 else 1.0
    digits = 2 if rest >= 1e-3 or rest <= 0 else min(6, 1 - math.floor(math.log10(rest)) - 1)
    return f"{100 * share:.{digits}f} %"


def _cost(value: float) -> str:
    return f"{value:.4f}"


def _correlation(value: float) -> str:
    return "none: one of them is constant" if math.isnan(value) else f"{value:.3f}"


def _degrees(angle: float) -> str:
    return f"{math.degrees(angle):.1f}°"


def plain(value: Any) -> Any:
    """Make values fit for JSON: keys are text, tuples lists, and NaN None."""
    if isinstance(value, dict):
        return {f"{key:g}" if isinstance(key, float) else str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
