"""What the ranks of tests/parallel/test_sharded.py do: a sharded head against the plain one, in float64."""

from __future__ import annotations

import copy
import datetime
import io
import itertools
import math
import os
import tempfile
import traceback
from functools import partial

import torch
import torch.distributed as dist
from row_by_row import RowByRow
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hypermargin as hm
from hypermargin import margins, rules, schedule, terms
from hypermargin.backends import Chunked
from hypermargin.centers import Centers
from hypermargin.margins import AdaFace, ArcFace, Combined, CosFace, NoMargin, SphereFace, SphereFace2
from hypermargin.parallel import messages as collective
from hypermargin.parallel.shard import class_range
from hypermargin.recipes import FAMILY
from hypermargin.rules import MVSoftmax
from hypermargin.scores import Scores
from hypermargin.terms import RingLoss
from hypermargin.views import VariationalPrototypes, VectorScaling

EVERY = (1, 2, 3, 4)
D = 5
CASES = {}  # by name: what is done, and in which worlds; the slow test does all in every


def case(*worlds):
    def keep(function):
        CASES[function.__name__] = function, worlds
        return function

    return keep


class Ranks:
    """This rank, in a world of the first few processes."""

    def __init__(self, world, group):
        self.world, self.group, self.rank = world, group, dist.get_rank(group)

    def rows(self, sizes):
        start = sum(sizes[: self.rank])
        return slice(start, start + sizes[self.rank])

    def classes(self, count):
        return slice(*class_range(count, self.rank, self.world))

    def weight_rows(self, head):
        mine, K = self.classes(head.classes), head.settings.centers.count
        return slice(K * mine.start, K * mine.stop)


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def problem(ranks, classes, sizes=(3, 2, 4, 1), seed=1):
    """Rows by rank, features and labels of all; a label in the last class where there is one."""
    sizes = sizes[: ranks.world]
    n = sum(sizes)
    y = torch.randint(0, classes, (n,), generator=torch.Generator().manual_seed(seed))
    if n:
        y[-1] = classes - 1
    return sizes, 2 * numbers(n, D, seed=seed), y


def made(margin, classes, **options):
    """A head with a margin, or one of the family by its name."""
    options = copy.deepcopy(options)
    if isinstance(margin, str):
        return hm.create_head(margin, D, classes, dtype=torch.float64, **options).double()
    return hm.MarginHead(D, classes, margin, dtype=torch.float64, **({"scale": 1.0} | options)).double()


def pair(ranks, margin, classes, average=True, **options):
    """The plain head and the sharded one, with the same numbers in them."""
    torch.manual_seed(3)
    one = made(margin, classes, **options)
    if one.bias is not None:
        one.bias.data.normal_()
    many = made(margin, classes, shard=hm.Shard(ranks.group, average=average), **options)
    mine, rows = ranks.classes(classes), ranks.weight_rows(one)
    assert many.weight.shape[0] == rows.stop - rows.start
    many.weight.data.copy_(one.weight.data[rows])
    if one.bias is not None:
        many.bias.data.copy_(one.bias.data[mine] if one.bias.dim() else one.bias.data)
    return one, many


def close(a, b, what, tolerance=1e-10):
    assert a.shape == b.shape, f"{what}: shape {tuple(a.shape)}, should be {tuple(b.shape)}"
    a, b = a.detach(), b.detach()
    same = (a == b) | (a.isnan() & b.isnan())
    off = (a - b).abs().masked_fill(same, 0.0)
    worst = float(off.detach().max()) if off.numel() else 0.0
    assert worst <= tolerance * max(1.0, float(b[b.isfinite()].abs().max()) if b.isfinite().any() else 1.0), (
        f"{what} is off by {worst:.3g}"
    )


def grad(tensor):
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad.to_dense()


def compare_gradients(ranks, one, many, x_one, x_many, own, factor):
    mine = ranks.classes(one.classes)
    close(grad(x_many), factor * grad(x_one)[own], "dX")
    close(grad(many.weight), grad(one.weight)[ranks.weight_rows(one)], "dW")
    if one.bias is not None:
        close(grad(many.bias), grad(one.bias)[mine] if one.bias.dim() else grad(one.bias), "db")
    for mine_of_term, term in zip(many.row_terms.parameters(), one.row_terms.parameters(), strict=True):
        close(grad(mine_of_term), grad(term), "gradient of a row term")
    if one.settings.learn_scale:
        close(grad(many.scale), grad(one.scale), "ds")
    if one.settings.learn_margin:
        by_class = one.m.dim() > torch.tensor(one.margin.m).dim()
        close(grad(many.m), grad(one.m)[mine] if by_class else grad(one.m), "dm")


