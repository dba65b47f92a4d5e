"""Class-parallel heads: four processes run tests/sharded_cases.py once, in worlds of one to four ranks.

Partial FC's laws that need no second process, and what is said without a process group, follow.
"""

import math
import multiprocessing
import os
import subprocess
import sys
import time

import pytest
import sharded_cases
import torch
import torch.distributed as dist
from sharded_cases import CASES, WORLDS, D, numbers

import hypermargin as hm
from hypermargin.margins import ArcFace, Combined, NoMargin
from hypermargin.scores.sampling import Sampling, draw, permuted
from hypermargin.scores.sharded import Part, class_range


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """{(world, case): what went wrong, by rank}."""
    folder = tmp_path_factory.mktemp("ranks")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sharded_cases"])  # imported once, not four times
    ranks = [context.Process(target=sharded_cases.work, args=(r, str(folder))) for r in range(max(WORLDS))]
    for each in ranks:
        each.start()
    end = time.monotonic() + 150
    for each in ranks:
        each.join(max(end - time.monotonic(), 0.1))
    for each in ranks:
        each.kill()
    files = [folder / f"rank{r}" for r in range(max(WORLDS))]
    by_rank = [torch.load(file) if file.exists() else {} for file in files]

    def wrong(key):
        said = {r: found.get(key, "it did not come to this") for r, found in enumerate(by_rank[: key[0]])}
        return [f"rank {r}:\n{words}" for r, words in said.items() if words]

    return {key: wrong(key) for key in ((world, name) for world in WORLDS for name in CASES)}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", CASES)
def test_sharded(outcomes, name, world):
    assert not outcomes[world, name], "\n".join(outcomes[world, name])


def parts(classes, world):
    return [Part(classes, *class_range(classes, rank, world), rank, world) for rank in range(world)]


def drawn(settings, step, classes, labels, world=1):
    sampling = Sampling(settings, torch.tensor(step))
    return [(draw(sampling, part, labels).rows + part.start).tolist() for part in parts(classes, world)]


def test_slices_cover_the_classes_once():
    for classes in (1, 2, 5, 10, 101):
        for world in range(1, 9):
            held = [c for rank in range(world) for c in range(*class_range(classes, rank, world))]
            assert held == list(range(classes))


def test_a_permutation_of_any_number_is_one():
    for classes in (1, 2, 3, 5, 64, 65, 1000):
        for step in (0, 1, 2**40):
            there = permuted(torch.arange(classes), classes, 3, torch.tensor(step))
            assert there.sort().values.tolist() == list(range(classes))


def test_the_sample_has_all_labels_and_so_many_classes_and_is_fair():
    classes, rate, labels = 60, 0.25, torch.tensor([[3], [59], [3], [-1]])
    counts, together = torch.zeros(classes), 0
    steps = 800
    for step in range(steps):
        (sample,) = drawn(hm.PartialFC(rate), step, classes, labels)
        assert len(set(sample)) == len(sample) == 15
        assert {3, 59} <= set(sample)
        counts[sample] += 1
        together += 10 in sample and 11 in sample
        if step < 10:
            for world in (2, 3, 4, 7):
                shares = drawn(hm.PartialFC(rate), step, classes, labels, world)
                assert [c for share in shares for c in share] == sample
    others = counts[[c for c in range(classes) if c not in (3, 59)]]
    p = 13 / 58
    assert (others / steps - p).abs().max() < 4.5 * math.sqrt(p * (1 - p) / steps)
    pair = 13 * 12 / (58 * 57)
    assert abs(together / steps - pair) < 4.5 * math.sqrt(pair / steps)
    assert drawn(hm.PartialFC(0.01), 0, classes, labels) == [[3, 59]]  # labels, however many
    assert drawn(hm.PartialFC(rate, seed=1), 0, classes, labels) != drawn(hm.PartialFC(rate), 0, classes, labels)


def test_the_corrected_partition_function_is_unbiased_and_the_other_too_small():
    """E Σ exp z over 400 samples of a fifth of the classes, against all classes."""
    x, y = numbers(6, D), torch.tensor([0, 1, 2, 3, 4, 5])
    ratios = {}
    for correct in (False, True):
        head = hm.MarginHead(
            D,
            100,
            NoMargin(),
            scale=4.0,
            reduction="none",
            sample=hm.PartialFC(0.2, correct=correct),
            dtype=torch.float64,
        )
        head.weight.data.copy_(numbers(100, D, seed=8))
        found = head.scores(x, y)
        with torch.no_grad():
            loss = torch.stack([head(x, y) for _ in range(400)])
        R = found.target[:, 0] + torch.expm1(loss).log()  # loss = softplus(R − T)
        ratios[correct] = (R - found.rivals).exp()
    mean, error = ratios[True].mean(0), ratios[True].std(0) / math.sqrt(400)
    assert ((mean - 1).abs() < 4 * error).all()
    assert (error < 0.06).all()
    assert (ratios[False].mean(0) < 0.7).all()  # the positives of the batch are always in, so it is not 0.2


