"""A diagnosis as plain data, with its curves, and back."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import numpy as np

from hypermargin import margins
from hypermargin.diagnose.angles import Curves
from hypermargin.diagnose.diagnosis import Diagnosis
from hypermargin.diagnose.findings import Finding
from hypermargin.diagnose.replacing import Proof


def written(found: Diagnosis) -> dict[str, Any]:
    """Return everything as plain data that JSON takes."""
    plain = found.plain()
    if found.margin is not None:
        plain["margin"] = {"name": found.margin.name, "numbers": dict(vars(found.margin))}
    if found.curves is not None:
        plain["curves"] = {
            each.name: _list(getattr(found.curves, each.name)) for each in fields(found.curves)
        }  # fmt: skip
    return plain


def read(plain: dict[str, Any]) -> Diagnosis:
    """Return the diagnosis that was written."""
    margin, curves, proof = plain["margin"], plain.get("curves"), plain["proof"]
    names = [each.name for each in fields(Finding)]
    return Diagnosis(
        name=plain["name"], called=plain["called"], kind=plain["kind"],
        findings=tuple(Finding(**{name: each[name] for name in names}) for each in plain["findings"]),
        margin=margins.get(margin["name"])(**margin["numbers"]) if margin else None,
        scale=plain["scale"], gradient=plain["gradient"], unit_features=plain["unit_features"],
        unit_weight=plain["unit_weight"], confidence=plain["confidence"], proof=Proof(**proof) if proof else None,
        same=plain["same"], better=plain["better"],
        curves=Curves(**{name: _array(values) for name, values in curves.items()}) if curves else None,
    )  # fmt: skip


def _list(values: Any) -> Any:
    if isinstance(values, float):
        return values
    return [float(v) if math.isfinite(v) else None for v in values]


def _array(values: Any) -> Any:
    if isinstance(values, float):
        return values
    return np.array([math.nan if v is None else v for v in values])
