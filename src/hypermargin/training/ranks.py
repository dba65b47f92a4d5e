"""The processes that train one run together, as torchrun starts them; alone, one process is all of them.

Every rank holds the whole network and a slice of the head's classes, and trains on its share of every batch. What
is decided once (a folder, a checkpoint, a number for the log) is decided by rank 0, and the others are told.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import re
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # early: see `joined`
from torch import Tensor, nn

from hypermargin.common.environment import find_device
from hypermargin.common.text import first_line
from hypermargin.data.base import Rows
from hypermargin.parallel.messages import Group, spread, sum_partial
from hypermargin.training.config import Config

T = TypeVar("T")


class LostRankError(RuntimeError):
    """Another process of the run ended, or did not answer in time."""


@dataclass(frozen=True)
class Ranks:
    """Which of how many processes this is, and what they say to each other on the CPU."""

    rank: int = 0
    world: int = 1
    local: int = 0  # its number on this machine
    group: Group = None  # one that carries tensors of the CPU

    def share(self, rows: Rows) -> Rows:
        """Return this rank's part of a batch."""
        return np.array_split(rows, self.world)[self.rank]

    def sums(self, values: list[float]) -> list[float]:
        """Return the sum of each number over the ranks."""
        if self.world == 1:
            return values
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total, group=self.group)
        return total.tolist()

    def any(self, flag: bool) -> bool:
        """Tell whether it is so on any rank."""
        return self.sums([float(flag)])[0] > 0

    def gathered(self, thing: T) -> list[T]:
        """Return what each rank has, by rank."""
        if self.world == 1:
            return [thing]
        every: list[Any] = [None] * self.world
        dist.all_gather_object(every, thing, group=self.group)
        return every

    def lead(self, work: Callable[[], T]) -> T:
        """Let rank 0 do it; everybody gets what it returns, or its error."""
        if self.world == 1:
            return work()
        found: list[Any] = [None, None]
        problem: Exception | None = None
        if self.rank == 0:
            try:
                found[0] = work()
            except Exception as error:
                problem, found[1] = error, _sendable(error)
        dist.broadcast_object_list(found, src=0, group=self.group)
        if found[1] is not None:
            raise problem or _marked(found[1])
        answer: T = found[0]
        return answer

    def together(self, work: Callable[[], T]) -> T:
        """Let every rank do it; if one fails, all raise an error."""
        if self.world == 1:
            return work()
        problem: Exception | None = None
        try:
            answer = work()
        except Exception as error:
            problem = error
        others = self.gathered(_sendable(problem))
        if problem is not None:
            raise problem
        for other in others:
            if other is not None:
                raise _marked(other)
        return answer

    def device(self, name: str) -> torch.device:
        """Return the device of this rank: with "cuda", each on a machine has its own."""
        if self.world > 1 and name.startswith("cuda:"):
            raise ValueError(f"device {name} is one GPU; with {self.world} processes give cuda, for one each.")
        if self.world > 1 and name == "cuda":
            return torch.device("cuda", self.local % torch.cuda.device_count())
        return torch.device(name)

    def wrapped(self, network: nn.Module, device: torch.device) -> nn.Module:
        """Return the network for training steps, whose gradients are averaged over the ranks."""
        if self.world == 1 or not any(p.requires_grad for p in network.parameters()):
            return network
        own = [device] if device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(network, device_ids=own)

    def scaler(self, device: torch.device, *, enabled: bool) -> torch.amp.GradScaler:
        """Make the scaler for float16. A slice may overflow on one rank alone; then all leave the step out."""
        if self.world == 1 or not enabled:
            return torch.amp.GradScaler(device.type, enabled=enabled)
        from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

        return ShardedGradScaler(device.type, process_group=self.group)


def _sendable(error: Exception | None) -> Exception | None:
    """Return the error itself, or its words if it does not survive the way to another process."""
    try:
        copy: Exception | None = pickle.loads(pickle.dumps(error))
        return copy
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")


def _marked(error: Exception) -> Exception:
    error.of_another_rank = True  # type: ignore[attr-defined]
    return error


def of_another(error: BaseException) -> bool:
    """Tell whether an error came from another rank, which tells of it."""
    return getattr(error, "of_another_rank", False)


