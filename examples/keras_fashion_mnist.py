"""The Fashion-MNIST model of the tutorials, in Keras: softmax, a margin, and the same margin after a ReLU.

Dense layers of 512 and 256 and an embedding of 128 numbers, whose cosines with the classes go into the loss. The
third model is the trap that most copies of this tutorial contain: with `activation="relu"` on the embedding, no
number of it is negative, and all ten classes have to share a small part of the sphere.

    KERAS_BACKEND=jax python examples/keras_fashion_mnist.py FOLDER      jax, tensorflow or torch

FOLDER holds the four IDX files, as Debian's package dataset-fashion-mnist puts them into
/usr/share/datasets/fashion-mnist; without it Keras downloads them. `--dim 2 --plot features.png` draws the test
features of a network that ends in two numbers.
"""

from __future__ import annotations

import argparse
import gzip
import os
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers

from hypermargin.integrations.keras import CosineDense, MarginLoss


def read_idx(folder: Path, part: str) -> tuple[Any, Any]:
    """Images (N, 28, 28, 1) in [0, 1] and labels of one part."""

    def content(name: str) -> bytes:
        path = folder / name
        return path.read_bytes() if path.exists() else gzip.open(f"{path}.gz").read()

    images = np.frombuffer(content(f"{part}-images-idx3-ubyte"), np.uint8, offset=16).reshape(-1, 28, 28, 1)
    return images.astype("float32") / 255, np.frombuffer(content(f"{part}-labels-idx1-ubyte"), np.uint8, offset=8)


def load(folder: str | None) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Training and test part, from the folder or from Keras's own server."""
    if folder:
        return read_idx(Path(folder), "train"), read_idx(Path(folder), "t10k")
    train, test = keras.datasets.fashion_mnist.load_data()
    return tuple((x[..., None].astype("float32") / 255, y) for x, y in (train, test))  # type: ignore[return-value]


def network(dim: int, last_activation: str | None) -> Any:
    """A small network; `last_activation` should be None."""
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Flatten(),
            layers.Dense(512, activation="relu"),
            layers.Dense(256, activation="relu"),
            layers.Dense(dim, activation=last_activation, name="features"),
        ]
    )


def classifier(way: str, dim: int, scale: float, m: float) -> Any:
    """One of the three models, compiled."""
    backbone = network(dim, "relu" if "ReLU" in way else None)
    if way == "softmax":
        last, loss = layers.Dense(10), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    else:  # two lines are all that changes
        last, loss = CosineDense(10), MarginLoss("am-softmax", m=m, scale=scale)
    model = keras.Sequential([backbone, last])
    model.compile(keras.optimizers.Adam(1e-3), loss=loss, metrics=["accuracy"])
    return model


def angles(features: Any, labels: Any) -> tuple[float, float]:
    """Degrees: the median between a sample and its class's mean direction, and the least between two classes."""
    length = np.linalg.norm(features, axis=1, keepdims=True)
    unit = features / np.where(length > 0, length, 1)
    middle = np.stack([unit[labels == k].mean(0) for k in range(10)])
    middle /= np.maximum(np.linalg.norm(middle, axis=1, keepdims=True), 1e-12)
    own = np.arccos(np.clip((unit * middle[labels]).sum(1), -1, 1))
    between = np.arccos(np.clip(middle @ middle.T, -1, 1))[~np.eye(10, dtype=bool)]
    return float(np.degrees(np.median(own))), float(np.degrees(between.min()))


def draw(found: dict[str, Any], labels: Any, path: str) -> None:
    """The test features of all models, one colour per class."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(1, len(found), figsize=(4 * len(found), 4), layout="constrained")
    for ax, (way, features) in zip(axes, found.items(), strict=True):
        ax.scatter(*features.T, c=labels, s=2, cmap="tab10", alpha=0.5, linewidths=0)
        reach = 1.05 * np.abs(features).max()
        ax.set(title=way, xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xticks=[0], yticks=[0])
        ax.grid(alpha=0.3)
    fig.savefig(path, dpi=100)


def main() -> None:
    """Train the three models and say what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", help="the four IDX files; without it Keras downloads them")
    parser.add_argument("--dim", type=int, default=128, help="the length of an embedding")
    parser.add_argument("--scale", type=float, default=16.0)
    parser.add_argument("-m", type=float, default=0.35, help="the margin, in units of the cosine")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", help="a file for the picture of the features; needs --dim 2 and matplotlib")
    given = parser.parse_args()
    if given.folder and not os.path.isdir(given.folder):
        parser.error(f"{given.folder} is no folder. Run: apt install dataset-fashion-mnist")
    if given.plot and given.dim != 2:
        parser.error(f"--plot draws features of two numbers: add --dim 2 (it is {given.dim})")
    (x, y), (x_test, y_test) = load(given.folder)
    found = {}
    for way in ("softmax", "am-softmax", "am-softmax after a ReLU"):
        keras.utils.set_random_seed(given.seed)
        model = classifier(way, given.dim, given.scale, given.m)
        model.fit(x, y, batch_size=128, epochs=given.epochs, verbose=2)
        outputs = model.predict(x_test, batch_size=512, verbose=0)  # no labels: cosines, or logits for softmax
        found[way] = model.layers[0].predict(x_test, batch_size=512, verbose=0)
        own, between = angles(found[way], y_test)
        accuracy = np.mean(outputs.argmax(1) == y_test)
        words = f"median angle to the own class {own:4.1f}°, least between two classes {between:4.1f}°"
        print(f"{way:<23}  test accuracy {accuracy:.1%}, {words}", flush=True)
    if given.plot:
        draw(found, y_test, given.plot)


if __name__ == "__main__":
    main()
