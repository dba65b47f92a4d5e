"""What is shipped: `make dist` tries every extra, and the files about the project agree with pyproject.toml."""

import importlib.util
import re
import tomllib
from pathlib import Path

import hypermargin
from hypermargin.common.needs import MODULES

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
# `make test` and `make site` install these two; the frameworks are tried by `make test-integrations`.
FRAMEWORKS = {"huggingface", "jax", "keras", "lightning", "metric-learning", "speechbrain", "timm"}
TRIED = EXTRAS.keys() - {"dev", "docs"} - FRAMEWORKS


def names(requirements):
    return {re.match(r"[\w-]+", each)[0] for each in requirements}


def test_every_extra_of_ours_is_tried_alone_and_all_together():
    spec = importlib.util.spec_from_file_location("dist", ROOT / "tools" / "dist.py")
    dist = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(dist)
    assert set(dist.SMOKE) == {"", *TRIED, dist.EVERYTHING}
    assert set(dist.EVERYTHING.split(",")) == TRIED


def test_what_a_message_may_ask_for_comes_with_an_extra():
    """Each package that is looked for under another name than its own is one that an extra brings."""
    brought = {name for extra, packages in EXTRAS.items() if extra != "dev" for name in names(packages)}
    assert names(MODULES) <= brought


def test_the_version_is_the_same_everywhere():
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), flags=re.M)
    assert PROJECT["version"] == hypermargin.__version__ == cited[1]


def test_tested_versions_satisfy_the_bounds_that_are_promised():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    tested = dict(line.split("==") for line in lines if "==" in line)
    promised = [*PROJECT["dependencies"], *(each for extra in EXTRAS.values() for each in extra)]
    for each in promised:
        found = re.match(r"([\w-]+)>=([\d.]+)", each)
        if found and found[1] in tested:
            assert version(tested[found[1]]) >= version(found[2]), each


def version(text):
    return tuple(int(part) for part in re.findall(r"\d+", text))


def test_nothing_points_to_a_place_that_is_not_known():
    assert "urls" not in PROJECT, "a URL is known now: README, SECURITY.md and docs/releasing.md say that none is"
