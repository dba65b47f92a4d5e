"""Our losses in pytorch-metric-learning, beside its own: the same numbers, and everything around a loss works."""

import math

import pytest
import torch
import torch.distributed as dist
from absent import assert_told_what_to_install
from team import ranks
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

losses = pytest.importorskip("pytorch_metric_learning.losses", reason="needs pytorch-metric-learning")
from pytorch_metric_learning import distances, miners, reducers, regularizers, trainers  # noqa: E402
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper  # noqa: E402

import hypermargin as hm  # noqa: E402
from hypermargin.integrations import metric_learning as ours  # noqa: E402

N, C, D = 32, 10, 8
SAME = {
    "ArcFaceLoss": {"margin": 30},
    "CosFaceLoss": {"margin": 0.2, "scale": 30},
    "SphereFaceLoss": {"margin": 3, "scale": 2},
    "LargeMarginSoftmaxLoss": {"margin": 4},
    "SubCenterArcFaceLoss": {"sub_centers": 2},
}
over_same = pytest.mark.parametrize("name", SAME)


def both(name, **more):
    """Ours and theirs of that name, from one seed."""
    made = []
    for library in (ours, losses):
        torch.manual_seed(1)
        made.append(getattr(library, name)(**{"num_classes": C, "embedding_size": D} | SAME[name] | more))
    return made


def batch(dtype=torch.float64):
    torch.manual_seed(0)
    return torch.randn(N, D, dtype=dtype), torch.randint(C, (N,))


def steps(loss, x, y, indices=None):
    """The loss, and its gradients by embeddings and weight as (dim, classes)."""
    x = x.clone().requires_grad_()
    value = loss(x, y, indices)
    value.backward()
    dW = loss.head.weight.grad.t() if isinstance(loss, ours.MarginLoss) else loss.W.grad
    return value.detach(), x.grad, dW


@over_same
def test_the_same_loss_and_gradients_from_the_same_seed(name):
    mine, theirs = both(name)
    assert torch.equal(mine.W, theirs.W)
    x, y = batch()
    torch.testing.assert_close(steps(mine, x, y), steps(theirs, x, y), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(mine.get_logits(x), theirs.get_logits(x), rtol=1e-10, atol=1e-10)


NEAR = {torch.float16: 2e-3, torch.bfloat16: 1e-2, torch.float32: 1e-5, torch.float64: 1e-10}  # of the loss


@over_same
@pytest.mark.parametrize("dtype", NEAR, ids=str)
def test_every_dtype_as_their_own_tests_have_it(name, dtype):
    """Embeddings of length 10, one per degree of half a circle, so that some are past π − m."""
    angles = torch.arange(180).double().deg2rad()
    x = (10 * torch.stack([angles.cos(), angles.sin()], 1)).to(dtype)
    y = torch.randint(C, (180,), generator=torch.Generator().manual_seed(3))
    mine, exact = both(name, embedding_size=2)
    value, dx, dW = steps(mine, x, y)
    assert value.dtype == mine.W.dtype == mine.get_logits(x).dtype == dtype
    assert dx.isfinite().all()
    assert dW.isfinite().all()
    exact.W.data = mine.W.detach().double()
    expected, exact_dx, exact_dW = steps(exact, x.double(), y)
    near = NEAR[dtype]
    torch.testing.assert_close(value.double(), expected, rtol=near, atol=0.0)
    for gradient, wanted in ((dx, exact_dx), (dW, exact_dW)):
        torch.testing.assert_close(gradient.double(), wanted, rtol=0.0, atol=10 * near * wanted.abs().max().item())
    found, logits = mine.get_logits(x).detach().double(), exact.get_logits(x.double()).detach()
    torch.testing.assert_close(found, logits, rtol=0.0, atol=near * logits.abs().max().item())


@over_same
def test_reducers_miners_and_regularizers_go_on_working(name):
    more = {
        "embedding_regularizer": regularizers.LpRegularizer(), "embedding_reg_weight": 0.3,
        "weight_regularizer": regularizers.RegularFaceRegularizer(), "weight_reg_weight": 0.7,
        "reducer": reducers.ThresholdReducer(low=0.5),
    }  # fmt: skip
    mine, theirs = both(name, **more)
    x, y = batch()
    mined = miners.MultiSimilarityMiner()(x, y)
    assert len(mined[0])
    torch.testing.assert_close(steps(mine, x, y, mined), steps(theirs, x, y, mined), rtol=1e-9, atol=1e-11)
    assert mine.sub_loss_names() == theirs.sub_loss_names()


def test_a_reducer_sees_the_rows():
    mine, theirs = both("ArcFaceLoss", reducer=reducers.ClassWeightedReducer(torch.linspace(0.1, 1.0, C).double()))
    x, y = batch()
    torch.testing.assert_close(steps(mine, x, y), steps(theirs, x, y), rtol=1e-9, atol=1e-11)


def test_degrees_for_angles_and_the_rest_as_it_is():
    assert ours.MarginLoss("arcface", C, D, margin=28.6).margin == math.radians(28.6)
    assert ours.MarginLoss("curricularface", C, D, margin=30).margin == math.radians(30)
    assert ours.MarginLoss("cosface", C, D, margin=0.4).margin == 0.4
    assert ours.MarginLoss("adaface", C, D, margin=0.4).margin == 0.4
    assert ours.MarginLoss("arcface", C, D, m=0.4, scale=16).head.settings.scale == 16
    assert ours.MarginLoss("arcface", C, D).margin == 0.5
    with pytest.warns(UserWarning, match=r"margin=0\.5 is in degrees.*m=0\.5"):
        ours.MarginLoss("arcface", C, D, margin=0.5)


@pytest.mark.parametrize(
    "name", ["arcface", "magface", "curricularface", "sphereface2", "soft-triple", "partial fc"]
)
def test_heads_that_they_do_not_have(name):
    more = {"sample": hm.PartialFC(rate=0.5)} if name == "partial fc" else {}
    loss = ours.MarginLoss("cosface" if more else name, C, D, **more)
    x, y = batch(torch.float32)
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.01)
    first = last = loss(x, y, miners.MultiSimilarityMiner()(x, y))
    for _ in range(20):
        optimizer.zero_grad()
        last = loss(x, y)
        last.backward()
        optimizer.step()
    assert last.isfinite()
    assert last < first


