"""How well embeddings tell identities apart: verification (same or not?) and identification (who?)."""

from hypermargin.evaluate.identification import rank_k
from hypermargin.evaluate.verification import Verification, from_scores, verification

__all__ = ["Verification", "from_scores", "rank_k", "verification"]
