"""The two-dimensional features of every tutorial, in Keras: softmax, a margin, and the same margin after a ReLU.

A small network ends in two numbers, so that its features can be drawn: each class becomes a ray. Softmax separates
the rays; a margin draws each together. The third model is the trap that most copies of this tutorial contain: with
`activation="relu"` on the two numbers, all features lie in one quarter of the circle, and ten classes that could be
36° apart have 90° together. Often one of the numbers dies, and then all features have the same direction.

    KERAS_BACKEND=jax python examples/keras_fashion_mnist.py FOLDER      jax, tensorflow or torch

FOLDER holds the four IDX files, as Debian's package dataset-fashion-mnist puts them into
/usr/share/datasets/fashion-mnist; without it Keras downloads them. `--plot features.png` draws the test features.
"""

from __future__ import annotations

import argparse
import gzip
import math
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


def network(last_activation: str | None) -> Any:
    """A small convolutional network with two outputs; `last_activation` should be None."""
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(32, 5, strides=2, padding="same", activation="relu"),
            layers.Conv2D(64, 5, strides=2, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(2, activation=last_activation, name="features"),
        ]
    )


def classifier(way: str) -> Any:
    """One of the three models, compiled."""
    backbone = network("relu" if way == "arcface after a ReLU" else None)
    if way == "softmax":
        last, loss = layers.Dense(10), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    else:  # two lines are all that changes
        last, loss = CosineDense(10), MarginLoss("arcface", m=0.2, scale=16.0)
    model = keras.Sequential([backbone, last])
    model.compile(keras.optimizers.Adam(1e-3), loss=loss, metrics=["accuracy"])
    return model


def describe(features: Any, labels: Any) -> str:
    """How much of the circle the classes use, and how far a test sample is from its own class's direction."""
    length = np.linalg.norm(features, axis=1, keepdims=True)
    unit = features / np.where(length > 0, length, 1)
    middle = np.stack([unit[labels == k].mean(0) for k in range(10)])
    middle /= np.maximum(np.linalg.norm(middle, axis=1, keepdims=True), 1e-12)
    angles = np.sort(np.degrees(np.arctan2(middle[:, 1], middle[:, 0])) % 360)
    used = 360 - np.diff(np.append(angles, angles[0] + 360)).max()
    own = np.degrees(np.arccos(np.clip((unit * middle[labels]).sum(1), -1, 1)))
    return f"classes use {used:3.0f}° of the circle, median angle to the own class {np.median(own):4.1f}°"


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
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", help="a file for the picture of the features; needs matplotlib")
    given = parser.parse_args()
    if given.folder and not os.path.isdir(given.folder):
        parser.error(f"{given.folder} is no folder. Run: apt install dataset-fashion-mnist")
    (x, y), (x_test, y_test) = load(given.folder)
    found = {}
    for way in ("softmax", "arcface", "arcface after a ReLU"):
        keras.utils.set_random_seed(given.seed)
        model = classifier(way)
        model.fit(x, y, batch_size=128, epochs=given.epochs, verbose=2)
        outputs = model.predict(x_test, batch_size=512, verbose=0)  # no labels: cosines, or logits for softmax
        found[way] = model.layers[0].predict(x_test, batch_size=512, verbose=0)
        words = describe(found[way], y_test)
        print(f"{way:<20}  test accuracy {np.mean(outputs.argmax(1) == y_test):.1%}, {words}", flush=True)
    print(f"neighbours among ten classes can be {360 / 10:.0f}° apart; m = 0.2 is {math.degrees(0.2):.0f}°")
    if given.plot:
        draw(found, y_test, given.plot)


if __name__ == "__main__":
    main()