@over_same
def test_weights_move_in_both_directions(name):
    mine, theirs = both(name)
    with torch.no_grad():
        theirs.W.copy_(torch.randn(theirs.W.shape))
    mine.load_state_dict(theirs.state_dict())
    assert torch.equal(mine.W, theirs.W)
    x, y = batch()
    torch.testing.assert_close(mine.as_theirs()(x, y), mine(x, y), rtol=1e-9, atol=1e-11)
    taken = ours.MarginLoss(hm.heads.from_metric_learning(theirs))
    torch.testing.assert_close(taken(x, y), theirs(x, y), rtol=1e-9, atol=1e-11)
    again = getattr(ours, name)(num_classes=C, embedding_size=D, **SAME[name])
    again.load_state_dict(mine.state_dict())
    assert torch.equal(again.W, mine.W)


def test_what_theirs_cannot_compute_is_not_made_into_one_of_theirs():
    with pytest.raises(ValueError, match="its margin is"):
        ours.MarginLoss("magface", C, D).as_theirs()


def test_outliers_are_theirs():
    mine, theirs = both("SubCenterArcFaceLoss")
    x, y = batch()
    y[:C] = torch.arange(C)
    (mine_out, mine_centers), (out, centers) = (each.get_outliers(x, y, threshold=80) for each in (mine, theirs))
    assert sorted(mine_out.tolist()) == sorted(out.tolist())
    torch.testing.assert_close(mine_centers, centers)
    assert mine.get_outliers(x, y, 80, return_dominant_centers=False).tolist() == mine_out.tolist()


def test_statistics_are_collected():
    x, y = batch(torch.float32)
    mine, theirs = both("CosFaceLoss", collect_stats=True)
    mine(x, y), theirs(x, y)
    assert mine.avg_angle == pytest.approx(theirs.avg_angle, rel=1e-5)
    assert mine._record_these_stats == theirs._record_these_stats


def test_under_autocast_the_weight_stays_float32():
    mine, _ = both("ArcFaceLoss")
    with torch.autocast("cpu", torch.bfloat16):
        value = mine(torch.randn(4, D, dtype=torch.bfloat16), torch.arange(4))
    assert mine.head.weight.dtype == torch.float32
    assert value.dtype == torch.float32


