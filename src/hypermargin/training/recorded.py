"""Steps recorded as CUDA graphs: the GPU runs some hundred kernels at one call, and nobody waits for a loss."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hypermargin.common.text import Say, first_line
from hypermargin.data.base import Rows
from hypermargin.training.config import Config
from hypermargin.training.learner import Batch, Learner
from hypermargin.training.process import random_states, set_random_states

AHEAD = 8  # steps that the CPU may be ahead of the GPU
WARM_UPS = 3  # steps before the recording, in which kernels are compiled and chosen; undone afterwards


class Taken(NamedTuple):
    """A step that was taken: where, on which samples, and what was seen."""

    step: int
    epoch: int
    raw: Tensor
    rows: Rows
    loss: float
    seen: dict[str, float]


def why_not(config: Config, learner: Learner, *, own_network: bool = False) -> str | None:
    """Return the reason why the steps of this run cannot be recorded, or None."""
    if config.cuda_graphs is False:
        return "cuda_graphs is false"
    if learner.device.type != "cuda":
        return f"device is {learner.device.type}; CUDA graphs need a GPU"
    if learner.together is not learner.network or learner.head.layout.world > 1:
        return "several processes train together"
    if config.accumulate > 1:
        return f"accumulate is {config.accumulate}; a recorded step has one batch"
    if config.precision == "float16":
        return "precision is float16, whose scaler decides on the CPU which steps to leave out"
    if not all(group.get("fused") for group in learner.optimizer.param_groups):
        return "the optimiser works on the CPU too: a sample of the classes differs from step to step"
    if own_network and not config.cuda_graphs:
        return "the network is your own, and what Python does in its forward would be frozen (cuda_graphs = true)"
    return None


class Recorder:
    """Takes steps by replaying them, once one was recorded; steps with other shapes are for somebody else.

    A step reads its batch from fixed tensors and leaves its loss in another. The losses follow the GPU to the CPU
    some steps later. Until then a loss that is not finite holds up all later updates on the GPU itself, so the
    weights are still those of the last good step when `settled` finds it.
    """

    def __init__(self, learner: Learner, batch: int, say: Say) -> None:
        self.learner, self.size, self.say = learner, batch, say
        self.given: Batch | None = None  # the tensors that the recorded step reads
        self.names: list[str] = []  # of what is watched
        self.replays: dict[bool, Callable[[], Tensor]] = {}  # with a look at the angles, and without
        self.waiting: deque[tuple[Taken, Tensor, Any]] = deque()
        self.bad = torch.zeros((), device=learner.device)  # 1 after a loss that was not finite
        self.given_up = False

    def takes(self, batch: Batch) -> bool:
        """Tell whether the batch can be replayed; the first one that could be is recorded."""
        if self.given_up or len(batch.labels) != self.size:
            return False
        if self.given is None:
            try:
                self._record(batch)
            except RuntimeError as error:
                if self.learner.config.cuda_graphs:
                    raise ValueError(
                        f"cuda_graphs: this step cannot be recorded: {first_line(error)}. Leave cuda_graphs out."
                    ) from error
                self.say(f"steps are launched one kernel at a time: recording failed, {first_line(error)}")
                self.close()
                self.given_up = True
                return False
        assert self.given is not None
        return all(a.shape == b.shape and a.dtype == b.dtype for a, b in zip(batch, self.given, strict=True))

    def step(self, batch: Batch, rows: Rows, *, step: int, epoch: int, look: bool) -> None:
        """Take one step of the optimiser, at the rates that are set."""
        assert self.given is not None
        for given, new in zip(self.given, batch, strict=True):
            given.copy_(new)
        found, done = _on_the_way(self.replays[look]())
        self.waiting.append((Taken(step, epoch, batch.raw, rows, 0.0, {}), found, done))

    def settled(self, wait: bool = True) -> Iterator[Taken]:
        """Yield the steps whose losses have arrived, in order; with `wait`, all."""
        while self.waiting:
            taken, found, done = self.waiting[0]
            if done is not None:
                if not wait and len(self.waiting) <= AHEAD and not done.query():
                    return
                done.synchronize()
            self.waiting.popleft()
            loss, *seen = found.tolist()
            yield taken._replace(loss=loss, seen=dict(zip(self.names, seen, strict=False)))

    def close(self) -> None:
        """Forget the recordings and what they hold."""
        self.replays, self.given = {}, None
        self.learner.rates_as_numbers()
        vars(self.learner.optimizer).pop("found_inf", None)

    def _record(self, batch: Batch) -> None:
        learner = self.learner
        self.given = Batch(*(t.to(learner.device).clone() for t in batch))
        learner.rates_as_tensors()
        learner.optimizer.found_inf = self.bad  # type: ignore[attr-defined]  # where fused optimisers look for it
        before = random_states()
        with _undone(learner):
            warm_up(partial(self._body, True), learner.device)
            after = random_states()
        self.bad.zero_()
        if any(str(before[kind]) != str(after[kind]) for kind in ("python", "numpy")) or not torch.equal(
            before["torch"], after["torch"]
        ):
            raise RuntimeError("the network draws random numbers on the CPU, which a recording would freeze")
        with _undone(learner):  # recording runs nothing on the GPU, but Python's part of the step runs once more
            pool = torch.cuda.graph_pool_handle()
            for look in (False, True):
                self.replays[look] = record(partial(self._body, look), pool)

    def _body(self, look: bool) -> Tensor:
        """Take a step as `Trainer` does, without reading a number; return the loss and what is watched."""
        learner = self.learner
        assert self.given is not None
        learner.optimizer.zero_grad(set_to_none=True)
        found = learner.run(self.given)
        seen = learner.look(found, self.given.labels) if look else {}
        self.names = list(seen) or self.names
        found.loss.backward()
        self.bad.copy_(torch.maximum(self.bad, (~found.loss.detach().isfinite()).to(self.bad.dtype)))
        learner.update()
        return torch.stack([found.loss.detach().float(), *(value.float() for value in seen.values())])


def record(body: Callable[[], Tensor], pool: Any) -> Callable[[], Tensor]:
    """Return a function that runs again what `body` launches now, and returns the tensor that it returned."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        result = body()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay


def warm_up(body: Callable[[], Tensor], device: torch.device) -> None:
    """Run the warm-up steps where a recording would run, so that nothing is set up during it."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            body()
    torch.cuda.current_stream(device).wait_stream(stream)
    torch.cuda.synchronize(device)


def _on_the_way(found: Tensor) -> tuple[Tensor, Any]:
    """Send a few numbers to the CPU; return where they will be, and an event that tells when."""
    if not found.is_cuda:
        return found.clone(), None
    there = torch.empty(found.shape, dtype=found.dtype, pin_memory=True)
    there.copy_(found, non_blocking=True)
    done = torch.cuda.Event()
    done.record()
    return there, done


@contextlib.contextmanager
def _undone(learner: Learner) -> Iterator[None]:
    """Put back all that steps change: weights, state, averages, the optimiser's state, random generators."""
    tensors = learner.changing()
    before = [t.detach().clone() for t in tensors]
    old = {id(t) for t in tensors}
    random = random_states()
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, before, strict=True):
                tensor.copy_(value)
            for tensor in learner.changing():
                if id(tensor) not in old:  # an optimiser makes its state in its first step, all of it zero
                    tensor.zero_()
        learner.optimizer.zero_grad(set_to_none=True)
        set_random_states(random)
