"""Every setting of a run, once: the fields below are the keys of the TOML file and the flags of the command."""

# ruff: noqa: RUF009 (`setting` makes a dataclass field, with a fresh list or table for each config)

from __future__ import annotations

import dataclasses
import json
import tomllib
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypermargin import checks
from hypermargin.common.environment import check_device
from hypermargin.common.text import first_line
from hypermargin.data.augment import Augment
from hypermargin.data.base import UNREADABLE
from hypermargin.data.sampling import SAMPLINGS
from hypermargin.data.split import WAYS
from hypermargin.training import paths
from hypermargin.training.by_counts import check_class_margins, read_rule
from hypermargin.training.head_settings import check_overrides, read_schedules
from hypermargin.training.optim import HEAD_OPTIMIZERS, OPTIMIZERS, RATES
from hypermargin.training.values import MOST_SIDE, checked, kinds_of, setting

MANY = 10**6  # of epochs, steps, samples in a batch: more is a slip
MUCH = 3e38  # what float32 holds
MOST_BYTES = 2**20  # of a file of settings


def _check_options(options: dict[str, Any]) -> None:
    for name in options.keys() & {"name", "dim", "shape"}:
        where = {"name": "It is the setting model (--model)", "dim": "It is the setting dim (--dim)"}
        raise ValueError(
            f"model_set: {name} is not an option of a network. {where.get(name, 'It is that of the data')}."
        )


def _check_sample_rate(rate: float) -> None:
    if not 0 < rate <= 1:
        raise ValueError(f"sample_rate must lie in (0, 1], 1 being all classes; got {checks.shown(rate)}.")


