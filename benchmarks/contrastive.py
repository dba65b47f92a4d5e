"""`contrastive` beside the formula people write: time and peak memory of a training step of N pairs.

A step is the loss and its gradients by both sides and by the learned scale; the pairs are given, so nothing of a
network is in it. The plain formula makes one N×N matrix and takes the cross-entropy of its rows and of its columns;
ours computes the products twice, in blocks, and keeps none.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks import command
from benchmarks.measure import ask_a_fresh_process, interleaved, peak_extra_bytes
from benchmarks.record import Say, environment, in_words, store, surroundings, threads_set
from hypermargin import contrastive

SIZES = {"cpu": (2048, 4096, 8192), "cuda": (4096, 16_384, 65_536)}
SCALE = 1 / 0.07  # where CLIP begins
PLAIN = "the plain formula"


class Pairs:
    """N pairs of d dimensions, with the names that `benchmarks.measure` knows."""

    def __init__(self, rows: int, dim: int, device: str) -> None:
        rng = torch.Generator().manual_seed(0)
        self.device = device
        a = torch.randn(rows, dim, generator=rng)
        b = a + torch.randn(rows, dim, generator=rng)
        self.x, self.W = (t.to(device).requires_grad_() for t in (a, b))
        self.scale = torch.tensor(SCALE, device=device, requires_grad=True)

    def drop_gradients(self) -> None:
        self.x.grad = self.W.grad = self.scale.grad = None

    def stepper(self, loss_of: Callable[..., torch.Tensor]) -> Callable[[], None]:
        def step() -> None:
            self.drop_gradients()
            with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
                loss = loss_of(self.x, self.W, self.scale)
            loss.backward()  # type: ignore[no-untyped-call]

        return step


def plain(a: torch.Tensor, b: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """One N×N matrix, and the cross-entropy of its rows and columns."""
    z = scale * F.normalize(a) @ F.normalize(b).T
    y = torch.arange(len(a), device=a.device)
    return (F.cross_entropy(z, y) + F.cross_entropy(z.T, y)) / 2


CONTENDERS: dict[str, Callable[..., torch.Tensor]] = {
    PLAIN: plain,
    "contrastive": contrastive,
    "contrastive, chunked": lambda a, b, s: contrastive(a, b, s, backend="chunked"),
}


def peak_memory(name: str, rows: int, dim: int, device: str, threads: int) -> int:
    """The most memory of a step beyond its inputs, in this process."""
    torch.set_num_threads(threads)
    pairs: Any = Pairs(rows, dim, device)
    return peak_extra_bytes(pairs.stepper(CONTENDERS[name]), pairs)


def at_size(rows: int, dim: int, device: str, rounds: int, threads: int, say: Say) -> dict[str, Any]:
    """Seconds, bytes and the difference from the plain formula of every contender."""
    say(f"{rows:,} pairs")
    pairs = Pairs(rows, dim, device)
    steps = {name: pairs.stepper(loss_of) for name, loss_of in CONTENDERS.items()}
    times = interleaved(steps, rounds, device, pairs.drop_gradients)
    pairs.drop_gradients()
    found: dict[str, Any] = {}
    for name in CONTENDERS:
        if not times[name]:
            found[name] = None  # out of memory
            continue
        request = {"rows": rows, "dim": dim, "device": device, "threads": threads}
        found[name] = {
            "median": statistics.median(times[name]),
            "min": min(times[name]),
            "bytes": ask_a_fresh_process("benchmarks.contrastive", name, request),
        }
    return {"rows": rows, "dim": dim, "rounds": rounds, "contenders": found}


def as_markdown(result: dict[str, Any]) -> str:
    """The table: milliseconds and megabytes of each contender at each size."""
    sizes = result["sizes"]
    lines = [
        f"# Contrastive loss on {result['environment']['device']}",
        "",
        f"A training step of N pairs, d = {sizes[0]['dim']}: loss, gradients by both sides and by the scale. "
        "Milliseconds, least (and median) of the rounds; MB beyond the inputs at the peak, gradients included.",
        "",
        "| | " + " | ".join(f"N = {s['rows']:,}" for s in sizes) + " |",
        "|---|" + "---:|" * len(sizes),
    ]
    for name in CONTENDERS:
        cells = []
        for size in sizes:
            seen = size["contenders"][name]
            cells.append(
                "out of memory"
                if seen is None
                else f"{1e3 * seen['min']:,.0f} ({1e3 * seen['median']:,.0f}) ms, {seen['bytes'] / 1e6:,.0f} MB"
            )
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", in_words(result["environment"]), ""])


def run(
    device: str = "cpu", *, sizes: Sequence[int] = (), dim: int = 256, rounds: int = 5, threads: int = 1,
    out: Path | None = None, say: Say = print,
) -> dict[str, Any]:  # fmt: skip
    """The whole benchmark; writes contrastive-cpu.json (or -cuda) and .md into `out`."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda needs a CUDA device; there is none.")
    with threads_set(threads):
        found = [at_size(rows, dim, device, rounds, threads, say) for rows in sizes or SIZES[device]]
        result = {"environment": surroundings() if device == "cpu" else environment(device), "sizes": found}
    store(result, as_markdown(result), f"contrastive-{device}", out, say)
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command.flags(
        "contrastive", "Time and memory of the contrastive loss beside the plain formula.", "", "--device cuda",
        "--sizes 512 1024 --rounds 2 --out results",
    )  # fmt: skip
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="float32, or bfloat16 by autocast")
    parser.add_argument("--sizes", type=command.at_least(2), nargs="+", default=(), help="numbers of pairs")
    parser.add_argument("--dim", type=command.at_least(1), default=256, help="dimensions of a side")
    parser.add_argument("--rounds", type=command.at_least(1), default=5, help="steps of each, in turn")
    parser.add_argument("--threads", type=command.at_least(1), default=1, help="torch's threads on the CPU")
    given = vars(parser.parse_args(arguments))
    with command.plain_errors(parser):
        result = run(**given, say=command.say)
    print(as_markdown(result))


if __name__ == "__main__":
    main()
