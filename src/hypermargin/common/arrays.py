"""Types of arrays by what is in them, and arrays of whatever holds numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]
Counts = NDArray[np.int64]
Floats = NDArray[np.float64]
Truth = NDArray[np.bool_]
Values = Tensor | Array


def to_numpy(values: Values) -> Array:
    """Return an array, a tensor or a list as a numpy array."""
    if not isinstance(values, Tensor):
        return np.asarray(values)
    known = values.float() if values.dtype == torch.bfloat16 else values  # numpy has no bfloat16
    return known.detach().cpu().numpy()
