"""`hypermargin head`, run as a user runs it; the many small cases run in this process to save the start-up."""

import csv
import functools
import math
import shlex

import numpy as np
import pytest
import torch
import typer
from pytorch_metric_learning import losses

from hypermargin import create_head, heads
from hypermargin.data import from_arrays
from hypermargin.training import Config, train

C, D = 9, 4
get_command = functools.cache(typer.main.get_command)


@pytest.fixture(autouse=True)
def _made_once(monkeypatch):
    """The tree of commands, which typer makes anew at every call and most of a call's time goes into."""
    monkeypatch.setattr(typer.main, "get_command", get_command)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """head.safetensors of ours, rows.npy, and shards/ of insightface."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    head = create_head("arcface", D, C)
    head.weight.data[7] = 2 * head.weight.data[2] + 0.01
    heads.write(head, "head.safetensors")
    heads.write(heads.Weights(head.weight.detach()), "rows.npy")
    (tmp_path / "shards").mkdir()
    heads.write(heads.Weights(head.weight.detach()), "shards", format="insightface", shards=4)
    return tmp_path


def weight(path):
    return heads.read(path).weight


def lines(text):
    return [" ".join(line.split()) for line in text.splitlines()]


def snapshot(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_classes_are_removed_and_no_file_is_overwritten(run, place):
    code, out, err = run("head", "resize", place / "rows.npy", "--remove", "2,4-5", "-o", place / "less.npy")
    assert (code, err) == (0, "")
    assert lines(out) == ["classes 9 to 6", f"written {place}/less.npy (npy): weight 6×4 float32"]
    assert np.array_equal(np.load(place / "less.npy"), np.load(place / "rows.npy")[[0, 1, 3, 6, 7, 8]])
    before = snapshot(place)
    code, out, err = run("head", "resize", place / "rows.npy", "--remove", "2,4-5", "-o", place / "less.npy")
    assert (code, out) == (2, "")
    assert f"--out: {place}/less.npy is there already. Choose another name, or --force.\n" in err
    assert err.count("\n") == 1
    assert snapshot(place) == before


def test_info(run, place):
    code, out, err = run("head", "info", "head.safetensors")
    assert (code, err) == (0, "")
    got = lines(out)
    size = (place / "head.safetensors").stat().st_size
    assert f"format hypermargin, {size:,} bytes" in got
    for line in ("classes 9", "dim 4", "dtype float32", "holds weight, scale", "zero rows none", "NaN or inf none"):
        assert line in got
    norms = weight("head.safetensors").double().norm(dim=1)
    least, middle, most = (f"{v:.4g}" for v in (norms.min(), norms.median(), norms.max()))
    assert f"lengths {least} least, {middle} median, {most} largest" in got
    best = heads.nearest_pairs(weight("head.safetensors"), 5)
    assert best[0][:2] == (2, 7)
    table = got[got.index("nearest pairs of classes") + 2 :]
    assert table[:5] == [f"{a} {b} {c:.4f}" for a, b, c in best]
    assert "nearest pairs" not in run("head", "info", "head.safetensors", "--nearest", "0")[1]


def test_info_of_what_is_wrong(run, place):
    W = weight("rows.npy")
    W[1] = 0
    W[3, 2] = math.nan
    np.save("bad.npy", W.numpy())
    code, out, _ = run("head", "info", "bad.npy")
    assert code == 0
    assert "zero rows 1: 1" in lines(out)
    assert "NaN or inf 1: 3" in lines(out)
    assert "nan" not in out
    bias = torch.zeros(C)
    bias[5] = math.inf
    torch.save({"weight": weight("rows.npy"), "bias": bias}, "bias.pt")
    assert "NaN or inf 1: 5" in lines(run("head", "info", "bias.pt")[1])
    _, out, _ = run("head", "info", "shards")
    assert {"shards 4, ranks 0, 1, 2, 3", "missing none up to the last rank given", "classes 9"} <= set(lines(out))
    _, out, _ = run("head", "info", "shards/softmax_fc_gpu_1.pt")
    assert {"shards 1, ranks 1", "missing ranks 0, 2, 3", "classes 2 in these shards"} <= set(lines(out))


def test_import_and_export(run, place):
    code, out, err = run("head", "import", "shards", "--classes", C, "-o", "whole.safetensors")
    assert (code, err) == (0, "")
    assert lines(out) == [
        "read insightface, 9 classes of 4 dimensions",
        "written whole.safetensors (safetensors): weight 9×4 float32",
    ]
    assert torch.equal(weight("whole.safetensors"), weight("rows.npy"))
    (place / "three").mkdir()
    before = snapshot(place)
    arguments = ("head", "export", "head.safetensors", "--to", "insightface", "--shards", "2", "-o", "three")
    code, dry, _ = run(*arguments, "--dry-run")
    assert code == 0
    assert lines(dry) == [
        "left out scale: insightface keeps none of these in its files",
        "would write three/softmax_fc_gpu_0.pt (insightface): weight 5×4 float32",
        "would write three/softmax_fc_gpu_1.pt (insightface): weight 4×4 float32",
    ]
    assert snapshot(place) == before
    code, out, _ = run(*arguments)
    assert out == dry.replace("would write ", "written     ")
    assert torch.equal(weight("three"), weight("rows.npy"))

    theirs = losses.CosFaceLoss(C, D)
    torch.save(theirs.state_dict(), "loss.pt")
    assert run("head", "import", "loss.pt", "-o", "loss.safetensors")[0] == 0
    assert torch.equal(weight("loss.safetensors"), theirs.W.T)
    assert run("head", "export", "loss.safetensors", "--to", "metric-learning", "-o", "again.pt")[0] == 0
    assert torch.equal(torch.load("again.pt", weights_only=True)["W"], theirs.W)
    assert run("head", "resize", "again.pt", "--add", "1", "-o", "more.pt")[0] == 0
    assert torch.load("more.pt", weights_only=True)["W"].shape == (D, C + 1)  # as its source was

    model = torch.nn.Sequential(torch.nn.Linear(3, D), torch.nn.Linear(D, C))
    torch.save(model.state_dict(), "model.pt")
    assert run("head", "import", "model.pt", "--prefix", "1.", "-o", "fc.safetensors")[0] == 0
    assert run("head", "export", "fc.safetensors", "--to", "linear", "-o", "fc.pt")[0] == 0
    model[1].load_state_dict(torch.load("fc.pt", weights_only=True))
    code, _, err = run("head", "export", "fc.safetensors", "--to", "npy", "-o", "fc.npy")
    assert code == 2
    assert "cannot hold bias" in err
    code, out, _ = run("head", "export", "fc.safetensors", "--to", "npy", "-o", "fc.npy", "--rows-only")
    assert code == 0
    assert "left out bias: npy keeps none of these in its files" in lines(out)


def test_resize(run, place):
    x = np.random.default_rng(0).normal(size=(20, D)).astype(np.float32)
    y = np.repeat([3, 8], 10)
    np.save("x.npy", x)
    np.save("y.npy", y)
    W = weight("rows.npy")
    assert run("head", "resize", "head.safetensors", "--add", "3", "--seed", "5", "-o", "a.safetensors")[0] == 0
    assert run("head", "resize", "head.safetensors", "--add", "3", "--seed", "5", "-o", "b.safetensors")[0] == 0
    assert (place / "a.safetensors").read_bytes() == (place / "b.safetensors").read_bytes()
    assert heads.read("a.safetensors").rest["scale"] == 64
    assert torch.equal(weight("a.safetensors")[:C], W)
    code, out, _ = run("head", "resize", "rows.npy", "--from-embeddings", "x.npy", "y.npy", "-o", "c.npy")
    assert code == 0
    assert "classes 9 to 11" in lines(out)
    head = heads.Weights(W.clone())
    heads.add_classes(head, embeddings=torch.from_numpy(x), labels=torch.from_numpy(y))
    assert torch.equal(weight("c.npy"), head.weight)

    (place / "map.csv").write_text("old,new\n0,8\n8,0\n")
    (place / "ids.txt").write_text("1\n3, 4-5\n\n")
    assert run("head", "resize", "rows.npy", "--reorder", "map.csv", "-o", "d.npy", "--ids-out", "ids.csv")[0] == 0
    assert torch.equal(weight("d.npy"), W[[8, 1, 2, 3, 4, 5, 6, 7, 0]])
    with open("ids.csv") as file:
        ids = [(int(r["old"]), int(r["new"])) for r in csv.DictReader(file)]
    assert ids == [(0, 8), *((k, k) for k in range(1, 8)), (8, 0)]
    # The ids that were written lead back.
    back = {new: old for old, new in ids}
    (place / "back.csv").write_text("\n".join(f"{a},{b}" for a, b in back.items()))
    assert run("head", "resize", "d.npy", "--reorder", "back.csv", "-o", "d.npy", "--force")[0] == 0
    assert torch.equal(weight("d.npy"), W)
    assert run("head", "resize", "rows.npy", "--remove", "ids.txt", "-o", "e.npy", "--ids-out", "f.csv")[0] == 0
    assert torch.equal(weight("e.npy"), W[[0, 2, 6, 7, 8]])
    assert (place / "f.csv").read_text().splitlines()[:4] == ["old,new", "0,0", "1,-1", "2,1"]
    # NaN rows can be removed, and then written.
    W[3] = math.nan
    np.save("bad.npy", W.numpy())
    assert run("head", "resize", "bad.npy", "--remove", "3", "-o", "good.npy")[0] == 0


@pytest.mark.parametrize("arguments", [
    "resize rows.npy --remove 1 -o x.npy --ids-out x.csv", "resize rows.npy --add 2 -o x.npy",
    "resize rows.npy --reorder map.csv -o x.npy", "merge rows.npy --above 0.9 -o x.npy --ids-out x.csv",
    "import shards -o x.pt", "export rows.npy --to linear -o x.pt", "import rows.npy -o head.safetensors --force",
])  # fmt: skip
def test_a_dry_run_says_what_the_run_does(run, place, arguments):
    (place / "map.csv").write_text("0,1\n1,0\n")
    before = snapshot(place)
    code, dry, err = run("head", *shlex.split(arguments), "--dry-run")
    assert (code, err) == (0, "")
    assert snapshot(place) == before
    code, out, _ = run("head", *shlex.split(arguments))
    assert code == 0
    said = [line for line in lines(dry) if line.startswith("would write")]
    assert [line for line in lines(out) if line.startswith("written")] == [
        line.replace("would write", "written") for line in said
    ]
    assert len(said) == len(before.keys() ^ snapshot(place).keys()) + ("--force" in arguments)


def test_merge(run, place):
    before = snapshot(place)
    code, out, err = run("head", "merge", "head.safetensors", "--above", "0.99", "--dry-run")
    assert (code, err) == (0, "")
    cosine = heads.nearest_pairs(weight("rows.npy"), 1)[0].cosine
    assert lines(out) == [
        "1 pairs with a cosine of 0.99 or more", "class class cosine", f"2 7 {cosine:.4f}", "",
        "would merge 2, 7 into 2", "classes 9 to 8",
    ]  # fmt: skip
    assert snapshot(place) == before
    code, out, _ = run("head", "merge", "head.safetensors", "--above", "0.99", "-o", "m.safetensors", "--dry-run")
    assert "would write m.safetensors (safetensors): weight 8×4 float32, scale number float32" in lines(out)
    assert snapshot(place) == before
    assert run("head", "merge", "head.safetensors", "--above", "0.99", "-o", "m.safetensors")[0] == 0
    assert heads.read("m.safetensors").classes == 8
    (place / "groups.csv").write_text("0,5,6\n1,3\n")
    np.save("counts.npy", np.arange(1, C + 1))
    assert (
        run("head", "merge", "rows.npy", "--groups", "groups.csv", "--counts", "counts.npy", "-o", "g.npy")[0] == 0
    )
    expected = heads.Weights(weight("rows.npy"))
    heads.merge_classes(expected, [[0, 5, 6], [1, 3]], counts=range(1, C + 1))
    assert torch.equal(weight("g.npy"), expected.weight)


def test_a_run(run, place):
    rng = np.random.default_rng(0)
    data = from_arrays(rng.normal(size=(60, 6)).astype(np.float32), np.repeat(np.arange(5), 12))
    config = Config(
        data="given", split="sample", epochs=1, dim=4, model="mlp", threads=1, workers=0, tensorboard=False
    )
    train(config, place / "run", data=data, quiet=True)
    code, out, err = run("head", "info", "run")
    assert (code, err) == (0, "")
    assert {"format hypermargin", "classes 5", "dim 4"} <= set(lines(out))
    assert run("head", "import", "run", "-o", "run.npy")[0] == 0


def test_slices_of_ranks(run, place):
    """Files of a sharded head's ranks, with momentum: looked at, joined, changed."""
    head = create_head("arcface", D, C)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)
    head(torch.randn(20, D), torch.arange(20) % C).backward()
    optimizer.step()
    head.weight.data[7] = 0
    found = heads.weights_of(head, optimizer)
    for rank, name in enumerate("bca"):
        cut = slice(3 * rank, 3 * rank + 3)
        state = {k: t[cut] if t.dim() else t for k, t in found.entries().items()}
        held = torch.tensor([cut.start, cut.stop, C, rank, 3])
        torch.save(state | {"classes_held": held}, f"{name}.pt")
    code, out, _ = run("head", "info", "a.pt", "b.pt", "--nearest", "1")
    assert code == 0
    assert {"slice classes 0:3 of 9, rank 0 of 3", "slice classes 6:9 of 9, rank 2 of 3", "zero rows 1: 7"} <= set(
        lines(out)
    )
    pairs = [p for p in heads.nearest_pairs(found.weight, 99) if not {p.first, p.second} & {3, 4, 5}]
    assert lines(out)[-2] == "{} {} {:.4f}".format(*pairs[0])
    assert run("head", "info", "a.pt", "--nearest", "0")[0] == 0
    torch.save({"weight": torch.zeros(2, D), "scale": torch.tensor(64.0)}, "other.pt")
    code, _, err = run("head", "info", "a.pt", "other.pt")  # of another kind
    assert code == 2, err
    assert run("head", "import", "a.pt", "b.pt", "c.pt", "-o", "one.pt")[0] == 0
    back = heads.read("one.pt")
    assert {k: t.tolist() for k, t in back.entries().items()} == {k: t.tolist() for k, t in found.entries().items()}
    assert run("head", "resize", "one.pt", "--remove", "7", "-o", "less.pt")[0] == 0
    key = "optimizer.weight.momentum_buffer"
    assert torch.equal(heads.read("less.pt").state[key], found.state[key][[0, 1, 2, 3, 4, 5, 6, 8]])
    _, out, _ = run("head", "export", "one.pt", "--to", "linear", "-o", "fc.pt")
    assert f"left out {key}, scale: linear keeps none of these in its files" in lines(out)


