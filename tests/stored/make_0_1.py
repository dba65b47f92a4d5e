"""Writes tests/stored/0.1, with version 0.1 of the package: README.md there says how. Not run by the tests."""

import copy
import dataclasses
import json
import multiprocessing
import os
import pickle
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from sklearn.datasets import load_iris

import hypermargin as hm
from hypermargin import data, evaluate, life, schedule, training

OUT = Path(__file__).parent / "0.1"
DIM, CLASSES = 6, 11
# As create_head takes them, in plain values; tests/test_stored.py makes the same heads.
HEADS = {
    "arcface": ("arcface", {"scale": 16.0}),
    "softmax-bias": ("softmax", {"bias": True}),
    "normface-learned-scale": ("normface", {"learn_scale": True}),
    "cosface-class-margins-learned": (
        "cosface",
        {"scale": 16.0, "learn_margin": True, "class_margins": [0.1 + 0.02 * k for k in range(CLASSES)]},
    ),
    "sphereface-lambda": ("sphereface", {"m": 3.0}),
    "arcface-adacos-dynamic": ("arcface", {"scale": "adacos-dynamic"}),
    "arcface-partial-fc": ("arcface", {"scale": 16.0, "sample": {"rate": 0.5, "seed": 3}}),
    "arcface-warmup": ("arcface", {"scale": 16.0, "schedule": {"steps": 10, "shape": "cosine"}}),
}
RUN = {
    "data": "images.npz", "model": "mlp", "model_set": {"widths": [12]}, "dim": 6, "epochs": 2, "batch": 16,
    "watch": 2, "log": 2, "keep": 2, "tensorboard": False, "workers": 0, "device": "cpu", "validation": 0.2,
    "test": 0.25, "augment": "shift=0.1,flip", "threads": 1,
}  # fmt: skip
ALONE = {**RUN, "head": "arcface", "schedule": ["lambda:base=10,gamma=0.5,power=1,floor=1"], "ema": 0.9}
RANKS = {
    **RUN, "head": "arcface", "schedule": ["warmup:steps=6"], "optimizer": "sgd", "lr": 0.05,
    "sample_rate": 0.5, "shard_classes": True,
}  # fmt: skip


def made(name, overrides, **more):
    overrides = dict(overrides)
    if "sample" in overrides:
        overrides["sample"] = hm.PartialFC(**overrides["sample"])
    if "schedule" in overrides:
        overrides["schedule"] = schedule.MarginWarmup(**overrides["schedule"])
    return hm.create_head(name, DIM, CLASSES, **overrides, **more)


def inputs():
    generator = torch.Generator().manual_seed(5)
    x = 2 * torch.randn(9, DIM, generator=generator, dtype=torch.float64)
    return x, torch.tensor([0, 10, 3, 3, 7, 1, 5, 9, 4])


def numbers(head):
    """What a head says in float64, of the float32 numbers it has stored."""
    head = copy.deepcopy(head).double().eval()
    x, y = inputs()
    found = {
        "logits": head.logits(x).tolist(),
        "loss": head(x, y).item(),
        "scale": head.current_scale().item(),
        "adjustment": list(head.current_adjustment()),
    }
    head.train()
    found["next_loss"] = head(x, y).item()
    return {**found, "next_scale": head.current_scale().item()}


def train(head, steps=3):
    sampled = head.sample is not None
    optimizer = (
        hm.SampledSGD(head.parameters(), lr=0.1) if sampled else torch.optim.Adam(head.parameters(), lr=0.05)
    )
    x, y = (t[head.part.start % 2 :] for t in inputs())
    for _ in range(steps):
        optimizer.zero_grad()
        head(x.float(), y).backward()
        optimizer.step()
    return optimizer


def heads():
    """state_dicts as torch.save leaves them, and what `life.write` made of one head with its optimiser."""
    expected = {}
    (OUT / "heads").mkdir()
    for seed, (name, (family, overrides)) in enumerate(HEADS.items()):
        torch.manual_seed(seed)
        head = made(family, overrides)
        optimizer = train(head)
        torch.save(head.state_dict(), OUT / "heads" / f"{name}.pt")
        expected[name] = numbers(head)
        if name == "cosface-class-margins-learned":
            written = OUT / "written"
            written.mkdir()
            life.write(life.weights_of(head, optimizer), written / "head.safetensors")
            life.write(life.weights_of(head, optimizer), written / "head.pt")
            life.write(head, written / "rows.npy", rows_only=True)
            (written / "shards").mkdir()
            life.write(head, written / "shards", format="insightface", shards=3, rows_only=True)
            torch.save(optimizer.state_dict()["state"], written / "optimizer.pt")
    return expected


