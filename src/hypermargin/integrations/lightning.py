"""Lightning: a callback that shows what a head does, for any module that has one.

    class Faces(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network, self.head = …, hypermargin.create_head("arcface", 512, classes)

        def training_step(self, batch, _):
            images, labels = batch
            loss = self.head(self.network(images), labels)
            self.log("loss", loss)
            return loss

    lightning.Trainer(callbacks=[HeadMonitor()], …).fit(Faces(), loader)

A head is a module like any other, so nothing else is needed: its weight is in `self.parameters()` and in the
checkpoint, with the state of its schedules.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hypermargin import checks
from hypermargin.head import MarginHead
from hypermargin.integrations import missing
from hypermargin.schedule import combined
from hypermargin.training import watch

try:
    from lightning.pytorch.callbacks import Callback
except ModuleNotFoundError as error:
    raise missing(error, "lightning", "lightning") from None

__all__ = ["HeadMonitor"]


class HeadMonitor(Callback):
    """Log what a head does, under `head/…` in training and `val_head/…` in validation:

        accuracy            without the margin
        angle, rival_angle  mean angles in degrees, to the own class and to the nearest other
        past_fold           the share of targets past the angle where ψ is continued, if there is one
        norm_p10, …, p90    lengths of the features
        length_angle        the correlation of length with the angle
        scale, lam, margin  s, λ, and the share of the margin that a warm-up lets in

    - head: where the module has it: "head", or "model.head"
    - every: steps of the optimiser between looks in training; default: the Trainer's `log_every_n_steps`. A look
      costs one pass over the classes, without gradient. With very many classes some of the rows are looked at.

    It sees what the head is called with, so training and validation steps stay as they are; in validation the head
    must be called with labels. For checkpoints and progress bars the numbers are metrics like others:
    `ModelCheckpoint(monitor="val_head/accuracy", mode="max")`.
    """

    def __init__(self, head: str = "head", every: int | None = None) -> None:
        super().__init__()
        if every is not None:
            checks.count("every", every)
        self.name, self.every = head, every
        self._seen: tuple[Tensor, Tensor] | None = None  # features and labels of the last call with labels
        self._hook: RemovableHandle | None = None
        self._done = 0  # steps of the optimiser at the last batch, which are fewer than batches where those add up

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Find the head, and listen to what it is called with."""
        try:
            head = pl_module.get_submodule(self.name)
        except AttributeError:
            head = None
        if not isinstance(head, MarginHead):
            found = [name for name, module in pl_module.named_modules() if isinstance(module, MarginHead)]
            hint = f"It has {', '.join(map(repr, found))}." if found else "It has none anywhere."
            raise ValueError(f"{type(pl_module).__name__} has no MarginHead at {self.name!r}. {hint}")
        self.teardown(trainer, pl_module, stage)
        self._hook = head.register_forward_pre_hook(self._remember, with_kwargs=True)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Listen no longer."""
        if self._hook is not None:
            self._hook.remove()
        self._hook = self._seen = None

    def _remember(self, head: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        given = dict(zip(("features", "labels"), arguments, strict=False)) | named
        if given.get("labels") is not None:
            self._seen = (given["features"].detach(), given["labels"])

    def _look(self, pl_module: Any, prefix: str) -> tuple[dict[str, float], int]:
        """Return the numbers of the rows that the head saw last, and how many rows those are."""
        if self._seen is None:
            return {}, 0
        head, (features, labels) = pl_module.get_submodule(self.name), self._seen
        self._seen = None
        values: dict[str, Any] = watch.numbers(watch.look(head, features, labels))
        adjustment = combined(head.schedules, training=False)  # of the step that was done
        values |= {
            "scale": float(head.current_scale().detach()),
            "lam": adjustment.lam,
            "margin": adjustment.strength,
        }
        return {f"{prefix}/{name}": float(value) for name, value in values.items()}, len(labels)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin at the step where the run does, which is a later one when it is resumed."""
        self._done = trainer.global_step

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Look at the step, if it is one to look at."""
        stepped, self._done = trainer.global_step != self._done, trainer.global_step
        if not stepped or self._done % (self.every or trainer.log_every_n_steps or 1):
            self._seen = None
            return
        values, _rows = self._look(pl_module, "head")
        if values:
            pl_module.log_dict(values, logger=False)
            for logger in trainer.loggers:  # at this step, whatever the Trainer's own interval
                logger.log_metrics(values, step=trainer.global_step)

    def on_validation_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Add the batch to the means of the epoch."""
        values, rows = self._look(pl_module, "val_head")
        if values and not trainer.sanity_checking:
            pl_module.log_dict(values, on_step=False, on_epoch=True, batch_size=rows, sync_dist=True)
