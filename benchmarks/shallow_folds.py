"""Cross-validation for the benchmark of the estimator: the same folds for all, and a test fit for folds."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student
from sklearn import datasets
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, RepeatedStratifiedKFold, StratifiedKFold, train_test_split
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC

from benchmarks.record import Say
from hypermargin.estimator import MarginSoftmaxClassifier
from hypermargin.estimator.settings import MODEST

Array = NDArray[np.float64]
DATA = {
    "iris": datasets.load_iris,
    "wine": datasets.load_wine,
    "breast-cancer": datasets.load_breast_cancer,
    "digits": datasets.load_digits,
}
HEADS = ("softmax", "l-softmax", "modified-softmax", "a-softmax", "normface", "cosface", "arcface", "combined")
WITHOUT = {  # a head with a margin: the same without one
    "l-softmax": "softmax",
    "a-softmax": "modified-softmax",
    "cosface": "normface",
    "arcface": "normface",
    "combined": "normface",
}
KERNELS = ("linear", "rbf")
RIVAL = {"linear": "LogisticRegression", "rbf": "SVC"}
SEARCHED_KERNEL = ("iris", "wine", "breast-cancer")  # digits would take half an hour
BINS = 15
CONFIDENCE = 0.95
MARGINS: dict[str, tuple[Any, ...]] = {  # of the search
    "l-softmax": (1.05, 1.1, 1.2),
    "a-softmax": (1.05, 1.1, 1.2),
    "cosface": (0.05, 0.1, 0.2),
    "arcface": (0.05, 0.1, 0.2),
    "combined": ((1.0, 0.05, 0.05), (1.0, 0.1, 0.1), (1.0, 0.2, 0.1)),
}
DECADES = (100.0, 10.0, 1.0, 0.1, 0.01, 0.001)


@dataclass(frozen=True)
class Plan:
    """How much of everything."""

    data: tuple[str, ...] = tuple(DATA)
    folds: int = 5
    repeats: int = 4
    search_repeats: int = 2
    inner_folds: int = 3
    sizes: tuple[int, ...] = (5, 10, 20, 50, 100, 200)  # of import vectors
    states: int = 3  # random states of Nyström
    rounds: int = 7
    most: int | None = None  # samples of a data set
    files: Path | None = None  # a folder of data that do not come with scikit-learn

    def load(self, name: str) -> tuple[Array, NDArray[np.int64]]:
        """Samples, not yet scaled, and labels from 0."""
        X, y = DATA[name](return_X_y=True)
        if self.most is not None and self.most < len(y):
            X, _, y, _ = train_test_split(X, y, train_size=self.most, stratify=y, random_state=0)
        return X, y

    def splits(self, X: Array, y: NDArray[np.int64], repeats: int | None = None) -> list[Any]:
        """Training and held-out rows, fold after fold, repeat after repeat."""
        n_repeats = self.repeats if repeats is None else repeats
        return list(RepeatedStratifiedKFold(n_splits=self.folds, n_repeats=n_repeats, random_state=0).split(X, y))


QUICK = Plan(folds=3, repeats=1, search_repeats=1, inner_folds=2, sizes=(5, 10), states=1, rounds=1, most=120)


def scaled(model: Any) -> Any:
    """With a StandardScaler before it, fitted in each fold."""
    return Pipeline([("scale", StandardScaler()), ("model", model)])


def contenders(kernel: str) -> dict[str, Any]:
    """Everybody at defaults."""
    if kernel == "linear":
        peers = {"LogisticRegression": LogisticRegression(max_iter=1000), "LinearSVC": LinearSVC(random_state=0)}
    else:
        peers = {"SVC": SVC(kernel=kernel)}
    return peers | {head: MarginSoftmaxClassifier.of(head, kernel=kernel) for head in HEADS}


def settings(name: str, kernel: str, features: int) -> list[dict[str, Any]]:
    """Six for everybody, from the strongest penalty and the smallest margin on: of equals the first is taken."""
    if name == "LogisticRegression":
        return [{"C": 1.0 / a} for a in DECADES]
    if name == "LinearSVC":
        return [{"C": c} for c in reversed(DECADES)]
    if name == "SVC":
        return [{"C": c, "gamma": gamma} for c in (1.0, 10.0, 100.0) for gamma in ("scale", 0.25 / features)]
    head = MarginSoftmaxClassifier.of(name)
    usual = 0.01 if head.unit_features or kernel == "rbf" else 1.0  # rbf: |φ(x)| = 1 of itself
    if name in MARGINS:
        return [{"m": m, "alpha": a * usual} for m in MARGINS[name] for a in (1.0, 0.1)]
    return [{"alpha": a * usual} for a in DECADES]


@contextmanager
def counting() -> Iterator[list[Any]]:
    """The ConvergenceWarnings from inside, instead of printing them."""
    found: list[Any] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        yield found
    found += [w for w in caught if issubclass(w.category, ConvergenceWarning)]


def calibration_error(p: Array, y: NDArray[np.int64], bins: int = BINS) -> float:
    """Σ_b |right_b − confidence_b|/N, the sums over the samples of a bin of the largest probability."""
    confidence, right = p.max(1), p.argmax(1) == y
    where = np.minimum((confidence * bins).astype(int), bins - 1)
    gap = np.bincount(where, right - confidence, bins)
    return float(np.abs(gap).sum() / len(y))


def told_apart(ours: Array, theirs: Array, held_out_to_training: float) -> dict[str, Any]:
    """The corrected resampled t-test of Nadeau and Bengio (2003) on differences fold by fold.

    t = mean / √((1/n + n_test/n_train)·variance), n − 1 degrees of freedom: training sets overlap, so the plain 1/n
    would call too much significant.
    """
    d = np.asarray(ours) - np.asarray(theirs)
    n, mean = len(d), float(d.mean())
    error = float(np.sqrt((1 / n + held_out_to_training) * d.var(ddof=1)))
    bound = float(student.ppf(0.5 + CONFIDENCE / 2, n - 1))
    t = None if error < 1e-12 else mean / error  # every fold alike
    significant = abs(mean) > 1e-12 if t is None else abs(t) > bound
    verdict = ("helps" if mean > 0 else "hurts") if significant else "not told apart"
    return {"difference": mean, "t": t, "bound": bound, "verdict": verdict}


def cross_validate(model: Any, X: Array, y: NDArray[np.int64], splits: list[Any], folds: int) -> dict[str, Any]:
    """Accuracy, log-loss and calibration on what was held out, and the time of a fit.

    Calibration is of the held-out samples of a whole repeat, since a fold of thirty would fill no bins.
    """
    accuracies, losses, seconds, errors = [], [], [], []
    chosen: Counter[str] = Counter()
    probabilities = np.full((len(y), int(y.max()) + 1), np.nan)
    with counting() as complaints:
        for k, (training, held_out) in enumerate(splits, 1):
            fitted = clone(model)
            start = time.perf_counter()
            fitted.fit(X[training], y[training])
            seconds.append(time.perf_counter() - start)
            accuracies.append(float(np.mean(fitted.predict(X[held_out]) == y[held_out])))
            if hasattr(fitted, "best_params_"):
                best = {key.removeprefix("model__"): value for key, value in fitted.best_params_.items()}
                chosen[", ".join(f"{key} {_short(value)}" for key, value in best.items())] += 1
            m_chosen = getattr(getattr(fitted, "steps", [("", fitted)])[-1][1], "m_scores_", None)
            if m_chosen is not None:
                chosen[f"m {_short(fitted.steps[-1][1].m_)}"] += 1
            if hasattr(fitted, "predict_proba"):
                p = fitted.predict_proba(X[held_out])
                losses.append(float(log_loss(y[held_out], p, labels=fitted.classes_)))
                probabilities[held_out] = p
                if k % folds == 0:
                    errors.append(calibration_error(probabilities, y))
    found: dict[str, Any] = {
        "accuracy": float(np.mean(accuracies)),
        "spread": float(np.std(accuracies, ddof=1)) if len(accuracies) > 1 else None,
        "log_loss": float(np.mean(losses)) if losses else None,
        "calibration": float(np.mean(errors)) if errors else None,
        "fit_seconds": float(np.median(seconds)),
        "unfinished": len(complaints),
        "accuracies": accuracies,
    }
    return found | ({"chosen": dict(chosen.most_common())} if chosen else {})


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        return "(" + ", ".join(f"{v:g}" for v in value) + ")"
    return f"{value:g}" if isinstance(value, float) else str(value)


def verdicts(rows: dict[str, Any], kernel: str, held_out_to_training: float) -> list[dict[str, Any]]:
    """Every head with a margin against the same without one, and against scikit-learn's."""
    found = []
    for head, without in WITHOUT.items():
        for other in (without, RIVAL[kernel]):
            test = told_apart(rows[head]["accuracies"], rows[other]["accuracies"], held_out_to_training)
            found.append({"head": head, "against": other, **test})
    return found