def test_a_rate_of_one_is_the_full_head():
    for sample in (None, hm.PartialFC(1.0), hm.PartialFC(1.0, correct=True)):
        torch.manual_seed(0)
        head = hm.MarginHead(D, 9, ArcFace(), scale=8.0, sample=sample, dtype=torch.float64)
        loss = head(numbers(4, D), torch.tensor([0, 8, 3, 3]))
        loss.backward()
        if sample is None:
            right = loss, head.weight.grad
        assert torch.equal(loss, right[0])
        assert torch.equal(head.weight.grad, right[1])


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_sampled_sgd_is_sgd_where_every_row_has_a_gradient(momentum, nesterov):
    options = {"lr": 0.1, "momentum": momentum, "weight_decay": 0.01, "nesterov": nesterov}
    weights = [numbers(5, 3).requires_grad_() for _ in range(3)]
    optimizers = [hm.SampledSGD([w], **options) for w in weights[:2]] + [torch.optim.SGD([weights[2]], **options)]
    for step in range(4):
        g = numbers(5, 3, seed=step)
        rows = torch.tensor([[4, 2, 0, 1, 3, 2]])
        values = torch.cat((g[rows[0][:5]], torch.zeros(1, 3, dtype=g.dtype)))
        sparse = torch.sparse_coo_tensor(rows, values, (5, 3), check_invariants=True)
        for w, grad in zip(weights, (sparse, g, g), strict=True):
            w.grad = grad
        for optimizer in optimizers:
            optimizer.step()
    for w in weights[:2]:
        torch.testing.assert_close(w, weights[2], rtol=1e-14, atol=1e-14)
    state = optimizers[0].state_dict()
    optimizers[0].load_state_dict(state)


def test_an_m_of_three_numbers_for_three_classes_is_one_m():
    m, x, W = torch.tensor([1.2, 0.3, 0.1], dtype=torch.float64), numbers(4, D), numbers(3, D, seed=1)
    y = torch.tensor([0, 1, 2, 0])
    given = hm.margin_softmax(x, W, y, Combined(), m=m)
    assert torch.equal(given, hm.margin_softmax(x, W, y, Combined(1.2, 0.3, 0.1)))


def test_errors():
    with pytest.raises(
        RuntimeError, match=r"shard=Shard\(…\) needs a process group, and none is initialised.*torchrun"
    ):
        hm.MarginHead(D, 7, ArcFace(), shard=hm.Shard())
    with pytest.raises(TypeError, match="shard must be a Shard such as"):
        hm.MarginHead(D, 7, ArcFace(), shard="classes")
    for rate, words in (
        (0.0, "must be positive"),
        (1.5, r"must lie in \(0, 1\]; got 1.5"),
        (math.nan, "must be positive"),
    ):
        with pytest.raises(ValueError, match=r"PartialFC\(rate=…\) " + words):
            hm.PartialFC(rate)
    with pytest.raises(TypeError, match="sample must be a PartialFC such as"):
        hm.MarginHead(D, 7, ArcFace(), sample=0.1)
    with pytest.raises(ValueError, match=r"label_smoothing=0.1 is about every class.*choose one"):
        hm.MarginHead(D, 7, ArcFace(), sample=hm.PartialFC(0.1), label_smoothing=0.1)
    with pytest.raises(ValueError, match="nesterov=True needs momentum"):
        hm.SampledSGD([torch.nn.Parameter(torch.ones(2))], 0.1, nesterov=True)


def test_what_is_sent_in_words():
    text = hm.explain_backend(128, 1_000_000, world_size=8)
    assert "1,024 rows × 125,000 classes" in text
    # 7·128·512·4 bytes there and back; 7·(128·8 + 40); 2·7/8·1024·16
    assert text.endswith(
        "Each of 8 ranks holds 125,000 classes and sends 3.71 MB a step: "
        "features 1.84 MB, labels 7.45 kB, sums 28.7 kB, their gradient 1.84 MB."
    )
    assert hm.scores.traffic(128, 512, 1).total == 0


def test_a_rank_that_dies_ends_the_others_with_a_clear_error(tmp_path):
    """Rank 1 ends in mid-step, between forward and backward."""
    code = f"""
import os, sys, datetime, torch, torch.distributed as dist, hypermargin as hm
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://{tmp_path}/meet", rank=rank, world_size=2,
                        timeout=datetime.timedelta(seconds=20))
head = hm.MarginHead(4, 6, hm.margins.ArcFace(), shard=hm.Shard())
loss = head(torch.randn(2, 4, requires_grad=True), torch.tensor([0, 5]))
if rank == 1:
    os._exit(9)
loss.backward()
"""
    started = time.monotonic()
    ranks = [
        subprocess.Popen([sys.executable, "-c", code, str(r)], stderr=subprocess.PIPE, text=True, env=os.environ)
        for r in range(2)
    ]
    _, said = ranks[0].communicate(timeout=60)
    ranks[1].communicate(timeout=60)
    assert ranks[0].returncode == 1
    assert "a rank of the process group did not come to all_reduce" in said
    assert time.monotonic() - started < 50


def on_one_gpu(rank, folder, world, kind):
    """Ranks that share a GPU, which NCCL refuses with more than one; against the plain head, on the same GPU."""
    torch.cuda.set_device(0)
    dist.init_process_group(kind, init_method=f"file://{folder}/{kind}{world}", rank=rank, world_size=world)
    sharded_cases.on_device(rank, world, "cuda")
    dist.destroy_process_group()


@pytest.mark.gpu
@pytest.mark.parametrize(("world", "kind"), [(1, "nccl"), (1, "cpu:gloo,cuda:nccl"), (2, "gloo"), (3, "gloo")])
def test_on_one_gpu(tmp_path, world, kind):
    torch.multiprocessing.spawn(on_one_gpu, (str(tmp_path), world, kind), world)


def test_importing_starts_nothing():
    code = (
        "import sys, hypermargin, torch.distributed as dist; "
        "assert not dist.is_initialized(); assert not {'torch._dynamo', 'triton'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
