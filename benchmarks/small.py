"""The benchmark of small sets: train, evaluate, export and verify with defaults, beside pixels and PCA.

Forty identities of ten images each, the size of ORL, where a third of the identities is for the test and 240 images
are left for training. Everything goes through the command line as a user has it, without a setting but the seed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sklearn.decomposition import PCA

from benchmarks import command
from benchmarks.record import Say, in_words, store, surroundings
from hypermargin import checks
from hypermargin.common.tensor_files import read_npz
from hypermargin.data import Array, decode_once, open_data
from hypermargin.evaluate import verification
from hypermargin.training.config import read_toml
from hypermargin.training.run import read_split

IDENTITIES, EACH = 40, 10
COMPONENTS = 20, 50, 100
COMPARED = 40  # test images that `verify` compares with the first one


@dataclass(frozen=True)
class Row:
    """One seed of one set: EER of all test pairs in shares, and what `verify` said of some."""

    data: str
    seed: int
    epochs: int
    batch: int
    step: int  # that was tested
    steps: int
    ours: float
    low: float  # the 95 % interval over identities that `evaluate` gives
    high: float
    pixels: float
    pca: float
    kind: str  # of PCA: the best on the test itself, which favours it
    right: int  # pairs that the exported network tells, at the threshold saved with it
    asked: int
    seconds: float  # of training
    warnings: tuple[str, ...]


def characters(folder: Path, out: Path) -> Path:
    """Forty characters of Omniglot's background part, by ten people."""
    found = read_npz(folder / "omniglot28.npz")
    background = found["split"] == 0
    return _some(found["images"][background], found["label"][background], out / "characters.npz")


def voices(folder: Path, out: Path) -> Path:
    """Forty speakers of AudioMNIST, ten takes each of whatever digit."""
    found = read_npz(folder / "audiomnist_logmel.npz")
    return _some(found["logmel_u8"], found["speaker"], out / "voices.npz")


def faces(folder: Path, out: Path) -> Path:
    """The ORL faces as they are, a folder for each of forty people."""
    return folder / "orl"


SETS: dict[str, tuple[Callable[[Path, Path], Path], str]] = {
    "characters": (characters, "omniglot28.npz"),
    "voices": (voices, "audiomnist_logmel.npz"),
    "faces": (faces, "orl"),
}


def _some(samples: Array, labels: Array, path: Path) -> Path:
    rng = np.random.default_rng(0)
    chosen = rng.permutation(np.unique(labels))[:IDENTITIES]
    rows = np.concatenate([rng.permutation(np.flatnonzero(labels == each))[:EACH] for each in chosen])
    np.savez(path, images=samples[rows], labels=labels[rows])
    return path


def measure(name: str, data: Path, seed: int, folder: Path) -> Row:
    """Train, evaluate, export and verify by the command; pixels and PCA on the same split."""
    run = folder / f"{name}-{seed}"
    started = time.monotonic()
    _command("train", "--data", data, "--seed", seed, "--out", run, "--quiet")
    seconds = time.monotonic() - started
    _command("evaluate", run)
    _command("export", run)
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    found = json.loads((run / "evaluation" / "evaluation.json").read_text(encoding="utf-8"))["verification"]
    images = decode_once(open_data(str(data)), memory=4.0, workers=0, on_bad="error", say=lambda text: None)
    parts = read_split(run / "split.npz", len(images), len(images.classes))
    config = read_toml(run / "config.toml")
    samples, labels = np.asarray(images.samples), images.labels
    flat = samples.reshape(len(samples), -1).astype(np.float32)
    known, test = np.concatenate((parts.train, parts.validation)), parts.test
    projected = {"pixels": flat[test] - flat[known].mean(0)}
    for count in COMPONENTS:
        for whiten in (False, True):
            pca = PCA(count, whiten=whiten, random_state=0).fit(flat[known])
            projected[f"{count}{' whitened' if whiten else ''}"] = pca.transform(flat[test]).astype(np.float32)
    errors = {kind: verification(features, labels[test]).eer for kind, features in projected.items()}
    pixels = errors.pop("pixels")
    kind = min(errors, key=lambda each: errors[each])
    right, asked = _verified(run, samples[test], labels[test], folder)
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    low, high = found["intervals"]["eer"]
    return Row(
        name, seed, config["epochs"], config["batch"], result["step"], max(line["step"] for line in lines),
        found["eer"], low, high, pixels, errors[kind], kind, right, asked, seconds, tuple(result["warnings"]),
    )  # fmt: skip


def _verified(run: Path, samples: Array, labels: Array, folder: Path) -> tuple[int, int]:
    """Ask `verify` with the exported file about one test image and others: how many are told, of how many."""
    order = np.random.default_rng(0).permutation(len(samples))
    own = order[labels[order] == labels[order[0]]]
    others = order[labels[order] != labels[order[0]]]
    rows = np.concatenate((own, others[: COMPARED + 1 - len(own)]))
    paths = []
    for row in rows:
        paths.append(folder / f"{row}.png")
        Image.fromarray(samples[row]).save(paths[-1])
    told = json.loads(_command("verify", run / "model.onnx", *paths, "--json"))["matches"]
    same = labels[rows[1:]] == labels[rows[0]]
    return int(sum(match["same"] == bool(s) for match, s in zip(told, same, strict=True))), len(told)


