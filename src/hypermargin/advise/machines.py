"""How long a step takes and how much memory it needs when the classes lie on several GPUs: a model, on paper.

Computing is measured, on one H200 that did one rank's share of the work (benchmarks/results/slices-cuda.md);
messages are counted (`parallel.traffic`) and divided by a stated speed. No machine with several GPUs was used.
"""

from __future__ import annotations

from bisect import bisect
from typing import NamedTuple

from hypermargin import checks
from hypermargin.parallel.traffic import Traffic, traffic

# Nanoseconds a class, forward and backward, by the rows of all ranks: d = 512, bfloat16 products, float32 weight.
RECOMPUTED = {128: 4.645, 1024: 10.43, 4096: 33.21, 8192: 63.06, 16384: 125.2, 32768: 295.8, 65536: 640.8}
KEPT = {
    128: 3.105,
    1024: 7.772,
    4096: 24.52,
    8192: 47.99,
    16384: 96.23,
    32768: 212.0,
}  # exp z kept for the backward
# The optimiser: ns a class held, ns a class that took part, and tables of C×d float32 in memory at its peak.
OPTIMIZERS = {"FusedSGD": (1.59, 0.0, 2), "SGD(fused=True)": (2.88, 0.0, 3), "SGD": (6.02, 0.0, 4)}
SAMPLED = (0.84, 15.2, 2)  # drawing, SampledSGD's step; and of the sampled rows five tables more
SAMPLED_TABLES = 5
MEASURED_DIM = 512
WORK = 2**29  # bytes beyond tables and what is kept
ROW_TABLES = 22  # of N×d float32 beside
GPU_MEMORY = 150e9  # an H200: 139.8 GiB
NODE = 8  # GPUs that NVLink joins
MESSAGES = 5  # a step: what comes, features, labels, sums, gradient


class Link(NamedTuple):
    """How a GPU sends: nominal bytes per second and direction, the share that is reached, seconds per message."""

    name: str
    nominal: float
    efficiency: float
    latency: float

    @property
    def speed(self) -> float:
        """The bytes per second that are counted with."""
        return self.nominal * self.efficiency


NVLINK = Link("NVLink 4", 450e9, 0.8, 30e-6)
INFINIBAND = Link("InfiniBand NDR", 50e9, 0.8, 100e-6)


class StepCost(NamedTuple):
    """One rank's step. Seconds and bytes; `str()` shows how they come about."""

    world_size: int
    rows: int  # of all ranks
    classes: int  # held by a rank
    taking_part: int  # of them, in a step
    operations: float  # of the three products
    per_class: float  # seconds, of each that takes part
    optimizer_name: str
    optimizer: float  # seconds; with Partial FC, drawing the sample too
    sent: Traffic
    link: Link
    weight: float
    tables: float  # momentum, gradient, and what else the optimiser holds
    kept: float
    work: float

    @property
    def compute(self) -> float:
        """Seconds of forward and backward, without messages."""
        return self.per_class * self.taking_part

    @property
    def messages(self) -> float:
        """Seconds of all messages, one after the other, none hidden behind computing."""
        return self.sent.total / self.link.speed + MESSAGES * self.link.latency if self.world_size > 1 else 0.0

    @property
    def seconds(self) -> float:
        """The seconds of the whole step."""
        return self.compute + self.optimizer + self.messages

    @property
    def memory(self) -> float:
        """The bytes that each rank needs."""
        return self.weight + self.tables + self.kept + self.work

    @property
    def fits(self) -> bool:
        """Tell whether an H200 has that much, with a tenth left for the network."""
        return self.memory <= 0.9 * GPU_MEMORY

    def __str__(self) -> str:
        W, n = self.world_size, f"{self.taking_part:,}"
        products = f"3 products × 2 × {self.rows:,} × d × {n} = {self.operations / 1e12:.3g} TFLOP"
        lines = [
            f"ranks       {W}, each with {self.classes:,} classes; {self.rows:,} rows in all",
            f"operations  {products}",
            f"compute     {n} classes × {1e9 * self.per_class:.4g} ns = {_ms(self.compute)}",
            f"optimiser   {self.optimizer_name}: {_ms(self.optimizer)}",
            f"messages    {self.sent.total / 1e6:.3g} MB at {self.link.speed / 1e9:g} GB/s ({self.link.name}) + "
            f"{MESSAGES} × {1e6 * self.link.latency:g} µs = {_ms(self.messages)}",
            f"step        {_ms(self.seconds)}",
            f"memory      weight {_gb(self.weight)} + optimiser's tables {_gb(self.tables)} + exp z kept "
            f"{_gb(self.kept)} + work {_gb(self.work)} = {_gb(self.memory)}",
        ]
        if W == 1:
            del lines[4]
        return "\n".join(lines)


