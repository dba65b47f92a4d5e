"""The study of many classes, end to end on a CPU, with drawn characters that are patterns of noise."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks.many import __main__ as many
from benchmarks.many import findings, numbers, plan, prepare, published, tables
from benchmarks.many.data import Data, divide
from benchmarks.many.ladder import NAMES, Rung
from benchmarks.many.picture import draw
from benchmarks.many.plan import Size, Spec
from benchmarks.many.run import StudyRun
from benchmarks.study.runner import read
from hypermargin.data.drawn import Drawn, Kept, join_pixels, pack
from hypermargin.hinge import max_hinge

IDENTITIES, FACES = 60, 12
TINY = Size("lenet++", 2, 8, 16, 1, 0, "float32", (10, 20))
ENVIRONMENT = {"device": "a test", "torch": "0"}


@pytest.fixture(scope="module")
def drawn():
    rng = np.random.default_rng(0)
    patterns = np.kron(rng.integers(0, 4, (IDENTITIES, 4, 4)), np.ones((4, 4))).astype(int)
    kept = [
        Kept(
            np.arange(IDENTITIES),
            join_pixels(np.clip(patterns + rng.integers(-1, 2, patterns.shape), 0, 3).astype(np.uint8)),
        )
        for _ in range(FACES)
    ]
    names = tuple(f"U+{k:04X}" for k in range(IDENTITIES))
    faces = tuple(f"face {k}" for k in range(FACES))
    return Drawn(16, names, faces, np.arange(FACES) < 9, np.ones((FACES, IDENTITIES), bool), pack(kept))


@pytest.fixture(scope="module")
def file(drawn, tmp_path_factory):
    path = tmp_path_factory.mktemp("many") / "many.glyphs"
    drawn.save(path)
    return path


@pytest.fixture(scope="module")
def data(file):
    return Data(file, torch.device("cpu"))


def result(spec, eer=0.05, tar=0.5, **more):
    numbers = {"eer": eer, "rank1": 0.9, "intra": 10.0, "inter": 80.0, **dict.fromkeys(list(numbers_of)[1:5], tar)}
    train = {"own_prototype": 9.0, "rival_prototype": 80.0, "nearest_prototype": 70.0, "left_out_few": 0.5}
    return {
        "spec": asdict(spec), "seconds": 1.0, "steps": 10, "broken": False, "environment": ENVIRONMENT,
        "test": {**numbers, "seen": {"eer": eer / 2}, "intervals": {"eer": [0.9 * eer, 1.1 * eer]}},
        "train": train, "gradient": [1.0, 0.5, 3.0], "clipped": 0.1,
    } | more  # fmt: skip


numbers_of = numbers.METRICS


def test_identities_and_typefaces_are_never_both(drawn, data):
    train, held, test = divide(drawn.there, drawn.seen)
    assert (len(train), len(held), len(test)) == (44, 4, 12)
    assert len({*train, *held, *test}) == IDENTITIES
    few, more = (data.of(plan.search("gain", "arcface", c, TINY)[0]) for c in (10, 20))
    assert (few.train.classes, few.test.classes, len(few.test.labels)) == (10, 4, 4 * 3)
    torch.testing.assert_close(more.train.images[more.train.labels < 10], few.train.images)  # nested
    final = data.of(plan.finals([result(plan.search("gain", "arcface", 10, TINY)[0])])[0])
    assert (final.test.classes, len(final.test.labels), len(final.seen.labels)) == (12, 36, 12 * 9)
    with pytest.raises(ValueError, match="44 identities are there to train on; asked for 45"):
        data.of(Spec("gain", "glyphs", "final", "softmax", identities=45))


def test_every_head_has_as_many_settings_and_all_differ():
    for head in {*plan.HEADS, *plan.LADDER, *plan.IMBALANCE}:
        for classes in (500, 16_000):
            found = plan.settings(head, classes, 256)
            assert len({repr(each) for each in found}) == plan.EACH, head


@pytest.mark.parametrize("question", ["gain", "ladder", "imbalance", "scale"])
def test_every_setting_can_be_trained(data, question):
    for search in plan.searches([question], plan.HEADS, 20, TINY):
        for spec in search[::4]:
            run = StudyRun(spec, data.of(spec))
            run.advance()
            run.advance()
            assert run.losses[:2].isfinite().all(), spec
            assert (run.norms[:2] > 0).all(), spec


def test_short_trainings_get_their_steps(data):
    spec = Spec("gain", "glyphs", "final", "arcface", epochs=2, batch=16, width=2, dim=8, model="lenet++",
                identities=10, least_steps=30)  # fmt: skip
    run = StudyRun(spec, data.of(spec))
    assert run.total == 6 * 5  # 90 images, 5 steps each
    assert run.spec == spec


def test_a_rung_is_its_hinge_times_s():
    torch.manual_seed(0)
    x, y = torch.randn(6, 8), torch.arange(6)
    for name in NAMES:
        head = Rung(name, 8, 6, m=0.2, scale=5.0)
        loss = head(x, y)
        loss.backward()
        assert head.weight.grad.isfinite().all()
        assert head(x).shape == (6, 6)
    cosines = torch.nn.functional.normalize(x) @ torch.nn.functional.normalize(head.weight).T
    head = Rung("max-hinge", 8, 6, m=0.2, scale=5.0)
    head.weight.data = Rung("max-hinge", 8, 6, m=0.2, scale=5.0).weight.data
    cosines = torch.nn.functional.normalize(x) @ torch.nn.functional.normalize(head.weight).T
    torch.testing.assert_close(head(x, y), 5.0 * max_hinge(cosines, y, m=0.2))


def command(*flags):
    return [sys.executable, "-m", *map(str, flags)]


@pytest.mark.slow
def test_end_to_end_and_resumed(file, tmp_path, monkeypatch, capsys):
    out = tmp_path / "many.jsonl"
    flags = (
        "benchmarks.many", "--data", file, "--out", out, "--questions", "gain", "--heads", "normface", "arcface",
        "--counts", 10, "--model", "lenet++", "--width", 2, "--dim", 8, "--batch", 16, "--epochs", 1,
        "--least-steps", 0, "--precision", "float32", "--device", "cpu", "--processes", 1, "--at-once", 2,
        "--seeds", 2,
    )  # fmt: skip
    first = subprocess.run(command(*flags), capture_output=True, text=True, check=False)
    assert first.returncode == 0, first.stderr
    found = read(out)
    assert not any(r["broken"] for r in found)
    assert [len(numbers.of(found, study)) for study in ("gain search", "gain")] == [2 * plan.EACH, 2 * 2]
    final = numbers.of(found, "gain", "arcface")[0]
    assert {"eer", "rank1", "seen", "intervals"} <= set(final["test"])
    assert {"own_prototype", "nearest_prototype", "scale"} <= set(final["train"])
    lines = out.read_text().splitlines()
    out.write_text("\n".join(lines[:-2]) + "\n" + lines[-1][:40])
    monkeypatch.setattr(sys, "argv", command(*flags)[2:])
    many.main()
    assert "\n2 runs" in capsys.readouterr().err
    (tmp_path / "broken.jsonl").write_text("")
    monkeypatch.setattr(sys, "argv", ["tables", str(out), "--published", str(tmp_path / "none.jsonl")])
    tables.main()
    assert "## 10 training identities" in (tmp_path / "many.md").read_text()
    assert (tmp_path / "many-gain.png").stat().st_size > 10_000


@pytest.fixture(scope="module")
def everything():
    """Results of the whole plan by a rule: ArcFace gains with the number of classes."""
    found = []
    agenda = plan.agenda(
        plan.searches(("gain", "ladder", "imbalance", "scale"), plan.HEADS, 20, TINY), plan.SEEDS, []
    )
    while (spec := agenda.next()) is not None:
        margin = 0.001 * spec.identities if spec.head == "arcface" else 0.0
        made = result(spec, eer=0.05 - margin, tar=0.5 + margin + 0.001 * spec.set.get("m", 0) + 1e-4 * spec.seed)
        found.append(json.loads(json.dumps(made)))
        agenda.finished(spec, found[-1])
    return found


def test_gains_are_by_seed_and_up_is_better(everything):
    mean, half = numbers.gain(everything, "arcface", "softmax", 20, "eer")
    assert mean == pytest.approx(2.0)
    assert half == pytest.approx(0.0, abs=1e-9)
    assert numbers.gain(everything, "arcface", "normface", 10, "tar1e-05")[0] == pytest.approx(1.0, abs=0.1)
    assert numbers.gain(everything, "nobody", "softmax", 20, "eer") is None


def test_tables_and_picture(everything):
    text = tables.document(everything)
    for title in (
        "20 training identities",
        "Which s, which m",
        "The ladder, trained",
        "Few samples",
        "The searches",
    ):
        assert f"## {title}" in text
    assert "**+2.00 ± 0.00**" in tables.gain_by_count(everything, "eer")
    best, near = numbers.best_of_map(everything, "arcface", 20, "tar0.0001")
    assert best["spec"]["set"]["m"] == 0.5
    assert near["spec"]["set"]["scale"] in plan.MAP_SCALES
    assert len(draw(everything).axes) == 6


def test_tables_go_between_their_markers(everything):
    found = findings.answers(everything, [])
    begin, end = findings.markers("the ladder")
    page = findings.with_tables(f"a\n{begin}old{end}\nb", found)
    assert "old" not in page
    assert "sum-hinge" in page
    assert page.startswith("a\n")
    assert page.endswith("\nb")
    assert tables.document([]) == "# Thousands of characters as classes\n"


def test_a_drawing_is_made_to_fit(drawn):
    small = prepare.thinned(drawn, 5)
    assert (small.there.sum(0) == 5).all()
    assert (small.there[~small.seen].sum(0) == 2).all()
    assert len(small.images()) == len(small) == 5 * IDENTITIES
    face, label = small.rows()
    all_face, all_label = drawn.rows()
    at = {(f, c): k for k, (f, c) in enumerate(zip(all_face, all_label, strict=True))}
    rows = [at[pair] for pair in zip(face, label, strict=True)]
    np.testing.assert_array_equal(small.images(), drawn.images()[rows])
    assert prepare.fitting(drawn, 1e9) is drawn
    stored = sum(map(len, drawn.packed))
    assert sum(map(len, prepare.fitting(drawn, stored / 2).packed)) < 0.6 * stored


def test_published_networks_train_a_little(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    folder = tmp_path / "cifar10"
    folder.mkdir()
    for name in ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"):
        Image.fromarray(rng.integers(0, 256, (40, 1024, 3), np.uint8)).save(folder / f"{name}.png")
    (folder / "train_lables.json").write_text(json.dumps([k % 10 for k in range(200)]))
    (folder / "test_lables.json").write_text(json.dumps([k % 10 for k in range(40)]))
    prepare.write_cifar(str(folder), tmp_path / "binary")
    assert len(list((tmp_path / "binary").iterdir())) == 6
    data = published.Data(tmp_path, torch.device("cpu"))
    for search in published.searches(["cifar10+"], 4, 400)[:1]:
        for spec in search[:2]:
            run = published.StudyRun(spec, data.of(spec))
            while run.done < run.total:
                run.advance()
            found = run.result()
            assert not found["broken"]
            assert 0 <= found["test"]["accuracy"] <= 1
    rows = [
        {"spec": asdict(s), "broken": False, "steps": 30_000, "test": {"accuracy": 0.9}}
        for search in published.searches(["mnist"], 64, published.STEPS)
        for s in search
    ]
    assert "| mnist | L-Softmax, m = 4 | 0.31 | 10.00 ± 0.00 | 3 |" in tables.published(rows)
    assert sum(p.numel() for p in published.network("mnist", 1).parameters() if not hasattr(p, "materialize")) > 1e6


def test_nothing_is_needed_but_torch_and_numpy():
    """The runner starts where pillow, matplotlib and scikit-learn are not."""
    code = (
        "import sys\n"
        "for name in ('PIL', 'matplotlib', 'sklearn', 'scipy', 'pandas', 'typer', 'safetensors', 'fontTools'):\n"
        "    sys.modules[name] = None\n"
        "import benchmarks.many.__main__, benchmarks.many.run, benchmarks.many.published\n"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stderr
