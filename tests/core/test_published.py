"""What others published: with the right `beyond` and `gradient`, each famous implementation to rounding.

Peers that can be installed are run; the others are pinned by numbers that a separate transcription of their source
gave in float64, with their own gradients. Then the field's known defects, each as a test that we do not have it.
"""

import itertools
import math
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F

from hypermargin import MarginHead, create_head, margin_cross_entropy, margin_softmax
from hypermargin.advise import adacos_scale
from hypermargin.margins import ArcFace, Combined, CosFace, Margin, NoMargin, SphereFace
from hypermargin.margins.arcface import BEYOND

# The peer's own, from numpy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")

# Target angles on every branch: π − m is 2.64 for m = 0.5 and 2.94 for m = 0.2; 4θ runs through all four pieces.
ANGLES = (0.4, 0.9, 1.5, 2.2, 2.8, 3.05)
LENGTHS = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
LABELS = torch.tensor([0, 1, 2, 3, 4, 0])
C, D = 5, 4


def wave(rows, f):
    """Numbers from a formula rather than from a generator: the same on every machine and version."""
    return f(torch.arange(rows * D, dtype=torch.float64)).reshape(rows, D)


def batch():
    """Features at ANGLES from their class, and class weights of several lengths."""
    W = wave(C, lambda i: torch.sin(0.7 * i**2 + 1))
    w = F.normalize(W)[LABELS]
    u = wave(len(LABELS), lambda i: torch.cos(0.3 * i**2))
    u = F.normalize(u - (u * w).sum(1, keepdim=True) * w)
    theta, r = (torch.tensor(t, dtype=torch.float64).unsqueeze(1) for t in (ANGLES, LENGTHS))
    return r * (theta.cos() * w + theta.sin() * u), W


def row_sums(grad):
    """One number a row that no entry escapes."""
    return (grad * wave(len(grad), lambda i: torch.sin(i + 0.5))).sum(1)


def by_function(x, W, y, margin, settings):
    return margin_softmax(x, W, y, margin, reduction="none", **settings)


def by_head(x, W, y, margin, settings):
    head = MarginHead(D, len(W), margin, reduction="none", dtype=torch.float64, **settings)
    del head.weight  # a Parameter would cut the graph to W
    head.weight = W
    return head(x, y)


def by_cosines(x, W, y, margin, settings):
    settings = {k: v for k, v in settings.items() if not k.startswith("unit")}
    return margin_cross_entropy(F.normalize(x) @ F.normalize(W).T, y, margin, reduction="none", **settings)


def differentiate(loss_of, margin, settings, x=None, W=None, y=LABELS):
    """Losses by row, and the gradients of their sum; of `batch()` if not told otherwise."""
    x, W = batch() if x is None else (x.clone(), W.clone())
    x, W = x.requires_grad_(), W.requires_grad_()
    losses = loss_of(x, W, y, margin, settings)
    losses.sum().backward()
    return losses.detach(), x.grad, W.grad


def close(ours, theirs, rtol=1e-11, atol=1e-11):
    torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol)


# pytorch-metric-learning, run


@pytest.fixture
def peer():
    return pytest.importorskip("pytorch_metric_learning.losses")


FREE = {"unit_features": False, "unit_weight": False}
# Its weight is (dim, classes) and its ArcFace margin in degrees. Past π, ArcFace is our beyond="linear", SphereFace
# and LargeMarginSoftmax are our "smooth" (g, by Chebyshev polynomials, so only for integer m); gradients are exact.
PEERS = [
    ("NormalizedSoftmaxLoss", {"temperature": 0.05}, NoMargin(), {"scale": 20.0}),
    ("CosFaceLoss", {"margin": 0.35, "scale": 64}, CosFace(0.35), {"scale": 64.0}),
    ("ArcFaceLoss", {"margin": 28.6, "scale": 64}, ArcFace(math.radians(28.6), "linear"), {"scale": 64.0}),
    ("ArcFaceLoss", {"margin": 60, "scale": 30}, ArcFace(math.pi / 3, "linear"), {"scale": 30.0}),
    *[
        (name, {"margin": m, "scale": s}, SphereFace(m), {"scale": s, **sides})
        for name, sides in [("SphereFaceLoss", {"unit_features": False}), ("LargeMarginSoftmaxLoss", FREE)]
        for m, s in [(1, 1.0), (2, 1.0), (3, 5.0), (4, 1.0), (5, 0.5)]
    ],
]


