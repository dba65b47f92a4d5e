"""The rivals of every row, from all classes at once or in blocks, by what each of Keras's backends has for it."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from hypermargin.integrations import _formula as formula
from hypermargin.integrations._formula import Rivals
from hypermargin.integrations.keras._ops import OPS


def check_block(block: Any) -> int | None:
    """Return block, after checking that the backend can compute in blocks."""
    if block is None:
        return None
    if isinstance(block, bool) or not isinstance(block, int) or block < 1:
        raise ValueError(
            f"block must be a whole number of classes, at least 1, or None for all at once; got {block!r}."
        )
    if keras.backend.backend() not in ("jax", "torch"):
        raise ValueError(
            f"block={block} works on Keras's JAX and PyTorch backends, and this is {keras.backend.backend()}. "
            "Leave it out, or set the environment variable KERAS_BACKEND=jax."
        )
    return block


def rivals(
    f: Any, weight: Any, labels: Any, bias: Any, unit_weight: bool, block: int | None, logits: Any = None
) -> Rivals:
    """Return the rivals of scaled features f (N, d), with the rows of the labels; `logits` may be there already."""
    if block is None or logits is not None:
        w = formula.class_rows(OPS, weight, unit_weight)
        z = OPS.matmul(f, ops.transpose(w)) if logits is None else logits
        z = formula.rivals_of(OPS, z if bias is None or logits is not None else z + bias, labels)
        return Rivals(
            ops.take(w, labels, axis=0), ops.logsumexp(z, axis=-1), ops.stop_gradient(ops.max(z, axis=-1))
        )
    if keras.backend.backend() == "jax":
        from hypermargin.integrations import jax

        b = ops.zeros((), f.dtype) if bias is None else bias
        return Rivals(*jax.rivals(f, weight, labels, b, unit_weight=unit_weight, block=block))
    return _chunked(f, weight, labels, bias, unit_weight, block)


def _chunked(f: Any, weight: Any, labels: Any, bias: Any, unit_weight: bool, block: int) -> Rivals:
    """Return the rivals by the library's own chunked backend, which is for torch."""
    from hypermargin.backends import Call, Chunked
    from hypermargin.layout import ClassTable

    call = Call(f.shape[0], weight.shape[0], weight.device, f.dtype, f.shape[1])
    table = ClassTable(weight, unit_weight, bias, labels.long()[:, None])
    found = Chunked(chunk=block).fitted(call)(f, table, hardest=True)
    return Rivals(found.rows[:, 0], found.rivals, found.hardest)
