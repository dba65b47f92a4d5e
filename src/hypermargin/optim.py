"""Optimisers for class weights: one steps inside the backward, one changes only the classes sampled in a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from hypermargin import checks

if TYPE_CHECKING:
    from hypermargin.head import MarginHead


class FusedSGD(torch.optim.Optimizer):
    """torch.optim.SGD for `head.weight`, applied by the fused backend as it computes the gradient.

        optimizer = hypermargin.FusedSGD(head, lr=0.1, momentum=0.9, weight_decay=5e-4)
        loss.backward()      # changes head.weight
        optimizer.step()     # says that this step is over

    With C classes of d dimensions it saves 4·C·d bytes of gradient and the passes over them: 29 million classes
    of 512 dimensions, weight and momentum in float32, fit on one GPU of 139 GiB. The numbers are those of
    torch.optim.SGD to rounding. `renormalize` puts every row back on the unit sphere afterwards.

    Learning-rate schedulers and state_dict work as with any optimiser; the rate is read at backward, or, for
    replays of a CUDA graph, at `step` and `zero_grad`. Give the head's other parameters, and the network's, to an
    optimiser of their own.

    Nothing can see the gradient before the step. So accumulation over several backward passes raises an error, and
    so does an ordinary gradient of the weight from elsewhere. `clip_grad_norm_` does not see this weight, and a
    GradScaler's scale would stay in its gradient: use neither (bfloat16 needs no scaler). It does not work under
    torch.compile, nor under DDP, where every process would make its own step. Every backward through a loss made in
    training mode makes a step, even torch.autograd.grad for the features alone: use head.eval() for that.
    """

    def __init__(
        self,
        head: MarginHead,
        lr: float,
        *,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        renormalize: bool = False,
    ) -> None:
        settings = _settings(lr, momentum, weight_decay, nesterov)
        if head.weight.dtype != torch.float32:
            raise ValueError(f"FusedSGD needs a float32 head.weight; got {head.weight.dtype}.")
        super().__init__([head.weight], settings | {"renormalize": renormalize})
        self._begin_anew()
        head.step_in_backward(self)

    def _begin_anew(self) -> None:
        """Forget the step under way and the numbers on the device, as a new or copied optimiser must."""
        self._on_device: Tensor | None = None
        self._numbers: tuple[float, ...] = ()
        self._waiting = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._begin_anew()

    def refuse_a_second(self) -> None:
        """Raise at a second backward before `step`, which would be gradient accumulation."""
        if self._waiting:
            raise RuntimeError(
                "a second backward before FusedSGD.step(): the first has already changed head.weight, so gradients "
                "cannot be accumulated. Call step() after every backward, or use torch.optim.SGD."
            )

    def begin(self) -> dict[str, Any]:
        """Return the momentum, settings and options that the backward needs to update the weight."""
        group = self.param_groups[0]
        (weight,) = group["params"]
        if weight.dtype != torch.float32:
            raise ValueError(f"FusedSGD needs a float32 head.weight; got {weight.dtype}.")
        state = self.state[weight]
        recording = weight.is_cuda and torch.cuda.is_current_stream_capturing()
        if recording and (self._on_device is None or (group["momentum"] and "momentum_buffer" not in state)):
            raise RuntimeError(
                "make one step with FusedSGD before recording a CUDA graph: its state must exist first."
            )
        if group["momentum"] and "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(weight, requires_grad=False)
        momentum = state["momentum_buffer"] if group["momentum"] else None
        if momentum is not None and (momentum.device != weight.device or momentum.shape != weight.shape):
            raise ValueError(
                f"FusedSGD's momentum is {tuple(momentum.shape)} on {momentum.device}, but head.weight is "
                f"{tuple(weight.shape)} on {weight.device}. Move or change the head before making its optimiser."
            )
        if self._on_device is None or self._on_device.device != weight.device:
            self._on_device, self._numbers = torch.zeros(3, device=weight.device), ()
        if not recording:  # else every replay of the graph would restore the rate at the time of recording
            self._refresh()
        options = {"nesterov": group["nesterov"], "renormalize": group["renormalize"]}
        return {"momentum": momentum, "settings": self._on_device, **options}

    def wait_for_step(self) -> None:
        """Note that the weight was changed and `step` must follow; recording a CUDA graph changes nothing yet."""
        self._waiting = not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())

    def _refresh(self) -> None:
        """Write rate, momentum and decay to the device if they have changed; fill_ does not wait for the GPU."""
        group = self.param_groups[0]
        numbers = tuple(float(group[key]) for key in ("lr", "momentum", "weight_decay"))
        if self._on_device is not None and numbers != self._numbers:
            for place, number in zip(self._on_device, numbers, strict=True):
                place.fill_(number)
            self._numbers = numbers

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """End the step. The weight was already changed in the backward."""
        if closure is not None:
            raise ValueError("FusedSGD.step takes no closure: the weight changes at every backward.")
        if self.param_groups[0]["params"][0].grad is not None:
            raise RuntimeError(
                "head.weight has received an ordinary gradient besides the head's own (a penalty on it, or a "
                "second use of it), which FusedSGD would ignore. Use torch.optim.SGD."
            )
        self._waiting = False
        self._refresh()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a saved state, also one of torch.optim.SGD if it used neither dampening nor maximize."""
        _refuse_unknown(self, state_dict)
        super().load_state_dict(state_dict)
        lay_out(self)
        self.param_groups[0].setdefault("renormalize", False)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients like any optimiser, and read the learning rate for replays of a CUDA graph."""
        super().zero_grad(set_to_none)
        self._refresh()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add the only group allowed, the head's weight; raise at a second one."""
        if self.param_groups:
            raise ValueError("FusedSGD has one group, the weight of its head.")
        super().add_param_group(param_group)