@pytest.mark.parametrize(("name", "theirs", "margin", "ours"), PEERS)
def test_pytorch_metric_learning_is_reproduced_with_gradients(peer, name, theirs, margin, ours):
    x, W = batch()
    loss = getattr(peer, name)(C, D, **theirs)
    loss.W = torch.nn.Parameter(W.T.clone())
    x_theirs = x.clone().requires_grad_()
    value = loss(x_theirs, LABELS)
    value.backward()

    losses, dx, dW = differentiate(by_function, margin, ours)
    close(losses.mean(), value.detach(), rtol=1e-13)
    close(dx / len(x), x_theirs.grad)
    close(dW / len(x), loss.W.grad.T)


# The rest of the field, pinned


class Published(NamedTuple):
    """What an implementation gives on `batch()`, and what to ask of us for the same."""

    source: str
    margin: Margin
    settings: dict
    losses: tuple
    dx: tuple  # row_sums of the gradient of the losses' sum
    dw: tuple

    def __str__(self):
        return self.source


S64, S32, S30 = {"scale": 64.0}, {"scale": 32.0}, {"scale": 30.0}
STRAIGHT, LONG = {"gradient": "straight"}, {"unit_features": False, "scale": 1.0}
PUBLISHED = [
    # deepinsight/insightface, recognition/arcface_torch/losses.py. Three ArcFaces in its history: cos(θ + m) by
    # autograd; then c − m sin m past π − m; since Dec 2022 cos(θ + m) under no_grad, so dψ/dc = 1.
    # (Partial FC then clamps p at 1e-30, which caps the reported loss at 69.1; here is the loss before that.)
    Published(
        "insightface ArcFace, CombinedMarginLoss(1, 0.5, 0) at HEAD", ArcFace(0.5, "none"), S64 | STRAIGHT,
        (0.0112637480362, 26.8318025426, 87.4836932677, 78.3499030751, 78.7369161756, 116.794513578),
        (-0.0303581273217, -84.3132584247, -10.9722774393, 22.9353480047, -12.5131754882, 2.09549118129),
        (-30.9397258514, 71.5596096497, 30.8720706415, -2.09632618318, 0.527371636163),
    ),
    Published(
        "insightface ArcFace at 2e2e8c97", ArcFace(0.5, "linear"), S64,
        (0.0112637480362, 26.8318025426, 87.4836932677, 78.3499030751, 91.1820579395, 137.131575202),
        (0.437312447307, -96.0491073922, -9.89900255845, 23.6832724641, -12.5131754882, 2.09549118129),
        (-31.1229079151, 85.51227401, 31.4810925991, -1.09952906021, 0.527371636163),
    ),
    Published(
        "insightface ArcFace at ede87b4a", ArcFace(0.5, "none"), S64,
        (0.0112637480362, 26.8318025426, 87.4836932677, 78.3499030751, 78.7369161756, 116.794513578),
        (0.437312447307, -96.0491073922, -9.89900255845, 23.6832724641, -13.1214121123, 7.51785880807),
        (-9.36685667795, 85.51227401, 31.4810925991, -1.09952906021, -0.248338948065),
    ),
    Published(
        "insightface CosFace", CosFace(0.4), S64,
        (2.08705424394, 23.526661719, 81.9231148219, 83.7533574904, 101.440440704, 147.389957967),
        (-2.3741817373, -84.3132584198, -10.9722774393, 22.9353480047, -12.5131754882, 2.09549118129),
        (-44.9212292012, 71.5596096465, 31.6672626053, 10.9185831108, 0.527371636163),
    ),
    # Asked for cos(θ + 0.3) − 0.2, it computes cos θ − 0.2: with m3 > 0 the others are dropped without a word.
    Published(
        "insightface CombinedMarginLoss(1, 0.3, 0.2)", CosFace(0.2), S64,
        (1.94939951219e-05, 10.7266836705, 69.1231148219, 70.9533574904, 88.6404407042, 134.589957967),
        (-5.28362841348e-05, -84.3114076383, -10.9722774393, 22.9353480047, -12.5131754882, 2.09549118129),
        (-30.7589470905, 71.5584226646, 30.8614708082, -2.26460702663, 0.527371636163),
    ),
    # ydwen/opensphere, opensphere/module/head/*.py: ψ − c is detached; ArcFace stops at θ + m = 3.14159. The weight
    # is normalised in place before use, so its gradient keeps a radial part; pinned is the tangential one over |W|.
    Published(
        "opensphere ArcFace", ArcFace(0.5, "flat"), S64 | STRAIGHT,
        (0.0112637480362, 26.8318025426, 87.4836932677, 78.3499030751, 79.5382109012, 122.058225196),
        (-0.0303581273217, -84.3132584247, -10.9722774393, 22.9353480047, -12.5131754882, 2.09549118129),
        (-30.9397258514, 71.5596096497, 30.8720706415, -2.09632618318, 0.527371636163),
    ),
    Published(
        "opensphere SphereFace", SphereFace(1.7), S30 | STRAIGHT,
        (0.00144131355059, 16.4528714637, 53.5111166951, 44.8201608327, 68.7758119088, 100.871172299),
        (0.0155719150651, -39.5218370413, -5.56619156723, 10.7271968254, -5.49399412808, 0.982261491188),
        (-13.5788641331, 33.5432992267, 14.4376810198, -2.38859374474, 0.247183786889),
    ),
    Published(
        "opensphere CosFace", CosFace(0.35), S64 | STRAIGHT,
        (0.252956601043, 20.3266617204, 78.7231148219, 80.5533574904, 98.2404407042, 144.189957967),
        (-0.60577326648, -84.3132582995, -10.9722774393, 22.9353480047, -12.5131754882, 2.09549118129),
        (-34.3722233574, 71.5596095694, 31.0672924332, 1.09886982503, 0.527371636163),
    ),
    # wenet-e2e/wespeaker, wespeaker/models/projections.py: past π − m it takes c − (1 − cos m), with easy_margin
    # c already for c ≤ 0; SphereProduct has z=|x|(c + (ψ − c)/(1 + λ)), λ = max(5, 1000/(1 + 0.12 it)), it from 1.
    Published(
        "wespeaker ArcMarginProduct", ArcFace(0.2, "continuous"), S32,
        (0.000195012316706, 4.35272915186, 34.6213754079, 33.8431482537, 39.5027233993, 61.5328484925),
        (0.00384662669804, -44.7056204412, -5.83571356681, 11.5810927671, -6.04463766891, 1.04774559064),
        (-14.6224150726, 39.107264382, 15.3359097427, -2.14823521261, 0.111073082223),
    ),
    Published(
        "wespeaker ArcMarginProduct, easy_margin", ArcFace(0.2, "easy"), S32,
        (0.000195012316706, 4.35272915186, 34.6213754079, 29.0785851086, 37.9740784095, 60.8949789835),
        (0.00384662669804, -44.7056204412, -5.83571356681, 11.4505568346, -5.9249810778, 1.04774559064),
        (-14.6224150726, 39.107264382, 15.3359097427, -2.32220711622, 0.263676329908),
    ),
    Published(
        "wespeaker AddMarginProduct", CosFace(0.2), S32,
        (0.00547097083579, 5.36800519193, 34.6347611371, 35.4785851086, 44.3740784095, 67.2949789835),
        (0.0569615321366, -41.9600349431, -5.87118723315, 11.4505568346, -5.9249810778, 1.04774559064),
        (-14.6642368212, 35.6535884216, 15.3821230551, -2.28897986506, 0.263676329647),
    ),
    Published(
        "wespeaker SphereProduct, step 1", SphereFace(4, lam=1000 / 1.12), LONG,
        (1.31258186721, 1.1131471828, 2.20960278387, 2.82502769183, 3.83578057634, 5.85681601727),
        (0.0484411311402, -0.400402489951, -0.309127037814, 0.521219459188, -0.387959219117, -0.671400040361),
        (-0.469111917197, 0.859386613344, 0.485313200362, -0.653156268061, -0.217882201124),
    ),
    Published(
        "wespeaker SphereProduct, step 5000", SphereFace(4, lam=5.0), LONG,
        (1.37067127882, 1.31356629598, 2.90244943471, 4.17742858268, 5.99373619023, 8.80308574911),
        (0.515214093172, -0.742564122186, -0.23119054247, 0.547463366022, -0.358133169447, -1.18843106845),
        (-1.07800304142, 1.02413843559, 0.498300429079, -0.68667738108, -0.19651154084),
    ),
    # 4uiiurz1/pytorch-adacos, metrics.py: bare cos 1.35θ, which turns back up at θ = π/1.35 = 2.33.
    Published(
        "pytorch-adacos SphereFace", SphereFace(1.35, beyond="none"), S30,
        (0.000130306175286, 7.22704082242, 41.7719165945, 39.1665983067, 31.4393968547, 44.0272973703),
        (0.00338119846781, -52.6054994159, -6.79618775594, 11.258882706, -6.15333012933, 7.27426417816),
        (11.6755611028, 49.1140927443, 13.7330940033, -1.68760760314, -0.593696052223),
    ),
]  # fmt: skip


