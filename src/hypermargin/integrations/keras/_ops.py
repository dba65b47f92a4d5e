"""keras.ops for `_formula`, with float64 kept."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace

import keras

# Keras computes these in float32 on JAX or PyTorch, given float64 too, so there the backend's own are taken.
_NARROWED = ("arccos", "arctan2", "cos", "floor", "logaddexp", "matmul", "sin")
_BACKENDS = {"jax": "jax.numpy", "torch": "torch"}

OPS = SimpleNamespace(**vars(keras.ops))
if keras.backend.backend() in _BACKENDS:
    _own = import_module(_BACKENDS[keras.backend.backend()])
    for _name in _NARROWED:
        setattr(OPS, _name, getattr(_own, _name))
