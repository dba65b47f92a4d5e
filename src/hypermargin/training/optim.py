"""The learning rate, the optimiser with its groups of parameters, and the moving average of the weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hypermargin import checks
from hypermargin.head import MarginHead
from hypermargin.layout import Layout
from hypermargin.optim import FusedSGD, SampledAdamW, SampledSGD, lay_out
from hypermargin.training.fused_head import WithFusedHead

RATES = ("constant", "cosine", "polynomial", "step")
OPTIMIZERS = ("adamw", "sgd")
HEAD_OPTIMIZERS = ("fused-sgd",)


def rate(
    step: int,
    *,
    total: int,
    warmup: int = 0,
    schedule: str = "cosine",
    power: float = 2.0,
    milestones: Sequence[float] = (0.5, 0.75, 0.9),
    gamma: float = 0.1,
    floor: float = 0.0,
) -> float:
    """Return the factor in [0, 1] on the learning rate in the optimiser's step 0, 1, …, total − 1.

    In the first `warmup` steps (step + 1)/warmup. Then, with t = (step − warmup)/(total − warmup) in [0, 1),

        constant    1
        cosine      floor + (1 − floor)·(1 + cos πt)/2
        polynomial  floor + (1 − floor)·(1 − t)^power
        step        gamma^(milestones passed), each a share of `total`

    From step `total` on it stays at its end, t = 1. It depends on the step alone, so there is nothing to save.
    """
    checks.count("step", step, 0)
    checks.count("total", total)
    checks.count("warmup", warmup, 0)
    if warmup > total:
        raise ValueError(
            f"warmup must be at most total ({total} steps); got {warmup}. Train longer or warm up less."
        )
    checks.one_of("schedule", schedule, RATES)
    checks.positive("power", power)
    checks.in_range("gamma", gamma, 0.0, 1.0)
    checks.in_range("floor", floor, 0.0, 1.0)
    for share in milestones:
        checks.positive("milestones", share)
        checks.in_range("milestones", share, 0.0, 1.0, "They are shares of the training, not epochs.")
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "constant":
        return 1.0
    if schedule == "step":
        return float(gamma ** sum(step >= round(share * total) for share in milestones))
    t = 1.0 if step >= total else (step - warmup) / (total - warmup)
    left = (1 + math.cos(math.pi * t)) / 2 if schedule == "cosine" else (1 - t) ** power
    return float(floor + (1 - floor) * left)


def create_optimizer(
    model: nn.Module,
    head: MarginHead,
    *,
    name: str,
    lr: float,
    weight_decay: float,
    head_lr: float | None = None,
    head_weight_decay: float | None = None,
    momentum: float = 0.9,
    nesterov: bool = False,
    head_optimizer: str | None = None,
    sampled: bool = False,
    half: bool = False,
) -> torch.optim.Optimizer:
    """Make SGD (decay added to the gradient) or AdamW (decay beside it), with up to four groups of parameters.

        backbone weights   lr, weight_decay
        backbone vectors   lr, no decay: biases, and the parameters of norms and PReLU
        head weight        head_lr, head_weight_decay (None: as the backbone)
        head vectors       head_lr, no decay: bias, learned s, learned m

    Frozen parameters are left out, and a parameter of both model and head is the head's. Each group has its
    "name" and its "base_lr" for `set_rate`. momentum and nesterov are SGD's. `head_optimizer` = "fused-sgd":
    the head's weight is FusedSGD's, all else as before. `sampled`: SampledSGD or SampledAdamW, for a head of which
    only some classes take part in a step. `half`: a GradScaler may leave steps out, which torch's fused
    optimisers do not bear (SGD begins with memory as it was, AdamW with a scaler of several ranks fails).
    A state that is loaded takes the parameters' layout in memory.
    """
    checks.one_of("name", name, OPTIMIZERS)
    head_lr = lr if head_lr is None else head_lr
    head_weight_decay = weight_decay if head_weight_decay is None else head_weight_decay
    for argument, value in (("lr", lr), ("head_lr", head_lr)):
        checks.positive(argument, value)
    for argument, value in (("weight_decay", weight_decay), ("head_weight_decay", head_weight_decay)):
        checks.in_range(argument, value, 0.0, math.inf)
    checks.in_range("momentum", momentum, 0.0, 1.0)
    if nesterov and momentum == 0:
        raise ValueError("nesterov=True needs a momentum above 0; got momentum=0.")
    of_head = set(head.parameters())
    backbone = [p for p in model.parameters() if p not in of_head]
    groups = [
        ("backbone weights", [p for p in backbone if p.dim() > 1], lr, weight_decay),
        ("backbone vectors", [p for p in backbone if p.dim() <= 1], lr, 0.0),
        ("head weight", [head.weight], head_lr, head_weight_decay),
        ("head vectors", [p for p in head.parameters() if p is not head.weight], head_lr, 0.0),
    ]
    chosen: list[dict[str, Any]] = []
    for group, members, base_lr, decay in groups:
        if trained := [p for p in members if p.requires_grad]:
            settings = {"name": group, "lr": base_lr, "base_lr": base_lr, "weight_decay": decay}
            chosen.append({"params": trained, **settings})
    if not chosen:
        raise ValueError("there is nothing to train: model and head have no parameter with requires_grad=True.")
    if sampled:
        if name == "adamw":
            return SampledAdamW(chosen, lr)
        return SampledSGD(chosen, lr, momentum=momentum, nesterov=nesterov)
    fused_head = None
    if head_optimizer == "fused-sgd":
        own = next((group for group in chosen if group["name"] == "head weight"), None)
        if own is None:
            raise ValueError('head_optimizer = "fused-sgd" needs a head.weight with requires_grad=True.')
        chosen.remove(own)
        fused_head = FusedSGD(head, head_lr, momentum=momentum, weight_decay=head_weight_decay, nesterov=nesterov)
        fused_head.param_groups[0] |= {key: own[key] for key in ("name", "base_lr")}
        if not chosen:
            return WithFusedHead(None, fused_head)
    # One kernel for all parameters; a loop over them would take longer than the mathematics of a small network.
    fused = not half and all(p.device.type in ("cpu", "cuda") for group in chosen for p in group["params"])
    optimizer: torch.optim.Optimizer
    if name == "sgd":
        optimizer = torch.optim.SGD(chosen, lr=lr, momentum=momentum, nesterov=nesterov, fused=fused)
    else:
        optimizer = torch.optim.AdamW(chosen, lr=lr, fused=fused)
    if fused_head is not None:
        return WithFusedHead(optimizer, fused_head)
    optimizer.register_load_state_dict_post_hook(lay_out)
    return optimizer


def set_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set lr = base_lr·factor in every group; a rate that is a tensor is changed in place."""
    for group in optimizer.param_groups:
        lr = group["base_lr"] * factor
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


