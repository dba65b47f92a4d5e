"""What travels with an exported network: all that is needed to use it, as plain JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from hypermargin import checks
from hypermargin.common.environment import now, versions
from hypermargin.common.plain import anything, items, maybe, number, table, text, whole
from hypermargin.data import Scaling
from hypermargin.data.images import PREPARATION
from hypermargin.evaluate.thresholds import COUNTS, Thresholds
from hypermargin.evaluate.units import cosine_to_angle, cosine_to_squared_distance
from hypermargin.training.content import MOST_VALUES
from hypermargin.training.run import Trained
from hypermargin.training.values import MOST_SIDE

KEY = "hypermargin"
FORMAT = 1
_UNITS = table({"cosine": number(-2.0, 2.0 + 1e-9)}, rest=anything)
_THRESHOLDS = table({"eer": _UNITS, "far": table({}, rest=_UNITS), **COUNTS})


def _shape(where: str, value: Any) -> None:
    items(anything, 2, 4)(where, value)
    items(whole(1, MOST_SIDE if len(value) > 2 else MOST_VALUES))(f"{where}[1:]", value[1:])


# What is read of it again. The rest is for people and other programs.
CONTENT = table(
    {
        "format": whole(),
        "input": table({"name": text, "shape": _shape, "dtype": text}, rest=anything),
        "dim": whole(1, checks.MOST_DIM),
        "thresholds": maybe(_THRESHOLDS),
        "notes": items(text),
    },
    rest=anything,
)
MOST_CLASSES = 10_000  # names in the file; more would weigh more than a small network


def describe(
    trained: Trained, thresholds: Thresholds | None, *, with_head: bool = False, dtype: str = "float32"
) -> dict[str, Any]:
    """Describe an exported network: the JSON under the key "hypermargin"."""
    config, about, head = trained.config, trained.about, trained.head
    notes = list(trained.passed_over)
    if thresholds is not None and thresholds.step != trained.step:
        notes.append(
            f"thresholds left out: they were measured at step {thresholds.step}, these weights are of step "
            f"{trained.step}. Measure them with: hypermargin evaluate"
        )
        thresholds = None
    classes = list(trained.classes)
    if len(classes) > MOST_CLASSES:
        notes.append(f"names of the classes left out: there are {len(classes):,}, more than {MOST_CLASSES:,}")
    outputs = {"embedding": {"shape": ["N", config.dim], "dtype": dtype, "what": "x/|x|; compare by dot product"}}
    outputs["norm"] = {"shape": ["N"], "dtype": "float32", "what": "|x|, the length of the feature"}
    if with_head:
        shape = ["N", len(classes)]
        outputs["probability"] = {"shape": shape, "dtype": "float32", "what": "of the training classes"}
    return {
        "format": FORMAT,
        "input": _input(about.shape, about.scaling),
        "outputs": outputs,
        "dim": config.dim,
        "network": {"model": config.model, "set": config.model_set, "own": about.network, "shape": about.shape},
        "averaged": bool(config.ema),
        "head": {
            "name": config.head,
            "classes": len(classes),
            "set": config.set,
            "scale": float(head.current_scale().detach()),
            **head.settings.as_plain(),
        },
        "classes": classes if len(classes) <= MOST_CLASSES else None,
        "thresholds": None if thresholds is None else _in_all_units(thresholds),
        # Only the last part of a path: where the data were on some machine is nobody's business.
        "data": {**{k: v for k, v in about.data.items() if k != "left_out"}, "name": Path(about.data["name"]).name},
        "step": trained.step,
        "passed_over": list(trained.passed_over),
        "versions": versions(),
        "trained_with": about.versions,
        "date": now(),
        "notes": notes,
    }


def _input(shape: tuple[int, ...], scaling: Scaling) -> dict[str, Any]:
    """Describe how samples have to come: bytes for the fixed scaling, floats where the data had their own."""
    channels, *sides = shape
    size = [*sides, 3] if channels == 3 and sides else sides or [channels]
    bytes_ = bool(sides) and scaling == Scaling()
    return {
        "name": "samples",
        "shape": ["N", *size],
        "dtype": "uint8" if bytes_ else "float32",
        "layout": ("NHWC" if channels == 3 else "NHW") if sides else "ND",
        "channels": ("RGB" if channels == 3 else "gray") if sides else None,
        "range": [0, 255] if bytes_ else None,
        "scaling": {"inside": True, "formula": "(value - mean) / std", **dataclasses.asdict(scaling)},
        "images": dict(PREPARATION) if bytes_ else None,
    }


def _in_all_units(thresholds: Thresholds) -> dict[str, Any]:
    """Return the thresholds by cosine, with the same in other measures beside."""
    return {
        **dataclasses.asdict(thresholds),
        "eer": in_all_units(thresholds.eer),
        "far": {str(far): in_all_units(cosine) for far, cosine in thresholds.far.items()},
    }


def in_all_units(cosine: float) -> dict[str, float]:
    """Return a cosine c, its angle acos c, and the squared distance 2 − 2c of the unit vectors."""
    angle = math.degrees(float(cosine_to_angle(cosine)))
    return {"cosine": cosine, "angle_degrees": angle, "squared_l2": float(cosine_to_squared_distance(cosine))}


def thresholds_in(about: dict[str, Any]) -> Thresholds | None:
    """Read the thresholds of a description; None if it has none."""
    found = about["thresholds"]
    if found is None:
        return None
    far = {float(f): float(value["cosine"]) for f, value in found["far"].items()}
    return Thresholds(**{**found, "eer": float(found["eer"]["cosine"]), "far": far})


def check_preparation(about: dict[str, Any]) -> None:
    """Check that images are prepared as a description says; before there were words for it, they were so too."""
    for name, wanted in (about["input"].get("images") or {}).items():
        if name in ("filter", "antialias") and wanted != PREPARATION[name]:
            raise ValueError(
                f"the file says that images are resized with {name} {wanted!r}; this version has "
                f"{PREPARATION[name]!r} alone. Resize them yourself, and embed an array."
            )


def flat(about: dict[str, Any]) -> dict[str, str]:
    """Return the JSON under its key, and a few lines for people who list the metadata."""
    takes = about["input"]
    shape = ", ".join(map(str, takes["shape"]))
    words = [f"{takes['dtype']} ({shape})", *([takes["channels"]] if takes["channels"] else [])]
    lines = {
        KEY: json.dumps(about, ensure_ascii=False),
        "input": " ".join(words) + (", not scaled: scaling is inside" if takes["scaling"]["inside"] else ""),
        "embedding_dim": str(about["dim"]),
        "model": str(about["network"]["model"]),
        "head": about["head"]["name"],
        "head_classes": str(about["head"]["classes"]),
        "date": about["date"],
    }
    if prepared := takes["images"]:
        smooth = "antialiased" if prepared["antialias"] else "not antialiased"
        lines["resize"] = f"{prepared['filter']}, {smooth}, as {prepared['library']} does; {prepared['ratio']}"
    if about["thresholds"]:
        lines["threshold_cosine_eer"] = f"{about['thresholds']['eer']['cosine']:.6g}"
    return lines
