"""One BLAS thread for small products.

numpy and scipy bring a BLAS each, whose threads wait for work by spinning: on two cores, products of a hundred
microseconds then take ten times as long.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from threadpoolctl import ThreadpoolController

SMALL = 2e8  # operations of a product below which a second thread costs more than it brings

_lock = threading.Lock()
_inside = 0  # fits under the limit now; they may run in threads, and end in any order
_limit: Any = None


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()


@contextmanager
def threads_for(rows: int, dim: int, classes: int) -> Iterator[None]:
    """Use one BLAS thread inside if a product of such sizes is small. The first fit sets it, the last undoes it."""
    global _inside, _limit
    if 2.0 * rows * dim * classes >= SMALL:
        yield
        return
    with _lock:
        if _inside == 0:
            _limit = _controller().limit(limits=1, user_api="blas")
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _limit.restore_original_limits()
