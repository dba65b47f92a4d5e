"""Thresholds: from which score on two samples count as one identity, measured on pairs, kept with the model."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hypermargin.common import plain
from hypermargin.common.plain import anything, number, table, text, whole
from hypermargin.files import write_text

NAME = "thresholds.json"
_COSINE = number(-2.0, 2.0 + 1e-9)  # beyond 1 where a FAR asks for a score that no pair has
COUNTS = {"part": text, "identities": whole(), "genuine": whole(), "impostor": whole(1), "step": whole()}
CONTENT = table({"eer": _COSINE, "far": table({}, rest=_COSINE), **COUNTS}, rest=anything)


@dataclass(frozen=True)
class Thresholds:
    """Cosines to accept from, and the pairs they were measured on.

    eer       where FAR = FRR
    far       by FAR f: the lowest threshold with at most that share of impostors accepted; only those f that the
              number of impostor pairs can show, f·impostor ≥ 1
    part      of the data: "validation" or "test"
    step      of the checkpoint
    """

    eer: float
    far: dict[float, float]
    part: str
    identities: int
    genuine: int
    impostor: int
    step: int

    def at(self, far: float | None = None) -> float:
        """Return the threshold for a FAR that was measured; with None, that of equal errors."""
        if far is None:
            return self.eer
        for known, threshold in self.far.items():
            if math.isclose(known, far):
                return threshold
        raise ValueError(
            f"far must be one that was measured ({', '.join(f'{f:g}' for f in self.far)}); got {far:g}. "
            f"{self.impostor:,} impostor pairs cannot show less than {1 / self.impostor:.1g}."
        )

    def save(self, folder: Path) -> None:
        """Write the thresholds into a run's folder."""
        write_text(folder / NAME, json.dumps({"format": 1, "unit": "cosine", **asdict(self)}, indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Thresholds | None:
        """Read the thresholds of a run's folder; None if there are none."""
        path = folder / NAME
        try:
            found: dict[str, Any] = plain.read_json(path)
            CONTENT("", found)
            found = {name: found[name] for name in cls.__dataclass_fields__}
            return cls(**{**found, "far": {float(f): float(t) for f, t in found["far"].items()}})
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise ValueError(
                f"{path} is damaged: {error}. Write it anew with: hypermargin evaluate {folder}"
            ) from None