def agree(
    ranks,
    margin,
    classes=7,
    sizes=(3, 2, 4, 1),
    average=True,
    mix=None,
    ignore=(),
    bad=(),
    steps=1,
    ends_epochs=False,
    **options,
):
    """Loss, every gradient, and what is remembered of every class, sharded against plain.

    Of `bad` rows every other has NaN, the rest no class.
    """
    one, many = pair(ranks, margin, classes, average, **options)
    sizes, x, y = problem(ranks, classes, sizes)
    own = ranks.rows(sizes)
    y[[i for i in ignore if i < len(y)]] = -100
    x[[i for i in bad[::2] if i < len(y)]] = math.nan
    y[[i for i in bad[1::2] if i < len(y)]] = classes + 3
    x_one, x_many = x.clone().requires_grad_(), x[own].clone().requires_grad_()
    x_one.data[y == -100] = math.nan
    x_many.data[y[own] == -100] = math.nan
    for _ in range(steps):
        both = None
        if mix is not None:
            other = (y + torch.arange(len(y)) % 3) % classes
            both = (other, torch.linspace(0, 1, len(y), dtype=torch.float64) if mix == "rows" else mix)
            if mix == "ranks":  # each has drawn its own
                both = (
                    other,
                    torch.cat([torch.full((size,), 0.9 / (r + 1)) for r, size in enumerate(sizes)]).double(),
                )
        own_mix = both and (both[0][own], both[1][own] if mix == "rows" else both[1])
        if mix == "ranks":
            number = float(torch.tensor(0.9 / (ranks.rank + 1)))
            own_mix = both[0][own], torch.tensor(number) if ranks.rank == 1 else number
        a, b = one(x_one, y, mix=both), many(x_many, y[own], mix=own_mix)
        if one.settings.reduction == "none":
            close(b, a[own], "loss")
            a, b = (a * torch.arange(1, len(y) + 1)).sum(), (b * torch.arange(own.start + 1, own.stop + 1)).sum()
        else:
            close(b, a, "loss")
        for head, leaf, loss in ((one, x_one, a), (many, x_many, b)):
            head.zero_grad()
            leaf.grad = None
            loss.backward()
            if ends_epochs:
                head.end_epoch()
        compare_gradients(ranks, one, many, x_one, x_many, own, ranks.world if average else 1)
    mine = ranks.classes(classes)
    for name, remembered in one.by_class().items():
        if "." in name:
            close(many.by_class()[name], remembered[mine], name)
    close(many.current_scale().detach().double(), one.current_scale().detach().double(), "s")
    return one, many


@case(3)
def every_margin(ranks):
    for name, gradient in itertools.product(margins.names(), ("exact", "straight")):
        agree(ranks, margins.get(name)(), scale=8.0, gradient=gradient)
    agree(ranks, ArcFace(0.5, beyond="easy"), scale=64.0)


@case(2)
def every_backend(ranks):
    for backend, unit in itertools.product(
        ("dense", Chunked(chunk=2), Chunked(chunk=2, keep=0), RowByRow()), (True, False)
    ):
        agree(ranks, CosFace(), scale=8.0, backend=backend, unit_weight=unit, bias=not unit, classes=11)


@case(3)
def every_norm_and_a_bias(ranks):
    for unit_x, unit_w, bias in itertools.product((True, False), repeat=3):
        agree(ranks, SphereFace(1.7), unit_features=unit_x, unit_weight=unit_w, bias=bias, scale=3.0)


@case(*EVERY)
def any_number_of_classes(ranks):
    for classes in (1, 2, 3, 4, 5, 8, 13):
        agree(ranks, ArcFace(), classes=classes, scale=8.0, bias=classes % 2 == 0)
        agree(ranks, NoMargin(), classes=classes, unit_weight=False, backend=Chunked(chunk=2), label_smoothing=0.1)


@case(2)
def every_head(ranks):
    """Each head of the family by its name, with all classes and with a sample of them."""
    for name, recipe in FAMILY.items():
        given = {"counts": [100, 1, 1000, 3, 30, 7, 7]} if recipe.by_counts else {}
        agree(ranks, name, ignore=(1,), steps=2, backend="dense", **given)
        agree(ranks, name, backend=Chunked(chunk=2), **given)
        whole = {"together": 0.0} if recipe.centers.together else {}  # which is about all classes
        agree(ranks, name, steps=2, sample=hm.PartialFC(0.5), **given, **whole)


