"""Parts for speaker toolkits: SpeechBrain and 3D-Speaker themselves; WeSpeaker, on no index, by its protocol."""

import logging
import math
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from hypermargin.integrations.speaker import Classifier, ClassifierLoss, Loss, Projection

N, C, D = 24, 10, 8


def batch():
    torch.manual_seed(0)
    return torch.randn(N, D, dtype=torch.float64), torch.randint(C, (N,))


def arc_by_hand(x, W, y, m, s):
    """ArcFace as WeSpeaker and 3D-Speaker have it: past π it takes cos θ − (1 − cos m)."""
    cosine = F.normalize(x) @ F.normalize(W).T
    own = cosine.gather(1, y[:, None])
    angle = own.clamp(-1 + 1e-12, 1 - 1e-12).acos()
    psi = torch.where(angle + m <= math.pi, (angle + m).cos(), own - (1 - math.cos(m)))
    return F.cross_entropy(s * cosine.scatter(1, y[:, None], psi), y)


class Ramp:
    """A margin scheduler as both toolkits have one: it reads `margin` and calls `update`."""

    def __init__(self, target, last, steps):
        self.target, self.last, self.steps = target, last, steps
        target.update(margin=0.0)

    def step(self, it):
        self.target.update(margin=self.last * min(1.0, it / self.steps))
        return self.target.margin


