"""ψ itself: the laws over every registered margin, the registry, real m, tensors as m."""

import copy
import dataclasses
import math
import pickle

import pytest
import torch
from conftest import PUBLISHED_VARIANTS, over_all_variants, over_margins
from hypothesis import given
from hypothesis import strategies as st

from hypermargin import margins
from hypermargin.margins import (
    ArcFace,
    Combined,
    CosFace,
    Margin,
    NoMargin,
    Piecewise,
    SphereFace,
    g,
)
from hypermargin.testing import LawBroken, broken_laws, check_margin

angles = st.floats(0, math.pi)
THETA = torch.linspace(0, math.pi, 4001, dtype=torch.float64)


def at(margin, theta, m=None):
    return margin.psi(torch.tensor(theta, dtype=torch.float64), m).item()


@over_all_variants
def test_keeps_the_laws_it_promises(margin):
    check_margin(margin)


BREAKING = [
    margins.Circle(), margins.SFace(), margins.LiArcFace(), margins.LiArcFace(0.2), margins.P2SGrad(),
    margins.SphereFace2(variant="A"),
]  # fmt: skip


@pytest.mark.parametrize("margin", PUBLISHED_VARIANTS + BREAKING, ids=str)
def test_a_published_variant_breaks_what_it_declares(margin):
    broken = set(broken_laws(margin))
    # cos(θ + m2) − m3 stays under cos θ for a large enough m3, so that law is not promised, yet may hold.
    optional = {"below cos"} if isinstance(margin, Combined) else set()
    assert broken | optional == margin.breaks | optional


def test_the_laws_catch_a_bad_margin():
    def jumps(theta):
        return -theta

    def rises(theta):
        return theta - math.pi / 3 - 1

    def starts_at_the_cosine_of_the_knot(theta):  # the D(π/m) = cos(π/m) of some notes
        return math.cos(math.pi / 3) - (theta - math.pi / 3)

    with pytest.raises(LawBroken, match="decreasing"):
        check_margin(Piecewise(3.0, D=rises))
    for D in (jumps, starts_at_the_cosine_of_the_knot):
        with pytest.raises(LawBroken, match=r"D\(π/m\) must be −1"):
            check_margin(Piecewise(3.0, D=D))

    @dataclasses.dataclass(frozen=True)
    class Reward(Margin):
        def psi(self, theta, m=None):
            return theta.cos() + 0.1

    with pytest.raises(LawBroken, match="ψ exceeds cos θ"):
        check_margin(Reward())


def test_small_jumps_are_found_too():
    with pytest.raises(LawBroken, match="continuous"):
        check_margin(Piecewise(2.0, D=lambda theta: -1.00001 - (theta - math.pi / 2)))


@given(st.floats(0, 40))
def test_g_is_one_minus_the_integral_of_the_absolute_sine(u):
    k, rest = divmod(u, math.pi)
    assert math.isclose(
        g(torch.tensor(u, dtype=torch.float64)).item(), 1 - (2 * k + 1 - math.cos(rest)), abs_tol=1e-12
    )


