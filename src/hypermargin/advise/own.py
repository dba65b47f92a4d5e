"""What a loss after ArcFace has to be told besides s and m: its own numbers, why these, and which are guesses."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hypermargin.advise.usual import PAPERS_DIM, draw
from hypermargin.margins import (
    AdaFace,
    AdaptiveFace,
    DynArcFace,
    ElasticArcFace,
    ElasticCosFace,
    ExpFace,
    KappaFace,
    MagFace,
    SphereFace2,
    X2Softmax,
)
from hypermargin.recipes import FAMILY
from hypermargin.rules import (
    ArcNegFace,
    CurricularFace,
    Filter,
    InterTopK,
    MVSoftmax,
    NPCFace,
    Rule,
    SphereFaceR,
    UniFace,
)
from hypermargin.views import VariationalPrototypes

if TYPE_CHECKING:
    from hypermargin.advise.rule import Recommendation


def reasons(head: str, advice: Recommendation) -> list[str]:
    """Explain the own numbers of a margin, and of a head of that name."""
    return [*_of_margin(advice), *_of_head(head, advice)]


def _of_margin(advice: Recommendation) -> list[str]:
    match advice.margin:
        case AdaFace(h=h, momentum=momentum):
            away = "never" if h == 0 else f"{1 / h:.3g} deviations from the mean length"
            steps = math.ceil(math.log(100) / -math.log1p(-momentum)) if momentum < 1 else 1
            return [
                f"AdaFace: h = {h:g} is the paper's. It reaches the ends of the margin {away}, whatever s and the "
                f"dimension are. Mean and deviation begin at 20 and 100; with momentum = {momentum:g} they take "
                f"some {steps} steps to become those of your features, and until then it is about CosFace's. "
                "Here s is for q = 0. That short features are poor samples is a supposition: watch length_angle, "
                "and take h = 0 where it is above 0."
            ]
        case MagFace(l_a=l_a, u_a=u_a, lambda_g=lambda_g) as margin:
            return [
                f"MagFace: lengths of l_a = {l_a:g} to {u_a:g} = u_a are the paper's 10, 110 at d = {PAPERS_DIM}, "
                "taken with √d, as batch-normalised features have |x| ≈ √d: a guess for any other network; compare "
                "norm_p10 and norm_p90 of the log. The term outweighs the margin at the shortest length from "
                f"λ_g = {draw(margin, advice.s):.3g} on, at this s; {lambda_g:g} is "
                + (
                    "below it: lengths may shrink."
                    if lambda_g < draw(margin, advice.s)
                    else f"{lambda_g / draw(margin, advice.s):.2g} times that (the paper's at s = 64: 1.5 times)."
                )
                + " s is for the margin of the shortest features."
            ]
        case ElasticArcFace(sigma=sigma, m=m) | ElasticCosFace(sigma=sigma, m=m):
            return [
                f"ElasticFace: sigma = {sigma:.3g} is {100 * sigma / m if m else 0:.0f} % of m; the paper has 10 % "
                "(arc) and 14 % (cos), a guess for other data; 0 is no noise."
            ]
        case KappaFace(m=m, gamma=gamma, temperature=temperature):
            rare, common = 1 - gamma / 2, gamma / 2
            return [
                f"KappaFace: m = {m:.3g} is the margin until the first epoch ends; then a class that scatters as "
                f"most do has {m * common:.3g} if it is the most frequent and {m * rare:.3g} if it is rare. gamma "
                f"= {gamma:g} and temperature = {temperature:g} are the configuration of the paper's code, a guess "
                "for other data; s is for the margin of the first epoch."
            ]
        case DynArcFace(m=m, k1=k1, k2=k2):
            most = m + k2 * max(advice.centre_angle - k1, 0)
            return [
                f"Dyn-ArcFace: from k1 = {k1:.3g} rad to the nearest class on the margin grows by k2 = {k2:.3g} "
                f"per radian, to {most:.3g} where classes are as far apart as they get. No code was found that "
                "gives the paper's numbers: m is ArcFace's, and k1 and k2 are a guess, made so that the band stays "
                "within half of that."
            ]
        case AdaptiveFace(m=m):
            return [
                f"AdaptiveFace: margins begin at m = {m:.3g} ± 0.05. margin_reward = 2.33 is the paper's λ = 70 at "
                "s = 30. A class with share π of the samples settles where the mean of 1 − p_y is "
                "margin_reward/(C·π); above 1 there is no such place, and its margin goes to the end of its "
                "domain: with the paper's, that of every class with fewer than 2.33 times the mean number of "
                "samples. Below 1 is a guess for every data set: try 0.1 to 0.5."
            ]
        case SphereFace2(t=t):
            return [
                f"SphereFace2: t = {t:g}, positive = 0.7 and weight = 50 are OpenSphere's for 10,000 classes; with "
                "1 M it takes 0.8 and m = 0.5. The rule for s is made for softmax, and a guess here; papers have "
                "32 to 64: search s/2 and 2s. Its loss has no floor of this kind, and it gives no probabilities."
            ]
        case X2Softmax(a=a, k=k):
            return [f"X2-Softmax: a = {a:g} is the paper's; ψ(0) = {k:.3g} is what a sample on its center gets."]
        case ExpFace(m=m):
            return [f"ExpFace: its exponent {m:.3g}; 1 is no margin, smaller ones are larger margins."]
    return []


def _of_head(head: str, advice: Recommendation) -> list[str]:
    recipe = FAMILY.get(head)
    if recipe is None:
        return []
    if head == "ldam":
        return [
            f"LDAM: m = {advice.m:.3g} is the margin of the rarest class; one with 16 times the samples gets half. "
            "The paper's is 0.5 at s = 30, for 10 and 100 classes; how much imbalance asks for is a guess."
        ]
    if isinstance(recipe.view, VariationalPrototypes):
        view = recipe.view
        return [
            f"VPL: share = {view.share:g}, within = {view.within:g} and after = {view.after:g} steps are the "
            "paper's, for hundreds of thousands of steps. A shorter run wants after at some tenth of its steps, a "
            "guess; "
            f"{view.within:g} steps show all {advice.classes:,} classes from a batch of "
            f"{math.ceil(advice.classes / view.within):,} on. It has a second table as large as the class vectors."
        ]
    if said := _of_rule(recipe.rule, advice):
        return [said]
    if recipe.centers.soft:
        return [
            f"Soft centers: {recipe.centers.count} per class is the paper's, for classes that look several ways; a "
            "class that does not lets its centers grow together. They are "
            f"{recipe.centers.count} times the rows: {recipe.centers.count * advice.classes:,} instead of "
            f"{advice.classes:,}."
        ]
    if recipe.centers.count > 1:
        return [
            f"Sub-centers: {recipe.centers.count} per class is the paper's for noisy labels, a guess for yours; "
            f"clean data and small classes want 1. They are {recipe.centers.count} times the rows: "
            f"{recipe.centers.count * advice.classes:,} instead of {advice.classes:,}."
        ]
    return []


def _of_rule(rule: Rule, advice: Recommendation) -> str:
    match rule:
        case MVSoftmax(t=t):
            return (
                f"MV-Softmax: t = {t:g} is the paper's, for s = 32. A hard rival at a cosine of 0 counts e^(s·t) = "
                f"{math.exp(advice.s * t):.3g} times; so do mislabelled samples' true classes: with noise lower t."
            )
        case CurricularFace(momentum=momentum):
            steps = math.ceil(math.log(100) / -math.log1p(-momentum)) if momentum < 1 else 1
            return (
                f"CurricularFace: momentum = {momentum:g} is that of the paper's code. t begins at 0, where hard "
                f"rivals count for less than their cosine, and takes some {steps} steps to become the mean cosine "
                "of your targets; more in a short run is a guess."
            )
        case UniFace(l=weight):
            b = math.log(10 * advice.classes)
            return (
                f"UniFace: the rule for s is made for softmax, and a guess here; the paper has 64 and l = "
                f"{weight:g}. The threshold begins at b/s = ln(10C)/s = {b / advice.s:.2g}, and targets have "
                "to get m above it: where they do not, take a larger s."
            )
        case InterTopK(k=k, m_prime=m_prime):
            return (
                f"Inter-top-k: k = {k:g} and m_prime = {m_prime:g} are those of speaker recipes, for m = 0.2 and "
                "thousands of speakers; a guess elsewhere."
            )
        case NPCFace(t=t, a=a, reach=reach):
            return (
                f"NPCFace: t = {t:g}, a = {a:g} and reach = {reach:g} are its code's, for faces; a hard rival at a "
                f"cosine of 0 counts e^(s·a) = {math.exp(advice.s * a):.3g} times. A guess elsewhere."
            )
        case ArcNegFace(alpha=alpha, sigma=sigma):
            return (
                f"ArcNegFace: alpha = {alpha:g} and sigma = {sigma:g} are its codes', for faces; a guess elsewhere."
            )
        case Filter(above=above):
            return (
                f"Filter: above = {above:g} is insightface's, for identities of which some have two labels; how "
                "many of yours have decides whether it helps."
            )
        case SphereFaceR(m=m):
            return (
                f"SphereFace-R, version 2: m = {m:g} is the paper's, at s = 30; rivals at a right angle count as "
                f"{math.cos(math.pi / 2 / m):.2g}, and s is for plain ones: search s/2 and 2s."
            )
    return ""
