"""Softmax with a margin as a shallow classifier, in scikit-learn's manner, linear or with a kernel.

`classifier.py` is what a user sees, `inputs.py` and `settings.py` what came in; `objective.py` is the loss,
`choosing.py` how large the margin is to be if the data shall say, `linear_form.py` what other tools read;
`solvers.py` how it is minimised, `space.py` and `features.py` what of X the model sees, `importing.py` how a model
with a kernel is kept small.
"""

try:
    import sklearn  # noqa: F401
except ImportError as error:
    raise ImportError(
        "MarginSoftmaxClassifier needs scikit-learn, which is not installed. Run: pip install 'hypermargin[learn]'"
    ) from error

from hypermargin.estimator.classifier import MarginSoftmaxClassifier

__all__ = ["MarginSoftmaxClassifier"]
