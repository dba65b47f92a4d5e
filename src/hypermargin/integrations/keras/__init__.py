"""Softmax with a margin for Keras 3, on the JAX, TensorFlow and PyTorch backends. No label is needed at prediction.

The short way is two lines of an ordinary model: a last layer that returns cosines, and the loss.

    model = keras.Sequential([..., CosineDense(10)])
    model.compile("adam", loss=MarginLoss("arcface", m=0.3, scale=16.0), metrics=["accuracy"])

`MarginModel(backbone, MarginHead(10, "a-softmax"))` has all of the classic family: heads that do not normalise, a
learned scale, schedules of λ, s and m, and blocks for many classes.

PyTorch is imported on its own backend alone. Needs `pip install keras`.
"""

from hypermargin.integrations import missing

try:
    import keras  # noqa: F401
except ModuleNotFoundError as error:
    raise missing(error, "keras", "keras") from None

from hypermargin.integrations.keras.head import MarginHead
from hypermargin.integrations.keras.loss import CosineDense, MarginLoss
from hypermargin.integrations.keras.model import MarginModel
from hypermargin.integrations.keras.schedules import LambdaAnnealing, MarginWarmup

__all__ = ["CosineDense", "LambdaAnnealing", "MarginHead", "MarginLoss", "MarginModel", "MarginWarmup"]
