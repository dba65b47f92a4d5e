"""The recipes of the named heads, as one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

from torch import Tensor

from hypermargin.centers import ONE, Centers
from hypermargin.classic import CLASSIC
from hypermargin.counts import margins_from_counts, offsets_from_counts
from hypermargin.margins import (
    AdaFace,
    AdaptiveFace,
    ArcFace,
    CosFace,
    DynArcFace,
    ElasticArcFace,
    ElasticCosFace,
    ExpFace,
    KappaFace,
    MagFace,
    Margin,
    NoMargin,
    SphereFace,
    X2Softmax,
    get,
)
from hypermargin.margins import Circle as CircleMargin
from hypermargin.margins import LiArcFace as LiArcFaceMargin
from hypermargin.margins import NPCFace as NPCFaceMargin
from hypermargin.margins import P2SGrad as P2SGradMargin
from hypermargin.margins import SFace as SFaceMargin
from hypermargin.margins import SphereFace2 as SphereFace2Margin
from hypermargin.margins.adaptiveface import first_margins
from hypermargin.rules import (
    SOFTMAX,
    ArcNegFace,
    Circle,
    CurricularFace,
    DoubleMargin,
    Filter,
    InterTopK,
    LiArcFace,
    MVSoftmax,
    NPCFace,
    P2SGrad,
    Rule,
    SFace,
    SphereFace2,
    SphereFaceR,
    UniFace,
)
from hypermargin.schedule import LambdaAnnealing, Schedule
from hypermargin.settings import HeadSettings
from hypermargin.views import AS_THEY_ARE, VariationalPrototypes, VectorScaling, View

PSI = "the shape of ψ"
ROWS = "the margin of each row"
FREQUENCIES = "margins and offsets by how frequent a class is"
RIVALS = "what a rival counts as"
ONE_PER_CLASS = "one question per class"
CENTERS = "several centers per class"
CLASS_ROWS = "the rows of the classes"


@dataclass(frozen=True)
class Recipe:
    """One head of the family: its paper's defaults and what to know about it."""

    margin: Margin
    scale: float
    good: str
    bad: str
    paper: str
    unit_weight: bool = True
    unit_features: bool = True
    boundary: str = ""  # decision boundary between classes 1 and 2, for x at angles θ1, θ2 from them
    width: str = ""  # width of the band between the two boundaries, for classes θ12 apart
    bias: bool | Literal["shared"] = False
    rule: Rule = SOFTMAX
    view: View = AS_THEY_ARE
    centers: Centers = ONE
    learn_margin: bool = False
    margin_reward: float = 0.1
    learn_scale: bool = False
    scale_floor: float | None = None
    schedule: Callable[[], Schedule] | None = None
    group: str = "classic"  # or what of a loss it changes
    # From the samples of each class, and m or τ: arguments of the head that depend on them.
    by_counts: Callable[[Tensor, Margin, float], dict[str, Tensor]] | None = None
    by_classes: Callable[[Margin, int], Tensor] | None = None  # margins by class that a learned m begins at
    version: str = ""  # how `create_head` is told that this is one of several of a name, which the table then has

    def settings(self, dim: int, classes: int) -> HeadSettings:
        """Return the settings of such a head, as its paper has them."""
        return HeadSettings(
            dim, classes, self.margin, scale=self.scale, bias=self.bias, unit_features=self.unit_features,
            unit_weight=self.unit_weight, learn_scale=self.learn_scale, scale_floor=self.scale_floor,
            rule=self.rule, view=self.view, centers=self.centers, learn_margin=self.learn_margin,
            margin_reward=self.margin_reward,
        )  # fmt: skip


def _classic(name: str, **words: Any) -> Recipe:
    """Return the recipe of a classic head, with its numbers from classic.py; `words` say what to know about it."""
    head = CLASSIC[name]
    return Recipe(
        get(head.margin)(**head.numbers), scale=head.scale, unit_weight=head.unit_weight,
        unit_features=head.unit_features, bias=head.bias, learn_scale=head.learn_scale,
        scale_floor=head.scale_floor,
        schedule=None if head.annealing is None else partial(LambdaAnnealing, *head.annealing), **words,
    )  # fmt: skip


def _margins_by_counts(counts: Tensor, margin: Margin, tau: float) -> dict[str, Tensor]:
    return {"class_margins": margins_from_counts(counts, "ldam", low=0.0, high=float(cast("float", margin.m)))}


def _offsets_by_counts(counts: Tensor, margin: Margin, tau: float) -> dict[str, Tensor]:
    return {"class_offsets": offsets_from_counts(counts, tau)}


def _only_counts(counts: Tensor, margin: Margin, tau: float) -> dict[str, Tensor]:
    return {"class_counts": counts}


