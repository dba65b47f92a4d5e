"""Heads in Lightning: what the callback says, precisions, checkpoints, two processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from absent import assert_told_what_to_install

lightning = pytest.importorskip("lightning", reason="needs lightning: make test-integrations")
from lightning.pytorch.loggers import Logger  # noqa: E402
from lightning.pytorch.plugins import MixedPrecision  # noqa: E402
from lightning_run import QUIET, Module, loader, rows  # noqa: E402

from hypermargin.integrations.lightning import HeadMonitor  # noqa: E402


class Remembered(Logger):
    name = version = "0"

    def __init__(self):
        super().__init__()
        self.lines = {}

    def log_metrics(self, metrics, step=None):
        self.lines.setdefault(step, {}).update(metrics)

    def log_hyperparams(self, *_):
        pass


def fit(module, epochs=1, **more):
    monitor = more.pop("monitor", None)
    path = more.pop("ckpt_path", None)
    trainer = lightning.Trainer(**QUIET | {"max_epochs": epochs, "callbacks": [monitor] if monitor else []} | more)
    trainer.fit(module, loader(), loader(), ckpt_path=path)
    return trainer


def test_the_callback_logs_what_the_head_does():
    module, logger = Module("a-softmax"), Remembered()
    trainer = fit(module, logger=logger, monitor=HeadMonitor(every=5), epochs=2)
    assert sorted(step for step, line in logger.lines.items() if "head/angle" in line) == [5, 10]
    line = logger.lines[5]
    assert line["head/lam"] == pytest.approx(max(5.0, 1000 / (1 + 0.12 * 5)))
    assert line["head/margin"] == line["head/scale"] == 1.0
    assert {"head/accuracy", "head/rival_angle", "head/norm_p50", "head/past_fold"} <= line.keys()
    # After the last step's validation nothing has moved, so that its means can be computed again.
    x, y = rows()
    seen = module.head.scores(module.network(x), y, cosines=True)
    said = trainer.callback_metrics
    assert float(said["val_head/angle"]) == pytest.approx(float(seen.angle.mean().rad2deg()), rel=1e-4)
    assert float(said["val_head/rival_angle"]) == pytest.approx(
        float(seen.hardest.acos().mean().rad2deg()), rel=1e-4
    )
    assert float(said["val_head/accuracy"]) == pytest.approx(float(said["val_acc"]))
    assert not module.head._forward_pre_hooks  # it listens no longer


def test_the_callback_changes_nothing():
    states = []
    for monitor in (None, HeadMonitor(every=1)):
        module = Module("curricularface")
        fit(module, epochs=2, monitor=monitor)
        states.append(module.state_dict())
    assert all(torch.equal(states[1][key], value) for key, value in states[0].items())


def test_batches_that_add_up_to_one_step_are_looked_at_once():
    looks = []

    class Counted(HeadMonitor):
        def _look(self, *given):
            looks.append(1)
            return super()._look(*given)

    logger = Remembered()
    trainer = lightning.Trainer(
        **QUIET | {"logger": logger}, max_epochs=3, accumulate_grad_batches=5, callbacks=[Counted(every=1)]
    )
    trainer.fit(Module(), loader())  # five batches in an epoch
    assert trainer.global_step == len(looks) == 3
    assert sorted(step for step, line in logger.lines.items() if "head/angle" in line) == [1, 2, 3]


def test_a_head_that_is_not_there_is_named():
    with pytest.raises(ValueError, match=r"Module has no MarginHead at 'classifier'\. It has 'head'\."):
        fit(Module(), monitor=HeadMonitor("classifier"))


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "64-true"])
def test_precisions(precision):
    module, features = Module(scale=8.0), []
    module.network.register_forward_hook(lambda _, inputs, output: features.append(output.dtype))
    chosen = {"precision": precision}
    if precision == "16-mixed":  # which on a CPU the name alone makes bf16-mixed
        scaler = torch.amp.GradScaler("cpu")
        chosen = {"plugins": [MixedPrecision("16-mixed", "cpu", scaler=scaler)]}
    fit(module, epochs=3, monitor=HeadMonitor(every=1), **chosen)
    narrow = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16, "64-true": torch.float64}[precision]
    wide = torch.float64 if precision == "64-true" else torch.float32
    assert set(features) == {narrow}
    assert module.head.weight.dtype == module.losses[0].dtype == wide
    assert module.losses[-1] < module.losses[0]


@pytest.mark.parametrize("head", ["a-softmax", "curricularface", "elasticface-arc"])
def test_a_resumed_run_is_the_run(head, tmp_path):
    whole, half = Module(head), Module(head)
    torch.manual_seed(2)
    fit(whole, epochs=4)
    torch.manual_seed(2)
    trainer = fit(half, epochs=2)
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    resumed = Module(head)
    fit(resumed, epochs=4, ckpt_path=tmp_path / "half.ckpt")
    for key, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[key], value), key


@pytest.mark.slow
def test_two_processes_are_one(tmp_path):
    """With batches half as large, so that both together see the rows of one."""
    script, states = Path(__file__).parent / "lightning_run.py", []
    for devices in (1, 2):
        path = tmp_path / f"{devices}.pt"
        done = subprocess.run(
            [sys.executable, script, str(devices), path], capture_output=True, text=True, check=False,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        states.append(torch.load(path, weights_only=True))
    for key, value in states[0].items():
        torch.testing.assert_close(states[1][key], value, rtol=1e-4, atol=1e-5)


def test_without_the_package_the_error_says_what_to_install():
    assert_told_what_to_install("lightning", "lightning", "lightning")