@pytest.mark.parametrize(
    "margin", [SphereFace(4.0), SphereFace(1.7), ArcFace(0.5), Combined(2.3, 0.4, 0.1)], ids=str
)
def test_smooth_psi_has_a_continuous_slope(margin):
    theta = torch.linspace(0, math.pi, 200_001, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(margin.psi(theta).sum(), theta)
    m1 = margin.m[0] if isinstance(margin.m, tuple) else margin.m if isinstance(margin, SphereFace) else 1.0
    assert slope.diff().abs().max() <= 1.01 * m1**2 * (math.pi / 200_000)  # |ψ″| ≤ m1², so no step in the slope


@given(angles, angles, st.floats(1, 4), st.floats(0, 1), st.floats(0, 1))
def test_the_angle_decides_as_the_cosine_does(theta_y, theta_j, m1, m2, m3):
    """m1·θ_y + m2 > θ_j ⇔ ψ + m3 < cos θ_j: on a monotone carrier margins may be read on either axis."""
    u = m1 * theta_y + m2
    if abs(u - theta_j) > 1e-6:
        assert (u > theta_j) == (at(Combined(m1, m2, m3), theta_y) + m3 < math.cos(theta_j))


@given(angles, st.floats(1, 6))
def test_combined_contains_the_others(theta, m):
    small = (m - 1) / 5
    assert at(Combined(m, 0.0, 0.0), theta) == at(SphereFace(m), theta)
    assert at(Combined(1.0, small, 0.0), theta) == at(ArcFace(small), theta)
    assert math.isclose(at(Combined(1.0, 0.0, small), theta), at(CosFace(small), theta), abs_tol=1e-15)


@given(angles, st.floats(1, 5.999))
def test_real_m_lies_between_the_integers(theta, m):
    low, high = math.floor(m), math.floor(m) + 1
    assert (
        at(SphereFace(float(high)), theta) - 1e-12
        <= at(SphereFace(m), theta)
        <= at(SphereFace(float(low)), theta) + 1e-12
    )


@pytest.mark.parametrize(("m", "end"), [(1.35, -1.5460), (1.5, -2.0), (1.7, -2.5878), (4.0, -7.0)])
def test_the_end_point_of_real_m(m, end):
    assert math.isclose(at(SphereFace(m), math.pi), end, abs_tol=1e-4)


@pytest.mark.parametrize("m", [2.0, 3.0, 4.0, 5.0])
@pytest.mark.parametrize("beyond", ["smooth", "none"])
def test_integer_m_needs_no_acos_and_is_exact_at_the_knots(m, beyond):
    margin = SphereFace(m, lam=0.7, beyond=beyond)
    c = THETA.cos()
    torch.testing.assert_close(margin.psi_of_cosine(c), margin.psi(THETA), rtol=0, atol=1e-12)
    knots = torch.tensor([math.cos(k * math.pi / m) for k in range(int(m) + 1)], dtype=torch.float64)
    blend = (
        0.7 * knots
        + torch.tensor([(1.0 - 2 * k) if beyond == "smooth" else (-1.0) ** k for k in range(int(m) + 1)])
    ) / 1.7
    torch.testing.assert_close(margin.psi_of_cosine(knots), blend, rtol=0, atol=1e-14)
    ends = torch.tensor([1.0, -1.0], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(SphereFace(m).psi_of_cosine(ends).sum(), ends)
    assert slope.tolist() == [m * m, m * m]  # where acos has slope −inf


@over_all_variants
def test_cosine_route_equals_angle_route(margin):
    inner = THETA[100:-100]
    torch.testing.assert_close(margin.psi_of_cosine(inner.cos()), margin.psi(inner), rtol=0, atol=1e-10)


@over_margins
def test_the_gradient_to_a_learned_m_is_exact(margin):
    if margin.m is None or "finite slope" in margin.breaks:
        return
    theta = torch.tensor([0.0, 0.4, 1.0, math.pi / 4, 2.2, 3.0], dtype=torch.float64)
    kinked = [math.pi / margin.m] if isinstance(margin, Piecewise) else []
    theta = theta[[abs(t - k) > 1e-3 for t in theta.tolist() for k in kinked or [9.0]]]
    m = torch.tensor(margin.m, dtype=torch.float64) * torch.linspace(
        1.01, 1.3, len(theta), dtype=torch.float64
    ).reshape(-1, *[1] * isinstance(margin.m, tuple))
    torch.autograd.gradcheck(lambda v: margin.psi(theta, v), m.requires_grad_())


@given(st.floats(1.0, 6.0), st.integers(0, 5))
def test_the_gradient_to_m_is_continuous_through_the_knots(theta_share, k):
    """At mθ = kπ the slope by m is −θ|sin mθ| = 0 from both sides."""
    m = torch.tensor(1.0 + k, dtype=torch.float64)
    theta = torch.tensor(math.pi * k / (1.0 + k), dtype=torch.float64)
    for side in (-1e-9, 0.0, 1e-9):
        v = (m + side).clone().requires_grad_()
        (slope,) = torch.autograd.grad(SphereFace().psi(theta, v), v)
        assert abs(slope) < 1e-6


@over_all_variants
def test_is_a_value(margin):
    for twin in (
        copy.deepcopy(margin),
        pickle.loads(pickle.dumps(margin)),
        dataclasses.replace(margin),
        eval(repr(margin), vars(margins)),
    ):
        assert twin == margin
        assert hash(twin) == hash(margin)
        assert torch.equal(twin.psi(THETA), margin.psi(THETA))
    with pytest.raises(dataclasses.FrozenInstanceError):
        margin.m = 3.0


def test_the_registry_finds_every_margin_and_names_the_closest():
    assert {margins.get(name).name for name in margins.names()} == set(margins.names())
    assert margins.get("arcface") is ArcFace
    with pytest.raises(ValueError, match=r"unknown margin 'arcfac'.*Did you mean 'arcface'\?"):
        margins.get("arcfac")
    with pytest.raises(ValueError, match="taken by ArcFace"):
        margins.register("arcface")(CosFace)
    for name in margins.names():
        assert all(f.metadata["help"] for f in margins.number_fields(margins.get(name)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: CosFace(-0.1), r"CosFace\(m=…\) must lie in \[0, 2\); got -0.1"),
        (lambda: CosFace(2.0), r"a margin of 2 can never be met"),
        (lambda: ArcFace(4), r"ArcFace\(m=…\) must lie in \[0, 3.14159\); got 4\. Radians"),
        (lambda: ArcFace(28.6), r"got 28.6\. Radians"),
        (lambda: ArcFace(math.nan), "got nan"),
        (lambda: SphereFace(0.5), r"must lie in \[1, inf\); got 0.5"),
        (lambda: SphereFace(2.0, lam=-1), r"SphereFace\(lam=…\) must lie in \[0, inf\)"),
        (lambda: Combined(0.0), r"Combined\(m1=…\) must lie in \(0, inf\)"),
        (lambda: ArcFace(0.5, beyond="smoth"), r"must be one of 'smooth', 'linear'.*Did you mean 'smooth'\?"),
    ],
)
def test_a_number_outside_its_domain_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_tensor_is_not_a_field():
    with pytest.raises(TypeError, match=r"must be a plain number; got a tensor.*class_margins="):
        CosFace(torch.tensor(0.3))
    with pytest.raises(TypeError, match="must be a number"):
        ArcFace("0.5")
    with pytest.raises(ValueError, match="NoMargin has no m"):
        NoMargin().psi(THETA, torch.tensor(0.3))
    with pytest.raises(ValueError, match="D was made for one m"):
        Piecewise(2.0, D=lambda t: t).psi(THETA, torch.tensor(2.0))