_SPHEREFACE = _classic(
    "sphereface",
    boundary="mθ1 = θ2", width="θ12·(m−1)/(m+1)",
    good="angle is all that separates classes", bad="hard to train without λ; thin band between close classes",
    paper="Liu et al. 2017, arXiv:1704.08063",
)  # fmt: skip

_SPHEREFACE_R = (
    Recipe(
        SphereFace(m=1.5), scale=30.0, group=PSI, version="`sphereface-r`, version=0",
        good="sphereface without λ", bad="bands as thin as sphereface's between close classes",
        paper="Liu et al. 2022, arXiv:2109.05565",
    ),
    Recipe(
        SphereFace(m=1.5, beyond="flat"), scale=30.0, group=PSI, version="`sphereface-r`, version=1",
        good="as version 0", bad="the hardest samples teach nothing",
        paper="Liu et al. 2022, arXiv:2109.05565",
    ),
    Recipe(
        NoMargin(), rule=SphereFaceR(), scale=30.0, group=RIVALS, version="`sphereface-r`, version=2",
        good="the margin is on the rivals", bad="steep for rivals opposite to the feature",
        paper="Liu et al. 2022, arXiv:2109.05565",
    ),
)  # fmt: skip

# Heads with a `version`: the names of their versions, in order. The name alone is the last.
VERSIONS = {"sphereface-r": ("sphereface-r-v0", "sphereface-r-v1", "sphereface-r-v2")}

