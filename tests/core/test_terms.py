"""Row terms with a state or a layer of their own, against their formulas written out."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from conftest import over_backends

import hypermargin as hm
from hypermargin import heads
from hypermargin.margins import ArcFace, CosFace
from hypermargin.terms import CRFIQA, CenterLoss

N, C, D = 8, 5, 4


def batch(seed=0, rows=N):
    rng = torch.Generator().manual_seed(seed)
    x = 2 * torch.randn(rows, D, generator=rng, dtype=torch.float64)
    return x.requires_grad_(), torch.randint(0, C, (rows,), generator=rng)


def made(term, **options):
    """A head with the term, and one without it that has the same weights."""
    torch.manual_seed(0)
    options = {"scale": 8.0, "dtype": torch.float64, "reduction": "none"} | options
    head = hm.create_head("cosface", D, C, row_terms=[term], **options).double()
    plain = hm.create_head("cosface", D, C, **options).double()
    plain.weight.data.copy_(head.weight.data)
    return head, plain


def agree(ours, theirs, *leaves):
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    mine, other = (torch.autograd.grad(loss.sum(), leaves) for loss in (ours, theirs))
    torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9)


@over_backends
def test_center_loss_draws_to_centers_that_follow(backend):
    head, plain = made(CenterLoss(D, C, weight=0.3, rate=0.4), backend=backend)
    centers = torch.zeros(C, D, dtype=torch.float64)
    for step in range(3):
        x, y = batch(step)
        y[0] = -100
        used = (y >= 0).double()
        agree(head(x, y), plain(x, y) + 0.15 * used * (x - centers[y.clamp(min=0)]).square().sum(1), x)
        moved = centers.clone()  # class by class, as the paper prints it
        for j in range(C):
            mine = x.detach()[y == j]
            moved[j] = centers[j] - 0.4 * (centers[j] - mine).sum(0) / (1 + len(mine))
        centers = moved
        torch.testing.assert_close(head.row_terms[0].centers, centers, rtol=1e-12, atol=1e-12)
    assert "row_terms.0.centers" in head.state_dict()


def test_the_centers_arrive_at_the_means():
    head, _ = made(CenterLoss(D, C))
    x, _ = batch(rows=20)
    y = torch.arange(20) % C
    for _ in range(60):
        head(x, y)
    means = torch.stack([x.detach()[y == j].mean(0) for j in range(C)])
    torch.testing.assert_close(head.row_terms[0].centers, means)


def test_centers_rest_in_evaluation_after_an_error_and_with_nan():
    head, _ = made(CenterLoss(D, C), check=False)
    x, y = batch()
    head(x, y)
    before = head.row_terms[0].centers.clone()
    head.eval()(x, y)
    assert torch.equal(head.row_terms[0].centers, before)
    bad = x.detach().clone()
    bad[:2] = math.nan
    other, _ = made(CenterLoss(D, C), check=False)
    other.load_state_dict(head.state_dict())
    head.train()(bad, y)
    other(x[2:], y[2:])
    torch.testing.assert_close(head.row_terms[0].centers, other.row_terms[0].centers)
    head.check = True
    with pytest.raises(ValueError, match="labels"):
        hm.create_head("cosface", D, C, row_terms=[CenterLoss(D, C)])(x, y + C)
    head.reset_parameters()
    assert not head.row_terms[0].centers.any()


def cr_fiqa(head, x, y, code=False):
    c = (F.normalize(x) @ F.normalize(head.weight).T).detach()
    own = c.gather(1, y[:, None])[:, 0]
    rivals = c.scatter(1, y[:, None], -1e-12 if code else -math.inf).amax(1)
    layer = head.row_terms[0].layer
    q = x @ layer.weight[0] + layer.bias[0]
    apart = (q - own / (rivals if code else 1 + 1e-9 + rivals)).abs()
    return 10 * torch.where(apart < 0.5, apart.square() / (2 * 0.5), apart - 0.25)


@over_backends
@pytest.mark.parametrize("published", ["paper", "code"])
def test_cr_fiqa_is_its_formula(backend, published):
    head, plain = made(CRFIQA(D, published=published), backend=backend)
    x, y = batch()
    layer = head.row_terms[0].layer
    theirs = plain(x, y) + cr_fiqa(head, x, y, published == "code")
    agree(head(x, y), theirs, x, layer.weight, layer.bias)
    torch.testing.assert_close(head.row_terms[0].quality(x), layer(x)[:, 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("published", ["paper", "code"])
def test_cr_fiqa_is_finite_for_any_rivals(published, dtype):
    """Rivals opposite, at right angles, none at all; a zero row."""
    W = torch.tensor([[1.0, 0, 0, 0], [-1, 0, 0, 0]], dtype=dtype)
    for classes in (1, 2):
        head = hm.MarginHead(
            4, classes, ArcFace(), scale=8.0, row_terms=[CRFIQA(4, published=published)], dtype=dtype
        )
        head.weight.data.copy_(W[:classes])
        x = torch.tensor([[3.0, 0, 0, 0], [0, 2, 0, 0], [0, 0, 0, 0]], dtype=dtype, requires_grad=True)
        loss = head(x, torch.zeros(3, dtype=torch.int64))
        loss.backward()
        assert loss.isfinite()
        assert all(t.grad.isfinite().all() for t in (x, *head.parameters()))


def test_the_layer_learns_which_rows_can_be_told():
    torch.manual_seed(0)
    head = hm.MarginHead(D, C, CosFace(0.1), scale=8.0, row_terms=[CRFIQA(D)], dtype=torch.float64).double()
    head.weight.data[:, -1] = 0.0
    hard = torch.arange(400) % 2 == 1
    y = torch.arange(400) % C
    # The last dimension says how far a row lies from its class.
    x = head.weight.detach()[y] + torch.where(hard, 2.0, 0.1)[:, None] * torch.randn(400, D, dtype=torch.float64)
    x[:, -1] = torch.where(hard, -2.0, 2.0)
    term = head.row_terms[0]
    optimizer = torch.optim.Adam(term.parameters(), lr=0.05)
    for _ in range(200):
        optimizer.zero_grad()
        head(x, y).backward()
        optimizer.step()
    q = term.quality(x).detach()
    assert q[~hard].mean() > q[hard].mean() + 0.15


@pytest.mark.parametrize("term", [CenterLoss(D, C, weight=0.5), CRFIQA(D)], ids=lambda t: type(t).__name__)
def test_terms_go_with_a_sample_of_the_classes(term):
    head, plain = made(copy.deepcopy(term), sample=hm.PartialFC(0.6))
    x, y = batch(rows=3)
    y = y * 0 + torch.tensor([4, 1, 4])
    found = head(x, y) - plain(x, y)
    if isinstance(term, CenterLoss):
        torch.testing.assert_close(found, 0.25 * x.square().sum(1))
        assert head.row_terms[0].centers.any(1).tolist() == [False, True, False, False, True]
    assert (found > 0).all()


@pytest.mark.parametrize("term", [CenterLoss(D, C, weight=0.5), CRFIQA(D)], ids=lambda t: type(t).__name__)
def test_a_resumed_run_is_the_uninterrupted_one_to_the_bit(term):
    def run(head, steps):
        optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
        for step in steps:
            optimizer.zero_grad()
            head(*batch(step)).mean().backward()
            optimizer.step()
        return head.state_dict()

    head, _ = made(copy.deepcopy(term))
    again, _ = made(copy.deepcopy(term))
    again.load_state_dict(copy.deepcopy(run(head, range(3))))
    other = run(again, range(3, 6))
    assert all(torch.equal(tensor, other[name]) for name, tensor in run(head, range(3, 6)).items())


def test_a_head_whose_classes_change_refuses_the_centers():
    head, _ = made(CenterLoss(D, C))
    with pytest.raises(ValueError, match=r"CenterLoss holds something for each class.*weights_of\(head\)"):
        heads.remove_classes(head, [1])
    head, _ = made(CRFIQA(D))
    heads.remove_classes(head, [1])
    assert head.classes == C - 1


@pytest.mark.parametrize(
    ("wrong", "kind", "words"),
    [
        (lambda: CenterLoss(0, 3), ValueError, r"CenterLoss\(dim=…\) must be"),
        (lambda: CenterLoss(3, 3, weight=0.0), ValueError, r"CenterLoss\(weight=…\) must be"),
        (lambda: CenterLoss(3, 3, rate=1.5), ValueError, r"CenterLoss\(rate=…\) must"),
        (lambda: CRFIQA(3, published="book"), ValueError, r"CRFIQA\(published=…\) must be.*got 'book'"),
        (lambda: made(CenterLoss(D, 7)), ValueError, r"CenterLoss\(classes=…\) must be the head's.*5; got 7"),
        (lambda: made(CRFIQA(3)), ValueError, r"CRFIQA\(dim=…\) must be the head's dim, 4; got 3"),
    ],
)  # fmt: skip
def test_errors(wrong, kind, words):
    with pytest.raises(kind, match=words):
        wrong()


@pytest.mark.parametrize("term", [CenterLoss(D, C), CRFIQA(D)], ids=lambda t: type(t).__name__)
def test_mixup_is_refused(term):
    head, _ = made(term)
    x, y = batch()
    with pytest.raises(ValueError, match=f"{type(term).__name__} needs one label per row; mixup has two"):
        head(x, y, mix=(y.flip(0), 0.3))
