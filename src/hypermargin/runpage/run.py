"""What a page shows of a run besides its embeddings: its log, its settings, how its training samples stand."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hypermargin.common.arrays import Array
from hypermargin.common.environment import versions
from hypermargin.data import Data
from hypermargin.data.base import Rows
from hypermargin.numerics import unit
from hypermargin.plots import explorer
from hypermargin.runpage.cloud import Cloud, cloud, packed
from hypermargin.training import Trained
from hypermargin.training.config import Config
from hypermargin.training.evaluation import Parts, margin_of, prototypes

SERIES = 300  # points of a line
MOST_VECTORS = 30  # of classes, that are drawn
KINDS = "train", "validation"
LEFT_OUT = "data", "init", "exclude", "verify_images"  # paths, of which the last name is enough


def curves(lines: Iterable[str], most: int = SERIES) -> dict[str, dict[str, list[float | None]]]:
    """Return the numbers of a log by kind and name, beside "step"; of many lines some, evenly, the last among them.

    A line that is not whole, as one that is being written, is passed over.
    """
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for line in lines:
        try:
            record = json.loads(line)
            if record["kind"] in found and isinstance(record["step"], int):
                found[record["kind"]].append(record)
        except (ValueError, KeyError, TypeError):
            continue
    series: dict[str, dict[str, list[float | None]]] = {}
    for kind, records in found.items():
        if not records:
            continue
        taken = np.unique(np.linspace(0, len(records) - 1, min(most, len(records))).round().astype(int))
        # Not every line has every number: that of an epoch's last steps may have the loss alone.
        known = dict.fromkeys(name for record in records for name in record if _is_number(record[name]))
        series[kind] = {name: [_number(records[k].get(name)) for k in taken.tolist()] for name in known}
    return series


def read_curves(folder: Path) -> dict[str, dict[str, list[float | None]]]:
    """Return the numbers of a run's log; nothing if it has none."""
    try:
        with (folder / "log.jsonl").open(encoding="utf-8", errors="replace") as file:
            return curves(file)
    except OSError:
        return {}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: Any) -> float | None:
    return float(f"{value:.6g}") if _is_number(value) else None


def settings(config: Config) -> dict[str, str]:
    """Return every setting that is not empty, as text; of paths the last name."""
    found = {}
    for name, value in vars(config).items():
        if value in (None, {}, []) or name == "verify":
            continue
        shown = Path(str(value)).name if name in LEFT_OUT else value
        found[name] = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
    return found | {f"version of {name}": value for name, value in versions().items()}


def of_head(trained: Trained) -> dict[str, Any]:
    """Return what the explorer needs to stand where the head stands."""
    head = trained.head
    margin = margin_of(head)
    return {
        "name": trained.config.head, "margin": str(head.margin),
        "numbers": None if margin is None else explorer.numbers_of(margin),
        "form": "" if margin is None else explorer.form_of(margin),
        "lambda": float(head.current_adjustment().lam), "scale": float(head.current_scale().detach()),
        "unit_features": head.settings.unit_features, "unit_weight": head.settings.unit_weight,
    }  # fmt: skip


def class_vectors(trained: Trained) -> dict[str, Any] | None:
    """Return the directions of the class vectors, to stand beside features of known classes in a plane or space."""
    weight = prototypes(trained.head)
    few = weight is not None and weight.shape[1] in (2, 3) and len(weight) <= MOST_VECTORS
    if weight is None or not few or trained.about.open_set:
        return None
    shown = unit(weight).cpu().numpy()
    return {"at": packed(shown), "width": shown.shape[1], "names": list(trained.classes)}


@torch.no_grad()
def training_cloud(parts: Parts) -> Cloud | None:
    """Measure some training samples against the head's own class vectors; None where classes have several."""
    weight = prototypes(parts.trained.head)
    if weight is None or len(parts.split.train) == 0:
        return None
    features, rows = parts.features("train")
    targets = torch.from_numpy(parts.split.targets(parts.data.labels)[rows]).to(weight.device)
    length = features.norm(dim=1)
    if not bool((length > 0).all()):
        return None
    return cloud(unit(features.to(weight)), targets, unit(weight), "weight")


def where_of(data: Data, rows: Rows) -> Callable[[int], str]:
    """Return a function that names a sample, without the place where the data lie."""
    place = data.name

    def where(k: int) -> str:
        name = data.where(int(rows[k]))
        if not name.startswith(place):
            return Path(name).name
        return name[len(place) :].lstrip("/\\, ") or name

    return where


def image_of(data: Data, rows: Rows) -> Callable[[int], Array]:
    """Return a function that reads a sample."""
    return lambda k: np.asarray(data.samples[int(rows[k])])