FAMILY: dict[str, Recipe] = {
    "softmax": _classic(
        "softmax",
        boundary="|W1|cos θ1 + b1/|x| = |W2|cos θ2 + b2/|x|", width="0",
        good="nothing to tune but weight decay; trains everywhere",
        bad="separates, does not gather; length competes with angle",
        paper="Bridle 1990",
    ),
    "l-softmax": _classic(
        "l-softmax",
        boundary="|W1|cos mθ1 = |W2|cos θ2", width="θ12·(m−1)/(m+1) if |W1| = |W2|",
        good="the first margin; widest hypothesis space",
        bad="a long W_y meets the margin as well as a small angle",
        paper="Liu et al. 2016, arXiv:1612.02295",
    ),
    "modified-softmax": _classic(
        "modified-softmax",
        boundary="θ1 = θ2", width="0",
        good="decides by angle: a long class weight gains nothing",
        bad="easy samples still grow |x| instead of turning",
        paper="Liu et al. 2017, arXiv:1704.08063",
    ),
    "a-softmax": _SPHEREFACE,
    "sphereface": _SPHEREFACE,
    "normface": _classic(
        "normface",
        boundary="θ1 = θ2", width="0",
        good="trains the cosine that is tested; with s fit to C hard to beat", bad="stands or falls with s",
        paper="Wang et al. 2017, arXiv:1704.06369",
    ),
    "am-softmax": _classic(
        "am-softmax",
        boundary="cos θ1 − m = cos θ2", width="2·asin(m / (2 sin(θ12/2)))",
        good="one subtraction; slope 1 everywhere; steady",
        bad="band widens as classes come closer, to the whole arc for m > 1 − cos θ12",
        paper="Wang et al. 2018, arXiv:1801.05599",
    ),
    "cosface": _classic(
        "cosface",
        boundary="cos θ1 − m = cos θ2", width="2·asin(m / (2 sin(θ12/2)))",
        good="as am-softmax, with the scale for 100k classes",
        bad="as am-softmax; s = 64 is too large for few classes",
        paper="Wang et al. 2018, arXiv:1801.09414",
    ),
    "arcface": _classic(
        "arcface",
        boundary="θ1 + m = θ2", width="m",
        good="the same band at every θ12, in radians", bad="needs a rule past π − m; cone at θ = 0",
        paper="Deng et al. 2019, arXiv:1801.07698",
    ),
    "combined": _classic(
        "combined",
        boundary="g(m1·θ1 + m2) − m3 = cos θ2", width="numeric: advise.band_width",
        good="contains all of the above", bad="three numbers to choose",
        paper="Deng et al. 2019, arXiv:1801.07698",
    ),
    "x2-softmax": Recipe(
        X2Softmax(), scale=64.0, group=PSI,
        good="the margin grows with the angle", bad="never satisfied: ψ(0) = 0.65",
        paper="Xu et al. 2023, arXiv:2312.05281",
    ),
    "expface": Recipe(
        ExpFace(), scale=64.0, group=PSI,
        good="presses most on samples that are nearly right", bad="hardly any margin on hard ones",
        paper="ExpFace 2025",
    ),
    "adaface": Recipe(
        AdaFace(), scale=64.0, group=ROWS,
        good="asks less of images it cannot recognise", bad="supposes that short features are poor images",
        paper="Kim et al. 2022, arXiv:2204.00964",
    ),
    "magface": Recipe(
        MagFace(), scale=64.0, group=ROWS,
        good="the feature's length becomes a measure of quality", bad="lengths must begin between l_a and u_a",
        paper="Meng et al. 2021, arXiv:2103.06627",
    ),
    "elasticface-arc": Recipe(
        ElasticArcFace(), scale=64.0, group=ROWS,
        good="no single margin to get wrong", bad="noise; its mean is still to be chosen",
        paper="Boutros et al. 2022, arXiv:2109.09416",
    ),
    "elasticface-cos": Recipe(
        ElasticCosFace(), scale=64.0, group=ROWS,
        good="as elasticface-arc", bad="as elasticface-arc",
        paper="Boutros et al. 2022, arXiv:2109.09416",
    ),
    "dyn-arcface": Recipe(
        DynArcFace(), scale=64.0, group=ROWS,
        good="classes with room get more margin", bad="a second pass over the classes; three numbers, ours guessed",
        paper="Jiao et al. 2021, Multimedia Tools and Applications",
    ),
    "adaptiveface": Recipe(
        AdaptiveFace(), scale=30.0, group=ROWS, learn_margin=True, margin_reward=70 / 30,
        by_classes=lambda margin, classes: first_margins(cast("CosFace", margin), classes),
        good="no margin to choose", bad="margins end at 0 or 1 unless the reward balances them",
        paper="Liu et al. 2019, CVPR",
    ),
    "kappaface": Recipe(
        KappaFace(), scale=64.0, group=FREQUENCIES, by_counts=_only_counts,
        good="classes that scatter, and rare ones, get the larger margin",
        bad="needs counts; a second table of the size of the weight; the trainer must say when an epoch ends",
        paper="Oinar et al. 2022, arXiv:2201.07394",
    ),
    "ldam": Recipe(
        CosFace(m=0.5), scale=30.0, group=FREQUENCIES, by_counts=_margins_by_counts,
        good="rare classes get the larger margin", bad="needs counts; often deferred re-weighting beside it",
        paper="Cao et al. 2019, arXiv:1906.07413",
    ),
    "balanced-softmax": Recipe(
        NoMargin(), unit_weight=False, unit_features=False, scale=1.0, bias=True, group=FREQUENCIES,
        by_counts=_offsets_by_counts,
        good="right for a test with all classes equally frequent", bad="needs counts; wrong for a test that is not",
        paper="Ren et al. 2020, arXiv:2007.10740",
    ),
    "logit-adjustment": Recipe(
        NoMargin(), unit_weight=False, unit_features=False, scale=1.0, bias=True, group=FREQUENCIES,
        by_counts=_offsets_by_counts,
        good="as balanced-softmax, τ to tune", bad="as balanced-softmax",
        paper="Menon et al. 2021, arXiv:2007.07314",
    ),
    "vs": Recipe(
        NoMargin(), unit_weight=False, unit_features=False, scale=1.0, bias=True, group=FREQUENCIES,
        view=VectorScaling(), by_counts=_only_counts,
        good="goes on where offsets alone end: at zero training error", bad="needs counts; two numbers to tune",
        paper="Kini et al. 2021, arXiv:2103.01550",
    ),
    "mv-am-softmax": Recipe(
        CosFace(m=0.35), rule=MVSoftmax(), scale=32.0, group=RIVALS,
        good="rivals above the target count for more", bad="so do mislabelled samples",
        paper="Wang et al. 2020, arXiv:1912.00833",
    ),
    "mv-arcface": Recipe(
        ArcFace(m=0.35), rule=MVSoftmax(), scale=32.0, group=RIVALS,
        good="as mv-am-softmax", bad="as mv-am-softmax",
        paper="Wang et al. 2020, arXiv:1912.00833",
    ),
    "curricularface": Recipe(
        ArcFace(m=0.5), rule=CurricularFace(), scale=64.0, group=RIVALS,
        good="hard rivals count for more as training goes on", bad="at first for less; wrong labels are hard too",
        paper="Huang et al. 2020, arXiv:2004.00288",
    ),
    "npcface": Recipe(
        NPCFaceMargin(), rule=NPCFace(), scale=64.0, group=RIVALS,
        good="hard rivals raise the row's own margin too", bad="a second pass over the classes; five numbers",
        paper="Zeng et al. 2020, arXiv:2007.10172",
    ),
    "arcnegface": Recipe(
        ArcFace(m=0.5), rule=ArcNegFace(), scale=64.0, group=RIVALS,
        good="rivals count by how near they are to the target", bad="far ones keep a logit near −s",
        paper="Liu et al. 2019, arXiv:1909.00632",
    ),
    "inter-topk": Recipe(
        ArcFace(m=0.2), rule=InterTopK(), scale=32.0, group=RIVALS,
        good="presses the nearest classes apart", bad="a second pass over the classes; k and m′ to choose",
        paper="Zhao et al. 2021, arXiv:2110.05042",
    ),
    "circle": Recipe(
        CircleMargin(), rule=Circle(), scale=256.0, group=RIVALS,
        good="what is far from its goal counts for more", bad="scale and m hard to choose",
        paper="Sun et al. 2020, arXiv:2002.10857",
    ),
    "li-arcface": Recipe(
        LiArcFaceMargin(), rule=LiArcFace(), scale=64.0, group=RIVALS,
        good="the same slope at every angle", bad="steep for rivals on the feature or opposite to it",
        paper="Li et al. 2019, arXiv:1907.12256",
    ),
    "double-margin": Recipe(
        ArcFace(m=0.2), rule=DoubleMargin(), scale=32.0, group=RIVALS,
        good="a margin from both sides", bad="rivals within m are pushed nearer",
        paper="Tong et al. 2021, asv-subtools",
    ),
    "filter": Recipe(
        CosFace(m=0.4), rule=Filter(), scale=64.0, group=RIVALS,
        good="bears one person under two labels", bad="leaves alone what is really hard",
        paper="An et al. 2022, arXiv:2203.15565",
    ),
    "sphereface-r": _SPHEREFACE_R[2],
    "sphereface-r-v0": _SPHEREFACE_R[0],
    "sphereface-r-v1": _SPHEREFACE_R[1],
    "sphereface-r-v2": _SPHEREFACE_R[2],
    "sphereface2": Recipe(
        SphereFace2Margin(), rule=SphereFace2(), bias="shared", scale=40.0, group=ONE_PER_CLASS,
        good="one question per class: no class needs to see the others", bad="no probabilities; two more numbers",
        paper="Wen et al. 2022, arXiv:2108.01513",
    ),
    "uniface": Recipe(
        CosFace(m=0.4), rule=UniFace(), bias="shared", scale=64.0, group=ONE_PER_CLASS,
        good="learns one threshold that verification can use", bad="no probabilities; cosines must pass b/s",
        paper="Zhou et al. 2023, ICCV",
    ),
    "uniface-bce": Recipe(
        CosFace(m=0.4), rule=UniFace(), bias=True, scale=64.0, group=ONE_PER_CLASS,
        good="as uniface", bad="as uniface, and a threshold for every class",
        paper="Zhou et al. 2023, ICCV",
    ),
    "sface": Recipe(
        SFaceMargin(), rule=SFace(), scale=64.0, group=ONE_PER_CLASS,
        good="leaves alone what is near enough, so bears wrong labels", bad="two angles to choose",
        paper="Zhong et al. 2021, arXiv:2205.12010",
    ),
    "p2sgrad": Recipe(
        P2SGradMargin(), rule=P2SGrad(), scale=1.0, group=ONE_PER_CLASS,
        good="no scale, no margin, and no N×C work", bad="nothing to set",
        paper="Zhang et al. 2019, arXiv:1905.02479",
    ),
    "subcenter-arcface": Recipe(
        ArcFace(m=0.5), centers=Centers(3, pool="max"), scale=64.0, group=CENTERS,
        good="mislabelled and odd samples gather at a center of their own", bad="K times the work and memory",
        paper="Deng et al. 2020, ECCV",
    ),
    "vpl": Recipe(
        ArcFace(m=0.5), view=VariationalPrototypes(), scale=64.0, group=CLASS_ROWS,
        good="samples are compared with each other, not with class vectors alone",
        bad="a second table of the size of the weight; nothing happens in the first 8,000 steps",
        paper="Deng et al. 2021, CVPR",
    ),
    "soft-triple": Recipe(
        CosFace(m=0.01), centers=Centers(10, pool="soft", gamma=0.1, together=0.2), scale=20.0, group=CENTERS,
        good="a class may look several ways; all its centers learn", bad="ten times the work and memory",
        paper="Qian et al. 2019, arXiv:1909.05235",
    ),
}  # fmt: skip


def named(name: str, settings: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name of the version that settings ask for, and the settings without it."""
    rest = dict(settings)
    if name not in VERSIONS or "version" not in rest:
        return name, rest
    version, known = rest.pop("version"), VERSIONS[name]
    if isinstance(version, bool) or version not in range(len(known)):
        raise ValueError(f"version must be one of {', '.join(map(str, range(len(known))))}; got {version!r}.")
    return known[version], rest
