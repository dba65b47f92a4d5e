"""The memory of `margin_cross_entropy`, which takes N×C cosines, beside a one-hot matrix and `margin_softmax`.

CosFace in float32 on the CPU: the most memory alive during one step (cosines, loss, gradients of features and class
weights) beyond what was alive before it, each in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from benchmarks import command
from benchmarks.contenders import Problem
from benchmarks.heads.tables import table
from benchmarks.measure import ask_a_fresh_process, peak_extra_bytes
from benchmarks.record import in_words, store, surroundings
from hypermargin import margin_cross_entropy, margin_softmax
from hypermargin.margins import CosFace

SCALE, M = 64.0, 0.35
SIZE = {"rows": 256, "classes": 100_000, "dim": 64}


def _one_hot(p: Problem) -> Tensor:
    cosines = F.linear(F.normalize(p.x), F.normalize(p.W))
    return F.cross_entropy(SCALE * (cosines - M * F.one_hot(p.y, p.classes)), p.y)


def _from_cosines(p: Problem) -> Tensor:
    cosines = F.linear(F.normalize(p.x), F.normalize(p.W))
    return margin_cross_entropy(cosines, p.y, CosFace(M), SCALE, check=False)


def _ours(backend: str) -> Callable[[Problem], Tensor]:
    return lambda p: margin_softmax(p.x, p.W, p.y, CosFace(M), scale=SCALE, backend=backend, check=False)


WAYS: dict[str, Callable[[Problem], Tensor]] = {
    "cosines, one-hot, F.cross_entropy": _one_hot,
    "cosines, margin_cross_entropy": _from_cosines,
    "margin_softmax, dense": _ours("dense"),
    "margin_softmax, chunked": _ours("chunked"),
}


def peak_memory(name: str, **size: Any) -> int:
    """Bytes of one way, in this process; called in a fresh one."""
    problem = Problem(**size)

    def step() -> None:
        problem.x.grad = problem.W.grad = None
        WAYS[name](problem).backward()  # type: ignore[no-untyped-call]

    return peak_extra_bytes(step, problem)


def main() -> None:
    parser = command.flags("cosines", __doc__ or "", "")
    given = parser.parse_args()
    megabytes = {name: ask_a_fresh_process("benchmarks.cosines", name, SIZE) / 1e6 for name in WAYS}
    around = surroundings()
    result = {"size": SIZE, "megabytes": megabytes, "environment": around}
    rows = [[name, f"{value:.0f}"] for name, value in megabytes.items()]
    size = f"{SIZE['rows']} rows × {SIZE['classes']:,} classes × {SIZE['dim']}"
    one, gradient = (4e-6 * SIZE[side] * SIZE["classes"] for side in ("rows", "dim"))
    text = (
        f"# Memory of a step from cosines\n\nCosFace, {size}, float32. The N×C matrix is {one:.0f} MB, the "
        f"gradient of the class weights {gradient:.0f} MB. {in_words(around)}\n\n"
        f"{table(['', 'MB'], rows)}\n"
    )
    print(text)
    store(result, text, "cosines-cpu", given.out, command.say)


if __name__ == "__main__":
    main()
