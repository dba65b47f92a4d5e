"""How well embeddings tell identities apart, for anybody's embeddings: numpy arrays or tensors, on any device.

verification    are two samples of one identity? EER, AUC, minDCF, TAR at FAR, with intervals over identities
identification  who is it? rank-k, mAP; and in an open set, where some are nobody we know
geometry        angles within and between classes, to the prototypes, and what the lengths of features say
evaluate        all of these at once
look_first      what deserves a look: identities that may be one, samples that may be another's, split classes
worst_pairs     the highest impostors and the lowest genuine pairs
score_named     pairs that a file lists, of embeddings by name: LFW's protocol; read_scores: scores from text files
"""

from hypermargin.evaluate.curve import Curve
from hypermargin.evaluate.files import Scored
from hypermargin.evaluate.folds import Folds, kfold
from hypermargin.evaluate.geometry import Geometry, Norms, geometry
from hypermargin.evaluate.identification import Identification, identification
from hypermargin.evaluate.look_first import LookFirst, look_first
from hypermargin.evaluate.named import score_named
from hypermargin.evaluate.openset import OpenSet, half_enrolled, open_set
from hypermargin.evaluate.prototypes import Prototypes, Spread
from hypermargin.evaluate.report import Evaluation, Operating, evaluate, operating
from hypermargin.evaluate.scorelists import read_scores
from hypermargin.evaluate.thin import thin
from hypermargin.evaluate.thresholds import Thresholds
from hypermargin.evaluate.units import (
    angle_to_cosine,
    cosine_to_angle,
    cosine_to_distance,
    cosine_to_squared_distance,
    distance_to_cosine,
    squared_distance_to_cosine,
)
from hypermargin.evaluate.verification import FAR, Verification, from_scores, verification
from hypermargin.evaluate.worst import WorstPairs, worst_pairs

__all__ = [
    "FAR",
    "Curve",
    "Evaluation",
    "Folds",
    "Geometry",
    "Identification",
    "LookFirst",
    "Norms",
    "OpenSet",
    "Operating",
    "Prototypes",
    "Scored",
    "Spread",
    "Thresholds",
    "Verification",
    "WorstPairs",
    "angle_to_cosine",
    "cosine_to_angle",
    "cosine_to_distance",
    "cosine_to_squared_distance",
    "distance_to_cosine",
    "evaluate",
    "from_scores",
    "geometry",
    "half_enrolled",
    "identification",
    "kfold",
    "look_first",
    "open_set",
    "operating",
    "read_scores",
    "score_named",
    "squared_distance_to_cosine",
    "thin",
    "verification",
    "worst_pairs",
]
