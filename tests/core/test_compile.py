"""torch.compile without a graph break, torch.export of inference, and DDP."""

import copy
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from test_head import HEADS, STATEFUL, batch, make

import hypermargin as hm
from hypermargin import margins, rules
from hypermargin.backends import Chunked
from hypermargin.centers import Centers
from hypermargin.margins import ArcFace, SphereFace
from hypermargin.recipes import FAMILY
from hypermargin.rules import SOFTMAX
from hypermargin.terms import CRFIQA, CenterLoss, RingLoss
from hypermargin.views import VariationalPrototypes, VectorScaling

WAIT = timedelta(seconds=120)
SETTINGS = [(name, {}) for name in HEADS if name != "sphereface"] + STATEFUL
# Their margin and sides are in STATEFUL too, with more that could break a graph.
PLAINER = ("l-softmax", "am-softmax", "cosface", "combined")
QUICK = [
    pytest.param(name, options, marks=[pytest.mark.slow] if name in PLAINER and not options else [])
    for name, options in SETTINGS
]


def train(head, step, x, y):
    """Three steps of SGD; losses and what is left in the head."""
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = step(x, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses), head.state_dict()


def assert_compiles(name, options, backend, tol):
    torch._dynamo.reset()
    x, y = batch()
    recipe = FAMILY[name]
    smoothing = 0.1 if recipe.rule is SOFTMAX and recipe.centers.count == 1 else 0.0  # the others refuse it
    eager = make(name, label_smoothing=smoothing, **copy.deepcopy(options))
    head = copy.deepcopy(eager)
    expected, state = train(eager, eager, x, y)
    losses, compiled_state = train(head, torch.compile(head, fullgraph=True, backend=backend), x, y)
    torch.testing.assert_close(losses, expected, rtol=tol, atol=8 * tol)  # of losses about 30
    for key, value in state.items():
        torch.testing.assert_close(compiled_state[key], value, rtol=tol, atol=8 * tol)


@pytest.mark.parametrize(("name", "options"), QUICK, ids=str)
def test_a_training_step_compiles_without_a_graph_break(name, options):
    assert_compiles(name, options, "aot_eager", 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), SETTINGS, ids=str)
def test_a_training_step_compiles_with_inductor(name, options):
    assert_compiles(name, options, "inductor", 1e-4)


SLOTS = [
    {"rule": rules.MVSoftmax()},
    {"rule": rules.CurricularFace(0.5)},
    {"rule": rules.InterTopK(2, 0.2), "centers": 2},
    {"margin": margins.NPCFace(), "rule": rules.NPCFace()},
    {"margin": margins.SFace(), "rule": rules.SFace()},
    {"margin": margins.P2SGrad(), "rule": rules.P2SGrad()},
    {"margin": margins.SphereFace2(variant="A"), "rule": rules.SphereFace2(variant="A"), "bias": "shared"},
    {"rule": rules.UniFace(), "bias": "shared"},
    {"margin": margins.Circle(), "rule": rules.Circle()},
    {"margin": margins.LiArcFace(), "rule": rules.LiArcFace()},
    {"rule": rules.MVSoftmax(0.4, "fixed"), "centers": 2, "learn_scale": True},
    {"margin": margins.SphereFace2(), "rule": rules.SphereFace2(), "bias": "shared"},
    {"margin": margins.AdaFace(momentum=0.3), "class_offsets": [0.0, 1.0, 0.0, 2.0, 0.0]},
    {"row_terms": [RingLoss()], "centers": 2},
    {"row_terms": [CenterLoss(8, 5), CRFIQA(8)]},
    {"rule": rules.MVSoftmax(compared="bare")},
    {"margin": margins.KappaFace(), "class_counts": [5, 1, 3, 2, 9]},
    {"margin": margins.DynArcFace(k1=0.5)},
    {"view": VectorScaling(), "class_counts": [5, 1, 3, 2, 9], "bias": True},
    {"view": VariationalPrototypes(after=1.0)},
    {"centers": Centers(2, "max"), "rule": rules.InterTopK(2, 0.2)},
    {"centers": Centers(2, "soft", together=0.2), "learn_scale": True},
]


@pytest.mark.parametrize("backend", ["dense", pytest.param(Chunked(chunk=2), marks=pytest.mark.slow)], ids=str)
def test_every_slot_compiles_without_a_graph_break(backend):
    x, y = batch()
    for options in SLOTS:
        torch._dynamo.reset()
        eager = make("arcface", scale=8.0, backend=backend, **copy.deepcopy(options))
        head = copy.deepcopy(eager)
        expected, state = train(eager, eager, x, y)
        losses, compiled_state = train(head, torch.compile(head, fullgraph=True, backend="aot_eager"), x, y)
        torch.testing.assert_close(losses, expected)
        for key, value in state.items():
            torch.testing.assert_close(compiled_state[key], value)


