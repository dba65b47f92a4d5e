"""Softmax with a margin as a pure function of JAX arrays: jit, grad, vmap, float64, and blocks for many classes.

    from hypermargin.integrations.jax import margin, margin_softmax

    loss = margin_softmax(features, weight, labels, margin("arcface", m=0.5), scale=64.0)

PyTorch is not imported. Needs `pip install jax`.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

from hypermargin.integrations import _formula as formula
from hypermargin.integrations import missing
from hypermargin.integrations._formula import Margin, Rivals

try:
    import jax
    import jax.numpy as jnp
except ModuleNotFoundError as error:
    raise missing(error, "jax", "jax") from None

__all__ = ["Margin", "Rivals", "margin", "margin_softmax", "rivals"]

# jax.numpy, and what formula.py needs beside it.
_BESIDE = {"stop_gradient": jax.lax.stop_gradient, "cast": lambda x, dtype: x.astype(dtype)}
ARRAYS = SimpleNamespace(**vars(jnp) | _BESIDE)


def margin(name: str, **numbers: Any) -> Margin:
    """Return the ψ of a classic head by name: margin("arcface", m=0.5, beyond="smooth").

    Numbers that are not given are the paper's. m (combined: m1, m2, m3) may be an array (N,), one number per row.
    """
    return formula.margin(name, numbers)


def margin_softmax(
    features: Any,
    weight: Any,
    labels: Any,
    margin: Margin | str,
    *,
    scale: Any = None,
    bias: Any = None,
    unit_features: bool = True,
    unit_weight: bool = True,
    lam: Any = 0.0,
    block: int | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Any:
    """Return the cross-entropy of softmax with a margin on the target, L = softplus(R − T).

    With z_j = s·|x||W_j|·cos θ_j + b_j (|x|, |W_j| replaced by 1 where a side is normalised):

        T = s·|x||W_y|·ψ(θ_y) + b_y,     R = log Σ_{j≠y} exp z_j

    - features (N, d), weight (C, d), labels (N,): integers in [0, C) or `ignore_index`
    - margin: what `margin(name, m=…)` returns, or such a name for its paper's numbers
    - scale: s > 0; with unit features it must be given
    - bias: (C,), or () for one that all classes share
    - lam: λ ≥ 0 blends in the plain cosine, (λ cos θ + ψ)/(1 + λ)
    - block: how many classes to compute with at a time; None is all, and holds N×C numbers. With blocks there is no
      forward-mode differentiation (jvp).
    - reduction: "mean" is over the rows that count, and 0 if there are none; "sum"; "none" gives (N,)

    Computed in float32, or in float64 where features or weight have it. Nothing can be raised under jit, so a row
    with a label that is no class, or with NaN or inf, has a loss of NaN; no other row takes note of it.
    """
    psi = formula.margin(margin) if isinstance(margin, str) else margin
    formula.one_of("reduction", reduction, ("mean", "sum", "none"))
    _check_shapes(features, weight, labels)
    if scale is None:
        if unit_features:
            raise ValueError(
                "scale must be given for unit features: cosines alone are too close together to learn from."
            )
        scale = 1.0
    dtype = jnp.promote_types(jnp.promote_types(features.dtype, weight.dtype), jnp.float32)
    counted = labels != ignore_index
    x = features.astype(dtype)
    usable, y = formula.usable_rows(ARRAYS, x, labels, weight.shape[0])
    x = formula.only(ARRAYS, usable, x)
    b = jnp.zeros((), dtype) if bias is None else jnp.asarray(bias, dtype)
    rows = formula.scaled_rows(ARRAYS, x, jnp.asarray(scale, dtype), unit_features)
    found = rivals(rows.f, weight, y, b, unit_weight=unit_weight, block=block)
    own = formula.target(ARRAYS, rows, found.own, unit_weight, psi, lam)
    loss = formula.row_losses(ARRAYS, found.rivals, own + (b if b.ndim == 0 else b[y]), usable)
    loss = jnp.where(counted, loss, 0.0)
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.sum() / jnp.maximum(counted.sum(), 1)


def _check_shapes(features: Any, weight: Any, labels: Any) -> None:
    if weight.ndim != 2 or features.ndim != 2 or weight.shape[1] != features.shape[1]:
        raise ValueError(
            f"features must be (N, d) and weight (C, d); got {features.shape} and {weight.shape}. "
            "A kernel of (d, C), as Keras and flax have it, is transposed with .T."
        )
    if labels.shape != features.shape[:1] or not jnp.issubdtype(labels.dtype, jnp.integer):
        raise ValueError(
            f"labels must be integers of shape ({features.shape[0]},), one per row; got {labels.dtype} of "
            f"{labels.shape}. One-hot rows become integers with .argmax(1)."
        )


def rivals(
    f: Any, weight: Any, labels: Any, bias: Any, *, unit_weight: bool = True, block: int | None = None
) -> Rivals:
    """Return the rivals of scaled features f (N, d): z_j = ⟨f, w̃_j⟩ + b_j; labels in [0, C), bias (C,) or ()."""
    if block is None:
        w = formula.class_rows(ARRAYS, weight.astype(f.dtype), unit_weight)
        z = formula.rivals_of(ARRAYS, f @ w.T + bias, labels)
        return Rivals(w[labels], jax.nn.logsumexp(z, axis=-1), jax.lax.stop_gradient(z.max(axis=-1)))
    formula.whole("block", block, ", or None for all classes at once")
    every = jnp.broadcast_to(bias, weight.shape[:1])
    return Rivals(*_in_blocks(unit_weight, min(block, weight.shape[0]), f, weight, every, labels))


def _logits(unit: bool, f: Any, weight: Any, bias: Any) -> Any:
    return f @ formula.class_rows(ARRAYS, weight.astype(f.dtype), unit).T + bias


def _block_at(start: Any, block: int, i: Any, labels: Any, weight: Any, bias: Any) -> tuple[Any, Any, Any]:
    """Return the rows and biases of a block, and which of its logits count (N, block).

    The last block begins earlier than the others end, so that all have the same size; what was seen is left out.
    """
    column = start + jnp.arange(block)
    counts = (column[None, :] != labels[:, None]) & (column >= i * block)[None, :]
    return (
        jax.lax.dynamic_slice_in_dim(weight, start, block),
        jax.lax.dynamic_slice_in_dim(bias, start, block),
        counts,
    )


def _starts(classes: int, block: int) -> tuple[Any, Any]:
    i = jnp.arange(-(-classes // block))
    return jnp.minimum(i * block, classes - block), i


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _in_blocks(unit: bool, block: int, f: Any, weight: Any, bias: Any, labels: Any) -> tuple[Any, Any, Any]:
    """Return the same as `rivals` from blocks of classes, one after the other: N×block numbers at a time."""

    def step(sums: tuple[Any, Any], where: tuple[Any, Any]) -> tuple[tuple[Any, Any], None]:
        largest, total = sums
        start, i = where
        w, b, counts = _block_at(start, block, i, labels, weight, bias)
        z = jnp.where(counts, _logits(unit, f, w, b), formula.HIDDEN)
        new = jnp.maximum(largest, z.max(axis=-1))
        total = total * jnp.exp(largest - new) + jnp.where(counts, jnp.exp(z - new[:, None]), 0).sum(axis=-1)
        return (new, total), None

    first = jnp.full(f.shape[:1], formula.HIDDEN, f.dtype), jnp.zeros(f.shape[:1], f.dtype)
    (largest, total), _ = jax.lax.scan(step, first, _starts(weight.shape[0], block))
    R = jnp.where(total > 0, largest + jnp.log(jnp.where(total > 0, total, 1)), formula.HIDDEN)
    own = formula.class_rows(ARRAYS, weight[labels].astype(f.dtype), unit)
    return own, R, largest


def _forward(unit: bool, block: int, f: Any, weight: Any, bias: Any, labels: Any) -> tuple[Any, Any]:
    own, R, hardest = _in_blocks(unit, block, f, weight, bias, labels)
    return (own, R, hardest), (f, weight, bias, labels, R)


def _backward(unit: bool, block: int, kept: Any, by: Any) -> tuple[Any, Any, Any, None]:
    """Compute every block again, with P = exp(z − R)·dR, whose products with W and f are the gradients."""
    f, weight, bias, labels, R = kept
    by_own, by_R, _ = by

    def step(sums: tuple[Any, Any, Any], where: tuple[Any, Any]) -> tuple[tuple[Any, Any, Any], None]:
        by_f, by_w, by_b = sums
        start, i = where
        w, b, counts = _block_at(start, block, i, labels, weight, bias)
        z, pull = jax.vjp(partial(_logits, unit), f, w, b)
        P = jnp.where(counts, jnp.exp(jnp.where(counts, z, formula.HIDDEN) - R[:, None]), 0) * by_R[:, None]
        of_f, of_w, of_b = pull(P)
        return (by_f + of_f, _added(by_w, of_w, start), _added(by_b, of_b, start)), None

    sums, _ = jax.lax.scan(
        step, (jnp.zeros_like(f), jnp.zeros_like(weight), jnp.zeros_like(bias)), _starts(weight.shape[0], block)
    )
    by_f, by_w, by_b = sums
    _, pull = jax.vjp(lambda rows: formula.class_rows(ARRAYS, rows.astype(f.dtype), unit), weight[labels])
    return by_f, by_w.at[labels].add(pull(by_own)[0]), by_b, None


def _added(whole: Any, part: Any, start: Any) -> Any:
    """Return `whole` with `part` added from row `start` on."""
    here = jax.lax.dynamic_slice_in_dim(whole, start, part.shape[0])
    return jax.lax.dynamic_update_slice_in_dim(whole, here + part, start, 0)


_in_blocks.defvjp(_forward, _backward)
