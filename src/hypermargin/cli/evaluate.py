"""`hypermargin evaluate`: how good are a run's embeddings, or anybody's?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hypermargin.cli._app import app, plain_errors, progress
from hypermargin.cli._tables import show

if TYPE_CHECKING:
    from hypermargin.cli._findings import Findings
    from hypermargin.training import Trained


@app.command()
def evaluate(
    source: Annotated[Path, typer.Argument(help="A run's folder, embeddings (.npy, .npz), or scores (.npz).")],
    labels: Annotated[Path | None, typer.Argument(help="The labels of embeddings in a .npy file.")] = None,
    part: Annotated[str, typer.Option(help="Of a run's data: test, validation or train.")] = "test",
    out: Annotated[Path | None, typer.Option(help="A folder for files; of a run, RUN/evaluation.")] = None,
    confidence: Annotated[float, typer.Option(help="Of the intervals, such as 0.99; 0: none.")] = 0.95,
    pairs: Annotated[list[str] | None, typer.Option(help="Pairs: pairs.txt, .bin or .csv; many times.")] = None,
    images: Annotated[Path | None, typer.Option(help="The folder of the images that --pairs names.")] = None,
    data: Annotated[str | None, typer.Option(help="Other data for a run; all of it is evaluated.")] = None,
    most: Annotated[int, typer.Option(help="Most samples to compare, in whole identities.", min=2)] = 50_000,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
    trust: Annotated[bool, typer.Option("--trust", help="Import the code that MODULE:FUNCTION names.")] = False,
) -> None:
    """Verification, identification and geometry, with intervals, thresholds and pictures.

    \b
    Examples:
      hypermargin evaluate runs/first
      hypermargin evaluate runs/first --pairs lfw/pairs.txt --images lfw/images
      hypermargin evaluate runs/first --data other/ --out other-evaluation
      hypermargin evaluate embeddings.npy labels.npy --out evaluation
      hypermargin evaluate photos.npz
      hypermargin evaluate scores.npz --confidence 0.99
    """
    from hypermargin.cli._findings import Findings
    from hypermargin.common.environment import now, versions
    from hypermargin.evaluate.intervals import check
    from hypermargin.training import RunError

    settings: dict[str, Any] = {"confidence": confidence or None, "most": most}
    with plain_errors():
        found = Findings(check(confidence, "auto"))
        if out is not None and out.exists() and not out.is_dir():  # now, and not after hours
            raise ValueError(f"--out must be a folder; {out} is a file.")
        try:
            if source.is_dir():
                if labels is not None:
                    raise ValueError(f"{labels}: labels are for embeddings in a file; a run has its own.")
                out = out or source / "evaluation"
                settings |= {"part": part} if data is None else {"data": Path(data).name}
                _run(found, source, part, pairs or [], images, data, most, device, trust)
            else:
                if pairs or images or data:
                    raise ValueError(f"--pairs, --images and --data are for a run's folder; {source} is none.")
                _files(found, source, labels, most, device)
        except (RunError, OSError) as error:
            raise ValueError(str(error)) from None
        about = {"format": 1, "source": source.name, "settings": settings, "versions": versions(), "date": now()}
        written: list[str] = []
        try:
            if out is not None:  # before anything is shown: `| head` ends the process
                written = _write(out, found, about)
        except OSError as error:
            raise ValueError(f"--out: {out} cannot be written ({error}).") from None
        finally:
            show(found.sections)
    if out is None:
        typer.echo("Numbers and pictures as files: add --out FOLDER.", err=True)
    else:
        typer.echo(f"{'written':<12} {', '.join(written)} in {out}")


def _run(
    found: Findings, folder: Path, part: str, pairs: list[str], images: Path | None, data: str | None,
    most: int, device: str, trust: bool,
) -> None:  # fmt: skip
    """Evaluate a part of the run's own data, or all of other data; and pairs."""
    from hypermargin import checks
    from hypermargin.common.environment import find_device
    from hypermargin.common.text import say
    from hypermargin.evaluate import Thresholds
    from hypermargin.training import load
    from hypermargin.training.evaluation import MOST, PARTS, choose_thresholds, open_parts, read_pairs

    checks.one_of("--part", part, PARTS)
    if images is not None and not images.is_dir():
        raise ValueError(f"--images: there is no folder {images}.")
    trained = load(folder, device=find_device(device), trust=trust)
    config = trained.config
    listed = read_pairs(pairs, images, trained.about.shape, config.on_bad)  # an error in them should come now
    found.document["run"] = {"step": trained.step, "model": config.model, "head": config.head}
    with progress() as show_progress:
        if data is not None:
            known = Thresholds.read(folder)
            usable = known is not None and known.step == trained.step
            features, labels = _other_data(trained, data, most, show_progress)
            found.add_samples(features, labels, known if usable else None, "these data")
        else:
            parts = open_parts(folder, trained, most=most, progress=show_progress, say=say)
            try:
                known = choose_thresholds(parts)
                if most >= MOST:  # a quick look must not decide what `verify` uses
                    known.save(folder)
            except ValueError as error:
                known = None
                say(str(error))
            found.add_part(parts, part, known)
        for name, one in listed.items():
            found.add_pairs(name, one, trained)


