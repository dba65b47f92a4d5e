"""Where samples stand to their class and to the others, in as many numbers as a page can move at once.

With own and rivals' cosines c_j, a page that drags s needs R(s) = log Σ_j exp(s·c_j) of every sample. That is C
numbers per sample; R(s)/s at fifteen s is enough, since it is a smooth function of log s.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hypermargin.common.arrays import Array, Counts, Floats

NODES = tuple(2.0 ** (k / 2) for k in range(15))  # s from 1 to 128
MOST = 2000  # samples
WORK = 4e9  # multiplications
BLOCK = 2**22  # cosines at a time


@dataclass(frozen=True, eq=False)
class Cloud:
    """N samples: the cosine to their class, the highest to another, R(s)/s at the nodes, and their rows."""

    own: Floats
    rival: Floats
    rest: Floats  # (N, 15)
    rows: Counts
    of: int  # samples that they were drawn from
    classes: int
    against: str  # "weight", the head's class vectors, or "means", of the classes' own samples

    def as_plain(self) -> dict[str, Any]:
        """Return it for JSON; arrays are float32 in base64, little-endian."""
        return {
            "own": packed(self.own), "rival": packed(self.rival), "rest": packed(self.rest),
            "rows": self.rows.tolist(), "of": self.of, "classes": self.classes, "against": self.against,
        }  # fmt: skip


def packed(values: Array) -> str:
    """Return an array as float32 in base64."""
    return base64.b64encode(np.ascontiguousarray(values, dtype="<f4").tobytes()).decode()


@torch.no_grad()
def cloud(x: Tensor, y: Tensor, weight: Tensor, against: str, most: int = MOST) -> Cloud:
    """Measure unit features (N, d) with labels (N,), rows of the unit class vectors (C, d).

    Of many samples `most` are drawn, and fewer of very many classes.
    """
    N, C, d = len(x), len(weight), x.shape[1]
    most = min(N, most, max(64, int(WORK / (C * (d + 60)))))
    rows = np.sort(np.random.default_rng(0).permutation(N)[:most])
    at = torch.from_numpy(rows).to(x.device)
    own, rival, rest = [], [], []
    for part in torch.split(at, max(1, BLOCK // C)):
        cosine = (x[part].float() @ weight.T.float()).clamp(-1, 1)
        label = y[part, None]
        own.append(cosine.gather(1, label)[:, 0])
        cosine = cosine.scatter(1, label, -torch.inf)
        rival.append(cosine.amax(1))
        rest.append(torch.stack([(s * cosine).logsumexp(1) / s for s in NODES], 1))
    one, two, three = (torch.cat(values).double().cpu().numpy() for values in (own, rival, rest))
    return Cloud(one, two, three, rows, N, C, against)
