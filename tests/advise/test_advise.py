"""Bounds are reached and not undercut; closed forms agree with bisection and brute force; the rule is kept."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from hypermargin.advise import (
    adacos_scale,
    band_width,
    equivalent_margin,
    guaranteed_margin,
    largest_angle,
    largest_margin,
    loss_floor,
    recommend,
    smallest_scale,
    typical_angle,
)
from hypermargin.advise.bands import _closed_boundary, _numeric_boundary
from hypermargin.hinge import softplus_hinge
from hypermargin.margins import ArcFace, Combined, CosFace, NoMargin, Piecewise, SphereFace

fixed = settings(derandomize=True, max_examples=50, deadline=None, database=None)
PI = math.pi


def simplex(C):
    """C unit vectors with all cosines −1/(C−1), in C dimensions."""
    centers = torch.eye(C, dtype=torch.float64) - 1 / C
    return F.normalize(centers)


def margined_probability(cosines, s, margin, angle):
    """p_y as the loss sees it, for target 0 with that angle."""
    z = s * cosines.clone()
    z[0] = s * margin.psi(torch.tensor(angle, dtype=torch.float64))
    return z.softmax(0)[0].item()


# smallest_scale, adacos_scale


@fixed
@given(C=st.integers(2, 300), P=st.floats(0.05, 0.999), m=st.floats(0.0, 0.9), theta=st.floats(0.0, 0.4))
def test_smallest_scale_gives_exactly_that_probability(C, P, m, theta):
    for margin in (CosFace(m / 2), ArcFace(m)):
        s = smallest_scale(C, P, margin, angle=theta)
        # A sample tilted by θ out of the simplex' space, so that all rivals stay level.
        x = torch.cat([math.cos(theta) * simplex(C)[0], torch.tensor([math.sin(theta)], dtype=torch.float64)])
        cosines = F.pad(simplex(C), (0, 1)) @ x
        if P > 1 / C:
            assert margined_probability(cosines, s, margin, theta) == pytest.approx(P, abs=1e-9)
            assert margined_probability(cosines, 0.99 * s, margin, theta) < P
        else:
            assert s == 0.0


def test_smallest_scale_is_the_papers():
    C, P = 10_000, 0.9
    assert smallest_scale(C, P) == pytest.approx((C - 1) / C * math.log((C - 1) * P / (1 - P)), rel=1e-14)
    assert smallest_scale(C, P, 0.35) == pytest.approx(math.log((C - 1) * P / (1 - P)) / (C / (C - 1) - 0.35))
    assert smallest_scale(C, P, 0.35) == smallest_scale(C, P, CosFace(0.35))
    assert smallest_scale(2, 0.9) == pytest.approx(math.log(9) / 2)
    assert smallest_scale(1) == 0.0
    assert smallest_scale(2, 0.5) == 0.0


@pytest.mark.parametrize("margin", [1.2, CosFace(1.2), ArcFace(1.7)])
def test_smallest_scale_refuses_a_margin_that_cannot_be_met(margin):
    with pytest.raises(ValueError, match=r"cannot be met at angle 0.*Take a smaller m"):
        smallest_scale(100, 0.9, margin)
    assert smallest_scale(2, 0.9, margin) > 0  # two classes may be opposite: there it can


def test_adacos_scale():
    C = 1000
    s = adacos_scale(C)
    p = math.exp(s * math.cos(PI / 4)) / (math.exp(s * math.cos(PI / 4)) + C - 1)  # rivals at right angles
    assert p == pytest.approx(0.5)
    assert [adacos_scale(C) for C in (1, 2, 3)] == [1.0, 1.0, 1.0]
    assert adacos_scale(4) > 1


# loss_floor


@pytest.mark.parametrize(
    "margin",
    [NoMargin(), CosFace(0.35), ArcFace(0.5), SphereFace(1.7), Combined(1.2, 0.3, 0.1)],
    ids=lambda m: m.name,
)
@pytest.mark.parametrize(("C", "s"), [(2, 3.0), (4, 8.0), (7, 2.0)])
def test_loss_floor_is_reached_at_the_simplex_and_not_undercut(margin, C, s):
    def loss(x, w):
        x, w = F.normalize(x), F.normalize(w)
        cosines = x @ w.T
        target = margin.psi_of_cosine(cosines.diagonal())
        rivals = (s * cosines).masked_fill(torch.eye(C, dtype=torch.bool), -math.inf).logsumexp(1)
        return F.softplus(rivals - s * target, threshold=100).mean()

    floor = loss_floor(C, s, margin)
    assert loss(simplex(C), simplex(C)).item() == pytest.approx(floor, rel=1e-6)
    torch.manual_seed(0)
    x = torch.randn(C, C, dtype=torch.float64, requires_grad=True)
    w = torch.randn(C, C, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([x, w], max_iter=150, line_search_fn="strong_wolfe", tolerance_grad=1e-12)

    def closure():
        optimiser.zero_grad()
        value = loss(x, w)
        value.backward()
        return value

    optimiser.step(closure)
    reached = loss(x, w).item()
    assert reached >= floor * (1 - 1e-9)
    if isinstance(
        margin, NoMargin | CosFace
    ):  # the others have a cone at θ = 0, where L-BFGS stalls a little above
        assert reached == pytest.approx(floor, rel=1e-4)


@fixed
@given(
    seed=st.integers(0, 9999), C=st.integers(2, 12), d=st.integers(2, 8), s=st.floats(0.5, 40), m=st.floats(0, 1.2)
)
def test_no_configuration_undercuts_the_floor(seed, C, d, s, m):
    generator = torch.Generator().manual_seed(seed)
    w = F.normalize(torch.randn(C, d, generator=generator, dtype=torch.float64))
    x = F.normalize(w + 0.3 * torch.randn(C, d, generator=generator, dtype=torch.float64))
    loss = softplus_hinge(x @ w.T, torch.arange(C), m=m, s=s).item()
    assert loss >= loss_floor(C, s, m) * (1 - 1e-9)


def test_loss_floor_values():
    assert loss_floor(1, 10.0) == 0.0
    assert loss_floor(2, 3.0) == pytest.approx(math.log1p(math.exp(-6)))
    assert loss_floor(10, 30.0, 0.35) == pytest.approx(math.log1p(9 * math.exp(-30 * (10 / 9 - 0.35))))
    assert loss_floor(1000, 5000.0, 1.9) == pytest.approx(math.log(999) + 5000 * (1.9 - 1000 / 999))  # no overflow


# largest_angle, largest_margin


def test_largest_margin_is_the_papers():
    assert largest_margin(10, 2) == pytest.approx(1 - math.cos(2 * PI / 10))
    assert largest_margin(3, 2) == pytest.approx(3 / 2)
    for C, d in [(2, 1), (2, 2), (5, 4), (5, 100)]:
        assert largest_margin(C, d) == pytest.approx(C / (C - 1))
    assert largest_margin(1, 3) == 2.0
    assert largest_angle(3, 1) == 0.0


def cross_polytope(d):
    return torch.cat([torch.eye(d), -torch.eye(d)]).double()


def icosahedron():
    golden = (1 + math.sqrt(5)) / 2
    points = [p for a in (1, -1) for b in (golden, -golden) for p in ((0, a, b), (a, b, 0), (b, 0, a))]
    return F.normalize(torch.tensor(points, dtype=torch.float64))


def d_lattice(d):
    """±e_i ± e_j: the 24-cell for d = 4, the best known code of 40 points for d = 5."""
    rows = []
    for i in range(d):
        for j in range(i):
            for a in (1, -1):
                for b in (1, -1):
                    row = torch.zeros(d, dtype=torch.float64)
                    row[i], row[j] = a, b
                    rows.append(row)
    return F.normalize(torch.stack(rows))


def e8():
    half = torch.cartesian_prod(*[torch.tensor([0.5, -0.5])] * 8).double()
    return torch.cat([d_lattice(8), F.normalize(half[(half.prod(1) > 0)])])


@pytest.mark.parametrize(
    "points", [cross_polytope(3), cross_polytope(9), icosahedron(), d_lattice(4), d_lattice(5), e8()]
)
def test_known_codes_respect_the_bound(points):
    C, d = points.shape
    cosines = (points @ points.T).fill_diagonal_(-1)
    smallest = math.acos(min(1.0, cosines.max().item()))
    bound = largest_angle(C, d)
    assert bound >= smallest - 1e-9
    assert bound < 1.18 * smallest  # and it says something
    if 2 * d == C:
        assert bound == pytest.approx(smallest)


def test_crowded_bound_tends_to_the_cap_bound_and_falls():
    angles = [largest_angle(C, 3) for C in (6, 7, 10, 100, 10_000, 10**8)]
    assert angles == sorted(angles, reverse=True)
    assert len(set(angles)) == len(angles)
    # In three dimensions a cap of radius φ/2 is (1 − cos(φ/2))/2 of the sphere.
    assert 10**8 * (1 - math.cos(angles[-1] / 2)) / 2 == pytest.approx(1.0, rel=1e-4)
    assert largest_angle(10_000, 512) == pytest.approx(1.547, abs=1e-3)


@fixed
@given(C=st.integers(2, 10**6), d=st.integers(2, 1000))
def test_largest_angle_is_monotone(C, d):
    phi = largest_angle(C, d)
    assert 0 < phi <= PI
    assert largest_angle(C + 1, d) <= phi
    assert largest_angle(C, d + 1) >= phi - 1e-12


# band_width


@pytest.mark.parametrize("theta12", [0.3, 1.0, PI / 2, 2.5, PI])
@pytest.mark.parametrize(
    "margin",
    [NoMargin(), SphereFace(1.0), SphereFace(1.7), SphereFace(4.0), ArcFace(0.2), ArcFace(0.5), ArcFace(2.9)]
    + [ArcFace(0.5, beyond=b) for b in ("linear", "continuous", "flat", "none")]
    + [CosFace(0.0), CosFace(0.04), CosFace(0.35), CosFace(1.2)]
    + [Combined(1.5, 0.2, 0.0), Combined(0.8, 0.0, 0.0), Combined(2.0, 0.7, 0.0)],
    ids=str,
)
def test_closed_widths_agree_with_bisection(margin, theta12):
    closed = _closed_boundary(margin, theta12)
    assert closed is not None
    assert closed == pytest.approx(_numeric_boundary(margin, theta12), abs=2e-8)


@pytest.mark.parametrize("margin", [Combined(1.2, 0.3, 0.2), SphereFace(3.0, lam=2.0), Piecewise(3.0)], ids=str)
def test_numeric_width_is_on_the_boundary(margin):
    theta12 = 1.8
    assert _closed_boundary(margin, theta12) is None
    b = (theta12 - band_width(margin, theta12)) / 2
    assert 0 < b < theta12 / 2
    assert margin.psi(torch.tensor(b, dtype=torch.float64)).item() == pytest.approx(
        math.cos(theta12 - b), abs=1e-12
    )


def test_width_by_hand_and_its_ends():
    assert band_width(NoMargin(), 1.0) == 0.0
    assert band_width(ArcFace(0.5), 1.0) == pytest.approx(0.5)
    assert band_width(SphereFace(4.0), 1.0) == pytest.approx(0.6)
    assert band_width(CosFace(0.3), 1.2) == pytest.approx(2 * math.asin(0.3 / (2 * math.sin(0.6))))
    # What cannot be met fills the arc, and the width arrives there without a jump.
    assert band_width(ArcFace(0.5), 0.4) == 0.4
    assert band_width(CosFace(0.5), 0.4) == 0.4
    assert band_width(Combined(1.0, 0.5, 0.3), 0.4) == 0.4
    assert band_width(CosFace(1 - math.cos(1.0)), 1.0) == pytest.approx(1.0)
    assert band_width(Combined(0.5, 0.0, 0.0), 1.0) < 0


# equivalent_margin


def test_the_papers_margins_are_the_same_band_at_right_angles():
    assert equivalent_margin(PI / 2, arcface=0.5).cosface == pytest.approx(0.35, abs=1e-3)


@fixed
@given(theta12=st.floats(0.05, PI), share=st.floats(0.0, 0.99))
def test_equivalent_margins_have_the_same_width(theta12, share):
    same = equivalent_margin(theta12, arcface=share * theta12)
    for margin in (ArcFace(same.arcface), CosFace(same.cosface), SphereFace(same.sphereface)):
        assert band_width(margin, theta12) == pytest.approx(same.width, abs=1e-6)
    back = equivalent_margin(theta12, sphereface=same.sphereface)
    assert back.arcface == pytest.approx(same.arcface, abs=1e-9)
    again = equivalent_margin(theta12, cosface=same.cosface)
    assert again.arcface == pytest.approx(same.arcface, abs=1e-6)


# guaranteed_margin


def compactness(margin, centers, points=3600):
    """Smallest angle between classes minus largest within one, by looking at every point of the circle."""
    t = 2 * PI * torch.arange(points, dtype=torch.float64) / points
    apart = lambda a, b: PI - (PI - (a - b).abs() % (2 * PI)).abs()  # noqa: E731
    theta = apart(t[:, None], torch.tensor(centers, dtype=torch.float64)[None, :])
    inside = []
    for y in range(len(centers)):
        others = [j for j in range(len(centers)) if j != y]
        member = margin.psi(theta[:, y]) >= theta[:, others].cos().amax(1)
        inside.append(t[member][:: max(1, int(member.sum()) // 400)])
        ends = member & (~member.roll(1) | ~member.roll(-1))  # never thin out a class's ends
        inside[-1] = torch.cat([inside[-1], t[ends]])
    within = max(apart(a[:, None], a[None, :]).max().item() for a in inside)
    between = min(
        apart(a[:, None], b[None, :]).min().item()
        for i, a in enumerate(inside)
        for j, b in enumerate(inside)
        if i < j
    )
    return between - within


KINDS = {"sphereface": SphereFace, "arcface": ArcFace, "cosface": CosFace}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("theta12", [0.8, 1.2, PI / 2 + 0.05, 2.0, 2.5, PI])
def test_guarantee_for_two_classes_by_brute_force(kind, theta12):
    if theta12 < PI / 2 and kind != "sphereface":
        with pytest.raises(ValueError, match="theta12 must be at least π/2"):
            guaranteed_margin(kind, 2, theta12)
        return
    m = guaranteed_margin(kind, 2, theta12)
    assert compactness(KINDS[kind](m * 1.01), [0.0, theta12]) > 0
    assert compactness(KINDS[kind](m * 0.99), [0.0, theta12]) < 0
    assert guaranteed_margin(kind, 2) >= m - 1e-12


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("C", [3, 4, 5, 8])
def test_guarantee_for_many_classes_by_brute_force(kind, C):
    centers = [2 * PI * j / C for j in range(C)]
    m = guaranteed_margin(kind, C)
    assert compactness(KINDS[kind](m * 1.03), centers) > 0
    assert compactness(KINDS[kind](m * 0.97), centers) < 0
    assert band_width(KINDS[kind](m), 2 * PI / C) == pytest.approx(PI / C)


def test_guarantees_of_the_paper():
    assert guaranteed_margin("sphereface", 2) == 2 + math.sqrt(3)
    assert guaranteed_margin("sphereface", 10) == 3.0
    edge = (math.sqrt(3) - 1) * PI
    assert guaranteed_margin("sphereface", 2, edge) == pytest.approx(2 + math.sqrt(3))
    assert guaranteed_margin("sphereface", 2, PI) == pytest.approx(3.0)


# recommend


def test_scale_fits_what_was_measured():
    """Best at 964 classes: NormFace 8, CosFace (10, 0.2), ArcFace (16, 0.5); at 3856 ArcFace (16, 0.5)."""
    for margin in ("none", "arcface", "cosface", "sphereface", CosFace(0.2)):
        assert 8 <= recommend(964, 128, margin=margin).s <= 16
    assert 14 <= recommend(3856, 128).s <= 20
    assert 30 <= recommend(100_000, 512).s <= recommend(1_000_000, 512).s <= 64
    assert recommend(10, 128, margin="none").s < 8
    assert 1 < recommend(2, 2, margin="none").s < recommend(3, 2, margin="none").s < 4


@fixed
@given(
    C=st.integers(2, 10**6), d=st.integers(2, 600), P=st.floats(0.5, 0.99), name=st.sampled_from(["none", *KINDS])
)
def test_recommendation_keeps_its_rule(C, d, P, name):
    advice = recommend(C, d, margin=name, probability=P)
    margin, phi = advice.margin, largest_angle(C, d)
    assert advice.s >= smallest_scale(C, P)
    assert band_width(margin, phi) <= phi / 2 * (1 + 1e-6)
    assert advice.floor == loss_floor(C, advice.s, margin)
    assert advice.width == band_width(margin, phi)
    if advice.s < 64:  # otherwise the rule may stop short for the typical sample, and says so
        assert advice.s >= smallest_scale(C, 0.5, margin, angle=advice.angle) - 1e-9
    two = torch.tensor([1.0, math.cos(phi)], dtype=torch.float64)
    if phi > 1e-3:
        assert margined_probability(two, advice.s, NoMargin(), 0.0) >= P - 1e-9
    assert all(reason.endswith(".") for reason in advice.reasons)


def said(*args, **kw):
    return " ".join(recommend(*args, **kw).reasons)


def test_reasons_tell_the_rule_and_the_evidence():
    few = said(964, 128)
    assert "p_y ≥ 0.99 on the center (s ≥ 11.5)" in few
    assert "at 30° p_y ≥ 1/2 in training, margin included (s ≥ 13.2)" in few
    assert "NormFace EER 3.6 / 3.3 / 3.5 / 3.7 / 4.1 % at s = 4 / 8 / 12 / 16 / 30" in few
    assert "Try no margin at s = 11.5" in few
    assert "guess" not in few
    many = said(100_000, 512)
    assert "Nothing of this size was measured" in many
    assert "is a guess between 30°" in many
    assert "guess" not in said(100_000, 512, angle=0.7)
    assert "repairs" not in said(964, 128, margin="none")


def test_reasons_warn():
    crowded = recommend(100, 2)
    assert "dim = 2 is small: 100 centers in 2 dimensions are at most 3.6° apart" in crowded.reasons[1]
    assert "Take dim ≥ 8" in crowded.reasons[1]
    assert largest_angle(100, 4) < PI / 3 <= largest_angle(100, 8)
    assert "m was lowered from 0.5" in " ".join(crowded.reasons)
    assert crowded.m == pytest.approx(PI / 100)
    assert "can form a simplex" in said(10, 9)
    assert "wider than the classes it leaves" in said(1000, 128, margin=ArcFace(1.2))
    assert "no scale in common use" in said(1000, 128, margin=SphereFace(4.0))
    assert "no scale in common use" not in said(1000, 128)


def test_recommendation_takes_what_it_is_given():
    assert recommend(1000, 128, margin=ArcFace(0.3)).margin == ArcFace(0.3)
    assert recommend(1000, 128, margin="combined").m == (1.0, 0.3, 0.2)
    assert recommend(1000, 128, margin="none").m is None
    assert recommend(1000, 128, probability=0.999).s > recommend(1000, 128).s
    assert recommend(1000, 128, angle=0.9).s > recommend(1000, 128, angle=0.3).s
    assert recommend(1000, 128, angle=0.9).angle == 0.9
    with pytest.raises(AttributeError):
        recommend(1000, 128).s = 3.0


def test_typical_angle():
    assert typical_angle(1) == typical_angle(1000) == PI / 6
    assert typical_angle(10_000) == pytest.approx(PI / 6 + PI / 24)
    assert typical_angle(100_000) == typical_angle(10**9) == pytest.approx(PI / 4)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: smallest_scale(0), ValueError, "classes must be at least 1; got 0"),
        (lambda: smallest_scale(10.5), TypeError, "classes must be a whole number; got 10.5"),
        (lambda: smallest_scale(10, 1.0), ValueError, r"probability must lie in \(0, 1\); got 1"),
        (lambda: smallest_scale(10, math.nan), ValueError, "probability must lie"),
        (lambda: smallest_scale(10, 0.9, 2.5), ValueError, "CosFace"),
        (lambda: smallest_scale(10, angle=-0.1), ValueError, r"angle must lie in \[0, π\]; got -0.1"),
        (lambda: loss_floor(10, 0.0), ValueError, "s must be positive"),
        (lambda: largest_angle(3, 0), ValueError, "dim must be at least 1; got 0"),
        (lambda: band_width(ArcFace(0.5), 0.0), ValueError, r"theta12 must lie in \(0, π\]; got 0"),
        (lambda: band_width(ArcFace(0.5), 28.6), ValueError, "Angles are in radians"),
        (lambda: equivalent_margin(1.0), ValueError, "exactly one of sphereface, arcface, cosface; got none"),
        (lambda: equivalent_margin(1.0, arcface=0.1, cosface=0.1), ValueError, "got arcface, cosface"),
        (lambda: equivalent_margin(1.0, arcface=1.0), ValueError, "arcface = 1 fills the whole arc"),
        (lambda: guaranteed_margin("arc", 2), ValueError, "kind must be one of .*Did you mean 'arcface'"),
        (lambda: guaranteed_margin("arcface", 1), ValueError, "classes must be at least 2"),
        (lambda: guaranteed_margin("arcface", 5, 1.0), ValueError, "Leave it out"),
        (lambda: recommend(1, 128), ValueError, "classes must be at least 2; got 1"),
        (lambda: recommend(3, 1), ValueError, "dim = 1 has room for 2 centers"),
        (lambda: recommend(10, 2, margin=ArcFace(0.7)), ValueError, "ArcFace's m must stay below 0.628"),
        (lambda: recommend(10, 2, margin="arcfase"), ValueError, "Did you mean 'arcface'"),
        (lambda: recommend(10, 2, angle=4.0), ValueError, "angle must lie in"),
    ],
)
def test_errors_name_the_argument(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_combined_is_fitted_to_the_plane():
    """Ten classes in a plane are 36° apart: its paper's numbers cannot be met there, and those advised can."""
    advice = recommend(10, 2, margin="combined")
    assert advice.width == pytest.approx(advice.centre_angle / 2, rel=1e-3)
    m1, m2, m3 = advice.m
    assert m1 == 1
    assert m2 / m3 == pytest.approx(0.3 / 0.2)
    assert recommend(1000, 128, margin="combined").m == (1, 0.3, 0.2)  # where there is room
    with pytest.raises(ValueError, match="cannot be met"):
        recommend(10, 2, margin="combined", numbers={"m2": 0.3, "m3": 0.2})