def _other_data(trained: Trained, data: str, most: int, progress: Any) -> tuple[Any, Any]:
    """Return features and identities of whatever can be read."""
    import numpy as np
    import torch

    from hypermargin.common.text import say
    from hypermargin.data import at_most
    from hypermargin.deploy import embed, open_model

    found = embed(open_model(trained), data, on_bad=trained.config.on_bad, raw=True, say=say, progress=progress)
    for bad in found.bad:
        say(f"left out: {bad}")
    if found.labels is None:
        raise ValueError(f"--data: {data} has no identities. Give one folder for each, or a file with labels.")
    rows = at_most(np.arange(len(found.labels)), found.labels, most)
    features = torch.from_numpy(found.embeddings[rows]).to(trained.head.weight.device)
    return features, np.array(found.classes)[found.labels[rows]]


def _files(found: Findings, source: Path, labels: Path | None, most: int, device: str) -> None:
    """Evaluate embeddings with labels, or scores, from files."""
    import numpy as np
    import torch

    from hypermargin.common.environment import find_device
    from hypermargin.data import at_most
    from hypermargin.evaluate.files import Scored, read

    arrays = read(source, labels)
    if isinstance(arrays, Scored):
        found.add_scores(arrays)
        return
    features, names = torch.from_numpy(arrays.features), arrays.labels
    if names.shape == (len(features),):  # else refused below, in words
        rows = at_most(np.arange(len(names)), np.unique(names, return_inverse=True)[1], most)
        features, names = features[torch.from_numpy(rows)], names[rows]
    found.add_samples(features.to(find_device(device)), names, None, "these samples")


def _write(out: Path, found: Findings, about: dict[str, Any]) -> list[str]:
    """Write evaluation.json, the curve, and pictures if matplotlib is there; return their names."""
    from hypermargin.evaluate.files import write_curve
    from hypermargin.evaluate.report import plain
    from hypermargin.files import write_text
    from hypermargin.plots import DetDisplay, NormsDisplay, RocDisplay, ScoresDisplay

    out.mkdir(parents=True, exist_ok=True)
    document = json.dumps(plain(about | found.document), indent=1, ensure_ascii=False, allow_nan=False)
    write_text(out / "evaluation.json", document + "\n")
    v = found.verification
    if v is None:
        return ["evaluation.json"]
    write_curve(out / "roc.csv", v.curve, list(v.tar))
    written = ["evaluation.json", "roc.csv"]
    pictures: dict[str, Any] = {
        "roc.png": RocDisplay.of(v),
        "det.png": DetDisplay.of(v),
        "scores.png": ScoresDisplay.of(v.curve, found.thresholds, unit=found.unit),
    }
    if found.samples is not None:
        pictures["norms.png"] = NormsDisplay.of(*found.samples)
    try:
        for name, picture in pictures.items():
            picture.save(out / name)
            written.append(name)
    except ModuleNotFoundError as error:
        typer.echo(str(error), err=True)
    return written
