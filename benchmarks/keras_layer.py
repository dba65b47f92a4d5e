"""Keras and plain JAX: a training step of the margin heads beside the framework's own softmax classifier.

With Keras the step is `train_on_batch` of a dense backbone and a classifier; with plain JAX it is a jitted function
that takes the gradients of both products. The optimizer is SGD. Every framework has a process of its own, in which
all contenders take turns; memory is measured in a fresh process for each.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any, cast

from benchmarks.memory import peak_beyond

FRAMEWORKS = {"Keras on JAX": "jax", "Keras on TensorFlow": "tensorflow", "Keras on PyTorch": "torch", "JAX": None}
CLASSES = (1_000, 100_000)
BLOCK = 8192
BLOCKS = f"block={BLOCK:,}"
Step = Callable[[Any, Any], Any]  # features and labels to a loss


def contenders(framework: str, classes: int, dim: int) -> dict[str, Callable[[], Step]]:
    """Functions that make the step of each contender. The first is the framework's own."""
    return jax_steps(classes, dim) if FRAMEWORKS[framework] is None else keras_steps(classes, dim)


def keras_steps(classes: int, dim: int) -> dict[str, Callable[[], Step]]:
    """Steps of compiled models."""
    import keras

    from hypermargin.integrations.keras import CosineDense, MarginHead, MarginLoss, MarginModel

    def step(model: Any, loss: Any = None) -> Step:
        model.compile(keras.optimizers.SGD(0.01), loss=loss)
        return cast("Step", model.train_on_batch)

    def backbone(*last: Any) -> Any:
        return keras.Sequential([keras.Input((dim,)), keras.layers.Dense(dim), *last])

    def head(block: int | None = None) -> Any:
        return MarginModel(backbone(), MarginHead(classes, "arcface", block=block))

    cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    found = {
        "Dense, SparseCategoricalCrossentropy": lambda: step(
            backbone(keras.layers.Dense(classes, use_bias=False)), cross_entropy
        ),
        "CosineDense, MarginLoss": lambda: step(backbone(CosineDense(classes)), MarginLoss("arcface")),
        "MarginModel": lambda: step(head()),
    }
    if keras.backend.backend() != "tensorflow":
        found[f"MarginModel, {BLOCKS}"] = lambda: step(head(BLOCK))
    return found


def jax_steps(classes: int, dim: int) -> dict[str, Callable[[], Step]]:
    """Steps of the pure function, of jax.nn.log_softmax first."""
    import jax
    import jax.numpy as jnp

    from hypermargin.integrations.jax import margin_softmax

    def cross_entropy(f: Any, weight: Any, y: Any) -> Any:
        return -jnp.take_along_axis(jax.nn.log_softmax(f @ weight.T), y[:, None], axis=1).mean()

    def arcface(block: int | None) -> Callable[[Any, Any, Any], Any]:
        return lambda f, weight, y: margin_softmax(f, weight, y, "arcface", scale=64.0, block=block)

    def step(loss: Callable[[Any, Any, Any], Any]) -> Step:
        keys = jax.random.split(jax.random.key(0))
        weights = [jax.random.normal(key, (rows, dim)) for key, rows in zip(keys, (dim, classes), strict=True)]

        @partial(jax.jit, donate_argnums=0)
        def update(weights: list[Any], x: Any, y: Any) -> tuple[list[Any], Any]:
            of_weights = lambda given: loss(x @ given[0].T, given[1], y)  # noqa: E731
            value, slopes = jax.value_and_grad(of_weights)(weights)
            return [each - 0.01 * slope for each, slope in zip(weights, slopes, strict=True)], value

        def one(x: Any, y: Any) -> Any:
            weights[:], value = update(weights, x, y)
            return value

        return one

    return {
        "jax.nn.log_softmax": lambda: step(cross_entropy),
        "margin_softmax": lambda: step(arcface(None)),
        f"margin_softmax, {BLOCKS}": lambda: step(arcface(BLOCK)),
    }


