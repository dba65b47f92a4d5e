"""How a criterion behaves as a program: state, chance, its inputs and weight, memory, one class."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hypermargin.common.text import first_line
from hypermargin.diagnose.angles import Lab
from hypermargin.diagnose.criterion import Criterion
from hypermargin.diagnose.edges import Batch, differentiate, spread
from hypermargin.diagnose.findings import Finding
from hypermargin.numerics import unit

MANY = 512  # classes, from which memory is counted


def habits(lab: Lab) -> Iterator[tuple[str, Callable[[], Iterator[Finding]]]]:
    """Yield each probe with its name."""
    of = lab.criterion
    yield "state", lambda: _state(of)
    yield "what it changes", lambda: _changes(of)
    yield "the gradient by the class rows", lambda: _radial(of)
    yield "memory", lambda: memory(of)


def _state(of: Criterion) -> Iterator[Finding]:
    if of.module is None or of.kept is None:
        return
    whole = spread(of, 24)
    batch = Batch(whole.x[:9], whole.W, whole.y[:9])  # whose angles are not around 90°, where much cancels
    for training in (True, False):
        of.kept.restore()
        was = of.module.training
        of.module.train(training)
        try:
            for _ in range(3):
                of(batch.x, batch.W, batch.y, fresh=False)
            kept, lost = of.kept.moved()
        finally:
            of.module.train(was)
            of.kept.restore()
        own = {of.weight.name} if of.weight else set()
        kept -= own
        if training and lost:
            yield Finding(
                "state-lost", "doubtful",
                f"Training moves {_listed(lost)}, which state_dict() does not hold: a resumed run begins anew.",
                "Keep what moves in buffers: self.register_buffer(name, torch.tensor(…)).",
            )  # fmt: skip
        if not training and kept | lost:
            yield Finding(
                "moves-in-eval", "doubtful",
                f"In eval() {_listed(kept | lost)} still moves: evaluating changes the training that follows.",
                "Guard the update with `if self.training:`.",
            )  # fmt: skip
        if training and kept:
            yield Finding(
                "state", "note", f"It remembers {_listed(kept)} from batch to batch, in its state_dict()."
            )


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)[:4]) + (" and others" if len(names) > 4 else "")


def _changes(of: Criterion) -> Iterator[Finding]:
    batch = spread(of, 8)
    if of.form == "cosines":
        cosines = batch.x @ batch.W.T / (batch.x.norm(dim=1)[:, None] * batch.W.norm(dim=1))
        before = cosines.clone()
        try:
            of.read(of.bare(cosines, batch.y), len(batch.y))
        except Exception:
            return
        if not torch.equal(before, cosines):
            yield Finding(
                "changes-input", "note", "It writes the margined values into the cosines that it is given, in "
                "place.",
                "Whoever uses the cosines afterwards (accuracy, a second loss) has to take a copy before.",
            )  # fmt: skip
        return
    x = batch.x.clone()
    of(x, batch.W, batch.y)
    if not torch.equal(x, batch.x):
        yield Finding("changes-input", "doubtful", "It changes the features that it is given, in place.")
    if of.weight is not None:
        of(batch.x, batch.W, batch.y)
        if not torch.allclose(of.own_rows().detach(), of.weight.laid(batch.W)):
            yield Finding(
                "changes-weight", "note",
                "The forward itself changes the class rows (it normalises them in place, say).",
                "What the optimiser remembers of a row is of another length than the row; and two forwards differ.",
            )  # fmt: skip


def _radial(of: Criterion) -> Iterator[Finding]:
    """The gradient by a row that counts by its direction alone has no part along the row."""
    if of.form == "cosines":
        return
    batch = spread(of, 32)
    found = differentiate(of, batch)
    by = found.get("the gradient by the class rows")
    if by is None or not bool(by.any()):
        yield Finding(
            "weight-without-gradient", "wrong", "The class rows get no gradient: they are detached, or no "
            "parameter.",
            "Normalise with F.normalize(self.weight), not self.weight.data or under no_grad.",
        )  # fmt: skip
        return
    twice = Batch(batch.x, 2 * batch.W, batch.y)
    if abs(float(differentiate(of, twice)["the loss"]) - float(found["the loss"])) > 1e-3:
        return  # their lengths count
    W = batch.W
    if of.weight is not None:
        W = of.weight.laid(W)
        W, by = (W.T, by.T) if of.weight.transposed else (W, by)
    along = (by * W).sum(1) / W.norm(dim=1)
    share = float((along.norm() / by.norm()).detach())
    if share > 0.02:
        yield Finding(
            "radial-gradient", "note",
            f"The lengths of the class rows do not count, but {100 * share:.0f} % of their gradient points "
            f"along them.",
            "Let the gradient go through the normalisation, which projects it.",
            "A weight normalised in place keeps a radial gradient",
        )  # fmt: skip


def one_class(of: Criterion, remake: Callable[[int], Any] | None) -> Iterator[Finding]:
    """Call it with a single class, which has no rivals: a loss of 0, and no NaN."""
    x = torch.ones(4, of.dim, dtype=of.dtype)
    y = torch.zeros(4, dtype=torch.long)
    alone = replace(of, classes=1)
    try:
        if of.weight is not None:
            assert remake is not None
            made = remake(1)
            call = made.to(of.dtype) if isinstance(made, nn.Module) else made
            alone = replace(alone, call=call, kept=None)
            lengths = (x.norm(dim=1, keepdim=True),) if of.form == "norms" else ()
            found = alone.read(alone.bare(unit(x) if lengths else x, y, *lengths), 4)
        else:
            found = alone(x, torch.ones(1, of.dim, dtype=of.dtype), y)
        given = found.logits if found.loss is None else found.loss
        what = "" if given is None or bool(given.isfinite().all()) else "the loss is not finite"
    except Exception as error:
        what = f"it raises {type(error).__name__}: {first_line(error)}"
    if what:
        yield Finding(
            "one-class", "note", f"With a single class {what}.",
            "A shard, a filtered data set or a test may have one class; there the loss is 0.",
        )  # fmt: skip


def memory(of: Criterion) -> Iterator[Finding]:
    """Count the numbers that autograd keeps for the backward, per row and class."""
    rows = max(64, 8 * of.dim)
    if of.weight is None:
        of = replace(of, classes=MANY)  # as many as one likes
    if of.classes < 64:
        return  # too few to tell N×C from N×d
    batch = spread(of, rows)
    seen: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        store = t.untyped_storage()
        seen[store.data_ptr()] = store.nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        differentiate(of, batch)
    size = batch.x.element_size()
    fixed = (rows * of.dim + of.classes * of.dim) * size
    each = max(0.0, (sum(seen.values()) - fixed) / (rows * of.classes * size))
    if each >= 2:
        gib = each * 512 * 100_000 * 4 / 2**30
        yield Finding(
            "memory", "note",
            f"The backward keeps about {each:.1f} numbers per row and class: {gib:.1f} GiB for 512 rows and "
            "100,000 classes in float32, beside what the forward needs for itself.",
            'hypermargin\'s backend="chunked" (a CPU) or "triton" (a GPU) keeps none.',
        )  # fmt: skip
