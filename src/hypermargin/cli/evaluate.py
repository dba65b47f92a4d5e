"""`hypermargin evaluate`: how good are a run's embeddings, or anybody's?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hypermargin.cli._app import ALLOW_OLDER, app, plain_errors, progress
from hypermargin.cli._tables import Section, show

if TYPE_CHECKING:
    from hypermargin.cli._findings import Findings
    from hypermargin.training import Trained


@app.command()
def evaluate(
    source: Annotated[
        Path, typer.Argument(help="A run's folder, embeddings (.npy, .npz), or scores (.npz, .csv, text).")
    ],
    labels: Annotated[
        Path | None, typer.Argument(help="The labels of embeddings in a .npy file; with --pairs their names.")
    ] = None,
    part: Annotated[str, typer.Option(help="Of a run's data: test, validation or train.")] = "test",
    out: Annotated[Path | None, typer.Option(help="A folder for files; of a run, RUN/evaluation.")] = None,
    confidence: Annotated[float, typer.Option(help="Of the intervals, such as 0.99; 0: none.")] = 0.95,
    pairs: Annotated[
        list[str] | None, typer.Option(help="Pairs: pairs.txt, .bin, .csv, trials; repeatable.")
    ] = None,
    images: Annotated[Path | None, typer.Option(help="The folder of the images that --pairs names.")] = None,
    data: Annotated[str | None, typer.Option(help="Other data for a run; all of it is evaluated.")] = None,
    levels: Annotated[int | None, typer.Option(help="How many folders of --data name an identity.", min=1)] = None,
    metric: Annotated[str, typer.Option(help="Of named embeddings with --pairs: cosine or euclidean.")] = "cosine",
    most: Annotated[int, typer.Option(help="Most samples to compare, in whole identities.", min=2)] = 50_000,
    pictures: Annotated[
        bool, typer.Option("--show-images/--no-images", help="Small pictures of samples in report.html.")
    ] = True,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
    trust: Annotated[bool, typer.Option("--trust", help="Import the code that MODULE:FUNCTION names.")] = False,
    allow_older: Annotated[bool, typer.Option("--allow-older", help=ALLOW_OLDER)] = False,
) -> None:
    """Verification, identification and geometry, with intervals, thresholds, and a page that shows all of it.

    \b
    Examples:
      hypermargin evaluate runs/first
      hypermargin evaluate runs/first --pairs lfw/pairs.txt --images lfw/images
      hypermargin evaluate runs/first --data other/ --out other-evaluation
      hypermargin evaluate embeddings.npy labels.npy --out evaluation
      hypermargin evaluate photos.npz
      hypermargin evaluate photos.npz --pairs pairs.txt
      hypermargin evaluate dlib.npz --pairs pairs.txt --metric euclidean
      hypermargin evaluate scores.csv --confidence 0.99
      hypermargin evaluate scores.txt --pairs trials.txt
    """
    from hypermargin.cli._findings import Findings
    from hypermargin.common.environment import now, versions
    from hypermargin.evaluate.intervals import check
    from hypermargin.training import RunError

    settings: dict[str, Any] = {"confidence": confidence or None, "most": most}
    with plain_errors():
        found = Findings(check(confidence, "auto"), images=pictures)
        if out is not None and out.exists() and not out.is_dir():  # now, and not after hours
            raise ValueError(f"--out must be a folder; {out} is a file.")
        try:
            if source.is_dir():
                if labels is not None:
                    raise ValueError(f"{labels}: labels are for embeddings in a file; a run has its own.")
                out = out or source / "evaluation"
                settings |= {"part": part} if data is None else {"data": Path(data).name}
                _run(found, source, part, pairs or [], images, data, levels, most, device, trust, allow_older)
            else:
                if images or data:
                    raise ValueError(f"--images and --data are for a run's folder; {source} is none.")
                if source.suffix not in (".npy", ".npz"):
                    _score_file(found, source, labels, pairs or [])
                elif pairs:
                    settings["metric"] = metric
                    _named(found, source, labels, pairs, metric)
                else:
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
    levels: int | None, most: int, device: str, trust: bool, allow_older: bool,
) -> None:  # fmt: skip
    """Evaluate a part of the run's own data, or all of other data; and pairs."""
    from hypermargin import checks
    from hypermargin.common.environment import find_device
    from hypermargin.common.text import say
    from hypermargin.data import DataError
    from hypermargin.evaluate import Thresholds
    from hypermargin.training import RunError, load
    from hypermargin.training.evaluation import MOST, PARTS, choose_thresholds, open_parts
    from hypermargin.training.pairs import read_pairs
    from hypermargin.training.paths import gone

    checks.one_of("--part", part, PARTS)
    if images is not None and not images.is_dir():
        raise ValueError(f"--images: there is no folder {images}.")
    trained = load(folder, device=find_device(device), trust=trust, allow_older=allow_older)
    for note in trained.passed_over:
        say(note)
    config = trained.config
    listed = read_pairs(pairs, images, trained.about.shape, config.on_bad)  # an error in them should come now
    found.document["run"] = {"step": trained.step, "model": config.model, "head": config.head}
    if trained.passed_over:
        found.document["run"]["passed_over"] = list(trained.passed_over)
        found.sections.append(
            Section("not the checkpoint asked for", (), [("passed over", trained.passed_over[0])])
        )
    with progress() as show_progress:
        parts = None
        if data is not None and gone(config.data):
            try:
                parts = open_parts(folder, trained, data=data, most=most, progress=show_progress)
                say(f"{data} holds the data that {folder} was trained on: its {part} part is evaluated.")
            except (RunError, DataError):  # other data, or no folder like the one that is gone
                parts = None
        if data is not None and parts is None:
            known = Thresholds.read(folder)
            usable = known is not None and known.step == trained.step
            features, labels = _other_data(trained, data, levels, most, show_progress)
            found.add_samples(features, labels, known if usable else None, "these data")
        else:
            parts = parts or open_parts(folder, trained, most=most, progress=show_progress, say=say)
            try:
                known = choose_thresholds(parts)
                if most >= MOST and not trained.passed_over:  # else it must not decide what `verify` uses
                    known.save(folder)
            except ValueError as error:
                known = None
                say(str(error))
            found.add_part(folder, parts, part, known)
        for name, one in listed.items():
            found.add_pairs(name, one, trained)


