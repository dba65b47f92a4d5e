"""Which checkpoint of a run is tested and used: the latest that is not clearly worse than the best one measured.

A validation part is a few identities, and its EER moves by chance from one look to the next. The lowest of twenty
such numbers is the luckiest; the rate falls towards the end of a run, so in doubt later is better. Two steps are
compared over what validates:

- Open set: with d_(−i) the difference of the two EERs without identity i, the same for both steps,
      se² = (n−1)/n·Σ(d_(−i) − mean)²
  and the step is clearly worse if d/se exceeds what Student's distribution of n − 1 degrees of freedom allows in
  one case of twenty. Two identities cannot tell: without either of them there are no impostor pairs.
- Closed set: of n samples the shares p and q are right, with one right and one wrong more for each, so that 0 and 1
  are not certain; se² = (p(1−p) + q(1−q))/n, judged alike.

A network counts as trained if it knows its training samples and spreads what it has not seen: see `Look.doubts`.
One that does not is chosen only if no step does.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from hypermargin.common.student import two_sided
from hypermargin.evaluate.intervals import standard_error
from hypermargin.training.look import Look

CLEARLY = 0.05  # how often an equally good step may be called worse


@dataclass
class Choice:
    """The step chosen so far, and the best one measured, against which later ones are judged.

    classes  of the head
    step     the chosen one; None before the first look
    look     what was seen of it
    leader   the step with the best number, and `ahead` what was seen of it
    last     the step of the last look
    """

    classes: int
    step: int | None = None
    look: Look | None = None
    leader: int | None = None
    ahead: Look | None = None
    last: int | None = field(default=None, repr=False)

    def consider(self, step: int, look: Look) -> None:
        """Take a later step into account."""
        self.last = step
        trained = not look.doubts(self.classes)
        if self.ahead is None or self.look is None:
            better, rising = True, False
        else:
            rising = trained and bool(self.ahead.doubts(self.classes))
            falling = not trained and not self.ahead.doubts(self.classes)
            better = rising or (not falling and not clearly_worse(look, self.ahead))
        if better:
            self.step, self.look = step, look
            if self.ahead is None or rising or _sign(look) * (_value(look) - _value(self.ahead)) >= 0:
                self.leader, self.ahead = step, look

    @property
    def why(self) -> str:
        """Say in words why this step is the one."""
        if self.look is None or self.ahead is None:
            return "the last: there is no validation part to choose by"
        if self.step == self.leader:
            text = f"best on the validation part, {_words(self.look)}"
        else:
            text = (
                f"the latest that is not clearly worse on the validation part, {_words(self.look)}, than step "
                f"{self.leader}, {_words(self.ahead)}"
            )
        return text if self.step == self.last else text + "; later steps are clearly worse, or not trained"

    @property
    def doubts(self) -> list[str]:
        """Say what tells that the chosen network is not trained."""
        return [] if self.look is None else self.look.doubts(self.classes)

    def summary(self) -> dict[str, Any] | None:
        """Return what is chosen and what was seen of it, for people and programs."""
        if self.look is None:
            return None
        seen = {"known": self.look.known, "apart": self.look.apart, "threshold": self.look.threshold}
        return {"step": self.step, "metric": self.look.metric, "value": _value(self.look), "why": self.why, **seen}

    def state(self) -> dict[str, Any] | None:
        """Return all of it as JSON knows it; `find` reads the step."""
        if self.look is None or self.ahead is None:
            return None
        own = {"step": self.step, "metric": self.look.metric, "value": _value(self.look), "last": self.last}
        same = self.leader == self.step
        return {
            **own,
            "look": asdict(self.look),
            "leader": self.leader,
            "ahead": None if same else asdict(self.ahead),
        }

    def restore(self, state: dict[str, Any] | None) -> None:
        """Go on from `state`, or from that of 0.1, which is a step, a metric and a value."""
        if state is None:
            self.step = self.look = self.leader = self.ahead = self.last = None
            return
        self.step, self.last = state["step"], state.get("last", state["step"])
        self.leader = state.get("leader", self.step)
        old = {"values": {state["metric"]: state["value"]}, "samples": 0, "known": 1.0}
        self.look = _look(state.get("look", old))
        ahead = state.get("ahead")
        self.ahead = self.look if ahead is None else _look(ahead)


def clearly_worse(look: Look, other: Look) -> bool:
    """Tell whether a step is worse than another by more than chance would explain, over what validates."""
    difference = _sign(look) * (_value(other) - _value(look))  # above 0: worse
    if difference <= 0:
        return False
    if look.metric == "accuracy":
        n = max(2, look.samples)
        # One right and one wrong more, else shares of 0 and 1 would be certain. How many samples 0.1's number is of
        # it did not save: of as many as now.
        p, q = ((n * _value(each) + 1) / (n + 2) for each in (look, other))
        error = math.sqrt((p * (1 - p) + q * (1 - q)) / n)
    else:
        # Without the other's numbers (0.1 did not save them) it is taken as certain.
        left = look.left - other.left if len(look.left) == len(other.left) else look.left
        left = left[~np.isnan(left)]
        n = len(left)
        if n < 2:
            return False
        error = standard_error(left)
    # Where all identities say the same, there is no doubt.
    return error < 1e-12 or two_sided(difference / error, n - 1) < 2 * CLEARLY


def _look(saved: dict[str, Any]) -> Look:
    return Look(**{**saved, "without": tuple(saved.get("without", ()))})


def _value(look: Look) -> float:
    return look.values[look.metric]


def _sign(look: Look) -> int:
    return 1 if look.metric == "accuracy" else -1


def _words(look: Look) -> str:
    return f"{'EER' if look.metric == 'eer' else look.metric} {_value(look):.2%}"
