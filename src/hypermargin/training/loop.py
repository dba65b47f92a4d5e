"""The training loop: repeatable from any checkpoint, to the bit on the CPU."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from hypermargin.data import Data, DataError, Feed, Scaling, Split, at_most, batches
from hypermargin.data.base import Rows
from hypermargin.head import MarginHead
from hypermargin.training import checkpoint, watch
from hypermargin.training.best import Choice
from hypermargin.training.budget import Budget
from hypermargin.training.build import rate_at
from hypermargin.training.checkpoint import Checkpoint, CheckpointError
from hypermargin.training.config import Config
from hypermargin.training.diverged import diverged, last_good
from hypermargin.training.evaluation import MOST, compare_all, decide
from hypermargin.training.fit import check_resumed
from hypermargin.training.learner import Learner
from hypermargin.training.look import look_at
from hypermargin.training.monitor import Monitor
from hypermargin.training.process import random_states, set_random_states, stop_signals
from hypermargin.training.ranks import Ranks, least_rows
from hypermargin.training.recorded import Recorder, why_not
from hypermargin.training.slices import Slices, slices_of

Group = tuple[Tensor, Rows]


class Interrupted(KeyboardInterrupt):
    """The run was stopped by Ctrl-C or SIGTERM, after saving."""


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
        ranks: Ranks = Ranks(),  # noqa: B008 (frozen)
    ) -> None:
        self.config, self.data, self.split, self.scaling, self.folder = config, data, split, scaling, folder
        self.ranks, self.budget = ranks, Budget.of(config)
        self.learner = Learner(config, network, head, scaling, ranks)
        self.network, self.head, self.device = self.learner.network, self.learner.head, self.learner.device
        self.optimizer, self.ema, self.scaler = self.learner.optimizer, self.learner.ema, self.learner.scaler
        self.least = min(least_rows(self.network, ranks), self.budget.batch)
        self.feed = Feed(data.samples, self.device, workers=config.workers or 0, on_bad=config.on_bad)
        self.targets = split.targets(data.labels)
        self.step = self.epoch = self.position = 0  # optimiser steps done; epoch; batches done in it
        self.window = watch.Window()
        self.seen: dict[str, float] = {}  # in the last line of the log
        self.choice = Choice(head.classes)
        self.recorder: Recorder | None = None
        own = ":" in str(config.model) and not str(config.model).startswith("timm:")
        self.why_eager = why_not(config, self.learner, own_network=own or config.model == "own")
        if config.cuda_graphs and self.why_eager:
            raise ValueError(f"cuda_graphs: the steps cannot be recorded: {self.why_eager}. Leave cuda_graphs out.")
        self.unsaved: CheckpointError | None = None
        self.per_epoch = math.ceil(len(self._order(0)) / config.accumulate)
        self.total = self.budget.epochs * self.per_epoch

    def _order(self, epoch: int) -> list[Rows]:
        config = self.config
        positions = batches(
            self.targets[self.split.train],
            config.sampling,
            self.budget.batch,
            seed=config.seed,
            epoch=epoch,
            per_identity=config.per_identity,
        )
        return [self.split.train[p] for p in positions]

    @property
    def held(self) -> Slices | None:
        """Which rows of tensors with one row per class this rank has; None if it has all."""
        return None if self.ranks.world == 1 else slices_of(self.head, self.optimizer, self.ranks.group)

    def fit(self, monitor: Monitor) -> None:
        """Train from where the run is to its end."""
        epochs, evaluate = self.budget.epochs, self.budget.evaluate
        if epochs == 0 and self.choice.step is None:  # the weights as they are, pretrained perhaps
            self._validate(monitor)
            self._save(monitor)
        with stop_signals() as stop, self._recording(monitor):
            while self.epoch < epochs:
                order = self._order(self.epoch)
                mine = [self.ranks.share(rows) for rows in order[self.position :]]
                with contextlib.closing(self.feed(mine)) as feed:
                    self._train_epoch(order, feed, monitor, stop)
                self._settle()
                self.head.end_epoch()  # before the epoch is saved, so that a resumed run does not do it again
                if self.ema:
                    self.ema.take_buffers()
                self.epoch, self.position = self.epoch + 1, 0
                last = self.epoch == epochs
                if last or (evaluate and self.epoch % evaluate == 0):
                    self._validate(monitor)
                self._save(monitor)
                if self.ranks.any(bool(stop)) and not last:
                    self._stop()
        if self.unsaved:
            raise self.unsaved

    @contextlib.contextmanager
    def _recording(self, monitor: Monitor) -> Iterator[None]:
        """Let steps be recorded inside, where they can be."""
        if not self.why_eager:
            self.recorder = Recorder(self.learner, self.budget.batch, monitor.say)
        try:
            yield
        finally:
            if self.recorder:
                self.recorder.close()
                self.recorder = None

    def _train_epoch(self, order: list[Rows], feed: Iterator[Group], monitor: Monitor, stop: list[int]) -> None:
        config = self.config
        self.network.train()
        self.head.train()
        started, seen = time.monotonic(), 0
        while self.position < len(order):
            groups = [next(feed) for _ in range(min(config.accumulate, len(order) - self.position))]
            *counts, told = self.ranks.sums([*(float(len(rows)) for _, rows in groups), float(bool(stop))])
            # The end of an epoch, or unreadable samples, may leave too few for batch normalisation.
            enough = [(group, int(n)) for group, n in zip(groups, counts, strict=True) if n >= self.least]
            if enough:
                self._train_step([group for group, _ in enough], [n for _, n in enough])
                seen += sum(n for _, n in enough)
            self.position += min(config.accumulate, len(order) - self.position)
            self.step += 1
            monitor.advance(self.step, self.epoch)
            if self.step % self.budget.log == 0 or self.step == self.total:
                self._settle()
                pace = seen / max(1e-9, time.monotonic() - started)
                means, self.window = self._means(), watch.Window()
                lr = self.learner.rate_of(self.optimizer.param_groups[0])
                self.seen = means.read()
                values = {**self.seen, "lr": lr, "images_per_s": pace}
                monitor.record("train", self.step, self.epoch, values)
                started, seen = time.monotonic(), 0
            if self.position < len(order):  # at the end of the epoch it is saved anyway
                if config.checkpoint and self.step % config.checkpoint == 0:
                    self._save(monitor)
                # Several ranks stop where all know of it, which is a step later.
                if told or (stop and self.ranks.world == 1):
                    self._save(monitor)
                    self._stop()

    def _means(self) -> watch.Window:
        """Return the means of the window over all ranks."""
        return watch.Window.of(self.ranks.gathered(self.window.sums))

    def _train_step(self, groups: list[Group], counts: list[int]) -> None:
        """Take one optimiser step on one or more batches, whose losses are weighted by their rows on all ranks."""
        learner, recorder = self.learner, self.recorder
        look = self.step % min(self.config.watch, self.budget.log) == 0
        batches = [(learner.batch(raw, rows, self.targets[rows], self.epoch), rows) for raw, rows in groups]
        if recorder and len(batches) == 1 and recorder.takes(batches[0][0]):
            learner.prepare(rate_at(self.config, self.step, self.total, self.budget.warmup(self.per_epoch)))
            recorder.step(*batches[0], step=self.step, epoch=self.epoch, look=look)
            self._settle(wait=False)
            return
        self._settle()
        learner.prepare(rate_at(self.config, self.step, self.total, self.budget.warmup(self.per_epoch)))
        self.optimizer.zero_grad(set_to_none=True)
        for number, ((batch, rows), count) in enumerate(zip(batches, counts, strict=True), 1):
            with learner.without_messages() if number < len(groups) else contextlib.nullcontext():
                found = learner.run(batch)
                # Before the backward: the weights are still those of the last good step.
                value = found.loss.item()
                if not math.isfinite(value):
                    raise diverged(self, self.step, rows, batch, found)
                self.window.add(len(rows), loss=value)
                if look:
                    self.window.add(len(rows), **watch.numbers(learner.look(found, batch.labels)))
                self.scaler.scale(found.loss * (count / sum(counts))).backward()
        learner.update()

    def _settle(self, wait: bool = True) -> None:
        """Take in the losses of recorded steps that have arrived; with `wait`, of all."""
        for taken in self.recorder.settled(wait) if self.recorder else ():
            if not math.isfinite(taken.loss):
                batch = self.learner.batch(taken.raw, taken.rows, self.targets[taken.rows], taken.epoch)
                with torch.no_grad():
                    raise diverged(self, taken.step, taken.rows, batch, self.learner.run(batch))
            self.window.add(len(taken.rows), loss=taken.loss, **taken.seen)

    def _stop(self) -> None:
        if self.unsaved:
            raise self.unsaved
        raise Interrupted(f"stopped at step {self.step} of {self.total}, everything saved in {self.folder}")

    # Measuring

    def embed(self, feed: Feed, rows: Rows) -> tuple[Tensor, Rows]:
        """Compute features without augmentation, and the rows that could be read; each rank does its share."""
        features, read = zip(*self.ranks.gathered(self._embed_own(feed, rows)), strict=True)
        return torch.cat(features), np.concatenate(read)

    @torch.no_grad()
    def _embed_own(self, feed: Feed, rows: Rows) -> tuple[Tensor, Rows]:
        """Compute this rank's share of the features."""
        self.network.eval()
        mine = self.ranks.share(rows)
        groups = np.split(mine, range(256, len(mine), 256))
        with contextlib.closing(feed(groups)) as read:
            found = self.ranks.together(lambda: [(self.learner.features(raw).cpu(), r) for raw, r in read])
        self.network.train()
        return torch.cat([f for f, _ in found]), np.concatenate([r for _, r in found])

    def averaged(self) -> contextlib.AbstractContextManager[None]:
        """Give network and head their averaged weights inside, if there are any."""
        return self.ema.swapped() if self.ema else contextlib.nullcontext()

    def evaluate(self, rows: Rows) -> dict[str, float]:
        """Measure a part of the data: EER, TAR and rank-1 in an open set, accuracy and loss in a closed one.

        The weights are the averaged ones. An open set is cut to some 50,000 samples, in whole identities.
        """
        with self.averaged():
            if not self.split.open_set:
                accuracy, loss, _ = self.classified(rows)
                return {"accuracy": accuracy, "loss": loss}
            features, read = self.embed(self.feed, at_most(rows, self.data.labels, MOST))
            labels = torch.from_numpy(self.data.labels[read])
            return self.ranks.lead(lambda: compare_all(features.to(self.device), labels)[0])

    def classified(self, rows: Rows) -> tuple[float, float, int]:
        """Return accuracy and mean loss without any margin of samples of known classes, and how many were read."""
        features, read = self._embed_own(self.feed, rows)
        targets = self.targets[read]
        loss, taken = decide(self.head.eval(), features, targets)
        self.head.train()
        right, loss, samples = self.ranks.sums([float((taken == targets).sum()), loss, float(len(read))])
        return right / samples, loss / samples, int(samples)

    def _validate(self, monitor: Monitor) -> None:
        if not len(self.split.validation):
            return
        try:
            look = look_at(self)
        except DataError:  # an image that cannot be read is not a part that has no pairs
            raise
        except ValueError as error:
            monitor.say(f"the validation part cannot be measured: {error}")
            return
        monitor.record("validation", self.step, self.epoch - 1, look.logged)
        self.choice.consider(self.step, look)

    # Saving

    def _save(self, monitor: Monitor) -> None:
        """Save a checkpoint; if the disk is full, say so and go on: the next one may succeed."""
        self._settle()
        if self.ranks.any(not all(bool(p.isfinite().all()) for p in self.learner.parameters)):
            raise watch.DivergedError(
                f"the weights are not finite after step {self.step}: the last update was too large. Lower lr, "
                f"lengthen lr_warmup, or set clip. {last_good(self.folder)}."
            )
        model = {
            f"{name}.{key}": value
            for name, module in (("network", self.network), ("head", self.head))
            for key, value in module.state_dict().items()
            if key != "classes_held"
        }
        random = self.ranks.gathered(random_states())
        training: dict[str, Any] = {
            "optimizer": self.learner.optimizer_state(),
            "scaler": self.scaler.state_dict(),
            "random": random if self.ranks.world > 1 else random[0],
        }
        if self.ema:
            training["ema"] = {k: v for k, v in self.ema.state_dict().items() if k != "1.classes_held"}
        window = self._means().sums
        state = {"epoch": self.epoch, "position": self.position, "window": window, "best": self.choice.state()}
        saved = Checkpoint(self.step, model, training, state)
        keep, best = self.config.keep, self.choice.step
        held = self.held
        try:
            if held is None:
                checkpoint.save(self.folder / "checkpoints", saved, keep=keep, best=best)
            else:
                checkpoint.save_slices(self.folder / "checkpoints", saved, held, self.ranks, keep=keep, best=best)
            self.unsaved = None
        except CheckpointError as error:
            self.unsaved = error
            monitor.say(f"{error} Training goes on; the next checkpoint is tried again.")

    def resume(self, saved: Checkpoint) -> None:
        """Take everything up where the checkpoint left it, by however many ranks it was written."""
        check_resumed(saved, self.network, self.head, self.optimizer, self.config, self.data.shape)
        self.network.load_state_dict(saved.weights("network"))
        weights, averages = saved.weights("head"), dict(saved.training.get("ema", {}))
        if self.ranks.world > 1:  # which classes a rank holds is its own affair
            weights["classes_held"] = averages["1.classes_held"] = cast("Tensor", self.head.classes_held)
        self.head.load_state_dict(weights)
        self.optimizer.load_state_dict(saved.training["optimizer"])
        self.scaler.load_state_dict(saved.training["scaler"])
        if self.ema:
            self.ema.load_state_dict(averages)
        self.step, self.epoch, self.position = saved.step, saved.state["epoch"], saved.state["position"]
        self.window = watch.Window(saved.state["window"] if self.ranks.rank == 0 else None)
        self.choice.restore(saved.state["best"])
        states = saved.training["random"]
        states = states if isinstance(states, list) else [states]
        if self.ranks.rank < len(states):  # a rank that was not there before starts from its own seed
            set_random_states(states[self.ranks.rank])
