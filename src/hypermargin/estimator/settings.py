"""What is fitted, from the estimator's parameters: the margin, the penalty, which magnitudes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

from hypermargin import checks, margins
from hypermargin.estimator.features import KERNELS
from hypermargin.estimator.solvers import Problem
from hypermargin.margins import Margin, NoMargin
from hypermargin.recipes import Recipe
from hypermargin.rules import SOFTMAX

# With features that cannot move, a margin moves the boundary alone; much of it costs accuracy (docs/shallow.md).
MODEST: dict[str, float | tuple[float, ...]] = {
    "adaptiveface": 0.2,
    "arcface": 0.2,
    "combined": (1.0, 0.1, 0.1),
    "cosface": 0.2,
    "dyn-arcface": 0.2,
    "elasticface-arc": 0.2,
    "elasticface-cos": 0.2,
    "expface": 0.9,
    "kappaface": 0.2,
    "magface": (0.2, 0.3),
    "piecewise": 1.2,
    "sphereface": 1.2,
}
APPROXIMATIONS = ("auto", "exact", "nystroem", "fourier", "import")
SOLVERS = ("auto", "lbfgs", "adam")
OUTPUTS = ("cosines", "features")


def margin_of(margin: str | Margin | None, m: float | Sequence[float] | None) -> Margin:
    """Return a margin by name, with a modest m, or as it is; `m` replaces its number or numbers.

    None is no margin, and ArcFace where an m is given.
    """
    if margin is None:
        margin = "none" if m is None else "arcface"
    if isinstance(margin, str):
        found: Margin = margins.get(margin)()
        m = MODEST.get(margin) if m is None else m
    else:
        checks.instance("margin", margin, Margin, '"arcface" or ArcFace(m=0.2)')
        found = margin
    if "finite slope" in found.breaks:
        raise ValueError(
            f"margin {found} counts a part of its loss as constant, so no fit is a minimum of it. It is for "
            "networks; take another here."
        )
    if m is None:
        return found
    own = found.m
    if own is None:  # as SVC does with a gamma that its kernel has no use for: one grid serves all
        return found
    names = found.m_names
    values = list(m) if isinstance(m, Sequence | np.ndarray) and not isinstance(m, str) else [m]
    if len(values) != len(names) or isinstance(m, str):
        allowed = "a number" if len(names) == 1 else f"{len(names)} numbers, {', '.join(names)},"
        raise ValueError(f'm must be {allowed} or "auto" for {type(found).__name__}; got {m!r}.')
    replaced: Margin = dataclasses.replace(found, **dict(zip(names, map(_plain, values), strict=True)))  # type: ignore[type-var]
    return replaced


def why_not(recipe: Recipe) -> str | None:
    """Say what of a head of the family this classifier has not; None where it has all."""
    if recipe.by_counts:
        return 'it goes by how frequent classes are. class_weight="balanced" evens them out here'
    if recipe.rule != SOFTMAX:
        return f"its rivals count by the rule {recipe.rule.name}, and here by softmax's alone"
    if recipe.centers.count > 1:
        return f"it has {recipe.centers.count} centers per class, and here a class has one vector"
    if type(recipe.margin).row_margin is not Margin.row_margin:
        return "its margin is one of each row, by the length of its feature or drawn, while a network learns"
    if recipe.learn_margin:
        return "its margins are learned, and here m is given"
    if not recipe.view.is_identity:
        return f"its class rows go through the view {recipe.view.name}, and here they are as they are"
    return None


def _plain(value: Any) -> Any:
    """Turn numpy's numbers into Python's."""
    return float(value) if isinstance(value, Real) and not isinstance(value, bool) else value


def problem_of(estimator: Any, classes: int, m: Any) -> Problem:
    """Return what to fit, from an estimator's parameters and the m that it is fitted with."""
    for name in ("unit_weight", "unit_features", "alternate", "fit_intercept", "early_stopping", "warm_start"):
        value = getattr(estimator, name)
        if value not in (True, False):
            raise ValueError(f"{name} must be True or False; got {value!r}.")
    margin = margin_of(estimator.margin, m)
    auto_scale, auto_alpha = is_auto(estimator.scale), is_auto(estimator.alpha)
    if not auto_scale:
        _number("scale", estimator.scale, 0.0, open_low=True, words=' or "auto"')
    if not auto_alpha:
        _number("alpha", estimator.alpha, 0.0, words=' or "auto"')
    if estimator.alternate and not auto_scale:
        raise ValueError(
            f'alternate=True fits the magnitudes, so it goes with scale="auto" only; got scale={estimator.scale!r}.'
        )
    in_turn = estimator.alternate or (estimator.unit_weight and auto_scale)
    unit_weight = bool(estimator.unit_weight or in_turn)
    plain = isinstance(margin, NoMargin) and not unit_weight and not estimator.unit_features
    # A penalty weighs against |x|²: LogisticRegression's 1 is for features of length √d. Unit ones have length 1,
    # and so have those of most kernels.
    short = estimator.unit_features or callable(estimator.kernel) or estimator.kernel != "linear"
    return Problem(
        margin=margin,
        alpha=(0.01 if short else 1.0) if auto_alpha else float(estimator.alpha),
        classes=classes,
        unit_weight=unit_weight,
        fitted=None if not in_turn else "one" if estimator.unit_weight else "each",
        scale=float(estimator.scale) if estimator.unit_weight and not auto_scale else None,
        bias=bool(estimator.fit_intercept and plain),
    )


def check_rest(estimator: Any) -> None:
    """Check the parameters that do not define the problem."""
    if not callable(estimator.kernel):
        checks.one_of("kernel", estimator.kernel, KERNELS)
    checks.one_of("approximation", estimator.approximation, APPROXIMATIONS)
    checks.one_of("solver", estimator.solver, SOLVERS)
    checks.one_of("transform_to", estimator.transform_to, OUTPUTS)
    if estimator.gamma not in ("scale", "auto"):
        _number("gamma", estimator.gamma, 0.0, open_low=True, words=', "scale" or "auto"')
    _number("degree", estimator.degree, 0.0, open_low=True)
    _number("coef0", estimator.coef0, -math.inf)
    _number("tol", estimator.tol, 0.0, open_low=True)
    _number("learning_rate", estimator.learning_rate, 0.0, open_low=True)
    if not is_auto(estimator.intercept_scaling):
        _number("intercept_scaling", estimator.intercept_scaling, 0.0, open_low=True, words=' or "auto"')
    _number("validation_fraction", estimator.validation_fraction, 0.0, 1.0, open_low=True)
    for name in ("max_iter", "batch_size", "n_iter_no_change", "n_components"):
        value = getattr(estimator, name)
        if name == "n_components" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise ValueError(f"{name} must be a whole number, at least 1; got {value!r}.")


def is_auto(value: Any) -> bool:
    """Tell whether a value is the word "auto"; an array is not compared with it."""
    return isinstance(value, str) and value == "auto"


def _number(
    name: str, value: Any, low: float, high: float = math.inf, *, open_low: bool = False, words: str = ""
) -> None:
    interval = f"{'(' if open_low or low == -math.inf else '['}{low:g}, {high:g})"
    good = isinstance(value, Real) and not isinstance(value, bool)
    if not (good and (low < value if open_low else low <= value) and value < high):
        raise ValueError(f"{name} must be a number in {interval}{words}; got {value!r}.")
