"""Margins and offsets that go by how many training samples a class has: counted here, and asked for by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hypermargin import checks
from hypermargin.common.text import first_line, parse_call
from hypermargin.counts import RULES, margins_from_counts
from hypermargin.data import Data, Split
from hypermargin.family import head_settings
from hypermargin.margins import Margin
from hypermargin.recipes import FAMILY
from hypermargin.training.values import check_plain

_RANGE = ("low", "high", "power")
TAKES = {"power": _RANGE, "landmark": _RANGE, "absolute": _RANGE, "ldam": ("high", "power")}
BY_CLASS = ("class_margins", "class_offsets")


def counts_of(data: Data, parts: Split) -> Tensor:
    """Return the number of training samples of each class, (C,), in the order of the head's classes."""
    rows = parts.targets(data.labels)[parts.train]
    return torch.from_numpy(np.bincount(rows, minlength=len(parts.classes))).double()


def read_rule(text: str | None) -> tuple[str, dict[str, Any]] | None:
    """Return rule and numbers of the setting `class_margins`, such as power:low=0.05,high=0.5; None: no rule."""
    if text is None:
        return None
    rule, numbers = parse_call(text, "class_margins")
    checks.one_of("class_margins", rule, RULES)
    for key, value in numbers.items():
        check_plain(f"class_margins {checks.shown(text)}: {checks.shown(key)}", value)
        if key not in TAKES[rule]:
            known = ", ".join(TAKES[rule])
            raise ValueError(f"class_margins: {rule} has no {checks.shown(key)}; it takes {known}.")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"class_margins: {key} must be a number; got {checks.shown(value)}.")
    return rule, numbers


def check_class_margins(head: str, text: str | None, overrides: Mapping[str, Any]) -> None:
    """Require a head whose margin can go by class by this rule. Its name and overrides have been checked."""
    found = read_rule(text)
    if found is None:
        return
    if "class_margins" in overrides:
        raise ValueError("class_margins: set gives the margin of each class already. Leave one of the two out.")
    plain = {name: value for name, value in overrides.items() if name not in BY_CLASS}
    margin = head_settings(head, 2, 2, plain | placeholder(head, 2))[0].margin
    if not isinstance(margin.m, float | int):
        has = "no m" if margin.m is None else f"{len(margin.m)} numbers for one m"
        raise ValueError(f"class_margins needs a head whose margin has one m; {head} has {has}.")
    assert isinstance(margin.zero, float | int)
    if margin.m < margin.zero:
        raise ValueError(f"class_margins: a smaller m of {head} is a larger margin, and no rule is made for that.")
    if found[0] == "ldam" and margin.zero:
        raise ValueError(
            f"class_margins: ldam's margins begin at 0, and the m of {head} at {margin.zero:g}. "
            f"Take power:low={margin.zero + 0.1:g},high={margin.zero + 0.5:g}."
        )
    try:
        checks.class_margins(margins_by(str(text), margin, torch.tensor([1.0, 9.0])), margin, 2)
    except ValueError as error:
        raise ValueError(f"class_margins {checks.shown(text)}: {first_line(error)}") from None


def margins_by(text: str, margin: Margin, counts: Tensor) -> Tensor:
    """Return the margin of each class, (C,), by the setting `class_margins`.

    Unless given, `high` is the margin's own m, and `low` a tenth of the way to it from no margin.
    """
    found = read_rule(text)
    assert found is not None
    rule, numbers = found
    assert isinstance(margin.m, float | int)
    assert isinstance(margin.zero, float | int)
    numbers.setdefault("high", margin.m)
    if "low" in TAKES[rule]:
        numbers.setdefault("low", margin.zero + (numbers["high"] - margin.zero) / 10)
    return margins_from_counts(counts, rule, **numbers)


def placeholder(head: str, classes: int) -> dict[str, Any]:
    """Return the counts that such a head cannot be made without, where its state comes from elsewhere."""
    return {"counts": torch.ones(classes)} if head in FAMILY and FAMILY[head].by_counts else {}


def arguments(
    head: str, text: str | None, overrides: Mapping[str, Any], classes: int, counts: Tensor | None
) -> dict[str, Any]:
    """Return the arguments of `create_head` that go by counts; without them, of the right shape alone."""
    found = placeholder(head, classes)
    if found and counts is not None:
        found["counts"] = counts
    if text is not None:
        plain = {name: value for name, value in overrides.items() if name not in BY_CLASS}
        settings, state = head_settings(head, 2, 2, plain | placeholder(head, 2))
        if "class_margins" in state:  # which are all that it makes of counts
            found.pop("counts", None)
        counts = torch.ones(classes) if counts is None else counts
        found["class_margins"] = margins_by(text, settings.margin, counts)
    return found


def in_words(head: str, text: str | None, overrides: Mapping[str, Any], counts: Tensor, sampling: str) -> list[str]:
    """Say which margins and offsets came out, for the classes with most and with fewest samples."""
    classes = len(counts)
    state = head_settings(head, 2, classes, {**overrides, **arguments(head, text, overrides, classes, counts)})[1]
    said = []
    most, fewest = int(counts.argmax()), int(counts.argmin())
    by = text or head
    found = {name: state[name] for name in BY_CLASS if name in state and name not in overrides}
    if head in FAMILY and FAMILY[head].by_classes and not text:
        found.pop("class_margins", None)  # where learned margins begin does not go by counts
    if "class_counts" in state:  # what becomes of them is the head's affair
        said.append(f"samples by class, which {by} goes by: {int(counts[fewest]):,} to {int(counts[most]):,}")
        said += _even(by, counts, sampling)
    for name, value in found.items():
        what = "m by class" if name == "class_margins" else "offsets by class, in the loss alone"
        ends = ", ".join(
            f"{float(value[k]):.4g} for {int(counts[k]):,} sample{'' if counts[k] == 1 else 's'}"
            for k in dict.fromkeys((most, fewest))
        )
        said.append(f"{what} ({by}): {ends}")
        said += _even(by, counts, sampling)
    return said


def _even(by: str, counts: Tensor, sampling: str) -> list[str]:
    """Say where going by counts makes no difference, or too much of one."""
    said = []
    if bool((counts == counts[0]).all()):
        said.append("all classes have as many samples, so they get the same")
    if sampling != "shuffled":
        said.append(f"sampling = {sampling} evens the classes out already: with {by} rare ones are favoured twice")
    return said
