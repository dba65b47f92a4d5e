"""Class-parallel heads: four processes run tests/sharded_cases.py once, each case in some worlds of one to four.

Partial FC's laws that need no second process, and what is said without a process group, follow.
"""

import copy
import io
import math
import multiprocessing
import time

import pytest
import sharded_cases
import torch
from sharded_cases import EVERY, D, chosen, numbers

import hypermargin as hm
from hypermargin.margins import ArcFace, Combined, NoMargin
from hypermargin.parallel.partial_fc import draw, permuted
from hypermargin.parallel.shard import class_range


def started(target, count, *args):
    """Processes with everything imported, once for all."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sharded_cases", "torch._dynamo"])  # any custom operation imports the latter
    ranks = [context.Process(target=target, args=(r, *args)) for r in range(count)]
    for each in ranks:
        each.start()
    return ranks


def ended(ranks, seconds):
    end = time.monotonic() + seconds
    for each in ranks:
        each.join(max(end - time.monotonic(), 0.1))
    for each in ranks:
        each.kill()


def run(folder, in_every_world=False):
    """{(world, case): what went wrong, by rank}."""
    ended(started(sharded_cases.work, max(EVERY), str(folder), in_every_world), 400 if in_every_world else 150)
    files = [folder / f"rank{r}" for r in range(max(EVERY))]
    by_rank = [torch.load(file) if file.exists() else {} for file in files]

    def wrong(key):
        said = {r: found.get(key, "it did not come to this") for r, found in enumerate(by_rank[: key[0]])}
        return [f"rank {r}:\n{words}" for r, words in said.items() if words]

    return {key: wrong(key) for key in chosen(in_every_world)}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    return run(tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize(("world", "name"), chosen(False))
def test_sharded(outcomes, world, name):
    assert not outcomes[world, name], "\n".join(outcomes[world, name])


@pytest.mark.slow
def test_every_case_in_every_world(tmp_path):
    for key, words in run(tmp_path, in_every_world=True).items():
        assert not words, f"{key}\n" + "\n".join(words)


def drawn(settings, step, classes, labels, world=1):
    slices = [range(*class_range(classes, rank, world)) for rank in range(world)]
    return [
        (draw(settings, torch.tensor(step), held, classes, labels).rows + held.start).tolist() for held in slices
    ]


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
    steps = 300
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


@pytest.mark.parametrize(("rate", "correct"), [(0.2, True), (0.03, True), (0.2, False)])
def test_the_corrected_partition_function_is_unbiased_and_the_other_too_small(rate, correct):
    """E Σ exp z over samples, against all classes; also where the labels alone are more than rate·C."""
    x, y, samples = numbers(6, D), torch.tensor([0, 1, 2, 3, 4, 5]), 120
    sample = hm.PartialFC(rate, correct=correct)
    head = hm.MarginHead(D, 100, NoMargin(), scale=4.0, reduction="none", sample=sample, dtype=torch.float64)
    head.weight.data.copy_(numbers(100, D, seed=8))
    found = head.scores(x, y)
    with torch.no_grad():
        loss = torch.stack([head(x, y) for _ in range(samples)])
    R = found.target[:, 0] + torch.expm1(loss).log()  # loss = softplus(R − T)
    ratio = (R - found.rivals).exp()
    mean, error = ratio.mean(0), ratio.std(0) / math.sqrt(samples)
    if correct:
        assert ((mean - 1).abs() < 4 * error).all()
        assert (error < 0.25).all()
    else:
        assert (mean < 0.7).all()  # the labels of the batch are always in, so it is not 0.2


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
    """To rounding with sparse gradients, to the bit with others; with groups, a scheduler, and saved midway."""
    options = {"lr": 0.1, "momentum": momentum, "weight_decay": 0.01, "nesterov": nesterov}

    def made(kind, table):
        first, second = table.clone().requires_grad_(), numbers(3, seed=5).requires_grad_()
        groups = [{"params": [first], "name": "table"}, {"params": [second], "lr": 0.3, "weight_decay": 0.0}]
        optimizer = kind(groups, **options)
        return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5), first, second

    kinds = (hm.SampledSGD, hm.SampledSGD, torch.optim.SGD)
    runs = [made(kind, numbers(5, 3)) for kind in kinds]
    for step in range(6):
        g, h = numbers(5, 3, seed=step), numbers(3, seed=step + 100)
        rows = torch.tensor([[4, 2, 0, 1, 3, 2]])
        values = torch.cat((g[rows[0][:5]], torch.zeros(1, 3, dtype=g.dtype)))
        sparse = torch.sparse_coo_tensor(rows, values, (5, 3), check_invariants=True)
        for (optimizer, scheduler, first, second), by_first in zip(runs, (sparse, g, g), strict=True):
            first.grad, second.grad = by_first, h
            optimizer.step()
            scheduler.step()
        if step == 2:  # SGD's own state does as well
            for number, saved in ((0, 0), (1, 2)):
                state = copy.deepcopy(runs[saved][0].state_dict())
                again = made(kinds[number], runs[number][2].detach())
                again[3].data.copy_(runs[number][3].data)
                again[0].load_state_dict(state)
                again[1].load_state_dict(runs[number][1].state_dict())
                runs[number] = again
    for _, _, first, second in runs[:2]:
        torch.testing.assert_close(first, runs[2][2], rtol=1e-14, atol=1e-14)
        assert torch.equal(second, runs[2][3])
    assert torch.equal(runs[1][2], runs[2][2])
    state = torch.optim.SGD([runs[0][2]], 0.1, maximize=True).state_dict()
    with pytest.raises(ValueError, match="SampledSGD knows neither dampening nor maximize"):
        hm.SampledSGD([runs[0][2]], 0.1).load_state_dict(state)


def test_sampled_gradients_of_two_passes_and_with_a_scaler():
    """Both add up to the dense gradient of the same sample, and decay moves nothing else."""
    head = hm.MarginHead(D, 40, ArcFace(), scale=8.0, sample=hm.PartialFC(0.2), dtype=torch.float64)
    optimizer = hm.SampledSGD(head.parameters(), 0.1, weight_decay=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    before = head.weight.detach().clone()
    for step in range(2):
        scaler.scale(head(numbers(3, D, seed=step), torch.tensor([step, 2, 39]))).backward()
    scaler.unscale_(optimizer)
    grad = head.weight.grad.to_dense()
    touched = (grad != 0).any(1)
    scaler.step(optimizer)
    assert 8 < touched.sum() <= 16
    torch.testing.assert_close(head.weight[touched], (before - 0.1 * (grad + 0.01 * before))[touched])
    assert torch.equal(head.weight[~touched], before[~touched])


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.5)])
def test_sampled_adamw_is_adamw_where_every_row_has_a_gradient(betas):
    """To rounding with sparse gradients, with others too; with groups, a scheduler, and saved midway."""

    def made(kind, table):
        first, second = table.clone().requires_grad_(), numbers(3, seed=5).requires_grad_()
        groups = [{"params": [first], "name": "table"}, {"params": [second], "lr": 0.3, "weight_decay": 0.0}]
        optimizer = kind(groups, lr=0.1, betas=betas, weight_decay=0.2, eps=1e-3)
        return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5), first, second

    kinds = (hm.SampledAdamW, hm.SampledAdamW, torch.optim.AdamW)
    runs = [made(kind, numbers(5, 3)) for kind in kinds]
    for step in range(6):
        g, h = numbers(5, 3, seed=step), numbers(3, seed=step + 100)
        sparse = torch.sparse_coo_tensor(torch.tensor([[4, 2, 0, 1, 3]]), g[[4, 2, 0, 1, 3]], (5, 3))
        for (optimizer, scheduler, first, second), by_first in zip(runs, (sparse, g, g), strict=True):
            first.grad, second.grad = by_first, h
            optimizer.step()
            scheduler.step()
        if step == 2:  # AdamW's own state does as well, and gradients that were sparse may become others
            for number, saved in ((1, 0), (0, 2)):
                state = copy.deepcopy(runs[saved][0].state_dict())
                again = made(kinds[number], runs[number][2].detach())
                again[3].data.copy_(runs[number][3].data)
                again[0].load_state_dict(state)
                again[1].load_state_dict(runs[number][1].state_dict())
                runs[number] = again
    assert runs[0][0].state[runs[0][2]]["step"].tolist() == [6.0] * 5
    for _, _, first, second in runs[:2]:
        torch.testing.assert_close(first, runs[2][2], rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(second, runs[2][3], rtol=1e-13, atol=1e-13)
    state = torch.optim.AdamW([runs[0][2]], amsgrad=True).state_dict()
    with pytest.raises(ValueError, match="SampledAdamW knows neither amsgrad nor maximize"):
        hm.SampledAdamW([runs[0][2]]).load_state_dict(state)
    for wrong in (
        {"betas": (1.0, 0.9)},
        {"betas": (0.9, -0.1)},
        {"lr": -1.0},
        {"weight_decay": -1.0},
        {"eps": -1.0},
    ):
        with pytest.raises(ValueError, match=rf"{next(iter(wrong))} must lie in \[0, "):
            hm.SampledAdamW([torch.ones(2)], **wrong)


@pytest.mark.parametrize(("saved", "block"), [(False, 9), (True, 2**16)])
def test_sampled_adamw_gives_every_row_an_adamw_of_its_own(monkeypatch, saved, block):
    """Row by row by the formula, each with its own count of steps; rows without a gradient keep all to the bit."""
    monkeypatch.setattr("hypermargin.optim.BLOCK", block)  # rows are changed two at a time, or all
    lr, (b1, b2), eps, decay = 0.05, (0.9, 0.99), 1e-8, 0.1
    start = numbers(6, 4)
    table = start.clone().requires_grad_()
    bias = numbers(6, seed=3).requires_grad_()

    def made():
        return hm.SampledAdamW([table, bias], lr, betas=(b1, b2), eps=eps, weight_decay=decay)

    optimizer = made()
    right = [[row.clone(), torch.zeros(4), torch.zeros(4), 0] for row in start]
    for step, named in enumerate([[0, 2], [2, 5], [2], [], [0, 1, 2, 3, 5], [5]]):
        g = numbers(len(named), 4, seed=step + 10)
        before = copy.deepcopy((table.detach(), optimizer.state.get(table, {})))
        table.grad = torch.sparse_coo_tensor(torch.tensor([named]), g, (6, 4))
        bias.grad = torch.sparse_coo_tensor(torch.tensor([named]), g[:, 0], (6,))
        optimizer.step()
        for row, grad in zip(named, g, strict=True):
            w, m, v, t = right[row]
            t, m, v = t + 1, b1 * m + (1 - b1) * grad, b2 * v + (1 - b2) * grad**2
            w = (1 - lr * decay) * w - lr * (m / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + eps)
            right[row] = [w, m, v, t]
        others = [row for row in range(6) if row not in named]
        assert torch.equal(table[others], before[0][others])
        for name, value in before[1].items():
            assert torch.equal(optimizer.state[table][name][others], value[others])
        if saved and step == 2:
            state = io.BytesIO()
            torch.save(optimizer.state_dict(), state)
            state.seek(0)
            optimizer = made()
            optimizer.load_state_dict(torch.load(state, weights_only=True))
    torch.testing.assert_close(table, torch.stack([row[0] for row in right]), rtol=1e-13, atol=1e-13)
    assert optimizer.state[table]["step"].tolist() == [2.0, 1.0, 4.0, 1.0, 0.0, 3.0]
    assert optimizer.state[bias]["step"].tolist() == [2.0, 1.0, 4.0, 1.0, 0.0, 3.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sampled_adamw_of_a_rows_first_step_at_any_time(dtype):
    """Whenever a row takes part for the first time, it moves by lr, as Adam's first step does."""
    table = torch.nn.Parameter(torch.ones(3, 2, dtype=dtype))
    optimizer = hm.SampledAdamW([table], 0.25, weight_decay=0.0)
    for _ in range(50):
        table.grad = torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1, 2, dtype=dtype), (3, 2))
        optimizer.step()
    table.grad = torch.sparse_coo_tensor(torch.tensor([[1]]), torch.full((1, 2), 1e-3, dtype=dtype), (3, 2))
    optimizer.step()
    torch.testing.assert_close(table[1].float(), torch.full((2,), 0.75), rtol=1e-4, atol=0.0)
    assert table[2].tolist() == [1.0, 1.0]