@contextlib.contextmanager
def joined(config: Config) -> Iterator[Ranks]:
    """Join the processes of torchrun or of the caller's process group if the settings say so; else be alone.

    In the end nothing may hold the group, since `destroy_process_group` only lets go of it: gloo's threads end with
    its last holder. One of them may be late to drop the tensor of the last message. If that needs the interpreter
    while it is being taken down, the thread is ended in a destructor, which aborts the process ("terminate called
    without an active exception"; 5 of 20 runs of ten lines of DDP, torch 2.13). Holders are DDP, the frames of an
    error, and modules of torch imported while there is a group, which keep it as a default of their functions.
    """
    started = dist.is_available() and dist.is_initialized()
    world = dist.get_world_size() if started else int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1 or config.shard_classes is False:
        yield Ranks()
        return
    rank = dist.get_rank() if started else int(os.environ["RANK"])
    local = int(os.environ.get("LOCAL_RANK", rank))
    with _naming(rank, world, config):
        timeout = timedelta(seconds=config.timeout)
        if not started:
            if config.precision == "float16":
                from torch.distributed.fsdp import sharded_grad_scaler  # noqa: F401
            each = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            cuda = find_device(config.device).type == "cuda"
            # NCCL refuses two ranks on one GPU.
            dist.init_process_group("cpu:gloo,cuda:nccl" if cuda and each else "gloo", timeout=timeout)
        try:
            group = None  # that of all
            if "gloo" not in str(dist.get_backend_config()):
                group = dist.new_group(backend="gloo", timeout=timeout)
            yield Ranks(rank, world, local, group)
        except BaseException as error:
            _let_go(error)
            raise
        finally:
            gc.collect()  # a trainer refers to itself
            if not started:
                dist.destroy_process_group()
            elif group is not None:
                dist.destroy_process_group(group)


def _let_go(error: BaseException | None) -> None:
    """Empty the frames of an error, and of those before it."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


@contextlib.contextmanager
def _naming(rank: int, world: int, config: Config) -> Iterator[None]:
    """Raise errors of messages that did not arrive in words."""
    try:
        yield
    except RuntimeError as error:
        cause = error.__cause__ or error
        # gloo's errors, and those of a timeout, are plain RuntimeErrors, known by their words alone.
        plain = type(cause) is RuntimeError and re.search(r"gloo|timeout|connection", str(cause), re.IGNORECASE)
        if not isinstance(cause, dist.DistError) and not plain:
            raise
        first = first_line(error)
        raise LostRankError(
            f"rank {rank} of {world} lost the others: one of them ended, or did not answer for {config.timeout:g} "
            f"s. The first error in the outputs of all ranks says why. ({first[:200]})"
        ) from error


class SyncedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch normalisation by the mean and variance of all ranks' rows, on the CPU, where torch has none.

    With it the result does not depend on how many ranks share a batch, nor on how; one may have no rows. Without a
    process group it is torch's.
    """

    @classmethod
    def like(cls, layer: nn.modules.batchnorm._BatchNorm) -> SyncedBatchNorm:
        """Make one in a layer's place, with its parameters and buffers."""
        own = cls(layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats)
        own.weight, own.bias = layer.weight, layer.bias
        own.running_mean, own.running_var = layer.running_mean, layer.running_var
        own.num_batches_tracked, own.training = layer.num_batches_tracked, layer.training
        return own

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"batch normalisation needs (N, channels, …); got {tuple(input.shape)}.")

    def forward(self, input: Tensor) -> Tensor:
        """Normalise as torch's layer does in one process."""
        if not self.training or not dist.is_initialized():
            return super().forward(input)
        self._check_input_dim(input)
        x = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        over = [0, *range(2, x.dim())]
        shape = [1, -1, *[1] * (x.dim() - 2)]
        counted = x.new_full((1,), x.numel() // x.shape[1])
        first = self._sum(torch.cat((x.sum(over), counted)))
        count = first[-1].detach()
        mean = first[:-1] / count
        centered = x - mean.reshape(shape)
        variance = self._sum(centered.square().sum(over)) / count
        if self.track_running_stats:
            self._remember(mean.detach(), variance.detach() * count / (count - 1).clamp(min=1))
        out = centered * (variance + self.eps).rsqrt().reshape(shape)
        if self.weight is not None:
            out = out * self.weight.reshape(shape)
        if self.bias is not None:
            out = out + self.bias.reshape(shape)
        return out.to(input.dtype)

    def _sum(self, x: Tensor) -> Tensor:
        """Sum over the ranks; each uses it for its own rows, so gradients are summed too."""
        return spread(sum_partial(x, None), None)

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        weight = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), weight)
        self.running_var.lerp_(variance.to(self.running_var.dtype), weight)


def sync_batch_norm(network: nn.Module, ranks: Ranks, device: torch.device) -> nn.Module:
    """Return the same network, its batch normalisation over the rows of all ranks.

    Only torch's own layers: a class derived from them (timm has such) may do more, which would be lost.
    """
    if ranks.world == 1:
        return network
    if type(network) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
        layer = cast("nn.modules.batchnorm._BatchNorm", network)
        if device.type != "cuda":
            return SyncedBatchNorm.like(layer)
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(layer)  # type: ignore[no-untyped-call]
        return converted
    for name, child in network.named_children():
        network.add_module(name, sync_batch_norm(child, ranks, device))
    return network


def least_rows(network: nn.Module, ranks: Ranks) -> int:
    """Return the fewest rows to train on: batch normalisation needs two, on every rank if left to each."""
    norms = (layer for layer in network.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm))
    alone = any(not isinstance(layer, SyncedBatchNorm | nn.SyncBatchNorm) for layer in norms)
    return 2 * ranks.world if alone else 2
