"""Checks of inputs. Every error message names the argument, what came, what is allowed and what to do.

Most checks look only at shapes, dtypes and devices, so they always run, under torch.compile too. Those that read
the numbers (`label_values`, `finite_rows`, `positive_values`, `cosine_values`) would stop a CUDA stream or break a
compiled graph, so `wanted` decides whether they run.
"""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from hypermargin.numerics import readable

if TYPE_CHECKING:
    from hypermargin.centers import Centers
    from hypermargin.margins import Margin
    from hypermargin.rules import Rule

Mix = tuple[Tensor, float | Tensor]
Reduction = Literal["mean", "sum", "none"]
Gradient = Literal["exact", "straight"]

MOST_DIM, MOST_CLASSES, MOST_CENTERS = 2**20, 10**9, 1000  # beyond that it is a slip, and would only end in torch
LARGEST = sys.float_info.max  # a whole number may be larger, and then has no float
LONGEST = 100  # characters of a value in a message


def one_of(name: str, value: object, allowed: Sequence[str]) -> None:
    """Require one of the allowed words."""
    if value not in allowed:
        raise ValueError(
            f"{name} must be one of {', '.join(map(repr, allowed))}; got {shown(value)}.{near(value, allowed)}"
        )


def near(value: object, allowed: Iterable[str]) -> str:
    """Return ` Did you mean 'x'?` for the closest allowed word, or an empty string if none is close."""
    close = difflib.get_close_matches(shown(value).strip("'"), list(allowed), 1)
    return f" Did you mean {close[0]!r}?" if close else ""


def instance(name: str, value: object, kind: type, like: str) -> None:
    """Require an instance of `kind`; `like` is an example for the message."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__} such as {like}; got {value!r}.")


def count(name: str, value: object, least: int = 1, most: int | None = None) -> None:
    """Require a whole number that is at least `least`, and at most `most`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number; got {shown(value)} ({type(value).__name__}).")
    if value < least:
        raise ValueError(f"{name} must be at least {least}; got {shown(value)}.")
    if most is not None and value > most:
        raise ValueError(f"{name} must be at most {most:,}; got {shown(value)}.")


def in_range(name: str, value: float, low: float, high: float, hint: str = "") -> None:
    """Require a plain number in [low, high)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number; got {shown(value)} ({type(value).__name__}).")
    if not low <= value < high or value > LARGEST:
        raise ValueError(f"{name} must lie in [{low:g}, {high:g}); got {number(value)}.{hint and ' ' + hint}")


def positive(name: str, value: float) -> None:
    """Require a plain, finite number above zero."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number; got {shown(value)} ({type(value).__name__}).")
    if not 0 < value <= LARGEST:
        raise ValueError(f"{name} must be positive and finite; got {number(value)}.")


