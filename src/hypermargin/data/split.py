"""Which samples train, which choose (validation), and which are only looked at in the end (test)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hypermargin import checks
from hypermargin.data.base import TEST, TRAIN, VALIDATION, Data, DataError, Rows

WAYS = ("auto", "given", "identity", "sample", "none")


@dataclass(frozen=True)
class Split:
    """Row numbers of the three parts, and the identities in training: the head's class k is `classes[k]`."""

    train: Rows
    validation: Rows
    test: Rows
    classes: Rows
    open_set: bool  # are the test's identities unseen in training?

    def targets(self, labels: Rows) -> Rows:
        """Return the head's class of each label; −1 where it has none."""
        place = np.full(int(labels.max(initial=0)) + 1, -1, dtype=np.int64)
        known = self.classes[self.classes < len(place)]
        place[known] = np.arange(len(known))
        return place[labels]


def split(
    data: Data, how: str = "auto", *, validation: float = 0.1, test: float | None = None, seed: int = 0
) -> Split:
    """Divide the data, the same way for the same seed.

    - "identity": whole identities, for the open set; `test` of them (default a third) are never trained
    - "sample": samples of each identity, for the closed set; `test` of them (default a fifth)
    - "given": the split the data come with; "none": everything trains
    - "auto": given if there is one, else identity or sample as suits the data

    `validation` is the share of what is left for training that is set aside in the same way. A given split that
    has a validation part keeps it.
    """
    checks.one_of("split", how, WAYS)
    checks.in_range("validation", validation, 0.0, 1.0)
    if how == "auto":
        how = "given" if data.parts is not None else "identity" if data.open_set else "sample"
    rng = np.random.default_rng([seed, 0])
    rows = np.arange(len(data), dtype=np.int64)
    if how == "none":
        parts = np.full(len(data), TRAIN)
        validation, open_set = 0.0, data.open_set
    elif how == "given":
        if data.parts is None:
            raise DataError(f'{data.name} comes without a split of its own. Use split="identity" or "sample".')
        parts, open_set = data.parts.astype(np.int64), data.open_set
        validation = 0.0 if (parts == VALIDATION).any() else validation
    else:
        parts, open_set = np.full(len(data), TRAIN), how == "identity"
        share = (1 / 3 if open_set else 1 / 5) if test is None else test
        checks.in_range("test", share, 0.0, 1.0)
        _set_aside(parts, data.labels, share, TEST, open_set, rng)
    _set_aside(parts, data.labels, validation, VALIDATION, open_set, rng)

    train, chosen, tested = (rows[parts == part] for part in (TRAIN, VALIDATION, TEST))
    classes = np.unique(data.labels[train])
    if len(classes) < 2:
        raise DataError(
            f"{data.name}: {len(classes)} identities are left for training; a margin needs at least 2. "
            "Set aside less, or split by sample."
        )
    if not open_set:
        unseen = np.setdiff1d(data.labels[np.concatenate([chosen, tested])], classes)
        if len(unseen):
            raise DataError(
                f"{data.name}: {len(unseen)} identities (first: {data.classes[unseen[0]]}) are tested but never "
                'trained, and the split is a closed set. Use split="identity".'
            )
    return Split(train, chosen, tested, classes.astype(np.int64), open_set)


def at_most(rows: Rows, labels: Rows, count: int) -> Rows:
    """Keep at most about `count` rows, in whole identities: all pairs of a million samples would take days."""
    if len(rows) <= count:
        return rows
    identities, sizes = np.unique(labels[rows], return_counts=True)
    order = np.random.default_rng(0).permutation(len(identities))
    fit = np.cumsum(sizes[order]) <= count
    fit[:2] = True  # one identity alone could not be compared
    return rows[np.isin(labels[rows], identities[order[fit]])]


def _set_aside(parts: Rows, labels: Rows, share: float, part: int, whole: bool, rng: np.random.Generator) -> None:
    """Move `share` of what trains, of each class or in whole classes, to `part`."""
    rows = np.flatnonzero(parts == TRAIN)
    if share == 0 or not len(rows):
        return
    if whole:
        classes = np.unique(labels[rows])
        chosen = rng.permutation(classes)[: max(2, round(share * len(classes)))]  # one alone could not be compared
        parts[rows[np.isin(labels[rows], chosen)]] = part
        return
    rows = rng.permutation(rows)
    rows = rows[np.argsort(labels[rows], kind="stable")]
    _, first, counts = np.unique(labels[rows], return_index=True, return_counts=True)
    place = np.arange(len(rows)) - np.repeat(first, counts)  # 0, 1, … within the class
    wanted = np.minimum(np.round(share * counts), counts - 1)  # at least one stays in training
    parts[rows[place < np.repeat(wanted, counts)]] = part
