"""What the files of a run may say, field by field. They may come from a stranger: nothing is used unchecked.

config.toml is checked by config.py, thresholds.json by evaluate/thresholds.py.
"""

from __future__ import annotations

import math
from typing import Any

from hypermargin import checks
from hypermargin.common.plain import anything, items, maybe, number, table, text, whole, yes_or_no
from hypermargin.training.values import MOST_SIDE

MOST_VALUES = 3 * MOST_SIDE**2  # of one sample
METRICS = ("eer", "accuracy")


def _shape(where: str, value: Any) -> None:
    items(whole(1, MOST_VALUES), 1, 3)(where, value)
    if len(value) == 2 or math.prod(value) > MOST_VALUES or (len(value) == 3 and max(value) > MOST_SIDE):
        raise ValueError(
            f"{where} must be [channels, height, width] or [d], sides up to {MOST_SIDE:,}; got {value}"
        )


def _spread(where: str, value: Any) -> None:
    number()(where, value)
    if value <= 0:
        raise ValueError(f"{where} must be above 0; got {checks.number(value)}")


ABOUT = table(
    {
        "shape": _shape,
        "classes": items(text, least=1),
        "open_set": yes_or_no,
        "scaling": table({"mean": number(), "std": _spread}),
        "data": table(
            {"name": text, "samples": whole(), "classes": whole(), "fingerprint": text},
            open={"left_out": items(items(text, 2, 2))},
            rest=anything,
        ),
    },
    open={"format": whole(1, 1), "network": maybe(text), "versions": table({}, rest=text)},
)

_LOOK = table(
    {"values": table({}, rest=number()), "samples": whole(), "known": number(0.0, 1.0 + 1e-6)},
    open={"without": items(maybe(number())), "apart": maybe(number()), "threshold": maybe(number())},
)


def _best(where: str, value: Any) -> None:
    table(
        {"step": whole(), "metric": text, "value": number()},
        open={"last": maybe(whole()), "leader": maybe(whole()), "look": _LOOK, "ahead": maybe(_LOOK)},
        rest=anything,
    )(where, value)
    for name in ("look", "ahead"):
        look = value.get(name)
        if value["metric"] not in METRICS or (look and value["metric"] not in look["values"]):
            raise ValueError(f"{where}.metric must be one that was measured; got {checks.shown(value['metric'])}")


STATE = table(
    {
        "step": whole(),
        "epoch": whole(),
        "position": whole(),
        "window": table({}, rest=items(number(), 2, 2)),
        "best": maybe(_best),
    },
    rest=anything,
)
MANIFEST = table({"format": whole(), "files": table({}, rest=table({"bytes": whole(), "sha256": text}))})
