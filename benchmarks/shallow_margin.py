"""The part of the estimator's benchmark that asks what a margin costs, and whether m="auto" finds that out."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline
from sklearn.svm import SVC

from benchmarks.record import Say
from benchmarks.shallow_folds import KERNELS, SEARCHED_KERNEL, Plan, cross_validate, scaled
from hypermargin.estimator import MarginSoftmaxClassifier

FILES = {"letter": "letterdata.csv", "sms": "sms_spam.csv"}  # the label in the first column, under a title
LONG = ("letter",)  # one split alone


def contenders(kernel: str) -> dict[str, Any]:
    """The default, m chosen, the default of 0.1, and scikit-learn's."""
    rival = {"LogisticRegression": LogisticRegression(max_iter=1000)} if kernel == "linear" else {"SVC": SVC()}
    return rival | {
        "no margin (the default)": MarginSoftmaxClassifier(kernel=kernel, random_state=0),
        'm="auto"': MarginSoftmaxClassifier(m="auto", kernel=kernel, random_state=0),
        "m = 0.2 (the default of 0.1)": MarginSoftmaxClassifier(m=0.2, kernel=kernel, random_state=0),
    }


def read(path: Path) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """Return rows of numbers, or texts where there is one column of them; and labels from 0."""
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        rows = list(csv.reader(file))[1:]
    y = np.unique([row[0] for row in rows], return_inverse=True)[1]
    if len(rows[0]) == 2:
        return np.array([row[1] for row in rows], dtype=object), y
    return np.array([row[1:] for row in rows], dtype=np.float64), y


def margin(plan: Plan, say: Say) -> dict[str, Any]:
    """Everybody on every data set, and on the files that are in the plan's folder."""
    found = {name: plan.load(name) for name in plan.data}
    if plan.files is not None:
        found |= {name: read(plan.files / file) for name, file in FILES.items()}
    tables = []
    for kernel in KERNELS:
        for name, (X, y) in found.items():
            if kernel == "rbf" and name not in SEARCHED_KERNEL:
                continue
            splits = plan.splits(X, y, 1)
            splits = splits[:1] if name in LONG else splits
            rows = {}
            for who, model in contenders(kernel).items():
                say(f"margin: {name}, {kernel}, {who}")
                whole = scaled(model) if X.ndim == 2 else Pipeline([("words", TfidfVectorizer()), ("model", model)])
                rows[who] = cross_validate(whole, X, y, splits, plan.folds)
            one = {"data": name, "kernel": kernel, "rows": rows, "samples": len(y), "splits": len(splits)}
            tables.append(one | {"classes": int(y.max()) + 1})
    return {"folds": plan.folds, "tables": tables}
