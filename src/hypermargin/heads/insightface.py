"""insightface's files of a head, one per rank: their names, and which classes each of them holds.

softmax_fc_gpu_{rank}.pt        {"weight": (local, dim)}, PartialFC and PartialFC_V2; PartialFCAdamW, which has no
                                state_dict of its own, at sample rate 1 {"weight_activated": …}
checkpoint_gpu_{rank}.pt        {"state_dict_softmax_fc": {"weight": …}, …}, train_v2.py
rank_{rank}_softmax_weight.pt   the tensor alone, until 2022
"""

from __future__ import annotations

import re
from pathlib import Path

SHARDS = tuple(
    re.compile(pattern)
    for pattern in (
        r"softmax_fc_gpu_(\d+)\.pt",
        r"(?:rank[_:])?(\d+)_softmax_weight\.pt",
        r"checkpoint_gpu_(\d+)\.pt",
    )
)
MOST_RANKS = 10**5


def insightface_range(classes: int, rank: int, world: int) -> range:
    """Return the classes in one rank's file: C//world of them, and one more in the files of the first C % world.

    A fact of their files alone: what is cut here is cut by `parallel.shard.class_range`.
    """
    start = classes // world * rank + min(rank, classes % world)
    return range(start, start + classes // world + (rank < classes % world))


def shards_in(folder: Path, kind: re.Pattern[str]) -> list[tuple[Path, int]]:
    """List the files of one kind in a folder, with their ranks, in order."""
    found = [(path, int(match[1])) for path in folder.iterdir() if (match := kind.fullmatch(path.name))]
    return sorted(found, key=lambda pair: pair[1])
