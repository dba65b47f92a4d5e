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
    formula.whole("block", block, ", or None for all classes at once")
    if keras.backend.backend() not in ("jax", "torch"):
        raise ValueError(
            f"block={block} works on Keras's JAX and PyTorch backends, and this is {keras.backend.backend()}. "
            "Leave it out, or set the environment variable KERAS_BACKEND=jax."
        )
    return int(block)


def rivals(
    f: Any, weight: Any, labels: Any, bias: Any, unit_weight: bool, block: int | None, logits: Any = None
) -> Rivals:
    """Return the rivals of scaled features f (N, d), with the rows of the labels; `logits` may be there already."""
    if block is None or logits is not None:
        if logits is None:
            logits = all_logits(f, weight, bias, unit_weight)
        z = formula.rivals_of(OPS, logits, labels)
        own = formula.class_rows(OPS, ops.take(weight, labels, axis=0), unit_weight)
        return Rivals(own, ops.logsumexp(z, axis=-1), ops.max(ops.stop_gradient(z), axis=-1))
    if keras.backend.backend() == "jax":
        from hypermargin.integrations import jax

        b = ops.zeros((), f.dtype) if bias is None else bias
        return Rivals(*jax.rivals(f, weight, labels, b, unit_weight=unit_weight, block=block))
    return _chunked(f, weight, labels, bias, unit_weight, block)


def all_logits(f: Any, weight: Any, bias: Any, unit_weight: bool) -> Any:
    """Return ⟨f, w̃_j⟩ + b_j, (N, C)."""
    z = OPS.matmul(f, ops.transpose(formula.class_rows(OPS, weight, unit_weight)))
    return z if bias is None else z + bias


def _chunked(f: Any, weight: Any, labels: Any, bias: Any, unit_weight: bool, block: int) -> Rivals:
    """Return the rivals by the library's own chunked backend, which is for torch."""
    from hypermargin.backends import Call, Chunked
    from hypermargin.layout import ClassTable

    call = Call(f.shape[0], weight.shape[0], weight.device, f.dtype, f.shape[1])
    table = ClassTable(weight, unit_weight, bias, labels.long()[:, None])
    found = Chunked(chunk=block).fitted(call)(f, table, hardest=True)
    return Rivals(found.rows[:, 0], found.rivals, found.hardest)
