"""The protocol of backends, which do the N×C work, and the registry that finds one by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from hypermargin import checks
from hypermargin.centers import ONE, Centers
from hypermargin.layout import ClassTable, Layout
from hypermargin.numerics import wide_dtype
from hypermargin.rules import SOFTMAX, Rule, RuleAtRows

if TYPE_CHECKING:
    from hypermargin.batch import Batch

PLAIN = SOFTMAX.at()  # every rival counts as its plain logit


class Rivals(NamedTuple):
    """What a backend returns, for z_ij = ⟨f_i, w̃_j⟩ and a table of C·K rows.

    Rivals are counted in columns: the rows of the table, or with `table.centers.pooled` its classes, whose z is
    `centers.score` of those of their rows.
    """

    rows: Tensor  # (N, L·K, d)  w̃ of the labels; an arbitrary row where the label is not in the table
    rivals: Tensor  # (N,)  R: the rule's aggregate of ρ_ij + b_j over the columns that are not labels of i
    rival_sum: Tensor | None  # (N,)  the sum of the same z_ij + b_j, if asked for
    hardest: Tensor | None  # (N,)  their maximum, whatever the rule, detached, if asked for


class Seen(NamedTuple):
    """What `look` returns of each row of f = s·x̂, all (N,), NaN in rows that are not finite."""

    rivals: Tensor  # R
    product: Tensor  # ⟨f, ŵ_y⟩
    angle: Tensor  # between x and W_y
    length: Tensor  # |f|: s, 0 for zero rows
    norm: Tensor  # |x|


class Call(NamedTuple):
    """The sizes, device, dtype, rule and centers of a call, which a backend is chosen by before it is made."""

    rows: int
    classes: int  # rows of the table
    device: torch.device
    dtype: torch.dtype = torch.float32  # of the scaled features
    dim: int = 512
    rule: Rule = SOFTMAX
    centers: Centers = ONE

    @staticmethod
    def of(batch: Batch, weight: Tensor, layout: Layout, rule: Rule = SOFTMAX, centers: Centers = ONE) -> Call:
        """Return the description of the call on a batch; with several ranks, it is the same on each."""
        rows, dim = batch.features.shape
        classes = layout.busiest(weight.shape[0] // centers.count) * centers.count
        return Call(rows, classes, weight.device, wide_dtype(batch.features, weight), dim, rule, centers)


class Backend(Protocol):
    """An object with settings that does the N×C work, passed in or found by name.

    `testing.check_backend` compares any backend with the definition, which is `Dense` in float64. One autograd node
    (or plain autograd) owns the weight's gradient, the label rows' share included; dR/dz is exactly 0 at label
    columns; gradients have the dtypes of what they belong to.

    One that has `knows_pools = True` counts classes as rivals where `table.centers.pooled` says so; others are not
    asked to.

    For heads with two unit sides, one label per row and nothing else a backend may also have `whole_loss`, as dense
    and the fused one do, and `look(x, weight, labels, ignored, scale) -> Seen`, as the fused one does. `whole_loss`
    returns None for what it leaves to the long way; with `check` that is every value that has to be refused too.
    """

    def fitted(self, call: Call) -> Backend:
        """Return the backend for such a call, with all open settings chosen; raise ValueError if none can do it."""
        ...

    def __call__(
        self,
        f: Tensor,
        table: ClassTable,
        rule: RuleAtRows | None = None,
        *,
        rival_sum: bool = False,
        hardest: bool = False,
    ) -> Rivals:
        """Return the rivals of scaled features `f` (N, d); without a rule they count as their plain logits.

        The default is None because torch.compile cannot make an object that is a default.
        """
        ...

    def explain(self, call: Call) -> str:
        """Return a sentence or two on what a fitted backend does with such a call, and why."""
        ...


_REGISTRY: dict[str, Callable[[], Backend]] = {}


def register_backend(name: str, make: Callable[[], Backend]) -> None:
    """Register a backend under `name`, for every `backend=` and for the command line; `make()` returns one."""
    if not callable(make):
        raise TypeError(f"make must be a function that returns a backend, such as its class; got {make!r}.")
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"name must be a word such as 'mine'; got {name!r}.")
    known = _REGISTRY.get(name)
    if known is not None and getattr(known, "__qualname__", name) != getattr(make, "__qualname__", ""):
        raise ValueError(f"backend name {name!r} is taken; choose another.")
    _REGISTRY[name] = make


def backend_names() -> list[str]:
    """Return the names that `backend=` takes."""
    return list(_REGISTRY)


def fitted(backend: str | Backend, call: Call) -> Backend:
    """Return the backend of that name, or the object itself, fitted to a call; ValueError if it cannot do it."""
    found = find_backend(backend).fitted(call)
    if call.centers.pooled and not getattr(found, "knows_pools", False):
        raise ValueError(
            f'backend={found!r} counts every center of a class as a rival, and centers={call.centers}. Use "auto", '
            "or say knows_pools = True in your backend once it goes by table.centers."
        )
    return found


def find_backend(backend: str | Backend) -> Backend:
    """Return the backend of that name, or the object itself."""
    if isinstance(backend, str):
        if backend not in _REGISTRY:
            checks.one_of("backend", backend, backend_names())
        return _REGISTRY[backend]()
    whole = callable(backend) and hasattr(backend, "fitted") and hasattr(backend, "explain")
    if isinstance(backend, type) or not whole:
        raise TypeError(
            f"backend must be one of {', '.join(map(repr, backend_names()))} or an object with fitted, explain and "
            f"__call__ (see hypermargin.backends.Backend); got {backend!r}."
        )
    return backend
