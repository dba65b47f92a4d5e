"""What is compared: heads, seeds, and the settings that all of them share. The plan is a file, and can grow."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hypermargin import checks
from hypermargin.common.plain import anything, items, table, text, whole
from hypermargin.common.text import parse_call
from hypermargin.family import list_heads
from hypermargin.files import write_text
from hypermargin.margins import NoMargin
from hypermargin.plots.snapshots import DIGITS, FLAT
from hypermargin.recipes import FAMILY
from hypermargin.training import RunError, paths
from hypermargin.training.by_counts import check_class_margins
from hypermargin.training.config import MANY, Config, from_dict
from hypermargin.training.head_settings import check_overrides
from hypermargin.training.run import read_json
from hypermargin.training.values import check_text

HEADS = ("softmax", "normface", "a-softmax", "cosface", "arcface")
MOST_SEEDS, MOST_HEADS = 1000, 100
FORMAT = 2
# What 0.1, whose plans are of format 1, took where a plan says nothing; its runs must go on alike.
BEFORE = {"epochs": 20, "batch": 128, "lr_warmup": 0.5, "log": 50, "evaluate": 1}
CONTENT = table(
    {"settings": table({}, rest=anything), "heads": items(text, 1, MOST_HEADS)},
    open={"format": whole(1, FORMAT), "seeds": whole(1, MOST_SEEDS), "plane": whole(0, MANY)},
)
GROWING = 20  # steps per epoch of a margin's growth in two dimensions: half of the about 40
OWN = ("head", "set", "seed", "threads")  # settings that a comparison decides itself


@dataclass(frozen=True)
class Run:
    """One training: `head` as it was written, and where it happens. `plane`: for a picture, not for the table."""

    head: str
    seed: int
    folder: Path
    config: Config
    plane: bool = False

    @property
    def name(self) -> str:
        """The name of the run for people."""
        return f"{self.head} in the plane" if self.plane else f"{self.head}, seed {self.seed}"


@dataclass(frozen=True)
class Plan:
    """What to compare: `settings` of a training.Config without the head's; `plane`, epochs in two dimensions."""

    settings: dict[str, Any]
    heads: tuple[str, ...] = HEADS
    seeds: int = 3
    plane: int = 30

    def __post_init__(self) -> None:
        checks.count("seeds", self.seeds, 1, MOST_SEEDS)
        checks.count("plane", self.plane, 0, MANY)
        if not isinstance(self.settings, dict):
            raise TypeError(f"settings must be a table; got {checks.shown(self.settings)}.")
        for head in self.heads:
            if not isinstance(head, str):
                raise TypeError(f"heads must be words like arcface:m=0.3; got {checks.shown(head)}.")
            check_text("heads", head)
        if len(self.heads) > MOST_HEADS:
            raise ValueError(f"heads must be at most {MOST_HEADS}; got {len(self.heads)}.")
        if not self.heads:
            raise ValueError(f"heads must name at least one head; got none. There are {', '.join(list_heads())}.")
        for name in OWN:
            if name in self.settings:
                raise ValueError(
                    f"{name} is not a setting of a comparison; got {self.settings[name]!r}. Heads and numbers of "
                    "theirs are given as --head arcface:m=0.3,scale=16, seeds as --seeds 3."
                )
        for head in self.heads:
            name, overrides = parse_call(head, "--head")
            check_overrides(name, overrides, f"--head {head}")  # an error in it should come now, not from every run
            if isinstance(rule := self.settings.get("class_margins"), str):
                check_class_margins(name, rule, overrides)
        slugs = [slug(head) for head in self.heads]
        for head, name in zip(self.heads, slugs, strict=True):
            if slugs.count(name) > 1:
                raise ValueError(f"heads must differ; got {head!r} twice.")
        from_dict(self.settings, "settings")

    @property
    def network(self) -> tuple[str | None, dict[str, Any]]:
        """The model and its options, which may name code."""
        return self.settings.get("model"), self.settings.get("model_set", {})

    def runs(self, out: Path) -> list[Run]:
        """List every seed of every head; one seed of all heads first, so that something can be seen early."""
        base = {"tensorboard": False, **self.settings}
        return [
            Run(head, seed, out / "runs" / f"{slug(head)}-seed{seed}", _config(base, head, seed))
            for seed in range(self.seeds)
            for head in self.heads
        ]

    def plane_runs(self, out: Path) -> list[Run]:
        """List one run of each head in two dimensions: on the ten classes kept in plane/data.npz, or on digits."""
        own = (out / "plane" / "data.npz").resolve()  # a run may be resumed from elsewhere
        if not self.plane or not (own.exists() or find_spec("sklearn")):  # the digits are scikit-learn's
            return []
        kept = ("model", "model_set", "device", "precision", "augment")
        base = {**FLAT, "dim": 2, "epochs": self.plane, "keep": self.plane}
        if own.exists():
            base |= {k: v for k, v in self.settings.items() if k in kept} | {"data": str(own), "split": "sample"}
        else:
            base |= DIGITS
        flat = []
        for head in self.heads:
            recipe = FAMILY.get(parse_call(head, "--head")[0])
            # On a circle classes cannot get past each other. A margin in force from the start leaves two of them
            # on one ray in about every other training; grown over half of it, in none that was seen.
            grown = recipe is not None and recipe.schedule is None and not isinstance(recipe.margin, NoMargin)
            schedule = {"schedule": [f"warmup:steps={GROWING * self.plane}"]} if grown else {}
            flat.append(Run(head, 0, out / "plane" / slug(head), _config(base | schedule, head, 0), plane=True))
        return flat

    def save(self, out: Path) -> None:
        """Write plan.json."""
        write_text(out / "plan.json", json.dumps({"format": FORMAT, **dataclasses.asdict(self)}, indent=1))

    @classmethod
    def read(cls, out: Path) -> Plan:
        """Read plan.json."""
        saved = read_json(out / "plan.json")
        try:
            CONTENT("", saved)
            version = saved.pop("format", 1)
            if version == 1:
                saved["settings"] = {**BEFORE, **saved["settings"]}
            return cls(**{**saved, "heads": tuple(saved["heads"])})
        except (TypeError, ValueError) as error:
            raise RunError(f"{out / 'plan.json'} is damaged: {error}") from None

    def grown(
        self, settings: dict[str, Any], heads: tuple[str, ...], seeds: int | None, plane: int | None = None
    ) -> Plan:
        """Return the plan with more heads and seeds, and with runs in the plane if it had none.

        Settings must be the same: runs that differ cannot be compared.
        """
        from_dict(settings, "settings")
        if plane is not None and self.plane not in (0, plane):
            raise ValueError(
                f"--resume goes on with the comparison as it was started, with plane = {self.plane}; got {plane}. "
                "Leave it out, or start another with a new --out."
            )
        for name, value in settings.items():
            there = self.settings.get(name, getattr(Config(), name))
            if not paths.same(name, value, there):
                raise ValueError(
                    f"--resume goes on with the comparison as it was started, with {name} = {there!r}; got "
                    f"{value!r}. Leave it out, or start another with a new --out."
                )
        more = tuple(head for head in heads if slug(head) not in {slug(known) for known in self.heads})
        return dataclasses.replace(
            self, heads=self.heads + more, seeds=max(self.seeds, seeds or 0), plane=self.plane or plane or 0
        )


def _config(base: dict[str, Any], head: str, seed: int) -> Config:
    name, overrides = parse_call(head, "--head")
    return from_dict({**base, "head": name, "set": overrides, "seed": seed}, head)


def slug(head: str) -> str:
    """Return the name of a head's folders: arcface:m=0.3 is arcface-m-0.3."""
    return re.sub(r"[^a-z0-9.]+", "-", head.lower()).strip("-")