def yes_or_no(name: str, value: object) -> None:
    """Require True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be true or false; got {shown(value)} ({type(value).__name__}).")


def number(value: float) -> str:
    """Return a number for a message."""
    return f"{value:g}" if isinstance(value, float) else shown(value)


def shown(value: object) -> str:
    """Return a value for a message, on one line and not longer than a line, whatever it is."""
    if isinstance(value, int) and value.bit_length() > 128:  # Python refuses to print very long ones
        return f"a number of about {round(value.bit_length() * math.log10(2))} digits"
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # such a number inside, or the container itself
        text = f"a {type(value).__name__}"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def wanted(check: bool | str, *tensors: Tensor) -> bool:
    """Return whether to read values; "auto" means in eager mode on the CPU, outside torch.func transforms."""
    if check is True or check is False:
        return check
    if check != "auto":
        one_of("check", check, ("auto",))
    return readable(*tensors)


def _matrix(name: str, tensor: object, shape: str) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(
            f"{name} must be a tensor of shape {shape}; got {type(tensor).__name__}. Use torch.as_tensor."
        )
    if tensor.dim() != 2:
        raise ValueError(f"{name} must have shape {shape}; got {tuple(tensor.shape)}.")
    if not tensor.is_floating_point():
        raise TypeError(f"{name} must be of a floating dtype; got {tensor.dtype}. Convert with .float().")


def _same_device(name: str, tensor: Tensor, device: torch.device) -> None:
    if tensor.device != device:
        raise ValueError(f"{name} is on {tensor.device}, features are on {device}. Move one with .to(device).")


def labels_like(name: str, labels: object, rows: int, device: torch.device, of: str = "features") -> None:
    """Require integer class ids, one per row, on the same device."""
    if not isinstance(labels, Tensor):
        raise TypeError(f"{name} must be an integer tensor of shape ({rows},); got {type(labels).__name__}.")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise TypeError(f"{name} must be integer class ids; got {labels.dtype}. Convert with .long().")
    if labels.dim() != 1 or labels.shape[0] != rows:
        hint = " One-hot rows become ids with .argmax(1)." if labels.dim() == 2 else ""
        raise ValueError(f"{name} must have shape ({rows},), one per row of {of}; got {tuple(labels.shape)}.{hint}")
    _same_device(name, labels, device)


def features_and_weight(features: Tensor, weight: Tensor) -> None:
    """Require features (N, d) and a weight (rows, d) with the same d ≥ 1, on one device."""
    _matrix("weight", weight, "(classes, dim)")
    _matrix("features", features, "(rows, dim)")
    dim = weight.shape[1]
    if dim == 0 or features.shape[1] != dim:
        raise ValueError(f"features must have {dim} columns like weight (at least 1); got {tuple(features.shape)}.")
    _same_device("weight", weight, features.device)


def class_bias(bias: Tensor, classes: int, device: torch.device) -> None:
    """Require one number per class, or one for all."""
    if tuple(bias.shape) not in ((), (classes,)):
        raise ValueError(f"bias must have shape ({classes},), one per class, or (); got {tuple(bias.shape)}.")
    _same_device("bias", bias, device)


def cosines_matrix(cosines: Tensor) -> None:
    """Require cosines of shape (N, C) with C ≥ 1."""
    _matrix("cosines", cosines, "(rows, classes)")
    if cosines.shape[1] == 0:
        raise ValueError(f"cosines must have at least one class; got {tuple(cosines.shape)}.")


def row_scale(scale: float | Tensor, rows: int) -> None:
    """Require a positive number, a tensor holding one, or a tensor with one per row."""
    if not isinstance(scale, Tensor):
        positive("scale", scale)
    elif scale.dim() > 0 and tuple(scale.shape) not in ((rows,), (rows, 1)):
        raise ValueError(f"scale must be a number or have shape ({rows},), one per row; got {tuple(scale.shape)}.")


def margin_tensor(m: Tensor | None, numbers: int | None, rows: int, classes: int) -> None:
    """Require one m, one per class (C,), or one per row (N, 1); Combined has three numbers in a last dimension."""
    if m is None:
        return
    if numbers is None:
        raise ValueError("m was given, but NoMargin has no m. Use CosFace, ArcFace, SphereFace or Combined.")
    tail = () if numbers == 1 else (numbers,)
    allowed = [tail, (classes, *tail), (rows, 1, *tail)]
    if tuple(m.shape) not in allowed:
        raise ValueError(
            f"m must have shape {allowed[0]} (one for all), {allowed[1]} (one per class) "
            f"or {allowed[2]} (one per row); got {tuple(m.shape)}."
        )


def mixture(mix: Mix, rows: int, device: torch.device) -> None:
    """Require a pair (other_labels, weight): ids like `labels`, and the share of `labels` in [0, 1]."""
    if not isinstance(mix, tuple) or len(mix) != 2:
        raise TypeError(f"mix must be a pair (other_labels, weight); got {type(mix).__name__}.")
    labels_like("mix[0] (other_labels)", mix[0], rows, device)
    if isinstance(mix[1], Tensor):
        if tuple(mix[1].shape) not in ((), (rows,)):
            raise ValueError(
                f"mix[1] (weight) must be a number or have shape ({rows},); got {tuple(mix[1].shape)}."
            )
    elif not 0 <= mix[1] <= 1:
        raise ValueError(f"mix[1] (weight) must lie in [0, 1]; got {mix[1]:g}. It is the share of `labels`.")


def loss_options(
    margin: Margin, rule: Rule, gradient: str, lam: float | Tensor, label_smoothing: float, reduction: str
) -> None:
    """Require valid values for the options that every loss takes."""
    margin_object(margin)
    rule_object(rule)
    if gradient not in ("exact", "straight"):
        one_of("gradient", gradient, ("exact", "straight"))
    if reduction not in ("mean", "sum", "none"):
        one_of("reduction", reduction, ("mean", "sum", "none"))
    if label_smoothing != 0.0:
        in_range("label_smoothing", label_smoothing, 0.0, 1.0)
    if not isinstance(lam, Tensor) and lam != 0.0:
        in_range("lam", lam, 0.0, math.inf)


def rule_object(rule: object) -> None:
    """Require a Rule."""
    if not hasattr(rule, "aggregate") or isinstance(rule, type):
        hint = " Make one of it: add ()." if isinstance(rule, type) else ""
        raise TypeError(f"rule must be a Rule such as rules.MVSoftmax(t=0.2); got {rule!r}.{hint}")


def margin_object(margin: object) -> None:
    """Require a Margin. For a plain number, as other libraries take, the message says which Margin to write."""
    if hasattr(margin, "psi") and not isinstance(margin, type):
        return
    hint = " Make one of it: add ()." if isinstance(margin, type) else ""
    if isinstance(margin, (int, float)) and not isinstance(margin, bool):
        m = math.radians(margin) if margin > math.pi else margin
        degrees = f"; {margin:g} degrees are {m:.4g}" if margin > math.pi else ""
        hint = (
            f" A number is its m, in radians{degrees}: ArcFace(m={m:.4g}), or create_head('arcface', …, m={m:.4g})."
        )
    raise TypeError(f"margin must be a Margin such as ArcFace(m=0.5); got {margin!r}.{hint}")


def combination(
    rule: Rule, unit_weight: bool, centers: Centers, label_smoothing: float, mixed: bool, all_classes: bool
) -> None:
    """Require options that can be combined with each other."""
    if label_smoothing and not all_classes:
        raise ValueError(
            f"label_smoothing={label_smoothing:g} is about every class, and a sample leaves most out; choose one."
        )
    if centers.soft and not unit_weight:
        raise ValueError(f"centers={centers} is about cosines, so it needs unit_weight=True.")
    if label_smoothing and centers.count > 1:
        raise ValueError(f"label_smoothing={label_smoothing:g} needs centers=1; got centers={centers}.")
    if rule.is_softmax:
        return
    if label_smoothing:
        raise ValueError(f"label_smoothing={label_smoothing:g} is about softmax's logits; rule={rule} has others.")
    if not unit_weight and not rule.is_identity:
        raise ValueError(f"rule={rule} is about cosines, so it needs unit_weight=True.")
    if mixed and rule.row_numbers:
        raise ValueError(f"rule={rule} has a threshold per row, and mix gives a row two targets; choose one.")


def class_margins(given: Tensor | Sequence[float] | None, margin: Margin, classes: int) -> Tensor:
    """Return m of all classes as given, or the margin's own m, on the CPU; require values in its domain."""
    if margin.m is None:
        raise ValueError(
            f"class_margins and learn_margin need a margin that has an m; {type(margin).__name__} has none."
        )
    if given is None:
        return torch.tensor(margin.m, device="cpu")
    low, high = (torch.tensor(bound, device="cpu") for bound in margin.bounds())
    value = _by_class("class_margins", given, classes, low.shape)
    bad = ~((value >= low) & (value < high)).reshape(classes, -1).all(1)
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise ValueError(
            f"class_margins must lie in [{low.tolist()}, {high.tolist()}) for {margin.name}; "
            f"got {value[row].tolist()} for class {row}."
        )
    return value