@case(1, 3)
def every_slot(ranks):
    """Rules with a threshold and one-vs-all, margins by row with state, centers, offsets, row terms."""
    fillings = [
        (CosFace(), {"rule": MVSoftmax()}),
        (ArcFace(), {"rule": MVSoftmax(0.3, "fixed"), "learn_scale": True}),
        (SphereFace2(), {"rule": rules.SphereFace2(), "bias": "shared", "learn_scale": True}),
        (SphereFace2(), {"rule": rules.SphereFace2(), "bias": True, "reduction": "none"}),
        (AdaFace(momentum=0.3), {"steps": 3}),
        (ArcFace(), {"rule": rules.CurricularFace(0.3), "steps": 3}),
        (margins.Circle(), {"rule": rules.Circle()}),
        (ArcFace(), {"rule": rules.InterTopK(2, 0.3)}),
        (ArcFace(), {"rule": rules.InterTopK(9, 0.3), "centers": 2}),
        (ArcFace(), {"rule": rules.ArcNegFace()}),
        (SphereFace2(variant="A"), {"rule": rules.SphereFace2(variant="A"), "bias": "shared"}),
        (CosFace(0.4), {"rule": rules.UniFace(), "bias": True}),
        (margins.SFace(), {"rule": rules.SFace()}),
        (margins.P2SGrad(), {"rule": rules.P2SGrad()}),
        (margins.P2SGrad(), {"rule": rules.P2SGrad(), "centers": 2}),
        (margins.NPCFace(), {"rule": rules.NPCFace()}),
        (margins.LiArcFace(), {"rule": rules.LiArcFace()}),
        (SphereFace(1.5, beyond="flat"), {"scale": 8.0}),
        (NoMargin(), {"rule": rules.SphereFaceR()}),
        (CosFace(0.4), {"rule": rules.Filter(0.1)}),
        (ArcFace(0.2), {"rule": rules.DoubleMargin()}),
        (CosFace(0.2), {"rule": rules.DoubleMargin(kind="cosine")}),
        (ArcFace(), {"centers": 3}),
        (CosFace(), {"centers": 2, "rule": MVSoftmax(), "class_margins": [0.1, 0.2, 0.3, 0.4, 0.3, 0.2, 0.1]}),
        (ArcFace(), {"centers": Centers(3, "max"), "bias": True}),
        (CosFace(), {"centers": Centers(2, "max"), "rule": MVSoftmax(), "learn_scale": True}),
        (ArcFace(), {"centers": Centers(2, "max"), "rule": rules.InterTopK(2, 0.3)}),
        (CosFace(0.1), {"centers": Centers(3, "soft"), "learn_scale": True}),
        (ArcFace(), {"class_offsets": [0.0, -1.0, 2.0, 0.5, 0.0, 1.0, -3.0], "bias": "shared"}),
        (CosFace(), {"row_terms": [RingLoss(0.5, 2.0)]}),
        (CosFace(), {"row_terms": [terms.CenterLoss(D, 7, 0.5), terms.CRFIQA(D)], "steps": 3}),
    ]
    for (margin, options), backend in itertools.product(fillings, ("dense", Chunked(chunk=2))):
        agree(ranks, margin, ignore=(1,), backend=backend, **({"scale": 8.0} | options))
        agree(ranks, margin, classes=7, sizes=(0, 3, 1, 2), backend=backend, **({"scale": 8.0} | options))
    for margin, options in fillings:
        if "class_offsets" not in options:
            agree(ranks, margin, sample=hm.PartialFC(0.5), **({"scale": 8.0, "steps": 2} | options))
    for mix in (0.3, "rows"):
        agree(ranks, SphereFace2(), mix=mix, rule=rules.SphereFace2(), bias="shared", scale=8.0)
        agree(ranks, ArcFace(), mix=mix, centers=2, scale=8.0)
        agree(ranks, ArcFace(), mix=mix, centers=Centers(2, "max"), scale=8.0)
    for pool in ("max", "soft"):  # a rank without a class
        agree(ranks, ArcFace(), classes=1, centers=Centers(2, pool, together=0.3), scale=8.0, bias=True)
    for reduction in ("mean", "none"):
        together = Centers(3, "soft", together=0.3)
        agree(ranks, CosFace(0.1), centers=together, scale=8.0, reduction=reduction)
        agree(ranks, margins.P2SGrad(), mix=mix, rule=rules.P2SGrad(), scale=8.0)
    _, many = agree(ranks, AdaFace(momentum=0.3), scale=8.0, steps=2)
    means = [torch.empty(()) for _ in range(ranks.world)]
    dist.all_gather(means, many.row_margin.mean.float(), group=ranks.group)
    assert all(torch.equal(each, means[0]) for each in means), "every rank has the same statistics"
    assert means[0] != 20
    _, many = agree(ranks, ArcFace(), rule=rules.CurricularFace(0.3), scale=8.0, steps=2)
    dist.all_gather(means, many.rule_state.t.float(), group=ranks.group)
    assert all(torch.equal(each, means[0]) for each in means), "every rank has the same t"
    assert means[0] != 0


@case(1, 3)
def pairs_of_all_ranks(ranks):
    """Rows of all ranks against those of all, each rank with its own pairs."""
    a, b = numbers(4 * ranks.world, D, seed=8), numbers(4 * ranks.world, D, seed=9)
    own = ranks.rows([4] * ranks.world)
    for reduction, average in itertools.product(("mean", "sum", "none"), (True, False)):
        one = [t.clone().requires_grad_() for t in (a, b, torch.tensor(8.0, dtype=torch.float64))]
        many = [t.detach().clone().requires_grad_() for t in (a[own], b[own], one[2])]
        whole = hm.contrastive(*one, CosFace(0.1), reduction=reduction)
        part = hm.contrastive(*many, CosFace(0.1), reduction=reduction, shard=hm.Shard(ranks.group, average))
        close(part, whole[own] if reduction == "none" else whole, "loss")
        whole.sum().backward()
        part.sum().backward()
        factor = ranks.world if average else 1
        for mine, all_of_it in zip(many[:2], one[:2], strict=True):
            close(mine.grad, factor * all_of_it.grad[own], "gradient of a side")
        close(many[2].grad, one[2].grad, "ds")
    if ranks.world > 1:
        odd = a[: 2 + (ranks.rank == 1)]
        said = ""
        try:
            hm.contrastive(odd, odd, 8.0, shard=hm.Shard(ranks.group))
        except ValueError as error:
            said = str(error)
        assert "3 rows on each rank on ranks [1]" in said, said


COUNTS = [100, 1, 1000, 0, 30, 7, 7, 50, 2]