@pytest.mark.parametrize("loss_of", [by_function, by_head, by_cosines])
@pytest.mark.parametrize("published", PUBLISHED, ids=str)
def test_published_implementations_are_reproduced_with_gradients(published, loss_of):
    if loss_of is by_cosines and "unit_features" in published.settings:
        pytest.skip("cosines do not know |x|")
    got = differentiate(loss_of, published.margin, published.settings)
    # OpenSphere's 3.14159 is not quite π: its "flat" is at −1 + 3.5e-12, times s.
    atol = 1e-9 if "opensphere" in published.source else 1e-11
    for ours, theirs in zip((got[0], row_sums(got[1]), row_sums(got[2])), published[3:], strict=True):
        close(ours, torch.tensor(theirs, dtype=torch.float64), atol=atol)


@pytest.mark.parametrize("published", [p for p in PUBLISHED if isinstance(p.margin, ArcFace)], ids=str)
def test_only_one_choice_of_beyond_and_gradient_reproduces_an_arcface(published):
    theirs = torch.tensor(published.losses + published.dx, dtype=torch.float64)
    found = []
    for beyond, gradient in itertools.product(BEYOND, ("exact", "straight")):
        settings = {**published.settings, "gradient": gradient}
        losses, dx, _ = differentiate(by_function, ArcFace(published.margin.m, beyond), settings)
        if torch.cat((losses, row_sums(dx))).sub(theirs).abs().max() < 1e-3:
            found.append((beyond, gradient))
    assert found == [(published.margin.beyond, published.settings.get("gradient", "exact"))]