def test_ids_on_the_line_and_in_files(run, place):
    np.save("many.npy", np.ones((500, 2), np.float32))
    long = ",".join(map(str, range(300)))  # longer than a file's name can be
    assert run("head", "resize", "many.npy", "--remove", long, "-o", "few.npy")[0] == 0
    assert len(np.load("few.npy")) == 200
    (place / "5").write_text("7\n")  # a number is an id, even where a file is called so
    assert run("head", "resize", "rows.npy", "--remove", "5", "-o", "a.npy")[0] == 0
    assert torch.equal(weight("a.npy"), weight("rows.npy")[[0, 1, 2, 3, 4, 6, 7, 8]])
    margins = torch.tensor([[1.0, 0.3, 0.2]] * C)
    heads.write(create_head("combined", D, C, class_margins=margins), "combined.pt")
    assert run("head", "resize", "combined.pt", "--add", "2", "--m", "1,0.1,0", "-o", "more.pt")[0] == 0
    assert heads.read("more.pt").m[-1].tolist() == pytest.approx([1, 0.1, 0])


def test_a_full_disk_leaves_nothing(run, place):
    """Neither the head nor the ids, which would be of no use alone."""
    resource = pytest.importorskip("resource")
    np.save("large.npy", np.ones((20_000, 8), np.float32))
    before, limit = snapshot(place), resource.getrlimit(resource.RLIMIT_FSIZE)
    for most in (400_000, 1000):  # enough for the ids, or not
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, limit[1]))
        try:
            code, out, err = run("head", "resize", "large.npy", "--remove", "0", "-o", "l.pt", "--ids-out", "i.csv")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        assert (code, out) == (2, "")
        assert err.startswith("hypermargin: error: ")
        assert "large" in err  # [Errno 27] File too large
        assert snapshot(place) == before