class Largest(TorchDispatchMode):
    """Remember the largest tensor that an operation returns."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        for each in found if isinstance(found, tuple | list) else (found,):
            if isinstance(each, torch.Tensor):
                self.numbers = max(self.numbers, each.numel())
        return found


def test_with_many_classes_no_matrix_of_rows_and_classes_is_held():
    x, y = torch.randn(1024, 4), torch.arange(1024)
    found = []
    backend = hm.backends.Chunked(chunk=512, keep=0)
    for loss in (ours.ArcFaceLoss(4096, 4, backend=backend), losses.ArcFaceLoss(4096, 4)):
        with Largest() as largest:
            loss(x, y).backward()
        found.append(largest.numbers)
    assert found[1] >= 1024 * 4096
    assert found[0] < 1024 * 4096 / 4


class Points(torch.utils.data.Dataset):
    """Points around as many directions as there are classes."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.targets = torch.arange(200) % C
        directions = torch.eye(C, 16)[self.targets]
        self.x = directions + 0.2 * torch.randn(200, 16, generator=generator)

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, i):
        return self.x[i], int(self.targets[i])


def test_their_trainer_trains_it():
    pytest.importorskip("sklearn")
    torch.manual_seed(0)
    data, trunk = Points(), nn.Linear(16, D)
    loss = ours.MarginLoss("arcface", C, D, margin=10, scale=8, backend="chunked")
    trainers.MetricLossOnly(
        models={"trunk": trunk},
        optimizers={
            "trunk_optimizer": torch.optim.Adam(trunk.parameters(), lr=0.01),
            "metric_loss_optimizer": torch.optim.Adam(loss.parameters(), lr=0.05),
        },
        batch_size=20, loss_funcs={"metric_loss": loss}, dataset=data, dataloader_num_workers=0,
        data_device=torch.device("cpu"), mining_funcs={"tuple_miner": miners.MultiSimilarityMiner()},
    ).train(num_epochs=8)  # fmt: skip
    logits = loss.get_logits(trunk(data.x))
    assert (logits.argmax(1) == data.targets).float().mean() > 0.95


def wrapped(half):
    """What one of two ranks computes with their wrapper: value and the gradient of its rows."""
    x, y = batch()
    torch.manual_seed(1)
    loss = DistributedLossWrapper(ours.ArcFaceLoss(C, D))
    mine = slice(half * dist.get_rank(), half * (dist.get_rank() + 1))
    own = x[mine].clone().requires_grad_()
    value = loss(own, y[mine])
    value.backward()
    return value.item(), own.grad.tolist()


def test_their_wrapper_for_several_processes():
    x, y = batch()
    torch.manual_seed(1)
    value, dx, _ = steps(losses.ArcFaceLoss(C, D), x, y)
    found = ranks(2, "test_metric_learning", "wrapped", N // 2)
    for rank, (said, gradient) in enumerate(found):
        assert said == pytest.approx(2 * value.item(), rel=1e-9)  # it multiplies by the number of processes
        expected = 2 * dx[rank * N // 2 : (rank + 1) * N // 2]
        torch.testing.assert_close(torch.tensor(gradient, dtype=torch.float64), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ours.MarginLoss("arcfase", C, D), "did you mean 'arcface'|Did you mean 'arcface'"),
        (lambda: ours.MarginLoss("arcface", C), "embedding_size must be a whole number"),
        (lambda: ours.MarginLoss("arcface", C, D, margin=20, m=0.3), "degrees and radians; give one"),
        (lambda: ours.MarginLoss("arcface", C, D, reduction="sum"), "reducer=SumReducer"),
        (lambda: ours.MarginLoss("arcface", C, D, marge=3), "no setting 'marge'"),
        (lambda: ours.ArcFaceLoss(C, D, distance=distances.LpDistance()), r"distance must be CosineSimilarity\(\)"),
        (lambda: ours.MarginLoss(hm.create_head("arcface", D, C), margin=20), "settings already; got margin too"),
    ],
)
def test_errors_say_what_to_do(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_without_the_package_the_error_says_what_to_install():
    assert_told_what_to_install(
        "metric_learning", "pytorch-metric-learning", "metric-learning", imported_as="pytorch_metric_learning"
    )
