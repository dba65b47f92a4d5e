"""Everything that can be said about features and labels, in one object: for people, and for JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from hypermargin.evaluate.geometry import Geometry
from hypermargin.evaluate.geometry import of_samples as _geometry
from hypermargin.evaluate.identification import Identification
from hypermargin.evaluate.identification import of_samples as _identification
from hypermargin.evaluate.pairs import Values, samples
from hypermargin.evaluate.prototypes import prototypes_of
from hypermargin.evaluate.verification import FAR, Verification
from hypermargin.evaluate.verification import of_samples as _verification
from hypermargin.margins import Margin

Row = tuple[str, str, str, str]


@dataclass(frozen=True)
class Evaluation:
    """Verification with its intervals, identification and geometry of one set; see each for its numbers."""

    verification: Verification
    identification: Identification
    geometry: Geometry
    confidence: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON, without the arrays by sample; NaN is None."""
        v, g = self.verification, asdict(self.geometry)
        if self.geometry.prototypes is not None:
            for name in ("classes", "margin", "worst"):
                del g["prototypes"][name]
            g["prototypes"]["margin"] = float(self.geometry.prototypes.margin.mean())
            g["prototypes"]["worst"] = float(self.geometry.prototypes.worst.min())
        verified = {f.name: getattr(v, f.name) for f in fields(v) if f.name != "curve"}
        found = {
            "verification": verified | {"supported": v.supported, "confidence": self.confidence},
            "identification": {name: getattr(self.identification, name) for name in ("rank", "map", "queries")},
            "geometry": g,
        }
        plain: dict[str, Any] = _plain(found)
        return plain

    def rows(self) -> list[Row]:
        """(group, name, value, interval) for a table. Angles are in degrees here."""
        v, i, g = self.verification, self.identification, self.geometry

        def interval(name: str | float, write: Callable[[float], str] = _number) -> str:
            if v.intervals is None or (isinstance(name, float) and not v.curve.supports(name)):
                return ""
            low, high = v.intervals[name]
            return f"{write(low)} … {write(high)}"

        rows = [
            ("verification", "pairs", f"{v.genuine:,} genuine, {v.impostor:,} impostor", ""),
            ("verification", "EER", f"{_number(v.eer)} at cosine {v.threshold:.3f}", interval("eer")),
            ("verification", "AUC", _number(v.auc), interval("auc")),
            ("verification", "minDCF (1 % genuine)", _cost(v.min_dcf), interval("min_dcf", _cost)),
        ]
        for f, tar in v.tar.items():
            value = f"{_number(tar)} at cosine {v.thresholds[f]:.3f}"
            if not v.curve.supports(f):
                value = f"{_number(tar)} (too few pairs: at no false accept)"
            rows.append(("verification", f"TAR at FAR {f:g}", value, interval(f)))
        rows += [("identification", f"rank-{k}", _number(share), "") for k, share in i.rank.items()]
        rows += [("identification", "mAP", _number(i.map), ""), ("identification", "queries", f"{i.queries:,}", "")]
        rows += [
            ("geometry", "angle to own centre", _degrees(g.own_centre.mean), ""),
            ("geometry", "angle to nearest other centre", _degrees(g.other_centre.mean), ""),
            ("geometry", "angle of genuine pairs", _degrees(g.intra), ""),
            ("geometry", "angle of impostor pairs", _degrees(g.inter), ""),
            ("geometry", "classes farther apart than wide", _number(g.separated), ""),
            ("geometry", "alignment", f"{g.alignment:.4f}", ""),
            ("geometry", "uniformity", f"{g.uniformity:.4f}", ""),
            ("norms", "mean", f"{g.norms.mean:.4g}", ""),
            ("norms", "spread within classes", _number(g.norms.within), ""),
            ("norms", "spread between classes", _number(g.norms.between), ""),
            ("norms", "rank correlation with own-centre cosine", f"{g.norms.correlation:.3f}", ""),
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
    """All of it, of features (N, d) as the network gives them and labels (N,); `geometry` explains prototypes."""
    s = samples(features, labels, "features")
    against = prototypes_of(s, prototypes, margin)
    verified = _verification(s, far, confidence, method, None)
    identified = _identification(s, k, None)
    return Evaluation(verified, identified, _geometry(s, verified.curve, identified, against), confidence)


def _number(share: float) -> str:
    """Shares in per cent: two digits after the point, and more where the distance from 0 or 1 needs them."""
    rest = min(share, 1 - share) if 0 < share < 1 else 1.0
    digits = 2 if rest >= 1e-3 or rest <= 0 else min(6, 1 - math.floor(math.log10(rest)) - 1)
    return f"{100 * share:.{digits}f} %"


def _cost(value: float) -> str:
    return f"{value:.4f}"


def _degrees(angle: float) -> str:
    return f"{math.degrees(angle):.1f}°"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {f"{key:g}" if isinstance(key, float) else str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