ERRORS = [
    ("info none.pt", "none.pt: there is no such file"),
    ("info .", "is a folder without softmax_fc_gpu"),
    ("info cut.pt", "cut.pt: not a readable .pt file"),
    ("info rows.npy --nearest -1", "top must be at least 0"),
    ("resize rows.npy -o x.npy", "give one of --add, --remove, --reorder; got none."),
    ("resize rows.npy --add 1 --remove 2 -o x.npy", "got --add and --remove."),
    ("resize rows.npy --add 0 -o x.npy", "count must be at least 1; got 0"),
    ("resize rows.npy --remove 9 -o x.npy", "ids must lie in [0, 9); got 9. Classes start at 0."),
    ("resize rows.npy --remove 1,1 -o x.npy", "ids must name a class once; got 1 twice or more."),
    ("resize rows.npy --remove none.txt -o x.npy", "3,5,8-12, or a file of them; got 'none.txt'"),
    ("resize rows.npy --remove empty.txt -o x.npy", "empty.txt: it holds no ids"),
    ("resize rows.npy --remove 3;5 -o x.npy", "--remove: expected ids such as 3,5,8-12, or a file"),
    ("resize rows.npy --remove 1 --m 0.3 -o x.npy", "--m is the margin of added classes"),
    ("resize rows.npy --add 1 --m a,b -o x.npy", "--m must be a number, or several such as 1,0.3,0.2; got 'a,b'"),
    ("resize rows.npy --remove '' -o x.npy", "expected ids such as"),
    ("resize rows.npy --remove 1 -o /proc/x.npy", "/proc/x.npy cannot be written"),
    ("resize rows.npy --remove 1 -o x.npy --ids-out /proc/x.csv", "--ids-out: /proc/x.csv cannot be written (No"),
    ("info sparse.pt", "sparse.pt: weight must be a plain tensor with values"),
    ("resize rows.npy --remove 5-3 -o x.npy", "5-3 is no range of ids"),
    ("resize rows.npy --remove 0-99999999999 -o x.npy", "is too long a range of ids"),
    ("resize rows.npy --remove 0-8 -o x.npy", "ids name all 9 classes"),
    ("resize rows.npy --remove 1 -o x.txt", "--out must end in .pt"),
    ("resize rows.npy --remove 1 -o no/x.npy", "there is no folder no"),
    ("resize rows.npy --remove 1 -o x.npy --ids-out ids.txt", "--ids-out must end in .csv"),
    ("resize nan.npy --remove 1 -o x.npy", "weight would be NaN or inf for 1 classes (1, as they would"),
    ("resize rows.npy --reorder none.csv -o x.npy", "none.csv: there is no such file"),
    ("resize rows.npy --reorder bad.csv -o x.npy", "bad.csv, line 2: expected old,new; got '3'"),
    ("resize rows.npy --reorder twice.csv -o x.npy", "twice.csv, line 2: class 0 is there already"),
    ("resize rows.npy --from-embeddings wide.npy one.npy -o x.npy", "embeddings must have shape (N, 4)"),
    ("resize rows.npy --from-embeddings wide.npy names.npy -o x.npy", "labels must be whole numbers"),
    ("resize rows.npy --from-embeddings rows.npy one.npy -o x.npy", "labels must have shape (9,)"),
    ("resize rows.npy --add 1 --m 0.3 -o x.npy", "m is for heads with a margin by class"),
    ("resize shards/softmax_fc_gpu_0.pt --add 1 -o x.npy", "the shards of the ranks 1, 2, 3 are missing"),
    ("resize rows.npy --add 1 --classes 10 -o x.npy", "holds 9 classes, not 10"),
    ("merge rows.npy -o x.npy", "give one of --groups and --above."),
    ("merge rows.npy --above 0.9", "--out is missing"),
    ("merge rows.npy --above 1 -o x.npy", "no two classes have a cosine of 1 or more; nothing to merge."),
    ("merge rows.npy --above 2 -o x.npy", "above must be a cosine in"),
    ("merge rows.npy --groups twice.csv -o x.npy", "groups must name a class once; got 0"),
    ("merge rows.npy --groups map.csv --counts one.npy -o x.npy", "counts must be 9 numbers"),
    ("merge rows.npy --groups map.csv --counts wide.npy -o x.npy", "a .npy file with one number per class"),
    ("export rows.npy --to onnx -o x.onnx", "--to must be one of"),
    ("export rows.npy --to insightface -o none", "insightface's files need a folder"),
    ("export rows.npy --to linear --shards 2 -o x.pt", "shards is for the format insightface"),
    ("export rows.npy --to insightface --shards 2 -o shards", "softmax_fc_gpu_0.pt is there already"),
    ("export rows.npy --to insightface --shards 2 -o shards --force", "softmax_fc_gpu_2.pt is there, of more"),
    ("import rows.npy -o .", "--out: . is a folder. Name a file"),
    ("resize shards --remove 1 -o shards --force", "--out: shards is a folder. Name a file"),
    ("import bad.pt -o x.npy", "bad.pt: it is damaged, or holds Python objects"),
    ("import shards/softmax_fc_gpu_0.pt shards/softmax_fc_gpu_2.pt -o x.npy", "ranks 1, 3 are missing"),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Sparse invariant")
@pytest.mark.parametrize(("arguments", "words"), ERRORS, ids=[a for a, _ in ERRORS])
def test_errors_write_nothing(run, place, arguments, words):
    W = weight("rows.npy").numpy()
    W[2, 2] = math.nan
    np.save("nan.npy", W)
    np.save("wide.npy", np.ones((3, 5), np.float32))
    np.save("one.npy", np.ones(3, np.int64))
    np.save("names.npy", np.array(["a", "b", "c"]))
    (place / "cut.pt").write_bytes((place / "shards/softmax_fc_gpu_0.pt").read_bytes()[:-99])
    torch.save(torch.nn.Linear(2, 2), "bad.pt")
    (place / "bad.csv").write_text("0,1\n3\n")
    (place / "twice.csv").write_text("0,1\n0,2\n")
    (place / "map.csv").write_text("0,1\n")
    (place / "empty.txt").touch()
    torch.save({"weight": torch.eye(3).to_sparse()}, "sparse.pt")
    before = snapshot(place)
    code, out, err = run("head", *shlex.split(arguments))
    assert code == 2
    assert words in err
    assert err.startswith("hypermargin: error: ")
    assert err.count("\n") == 1
    assert "written" not in out
    assert snapshot(place) == before


@pytest.mark.parametrize("command", ["info", "resize", "merge", "import", "export"])
def test_help_has_examples_that_parse(run, place, command):
    code, out, _ = run("head", command, "--help")
    assert code == 0
    whole = out.replace(" \\\n", " ")  # a long line goes on below
    examples = [line.strip() for line in whole.splitlines() if line.strip().startswith("hypermargin head")]
    assert len(examples) >= 3
    for example in examples:  # the files are not there, which is all that is wrong with them
        code, _, err = run(*shlex.split(example)[1:])
        assert (code, "No such option" in err) in ((0, False), (2, False))
        assert code == 0 or "there is no" in err or "missing" in err or "needs" in err, (example, err)


def test_help_of_the_group(run):
    code, out, _ = run("head", "--help")
    assert code == 0
    for command in ("info", "resize", "merge", "import", "export"):
        assert f"  {command} " in out
