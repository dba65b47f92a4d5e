"""What the commands of `hypermargin head` share: their flags, lists of ids in text files, and how they speak."""

from __future__ import annotations

import csv
import functools
import inspect
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_type_hints

import typer

from hypermargin.cli._app import ALLOW_OLDER, plain_errors
from hypermargin.cli._tables import Section

if TYPE_CHECKING:
    from torch import Tensor

    from hypermargin.heads import Pair, Weights

MOST = 10**7  # ids in a range


class Shared(NamedTuple):
    """The flags of every command that writes."""

    prefix: Annotated[str, typer.Option(help='Where the head is a layer of a model: its name, as "fc.".')] = ""
    classes: Annotated[
        int | None, typer.Option(help="How many classes there must be, to notice a missing shard.")
    ] = None
    centers: Annotated[
        int | None,
        typer.Option(help="Rows per class, for files that do not say how many centers a class has.", min=1),
    ] = None
    rows_only: Annotated[
        bool, typer.Option("--rows-only", help="Drop bias and margins that the format cannot hold.")
    ] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be written, and write nothing.")] = (
        False
    )
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False
    allow_older: Annotated[bool, typer.Option("--allow-older", help=ALLOW_OLDER)] = False


def with_shared(work: Callable[..., None]) -> Callable[..., None]:
    """Make a command with the flags of `work` and of `Shared`, which it gets as one; complaints take one line."""

    @functools.wraps(work)
    def command(**given: Any) -> None:
        shared = Shared(**{name: given.pop(name) for name in Shared._fields})
        with complaints():
            work(**given, shared=shared)

    keyword = inspect.Parameter.KEYWORD_ONLY
    own = inspect.signature(work, eval_str=True).parameters.values()
    flags = [each.replace(kind=keyword) for each in own if each.name != "shared"]
    for name, kind in get_type_hints(Shared, include_extras=True).items():
        flags.append(inspect.Parameter(name, keyword, default=Shared._field_defaults[name], annotation=kind))
    command.__signature__ = inspect.Signature(flags)  # type: ignore[attr-defined]  # typer reads it
    command.__annotations__ = {each.name: each.annotation for each in flags}
    del command.__wrapped__
    return command


@contextmanager
def complaints() -> Iterator[None]:
    """Treat files that cannot be read or written, and missing packages, as complaints about input too."""
    with plain_errors():
        try:
            yield
        except (OSError, ImportError) as error:
            raise ValueError(str(error)) from None


def read(files: list[Path], shared: Shared) -> Weights:
    """Read what the command works on."""
    from hypermargin import heads

    return heads.read(
        files, prefix=shared.prefix, classes=shared.classes, centers=shared.centers, allow_older=shared.allow_older
    )


def finish(weights: Weights, before: int, ids: Tensor, out: Path, ids_out: Path | None, shared: Shared) -> None:
    """Write what resize and merge changed, and the new ids."""
    from hypermargin.files import free_path

    if ids_out is not None:
        free_path("--ids-out", ids_out, (".csv",), shared.force)
    # A .pt file keeps the names that its source had.
    keeps = weights.format in ("linear", "metric-learning") and out.suffix in (".pt", ".pth")
    with nullcontext() if ids_out is None or shared.dry_run else writing_ids(ids_out, ids):
        put(weights, out, shared, format=weights.format if keeps else None, before=before)
    if ids_out is not None:
        say("would write" if shared.dry_run else "written", f"{ids_out}: the new id of {before:,} classes")


def put(
    weights: Weights,
    out: Path,
    shared: Shared,
    *,
    format: str | None = None,
    shards: int = 1,
    before: int | None = None,
) -> None:
    """Write the files, or say what they would be."""
    from hypermargin import heads

    if format is None and out.is_dir():
        raise ValueError(
            f"--out: {out} is a folder. Name a file; for insightface's shards, head export makes them."
        )
    flags = {"rows_only": shared.rows_only, "replace": shared.force, "dry_run": shared.dry_run}
    outputs = heads.write(weights, out, format=format, shards=shards, **flags)
    if before is not None:
        say("classes", f"{before:,} to {weights.classes:,}")
    written = {"weight"} if format == "metric-learning" else set(outputs[0].entries)
    lost = [name for name in weights.entries() if name not in written]
    if lost:
        say("left out", f"{', '.join(lost)}: {outputs[0].format} keeps none of these in its files")
    for path, kind, entries in outputs:
        parts = [
            f"{name} {'×'.join(map(str, t.shape)) or 'number'} {str(t.dtype).removeprefix('torch.')}"
            for name, t in entries.items()
        ]
        say("would write" if shared.dry_run else "written", f"{path} ({kind}): {', '.join(parts)}")