def test_the_a_softmax_head_walks_through_wespeakers_steps():
    first, late = (p for p in PUBLISHED if "SphereProduct" in p.source)
    x, W = batch()
    head = create_head("a-softmax", D, C, reduction="none", dtype=torch.float64)
    head.weight.data.copy_(W)
    for step, published in ((1, first), (5000, late)):
        head.schedules[0].step.fill_(step - 1)
        losses = head(x, LABELS).detach()
        close(losses, torch.tensor(published.losses, dtype=torch.float64), rtol=1e-6)  # λ is kept in float32


# L-Softmax and A-Softmax in Caffe


def caffe(c, m):
    """ψ without acos: 2σc² − 1 and its kin, σ = sgn c (wy1iu/LargeMargin_Softmax_Loss, the layer's .cpp)."""
    sign = c.sign()
    if m == 2:
        return 2 * sign * c**2 - 1
    if m == 3:
        inner = (c.abs() - 0.5).sign()
        return inner * (4 * c**3 - 3 * c) + sign * (1 + inner) - 2
    inner = sign * (2 * c**2 - 1).sign()
    return inner * (8 * c**4 - 8 * c**2 + 1) + 2 * sign + inner - 3


@pytest.mark.parametrize("m", [2, 3, 4])
def test_caffes_sign_forms_are_our_psi(m):
    theta = torch.linspace(0, math.pi, 1001, dtype=torch.float64)
    c = theta.cos().requires_grad_()
    theta.requires_grad_()
    expected, of_angle, of_cosine = caffe(c, m), SphereFace(m).psi(theta), SphereFace(m).psi_of_cosine(c)
    close(of_angle, expected, atol=1e-13)
    close(of_cosine, expected, atol=1e-13)
    slope, by_angle, by_cosine = (torch.autograd.grad(*p)[0] for p in (
        (expected.sum(), c), (of_angle.sum(), theta), (of_cosine.sum(), c),
    ))  # fmt: skip
    close(by_cosine, slope)
    close(by_angle, -theta.detach().sin() * slope)


