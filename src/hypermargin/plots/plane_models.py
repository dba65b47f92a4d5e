"""Fitted classifiers of two classes in the plane, asked: where is the margin met, and what supports it?"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hypermargin.common.arrays import Floats
from hypermargin.margins import NoMargin
from hypermargin.plots.boundary import BoundaryDisplay
from hypermargin.plots.stretches import psi


def checked_samples(model: Any, X: ArrayLike, y: ArrayLike) -> tuple[Floats, NDArray[np.intp]]:
    """Check both against each other and the model; return labels as 0 and 1."""
    X, y = np.asarray(X, dtype=np.float64), np.asarray(y)
    if X.ndim != 2 or X.shape[1] != 2:
        raise ValueError(f"X must have shape (N, 2), two features to draw; got {X.shape}. Fit on two of them.")
    if y.shape != X.shape[:1]:
        raise ValueError(f"y must have shape ({len(X)},), a class for each row of X; got {y.shape}.")
    if not np.isfinite(X).all():
        raise ValueError("X must be finite; got NaN or infinity.")
    if not hasattr(model, "decision_function"):
        raise TypeError(
            f"model must have a decision_function, as MarginSoftmaxClassifier, SVC or LogisticRegression; got "
            f"{type(model).__name__}."
        )
    classes = getattr(model, "classes_", None)
    if classes is None:
        raise ValueError(f"model must be fitted; this {type(model).__name__} is not. Call fit(X, y) first.")
    if len(classes) != 2:
        raise ValueError(f"model must be fitted on 2 classes; got {len(classes)}. Draw two of them at a time.")
    if model.n_features_in_ != 2:
        raise ValueError(f"model must be fitted on 2 features; got {model.n_features_in_}.")
    strange = np.setdiff1d(y, classes)
    if len(strange):
        raise ValueError(f"y must hold the model's classes {classes.tolist()}; got {strange[:1].tolist()[0]!r}.")
    return X, np.searchsorted(classes, y)


def parts_of(model: Any) -> tuple[Any, Any]:
    """Return what a pipeline does before its classifier, as a function; and the classifier."""
    from sklearn.pipeline import Pipeline

    if not isinstance(model, Pipeline):
        return np.asarray, model
    return (model[:-1].transform if len(model) > 1 else np.asarray), model[-1]


def support_of(final: Any, own: Floats) -> NDArray[np.intp] | None:
    """Return SVC's own; where there is a hinge, the samples with y·f ≤ 1; None where every sample counts."""
    from sklearn.svm import SVC, NuSVC

    if isinstance(final, SVC | NuSVC):
        rows: NDArray[np.intp] = np.sort(final.support_)
        if rows.max(initial=0) >= len(own):
            raise ValueError(
                f"X must be the samples that model was fitted on; it has {len(own)} rows, and row {rows.max()} of "
                "those is a support vector."
            )
        return rows
    if getattr(final, "loss", None) in ("hinge", "squared_hinge"):  # LinearSVC, SGDClassifier
        return np.flatnonzero(own <= 1)
    return None


def has_margin(final: Any) -> bool:
    """Tell whether it is a margin softmax with a margin."""
    from hypermargin.estimator import MarginSoftmaxClassifier

    return isinstance(final, MarginSoftmaxClassifier) and not isinstance(final.margin_, NoMargin)


def _unit_vectors(final: Any) -> Floats:
    lengths = np.linalg.norm(final.class_vectors_, axis=1, keepdims=True)
    found: Floats = final.class_vectors_ / lengths
    return found


def surplus(final: Any, X: Any) -> Floats:
    """Return |W_y|·ψ(θ_y) − |W_other|·cos θ_other (2, N), each class in turn as y; ≥ 0 if it meets its margin."""
    found = np.asarray(final.transform(X))
    cosines = found if final.transform_to == "cosines" else found @ _unit_vectors(final).T
    met = psi(final.margin_, np.arccos(np.clip(cosines, -1.0, 1.0)))
    r = final.magnitudes_
    return np.stack([r[k] * met[:, k] - r[1 - k] * cosines[:, 1 - k] for k in (0, 1)])


def band_of(final: Any) -> float:
    """Return the band between the two classes, on the arc from one class vector to the other."""
    one, two = _unit_vectors(final)
    theta12 = math.acos(max(-1.0, min(1.0, float(one @ two))))
    r = tuple(map(float, final.magnitudes_))
    return BoundaryDisplay.of(final.margin_, theta12, lengths=(r[0], r[1])).width


def angles_of(final: Any, X: Any, labels: NDArray[np.intp]) -> Floats:
    """Return the angles of samples (x, c) to the plane through the origin that the boundary is at height c.

    c is the model's constant feature; for others the root mean square of the entries of X, as its "auto" is.
    """
    prefix = "boundary_" if hasattr(final, "boundary_coef_") else ""
    if not hasattr(final, prefix + "coef_"):
        return np.full(len(labels), math.nan)
    X = np.asarray(X.toarray() if hasattr(X, "toarray") else X)
    w, b = (np.ravel(getattr(final, prefix + name)) for name in ("coef_", "intercept_"))
    c = getattr(final, "intercept_scaling_", 0.0) or float(np.sqrt((X**2).mean())) or 1.0
    lengths = np.hypot(np.linalg.norm(X, axis=1), c) * math.hypot(float(np.linalg.norm(w)), float(b[0]) / c)
    found: Floats = np.arcsin(np.clip((X @ w + b) / lengths, -1.0, 1.0)) * (2 * labels - 1)
    return found
