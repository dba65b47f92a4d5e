"""Rivals that count by a rule in the fused backend, in Triton's interpreter where there is no GPU.

As test_fused.py, it runs on a GPU too, with pytest or by tests/on_gpu.py without.
"""

import dataclasses
import itertools
import math
import os
import subprocess
import sys

import test_fused
import torch
from test_fused import DEVICE, example, on_a_gpu, over, pytest, relative, slow_here

try:
    import triton
    import triton.language as tl

    @triton.jit
    def halved(c, first, second, p0, p1, p2, p3):
        return c * p0, tl.zeros_like(c) + p0
except ImportError:
    pass

import hypermargin as hm
from hypermargin import rules
from hypermargin.backends import Call, Dense, Triton, auto, fused
from hypermargin.backends.fused.rules import KNOWN, InTiles, know
from hypermargin.layout import ClassTable
from hypermargin.margins import ArcFace, CosFace
from hypermargin.recipes import FAMILY
from hypermargin.rules import LOG_SUM_EXP
from hypermargin.rules._base import RULES
from hypermargin.testing import check_backend

if pytest:
    pytestmark = test_fused.pytestmark

# Every head whose rivals count by a rule, and the settings in which a rule takes another function or aggregate.
HEADS = {name: {} for name, recipe in FAMILY.items() if not recipe.rule.is_softmax}
HEADS |= {
    "mv-arcface, fixed": {"rule": rules.MVSoftmax(kind="fixed")},
    "double-margin, cosine": {"rule": rules.DoubleMargin(kind="cosine")},
    "sphereface2, A": {"variant": "A"},
    "sphereface2, t = 2.5": {"t": 2.5},
    "sphereface2, straight": {"derivative": "straight"},
    "sphereface-r, straight": {"derivative": "straight"},
}


# Of 520 classes of 16 dimensions 256 kept, all, and none.
SETTINGS = [Triton(memory=0.283, chunk=256), Triton(), Triton(memory=0, chunk=256)]
SOME = SETTINGS[0]
SIZES = (20, 520, 16) if DEVICE == "cpu" else (200, 3000, 64)


def found_by(name, options, x, W, y, backend, dtype=torch.float32, **more):
    """Loss, dX, dW and the gradients of what else is learned, of a head in its first step."""
    head = hm.create_head(
        name.partition(",")[0], W.shape[1], len(W), backend=backend, device=DEVICE, check=False, **options, **more
    ).to(dtype)  # fmt: skip
    with torch.no_grad():
        head.weight.copy_(W)
    leaf = x.detach().to(dtype).requires_grad_()
    loss = head(leaf, y)
    loss.sum().backward()
    return [loss.detach(), leaf.grad, *(p.grad for p in head.parameters())]


def near_rivals(x, W):
    """Let half of the rows have rivals near them, so that rules find hard ones; no cosine is near a threshold."""
    W[::13] = x[torch.arange(len(W[::13])) % len(x)] + 0.7 * W[::13]
    return W


@over(HEADS)
def test_every_rule_against_float64(case):
    x, W, y = example(*SIZES)
    W, y[3] = near_rivals(x, W), -100
    assert fused.plan(20, 520, 16, SOME).kept == 256
    options, settings = HEADS[case], SETTINGS[list(HEADS).index(case) % len(SETTINGS)]
    right = found_by(case, options, x, W, y, "dense", torch.float64)
    usual = found_by(case, options, x, W, y, "dense")
    ours = found_by(case, options, x, W, y, settings)
    assert len(ours) == len(right)
    for a, b, c in zip(ours, usual, right, strict=True):
        assert relative(a, c) <= 3 * relative(b, c) + 1e-5, settings


def test_learned_scales_offsets_and_biases():
    """What has a gradient beside the two sides: by |f| or s, by a bias of every class, by one for all."""
    x, W, y = example(*SIZES)
    W = near_rivals(x, W)
    offsets = torch.linspace(-2, 2, len(W), device=DEVICE)
    given = [
        ("curricularface", {"learn_scale": True, "scale": 16.0}),
        ("sphereface2", {"learn_scale": True, "scale": 16.0}),
        ("uniface-bce", {"class_offsets": offsets}),
        ("mv-arcface", {"bias": True}),
        ("sphereface2", {"class_offsets": offsets}),
        ("li-arcface", {"unit_features": False, "scale": 1.0, "bias": True}),
    ]
    for (name, options), settings in zip(given, itertools.cycle(SETTINGS), strict=False):
        right = found_by(name, options, x, W, y, "dense", torch.float64)
        ours = found_by(name, options, x, W, y, settings)
        assert len(right) > 2
        for a, b in zip(ours, right, strict=True):
            assert relative(a, b) < 5e-5, name


