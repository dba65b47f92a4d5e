"""Every setting of a run, once: the fields below are the keys of the TOML file and the flags of the command."""

# ruff: noqa: RUF009 (`setting` makes a dataclass field, with a fresh list or table for each config)

from __future__ import annotations

import dataclasses
import json
import tomllib
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypermargin import checks
from hypermargin.data.base import UNREADABLE
from hypermargin.data.sampling import SAMPLINGS
from hypermargin.data.split import WAYS
from hypermargin.training.optim import OPTIMIZERS, RATES


def setting(default: Any, help: str, *, choices: tuple[str, ...] = (), free: bool = False) -> Any:
    """Make a field of Config. `free`: it may change on resuming a run, as the result does not depend on it."""
    meta = {"help": help, "choices": choices, "free": free}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=meta)
    return dataclasses.field(default=default, metadata=meta)


@dataclass(frozen=True)
class Config:
    """The settings of a training run. None means: chosen from the data, and written down with the run."""

    # data
    data: str = setting("glyphs", "glyphs, digits, fashion-mnist, or a file or folder (npz, images, IDX, rec, csv)")
    size: int | None = setting(None, "side of the images in pixels; default the first image's")
    color: str = setting("auto", "gray or rgb; auto: as the first image", choices=("auto", "gray", "rgb"))
    samples_key: str | None = setting(None, "name of the samples in an npz file")
    labels_key: str | None = setting(None, "name of the labels in an npz file")
    on_bad: str = setting(
        "error", "an unreadable sample stops the run, or is left out and listed", choices=UNREADABLE
    )
    split: str = setting("auto", "by identity (open set), by sample (closed set), as given", choices=WAYS)
    test: float | None = setting(None, "share set aside for the test; default 1/3 of identities, 1/5 of samples")
    validation: float = setting(0.1, "share of the rest set aside to choose the best checkpoint")
    augment: str | None = setting(
        None, "none, flip, affine, or e.g. rotate=10,zoom=0.1,flip; default suits the data"
    )
    sampling: str = setting("shuffled", "shuffled, balanced, or P identities of K samples", choices=SAMPLINGS)
    per_identity: int = setting(4, "K of sampling = identities")
    verify: list[str] = setting([], "verification pairs to score in the end: .bin, pairs.txt, .csv; repeatable")
    verify_images: str | None = setting(None, "folder the pairs name images in; default the data")
    memory: float = setting(4.0, "decode images once if they take at most so many GiB", free=True)
    workers: int | None = setting(None, "processes that read images; default one per core, at most 8", free=True)
    # network and head
    model: str | None = setting(None, "lenet++, iresnet18/34/50/100, mlp, none, timm:NAME, module:callable")
    model_set: dict[str, Any] = setting({}, "an option of the network, like width=24; repeatable")
    dim: int = setting(128, "dimension of the embedding; 2 and 3 make pictures")
    init: str | None = setting(None, "a run whose network to start from")
    head: str = setting("arcface", "a head of the family, see hypermargin.list_heads()")
    set: dict[str, Any] = setting({}, "an override of the head, like m=0.4 or scale=32; repeatable")
    settings: str = setting(
        "advised", "s and m not set: by the advisor, or the paper's", choices=("advised", "paper")
    )
    schedule: list[str] = setting(
        ["paper"],
        "paper, none, warmup:steps=500,shape=cosine, lambda:base=1000,gamma=0.1,floor=5, "
        "alternate:angle_steps=100,magnitude_steps=20; repeatable",
    )
    shard_classes: bool | None = setting(
        None,
        "under torchrun, every process holds a slice of the classes; default yes. No: each trains alone",
        free=True,
    )
    sample_rate: float = setting(1.0, "share of the classes in a step (Partial FC); below 1 it needs sgd")
    # optimisation
    epochs: int = setting(20, "passes through the training data")
    batch: int = setting(128, "samples per batch, of all processes together")
    accumulate: int = setting(1, "batches per optimiser step")
    optimizer: str = setting("adamw", "adamw or sgd", choices=OPTIMIZERS)
    lr: float | None = setting(None, "learning rate; default 0.002 (adamw), 0.1 (sgd)")
    head_lr: float | None = setting(None, "learning rate of the head; default lr")
    weight_decay: float | None = setting(None, "default 0.05 (adamw; 3 if features have free length), 5e-4 (sgd)")
    head_weight_decay: float | None = setting(None, "weight decay of the head; default weight_decay")
    momentum: float = setting(0.9, "of sgd")
    lr_schedule: str = setting("cosine", "how the rate falls", choices=RATES)
    lr_warmup: float = setting(0.5, "epochs of linear warm-up")
    lr_power: float = setting(2.0, "power of the polynomial")
    lr_milestones: list[float] = setting(
        [0.5, 0.75, 0.9], "shares of the run after which the rate steps; repeatable"
    )
    lr_gamma: float = setting(0.1, "factor of a step")
    lr_floor: float = setting(0.0, "least rate, as a share of lr")
    clip: float = setting(5.0, "largest gradient norm; 0: no clipping")
    ema: float = setting(0.0, "decay of averaged weights, e.g. 0.999; 0: none")
    precision: str = setting("float32", "of network and head", choices=("float32", "bfloat16", "float16"))
    compile: bool = setting(False, "torch.compile the network")
    cuda_graphs: bool | None = setting(
        None, "record a whole step and let the GPU replay it; default where that changes nothing", free=True
    )
    # the run
    seed: int = setting(0, "of initialisation, split, order and augmentation")
    device: str = setting("auto", "cpu, cuda, cuda:1, mps; auto: cuda if there is one", free=True)
    deterministic: bool | None = setting(None, "the same result every time; default on the CPU yes, else no")
    threads: int | None = setting(None, "CPU threads; default torch's")
    timeout: float = setting(600.0, "seconds to wait for the other processes of torchrun", free=True)
    watch: int = setting(10, "steps between looks at angles, norms and accuracy")
    log: int = setting(50, "steps between lines of the log")
    evaluate: int = setting(1, "epochs between looks at the validation part; 0: only in the end")
    checkpoint: int = setting(0, "steps between checkpoints besides the one at the end of each epoch", free=True)
    keep: int = setting(3, "checkpoints to keep besides the best", free=True)
    tensorboard: bool = setting(True, "write TensorBoard events", free=True)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, choices = getattr(self, field.name), field.metadata["choices"]
            _check_kind(field.name, value, KINDS[field.name])
            if choices:
                checks.one_of(field.name, value, choices)
        for name in ("per_identity", "dim", "epochs", "batch", "accumulate", "watch", "log", "keep"):
            checks.count(name, getattr(self, name))
        for name in ("seed", "evaluate", "checkpoint"):
            checks.count(name, getattr(self, name), 0)
        for name in ("size", "threads"):
            if getattr(self, name) is not None:
                checks.count(name, getattr(self, name))
        if self.workers is not None:
            checks.count("workers", self.workers, 0)
        for name in ("lr", "head_lr", "lr_power"):
            if getattr(self, name) is not None:
                checks.positive(name, getattr(self, name))
        for name in ("sample_rate", "timeout"):
            checks.positive(name, getattr(self, name))
        if self.sample_rate > 1:
            raise ValueError(f"sample_rate must lie in (0, 1], 1 being all classes; got {self.sample_rate:g}.")
        if self.sample_rate < 1 and self.optimizer != "sgd":
            raise ValueError(
                f"sample_rate = {self.sample_rate:g} needs optimizer = sgd, which leaves the classes that take no "
                f"part in a step alone; got {self.optimizer}."
            )
        for name in ("weight_decay", "head_weight_decay", "lr_warmup", "clip", "memory"):
            if getattr(self, name) is not None:
                checks.in_range(name, getattr(self, name), 0.0, float("inf"))
        for share in self.lr_milestones:
            checks.in_range("lr_milestones", share, 0.0, 1.0, "They are shares of the run, not epochs.")
        for name in ("validation", "test", "momentum", "ema", "lr_floor", "lr_gamma"):
            if getattr(self, name) is not None:
                checks.in_range(name, getattr(self, name), 0.0, 1.0)

    def to_toml(self) -> str:
        """Return the settings as the text of a TOML file; those that are None are left out."""
        tables = {f.name for f in dataclasses.fields(self) if isinstance(getattr(self, f.name), dict)}
        values = dataclasses.asdict(self)
        lines = [
            f"{name} = {_toml(value)}" for name, value in values.items() if name not in tables and value is not None
        ]
        for name in sorted(tables):
            if values[name]:
                lines += ["", f"[{name}]", *(f"{_toml_key(k)} = {_toml(v)}" for k, v in values[name].items())]
        return "\n".join(lines) + "\n"


