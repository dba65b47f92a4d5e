"""What was found: how bad it is, in words, where the errata tell more, and what to do."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from hypermargin import checks

# From harmless to harmful. A note is worth knowing and may be wanted; what is doubtful costs something; what is
# wrong is not the loss that was meant, or ends in NaN.
LEVELS = ("note", "doubtful", "wrong")
DOCUMENT = "docs/errata.md"


@dataclass(frozen=True)
class Finding:
    """One thing that was found."""

    code: str  # a short name that does not change, for programs
    level: str
    said: str
    remedy: str = ""
    errata: str = ""  # the title of the entry in docs/errata.md

    @property
    def link(self) -> str:
        """Where the entry is, as a link within the documents; empty if there is none."""
        return f"{DOCUMENT}#{anchor(self.errata)}" if self.errata else ""

    def plain(self) -> dict[str, Any]:
        """Return it as plain data for JSON."""
        return {**asdict(self), "link": self.link}


def anchor(title: str) -> str:
    """Return the anchor that Markdown makes of a title."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def sorted_by_level(found: list[Finding]) -> tuple[Finding, ...]:
    """Return findings, the worst first."""
    return tuple(sorted(found, key=lambda each: -LEVELS.index(each.level)))


def reaches(found: tuple[Finding, ...], level: str) -> bool:
    """Tell whether any finding is as bad as `level`, or worse; none is as bad as "never"."""
    checks.one_of("fail_on", level, (*LEVELS, "never"))
    return level != "never" and any(LEVELS.index(each.level) >= LEVELS.index(level) for each in found)
