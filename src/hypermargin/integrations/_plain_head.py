"""A head without its numbers, as plain values that a JSON file holds, and back."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import torch

from hypermargin import checks, margins, rules, views
from hypermargin import schedule as schedules
from hypermargin.centers import Centers
from hypermargin.head import MarginHead
from hypermargin.parallel import PartialFC

PARTS: dict[str, Any] = {"margin": margins, "rule": rules, "view": views}
LEFT_OUT = ("backend", "shard")  # how the work is done, which is for whoever loads it to say


def to_plain(head: MarginHead) -> dict[str, Any]:
    """Return what `from_plain` makes such a head from; its numbers are in its state_dict.

    Raises ValueError for a head with parts that no file can name: row terms, schedules or margins of one's own.
    """
    checks.instance("head", head, MarginHead, "create_head(…)")
    if head.settings.shard is not None:
        raise ValueError(
            "head is sharded and holds a slice of the classes. Write it with heads.write on every rank."
        )
    own = head.margin.row_term()
    if len(head.row_terms) > (own is not None):
        raise ValueError("head has row terms, which are modules that a file cannot name.")
    found: dict[str, Any] = {}
    for field in dataclasses.fields(head.settings):
        value = getattr(head.settings, field.name)
        if field.name in ("margin", "rule", "view"):
            found[field.name] = _named(field.name, value)
        elif field.name in ("centers", "sample"):
            found[field.name] = None if value is None else dataclasses.asdict(value)
        elif field.name not in LEFT_OUT:
            found[field.name] = value
    found["schedules"] = [_schedule(each) for each in head.schedules]
    # Tensors by class are in the state_dict; here is which there are.
    found["has"] = [name for name in ("m", "offsets") if name in head.by_class()]
    found["counts"] = any(part.by_class() for part in head.parts_by_class().values())
    return found


def from_plain(plain: dict[str, Any], **overrides: Any) -> MarginHead:
    """Make a head from what `to_plain` returned, with first numbers; `overrides` are arguments of `MarginHead`."""
    given = dict(plain)
    made = [_get(name, each) for name, each in ((name, given.pop(name)) for name in ("margin", "rule", "view"))]
    has, counted = given.pop("has"), given.pop("counts")
    dim, classes = given.pop("dim"), given.pop("classes")
    given |= {"rule": made[1], "view": made[2], "centers": Centers(**given["centers"])}
    given["sample"] = None if given["sample"] is None else PartialFC(**given["sample"])
    given["schedule"] = [_scheduled(each) for each in given.pop("schedules")]
    if "m" in has:
        given["class_margins"] = torch.tensor(made[0].m, device="cpu").expand(classes, *_shape(made[0])).clone()
    if "offsets" in has:
        given["class_offsets"] = torch.zeros(classes, device="cpu")
    if counted:
        given["class_counts"] = torch.ones(classes, device="cpu")
    return MarginHead(dim, classes, made[0], **given | overrides)


def _shape(margin: Any) -> tuple[int, ...]:
    return (3,) if isinstance(margin.m, tuple) else ()


def _named(kind: str, value: Any) -> dict[str, Any] | None:
    """Return name and numbers of a margin, rule or view; None for one that does nothing and has no name."""
    if not value.name:
        return None
    if PARTS[kind].get(value.name) is not type(value):
        raise ValueError(f"{kind} {value} is not registered, so a file cannot name it.")
    return {"name": value.name} | {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _get(kind: str, plain: dict[str, Any] | None) -> Any:
    if plain is None:
        return {"rule": rules.SOFTMAX, "view": views.AS_THEY_ARE}[kind]
    fields = dict(plain)
    return PARTS[kind].get(fields.pop("name"))(**fields)


def _schedule(each: Any) -> dict[str, Any]:
    kind = type(each)
    if getattr(schedules, kind.__name__, None) is not kind:
        raise ValueError(f"head has a schedule of your own, {kind.__name__}, which a file cannot name.")
    return {"name": kind.__name__} | {name: getattr(each, name) for name in inspect.signature(kind).parameters}


def _scheduled(plain: dict[str, Any]) -> Any:
    fields = dict(plain)
    known = {
        kind.__name__: kind for kind in schedules.Schedule.__subclasses__() if kind.__module__ == schedules.__name__
    }
    checks.one_of("schedule", fields["name"], list(known))
    return known[fields.pop("name")](**fields)
