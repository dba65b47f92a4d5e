"""`python -m benchmarks.heads.baseline --data FOLDER`: the open sets without a network, for comparison.

Raw pixels by cosine, and PCA to 150 dimensions followed by linear discriminant analysis on the training identities.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from benchmarks.heads.tasks import load
from benchmarks.record import environment
from hypermargin.evaluate import identification, verification


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/heads.jsonl"))
    given = parser.parse_args()
    for name in ("omniglot", "audiomnist"):
        task = load(name, given.data, "final", torch.device("cpu"))
        train, test = (_flat(part.images) for part in (task.train, task.test))
        pca = PCA(150, random_state=0).fit(train)
        lda = LinearDiscriminantAnalysis().fit(pca.transform(train), task.train.labels.numpy())
        for kind, embeddings in (("raw pixels", test), ("PCA+LDA", lda.transform(pca.transform(test)))):
            result = {
                "spec": {"study": "baseline", "task": name, "stage": "final", "head": kind},
                "test": _measure(embeddings, task.test.labels),
                "environment": environment("cpu"),
            }
            print(name, kind, result["test"])
            with given.out.open("a", encoding="utf-8") as log:
                log.write(json.dumps(result) + "\n")


def _flat(images: torch.Tensor) -> np.ndarray:
    return images.reshape(len(images), -1).numpy().astype(np.float32) / 255


def _measure(embeddings: np.ndarray, labels: torch.Tensor) -> dict[str, Any]:
    pairs = verification(embeddings, labels)
    return {"eer": pairs.eer, "tar0.001": pairs.tar[1e-3], "rank1": identification(embeddings, labels).rank[1]}


if __name__ == "__main__":
    main()