class SampledSGD(torch.optim.Optimizer):
    """torch.optim.SGD that touches only the rows a sparse gradient names, for heads with `sample=PartialFC(…)`.

    A class that took no part in the step keeps its weight and momentum, and does not decay; otherwise such classes
    would shrink, and drift by their old momentum. Parameters with an ordinary gradient are updated by torch's SGD,
    so the network's parameters may be included. Gradients of several backward passes add up.

    torch's `clip_grad_norm_` refuses sparse gradients; `hypermargin.training.optim.clip_gradients` takes them.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(params, _settings(lr, momentum, weight_decay, nesterov))

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Set v ← μv + (g + λw), w ← w − lr·v (nesterov: lr·(g + λw + μv)), on the rows that have a g."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            self._change([p for p in params if not p.grad.is_sparse], group)
            for param in params:
                if param.grad.is_sparse:
                    self._change_rows(param, group)
        return loss

    def _change(self, params: list[Tensor], group: dict[str, Any]) -> None:
        options = {key: group[key] for key in ("lr", "momentum", "weight_decay", "nesterov")}
        momenta = [self.state[p].get("momentum_buffer") if group["momentum"] else None for p in params]
        if params:
            grads = [p.grad for p in params if p.grad is not None]
            sgd(params, grads, momenta, **options, dampening=0.0, maximize=False)
        for param, buffer in zip(params, momenta, strict=True):
            if buffer is not None:
                self.state[param]["momentum_buffer"] = buffer

    def _change_rows(self, param: Tensor, group: dict[str, Any]) -> None:
        assert param.grad is not None
        sparse = param.grad.coalesce()
        rows, grad = sparse.indices()[0], sparse.values()
        if group["weight_decay"]:
            grad = grad.add(param.index_select(0, rows), alpha=group["weight_decay"])
        if group["momentum"]:
            state = self.state[param]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(param, requires_grad=False)
            moved = grad.add(state["momentum_buffer"].index_select(0, rows), alpha=group["momentum"])
            state["momentum_buffer"].index_copy_(0, rows, moved)
            grad = grad.add(moved, alpha=group["momentum"]) if group["nesterov"] else moved
        param.index_add_(0, rows, grad, alpha=-group["lr"])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a saved state, also one of torch.optim.SGD if it used neither dampening nor maximize."""
        _refuse_unknown(self, state_dict)
        super().load_state_dict(state_dict)
        lay_out(self)


@torch.no_grad()
def lay_out(optimizer: torch.optim.Optimizer) -> None:
    """Give every entry of the state that has its parameter's shape the parameter's strides, as a new one has them.

    torch's fused optimisers go through parameter and state as they lie in memory, and `load_state_dict` keeps the
    layout of what it is given: moments that were read row by row would be applied to other weights of a
    channels_last convolution. Call it after loading a state of unknown layout; ours do so themselves.
    """
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                own = torch.empty_like(parameter, dtype=value.dtype, device=value.device)
                if own.stride() != value.stride():
                    state[name] = own.copy_(value)


def _settings(lr: float, momentum: float, weight_decay: float, nesterov: bool) -> dict[str, Any]:
    checks.in_range("lr", lr, 0.0, float("inf"))
    checks.in_range("momentum", momentum, 0.0, 1.0)
    checks.in_range("weight_decay", weight_decay, 0.0, float("inf"))
    if nesterov and not momentum:
        raise ValueError("nesterov=True needs momentum > 0; got momentum=0.")
    return {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov}


def _refuse_unknown(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
    for group in state_dict["param_groups"]:
        if group.get("dampening") or group.get("maximize"):
            name = type(optimizer).__name__
            raise ValueError(f"{name} knows neither dampening nor maximize, with which this state was made.")