def _command(*arguments: object) -> str:
    program = [sys.executable, "-m", "hypermargin", *map(str, arguments)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(
            f"hypermargin {' '.join(map(str, arguments))} ended with {done.returncode}: {done.stderr}"
        )
    return done.stdout


def run(
    data: Path, sets: Sequence[str] = (), *, seeds: int = 5, out: Path | None = None, say: Say = print
) -> dict[str, Any]:
    """All sets that are in the folder `data`, or those asked for; writes small.json and .md into `out`.

    Rows that are there already, of other sets, stay. Each row is written when it is measured.
    """
    for name in sets:
        checks.one_of("--set", name, tuple(SETS))
    wanted = [name for name in SETS if name in sets or not sets]
    present = [name for name in wanted if (data / SETS[name][1]).exists()]
    rows = [row for row in _stored(out) if row["data"] not in present]
    absent = [f"{name} ({SETS[name][1]})" for name in wanted if name not in present]
    result: dict[str, Any] = {"environment": surroundings(), "rows": rows, "absent": absent}
    for name in present:
        with tempfile.TemporaryDirectory(prefix="hypermargin-") as temporary:
            there = SETS[name][0](data, Path(temporary))
            for seed in range(seeds):
                row = measure(name, there, seed, Path(temporary))
                say(f"{name}, seed {seed}: ours {row.ours:.2%}, pixels {row.pixels:.2%}, PCA {row.pca:.2%}, "
                    f"{row.seconds:.0f} s")  # fmt: skip
                rows.append(asdict(row))
                rows.sort(key=lambda each: (list(SETS).index(each["data"]), each["seed"]))
                store(result, as_markdown(result), "small", out, lambda text: None)
    store(result, as_markdown(result), "small", out, say)
    return result


def _stored(out: Path | None) -> list[dict[str, Any]]:
    """The rows that were measured before."""
    path = None if out is None else out / "small.json"
    if path is None or not path.exists():
        return []
    try:
        return [asdict(Row(**row)) for row in json.loads(path.read_text(encoding="utf-8"))["rows"]]
    except (json.JSONDecodeError, KeyError, TypeError):
        raise ValueError(
            f"--out has a {path.name} that this benchmark did not write; move it away or give another folder."
        ) from None


def as_markdown(result: dict[str, Any]) -> str:
    """The table, and in how many seeds each set did better than what needs no network."""
    environment = result["environment"]
    rows = [Row(**{**row, "warnings": tuple(row["warnings"])}) for row in result["rows"]]
    lines = [
        f"# Small sets, with defaults, on {environment['device']}",
        "",
        in_words(environment),
        "",
        f"{IDENTITIES} identities of {EACH} images; a third of them for the test, a tenth of the rest for "
        "validation, at least two. EER of all test pairs in %, with the 95 % interval over identities, beside the "
        "cosine of centered pixels and of PCA (fitted on what is not test; 20, 50 or 100 components, whitened or "
        "not, the best of these six on the test itself, which favours it). verify: of some pairs, those that the "
        "exported network tells at the threshold saved with it. Seconds are of a shared machine, one thread.",
        "",
        "| set | seed | batch | epochs | step tested | ours | interval | pixels | PCA | verify | training |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        lines.append(
            f"| {row.data} | {row.seed} | {row.batch} | {row.epochs} | {row.step} of {row.steps} | "
            f"{100 * row.ours:.1f} | {100 * row.low:.1f}–{100 * row.high:.1f} | {100 * row.pixels:.1f} | "
            f"{100 * row.pca:.1f} ({row.kind}) | {row.right} of {row.asked} | {row.seconds:.0f} s |"
        )
    lines.append("")
    for name in dict.fromkeys(row.data for row in rows):
        own = [row for row in rows if row.data == name]
        pixels, pca = sum(row.ours < row.pixels for row in own), sum(row.ours < row.pca for row in own)
        lines.append(f"- {name}: below pixels in {pixels} of {len(own)} seeds, below the best PCA in {pca}.")
    lines += [f"- {row.data}, seed {row.seed}: {warning}" for row in rows for warning in row.warnings]
    if result["absent"]:
        lines.append(f"- not there: {', '.join(result['absent'])}.")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = command.flags(
        "small",
        "Small sets through train, evaluate, export and verify with defaults, beside centered pixels and PCA.",
        "--data FOLDER",
        "--data FOLDER --set characters --seeds 2",
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with omniglot28.npz, audiomnist_logmel.npz, orl/"
    )
    parser.add_argument("--set", action="append", help=f"{', '.join(SETS)}; repeatable. Without it: all there are")
    parser.add_argument("--seeds", type=command.at_least(1), default=5)
    given = parser.parse_args(arguments)
    with command.plain_errors(parser):
        result = run(given.data, given.set or (), seeds=given.seeds, out=given.out, say=command.say)
    print(as_markdown(result))


if __name__ == "__main__":
    main()
