"""The helpers that packages of the application share."""

import os
import random
import stat

import numpy as np
import pytest
import torch

from hypermargin.common import environment, tensor_files
from hypermargin.common.environment import cores, find_device, now, versions
from hypermargin.common.optimizer_state import PER_ELEMENT
from hypermargin.common.text import first_line, parse_assignment, parse_call
from hypermargin.common.union_find import UnionFind
from hypermargin.files import free_path


def test_union_find_is_the_transitive_closure():
    rng = random.Random(0)
    for _ in range(20):
        pairs = [(rng.randrange(30), rng.randrange(30)) for _ in range(15)]
        found = UnionFind()
        for a, b in pairs:
            found.union(a, b)
        reach = {k: {k} for pair in pairs for k in pair}
        for _ in range(30):
            for a, b in pairs:
                reach[a] = reach[b] = reach[a] | reach[b]
        groups = {tuple(sorted(group)) for group in reach.values()}
        assert found.groups() == [list(group) for group in sorted(groups)]
        assert all(found.find(k) == min(group) for k, group in reach.items())
    assert UnionFind().find(7) == 7


def test_devices(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert find_device("auto") == find_device("cpu") == torch.device("cpu")
    with pytest.raises(ValueError, match=r"device must be one of 'auto', 'cpu', 'cuda', 'mps'; got 'gpu'"):
        find_device("gpu")
    with pytest.raises(
        ValueError, match=r"device 'cuda:1' is not there: torch finds no CUDA device. Use cpu or auto"
    ):
        find_device("cuda:1")
    with pytest.raises(ValueError, match=r"device 'mps' is not there: torch finds no MPS device. Use cpu or auto"):
        find_device("mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert find_device("auto") == torch.device("cuda")
    assert find_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(ValueError, match=r"device 'cuda:2' is not there: torch finds 2 CUDA devices"):
        find_device("cuda:2")


def test_cores_are_shared_out(monkeypatch):
    monkeypatch.setattr(environment.os, "sched_getaffinity", lambda _: set(range(6)), raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert cores() == 6
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert cores() == 1
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "16")
    assert cores() == 1


def test_versions_and_time():
    assert set(versions()) == {"hypermargin", "torch", "numpy"}
    assert now().endswith("+00:00")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("\n  one  \ntwo"), "one"),
        (ValueError("x" * 400), "x" * 300),
        (ValueError(""), "ValueError"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_first_line(error, line):
    assert first_line(error) == line


def test_settings_in_text():
    assert parse_assignment("m=0.4") == ("m", 0.4)
    assert parse_assignment(" shape = cosine ") == ("shape", "cosine")
    assert parse_call("warmup:steps=500,shape=cosine", "schedule") == ("warmup", {"steps": 500, "shape": "cosine"})
    assert parse_call("none", "schedule") == ("none", {})
    with pytest.raises(ValueError, match=r"schedule takes name=value, like m=0.4; got 'steps'"):
        parse_call("warmup:steps", "schedule")


def test_a_free_path(tmp_path):
    taken = tmp_path / "a.txt"
    taken.write_text("")
    assert free_path("out", tmp_path / "b.txt", (".txt",), False) == tmp_path / "b.txt"
    assert free_path("out", taken, (".txt",), True) == taken
    for path, words in [
        (tmp_path / "a.csv", r"out must end in .txt or .md; got .*a.csv"),
        (taken, r"is there already. Choose another name, or replace=True"),
        (tmp_path / "none" / "a.txt", "there is no folder .*none. Make it first"),
    ]:
        with pytest.raises(ValueError, match=words):
            free_path("out", path, (".txt", ".md"), False)
    (tmp_path / "c.txt").mkdir()
    with pytest.raises(ValueError, match=r"c.txt is a folder. Choose another name"):
        free_path("out", tmp_path / "c.txt", (".txt",), True)


@pytest.mark.parametrize("kind", ["safetensors", "pt"])
def test_tensors_come_back(kind, tmp_path):
    path = tmp_path / f"x.{kind}"
    whole = torch.randn(4, 3)
    tied = {"a": whole, "b": whole, "c": whole[1:2], "d": whole.T, "e": torch.tensor(2)}
    getattr(tensor_files, f"write_{kind}")(path, tied)
    back = getattr(tensor_files, f"read_{kind}")(path)
    assert back.keys() == tied.keys()
    assert all(torch.equal(back[name], tied[name]) for name in tied)
    (tmp_path / "plain").write_text("")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_is_an_os_error(tmp_path):
    (tmp_path / "x.npy").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        tensor_files.write_npy(tmp_path / "x.npy", np.zeros(10_000))


def test_objects_are_not_read(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{}], dtype=object))
    np.savez(tmp_path / "x.npz", a=np.array([{}], dtype=object))
    for name in ("x.npy", "x.npz"):
        with pytest.raises(ValueError, match="it holds Python objects, which are not read"):
            tensor_files.read_arrays(tmp_path / name)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), torch.optim.Adam, torch.optim.Adamax, torch.optim.NAdam,
        lambda p: torch.optim.AdamW(p, amsgrad=True), torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.RAdam,
        lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.9),
    ],
)  # fmt: skip
def test_optimiser_state_by_element_is_listed(make):
    """Every entry of the parameter's shape is in the list, and no other is."""
    parameter = torch.nn.Parameter(torch.randn(5, 3))
    optimizer = make([parameter])
    parameter.sum().backward()
    optimizer.step()
    shaped = {k for k, v in optimizer.state[parameter].items() if torch.is_tensor(v) and v.shape == parameter.shape}
    assert shaped <= PER_ELEMENT
    assert {k for k in optimizer.state[parameter] if k in PER_ELEMENT} == shaped
    assert shaped
