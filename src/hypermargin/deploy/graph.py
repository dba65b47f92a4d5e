"""The graph that is exported: raw samples in, everything between them and the embedding inside."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hypermargin.common.text import first_line
from hypermargin.numerics import polar, unit
from hypermargin.training.run import Trained


class ExportError(ValueError):
    """A network that cannot be exported as asked; the message says why and what to do."""


class Whole(nn.Module):
    """Scaling, network and normalisation in one, from samples as the training data were.

    embedding    x/|x|, x the network's feature; 0 for x = 0
    norm         |x|
    probability  softmax(s·⟨x̂ or x, Ŵ or W⟩ + b), without any margin; only if `with_head`
    """

    weight: Tensor | None
    bias: Tensor | None

    def __init__(self, trained: Trained, *, with_head: bool = False, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.network, self.scaling, self.dtype = trained.network, trained.about.scaling, dtype
        self.register_buffer("weight", None)
        self.register_buffer("bias", None)
        if with_head:
            head = trained.head
            weight = head.weight.detach().float()
            # W/|W| and s are settled here, so that neither costs anything later.
            self.weight = unit(weight) if head.settings.unit_weight else weight
            self.centers = head.settings.centers
            self.bias = None
            if head.bias is not None:  # one per row, of one per class or one for all
                self.bias = head.bias.detach().float().expand(head.classes).repeat_interleave(self.centers.count)
            self.scale, self.unit_features = float(head.current_scale().detach()), head.settings.unit_features

    def forward(self, samples: Tensor) -> dict[str, Tensor]:
        """Compute the outputs of samples (N, H, W), (N, H, W, 3) or (N, d)."""
        x = self.network(self.scaling(samples)).float()
        direction, length = polar(x)
        found = {"embedding": direction.to(self.dtype), "norm": length.squeeze(1)}
        if self.weight is not None:
            f = direction if self.unit_features else x
            f = self.scale * f
            z = F.linear(f, self.weight, self.bias)
            if self.centers.soft:
                z = self._of_classes(f, F.linear(f, self.weight))
            elif self.centers.count > 1:  # a class is as near as its nearest center
                z = self.centers.by_class(z).amax(-1)
            found["probability"] = z.softmax(-1)
        return found

    def _of_classes(self, f: Tensor, z: Tensor) -> Tensor:
        """Compute the logits of classes whose centers all have a part in them."""
        found = self.centers.score(self.centers.by_class(z), polar(f)[1])
        return found if self.bias is None else found + self.bias[:: self.centers.count]


def trace(whole: Whole, samples: Tensor) -> torch.export.ExportedProgram:
    """Trace the graph for a batch of any size; `samples` are an example of one."""
    batch = torch.export.Dim("N", min=1)
    try:
        with torch.no_grad(), quiet():
            program = torch.export.export(whole, (samples,), dynamic_shapes=({0: batch},), strict=False)
    except Exception as error:  # torch.export has many kinds, most of them private
        raise ExportError(
            "network cannot be traced for a batch of any size: it fixes the size N of the batch, or decides by the "
            f"values of its input. torch.export says: {first_line(error)}"
        ) from error
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                node.meta.pop("stack_trace", None)  # names files of this machine
    return program


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporter's warnings and log, which are about torch and not about the network."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
