"""What one of many GPUs would have to compute, on one GPU: a rank's slice of the classes against everybody's rows.

No message is sent: these are the times that `advise.step_cost` computes with. ArcFace s = 64, m = 0.5, d = 512,
weight in float32, bfloat16 by autocast, launched kernel by kernel, as a sharded head is.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks import command
from benchmarks.contenders import SCALE, M
from benchmarks.record import Say, environment, in_words, store
from hypermargin import FusedSGD, MarginHead, PartialFC, SampledSGD, Shard
from hypermargin.backends.fused import Triton, why_not
from hypermargin.margins import ArcFace
from hypermargin.parallel.partial_fc import draw

DIM, RATE = 512, 0.1
SETTINGS: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4}
OF_8, OF_64 = 12_500_000, 1_562_500  # of 100 million
# rows of all ranks, classes held, megabytes that may be kept, optimiser
KNOTS = [(rows, OF_8 if rows <= 1024 else OF_64) for rows in (128, 1024, 4096, 8192, 16384, 32768, 65536)]
CASES = (
    (1024, 1_000_000, 480, "none"),
    *((rows, classes, 480, "none") for rows, classes in KNOTS),
    *((rows, classes, 131072, "none") for rows, classes in KNOTS[:-1]),  # 65,536 rows: 205 GB would be kept
    (8192, OF_8, 480, "none"),
    (8192, OF_8, 480, "FusedSGD"),
    (1024, OF_8, 480, "FusedSGD"),
    (65536, OF_64, 480, "FusedSGD"),
    (512, 29_000_000, 480, "FusedSGD"),
    (1024, OF_8, 480, "SGD(fused=True)"),
    (1024, OF_8, 480, "SGD"),
    (1024, OF_8, 480, "SampledSGD"),
    (8192, OF_8, 480, "SampledSGD"),
    (8192, OF_64, 480, "SampledSGD"),
    (65536, OF_64, 480, "SampledSGD"),
)


def measure(rows: int, classes: int, memory: int, optimizer: str, rounds: int) -> dict[str, Any]:
    """Seconds of forward and backward, of the optimiser's step after it, and the most memory allocated."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    sample = PartialFC(RATE) if optimizer == "SampledSGD" else None
    options: dict[str, Any] = {"scale": SCALE, "sample": sample, "check": False, "device": "cuda"}
    head = MarginHead(DIM, classes, ArcFace(M), backend=Triton(memory=memory), **options)
    makers: dict[str, Callable[[], Any]] = {
        "none": lambda: torch.optim.SGD(head.parameters(), lr=0.0),  # for zero_grad
        "SGD": lambda: torch.optim.SGD(head.parameters(), **SETTINGS),
        "SGD(fused=True)": lambda: torch.optim.SGD(head.parameters(), **SETTINGS, fused=True),
        "FusedSGD": lambda: FusedSGD(head, **SETTINGS),
        "SampledSGD": lambda: SampledSGD(head.parameters(), **SETTINGS),
    }
    chosen = makers[optimizer]()
    x = torch.randn(rows, DIM, device="cuda").requires_grad_()
    y = torch.randint(0, classes, (rows,), device="cuda")
    computing: list[float] = []
    stepping: list[float] = []
    for number in range(rounds + 2):  # the first two compile and make the momentum
        x.grad = None
        chosen.zero_grad()
        start = _now()
        with torch.autocast("cuda", torch.bfloat16):
            loss = head(x, y)
        loss.backward()
        middle = _now()
        if optimizer != "none":
            chosen.step()
        if number > 1:
            computing.append(middle - start)
            stepping.append(_now() - middle)
    found: dict[str, Any] = {"rows": rows, "classes": classes, "memory": memory, "optimizer": optimizer}
    found |= {"compute": statistics.median(computing), "step": statistics.median(stepping)}
    found["peak"] = torch.cuda.max_memory_allocated()
    if sample is not None:
        found["draw"] = _drawing(sample, classes, y)
    return found