def step_cost(
    classes: int,
    rows: int,
    world_size: int = 1,
    *,
    dim: int = 512,
    keep: bool = False,
    optimizer: str = "FusedSGD",
    rate: float = 1.0,
    link: Link | None = None,
) -> StepCost:
    """Estimate the step of a head with `classes` classes on `world_size` H200s, each of which brings `rows` rows.

    - keep: exp z is kept for the backward (`Triton(memory=…)`), else computed again
    - optimizer: "FusedSGD", "SGD(fused=True)" or "SGD"; a `rate` below 1 is Partial FC with `SampledSGD`
    - link: NVLINK up to 8 ranks and INFINIBAND beyond, unless given. All of a rank's bytes go over it.

    Linear in the classes; in the rows of all ranks between measured points, beyond the last in proportion. Other
    dimensions than 512 are taken in proportion too. Not in it: the network, waiting for slow ranks, launching (some
    milliseconds, which show below a million classes per rank), and messages hidden behind computing.
    """
    for name, value in (("classes", classes), ("rows", rows), ("world_size", world_size), ("dim", dim)):
        checks.count(name, value)
    checks.one_of("optimizer", optimizer, tuple(OPTIMIZERS))
    checks.positive("rate", rate)
    if rate > 1:
        raise ValueError(f"rate must lie in (0, 1]; got {rate:g}. 1 is all classes.")
    each, every = -(-classes // world_size), rows * world_size
    part = max(round(rate * each), 1)
    name, (held_ns, part_ns, tables) = optimizer, OPTIMIZERS[optimizer]
    if rate < 1:
        name, (held_ns, part_ns, tables) = "drawing and SampledSGD", SAMPLED
    larger, one = dim / MEASURED_DIM, 4.0 * each * dim
    # Numbers of classes are drawn, whatever their dimension.
    stepping = held_ns * each * (larger if rate == 1 else 1.0) + part_ns * part * larger
    return StepCost(
        world_size=world_size,
        rows=every,
        classes=each,
        taking_part=part,
        operations=6.0 * every * dim * part,
        per_class=1e-9 * larger * _at(every, KEPT if keep else RECOMPUTED),
        optimizer_name=name,
        optimizer=1e-9 * stepping,
        sent=traffic(rows, dim, world_size),
        link=link or (NVLINK if world_size <= NODE else INFINIBAND),
        weight=one,
        tables=(tables - 1) * one + (SAMPLED_TABLES * one * part / each if rate < 1 else 0.0),
        kept=2.0 * (every + dim) * part if keep else 0.0,
        work=WORK + ROW_TABLES * 4.0 * every * dim,
    )


def _at(rows: int, measured: dict[int, float]) -> float:
    """Interpolate between the measured points; few rows cost what the fewest do, reading the weight."""
    known = list(measured)
    if rows <= known[0]:
        return measured[known[0]]
    if rows >= known[-1]:
        return measured[known[-1]] * rows / known[-1]
    right = bisect(known, rows)
    low, high = known[right - 1], known[right]
    return measured[low] + (measured[high] - measured[low]) * (rows - low) / (high - low)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f} ms" if seconds >= 0.0995 else f"{1e3 * seconds:.2g} ms"


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB"
