"""Classes over several processes: every rank holds a slice of them and scores everybody's rows against it.

    my rows ─► all rows (gather) ─► any backend on my classes ─► margin, where the label is mine
        ─► T: SUM, R: log-sum-exp, over the ranks (N numbers each) ─► the loss, the same on every rank

Everything before the last line is a share, everything after it is the same everywhere. So dW needs no
communication at all, dX is one sum over the ranks, and a learned s or m, used in every share, another.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from hypermargin import checks
from hypermargin.parallel import messages as collective
from hypermargin.parallel.messages import Group, Rows

# exp(R − bound) ≥ exp(−2·bound) has all its digits in float64 down to exp(−708).
LARGEST_BOUND = 300.0
_BLOCK = 1024  # classes whose first weights are drawn together


@dataclass(frozen=True)
class Shard:
    """Settings of a head whose classes lie on the ranks of a process group, for `MarginHead(…, shard=Shard(…))`.

    - process_group: one of torch.distributed; by default all processes
    - average: DDP and FSDP divide the sum of the network's gradients by the number of ranks, while this loss is the
      mean over the rows of all ranks already. True undoes that division: the features' gradient, and that of all
      else given by row, is multiplied by the number of ranks. False leaves it as it is in a single process, for
      networks whose gradients are summed.
    - seed: of the first weights, which are the same for every number of ranks

    DDP and FSDP must not have the head: DDP would give every rank the slice of rank 0 (forward refuses that), FSDP
    would cut each slice once more and join pieces of different ones (nothing says so).
    What looks at all gradients sees another slice on every rank, so that the ranks would part. For float16 use
    torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler, and to clip,
    hypermargin.training.optim.clip_gradients.
    """

    process_group: dist.ProcessGroup | None = None
    average: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        checks.count("Shard(seed=…)", self.seed, 0)

    def __deepcopy__(self, memo: Any) -> Shard:
        return self  # a process group cannot be copied

    def part(self, classes: int) -> Part:
        """The slice of `classes` that this process holds."""
        if not dist.is_available() or not dist.is_initialized():
            raise RuntimeError(
                "shard=Shard(…) needs a process group, and none is initialised. Start with torchrun and call "
                "torch.distributed.init_process_group() before making the head."
            )
        rank, world = dist.get_rank(self.process_group), dist.get_world_size(self.process_group)
        if rank < 0:
            raise RuntimeError(
                f"Shard(process_group=…) does not contain this process (rank {dist.get_rank()} of "
                f"{dist.get_world_size()}). Make the head on the ranks of its group only."
            )
        start, stop = class_range(classes, rank, world)
        return Part(classes, start, stop, rank, world, self)


def class_range(classes: int, rank: int, world: int) -> tuple[int, int]:
    """[start, stop) of a rank: ⌈C/world⌉ classes each, then what is left, then none, as DTensor's Shard(0) does.

    Spreading the remainder evenly would not help: the slowest rank has ⌈C/world⌉ classes either way.
    """
    size = -(-classes // world)
    return min(rank * size, classes), min((rank + 1) * size, classes)


class Reading:
    """The number in a tensor, read from a GPU once: it is not waited for again until the tensor changes."""

    def __init__(self) -> None:
        self._last: tuple[Tensor, int, float] | None = None

    def __call__(self, x: Tensor) -> float:
        """Changes behind autograd's back (x.data) are seen on the CPU only."""
        if x.device.type == "cpu" or x.is_inference():
            return float(x)
        if self._last is None or self._last[0] is not x or self._last[1] != x._version:
            self._last = (x, x._version, float(x))
        return self._last[2]