@pytest.mark.parametrize(("m", "cosines"), [(2, [0.0]), (3, [0.5, -0.5]), (4, [0.5**0.5, 0.0, -(0.5**0.5)])])
def test_at_the_knots_all_forms_meet(m, cosines):
    k = torch.arange(1, m, dtype=torch.float64)
    c = torch.tensor(cosines, dtype=torch.float64)
    theta = k * math.pi / m
    for values in (SphereFace(m).psi(theta), SphereFace(m).psi_of_cosine(c), caffe(c, m)):
        close(values, 1 - 2 * k, atol=1e-13)


@pytest.mark.parametrize(
    ("head", "it", "expected"),
    [
        ("l-softmax", 1000, 421), ("l-softmax", 5000, 16.2), ("l-softmax", 10_000, 0.406),
        ("a-softmax", 1, 1000 / 1.12), ("a-softmax", 1659, 5.0), ("a-softmax", 10**6, 5.0),
    ],
)  # fmt: skip
def test_lambda_falls_as_in_the_prototxt(head, it, expected):
    schedule = create_head(head, 2, 3).schedules[0]
    assert float(schedule.at(torch.tensor(float(it))).lam) == pytest.approx(expected, rel=2e-3)


def test_a_softmax_reaches_its_lambda_min_at_step_1659():
    lam = create_head("a-softmax", 2, 3).schedules[0].at(torch.arange(1655.0, 1665.0)).lam
    assert (lam[:4] > 5).all()
    assert (lam[4:] == 5).all()


@pytest.mark.parametrize("classes", [10, 10_575, 85_742])
def test_the_fixed_adacos_scale_is_root_two_log_of_rivals(classes):
    assert adacos_scale(classes) == pytest.approx(math.sqrt(2) * math.log(classes - 1), rel=1e-15)
    head = MarginHead(2, classes, NoMargin(), scale="adacos")
    assert float(head.scale) == pytest.approx(math.sqrt(2) * math.log(classes - 1), rel=1e-6)


# Sparse AM-Softmax (bojone/margin-softmax, margin_softmax.py)


