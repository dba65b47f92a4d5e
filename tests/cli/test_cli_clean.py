"""`hypermargin head clean`, and training without what it lists, as a user runs them."""

import csv

import numpy as np
import pytest
import torch
from command import here, shell
from safetensors.torch import load_file

CLASSES, EACH, DIM = 12, 40, 16


@pytest.fixture(scope="module")
def noisy(tmp_path_factory):
    """A run with three centers per class on data with planted wrong labels: folder, data, which."""
    folder = tmp_path_factory.mktemp("noisy")
    rng = np.random.default_rng(0)
    true = np.repeat(np.arange(CLASSES), EACH)
    x = rng.normal(size=(CLASSES, DIM))[true] + 0.35 * rng.normal(size=(len(true), DIM))
    wrong = rng.random(len(true)) < 0.1
    labels = np.where(wrong, (true + rng.integers(1, CLASSES, len(true))) % CLASSES, true)
    np.savez(folder / "data.npz", x=x.astype(np.float32), y=labels)
    code, _, error = here(
        "train", "--data", folder / "data.npz", "--model", "mlp", "--dim", DIM, "--head", "subcenter-arcface",
        "--split", "sample", "--epochs", 15, "--no-tensorboard", "--quiet", "--out", folder / "run",
    )  # fmt: skip
    assert code == 0, error
    return folder / "run", folder / "data.npz", wrong


def test_samples_far_from_the_dominant_center_are_listed_and_left_out(noisy, tmp_path):
    run, data, wrong = noisy
    head, drop = tmp_path / "clean.safetensors", tmp_path / "drop.csv"
    code, said, error = shell("head", "clean", run, "-o", head, "--drop", drop)
    assert code == 0, error
    train = np.load(run / "split.npz")["train"]
    with drop.open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["file", "label", "center", "angle"]
    listed = [int(row["file"].removeprefix(f"{data}, sample ")) for row in rows]
    assert set(listed) <= set(train.tolist())
    planted = set(train[wrong[train]].tolist())
    assert len(planted & set(listed)) >= 0.5 * len(planted)
    assert len(set(listed) - planted) <= 0.02 * len(train)
    labels = np.load(data)["y"]
    assert all(row["label"] == str(labels[at]) for row, at in zip(rows, listed, strict=True))
    angles = [float(row["angle"]) for row in rows]
    assert angles == sorted(angles, reverse=True)
    assert angles[-1] > 75
    assert {row["center"] for row in rows} <= {"0", "1", "2"}
    assert f"{len(train):,} of {CLASSES} classes" in said
    assert f"{len(rows)} (" in said
    assert f"embedded 256 of {len(train)}" in error
    weights = load_file(head)
    assert weights["weight"].shape == (CLASSES, DIM)
    assert "centers" not in weights

    out = tmp_path / "again"
    code, _, error = here(
        "train", "--data", data, "--model", "mlp", "--dim", DIM, "--head", "arcface", "--split", "sample",
        "--exclude", drop, "--epochs", 1, "--no-tensorboard", "--out", out,
    )  # fmt: skip
    assert code == 0, error
    assert f"left out of training: {len(rows)} of {len(train)} samples" in error
    left = np.load(out / "split.npz")
    assert set(left["train"].tolist()) == set(train.tolist()) - set(listed)
    for part in ("validation", "test"):
        assert np.array_equal(left[part], np.load(run / "split.npz")[part])
    drop.unlink()
    code, _, error = here("train", "--data", data, "--out", out, "--resume")  # it has what the list said
    assert code == 0, error


def test_a_dry_run_writes_nothing(noisy, tmp_path):
    code, said, error = here(
        "head", "clean", noisy[0], "-o", tmp_path / "clean.pt", "--drop", tmp_path / "drop.csv", "--dry-run",
        "--angle", 30,
    )  # fmt: skip
    assert code == 0, error
    assert "would write" in said
    assert "farther than 30° from it" in said
    assert not list(tmp_path.iterdir())


def test_what_is_wrong_is_said_in_a_line(noisy, tmp_path):
    run, head, drop = noisy[0], tmp_path / "clean.pt", tmp_path / "drop.csv"
    taken = tmp_path / "taken.csv"
    taken.touch()
    for arguments, words in (
        ((run, "-o", head, "--drop", drop, "--angle", 200), "--angle must lie in [0, 180] degrees; got 200"),
        ((run, "-o", head, "--drop", tmp_path / "drop.txt"), "--drop must end in .csv"),
        ((run, "-o", head, "--drop", taken), "is there already. Choose another name, or --force"),
        ((run, "-o", tmp_path / "head.txt", "--drop", drop), "--out must end in"),
        ((tmp_path, "-o", head, "--drop", drop), "is not a run: run.json is missing"),
        ((taken, "-o", head, "--drop", drop), "is not the folder of a run"),
    ):
        code, _, error = here("head", "clean", *arguments)
        assert code == 2, arguments
        assert error.count("\n") == 1, error
        assert words in error
    code, _, error = here("train", "--data", noisy[1], "--exclude", tmp_path / "no.csv", "--out", tmp_path / "new")
    assert code == 2
    assert "exclude: there is no file" in error


def test_help_has_examples():
    code, said, _ = here("head", "clean", "--help")
    assert code == 0
    assert "hypermargin head clean runs/noisy -o clean.safetensors --drop drop.csv" in said
    assert "--exclude drop.csv" in said


def test_files_with_several_centers(tmp_path):
    """What a file does not say the user says."""
    rows = torch.nn.functional.normalize(torch.randn(15, 4, generator=torch.Generator().manual_seed(0)))
    np.save(tmp_path / "rows.npy", rows.numpy())
    code, said, error = here("head", "info", tmp_path / "rows.npy", "--centers", 3)
    assert code == 0, error
    assert "classes      5\n" in said
    assert "centers      3 per class" in said
    out = tmp_path / "smaller.safetensors"
    code, _, error = here("head", "resize", tmp_path / "rows.npy", "--centers", 3, "--remove", "1,4", "-o", out)
    assert code == 0, error
    assert torch.equal(load_file(out)["weight"], rows.unflatten(0, (5, 3))[[0, 2, 3]].flatten(0, 1))
    code, said, error = here("head", "info", out)
    assert (code, "centers      3 per class" in said) == (0, True), error
    code, _, error = here("head", "merge", out, "--groups", tmp_path / "none.csv", "-o", tmp_path / "merged.pt")
    assert code == 2
    code, _, error = here("head", "info", tmp_path / "rows.npy", "--centers", 4)
    assert code == 2
    assert "weight must have 4 rows per class" in error