@dataclass(frozen=True)
class Part:
    """The classes [start, stop) out of `classes`, held by `rank` of `world`. By default one process holds all."""

    classes: int
    start: int
    stop: int
    rank: int = 0
    world: int = 1
    shard: Shard = Shard()

    @property
    def group(self) -> Group:
        """The process group."""
        return self.shard.process_group

    @property
    def count(self) -> int:
        """Classes held here."""
        return self.stop - self.start

    @property
    def most(self) -> int:
        """Classes held by the rank that has most."""
        return -(-self.classes // self.world)

    @property
    def counts(self) -> list[int]:
        """Classes held by each rank."""
        ranges = (class_range(self.classes, rank, self.world) for rank in range(self.world))
        return [stop - start for start, stop in ranges]

    @property
    def numbers(self) -> tuple[int, int, int, int, int]:
        """start, stop, classes, rank, world: how a saved slice says what it is."""
        return self.start, self.stop, self.classes, self.rank, self.world

    def check_state(self, head: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
        """A hook before loading: a slice is loaded where it belongs, or not at all."""
        saved = state.get(prefix + "classes_held")
        if saved is not None and tuple(saved.tolist()) != self.numbers:
            start, stop, classes, rank, world = saved.tolist()
            raise ValueError(
                f"this state holds the classes {start}:{stop} of {classes} (rank {rank} of {world}); the head "
                f"holds {self.start}:{self.stop} of {self.classes} (rank {self.rank} of {self.world}). "
                "Join the slices of all ranks and split them anew."
            )

    def check_slice(self, weight: Tensor) -> None:
        """The weight of these classes, and no other."""
        if weight.shape[0] != self.count:
            raise ValueError(
                f"weight must have {self.count} rows, this rank's classes {self.start}:{self.stop} of "
                f"{self.classes}; got {tuple(weight.shape)}. Give weight[part.start : part.stop]."
            )

    def refuse_ddp(self, weight: Tensor) -> None:
        """An error inside the forward of a DistributedDataParallel that looks after this weight."""
        # It says so for the sake of torch.compile; where a version of torch does not, nothing is noticed.
        ddp = getattr(torch.nn.parallel.DistributedDataParallel, "_active_ddp_module", None)
        if not any(weight is each for each in getattr(ddp, "_module_parameters", ())):
            return
        if self.world > 1:
            raise RuntimeError(
                "this head holds a slice of the classes, and DistributedDataParallel has given all ranks that of "
                "rank 0. Wrap the network alone, make the head anew (or load its weights), and call it outside."
            )
        raise RuntimeError(
            "sample=PartialFC(…) makes sparse gradients, which DistributedDataParallel cannot add up. Give the "
            "head shard=Shard() as well, wrap the network alone, and call the head outside."
        )

    def agree(
        self,
        rows: int,
        kind: str,
        flags: tuple[bool, bool],
        device: torch.device,
        problem: Exception | None = None,
    ) -> tuple[Rows, list[list[bool]]]:
        """Tell the others what comes: how many rows, of what kind, with what flags (returned as flags by rank).

        If any rank refuses its batch, all do, since they would wait for it for ever.
        """
        factor = float(self.world) if self.shard.average else 1.0
        # Where the group can also speak through the CPU, the GPU need not be waited for.
        where = torch.device("cpu") if "cpu:" in dist.get_backend_config(self.group) else device
        mine = [rows, problem is not None, zlib.crc32(kind.encode()), *flags]
        every = Rows([1] * self.world, self.rank, self.group)
        table = every.collected(torch.tensor([mine], dtype=torch.int64, device=where)).tolist()
        if any(line[1] for line in table):
            words = self._words("" if problem is None else str(problem))
            if problem is not None:
                raise problem
            rank = next(r for r, line in enumerate(table) if line[1])
            raise ValueError(f"rank {rank} refused its batch, so all ranks do: {words[rank]}")
        if len({line[2] for line in table}) > 1:
            words = self._words(kind)
            said = (
                f"{word} on ranks {[r for r, w in enumerate(words) if w == word]}" for word in dict.fromkeys(words)
            )
            raise ValueError(
                f"all ranks must ask for the same, with a batch of the same kind; got {'; '.join(said)}."
            )
        return Rows([line[0] for line in table], self.rank, self.group, factor), [
            [bool(flag) for flag in line[3:]] for line in table
        ]

    def refuse(self, problem: Exception, device: torch.device) -> NoReturn:
        """Raise a problem of this rank's batch, here and on every other rank."""
        self.agree(0, "", (False, False), device, problem)
        raise problem

    def _words(self, mine: str) -> list[str]:
        words: list[Any] = [None] * self.world
        dist.all_gather_object(words, mine, group=self.group)
        return words

    def spread(self, x: Tensor) -> Tensor:
        """A parameter all ranks hold alike, for use in my share of the work."""
        return collective.spread(x, self.group) if self.world > 1 and x.requires_grad else x

    def sum(self, x: Tensor) -> Tensor:
        """Σ over the ranks."""
        return collective.sum_partial(x, self.group) if self.world > 1 else x

    def mean(self, table: Tensor) -> Tensor:
        """Of the numbers in a table by class, over all classes."""
        return self.sum(table.sum()) / (self.classes * math.prod(table.shape[1:]))

    def largest(self, x: Tensor) -> Tensor:
        """The largest over the ranks, without gradient."""
        return collective.all_reduce(x, "MAX", self.group) if self.world > 1 else x.detach()

    def combine(self, rivals: Tensor, *sums: Tensor | None, bound: float | None) -> list[Any]:
        """R over all classes, then the sums of the others, each (N,) or (N, K), in the one SUM that all share.

        `bound` is a number no logit exceeds, if one is known. Without it the largest R of each row is found first.
        Sums are float64: exp(R − bound) would leave float32's range from bound = 43 on; T comes through exactly.
        """
        if self.world == 1:
            return [rivals, *sums]
        if bound is not None and bound <= LARGEST_BOUND:
            shift: Tensor | float = bound
        else:
            most = self.largest(rivals).double()
            shift = most.masked_fill(most == -math.inf, 0.0)
        given = [(rivals.double() - shift).exp(), *(x for x in sums if x is not None)]
        columns = [x.double().reshape(x.shape[0], math.prod(x.shape[1:])) for x in given]
        total = torch.split(self.sum(torch.cat(columns, 1)), [c.shape[1] for c in columns], 1)
        whole = total[0].squeeze(1)
        none = whole == 0
        R = (shift + whole.masked_fill(none, 1.0).log()).masked_fill(none, -math.inf)
        rest = iter(total[1:])
        shaped = [None if x is None else next(rest).reshape(x.shape).to(x.dtype) for x in sums]
        return [R.to(rivals.dtype), *shaped]

    @torch.no_grad()
    def first_weights(self, weight: Tensor, std: float) -> None:
        """Normal numbers drawn by blocks of classes, each with its own seed: the same for any number of ranks."""
        base = zlib.crc32(f"hypermargin {self.shard.seed}".encode())
        rng = torch.Generator(weight.device)
        for first in range(self.start // _BLOCK * _BLOCK, self.stop, _BLOCK):
            rng.manual_seed((base + first // _BLOCK) % 2**32)  # the CPU's generator reads 32 bits: none twice
            drawn = torch.empty(_BLOCK, weight.shape[1], dtype=weight.dtype, device=weight.device)
            drawn.normal_(std=std, generator=rng)
            low, high = max(first, self.start), min(first + _BLOCK, self.stop)
            weight[low - self.start : high - self.start] = drawn[low - first : high - first]
