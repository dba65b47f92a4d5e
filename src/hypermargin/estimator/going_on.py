"""Fits that go on with the model there is: partial_fit, and fit with warm_start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypermargin.estimator.features import Plain
from hypermargin.estimator.settings import is_auto
from hypermargin.estimator.solvers import Problem, State, unit
from hypermargin.estimator.space import Space, uses_kernel

if TYPE_CHECKING:
    from hypermargin.estimator.classifier import MarginSoftmaxClassifier


def may_come_in_parts(estimator: Any) -> bool:
    """Tell whether there is a partial_fit: not with a kernel that is made of all samples."""
    if is_auto(estimator.m):
        raise AttributeError(
            'partial_fit cannot choose m="auto", for which all samples are needed. Give a number; after fit, m_.'
        )
    if uses_kernel(estimator) and (
        estimator.approximation in ("exact", "import") or estimator.kernel == "precomputed"
    ):
        raise AttributeError(
            "partial_fit cannot use what is made of all samples, a precomputed kernel or approximation="
            f'{estimator.approximation!r}. Take approximation="fourier" or "nystroem".'
        )
    return True


def continued(model: MarginSoftmaxClassifier, space: Space, fresh: State) -> State:
    """Put the last fit's class vectors in place of fresh ones, where they are of the same features."""
    before = model._state()
    plain = isinstance(model._space.features, Plain) and isinstance(space.features, Plain)
    if not plain or before.W.shape != fresh.W.shape or (model._space.constant > 0) != (space.constant > 0):
        return fresh
    if fresh.r is None:  # free class vectors, from whatever they were
        return State(before.logit_weight.copy(), fresh.b if before.b is None else before.b, None)
    fitted = before.r is not None and is_auto(model.scale)
    return State(unit(before.W), fresh.b, before.r if fitted else fresh.r)


def check_unchanged(model: MarginSoftmaxClassifier, was: Problem, problem: Problem) -> None:
    """Check that features and parts are the same: partial_fit can go on with another margin, alpha or rate."""
    kernel = not isinstance(model._space.features, Plain)
    now = (
        problem.unit_weight,
        problem.fitted,
        problem.scale,
        problem.bias,
        uses_kernel(model),
        model.unit_features,
    )
    if now != (was.unit_weight, was.fitted, was.scale, was.bias, kernel, model._space.unit):
        raise ValueError(
            "partial_fit goes on with the model there is, so unit_weight, unit_features, alternate, scale, "
            "fit_intercept and kernel must stay (and margin, between none and others, where lengths are free). "
            "Clone the estimator to begin anew."
        )