@case(1, 3)
def margins_by_class_that_move_and_views(ranks):
    """Every rank remembers its own classes, of the rows of all ranks; some have none."""
    fillings = [
        (margins.KappaFace(), {"steps": 3, "ends_epochs": True}),
        (margins.KappaFace(), {"steps": 3, "ends_epochs": True, "rule": MVSoftmax(), "learn_scale": True}),
        (margins.DynArcFace(k1=0.8), {}),
        (margins.DynArcFace(k1=0.8), {"centers": 2, "bias": True}),
        (
            margins.AdaptiveFace(),
            {"learn_margin": True, "margin_reward": 2.0, "class_margins": [0.3, 0.4, 0.2] * 3},
        ),
        (NoMargin(), {"view": VectorScaling(), "unit_weight": False, "unit_features": False, "bias": True}),
        (ArcFace(0.3), {"view": VectorScaling(), "bias": "shared", "learn_scale": True}),
        (ArcFace(0.3), {"view": VectorScaling(), "centers": 2, "class_offsets": [0.5, 0.0, -0.5] * 3}),
        (ArcFace(0.3), {"view": VariationalPrototypes(after=0.0), "steps": 3}),
        (CosFace(), {"view": VariationalPrototypes(0.3, 1.0, 1.0), "rule": MVSoftmax(), "steps": 4}),
    ]
    for classes, (margin, options) in itertools.product((2, 9), fillings):
        given = {k: v[:classes] if k.startswith("class_") else v for k, v in options.items()}
        given = {"scale": 8.0, "classes": classes, "class_counts": COUNTS[:classes]} | given
        for backend in ("dense", Chunked(chunk=2)):
            agree(ranks, margin, ignore=(1,), backend=backend, **given)
        agree(ranks, margin, sizes=(0, 3, 1, 2), **given)
        if "class_offsets" not in options:
            agree(ranks, margin, sample=hm.PartialFC(0.6), **given)
            agree(ranks, margin, sample=hm.PartialFC(0.6, correct=True), **given)
        if not margin.name.startswith("npc") and "rule" not in options:
            agree(ranks, margin, mix=0.3, **given)
    _, many = agree(ranks, margins.KappaFace(), scale=8.0, steps=2, ends_epochs=True)
    assert many.row_margin.weights.numel() == 0 or (many.row_margin.weights != 1).any()


@case(*EVERY)
def any_number_of_rows(ranks):
    for sizes in ((2, 2, 2, 2), (0, 3, 1, 2), (1, 0, 0, 0), (0, 0, 0, 0), (5, 1, 0, 7)):
        agree(ranks, ArcFace(), sizes=sizes, scale=8.0, learn_scale=True)
        agree(ranks, CosFace(), sizes=sizes, scale=8.0, reduction="none", label_smoothing=0.2)


@case(3)
def bad_rows(ranks):
    for bad, backend in itertools.product(((0,), (4, 0), (1, 2, 9)), ("dense", Chunked(chunk=2))):
        given = {"ignore": (3,), "bad": bad, "scale": 8.0, "check": False, "backend": backend}
        one, many = agree(ranks, ArcFace(), bias=True, learn_scale=True, **given)
        assert all(p.grad.isfinite().all() for head in (one, many) for p in head.parameters())
        agree(ranks, ArcFace(), reduction="none", **given)
        agree(ranks, CosFace(), rule=MVSoftmax(), centers=2, **given)
        agree(ranks, AdaFace(momentum=0.3), sample=hm.PartialFC(0.5), **given)


@case(3)
def ignored_rows(ranks):
    for ignore in ((0,), (0, 1, 2, 4), range(10)):
        agree(ranks, ArcFace(), ignore=ignore, scale=8.0, bias=True)
        agree(ranks, ArcFace(), ignore=ignore, scale=8.0, reduction="none", backend=Chunked(chunk=2))


@case(*EVERY)
def every_reduction(ranks):
    for reduction, average in itertools.product(("mean", "sum", "none"), (True, False)):
        agree(ranks, ArcFace(), reduction=reduction, average=average, scale=8.0)


@case(3)
def smoothing_and_mixup(ranks):
    for mix, smoothing in itertools.product((None, 0.3, "rows", "ranks"), (0.0, 0.1)):
        options = {"mix": mix, "label_smoothing": smoothing, "scale": 8.0}
        agree(ranks, ArcFace(), ignore=(1,), **options)
        agree(ranks, CosFace(), classes=2, bias=True, unit_weight=False, reduction="none", **options)


@case(4)
def learned_scale_and_margins(ranks):
    for margin, classes in ((ArcFace(0.3), 7), (Combined(1.1, 0.2, 0.1), 6), (Combined(1.1, 0.2, 0.1), 3)):
        m = torch.tensor(margin.m)
        by_class = m + 0.05 * torch.rand(classes, *m.shape, generator=torch.Generator().manual_seed(0))
        agree(ranks, margin, classes=classes, class_margins=by_class, scale=8.0)
        for given in (None, by_class):
            options = {"class_margins": given, "learn_margin": True, "learn_scale": True, "classes": classes}
            agree(ranks, margin, scale=8.0, **options)
            agree(ranks, margin, scale=8.0, unit_features=False, reduction="none", **options)


@case(3)
def scales_that_set_themselves(ranks):
    agree(ranks, CosFace(0.2), scale="adacos", classes=13)
    agree(ranks, CosFace(0.2), scale="adacos-dynamic", classes=13, steps=3, ignore=(2,))
    agree(ranks, CosFace(0.2), scale="adacos-dynamic", classes=5, sizes=(0, 4, 0, 3), steps=2)
    agree(ranks, CosFace(0.2), scale="adacos-dynamic", classes=5, sizes=(0, 0, 0, 0), steps=2)


@case(2)
def schedules(ranks):
    agree(ranks, SphereFace(3.0), schedule=schedule.LambdaAnnealing(base=10.0, floor=0.5), steps=3, scale=8.0)
    by_class = [0.1 * i for i in range(5)]
    agree(
        ranks, ArcFace(), classes=5, class_margins=by_class, schedule=schedule.MarginWarmup(4), steps=3, scale=8.0
    )
    for reduction in ("mean", "none"):
        alternation = schedule.Alternation(1, 1)
        agree(ranks, SphereFace(2.0), schedule=alternation, unit_weight=False, steps=3, reduction=reduction)