def class_offsets(given: Tensor | Sequence[float], classes: int) -> Tensor:
    """Return the offsets of all classes, on the CPU; require finite ones."""
    value = _by_class("class_offsets", given, classes, torch.Size())
    if not bool(value.isfinite().all()):
        row = int((~value.isfinite()).nonzero()[0])
        raise ValueError(f"class_offsets must be finite; got {float(value[row])} for class {row}.")
    return value


def _by_class(name: str, given: Tensor | Sequence[float], classes: int, tail: torch.Size) -> Tensor:
    value = torch.as_tensor(given, dtype=torch.float32, device="cpu").detach()
    if tuple(value.shape) != (classes, *tail):
        raise ValueError(f"{name} must have shape {(classes, *tail)}, one per class; got {tuple(value.shape)}.")
    return value


def label_values(name: str, labels: Tensor, classes: int, ignore_index: int | None = None) -> bool:
    """Require labels in [0, classes) or equal to ignore_index. Return whether all are in [0, classes)."""
    if labels.numel() == 0:
        return True
    low, high = labels.aminmax()
    if int(low) >= 0 and int(high) < classes:
        return True  # the usual case, in one operation
    bad = (labels < 0) | (labels >= classes)
    bad = bad if ignore_index is None else bad & (labels != ignore_index)
    if bool(bad.any()):
        row = int(bad.nonzero()[0, 0])
        got = int(labels[row])
        why = "Labels start at 0."
        if ignore_index is None:
            why = "Labels start at 0, and there is no ignore_index here."
        elif got < 0:
            why = f"Rows to leave out carry ignore_index={ignore_index}."
        raise ValueError(f"{name} must lie in [0, {classes}); got {got} at row {row}. {why}")
    return False


def finite_rows(name: str, tensor: Tensor, used: Tensor | None) -> None:
    """Require that the rows that count hold neither NaN nor inf."""
    if math.isfinite(tensor.detach().sum().item()):
        return  # the usual case, in one operation; a sum of finite numbers may overflow, so look at each row below
    bad = ~torch.isfinite(tensor).all(-1)
    bad = bad if used is None else bad & used
    if bool(bad.any()):
        row = int(bad.nonzero()[0, 0])
        what = "NaN" if bool(tensor[row].isnan().any()) else "inf"
        raise ValueError(
            f"{name} must be finite; got {what} at row {row} ({int(bad.sum())} such rows). "
            "Look at that sample, then at the learning rate and the precision of the step before."
        )


def positive_values(name: str, tensor: float | Tensor) -> None:
    """Require every entry of a tensor to be above zero; plain numbers are left to `positive`."""
    if not isinstance(tensor, Tensor) or not tensor.numel():
        return
    if not (tensor.detach().amin() if tensor.dim() else tensor).item() > 0:
        raise ValueError(f"{name} must be positive; got {float(tensor.min()):g}. Give a learned scale a floor.")


def cosine_values(cosines: Tensor) -> None:
    """Require values in [−1, 1], up to rounding."""
    if cosines.numel() and not bool((cosines.abs() <= 1.01).all()):
        worst = float(cosines.abs().max())
        raise ValueError(
            f"cosines must lie in [−1, 1]; got a magnitude of {worst:g}. "
            "Normalise both sides, and give s as `scale`."
        )
