"""Several processes on this machine that train one run together, speaking gloo. Needs torch and numpy alone."""

import importlib
import json
import math
import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from hypermargin.data import from_arrays
from hypermargin.training import Config, checkpoint, load, train
from hypermargin.training import loop as loop_module

CONTEXT = multiprocessing.get_context("forkserver")
# Imported once, not by each process; torch's optimisers import _dynamo when first used.
CONTEXT.set_forkserver_preload(["team", "hypermargin.training.dcp", "torch._dynamo"])
RANK = [0]  # of this process, also when it has left its group
BASE = {
    "dim": 6, "epochs": 2, "batch": 20, "watch": 2, "log": 3, "checkpoint": 2, "keep": 20,
    "augment": "rotate=10,shift=0.1,flip", "tensorboard": False, "workers": 0, "shard_classes": True,
}  # fmt: skip


def ranks(world, module, name, *arguments, timeout=60, wait=90, kill=None):
    """[what module.name(*arguments) returned or raised, by rank]; None for a rank that did not come to an end.

    `kill` = (rank, file): that rank is killed, as by `kill -9`, as soon as the file exists.
    """
    with tempfile.TemporaryDirectory() as folder:
        queue = CONTEXT.SimpleQueue()
        work = (world, folder, timeout, queue, module, name, arguments)
        team = [CONTEXT.Process(target=_work, args=(rank, *work)) for rank in range(world)]
        for each in team:
            each.start()
        end = time.monotonic() + wait
        if kill:
            while not os.path.exists(kill[1]) and time.monotonic() < end:
                time.sleep(0.005)
            team[kill[0]].kill()
        for each in team:
            each.join(max(0.1, end - time.monotonic()))
        for each in team:
            each.kill()
        found = {}
        while not queue.empty():
            rank, value = queue.get()
            found[rank] = value
        return [found.get(rank) for rank in range(world)]


def _work(rank, world, folder, timeout, queue, module, name, arguments):
    RANK[0] = rank
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    try:
        method = f"file://{folder}/store"
        dist.init_process_group(
            "gloo", init_method=method, rank=rank, world_size=world, timeout=timedelta(seconds=timeout)
        )
        found = getattr(importlib.import_module(module), name)(*arguments)
    except BaseException as error:
        traceback.print_exc()
        found = f"{type(error).__name__}: {error}"
    queue.put((rank, found))
    os._exit(0)  # a process group whose other ranks are dead cannot always be taken down


def data(side=6):
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(14, side, side)) * 50 + 128
    labels = np.arange(14 * 9) % 14
    images = (centers[labels] + rng.normal(size=(len(labels), side, side)) * 25).clip(0, 255).astype(np.uint8)
    return from_arrays(images, labels, name="blobs")


def network():
    torch.manual_seed(7)
    # No bias before the batch normalisation: its gradient is rounding alone, which AdamW makes as large as any.
    layers = (nn.Flatten(), nn.Linear(36, 24, bias=False), nn.BatchNorm1d(24), nn.PReLU(), nn.Linear(24, 6))
    return nn.Sequential(*layers)


def run(settings, folder, resume=False, stop_at=None):
    """One rank's part; `stop_at` = (rank, step, *signals): it (each, if None) gets them there, or SIGTERM."""
    if stop_at:
        real = loop_module.Trainer._train_step
        whose, when, *signals = stop_at

        def step(self, *batches):
            if self.step == when and whose in (None, self.ranks.rank):
                for number in signals or [signal.SIGTERM]:
                    os.kill(os.getpid(), number)
            return real(self, *batches)

        loop_module.Trainer._train_step = step
    config = Config(**{**BASE, **settings})
    own = "model" not in settings
    found = train(
        config, folder, resume=resume, data=data(6 if own else 8), network=network() if own else None, quiet=True
    )
    return found.metrics


def final(folder):
    last = checkpoint.load_last(folder / "checkpoints", print)
    own = 'model = "own"' in (folder / "config.toml").read_text()
    trained = load(folder, "last", network=network() if own else None)
    return last, trained


def assert_close(one, other, tolerance=1e-4):
    """Two runs that add up in different orders: float32's rounding, after eight steps."""
    (a, _), (b, _) = final(one), final(other)
    assert (a.step, a.state["epoch"], a.state["position"]) == (b.step, b.state["epoch"], b.state["position"])
    assert a.model.keys() == b.model.keys()
    for name, tensor in a.model.items():
        torch.testing.assert_close(
            b.model[name], tensor, atol=tolerance, rtol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )
    states = [c.training["optimizer"]["state"] for c in (a, b)]
    assert states[0].keys() == states[1].keys()
    for index, state in states[0].items():
        for name, value in state.items():
            torch.testing.assert_close(states[1][index][name], value, atol=tolerance, rtol=tolerance)
    averages = [c.training.get("ema", {}) for c in (a, b)]
    assert averages[0].keys() == averages[1].keys()
    for name, tensor in averages[0].items():
        torch.testing.assert_close(averages[1][name], tensor, atol=tolerance, rtol=tolerance)
    logs = [[json.loads(line) for line in (f / "log.jsonl").read_text().splitlines()] for f in (one, other)]
    assert [line["step"] for line in logs[0]] == [line["step"] for line in logs[1]]
    for left, right in zip(*logs, strict=True):
        assert left.keys() == right.keys()
        for name in left.keys() & {"loss", "angle", "rival_angle", "accuracy"}:
            close = math.isclose(left[name], right[name], rel_tol=tolerance, abs_tol=tolerance)
            assert close, (name, left, right)


def on_the_gpu(folder):
    """One process, then two that share the GPU (NCCL refuses that, gloo does not): the same result."""
    settings = {"head": "arcface", "ema": 0.9, "device": "cuda", "deterministic": True}
    run(settings, folder / "one")
    said = ranks(2, "team", "run", settings, folder / "two")
    assert said[0] == said[1], said
    assert_close(folder / "one", folder / "two", 1e-3)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as there:
        on_the_gpu(Path(there))
    print("one and two ranks on the GPU agree")