def _kinds() -> dict[str, tuple[type, ...]]:
    """Return the types each setting may have."""
    found = {}
    for name, hint in typing.get_type_hints(Config).items():
        union = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        found[name] = tuple(typing.get_origin(kind) or kind for kind in union)
    return found


KINDS = _kinds()


def _check_kind(name: str, value: object, kinds: tuple[type, ...]) -> None:
    fits = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
    if not fits and not (float in kinds and isinstance(value, int) and not isinstance(value, bool)):
        wanted = " or ".join(k.__name__ for k in kinds if k is not type(None))
        raise TypeError(f"{name} must be of type {wanted}; got {value!r} ({type(value).__name__}).")


def from_dict(values: dict[str, Any], where: str = "config") -> Config:
    """Make a Config of plain values; an unknown key is an error with the nearest known one."""
    known = [f.name for f in dataclasses.fields(Config)]
    for key in values:
        if key not in known:
            raise ValueError(f"{where}: unknown setting {key!r}.{checks.near(key, known)}")
    return Config(**values)


def resumed(saved: Config, given: dict[str, Any]) -> Config:
    """Return the settings of a run that goes on: as saved; of those given now, only free ones may differ."""
    free: dict[str, Any] = {}
    for field in dataclasses.fields(Config):
        if field.name not in given or given[field.name] == getattr(saved, field.name):
            continue
        old, new = getattr(saved, field.name), given[field.name]
        if isinstance(old, dict) and new.items() <= old.items():  # what was decided later has been added to it
            continue
        if not field.metadata["free"]:
            raise ValueError(
                f"--resume goes on with the run as it was started, with {field.name} = {old!r}; got {new!r}. "
                "Leave it out, or start a new run (its init setting can take this run's network)."
            )
        free[field.name] = new
    return dataclasses.replace(saved, **free)


def given_in(config: Config) -> dict[str, Any]:
    """Return the settings that are not the defaults."""
    default = Config()
    names = [f.name for f in dataclasses.fields(Config)]
    return {n: getattr(config, n) for n in names if getattr(config, n) != getattr(default, n)}


def read_toml(path: Path) -> dict[str, Any]:
    """Read the settings of a TOML file, keys unchecked."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"config: there is no file {path}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"config: {path} is not TOML: {error}.") from None


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml_key(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float):
        return repr(value)  # inf and nan are spelt alike in both
    return json.dumps(value, ensure_ascii=False)


def _toml_key(key: str) -> str:
    return key if key.replace("_", "a").replace("-", "a").isalnum() and key.isascii() else json.dumps(key)
