"""Use a trained network: export it as one file, embed images with it, ask it whether two images match.

export("runs/first", "first.onnx")                       raw samples in, unit embeddings out; no hypermargin needed
embed(open_model("runs/first"), "photos/").save("photos.npz")
verify(open_model("first.onnx"), ["a.jpg", "b.jpg"], far=1e-3)
"""

from hypermargin.deploy.embedding import Embeddings, embed
from hypermargin.deploy.formats import Exported, export
from hypermargin.deploy.graph import ExportError
from hypermargin.deploy.matching import Match, Verdict, verify
from hypermargin.deploy.model import Model, open_model

__all__ = [
    "Embeddings", "ExportError", "Exported", "Match", "Model", "Verdict",
    "embed", "export", "open_model", "verify",
]  # fmt: skip