def by_subtraction(c, y, s, m):
    """log Z − T with the target's own term taken out of Z again: log Z ← log Z + log(1 − exp(s·c_y − log Z))."""
    c_y = c.gather(1, y[:, None])
    T = s * (c_y - m)
    log_Z = torch.cat((s * c, T), 1).logsumexp(1, keepdim=True)
    return (log_Z + torch.log(1 - torch.exp(s * c_y - log_Z)) - T).squeeze(1)


def sparse_batch(N=400, classes=200):
    """Targets from cos 0 to 1 among rivals of ±0.3, in float32."""
    c = 0.3 * torch.sin(torch.arange(N * classes, dtype=torch.float64) ** 2 * 0.37).reshape(N, classes)
    y = torch.arange(N) % classes
    return c.scatter(1, y[:, None], torch.linspace(0, 1, N, dtype=torch.float64)[:, None]).float(), y


def true_losses(c, y, s, m):
    """log1p Σ exp(z_j − T) in float64: small losses keep their digits."""
    z = s * c.double()
    T = z.gather(1, y[:, None]) - s * m
    return (z - T).scatter(1, y[:, None], -math.inf).exp().sum(1).log1p()


@pytest.mark.parametrize(("s", "m"), [(30, 0.35), (30, 0.5), (64, 0.35), (64, 0.5)])
def test_the_sparse_loss_keeps_its_digits_where_subtraction_loses_them_all(s, m):
    c, y = sparse_batch()
    truth = true_losses(c, y, s, m)
    naive = by_subtraction(c, y, s, m)
    ours = margin_cross_entropy(c, y, CosFace(m), s, reduction="none")
    assert ours.dtype == torch.float32
    assert (ours > 0).all()
    close(ours.double(), truth, rtol=2e-5, atol=0.0)
    if s * m > 12.5:  # 1 − p is then below the last digit of log Z
        assert (~naive.isfinite()).sum() > 20
    else:
        assert (naive < 0).any()
        assert ((naive - truth) / truth).abs().max() > 1


# Known defects, absent

EVERY_MARGIN = [
    NoMargin(), CosFace(0.35), SphereFace(4), SphereFace(1.7), SphereFace(1.35, beyond="none"),
    Combined(1.2, 0.3, 0.2), *(ArcFace(0.5, beyond) for beyond in BEYOND),
]  # fmt: skip


@pytest.mark.parametrize("loss_of", [by_function, by_cosines])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("margin", EVERY_MARGIN, ids=str)
def test_gradients_are_finite_at_cosine_one_and_minus_one(margin, dtype, loss_of):
    # Targets at c = 1 and −1, then a rival at c = 1, where 0·inf through a one-hot makes NaN in WeSpeaker.
    W = torch.eye(2, D, dtype=dtype)
    x = torch.stack((W[0], -W[0], W[1]))
    y = torch.zeros(3, dtype=torch.int64)
    losses, dx, dW = differentiate(loss_of, margin, S64, x, W, y)
    assert all(t.isfinite().all() for t in (losses, dx, dW))
    assert dW.abs().sum() > 0


def test_arcface_neither_jumps_nor_turns_at_pi_minus_m():
    m = 0.5
    edge = torch.tensor([math.pi - m - 1e-9, math.pi - m + 1e-9], dtype=torch.float64)
    drop = {beyond: float(-ArcFace(m, beyond).psi(edge).diff()) for beyond in BEYOND}
    assert drop.pop("linear") == pytest.approx(math.cos(m) + m * math.sin(m) - 1, abs=1e-8)  # 0.117, as published
    assert all(abs(d) < 1e-8 for d in drop.values())
    theta = torch.linspace(0, math.pi, 1001, dtype=torch.float64)
    assert (ArcFace(m).psi(theta).diff() < 0).all()


