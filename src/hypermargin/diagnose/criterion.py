"""Somebody's loss as one function of features, class rows and labels, however it wants to be called."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hypermargin.diagnose.state import Kept, seed
from hypermargin.numerics import unit

SAID = {
    "features": "criterion(features, labels), with its own class weights",
    "cosines": "criterion(cosines, labels)",
    "weights": "criterion(features, weight, labels)",
    "norms": "criterion(unit features, lengths, labels), with its own class weights",
}
FORMS = tuple(SAID)
STYLES = {"numbers": "", "one-hot": "one-hot", "column": "as a column", "int32": "as int32"}


class Outcome(NamedTuple):
    """What one call gave: a loss (scalar or by row), logits (N, C), or both."""

    loss: Tensor | None
    logits: Tensor | None


@dataclass(frozen=True)
class Weight:
    """Where a criterion keeps its class rows: the tensor's name, how it lies, and how many centers a class has."""

    name: str
    transposed: bool = False  # (d, C) instead of (C, d)
    centers: int = 1
    by_class: bool = True  # the centers of a class are neighbours; else center 0 of all classes comes first

    def laid(self, W: Tensor) -> Tensor:
        """Return (C, d) rows as the criterion keeps them, every center of a class alike."""
        if self.centers > 1:
            W = W.repeat_interleave(self.centers, 0) if self.by_class else W.repeat(self.centers, 1)
        return W.T if self.transposed else W


@dataclass(frozen=True)
class Criterion:
    """A criterion and how it is called.

    Every call begins from the same state and the same random numbers, so that it is a function.
    """

    call: Callable[..., Any]
    form: str
    classes: int
    dim: int
    dtype: torch.dtype
    label_style: str = "numbers"  # of STYLES
    labels_first: bool = False
    weight: Weight | None = None  # its own, in the forms that have one
    kept: Kept | None = None
    log_probabilities: bool = False  # its logits are probabilities, of which the logarithm is taken
    bias: str = ""  # the name of a bias by class, which was set to 0
    summed: bool = False  # its loss is a sum over the rows
    backwards: str = ""  # says so, if a sample costs more on its own class than under other labels
    silenced: tuple[str, ...] = ()  # names of dropout layers, which were switched off
    seed: int = 0

    @property
    def module(self) -> nn.Module | None:
        """The criterion, if it is a module."""
        return self.call if isinstance(self.call, nn.Module) else None

    def own_rows(self) -> Tensor:
        """Return the tensor that holds its class rows."""
        assert self.module is not None
        assert self.weight is not None
        return dict((*self.module.named_parameters(), *self.module.named_buffers()))[self.weight.name]

    def labels(self, y: Tensor) -> Tensor:
        """Return the labels as it wants them."""
        if self.label_style == "one-hot":
            return torch.nn.functional.one_hot(y, self.classes).to(self.dtype)
        if self.label_style == "int32":
            return y.int()
        return y[:, None] if self.label_style == "column" else y

    def bare(self, given: Tensor, y: Tensor, *between: Tensor) -> Any:
        """Return what it returns, as it is called: no state is put back."""
        labels = self.labels(y)
        try:
            return self.call(labels, given) if self.labels_first else self.call(given, *between, labels)
        except SystemExit as error:  # it would end the caller's session
            raise RuntimeError(f"it asks the process to exit ({error})") from None

    def __call__(self, x: Tensor, W: Tensor, y: Tensor, *, fresh: bool = True) -> Outcome:
        """Call it; `x` and, but for form "features", `W` may require gradients. Not `fresh`: state goes on."""
        if fresh and self.kept is not None:
            self.kept.restore(but=self.weight.name if self.weight else "")
        seed(self.seed)
        if self.weight is not None:
            with torch.no_grad():
                self.own_rows().copy_(self.weight.laid(W))
        if self.form == "cosines":
            # Times one: some change their input in place, which autograd forbids for a leaf.
            found = self.bare(unit(x) @ unit(W).T * 1.0, y)
        elif self.form == "norms":
            found = self.bare(unit(x), y, x.norm(dim=1, keepdim=True))
        else:
            found = self.bare(x, y, *((W,) if self.form == "weights" else ()))
        return self.read(found, len(x))

    def on_cosines(self, cosines: Tensor, y: Tensor) -> Outcome:
        """Call one of form "cosines" with these numbers."""
        if self.kept is not None:
            self.kept.restore()
        seed(self.seed)
        return self.read(self.bare(cosines * 1.0, y), len(y))

    def read(self, found: Any, rows: int) -> Outcome:
        """Find loss and logits in what was returned; ValueError if there is neither."""
        outcome = sort_out(found, rows, self.classes)
        if self.summed and outcome.loss is not None:
            outcome = outcome._replace(loss=outcome.loss / rows)
        if outcome.logits is not None and self.log_probabilities:
            tiny = torch.finfo(outcome.logits.dtype).tiny
            return outcome._replace(logits=outcome.logits.clamp(min=tiny).log())
        return outcome

    def in_dtype(self, dtype: torch.dtype) -> Criterion:
        """Return a copy that computes in another dtype."""
        call = self.call
        if self.module is not None:
            call = copy.deepcopy(self.module).to(dtype)
        return replace(self, call=call, dtype=dtype, kept=Kept(call))

    def seeded(self, number: int) -> Criterion:
        """Return it with other random numbers."""
        return replace(self, seed=number)


def sort_out(found: Any, rows: int, classes: int) -> Outcome:
    """Tell loss and logits by their shapes, in a tensor or in whatever holds tensors."""
    parts = list(_parts(found))
    loss = logits = None
    for part in parts:
        if not isinstance(part, Tensor) or not part.is_floating_point():
            continue
        shape = tuple(part.shape)
        if shape == (rows, classes) and logits is None:
            logits = part
        elif loss is None and shape in ((), (1,)):
            loss = part.reshape(())
        elif loss is None and shape in ((rows,), (rows, 1)):
            loss = part.reshape(rows)
    if loss is None and logits is None:
        got = ", ".join(str(tuple(p.shape)) if isinstance(p, Tensor) else type(p).__name__ for p in parts)
        raise ValueError(f"it returned neither a loss nor ({rows}, {classes}) logits, but {got or 'nothing'}")
    return Outcome(loss, logits)


def _parts(found: Any) -> Iterator[Any]:
    """Yield what tuples, lists, dicts and objects with a loss hold, however deep."""
    if isinstance(found, dict):
        found = list(found.values())
    elif not isinstance(found, Tensor) and hasattr(found, "loss"):
        found = [found.loss, getattr(found, "logits", None)]
    if isinstance(found, tuple | list):
        for each in found:
            yield from _parts(each)
    else:
        yield found


def rivals_and_target(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return R, the log-sum-exp of the rivals, and T, of logits (N, C)."""
    T = logits.gather(1, y[:, None]).squeeze(1)
    R = logits.scatter(1, y[:, None], -torch.inf).logsumexp(1)
    return R, T


def row_loss(found: Outcome, y: Tensor) -> Tensor:
    """Return the mean loss of a batch, which of alike rows is the loss of each; of logits, their cross-entropy."""
    if found.loss is not None:
        return found.loss.mean()
    assert found.logits is not None
    R, T = rivals_and_target(found.logits, y)
    return torch.nn.functional.softplus(R - T).mean()
