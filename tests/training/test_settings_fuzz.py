"""Every field of a run's files and a user's config, with values that do not belong there: our words, or success."""

import contextlib
import dataclasses
import json
import os
import shutil
import zipfile

import numpy as np
import pytest
import torch
from nasty import NASTY, mutations

from hypermargin import heads
from hypermargin.compare import Plan
from hypermargin.data import DataError, from_arrays
from hypermargin.deploy import metadata
from hypermargin.evaluate import Thresholds
from hypermargin.training import Config, DivergedError, RunError, checkpoint, load, train
from hypermargin.training.budget import decide
from hypermargin.training.build import build_head, resolve, resolve_head
from hypermargin.training.checkpoint import CheckpointError
from hypermargin.training.config import from_dict, read_config, read_toml
from hypermargin.training.models import create_model
from hypermargin.training.run import About, read_split

FIELDS = [field.name for field in dataclasses.fields(Config)]
# A config is wrong in its words, or does not fit; that is all a caller has to know.
OURS = (ValueError, TypeError, RunError, CheckpointError, DivergedError)
BASE = {
    "data": "digits", "dim": 4, "epochs": 1, "batch": 16, "log": 2, "tensorboard": False, "threads": 1,
    "workers": 0, "model": "mlp", "model_set": {"widths": [8]}, "augment": "none", "ema": 0.5,
    "device": "cpu", "evaluate": 1, "lr_warmup": 0.5, "keep": 1,
}  # fmt: skip
# Words of torch, Python and numpy that have come through before.
THEIRS = (
    "Error(s) in loading state_dict", "object has no attribute", "failed to unpack", "expected str, bytes",
    "multiple values", "int too large", "Unknown format code", "unhashable", "not subscriptable",
    "out of range for",    "unexpected keyword", "positional argument", "can't allocate", "embedded null",
)  # fmt: skip


def data():
    rng = np.random.default_rng(0)
    labels = np.arange(48) % 4
    images = (rng.normal(size=(4, 6, 6))[labels] * 50 + 128).clip(0, 255).astype(np.uint8)
    return from_arrays(images, labels, open_set=False)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "run"
    train(Config(**BASE), folder, data=data(), quiet=True)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "run")


# A third of the values each; the first in the fast part.
over_thirds = pytest.mark.parametrize("third", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 2))])


def in_our_words(field, work, value, errors=OURS):
    """Do it; if it fails, then by an error of ours, in one paragraph that names the field."""
    try:
        work()
    except errors as error:
        text = str(error)
        assert field in text, f"{field} = {value!r}: {text}"
        assert len(text) < 1500, f"{field} = {value!r}: {text[:2000]}"
        assert "\0" not in text
        assert "\x1b" not in text
        found = [words for words in THEIRS if words in text]
        assert not found, f"{field} = {value!r}: {text}"
        return text
    except Exception as error:  # what else it is, is the finding
        raise AssertionError(f"{field} = {value!r:.200}: {type(error).__name__}: {error}") from error
    return None


# A user's config


@pytest.mark.parametrize("field", FIELDS)
def test_a_setting_of_a_users_config(field):
    """Checked, decided and built; nothing is trained."""

    def build(values):
        config = resolve(from_dict(values), data())
        config, _ = decide(resolve_head(config, 4)[0], 40, 4)
        if ":" not in str(config.model):
            create_model(str(config.model), (1, 6, 6), config.dim, **config.model_set)
        build_head(config, 4)

    refused = 0
    for value in NASTY:
        told = in_our_words(field, lambda value=value: build({**BASE, field: value}), value)
        refused += told is not None
    assert refused > len(NASTY) / 3


