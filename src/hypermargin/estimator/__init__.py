"""Softmax with a margin as a shallow classifier, in scikit-learn's manner, linear or with a kernel.

`classifier.py` is what a user sees, `inputs.py` and `settings.py` what came in; `objective.py` is the loss,
`choosing.py` how large the margin is to be if the data shall say, `linear_form.py` what other tools read;
`solvers.py` how it is minimised, `space.py` and `features.py` what of X the model sees, `importing.py` how a model
with a kernel is kept small.
"""

from hypermargin.common.needs import not_installed

try:
    import sklearn  # noqa: F401
except ModuleNotFoundError as error:
    told = not_installed("MarginSoftmaxClassifier needs", "scikit-learn")
    raise ModuleNotFoundError(told, name="sklearn") from error

from hypermargin.estimator.classifier import MarginSoftmaxClassifier

__all__ = ["MarginSoftmaxClassifier"]