@case(4)
def large_logits(ranks):
    """Beyond what one SUM can hold the largest is taken off first; rows that would overflow shrink alike."""
    for scale in (64.0, 299.0, 500.0, 1e5):
        agree(ranks, CosFace(), scale=scale, classes=9)
    agree(ranks, NoMargin(), scale=300.0, unit_features=False, unit_weight=False)
    one, many = pair(ranks, NoMargin(), 6, unit_features=False, unit_weight=False)
    one.weight.data *= 1e200
    many.weight.data *= 1e200
    sizes, x, y = problem(ranks, 6)
    own = ranks.rows(sizes)
    a, b = one(1e200 * x, y), many(1e200 * x[own], y[own])
    assert a.isfinite()
    close(b / a, torch.ones_like(a), "loss")


@case(2)
def a_fixed_scale_is_read_anew(ranks):
    """Also when it was changed behind autograd's back."""
    one, many = pair(ranks, ArcFace(), 7, scale=8.0)
    sizes, x, y = problem(ranks, 7)
    own = ranks.rows(sizes)
    for scale in (8.0, 20.0):
        one.scale.data.fill_(scale)
        many.scale.data.fill_(scale)
        close(many(x[own], y[own]), one(x, y), "loss")


@case(3)
def scale_and_m_by_row(ranks):
    sizes, x, y = problem(ranks, 7, (3, 0, 4, 1))
    own, mine = ranks.rows(sizes), ranks.classes(7)
    W, layout = numbers(7, D, seed=5), hm.Shard(ranks.group, average=False).layout(7)
    s, m = 4 + numbers(len(y), seed=6).abs(), 0.2 + 0.1 * numbers(len(y), 1, seed=7).abs()
    leaves = [t.clone().requires_grad_() for t in (x, W, s, m)]
    a = hm.margin_softmax(leaves[0], leaves[1], y, ArcFace(), scale=leaves[2], m=leaves[3])
    cut = [t.clone().requires_grad_() for t in (x[own], W[mine], s[own], m[own])]
    b = hm.margin_softmax(cut[0], cut[1], y[own], ArcFace(), scale=cut[2], m=cut[3], layout=layout)
    close(b, a, "loss")
    for name, right, ours, where in zip(
        ("dX", "dW", "ds", "dm"), torch.autograd.grad(a, leaves), torch.autograd.grad(b, cut),
        (own, mine, own, own), strict=True,
    ):  # fmt: skip
        close(ours, right[where], name)


@case(4)
def gradients_by_reduce_scatter(ranks):
    """As with NCCL. gloo has it in torch 2.13, which lets it be tested here."""
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 13):
        return
    before, collective.scatters = collective.scatters, lambda x, group: True
    try:
        for sizes in ((2, 2, 2, 2), (0, 3, 1, 2), (5, 1, 0, 7)):
            agree(ranks, ArcFace(), sizes=sizes, scale=8.0)
    finally:
        collective.scatters = before


@case(3)
def features_without_gradient_on_some_ranks(ranks):
    one, many = pair(ranks, ArcFace(), 7, scale=8.0)
    sizes, x, y = problem(ranks, 7)
    own = ranks.rows(sizes)
    x_one = x.clone().requires_grad_()
    x_many = x[own].clone().requires_grad_(ranks.rank == 0)
    one(x_one, y).backward()
    many(x_many, y[own]).backward()
    close(many.weight.grad, one.weight.grad[ranks.classes(7)], "dW")
    if ranks.rank == 0:
        close(x_many.grad, ranks.world * x_one.grad[own], "dX")
    with torch.no_grad():
        close(many(x_many, y[own]), one(x, y), "loss")


@case(3)
def logits_probabilities_and_scores(ranks):
    for classes, options in itertools.product((2, 7), ({}, {"bias": True, "unit_weight": False})):
        one, many = pair(ranks, ArcFace(), classes, scale=8.0, learn_scale=True, **options)
        sizes, x, y = problem(ranks, classes, (3, 0, 2, 4))
        own = ranks.rows(sizes)
        x_one, x_many = x.clone().requires_grad_(), x[own].clone().requires_grad_()
        a, b = one(x_one), many(x_many)
        close(b, a[own], "logits")
        goal = numbers(*a.shape, seed=9)
        (a * goal).sum().backward()
        (b * goal[own]).sum().backward()
        compare_gradients(ranks, one, many, x_one, x_many, own, ranks.world)
        close(many.predict_proba(x[own]), one.predict_proba(x)[own], "probabilities")
        y[0] = -100
        for name, ours, right in zip(Scores._fields, many.scores(x[own], y[own]), one.scores(x, y), strict=True):
            if right is not None:
                close(ours, right[own], name)


@case(2)
def half_precision(ranks):
    """Features gathered as they are, gradients summed in float32 and rounded once."""
    for dtype, autocast in ((torch.bfloat16, False), (torch.float32, True)):
        one, many = pair(ranks, ArcFace(), 9, scale=16.0)
        one, many = one.float(), many.float()
        sizes, x, y = problem(ranks, 9)
        own = ranks.rows(sizes)
        x = x.to(dtype)
        x_one, x_many = x.clone().requires_grad_(), x[own].clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            a, b = one(x_one, y), many(x_many, y[own])
        a.backward()
        b.backward()
        assert b.dtype == torch.float32
        close(b, a, "loss", 1e-6)
        close(many.weight.grad, one.weight.grad[ranks.classes(9)], "dW", 1e-6)
        close(
            x_many.grad.double(),
            ranks.world * x_one.grad[own].double(),
            "dX",
            1e-6 if dtype == torch.float32 else 4e-3,
        )


