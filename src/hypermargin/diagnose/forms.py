"""How a criterion is called, found out by calling it on small inputs."""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hypermargin import checks
from hypermargin.common.text import first_line
from hypermargin.diagnose.criterion import FORMS, SAID, STYLES, Criterion, Weight, row_loss
from hypermargin.diagnose.state import Kept, random_left_alone
from hypermargin.numerics import unit

CLASSES, DIM, ROWS = 7, 16, 3  # all different, so that shapes tell which is which
MOST_TRIED = 6  # classes
DIM_NAMES = (
    "dim", "in_features", "embedding_size", "embedding_dim", "embed_dim", "emb_dim", "feature_dim", "feat_dim",
    "in_feats", "in_channels", "input_size", "nOut", "inner_dim", "feats_dim",
)  # fmt: skip
CLASS_NAMES = (
    "classes", "num_classes", "out_features", "n_classes", "classnum", "class_num", "num_class", "nClasses",
    "num_outputs", "out_neurons", "n_class", "num_targets",
)  # fmt: skip


class NotUnderstood(ValueError):  # noqa: N818  it says what the criterion is: not understood
    """A criterion could not be called in any known way. The message lists what was tried."""


def find_criterion(
    call: Callable[..., Any], *, form: str | None = None, dim: int | None = None, classes: int | None = None
) -> Criterion:
    """Find out how to call a criterion: with features, cosines, or features and weight; labels; and its dtype."""
    if not callable(call):
        raise TypeError(f"criterion must be a module or a function; got {checks.shown(call)}.")
    if form is not None:
        checks.one_of("form", form, FORMS)
    with contextlib.suppress(Exception):  # some hold what cannot be copied; state is put back anyway
        call = copy.deepcopy(call)  # the original keeps its weight and its state
    tried: list[tuple[str, str]] = []  # how it was called, and why not
    backwards: Criterion | None = None
    with random_left_alone():
        for candidate in _candidates(call, form, dim, classes):
            for dtype in (torch.float64, torch.float32):
                found = _tried(candidate, dtype, tried)
                if found is not None and not found.backwards:
                    return without_bias(found)
                backwards = backwards or found
    if backwards is not None:
        return without_bias(backwards)
    raise NotUnderstood(_complaint(form, tried, call))


def without_bias(criterion: Criterion) -> Criterion:
    """Set a bias by class to 0, so that angles alone are measured; `bias` names it."""
    module = criterion.module
    for name, tensor in module.named_parameters() if module is not None else ():
        if name.split(".")[-1] in ("bias", "b") and tensor.numel() in (1, criterion.classes):
            with torch.no_grad():
                tensor.zero_()
            return replace(criterion, bias=name, kept=Kept(module))
    return criterion


def build(factory: Callable[..., Any], *, dim: int, classes: int, settings: dict[str, Any]) -> Callable[..., Any]:
    """Make a criterion of a class or factory: `settings` by name, and its dimension and number of classes if asked.

    A function that takes a batch is a criterion already, and is returned as it is.
    """
    if isinstance(factory, nn.Module):
        return factory
    parameters = _parameters(factory)
    free = [name for name, each in parameters.items() if each.default is each.empty and each.kind < 2]
    given = dict(settings)
    for names, size in ((DIM_NAMES, dim), (CLASS_NAMES, classes)):
        given |= {name: size for name in names if name in parameters and name not in settings}
    any_name = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    for name in settings:
        if name not in parameters and not any_name:
            raise ValueError(
                f"set: {getattr(factory, '__name__', factory)} takes no {name!r}; it takes "
                f"{', '.join(parameters) or 'nothing'}.{checks.near(name, list(parameters))}"
            )
    missing = [name for name in free if name not in given]
    if not inspect.isclass(factory) and missing:
        if settings and len(missing) < 2:
            raise ValueError(f"set: {', '.join(missing)} of the factory must be given, like --set {missing[0]}=8.")
        return factory  # it wants features and labels
    if missing:
        raise ValueError(
            f"set: {factory.__name__} needs {', '.join(missing)}. Give them, like --set {missing[0]}=8; its "
            "dimension and number of classes are found by the usual names."
        )
    made = factory(**given)
    if not callable(made):
        raise TypeError(f"the factory must return something to call; got {type(made).__name__}.")
    return made  # type: ignore[no-any-return]  # callable was checked


def has_classes(factory: Callable[..., Any]) -> bool:
    """Tell whether a class or factory is made with a number of classes, under one of the usual names."""
    return not isinstance(factory, nn.Module) and any(name in _parameters(factory) for name in CLASS_NAMES)


