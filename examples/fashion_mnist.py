"""AM-Softmax on Fashion-MNIST with a small network, and two ways to treat the length of the class weights.

free: the head divides by |W| itself, so W may have any length, and its gradient is orthogonal to it.
projected: the same, and after every step W is put back to unit length.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

import hypermargin as hm
from hypermargin.data import TEST, TRAIN, Data, find_fashion_mnist, read_idx


def load(data: Data, part: int) -> tuple[Tensor, Tensor]:
    """Pixels in [0, 1] and labels of one part."""
    rows = data.parts == part
    return torch.from_numpy(data.samples[rows]).flatten(1) / 255, torch.from_numpy(data.labels[rows])


def train(data: Data, way: str, epochs: int, seed: int) -> float:
    """The accuracy on the test part in the end; a line an epoch on the way."""
    torch.manual_seed(seed)  # the same start and the same batches for both ways
    (x, y), (x_test, y_test) = load(data, TRAIN), load(data, TEST)
    network = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 128))
    head = hm.create_head("am-softmax", 128, 10)  # s = 30, m = 0.35; features and weight normalised inside
    optimizer = torch.optim.Adam([*network.parameters(), *head.parameters()])
    for epoch in range(epochs):
        total = 0.0
        for rows in torch.randperm(len(x)).split(128):
            optimizer.zero_grad()
            loss = head(network(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
            total += loss.item() * len(rows)
            if way == "projected":
                with torch.no_grad():
                    head.weight /= head.weight.norm(dim=1, keepdim=True)
        with torch.inference_mode():
            accuracy = (head.logits(network(x_test)).argmax(1) == y_test).float().mean().item()
        print(f"{way:<9}  epoch {epoch + 1}  loss {total / len(x):.3f}  test accuracy {accuracy:.2%}", flush=True)
    return accuracy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", help="the four IDX files; default: where Debian's package puts them")
    parser.add_argument("--epochs", type=int, default=5, choices=range(1, 1001), metavar="1…1000")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    try:
        data = read_idx(given.folder or find_fashion_mnist())
    except ValueError as error:
        parser.error(str(error))
    free, projected = (train(data, way, given.epochs, given.seed) for way in ("free", "projected"))
    print(f"test accuracy: W free {free:.2%}, W projected {projected:.2%}")