def test_a_real_m_is_not_cut_to_an_integer():
    x, W = batch()
    cut, real = (by_function(x, W, LABELS, SphereFace(m), {"scale": 5.0}) for m in (1.0, 1.7))
    assert (real - cut > 0.01).all()


def test_a_half_precision_call_leaves_the_weight_as_it_was():
    head = create_head("cosface", D, C)
    before = head.weight.detach().clone()
    head(batch()[0].half(), LABELS).backward()
    assert head.weight.dtype == head.weight.grad.dtype == torch.float32
    assert torch.equal(head.weight, before)


def test_the_default_gradient_is_that_of_the_loss_and_the_straight_one_is_not():
    x, W = (t.requires_grad_() for t in batch())

    def loss(gradient):
        return lambda x, W: margin_softmax(x, W, LABELS, ArcFace(0.5), scale=8.0, gradient=gradient)

    assert torch.autograd.gradcheck(loss("exact"), (x, W))
    assert not torch.autograd.gradcheck(loss("straight"), (x, W), raise_exception=False)


def test_a_combined_margin_combines():
    theta = torch.tensor(ANGLES[:4], dtype=torch.float64)
    close(Combined(1.1, 0.3, 0.2).psi(theta), torch.cos(1.1 * theta + 0.3) - 0.2)


@pytest.mark.parametrize("scale", [64.0, 1e4])
def test_large_losses_are_neither_capped_nor_infinite(scale):
    # Partial FC reports at most 69.1, and log(1 + exp) overflows at 710.
    losses, dx, dW = differentiate(by_function, CosFace(0.4), {"scale": scale})
    gap = scale * (0.9072 + 0.9958 + 0.4)  # of the last row, to the nearest rival
    assert float(losses[-1]) == pytest.approx(gap, rel=1e-3)
    assert dx.isfinite().all()
    assert dW.isfinite().all()


def test_batches_may_change_size_and_one_row_spoils_no_statistics():
    x, _ = batch()
    head = MarginHead(D, C, CosFace(0.35), scale="adacos-dynamic", dtype=torch.float64)
    for rows in (6, 1, 3):
        assert head(x[:rows], LABELS[:rows]).isfinite()
        assert head.scale.isfinite()
        assert head.scale >= 1


def test_counters_and_scales_are_saved_and_stand_still_in_evaluation():
    x, _ = batch()
    heads = [create_head("a-softmax", D, C), MarginHead(D, C, NoMargin(), scale="adacos-dynamic")]
    for head in heads:
        fresh = {k: v.clone() for k, v in head.state_dict().items()}
        head.eval()(x.float(), LABELS)
        assert all(torch.equal(v, fresh[k]) for k, v in head.state_dict().items())
        head.train()(x.float(), LABELS)
        assert any(not torch.equal(v, fresh[k]) for k, v in head.state_dict().items())


def test_pytorch_metric_learning_2_9_has_the_defects_named_above(peer):
    """So that the comparison stays honest: a release that mends one of them should change what we say of it."""
    version = __import__("pytorch_metric_learning").__version__
    if not version.startswith("2.9"):
        pytest.skip(f"seen in 2.9; installed is {version}")
    arcface = peer.ArcFaceLoss(2, D)
    arcface.W = torch.nn.Parameter(torch.eye(2, D).T.clone())
    x = torch.eye(2, D).requires_grad_()
    arcface(x, torch.tensor([0, 1])).backward()
    assert not x.grad.isfinite().all()

    edge = torch.tensor([math.pi - arcface.margin - 1e-6, math.pi - arcface.margin + 1e-6]).double()
    assert float(arcface.modify_cosine_of_target_classes(edge.cos()).diff()) == pytest.approx(-0.117, abs=1e-3)

    cosface = peer.CosFaceLoss(2, D)
    cosface(torch.eye(2, D).half(), torch.tensor([0, 1]))
    assert cosface.W.dtype == torch.float16

    assert peer.SphereFaceLoss(2, D, margin=1.7).margin == 1
