"""The head as a module: it owns class weights, settings and state; what training changes is in state_dict."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor, nn

from hypermargin import checks
from hypermargin.backends import Backend, Triton, find_backend
from hypermargin.centers import Centers
from hypermargin.checks import Gradient, Reduction
from hypermargin.class_state import ClassState
from hypermargin.counts import checked_counts
from hypermargin.functional import margin_softmax
from hypermargin.layout import WHOLE, Layout
from hypermargin.margins import Margin
from hypermargin.numerics import bounded, constant, snapshot, wide_dtype, widen
from hypermargin.parallel import PartialFC, Sampled, Shard
from hypermargin.rules import SOFTMAX, Rule
from hypermargin.schedule import Adjustment, Schedule, checked_schedules, combined
from hypermargin.scores import Scores, adacos_step, logits, scores
from hypermargin.settings import HeadSettings, Scale, UnknownSettingError, setting_names
from hypermargin.terms import RowTerm, checked_terms
from hypermargin.views import AS_THEY_ARE, View, Viewed

if TYPE_CHECKING:
    from hypermargin.optim import FusedSGD


class MarginHead(nn.Module):
    """Softmax with a margin over `classes` classes of `dim`-dimensional features.

        head(features, labels) → loss          head(features) = head.logits(features): no label, no margin
        head.predict_proba(features)           head.scores(features, labels): angles and rivals, for monitoring

    - scale: s, a number, which unit features need; "advised" for what `advise.recommend` says; "adacos" for
      √2·ln(C−1); "adacos-dynamic" for s from each batch's median angle, which costs a second pass over the
      classes. Under DDP each process computes its own from its rows; a sharded head computes one from all rows.
      Features that keep their length have s = 1 unless given.
    - bias: True for one per class, "shared" for one that all classes share
    - rule: what a rival counts as (`hypermargin.rules`)
    - centers: rows of the weight per class. With a number the target is the nearest center of its class, all
      centers of other classes are rivals, and `logits` has each class's nearest; `Centers` has other pools.
    - learn_scale: s is a parameter, never below `scale_floor` (default: the smallest useful s for this number of
      classes, `advise.smallest_scale`). With a margin an unbounded s shrinks while most samples violate the margin.
    - class_margins: m by class, (C,) (Combined: (C, 3)), instead of the margin's own
    - class_offsets: (C,), added to the logits of the classes in the loss and left out of `logits`, for classes
      that are not equally frequent: τ·log(share of the class) is logit adjustment (Menon et al. 2021,
      arXiv:2007.07314)
    - class_counts: (C,), the training samples of each class, for margins and views that go by them
    - view: what the loss takes for the class rows (`hypermargin.views`); `logits` and `scores` take the rows
    - learn_margin: m is a parameter, by class if class_margins is given, else one for all, kept in its domain, and
      the training loss is L − margin_reward·s·mean(m − m₀), m₀ the m of no margin. Without a reward it always
      shrinks, since dL/dm = −s(1−p_y)·dψ/dm ≥ 0. With reward ρ, CosFace settles where mean(1−p_y) = ρ.
    - schedule: one of `hypermargin.schedule`, or several
    - shard: the classes are split over the ranks of a process group (`Shard`). All ranks call the head together,
      each with its own rows, of any number including 0. The loss is the mean (or sum) over the rows of all ranks
      and the same on each; with reduction "none", and in `logits` and `scores`, each gets its own rows.
    - row_terms: modules that add a term to the loss of every row (`hypermargin.terms`)
    - sample: only a sample of the classes takes part in each training step (`PartialFC`)
    - the rest as in `margin_softmax`

    The settings are in `head.settings`. The weight is `head.weight`, (classes·centers, dim), never changed in
    forward. Under DDP, wrap the head (or the model that contains it) like any module. A sharded head is different:
    `head.weight` is this rank's slice, `head.layout` says which, and DDP or FSDP must wrap the network alone, since
    the head's gradients are already complete.
    """

    scale: Tensor
    m: Tensor | None
    offsets: Tensor | None
    sampled_steps: Tensor
    margin_bounds: tuple[Any, Any]  # least and largest m; only with a learned or class-wise m

    def __init__(
        self,
        dim: int,
        classes: int,
        margin: Margin,
        *,
        scale: Scale | None = None,
        bias: bool | Literal["shared"] = False,
        unit_features: bool = True,
        unit_weight: bool = True,
        rule: Rule = SOFTMAX,
        view: View = AS_THEY_ARE,
        centers: int | Centers = 1,
        learn_scale: bool = False,
        scale_floor: float | None = None,
        class_margins: Tensor | Sequence[float] | None = None,
        class_offsets: Tensor | Sequence[float] | None = None,
        class_counts: Tensor | Sequence[float] | None = None,
        learn_margin: bool = False,
        margin_reward: float = 0.1,
        schedule: Schedule | Sequence[Schedule] | None = None,
        row_terms: Sequence[RowTerm] = (),
        gradient: Gradient = "exact",
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: Reduction = "mean",
        check: bool | Literal["auto"] = "auto",
        backend: str | Backend = "auto",
        shard: Shard | None = None,
        sample: PartialFC | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **unknown: Any,
    ) -> None:
        if unknown:
            raise UnknownSettingError("MarginHead", *next(iter(unknown.items())), allowed=setting_names())
        super().__init__()
        checks.count("classes", classes)
        self.settings = HeadSettings(
            dim, classes, margin, scale=scale, bias=bias, unit_features=unit_features, unit_weight=unit_weight,
            rule=rule, view=view, centers=Centers.of(centers), learn_scale=learn_scale, scale_floor=scale_floor,
            learn_margin=learn_margin, margin_reward=margin_reward, gradient=gradient, ignore_index=ignore_index,
            label_smoothing=label_smoothing, reduction=reduction, check=check, backend=backend, shard=shard,
            sample=sample,
        )  # fmt: skip
        self.training_backend: Backend | None = None  # set by FusedSGD(head, …)
        self._first: dict[str, Tensor] = {}  # what `reset_parameters` sets
        self.layout: Layout = WHOLE
        if shard is not None:
            layout = self.layout = shard.layout(classes)
            # In state_dict, so that a slice cannot be loaded in place of another.
            self._hold("classes_held", torch.tensor(layout.numbers, device="cpu"), device)
            cast("Any", self).register_load_state_dict_pre_hook(layout.check_state)
        if sample is not None:
            self._hold("sampled_steps", torch.tensor(0, device="cpu"), device)
        held = len(self.layout.held(classes))
        self.weight = nn.Parameter(torch.empty(held * self.settings.centers.count, dim, device=device, dtype=dtype))
        self.register_parameter("bias", None)
        if bias:
            shape = () if bias == "shared" else (held,)
            self.bias = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        # s and m are float32 whatever `dtype` is: they take little memory, and rounding them would change the loss.
        self._hold("scale", torch.tensor(self.settings.first_scale, device="cpu"), device, learned=learn_scale)
        if class_margins is None and not learn_margin:
            self.register_buffer("m", None)
        else:
            self.margin_bounds = margin.bounds()
            value = checks.class_margins(class_margins, margin, classes)
            self._hold("m", value if class_margins is None else self._own(value), device, learned=learn_margin)
        if class_offsets is None:
            self.register_buffer("offsets", None)
        else:
            self._hold("offsets", self._own(checks.class_offsets(class_offsets, classes)), device)
        self.row_margin, self.rule_state, self.view_state = margin.row_margin(), rule.state(), view.state()
        counts = None if class_counts is None else checked_counts(class_counts, classes)
        for part in self.parts_by_class().values():
            part.hold(self.layout.held(classes), dim, counts)
        for module in (self.row_margin, self.rule_state, self.view_state):
            module.to(device)
        own_term = margin.row_term()
        terms = [*checked_terms(row_terms, dim, classes), *([own_term] if own_term else [])]
        self.row_terms = nn.ModuleList(terms).to(device)
        self.schedules = nn.ModuleList(checked_schedules(schedule, unit_weight)).to(device)
        self._reset_own()

    @classmethod
    def of(cls, settings: HeadSettings, **state: Any) -> MarginHead:
        """Return a head with these settings; `state` are the arguments that are no settings (schedule, device)."""
        fields = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
        return cls(**fields, **state)

    @property
    def dim(self) -> int:
        """Dimension of the features."""
        return self.settings.dim

    @property
    def classes(self) -> int:
        """Number of classes, on all ranks together."""
        return self.settings.classes

    @property
    def margin(self) -> Margin:
        """The margin function ψ of the target."""
        return self.settings.margin

    def reset_parameters(self) -> None:
        """Draw new class weights, and set all other state as at first.

        The weights have about unit length and random directions. In a sharded head they come from the shard's seed
        and are the same for every number of ranks.
        """
        self._reset_own()
        for part in (self.row_margin, self.rule_state, self.view_state, self.row_terms, self.schedules):
            for module in part.modules():
                if hasattr(module, "reset_parameters"):
                    cast("Any", module).reset_parameters()

    def _reset_own(self) -> None:
        """Reset what is not a part's own: parts that were given keep the state they came with."""
        layout = WHOLE if self.weight.is_meta else self.layout
        layout.first_weights(self.weight, self.dim**-0.5)
        if self.bias is not None:
            rate = 1.0 if self.settings.sample is None else self.settings.sample.rate
            in_a_step = math.ceil(rate * self.classes)
            nn.init.constant_(self.bias, self.settings.rule.first_bias(in_a_step, self.settings.first_scale))
        with torch.no_grad():
            for name, value in self._first.items():
                getattr(self, name).copy_(value)

    def _own(self, by_class: Tensor) -> Tensor:
        """Return the entries of the classes held here: every rank is given all classes and keeps its own."""
        held = self.layout.held(self.classes)
        return by_class[held.start : held.stop].clone()

    def _hold(self, name: str, value: Tensor, device: Any, *, learned: bool = False) -> None:
        """Register a few numbers as a parameter or a buffer, which `reset_parameters` sets to `value`."""
        self._first[name] = value
        held = torch.empty(value.shape, dtype=value.dtype, device=device)
        if learned:
            self.register_parameter(name, nn.Parameter(held))
        else:
            self.register_buffer(name, held)

    def step_in_backward(self, optimizer: FusedSGD) -> None:
        """Let an optimiser change the weight in the backward of every training step."""
        own = Triton() if self.settings.backend == "auto" else find_backend(self.settings.backend)
        if not isinstance(own, Triton):
            raise ValueError(f'FusedSGD needs backend="triton"; got {self.settings.backend!r}.')
        if not self.settings.view.is_identity:
            raise ValueError(
                f"FusedSGD changes the class rows themselves, and view={self.settings.view} has others."
            )
        self.training_backend = dataclasses.replace(own, update=optimizer)

    @property
    def fused_optimizer(self) -> FusedSGD | None:
        """The optimiser that works in the backward, if there is one."""
        return getattr(self.training_backend, "update", None)

    def parts_by_class(self) -> dict[str, ClassState]:
        """Return the parts that may remember something of every class, by name."""
        return {part.part: part for part in (self.row_margin, self.view_state)}

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        """Load what `heads.write` wrote too, which says how many centers a class has if several."""
        said = state_dict.pop(prefix + "centers", None)
        if said is not None and int(said) != self.settings.centers.count:
            raise ValueError(
                f"this state has {int(said)} centers per class, and the head has {self.settings.centers.count}. "
                f"Make it with centers={int(said)}."
            )
        super()._load_from_state_dict(state_dict, prefix, *others)

    def by_class(self) -> dict[str, Tensor]:
        """Return the tensors with entries by class: weight, bias, m and offsets if they are, and parts' state."""
        found: dict[str, Tensor] = {"weight": self.weight}
        if self.bias is not None and self.bias.dim():
            found["bias"] = self.bias
        if self.m is not None and self.m.dim() > isinstance(self.margin.m, tuple):
            found["m"] = self.m
        if self.offsets is not None:
            found["offsets"] = self.offsets
        for part, module in self.parts_by_class().items():
            found |= {f"{part}.{name}": tensor for name, tensor in module.by_class().items()}
        return found

    def end_epoch(self) -> None:
        """Settle what goes by epochs, such as KappaFace's margins; all ranks call it after an epoch's last step."""
        for part in self.parts_by_class().values():
            part.end_epoch(self.layout)

    def current_scale(self) -> Tensor:
        """Return s as the loss uses it: a learned s does not go below its floor."""
        if self.settings.scale == "adacos-dynamic":
            now: Tensor = snapshot(self.scale)
            return now
        return bounded(self.scale, self.settings.least_scale, math.inf) if self.settings.learn_scale else self.scale

    def current_margins(self) -> Tensor | None:
        """Return m as the loss uses it before any warm-up, a learned m kept in its domain; None: the margin's."""
        if self.m is None or not self.settings.learn_margin:
            return self.m
        return bounded(self.m, *self.margin_bounds)

    def current_adjustment(self) -> Adjustment:
        """Return what the schedules ask for at this step, as plain numbers: λ, strength, penalty on |W|²."""
        return Adjustment(*(float(value) for value in combined(self.schedules, self.training)))

    def forward(self, features: Tensor, labels: Tensor | None = None, *, mix: checks.Mix | None = None) -> Tensor:
        """Return the loss; without labels, the logits."""
        if labels is None:
            return self.logits(features)
        settings, layout = self.settings, self._layout_of_step()
        layout.refuse_ddp(self.weight)
        adjustment, m, scale = combined(self.schedules, self.training), self.current_margins(), self.current_scale()
        if settings.scale == "adacos-dynamic" and self.training:
            scale = adacos_step(self.scores(features, labels, of_all=True), scale, settings.least_scale)
        m_now = m if isinstance(adjustment.strength, float) else settings.margin.at_strength(m, adjustment.strength)
        loss = margin_softmax(
            features, self.weight, labels, settings.margin, mix=mix, layout=layout,
            backend=(self.training and self.training_backend) or settings.backend,
            scale=layout.fixed(scale) if scale is self.scale else scale,
            bias=self.bias if self.offsets is None else self._bias_with_offsets(self.offsets),
            unit_features=settings.unit_features, unit_weight=settings.unit_weight, centers=settings.centers,
            rule=settings.rule, gradient=settings.gradient, m=m_now, lam=adjustment.lam, row_margin=self.row_margin,
            rule_state=self.rule_state, row_terms=cast("Sequence[RowTerm]", self.row_terms),
            label_smoothing=settings.label_smoothing, ignore_index=settings.ignore_index,
            reduction=settings.reduction, check=settings.check,
        )  # fmt: skip
        if not self.training:
            return loss
        if (extra := self._beside_the_loss(adjustment, m, scale)) is not None:
            # With "none" it is added to every row, so its gradient is summed over the rows of all ranks.
            loss = loss + (layout.shared(extra) if settings.reduction == "none" else extra)
        self._advance(scale)
        return loss

    def _layout_of_step(self) -> Layout:
        sample, layout = self.settings.sample, self.layout
        if sample is not None and sample.rate < 1 and self.training:
            layout = Sampled(layout, sample, snapshot(self.sampled_steps))
        return layout if self.settings.view.is_identity else Viewed(layout, self.view_state)

    def _bias_with_offsets(self, offsets: Tensor) -> Tensor:
        if self.bias is None:
            return offsets
        return offsets + (self.bias if self.bias.dim() else self.layout.shared(self.bias))

    def _advance(self, scale: Tensor) -> None:
        """Advance the state by one step; called last, so that a batch that raises leaves the state unchanged."""
        if self.settings.scale == "adacos-dynamic":
            self.scale.copy_(scale)
        self.row_margin.advance()
        self.rule_state.advance()
        for term in self.row_terms:
            if hasattr(term, "advance"):
                cast("Any", term).advance()
        self.view_state.advance()
        for schedule in cast("list[Schedule]", self.schedules):
            if not schedule.driven:
                schedule.advance()
        if self.settings.sample is not None and self.settings.sample.rate < 1:
            self.sampled_steps += 1

    def _beside_the_loss(self, adjustment: Adjustment, m: Tensor | None, scale: Tensor) -> Tensor | None:
        """Return what is added once per step, the same on all ranks.

        That is the penalty of a schedule on |W|², and the distance between the centers of a class, minus the reward
        of a learned margin.
        """
        extra = None
        if isinstance(adjustment.penalty, Tensor):
            squares = self.layout.sum(widen(self.weight, wide_dtype(self.weight)).square().sum())
            extra = adjustment.penalty * squares / self.classes
        if self.settings.learn_margin and m is not None:
            zero = constant(self.margin.zero, m)
            more = m - zero
            mean = self.layout.mean(more) if m.dim() > zero.dim() else more.mean()
            reward = self.settings.margin_reward * scale.detach() * mean
            extra = -reward if extra is None else extra - reward
        centers = self.settings.centers
        if centers.together and centers.count > 1:
            spread = centers.together * self.layout.sum(centers.distance(self.weight, self.classes))
            extra = spread if extra is None else extra + spread
        return extra

    def logits(self, features: Tensor) -> Tensor:
        """Return (N, C) logits s·cos θ_j (times |x| and |W_j| where not normalised) without any margin.

        They are float32 or wider. With a sharded head every rank gets its own rows against all classes, and holds
        the logits of all ranks' rows on the way.
        """
        scale, sides = self.current_scale(), self.settings.sides
        return logits(features, self.weight, scale=scale, bias=self.bias, layout=self.layout, **sides)

    def predict_proba(self, features: Tensor) -> Tensor:
        """Return (N, C) class probabilities. No label is seen and no margin applied, so rows sum to 1."""
        return self.logits(features).softmax(-1)

    def scores(self, features: Tensor, labels: Tensor, *, cosines: bool = False, of_all: bool = False) -> Scores:
        """Return target and rivals of a batch, for monitoring training; NaN in rows with ignore_index.

        Target and rivals are logits, so target > hardest is a right decision. With `cosines` they are cosines, and
        the nearest rival's angle is acos(hardest). A sharded head returns the rank's own rows, or those `of_all`.
        """
        settings, sides = self.settings, self.settings.sides
        if cosines:
            sides |= {"unit_features": True, "unit_weight": True}
        return scores(
            features, self.weight, labels, scale=1.0 if cosines else self.current_scale(),
            bias=None if cosines else self.bias, **sides, ignore_index=settings.ignore_index, check=settings.check,
            backend=settings.backend, layout=self.layout, of_all=of_all,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """Return the settings that matter, on one line."""
        scale, held = self._first["scale"] if self.scale.is_meta else self.scale, self.layout.held(self.classes)
        words = self.settings.in_words(float(scale.detach()), by_class=self.m is not None)
        return words + (f", classes {held.start}:{held.stop}" if self.settings.shard is not None else "")