@case(*EVERY)
def first_weights_do_not_depend_on_the_ranks(ranks):
    for classes in (3, 2500):
        alone = hm.parallel.Sharded(classes)
        whole = torch.empty(classes, D)
        alone.first_weights(whole, D**-0.5)
        head = hm.MarginHead(D, classes, ArcFace(), scale=8.0, shard=hm.Shard(ranks.group))
        assert torch.equal(head.weight.data, whole[ranks.classes(classes)])
        other = hm.MarginHead(D, classes, ArcFace(), scale=8.0, shard=hm.Shard(ranks.group, seed=1))
        assert not other.weight.numel() or not torch.equal(head.weight, other.weight)
    assert abs(float(whole.norm(dim=1).square().mean()) - 1) < 0.1
    assert len(whole.unique(dim=0)) == classes
    whole = torch.empty(3 * 700, D)
    hm.parallel.Sharded(700).first_weights(whole, D**-0.5)
    head = hm.MarginHead(D, 700, ArcFace(), scale=8.0, centers=3, shard=hm.Shard(ranks.group))
    assert torch.equal(head.weight.data, whole[ranks.weight_rows(head)])
    assert len(whole.unique(dim=0)) == len(whole)


@case(1, 3)
def saved_and_loaded(ranks):
    _, many = pair(ranks, ArcFace(), 7, scale=8.0, bias=True)
    file = io.BytesIO()
    torch.save(many.state_dict(), file)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    mine = ranks.classes(7)
    assert state["classes_held"].tolist() == [mine.start, mine.stop, 7, ranks.rank, ranks.world]
    again = hm.MarginHead(D, 7, ArcFace(), scale=8.0, bias=True, dtype=torch.float64, shard=hm.Shard(ranks.group))
    again.load_state_dict(state)
    assert torch.equal(again.weight, many.weight)
    twin = copy.deepcopy(many)
    assert twin.layout.numbers == many.layout.numbers
    empty = hm.MarginHead(
        D, 7, ArcFace(), scale=8.0, device="meta", shard=many.settings.shard, sample=hm.PartialFC(0.1)
    )
    assert "scale=8" in repr(empty)
    empty.to_empty(device="cpu").reset_parameters()
    whole = torch.empty(7, D)
    hm.parallel.Sharded(7).first_weights(whole, D**-0.5)
    assert torch.equal(empty.weight, whole[mine])
    assert (empty.scale, empty.sampled_steps, tuple(empty.classes_held)) == (8, 0, many.layout.numbers)
    state["classes_held"][0] += 1
    says(lambda: again.load_state_dict(state), ValueError, f"rank {ranks.rank} of {ranks.world}")
    assert f"classes {mine.start}:{mine.stop}" in repr(many)


def says(call, kind, *words):
    text = None
    try:
        call()
    except kind as error:
        text = str(error)
    assert text is not None, f"no {kind.__name__} was raised"
    assert all(word in text for word in words), f"{text!r} does not say {words}"


@case(1, 3)
def a_refused_batch_is_refused_by_all(ranks):
    """And the ranks are still together afterwards."""
    _, many = pair(ranks, ArcFace(), 7, scale=8.0, schedule=schedule.MarginWarmup(4))
    _, sampled = pair(ranks, ArcFace(), 7, scale=8.0, sample=hm.PartialFC(0.5))
    sizes, x, y = problem(ranks, 7)
    own = ranks.rows(sizes)
    x, y = x[own], y[own]
    last = ranks.rank == ranks.world - 1
    bad = y.clone()
    bad[0] = 7
    who = "" if last else f"rank {ranks.world - 1} refused its batch"
    says(lambda: many(x, bad if last else y), ValueError, who, "labels must lie in [0, 7); got 7 at row 0")
    nan = x.clone()
    nan[0, 0] = math.nan
    says(lambda: many(nan if last else x, y), ValueError, who, "features must be finite; got NaN at row 0")
    says(lambda: many(x[:, :3] if last else x, y), ValueError, who, "features must have 5 columns")
    says(lambda: many(x, y.float() if last else y), (ValueError, TypeError), who, "labels must be integer")
    if ranks.world > 1:
        others = f"on ranks {list(range(ranks.world - 1))}; "
        for call, *words in (
            (lambda: many(x.float() if last else x, y), "torch.float64 features", "torch.float32 features"),
            (lambda: many(x, y, mix=(y, 0.5) if last else None), "1 labels per row", "2 labels per row"),
            (lambda: many.logits(x) if last else many(x, y), "got loss (mean)", "; logits"),
            (lambda: sampled.train(last)(x, y), "got loss (mean)", "; loss (mean), sampled"),
        ):
            says(call, ValueError, others, f"on ranks [{ranks.world - 1}]", *words)
        says(lambda: many.logits([1.0] if last else x), (ValueError, TypeError), who, "features must be a tensor")
        layout, held = many.layout, many.layout.held(7)
        says(
            lambda: hm.margin_softmax(x, numbers(7, D), y, ArcFace(), scale=8.0, layout=layout), ValueError,
            f"weight must have {len(held)} rows, this rank's classes {held.start}:{held.stop} of 7; got (7, 5)",
        )  # fmt: skip
    assert int(many.schedules[0].step) == 0
    many(x, y.int() if last else y).backward()  # int32 and int64 labels may meet
    assert int(many.schedules[0].step) == 1