def test_an_m_of_three_numbers_for_three_classes_is_one_m():
    m, x, W = torch.tensor([1.2, 0.3, 0.1], dtype=torch.float64), numbers(4, D), numbers(3, D, seed=1)
    y = torch.tensor([0, 1, 2, 0])
    given = hm.margin_softmax(x, W, y, Combined(), scale=1.0, m=m)
    right = hm.margin_softmax(x, W, y, Combined(1.2, 0.3, 0.1), scale=1.0)
    torch.testing.assert_close(given, right, rtol=1e-12, atol=0.0)


def test_errors():
    with pytest.raises(
        RuntimeError, match=r"shard=Shard\(…\) needs a process group, and none is initialised.*torchrun"
    ):
        hm.MarginHead(D, 7, ArcFace(), scale=8.0, shard=hm.Shard())
    with pytest.raises(TypeError, match="shard must be a Shard such as"):
        hm.MarginHead(D, 7, ArcFace(), scale=8.0, shard="classes")
    for rate, words in (
        (0.0, "must be positive"),
        (1.5, r"must lie in \(0, 1\]; got 1.5"),
        (math.nan, "must be positive"),
    ):
        with pytest.raises(ValueError, match=r"PartialFC\(rate=…\) " + words):
            hm.PartialFC(rate)
    with pytest.raises(TypeError, match="sample must be a PartialFC such as"):
        hm.MarginHead(D, 7, ArcFace(), scale=8.0, sample=0.1)
    with pytest.raises(ValueError, match=r"label_smoothing=0.1 is about every class.*choose one"):
        hm.MarginHead(D, 7, ArcFace(), scale=8.0, sample=hm.PartialFC(0.1), label_smoothing=0.1)
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
    assert hm.parallel.traffic(128, 512, 1).total == 0


def test_a_rank_that_dies_ends_the_others_with_a_clear_error(tmp_path):
    ranks = started(sharded_cases.lose_a_rank, 2, str(tmp_path))
    ended(ranks, 50)
    assert [rank.exitcode for rank in ranks] == [0, 9]
    assert "a rank of the process group did not come to all_reduce" in torch.load(tmp_path / "said")


@pytest.mark.gpu
@pytest.mark.parametrize(("world", "kind"), sharded_cases.ON_ONE_GPU)
def test_on_one_gpu(tmp_path, world, kind):
    torch.multiprocessing.spawn(sharded_cases.on_one_gpu, (str(tmp_path), world, kind), world)