def test_a_projection_returns_logits_and_loss_and_follows_a_margin_scheduler():
    x, y = batch()
    projection = Projection("arcface", D, C, scale=32.0, m=0.2, beyond="continuous", dtype=torch.float64)
    weight = torch.randn(C, D, dtype=torch.float64)
    projection.load_state_dict({"weight": weight})  # as theirs is saved
    assert torch.equal(projection.as_theirs()["weight"], weight)
    ramp = Ramp(projection, 0.3, 4)
    for it in range(6):
        m = ramp.step(it)
        assert m == pytest.approx(min(0.3, 0.075 * it))
        logits, loss = projection(x, y)
        torch.testing.assert_close(loss, arc_by_hand(x, weight, y, m, 32.0), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(logits, 32 * F.normalize(x) @ F.normalize(weight).T)
    assert not logits.requires_grad
    assert Projection("arcface", D, C, logits=False)(x.float(), y)[0] is None


def test_the_nearest_rivals_margin_grows_along():
    projection = Projection("inter-topk", D, C, m=0.2, m_prime=0.06, k=3)
    projection.update(margin=0.5)
    assert projection.head.settings.rule.m_prime == pytest.approx(0.15)


@pytest.mark.parametrize("name", ["magface", "adaface", "combined", "softmax"])
def test_heads_without_one_m_refuse_a_scheduler(name):
    with pytest.raises(ValueError, match="no m that is one number for every row"):
        Projection(name, D, C).update(margin=0.3)


def test_the_loss_from_cosines_follows_a_margin_scheduler():
    x, y = batch()
    weight, loss = torch.randn(C, D, dtype=torch.float64), Loss("arcface", 32.0, m=0.2, beyond="continuous")
    ramp = Ramp(loss, 0.4, 2)
    for it in range(4):
        m = ramp.step(it)
        cosines = F.normalize(x) @ F.normalize(weight).T
        torch.testing.assert_close(loss(cosines, y), arc_by_hand(x, weight, y, m, 32.0), rtol=1e-9, atol=1e-12)


def test_a_classifier_and_its_loss_are_the_head():
    x, y = batch()
    classifier = Classifier(D, C, "arcface", m=0.3, scale=16.0)
    cost, x = ClassifierLoss(classifier), x.float()
    head = classifier.head
    assert torch.equal(cost(classifier(x[:, None]), y[:, None]), head(x, y))
    classifier.eval()
    assert classifier(x[:, None]).shape == (N, 1, C)
    torch.testing.assert_close(cost(classifier(x[:, None]), y[:, None]), F.cross_entropy(head.logits(x), y))
    with pytest.raises(TypeError, match="classifier must be a Classifier"):
        ClassifierLoss(head)


YAML = """
loss: !new:hypermargin.integrations.speaker.Loss
    margin: arcface
    m: 0.3
    scale: 30
    beyond: linear
classifier: !new:hypermargin.integrations.speaker.Classifier
    input_size: 8
    out_neurons: 10
    head: cosface
    m: 0.2
    scale: 16
compute_cost: !new:hypermargin.integrations.speaker.ClassifierLoss
    classifier: !ref <classifier>
"""


class TestSpeechBrain:
    @pytest.fixture
    def speechbrain(self):
        return pytest.importorskip("speechbrain", reason="needs SpeechBrain: make test-integrations")

    def test_its_yaml_makes_the_objects(self, speechbrain):
        from hyperpyyaml import load_hyperpyyaml

        found = load_hyperpyyaml(YAML)
        assert found["loss"].margin == 0.3
        assert found["compute_cost"].classifier is found["classifier"]

    @pytest.mark.parametrize(
        ("name", "theirs"), [("arcface", "AdditiveAngularMargin"), ("cosface", "AngularMargin")]
    )
    def test_the_loss_is_its_own(self, speechbrain, name, theirs):
        from speechbrain.lobes.models.ECAPA_TDNN import Classifier as CosineClassifier
        from speechbrain.nnet import losses

        x, y = batch()
        cosines = CosineClassifier(D, out_neurons=C)
        more = {"beyond": "linear"} if name == "arcface" else {}
        costs = (
            losses.LogSoftmaxWrapper(getattr(losses, theirs)(margin=0.2, scale=30)),
            Loss(name, 30, m=0.2, **more),
        )
        found = []
        for cost in costs:
            rows = x.float()[:, None].clone().requires_grad_()
            value = cost(cosines(rows), y[:, None])
            found.append((value.detach(), *torch.autograd.grad(value, [rows, cosines.weight])))
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
        own = Classifier(D, C, name, scale=30.0, m=0.2, **more)
        own.load_state_dict({"weight": cosines.weight})
        value = ClassifierLoss(own)(own(x.float()[:, None]), y[:, None])
        torch.testing.assert_close(value.detach(), found[0][0], rtol=1e-4, atol=1e-5)
        with torch.no_grad():
            own.head.weight.mul_(-2.0)
        cosines.load_state_dict(own.as_theirs())
        torch.testing.assert_close(cosines.weight, own.head.weight)

    def test_a_brain_trains_them(self, speechbrain, tmp_path):
        from speechbrain.core import Brain, Stage

        torch.manual_seed(0)
        y = torch.arange(60) % C
        x = torch.eye(C, 16)[y] + 0.1 * torch.randn(60, 16)
        classifier = Classifier(D, C, "arcface", m=0.2, scale=8.0)
        modules = {"network": torch.nn.Linear(16, D), "classifier": classifier}
        cost, seen = ClassifierLoss(classifier), []

        class Speakers(Brain):
            def compute_forward(self, batch, stage):
                return self.modules.classifier(self.modules.network(batch[0])[:, None])

            def compute_objectives(self, predictions, batch, stage):
                if stage == Stage.VALID:
                    seen.append((predictions[:, 0].argmax(1) == batch[1]).float().mean().item())
                return self.hparams.compute_cost(predictions, batch[1][:, None])

        brain = Speakers(
            modules, lambda p: torch.optim.Adam(p, lr=0.05), {"compute_cost": cost}, run_opts={"device": "cpu"}
        )
        parts = [(x[i : i + 20], y[i : i + 20]) for i in range(0, 60, 20)]
        batches = [torch.utils.data.DataLoader(each, batch_size=None) for each in (parts, [(x, y)])]
        brain.fit(range(10), *batches, progressbar=False)
        assert seen[-1] > 0.95

    def test_the_example_trains_and_verifies(self, speechbrain, tmp_path, monkeypatch, capsys):
        rng, speaker = np.random.default_rng(0), np.arange(60).repeat(6)
        sound = rng.integers(0, 40, (60, 1, 40))[speaker] + rng.integers(0, 200, (len(speaker), 32, 40))
        np.savez(tmp_path / "sound.npz", logmel_u8=sound.astype(np.uint8), speaker=speaker + 1)  # as AudioMNIST's
        flags = [str(tmp_path / "sound.npz"), "--steps", "12", "--batch-size", "32", "--tested", "4"]
        monkeypatch.setattr(sys, "argv", ["with_speechbrain.py", *flags])
        example = Path(__file__).resolve().parents[2] / "examples" / "with_speechbrain.py"
        runpy.run_path(str(example), run_name="__main__")
        before, loss, after = capsys.readouterr().out.splitlines()
        assert before.startswith("before: EER of 20 unseen speakers ")
        rates = [float(line.removesuffix("%").split()[-1]) for line in (before, after)]
        assert all(0 <= rate <= 60 for rate in rates)  # twelve steps teach too little to say more
        assert 0 < float(loss.removeprefix("loss of the training ")) < 20


RECIPE = """
loss:
  obj: hypermargin.integrations.speaker.Loss
  args:
    margin: {name}
    scale: 32.0
    {more}
margin_scheduler:
  obj: speakerlab.process.scheduler.MarginScheduler
  args:
    criterion: <loss>
    initial_margin: 0.0
    final_margin: 0.3
    increase_start_epoch: 1
    fix_epoch: 3
    step_per_epoch: 4
"""


class TestThreeDSpeaker:
    """Its package is speakerlab, of which loss, classifier, schedulers, builder and training loop are used."""

    @pytest.fixture
    def built(self, tmp_path):
        """Build what its recipe names, as its training script does."""
        pytest.importorskip("speakerlab", reason="needs speakerlab: make test-integrations")
        from speakerlab.utils.builder import build
        from speakerlab.utils.config import build_config

        def of(name, more=""):
            file = tmp_path / "recipe.yaml"
            file.write_text(RECIPE.format(name=name, more=more))
            config = build_config(str(file))
            return build("margin_scheduler", config), build("loss", config)

        return of

    @pytest.mark.parametrize(
        ("name", "more", "theirs"),
        [("arcface", "beyond: continuous", "ArcMarginLoss"), ("cosface", "", "AddMarginLoss")],
    )
    def test_the_loss_is_its_own_along_its_ramp(self, built, name, more, theirs):
        from speakerlab.loss import margin_loss
        from speakerlab.models.campplus.classifier import CosineClassifier

        ramp, ours = built(name, more)
        assert isinstance(ours, Loss)
        theirs, classifier = getattr(margin_loss, theirs)(scale=32.0), CosineClassifier(D, out_neurons=C).double()
        x, y = batch()
        margins = []
        for step in range(16):
            ramp.step(step)
            assert ours.margin == ramp.get_margin()
            margins.append(ours.margin)
            theirs.update(ours.margin)
            found = []
            for cost in (ours, theirs):
                rows = x.clone().requires_grad_()
                value = cost(classifier(rows), y)
                found.append((value.detach(), *torch.autograd.grad(value, [rows, classifier.weight])))
            torch.testing.assert_close(*found, rtol=1e-9, atol=1e-12)
        assert margins[:5] == [0.0] * 5
        assert margins[-1] == 0.3

    def test_its_training_loop_trains_with_it(self, built, monkeypatch):
        from speakerlab.bin.train import train
        from speakerlab.models.campplus.classifier import CosineClassifier
        from speakerlab.process.scheduler import WarmupCosineScheduler

        monkeypatch.setattr(torch.Tensor, "cuda", lambda tensor, **_: tensor)  # it knows GPUs alone
        torch.manual_seed(0)
        y = torch.arange(80) % C
        x = torch.eye(C, 16)[y] + 0.1 * torch.randn(80, 16)
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=20)
        model = torch.nn.Sequential(torch.nn.Linear(16, D), CosineClassifier(D, out_neurons=C))
        optimizer = torch.optim.Adam(model.parameters())
        rates = WarmupCosineScheduler(optimizer, 0.01, 0.05, 1, 6, len(loader))
        ramp, loss = built("arcface", "beyond: continuous")
        for epoch in range(1, 7):
            said = train(
                loader, model, loss, optimizer, epoch, rates, ramp, logging.getLogger("quiet"), None, rank=1
            )
        assert loss.margin == 0.3
        assert said["Avg_acc"] > 95
