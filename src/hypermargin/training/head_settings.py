"""What a config says of the head besides its name: overrides and schedules, checked before anything is built."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from hypermargin import checks
from hypermargin.common.text import first_line, parse_call
from hypermargin.family import head_settings
from hypermargin.schedule import Alternation, LambdaAnnealing, MarginWarmup, Schedule
from hypermargin.settings import UnknownSettingError
from hypermargin.training.by_counts import BY_CLASS, placeholder
from hypermargin.training.values import check_plain

SCHEDULES: dict[str, type[Schedule]] = {
    "warmup": MarginWarmup,
    "lambda": LambdaAnnealing,
    "alternate": Alternation,
}
# Arguments of `create_head` that are no overrides of a trained head, and where what they say is said instead.
RESERVED = {
    "dim": "It is the setting dim (--dim)",
    "classes": "Their number is that of the identities that are trained",
    "schedule": "It is the setting schedule (--schedule)",
    "sample": "It is the setting sample_rate (--sample-rate)",
    "shard": "It is the setting shard_classes (--shard-classes)",
    "device": "It is the setting device (--device)",
    "dtype": "Heads are trained in float32; the setting precision is the network's",
    "margin": "A margin belongs to a head: choose one with the setting head (--head), and its numbers here",
    "rule": "A rule is an object of Python, for create_head and a loop of your own",
    "view": "A view belongs to a head: choose one with the setting head (--head), and its numbers here",
    "row_terms": "They are objects of Python, for create_head and a loop of your own",
    "reduction": "Training takes the mean",
    "counts": "They are counted in the training part",
    "class_counts": "They are counted in the training part",
}


def check_overrides(head: str, overrides: Mapping[str, Any], where: str = "set") -> None:
    """Require overrides that a head of that name has, with values that it allows; `where` they were given."""
    for name in overrides.keys() & RESERVED.keys():
        raise ValueError(f"{where}: {name} is not an override of a head. {RESERVED[name]}.")
    for name in overrides.keys() & set(BY_CLASS):
        given = overrides[name]
        rows = given if isinstance(given, list) else [given, None]
        flat = [n for row in rows for n in (row if isinstance(row, list) else [row])]
        if not all(isinstance(n, int | float) and not isinstance(n, bool) for n in flat):
            raise TypeError(
                f"{where}: {name} must be a list with the numbers of each class; got {checks.shown(given)}."
            )
    try:
        plain = {name: value for name, value in overrides.items() if name not in BY_CLASS}
        head_settings(head, 2, 2, plain | placeholder(head, 2))
    except UnknownSettingError as error:
        raise TypeError(f"{where}: {error.without({*RESERVED, *BY_CLASS})}") from None
    except (ValueError, TypeError) as error:
        raise type(error)(f"{error}" if str(error).startswith("unknown head") else f"{where}: {error}") from None


def read_schedules(texts: Sequence[str]) -> list[Schedule] | None:
    """Make the schedules of the setting `schedule`; None stands for the paper's own."""
    found: list[Schedule] = []
    for text in texts:
        name, settings = parse_call(text, "schedule")
        for key, value in settings.items():
            check_plain(f"schedule {checks.shown(text)}: {checks.shown(key)}", value)
        if name == "paper":
            if len(texts) > 1:
                raise ValueError('schedule "paper" stands alone; got ' + ", ".join(texts) + ".")
            if settings:
                raise ValueError(f"schedule {checks.shown(text)}: paper has no numbers.")
            return None
        if name == "none":
            continue
        checks.one_of("schedule", name, ("paper", "none", *SCHEDULES))
        try:
            found.append(_schedule(name, settings))
        except (TypeError, ValueError) as error:
            raise ValueError(f"schedule {checks.shown(text)}: {first_line(error)}") from None
    return found


def _schedule(name: str, settings: dict[str, Any]) -> Schedule:
    known = inspect.signature(SCHEDULES[name]).parameters
    for key in settings.keys() - known.keys():
        raise ValueError(f"{name} has no {key!r}.{checks.near(key, known)} It takes {', '.join(known)}.")
    missing = [key for key, each in known.items() if each.default is each.empty and key not in settings]
    if missing:
        raise ValueError(f"{name} needs {' and '.join(missing)}, as in {name}:{missing[0]}=100.")
    return SCHEDULES[name](**settings)
