"""Classes split over several processes: every rank holds a slice of them and scores the rows of all ranks.

    own rows ─► all rows (gather) ─► any backend on own classes ─► margin, where the label is an own class
        ─► T: SUM, R: log-sum-exp, over the ranks (N numbers each) ─► the loss, the same on every rank

Before the sum over the ranks every rank computes its own share; after it all ranks compute the same. So dW needs
no communication, dX needs one sum over the ranks, and a learned s or m, which every share uses, needs another.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hypermargin import checks
from hypermargin.batch import NO_CLASS, NO_LABEL, Batch
from hypermargin.centers import Centers
from hypermargin.layout import ClassTable, Layout, Share, bias_by_row, by_center, places, rows_of
from hypermargin.numerics import Reading, wide_dtype, widen
from hypermargin.parallel import messages
from hypermargin.parallel.messages import Group, Rows, gather_rows, join, own_rows
from hypermargin.rules import Aggregate

# exp(R − bound) ≥ exp(−2·bound), and float64 keeps all its digits down to exp(−708).
LARGEST_BOUND = 300.0
_BLOCK = 1024  # rows whose initial weights are drawn together


@dataclass(frozen=True)
class Shard:
    """Settings of a head whose classes are split over a process group, for `MarginHead(…, shard=Shard(…))`.

    - process_group: a group of torch.distributed; by default all processes
    - average: DDP and FSDP divide the sum of the network's gradients by the number of ranks, while this loss is the
        mean over the rows of all ranks already. True undoes that division: the gradients of the features, and of
        everything else given by row, are multiplied by the number of ranks. False leaves them as in a single
        process, for networks whose gradients are summed.
      - seed: of the initial weights, which are the same for every number of ranks

      DDP and FSDP must not wrap the head: DDP would give every rank the slice of rank 0 (forward raises), and FSDP
      would split each slice again and join pieces of different slices (without an error).
      Code that computes something from all gradients sees a different slice on every rank, so that the ranks would
      diverge. For float16 use torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler, and to clip,
      hypermargin.training.optim.clip_gradients.
    """

    process_group: dist.ProcessGroup | None = None
    average: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        checks.count("Shard(seed=…)", self.seed, 0)

    def __deepcopy__(self, memo: Any) -> Shard:
        return self  # a process group cannot be copied

    def layout(self, classes: int) -> Sharded:
        """Return the layout of `classes` classes on the ranks of this group, as seen by this process."""
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
        return Sharded(classes, rank, world, self)


def is_in_ddp(weight: Tensor) -> bool:
    """Return whether this runs inside the forward of a DistributedDataParallel that manages the weight."""
    # DDP sets this attribute for torch.compile; with a version of torch that does not, the answer is False.
    ddp = getattr(torch.nn.parallel.DistributedDataParallel, "_active_ddp_module", None)
    return any(weight is each for each in getattr(ddp, "_module_parameters", ()))


def never_empty(table: ClassTable) -> ClassTable:
    """Return the table, or a class of zeros if it is empty, so that this rank still joins every collective."""
    if table.weight.shape[0]:
        return table
    K = table.centers.count

    def with_zeros(x: Tensor) -> Tensor:
        return torch.cat((x, x.new_zeros(K, *x.shape[1:])))

    bias, m, times = (None if x is None else with_zeros(x) for x in (table.bias, table.m, table.times))
    return table._replace(weight=with_zeros(table.weight), bias=bias, m=m, times=times, is_empty=True)


def class_range(classes: int, rank: int, world: int) -> tuple[int, int]:
    """Return [start, stop) of the classes of a rank, split as DTensor's Shard(0) does.

    The first ranks have ⌈C/world⌉ classes each, the next one has what is left, and any after it have none.
    Spreading the remainder evenly would not help: the slowest rank has ⌈C/world⌉ classes either way.
    """
    size = -(-classes // world)
    return min(rank * size, classes), min((rank + 1) * size, classes)


class Sharded(Layout):
    """`total` classes on the ranks of a process group, of which this process holds the slice of `rank`."""

    def __init__(self, total: int, rank: int = 0, world: int = 1, shard: Shard | None = None) -> None:
        self.total, self.rank, self.world, self.shard = total, rank, world, shard or Shard()
        self.start, self.stop = class_range(total, rank, world)
        self._read = Reading()

    @property
    def group(self) -> Group:
        """The process group; None means all processes."""
        return self.shard.process_group

    @property
    def numbers(self) -> tuple[int, int, int, int, int]:
        """The numbers (start, stop, classes, rank, world), which identify a saved slice."""
        return self.start, self.stop, self.total, self.rank, self.world

    def classes(self, here: int) -> int:
        """Return the number of classes of all ranks together."""
        return self.total

    def held(self, classes: int) -> range:
        """Return the range of classes that this rank holds."""
        return range(self.start, self.stop)

    def busiest(self, here: int) -> int:
        """Return the number of classes of the rank that has most."""
        return -(-self.total // self.world)

    def check_state(self, head: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
        """Raise if a saved slice belongs to another rank or another split; a hook that runs before loading."""
        saved = state.get(prefix + "classes_held")
        if saved is not None and tuple(saved.tolist()) != self.numbers:
            start, stop, classes, rank, world = saved.tolist()
            raise ValueError(
                f"this state holds the classes {start}:{stop} of {classes} (rank {rank} of {world}); the head "
                f"holds {self.start}:{self.stop} of {self.total} (rank {self.rank} of {self.world}). "
                "Join the slices of all ranks and split them anew."
            )

    def check_weight(self, weight: Tensor, centers: Centers) -> None:
        """Raise unless the weight is that of this rank's classes, which may be none."""
        if weight.shape[0] != (self.stop - self.start) * centers.count:
            raise ValueError(
                f"weight must have {(self.stop - self.start) * centers.count} rows, this rank's classes "
                f"{self.start}:{self.stop} of {self.total}; got {tuple(weight.shape)}. Give "
                "weight[layout.start : layout.stop]."
            )

    def refuse_ddp(self, weight: Tensor) -> None:
        """Raise inside the forward of a DistributedDataParallel that manages this weight."""
        if self.world > 1 and is_in_ddp(weight):
            raise RuntimeError(
                "this head holds a slice of the classes, and DistributedDataParallel has given all ranks that of "
                "rank 0. Wrap the network alone, make the head anew (or load its weights), and call it outside."
            )

    def gather(self, check: Callable[[], Batch], asked: str, weight: Tensor) -> Batch:
        """Return the batch of all ranks; if the check fails on one rank, all raise."""
        if self.world == 1:
            return check()
        try:
            mine = check()
        except Exception as error:
            self.agree(0, "", (False, False), weight.device, error)
            raise
        x, share = mine.features, mine.share
        wide = wide_dtype(x, weight)
        by_row: dict[str, Tensor] = {}
        if isinstance(mine.scale, Tensor) and mine.scale.dim():
            by_row["scale"] = mine.scale
        if mine.m is not None and mine.m_by_row:
            by_row["m"] = mine.m
        if mine.y.shape[1] == 2:  # mixup: each rank may have drawn its own weight
            share = share.to(wide) if isinstance(share, Tensor) else x.new_full((), share, dtype=wide)
            by_row["mix weight"] = share.expand(x.shape[0])
        learns = torch.is_grad_enabled()
        words = [asked, f"{x.dtype} features", f"{mine.y.shape[1]} labels per row"]
        words += [f"gradients {'on' if learns else 'off'}"]
        words += [] if isinstance(mine.scale, Tensor) else [f"scale {mine.scale:g}"]
        words += [f"{name} by row, {t.dtype}, gradient {t.requires_grad}" for name, t in by_row.items()]
        flags = learns and x.requires_grad, mine.used is None
        rows, by_rank = self.agree(x.shape[0], ", ".join(words), flags, x.device)
        if any(flags[0] for flags in by_rank) and not x.requires_grad:
            x = x.detach().requires_grad_()  # unused here, but this rank must join the collective in the backward
        of_all = {name: gather_rows(t, rows) for name, t in by_row.items()}
        scale, m, y = mine.scale, mine.m, rows.collected(mine.y)
        if isinstance(scale, Tensor) and "scale" not in by_row:
            scale = self.shared(widen(scale, wide))
        if m is not None and not mine.m_by_row:
            m = self.shared(widen(m, wide))
        all_count = all(flags[1] for flags in by_rank)
        return mine._replace(
            features=gather_rows(x, rows, wide),
            y=y,
            used=None if all_count else y[:, 0] != NO_LABEL,
            bad=None if all_count else y[:, 0] == NO_CLASS,
            scale=of_all.get("scale", scale),
            share=of_all.get("mix weight", share),
            m=of_all.get("m", m),
            rows=rows,
        )

    def table(
        self, weight: Tensor, batch: Batch, *, unit: bool, bias: Tensor | None, centers: Centers
    ) -> ClassTable:
        """Return this rank's slice; a slice without classes has one row of zeros, which no label refers to."""
        if self.world == 1:
            return super().table(weight, batch, unit=unit, bias=bias, centers=centers)
        if bias is not None and bias.dim() == 0:
            bias = self.shared(bias)
        K = centers.count
        local = rows_of(places(batch.y, self.held(self.total)), K)
        bias, m = bias_by_row(bias, weight, batch, K), by_center(batch.class_m, K)
        return never_empty(ClassTable(weight, unit, bias, local, local >= 0, centers, m))

    def agree(
        self,
        rows: int,
        kind: str,
        flags: tuple[bool, bool],
        device: torch.device,
        problem: Exception | None = None,
    ) -> tuple[Rows, list[list[bool]]]:
        """Return the row counts and the flags of every rank, after an exchange of what each is about to send.

        All ranks raise if the check of any rank's batch failed (`problem`), since the others would wait for that
        rank for ever, or if `kind` is not the same on all.
        """
        factor = float(self.world) if self.shard.average else 1.0
        # If the group also has a backend for the CPU, use that one: the GPU need not be waited for.
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

    def _words(self, mine: str) -> list[str]:
        words: list[Any] = [None] * self.world
        dist.all_gather_object(words, mine, group=self.group)
        return words

    def shared(self, x: Tensor) -> Tensor:
        """Return a parameter that all ranks hold alike, for use in a share; its gradients are summed over ranks."""
        return messages.spread(x, self.group) if self.world > 1 and x.requires_grad else x

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum of `x` over the ranks."""
        return messages.sum_partial(x, self.group) if self.world > 1 else x

    def collected(self, x: Tensor) -> Tensor:
        """Return the numbers (N, k) of all ranks side by side, without gradient."""
        if self.world == 1:
            return x.detach()
        every = x.new_zeros(len(x), self.world, x.shape[1])
        every[:, self.rank] = x.detach()
        return self.sum(every).flatten(1)

    def mean(self, by_class: Tensor) -> Tensor:
        """Return the mean of the numbers in a table by class, over the classes of all ranks."""
        return self.sum(by_class.sum()) / (self.total * math.prod(by_class.shape[1:]))

    def largest(self, x: Tensor) -> Tensor:
        """Return the largest `x` over the ranks, without gradient."""
        return messages.all_reduce(x, "MAX", self.group) if self.world > 1 else x.detach()

    def fixed(self, scale: Tensor) -> Tensor | float:
        """Return s as a number, which bounds the logits and so saves the ranks one round of messages."""
        return self._read(scale) if self.world > 1 else scale

    def own(self, by_row: Tensor, batch: Batch) -> Tensor:
        """Return the numbers of this rank's rows."""
        return by_row if batch.rows is None else own_rows(by_row, batch.rows)

    def columns(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return logits of this rank's rows against all classes; those of all ranks' rows are held on the way."""
        if batch.rows is None:
            return logits
        slices = (class_range(self.total, rank, self.world) for rank in range(self.world))
        counts = [stop - start for start, stop in slices]
        return own_rows(join(logits.T, Rows(counts, self.rank, self.group)).T, batch.rows)

    def combine(
        self, table: ClassTable, aggregate: Aggregate, share: Share, bound: float | Tensor | None = None
    ) -> Share:
        """Return the shares of all ranks added up, by one SUM over the ranks.

        If `bound` is not a number, or too large, another collective finds the largest R of each row first, unless R
        is a plain sum. Sums are in float64: exp(R − bound) would leave float32's range from bound = 43 on. T stays
        exact, since it is 0 on all ranks but one.
        """
        if self.world == 1:
            return share
        shift: Tensor | float = 0.0
        if aggregate.needs_shift:
            known = bound + table.raised if isinstance(bound, float) else math.inf
            if known <= LARGEST_BOUND:
                shift = known
            else:
                most = self.largest(share.rivals).double()
                shift = most.masked_fill(most == -math.inf, 0.0)
        sent = share._replace(rivals=aggregate.to_share(share.rivals.double(), shift))
        columns = [x.double().reshape(len(x), math.prod(x.shape[1:])) for x in sent if x is not None]
        sums = iter(torch.split(self.sum(torch.cat(columns, 1)), [c.shape[1] for c in columns], 1))
        whole = Share._make(None if x is None else next(sums).reshape(x.shape).to(x.dtype) for x in sent)
        return whole._replace(rivals=aggregate.from_shares(whole.rivals, shift).to(share.rivals.dtype))

    @torch.no_grad()
    def first_weights(self, weight: Tensor, std: float) -> None:
        """Draw normal weights in blocks of rows, each with its own seed: the same for any number of ranks."""
        centers = weight.shape[0] // max(self.stop - self.start, 1)
        start, stop = self.start * centers, self.stop * centers
        base = zlib.crc32(f"hypermargin {self.shard.seed}".encode())
        rng = torch.Generator(weight.device)
        for first in range(start // _BLOCK * _BLOCK, stop, _BLOCK):
            rng.manual_seed((base + first // _BLOCK) % 2**32)  # the CPU's generator uses 32 bits; no seed repeats
            drawn = torch.empty(_BLOCK, weight.shape[1], dtype=weight.dtype, device=weight.device)
            drawn.normal_(std=std, generator=rng)
            low, high = max(first, start), min(first + _BLOCK, stop)
            weight[low - start : high - start] = drawn[low - first : high - first]
