"""The parts of a run from its settings. What the settings leave open is decided here, and then written down."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn

from hypermargin.advise import recommend
from hypermargin.common.environment import cores, enough_memory, find_device
from hypermargin.common.text import Say
from hypermargin.data import Data, open_data
from hypermargin.family import create_head
from hypermargin.head import MarginHead
from hypermargin.margins import number_fields
from hypermargin.parallel import Shard, Sharded
from hypermargin.parallel.partial_fc import PartialFC
from hypermargin.recipes import FAMILY, named
from hypermargin.scales import NoScaleError
from hypermargin.training import by_counts
from hypermargin.training.config import Config
from hypermargin.training.head_settings import read_schedules
from hypermargin.training.optim import rate
from hypermargin.training.paths import check_there


def read_data(config: Config, say: Say) -> Data:
    """Open the data that `config` names, images still in their files."""
    return open_data(
        config.data,
        size=config.size,
        color=config.color,
        samples_key=config.samples_key,
        labels_key=config.labels_key,
        levels=config.levels,
        on_bad=config.on_bad,
        say=say,
    )


def read_again(config: Config, say: Say) -> Data:
    """Open the data of a run that exists. Before there were `levels`, one folder named an identity, always."""
    check_there(config.data)
    return read_data(dataclasses.replace(config, levels=config.levels or 1), say)


def resolve(config: Config, data: Data, network: nn.Module | None = None, *, sharded: bool = False) -> Config:
    """Decide everything in the settings that depends on the data, the machine, or a network of your own."""
    if sharded:
        config = dataclasses.replace(config, shard_classes=True)
    adamw = config.optimizer == "adamw"
    model = config.model or ("own" if network else _network_for(data.shape))
    decided: dict[str, Any] = {
        "model": model,
        "augment": data.augment if len(data.shape) == 3 else "none",
        "lr": 0.002 if adamw else 0.1,
        "weight_decay": _weight_decay(config.head, model) if adamw else 5e-4,
        # Other processes may go on with a sharded run, and add up in another order anyway.
        "threads": None if sharded else torch.get_num_threads(),
        "workers": min(8, cores()),
    }
    if adamw and config.head_optimizer == "fused-sgd":  # AdamW's numbers are not for SGD
        decided |= {"head_lr": 0.1, "head_weight_decay": 5e-4}
    decided = {name: value for name, value in decided.items() if getattr(config, name) is None}
    device = find_device(config.device)
    decided["device"] = str(device)
    if config.deterministic is None:
        decided["deterministic"] = device.type == "cpu"
    config = dataclasses.replace(config, **decided)
    if network is not None:
        return dataclasses.replace(config, dim=_dim_of(network, data.shape))
    return dataclasses.replace(config, dim=data.shape[0]) if config.model == "none" else config


@torch.no_grad()
def _dim_of(network: nn.Module, shape: tuple[int, ...]) -> int:
    """Return the length of the features that a network makes of such samples."""
    device = next((p.device for p in network.parameters()), torch.device("cpu"))
    features = network.eval()(torch.zeros(2, *shape, device=device))
    if not isinstance(features, torch.Tensor) or features.dim() != 2 or len(features) != 2:
        got = tuple(features.shape) if isinstance(features, torch.Tensor) else type(features).__name__
        raise ValueError(f"network must turn (N, {', '.join(map(str, shape))}) into (N, dim); got {got} for N = 2.")
    return features.shape[1]


def _weight_decay(head: str, model: str) -> float:
    """Choose AdamW's: 0.05; 3 where nothing else holds the features' length, which these heads have for a scale.

    On held-out training data softmax and modified softmax gain on Omniglot (4.2 → 3.5 % EER), AudioMNIST and
    Fashion-MNIST and are level on MNIST; L- and A-Softmax gain on Omniglot, elsewhere they were not tried
    (benchmarks/results/heads.md). Only for networks whose batch normalisation makes them indifferent to the
    length of their weights.
    """
    free = head in FAMILY and not FAMILY[head].unit_features
    return 3.0 if free and model.startswith(("lenet", "iresnet")) else 0.05


def _network_for(shape: tuple[int, ...]) -> str:
    if len(shape) == 1:
        return "none"
    return "iresnet18" if min(shape[1:]) >= 112 and all(side % 16 == 0 for side in shape[1:]) else "lenet++"


def resolve_head(config: Config, classes: int) -> tuple[Config, tuple[str, ...]]:
    """Return the settings with s and m written into `set`, and the advisor's reasons for those it chose.

    The trainer asks the advisor, since papers tuned s and m for 10,000 classes and more. Heads whose scale is the
    length of the features have no s to choose, and keep their paper's m and λ; but L-Softmax takes A-Softmax's λ,
    since its own is still above 100 after 2,000 steps (Omniglot, one run each: EER 3.5 and 3.2 %).
    """
    if config.head not in FAMILY:
        create_head(config.head, config.dim, classes)  # says which there are
    version, _ = named(config.head, config.set)
    recipe = FAMILY[version]
    margin = recipe.margin
    names = [f.name for f in number_fields(type(margin))]
    chosen = "scale" in config.set and any(name in config.set for name in names)
    if config.settings == "paper" or chosen or not recipe.unit_features:
        late = config.head == "l-softmax" and config.settings == "advised" and config.schedule == ["paper"]
        if late and "lam" not in config.set:
            config = dataclasses.replace(config, schedule=["lambda"])
        return config, ()
    given = {k: v for k, v in config.set.items() if k in names}
    if recipe.group != "classic":
        try:
            advice = recommend(classes, config.dim, margin=version, numbers=given)
        except NoScaleError:
            return config, ()  # it keeps its paper's s and numbers
    else:
        mine = dataclasses.replace(margin, **given) if given else margin.name  # type: ignore[type-var]  # all are
        advice = recommend(classes, config.dim, margin=mine)
    numbers = {name: getattr(advice.margin, name) for name in names}
    return dataclasses.replace(config, set={"scale": advice.s, **numbers, **config.set}), advice.reasons


def build_head(
    config: Config, classes: int, *, counts: torch.Tensor | None = None, sharded: bool = False
) -> MarginHead:
    """Make the head of resolved settings; if `sharded`, over the processes there are.

    `counts` are the training samples of each class. Without them margins and offsets that go by them have the right
    shape and no more: a saved head brings its own.
    """
    overrides = {
        **config.set, **by_counts.arguments(config.head, config.class_margins, config.set, classes, counts)
    }  # fmt: skip
    shard = Shard(seed=config.seed)
    if sharded:
        overrides["shard"] = shard
    if config.sample_rate < 1:
        overrides["sample"] = PartialFC(config.sample_rate, seed=config.seed)
    schedules = read_schedules(config.schedule)
    if schedules is not None:
        overrides["schedule"] = schedules
    with enough_memory(f"a head of {classes:,} classes in dim = {config.dim:,}"):
        head = create_head(config.head, config.dim, classes, **overrides)
    if config.shard_classes and not sharded:  # one process starts where several would
        Sharded(classes, shard=shard).first_weights(head.weight, head.dim**-0.5)
    # The loop looks at every loss itself, and can say more than the head about a bad one.
    head.settings = dataclasses.replace(head.settings, check=False)
    return head


def rate_at(config: Config, step: int, total: int, warmup: int) -> float:
    """Return the factor on the learning rate in a step of `total`."""
    return rate(
        step,
        total=total,
        warmup=min(total, warmup),
        schedule=config.lr_schedule,
        power=config.lr_power,
        milestones=config.lr_milestones,
        gamma=config.lr_gamma,
        floor=config.lr_floor,
    )