@contextmanager
def writing_ids(path: Path, ids: Tensor) -> Iterator[None]:
    """Write lines of old,new; −1: removed. Complete at the beginning, in place once what goes with them is."""
    from hypermargin.files import replacing

    with replacing(path) as temporary:
        try:
            with temporary.open("w", encoding="utf-8", newline="") as file:
                lines = csv.writer(file, lineterminator="\n")
                lines.writerow(("old", "new"))
                lines.writerows(enumerate(ids.tolist()))
        except OSError as error:
            raise ValueError(f"--ids-out: {path} cannot be written ({error.strerror}).") from None
        yield


def read_ids(name: str, text: str) -> list[int]:
    """Read `3,5,8-12`, or a file of such, in lines or with commas."""
    if re.fullmatch(r"[\d\s,-]+", text):
        return [k for word in text.split(",") for k in _range(name, word.strip())]
    if not os.path.exists(text):  # Path.exists fails on a name that is too long
        raise ValueError(f"{name}: expected ids such as 3,5,8-12, or a file of them; got {text!r}, which is none.")
    found = [k for line, words in _lines(Path(text)) for word in words for k in _range(line, word)]
    if not found:
        raise ValueError(f"{text}: it holds no ids.")
    return found


def read_groups(path: Path) -> list[list[int]]:
    """Read one group of ids per line."""
    return [[k for word in words for k in _range(line, word)] for line, words in _lines(path)]


def read_map(path: Path) -> dict[int, int]:
    """Read lines of old,new; a heading is passed over."""
    found: dict[int, int] = {}
    for line, words in _lines(path):
        if not found and words == ["old", "new"]:
            continue
        if len(words) != 2 or any("-" in word for word in words):
            raise ValueError(f"{line}: expected old,new; got {','.join(words)!r}.")
        old, new = (_range(line, word)[0] for word in words)
        if old in found:
            raise ValueError(f"{line}: class {old} is there already.")
        found[old] = new
    if not found:
        raise ValueError(f"{path}: it holds no ids.")
    return found


def read_embeddings(embeddings: Path, labels: Path) -> tuple[Tensor, Tensor]:
    """Read embeddings and labels from two .npy files."""
    import torch

    from hypermargin.evaluate import files

    found = files.read(embeddings, labels)
    assert isinstance(found, files.Embedded)
    if found.labels.dtype.kind not in "iu":
        raise ValueError(f"{labels}: labels must be whole numbers; got {found.labels.dtype}.")
    return torch.from_numpy(found.features), torch.from_numpy(found.labels.astype("int64"))


def read_counts(path: Path) -> Tensor:
    """Read one number per class from a .npy file."""
    import torch

    from hypermargin.common.tensor_files import read_arrays

    found = read_arrays(path)
    if isinstance(found, dict) or found.dtype.kind not in "iuf" or found.ndim != 1:
        raise ValueError(f"{path}: expected a .npy file with one number per class.")
    return torch.from_numpy(found.astype("float64"))


def read_numbers(name: str, text: str | None) -> float | list[float] | None:
    """Read `0.5`, or `1,0.3,0.2`."""
    if text is None:
        return None
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        raise ValueError(f"{name} must be a number, or several such as 1,0.3,0.2; got {text!r}.") from None
    return found if len(found) > 1 else found[0]


def _lines(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the place and the text of every line that is not empty."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read ({error}).") from None
    for number, line in enumerate(text.splitlines(), 1):
        words = [word.strip() for word in line.split(",") if word.strip()]
        if words:
            yield f"{path}, line {number}", words


def _range(where: str, word: str) -> range:
    first, dash, last = word.partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()):
        raise ValueError(f"{where}: expected ids such as 3 or 8-12; got {word!r}.")
    found = range(int(first), int(last if dash else first) + 1)
    if not 0 < len(found) <= MOST:
        raise ValueError(f"{where}: {word} is {'no' if not found else 'too long a'} range of ids.")
    return found


def say(name: str, text: str) -> None:
    """Print one line."""
    typer.echo(f"{name:<12} {text}")


def listed(numbers: list[int]) -> str:
    """List the first twenty."""
    return ", ".join(map(str, numbers[:20])) + (", …" if len(numbers) > 20 else "")


def rows_of(ids: Tensor) -> str:
    """Say how many classes, and which."""
    return f"{len(ids):,}: {listed(ids.tolist())}" if len(ids) else "none"


def table(title: str, pairs: list[Pair]) -> Section:
    """Lay out pairs of classes as a table."""
    rows = [(str(pair.first), str(pair.second), f"{pair.cosine:.4f}") for pair in pairs]
    return Section(title, ("class", "class", "cosine"), rows)