def test_names_of_settings_and_files_that_are_none(tmp_path):
    for name in ("", "x", "\0", "a" * 5000, "Dim", "dim "):
        in_our_words("setting", lambda name=name: from_dict({name: 1}), name)
    path = tmp_path / "config.toml"
    for text in ("a = = 1", "a = " + "[" * 5000, "a = " + "9" * 5000, "\0", "date = 2020-01-01", "=", "[[a]]"):
        path.write_text(text)
        in_our_words(
            "config" if "date" not in text else "date", lambda: from_dict(read_toml(path), str(path)), text[:20]
        )
    path.write_text("model_set = {a = 2020-01-01}")
    assert "model_set" in in_our_words("model_set", lambda: from_dict(read_toml(path)), "a date")
    path.write_bytes(b"\xff\xfe")
    in_our_words("config", lambda: read_toml(path), "bytes")
    in_our_words("config", lambda: read_toml(tmp_path), "a folder")
    with (tmp_path / "large.toml").open("wb") as file:
        file.truncate(2**34)  # 16 GiB of nothing
    assert "more than" in in_our_words("config", lambda: read_toml(tmp_path / "large.toml"), "large")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"dim": 99999999999999999999}, "dim must be at most 1,048,576; got 99999999999999999999"),
        ({"epochs": 99999999999999999999}, "epochs must be at most 1,000,000"),
        ({"clip": 99999999999999999999}, "clip must lie in [0, 1e+12); got 1e+20"),
        ({"schedule": [1]}, "an item of schedule must be of type str; got 1 (int)"),
        ({"schedule": ["warmup:steps=-1"]}, "schedule 'warmup:steps=-1': MarginWarmup(steps=…) must be at least 1"),
        ({"schedule": ["warmup:stops=1"]}, "schedule 'warmup:stops=1'"),
        ({"schedule": ["warmup:steps=99999999999999999999"]}, "must be a whole number below 2^63"),
        ({"verify": [1]}, "an item of verify must be of type str; got 1 (int)"),
        ({"device": "x"}, "device must be one of 'auto', 'cpu', 'cuda', 'mps'; got 'x'"),
        ({"device": ""}, "device must be one of"),
        ({"device": "cpu:x"}, "device must be cpu, cuda, cuda:1, mps or auto; got 'cpu:x'"),
        ({"device": "\0"}, "device must not hold control characters"),
        ({"data": "a\0b"}, "data must not hold control characters"),
        ({"data": ""}, "data must not be empty"),
        ({"set": {"dim": 3}}, "set: dim is not an override of a head. It is the setting dim (--dim)"),
        ({"set": {"classes": 3}}, "Their number is that of the identities that are trained"),
        ({"set": {"device": "x"}}, "It is the setting device (--device)"),
        ({"set": {"centers": 10**12}}, "centers must be at most 1000"),
        ({"set": {"unit_weight": "x"}}, "unit_weight must be true or false; got 'x' (str)"),
        ({"set": {"class_margins": "x"}}, "class_margins must be a list with the numbers of each class; got 'x'"),
        ({"set": {"m": 10**400}}, "set: m must be a whole number below 2^63 in size; got a number of about 400"),
        ({"model_set": {"a": [[[[1]]]]}}, "model_set: a is nested too deeply"),
        ({"model_set": {"dim": 3}}, "model_set: dim is not an option of a network. It is the setting dim (--dim)"),
        ({"augment": "rotate=x"}, "augment: rotate needs a number"),
        ({"lr_milestones": [0.5, 10**400]}, "lr_milestones must lie in [0, 1); got a number of about 400 digits"),
        ({"workers": 10**6}, "workers must be at most 512"),
        ({"size": 10**6}, "size must be at most 8192"),
        ({"head": "arcfase"}, "unknown head 'arcfase'"),
    ],
)  # fmt: skip
def test_what_was_said_in_others_words(settings, words):
    with pytest.raises((ValueError, TypeError)) as error:
        from_dict(settings)
    assert words.replace("8192", "8,192").replace("1000", "1,000") in str(error.value) or words in str(error.value)


# A saved run


@pytest.mark.parametrize("field", ["dim", "model", "model_set", "head", "set", "schedule", "ema", "sample_rate"])
def test_a_setting_of_a_saved_run(folder, field):
    """Those that decide what is built. The others are in the slow part."""
    refused = sum(told is not None for told in _loads_with(folder, field))
    assert refused > len(NASTY) / 3


@pytest.mark.slow  # 2,856 loads
@pytest.mark.parametrize("field", FIELDS)
def test_every_setting_of_a_saved_run(folder, field):
    assert len(list(_loads_with(folder, field))) == len(NASTY)


def _loads_with(folder, field):
    """Load the run with each nasty value in a field."""
    path = folder / "config.toml"
    text, values = path.read_text(), read_toml(path)
    for value in NASTY:
        changed = {**values, field: value}
        try:
            path.write_text(Config.to_toml(_Loose(changed)))
        except (TypeError, ValueError):  # TOML has no place for it
            continue
        yield in_our_words(field, lambda: load(folder), value)
    path.write_text(text)