def _parameters(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a class or function; of a class that passes **kwargs on, those of its bases too."""
    makers = [each.__init__ for each in factory.__mro__] if inspect.isclass(factory) else [factory]  # type: ignore[misc]
    found: dict[str, inspect.Parameter] = {}
    for maker in makers:
        try:
            own = inspect.signature(maker).parameters
        except (TypeError, ValueError):
            break  # some built-in classes have none to read
        found |= {name: each for name, each in own.items() if name not in found and name != "self"}
        if not any(each.kind is each.VAR_KEYWORD for each in own.values()):
            break
    return found


def _candidates(
    call: Callable[..., Any], form: str | None, dim: int | None, classes: int | None
) -> Iterator[Criterion]:
    """Yield ways to call it, the likely ones first; at last with the labels first."""
    silenced = _without_dropout(call)
    own = {"kept": Kept(call), "dtype": torch.float64, "silenced": silenced}
    found: list[Criterion] = []
    for kind in [form] if form else _likely(call):
        if kind in ("features", "norms"):
            for weight, rows, d in _weights(call, dim, classes):
                found.append(Criterion(call, kind, rows // weight.centers, d, weight=weight, **own))  # type: ignore[arg-type]
        else:
            number = classes or _attribute(call, CLASS_NAMES) or CLASSES
            found.append(Criterion(call, str(kind), number, dim or DIM, **own))  # type: ignore[arg-type]
    yield from found
    for each in found:
        if each.form in ("features", "cosines"):
            yield replace(each, labels_first=True)


def _without_dropout(call: Callable[..., Any]) -> tuple[str, ...]:
    """Switch dropout layers off, whose noise is no margin; return their names."""
    layers = [
        (name, each)
        for name, each in (call.named_modules() if isinstance(call, nn.Module) else ())
        if isinstance(each, nn.modules.dropout._DropoutNd) and each.p > 0
    ]
    for _, each in layers:
        each.p = 0.0
    return tuple(name for name, _ in layers)


def _likely(call: Callable[..., Any]) -> tuple[str, ...]:
    module = isinstance(call, nn.Module)
    try:
        parameters = inspect.signature(call.forward if module else call).parameters.values()  # type: ignore[attr-defined]
        needed = sum(each.default is each.empty and each.kind < 2 for each in parameters)
    except (TypeError, ValueError):
        needed = 2
    if module and any(_matrices(call)):  # type: ignore[arg-type]  # it is one
        return ("norms", "weights") if needed >= 3 else ("features", "cosines", "weights", "norms")
    return ("weights", "cosines") if needed >= 3 else ("cosines", "weights")


def _matrices(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if tensor.dim() == 2 and tensor.is_floating_point() and min(tensor.shape) > 1:
            yield name, tensor


def _weights(call: Any, dim: int | None, classes: int | None) -> Iterator[tuple[Weight, int, int]]:
    """Yield where the class rows may be: every matrix, parameters first, the largest first, lying either way."""
    if not isinstance(call, nn.Module):
        return
    dim = dim or _attribute(call, DIM_NAMES)
    classes = classes or _attribute(call, CLASS_NAMES)
    learned = {name for name, _ in call.named_parameters()}
    every = sorted(_matrices(call), key=lambda pair: (pair[0] not in learned, -pair[1].numel()))
    several = (1, 2, 3, 4, 5, 8, 10)
    for name, tensor in every:
        a, b = tensor.shape
        ways = [(rows, d, lies) for rows, d, lies in ((a, b, False), (b, a, True)) if dim is None or d == dim]
        for count in several:
            for rows, d, transposed in ways:
                centers = rows // classes if classes else count
                if not centers or rows % centers or (classes and (rows % classes or count > 1)):
                    continue
                if rows // centers < (2 if centers == 1 else 3):
                    continue
                yield Weight(name, transposed, centers), rows, d
                if centers > 1:
                    yield Weight(name, transposed, centers, by_class=False), rows, d


def _attribute(call: Any, names: tuple[str, ...]) -> int | None:
    for name in names:
        value = getattr(call, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value > 1:
            return value
    return None


def _tried(candidate: Criterion, dtype: torch.dtype, tried: list[tuple[str, str]]) -> Criterion | None:
    """Return the candidate with the labels it takes, if calling it gives something that knows its target."""
    lies = f", weight {candidate.weight.name}" if candidate.weight else ""
    how = f"{SAID[candidate.form]}{lies}{', labels first' if candidate.labels_first else ''}"
    try:
        criterion = candidate.in_dtype(dtype)
    except Exception as error:
        tried.append((f"{how}, in {dtype}", f"{type(error).__name__}: {first_line(error)}"))
        return None
    for style in STYLES:
        criterion = replace(criterion, label_style=style)
        try:
            found = _working(criterion)
        except Exception as error:
            found = f"{type(error).__name__}: {first_line(error)}"
        if isinstance(found, Criterion):
            return found
        tried.append((f"{how}, labels as {style}", found))
    return None


def _working(criterion: Criterion) -> Criterion | str:
    """Return the criterion, told what its output is; or why it is not called like that."""
    C, d, dtype = criterion.classes, criterion.dim, criterion.dtype
    if d < 3:
        return f"its features have {d} dimensions; at least 3 are needed to place them"
    generator = torch.Generator().manual_seed(0)
    W = unit(torch.randn(C, d, generator=generator, dtype=torch.float64))
    aside = unit(torch.randn(C, d, generator=generator, dtype=torch.float64))
    x = (W + 0.1 * aside).to(dtype)  # not on the rows themselves, where some are NaN
    W = W.to(dtype)
    last = torch.full((ROWS,), C - 1)
    criterion = _what_it_gives(criterion, x[last], W, last)
    # A loss that knows its labels, its rows and their order is smaller for the own class than for another.
    tried = {*range(min(C, MOST_TRIED)), C - 1}
    costs = [(_cost(criterion, x[y], W, y), [_cost(criterion, x[y], W, n) for n in tried - {y}]) for y in tried]
    wrong = next(((near, min(far)) for near, far in costs if not near < min(far)), None)
    if wrong is None:
        return criterion
    said = f"a sample on its own class costs {wrong[0]:.3g}, under another label {wrong[1]:.3g}"
    # Where the shapes leave no doubt how it is called, it is the loss that is the wrong way round.
    certain = d != C and (criterion.weight is None or criterion.weight.centers == 1)
    if certain and all(near > sum(far) / len(far) + 1e-6 for near, far in costs):
        return replace(criterion, backwards=said)
    return said


def _cost(criterion: Criterion, x: Tensor, W: Tensor, label: int) -> float:
    """Return the loss of one feature under a label."""
    y = torch.full((ROWS,), label)
    return float(row_loss(criterion(x.repeat(ROWS, 1), W, y), y).detach())


def _what_it_gives(criterion: Criterion, x: Tensor, W: Tensor, y: Tensor) -> Criterion:
    """Tell probabilities from logits, and a sum over rows from a mean."""
    found = criterion(x, W, y)
    if found.loss is None:
        assert found.logits is not None
        total = found.logits.detach().sum(1)
        probabilities = bool((found.logits >= 0).all()) and torch.allclose(total, torch.ones_like(total))
        return replace(criterion, log_probabilities=probabilities)
    if found.loss.dim() == 0:
        # Twice the same rows: twice the sum, the same mean. Under a wrong label, where the loss is not 0.
        worse = torch.zeros_like(y)
        one, two = criterion(x, W, worse).loss, criterion(x.repeat(2, 1), W, worse.repeat(2)).loss
        assert one is not None
        assert two is not None
        return replace(criterion, summed=bool(one) and abs(float((two / one).detach()) - 2) < 1e-3)
    return criterion


def _complaint(form: str | None, tried: list[tuple[str, str]], call: Callable[..., Any]) -> str:
    """Say what was tried and why it did not do, each reason once."""
    asked = f"as {SAID[form]}" if form else "in any known way"
    reasons: dict[str, str] = {}
    for how, why in tried:
        reasons.setdefault(why, how)
    shown = "".join(f"\n  {how}: {why}" for why, how in itertools.islice(reasons.items(), 8))
    more = f"\n  … and {len(reasons) - 8} more" if len(reasons) > 8 else ""
    owns = ""
    if isinstance(call, nn.Module) and not any(_matrices(call)):
        shapes = [f"{name} {tuple(tensor.shape)}" for name, tensor in call.named_parameters()]
        owns = "\nOf its own it has no matrix of class rows, at least 2 in at least 3 dimensions"
        owns += f", but {', '.join(shapes[:4])}." if shapes else "."
    return (
        f"the criterion could not be called {asked}.{shown}{more}{owns}\nKnown forms: "
        f"{'; '.join(f'{name}: {said}' for name, said in SAID.items())}. Say which with form (--form), or write "
        "a function of one of these forms around it."
    )