def test_a_bad_row_spoils_no_other_rows_gradient():
    x, W, y = example(20, 300, 16)
    bad = torch.zeros(20, dtype=torch.bool, device=DEVICE)
    bad[[2, 7, 15, 16]] = True
    good = [x[~bad].clone(), y[~bad].clone()]
    x[2], x[7, 3], y[15], y[16] = math.nan, -math.inf, 10**6, -1
    for name in ("arcnegface", "sphereface2"):
        results = []
        for features, labels, counted in ((x, y, ~bad), (*good, slice(None))):
            head = hm.create_head(
                name, 16, 300, backend=SOME, device=DEVICE, check=False, reduction="none", scale=16.0
            )
            with torch.no_grad():
                head.weight.copy_(W)
            leaf = features.detach().clone().requires_grad_()
            loss = head(leaf, labels)
            loss[counted].sum().backward()
            results.append([loss[counted].detach(), leaf.grad[counted], head.weight.grad])
            assert torch.equal(loss.isnan(), bad) or counted == slice(None)
        for a, b in zip(*results, strict=True):
            assert relative(a, b.double()) < 1e-5, name


@slow_here
def test_rivals_far_outside_the_window():
    """Circle's scale makes logits of −16 to 240; rows are done again where the sample of classes missed them."""
    x, W, y = example(40, 520)
    W[300:310] = x[:10] + 0.05 * W[300:310]
    for scale in (32.0, 256.0, 2000.0):
        right = found_by("circle", {"scale": scale}, x, W, y, "dense", torch.float64)
        usual = found_by("circle", {"scale": scale}, x, W, y, "dense")
        for settings in (Triton(), SOME):
            ours = found_by("circle", {"scale": scale}, x, W, y, settings)
            for a, b, c in zip(ours, usual, right, strict=True):
                assert a.isfinite().all()
                assert relative(a, c) <= 3 * relative(b, c) + 1e-4, (scale, settings)


def test_hostile_rows():
    """Zero rows, cos = ±1, one and two classes, no rows at all: finite, and as dense has it."""
    x, W, y = example(9, 20, 16)
    x[0], W[3], x[1], x[2] = 0.0, 0.0, 3 * W[5], -W[6]
    for name, classes in itertools.product(("li-arcface", "sphereface2"), (20, 1)):
        for rows in (9, 0):
            sides = x[:rows], W[:classes], y[:rows].clamp(max=classes - 1)
            right = found_by(name, {}, *sides, "dense", torch.float64, reduction="sum")
            ours = found_by(name, {}, *sides, Triton(), reduction="sum")
            for a, b in zip(ours, right, strict=True):
                assert a.isfinite().all()
                assert (a - b).abs().max() <= 1e-3 * (1 + b.abs().max()) if b.numel() else True, (name, classes)


