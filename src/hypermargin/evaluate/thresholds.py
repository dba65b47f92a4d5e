"""Thresholds: from which score on two samples count as one identity, measured on pairs, kept with the model."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import torch

from hypermargin.common import plain
from hypermargin.common.plain import anything, number, table, text, whole
from hypermargin.files import write_text

NAME = "thresholds.json"
ENOUGH = 10  # accepted impostors that a rate must rest on to be worth something
EXACT = 10_000  # accepted impostors up to which the interval is summed
_COSINE = number(-2.0, 2.0 + 1e-9)  # beyond 1 where a FAR asks for a score that no pair has
COUNTS = {"part": text, "identities": whole(), "genuine": whole(), "impostor": whole(1), "step": whole()}
CONTENT = table({"eer": _COSINE, "far": table({}, rest=_COSINE), **COUNTS}, rest=anything)


@dataclass(frozen=True)
class Support:
    """What the FAR of a threshold rests on, and how far the true rate may be from it.

    accepted    of the impostor pairs that it was chosen on
    low, high   the interval of the rate by Clopper and Pearson, at 95 %, as if every pair were of two other people
    at_most     its upper end if all pairs of the same two people went together, so that each two count once
    enough      whether ten pairs were accepted: below that, any number is chance
    """

    far: float
    accepted: int
    impostor: int
    identities: int
    low: float
    high: float
    at_most: float
    enough: bool

    def rests_on(self) -> str:
        """Say it in one sentence."""
        people = f" of {self.identities:,} identities" if self.identities else ""
        rate = f"the true rate may be {_percent(self.low)} to {_percent(self.high)}"
        if self.at_most > self.high:
            rate += f", up to {_percent(self.at_most)} if the pairs of two people go together"
        pairs = f"{self.accepted} of {self.impostor:,} impostor pairs{people}"
        return f"{pairs}: {rate} (95 %), and more among other people"

    def words(self) -> str:
        """Say it, and what to do."""
        more = math.ceil(self.identities * math.sqrt(ENOUGH / (self.far * self.impostor)))
        wanted = f", or measure thresholds on some {more:,} identities" if more > self.identities else ""
        return (
            f"the threshold for FAR {self.far:g} rests on {self.rests_on()}. Take a FAR of "
            f"{_rounded_up(ENOUGH / self.impostor):g} or more{wanted}."
        )


def _rounded_up(share: float) -> float:
    """Return the next number of one digit."""
    digit = 10.0 ** math.floor(math.log10(share))
    return math.ceil(round(share / digit, 9)) * digit


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"


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

    def support(self, far: float) -> Support:
        """Return what the threshold for a FAR that was measured rests on."""
        accepted, pairs = math.floor(far * self.impostor * (1 + 1e-9)), self.impostor
        low, high = clopper_pearson(accepted, pairs)
        people = self.identities * (self.identities - 1) // 2  # in twos
        at_most = clopper_pearson(min(accepted, people), people)[1] if 0 < people < pairs else high
        return Support(far, accepted, pairs, self.identities, low, high, max(high, at_most), accepted >= ENOUGH)

    def save(self, folder: Path) -> None:
        """Write the thresholds into a run's folder."""
        rests_on = {f"{f:g}": asdict(self.support(f)) for f in self.far}
        found = {"format": 1, "unit": "cosine", **asdict(self), "support": rests_on}
        write_text(folder / NAME, json.dumps(found, indent=1) + "\n")

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


def clopper_pearson(seen: int, of: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the interval of a share: both p at which seeing so many, or more, or fewer, is a tail of (1−c)/2."""
    tail = (1 - confidence) / 2
    if seen > EXACT or of - seen <= EXACT < of:  # where the binomial is normal: Wilson's
        z = NormalDist().inv_cdf(1 - tail)
        middle, reach = (seen + z * z / 2) / (of + z * z), z * math.sqrt(seen * (of - seen) / of + z * z / 4)
        return max(0.0, middle - reach / (of + z * z)), min(1.0, middle + reach / (of + z * z))
    k = torch.arange(seen + 1, dtype=torch.float64)
    total = torch.tensor(float(of), dtype=torch.float64)
    ways = torch.lgamma(total + 1) - torch.lgamma(k + 1) - torch.lgamma(total - k + 1)

    def up_to(last: int, p: float) -> float:
        """P(X ≤ last) of a binomial X."""
        odds = ways + k * math.log(p) + (total - k) * math.log1p(-p)
        return float(odds[: last + 1].exp().sum())

    def solved(last: int, wanted: float) -> float:
        low, high = -60.0, 60.0  # of log p/(1−p); the sum falls with p
        for _ in range(80):
            middle = (low + high) / 2
            p = 1 / (1 + math.exp(-middle))
            low, high = (middle, high) if p < 1 and up_to(last, p) > wanted else (low, middle)
        return 1 / (1 + math.exp(-low))

    low = 0.0 if seen == 0 else solved(seen - 1, 1 - tail)
    high = 1.0 if seen == of else solved(seen, tail)
    return low, high
