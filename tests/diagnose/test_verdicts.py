"""Published losses, written out: each recognised for what it is, with its faults and no others."""

import dataclasses
import functools
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import hypermargin
from hypermargin.diagnose.criterion import row_loss
from hypermargin.diagnose.forms import find_criterion
from hypermargin.margins import ArcFace
from tests.diagnose.published import CLASSES, DIM
from tests.diagnose.verdicts import CASES, row, verdict

verdict = functools.cache(verdict)
DOCUMENT = (Path(__file__).parents[2] / "docs" / "diagnose.md").read_text(encoding="utf-8")
# Of 400 draws a deviation is off by a thirtieth of itself; twice that and a half.
DRAWN = 0.1


def about(margin):
    """A margin's numbers for pytest.approx, apart from its words."""
    values = {} if margin is None else dataclasses.asdict(margin)
    words = {name: value for name, value in values.items() if isinstance(value, str)}
    numbers = {name: value for name, value in values.items() if name not in words}
    return type(margin), words, numbers


@pytest.mark.parametrize("name", CASES)
def test_a_published_loss_is_recognised_and_not_accused_of_more(name):
    case, found = CASES[name], verdict(name)

    def codes(level):
        return {each.code for each in found.findings if each.level == level}

    assert codes("wrong") == set(case.wrong)
    assert codes("doubtful") == set(case.doubtful)
    assert codes("note") >= set(case.notes)

    kind, words, numbers = about(found.margin)
    expected, expected_words, expected_numbers = about(case.margin)
    drawn = {k: v for k, v in expected_numbers.items() if k == "sigma"}
    assert (kind, words) == (expected, expected_words)
    assert numbers == pytest.approx(expected_numbers, rel=DRAWN if drawn else 1e-4, abs=1e-6)
    if case.scale is not None:
        assert found.scale == pytest.approx(case.scale, rel=1e-5)
    assert found.gradient == case.gradient

    assert bool(found.same) == case.proved
    if case.proved:
        assert found.proof.loss < 1e-4
        assert found.proof.gradient < 1e-3


def test_the_table_of_the_document_has_every_case_and_what_was_found():
    written = {line.split("|")[1].strip(): line for line in DOCUMENT.splitlines() if line.startswith("| ")}
    missing = CASES.keys() - written.keys()
    assert not missing, missing
    for name in (
        "WeSpeaker ArcMargin",
        "sparse AM-Softmax",
        "NeMo angular softmax",
        "hypermargin arcface, smooth, exact",
    ):
        assert row(verdict(name)) == written[name]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.proved])
def test_the_replacing_line_is_code_of_the_same_loss(name):
    """What is printed, run beside the criterion."""
    found = verdict(name)
    generator = torch.Generator().manual_seed(0)
    x, W = (torch.randn(size, DIM, generator=generator, dtype=torch.float64) for size in (9, CLASSES))
    y = torch.arange(9) % CLASSES
    cosines = F.normalize(x) @ F.normalize(W).T
    names = {"hypermargin": hypermargin, "dim": DIM, "classes": CLASSES, "features": x, "weight": W, "labels": y}
    made = eval(found.same, names | {"cosines": cosines})
    if isinstance(made, hypermargin.MarginHead):
        made = made.double()
        rows = W if made.settings.centers.count == 1 else W.repeat_interleave(made.settings.centers.count, 0)
        made.weight.data.copy_(rows)
        made = made(x, y)
    of = find_criterion(CASES[name].make())  # the criterion itself, on a batch the doctor has not seen
    theirs = row_loss(of(x.to(of.dtype), W.to(of.dtype), y), y)
    torch.testing.assert_close(made.detach().double(), theirs.detach().double(), rtol=1e-4, atol=1e-6)


def test_what_we_would_take_instead_continues_smoothly():
    found = verdict("OpenSphere ArcFace")
    assert 'gradient="straight"' in found.same
    assert 'beyond="flat"' in found.same
    ours = eval(found.better, {"hypermargin": hypermargin, "dim": DIM, "classes": CLASSES})
    assert ours.margin == ArcFace(0.5)
    assert ours.settings.gradient == "exact"


def test_every_entry_of_the_errata_that_is_named_is_there():
    """In the source, as not every finding comes up in the cases."""
    source = "".join(
        path.read_text(encoding="utf-8") for path in Path(hypermargin.diagnose.__path__[0]).glob("*.py")
    )
    errata = (Path(__file__).parents[2] / "docs" / "errata.md").read_text(encoding="utf-8")
    titles = {line[3:] for line in errata.splitlines() if line.startswith("## ")}
    named = {each.errata for name in CASES for each in verdict(name).findings if each.errata}
    assert named <= titles
    assert len(named) >= 10
    assert {title for title in titles if f'"{title}"' in source} >= named