@torch.no_grad()
def clip_gradients(parameters: Sequence[Tensor], most: float, by_class: Sequence[Tensor], layout: Layout) -> None:
    """Shorten the gradient of all parameters together to the length `most`.

    Those `by_class` are held in slices by the ranks of `layout`, so their squares are summed over these.
    """
    grads: dict[bool, list[Tensor]] = {True: [], False: []}
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()  # so that changing its values changes it
        sliced = layout.world > 1 and any(parameter is each for each in by_class)
        grads[sliced].append(parameter.grad.values() if parameter.grad.is_sparse else parameter.grad)
    norm = nn.utils.get_total_norm(grads[False])
    if layout.world > 1:
        norm = (norm.square() + layout.sum(nn.utils.get_total_norm(grads[True]).square())).sqrt()
    torch._foreach_mul_(grads[False] + grads[True], (most / (norm + 1e-6)).clamp(max=1.0))


class EMA:
    """Moving average of some modules: mean ← d·mean + (1 − d)·parameter; buffers are copied.

    d = min(decay, (1 + t)/(10 + t)) in update t = 0, 1, …, so that the random start is soon forgotten.
    Make it when the modules are on their device. It sees them by name: module 0's weight is "0.weight".
    """

    def __init__(self, modules: Sequence[nn.Module], decay: float = 0.999) -> None:
        checks.in_range("decay", decay, 0.0, 1.0)
        self.decay, self.updates = decay, 0
        self._live = nn.ModuleList(modules)
        self.mean = {name: t.detach().clone() for name, t in self._tensors().items()}
        parameters = dict(self._live.named_parameters())
        # A tensor, so that a recorded `take` finds it changed.
        self._share = next(iter(parameters.values()), torch.empty(0)).new_zeros(())

    def update(self) -> None:
        """Take in the weights as they are now: call it after each step of the optimiser."""
        self.count()
        self.take()

    def count(self) -> None:
        """Count an update, which settles 1 − d."""
        self._share.fill_(1 - min(self.decay, (1 + self.updates) / (10 + self.updates)))
        self.updates += 1

    @torch.no_grad()
    def take(self) -> None:
        """Take in the weights with the share that `count` has settled."""
        parameters = dict(self._live.named_parameters())
        if parameters:
            means = [self.mean[name] for name in parameters]
            steps = torch._foreach_sub(list(parameters.values()), means)
            torch._foreach_mul_(steps, self._share)
            torch._foreach_add_(means, steps)
        self.take_buffers()

    @torch.no_grad()
    def take_buffers(self) -> None:
        """Copy what is not averaged, as after a change between two steps."""
        for name, buffer in self._live.named_buffers():
            self.mean[name].copy_(buffer)

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Let the modules hold the average in `with ema.swapped():`; afterwards their own weights, to the bit."""
        own = {name: t.detach().clone() for name, t in self._tensors().items()}
        try:
            self._put(self.mean)
            yield
        finally:
            self._put(own)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the averages by name, not copied, and the number of updates."""
        return {**self.mean, "updates": torch.tensor(self.updates)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a saved average of the same modules."""
        shapes = [{name: str(tuple(t.shape)) for name, t in d.items()} for d in (state, self.state_dict())]
        for name in sorted(shapes[0].keys() | shapes[1].keys()):
            saved, here = (d.get(name, "missing") for d in shapes)
            if saved != here:
                raise ValueError(
                    f"the saved average does not fit these modules: {name} is {saved} in it and {here} here. "
                    "Build the model and the head with the settings of the saved run."
                )
        for name, mean in self.mean.items():
            mean.copy_(state[name])
        self.updates = int(state["updates"])

    def _tensors(self) -> dict[str, Tensor]:
        return {**dict(self._live.named_parameters()), **dict(self._live.named_buffers())}

    @torch.no_grad()
    def _put(self, values: Mapping[str, Tensor]) -> None:
        for name, tensor in self._tensors().items():
            tensor.copy_(values[name])
