"""What a diagnosis holds: what the criterion is, how sure that is, the findings, and what replaces it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypermargin.common.arrays import Floats
from hypermargin.diagnose.angles import Curves
from hypermargin.diagnose.findings import Finding
from hypermargin.diagnose.replacing import Proof
from hypermargin.margins import Margin


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
