"""Keras: a training step of the margin heads beside Keras's own softmax classifier, on each of its backends.

The step is `train_on_batch` of a dense backbone and a classifier, with SGD. Every backend has a process of
its own, in which all contenders take turns; memory is measured in a fresh process for each.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.memory import peak_beyond

BACKENDS = ("jax", "tensorflow", "torch")
CLASSES = (1_000, 100_000)
BLOCK = 8192
OWN = "Dense, SparseCategoricalCrossentropy"


def contenders(classes: int, dim: int) -> dict[str, Callable[[], Any]]:
    """Functions that make a compiled model each."""
    import keras

    from hypermargin.integrations.keras import CosineDense, MarginHead, MarginLoss, MarginModel

    def compiled(model: Any, loss: Any = None) -> Any:
        model.compile(keras.optimizers.SGD(0.01), loss=loss)
        return model

    def backbone(*last: Any) -> Any:
        return keras.Sequential([keras.Input((dim,)), keras.layers.Dense(dim), *last])

    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    found = {
        OWN: lambda: compiled(backbone(keras.layers.Dense(classes, use_bias=False)), cross_entropy),
        "CosineDense, MarginLoss": lambda: compiled(backbone(CosineDense(classes)), MarginLoss("arcface")),
        "MarginModel": lambda: compiled(MarginModel(backbone(), MarginHead(classes, "arcface"))),
    }
    if keras.backend.backend() != "tensorflow":
        name = f"MarginModel, block={BLOCK:,}"
        found[name] = lambda: compiled(MarginModel(backbone(), MarginHead(classes, "arcface", block=BLOCK)))
    return found


def work(rows: int, classes: int, dim: int, rounds: int, only: str | None) -> dict[str, Any]:
    """What one process finds: seconds of every step by contender, or the memory of one."""
    import keras
    import numpy as np

    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, dim)).astype("float32")
    y = rng.integers(0, classes, rows).astype("int32")
    made = contenders(classes, dim)
    if only is not None:
        model = made[only]()
        for _ in range(2):  # compiles, touches
            model.train_on_batch(x, y)
        return {"memory": peak_beyond(lambda: model.train_on_batch(x, y))}
    models = {name: make() for name, make in made.items()}
    times: dict[str, list[float]] = {name: [] for name in models}
    for round_number in range(rounds + 2):
        for name, model in models.items():
            start = time.perf_counter()
            np.asarray(model.train_on_batch(x, y))  # waits for it
            if round_number > 1:
                times[name].append(time.perf_counter() - start)
    return {"times": times, "versions": versions(keras.backend.backend())}


def versions(backend: str) -> dict[str, str]:
    """The versions of Keras and of its backend."""
    found = {}
    for package in ("keras", "tensorflow-cpu" if backend == "tensorflow" else backend):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found


def ask(backend: str, **request: Any) -> dict[str, Any]:
    """What `work` finds in a process with that backend."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.keras_layer", "--work", json.dumps(request)],
        env=os.environ | {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{backend}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(backends: list[str], rows: int, dim: int, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """All backends at all numbers of classes."""
    table: list[dict[str, Any]] = []
    used: dict[str, str] = {}
    for backend in backends:
        for classes in CLASSES:
            size = {"rows": rows, "classes": classes, "dim": dim, "rounds": rounds}
            found = ask(backend, **size, only=None)
            used |= found["versions"]
            for name, times in found["times"].items():
                memory = ask(backend, **size, only=name)["memory"] if classes == max(CLASSES) else None
                ratios = sorted(a / b for a, b in zip(times, found["times"][OWN], strict=True))
                row = {
                    "backend": backend, "classes": classes, "contender": name, "seconds": min(times),
                    "ratio": ratios[len(ratios) // 2], "memory": memory,
                }  # fmt: skip
                table.append(row)
                say(str(row))
    return {"rows": rows, "dim": dim, "rounds": rounds, "versions": used, "table": table}


def markdown(result: dict[str, Any], environment: str, device: str) -> str:
    """The table, for people."""
    lines = [
        f"# Keras: a training step beside Keras's own, {result['rows']} rows, dim {result['dim']}, {device}",
        "",
        environment + " " + ", ".join(f"{name} {number}" for name, number in result["versions"].items()) + ".",
        "`train_on_batch` of a dense backbone and a classifier, SGD. Seconds: the least of "
        f"{result['rounds']} rounds in which all take turns. Times: the median over the rounds of the ratio to "
        "Dense with SparseCategoricalCrossentropy. Memory: the peak beyond what the process held before the step.",
        "",
        "| backend | classes | | seconds | times | MB |",
        "|---|---:|---|---:|---:|---:|",
    ]
    for row in result["table"]:
        memory = "" if row["memory"] is None else f"{row['memory'] / 1e6:,.0f}"
        lines.append(
            f"| {row['backend']} | {row['classes']:,} | {row['contender']} | {row['seconds']:.4f} | "
            f"{row['ratio']:.2f} | {memory} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", nargs="+", default=list(BACKENDS), choices=BACKENDS)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--work", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        print(json.dumps(work(**json.loads(given.work))))
        return
    from benchmarks.record import in_words, store, surroundings  # which need torch

    around = surroundings()
    result = measure(given.backends, given.rows, given.dim, given.rounds, print)
    text = markdown(result, in_words(around), around["device"])
    print(text)
    store({"environment": around} | result, text, "keras-cpu", given.out, print)


if __name__ == "__main__":
    main()
