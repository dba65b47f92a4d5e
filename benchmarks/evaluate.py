"""The evaluation benchmark: all pairs of a set, beside the matrix product that nobody can do without.

The floor is x @ x.T a block of rows at a time, every pair twice; ours computes each product once and does the rest
in the time it saved. scikit-learn's roc_curve sorts all scores, so it gets a set whose pairs fit into memory; times
are compared by pair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from benchmarks import command
from benchmarks.measure import ask_a_fresh_process, interleaved, peak_extra_bytes
from benchmarks.record import Say, in_words, store, surroundings, threads_set
from hypermargin.evaluate import identification, verification

PER_IDENTITY = 10
SUBSET = 3000
CONTENDERS = {
    "product": "bare product, x @ x.T in blocks",
    "verification": "verification",
    "jackknife": "verification with intervals (jackknife)",
    "identification": "identification: rank-k and mAP",
    "sklearn": "scikit-learn's roc_curve and roc_auc_score",
}


class Problem:
    """Clouds of ten samples per identity, tight enough to be a good model's and loose enough to err."""

    def __init__(self, samples: int, dim: int, device: str) -> None:
        self.samples, self.dim, self.device = samples, dim, device
        generator = torch.Generator().manual_seed(0)
        self.y = torch.arange(samples) // PER_IDENTITY
        centers = torch.randn(int(self.y[-1]) + 1, dim, generator=generator)
        self.x = (centers[self.y] + 1.5 * torch.randn(samples, dim, generator=generator)).to(device)
        self.W = self.x  # there are no weights; `peak_extra_bytes` drops the gradients of both


def steps(p: Problem) -> dict[str, Callable[[], None]]:
    """What is timed; the last one works on the first SUBSET samples."""
    unit = torch.nn.functional.normalize(p.x)

    def product() -> None:
        for rows in torch.split(unit, 4096 if p.device == "cuda" else 512):
            torch.mm(rows, unit.T)

    def sklearn() -> None:
        from sklearn.metrics import roc_auc_score, roc_curve

        few: Tensor = unit[:SUBSET]
        i, j = torch.triu_indices(len(few), len(few), 1)
        scores = (few @ few.T).cpu()[i, j].numpy()
        same = (p.y[i] == p.y[j]).numpy()
        roc_curve(same, scores)
        roc_auc_score(same, scores)

    return {
        "product": product,
        "verification": lambda: void(verification(p.x, p.y)),
        "jackknife": lambda: void(verification(p.x, p.y, confidence=0.95, method="jackknife")),
        "identification": lambda: void(identification(p.x, p.y)),
        "sklearn": sklearn,
    }


def void(_: object) -> None:
    """Forget a result."""


def table(p: Problem, rounds: int, memory: bool, say: Say) -> list[dict[str, Any]]:
    """Best time of interleaved rounds and peak memory of every contender."""
    times = interleaved(steps(p), rounds, p.device)
    pairs = p.samples * (p.samples - 1) // 2
    few = min(SUBSET, p.samples)
    rows = []
    for name, seconds in times.items():
        own = few * (few - 1) // 2 if name == "sklearn" else pairs
        row: dict[str, Any] = {
            "name": name,
            "pairs": own,
            "seconds": min(seconds),
            "ns_a_pair": 1e9 * min(seconds) / own,
        }
        if memory:
            say(f"{CONTENDERS[name]}: memory in a fresh process")
            row["peak_bytes"] = memory_in_a_fresh_process(name, p)
        rows.append(row)
    for row in rows:
        row["to_product"] = row["ns_a_pair"] / rows[0]["ns_a_pair"]
    return rows


def memory_in_a_fresh_process(name: str, p: Problem) -> int:
    """The most memory alive beyond what was alive before, where nothing ran before."""
    request = {"samples": p.samples, "dim": p.dim, "device": p.device, "threads": torch.get_num_threads()}
    return ask_a_fresh_process("benchmarks.evaluate", name, request)


def peak_memory(name: str, *, samples: int, dim: int, device: str, threads: int) -> int:
    """The same in this process; `ask_a_fresh_process` calls it there."""
    problem = Problem(samples, dim, device)
    with threads_set(threads):
        return peak_extra_bytes(steps(problem)[name], cast(Any, problem))


def as_markdown(result: dict[str, Any]) -> str:
    """The table, for people."""
    p, env = result["problem"], result["environment"]
    lines = [
        f"# Evaluation: all pairs of {p['samples']:,} × {p['dim']}, {p['threads']} threads, {p['device']}",
        "",
        in_words(env),
        f"{PER_IDENTITY} samples per identity; best of {p['rounds']} interleaved rounds. The product is the whole "
        "square, every pair twice; ratios are by pair. Memory is the most alive beyond what was alive before, in a "
        f"fresh process. scikit-learn has the first {min(SUBSET, p['samples']):,} samples, sorts all their scores, "
        "and gives the curve and its area only.",
        "",
        "| | pairs | seconds | ns a pair | × product | MB |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for row in result["table"]:
        megabytes = f"{row['peak_bytes'] / 1e6:,.0f}" if "peak_bytes" in row else ""
        lines.append(
            f"| {CONTENDERS[row['name']]} | {row['pairs']:,} | {row['seconds']:.2f} | {row['ns_a_pair']:.1f} | "
            f"{row['to_product']:.2f} | {megabytes} |"
        )
    return "\n".join(lines) + "\n"


def run(
    samples: int = 50_000,
    dim: int = 512,
    *,
    device: str = "cpu",
    threads: int = 2,
    rounds: int = 3,
    memory: bool = True,
    out: Path | None = None,
    say: Say = print,
) -> dict[str, Any]:
    """The whole benchmark; writes evaluate-….json and .md into `out`."""
    problem = {"samples": samples, "dim": dim, "device": device, "threads": threads, "rounds": rounds}
    with threads_set(threads):
        say(f"{samples:,} × {dim}: {rounds} interleaved rounds")
        result: dict[str, Any] = {"problem": problem, "environment": surroundings()}
        result["table"] = table(Problem(samples, dim, device), rounds, memory, say)
    store(result, as_markdown(result), f"evaluate-n{samples}-d{dim}-{device}", out, say)
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command.flags(
        "evaluate",
        "All pairs of many embeddings, beside the bare matrix product and scikit-learn: time and memory.",
        "",
        "--samples 10000 --out results",
    )
    several = command.at_least(1)
    parser.add_argument("--samples", type=command.at_least(20), default=50_000, help="embeddings, ten per identity")
    parser.add_argument("--dim", type=command.at_least(2), default=512, help="their dimension")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=several, default=2, help="CPU threads of torch")
    parser.add_argument("--rounds", type=several, default=3, help="interleaved rounds to time")
    given = vars(parser.parse_args(arguments))
    with command.plain_errors(parser):
        result = run(**given, say=command.say)
    print(as_markdown(result))


if __name__ == "__main__":
    main()