@case(2, 3)
def sampled_classes_do_not_depend_on_the_ranks(ranks):
    """The plain head samples too: the same classes, so the same loss and gradients."""
    for rate, correct in ((1.0, False), (0.5, True), (0.1, False)):
        sample = hm.PartialFC(rate, correct=correct, seed=4)
        for options in ({"scale": 8.0}, {"bias": True, "unit_weight": False, "reduction": "none"}):
            _, many = agree(ranks, ArcFace(), classes=29, sample=sample, steps=2, ignore=(1,), **options)
            assert many.weight.grad.is_sparse == (rate < 1)
            assert rate == 1 or int(many.sampled_steps) == 2
        options = {"class_margins": [0.1 + 0.01 * i for i in range(29)], "learn_margin": True, "mix": 0.3}
        agree(ranks, ArcFace(), classes=29, sizes=(2, 0, 1, 0), sample=sample, scale=8.0, **options)
        agree(ranks, CosFace(), classes=29, sizes=(0, 0, 0, 0), sample=sample, scale=8.0)
        many.eval()
        assert torch.isfinite(many(numbers(1, D), torch.tensor([3]))).all()


@case(1, 3)
def sampled_training_moves_only_the_sample(ranks):
    sample = hm.PartialFC(0.4, seed=2)
    for kind, state, settings in (
        (hm.SampledSGD, ("momentum_buffer",), {"momentum": 0.9, "weight_decay": 1e-2, "nesterov": True}),
        (hm.SampledAdamW, ("exp_avg", "exp_avg_sq", "step"), {"weight_decay": 0.1}),
    ):
        one, many = pair(ranks, ArcFace(), 23, scale=8.0, bias=True, sample=sample)
        optimizers = [kind(head.parameters(), 0.1, **settings) for head in (one, many)]
        train_on_samples(ranks, one, many, optimizers, state)


def train_on_samples(ranks, one, many, optimizers, state):
    mine = ranks.classes(23)
    moved = []
    for step in range(4):
        sizes, x, y = problem(ranks, 23, seed=step)
        own = ranks.rows(sizes)
        before = many.weight.detach().clone()
        for optimizer, loss in zip(optimizers, (one(x, y), many(x[own], y[own])), strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        rows = many.weight.grad.coalesce().indices()[0]
        still = torch.ones(len(before), dtype=torch.bool).index_fill(0, rows, False)
        assert torch.equal(many.weight[still], before[still])
        assert (many.weight[~still] != before[~still]).any(1).all()
        moved.append(rows.tolist())
        assert one.weight.grad.coalesce().indices().shape[1] == max(9, len(y.unique()))
    close(many.weight, one.weight[mine], "weight")
    close(many.bias, one.bias[mine], "bias")
    for name in state:
        whole, own = (o.state[head.weight][name] for o, head in zip(optimizers, (one, many), strict=True))
        close(own, whole[mine], name)
    if ranks.world == 1:
        assert len({tuple(rows) for rows in moved}) == 4


@case(1, 4)
def what_is_sent_is_what_was_counted(ranks):
    """All that passes through torch.distributed, against `traffic`; gloo's dX is an all-reduce, twice the size."""
    sent = []

    def counted(call, *tensors, **options):
        size = tensors[-1].numel() * tensors[-1].element_size()
        around = 2 * (ranks.world - 1) / ranks.world
        sent.append((ranks.world - 1) * size if "gather" in call.__name__ else around * size)
        run(call, *tensors, **options)

    run, collective._run = collective._run, counted
    try:
        for options in ({}, {"smoothing": True}, {"bounded": False}, {"labels": 2}):
            head = hm.MarginHead(
                D, 7, ArcFace(), scale=8.0, shard=hm.Shard(ranks.group), bias="bounded" in options,
                label_smoothing=0.1 if "smoothing" in options else 0.0,
            )  # fmt: skip
            x, y = torch.randn(3, D, requires_grad=True), torch.tensor([0, 3, 6])
            sent.clear()
            head(x, y, mix=(y, 0.5) if "labels" in options else None).backward()
            right = hm.parallel.traffic(3, D, ranks.world, **options)
            assert math.isclose(sum(sent), right.total + right.gradient), (options, sent, right)
    finally:
        collective._run = run


def network():
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, D)).double()


def train(ranks, wrapped, whole_weight):
    """Five steps of SGD beside a wrapped network, and in one process: the same weights. Sizes change, one is 0."""
    one, many = pair(ranks, ArcFace(0.3), 7, scale=8.0, bias=True, learn_scale=True)
    alone, model = network(), wrapped(network())
    optimizers = [
        torch.optim.SGD([*net.parameters(), *head.parameters()], 0.1, momentum=0.9, weight_decay=1e-3)
        for net, head in ((alone, one), (model, many))
    ]
    for step, sizes in enumerate(((3, 2), (2, 2), (4, 0), (1, 3), (2, 5))):
        x, y = numbers(sum(sizes), 4, seed=step), torch.arange(sum(sizes)) % 7
        own = ranks.rows(sizes)
        for optimizer, loss in zip(optimizers, (one(alone(x), y), many(model(x[own]), y[own])), strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for (name, right), ours in zip(alone.named_parameters(), model.parameters(), strict=True):
        close(whole_weight(ours).detach(), right.detach(), name, 1e-9)
    close(many.weight.detach(), one.weight.detach()[ranks.classes(7)], "weight", 1e-9)
    close(many.scale.detach(), one.scale.detach(), "scale", 1e-9)
    assert (right - dict(network().named_parameters())[name]).abs().max() > 1e-3  # it has learned something


@case(2)
def beside_ddp(ranks):
    if ranks.world == 2:
        train(ranks, lambda net: DistributedDataParallel(net, process_group=ranks.group), lambda weight: weight)


class WithHead(nn.Module):
    def __init__(self, head):
        super().__init__()
        self.network, self.head = nn.Linear(D, D).double(), head

    def forward(self, x, y):
        return self.head(self.network(x), y)


@case(2)
def inside_ddp_is_refused(ranks):
    """Which broadcasts rank 0's slice, and cannot add sparse gradients. What it is told to ignore may be inside."""
    sample = hm.PartialFC(0.5)  # and 12 classes: of unequal slices DDP complains by itself
    sizes, x, y = problem(ranks, 12)
    own = ranks.rows(sizes)
    x, y = x[own], y[own]
    for options, words in (
        ({"shard": hm.Shard(ranks.group)}, ("a slice of the classes", "Wrap the network alone")),
        ({"sample": sample}, ("sparse gradients", "shard=Shard() as well")),
    ):
        head = hm.MarginHead(D, 12, ArcFace(), scale=8.0, **options, dtype=torch.float64)
        wrapped = DistributedDataParallel(WithHead(head), process_group=ranks.group)
        if ranks.world > 1 or "sample" in options:
            says(partial(wrapped, x, y), RuntimeError, *words)
        model = WithHead(head)
        ignored = [f"head.{name}" for name in head.state_dict()]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ignored)
        DistributedDataParallel(model, process_group=ranks.group)(x, y).backward()