def _other_data(trained: Trained, data: str, levels: int | None, most: int, progress: Any) -> tuple[Any, Any]:
    """Return features and identities of whatever can be read."""
    import numpy as np
    import torch

    from hypermargin.common.text import say
    from hypermargin.data import at_most
    from hypermargin.deploy import embed, open_model

    found = embed(
        open_model(trained), data, levels=levels, on_bad=trained.config.on_bad, raw=True, say=say, progress=progress
    )
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


def _named(found: Findings, source: Path, names: Path | None, pairs: list[str], metric: str) -> None:
    """Evaluate named embeddings on lists of pairs; all lists are read before anything is shown."""
    from hypermargin.evaluate import score_named
    from hypermargin.evaluate.files import read_named

    lists = [_there(listed) for listed in pairs]
    embeddings, whose = read_named(source, names)
    scored = {listed: score_named(embeddings, whose, listed, metric=metric) for listed in lists}
    for listed, scores in scored.items():
        found.add_scores(scores, "distance" if metric == "euclidean" else metric, Path(listed).name)


def _score_file(found: Findings, source: Path, labels: Path | None, pairs: list[str]) -> None:
    """Evaluate scores in a text file, perhaps on a list of pairs."""
    from hypermargin.evaluate import read_scores

    if not source.is_file():
        raise ValueError(f"{source}: there is no such file.")
    if labels is not None:
        raise ValueError(f"{labels}: labels are for embeddings. Give a list of pairs as --pairs {labels}.")
    if len(pairs) > 1:
        raise ValueError(f"--pairs: scores belong to one list of pairs; got {len(pairs)}.")
    found.add_scores(read_scores(source, *map(_there, pairs)))


def _there(pairs: str) -> str:
    if not Path(pairs).is_file():
        raise ValueError(f"--pairs: there is no file {pairs}.")
    return pairs


def _write(out: Path, found: Findings, about: dict[str, Any]) -> list[str]:
    """Write evaluation.json, the curve, and pictures if matplotlib is there; return their names."""
    from hypermargin.evaluate.files import write_curve
    from hypermargin.evaluate.report import plain
    from hypermargin.files import write_text
    from hypermargin.plots import DetDisplay, NormsDisplay, RocDisplay, ScoresDisplay
    from hypermargin.runpage import page
    from hypermargin.runpage.write import write_list

    out.mkdir(parents=True, exist_ok=True)
    found.page = {"title": Path(about["source"]).stem, "date": about["date"][:10]} | found.page
    document = json.dumps(plain(about | found.document), indent=1, ensure_ascii=False, allow_nan=False)
    write_text(out / "evaluation.json", document + "\n")
    v = found.verification
    if v is None:
        return ["evaluation.json"]
    write_curve(out / "roc.csv", v.curve, list(v.tar))
    write_text(out / "report.html", page(found.page))
    written = ["evaluation.json", "roc.csv", "report.html"]
    if "look" in found.page:
        write_list(out / "look-first.csv", found.page["look"], found.where or "sample {}".format)
        written.append("look-first.csv")
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
