"""Network, head and optimiser, and what one step does with them: from samples on the device to new weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from hypermargin.backends import explain_backend
from hypermargin.data import Augment, Scaling
from hypermargin.data.base import Rows
from hypermargin.head import MarginHead
from hypermargin.schedule import Schedule
from hypermargin.training import watch
from hypermargin.training.budget import Budget
from hypermargin.training.config import Config
from hypermargin.training.fused_head import check_fused
from hypermargin.training.optim import EMA, clip_gradients, create_optimizer, set_rate
from hypermargin.training.ranks import Ranks, sync_batch_norm


class Batch(NamedTuple):
    """A batch on its way into a step: all that differs from step to step."""

    raw: Tensor  # samples as they are stored, on the device
    draws: Tensor  # random numbers of the augmentation, one row per sample
    labels: Tensor  # classes of the head


class Forward(NamedTuple):
    """The way of a batch through network and head."""

    inputs: Tensor
    features: Tensor
    loss: Tensor


class Learner:
    """Network, head, optimiser, averages and scaler of a run, on its device and in its precision."""

    def __init__(
        self, config: Config, network: nn.Module, head: MarginHead, scaling: Scaling, ranks: Ranks
    ) -> None:
        self.config, self.scaling = config, scaling
        self.device = ranks.device(config.device)
        if self.device.type == "cuda" and ranks.world > 1:  # else every process would also open the first GPU
            torch.cuda.set_device(self.device)
        self.network = network = sync_batch_norm(network.to(self.device), ranks, self.device)
        self.head = head.to(self.device)
        # Of several ranks, each measures by itself and all step together.
        self.forward: Callable[[Tensor], Tensor] = torch.compile(network) if config.compile else network
        self.together = ranks.wrapped(network, self.device)
        self.forward_together: Callable[[Tensor], Tensor] = self.forward
        if self.together is not network:
            self.forward_together = torch.compile(self.together) if config.compile else self.together
        if config.head_optimizer == "fused-sgd":
            check_fused(config, self.head, self.device, ranks.world)
        assert config.lr is not None
        assert config.weight_decay is not None
        self.optimizer = create_optimizer(
            network,
            head,
            name=config.optimizer,
            lr=config.lr,
            head_lr=config.head_lr,
            weight_decay=config.weight_decay,
            head_weight_decay=config.head_weight_decay,
            momentum=config.momentum,
            head_optimizer=config.head_optimizer,
            sampled=config.sample_rate < 1,
            half=config.precision == "float16",
        )
        for schedule in cast("list[Schedule]", head.schedules):
            schedule.drive(self.optimizer)
        self.parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.ema = EMA([network, head], config.ema) if config.ema else None
        self.scaler = ranks.scaler(self.device, enabled=config.precision == "float16")
        self.augment = Augment.parse(config.augment or "none")
        self.factor = 0.0  # on the learning rates, in the last step

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which network and head compute in the run's precision."""
        if self.config.precision == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, getattr(torch, self.config.precision))

    def prepare(self, factor: float) -> None:
        """Settle on the CPU what the next step needs: the learning rates, and the share of the averages."""
        self.factor = factor
        set_rate(self.optimizer, factor)
        if self.ema:
            self.ema.count()

    def batch(self, raw: Tensor, rows: Rows, targets: Rows, epoch: int) -> Batch:
        """Return the batch of these samples, with the random numbers of their augmentation in this epoch."""
        draws = self.augment.draws(rows, seed=self.config.seed, epoch=epoch)
        return Batch(raw, *(t.to(self.device, non_blocking=True) for t in (draws, torch.from_numpy(targets))))

    def run(self, batch: Batch) -> Forward:
        """Compute the loss of a batch; the head is in autocast too, since it chooses its backend by that."""
        inputs = self.augment.apply(self.scaling(batch.raw), batch.draws)
        with self.autocast():
            features = self.forward_together(inputs)
            return Forward(inputs, features, self.head(features, batch.labels))

    def look(self, found: Forward, labels: Tensor) -> dict[str, Tensor]:
        """Measure what is watched, on the device."""
        with self.autocast():
            return watch.look(self.head, found.features, labels)

    def features(self, raw: Tensor) -> Tensor:
        """Compute features of samples as they are stored, without augmentation."""
        with self.autocast():
            return self.forward(self.scaling(raw)).float()

    def update(self) -> None:
        """Change the weights by the gradients that are there, and take them into the averages."""
        if self.config.clip:
            self.scaler.unscale_(self.optimizer)
            by_class = list(self.head.by_class().values())
            clip_gradients(self.parameters, self.config.clip, by_class, self.head.layout)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.ema:
            self.ema.take()

    def changing(self) -> list[Tensor]:
        """Return all tensors that a step changes in place."""
        found = [*self.network.state_dict(keep_vars=True).values(), *self.head.state_dict(keep_vars=True).values()]
        of_optimizer = [v for state in self.optimizer.state.values() for v in state.values()]
        averages = list(self.ema.mean.values()) if self.ema else []
        return [t for t in (*found, *of_optimizer, *averages) if isinstance(t, Tensor)]

    def rates_as_tensors(self) -> None:
        """Let the optimiser read its rates on the device, where a recorded step finds them changed."""
        for group in self.optimizer.param_groups:
            group["lr"] = torch.tensor(float(group["lr"]), device=self.device)
            if "capturable" in group:
                group["capturable"] = True

    def rates_as_numbers(self) -> None:
        """Undo `rates_as_tensors`."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate_of(group)
            if "capturable" in group:
                group["capturable"] = False

    def rate_of(self, group: dict[str, Any]) -> float:
        """Return the rate of a group as it was set, before a tensor rounded it."""
        rate: float = group["base_lr"] * self.factor if isinstance(group["lr"], Tensor) else group["lr"]
        return rate

    def optimizer_state(self) -> dict[str, Any]:
        """Return the optimiser's state_dict, the same whether its steps are recorded or not."""
        state = self.optimizer.state_dict()
        groups = [
            {**group, "lr": self.rate_of(group), **({"capturable": False} if "capturable" in group else {})}
            for group in state["param_groups"]
        ]
        return {**state, "param_groups": groups}

    def without_messages(self) -> contextlib.AbstractContextManager[None]:
        """Add up gradients on each rank inside; the last batch of a step carries the sum to the others."""
        if isinstance(self.together, nn.parallel.DistributedDataParallel):
            return self.together.no_sync()
        return contextlib.nullcontext()

    def backend(self, world: int) -> str:
        """Say which backend the head's steps take, and why."""
        config, settings = self.config, self.head.settings
        classes = max(1, round(self.head.classes * settings.centers.count * config.sample_rate))
        rows = -(-Budget.of(config).batch // world)
        backend = settings.backend if self.head.fused_optimizer is None else "triton"
        with self.autocast():
            return explain_backend(
                rows, classes, backend, self.device, config.dim, world, rule=settings.rule, centers=settings.centers
            )