def accuracy(plan: Plan, say: Say) -> dict[str, Any]:
    """Everybody at defaults."""
    margins = {head: MODEST[str(MarginSoftmaxClassifier.of(head).margin)] for head in WITHOUT}
    return _both_kernels(plan, plan.repeats, False, say) | {"margins": margins}


def search(plan: Plan, say: Say) -> dict[str, Any]:
    """Everybody with six settings, chosen by inner folds of the training part."""
    return _both_kernels(plan, plan.search_repeats, True, say)


def _both_kernels(plan: Plan, repeats: int, searched: bool, say: Say) -> dict[str, Any]:
    tables = []
    for kernel in KERNELS:
        for name in plan.data:
            if searched and kernel == "rbf" and name not in SEARCHED_KERNEL:
                continue
            X, y = plan.load(name)
            splits = plan.splits(X, y, repeats)
            rows: dict[str, Any] = {}
            for who, model in contenders(kernel).items():
                say(f"{'search' if searched else 'accuracy'}: {name}, {kernel}, {who}")
                whole = scaled(model)
                if searched:
                    whole = _searching(whole, settings(who, kernel, X.shape[1]), plan.inner_folds)
                rows[who] = cross_validate(whole, X, y, splits, plan.folds)
            ratio = float(np.mean([len(held_out) / len(training) for training, held_out in splits]))
            one = {"data": name, "kernel": kernel, "rows": rows, "verdicts": verdicts(rows, kernel, ratio)}
            tables.append(one)
    return {"folds": plan.folds, "repeats": repeats, "inner_folds": plan.inner_folds, "tables": tables}


def _searching(model: Any, wanted: list[dict[str, Any]], inner_folds: int) -> GridSearchCV:
    grid = [{f"model__{key}": [value] for key, value in setting.items()} for setting in wanted]
    folds = StratifiedKFold(inner_folds, shuffle=True, random_state=0)
    return GridSearchCV(model, grid, scoring="accuracy", cv=folds, error_score="raise")
