"""Train an embedding with any head of the family; the same as `hypermargin train`.

config = Config(data="glyphs", head="cosface", epochs=10)
result = train(config, "runs/first")
trained = hypermargin.load("runs/first")
"""

from hypermargin.training.checkpoint import CheckpointError
from hypermargin.training.config import Config
from hypermargin.training.job import Result, train
from hypermargin.training.loop import Interrupted
from hypermargin.training.models import create_model, list_models
from hypermargin.training.run import RunError, Trained, load
from hypermargin.training.watch import DivergedError

__all__ = [
    "CheckpointError", "Config", "DivergedError", "Interrupted", "Result", "RunError", "Trained",
    "create_model", "list_models", "load", "train",
]  # fmt: skip