def rank(rank, store, queue):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(rank)
    head = made(*HEADS["normface-learned-scale"], shard=hm.Shard(seed=4))
    optimizer = train(head)
    torch.save(head.state_dict(), OUT / "sharded" / f"rank-{rank}.pt")
    life.write(life.weights_of(head, optimizer), OUT / "sharded" / f"written-{rank}.safetensors")
    found = numbers(head)
    training.train(training.Config(**RANKS), OUT / "ranks", quiet=True)
    queue.put((rank, found))
    dist.destroy_process_group()


def sharded():
    """Two ranks: a head in slices, and a run whose checkpoints are torch.distributed.checkpoint's."""
    (OUT / "sharded").mkdir()
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    store = OUT / "store"
    team = [context.Process(target=rank, args=(each, store, queue)) for each in range(2)]
    for each in team:
        each.start()
    found = dict(queue.get() for _ in team)
    for each in team:
        each.join()
        assert each.exitcode == 0
    store.unlink(missing_ok=True)
    return {str(each): found[each] for each in sorted(found)}


def images():
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(12, 6, 6)) * 50 + 128
    labels = np.arange(12 * 8) % 12
    noisy = (centres[labels] + rng.normal(size=(len(labels), 6, 6)) * 25).clip(0, 255).astype(np.uint8)
    np.savez_compressed(OUT / "images.npz", images=noisy, labels=labels)


def of_run(folder):
    """What a run's folder gives to somebody who uses it."""
    samples = np.load(OUT / "images.npz")
    raw, labels = samples["images"], samples["labels"]
    found = {"config": dataclasses.asdict(hm.load(folder).config)}
    for which in ("best", "last"):
        trained = hm.load(folder, which)
        embeddings = trained.embed(raw)
        verified = evaluate.verification(embeddings, labels)
        known = torch.tensor([trained.classes.index(str(k)) if str(k) in trained.classes else -100 for k in labels])
        features = trained.features(raw).double()
        found[which] = {
            "step": trained.step,
            "classes": list(trained.classes),
            "embeddings": embeddings.tolist(),
            "scale": trained.head.current_scale().item(),
            "loss": copy.deepcopy(trained.head).double()(features, known).item(),
            "eer": verified.eer,
            "auc": verified.auc,
        }
    return found


def estimators():
    """Fitted estimators in a pickle, as joblib or a web service keeps them, and what they say."""
    X, y = load_iris(return_X_y=True)
    X = (X - X.mean(0)) / X.std(0)
    models = {
        "default": hm.MarginSoftmaxClassifier(),
        "free": hm.MarginSoftmaxClassifier("cosface", unit_features=False),
        "kernel": hm.MarginSoftmaxClassifier(kernel="rbf", approximation="import", n_components=5),
    }
    found = {}
    for name, model in models.items():
        model.fit(X, y)
        found[name] = {"decisions": model.decision_function(X[::7]).tolist()}
        if hasattr(model, "coef_"):
            found[name] |= {"coef": model.coef_.tolist(), "intercept": model.intercept_.tolist()}
    (OUT / "estimators.pkl").write_bytes(pickle.dumps(models, protocol=4))
    (OUT / "estimators.json").write_text(json.dumps(found) + "\n")


def main():
    assert hm.__version__ == "0.1.0", hm.__version__
    assert hasattr(hm, "life"), "this is the package as it is now; set PYTHONPATH to the src of 0.1"
    torch.set_num_threads(1)
    for name in ("heads", "written", "sharded", "ranks", "alone"):
        shutil.rmtree(OUT / name, ignore_errors=True)
    OUT.mkdir(exist_ok=True)
    os.chdir(OUT)  # so that the runs name their data as images.npz
    images()
    estimators()
    x, y = inputs()
    expected = {"inputs": {"features": x.tolist(), "labels": y.tolist()}, "heads": heads(), "sharded": sharded()}
    training.train(training.Config(**ALONE), "alone", quiet=True)
    expected["alone"], expected["ranks"] = of_run("alone"), of_run("ranks")
    assert data.open_data("images.npz").name == "images.npz"
    (OUT / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    sys.exit(main())
