"""X, y and sample_weight as the estimator takes them: scikit-learn's checks, and those it does not have."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split
from sklearn.utils import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, validate_data

from hypermargin.estimator.objective import Array


def samples(estimator: Any, X: Any, y: Any = None, *, first: bool) -> Any:
    """Check X, as float64, dense or CSR; with y, both."""
    sparse = False if estimator.kernel == "precomputed" else "csr"
    options = {"accept_sparse": sparse, "dtype": np.float64, "order": "C", "reset": first}
    if y is None and not first:
        return validate_data(estimator, X, **options)
    X, y = validate_data(estimator, X, y, **options)
    check_classification_targets(y)
    return X, y


def classes_of(y: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """Return the classes, and the labels as their numbers."""
    classes, labels = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(
            f"MarginSoftmaxClassifier needs at least 2 classes; y has only one class: {classes.tolist()[0]!r}."
        )
    return classes, labels


def classes_to_come(classes: Any, known: NDArray[Any] | None) -> NDArray[Any]:
    """Check the classes given to partial_fit, all it will ever see."""
    if classes is None:
        if known is None:
            raise ValueError("classes must be given to the first call of partial_fit: all that will ever come.")
        return known
    found = np.unique(np.asarray(classes))
    if len(found) < 2:
        raise ValueError(f"classes must be at least 2; got {found.tolist()}.")
    if known is not None and not np.array_equal(found, known):
        raise ValueError(f"classes must be those of the first call, {known.tolist()}; got {found.tolist()}.")
    return found


def labels_among(y: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.intp]:
    """Return the labels as numbers of known classes."""
    strange = np.setdiff1d(y, classes)
    if len(strange):
        raise ValueError(
            f"y must hold classes of the first call; {strange.tolist()[0]!r} is not among {classes.tolist()}."
        )
    return np.searchsorted(classes, y)


def refuse_words(class_weight: Any) -> None:
    """Refuse a class_weight given as a word in partial_fit, which does not see all samples."""
    if isinstance(class_weight, str):
        raise ValueError(
            f"class_weight={class_weight!r} needs all samples, and partial_fit sees some. Give a dictionary or "
            "sample_weight."
        )


def weights(sample_weight: Any, class_weight: Any, X: Any, y: NDArray[Any], classes: NDArray[Any]) -> Array:
    """Return the weight of each sample, its class's included."""
    weight: Array = _check_sample_weight(sample_weight, X, dtype=np.float64, copy=True)
    if len(weight) and weight.min() < 0:
        raise ValueError(f"sample_weight must not be negative; got {weight.min():g}.")
    if class_weight is not None:
        by_class = compute_class_weight(class_weight, classes=classes, y=y, sample_weight=weight)
        weight *= by_class[np.searchsorted(classes, y)]
    return weight


def check_positive_classes(labels: NDArray[np.intp], weight: Array) -> None:
    """Check that at least two classes count."""
    if len(np.unique(labels[weight > 0])) < 2:
        raise ValueError("all samples with a positive weight are of one class; at least 2 classes are needed.")


def hold_out(
    labels: NDArray[np.intp], weight: Array, share: float, rng: np.random.RandomState
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Choose rows to learn from and rows to validate by, of every class alike; rows without weight are neither."""
    rows = np.flatnonzero(weight > 0)
    counts = np.unique(labels[rows], return_counts=True)[1]
    if counts.min() < 2:
        raise ValueError(
            "early_stopping=True needs at least 2 samples of every class: one to learn, one to validate."
        )
    held, classes = math.ceil(share * len(rows)), len(counts)
    if not classes <= held <= len(rows) - classes:
        raise ValueError(
            f"early_stopping=True with validation_fraction={share:g} would hold out {held} of {len(rows)} "
            f"samples; {classes} classes need at least as many on both sides. Change validation_fraction."
        )
    kept, out = train_test_split(rows, test_size=share, stratify=labels[rows], random_state=rng)
    return kept, out