def test_chunked_compiles_where_nothing_is_learned():
    """adacos-dynamic looks at the batch without gradients first; so does a compiled evaluation."""
    torch._dynamo.reset()
    x, y = batch()
    eager = make("normface", scale="adacos-dynamic", backend=Chunked(chunk=2))
    head = copy.deepcopy(eager)
    step = torch.compile(head, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(step(x, y), eager(x, y))
    torch.testing.assert_close(head.scale, eager.scale)
    with torch.no_grad():
        torch.testing.assert_close(step.eval()(x, y), eager.eval()(x, y))


def test_compiled_steps_do_not_recompile_as_schedules_move():
    torch._dynamo.reset()
    head = make("a-softmax", schedule=[hm.schedule.LambdaAnnealing(), hm.schedule.MarginWarmup(5)])
    x, y = batch()
    step = torch.compile(head, fullgraph=True, backend="aot_eager")
    step(x, y)
    with torch.compiler.set_stance("fail_on_recompile"):
        for _ in range(3):
            step(x, y)
    assert head.schedules[0].step == 4


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("l-softmax", {"schedule": hm.schedule.Alternation(1, 1)}),
        ("arcface", {"schedule": hm.schedule.MarginWarmup(4), "scale": 8.0}),
        ("sphereface", {"schedule": hm.schedule.LambdaAnnealing(base=3.0, gamma=1.0, floor=0.0)}),
        ("normface", {"scale": "adacos-dynamic"}),
    ],
    ids=str,
)
def test_the_compiled_gradient_does_not_see_the_state_of_the_next_step(name, options):
    """torch.compile re-reads buffers in the backward, when the forward has already moved them on."""
    torch._dynamo.reset()
    eager = make(name, **copy.deepcopy(options))
    head = copy.deepcopy(eager)
    step = torch.compile(head, fullgraph=True, backend="aot_eager")
    x, y = batch()
    for _ in range(3):
        (ours,) = torch.autograd.grad(step(x, y), head.weight)
        (right,) = torch.autograd.grad(eager(x, y), eager.weight)
        torch.testing.assert_close(ours, right)


def test_compile_with_mixup_ignored_rows_and_the_straight_gradient():
    torch._dynamo.reset()
    x, y = batch()
    y[2] = -100
    W = torch.randn(5, 8)

    def loss(x, W, share):
        options = {"scale": 8.0, "gradient": "straight", "mix": (y.flip(0), share)}
        return hm.margin_softmax(x, W, y, ArcFace(), **options) + hm.margin_cross_entropy(
            torch.nn.functional.normalize(x) @ torch.nn.functional.normalize(W).T, y, SphereFace(3.0), 8.0
        )

    args = (x.requires_grad_(), W.requires_grad_(), torch.tensor(0.3))
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")(*args)
    torch.testing.assert_close(compiled, loss(*args))
    for a, b in zip(
        torch.autograd.grad(compiled, args[:2]), torch.autograd.grad(loss(*args), args[:2]), strict=True
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", HEADS)
def test_inference_exports_with_a_dynamic_batch(name):
    head = make(name).eval()
    rows = torch.export.Dim("rows")
    program = torch.export.export(head, (batch()[0],), dynamic_shapes=({0: rows},))
    x = batch(5, n=7)[0]
    torch.testing.assert_close(program.module()(x), head(x))


def _ddp_rank(rank, file, results):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2, timeout=WAIT)
    try:
        head = make("a-softmax")
        if rank:
            torch.nn.init.zeros_(head.weight)  # DDP must bring rank 0's
        wrapped = torch.nn.parallel.DistributedDataParallel(head)
        x, y = batch()
        for _ in range(2):
            wrapped(x[rank::2], y[rank::2]).backward()
        results.put((rank, head.weight.grad.tolist(), head.schedules[0].step.item()))
        dist.barrier()
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_ddp_gives_the_gradient_of_the_whole_batch(tmp_path):
    """This process is rank 0: a process more would cost seconds to start."""
    context = torch.multiprocessing.get_context("spawn")
    results = context.Queue()
    other = context.Process(target=_ddp_rank, args=(1, tmp_path / "rendezvous", results))
    other.start()
    _ddp_rank(0, tmp_path / "rendezvous", results)
    got = sorted(results.get(timeout=60) for _ in range(2))
    other.join(60)
    assert other.exitcode == 0
    assert [rank for rank, *_ in got] == [0, 1]
    head = make("a-softmax")
    for _ in range(2):
        head(*batch()).backward()
    for _, grad, step in got:
        torch.testing.assert_close(torch.tensor(grad), head.weight.grad)
        assert step == 2
