"""m="auto": the size of the margin, by cross-validation inside the training data."""

from __future__ import annotations

import hashlib
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from hypermargin.estimator.objective import Array
from hypermargin.estimator.settings import MODEST, margin_of

FOLDS = 3
SHARES = (0.0, 0.25, 0.5, 1.0, 2.0)  # of the way from no margin to the modest one
BLOCK = 1024  # rows made sparse at a time

M = float | tuple[float, ...] | None


def sizes(margin: Any) -> list[M]:
    """Return the m to try, from no margin on; [None] for a margin without a number."""
    found = margin_of("arcface" if margin is None else margin, None)
    own = found.m
    if own is None:
        return [None]
    # A margin that nobody has looked at here may be made for networks, where more is borne.
    zero = np.asarray(found.zero, dtype=float)
    modest = np.asarray(MODEST.get(found.name, (zero + np.asarray(own)) / 2))
    tried = [zero + share * (modest - zero) for share in SHARES]
    return [tuple(m.tolist()) if m.ndim else float(m) for m in tried]


def choose(estimator: Any, X: Any, y: NDArray[Any], weight: Array) -> tuple[M, dict[M, float]]:
    """Return the m that is right most often on held-out samples, the smallest of equals; and the accuracy of each.

    `weight` is that of each sample, its class's included.
    """
    tried = sizes(estimator.margin)
    if len(tried) == 1:
        return tried[0], {}
    rows = np.flatnonzero(weight > 0)
    number = folds(X[rows], y[rows], estimator.random_state)
    right = np.zeros(len(tried))
    for fold in range(FOLDS):
        learnt, held_out = rows[number != fold], rows[number == fold]
        if len(held_out) == 0 or len(np.unique(y[learnt])) < 2:
            continue
        columns = learnt if estimator.kernel == "precomputed" else slice(None)
        for k, m in enumerate(tried):
            model = clone(estimator).set_params(m=m, class_weight=None, verbose=False)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # the last fit, on all, will say so
                model.fit(X[learnt][:, columns], y[learnt], weight[learnt])
            right[k] += weight[held_out] @ (model.predict(X[held_out][:, columns]) == y[held_out])
    if not right.any():
        raise ValueError(
            f'm="auto" needs samples to hold out, of which equal ones are one: no two of {FOLDS} parts hold two '
            "classes to learn. Give a number."
        )
    accuracy = right / weight[rows].sum()
    scores = {m: float(a) for m, a in zip(tried, accuracy, strict=True)}
    return tried[int(accuracy.argmax())], scores


def folds(X: Any, y: NDArray[Any], random_state: Any) -> NDArray[np.intp]:
    """Return the part that each sample is in, of every class alike.

    The order is that of hashes of the samples. So equal samples are held out together, for else they would be
    learnt and asked for; and the parts depend neither on the order of the rows nor on how often each is there.
    """
    seed = 0 if random_state is None else check_random_state(random_state).randint(2**31)
    keys = np.array([int.from_bytes(h[:8], "big") for h in _hashes(X, str(seed).encode())], dtype=np.uint64)
    number = np.zeros(len(y), dtype=np.intp)
    first = 0  # where the last class ended, so that small ones do not all fill the first part
    for label in np.unique(y):
        member = y == label
        kinds, place = np.unique(keys[member], return_inverse=True)
        number[member] = (first + place) % FOLDS
        first += len(kinds)
    return number


def _hashes(X: Any, seed: bytes) -> list[bytes]:
    """Hash every row by its entries that are not zero, whether they are stored densely or not."""
    found = []
    for start in range(0, X.shape[0], BLOCK):
        block = csr_array(X[start : start + BLOCK])
        block.eliminate_zeros()
        block.sort_indices()
        for begin, end in zip(block.indptr[:-1], block.indptr[1:], strict=True):
            entries = block.indices[begin:end].astype(np.int64).tobytes() + block.data[begin:end].tobytes()
            found.append(hashlib.blake2b(entries, key=seed).digest())
    return found