@dataclass(frozen=True)
class Config:
    """The settings of a training run. None means: chosen from the data, and written down with the run."""

    # data
    data: str = setting(
        "glyphs",
        "glyphs, digits, mnist, fashion-mnist, cifar10, or a file or folder (npz, images, IDX, rec, csv)",
        free=True,
    )
    size: int | None = setting(
        None, "side of the images in pixels; default the first image's", low=1, high=MOST_SIDE
    )
    color: str = setting("auto", "gray or rgb; auto: as the first image", choices=("auto", "gray", "rgb"))
    samples_key: str | None = setting(None, "name of the samples in an npz file")
    labels_key: str | None = setting(None, "name of the labels in an npz file")
    levels: int | None = setting(
        None, "how many folders name an identity; 2 for alphabet/character/1.png", low=1, high=16
    )
    on_bad: str = setting(
        "error", "an unreadable sample stops the run, or is left out and listed", choices=UNREADABLE
    )
    split: str = setting("auto", "by identity (open set), by sample (closed set), as given", choices=WAYS)
    test: float | None = setting(
        None, "share set aside for the test; default 1/3 of identities, 1/5 of samples", low=0, high=1.0
    )
    validation: float = setting(0.1, "share of the rest set aside to choose the best checkpoint", low=0, high=1.0)
    exclude: str | None = setting(
        None,
        "a .csv list of samples to leave out of the training part, by their column file (head clean makes one)",
    )
    augment: str | None = setting(
        None, "none, flip, affine, or e.g. rotate=10,zoom=0.1,flip; default suits the data", check=Augment.parse
    )
    sampling: str = setting("shuffled", "shuffled, balanced, or P identities of K samples", choices=SAMPLINGS)
    per_identity: int = setting(4, "K of sampling = identities", low=1, high=MANY)
    verify: list[str] = setting(
        [], "verification pairs to score in the end: .bin, pairs.txt, .csv; repeatable", free=True
    )
    verify_images: str | None = setting(None, "folder the pairs name images in; default the data", free=True)
    memory: float = setting(4.0, "decode images once if they take at most so many GiB", low=0, high=1e6, free=True)
    workers: int | None = setting(
        None, "processes that read images; default one per core, at most 8", low=0, high=512, free=True
    )
    # network and head
    model: str | None = setting(None, "lenet++, iresnet18/34/50/100, mlp, none, timm:NAME, module:callable")
    model_set: dict[str, Any] = setting(
        {}, "an option of the network, like width=24; repeatable", check=_check_options
    )
    dim: int = setting(128, "dimension of the embedding; 2 and 3 make pictures", low=1, high=checks.MOST_DIM)
    init: str | None = setting(
        None, "a run, or a file of tensors (pt, pth, ckpt, safetensors), whose network to start from"
    )
    init_head: bool = setting(False, "with init, a run on the same classes: take its class vectors too")
    head: str = setting("arcface", "a head of the family; they are listed at the end of this help")
    set: dict[str, Any] = setting({}, "an override of the head, like m=0.4 or scale=32; repeatable")
    settings: str = setting(
        "advised", "s and m not set: by the advisor, or the paper's", choices=("advised", "paper")
    )
    class_margins: str | None = setting(
        None,
        "larger margins for rarer classes, by the training samples: ldam, ldam:high=0.5, "
        "power:low=0.05,high=0.5,power=0.25",
        check=read_rule,
    )
    schedule: list[str] = setting(
        ["paper"],
        "paper, none, warmup:steps=500,shape=cosine, lambda:base=1000,gamma=0.1,floor=5, "
        "alternate:angle_steps=100,magnitude_steps=20; repeatable",
        check=read_schedules,
    )
    shard_classes: bool | None = setting(
        None,
        "under torchrun, every process holds a slice of the classes; default yes. No: each trains alone",
        free=True,
    )
    sample_rate: float = setting(
        1.0, "share of the classes in a step (Partial FC); the others stay as they are", check=_check_sample_rate
    )
    # optimisation
    epochs: int | None = setting(
        None,
        "passes through the training data; default 20, more for small sets, fewer for millions; 0: only measure",
        low=0,
        high=MANY,
    )
    batch: int | None = setting(
        None,
        "samples per batch, of all processes together; default 128, 16 to 64 for small sets",
        low=1,
        high=MANY,
    )
    accumulate: int = setting(1, "batches per optimiser step", low=1, high=MANY)
    optimizer: str = setting("adamw", "adamw or sgd", choices=OPTIMIZERS)
    head_optimizer: str | None = setting(
        None,
        "fused-sgd: SGD for the class weights within the backward, without their gradient (triton on a GPU, one "
        "process, no accumulate, no float16); default as optimizer",
        choices=HEAD_OPTIMIZERS,
    )
    lr: float | None = setting(
        None, "learning rate; default 0.002 (adamw), 0.1 (sgd)", low=0, high=MUCH, above=True
    )
    head_lr: float | None = setting(
        None, "learning rate of the head; default lr (fused-sgd beside adamw: 0.1)", low=0, high=MUCH, above=True
    )
    weight_decay: float | None = setting(
        None, "default 0.05 (adamw; 3 if features have free length), 5e-4 (sgd)", low=0, high=MUCH
    )
    head_weight_decay: float | None = setting(
        None, "weight decay of the head; default the network's (fused-sgd beside adamw: 5e-4)", low=0, high=MUCH
    )
    momentum: float = setting(0.9, "of sgd and fused-sgd", low=0, high=1.0)
    lr_schedule: str = setting("cosine", "how the rate falls", choices=RATES)
    lr_warmup: float | None = setting(
        None, "epochs of linear warm-up; default 0.5, or a fortieth of many epochs", low=0, high=1e6
    )
    lr_power: float = setting(2.0, "power of the polynomial", low=0, high=1000.0, above=True)
    lr_milestones: list[float] = setting(
        [0.5, 0.75, 0.9],
        "shares of the run after which the rate steps; repeatable",
        low=0,
        high=1.0,
        hint="They are shares of the run, not epochs.",
    )
    lr_gamma: float = setting(0.1, "factor of a step", low=0, high=1.0)
    lr_floor: float = setting(0.0, "least rate, as a share of lr", low=0, high=1.0)
    clip: float = setting(
        5.0, "largest gradient norm (fused-sgd: without the class weights); 0: no clipping", low=0, high=1e12
    )
    ema: float = setting(0.0, "decay of averaged weights, e.g. 0.999; 0: none", low=0, high=1.0)
    precision: str = setting("float32", "of network and head", choices=("float32", "bfloat16", "float16"))
    compile: bool = setting(False, "torch.compile the network")
    cuda_graphs: bool | None = setting(
        None, "record a whole step and let the GPU replay it; default where that changes nothing", free=True
    )
    # the run
    seed: int = setting(0, "of initialisation, split, order and augmentation", low=0, high=2**53)
    device: str = setting(
        "auto", "cpu, cuda, cuda:1, mps; auto: cuda if there is one", check=check_device, free=True
    )
    deterministic: bool | None = setting(None, "the same result every time; default on the CPU yes, else no")
    threads: int | None = setting(None, "CPU threads; default torch's", low=1, high=1024)
    timeout: float = setting(
        600.0, "seconds to wait for the other processes of torchrun", low=0, high=1e7, above=True, free=True
    )
    watch: int = setting(10, "steps between looks at angles, norms and accuracy", low=1, high=MANY)
    log: int | None = setting(
        None, "steps between lines of the log; default 50, or what makes a readable log", low=1, high=MANY
    )
    evaluate: int | None = setting(
        None,
        "epochs between looks at the validation part; default 1, of many a twentieth; 0: only in the end",
        low=0,
        high=MANY,
    )
    checkpoint: int = setting(
        0, "steps between checkpoints besides the one at the end of each epoch", low=0, high=MANY, free=True
    )
    keep: int = setting(3, "checkpoints to keep besides the best", low=1, high=MANY, free=True)
    tensorboard: bool = setting(True, "write TensorBoard events", free=True)

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = checked(field.name, getattr(self, field.name), HINTS[field.name], field.metadata)
            object.__setattr__(self, field.name, value)
        if self.init_head and self.init is None:
            raise ValueError("init_head needs init: the run whose class vectors to start from.")
        check_overrides(self.head, self.set)
        check_class_margins(self.head, self.class_margins, self.set)

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


