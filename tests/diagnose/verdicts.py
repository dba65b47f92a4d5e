"""What the doctor says of each published loss: the cases of the tests, and the table of docs/diagnose.md."""

import torch

import hypermargin as hm
from hypermargin.diagnose import Diagnosis, diagnose
from hypermargin.margins import (
    ArcFace,
    Combined,
    CosFace,
    ElasticArcFace,
    ElasticCosFace,
    LiArcFace,
    NoMargin,
    SphereFace,
)
from hypermargin.margins.arcface import BEYOND
from tests.diagnose import published as p
from tests.diagnose.case import Case
from tests.diagnose.slips import SLIPS

NAN, BACK = {"nan-at-the-ends"}, {"turns-back", "rewards"}
BY_BEYOND = {"none": BACK, "flat": {"flat"}, "easy": {"jumps"}}


def ours():
    """Heads of this library, which must not be accused; what `beyond` leaves open is their user's choice."""
    for beyond in BEYOND:
        for gradient in ("exact", "straight"):
            head = hm.create_head("arcface", p.DIM, p.CLASSES, beyond=beyond, gradient=gradient)
            yield Case(
                f"hypermargin arcface, {beyond}, {gradient}",
                lambda head=head: head,
                ArcFace(0.5, beyond),
                64.0,
                gradient,
                doubtful=BY_BEYOND.get(beyond, frozenset()),
            )
    for beyond in ("smooth", "flat", "none"):
        head = hm.create_head("sphereface-r", p.DIM, p.CLASSES, version=0, beyond=beyond)
        turns = BACK if beyond == "none" else set()
        yield Case(
            f"hypermargin sphereface, {beyond}",
            lambda head=head: head,
            SphereFace(1.5, beyond=beyond),
            30.0,
            wrong=turns & {"turns-back"},
            doubtful=turns & {"rewards"},
        )
    for beyond in ("smooth", "none"):
        head = hm.create_head("combined", p.DIM, p.CLASSES, beyond=beyond)
        yield Case(
            f"hypermargin combined, {beyond}",
            lambda head=head: head,
            Combined(beyond=beyond),
            64.0,
            doubtful={"turns-back"} if beyond == "none" else set(),
        )
    plain = {"normface": (NoMargin(), 10.0), "cosface": (CosFace(0.35), 64.0), "am-softmax": (CosFace(0.35), 30.0)}
    for name, (margin, scale) in plain.items():
        head = hm.create_head(name, p.DIM, p.CLASSES)
        yield Case(f"hypermargin {name}", lambda head=head: head, margin, scale)
    for name in ("sphereface", "l-softmax"):
        head = hm.create_head(name, p.DIM, p.CLASSES, lam=0.0)
        yield Case(f"hypermargin {name}", lambda head=head: head, SphereFace(4.0), 1.0)


def formulas():
    """The six ArcFaces on cosines, by the square root."""
    for beyond in BEYOND:
        for gradient in ("exact", "straight"):
            yield Case(
                f"ArcFace {beyond}, {gradient}",
                lambda b=beyond, g=gradient: p.arcface(b, gradient=g),
                ArcFace(0.5, beyond),
                64.0,
                gradient,
                NAN if gradient == "exact" else set(),
                BY_BEYOND.get(beyond, set()),
            )


def metric_learning():
    """pytorch-metric-learning's classes themselves, where it is installed."""
    try:
        from pytorch_metric_learning import losses
    except ModuleNotFoundError:
        return
    size = {"num_classes": p.CLASSES, "embedding_size": p.DIM}
    arc = ArcFace(0.499164, "linear")
    for name, margin, scale, wrong in (
        ("ArcFaceLoss", arc, 64.0, NAN),
        ("SubCenterArcFaceLoss", arc, 64.0, NAN),
        ("CosFaceLoss", CosFace(0.35), 64.0, set()),
        ("NormalizedSoftmaxLoss", NoMargin(), 20.0, set()),
        ("SphereFaceLoss", SphereFace(4.0), 1.0, set()),
        ("LargeMarginSoftmaxLoss", SphereFace(4.0), 1.0, set()),
    ):
        kind = getattr(losses, name)
        yield Case(f"pytorch-metric-learning {name}", lambda kind=kind: kind(**size), margin, scale, wrong=wrong)
    yield Case(
        "pytorch-metric-learning ArcFaceLoss(margin=0.5)",
        lambda: losses.ArcFaceLoss(**size, margin=0.5),
        ArcFace(0.008727),
        64.0,
        wrong=NAN | {"degrees"},
    )


