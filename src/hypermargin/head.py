"""The head as a module: owns the class weights, the settings and the state; everything of it is in state_dict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from hypermargin import checks
from hypermargin.advise import adacos_scale, smallest_scale
from hypermargin.backends import BACKENDS, Backend, Scores
from hypermargin.batch import given
from hypermargin.functional import Gradient, Reduction, margin_softmax
from hypermargin.margins import Margin
from hypermargin.numerics import bounded, constant, snapshot, wide_dtype, widen
from hypermargin.optim import FusedSGD
from hypermargin.parallel.messages import Rows
from hypermargin.parallel.partial_fc import PartialFC, Sampling
from hypermargin.parallel.shard import Part, Reading, Shard
from hypermargin.schedule import Adjustment, Alternation, Schedule
from hypermargin.scoring import adacos_step, logits_of, scores_of, watched

AUTOMATIC_SCALES = ("adacos", "adacos-dynamic")


class MarginHead(nn.Module):
    """Softmax with a margin over `classes` classes of `dim`-dimensional features.

        head(features, labels) → loss          head(features) = head.logits(features): no label, no margin
        head.predict_proba(features)           head.scores(features, labels): angles and rivals, for watching

    - scale: s, a number; "adacos" for √2·ln(C−1); "adacos-dynamic" for s from each batch's median angle, which
      costs a second pass over the classes. Under DDP each process has its own; a sharded head, one of all rows.
    - learn_scale: s is a parameter, never below `scale_floor` (default: the smallest s of use for so many
      classes, `advise.smallest_scale`). With a margin a free s shrinks while most samples violate the margin.
    - class_margins: m by class, (C,) (Combined: (C, 3)), instead of the margin's own
    - learn_margin: m is a parameter, by class if class_margins is given, else one for all, kept in its domain, and
      the training loss is L − margin_reward·s·mean(m − m₀), m₀ the m of no margin. Without a reward it always
      shrinks, since dL/dm = −s(1−p_y)·dψ/dm ≥ 0. With reward ρ, CosFace settles where mean(1−p_y) = ρ.
    - schedule: one of `hypermargin.schedule`, or several
    - shard: the classes lie on the ranks of a process group (`Shard`). All ranks call the head together, each with
      rows of its own, as many as it has, or none. The loss is the mean (or sum) over the rows of all ranks and the
      same on each; with reduction "none", and in `logits` and `scores`, each gets its own rows.
    - sample: of the classes only some take part in a training step (`PartialFC`)
    - the rest as in `margin_softmax`

    The weight is `head.weight`, (classes, dim), never changed in forward. Under DDP, wrap the head (or the
    model that contains it) like any module, unless it is sharded. Then `head.weight` is this rank's slice,
    `head.part` says which, and DDP or FSDP gets the network alone: the head's gradients are whole as they are.
    """

    scale: Tensor
    m: Tensor | None
    sampled_steps: Tensor

    def __init__(
        self,
        dim: int,
        classes: int,
        margin: Margin,
        *,
        scale: float | Literal["adacos", "adacos-dynamic"] = 1.0,
        bias: bool = False,
        unit_features: bool = True,
        unit_weight: bool = True,
        learn_scale: bool = False,
        scale_floor: float | None = None,
        class_margins: Tensor | Sequence[float] | None = None,
        learn_margin: bool = False,
        margin_reward: float = 0.1,
        schedule: Schedule | Sequence[Schedule] | None = None,
        gradient: Gradient = "exact",
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: Reduction = "mean",
        check: bool | Literal["auto"] = "auto",
        backend: Backend = "auto",
        shard: Shard | None = None,
        sample: PartialFC | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        checks.count("dim", dim)
        checks.count("classes", classes)
        checks.instance("margin", margin, Margin, "ArcFace(m=0.5)")
        checks.one_of("gradient", gradient, ("exact", "straight"))
        checks.one_of("reduction", reduction, ("mean", "sum", "none"))
        checks.in_range("label_smoothing", label_smoothing, 0.0, 1.0)
        checks.in_range("margin_reward", margin_reward, 0.0, math.inf)
        if isinstance(backend, str):
            checks.one_of("backend", backend, ("auto", *BACKENDS))
        self.dim, self.classes, self.margin = dim, classes, margin
        self.unit_features, self.unit_weight, self.gradient = unit_features, unit_weight, gradient
        self.ignore_index, self.label_smoothing, self.reduction = ignore_index, label_smoothing, reduction
        self.margin_reward, self.check, self.backend = margin_reward, check, backend
        self.learn_scale, self.learn_margin = learn_scale, learn_margin
        self.fused_optimizer: FusedSGD | None = None  # set by FusedSGD(head, …)
        self._fixed_scale, self._first = Reading(), dict[str, Tensor]()

        self._set_part(shard, sample, device)
        held = self.part.count
        self.weight = nn.Parameter(torch.empty(held, dim, device=device, dtype=dtype))
        self.register_parameter("bias", None)
        if bias:
            self.bias = nn.Parameter(torch.empty(held, device=device, dtype=dtype))
        # s and m are float32 whatever `dtype` says: they are few, and their last digits count.
        self._set_scale(scale, scale_floor, device)
        self._set_margins(class_margins, device)
        schedules = [schedule] if isinstance(schedule, Schedule) else list(schedule or ())
        for each in schedules:
            checks.instance("schedule", each, Schedule, "schedule.MarginWarmup(steps=1000), or several")
        if unit_weight and any(isinstance(s, Alternation) for s in schedules):
            raise ValueError(
                "schedule=Alternation(…) penalises |W|, which unit_weight=True takes out of the loss. "
                "Use it with unit_weight=False (l-softmax, softmax)."
            )
        self.schedules = nn.ModuleList(schedules).to(device)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Class weights of about unit length in random directions; bias 0; s, m and the number of steps as given.

        Sharded, the weights come from the shard's seed and are the same for every number of ranks.
        """
        if self.shard is None or self.weight.is_meta:
            nn.init.normal_(self.weight, std=self.dim**-0.5)
        else:
            self.part.first_weights(self.weight, self.dim**-0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        with torch.no_grad():
            for name, value in self._first.items():
                getattr(self, name).copy_(value)

    def _hold(self, name: str, value: Tensor, device: Any, *, learned: bool = False) -> None:
        """A few numbers as a parameter or a buffer, which `reset_parameters` sets to `value`."""
        self._first[name] = value
        held = torch.empty(value.shape, dtype=value.dtype, device=device)
        if learned:
            self.register_parameter(name, nn.Parameter(held))
        else:
            self.register_buffer(name, held)

    def _set_part(self, shard: Shard | None, sample: PartialFC | None, device: Any) -> None:
        """Which classes are held here, and which of them take part."""
        self.shard, self.sample, self.part = shard, sample, Part(self.classes, 0, self.classes)
        if shard is not None:
            checks.instance("shard", shard, Shard, "Shard() after init_process_group()")
            self.part = shard.part(self.classes)
            # In state_dict, so that nobody takes one slice for another.
            self._hold("classes_held", torch.tensor(self.part.numbers, device="cpu"), device)
            cast("Any", self).register_load_state_dict_pre_hook(self.part.check_state)
        if sample is not None:
            checks.instance("sample", sample, PartialFC, "PartialFC(rate=0.1)")
            if self.label_smoothing:
                raise ValueError(
                    f"label_smoothing={self.label_smoothing:g} is about every class, and sample={sample} leaves "
                    "most out; choose one."
                )
            self._hold("sampled_steps", torch.tensor(0, device="cpu"), device)

    def _set_scale(self, scale: float | str, floor: float | None, device: Any) -> None:
        self.scale_mode = "fixed"
        if isinstance(scale, str):
            checks.one_of("scale", scale, AUTOMATIC_SCALES)
            if self.learn_scale:
                raise ValueError(f"learn_scale=True learns s by gradient, scale={scale!r} sets it; choose one.")
            self.scale_mode, scale = scale, adacos_scale(self.classes)
        checks.positive("scale", scale)
        if floor is None:
            floor = smallest_scale(self.classes) if self.learn_scale and self.classes > 1 else 1.0
        checks.positive("scale_floor", floor)
        self.scale_floor = floor
        self._hold("scale", torch.tensor(float(scale), device="cpu"), device, learned=self.learn_scale)

    def _set_margins(self, class_margins: Tensor | Sequence[float] | None, device: Any) -> None:
        if class_margins is None and not self.learn_margin:
            self.register_buffer("m", None)
            return
        if self.margin.m is None:
            raise ValueError("class_margins and learn_margin need a margin that has an m; NoMargin has none.")
        if self.learn_margin and self.gradient == "straight":
            raise ValueError('learn_margin=True needs gradient="exact"; "straight" gives m no gradient.')
        self.margin_bounds = self.margin.bounds()
        low, high = (torch.tensor(bound, device="cpu") for bound in self.margin_bounds)
        if class_margins is None:
            value = torch.tensor(self.margin.m, device="cpu")
        else:
            value = torch.as_tensor(class_margins, dtype=torch.float32, device="cpu").detach()
            wanted = (self.classes, *low.shape)
            if tuple(value.shape) != wanted:
                raise ValueError(f"class_margins must have shape {wanted}, one a class; got {tuple(value.shape)}.")
            bad = ~((value >= low) & (value < high)).reshape(self.classes, -1).all(1)
            if bool(bad.any()):
                row = int(bad.nonzero()[0])
                raise ValueError(
                    f"class_margins must lie in [{low.tolist()}, {high.tolist()}) for {self.margin.name}; "
                    f"got {value[row].tolist()} for class {row}."
                )
            value = value[self.part.start : self.part.stop].clone()  # all are given, each rank keeps its own
        self._hold("m", value, device, learned=self.learn_margin)

    def by_class(self) -> dict[str, Tensor]:
        """The tensors with a row for every class held here, by name: weight; bias and m where there are such."""
        found: dict[str, Tensor | None] = {"weight": self.weight, "bias": self.bias}
        if self.m is not None and self.m.dim() > isinstance(self.margin.m, tuple):
            found["m"] = self.m
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def current_scale(self) -> Tensor:
        """s as the loss uses it: a learned one does not go below its floor."""
        if self.scale_mode == "adacos-dynamic":
            now: Tensor = snapshot(self.scale)
            return now
        return bounded(self.scale, self.scale_floor, math.inf) if self.learn_scale else self.scale

    def current_margins(self) -> Tensor | None:
        """m as the loss uses it before any warm-up: a learned one stays in its domain. None: the margin's own."""
        if self.m is None or not self.learn_margin:
            return self.m
        return bounded(self.m, *self.margin_bounds)

    def current_adjustment(self) -> Adjustment:
        """What the schedules do to the margin now, as plain numbers: λ, strength, and the penalty on lengths."""
        return Adjustment(*(float(value) for value in self._adjustment()))

    def forward(self, features: Tensor, labels: Tensor | None = None, *, mix: checks.Mix | None = None) -> Tensor:
        """The loss; without labels, the logits."""
        if labels is None:
            return self.logits(features)
        sampling = None
        if self.sample is not None and self.sample.rate < 1 and self.training:
            sampling = Sampling(self.sample, snapshot(self.sampled_steps))
        if self.part.world > 1 or sampling is not None:
            self.part.refuse_ddp(self.weight)
        adjustment = self._adjustment()
        m = self.current_margins()
        scale = self.current_scale()
        if self.scale_mode == "adacos-dynamic" and self.training:
            scale = adacos_step(self._scores(features, labels)[0], scale, self.scale_floor)
        update = self.fused_optimizer if self.training and torch.is_grad_enabled() else None
        loss = margin_softmax(
            features,
            self.weight,
            labels,
            self.margin,
            # A fixed s as a number bounds the logits, which saves the ranks one round of messages.
            scale=self._fixed_scale(scale) if self.part.world > 1 and scale is self.scale else scale,
            bias=self.bias,
            **self._sides,
            gradient=self.gradient,
            m=self._at_strength(m, adjustment.strength),
            lam=adjustment.lam,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            mix=mix,
            reduction=self.reduction,
            check=self.check,
            backend="triton" if update is not None and self.backend == "auto" else self.backend,
            update=update,
            part=self.part if self.shard is not None or sampling is not None else None,
            sampling=sampling,
        )
        if self.training:
            if (extra := self._beside_the_loss(adjustment, m, scale)) is not None:
                # Added to every row, it gets a gradient from every row, of all ranks.
                loss = loss + (self.part.spread(extra) if self.reduction == "none" else extra)
            # State moves last, so that a refused batch leaves none behind.
            if self.scale_mode == "adacos-dynamic":
                self.scale.copy_(scale)
            for schedule in cast("list[Schedule]", self.schedules):
                if not schedule.driven:
                    schedule.advance()
            if sampling is not None:
                self.sampled_steps += 1
        return loss

    def _beside_the_loss(self, adjustment: Adjustment, m: Tensor | None, scale: Tensor) -> Tensor | None:
        """The penalty of a schedule on |W|², and the reward of a learned margin; the same on all ranks."""
        extra = None
        if isinstance(adjustment.penalty, Tensor):
            squares = self.part.sum(widen(self.weight, wide_dtype(self.weight)).square().sum())
            extra = adjustment.penalty * squares / self.classes
        if self.learn_margin and m is not None:
            zero = constant(self.margin.zero, m)
            more = m - zero
            mean = self.part.mean(more) if m.dim() > zero.dim() else more.mean()
            reward = self.margin_reward * scale.detach() * mean
            extra = -reward if extra is None else extra - reward
        return extra

    def logits(self, features: Tensor) -> Tensor:
        """(N, C) logits s·cos θ_j (or their unnormalised kin) without any margin, float32 or wider.

        Sharded, every rank gets its own rows against all classes, and holds those of all ranks on the way.
        """
        part = self.part if self.part.world > 1 else None
        options: dict[str, Any] = {"bias": self.bias, "part": part}
        scale = self.current_scale()
        batch = given(features, self.weight, None, scale=scale, check=False, call="logits", **options)
        return logits_of(batch, self.weight, **self._sides, **options)

    @property
    def _sides(self) -> dict[str, Any]:
        return {"unit_features": self.unit_features, "unit_weight": self.unit_weight}

    def predict_proba(self, features: Tensor) -> Tensor:
        """(N, C) class probabilities. No label is seen and no margin applied, so rows sum to 1."""
        return self.logits(features).softmax(-1)

    def scores(self, features: Tensor, labels: Tensor, *, cosines: bool = False) -> Scores:
        """The target's angle and the rivals of a batch, for watching training; NaN in rows with ignore_index.

        Target and rivals are logits, so target > hardest is a right decision; with `cosines`, cosines: the nearest
        rival's angle is acos(hardest).
        """
        found, rows = self._scores(features, labels, cosines)
        if rows is None:
            return found
        return Scores._make(None if t is None else t[rows.own].clone() for t in found)

    @torch.no_grad()
    def _scores(self, features: Tensor, labels: Tensor, cosines: bool = False) -> tuple[Scores, Rows | None]:
        """Of all ranks' rows, and whose they are."""
        part = self.part if self.part.world > 1 else None
        scale: Tensor | float = self.current_scale()
        options: dict[str, Any] = {"bias": self.bias, "ignore_index": self.ignore_index, "part": part}
        sides = self._sides
        if cosines:
            scale, options["bias"], sides = 1.0, None, dict.fromkeys(sides, True)
        batch = given(features, self.weight, labels, scale=scale, check=self.check, call="scores", **options)
        scored = scores_of(batch, self.weight, hardest=True, backend=self.backend, **sides, **options)
        return watched(scored, part), batch.rows

    def _adjustment(self) -> Adjustment:
        """All schedules together, at this step."""
        lam: Tensor | float = 0.0
        strength: Tensor | float = 1.0
        penalty: Tensor | float = 0.0
        for schedule in self.schedules:
            one: Adjustment = schedule(self.training)
            lam, strength, penalty = lam + one.lam, strength * one.strength, penalty + one.penalty
        return Adjustment(lam, strength, penalty)

    def _at_strength(self, m: Tensor | None, strength: Tensor | float) -> Tensor | None:
        """m₀ + strength·(m − m₀), m₀ the m of no margin."""
        if not isinstance(strength, Tensor) or self.margin.m is None:
            return m
        zero = constant(self.margin.zero, strength)
        full = constant(self.margin.m, strength) if m is None else m
        return zero + strength * (full - zero)

    def extra_repr(self) -> str:
        """The settings that matter, on one line."""
        mode = "learned" if self.learn_scale else self.scale_mode
        scale = self._first["scale"] if self.scale.is_meta else self.scale
        margin = f"{self.margin}" + (
            ", learned" if self.learn_margin else ", by class" if self.m is not None else ""
        )
        return (
            f"dim={self.dim}, classes={self.classes}, margin={margin}, "
            f"scale={float(scale.detach()):.4g} ({mode}), bias={self.bias is not None}, "
            f"unit_features={self.unit_features}, unit_weight={self.unit_weight}, "
            f"gradient={self.gradient!r}, backend={self.backend!r}"
            + (f", classes {self.part.start}:{self.part.stop}" if self.shard is not None else "")
            + (f", sample={self.sample}" if self.sample is not None else "")
        )
