"""Who does the N×C work, the only code that does: products against every class, and what the rivals add up to.

It knows nothing of margins. `Dense` is the definition that every other backend is measured against, `Chunked`
never holds the N×C matrix, `Triton` does it in fused kernels, "auto" chooses. `register_backend` adds yours.
"""

from hypermargin.backends.auto import Auto, explain_backend
from hypermargin.backends.base import (
    PLAIN,
    Backend,
    Call,
    Rivals,
    backend_names,
    find_backend,
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
    "register_backend",
]

register_backend("auto", Auto)
register_backend("dense", Dense)
register_backend("chunked", Chunked)
register_backend("triton", Triton)
