"""The training loop: repeatable from any checkpoint, to the bit on the CPU."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from hypermargin.data import Augment, Data, Feed, Scaling, Split, at_most, batches
from hypermargin.data.base import Rows
from hypermargin.evaluate.identification import identification
from hypermargin.evaluate.verification import verification
from hypermargin.files import replacing
from hypermargin.head import MarginHead
from hypermargin.schedule import Schedule
from hypermargin.training import checkpoint, watch
from hypermargin.training.checkpoint import Checkpoint, CheckpointError
from hypermargin.training.config import Config
from hypermargin.training.evaluation import MOST, decide
from hypermargin.training.monitor import Monitor
from hypermargin.training.optim import EMA, create_optimizer, rate, set_rate
from hypermargin.training.process import random_states, set_random_states, stop_signals

Group = tuple[Tensor, Rows]
MOST_VALIDATED = 5_000  # samples of an open set whose pairs are all compared after an epoch


class Interrupted(KeyboardInterrupt):
    """Stopped by Ctrl-C or SIGTERM, after saving."""


class Trainer:
    """One run: network, head, optimiser and where they are. `fit` trains to the end, `evaluate` measures a part."""

    def __init__(
        self,
        config: Config,
        data: Data,
        split: Split,
        scaling: Scaling,
        network: nn.Module,
        head: MarginHead,
        folder: Path,
    ) -> None:
        self.config, self.data, self.split, self.scaling, self.folder = config, data, split, scaling, folder
        self.device = torch.device(config.device)
        self.network, self.head = network.to(self.device), head.to(self.device)
        self.forward: Callable[[Tensor], Tensor] = torch.compile(network) if config.compile else network
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
        )
        for schedule in cast("list[Schedule]", head.schedules):
            schedule.drive(self.optimizer)
        self.parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.ema = EMA([network, head], config.ema) if config.ema else None
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=config.precision == "float16")
        self.augment = Augment.parse(config.augment or "none")
        self.feed = Feed(data.samples, self.device, workers=config.workers or 0, on_bad=config.on_bad)
        self.targets = split.targets(data.labels)
        self.step = self.epoch = self.position = 0  # optimiser steps done; epoch; batches done in it
        self.window = watch.Window()
        self.best: dict[str, Any] | None = None
        self.unsaved: CheckpointError | None = None
        self.per_epoch = math.ceil(len(self._order(0)) / config.accumulate)
        self.total = config.epochs * self.per_epoch

    def _order(self, epoch: int) -> list[Rows]:
        config = self.config
        positions = batches(
            self.targets[self.split.train],
            config.sampling,
            config.batch,
            seed=config.seed,
            epoch=epoch,
            per_identity=config.per_identity,
        )
        return [self.split.train[p] for p in positions]

    def fit(self, monitor: Monitor) -> None:
        """Train from where the run is to its end."""
        with stop_signals() as stop:
            while self.epoch < self.config.epochs:
                self._train_epoch(monitor, stop)
                self.epoch, self.position = self.epoch + 1, 0
                last = self.epoch == self.config.epochs
                if last or (self.config.evaluate and self.epoch % self.config.evaluate == 0):
                    self._validate(monitor)
                self._save(monitor)
                if stop and not last:
                    self._stop()
        if self.unsaved:
            raise self.unsaved

    def _train_epoch(self, monitor: Monitor, stop: list[int]) -> None:
        config = self.config
        self.network.train()
        self.head.train()
        order = self._order(self.epoch)
        started, seen = time.monotonic(), 0
        feed = self.feed(order[self.position :])
        while self.position < len(order):
            groups = [next(feed) for _ in range(min(config.accumulate, len(order) - self.position))]
            # Unreadable samples may leave none, or one, on which batch normalisation cannot train.
            groups = [group for group in groups if len(group[1]) >= min(2, config.batch)]
            if groups:
                self._train_step(groups)
                seen += sum(len(rows) for _, rows in groups)
            self.position += min(config.accumulate, len(order) - self.position)
            self.step += 1
            monitor.advance(self.step, self.epoch)
            if self.step % config.log == 0 or self.step == self.total:
                pace = seen / max(1e-9, time.monotonic() - started)
                values = {**self.window.read(), "lr": self.optimizer.param_groups[0]["lr"], "images_per_s": pace}
                monitor.record("train", self.step, self.epoch, values)
                started, seen = time.monotonic(), 0
            if self.position < len(order):  # at the end of the epoch it is saved anyway
                if config.checkpoint and self.step % config.checkpoint == 0:
                    self._save(monitor)
                if stop:
                    self._save(monitor)
                    self._stop()

    def _train_step(self, groups: list[Group]) -> None:
        """One optimiser step on one or more batches, whose losses are weighted by their rows."""
        config = self.config
        rows_in_all = sum(len(rows) for _, rows in groups)
        self.optimizer.zero_grad(set_to_none=True)
        for raw, rows in groups:
            inputs = self.augment(self.scaling(raw), rows, seed=config.seed, epoch=self.epoch)
            labels = torch.from_numpy(self.targets[rows]).to(self.device, non_blocking=True)
            features = self._features(inputs)
            loss = self.head(features, labels)
            # Before the backward: the weights are still those of the last good step.
            value = loss.item()
            if not math.isfinite(value):
                raise self._diverged(raw, rows, inputs, features, labels)
            self.window.add(len(rows), loss=value)
            if self.step % min(config.watch, config.log) == 0:
                self.window.add(len(rows), **watch.look(self.head, features, labels))
            self.scaler.scale(loss * (len(rows) / rows_in_all)).backward()
        factor = rate(
            self.step,
            total=self.total,
            warmup=min(self.total, round(config.lr_warmup * self.per_epoch)),
            schedule=config.lr_schedule,
            power=config.lr_power,
            milestones=config.lr_milestones,
            gamma=config.lr_gamma,
            floor=config.lr_floor,
        )
        set_rate(self.optimizer, factor)
        if config.clip:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.parameters, config.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.ema:
            self.ema.update()

    def _features(self, inputs: Tensor) -> Tensor:
        if self.config.precision == "float32":
            return self.forward(inputs)
        with torch.autocast(self.device.type, getattr(torch, self.config.precision)):
            return self.forward(inputs)

    def _diverged(
        self, raw: Tensor, rows: Rows, inputs: Tensor, features: Tensor, labels: Tensor
    ) -> watch.DivergedError:
        """The error, after keeping the batch for a closer look."""
        self.head.reduction = "none"
        with torch.no_grad():
            losses = self.head.eval()(features, labels)
        bad, why = watch.diagnose(self.network, inputs, features, losses, self.config.precision)
        path = self.folder / f"diverged-step-{self.step + 1:08d}.pt"
        batch = {"samples": raw.cpu(), "rows": torch.from_numpy(rows), "labels": labels.cpu(), "bad": bad}
        kept = f"the batch is in {path}"
        try:
            with replacing(path) as temporary:
                torch.save(batch, temporary)
        except (OSError, RuntimeError) as error:
            kept = f"the batch could not be kept ({error})"
        names = ", ".join(self.data.where(int(rows[k])) for k in bad[:3])
        return watch.DivergedError(
            f"the loss is not finite at step {self.step + 1} (epoch {self.epoch + 1}), in {len(bad)} of "
            f"{len(rows)} rows ({names}{', …' if len(bad) > 3 else ''}). {why} "
            f"{self._last_good()}; {kept}."
        )

    def _last_good(self) -> str:
        there = checkpoint.steps(self.folder / "checkpoints")
        return f"The last good checkpoint is kept: {there[-1].name}" if there else "There was no checkpoint yet"

    def _stop(self) -> None:
        if self.unsaved:
            raise self.unsaved
        raise Interrupted(f"stopped at step {self.step} of {self.total}, everything saved in {self.folder}")

    # Measuring

    @torch.no_grad()
    def embed(self, feed: Feed, rows: Rows) -> tuple[Tensor, Rows]:
        """Features of samples without augmentation, and the rows that could be read."""
        self.network.eval()
        found = [
            (self._features(self.scaling(raw)).float().cpu(), read)
            for raw, read in feed(np.split(rows, range(256, len(rows), 256)))
        ]
        self.network.train()
        return torch.cat([f for f, _ in found]), np.concatenate([r for _, r in found])

    def averaged(self) -> contextlib.AbstractContextManager[None]:
        """Inside, network and head have their averaged weights, if there are any."""
        return self.ema.swapped() if self.ema else contextlib.nullcontext()

    def evaluate(self, rows: Rows, most: int = MOST) -> dict[str, float]:
        """Of a part of the data: EER, TAR and rank-1 in an open set, accuracy and loss in a closed one.

        With the averaged weights. In an open set of at most `most` samples, in whole identities.
        """
        if self.split.open_set:
            rows = at_most(rows, self.data.labels, most)
        with self.averaged():
            features, rows = self.embed(self.feed, rows)
            if self.split.open_set:
                features, labels = features.to(self.device), torch.from_numpy(self.data.labels[rows])
                pairs = verification(features, labels)
                return {
                    "eer": pairs.eer,
                    "tar": pairs.tar[1e-3],
                    "auc": pairs.auc,
                    "rank1": identification(features, labels, (1,)).rank[1],
                }
            targets = self.targets[rows]
            loss, taken = decide(self.head.eval(), features, targets)
            self.head.train()
            return {"accuracy": float((taken == targets).mean()), "loss": loss}

    def _validate(self, monitor: Monitor) -> None:
        if not len(self.split.validation):
            return
        try:
            values = self.evaluate(self.split.validation, MOST_VALIDATED)
        except ValueError as error:
            monitor.say(f"the validation part cannot be measured: {error}")
            return
        monitor.record("validation", self.step, self.epoch - 1, values)
        metric, sign = ("eer", -1) if self.split.open_set else ("accuracy", 1)
        if self.best is None or sign * values[metric] > sign * self.best["value"]:
            self.best = {"step": self.step, "metric": metric, "value": values[metric]}

    # Saving

    def _save(self, monitor: Monitor) -> None:
        """A checkpoint; if the disk is full, say so and go on: the next one may succeed."""
        if not all(bool(p.isfinite().all()) for p in self.parameters):
            raise watch.DivergedError(
                f"the weights are not finite after step {self.step}: the last update was too large. Lower lr, "
                f"lengthen lr_warmup, or set clip. {self._last_good()}."
            )
        model = {
            f"{name}.{key}": value
            for name, module in (("network", self.network), ("head", self.head))
            for key, value in module.state_dict().items()
        }
        training: dict[str, Any] = {
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "random": random_states(),
        }
        if self.ema:
            training["ema"] = self.ema.state_dict()
        state = {"epoch": self.epoch, "position": self.position, "window": self.window.sums, "best": self.best}
        best = self.best["step"] if self.best else None
        try:
            checkpoint.save(
                self.folder / "checkpoints",
                Checkpoint(self.step, model, training, state),
                keep=self.config.keep,
                best=best,
            )
            self.unsaved = None
        except CheckpointError as error:
            self.unsaved = error
            monitor.say(f"{error} Training goes on; the next checkpoint is tried again.")

    def resume(self, saved: Checkpoint) -> None:
        """Take everything up where the checkpoint left it."""
        self.network.load_state_dict(saved.weights("network"))
        self.head.load_state_dict(saved.weights("head"))
        self.optimizer.load_state_dict(saved.training["optimizer"])
        self.scaler.load_state_dict(saved.training["scaler"])
        if self.ema:
            self.ema.load_state_dict(saved.training["ema"])
        self.step, self.epoch, self.position = saved.step, saved.state["epoch"], saved.state["position"]
        self.window = watch.Window(saved.state["window"])
        self.best = saved.state["best"]
        set_random_states(saved.training["random"])
