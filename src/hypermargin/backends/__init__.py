"""Backends: the only code that does N×C work, the products with every class and the sums over the rivals.

A backend knows nothing of margins. `Dense` is the definition that every other backend is compared with, `Chunked`
never holds the N×C matrix, `Triton` uses fused kernels, "auto" chooses among them. `register_backend` adds yours.
"""

from hypermargin.backends.auto import Auto, explain_backend
from hypermargin.backends.base import (
    PLAIN,
    Backend,
    Call,
    Rivals,
    backend_names,
    find_backend,
    fitted,
    register_backend,
)
from hypermargin.backends.chunked import Chunked
from hypermargin.backends.dense import Dense
from hypermargin.backends.fused import Triton

__all__ = [
    "PLAIN",
    "Auto",
    "Backend",
    "Call",
    "Chunked",
    "Dense",
    "Rivals",
    "Triton",
    "backend_names",
    "explain_backend",
    "find_backend",
    "fitted",
    "register_backend",
]

register_backend("auto", Auto)
register_backend("dense", Dense)
register_backend("chunked", Chunked)
register_backend("triton", Triton)