class _Loose(Config):
    """A config that checks nothing, to write down."""

    def __init__(self, values):
        for name in FIELDS:
            object.__setattr__(self, name, values.get(name))

    __post_init__ = None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dim": 2}, "dim = 2 (config.toml) does not fit the weights, which have dim = 4"),
        ({"dim": 2**20}, "dim = 1048576 (config.toml) does not fit the weights, which have dim = 4"),
        ({"model_set": {}}, "with model_set = {} (config.toml), for shape = [1, 6, 6] (run.json), does not fit"),
        ({"model_set": {"widths": [2**20, 2**20, 2**20]}}, "the settings ask for 1.weight of shape (1048576, 36)"),
        ({"model": "none"}, "model_set: model 'none' has no options; got 'widths'"),
        ({"head": "softmax", "set": {}}, "head = 'softmax' with its set, schedule, settings and sample_rate"),
        ({"set": {"centers": 3}}, "classes (run.json) lists 4 with centers = 3 each (set)"),
        ({"ema": 0.0}, None),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_the_weights_say_which(folder, changes, words):
    config = read_config(folder)
    (folder / "config.toml").write_text(dataclasses.replace(config, **changes).to_toml())
    if words is None:
        load(folder)
        return
    with pytest.raises(RunError) as error:
        load(folder)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"optimizer": "sgd", "lr": 0.1}, "optimizer = 'sgd' (config.toml) does not fit the checkpoint"),
        ({"dim": 2}, "does not fit the weights"),
        ({"model_set": {"widths": [9]}}, "model_set = {'widths': [9]}"),
        ({"head": "softmax", "set": {}}, "head = 'softmax'"),
    ],
)
def test_a_resumed_run_whose_settings_do_not_fit_says_which(folder, changes, words):
    config = read_config(folder)
    (folder / "config.toml").write_text(dataclasses.replace(config, **changes).to_toml())
    with pytest.raises((ValueError, RunError)) as error:
        train(Config(), folder, resume=True, data=data(), quiet=True)
    assert words in str(error.value)


@over_thirds
def test_run_json_field_by_field(folder, third):
    path = folder / "run.json"
    text, count = path.read_text(), 0
    for place, changed in mutations(json.loads(text), third):
        path.write_text(json.dumps(changed))
        first = str(place[0])
        told = in_our_words("", lambda: About.read(folder), place)
        if told is not None:
            assert first in told, (place, told)
            assert "run.json is damaged" in told
        elif first in ("shape", "classes", "scaling", "open_set"):
            in_our_words("", lambda: load(folder), place)
        count += 1
    path.write_text(text)
    assert count > 300


@pytest.mark.parametrize(
    "text", ["", "[]", "3", "null", "{", "[" * 100_000, '"x"', "{}", '{"shape": [3, 1000000000]}']
)
def test_run_json_that_is_none(folder, text):
    (folder / "run.json").write_text(text)
    with pytest.raises(RunError, match=r"run\.json is damaged"):
        load(folder)


def test_sizes_in_run_json_take_no_memory(folder):
    about = json.loads((folder / "run.json").read_text())
    for shape in ([3, 10**9, 10**9], [3, 8192, 8193], [10**12], [1, 6], [1, 6, 6, 6], [0, 6, 6], [1, 6, -6]):
        (folder / "run.json").write_text(json.dumps({**about, "shape": shape}))
        with pytest.raises(RunError, match="shape"):
            load(folder)
    (folder / "run.json").write_text(json.dumps({**about, "shape": [3, 8192, 8192]}))
    with pytest.raises(RunError, match="shape"):  # the network alone would have 6 GB
        load(folder)
    with (folder / "run.json").open("wb") as file:
        file.truncate(2**34)
    with pytest.raises(RunError, match="more than"):
        load(folder)


@over_thirds
def test_state_json_field_by_field(folder, third):
    step = checkpoint.steps(folder / "checkpoints")[-1]
    path = step / "state.json"
    state = json.loads(path.read_text())
    count = 0
    for place, changed in mutations(state, third):
        path.write_text(json.dumps(changed))
        resigned(step, path.name)
        in_our_words("state.json", lambda: checkpoint.load(step), place)
        count += 1
    assert count > 150


def resigned(step, name):
    """Write the manifest anew for a file that was changed: whoever changes one can do that too."""
    manifest = step / "manifest.json"
    listed = json.loads(manifest.read_text())
    listed["files"] |= checkpoint._digests([step / name])
    manifest.write_text(json.dumps(listed))


