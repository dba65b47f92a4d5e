"""What belongs to the process rather than to the run: random generators, signals, torch's global switches."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch


def random_states() -> dict[str, Any]:
    """Return the states of torch's, Python's and numpy's generators: a user's network may draw from any of them."""
    version, numbers, gauss = random.getstate()
    name, keys, *rest = cast("tuple[Any, ...]", np.random.get_state(legacy=True))
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "python": [version, list(numbers), gauss],
        "numpy": [name, torch.from_numpy(keys.astype(np.int64)), *rest],
    }


def set_random_states(saved: dict[str, Any]) -> None:
    """Set the generators back to what `random_states` found."""
    torch.set_rng_state(saved["torch"])
    if saved["cuda"] and torch.cuda.is_available() and len(saved["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(saved["cuda"])
    version, numbers, gauss = saved["python"]
    random.setstate((version, tuple(numbers), gauss))
    name, keys, *rest = saved["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Let Ctrl-C and SIGTERM end the run after the step under way; a second Ctrl-C ends it at once."""
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def note(number: int, _: Any) -> None:
        if received and number == signal.SIGINT:
            raise KeyboardInterrupt
        received.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def make_repeatable() -> None:
    """Make torch give the same result every time, on one machine."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs for it
    torch.use_deterministic_algorithms(True)
    # Filling fresh memory helps to find bugs, and costs 7 % of a step.
    cast("Any", torch.utils.deterministic).fill_uninitialized_memory = False


@contextmanager
def left_as_found() -> Iterator[None]:
    """Put the caller's global switches back afterwards."""
    deterministic, threads = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    switches = cast("Any", torch.utils.deterministic)  # torch leaves its one switch undeclared
    fill = switches.fill_uninitialized_memory
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic)
        switches.fill_uninitialized_memory = fill
        torch.set_num_threads(threads)
