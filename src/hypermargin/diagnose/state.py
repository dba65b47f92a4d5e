"""A criterion's state, put back before every call, so that each measurement begins from the same place."""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

PLAIN = (bool, int, float, Tensor, list, dict)
OF_TORCH = frozenset(vars(nn.Module()))  # attributes that every module has


class Kept:
    """Parameters, buffers and plain attributes of a module and its submodules, or of an object, as they were."""

    def __init__(self, criterion: Any) -> None:
        self.module = criterion if isinstance(criterion, nn.Module) else None
        self.found: list[tuple[str, Any, str, Any, Any]] = []  # full name, holder, name, object, value
        holders = self.module.named_modules() if self.module is not None else [("", criterion)]
        for path, holder in holders:
            plain = {k: v for k, v in getattr(holder, "__dict__", {}).items() if k not in OF_TORCH}
            own: list[tuple[str, Any]] = [(k, v) for k, v in plain.items() if isinstance(v, PLAIN)]
            if isinstance(holder, nn.Module):
                own += [*holder._parameters.items(), *holder._buffers.items()]
            for name, value in own:
                if value is not None:
                    self.found.append((f"{path}.{name}".lstrip("."), holder, name, value, _copied(value)))

    @torch.no_grad()
    def restore(self, but: str = "") -> None:
        """Put everything back, but the tensor of that name, which is written anew anyway."""
        for full, module, name, was, value in self.found:
            if full == but:
                continue
            if isinstance(was, nn.Parameter):
                was.copy_(value)
                was.grad = None
                setattr(module, name, was)
            elif isinstance(was, list | dict):  # the object itself, which others may hold
                if not _same(was, value):
                    was.clear()
                    (was.extend if isinstance(was, list) else was.update)(_copied(value))
                vars(module)[name] = was
            elif name in getattr(module, "_buffers", ()):  # a forward may have put another tensor in its place
                module._buffers[name] = _copied(value)
            else:
                vars(module)[name] = _copied(value)

    def moved(self) -> tuple[set[str], set[str]]:
        """Name what has changed: what a checkpoint keeps (buffers, parameters), and what it loses (attributes)."""
        kept: set[str] = set()
        lost: set[str] = set()
        saved = set(self.module.state_dict()) if self.module is not None else set()
        for full, module, name, _, value in self.found:
            if not _same(getattr(module, name, None), value):
                (kept if full in saved else lost).add(full)
        return kept, lost


def _copied(value: Any) -> Any:
    if isinstance(value, list | dict):
        try:
            return copy.deepcopy(value)
        except Exception:  # some hold what cannot be copied
            return type(value)(value)
    return value.detach().clone() if isinstance(value, Tensor) else value


def _same(now: Any, then: Any) -> bool:
    if isinstance(then, Tensor):
        if not isinstance(now, Tensor) or now.shape != then.shape:
            return False
        return bool(torch.equal(now.detach().nan_to_num(), then.to(now.dtype).nan_to_num()))
    if isinstance(then, list | dict):
        if type(now) is not type(then) or len(now) != len(then):
            return False
        keys = then.keys() if isinstance(then, dict) else range(len(then))
        return all((key in now if isinstance(then, dict) else True) and _same(now[key], then[key]) for key in keys)
    try:
        return bool(now is then or now == then or (now != now and then != then))
    except Exception:  # arrays and others of which a comparison is no truth
        return type(now) is type(then)


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
    """Seed all three; of torch the CPU's generator alone, since torch.manual_seed takes a millisecond."""
    torch.default_generator.manual_seed(number)
    np.random.seed(number)
    random.seed(number)