def test_slices_of_the_classes_add_up():
    x, W, y = example(20, 600, 16)
    tau = torch.linspace(-0.3, 0.3, 20, device=DEVICE)[:, None]
    for rule in (rules.MVSoftmax(), rules.SphereFace2()):
        at_rows = rule.at(x.norm(dim=1, keepdim=True), tau if rule.row_numbers else None)

        def found(backend, start=0, stop=600, at_rows=at_rows):
            local = y[:, None] - start
            inside = (local >= 0) & (local < stop - start)
            return backend(x, ClassTable(W[start:stop], True, None, local, inside), at_rows, hardest=True)

        whole = found(Dense())
        a, b = found(Triton(memory=0, chunk=256), 0, 350), found(Triton(), 350, 600)
        join = torch.logaddexp if rule.aggregate is LOG_SUM_EXP else torch.add
        torch.testing.assert_close(join(a.rivals, b.rivals), whole.rivals, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(torch.maximum(a.hardest, b.hardest), whole.hardest, rtol=1e-4, atol=1e-4)


@over(HEADS if DEVICE == "cuda" else ["curricularface", "sphereface2"])
def test_reduced_operands(case):
    operands = {"float16": 4e-3} | ({"bfloat16": 3e-2} if DEVICE == "cuda" else {})
    x, W, y = example(12, 300, 512)
    x = torch.nn.functional.normalize(W[y]) * 2 + torch.nn.functional.normalize(x)
    # Sharp steps by the angle are as uncertain as k times its rounding.
    options = {"k": 5.0} if case == "sface" else HEADS[case]
    right = found_by(case, options, x, W, y, "dense", torch.float64)
    for kind, bound in operands.items():
        ours = found_by(case, options, x, W, y, Triton(operands=kind, chunk=256))
        errors = [relative(a, b) for a, b in zip(ours, right, strict=True)]
        assert max(errors) < bound, (kind, errors)
        assert max(errors) > 1e-6  # and they were really used


@slow_here
def test_the_battery():
    check_backend(Triton(), float64=False, device=DEVICE, float32_factor=3.0)


def test_second_derivatives_take_the_dense_formula():
    x, W, y = example(6, 20)
    for rule, margin in ((rules.CurricularFace(), ArcFace(0.3)), (rules.SphereFace2(), CosFace(0.2))):
        found = []
        for dtype, backend in ((torch.float64, "dense"), (torch.float32, Triton())):
            leaves = [t.to(dtype).clone().requires_grad_() for t in (x, W)]
            loss = hm.margin_softmax(*leaves, y, margin, scale=8.0, rule=rule, backend=backend)
            first = torch.autograd.grad(loss, leaves, create_graph=True)
            found.append(torch.autograd.grad(sum(g.square().sum() for g in first), leaves))
        for a, b in zip(found[1], found[0], strict=True):
            assert relative(a, b) < 1e-4


@slow_here
def test_a_compiled_step():
    torch._dynamo.reset()
    x, _, y = example(40, 300)
    for name in ("curricularface", "sphereface2"):
        head = hm.create_head(name, 24, 300, backend=Triton(), device=DEVICE, check=False)
        step = torch.compile(head, backend="aot_eager" if DEVICE == "cpu" else "inductor", fullgraph=True)
        leaf = x.clone().requires_grad_()
        eager = torch.autograd.grad(head.eval()(leaf, y), (leaf, head.weight))
        compiled = torch.autograd.grad(step(leaf, y), (leaf, head.weight))
        for a, b in zip(compiled, eager, strict=True):
            assert relative(a, b.double()) < 1e-5, name


@on_a_gpu
def test_a_step_as_a_cuda_graph():
    x, _, y = example(300, 5000, 64)
    x = x.requires_grad_()
    for name in ("curricularface", "sphereface2"):
        head = hm.create_head(name, 64, 5000, backend="triton", device=DEVICE, check=False).eval()
        step = torch.cuda.make_graphed_callables(lambda x, head=head: head(x, y), (x,))
        a, b = (torch.autograd.grad(f(x) if f is step else f(x, y), x)[0] for f in (step, head))
        assert relative(a, b.double()) < 1e-5, name


@slow_here
def test_the_optimiser_within_the_backward():
    """FusedSGD beside a rule is SGD."""
    fused_sgd, _, _ = test_fused.trained(
        lambda head: hm.optim.FusedSGD(head, lr=0.1, momentum=0.9), backend=Triton(), rule=rules.MVSoftmax()
    )
    sgd, _, _ = test_fused.trained(
        lambda head: torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9), rule=rules.MVSoftmax()
    )
    assert relative(fused_sgd.weight.detach(), sgd.weight.detach().double()) < 1e-5


def test_a_rule_of_your_own():
    """It has to tell the kernels how it is computed; until then it is refused, and "auto" takes another backend."""

    @dataclasses.dataclass(frozen=True)
    class Halved(rules.Rule):
        formula = "c/2"

        def rho(self, cosine, threshold):
            return cosine / 2

        def slope(self, cosine, threshold):
            return torch.full_like(cosine, 0.5)

    rules.register("halved")(Halved)
    call = Call(8, 20, torch.device(DEVICE), rule=Halved())
    try:
        with pytest.raises(ValueError, match="do not know"):
            Triton().fitted(call)
        know(Halved, lambda rule: InTiles(halved, (0.5,)))
        x, W, y = example(20, 300, 16)
        options = {"scale": 8.0, "rule": Halved()}
        right = test_fused.loss_and_gradients(x.double(), W.double(), y, ArcFace(), backend="dense", **options)
        ours = test_fused.loss_and_gradients(x, W, y, ArcFace(), backend=SOME, **options)
        assert max(relative(a, b) for a, b in zip(ours, right, strict=True)) < 1e-5
    finally:
        KNOWN.pop(Halved, None)
        RULES.entries.pop("halved")


def test_auto_takes_it_for_rules_too(monkeypatch):
    gpu = torch.device("cuda")
    monkeypatch.setattr(fused, "why_not", lambda device: "")
    monkeypatch.setattr(auto, "is_tested_on", lambda device: True)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: True)
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda kind: torch.bfloat16)
    for rule in (rules.MVSoftmax(), rules.SphereFace2()):
        assert isinstance(auto.Auto().fitted(Call(1024, 10**6, gpu, rule=rule)), Triton)


@slow_here
def test_the_kernels_compile_for_other_gpus():
    """Each rule's kernel for compute capability 8.0 and 9.0, by a process that does not interpret."""
    script = os.path.join(os.path.dirname(__file__), "compile_rules.py")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("compiled") == 2 * (len(rules.names()) - 1)  # all but softmax