OTHERS = (
    Case("insightface ArcFace, HEAD", p.InsightfaceHead, ArcFace(0.5, "none"), 64.0, "straight", NAN, BACK),
    Case("insightface CombinedMarginLoss(1, 0.3, 0.2)", p.InsightfaceCombined, CosFace(0.2), 64.0),
    Case("insightface ArcFace, 2022", p.InsightfaceOld, ArcFace(0.5, "linear"), 64.0, wrong=NAN),
    Case(
        "OpenSphere ArcFace",
        p.OpenSphere,
        ArcFace(0.5, "flat"),
        64.0,
        "straight",
        set(),
        {"flat"},
        {"radial-gradient", "changes-weight"},
    ),
    Case("WeSpeaker ArcMargin", p.WeSpeakerArc, ArcFace(0.2, "continuous"), 32.0, wrong=NAN),
    Case(
        "WeSpeaker ArcMargin, easy_margin",
        lambda: p.WeSpeakerArc(easy=True),
        ArcFace(0.2, "easy"),
        32.0,
        wrong=NAN,
        doubtful={"jumps"},
    ),
    Case(
        "WeSpeaker SphereProduct",
        p.WeSpeakerSphere,
        SphereFace(4.0, lam=892.86),
        1.0,
        doubtful={"state-lost", "moves-in-eval"},
        notes={"moves-with-steps"},
    ),
    Case(
        "pytorch-adacos SphereFace",
        p.AdaCosSphere,
        SphereFace(1.35, beyond="none"),
        30.0,
        wrong={"turns-back"},
        doubtful={"rewards"},
    ),
    Case("sparse AM-Softmax", lambda: p.sparse_am, CosFace(0.5), 30.0, wrong=NAN | {"lost-to-cancellation"}),
    Case(
        "NeMo angular softmax",
        p.NeMo,
        ArcFace(0.2, "none"),
        30.0,
        wrong={"rows-not-normalised"},
        doubtful=BACK,
        proved=False,
    ),
    Case(
        "ElasticFace-Arc",
        p.ElasticArc,
        ElasticArcFace(0.5, beyond="none", sigma=0.05),
        64.0,
        wrong=NAN,
        notes={"drawn-margin"},
        proved=False,
    ),
    Case("ElasticFace-Cos", p.ElasticCos, ElasticCosFace(0.35, 0.05), 64.0, notes={"drawn-margin"}, proved=False),
    Case(
        "ElasticFace-Arc+",
        lambda: p.ElasticArc(sigma=0.0175, plus="published"),
        ElasticArcFace(0.5, "none", 0.0175, "published"),
        64.0,
        wrong=NAN,
        doubtful={"pairs-at-random"},
        proved=False,
    ),
    Case(
        "ElasticFace-Cos+",
        lambda: p.ElasticCos(sigma=0.02, plus="published"),
        ElasticCosFace(0.35, 0.02, "published"),
        64.0,
        doubtful={"pairs-at-random"},
        proved=False,
    ),
    Case(
        "ElasticFace-Arc+ as printed",
        lambda: p.ElasticArc(sigma=0.0175, plus="paper"),
        ElasticArcFace(0.5, "none", 0.0175, "paper"),
        64.0,
        wrong=NAN,
        notes={"pairs-by-rank"},
        proved=False,
    ),
    Case("ArcFace on every class", lambda: p.arcface_on_all, None, 64.0, wrong={"rivals-margined"}, proved=False),
    Case("CosFace on every class, its loss", lambda: p.cosface_on_all, NoMargin(), 64.0, notes={"no-margin"}),
    Case(
        "CosFace on every class, its logits",
        lambda: p.cosface_on_all_logits,
        NoMargin(),
        64.0,
        wrong={"rivals-margined"},
    ),
    Case(
        "MagFace",
        p.MagFace,
        ArcFace(0.45, "easy"),
        64.0,
        wrong=NAN,
        doubtful={"jumps"},
        notes={"margin-by-length", "own-term"},
        proved=False,
    ),
    Case(
        "AdaFace",
        p.AdaFace,
        Combined(1.0, 0.0253077, 0.374692),
        64.0,
        doubtful={"dead-center", "batch-of-one", "moves-in-eval"},
        notes={"margin-by-length"},
        proved=False,
    ),
    Case(
        "CurricularFace",
        p.Curricular,
        ArcFace(0.5, "linear"),
        64.0,
        wrong=NAN,
        doubtful={"moves-in-eval"},
        notes={"rivals-by-rule"},
    ),
    Case("MV-Softmax", p.MVSoftmax, CosFace(0.35), 32.0, notes={"rivals-by-rule"}),
    Case("Li-ArcFace", lambda: p.airface, LiArcFace(0.45), 64.0, notes={"rivals-linear"}, proved=False),
    Case(
        "AirFace with plain rivals",
        lambda: p.airface_with_plain_rivals,
        LiArcFace(0.45),
        64.0,
        doubtful={"second-margin"},
        proved=False,
    ),
    Case("P2SGrad", p.P2SGrad, None, None, None, notes={"not-softmax"}, proved=False),
    Case("SphereFace2", p.SphereFace2, None, None, None, notes={"not-softmax"}, proved=False),
    Case("cosines clamped at 1 − 1e-3", p.Clamped, ArcFace(0.5, "none"), 64.0, doubtful=BACK | {"dead-center"}),
    Case(
        "every rival with the target's length",
        lambda: p.crossed_norms,
        SphereFace(2.0),
        1.0,
        wrong={"crossed-norms"},
        doubtful={"not-the-same"},
        proved=False,
    ),
    Case(
        "L-Softmax by signs, as in Caffe",
        lambda: p.l_softmax_of_caffe,
        SphereFace(2.0),
        1.0,
        doubtful={"nan-at-zero"},
    ),
    Case("SpeechBrain's form, labels one-hot", p.SpeechBrain, ArcFace(0.2, "linear"), 30.0, wrong=NAN),
    Case("a layer that returns probabilities", p.Probabilities, CosFace(0.35), 30.0, doubtful={"margined-outputs"}),
    Case("loss and logits together", p.BothBack, CosFace(0.35), 30.0, notes={"margined-outputs"}),
    Case(
        "the target under no_grad",
        p.Detached,
        ArcFace(0.5, "none"),
        64.0,
        "none",
        {"no-gradient"},
        BACK,
        proved=False,
    ),
    Case("LDAM", p.ByClass, CosFace(0.2), 30.0, notes={"margin-by-class"}, proved=False),
    Case(
        "AdaCos, dynamic",
        p.EvalMoves,
        None,
        None,
        None,
        doubtful={"state-lost", "moves-in-eval"},
        notes={"not-softmax"},
        proved=False,
    ),
)

CASES = {case.name: case for case in (*ours(), *formulas(), *metric_learning(), *OTHERS, *SLIPS)}


def verdict(name: str) -> Diagnosis:
    """Diagnose one of the cases."""
    torch.manual_seed(0)
    return diagnose(CASES[name].make(), name=name)


def row(found: Diagnosis) -> str:
    """A row of the table."""
    codes = {level: [f.code for f in found.findings if f.level == level] for level in ("wrong", "doubtful")}
    same = "–" if found.proof is None else "the same" if found.proof.holds else "differs"
    kind = found.kind.replace("|", "\\|")
    faults = (", ".join(codes[level]) or "–" for level in ("wrong", "doubtful"))
    return "| " + " | ".join((found.name, kind, same, *faults)) + " |"


def as_markdown() -> str:
    """The whole table, from real runs."""
    head = "| loss | recognised as | beside ours | wrong | doubtful |\n|---|---|---|---|---|"
    return "\n".join((head, *(row(verdict(name)) for name in CASES)))
