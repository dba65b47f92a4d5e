"""Compare the answers of an exported graph with the library's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hypermargin.common.arrays import Array
from hypermargin.common.text import first_line
from hypermargin.deploy.graph import ExportError
from hypermargin.training.run import Trained

CLOSE = {"float32": 1e-5, "float16": 1e-3}
Answers = Callable[[Tensor], dict[str, Array]]


def examples(about: dict[str, Any], rows: int) -> Tensor:
    """Draw random raw samples of the shape and type that a description names."""
    takes, random = about["input"], torch.Generator().manual_seed(rows)
    shape = (rows, *takes["shape"][1:])
    if takes["dtype"] == "uint8":
        return torch.randint(0, 256, shape, dtype=torch.uint8, generator=random)
    scaling = takes["scaling"]
    return torch.randn(shape, generator=random) * float(scaling["std"]) + float(scaling["mean"])


def differences(answers: Answers, trained: Trained, about: dict[str, Any]) -> dict[str, float]:
    """Return the largest differences of the file's answers from the library's, for batches of one and of three."""
    largest = dict.fromkeys(about["outputs"], 0.0)
    allowed = {name: CLOSE[output["dtype"]] for name, output in about["outputs"].items()}
    for rows in (1, 3):
        samples = examples(about, rows)
        features = trained.features(samples)
        logits = trained.head.logits(features).detach()
        # Rounding a logit by its last digit moves a probability by as much; a norm is as exact as it is large.
        scale = {"embedding": 1.0, "norm": 1 + float(features.norm(dim=1).max()), "probability": 1.0}
        scale["probability"] += float(logits.abs().max())
        expected = {
            "embedding": nn.functional.normalize(features),
            "norm": features.norm(dim=1),
            "probability": logits.softmax(1),
        }
        try:
            found = answers(samples)
        except Exception as error:  # a runtime's own kinds
            raise ExportError(
                f"the exported graph fails at a batch of {rows}, so the network fixes the size of the batch: "
                f"{first_line(error)} The file was not kept."
            ) from error
        for name in largest:
            wanted = expected[name].numpy()
            if found[name].shape != wanted.shape:
                raise ExportError(
                    f"the exported graph gives {name} of shape {found[name].shape} for a batch of {rows}, not "
                    f"{wanted.shape}. The file was not kept."
                )
            gap = float(np.abs(found[name].astype(np.float64) - wanted).max()) / scale[name]
            if not gap <= allowed[name]:  # NaN too
                raise ExportError(
                    f"the exported graph gives another {name} than torch: they differ by {gap:.2g}, where "
                    f"{allowed[name]:g} is allowed. The file was not kept."
                )
            largest[name] = max(largest[name], gap)
    return largest
