"""The other parts of the benchmark of the estimator: angles and magnitudes, import vectors, time."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from threadpoolctl import threadpool_info, threadpool_limits

from benchmarks.measure import interleaved
from benchmarks.record import Say
from benchmarks.shallow_folds import Array, Plan, counting
from hypermargin.estimator import MarginSoftmaxClassifier

M = 0.2  # of ArcFace, radians
SCALE = 20.0
IMPORTED = ("digits", "breast-cancer")
TOLERANCES = (1e-4, 1e-6)
AIMS = {"none": 2.0, "arcface": 6.0}
BASELINE = "LogisticRegression"


def ways(unit_features: bool, features: int) -> dict[str, MarginSoftmaxClassifier]:
    """Which part of the class vectors is trained how."""
    # |x| is near √d where it counts; a given s is divided by that, so that the logits are as large as with |x| = 1.
    scale = SCALE if unit_features else SCALE / np.sqrt(features)
    free: dict[str, Any] = {"unit_weight": False, "unit_features": unit_features}
    return {
        "angle": MarginSoftmaxClassifier("arcface", m=M, scale=scale, unit_features=unit_features),
        "magnitude": MarginSoftmaxClassifier("none", **free),
        "both": MarginSoftmaxClassifier("arcface", m=M, **free),
        "alternated": MarginSoftmaxClassifier("arcface", m=M, alternate=True, **free),
    }


def angle(plan: Plan, say: Say) -> dict[str, Any]:
    """What each way does to angles, magnitudes, margin, accuracy."""
    tables = []
    for name in plan.data:
        X, y = plan.load(name)
        splits = plan.splits(X, y)
        for unit_features in (True, False):
            rows = {}
            for way, model in ways(unit_features, X.shape[1]).items():
                say(f"angle: {name}, {'unit' if unit_features else 'free'} features, {way}")
                with counting() as complaints:
                    folds = [_geometry(model, X, y, *split) for split in splits]
                rows[way] = {key: float(np.mean([fold[key] for fold in folds])) for key in folds[0]}
                rows[way]["unfinished"] = len(complaints)
            tables.append({"data": name, "unit_features": unit_features, "rows": rows})
    return {"folds": plan.folds, "repeats": plan.repeats, "m": M, "scale": SCALE, "tables": tables}


def _geometry(model: MarginSoftmaxClassifier, X: Array, y: Any, training: Any, held_out: Any) -> dict[str, float]:
    """One fit, looked at; angles in degrees."""
    scaler = StandardScaler().fit(X[training])
    seen, new = scaler.transform(X[training]), scaler.transform(X[held_out])
    model = model.set_params(transform_to="cosines").fit(seen, y[training])
    own, other = _own_and_nearest_other(model.transform(new), y[held_out])
    own_seen, other_seen = _own_and_nearest_other(model.transform(seen), y[training])
    between = _angles_between(model.class_vectors_)
    # The model's own unit features, less the constant, which only some have.
    directions = _unit(model.set_params(transform_to="features").transform(seen)[:, : X.shape[1]])
    means = np.array([directions[y[training] == label].mean(0) for label in model.classes_])
    to_mean = np.degrees(_arccos((directions * _unit(means)[y[training]]).sum(1)))
    return {
        "intra": float(np.degrees(own).mean()),
        "inter": float(between.mean()),
        "inter_least": float(between.min()),
        "magnitude": float(model.magnitudes_.mean()),
        "magnitude_spread": float(model.magnitudes_.std()),
        "margin": float(np.degrees(other - own).mean()),
        "margin_met": float(np.mean(own_seen + M <= other_seen)),
        "accuracy": float(model.score(new, y[held_out])),
        "log_loss": float(log_loss(y[held_out], model.predict_proba(new), labels=model.classes_)),
        "means_apart": float(_angles_between(means).mean()),
        "to_own_mean": float(to_mean.mean()),
    }


def _own_and_nearest_other(cosines: Array, y: Any) -> tuple[Array, Array]:
    theta = _arccos(cosines)
    rows = np.arange(len(y))
    own = theta[rows, y].copy()
    theta[rows, y] = np.inf
    return own, theta.min(1)


def _angles_between(vectors: Array) -> Array:
    """Degrees, of every pair of rows."""
    directions = _unit(vectors)
    first, second = np.triu_indices(len(directions), 1)
    return np.asarray(np.degrees(_arccos((directions[first] * directions[second]).sum(1))))


def _arccos(cosines: Array) -> Array:
    return np.asarray(np.arccos(np.clip(cosines, -1.0, 1.0)))


def _unit(rows: Array) -> Array:
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300))


def importing(plan: Plan, say: Say) -> dict[str, Any]:
    """Import vectors beside as many random landmarks, all of them, and SVC."""
    tables = []
    for name in (name for name in IMPORTED if name in plan.data):
        X, y = plan.load(name)
        splits = plan.splits(X, y, 1)
        say(f"import: {name}, SVC")
        rows = [{"model": "SVC", "how": "", **_fits([SVC()], X, y, splits)}]
        for head in ("arcface", "normface"):
            sizes = [(how, size) for size in plan.sizes for how in ("import", "nystroem")]
            for how, size in [*sizes, ("exact", None)]:
                say(f"import: {name}, {head}, {how}" + (f" {size}" if size else ""))
                settings: dict[str, Any] = {"kernel": "rbf", "approximation": how, "n_components": size}
                states = range(plan.states if how == "nystroem" else 1)
                models = [MarginSoftmaxClassifier.of(head, random_state=state, **settings) for state in states]
                rows.append({"model": head, "how": how, **_fits(models, X, y, splits)})
        tables.append({"data": name, "rows": rows})
    return {"folds": plan.folds, "states": plan.states, "tables": tables}


def _fits(models: list[Any], X: Array, y: Any, splits: list[Any]) -> dict[str, Any]:
    """Means over folds, of times the medians; prediction is timed by the best of three."""
    accuracy, loss, points, fit, predict = [], [], [], [], []
    with counting() as complaints:
        for training, held_out in splits:
            scaler = StandardScaler().fit(X[training])
            seen, new = scaler.transform(X[training]), scaler.transform(X[held_out])
            for model in models:
                start = time.perf_counter()
                model.fit(seen, y[training])
                fit.append(time.perf_counter() - start)
                predict.append(_best_of_three(model, new) / len(new))
                accuracy.append(float(model.score(new, y[held_out])))
                points.append(len(model.support_) if hasattr(model, "support_") else model.n_components)
                if hasattr(model, "predict_proba"):
                    loss.append(float(log_loss(y[held_out], model.predict_proba(new), labels=model.classes_)))
    return {
        "points": float(np.mean(points)),
        "accuracy": float(np.mean(accuracy)),
        "log_loss": float(np.mean(loss)) if loss else None,
        "fit_seconds": float(np.median(fit)),
        "predict_seconds": float(np.median(predict)),
        "unfinished": len(complaints),
    }


def _best_of_three(model: Any, samples: Array) -> float:
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        model.predict(samples)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def timed(tol: float) -> dict[str, Any]:
    """What is timed, and by which aim; the first is what the others are divided by."""
    ours: dict[str, Any] = {"tol": tol, "max_iter": 10_000}
    plain: dict[str, Any] = {"unit_weight": False, "unit_features": False}
    return {
        BASELINE: LogisticRegression(tol=tol, max_iter=10_000),
        "none, free weights and features": MarginSoftmaxClassifier("none", **plain, **ours),
        "no margin, s fitted (the default)": MarginSoftmaxClassifier(**ours),
        "arcface, s fitted": MarginSoftmaxClassifier("arcface", **ours),
        "arcface, s = 20": MarginSoftmaxClassifier("arcface", scale=SCALE, **ours),
        "arcface, free weights": MarginSoftmaxClassifier("arcface", unit_weight=False, **ours),
    }


def fit_time(plan: Plan, say: Say) -> dict[str, Any]:
    """Fits on all of standardised digits at equal tolerance, with the threads as they are and with one."""
    X, y = plan.load("digits")
    X = StandardScaler().fit_transform(X)
    tables = []
    for threads in ("default", "one"):
        for tol in TOLERANCES:
            say(f"time: BLAS threads {threads}, tol {tol:g}, {plan.rounds} interleaved rounds")
            models = timed(tol)
            with threadpool_limits(1) if threads == "one" else nullcontext(), counting() as complaints:
                pools = sorted(f"{pool['internal_api']} {pool['num_threads']}" for pool in threadpool_info())
                seconds = interleaved({name: _fitting(m, X, y) for name, m in models.items()}, plan.rounds, "cpu")
            best = {name: min(times) for name, times in seconds.items()}
            rows = [
                {
                    "name": name,
                    "seconds": best[name],
                    "ratio": best[name] / best[BASELINE],
                    "aim": AIMS.get(name.split(",")[0]),
                    "iterations": int(np.max(models[name].n_iter_)),
                }
                for name in models
            ]
            one = {"threads": threads, "pools": pools, "tol": tol, "rows": rows, "unfinished": len(complaints)}
            tables.append(one)
    return {"rounds": plan.rounds, "samples": len(y), "features": X.shape[1], "tables": tables}


def _fitting(model: Any, X: Array, y: Any) -> Callable[[], None]:
    def fit() -> None:
        model.fit(X, y)

    return fit