def work(framework: str, rows: int, classes: int, dim: int, rounds: int, only: str | None) -> dict[str, Any]:
    """What one process finds: CPU seconds of every step by contender, or the memory of one."""
    import numpy as np

    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, dim)).astype("float32")
    y = rng.integers(0, classes, rows).astype("int32")
    made = contenders(framework, classes, dim)
    if only is not None:
        step = made[only]()
        for _ in range(2):  # compiles, touches
            np.asarray(step(x, y))
        return {"memory": peak_beyond(lambda: np.asarray(step(x, y)))}
    steps = {name: make() for name, make in made.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for round_number in range(rounds + 2):
        for name, step in steps.items():
            start = time.process_time()
            np.asarray(step(x, y))  # waits for it
            if round_number > 1:
                times[name].append(time.process_time() - start)
    return {"times": times, "versions": versions(FRAMEWORKS[framework])}


def versions(backend: str | None) -> dict[str, str]:
    """The versions of Keras and of its backend, or of JAX."""
    found = {}
    packages = ("keras", "tensorflow-cpu" if backend == "tensorflow" else backend) if backend else ("jax",)
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found


def ask(framework: str, **request: Any) -> dict[str, Any]:
    """What `work` finds in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.keras_layer", "--work", json.dumps({"framework": framework} | request)],
        env=os.environ | {"KERAS_BACKEND": FRAMEWORKS[framework] or "", "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{framework}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(frameworks: list[str], rows: int, dim: int, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """All frameworks at all numbers of classes."""
    table: list[dict[str, Any]] = []
    used: dict[str, str] = {}
    for framework in frameworks:
        for classes in CLASSES:
            size = {"rows": rows, "classes": classes, "dim": dim, "rounds": rounds}
            found = ask(framework, **size, only=None)
            used |= found["versions"]
            own = next(iter(found["times"].values()))
            for name, times in found["times"].items():
                measured = classes == max(CLASSES) and framework != "Keras on TensorFlow"  # which keeps what it had
                memory = ask(framework, **size, only=name)["memory"] if measured else None
                row = {
                    "framework": framework, "classes": classes, "contender": name, "seconds": min(times),
                    "ratio": median(a / b for a, b in zip(times, own, strict=True)), "memory": memory,
                }  # fmt: skip
                table.append(row)
                say(str(row))
    return {"rows": rows, "dim": dim, "rounds": rounds, "versions": used, "table": table}


def markdown(result: dict[str, Any], environment: str, device: str) -> str:
    """The table, for people."""
    lines = [
        f"# Keras and JAX: a training step beside the framework's own, {result['rows']} rows, "
        f"dim {result['dim']}, {device}",
        "",
        environment + " " + ", ".join(f"{name} {number}" for name, number in result["versions"].items()) + ".",
        "A step of a dense backbone and a classifier, SGD. Seconds are CPU time, of all threads together: the "
        f"least of {result['rounds']} rounds in which all take turns. Times: the median over the rounds of the "
        "ratio to the framework's own loss. Memory: the peak beyond what the process held before the step; "
        "TensorFlow gives nothing back between steps, so that its peak cannot be seen this way.",
        "",
        "| | classes | | CPU seconds | times | MB |",
        "|---|---:|---|---:|---:|---:|",
    ]
    for row in result["table"]:
        memory = "" if row["memory"] is None else f"{row['memory'] / 1e6:,.0f}"
        lines.append(
            f"| {row['framework']} | {row['classes']:,} | {row['contender']} | {row['seconds']:.4f} | "
            f"{row['ratio']:.2f} | {memory} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frameworks", nargs="+", default=list(FRAMEWORKS), choices=FRAMEWORKS)
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
    result = measure(given.frameworks, given.rows, given.dim, given.rounds, print)
    text = markdown(result, in_words(around), around["device"])
    print(text)
    store({"environment": around} | result, text, "keras-cpu", given.out, print)


if __name__ == "__main__":
    main()
