"""The weights by feature of a fitted model, as other tools read them: only where they are the truth."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from hypermargin.estimator.features import Plain
from hypermargin.estimator.objective import Array
from hypermargin.estimator.solvers import State
from hypermargin.estimator.space import Space


class LinearForm:
    """Adds coef_ and intercept_ where the logits are linear in X, and what takes their place where they are not.

    A tool that finds coef_ and intercept_ (shap.LinearExplainer, say) believes that decision_function is
    X·coef_ᵀ + intercept_. With unit features that is divided by the length of each sample, which no such tool
    knows; so there they are not, and boundary_coef_ and boundary_intercept_ hold the same under a name that
    promises less.
    """

    _space: Space

    def _state(self) -> State:
        raise NotImplementedError

    @property
    def boundary_coef_(self) -> Array:
        """The weights before division by the length of a sample; their sign, or largest, is the decision."""
        weight, _ = self._linear_form("boundary_coef_")
        return of_difference(weight)

    @property
    def boundary_intercept_(self) -> Array:
        """What the constant or the bias adds, before that division; of a kernel beside dual_coef_."""
        check_is_fitted(self)
        _, intercept = self._space.linear_form(self._state())
        return of_difference(intercept)

    @property
    def coef_(self) -> Array:
        """The weights: decision_function is X·coef_ᵀ + intercept_."""
        self._check_linear("coef_")
        return self.boundary_coef_

    @property
    def intercept_(self) -> Array:
        """The intercepts: decision_function is X·coef_ᵀ + intercept_."""
        self._check_linear("intercept_")
        return self.boundary_intercept_

    @property
    def feature_importances_(self) -> Array:
        """How much the classes' weights of a feature differ, the root mean square; SelectFromModel and RFE read it.

        What all classes share moves no decision.
        """
        weight, _ = self._linear_form("feature_importances_")
        return np.asarray(weight.std(0))

    def _linear_form(self, name: str) -> tuple[Array, Array]:
        check_is_fitted(self)
        if not isinstance(self._space.features, Plain):
            raise AttributeError(
                f"{name}: with a kernel the model has no weights by feature. Those of the landmarks are dual_coef_ "
                '(approximation="exact" or "import"); for importances take '
                "sklearn.inspection.permutation_importance."
            )
        return self._space.linear_form(self._state())

    def _check_linear(self, name: str) -> None:
        self._linear_form(name)
        if self._space.unit:
            raise AttributeError(
                f"{name}: with unit_features=True decision_function is not linear in X: it is divided by the "
                "length of each sample, so tools that read coef_ and intercept_ would be wrong. boundary_coef_ and "
                "boundary_intercept_ are what is divided; unit_features=False gives a model that is linear."
            )


def of_difference(by_class: Any) -> Array:
    """Return what belongs to each class; for two classes the second's less the first's, as scikit-learn has it."""
    return np.asarray(by_class[1:] - by_class[:1] if len(by_class) == 2 else by_class)