@case(2)
def beside_fsdp2(ranks):
    if ranks.world == 2 and hasattr(torch.cpu.Stream, "record_event"):  # in torch 2.6 it has no FSDP2 on CPUs
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        mesh = DeviceMesh.from_group(ranks.group, "cpu")
        train(ranks, lambda net: fully_shard(net, mesh=mesh), lambda weight: weight.full_tensor())


def on_device(rank, world, device):
    """Every backend there is, in float32, on another device."""
    classes, dim = 1001, 64
    x = torch.randn(24, dim, generator=torch.Generator().manual_seed(0)).to(device)
    y = (torch.arange(24) * 41 % classes).to(device)
    sizes = ((24,), (20, 4), (20, 0, 4))[world - 1]
    own = Ranks(world, None).rows(sizes)
    for backend, sample in itertools.product(
        ("dense", "chunked", "triton"), (None, hm.PartialFC(0.2, correct=True))
    ):
        options = {"scale": 16.0, "learn_scale": True, "sample": sample, "device": device}
        torch.manual_seed(1)
        one = hm.MarginHead(dim, classes, ArcFace(), backend="dense", **options)
        many = hm.MarginHead(dim, classes, ArcFace(), backend=backend, shard=hm.Shard(), **options)
        mine = slice(many.part.start, many.part.stop)
        many.weight.data.copy_(one.weight.data[mine])
        x_one, x_many = x.clone().requires_grad_(), x[own].clone().requires_grad_()
        a, b = one(x_one, y), many(x_many, y[own])
        a.backward()
        b.backward()
        close(b, a, f"{backend} loss", 1e-5)
        for what, ours, right in (
            ("dW", grad(many.weight), grad(one.weight)[mine]),
            ("dX", grad(x_many), world * grad(x_one)[own]),
            ("ds", grad(many.scale), grad(one.scale)),
        ):
            assert (ours - right).norm() <= 1e-4 * right.norm() + 1e-7, f"{backend} {what}"


def start(rank, folder, world):
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meet",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=60),
    )


def work(rank, folder, in_every_world):
    """One of four processes; smaller worlds are groups of the first ones."""
    start(rank, folder, max(EVERY))
    groups = {world: None if world == max(EVERY) else dist.new_group(range(world)) for world in EVERY}
    found = {}
    for world, name in chosen(in_every_world):
        if rank >= world:
            continue
        try:
            CASES[name][0](Ranks(world, groups[world]))
            found[world, name] = ""
        except Exception:
            found[world, name] = traceback.format_exc()
        torch.save(found, os.path.join(folder, f"rank{rank}"))  # at once: gloo may end the process at the next
    dist.barrier()
    dist.destroy_process_group()


def chosen(in_every_world):
    return [(w, name) for w in EVERY for name, (_, worlds) in CASES.items() if in_every_world or w in worlds]


def lose_a_rank(rank, folder):
    """Rank 1 ends in mid-step, between forward and backward."""
    start(rank, folder, 2)
    head = hm.MarginHead(4, 6, ArcFace(), scale=8.0, shard=hm.Shard())
    loss = head(torch.randn(2, 4, requires_grad=True), torch.tensor([0, 5]))
    if rank == 1:
        os._exit(9)
    try:
        loss.backward()
    except RuntimeError as error:
        torch.save(str(error), os.path.join(folder, "said"))


# NCCL refuses several ranks on one GPU.
ON_ONE_GPU = [(1, "nccl"), (1, "cpu:gloo,cuda:nccl"), (2, "gloo"), (3, "gloo")]


def on_one_gpu(rank, folder, world, kind):
    """Ranks that share a GPU, against the plain head on the same GPU."""
    torch.cuda.set_device(0)
    dist.init_process_group(kind, init_method=f"file://{folder}/{kind}{world}", rank=rank, world_size=world)
    on_device(rank, world, "cuda")
    dist.destroy_process_group()


if __name__ == "__main__":  # where there is a GPU and no pytest
    for number, kind_of_group in ON_ONE_GPU:
        with tempfile.TemporaryDirectory() as there:
            torch.multiprocessing.spawn(on_one_gpu, (there, number, kind_of_group), number)
        print("passed", number, kind_of_group, flush=True)