def test_tensors_that_unpack_to_more_than_they_are(folder, tmp_path):
    step = checkpoint.steps(folder / "checkpoints")[-1]
    torch.save({"weight": torch.zeros(2**20)}, tmp_path / "zeros.pt")
    with (
        zipfile.ZipFile(tmp_path / "zeros.pt") as plain,
        zipfile.ZipFile(step / "training.pt", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for entry in plain.infolist():
            packed.writestr(entry.filename, plain.read(entry))
    resigned(step, "training.pt")
    assert (step / "training.pt").stat().st_size < 2**14
    with pytest.raises(CheckpointError, match="it would unpack to 4,"):
        checkpoint.load(step)
    shutil.copy(step / "training.pt", tmp_path / "head.pt")
    with pytest.raises(ValueError, match="it would unpack to"):
        heads.read(tmp_path / "head.pt")


@pytest.mark.parametrize(
    "content", [None, [], {}, {"optimizer": 3}, {"optimizer": {"state": {}, "param_groups": []}}]
)
def test_training_pt_that_is_none(folder, content):
    step = checkpoint.steps(folder / "checkpoints")[-1]
    torch.save(content, step / "training.pt")
    resigned(step, "training.pt")
    with pytest.raises((RunError, CheckpointError, ValueError)) as error:
        train(Config(), folder, resume=True, data=data(), quiet=True)
    assert "checkpoint" in str(error.value)


def test_an_optimiser_of_other_shapes(folder):
    step = checkpoint.steps(folder / "checkpoints")[-1]
    training = torch.load(step / "training.pt", weights_only=True)
    training["optimizer"]["state"][0]["exp_avg"] = torch.zeros(1).expand(10**12)  # as large as a stranger says
    torch.save(training, step / "training.pt")
    resigned(step, "training.pt")
    with pytest.raises(ValueError, match=r"its exp_avg 0 has shape \(1000000000000,\)"):
        train(Config(), folder, resume=True, data=data(), quiet=True)


@over_thirds
def test_manifest_field_by_field(folder, third):
    step = checkpoint.steps(folder / "checkpoints")[-1]
    manifest = step / "manifest.json"
    for place, changed in mutations(json.loads(manifest.read_text()), third):
        manifest.write_text(json.dumps(changed))
        in_our_words("checkpoint", lambda: checkpoint.load(step), place)


@pytest.mark.parametrize("name", ["train", "validation", "test", "classes", "open_set"])
def test_split_npz_field_by_field(folder, name):
    path = folder / "split.npz"
    with np.load(path) as found:
        arrays = dict(found)
    for bad in (
        np.array([-1]), np.array([48]), np.array([2**62]), np.array([0.5]), np.array(["x"]), np.array(0),
        np.zeros((2, 2), np.int64), np.zeros(10**6, np.int64), np.array([{}], dtype=object), np.array([np.nan]),
    ):  # fmt: skip
        np.savez_compressed(path, **{**arrays, name: bad})
        with pytest.raises(RunError, match=r"split\.npz is damaged"):
            read_split(path, 48, 4)
    np.savez_compressed(path, **{key: value for key, value in arrays.items() if key != name})
    with pytest.raises(RunError, match=r"split\.npz is damaged"):
        read_split(path, 48, 4)


@over_thirds
def test_thresholds_json_field_by_field(folder, third):
    path = folder / "thresholds.json"
    Thresholds(0.5, {0.1: 0.6}, "validation", 4, 10, 100, 3).save(folder)
    for place, changed in mutations(json.loads(path.read_text()), third):
        path.write_text(json.dumps(changed))
        told = in_our_words("", lambda: Thresholds.read(folder), place)
        assert told is None or "thresholds.json is damaged" in told


@over_thirds
def test_metadata_of_onnx_field_by_field(saved, third):
    trained = load(saved)
    about = metadata.describe(trained, Thresholds(0.5, {0.1: 0.6}, "validation", 4, 10, 100, trained.step))
    count = 0
    read_again = {name: about[name] for name in ("format", "input", "dim", "thresholds", "notes")}
    for place, changed in mutations(read_again, third):

        def read(changed=changed):
            metadata.CONTENT("", changed)
            metadata.thresholds_in(changed)

        in_our_words("", read, place, errors=(ValueError,))
        count += 1
    assert count > 300


@over_thirds
def test_plan_json_field_by_field(tmp_path, third):
    plan = Plan({"data": "digits", "epochs": 1}, ("softmax", "arcface:m=0.3"), seeds=2, plane=1)
    plan.save(tmp_path)
    path = tmp_path / "plan.json"
    for place, changed in mutations(json.loads(path.read_text()), third):
        path.write_text(json.dumps(changed))
        told = in_our_words("", lambda: Plan.read(tmp_path), place)
        assert told is None or "plan.json is damaged" in told


@pytest.mark.slow  # 192 trainings
@pytest.mark.parametrize("field", [f for f in FIELDS if f not in ("compile", "timeout")])
def test_what_is_accepted_trains(field, tmp_path):
    """Every nasty value that a config takes goes through a training, or ends in words."""
    own = None if field in ("data", "size", "color", "samples_key", "labels_key", "on_bad") else data()
    for number, value in enumerate(NASTY):
        with contextlib.suppress(ValueError, TypeError):
            config = Config(**{**BASE, field: value})
            if config.epochs is not None and config.epochs > 3:
                continue
            small = dataclasses.replace(config, log=config.log or 1)
            in_our_words("", lambda n=number, c=small: train(c, tmp_path / str(n), data=own, quiet=True), value)


# The command

CASES = [
    ("advise --classes 99999999999999999999 --dim 8", "classes must be at most"),
    ("advise --classes 10 --dim 99999999999999999999", "dim must be at most"),
    ("advise --classes 10 --dim 8 --m 1e400", "must lie in"),
    ("advise --classes 10 --dim 8 --m nan", "must lie in"),
    ("advise --classes 10 --dim 8 --angle nan", "angle must lie in"),
    ("advise --classes 10 --dim 8 --probability inf", "probability must lie in"),
    ("advise --classes 10 --dim 8 --margin x\n", "unknown margin"),
    ("train --data digits --out OUT --set dim=3", "set: dim is not an override"),
    ("train --data digits --out OUT --dim 99999999999999999999", "dim must be at most"),
    ("train --data digits --out OUT --epochs 99999999999999999999", "epochs must be at most"),
    ("train --data digits --out OUT --clip nan", "clip must lie in"),
    ("train --data digits --out OUT --device \x1b[2J", "device must not hold control characters"),
    ("train --data digits --out OUT --schedule warmup:steps=x", "schedule"),
    ("train --config OUT", "config: "),
    ("compare --data digits --out OUT --seeds 99999999999999999999", "seeds must be at most"),
    ("compare --data digits --out OUT --plane 99999999999999999999", "plane must be at most"),
    ("compare --data digits --out OUT --jobs 99999999999999999999", "jobs must be at most"),
    ("compare --data digits --out OUT --head arcface:dim=3", "dim is not an override"),
    ("evaluate EMBEDDED --confidence nan", "confidence"),
    ("evaluate EMBEDDED --confidence 2", "confidence"),
    ("evaluate EMBEDDED --confidence inf", "confidence"),
    ("evaluate EMBEDDED --device x", "device must be"),
    ("evaluate EMBEDDED --device cuda:99999999999999999999", "device"),
    ("evaluate RUN --part x", "--part must be"),
    ("export RUN --dtype x", "dtype must be"),
    ("export RUN --format x", "format must be"),
    ("export RUN --which x", "which must be"),
    ("verify RUN OUT OUT --far nan", ""),
]  # fmt: skip


@pytest.mark.parametrize(("line", "words"), CASES, ids=[line[:60] for line, _ in CASES])
def test_the_command_says_it_in_a_line(line, words, saved, tmp_path, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "e.npz", embeddings=rng.normal(size=(20, 4)).astype("f4"), labels=np.arange(20) % 5)
    for name, path in (("OUT", tmp_path), ("RUN", saved), ("EMBEDDED", tmp_path / "e.npz")):
        line = line.replace(name, str(path))
    code, _, err = run(*line.split(" "))
    assert code != 0
    assert words in err
    assert "Traceback" not in err
    assert "\x1b" not in err
    told = [text for text in err.splitlines() if "error" in text.lower()]
    assert len(told) == 1, err


def test_the_command_in_a_process_of_its_own(tmp_path):
    from command import shell

    code, out, err = shell("train", "--data", "digits", "--out", tmp_path / "r", "--set", "dim=3")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "set: dim is not an override of a head" in err
    assert not os.path.exists(tmp_path / "r" / "run.json")
    assert issubclass(DataError, ValueError)