HINTS = kinds_of(Config)
KINDS = {name: tuple(typing.get_origin(kind) or kind for kind in kinds) for name, kinds in HINTS.items()}


def from_dict(values: dict[str, Any], where: str = "config") -> Config:
    """Make a Config of plain values; an unknown key is an error with the nearest known one."""
    known = [f.name for f in dataclasses.fields(Config)]
    for key in values:
        if key not in known:
            raise ValueError(f"{where}: unknown setting {checks.shown(key)}.{checks.near(key, known)}")
    return Config(**values)


def read_config(folder: Path) -> Config:
    """Read the settings of a run."""
    path = folder / "config.toml"
    try:
        return from_dict(read_toml(path), str(path))
    except TypeError as error:  # what a file holds is a matter of its value
        raise ValueError(f"{path}: {error}") from None
    except ValueError as error:
        raise ValueError(f"{error}" if str(path) in str(error) else f"{path}: {error}") from None


def resumed(saved: Config, given: dict[str, Any]) -> Config:
    """Return the settings of a run that goes on: as saved; of those given now, only free ones may differ."""
    free: dict[str, Any] = {}
    for field in dataclasses.fields(Config):
        if field.name not in given or paths.same(field.name, given[field.name], getattr(saved, field.name)):
            continue
        old, new = getattr(saved, field.name), given[field.name]
        if isinstance(old, dict) and new.items() <= old.items():  # what was decided later has been added to it
            continue
        if not field.metadata["free"]:
            raise ValueError(
                f"--resume goes on with the run as it was started, with {field.name} = {old!r}; got {new!r}. "
                "Leave it out, or start a new run (with init = the folder of this one, to take its network)."
            )
        free[field.name] = new
    return dataclasses.replace(saved, **(free | paths.absolutes(free)))


def given_in(config: Config) -> dict[str, Any]:
    """Return the settings that are not the defaults."""
    default = Config()
    names = [f.name for f in dataclasses.fields(Config)]
    return {n: getattr(config, n) for n in names if getattr(config, n) != getattr(default, n)}


def read_toml(path: Path) -> dict[str, Any]:
    """Read the settings of a TOML file, keys unchecked."""
    try:
        if path.is_file() and path.stat().st_size > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"config: there is no file {path}.") from None
    except OSError as error:
        raise ValueError(f"config: {path} cannot be read ({error.strerror}).") from None
    except RecursionError:
        raise ValueError(f"config: {path} is not TOML: it is nested too deeply.") from None
    except ValueError as error:  # tomllib's, of the encoding, and Python's of numbers with thousands of digits
        raise ValueError(f"config: {path} is not TOML: {first_line(error).rstrip('.')}.") from None


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
