"""The settings of a head that do not change after it is made, as one frozen object that is validated once."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypedDict

import torch

from hypermargin import checks
from hypermargin.backends import Backend, find_backend
from hypermargin.centers import ONE, Centers
from hypermargin.checks import Gradient, Reduction
from hypermargin.margins import Margin
from hypermargin.parallel import PartialFC, Shard
from hypermargin.rules import LOG_SUM_EXP, SOFTMAX, Rule
from hypermargin.scales import adacos_scale, needed_scale, smallest_scale
from hypermargin.views import AS_THEY_ARE, View

Scale = float | Literal["advised", "adacos", "adacos-dynamic"]
AUTOMATIC_SCALES = ("advised", "adacos", "adacos-dynamic")


@dataclass(frozen=True)
class HeadSettings:
    """The arguments a head was made with; what changes in training (weights, s, m, counters) is in its state_dict.

    The fields are explained at `MarginHead`. `centers` may be given as a number. `scale` is never None after
    construction: it becomes 1 for features that keep their length, and must be given for others.
    """

    dim: int
    classes: int
    margin: Margin
    scale: Scale | None = None
    bias: bool | Literal["shared"] = False
    unit_features: bool = True
    unit_weight: bool = True
    rule: Rule = SOFTMAX
    view: View = AS_THEY_ARE
    centers: Centers = ONE
    learn_scale: bool = False
    scale_floor: float | None = None
    learn_margin: bool = False
    margin_reward: float = 0.1
    gradient: Gradient = "exact"
    ignore_index: int = -100
    label_smoothing: float = 0.0
    reduction: Reduction = "mean"
    check: bool | Literal["auto"] = "auto"
    backend: str | Backend = "auto"
    shard: Shard | None = None
    sample: PartialFC | None = None

    def __post_init__(self) -> None:
        checks.count("dim", self.dim, 1, checks.MOST_DIM)
        checks.count("classes", self.classes, 0, checks.MOST_CLASSES)  # a slice may be empty
        for name in ("unit_features", "unit_weight", "learn_scale", "learn_margin"):
            checks.yes_or_no(name, getattr(self, name))
        checks.loss_options(self.margin, self.rule, self.gradient, 0.0, self.label_smoothing, self.reduction)
        checks.in_range("margin_reward", self.margin_reward, 0.0, math.inf)
        if self.bias not in (True, False, "shared"):
            raise ValueError(f'bias must be True, False or "shared" (one for all classes); got {self.bias!r}.')
        find_backend(self.backend)
        if self.shard is not None:
            checks.instance("shard", self.shard, Shard, "Shard() after init_process_group()")
        if self.sample is not None:
            checks.instance("sample", self.sample, PartialFC, "PartialFC(rate=0.1)")
            if self.sample.correct and self.rule.aggregate is not LOG_SUM_EXP:
                raise ValueError(
                    f"sample={self.sample} raises the logits of a log-sum-exp, and rule={self.rule} has a "
                    f"{self.rule.aggregate.name}. Leave correct=True out."
                )
        object.__setattr__(self, "centers", Centers.of(self.centers))
        checks.combination(
            self.rule, self.unit_weight, self.centers, self.label_smoothing, False, self.sample is None
        )
        checks.instance("view", self.view, View, "hypermargin.views.VectorScaling()")
        self.view.check(self.rule, self.unit_weight, self.centers)
        if self.sample is not None and self.centers.together:
            raise ValueError(
                f"together={self.centers.together:g} is about all classes, and sample={self.sample} leaves most "
                "out; choose one."
            )
        self._check_scale()
        if self.learn_margin and self.margin.m is None:
            raise ValueError(f"learn_margin needs a margin that has an m; {type(self.margin).__name__} has none.")
        if self.learn_margin and self.margin.rises_with_m():
            raise ValueError(f"learn_margin rewards a larger m, and a smaller one is more margin in {self.margin}.")
        if self.learn_margin and self.gradient == "straight":
            raise ValueError('learn_margin=True needs gradient="exact"; "straight" gives m no gradient.')

    def _check_scale(self) -> None:
        scale = self.scale
        if scale is None:
            scale = float(needed_scale(None, self.unit_features, self.classes, self.dim, self.margin))
            object.__setattr__(self, "scale", scale)
        if isinstance(scale, str):
            checks.one_of("scale", scale, AUTOMATIC_SCALES)
            if self.learn_scale and scale != "advised":
                raise ValueError(f"learn_scale=True learns s by gradient, scale={scale!r} sets it; choose one.")
        checks.positive("scale", self.first_scale)
        checks.positive("scale_floor", self.least_scale)

    @property
    def first_scale(self) -> float:
        """The initial value of s, computed if `scale` is a word."""
        if isinstance(self.scale, str):
            if self.scale != "advised":
                return adacos_scale(max(self.classes, 1))
            return float(needed_scale("advised", True, self.classes, self.dim, self.margin))
        assert self.scale is not None
        return float(self.scale)  # of a whole number no tensor could be learned

    @property
    def least_scale(self) -> float:
        """The lower bound of a learned or automatic s."""
        if self.scale_floor is not None:
            return self.scale_floor
        return smallest_scale(self.classes) if self.learn_scale and self.classes > 1 else 1.0

    def as_plain(self) -> dict[str, Any]:
        """Return the settings that decide how features become logits, as plain values to write to a file."""
        found = {
            "margin": str(self.margin), "rule": str(self.rule), "centers": self.centers.count,
            "bias": bool(self.bias), "unit_features": self.unit_features, "unit_weight": self.unit_weight,
        }  # fmt: skip
        if self.centers.pooled:
            found["pool"] = self.centers.pool
        return found | ({"gamma": self.centers.gamma} if self.centers.soft else {})

    @property
    def sides(self) -> dict[str, Any]:
        """The settings that decide how features and weights are multiplied, as arguments of the functions."""
        return {"unit_features": self.unit_features, "unit_weight": self.unit_weight, "centers": self.centers}

    def in_words(self, scale: float, by_class: bool) -> str:
        """Return the settings that matter, on one line, with the current s and whether m goes by class."""
        mode = "learned" if self.learn_scale else self.scale if isinstance(self.scale, str) else "fixed"
        margin = f"{self.margin}" + (", learned" if self.learn_margin else ", by class" if by_class else "")
        words = (
            f"dim={self.dim}, classes={self.classes}, margin={margin}, scale={scale:.4g} ({mode}), "
            f"bias={bool(self.bias)}, unit_features={self.unit_features}, unit_weight={self.unit_weight}, "
            f"gradient={self.gradient!r}, backend={self.backend!r}"
        )
        words += f", rule={self.rule}" if self.rule != SOFTMAX else ""
        words += "" if self.view.is_identity else f", view={self.view}"
        words += f", centers={self.centers}" if self.centers.count > 1 else ""
        return words + (f", sample={self.sample}" if self.sample is not None else "")


class HeadOverrides(TypedDict, total=False):
    """The keyword arguments of `create_head`: fields of the margin and the rule, and arguments of `MarginHead`."""

    m: float
    m1: float
    m2: float
    m3: float
    lam: float
    beyond: str
    h: float
    momentum: float
    l_m: float
    u_m: float
    l_a: float
    u_a: float
    lambda_g: float
    sigma: float
    pairing: str
    a: float
    k: float
    t: float
    kind: str
    compared: str
    alpha: float
    m_prime: float
    more: float
    reach: float
    above: float
    derivative: str
    variant: str
    l: float  # noqa: E741
    b: float
    counts: Any
    tau: float
    positive: float
    weight: float
    gamma: float
    temperature: float
    k1: float
    k2: float
    share: float
    within: float
    after: float
    version: int
    margin: Margin
    scale: Scale
    bias: bool | Literal["shared"]
    unit_features: bool
    unit_weight: bool
    rule: Rule
    view: View
    centers: int | Centers
    pool: str
    together: float
    learn_scale: bool
    scale_floor: float | None
    class_margins: Any
    class_offsets: Any
    class_counts: Any
    learn_margin: bool
    margin_reward: float
    schedule: Any
    row_terms: Any
    gradient: Gradient
    ignore_index: int
    label_smoothing: float
    reduction: Reduction
    check: bool | Literal["auto"]
    backend: str | Backend
    shard: Shard | None
    sample: PartialFC | None
    device: torch.device | str | None
    dtype: torch.dtype | None


# Arguments of `MarginHead` that are no settings, because they are tensors, modules or about where they live.
STATE = ("class_margins", "class_offsets", "class_counts", "schedule", "row_terms", "device", "dtype")


def setting_names() -> list[str]:
    """Return the keyword arguments of `MarginHead`."""
    return [*(f.name for f in fields(HeadSettings) if f.name not in ("dim", "classes", "margin")), *STATE]


# Names that other libraries use, and what they are called here.
OTHER_NAMES = {
    "s": "scale", "gamma": "scale", "embedding_size": "dim", "in_features": "dim", "num_classes": "classes",
    "out_features": "classes", "num_subcenters": "centers", "sub_centers": "centers", "centres": "centers",
    "K": "centers",
    "r": "scale", "easy_margin": 'beyond="easy" of ArcFace', "loss_weight": "a factor on the loss you get",
}  # fmt: skip
OTHER_NAMES_OF_SOME = {"t_alpha": "momentum", "lam": "positive"}  # where a head has them


class UnknownSettingError(TypeError):
    """An argument that does not exist; the message says what was probably meant."""

    def __init__(self, who: str, key: str, value: object, allowed: Sequence[str]) -> None:
        known = OTHER_NAMES.get(key)
        if OTHER_NAMES_OF_SOME.get(key) in allowed:
            known = OTHER_NAMES_OF_SOME[key]
        if known is None:
            hint = checks.near(key, allowed)
        elif known in allowed:
            hint = f" It is called {known} here: {known}={value!r}."
        else:
            hint = f" Here it is {known}."
        super().__init__(f"{who} has no setting {key!r}.{hint} It takes {', '.join(allowed)}.")
        self.who, self.key, self.value, self.allowed = who, key, value, allowed

    def __reduce__(self) -> tuple[Any, ...]:
        """Let it be pickled: an error in a worker process of joblib's, say, comes back like that."""
        return type(self), (self.who, self.key, self.value, self.allowed)

    def without(self, names: Container[str]) -> UnknownSettingError:
        """Return the same where some of the others are not allowed either."""
        left = [name for name in self.allowed if name not in names]
        return UnknownSettingError(self.who, self.key, self.value, left)
