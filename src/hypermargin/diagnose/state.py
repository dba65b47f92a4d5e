"""A criterion's state, put back before every call, so that each measurement begins from the same place."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

PLAIN = (bool, int, float, Tensor)


class Kept:
    """The parameters, buffers and plain numbers of a module and its submodules, as they were."""

    def __init__(self, criterion: Any) -> None:
        self.module = criterion if isinstance(criterion, nn.Module) else None
        self.numbers: list[tuple[nn.Module, dict[str, Any]]] = []
        self.tensors: list[tuple[Tensor, Tensor]] = []
        if self.module is None:
            return
        for each in self.module.modules():
            own = {k: v for k, v in vars(each).items() if isinstance(v, PLAIN) and k != "training"}
            self.numbers.append((each, {k: _copied(v) for k, v in own.items()}))
        for tensor in (*self.module.parameters(), *self.module.buffers()):
            self.tensors.append((tensor, tensor.detach().clone()))

    @torch.no_grad()
    def restore(self) -> None:
        """Put everything back."""
        for module, numbers in self.numbers:
            for name, value in numbers.items():
                vars(module)[name] = _copied(value)
        for tensor, value in self.tensors:
            tensor.copy_(value)
            tensor.grad = None

    def moved(self) -> tuple[set[str], set[str]]:
        """Name what has changed: what a checkpoint keeps (buffers, parameters), and what it loses (attributes)."""
        kept, lost = set(), set()
        if self.module is None:
            return kept, lost
        saved = set(self.module.state_dict())
        names = {id(t): name for name, t in (*self.module.named_parameters(), *self.module.named_buffers())}
        for tensor, value in self.tensors:
            if not torch.equal(tensor.detach().nan_to_num(), value.nan_to_num()):
                name = names.get(id(tensor), "?")
                (kept if name in saved else lost).add(name)
        for module, numbers in self.numbers:
            for name, value in numbers.items():
                if not _same(vars(module).get(name), value):
                    lost.add(name)
        return kept, lost


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _same(now: Any, then: Any) -> bool:
    if isinstance(then, Tensor):
        if not isinstance(now, Tensor) or now.shape != then.shape:
            return False
        return bool(torch.equal(now.detach().nan_to_num(), then.to(now.dtype).nan_to_num()))
    return bool(now == then or (now != now and then != then))


@contextlib.contextmanager
def random_left_alone() -> Iterator[None]:
    """Put back the random generators of torch, numpy and Python in the end."""
    numpy_state, python_state = np.random.get_state(), random.getstate()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            np.random.set_state(numpy_state)
            random.setstate(python_state)


def seed(number: int) -> None:
    """Seed all three."""
    torch.manual_seed(number)
    np.random.seed(number)
    random.seed(number)