def one_rank(rows: int, classes: int, rounds: int) -> dict[str, Any]:
    """Seconds of forward and backward of the plain head, and of a sharded one that is alone in its group."""
    options: dict[str, Any] = {"scale": SCALE, "check": False, "device": "cuda", "backend": Triton(memory=480)}
    heads = {
        "plain": MarginHead(DIM, classes, ArcFace(M), **options),
        "sharded": MarginHead(DIM, classes, ArcFace(M), shard=Shard(), **options),
    }
    x = torch.randn(rows, DIM, device="cuda").requires_grad_()
    y = torch.randint(0, classes, (rows,), device="cuda")
    seconds: dict[str, list[float]] = {name: [] for name in heads}
    for number in range(rounds + 3):
        for name, head in heads.items():  # in turn, so that both see the same clock
            x.grad = head.weight.grad = None
            start = _now()
            with torch.autocast("cuda", torch.bfloat16):
                loss = head(x, y)
            loss.backward()
            if number > 2:
                seconds[name].append(_now() - start)
    return {"rows": rows, "classes": classes, **{name: statistics.median(s) for name, s in seconds.items()}}


def _drawing(sample: PartialFC, classes: int, labels: torch.Tensor) -> float:
    """Seconds to choose the classes of a step."""
    seconds, step = [], torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(5):
        start = _now()
        draw(sample, step, range(classes), classes, labels)
        seconds.append(_now() - start)
    return statistics.median(seconds)


def _now() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


def as_markdown(result: dict[str, Any]) -> str:
    """The table, for people."""
    env = result["environment"]
    lines = [
        f"# A rank's share of the work, {env['device']}",
        "",
        in_words(env),
        f"ArcFace s = 64, m = 0.5, d = {DIM}, weight in float32, bfloat16 by autocast, eager; no messages. N: rows "
        "of all ranks; C: classes of one. 12,500,000 are an eighth of 100 million, 1,562,500 a 64th. Kept: "
        f"`Triton(memory=…)`. Medians of {result['rounds']} steps after two. Peak: all memory allocated, weight "
        f"included. SampledSGD: Partial FC with rate {RATE:g}; drawing the sample is part of forward and backward.",
        "",
        "| N | C | kept, MB | optimiser | forward, backward, ms | drawing, ms | optimiser's step, ms | peak GiB |",
        "|---:|---:|---:|---|---:|---:|---:|---:|",
    ]
    for row in result["table"]:
        drawing = f"{1e3 * row['draw']:.1f}" if "draw" in row else ""
        step = "" if row["optimizer"] == "none" else f"{1e3 * row['step']:.1f}"
        lines.append(
            f"| {row['rows']:,} | {row['classes']:,} | {row['memory']:,} | {row['optimizer']} | "
            f"{1e3 * row['compute']:.1f} | {drawing} | {step} | {row['peak'] / 2**30:.1f} |"
        )
    lines += [
        "",
        "The code of a sharded head with one rank (NCCL) beside the plain head, forward and backward, in turn:",
        "",
        "| N | C | plain, ms | sharded, ms | ratio |",
        "|---:|---:|---:|---:|---:|",
    ]
    for row in result["one rank"]:
        plain, sharded = 1e3 * row["plain"], 1e3 * row["sharded"]
        lines.append(
            f"| {row['rows']:,} | {row['classes']:,} | {plain:.2f} | {sharded:.2f} | {sharded / plain:.3f} |"
        )
    return "\n".join(lines) + "\n"


def run(out: Path | None = None, say: Say = print, *, rounds: int = 5) -> dict[str, Any]:
    """The whole benchmark, two minutes on an H200; writes slices-cuda.json and .md into `out`."""
    reason = why_not(torch.device("cuda")) if torch.cuda.is_available() else "there is no CUDA device"
    if reason:
        raise ValueError(f"the benchmark of slices cannot run here: {reason}.")
    result: dict[str, Any] = {"environment": environment("cuda"), "rounds": rounds, "table": []}
    for case in CASES:
        say(f"{case[0]:,} × {case[1]:,}, {case[2]:,} MB, {case[3]}")
        result["table"].append(measure(*case, rounds))
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("nccl", init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            sizes = ((1024, 100_000), (1024, 1_000_000), (4096, 1_000_000))
            result["one rank"] = [one_rank(rows, classes, 4 * rounds) for rows, classes in sizes]
        finally:
            dist.destroy_process_group()
    store(result, as_markdown(result), "slices-cuda", out, say)
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command.flags(
        "slices",
        "A rank's share of the work on one GPU: two minutes on an H200.",
        "",
        "--rounds 10 --out results",
    )
    parser.add_argument("--rounds", type=command.at_least(1), default=5, help="steps to time, after two")
    given = parser.parse_args(arguments)
    with command.plain_errors(parser):
        result = run(given.out, command.say, rounds=given.rounds)
    print(as_markdown(result))


if __name__ == "__main__":
    main()
